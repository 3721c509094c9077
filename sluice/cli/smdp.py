"""`sluice smdp`: when one server whose service time depends on the batch should serve, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click
import msgspec
import numpy as np
from rich.table import Column, Table

from sluice.batching.documents import Plan, PolicyDocument, Slo, percentile_name, write
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.cli import output
from sluice.cli.arrival_options import read_arrivals, read_profile
from sluice.cli.slo_options import slo_options
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import EmpiricalLaw, ServiceLaw, deterministic, exponential, gamma, hyperexponential
from sluice.optimizer.service.times import service_times_up_to
from sluice.optimizer.smdp import METHODS, Performance, SmdpProblem, SmdpSolution, affine, evaluate, solve
from sluice.optimizer.smdp.frontier import Corner, choose_weight, solve_frontier
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles
from sluice.optimizer.smdp.several_workers import PoolSolution, solve_pool
from sluice.optimizer.smdp.solution import Actions

PERCENTILES = (50.0, 95.0, 99.0)
STATIC = (8, 16, 32)  # batch sizes of the static policies compared
UNITS = {"s": 1.0, "ms": 1e-3}


@click.command("smdp")
@click.option("--rho", type=float, metavar="R", help="Poisson arrivals at this part of what full batches serve, below 1.")
@click.option("--rate", type=float, metavar="R", help="Poisson arrivals, R per unit of time.")
@click.option(
    "--arrivals", metavar="FILE", help="Arrivals document, as `sluice fit --out` writes it; one with phases gets a table for each."
)
@click.option("--mmpp2", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s.")
@click.option("--service", metavar="L0,A", help="Mean service time L0 + A b of a batch of b, or @FILE: a JSON list, for 1, 2, ...")
@click.option("--profile", metavar="FILE", help="Measured service times instead, as `sluice profile --out` writes them.")
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory size in the profile, where it has several.")
@click.option("--energy", metavar="Z0,B", default="0,0", help="Energy (or money) Z0 + B b of a batch of b, or @FILE: a JSON list.")
@click.option("--batch-max", type=int, metavar="B", help="Largest batch; needed unless a list or a profile says it.")
@click.option("--batch-min", type=int, default=1, show_default=True, metavar="B", help="Smallest batch.")
@click.option("--w1", type=float, default=1.0, show_default=True, help="Weight of the mean latency, per unit of time.")
@click.option("--w2", type=float, help="Weight of the mean power, per W  [default: 1; with --slo it is what is sought]")
@click.option(
    "--distribution",
    default="deterministic",
    show_default=True,
    help="Of the service time: deterministic, erlang:K, exponential, hyperexponential, gamma:SHAPE.",
)
@click.option("--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True, help="The other two cut the queue.")
@click.option("--max-state", type=int, help="Where the other two methods cut the queue  [default: 8 of the largest batch]")
@click.option("--overflow-cost", type=float, help="Of value iteration: the papers' c_o  [default: twice the cost of greedy]")
@click.option("--epsilon", type=float, help="Of value iteration: the span at which it stops  [default: 0.01]")
@click.option(
    "--unit", type=click.Choice(list(UNITS)), default="s", show_default=True, help="ms: of time; energies are then in mJ."
)
@slo_options(required=False)
@click.option("--frontier", is_flag=True, help="Show all that the weights can buy, from the least latency to the least power.")
@click.option("--servers", type=int, default=1, show_default=True, metavar="K", help="Identical workers behind one queue.")
@click.option("--out", metavar="FILE", help="Write the policy, or a plan where --model and --function are given.")
@click.option("--model", help="Name of the model, for a plan.")
@click.option("--function", help="Address of the worker, for a plan: http://HOST:PORT, several with commas between.")
@output.json_option
def command(
    rho: float | None,
    rate: float | None,
    arrivals: str | None,
    mmpp2: str | None,
    service: str | None,
    profile: str | None,
    memory_mb: int | None,
    energy: str,
    batch_max: int | None,
    batch_min: int,
    w1: float,
    w2: float | None,
    distribution: str,
    method: str,
    max_state: int | None,
    overflow_cost: float | None,
    epsilon: float | None,
    unit: str,
    slos: tuple[Slo, ...],
    frontier: bool,
    servers: int,
    out: str | None,
    model: str | None,
    function: str | None,
    as_json: bool,
) -> None:
    """Find the optimal state-dependent batching policy of one server.

    The objective is w1 * mean latency + w2 * mean power. With --slo the largest w2 whose policy keeps the SLO is sought; an SLO is
    in seconds whatever the unit.
    """
    require(servers >= 1, "servers", servers, "an integer >= 1")
    scale = UNITS[unit]
    law, largest = _service(service, profile, memory_mb, distribution, batch_max, scale)
    process = _arrivals(rho, rate, arrivals, mmpp2, float(largest / law.mean[-1]) * servers, scale)
    share = process.sped_up(1 / servers) if servers > 1 else process
    require(w2 is None or not slos, "w2", w2, "only without --slo, for which it is sought")
    require(servers == 1 or not (slos or frontier), "servers", servers, "1, with --slo and --frontier")
    exact_only = "policy-iteration with --slo, --frontier and --servers"
    require(method == METHODS[0] or (servers == 1 and not slos and not frontier), "method", method, exact_only)
    weight = 1.0 if w2 is None else w2
    problem = SmdpProblem(share, law, _per_batch(energy, largest, "energy") * scale, batch_min, w1 / scale, weight)
    percentiles = LatencyPercentiles(problem)
    corners = solve_frontier(problem) if frontier or slos else []
    chosen: Corner | None = None
    if slos:
        chosen = choose_weight(problem, slos, percentiles, corners)
        problem = problem.weighted(problem.latency_weight, _inside(chosen))
    solution = solve(problem, method, max_state=max_state, overflow_cost=overflow_cost, epsilon=epsilon)
    if chosen is not None and any(percentiles(solution, slo.percentile) > slo.latency for slo in slos):
        solution = chosen.solution  # another table of the same cost, all but
    pool = solve_pool(problem, servers) if servers > 1 else None
    policies = [pool.policy] if pool else [solution.policy(phase) for phase in range(len(solution.actions))]
    if out is not None:
        _write(out, policies, model, function, slos)
    shown = sorted({*PERCENTILES, *(slo.percentile for slo in slos)})
    compared = {} if pool or process.n_phases > 1 else _compared(problem)
    latency = {name: {percentile_name(p): percentiles.estimate(table, p).value for p in shown} for name, table in compared.items()}
    if not pool and process.n_phases == 1:
        latency["optimal"] = {percentile_name(p): percentiles.estimate(solution.actions[0], p).value for p in shown}
    if as_json:
        output.print_json(
            {
                "version": 1,
                "method": solution.method,
                "arrival_rate": process.arrival_rate,
                "load": problem.load,
                "latency_weight": problem.latency_weight,
                "power_weight": problem.power_weight,
                "slos": list(slos),
                "power_weights": None if chosen is None else _ends(chosen),
                "policies": [PolicyDocument.of(policy) for policy in policies],
                "converged": solution.converged,
                "iterations": solution.iterations,
                "residual": solution.residual,
                "overflow_cost": solution.overflow_cost,
                "gain": pool.cost if pool else solution.gain,
                "optimal": _pool_document(pool) if pool else _document(problem, solution.performance),
                "latency": latency,
                "latency_is_exact": percentiles.exact,
                "compared": {name: _document(problem, evaluate(problem, table)) for name, table in compared.items()},
                "frontier": [_corner(corner) for corner in corners] if frontier else [],
            }
        )
        return
    for policy, name in zip(policies, _names(len(policies)), strict=True):
        output.stdout.print(f"{name}{_spoken(policy)}", highlight=False)
    if chosen is not None:
        low, high = _ends(chosen)
        output.stdout.print(
            f"w2 from {low:.6g} to {'any larger' if high is None else f'{high:.6g}'} keeps the SLO with the least power"
        )
    if pool:
        output.stdout.print(_pool_table(pool, process.arrival_rate))
    else:
        output.stdout.print(_table(problem, solution, compared, latency, percentiles.exact))
        ended = "converged" if solution.converged else "did not converge"
        output.stdout.print(
            f"{solution.method}: {ended} after {solution.iterations} iterations, residual {solution.residual:.2g}", highlight=False
        )
    if frontier:
        output.stdout.print(_frontier(corners))


def _service(
    service: str | None, profile: str | None, memory_mb: int | None, distribution: str, batch_max: int | None, scale: float
) -> tuple[ServiceLaw, int]:
    """The service law and the largest batch."""
    require((service is None) != (profile is None), "service", service, "exactly one of --service and --profile")
    if profile is not None:
        measured = read_profile(profile)
        sizes = measured.memory_sizes or [1]
        if memory_mb is None and len(sizes) > 1:
            raise InvalidInput("memory", None, "one of the profile's: " + ", ".join(map(str, sizes)))
        largest = batch_max or measured.max_batch_size or max((point.batch_size for point in measured.points), default=0)
        require(largest > 0, "batch_max", batch_max, "a largest batch, as the profile names none")
        return EmpiricalLaw(service_times_up_to(measured, memory_mb or sizes[0], largest)), largest
    mean = _per_batch(str(service), batch_max, "service") * scale
    kind, _, parameter = distribution.partition(":")
    if kind in ("erlang", "gamma"):
        try:
            shape = float(parameter)
        except ValueError:
            raise InvalidInput("distribution", distribution, f"{kind} with its shape, as in {kind}:2") from None
        require(kind == "gamma" or shape % 1 == 0, "distribution", distribution, "erlang with a whole number of stages")
        return gamma(mean, shape), len(mean)
    laws = {"deterministic": deterministic, "exponential": exponential, "hyperexponential": hyperexponential}
    require(
        distribution in laws, "distribution", distribution, "deterministic, erlang:K, exponential, hyperexponential or gamma:SHAPE"
    )
    return laws[distribution](mean), len(mean)


def _per_batch(text: str, largest: int | None, field: str) -> Array:
    """Values for batches of 1, 2, ...: of an intercept and a slope, or of a file."""
    if text.startswith("@"):
        content = output.read_file(text[1:])
        try:
            values = np.array(msgspec.json.decode(content, type=list[float]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(field, text, f"a file with a JSON list of numbers for batches of 1, 2, ... ({error})") from None
        require(len(values) >= (largest or 1), field, text, f"a list of at least {largest or 1} numbers")
        return values[:largest]
    try:
        intercept, slope = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(field, text, "two numbers, intercept and slope, or @FILE") from None
    if largest is None:
        raise InvalidInput("batch_max", None, "the largest batch, as a line has no end")
    return affine(intercept, slope, largest)


def _arrivals(
    rho: float | None, rate: float | None, arrivals: str | None, mmpp2: str | None, throughput: float, scale: float
) -> ArrivalProcess:
    given = [value for value in (rho, rate, arrivals, mmpp2) if value is not None]
    require(len(given) == 1, "arrivals", given, "exactly one of --rho, --rate, --arrivals and --mmpp2")
    if rho is not None:
        require(rho > 0, "rho", rho, "a number above 0 and below 1")
        return poisson(rho * throughput)
    if rate is not None:
        return poisson(rate / scale)
    return ArrivalProcess.of(read_arrivals(arrivals, None, mmpp2))


def _inside(corner: Corner) -> float:
    """A weight that selects the corner."""
    low, high = corner.least_weight, corner.largest_weight
    return (low + high) / 2 if np.isfinite(high) else max(2 * low, 1.0)


def _ends(corner: Corner) -> tuple[float, float | None]:
    return corner.least_weight, corner.largest_weight if np.isfinite(corner.largest_weight) else None


def _compared(problem: SmdpProblem) -> dict[str, Actions]:
    """The greedy table, and the static ones that are stable."""
    largest, smallest = problem.max_batch_size, problem.min_batch_size
    tables = {"greedy": np.array([s if s >= smallest else 0 for s in range(largest + 1)])}
    for b in sorted({*STATIC, largest}):
        if smallest <= b <= largest and problem.throughput[b - 1] > problem.arrival_rate:
            tables[f"static {b}"] = np.array([0] * b + [b])
    return tables


def _write(
    path: str,
    policies: Sequence[Policy],
    model: str | None,
    function: str | None,
    slos: Sequence[Slo],
) -> None:
    require(len(policies) == 1, "out", path, "only for arrivals of one phase: a policy document holds one table")
    require(
        (model is None) == (function is None), "model, function", (model, function), "both, for a plan, or neither, for a policy"
    )
    policy = PolicyDocument.of(policies[0])
    if model is None or function is None:
        output.write_file(path, output.to_json(policy))
    else:
        plan = Plan(
            model=model,
            function=function,
            policy=policy,
            slo=slos[0] if slos else None,
            other_slos=list(slos[1:]),
        )
        output.write_file(path, write(plan))
    output.stderr.print(f"wrote {path}")


def _spoken(policy: Policy) -> str:
    """A table in words: how many waiting requests lead to what."""
    parts = []
    rows = [(q, take) for q, take in enumerate(policy.take)]
    for kind, group in groupby(rows[1:], key=lambda row: "wait" if row[1] == 0 else "all" if row[1] == row[0] else str(row[1])):
        members = [q for q, _ in group]
        first, last = members[0], members[-1]
        span = f"from {first} on" if last == rows[-1][0] else f"{first}" if first == last else f"{first}-{last}"
        parts.append(f"{span}: {'take all' if kind == 'all' else kind if kind == 'wait' else f'take {kind}'}")
    return "; ".join(parts)


def _names(count: int) -> list[str]:
    return ["waiting requests and what is done -- "] if count == 1 else [f"phase {phase + 1} -- " for phase in range(count)]


def _document(problem: SmdpProblem, performance: Performance) -> dict[str, float]:
    return {
        "mean_latency": performance.mean_latency,
        "power": performance.power,
        "energy_efficiency": problem.arrival_rate / performance.power if performance.power else 0.0,
        "batch_rate": performance.batch_rate,
        "mean_batch_size": performance.mean_batch_size,
        "cost": problem.cost(performance.mean_latency, performance.power),
    }


def _pool_document(pool: PoolSolution) -> dict[str, object]:
    return {
        "mean_latency": pool.mean_latency.value,
        "mean_latency_interval": [pool.mean_latency.low, pool.mean_latency.high],
        "power": pool.power,
        "mean_batch_size": pool.mean_batch_size,
        "cost": pool.cost,
    }


def _corner(corner: Corner) -> dict[str, object]:
    solution = corner.solution
    low, high = _ends(corner)
    return {
        "power_weights": [low, high],
        "mean_latency": solution.mean_latency,
        "power": solution.power,
        "energy_efficiency": solution.energy_efficiency,
        "mean_batch_size": solution.performance.mean_batch_size,
        "policy": PolicyDocument.of(solution.policy()),
    }


def _table(
    problem: SmdpProblem, solution: SmdpSolution, compared: dict[str, Actions], latency: dict[str, dict[str, float]], exact: bool
) -> Table:
    weights = f"w1 {problem.latency_weight:.4g} /s, w2 {problem.power_weight:.4g} /W"
    title = f"{problem.arrival_rate:.4g} requests/s, load {problem.load:.3g}, {weights}"
    table = Table(Column("", no_wrap=True), title=title, caption=None if exact or not latency else "percentiles are simulated")
    names = list(next(iter(latency.values()), {}))
    for name in ("mean\nms", *(f"{name}\nms" for name in names), "power\nW", "mean\nbatch", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = {"optimal": solution.performance} | {name: evaluate(problem, actions) for name, actions in compared.items()}
    for name, performance in rows.items():
        table.add_row(
            name,
            f"{1e3 * performance.mean_latency:.4g}",
            *(f"{1e3 * latency[name][percentile]:.4g}" for percentile in names),
            f"{performance.power:.4g}",
            f"{performance.mean_batch_size:.2f}",
            f"{problem.cost(performance.mean_latency, performance.power):.6g}",
            style="bold" if name == "optimal" else None,
        )
    return table


def _pool_table(pool: PoolSolution, arrival_rate: float) -> Table:
    table = Table("", "", title=f"{arrival_rate:.4g} requests/s, {pool.policy.servers} workers", show_header=False)
    latency = pool.mean_latency
    table.add_row("policy", pool.policy.kind)
    table.add_row("mean latency, simulated", f"{1e3 * latency.value:.4g} ms ({1e3 * latency.low:.4g} to {1e3 * latency.high:.4g})")
    table.add_row("power of all", f"{pool.power:.4g} W")
    table.add_row("mean batch", f"{pool.mean_batch_size:.2f}")
    table.add_row("cost", f"{pool.cost:.6g}")
    return table


def _frontier(corners: Sequence[Corner]) -> Table:
    table = Table("w2", title="what the weights can buy")
    for name in ("mean latency ms", "power W", "requests/J", "mean batch"):
        table.add_column(name, justify="right")
    for corner in corners:
        solution = corner.solution
        low, high = _ends(corner)
        table.add_row(
            f"{low:.4g} - {'' if high is None else f'{high:.4g}'}",
            f"{1e3 * solution.mean_latency:.4g}",
            f"{solution.power:.5g}",
            f"{solution.energy_efficiency:.4g}",
            f"{solution.performance.mean_batch_size:.2f}",
        )
    return table
