"""`sluice demo`: the whole loop on this machine, ending in one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sluice.batching.documents import Slo, write
from sluice.batching.errors import require
from sluice.cli import output
from sluice.cli.file_kinds import DEMO, written_option
from sluice.cli.named_files import write_file
from sluice.cli.slo_options import slo_options
from sluice.cli.values import FILE, LIMIT, number
from sluice.local.demo import Demo, DemoReport, Row
from sluice.local.live_demo import CONTROL, LiveRow

DRAW_EVERY = 0.5  # s
DEFAULT = Demo()


@click.command()
@click.option("--trace", type=FILE, metavar="FILE", help="A trace to fit and replay  [default: an excerpt of a public one]")
@click.option(
    "--speed",
    "--scale",
    "scale",
    type=number,
    help=f"How many times faster than recorded the trace runs  [default: {DEFAULT.scale:g}]",
)
@partial(slo_options, default=DEFAULT.slo)
@click.option(
    "--network",
    type=click.Choice(["mlp", "googlenet"]),
    help=f"mlp: batching pays; googlenet: on one core it does not  [default: {DEFAULT.network}]",
)
@click.option(
    "--seconds",
    "replay_seconds",
    type=LIMIT,
    help=f"Length of each of the three replays in seconds  [default: {DEFAULT.replay_seconds:g}]",
)
@click.option(
    "--live-seconds",
    type=LIMIT,
    help=f"Length of each of the four phases of live control; 0 leaves it out  [default: {DEFAULT.live_seconds:g}]",
)
@written_option("--out", kinds=(DEMO,), help="File for the report (JSON).")
@output.json_option
def command(slos: tuple[Slo, ...], out: str | None, as_json: bool, **options: Any) -> None:
    """Profile a real network, fit a real trace, recommend, serve, replay, and compare with no batching and greedy.

    Then live control, beside a plan that stays and plans made again by BATCH: the load triples and falls again, the function slows.
    Everything runs on this machine: an embedded Redis, a Lambda runtime with real function processes, the buffer, the load.
    """
    require(len(slos) <= 1, "slo", [slo.name for slo in slos], "one alone, as the demo makes one promise")
    given = {name: value for name, value in options.items() if value is not None}
    demo = dataclasses.replace(Demo(slo=slos[0] if slos else DEFAULT.slo), **given)
    with output.SeldomDrawn(DRAW_EVERY, 1.0) as bar:
        report = demo.run(output.stderr.print, lambda what, fraction: bar.show(fraction, what))
    if out is not None:
        write_file(out, write(report))
    if as_json:
        output.print_json(report)
        return
    output.stdout.print(table(report))
    output.stdout.print(conclusion(report))
    for row in report.rows:
        for note in row.notes:
            output.stdout.print(f"{row.name}: {note}.", style="dim")
    if report.live:
        output.stdout.print(live_table(report))
        output.stdout.print(live_conclusion(report))
    output.stdout.print(f"The demo took {report.seconds:.0f} s. {NEXT}", style="dim")


NEXT = "Next: docs/tutorial.md does the same command by command; `sluice new NAME` begins with a model of your own."


def table(report: DemoReport) -> Table:
    """One column for each way to serve the trace."""
    percentile = report.slo.name
    title = (
        f"{report.network}, {Path(report.trace).name} {report.scale:g} times as fast, "
        f"SLO: {report.slo.percentile:g} % within {report.slo.latency * 1e3:g} ms"
    )
    result = Table(title=title)
    result.add_column("")
    for row in report.rows:
        result.add_column(row.name, justify="right", style="bold" if row.name == "recommended" else None)
    lines: list[tuple[str, Callable[[Row], str]]] = [
        ("memory", lambda row: f"{row.memory_mb} MB"),
        ("policy", lambda row: row.policy),
        (f"{percentile} latency predicted", lambda row: f"{row.predicted_latency * 1e3:.1f} ms"),
        (f"{percentile} latency measured", lambda row: f"{row.measured_latency * 1e3:.1f} ms"),
        ("SLO kept", lambda row: "yes" if row.slo_kept else "no"),
        ("mean batch size predicted", lambda row: f"{row.predicted_batch_size:.2f}"),
        ("mean batch size measured", lambda row: f"{row.measured_batch_size:.2f}"),
        ("requests", lambda row: str(row.requests)),
        ("failed", lambda row: str(row.failures)),
        ("invocations", lambda row: str(row.invocations)),
        ("cold starts among them", lambda row: str(row.cold_starts)),
        ("USD per million requests predicted", lambda row: f"{row.predicted_cost * 1e6:.3f}"),
        ("USD per million requests billed", lambda row: f"{row.billed_cost * 1e6:.3f}"),
    ]
    for name, show in lines:
        result.add_row(name, *(show(row) for row in report.rows))
    return result


def conclusion(report: DemoReport) -> str:
    """What the demo answers: whether the promise was kept, what batching saved, whether a buffer would pay."""
    recommended = next(row for row in report.rows if row.name == "recommended")
    kept = "kept" if recommended.slo_kept else "did not keep"
    promise = f"{report.slo.percentile:g} % within {report.slo.latency * 1e3:g} ms"
    billed = f"{report.saving:.1f} times less than" if report.saving >= 1 else f"{1 / report.saving:.1f} times as much as"
    text = f"The recommended setting {kept} the promise, {promise}, and was billed {billed} no batching."
    rate, here = report.break_even_arrival_rate, report.arrivals.arrival_rate
    if rate is None:
        return (
            f"{text} A deployed buffer would earn its fixed cost at no rate{_why_never(report)}: do not deploy one to save money."
        )
    verdict = "it pays" if here > rate else "do not deploy one for this alone"
    return f"{text} A deployed buffer earns its fixed cost from {rate:.0f} requests/s on; here {here:.3g}: {verdict}."


def _why_never(report: DemoReport) -> str:
    billed = {row.name: row.billed_cost for row in report.rows}
    saved, moving = billed["no batching"] - billed["recommended"], report.moving_cost
    if not 0 < saved < moving:
        return ""
    return (
        f", as batching saves {1e6 * saved:.3f} USD per million requests and moving their bytes through it costs {1e6 * moving:.3f}"
    )


PHASES = ("before", "load × 3", "as before", "function slower")


def live_table(report: DemoReport) -> Table:
    """One column for each way to serve a load and a function that change."""
    result = Table(
        title=f"Live control, the function asleep, SLO: {report.slo.percentile:g} % within {report.slo.latency * 1e3:g} ms"
    )
    result.add_column("")
    for live in report.live:
        result.add_column(live.name, justify="right", style="bold" if live.name == CONTROL else None)
    for k, phase in enumerate(PHASES):
        of = [live.phases[k] for live in report.live]
        result.add_row(
            f"{phase}: {report.slo.name} predicted, measured",
            *(f"{1e3 * one.predicted_latency:.0f}, {1e3 * one.measured_latency:.0f} ms" for one in of),
        )
        result.add_row("  late, in its second half", *(f"{100 * one.late:.1f}, {100 * one.late_at_last:.1f} %" for one in of))
        result.add_row(
            "  USD per million predicted, billed", *(f"{1e6 * one.predicted_cost:.3f}, {1e6 * one.billed_cost:.3f}" for one in of)
        )
    result.add_row(
        "SLO kept in the second half of every phase", *("yes" if live.kept(report.slo) else "no" for live in report.live)
    )
    result.add_row("USD per million requests billed in all", *(f"{1e6 * live.cost:.3f}" for live in report.live))
    result.add_row("plans", *(str(live.plans) for live in report.live))
    result.add_row("failed", *(str(live.failures) for live in report.live))
    return result


def live_conclusion(report: DemoReport) -> str:
    """Whether control kept the promise once it had seen each change, and who else did not."""
    (mine,) = (live for live in report.live if live.name == CONTROL)
    others = [_broken(live, report.slo) for live in report.live if live is not mine and not live.kept(report.slo)]
    text = f"Live control kept the promise in the second half of every phase, at {1e6 * mine.cost:.3f} USD per million requests"
    if not mine.kept(report.slo):
        text = f"Live control did not keep the promise in the second half of every phase ({_broken(mine, report.slo)})"
        return f"{text}; {' and '.join(others)} did not either." if others else f"{text}; the others did."
    return f"{text}; {' and '.join(others)} did not." if others else f"{text}; so did the others."


def _broken(live: LiveRow, slo: Slo) -> str:
    worst, phase = max((one.late_at_last, phase) for one, phase in zip(live.phases, PHASES, strict=True))
    return f"{live.name} ({100 * worst:.0f} % late, {phase})"
