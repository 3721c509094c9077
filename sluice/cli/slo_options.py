"""How a command is told its SLOs: ``--slo p95=200ms``, once or several times; a latency alone is of ``--percentile``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import wraps
from typing import Any

import click

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.durations import LONGEST, MEANT_MS, seconds
from sluice.batching.errors import InvalidInput
from sluice.cli.groups import Command

PERCENTILE = 95.0

_ALLOWED = "one latency (with --percentile), or pP=LATENCY once or several times, as in p95=200ms and p99=0.4"


def slo_options(command: Command, default: Slo | None = None) -> Command:
    """``--slo`` and ``--percentile``; the command gets ``slos: tuple[Slo, ...]``, and its own ``default`` is told."""
    none_given = "" if default is None else f"  [default: {default.name}={default.latency:g}]"

    @click.option(
        "--slo",
        "slo_texts",
        multiple=True,
        metavar="[pP=]DURATION",
        help="Latency that the percentile must keep; repeat as p95=200ms, p99=400ms for several percentiles at once." + none_given,
    )
    @click.option(
        "--percentile", type=percent, help=f"Percent of requests that must keep --slo DURATION  [default: {PERCENTILE:g}]"
    )
    @wraps(command)
    def with_slos(*, slo_texts: tuple[str, ...], percentile: float | None, **others: Any) -> Any:
        return command(slos=read_slos(slo_texts, percentile), **others)

    return with_slos


def read_slos(texts: Sequence[str], percentile: float | None = None) -> tuple[Slo, ...]:
    """The SLOs in the order given; none where nothing is given.

    Raises
    ------
    InvalidInput
        No number; both forms at once; a percentile twice, below 1, or not strictly between 0 and 100; one that a higher percentile
        within as short a time says already; a latency that is none, or beyond ``LONGEST``.
    """
    if not texts and percentile is None:
        return ()
    if not texts:
        raise InvalidInput("percentile", percentile, "only beside --slo DURATION")
    named = [re.fullmatch(r"p([^=]*)=(.*)", text) for text in texts]
    if len(texts) == 1 and named[0] is None:
        return (_slo(_latency(texts[0]), PERCENTILE if percentile is None else percentile),)
    if None in named:
        raise InvalidInput("slo", list(texts), _allowed_for(texts[named.index(None)]))
    if percentile is not None:
        raise InvalidInput("percentile", percentile, "only beside --slo DURATION, as pP=DURATION names its own")
    slos = tuple(_slo(_latency(match[2]), _percentile(text, match[1])) for text, match in zip(texts, named, strict=True) if match)
    if len({slo.percentile for slo in slos}) < len(slos):
        raise InvalidInput("slo", list(texts), "each percentile once")
    in_turn = sorted(zip(slos, texts, strict=True), key=lambda each: each[0].percentile)
    for (slo, text), (higher, said) in itertools.pairwise(in_turn):
        if slo.latency >= higher.latency:
            raise InvalidInput("slo", text, f"a latency below that of {said}, which promises as much already")
    return slos


def _slo(latency: float, percentile: float) -> Slo:
    return Slo(latency, check_percentile(percentile))


def check_percentile(percentile: float) -> float:
    """The same; raises ``InvalidInput`` for one of less than a percent of the requests, which was meant as a quantile."""
    if 0 < percentile < 1:
        meant = percentile_name(100 * percentile)
        raise InvalidInput("percentile", percentile, f"percent of the requests, at least 1; did you mean {meant}?")
    return percentile


def _latency(text: str) -> float:
    if not text:
        raise InvalidInput("slo", text, _ALLOWED)
    try:
        return seconds(text, MEANT_MS, most=LONGEST)
    except ValueError as error:
        raise InvalidInput("--slo", text, _allowed_for(text) if re.search("^[pP]|[=<≤:]", text) else str(error)) from None


def _allowed_for(text: str) -> str:
    """What is allowed in the place of this, which names a percentile perhaps, and what may be meant."""
    meant = re.fullmatch(r"[pP]?([1-9]\d*(?:\.\d+)?)\s*[=<≤:]+\s*([\d.].*)", text)
    return f"{_ALLOWED}; did you mean p{meant[1]}={meant[2]}?" if meant else _ALLOWED


def percent(text: str) -> float:  # of this name, as it is the one in the help
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not allowed; allowed: percent of the requests as a number alone, as in 99.9"
        ) from None


def _percentile(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InvalidInput("--slo", text, _allowed_for(text)) from None
