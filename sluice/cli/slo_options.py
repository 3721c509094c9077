"""How a command is told its SLOs: ``--slo 0.2 --percentile 95``, or several as ``--slo p95=0.2 --slo p99=0.4``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import InvalidInput
from sluice.cli.groups import Command

PERCENTILE = 95.0
MAX_SLO = 3600.0
"""Seconds; what is searched grows with the latency, and nobody waits for an answer for so long."""
MEANT_MS = 10.0
"""Seconds from which on a number was probably meant in milliseconds."""

_ALLOWED = "one number of seconds (with --percentile), or pP=SECONDS once or several times, as in p95=0.2 and p99=0.4"


def slo_options(*, required: bool = True, default: Slo | None = None) -> Callable[[Command], Command]:
    """``--slo`` and ``--percentile``; the command gets ``slos: tuple[Slo, ...]``, at least one where they are ``required``.

    The command's own ``default`` is told where there is one.
    """
    none_given = "" if default is None else f"  [default: {default.name}={default.latency:g}]"

    def decorated(command: Command) -> Command:
        @click.option(
            "--slo",
            "slo_texts",
            multiple=True,
            required=required,
            metavar="[pP=]SECONDS",
            help="Latency that the percentile must keep; repeat as p95=0.2, p99=0.4 for several percentiles at once." + none_given,
        )
        @click.option(
            "--percentile", type=float, help=f"Percent of requests that must keep --slo SECONDS  [default: {PERCENTILE:g}]"
        )
        @wraps(command)
        def with_slos(*, slo_texts: tuple[str, ...], percentile: float | None, **others: Any) -> Any:
            slos = read_slos(slo_texts, percentile)
            note_seconds("--slo", slos)
            return command(slos=slos, **others)

        return with_slos

    return decorated


def note_seconds(option: str, slos: Sequence[Slo]) -> None:
    """Say of latencies so long that they were probably meant in milliseconds that they are seconds."""
    for latency in dict.fromkeys(slo.latency for slo in slos if slo.latency >= MEANT_MS):
        click.echo(f"note: {option} {latency:g} is {latency:g} s; {latency:g} ms are {option} {latency / 1000:g}", err=True)


def read_slos(texts: Sequence[str], percentile: float | None = None) -> tuple[Slo, ...]:
    """The SLOs in the order given; none where nothing is given.

    Raises
    ------
    InvalidInput
        No number; both forms at once; a percentile twice, below 1, or not strictly between 0 and 100; a latency that is none, or
        beyond ``MAX_SLO``.
    """
    if not texts and percentile is None:
        return ()
    if not texts:
        raise InvalidInput("percentile", percentile, "only beside --slo SECONDS")
    named = [re.fullmatch(r"p([^=]*)=(.*)", text) for text in texts]
    if len(texts) == 1 and named[0] is None:
        return (_slo(_number("slo", texts[0]), PERCENTILE if percentile is None else percentile),)
    if None in named:
        raise InvalidInput("slo", list(texts), _ALLOWED)
    if percentile is not None:
        raise InvalidInput("percentile", percentile, "only beside --slo SECONDS, as pP=SECONDS names its own")
    slos = tuple(_slo(_number(text, match[2]), _number(text, match[1])) for text, match in zip(texts, named, strict=True) if match)
    if len({slo.percentile for slo in slos}) < len(slos):
        raise InvalidInput("slo", list(texts), "each percentile once")
    return slos


def _slo(latency: float, percentile: float) -> Slo:
    """The SLO; one of less than a percent of the requests was meant as a quantile."""
    if 0 < percentile < 1:
        meant = percentile_name(100 * percentile)
        raise InvalidInput("slo.percentile", percentile, f"percent of the requests, at least 1; did you mean {meant}?")
    if latency > MAX_SLO:
        raise InvalidInput("--slo", latency, f"at most {MAX_SLO:g} s; {latency:g} ms are {latency / 1000:g}")
    return Slo(latency, percentile)


def _number(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(field, text, _ALLOWED) from None
