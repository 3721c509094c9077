"""`sluice fit`: an arrival process from a trace."""

from __future__ import annotations

from typing import cast

import click
from rich.table import Table

from batching.documents import write
from cli import output
from optimizer.arrivals.choice import fit_arrivals
from optimizer.arrivals.map import ArrivalProcess
from optimizer.arrivals.mmpp import mmpp2_rates
from optimizer.arrivals.trace import Kind, Trace, read_trace


@click.command("fit")
@click.argument("trace", metavar="TRACE")
@click.option("--column", metavar="NAME", help="Column by its name in the header; default the first.")
@click.option(
    "--model", default="auto", show_default=True, metavar="MODEL", help="auto, poisson, mmpp2, or map:N (N hidden states)."
)
@click.option(
    "--kind",
    type=click.Choice(["timestamps", "interarrivals", "auto"]),
    default="auto",
    show_default=True,
    help="What is in it; auto refuses what may be either.",
)
@click.option("--unit", type=click.Choice(["s", "ms", "us"]), default="s", show_default=True, help="Of numbers.")
@click.option("--out", metavar="FILE", help="Write the arrivals document here.")
@output.json_option
def command(trace: str, column: str | None, model: str, kind: str, unit: str, out: str | None, as_json: bool) -> None:
    """Fit an arrival process to TRACE: timestamps or inter-arrival times in a CSV file, plain or gzip."""
    observed = read_trace(trace, column, cast(Kind, kind), unit)
    if kind == "auto":
        click.echo(f"read {len(observed)} arrivals as {observed.reading}", err=True)
    with output.stderr.status("fitting ..."):
        document = fit_arrivals(observed, model)
    if out:
        output.write_file(out, write(document))
        output.stderr.print(f"wrote {out}")
    if as_json:
        output.print_json(document)
        return
    fitted = ArrivalProcess.of(document)
    output.stdout.print(_comparison(observed, fitted, document.fitted_from["fit"]))
    if fitted.model == "mmpp" and fitted.n_phases == 2:
        output.stdout.print("λ1 {:.6g}/s, λ2 {:.6g}/s, ω1 {:.6g}/s, ω2 {:.6g}/s".format(*mmpp2_rates(fitted)))
    tried = Table("fit", "error of the waits, % of the timeout", "BIC", title="tried")
    for row in document.goodness["tried"]:
        tried.add_row(row["fit"], f"{100 * row['wait_error']:.2f}", "-" if row["bic"] is None else f"{row['bic']:.0f}")
    output.stdout.print(tried)
    if "note" in document.goodness:
        output.stdout.print(f"note: {document.goodness['note']}")


def _comparison(observed: Trace, fitted: ArrivalProcess, name: str) -> Table:
    seen = observed.statistics()
    table = Table("", f"trace ({seen.n} arrivals, {seen.duration:.4g} s)", f"fit ({name}, {fitted.n_phases} phases)")
    table.add_row("arrival rate, requests/s", f"{seen.arrival_rate:.4g}", f"{fitted.arrival_rate:.4g}")
    table.add_row("SCV", f"{seen.scv:.4g}", f"{fitted.scv:.4g}")
    skewness = (fitted.moment(3) - 3 * fitted.moment(2) * fitted.moment(1) + 2 * fitted.moment(1) ** 3) / (
        fitted.moment(2) - fitted.moment(1) ** 2
    ) ** 1.5
    table.add_row("skewness", f"{seen.skewness:.4g}", f"{skewness:.4g}")
    lags = list(seen.autocorrelation)
    for lag, value in zip(lags, fitted.autocorrelation(lags), strict=True):
        table.add_row(f"autocorrelation, lag {lag}", f"{seen.autocorrelation[lag]:.3f}", f"{value:.3f}")
    for window, value in seen.dispersion.items():
        table.add_row(f"dispersion of counts, {window:.3g} s", f"{value:.4g}", "")
    return table
