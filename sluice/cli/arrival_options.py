"""The options that several commands share, a group for each thing they name.

Each group is a decorator that reads its options and gives the command one argument: ``arrival_options`` an ``arrivals`` document,
``profile_option`` a ``profile``, ``cost_options`` the ``billing``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from sluice.batching.documents import ArrivalDocument, ServiceProfile, read
from sluice.batching.errors import InvalidInput
from sluice.cli.output import read_file
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.billing.prices import default_prices, read_prices

Command = Callable[..., Any]


def arrival_options(command: Command) -> Command:
    """Exactly one of ``--arrivals``, ``--poisson`` and ``--mmpp2``; the command gets ``arrivals: ArrivalDocument``."""

    @click.option("--arrivals", metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it.")
    @click.option("--poisson", "poisson_rate", type=float, metavar="R", help="Poisson arrivals, R requests/s.")
    @click.option("--mmpp2", "mmpp2_rates", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s.")
    @wraps(command)
    def with_arrivals(*, arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None, **others: Any) -> Any:
        return command(arrivals=read_arrivals(arrivals, poisson_rate, mmpp2_rates), **others)

    return with_arrivals


def profile_option(command: Command) -> Command:
    """``--profile``; the command gets ``profile: ServiceProfile``."""

    @click.option("--profile", required=True, metavar="FILE", help="Service profile, as `sluice profile --out` writes it.")
    @wraps(command)
    def with_profile(*, profile: str, **others: Any) -> Any:
        return command(profile=read_profile(profile), **others)

    return with_profile


def cost_options(command: Command) -> Command:
    """Price list, architecture, granularity, cold starts; the command gets ``billing: Billing``."""

    @click.option("--prices", metavar="FILE", help="Prices laid over the dated ones that come along; any part of them.")
    @click.option("--architecture", default="x86_64", show_default=True, help="Of the function: x86_64 or arm64.")
    @click.option(
        "--granularity", type=float, metavar="SECONDS", help="Billing granularity; default the price list's, 0.1 in BATCH's year."
    )
    @click.option(
        "--cold-start-probability",
        type=float,
        default=0.0,
        show_default=True,
        help="Share of the invocations that start cold, and are billed the profile's INIT.",
    )
    @click.option("--snap-start", is_flag=True, help="A cold start restores a snapshot, which is kept and restored for a price.")
    @click.option(
        "--payload-bytes", type=int, help="Size of one request: a batch must fit into one invocation, and moving it costs."
    )
    @click.option("--answer-bytes", type=int, default=0, show_default=True, help="Size of the answer to one request.")
    @wraps(command)
    def with_billing(
        *,
        prices: str | None,
        architecture: str,
        granularity: float | None,
        cold_start_probability: float,
        payload_bytes: int | None,
        answer_bytes: int,
        snap_start: bool,
        **others: Any,
    ) -> Any:
        price_list = default_prices() if prices is None else read_prices(read_file(prices), prices)
        billing = Billing(price_list, architecture, granularity, cold_start_probability, payload_bytes, answer_bytes, snap_start)
        return command(billing=billing, **others)

    return with_billing


def read_profile(path: str) -> ServiceProfile:
    """The service profile in a file."""
    return read(ServiceProfile, read_file(path), path)


def read_arrivals(arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None) -> ArrivalDocument:
    """The arrivals of exactly one of a file, a rate and the four rates of an MMPP(2)."""
    given = [value for value in (arrivals, poisson_rate, mmpp2_rates) if value is not None]
    if len(given) != 1:
        raise InvalidInput("arrivals", given, "exactly one of --arrivals, --poisson and --mmpp2")
    if arrivals is not None:
        document = read(ArrivalDocument, read_file(arrivals), arrivals)
        ArrivalProcess.of(document)  # the matrices must agree with the rate
        return document
    if poisson_rate is not None:
        return poisson(poisson_rate).document()
    try:
        rates = [float(rate) for rate in str(mmpp2_rates).split(",")]
    except ValueError:
        rates = []
    if len(rates) != 4:
        raise InvalidInput("mmpp2", mmpp2_rates, "four numbers L1,L2,W1,W2")
    return mmpp2(*rates).document()
