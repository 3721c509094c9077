"""How a command is told of the arrivals and of the function.

As in ``slo_options``, ``cost_options``, ``question_options`` and ``situation_options`` each group of options is a decorator that
reads them and gives the command one argument: here an ``arrivals`` document, or a ``profile``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from msgspec.structs import replace

from sluice.batching.documents import ArrivalDocument, ServiceProfile, ServiceTime
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.policy import INF
from sluice.cli.document_files import read_document
from sluice.cli.groups import Command
from sluice.cli.profile_files import read_profile
from sluice.cli.values import FILE, MOST_RATE, OVERHEAD, number, require_rate
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson

WAY = 0.005
"""Seconds that are taken for the way through buffer and network where nobody measured it."""
ARRIVALS = ("arrivals", "poisson_rate", "mmpp2_rates")
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

    @click.option("--arrivals", type=FILE, metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it.")
    @click.option("--poisson", "poisson_rate", type=number, metavar="R", help="Poisson arrivals, R requests/s.")
    @click.option("--mmpp2", "mmpp2_rates", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s.")
    @wraps(command)
    def with_arrivals(*, arrivals: str | None, poisson_rate: float | None, mmpp2_rates: str | None, **others: Any) -> Any:
        told = (arrivals, poisson_rate, mmpp2_rates)
        return command(arrivals=None if told == (None, None, None) else read_arrivals(*told), **others)

    return with_arrivals


def _seconds(context: click.Context, option: click.Parameter, told: float | None) -> float | None:
    require(told is None or 0 <= told < INF, "--buffer-overhead", told, "a number of seconds >= 0")
    return told


way_option = click.option(
    "--buffer-overhead",
    type=OVERHEAD,
    callback=_seconds,
    help=f"What the way through buffer and network takes beyond an invocation  [default: the profile's, else {WAY:g}]",
)


fleet_way_option = click.option(
    "--buffer-overhead",
    type=OVERHEAD,
    callback=_seconds,
    default=0.0,
    show_default=True,
    help="What a batch takes through buffer and network beyond what its profile says.",
)
"""``--buffer-overhead`` of a fleet, whose profiles may be laws or tables; the command gets ``buffer_overhead: float``."""


def profile_option(command: Command) -> Command:
    """``--profile``, and what the buffer before it takes; the command gets ``profile: ServiceProfile``."""

    @click.option(
        "--profile", required=True, type=FILE, metavar="FILE", help="Service profile, as `sluice profile --out` writes it."
    )
    @way_option
    @wraps(command)
    def with_profile(*, profile: str, buffer_overhead: float | None, **others: Any) -> Any:
        return command(profile=behind_buffer(read_profile(profile), buffer_overhead), **others)

    return with_profile


def profiles_option(command: Command) -> Command:
    """``--profile``, once or more; the command gets ``profile: ServiceProfile``, the first, and ``other_profiles``."""

    @click.option(
        "--profile",
        "paths",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Service profile, as `sluice profile --out` writes it; repeated, those of a plan's functions, by their names"
        "  [required]",
    )
    @way_option
    @wraps(command)
    def with_profiles(*, paths: tuple[str, ...], buffer_overhead: float | None, **others: Any) -> Any:
        if not paths:
            raise InvalidInput("--profile", NOT_GIVEN, "a service profile, as `sluice profile --out` writes it")
        first, *rest = (behind_buffer(read_profile(path), buffer_overhead) for path in paths)
        return command(profile=first, other_profiles=rest, **others)

    return with_profiles


def behind_buffer(profile: ServiceProfile, told: float | None = None) -> ServiceProfile:
    """The function as clients of the buffer find it: behind the way that was told (s), or else measured, or else ``WAY``.

    A linear law has no overhead of its own and may be of all that a client sees: nothing is put before it unless it is told.
    """
    if told is None and (profile.way is not None or profile.service_time is not None):
        return profile
    return replace(profile, way=ServiceTime(WAY if told is None else told))


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
        return poisson(require_rate("--poisson", poisson_rate)).document()
    try:
        rates = [float(rate) for rate in str(mmpp2_rates).split(",")]
    except ValueError:
        rates = []
    if len(rates) != 4:
        raise InvalidInput("mmpp2", mmpp2_rates, "four numbers L1,L2,W1,W2")
    for rate in rates[:2]:
        require(rate <= MOST_RATE, "--mmpp2", mmpp2_rates, f"arrival rates of at most {MOST_RATE:.0f} requests per second")
    return mmpp2(*rates).document()
