"""The options of `predict` and `recommend` that say what comes in and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from batching.documents import ArrivalDocument, ServiceProfile, read
from batching.errors import InvalidInput
from cli.output import read_file
from optimizer.analysis.cost import Prices, default_prices, read_prices
from optimizer.arrivals.map import ArrivalProcess
from optimizer.arrivals.mmpp import mmpp2
from optimizer.arrivals.poisson import poisson

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_ARRIVALS: list[Decorator] = [
    click.option("--arrivals", metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it."),
    click.option("--poisson", "poisson_rate", type=float, metavar="R", help="Poisson arrivals, R requests/s."),
    click.option("--mmpp2", "mmpp2_rates", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s."),
]
_COSTS: list[Decorator] = [
    click.option("--prices", "prices_file", metavar="FILE", help="Price list instead of the dated one that comes along."),
    click.option("--architecture", default="x86_64", show_default=True, help="Of the function: x86_64 or arm64."),
    click.option(
        "--granularity", type=float, metavar="SECONDS", help="Billing granularity; default the price list's, 0.1 in BATCH's year."
    ),
]


def _all(options: list[Decorator]) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


arrival_options = _all(_ARRIVALS)
cost_options = _all(_COSTS)


def read_arrivals(arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None) -> ArrivalDocument:
    """The document of exactly one of the three options."""
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


def read_profile(path: str) -> ServiceProfile:
    """The service profile in a file."""
    return read(ServiceProfile, read_file(path), path)


def read_price_list(path: str | None) -> Prices:
    """The price list in a file, or the one that comes along."""
    return default_prices() if path is None else read_prices(read_file(path), path)
