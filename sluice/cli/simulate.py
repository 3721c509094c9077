"""`sluice simulate`: several policies side by side on the same arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as dataclass_replace
from math import isfinite

import click
import numpy as np
from msgspec.structs import replace
from rich.progress import Progress
from rich.table import Column, Table

from sluice.batching.documents import ServiceProfile, Slo, percentile_name
from sluice.batching.errors import Infeasible, InvalidInput, NotConverged, SluiceError, require
from sluice.cli import output
from sluice.cli.arrival_options import profile_option, read_arrivals
from sluice.cli.costs import cost_document
from sluice.cli.policy_names import USAGE, Situation, all_policies, named_policy
from sluice.cli.slo_options import slo_options
from sluice.cli.worker_offers import read_worker
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.baselines import Function
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.billing.prices import default_prices, read_prices
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.report.wording import milliseconds, per_million
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.chunks import Arrivals, SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.trace import read_trace

PERCENTILES = (50.0, 95.0, 99.0)
N_REQUESTS = 200_000
N_PAST = 1 << 16  # requests sampled for policies that learn from the past
BINS = 60
PAST = 0.5
LARGEST_BATCH = 128
KEEP_ALIVE, SCALING_RATE, BURST = 300.0, 100.0, 1000  # as AWS Lambda's


@click.command("simulate")
@click.option("--arrivals", metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it.")
@click.option("--poisson", "poisson_rate", type=float, metavar="R", help="Poisson arrivals, R requests/s.")
@click.option("--mmpp2", "mmpp2_rates", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s.")
@click.option("--trace", metavar="FILE", help="A trace to run on; beside a model, policies are made for the model.")
@click.option(
    "--past",
    type=float,
    metavar="PART",
    help=f"Of a trace alone: policies learn from this part at its beginning and run on the rest  [default: {PAST:g}]",
)
@click.option("--speed", type=float, default=1.0, show_default=True, metavar="FACTOR", help="Run the trace so many times as fast.")
@click.option(
    "--policy", "names", multiple=True, required=True, metavar="NAME|FILE", help=f"all, a policy or plan (JSON), or {USAGE}"
)
@profile_option
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory size of the function  [default: what the SLOs choose]")
@click.option("--max-batch-size", type=int, default=LARGEST_BATCH, show_default=True, help="Largest batch considered.")
@click.option(
    "--worker",
    "worker_text",
    metavar="PROFILE:PRICE",
    help="What serves the policies of servers: a profile, and a machine of the price list or USD per hour"
    "  [default: provisioned concurrency]",
)
@click.option("--servers", type=int, metavar="K", help="How many they are  [default: the fewest that keep the SLOs in the past]")
@click.option("--requests", "n_requests", type=int, metavar="N", help=f"How many, of a model  [default: {N_REQUESTS}]")
@slo_options(required=False)
@click.option("--keep-alive", type=float, default=KEEP_ALIVE, show_default=True, help="Seconds that an idle environment is kept.")
@click.option("--init", "init_duration", type=float, help="Seconds of a cold start  [default: the profile's INIT]")
@click.option("--concurrency", type=int, help="Invocations at once at most  [default: any number]")
@click.option(
    "--scaling-rate", type=float, default=SCALING_RATE, show_default=True, help="New environments per second, in the long run."
)
@click.option("--burst", type=int, default=BURST, show_default=True, help="New environments at once.")
@click.option("--energy", metavar="Z0,B", help="Energy of a batch of b: Z0 + B b, J.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same answer.")
@click.option(
    "--bins", type=int, metavar="N", help=f"Also how it went over time, in so many bins  [default: none; {BINS} for --plot]"
)
@click.option("--plot", metavar="FILE", help="Draw how it went over time: .svg, .png or .pdf.")
@click.option("--prices", metavar="FILE", help="Prices laid over the dated ones that come along; any part of them.")
@click.option("--architecture", default="x86_64", show_default=True, help="Of the function: x86_64 or arm64.")
@click.option("--granularity", type=float, metavar="SECONDS", help="Billing granularity  [default: the price list's]")
@output.json_option
def command(
    arrivals: str | None,
    poisson_rate: float | None,
    mmpp2_rates: str | None,
    trace: str | None,
    past: float | None,
    speed: float,
    names: tuple[str, ...],
    profile: ServiceProfile,
    memory_mb: int | None,
    max_batch_size: int,
    worker_text: str | None,
    servers: int | None,
    n_requests: int | None,
    slos: tuple[Slo, ...],
    keep_alive: float,
    init_duration: float | None,
    concurrency: int | None,
    scaling_rate: float,
    burst: int,
    energy: str | None,
    seed: int,
    bins: int | None,
    plot: str | None,
    prices: str | None,
    architecture: str,
    granularity: float | None,
    as_json: bool,
) -> None:
    """Run policies side by side on the same arrivals: latency, violations, cost.

    Policies that plan know a model of the arrivals or the past part of a trace, never what they are run on.
    """
    if plot is not None:
        from sluice.optimizer.report.trace_plot import require_figure_path

        require_figure_path(plot)
    require(servers is None or servers >= 1, "servers", servers, "an integer >= 1")
    require(max_batch_size >= 1, "max_batch_size", max_batch_size, "an integer >= 1")
    require(seed >= 0, "seed", seed, "an integer >= 0")
    require(bins is None or bins >= 1, "bins", bins, "an integer >= 1")
    price_list = default_prices() if prices is None else read_prices(output.read_file(prices), prices)
    billing = Billing(price_list, architecture, granularity, 0.0)  # cold starts are simulated
    process, past_times, run = _arrivals((arrivals, poisson_rate, mmpp2_rates), trace, past, speed, n_requests, seed)
    if init_duration is not None:
        require(0 <= init_duration < np.inf, "init", init_duration, "a number of seconds >= 0")
        profile = replace(profile, init={})
    sizes = profile.memory_sizes if memory_mb is None else [memory_mb]
    require(bool(sizes), "memory", None, "a memory size (MB), as a linear profile names none")
    environments = Environments(init_duration or 0.0, keep_alive, concurrency, scaling_rate, burst)
    situation = Situation(
        process,
        past_times,
        run,
        Function(profile, sizes[-1], billing, environments, max_batch_size),
        memory_mb,
        None if worker_text is None else read_worker(worker_text, billing.prices, max_batch_size),
        servers,
        slos,
    )
    with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
        task = progress.add_task("planning", total=None)
        deployments, refused = _deployments(names, situation)
        if energy is not None:
            joules = _energies(energy, max(map(_largest, deployments.values())))
            deployments = {name: dataclass_replace(deployment, energy=joules) for name, deployment in deployments.items()}
        progress.update(task, description="simulating")
        n_bins = bins or (BINS if plot is not None else 0)
        runs = simulate_deployments(deployments, run, [slo.latency for slo in slos], seed, n_bins)
    for name, reason in refused.items():
        output.stderr.print(f"left out: {name}: {reason}", highlight=False, soft_wrap=True)
    if plot is not None:
        from sluice.cli.series_plot import plot_series
        from sluice.optimizer.report.trace_plot import write_figure

        write_figure(plot_series(runs), plot)
        output.stderr.print(f"wrote {plot}")
    rate = run.n_requests / _span(next(iter(runs.values())))
    winner = _winner(runs, slos)
    if as_json:
        output.print_json(
            {
                "version": 1,
                "n_requests": run.n_requests,
                "arrival_rate": rate,
                "planned_rate": process.arrival_rate,
                "seed": seed,
                "slos": list(slos),
                "policies": {name: _document(statistics, slos, n_bins > 0) for name, statistics in runs.items()},
                "refused": refused,
                "winner": winner,
                "prices": {"region": billing.prices.region, "read_on": billing.prices.read_on},
            }
        )
        return
    output.stdout.print(_table(runs, slos, f"{run.n_requests} requests, {rate:.4g}/s"))
    if slos and winner is None:
        output.stdout.print("None of these keeps the SLO.")
    elif winner is not None:
        usd = per_million(runs[winner].cost.per_request)
        output.stdout.print(f"Cheapest that keeps the SLO: {winner}, {usd} USD per million requests.", highlight=False)
    output.stdout.print(f"prices: {billing.prices.region}, read {billing.prices.read_on}")


def _arrivals(
    model: tuple[str | None, float | None, str | None],
    trace: str | None,
    past: float | None,
    speed: float,
    n_requests: int | None,
    seed: int,
) -> tuple[ArrivalProcess, Array, Arrivals]:
    """The arrivals that policies are made for, arrivals seen before the run (s), and those of the run."""
    modelled = any(given is not None for given in model)
    if trace is None:
        require(modelled, "arrivals", None, "one of --arrivals, --poisson, --mmpp2 and --trace")
        require(speed == 1, "speed", speed, "only with --trace")
    else:
        require(n_requests is None, "requests", n_requests, "only without --trace")
    require(past is None or (trace is not None and not modelled), "past", past, "only with --trace and no model beside it")
    require(past is None or 0 < past < 1, "past", past, "a part of the trace, strictly between 0 and 1")
    require(n_requests is None or n_requests >= 1, "requests", n_requests, "an integer >= 1")
    whole = None if trace is None else read_trace(trace).sped_up(speed)
    if not modelled and whole is not None:
        cut = (PAST if past is None else past) * whole.duration
        process = ArrivalProcess.of(fit_arrivals(whole.between(0, cut)))
        return process, whole.times[whole.times <= cut], TraceArrivals(whole.times[whole.times > cut])
    process = ArrivalProcess.of(read_arrivals(*model))
    seen = np.cumsum(process.sample(N_PAST, np.random.default_rng([seed, 1])))
    run = SampledArrivals(process, n_requests or N_REQUESTS, seed) if whole is None else TraceArrivals(whole.times)
    return process, seen, run


def _deployments(names: Sequence[str], situation: Situation) -> tuple[dict[str, Deployment], dict[str, str]]:
    """What is named, and why some of all policies cannot be had."""
    deployments: dict[str, Deployment] = {}
    refused: dict[str, str] = {}
    errors: list[SluiceError] = []
    for name in dict.fromkeys(name for text in names for name in (all_policies() if text == "all" else [text])):
        try:
            deployments[name] = named_policy(name, situation)
        except (Infeasible, InvalidInput, NotConverged) as error:
            if name in names:
                raise
            refused[name] = str(error)
            errors.append(error)
    if not deployments:
        raise errors[0]
    return deployments, refused


def _largest(deployment: Deployment) -> int:
    spill = deployment.overflow
    return max(deployment.schedule.max_batch_size, spill.policy.max_batch_size if spill else 1)


def _energies(text: str, largest: int) -> Array:
    """Joules of a batch of 1, 2, ..., (largest,)."""
    try:
        intercept, slope = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("energy", text, "two numbers, intercept and slope in J") from None
    joules = np.asarray(intercept + slope * np.arange(1, largest + 1))
    require(bool((np.isfinite(joules) & (joules >= 0)).all()), "energy", text, "energies >= 0")
    return joules


def _keeps(run: RunStatistics, slos: Sequence[Slo]) -> bool:
    return all(run.violation_ratio(k) <= slo.error_budget for k, slo in enumerate(slos))


def _winner(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The cheapest that keeps all SLOs."""
    kept = [name for name, run in runs.items() if slos and _keeps(run, slos)]
    return min(kept, key=lambda name: runs[name].cost.per_request, default=None)


def _document(run: RunStatistics, slos: Sequence[Slo], with_series: bool) -> dict[str, object]:
    percentiles = sorted({*PERCENTILES, *(slo.percentile for slo in slos)})
    tables = run.deployment.schedule.tables
    document = {
        "policy": {"kind": tables[-1].kind, "parameters": dict(tables[-1].parameters), "tables": len(tables)},
        "memory_mb": None if run.deployment.function is None else run.deployment.function.memory_mb,
        "latency": {percentile_name(p): _estimate(run.percentile(p)) for p in percentiles},
        "mean_latency": _estimate(run.mean_latency),
        "violations": [_estimate(run.violations(k)) for k in range(len(slos))],
        "violation_ratios": [run.violation_ratio(k) for k in range(len(slos))],
        "keeps_slos": _keeps(run, slos),
        "answered": run.answered,
        "dropped": run.dropped,
        "unanswered": run.unanswered,
        "batches": run.n_batches,
        "cold_starts": run.cold_starts,
        "mean_batch_size": run.mean_batch_size,
        "batch_size_pmf": run.batch_size_pmf.tolist(),
        "by_function": run.by_function,
        "mean_servers": run.worker_seconds / _span(run),
        "utilisation": run.utilisation,
        "energy_per_request": run.energy_per_request,
        "cost": cost_document(run.cost),
    }
    if with_series and run.series is not None:
        series = run.series
        names = ("edges", "arrivals", "answered", "in_time", "mean_latency")
        document["series"] = {name: getattr(series, name).tolist() for name in names}
    return document


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in estimate._asdict().items()}


def _table(runs: Mapping[str, RunStatistics], slos: Sequence[Slo], title: str) -> Table:
    percentiles = sorted({slo.percentile for slo in slos} or PERCENTILES[:2])
    drops = any(run.dropped for run in runs.values())
    joules = any(run.energy_per_request is not None for run in runs.values())
    columns = [*(f"{percentile_name(p)} ms" for p in percentiles), *(f"beyond\n{milliseconds(slo.latency)}" for slo in slos)]
    columns += [*(["dropped"] if drops else []), "USD per\nmillion", *(["J"] if joules else []), "mean\nbatch", "busy", "cold"]
    table = Table(Column("", overflow="fold", min_width=12), title=title, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    best = _winner(runs, slos)
    for name, run in runs.items():
        cells = [_interval(run.percentile(p)) for p in percentiles]
        cells += [f"{100 * run.violation_ratio(k):.3g} %" for k in range(len(slos))]
        cells += [f"{100 * run.dropped / run.n_requests:.2g} %"] if drops else []
        cells += [per_million(run.cost.per_request), *([f"{run.energy_per_request:.4g}"] if joules else [])]
        cells += [f"{run.mean_batch_size:.2f}", "-" if run.utilisation is None else f"{100 * run.utilisation:.0f} %"]
        table.add_row(name, *cells, str(run.cold_starts), style="bold" if name == best else None)
    return table


def _interval(estimate: Estimate) -> str:
    """Milliseconds, and how far the interval reaches at most."""
    if not isfinite(estimate.value):
        return "never"
    reach = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return f"{1e3 * estimate.value:.4g} ±{1e3 * reach:.2g}" if isfinite(reach) else f"{1e3 * estimate.value:.4g} ±?"


def _span(run: RunStatistics) -> float:
    """Seconds from the first arrival to the last arrival or answer."""
    return run.end - run.start
