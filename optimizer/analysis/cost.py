"""What a request costs (docs/model.md, section 3).

A batch of ``n`` is billed ``round_up(duration_n, granularity) * memory_mb / 1024 * gb_second + request`` (BATCH, eq. (1), with the
rounding it was billed by); a request costs its share, ``sum_n P(N = n) cost_n / E[N]``. What the paper leaves out stands
beside it, each term apart: INIT of cold starts, log volume, and what the buffer costs per month whether used or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
import numpy as np

from batching.errors import InvalidInput
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.map import Array

SECONDS_PER_MONTH = 86400 * 365.25 / 12


class LambdaPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """USD per GB-second by architecture and per request; billing ``granularity`` in seconds; sync payload limit in bytes."""

    gb_second: dict[str, float]
    request: float
    granularity: float
    payload_limit_bytes: int


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"function": "lambda"}):
    """A dated price list, in USD; the file ``prices.json`` beside this module is the default."""

    read_on: str
    region: str
    function: LambdaPrices
    currency: str = "USD"
    logs_per_invocation: float = 0.0
    fixed_infrastructure_per_month: float = 0.0

    def gb_second(self, architecture: str) -> float:
        """USD per GB-second of ``architecture``."""
        if architecture not in self.function.gb_second:
            raise InvalidInput("architecture", architecture, "one of " + ", ".join(self.function.gb_second))
        return self.function.gb_second[architecture]


def read_prices(data: bytes, source: str = "prices") -> Prices:
    """The price list in ``data`` (JSON); ``InvalidInput`` names what is wrong with it."""
    try:
        prices = msgspec.json.decode(data, type=Prices)
    except msgspec.DecodeError as error:
        raise InvalidInput(source, data.decode("utf-8", "replace"), f"a price list as in prices.json ({error})") from None
    for name, value in {**prices.function.gb_second, "request": prices.function.request}.items():
        if not 0 <= value < np.inf:
            raise InvalidInput(f"{source}: {name}", value, "USD >= 0")
    if not 0 < prices.function.granularity < np.inf:
        raise InvalidInput(f"{source}: granularity", prices.function.granularity, "a number of seconds > 0")
    if prices.function.payload_limit_bytes < 1:
        raise InvalidInput(f"{source}: payload_limit_bytes", prices.function.payload_limit_bytes, "an integer >= 1")
    return prices


@cache
def default_prices() -> Prices:
    """The dated prices that come with this package."""
    return read_prices(resources.files(__package__).joinpath("prices.json").read_bytes(), "prices.json")


@dataclass(frozen=True)
class BatchCost:
    """USD per request, term by term, and USD per month for what stands there anyway.

    ``compute``, ``requests`` and ``init`` are the bill of the function; ``logs`` and ``fixed_per_month`` come beside it.
    """

    compute: float
    requests: float
    init: float
    logs: float
    fixed_per_month: float

    @property
    def per_request(self) -> float:
        """USD that the function's bill grows by per request."""
        return self.compute + self.requests + self.init


def invocation_costs(
    service: ServiceTimes, prices: Prices, architecture: str = "x86_64", granularity: float | None = None
) -> tuple[Array, float]:
    """USD of compute for a batch of 1, 2, ..., (max_batch_size,), and USD of request fee for one invocation."""
    billed = service.mean_billed(prices.function.granularity if granularity is None else granularity)
    return billed * (service.memory_mb / 1024) * prices.gb_second(architecture), prices.function.request


def predict_cost(
    batch_size_pmf: Array,
    service: ServiceTimes,
    prices: Prices | None = None,
    *,
    architecture: str = "x86_64",
    granularity: float | None = None,
    cold_start_probability: float = 0.0,
    init_duration: float = 0.0,
    buffered: bool = True,
) -> BatchCost:
    """Cost of a request whose batch has the sizes of ``batch_size_pmf``, shape (batch_size,).

    Parameters
    ----------
    granularity : float, optional
        Seconds that a duration is rounded up to; by default the price list's (1 ms; 100 ms in BATCH's year).
    cold_start_probability, init_duration : float
        Share of the invocations that start cold, and the seconds of INIT that are then billed.
    buffered : bool
        Whether the buffer's fixed cost is paid; without batching there need be none.
    """
    prices = prices or default_prices()
    if not 0 <= cold_start_probability <= 1:
        raise InvalidInput("cold_start_probability", cold_start_probability, "0 to 1")
    compute, fee = invocation_costs(service.up_to(len(batch_size_pmf)), prices, architecture, granularity)
    invocations = 1 / float(batch_size_pmf @ np.arange(1, len(batch_size_pmf) + 1))  # per request
    init = cold_start_probability * init_duration * service.memory_mb / 1024 * prices.gb_second(architecture)
    return BatchCost(
        compute=float(batch_size_pmf @ compute) * invocations,
        requests=fee * invocations,
        init=init * invocations,
        logs=prices.logs_per_invocation * invocations,
        fixed_per_month=prices.fixed_infrastructure_per_month if buffered else 0.0,
    )


def break_even_arrival_rate(batched: BatchCost, unbatched: BatchCost) -> float | None:
    """Requests/s above which the saving per request pays for the buffer; ``None`` where nothing is saved.

    The saving, logs included, is taken as it is at the present rate; at a lower one batches are emptier, so this is a lower bound
    below the present rate and an upper bound above it.
    """
    saving = unbatched.per_request + unbatched.logs - batched.per_request - batched.logs
    if saving <= 1e-9 * (unbatched.per_request + unbatched.logs):
        return None
    return batched.fixed_per_month / SECONDS_PER_MONTH / saving
