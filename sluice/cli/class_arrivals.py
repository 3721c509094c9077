"""How a command is told of the arrivals of a class: ``NAME:ARRIVALS``, a rate, an arrivals document or a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.batching.errors import InvalidInput, require
from sluice.cli.arrival_options import read_arrivals
from sluice.cli.named_files import read_json
from sluice.cli.trace_options import read_recorded
from sluice.cli.values import MOST_RATE
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, poisson
from sluice.optimizer.traces.record import recorded_times

OPTION = "--class"
FORM = "NAME:ARRIVALS, the arrivals a rate (requests/s), an arrivals document or a trace, the name 1 to 128 of A-Z a-z 0-9 . _ -"


class ClassArrivals(NamedTuple):
    """The process of a class, and when the requests came that it is fitted to (s), where that is known."""

    process: ArrivalProcess
    recorded: Array | None = None


def read_classes(texts: Sequence[str]) -> dict[str, ClassArrivals]:
    """The arrivals by the name of their class, in the order given.

    Raises
    ------
    InvalidInput
        Another form; a class twice; arrivals that cannot be read.
    """
    found: dict[str, ClassArrivals] = {}
    for text in texts:
        name, _, arrivals = text.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name) or not arrivals:
            raise InvalidInput(OPTION, text, FORM)
        require(name not in found, OPTION, name, "each class once")
        found[name] = _arrivals(arrivals, text)
    return found


def _arrivals(arrivals: str, text: str) -> ClassArrivals:
    """Those of a rate, of a document, or the fit of a trace; ``text`` is what was given."""
    try:
        rate = float(arrivals)
    except ValueError:
        rate = None
    if rate is not None:
        require(0 < rate <= MOST_RATE, OPTION, text, f"a rate above 0, in requests/s, at most {MOST_RATE:.0f}")
        return ClassArrivals(poisson(rate))
    if not Path(arrivals).is_dir() and read_json(arrivals, OPTION).lstrip()[:1] == b"{":
        document = read_arrivals(arrivals, None, None)
        return ClassArrivals(ArrivalProcess.of(document), recorded_times(document))
    from sluice.optimizer.fits.choice import fit_arrivals  # which takes a while to import, and few commands need

    trace = read_recorded(arrivals, option=OPTION, instead=f"{OPTION} {text.partition(':')[0]}:arrivals.json")
    return ClassArrivals(fit_arrivals(trace).arrivals, trace.times)
