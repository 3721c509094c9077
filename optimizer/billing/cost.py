"""What a request costs (docs/model.md, section 3).

A batch of ``n`` is billed ``round_up(duration_n, granularity) * memory_mb / 1024 * gb_second + request`` (BATCH, eq. (1), with the
rounding it was billed by); a request costs its share, ``sum_n P(N = n) cost_n / E[N]``. What the paper leaves out is beside it,
each term apart: cold starts, logs, the bytes that the buffer moves, and what the buffer costs per month whether used or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import ceil, isnan

import numpy as np

from sluice.batching.documents import ServiceProfile
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, Prices, default_prices
from sluice.optimizer.service.times import ServiceTimes


@dataclass(frozen=True)
class BatchCost:
    """USD per request, term by term, and USD per month for what stands there anyway.

    Parameters
    ----------
    compute, requests : float
        GB-seconds of the function, and the fee of its invocations.
    init, restore : float
        Cold starts: GB-seconds of INIT, and the restoring of a snapshot.
    machines : float
        A request's share of machines that are paid by the hour.
    pings : float
        A request's share of the pings that keep an environment warm.
    logs : float
        Log of the invocations.
    cache, load_balancer, network : float
        What the buffer pays for the bytes of a request and of its answer.
    fixed_terms : mapping of str to float
        USD per month, by part.
    """

    compute: float = 0.0
    requests: float = 0.0
    init: float = 0.0
    restore: float = 0.0
    machines: float = 0.0
    pings: float = 0.0
    logs: float = 0.0
    cache: float = 0.0
    load_balancer: float = 0.0
    network: float = 0.0
    fixed_terms: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: BatchCost) -> BatchCost:
        """Both, term by term."""
        terms, theirs, fixed = self.terms(), other.terms(), dict(self.fixed_terms)
        for part, usd in other.fixed_terms.items():
            fixed[part] = fixed.get(part, 0.0) + usd
        return BatchCost(**{name: usd + theirs[name] for name, usd in terms.items()}, fixed_terms=fixed)

    @property
    def per_request(self) -> float:
        """USD per request of what serves it, function or machines: the bill that batching changes, and a budget is about."""
        return self.compute + self.requests + self.init + self.restore + self.machines + self.pings + self.logs

    @property
    def moving(self) -> float:
        """USD for the bytes of a request and of its answer on their way: the same however requests are batched."""
        return self.cache + self.load_balancer + self.network

    @property
    def by_request(self) -> float:
        """USD per request of all that scales with requests: the one number by which settings are shown."""
        return self.per_request + self.moving

    @property
    def fixed_per_month(self) -> float:
        """USD per month that are paid whether or not a request comes."""
        return sum(self.fixed_terms.values())

    def terms(self) -> dict[str, float]:
        """Every term in USD per request; they sum to ``by_request``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fixed_terms"}

    def in_all(self, arrival_rate: float) -> float:
        """USD per request with everything, the fixed cost spread over the requests of a month at ``arrival_rate`` (requests/s)."""
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
        return self.by_request + self.fixed_per_month / SECONDS_PER_MONTH / arrival_rate


def cost_of_parts(parts: Sequence[tuple[float, int | None, BatchCost]]) -> BatchCost:
    """Of a request of any part, by its share of the requests, the memory of its function (MB; none: workers), and its cost.

    What the buffer costs per month is paid once, what is kept of a function once for each memory size.
    """
    terms = {
        f.name: sum(share * getattr(cost, f.name) for share, _, cost in parts) for f in fields(BatchCost) if f.name != "fixed_terms"
    }
    by_memory = {memory_mb: cost.fixed_terms for _, memory_mb, cost in parts}
    fixed = {name: usd for of in by_memory.values() for name, usd in of.items()}
    if "snapshot" in fixed:
        fixed["snapshot"] = sum(of.get("snapshot", 0.0) for of in by_memory.values())
    return BatchCost(**terms, fixed_terms=fixed)


@dataclass(frozen=True)
class Billing:
    """How the invocations of a function are billed.

    Parameters
    ----------
    prices : Prices
        By default the dated ones that come along.
    architecture : str
        Of the function: ``x86_64`` or ``arm64``.
    granularity : float or None
        Seconds that a duration is rounded up to; ``None`` for the price list's (1 ms; 100 ms in BATCH's year).
    cold_start_probability : float or None
        Share of the invocations that start cold, and are billed for INIT. ``None``: what predicts a setting estimates it
        (``cold_starts.ColdStarts``), and where nobody has none is billed.
    payload_bytes : int or None
        Bytes of one request, as far as the buffer pays for moving them; ``None``: those of the profile (``of_profile``), and where
        these are not known either moving them costs nothing.
    answer_bytes : int or None
        Bytes of the answer to one request; ``None`` as well.
    snap_start : bool
        Whether a cold start restores a snapshot, which is kept and restored for a price.

    Raises
    ------
    InvalidInput
        Names the field that makes no sense.
    """

    prices: Prices = field(default_factory=default_prices)
    architecture: str = "x86_64"
    granularity: float | None = None
    cold_start_probability: float | None = None
    payload_bytes: int | None = None
    answer_bytes: int | None = None
    snap_start: bool = False

    def __post_init__(self) -> None:
        _ = self.usd_per_gb_second  # refuses an architecture without a price
        require(0 < self.step < np.inf, "granularity", self.granularity, "a number of seconds > 0")
        require(0 <= (self.cold_start_probability or 0.0) <= 1, "cold_start_probability", self.cold_start_probability, "0 to 1")
        for name, value in (("payload_bytes", self.payload_bytes or 0), ("answer_bytes", self.answer_bytes or 0)):
            require(value >= 0, name, value, "bytes >= 0")

    @property
    def step(self) -> float:
        """Seconds that a duration is rounded up to."""
        return self.prices.function.granularity if self.granularity is None else self.granularity

    @cached_property
    def usd_per_gb_second(self) -> float:
        """In the first tier."""
        return self.prices.gb_second(self.architecture)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes of a request and of its answer that the buffer pays for."""
        return self.payload_bytes or 0, self.answer_bytes or 0

    @property
    def moving(self) -> dict[str, float]:
        """USD for moving a request and its answer through the buffer, by term."""
        return {
            "cache": self.prices.cache_per_request(*self.moved),
            "load_balancer": self.prices.load_balancer_per_request(*self.moved),
            "network": self.prices.network_per_request(*self.moved),
        }

    def of_profile(self, profile: ServiceProfile) -> Billing:
        """The same with the bytes that the profile measured, where none were told."""
        payload = profile.request_bytes if self.payload_bytes is None else self.payload_bytes
        answer = profile.answer_bytes if self.answer_bytes is None else self.answer_bytes
        return replace(self, payload_bytes=payload or None, answer_bytes=answer)

    def cost(
        self, batch_size_pmf: Array, service: ServiceTimes, profile: ServiceProfile, buffered: bool | None = None
    ) -> BatchCost:
        """Of a request whose batch has the sizes of ``batch_size_pmf``; the profile knows the INIT of the function.

        Unless told, there is a buffer where batches may be larger than one.
        """
        init = profile.init.get(service.memory_mb)
        seconds = init.mean if init else 0.0
        buffered = len(batch_size_pmf) > 1 if buffered is None else buffered
        return predict_cost(batch_size_pmf, service, self, init_duration=seconds, buffered=buffered)


def invocation_costs(service: ServiceTimes, billing: Billing | None = None) -> tuple[Array, float]:
    """USD of compute for a batch of 1, 2, ..., (max_batch_size,), in the first tier, and USD of request fee for one invocation."""
    billing = billing or Billing()
    return _gb_seconds(service, billing) * billing.usd_per_gb_second, billing.prices.function.request


def measured_cost(batch: MeasuredBatch, memory_mb: int, billing: Billing, *, provisioned: bool = False) -> float:
    """USD of one invocation as it was measured, in the first tier; ``nan`` where it told no time.

    Where what is billed is not known it is the function's own time, rounded up; INIT of a cold start comes to it. On an environment
    that is ``provisioned`` its time is that price's, and the environment is paid by the hour beside it.
    """
    seconds, step = batch.billed, billing.step
    if isnan(seconds) and not isnan(batch.service):
        seconds = ceil(batch.service / step) * step
    on_demand = memory_mb / 1024 * billing.usd_per_gb_second
    per_second = billing.prices.provisioned(memory_mb, billing.architecture).per_second if provisioned else on_demand
    return seconds * per_second + billing.prices.function.request


def predict_cost(
    batch_size_pmf: Array,
    service: ServiceTimes,
    billing: Billing | None = None,
    *,
    init_duration: float = 0.0,
    arrival_rate: float | None = None,
    buffered: bool = True,
) -> BatchCost:
    """Cost of a request whose batch has the sizes of ``batch_size_pmf``, shape (batch_size,).

    Parameters
    ----------
    billing : Billing, optional
        By default the dated prices, and no cold starts.
    init_duration : float
        Seconds of INIT, or of restoring, that a cold start is billed.
    arrival_rate : float, optional
        Requests/s, from which a month's GB-seconds and so the tiers of their price follow; without it the first tier's price holds.
    buffered : bool
        Whether there is a buffer to pay for; without batching there need be none, and its callers invoke the function themselves.
    """
    billing = billing or Billing()
    prices, cold = billing.prices, billing.cold_start_probability or 0.0
    require(0 <= init_duration < np.inf, "init_duration", init_duration, "seconds >= 0")
    if arrival_rate is not None:
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
    invocations = 1 / float(batch_size_pmf @ np.arange(1, len(batch_size_pmf) + 1))  # per request
    gb = service.memory_mb / 1024
    run = float(batch_size_pmf @ _gb_seconds(service.up_to(len(batch_size_pmf)), billing)) * invocations
    init = cold * init_duration * gb * invocations
    gb_second = prices.gb_second(billing.architecture, (run + init) * (arrival_rate or 0.0) * SECONDS_PER_MONTH)
    fixed = dict(prices.fixed_terms()) if buffered else {}
    snapshot = prices.function.snap_start
    if billing.snap_start:
        fixed["snapshot"] = gb * snapshot.cache_gb_second * SECONDS_PER_MONTH
    return BatchCost(
        compute=run * gb_second,
        requests=prices.function.request * invocations,
        init=init * gb_second,
        restore=cold * gb * snapshot.restore_gb * invocations if billing.snap_start else 0.0,
        logs=prices.logs_per_invocation * invocations,
        **(billing.moving if buffered else {}),
        fixed_terms=fixed,
    )


def _gb_seconds(service: ServiceTimes, billing: Billing) -> Array:
    return service.mean_billed(billing.step) * (service.memory_mb / 1024)
