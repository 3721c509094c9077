"""The papers' tables and figures from the solvers.

Tables of actions, gains, latencies and powers by policy iteration with an exact tail, percentiles by the exact law of the latency,
Tables II and III and figure 10 by the papers' value iteration, and the error of the papers' simulations by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import smdp
from sluice.optimizer.server.latency import server_latency
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.smdp import Performance, SmdpProblem, SmdpSolution, evaluate, solve
from sluice.optimizer.smdp.frontier import solve_frontier, solve_weights
from sluice.optimizer.smdp.policy_iteration import greedy, solve_by_policy_iteration
from sluice.optimizer.smdp.value_iteration import smallest_max_state, solve_by_value_iteration

from .coefficients import allowed, refined
from .results import Approximation, ByCoefficients, Cost, FirstTable, LeastStates, Percentile, Point, Published, Share, Study, Table
from .servers import PRINTED, STATIC, Server, cases, cost, settings, static

FEW_LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
WEIGHTS = (0.0, 0.5, 1.0, 100.0)
ICC_WEIGHTS = (0.0, 0.1, 1.0, 500.0)
FIGURE_9_WEIGHTS = (0.0, *np.geomspace(0.05, 100, 34).tolist())
N_POINTS = 1_660_000  # of each of the paper's simulations
RUNS = 20
OVERFLOW_COSTS = (10000, 1000, 100, 10, 0)
STATES = sorted({*range(32, 100, 2), *range(100, 251, 6), 160, 161, 191, 192})
PATIENT = 178  # s_max at which the iteration without an overflow cost is let go on


def compute() -> Study:
    """Everything."""
    return Study(tables(), costs(), points(), percentiles(), shares(), approximations(), published())


def solve_long(server: SmdpProblem) -> SmdpSolution:
    """The optimal table to five of the largest batch, also where queues are next to never so long."""
    states = np.arange(5 * server.max_batch_size + 1)
    start = np.where(states < server.min_batch_size, 0, np.minimum(states, server.max_batch_size))
    return solve_by_policy_iteration(server, start)


def table(case: str, load: float, solution: SmdpSolution) -> Table:
    """The row of a solution."""
    actions = " ".join(str(a) for a in solution.policy().take)
    return Table(case, load, solution.problem.power_weight, solution.control_limit(), actions)


def tables() -> list[Table]:
    """Those of figures 3 and 11, and of ICC's figure 4 (B_max = 32)."""
    servers = [(case.name, load, case.problem(load, weight)) for case in cases() for weight in WEIGHTS for load in FEW_LOADS]
    servers += [("ICC", load, PRINTED.problem(load, weight)) for weight in ICC_WEIGHTS for load in FEW_LOADS]
    return [table(name, load, solve_long(server)) for name, load, server in servers]


def benchmarks(server: SmdpProblem) -> dict[str, Performance]:
    """Greedy and static batching, where they keep up."""
    found = {"greedy": evaluate(server, greedy(server))}
    for batch_size in STATIC:
        try:
            found[f"static {batch_size}"] = evaluate(server, np.array(static(batch_size)))
        except InvalidInput:
            continue
    return found


def costs() -> list[Cost]:
    """Figure 4, and as far as figure 5 of ICC."""
    rows = []
    for load in (0.1, 0.3, 0.7):
        server = PRINTED.problem(load)
        found = benchmarks(server)
        for solution in solve_weights(server, np.arange(0, 20.1, 0.5)):
            by = {name: cost(solution.problem, performance) for name, performance in found.items()}
            others = (by.get(f"static {b}") for b in STATIC)
            rows.append(Cost(load, solution.problem.power_weight, solution.gain, by["greedy"], *others))
    return rows


def points() -> list[Point]:
    """Figures 5, 7, 8 and 9: curves and benchmarks."""
    rows = []
    for setting, server in settings():
        if setting in ("basic", "constant", "logarithmic"):
            solved = [(corner.least_weight, corner.solution) for corner in solve_frontier(server)]
        else:
            solved = list(zip(FIGURE_9_WEIGHTS, solve_weights(server, FIGURE_9_WEIGHTS), strict=True))
        found: list[tuple[str, float, Any]] = [(name, 0.0, performance) for name, performance in benchmarks(server).items()]
        found += [("smdp", weight, solution) for weight, solution in solved]
        load = round(server.load, 6)
        rows += [Point(setting, load, policy, weight, 1000 * one.mean_latency, one.power) for policy, weight, one in found]
    return rows


def percentile(server: SmdpProblem, policy: str, weight: float, actions: Sequence[int]) -> Percentile:
    """The exact law of the latency in numbers."""
    law = server_latency(server.arrival_rate, server.service, actions)
    p50, p90, p95 = (1000 * law.percentile(p) for p in (50, 90, 95))
    power = evaluate(server, np.array(actions)).power
    return Percentile(policy, weight, power, 1000 * law.mean, p50, p90, p95, 100 * law.probability_within(0.01))


def percentiles() -> list[Percentile]:
    """Of the benchmarks and of every corner of the curve, at load 0.7."""
    server = PRINTED.problem(0.7)
    rows = [percentile(server, "greedy", 0.0, greedy(server).tolist())]
    rows += [percentile(server, f"static {b}", 0.0, static(b)) for b in STATIC]
    for corner in solve_frontier(server):
        rows.append(percentile(server, "smdp", corner.least_weight, corner.solution.actions[0].tolist()))
    return rows


def best_of_figure_6(server: Server) -> dict[str, list[int]]:
    """The tables of the two SMDP policies of figure 6 and Table I."""
    return {f"SMDP, w2 = {weight}": solve(server.problem(0.7, weight)).actions[0].tolist() for weight in (1.6, 2.2)}


def shares() -> list[Share]:
    """The distribution functions of figure 6(a)."""
    server = PRINTED.problem(0.7)
    named = [greedy(server).tolist(), *(static(b) for b in STATIC), *best_of_figure_6(PRINTED).values()]
    ms = np.arange(0, 30.01, 0.25)
    curves = [100 * server_latency(server.arrival_rate, server.service, actions).cdf(ms / 1000) for actions in named]
    return [Share(*values) for values in np.column_stack([ms, *curves]).tolist()]


def of_table_1(server: Server) -> dict[str, list[float]]:
    """Table I without a simulation."""
    rows = {}
    for name, actions in {"static 8": static(8), **best_of_figure_6(server)}.items():
        row = percentile(server.problem(0.7), name, 0.0, actions)
        rows[name] = [row.power, row.mean, row.p50, row.p90, row.p95]
    return rows


def standard_errors(server: Server, n_requests: int = N_POINTS, runs: int = RUNS) -> dict[str, tuple[list[float], list[float]]]:
    """Means over runs of ``n_requests`` and the standard deviation of one run, for each measure of Table I."""
    rows = {}
    base = server.problem(0.7)
    for name, actions in {"static 8": static(8), **best_of_figure_6(server)}.items():
        seen = []
        for run in range(runs):
            rng = np.random.default_rng([run, n_requests])
            times = np.cumsum(base.arrivals.sample(n_requests, rng))
            outcome = simulate(smdp(actions, 1), times, base.service.service_times(), rng)
            end = float(outcome.dispatch_times[-1] + outcome.response_times[-1])
            latency = 1000 * outcome.latency[outcome.answered]
            energy = float(base.energy[outcome.batch_sizes - 1].sum())
            seen.append([energy / end, latency.mean(), *np.percentile(latency, [50, 90, 95])])
        rows[name] = np.mean(seen, axis=0).tolist(), np.std(seen, axis=0, ddof=1).tolist()
    return rows


def approximations() -> list[Approximation]:
    """Figure 10: load 0.9, w = (1, 1), epsilon 0.01, at most 10000 iterations."""
    server = PRINTED.problem(0.9, 1)
    rows = []
    for overflow_cost in OVERFLOW_COSTS:
        for max_state in STATES:
            found = solve_by_value_iteration(server, max_state=max_state, overflow_cost=overflow_cost)
            rows.append(Approximation(overflow_cost, max_state, found.iterations, found.gain, found.overflow_cost))
    return rows


def of_table_2(server: Server) -> list[LeastStates]:
    """Table II: by overflow cost, at the least s_max with Delta below 0.001."""
    weighted = server.problem(0.9, 1)
    rows = []
    for overflow_cost in OVERFLOW_COSTS:
        least = smallest_max_state(weighted, overflow_cost)
        found = solve_by_value_iteration(weighted, max_state=least, overflow_cost=overflow_cost)
        rows.append(LeastStates(least, found.iterations, found.overflow_cost, found.gain))
    return rows


def of_table_3(server: Server, overflow_cost: float) -> list[tuple[int, float]]:
    """Gain of the table that value iteration has after 1, 2, ... iterations at load 0.5, where it differs from the one before."""
    weighted = server.problem(0.5, 1)
    rows: list[tuple[int, float]] = []
    for iterations in range(1, 201):
        found = solve_by_value_iteration(
            weighted, max_state=160, overflow_cost=overflow_cost, epsilon=1e-9, max_iterations=iterations
        )
        if not rows or abs(rows[-1][1] - found.gain) > 1e-6:
            rows.append((iterations, found.gain))
    return rows


def published() -> Published:
    """All of the tables, with the printed coefficients and with those behind them."""
    behind = refined()
    patient = solve_by_value_iteration(PRINTED.problem(0.9, 1), max_state=PATIENT, overflow_cost=0, max_iterations=1_000_000)
    by_extremes = [of_table_1(server) for server in allowed()]
    third = ByCoefficients(*({str(c): of_table_3(server, c) for c in (0, 100)} for server in (PRINTED, behind)))
    return Published(
        FirstTable(of_table_1(PRINTED), of_table_1(behind), by_extremes, standard_errors(behind)),
        ByCoefficients(of_table_2(PRINTED), of_table_2(behind)),
        (PATIENT, patient.iterations),
        third,
    )
