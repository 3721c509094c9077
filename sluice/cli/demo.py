"""`sluice demo`: the whole loop on this machine, ending in one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sluice.batching.documents import Slo, write
from sluice.cli import output
from sluice.local.demo import Demo, DemoReport, Row

DRAW_EVERY = 0.5  # s


@click.command()
@click.option("--trace", help="A trace to fit and replay  [default: an excerpt of a public one]")
@click.option("--scale", type=float, help="How many times faster than recorded the trace runs.")
@click.option("--slo", default=0.2, show_default=True, help="Latency in seconds that is promised.")
@click.option("--percentile", default=95.0, show_default=True, help="Percentage of the requests that are to keep it.")
@click.option("--network", type=click.Choice(["mlp", "googlenet"]), help="mlp: batching pays; googlenet: on one core it does not.")
@click.option("--seconds", "replay_seconds", type=float, help="Length of each of the three replays.")
@click.option("--out", type=click.Path(), help="File for the report (JSON).")
@output.json_option
def command(slo: float, percentile: float, out: str | None, as_json: bool, **options: Any) -> None:
    """Profile a real network, fit a real trace, recommend, serve, replay, and compare with no batching and greedy.

    Everything runs on this machine: an embedded Redis, a Lambda runtime with real function processes, the buffer, the load.
    """
    given = {name: value for name, value in options.items() if value is not None}
    demo = dataclasses.replace(Demo(slo=Slo(slo, percentile)), **given)
    with output.SeldomDrawn(DRAW_EVERY, 1.0) as bar:
        report = demo.run(output.stderr.print, lambda what, fraction: bar.show(fraction, what))
    if out is not None:
        output.write_file(out, write(report))
    if as_json:
        output.print_json(report)
        return
    output.stdout.print(table(report))
    for row in report.rows:
        for note in row.notes:
            output.stdout.print(f"{row.name}: {note}.", style="dim")
    output.stdout.print(_conclusion(report))


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


def _conclusion(report: DemoReport) -> str:
    text = f"The recommended setting was billed {report.saving:.1f} times less than no batching."
    if report.break_even_arrival_rate is not None:
        text += f" A deployed buffer earns its fixed cost from {report.break_even_arrival_rate:.0f} requests/s on."
    return text + f" The demo took {report.seconds:.0f} s."
