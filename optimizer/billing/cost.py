"""What a request costs (docs/model.md, section 3).

A batch of ``n`` is billed ``round_up(duration_n, granularity) * memory_mb / 1024 * gb_second + request`` (BATCH, eq. (1), with the
rounding it was billed by); a request costs its share, ``sum_n P(N = n) cost_n / E[N]``. What the paper leaves out is beside it,
each term apart: cold starts, logs, the bytes that the buffer moves, and what the buffer costs per month whether used or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from sluice.batching.documents import ServiceProfile
from sluice.batching.errors import InvalidInput, require
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
    logs : float
        Log of the invocations.
    cache, load_balancer, network : float
        What the buffer pays for the bytes of a request.
    fixed_terms : mapping of str to float
        USD per month, by part.
    """

    compute: float = 0.0
    requests: float = 0.0
    init: float = 0.0
    restore: float = 0.0
    machines: float = 0.0
    logs: float = 0.0
    cache: float = 0.0
    load_balancer: float = 0.0
    network: float = 0.0
    fixed_terms: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_request(self) -> float:
        """USD per request of what serves it, function or machines: what the search minimises and a budget is about."""
        return self.compute + self.requests + self.init + self.restore + self.machines

    @property
    def beside(self) -> float:
        """USD that a request costs beside that: logs and what the buffer is metered by."""
        return self.logs + self.cache + self.load_balancer + self.network

    @property
    def fixed_per_month(self) -> float:
        """USD per month that are paid whether or not a request comes."""
        return sum(self.fixed_terms.values())

    def terms(self) -> dict[str, float]:
        """Every term in USD per request; they sum to ``per_request + beside``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fixed_terms"}

    def in_all(self, arrival_rate: float) -> float:
        """USD per request with everything, the fixed cost spread over the requests of a month at ``arrival_rate`` (requests/s)."""
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
        return self.per_request + self.beside + self.fixed_per_month / SECONDS_PER_MONTH / arrival_rate


def invocation_costs(
    service: ServiceTimes, prices: Prices, architecture: str = "x86_64", granularity: float | None = None
) -> tuple[Array, float]:
    """USD of compute for a batch of 1, 2, ..., (max_batch_size,), in the first tier, and USD of request fee for one invocation."""
    return _gb_seconds(service, prices, granularity) * prices.gb_second(architecture), prices.function.request


def predict_cost(
    batch_size_pmf: Array,
    service: ServiceTimes,
    prices: Prices | None = None,
    *,
    architecture: str = "x86_64",
    granularity: float | None = None,
    cold_start_probability: float = 0.0,
    init_duration: float = 0.0,
    snap_start: bool = False,
    payload_bytes: int = 0,
    answer_bytes: int = 0,
    arrival_rate: float | None = None,
    buffered: bool = True,
) -> BatchCost:
    """Cost of a request whose batch has the sizes of ``batch_size_pmf``, shape (batch_size,).

    Parameters
    ----------
    granularity : float, optional
        Seconds that a duration is rounded up to; by default the price list's (1 ms; 100 ms in BATCH's year).
    cold_start_probability, init_duration : float
        Share of the invocations that start cold (``cold_starts.cold_start_probability`` estimates it), and the seconds of INIT, or
        of restoring, that are then billed.
    snap_start : bool
        Whether a cold start restores a snapshot, which is kept and restored for a price.
    payload_bytes, answer_bytes : int
        Bytes of one request and of its answer, as far as the buffer pays for moving them.
    arrival_rate : float, optional
        Requests/s, from which a month's GB-seconds and so the tiers of their price follow; without it the first tier's price holds.
    buffered : bool
        Whether there is a buffer to pay for; without batching there need be none, and its callers invoke the function themselves.
    """
    prices = prices or default_prices()
    for name, value in (("payload_bytes", payload_bytes), ("answer_bytes", answer_bytes)):
        require(value >= 0, name, value, "bytes >= 0")
    if not 0 <= cold_start_probability <= 1:
        raise InvalidInput("cold_start_probability", cold_start_probability, "0 to 1")
    require(0 <= init_duration < np.inf, "init_duration", init_duration, "seconds >= 0")
    if arrival_rate is not None:
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
    invocations = 1 / float(batch_size_pmf @ np.arange(1, len(batch_size_pmf) + 1))  # per request
    gb = service.memory_mb / 1024
    run = float(batch_size_pmf @ _gb_seconds(service.up_to(len(batch_size_pmf)), prices, granularity)) * invocations
    init = cold_start_probability * init_duration * gb * invocations
    gb_second = prices.gb_second(architecture, (run + init) * (arrival_rate or 0.0) * SECONDS_PER_MONTH)
    fixed = dict(prices.fixed_terms()) if buffered else {}
    snapshot = prices.function.snap_start
    if snap_start:
        fixed["snapshot"] = gb * snapshot.cache_gb_second * SECONDS_PER_MONTH
    return BatchCost(
        compute=run * gb_second,
        requests=prices.function.request * invocations,
        init=init * gb_second,
        restore=cold_start_probability * gb * snapshot.restore_gb * invocations if snap_start else 0.0,
        logs=prices.logs_per_invocation * invocations,
        cache=prices.cache_per_request(payload_bytes, answer_bytes) if buffered else 0.0,
        load_balancer=prices.load_balancer_per_request(payload_bytes, answer_bytes) if buffered else 0.0,
        network=prices.network_per_request(payload_bytes, answer_bytes) if buffered else 0.0,
        fixed_terms=fixed,
    )


@dataclass(frozen=True)
class Billing:
    """What an invocation is billed by.

    Parameters
    ----------
    granularity : float or None
        Seconds that a duration is rounded up to; ``None`` for the price list's.
    cold_start_probability, payload_bytes, answer_bytes, snap_start
        As ``predict_cost`` has them; ``payload_bytes`` may be unknown.
    """

    prices: Prices
    architecture: str
    granularity: float | None
    cold_start_probability: float
    payload_bytes: int | None = None
    answer_bytes: int = 0
    snap_start: bool = False

    def cost(self, batch_size_pmf: Array, function: ServiceTimes, profile: ServiceProfile) -> BatchCost:
        """Of a request whose batch has the sizes of ``batch_size_pmf``; the profile knows the INIT of the function."""
        init = profile.init.get(function.memory_mb)
        return predict_cost(
            batch_size_pmf,
            function,
            self.prices,
            architecture=self.architecture,
            granularity=self.granularity,
            cold_start_probability=self.cold_start_probability,
            init_duration=init.mean if init else 0.0,
            snap_start=self.snap_start,
            payload_bytes=self.payload_bytes or 0,
            answer_bytes=self.answer_bytes,
            buffered=len(batch_size_pmf) > 1,
        )


def _gb_seconds(service: ServiceTimes, prices: Prices, granularity: float | None) -> Array:
    billed = service.mean_billed(prices.function.granularity if granularity is None else granularity)
    return billed * (service.memory_mb / 1024)
