"""`sluice replay`: send the requests of a trace to a running buffer, when the trace says, and measure how long each takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import click
import msgspec
from rich.progress import TimeElapsedColumn
from rich.table import Table

from sluice.batching.documents import SIZE_HEADER, Slo
from sluice.batching.errors import NOT_GIVEN, DispatchFailed, InvalidInput, require
from sluice.batching.urls import without_password
from sluice.cli import output
from sluice.cli.file_kinds import REPLAYED, written_option
from sluice.cli.given import require_none_given
from sluice.cli.header_options import header_option, read_headers, require_content_type, require_header
from sluice.cli.named_files import write_file
from sluice.cli.sized_files import read_sized_files
from sluice.cli.slo_options import slo_options
from sluice.cli.trace_options import TraceOptions, trace_options, warn_of_clock
from sluice.cli.values import DURATION, FILE, LIMIT, integer, number, require_speed
from sluice.local.replay import Body, Replay, ReplayProgress, ReplaySummary, await_listener, intended_times, replay, run
from sluice.local.sized_body import bodies_of_sizes

DRAW_EVERY = 1.0  # s
LONGEST_REPLAY = 7 * 86400.0  # s


@click.command(name="replay")
@trace_options
@click.option("--url", required=True, help="Where to post the requests, e.g. http://127.0.0.1:8080/models/mlp.")
@click.option(
    "--body",
    "bodies",
    multiple=True,
    type=FILE,
    metavar="[SIZE=]FILE",
    help="Body of every request; repeated with sizes, of those up to each size  [default: an empty JSON object, or its size]",
)
@click.option(
    "--body-size",
    metavar="PATH",
    help="Path in the JSON of --body to what gets the size of each request: a list, a string or a number.",
)
@click.option("--size-header", default=SIZE_HEADER, show_default=True, help="Header that tells the size of a request.")
@click.option("--content-type", default="application/json", show_default=True, help="Content type of the body.")
@header_option
@click.option(
    "--speed", "--scale", "scale", type=number, default=1.0, show_default=True, help="How many times faster than the trace."
)
@click.option("--limit", type=integer, help="At most so many requests.")
@click.option("--seconds", type=DURATION, help="Only the first so many seconds of the replay.")
@click.option("--timeout", type=LIMIT, default=30.0, show_default=True, help="After which a request counts as not answered.")
@click.option("--wait", type=LIMIT, default=10.0, show_default=True, help="At most to wait until somebody listens at the URL.")
@slo_options
@written_option("--out", kinds=(REPLAYED,), help="File for the summary and the latency of every request.")
@output.json_option
def command(
    trace: TraceOptions,
    url: str,
    bodies: tuple[str, ...],
    body_size: str | None,
    size_header: str,
    content_type: str,
    headers: tuple[str, ...],
    scale: float,
    limit: int | None,
    seconds: float | None,
    timeout: float,
    wait: float,
    slos: tuple[Slo, ...],
    out: str | None,
    as_json: bool,
) -> None:
    """Replay TRACE against a running buffer and measure latencies.

    Requests leave when the trace says, whether or not earlier ones were answered, and latency counts from that time. A request that
    fails never keeps an SLO; exits with 1 where one is not kept. The lateness is the generator's own: where it is not small against
    the latencies, do not trust them.

    Where the trace has sizes (--size-column, or the buffer's own record) each request tells its own in a header, and has the --body
    of the least size that is as large, or by --body-size one of its own size.
    """
    named = read_headers(headers)
    later = "none: an answer that is fetched later is not waited for, and 202 is no answer"
    prefers = named.get("prefer", "").lower()
    require("respond-async" not in prefers, "--header", f"prefer: {named.get('prefer')}", later)
    require_header("--size-header", size_header, size_header)
    require_content_type(content_type)
    require(timeout > 0, "--timeout", timeout, "a number of seconds > 0")
    observed = trace.read()
    require_speed(scale, observed.arrival_rate)
    times = observed.times
    sizes = None if observed.sizes is None else observed.sizes.tolist()
    if sizes is None:
        require_none_given(["size_header"], "none, as the trace has no sizes (--size-column)")
    content = _contents(bodies, sizes) if body_size is None else _contents_of_sizes(bodies, body_size, sizes)
    intended = intended_times(times, scale, limit, seconds)
    length, most = float(intended[-1]), f"what takes {LONGEST_REPLAY:.0f} s at most; so slow the replay takes"
    require(length <= LONGEST_REPLAY, "--speed", scale, f"{most} {length:.3g} s (--seconds and --limit replay a part)")
    warn_of_clock(observed)
    if not as_json:
        click.echo(f"read {len(observed)} arrivals as {observed.reading}", err=True)
        click.echo(f"{len(intended)} requests in {intended[-1]:.1f} s, {scale:g} times as fast as the trace.", err=True)
    with output.stderr.status(f"waiting for {without_password(url)} ..."):
        run(await_listener(url, wait))
    with output.SeldomDrawn(DRAW_EVERY, len(intended), TimeElapsedColumn()) as bar:

        def on_progress(done: ReplayProgress) -> None:
            bar.show(done.ended, f"{done.sent} sent, {done.failed} failed")

        result = run(
            replay(
                times,
                url,
                body=content,
                content_type=content_type,
                headers=named,
                scale=scale,
                limit=limit,
                seconds=seconds,
                timeout=timeout,
                sizes=observed.sizes,
                size_header=size_header,
                on_progress=on_progress,
            )
        )
    if out is not None:
        write_file(out, msgspec.json.encode(result.document()) + b"\n")
    summary = result.summary()
    if as_json:
        output.print_json(summary)
    if not result.answered.any():
        raise DispatchFailed(
            f"none of {len(result.status)} requests was answered with 2xx by {without_password(url)}: {_reason(result)}"
        )
    if not as_json:
        output.stdout.print(_table(summary))
    for message, count in summary.messages.items():
        click.echo(f"failed: {count} × {message}", err=True)
    _judge(result, slos)


def _contents(bodies: tuple[str, ...], sizes: list[float] | None) -> Body:
    """The body of every request; where they have sizes, from a request's number to its body."""
    files = read_sized_files(bodies, "--body")
    if sizes is None and any(size is not None for size, _ in files):
        raise InvalidInput("--body", " ".join(bodies), "a file without a size before it, as the trace has no sizes")
    if sizes is None or (files and files[0][0] is None):
        return files[0][1] if files else b"{}"
    if not files:
        return [b'{"size": %.17g}' % size for size in sizes].__getitem__
    ends = [size for size, _ in files if size is not None]
    larger = sum(size > ends[-1] for size in sizes)
    if larger:
        share = 100 * larger / len(sizes)
        told = f"warning: {share:.3g} % of the sizes are above {ends[-1]:g}, the largest of --body, and have its body all the same."
        click.echo(told, err=True)
    return [files[min(bisect_left(ends, size), len(ends) - 1)][1] for size in sizes].__getitem__


def _contents_of_sizes(bodies: tuple[str, ...], path: str, sizes: list[float] | None) -> Body:
    """From a request's number to a body of its size, made of the one that was named."""
    if sizes is None:
        raise InvalidInput("--body-size", path, "none, as the trace has no sizes (--size-column)")
    files = read_sized_files(bodies, "--body")
    if len(files) != 1:
        raise InvalidInput("--body", " ".join(bodies) or NOT_GIVEN, "one file, of which --body-size makes those of every size")
    made = bodies_of_sizes(files[0][1], path)
    made(next((size for size in sizes if size % 1), sizes[0]))  # what cannot be made is refused before anything is sent
    return lambda index: made(sizes[index])


def _reason(result: Replay) -> str:
    """Why most of the requests failed."""
    return max(result.messages, key=lambda message: result.messages[message])


def _judge(result: Replay, slos: Sequence[Slo]) -> None:
    """Fail where an SLO was not kept."""
    for slo in slos:
        wanted = f"{slo.percentile:g} % of the requests within {slo.latency:g} s"
        click.echo(f"{'Kept' if result.keeps(slo) else 'Not kept'}: {wanted}; {_found(result, slo)}.", err=True)
    if not all(map(result.keeps, slos)):
        raise click.exceptions.Exit(1)


def _found(result: Replay, slo: Slo) -> str:
    measured = result.latency_percentile(slo.percentile)
    if measured < float("inf"):
        return f"measured {measured:.4g} s"
    return f"{int((~result.answered).sum())} of {len(result.status)} requests failed ({_reason(result)})"


def _table(summary: ReplaySummary) -> Table:
    table = Table(title=f"{summary.requests} requests, {summary.request_rate:.1f} requests/s", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in summary.latency:
        table.add_column(name, justify="right")
    table.add_row("latency ms", *_milliseconds(summary.latency))
    for name, route in summary.routes.items():
        table.add_row(f"  {name}, {route.requests}", *_milliseconds(route.latency))
    table.add_row(
        "lateness ms", *(f"{summary.lateness[name] * 1e3:.2f}" if name in summary.lateness else "" for name in summary.latency)
    )
    return table


def _milliseconds(latency: dict[str, float | None]) -> list[str]:
    return ["not answered" if value is None else f"{value * 1e3:.2f}" for value in latency.values()]
