"""`sluice fit`: an arrival process from a trace."""

from __future__ import annotations

import click
from rich.table import Table

from sluice.batching.documents import write
from sluice.cli import output
from sluice.cli.file_kinds import ARRIVALS, FIGURE, written_option
from sluice.cli.named_files import write_file, wrote
from sluice.cli.trace_options import TraceOptions, trace_options, warn_of_clock
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, dispersion_of_counts, mmpp2_rates
from sluice.optimizer.fits import ArrivalFit, arrival_document, fit_arrivals, require_model
from sluice.optimizer.service import SizeMix
from sluice.optimizer.traces import TraceStatistics, judge_stationarity


@click.command("fit")
@trace_options
@click.option(
    "--model", default="auto", show_default=True, metavar="MODEL", help="auto, poisson, mmpp2, or map:N (N hidden states)."
)
@written_option("--plot", kinds=(FIGURE,), help="Draw the trace and the fit: .svg, .png or .pdf.")
@written_option("--out", kinds=(ARRIVALS,), help="Write the arrivals document here.")
@output.json_option
def command(trace: TraceOptions, model: str, plot: str | None, out: str | None, as_json: bool) -> None:
    """Fit an arrival process to TRACE.

    TRACE is a file of times, of gaps between them or of counts (CSV, Parquet, NPY), the access logs of a load balancer (a file or a
    folder of them), each plain or gzip; or what the buffer itself recorded for a model: redis://HOST:PORT/DB?model=NAME.
    """
    require_model(model)
    if plot is not None:
        from sluice.optimizer.report.trace_plot import require_figure_path

        require_figure_path(plot)
    observed = trace.read()
    if trace.kind == "auto":
        click.echo(f"read {len(observed)} arrivals as {observed.reading}", err=True)
    warn_of_clock(observed)
    verdict = judge_stationarity(observed)
    if not verdict.stationary:
        click.echo(f"warning: {verdict.note}", err=True)
    with output.stderr.status("fitting ..."):
        fitted = fit_arrivals(observed, model)
    document = arrival_document(fitted, verdict)
    if out is not None:
        write_file(out, write(document))
    if plot is not None:
        from sluice.optimizer.report.trace_plot import plot_trace, write_figure

        write_figure(plot_trace(observed, fitted.arrivals), plot)
        wrote(plot)
    if as_json:
        output.print_json(document)
        return
    _show(fitted)
    if observed.sizes is not None:
        output.stdout.print(_sizes(observed.sizes, observed.size_correlations()))


def _sizes(sizes: Array, correlations: tuple[float, float] | None) -> str:
    """What is said of the sizes of the requests, and whether they are independent, as predictions take them to be."""
    mix = SizeMix.of(sizes)
    quantiles = ", ".join(f"p{100 * q:g} {mix.quantile(q):g}" for q in (0.5, 0.95, 0.99))
    of_next, of_gap = correlations or (0.0, 0.0)
    return (
        f"sizes: mean {mix.mean:.4g}, {quantiles}, largest {mix.largest:g}; correlation of consecutive ones {of_next:.3f}, "
        f"with the gap before {of_gap:.3f}"
    )


def _show(fitted: ArrivalFit) -> None:
    """The trace beside the fit, what was tried, and why one was chosen."""
    output.stdout.print(_comparison(fitted.trace.statistics(), fitted.arrivals, fitted.best.name))
    if fitted.arrivals.model == "mmpp" and fitted.arrivals.n_phases == 2:
        output.stdout.print("λ1 {:.6g}/s, λ2 {:.6g}/s, ω1 {:.6g}/s, ω2 {:.6g}/s".format(*mmpp2_rates(fitted.arrivals)))
    output.stdout.print(_tried(fitted))
    output.stdout.print(f"{fitted.best.name}: {fitted.why}")
    error = fitted.error
    output.stdout.print(
        "At other batch sizes and timeouts than those of the choice its waits are off by "
        f"{_percent(error.area if error else None)} %, their p95 by {_percent(error.p95 if error else None)} %."
    )
    if fitted.note:
        output.stdout.print(f"note: {fitted.note}")


def _tried(fitted: ArrivalFit) -> Table:
    """The candidates with their evidence, the chosen one marked."""
    table = Table(title="tried", caption="error of the waits, in % of the timeout, and of their p95, in % of it")
    for heading in ("", "fit", "phases", "BIC", "waits, %", "p95, %", "EM"):
        table.add_column(heading, justify="left" if heading in ("", "fit", "EM") else "right")
    for candidate in fitted.tried:
        ended, error = candidate.convergence, candidate.error
        table.add_row(
            "→" if candidate is fitted.best else "",
            candidate.name,
            str(candidate.arrivals.n_phases),
            f"{candidate.bic:.0f}",
            _percent(error.area if error else None),
            _percent(error.p95 if error else None),
            "" if ended is None else f"{ended.iterations} steps" + ("" if ended.converged else ", stopped early"),
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _comparison(seen: TraceStatistics, fitted: ArrivalProcess, name: str) -> Table:
    table = Table("", f"trace ({seen.n} arrivals, {seen.duration:.4g} s)", f"fit ({name}, phases: {fitted.n_phases})")
    table.add_row("arrival rate, requests/s", f"{seen.arrival_rate:.4g}", f"{fitted.arrival_rate:.4g}")
    table.add_row("SCV", f"{seen.scv:.4g}", f"{fitted.scv:.4g}")
    table.add_row("skewness", f"{seen.skewness:.4g}", f"{fitted.skewness:.4g}")
    for (lag, there), here in zip(seen.autocorrelation.items(), fitted.autocorrelation(list(seen.autocorrelation)), strict=True):
        table.add_row(f"autocorrelation, lag {lag}", f"{there:.3f}", f"{here:.3f}")
    for (window, there), here in zip(seen.dispersion.items(), dispersion_of_counts(fitted, list(seen.dispersion)), strict=True):
        table.add_row(f"dispersion of counts, {window:.3g} s", f"{there:.4g}", f"{here:.4g}")
    return table
