"""`sluice simulate`: several policies side by side on the same arrivals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import click
from rich.progress import Progress
from rich.table import Column, Table

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import require
from sluice.cli import output, simulate_control
from sluice.cli.file_kinds import FIGURE, require_written
from sluice.cli.named_files import wrote
from sluice.cli.per_batch import read_per_batch
from sluice.cli.policy_files import is_file, read_policy
from sluice.cli.profile_files import warn_of_machine
from sluice.cli.situation_options import situation_options
from sluice.cli.tuning_options import KEPT_IN, USUALLY_IN, kept_in_option
from sluice.cli.values import FILE, integer, offered
from sluice.optimizer.arrays import Array
from sluice.optimizer.baselines import NAMES, USAGE, Situation, named_deployments, require_all_taken
from sluice.optimizer.baselines.names import ALL
from sluice.optimizer.recommend.words import between, promised, two_digits
from sluice.optimizer.report.documents import RUN_PERCENTILES, prices_document, run_document
from sluice.optimizer.report.wording import per_million, priced
from sluice.optimizer.simulation import (
    ClassStatistics,
    Deployment,
    Estimate,
    RunStatistics,
    ServingStatistics,
    SeveralQueues,
    cheapest_kept,
    cheapest_perhaps_kept,
    simulate_deployments,
)
from sluice.optimizer.simulation.chunks import rate_seen
from sluice.optimizer.tuning.simulated import ServiceChange

BINS = 60
KEPT = {True: "kept", False: "not kept", None: "perhaps"}
MOST_BINS = 100_000


def figure_path(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """A path of a figure that can be written, before anything is planned for it."""
    if path is not None and not context.resilient_parsing:
        require_written(context, option, path, FIGURE)
        from sluice.optimizer.report.trace_plot import require_figure_path

        require_figure_path(path)
    return path


@click.command("simulate")
@situation_options
@click.option(
    "--policy",
    "names",
    multiple=True,
    required=True,
    type=FILE,
    metavar="NAME|FILE",
    shell_complete=offered(lambda: (ALL, simulate_control.NAME, *NAMES)),
    help=f"all, control, a policy or plan (JSON), or {USAGE}",
)
@click.option(
    simulate_control.OPTION,
    "changes",
    multiple=True,
    metavar="AT:FACTOR",
    callback=simulate_control.service_changes,
    help="From so many seconds on the function takes so many times as long, which policy control is not told; repeated.",
)
@kept_in_option
@click.option("--energy", metavar="Z0,B", help="Energy of a batch of b: Z0 + B b, J, or @FILE: a JSON list.")
@click.option(
    "--bins", type=integer, metavar="N", help=f"Also how it went over time, in so many bins  [default: none; {BINS} for --plot]"
)
@click.option(
    "--plot", type=FILE, metavar="FILE", callback=figure_path, is_eager=True, help="Draw how it went over time: .svg, .png or .pdf."
)
@output.json_option
def command(
    situation: Situation,
    seed: int,
    names: tuple[str, ...],
    changes: list[ServiceChange],
    kept_in: float | None,
    energy: str | None,
    bins: int | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Run policies side by side on the same arrivals: latency, violations, cost.

    Policies that plan know a model of the arrivals or the past part of a trace, never what they are run on. Where requests have
    sizes each has its own, those of the trace (--size-column) or drawn from --sizes, and a plan of size classes is run by class.
    A plan with classes of requests gets those of --class or of the trace (--class-column), and what each class met is told. Policy
    control looks at what comes and at what its batches take, and changes its plan on the way.
    """
    require(bins is None or 1 <= bins <= MOST_BINS, "bins", bins, f"an integer from 1 to {MOST_BINS}")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    require(twice is None, "--policy", twice, "each policy once")
    slos, run, control = situation.slos, situation.workload.run, simulate_control.NAME in names
    others = tuple(name for name in names if name != simulate_control.NAME)
    alone = control and not others
    only = f"only with --policy {simulate_control.NAME} alone"
    require(alone or not changes, simulate_control.OPTION, " ".join(map(simulate_control.written, changes)), only)
    require(alone or kept_in is None, KEPT_IN, kept_in, only)
    kept_in = USUALLY_IN if kept_in is None else kept_in
    for option, given in (("--energy", energy), ("--bins", bins), ("--plot", plot)):
        require(not alone or given is None, option, given, f"none with --policy {simulate_control.NAME} alone")
    if situation.worker is None and not all(map(is_file, names)):
        warn_of_machine(situation.any_function.profile, "Workers: --worker PROFILE:MACHINE.")
    followed = None
    with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
        task = progress.add_task("planning", total=None)
        files = {name: read_policy(name) for name in others if is_file(name)}
        require_all_taken(situation, names, files)
        deployments, refused = ({}, {}) if alone else named_deployments(others, situation, files)
        if energy is not None:
            joules = read_per_batch(energy, max(deployment.max_batch_size for deployment in deployments.values()), "energy")
            deployments = {name: _with_energy(deployment, joules) for name, deployment in deployments.items()}
        progress.update(task, description="simulating")
        n_bins = bins or (BINS if plot is not None else 0)
        latencies = [slo.latency for slo in slos]
        runs = {} if alone else simulate_deployments(deployments, run, latencies, seed, n_bins)
        if control:
            progress.update(task, description="controlling", total=1.0)
            followed = simulate_control.controlled(
                situation, changes, kept_in, seed, lambda done: progress.update(task, completed=done)
            )
    for name, reason in refused.items():
        output.stderr.print(f"left out: {name}: {reason}", highlight=False, soft_wrap=True)
    notes = {name: deployment.note for name, deployment in deployments.items() if deployment.note}
    for name, note in notes.items():
        output.stderr.print(f"note: {name}: {note}", highlight=False, soft_wrap=True)
    if plot is not None:
        from sluice.optimizer.report.series_plot import plot_series
        from sluice.optimizer.report.trace_plot import write_figure

        write_figure(plot_series(runs), plot)
        wrote(plot)
    rate, winner, prices = rate_seen(run), cheapest_kept(runs, slos), situation.any_function.billing.prices
    if as_json:
        output.print_json(
            {
                "version": 1,
                "n_requests": run.n_requests,
                "arrival_rate": rate,
                "planned_rate": situation.process.arrival_rate,
                "seed": seed,
                "slos": list(slos),
                "policies": {name: run_document(statistics, slos) for name, statistics in runs.items()},
                "refused": refused,
                "notes": notes,
                "winner": winner,
                "perhaps": cheapest_perhaps_kept(runs, slos),
                **({} if followed is None else {"control": simulate_control.document(followed, slos, kept_in)}),
                "prices": prices_document(prices),
            }
        )
        return
    if runs:
        output.stdout.print(_table(runs, slos, f"{run.n_requests} requests, {rate:.4g}/s"))
    if situation.workload.classes:
        output.stdout.print(_by_class(runs))
    for sentence in _verdict(runs, slos) if runs else ():
        output.stdout.print(sentence, highlight=False)
    if followed is not None:
        output.stdout.print(simulate_control.table(followed))
        output.stdout.print(simulate_control.sentence(followed, slos, kept_in), highlight=False, soft_wrap=True)
    output.stdout.print(priced(prices))


def _verdict(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> Iterator[str]:
    """Which of the policies surely keeps the SLOs at least cost, and which cheaper one might, in words."""
    if not slos and not any(run.promises for run in runs.values()):
        return
    surely, perhaps = cheapest_kept(runs, slos), cheapest_perhaps_kept(runs, slos)
    if surely is not None:
        usd = per_million(runs[surely].cost.by_request)
        yield f"Cheapest that surely keeps the SLO: {surely}, {usd} USD per million requests."
    else:
        yield "None of these keeps the SLO." if perhaps is None else "None of these surely keeps the SLO."
    if perhaps is not None and perhaps != surely:
        run = runs[perhaps]
        late = [run.violations(k) for k in range(len(slos))]
        shares = " and ".join(f"{100 * of.value:.3g} % are late, {_span(of)} %" for of in late)
        classes = [f"{of.request_class.name} {_late(of)}" for of in run.classes if of.slos and of.kept is not True]
        shares = "; ".join([*([shares] if late else []), *classes])
        yield f"Might keep it: {perhaps}, {per_million(run.cost.by_request)} USD; {shares}; more requests would tell."


def _with_energy(deployment: Deployment | SeveralQueues, joules: Array) -> Deployment | SeveralQueues:
    return replace(deployment, energy=joules) if isinstance(deployment, Deployment) else deployment.with_energy(joules)


def _table(runs: Mapping[str, RunStatistics], slos: Sequence[Slo], title: str) -> Table:
    percentiles = sorted({slo.percentile for slo in slos} or RUN_PERCENTILES[:2])
    drops = any(run.dropped for run in runs.values())
    joules = any(run.energy_per_request is not None for run in runs.values())
    columns = [*(f"{percentile_name(p)} ms" for p in percentiles), *(f"beyond\n{promised(slo.latency)}" for slo in slos)]
    columns += [*(["dropped"] if drops else []), "USD per\nmillion", *(["J"] if joules else []), "mean\nbatch", "busy"]
    columns += ["cold\nfirst", "cold\nlater"]
    table = Table(Column("", overflow="fold", min_width=12), title=title, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    best = cheapest_kept(runs, slos)
    for name, run in runs.items():
        names = [] if isinstance(run.deployment, Deployment) else run.deployment.names
        each = [(name, run), *((f"  {called}", queue) for called, queue in zip(names, run.queues, strict=True))]
        for of, seen in each:
            if not seen.estimates:
                table.add_row(f"{of}, {seen.n_requests} requests", style="dim")
                continue
            cells = [_interval(seen.percentile(p)) for p in percentiles]
            cells += [f"{100 * seen.violation_ratio(k):.3g} %" for k in range(len(slos))]
            cells += [f"{two_digits(seen.dropped / seen.n_requests)} %"] if drops else []
            cells += [per_million(seen.cost.by_request), *([f"{seen.energy_per_request:.4g}"] if joules else [])]
            cells += [f"{seen.mean_batch_size:.2f}", "-" if seen.utilisation is None else f"{100 * seen.utilisation:.0f} %"]
            table.add_row(of, *cells, *_cold(seen), style="bold" if of == best else None)
            for row in _functions(seen, len(percentiles) + len(slos) + drops, joules):
                table.add_row(*row, style="dim")
    return table


def _cold(seen: RunStatistics | ServingStatistics) -> list[str]:
    """Cold starts while environments are new, and thereafter."""
    return [str(seen.cold_at_start), str(seen.cold_starts - seen.cold_at_start)]


def _by_class(runs: Mapping[str, RunStatistics]) -> Table:
    """What the requests of each class met under each policy, in 80 columns."""
    table = Table(Column("by class", overflow="fold", min_width=11), padding=(0, 1, 0, 0))
    for column in ("requests", *(f"{percentile_name(p)} ms" for p in RUN_PERCENTILES), "promised", "late"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, run in runs.items():
        table.add_row(name)
        for of in run.classes:
            cells = [_interval(of.percentile(p)).replace(" ", "\n") if of.estimates else "" for p in RUN_PERCENTILES]
            for slo in of.slos:
                cells += [f"{slo.name} {promised(slo.latency)}\n{KEPT[of.kept]}", _late(of).replace(", ", "\n")]
            table.add_row(f"  {of.request_class.name}", str(of.n_requests), *cells)
    return table


def _late(of: ClassStatistics) -> str:
    """The share of a class that is late, with its interval where there are enough requests."""
    if not of.estimates:
        return f"{100 * of.violation_ratio():.3g} %"
    share = of.violations()
    return f"{100 * share.value:.3g} %, {_span(share)} %"


def _span(share: Estimate) -> str:
    """The interval of a share, in percent."""
    return between(f"{100 * share.low:.3g}", f"{100 * share.high:.3g}")


def _functions(run: RunStatistics, n_of_all: int, joules: bool) -> Iterator[list[str]]:
    """What each function of a queue with some beside one another did, with its part of the cost of a request of any."""
    for side in run.serving if len(run.serving) > 1 else ():
        twice = [other.serving.function for other in run.serving].count(side.serving.function) > 1
        where = ("" if side.serving.elastic else ", warm") if twice else ""
        name = f"  {100 * side.share:.3g} % {side.serving.function}{where}"
        cells = [per_million(side.cost.by_request), *([""] if joules else [])]
        cells.append(f"{side.requests / side.batches:.2f}" if side.batches else "-")
        cells.append("-" if side.utilisation is None else f"{100 * side.utilisation:.0f} %")
        yield [name, *[""] * n_of_all, *cells, *_cold(side)]


def _interval(estimate: Estimate) -> str:
    """Milliseconds, and how far the interval reaches at most."""
    if not isfinite(estimate.value):
        return "never"
    reach = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return f"{1e3 * estimate.value:.4g} ±{1e3 * reach:.2g}" if isfinite(reach) else f"{1e3 * estimate.value:.4g} ±?"
