"""The trace of `fit` and `replay`: where it is, how it is to be read, which part of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import cast

import click
import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.batching.urls import refused_url
from sluice.cli.groups import group
from sluice.cli.values import DURATION, FILE
from sluice.optimizer.recommend.words import is_other_rate
from sluice.optimizer.traces.clock import clock_note
from sluice.optimizer.traces.columns import SECONDS
from sluice.optimizer.traces.kind import KINDS, Kind, Untold
from sluice.optimizer.traces.trace import Trace, read_trace

STREAM_SCHEMES = ("redis://", "rediss://", "unix://")

_OPTIONS = [
    click.argument("trace", type=FILE, metavar="TRACE"),
    click.option("--column", metavar="NAME", help="Column by its name in the file  [default: the first]"),
    click.option(
        "--kind",
        type=click.Choice(KINDS),
        default="auto",
        show_default=True,
        help="What the numbers are; auto refuses what may be either.",
    ),
    click.option("--bin", "bin_width", type=DURATION, help="What each count covers  [default: 1]"),
    click.option("--unit", type=click.Choice(list(SECONDS)), default="s", show_default=True, help="What plain numbers are in."),
    click.option("--from", "start", type=DURATION, help="Leave out what came sooner after the first arrival."),
    click.option("--to", "end", type=DURATION, help="Leave out what came later after the first arrival."),
    click.option("--size-column", metavar="NAME", help="Column with the sizes of the requests  [default: none is read]"),
    click.option("--window", type=DURATION, help="Only the last so many seconds of the rest."),
]


@dataclass(frozen=True)
class TraceOptions:
    """What the options say; ``read`` does it."""

    trace: str
    column: str | None
    kind: str
    bin_width: float | None
    unit: str
    start: float | None
    end: float | None
    size_column: str | None
    window: float | None

    def read(self) -> Trace:
        """The trace that is meant."""
        whole = self._stream() if self.trace.startswith(STREAM_SCHEMES) else self._file()
        if self.start is not None or self.end is not None:
            whole = whole.between(self.start or 0.0, np.inf if self.end is None else self.end)
        return whole if self.window is None else whole.last(self.window)

    def _file(self) -> Trace:
        return read_trace(self.trace, self.column, cast(Kind, self.kind), self.unit, self.bin_width, size_column=self.size_column)

    def _stream(self) -> Trace:
        from sluice.buffer_service.arrival_stream import read_requests, split_url
        from sluice.buffer_service.redis_servers import check_url
        from sluice.cli.redis_options import naming_redis

        told = self.column is not None or self.kind not in ("auto", "timestamps") or self.bin_width is not None or self.unit != "s"
        if told:
            raise InvalidInput("trace", self.trace.partition("://")[0], "a file where --column, --kind, --bin or --unit is given")
        if self.size_column is not None:
            raise InvalidInput("size_column", self.size_column, "none of the buffer's own record, whose sizes stand in it")
        record = split_url(self.trace)
        try:
            check_url(record.url)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidInput("trace", refused_url(self.trace), f"redis://HOST:PORT/DB?model=NAME ({error})") from None
        with naming_redis(record.url, "TRACE"):
            found = read_requests(*record)
        times, sizes = np.asarray(found.times), np.asarray(found.sizes)
        reading, n_untold = "timestamps (the buffer's own)", int(np.isnan(sizes).sum())
        if n_untold:
            reading += f"; sizes are not read, as {n_untold} of {len(times)} requests did not tell theirs"
        known = sizes if len(sizes) and not n_untold else None
        return Trace(np.diff(times), f"arrival stream of model {record.model}", reading, known)


def warn_of_clock(trace: Trace) -> None:
    """Say where more requests come than the clock of a trace tells apart."""
    note = clock_note(trace)
    if note:
        click.echo(f"warning: {note}", err=True)


def warn_of_other_rate(rate: float, recorded_rate: float) -> None:
    """Say where costs are those of a trace of another rate (1/s) than the one that latencies are at."""
    if is_other_rate(rate, recorded_rate):
        told = f"latencies are at {rate:.4g} requests/s, costs those of the trace, with {recorded_rate:.4g} a second"
        click.echo(f"warning: {told}", err=True)


def read_recorded(
    path: str,
    size_column: str | None = None,
    class_column: str | None = None,
    option: str = "--trace",
    instead: str = "--arrivals arrivals.json",
) -> Trace:
    """The trace of a command that is not told how it is to be read; ``instead`` is how it takes what `sluice fit` made of one."""
    try:
        trace = read_trace(path, size_column=size_column, class_column=class_column)
    except Untold as error:
        fit = f"sluice fit {shlex.quote(path)} {error.options} --out arrivals.json"
        raise InvalidInput(option, path, f"times in s, or what is fitted to them, as {error.why}: {fit}, then {instead}") from None
    warn_of_clock(trace)
    return trace


trace_options = group("trace", TraceOptions, TraceOptions.__dataclass_fields__, _OPTIONS)
"""The argument TRACE and its options; the command gets ``trace: TraceOptions``."""
