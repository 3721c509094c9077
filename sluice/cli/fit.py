"""`sluice fit`: an arrival process from a trace."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.table import Table

from sluice.batching.documents import ArrivalDocument, write
from sluice.cli import output
from sluice.cli.trace_options import TraceOptions, trace_options
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2_rates
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.traces.stationarity import Stationarity, judge_stationarity
from sluice.optimizer.traces.trace import Trace, TraceStatistics


@click.command("fit")
@trace_options
@click.option(
    "--model", default="auto", show_default=True, metavar="MODEL", help="auto, poisson, mmpp2, or map:N (N hidden states)."
)
@click.option("--plot", metavar="FILE", help="Draw the trace and the fit: .svg, .png or .pdf.")
@click.option("--out", metavar="FILE", help="Write the arrivals document here.")
@output.json_option
def command(trace: TraceOptions, model: str, plot: str | None, out: str | None, as_json: bool) -> None:
    """Fit an arrival process to TRACE.

    TRACE is a file of times, of gaps between them or of counts (CSV, Parquet, NPY), the access logs of a load balancer (a file or a
    folder of them), each plain or gzip; or what the buffer itself recorded for a model: redis://HOST:PORT/DB?model=NAME.
    """
    if plot is not None:
        from sluice.optimizer.report.trace_plot import require_figure_path

        require_figure_path(plot)
    observed = trace.read()
    if trace.kind == "auto":
        click.echo(f"read {len(observed)} arrivals as {observed.reading}", err=True)
    verdict = judge_stationarity(observed)
    if not verdict.stationary:
        click.echo(f"warning: {verdict.note}", err=True)
    with output.stderr.status("fitting ..."):
        document = _with_trace(fit_arrivals(observed, model), observed, verdict)
    fitted = ArrivalProcess.of(document)
    if out:
        output.write_file(out, write(document))
        output.stderr.print(f"wrote {out}")
    if plot is not None:
        from sluice.optimizer.report.trace_plot import plot_trace, write_figure

        write_figure(plot_trace(observed, fitted), plot)
        output.stderr.print(f"wrote {plot}")
    if as_json:
        output.print_json(document)
        return
    output.stdout.print(_comparison(observed.statistics(), fitted, document.fitted_from["fit"]))
    if fitted.model == "mmpp" and fitted.n_phases == 2:
        output.stdout.print("λ1 {:.6g}/s, λ2 {:.6g}/s, ω1 {:.6g}/s, ω2 {:.6g}/s".format(*mmpp2_rates(fitted)))
    output.stdout.print(_tried(document.goodness))
    output.stdout.print(f"{document.goodness['chosen']}: {document.goodness['why']}")
    waits, p95 = (_percent(document.goodness[name]) for name in ("wait_error", "wait_p95_error"))
    output.stdout.print(
        f"At other batch sizes and timeouts than those of the choice its waits are off by {waits} %, their p95 by {p95} %."
    )
    if "note" in document.goodness:
        output.stdout.print(f"note: {document.goodness['note']}")


def _tried(goodness: dict[str, Any]) -> Table:
    """The candidates with their evidence, the chosen one marked."""
    table = Table(title="tried", caption="error of the waits, in % of the timeout, and of their p95, in % of it")
    for heading in ("", "fit", "phases", "BIC", "waits, %", "p95, %", "EM"):
        table.add_column(heading, justify="left" if heading in ("", "fit", "EM") else "right")
    for row in goodness["tried"]:
        ended = "" if "converged" not in row else f"{row['iterations']} steps" + ("" if row["converged"] else ", stopped early")
        table.add_row(
            "→" if (row["fit"], row["bic"]) == (goodness["chosen"], goodness["bic"]) else "",
            row["fit"],
            str(row["phases"]),
            f"{row['bic']:.0f}",
            _percent(row["wait_error"]),
            _percent(row["wait_p95_error"]),
            ended,
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _with_trace(document: ArrivalDocument, observed: Trace, verdict: Stationarity) -> ArrivalDocument:
    """The document with how the trace was read, its statistics, and whether its rate drifts."""
    seen = observed.statistics()
    more = {
        "reading": observed.reading,
        "arrival_rate": seen.arrival_rate,
        "autocorrelation": list(seen.autocorrelation.items()),
        "dispersion": list(seen.dispersion.items()),
        "stationarity": verdict.record(),
    }
    return msgspec.structs.replace(document, fitted_from=document.fitted_from | more)


def _comparison(seen: TraceStatistics, fitted: ArrivalProcess, name: str) -> Table:
    table = Table("", f"trace ({seen.n} arrivals, {seen.duration:.4g} s)", f"fit ({name}, phases: {fitted.n_phases})")
    table.add_row("arrival rate, requests/s", f"{seen.arrival_rate:.4g}", f"{fitted.arrival_rate:.4g}")
    table.add_row("SCV", f"{seen.scv:.4g}", f"{fitted.scv:.4g}")
    skewness = (fitted.moment(3) - 3 * fitted.moment(2) * fitted.moment(1) + 2 * fitted.moment(1) ** 3) / (
        fitted.moment(2) - fitted.moment(1) ** 2
    ) ** 1.5
    table.add_row("skewness", f"{seen.skewness:.4g}", f"{skewness:.4g}")
    for (lag, there), here in zip(seen.autocorrelation.items(), fitted.autocorrelation(list(seen.autocorrelation)), strict=True):
        table.add_row(f"autocorrelation, lag {lag}", f"{there:.3f}", f"{here:.3f}")
    for (window, there), here in zip(seen.dispersion.items(), dispersion_of_counts(fitted, list(seen.dispersion)), strict=True):
        table.add_row(f"dispersion of counts, {window:.3g} s", f"{there:.4g}", f"{here:.4g}")
    return table
