"""How a command is told of the arrivals and of the function.

As in ``slo_options``, ``cost_options``, ``question_options`` and ``situation_options`` each group of options is a decorator that
reads them and gives the command one argument: here an ``arrivals`` document, or a ``profile``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import click

from sluice.batching.documents import ArrivalDocument, ServiceProfile
from sluice.batching.errors import NOT_GIVEN, InvalidInput
from sluice.cli.document_files import read_document
from sluice.cli.groups import Command
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson

ONE = "exactly one of --arrivals, --poisson and --mmpp2"


def arrival_options(command: Command) -> Command:
    """Exactly one of ``--arrivals``, ``--poisson`` and ``--mmpp2``; the command gets ``arrivals: ArrivalDocument``."""

    @perhaps_arrivals
    @wraps(command)
    def with_arrivals(*, arrivals: ArrivalDocument | None, **others: Any) -> Any:
        if arrivals is None:
            raise InvalidInput("arrivals", NOT_GIVEN, ONE)
        return command(arrivals=arrivals, **others)

    return with_arrivals


def perhaps_arrivals(command: Command) -> Command:
    """The same where there may be none: the command gets ``arrivals: ArrivalDocument | None``."""

    @click.option("--arrivals", metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it.")
    @click.option("--poisson", "poisson_rate", type=float, metavar="R", help="Poisson arrivals, R requests/s.")
    @click.option("--mmpp2", "mmpp2_rates", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s.")
    @wraps(command)
    def with_arrivals(*, arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None, **others: Any) -> Any:
        told = (arrivals, poisson_rate, mmpp2_rates)
        return command(arrivals=None if told == (None, None, None) else read_arrivals(*told), **others)

    return with_arrivals


def profile_option(command: Command) -> Command:
    """``--profile``; the command gets ``profile: ServiceProfile``."""

    @click.option("--profile", required=True, metavar="FILE", help="Service profile, as `sluice profile --out` writes it.")
    @wraps(command)
    def with_profile(*, profile: str, **others: Any) -> Any:
        return command(profile=read_profile(profile), **others)

    return with_profile


def profiles_option(command: Command) -> Command:
    """``--profile``, once or more; the command gets ``profile: ServiceProfile``, the first, and ``other_profiles``."""

    @click.option(
        "--profile",
        "paths",
        multiple=True,
        metavar="FILE",
        help="Service profile, as `sluice profile --out` writes it; repeated, those of a plan's functions, by their names"
        "  [required]",
    )
    @wraps(command)
    def with_profiles(*, paths: tuple[str, ...], **others: Any) -> Any:
        if not paths:
            raise InvalidInput("--profile", NOT_GIVEN, "a service profile, as `sluice profile --out` writes it")
        first, *rest = map(read_profile, paths)
        return command(profile=first, other_profiles=rest, **others)

    return with_profiles


def read_profile(path: str, option: str = "--profile") -> ServiceProfile:
    """The service profile in a file."""
    return read_document(ServiceProfile, path, option)


def read_arrivals(arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None) -> ArrivalDocument:
    """The arrivals of exactly one of a file, a rate and the four rates of an MMPP(2)."""
    given = [value for value in (arrivals, poisson_rate, mmpp2_rates) if value is not None]
    if not given:
        raise InvalidInput("arrivals", NOT_GIVEN, ONE)
    if len(given) != 1:
        raise InvalidInput("arrivals", given, ONE)
    if arrivals is not None:
        document = read_document(ArrivalDocument, arrivals, "--arrivals")
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
