"""All that `sluice smdp` says of a server: its best table, what others come to, and what of it can be deployed.

One record for every kind of arrivals and any number of workers: what a kind does not have is empty in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.smdp.frontier import Corner, choose_weight, solve_frontier
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles
from sluice.optimizer.smdp.methods import METHODS, require_options, solve
from sluice.optimizer.smdp.modulated import solve_modulated
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.one_table import OneTable, solve_one_table
from sluice.optimizer.smdp.phase_tables import FilteredTables, PhaseTables, simulate_filtered
from sluice.optimizer.smdp.policy_iteration import evaluate, greedy
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.several_workers import WorkersSolution, solve_workers
from sluice.optimizer.smdp.solution import Actions, Performance, SecondsLeft, SmdpSolution, endless

PERCENTILES = (50.0, 95.0, 99.0)
STATIC = (8, 16, 32)  # batch sizes of the static policies compared

Percentiles = Mapping[str, float]  # s, by name (``p95``)


@dataclass(frozen=True, eq=False)
class Answer:
    """The best table of a server and what it is beside others.

    Parameters
    ----------
    problem : SmdpProblem
        Of one worker with its share of the arrivals, at the weights that the SLOs chose.
    solution : SmdpSolution
        Of one worker; of arrivals with phases what a server comes to that sees the phase: a bound.
    policies : tuple of Policy
        One, or of arrivals with phases one for each.
    slos : tuple of Slo
    servers : int
    compared : mapping of str to Performance
        The greedy table and static ones, on one server with Poisson arrivals.
    latency : mapping of str to mapping of str to float
        Percentiles (s) by name, of ``optimal`` and the tables compared; with phases of ``one table`` and ``filtered``.
    latency_is_exact : bool
        Whether these are exact, and not simulated.
    corners : tuple of Corner
        All that the weights can buy, where asked for.
    chosen : Corner or None
        The one that keeps the SLOs.
    workers : WorkersSolution or None
        Of several workers.
    one_table, filtered : OneTable and FilteredTables, or None
        Of arrivals with phases: the best table for all of them, and what the tables per phase come to where the phase is guessed.
    way : float
        s of each SLO that were kept free; no percentile has them.
    """

    problem: SmdpProblem
    solution: SmdpSolution
    policies: tuple[Policy, ...]
    slos: tuple[Slo, ...] = ()
    servers: int = 1
    compared: Mapping[str, Performance] = field(default_factory=dict)
    latency: Mapping[str, Percentiles] = field(default_factory=dict)
    latency_is_exact: bool = True
    corners: tuple[Corner, ...] = ()
    chosen: Corner | None = None
    workers: WorkersSolution | None = None
    one_table: OneTable | None = None
    filtered: FilteredTables | None = None
    way: float = 0.0

    @property
    def arrival_rate(self) -> float:
        """Requests per second of all workers together."""
        return self.problem.arrival_rate * self.servers

    def beyond_seen(self, cost: float) -> float:
        """By which part a cost is above that of the solution; of arrivals with phases, of a server that sees the phase."""
        return cost / self.solution.gain - 1


def answer_problem(
    problem: SmdpProblem,
    slos: Sequence[Slo] = (),
    *,
    way: float = 0.0,
    servers: int = 1,
    frontier: bool = False,
    method: str = METHODS[0],
    max_state: int | None = None,
    overflow_cost: float | None = None,
    epsilon: float | None = None,
    seconds_left: SecondsLeft = endless,
) -> Answer:
    """The answer for a problem.

    Parameters
    ----------
    problem : SmdpProblem
        Of one worker with its share of the arrivals.
    slos : sequence of Slo
        The largest weight of the power is sought whose table keeps them.
    way : float
        s that a request is on its way to the worker and back, through a buffer perhaps: they are kept free of the SLOs.
    servers : int
        Identical workers behind one queue.
    frontier : bool
        Whether all is wanted that the weights can buy.
    method, max_state, overflow_cost, epsilon
        As ``solve`` has them.
    seconds_left : callable
        When there are none left policy iteration ends with the best table so far and its bound, the frontier with the corners
        found, and percentiles are simulated.

    Raises
    ------
    InvalidInput
        SLOs, a frontier, several workers or another method where arrivals have phases; SLOs, a frontier or another method with
        several workers; SLOs or a frontier by another method; a way that leaves nothing of an SLO.
    Infeasible
        No weight keeps the SLOs.
    """
    require(servers >= 1, "servers", servers, "an integer >= 1")
    require(servers == 1 or not (slos or frontier), "servers", servers, "1, with --slo and --frontier")
    exact_only = "policy-iteration with --slo, --frontier and --servers"
    require(method == METHODS[0] or (servers == 1 and not slos and not frontier), "method", method, exact_only)
    n_phases = problem.arrivals.n_phases
    one_phase = servers > 1 or bool(slos) or frontier or method != METHODS[0]
    allowed = f"1, Poisson arrivals, with --slo, --frontier, --servers and methods other than {METHODS[0]}"
    require(n_phases == 1 or not one_phase, "arrivals.n_phases", n_phases, allowed)

    shortest = min((slo.latency for slo in slos), default=np.inf)
    require(0 <= way < shortest, "way", way, f"seconds less than the SLO's {shortest:g}")
    require_options(method, max_state=max_state, overflow_cost=overflow_cost, epsilon=epsilon)
    if n_phases > 1:
        return _with_phases(problem, seconds_left)

    def solved(problem: SmdpProblem) -> SmdpSolution:
        cut = {"overflow_cost": overflow_cost, "epsilon": epsilon}
        return solve(problem, method, max_state=max_state, **cut, seconds_left=seconds_left)

    if servers > 1:
        solution, workers = solved(problem), solve_workers(problem, servers)
        return Answer(problem, solution, (workers.policy,), servers=servers, workers=workers)
    of_worker = tuple(slo.sooner(way) for slo in slos)
    return replace(_of_one_server(problem, of_worker, frontier, solved, seconds_left), slos=tuple(slos), way=way)


def _of_one_server(
    problem: SmdpProblem,
    slos: tuple[Slo, ...],
    frontier: bool,
    solved: Callable[[SmdpProblem], SmdpSolution],
    seconds_left: SecondsLeft,
) -> Answer:
    percentiles = LatencyPercentiles(problem, seconds_left=seconds_left)
    corners = tuple(solve_frontier(problem, seconds_left)) if frontier or slos else ()
    chosen = choose_weight(problem, slos, percentiles, corners) if slos else None
    if chosen is not None:
        problem = problem.weighted(problem.latency_weight, chosen.inside)
    solution = solved(problem)
    if chosen is not None and any(percentiles(solution, slo.percentile) > slo.latency for slo in slos):
        solution = chosen.solution  # another table of the same cost, all but
    tables = {**_compared(problem), "optimal": solution.actions[0]}
    shown = _shown(slos)
    latency = {name: {percentile_name(p): percentiles.estimate(table, p).value for p in shown} for name, table in tables.items()}
    compared = {name: evaluate(problem, table) for name, table in tables.items() if name != "optimal"}
    return Answer(
        problem,
        solution,
        (solution.policy(),),
        slos,
        compared=compared,
        latency=latency,
        latency_is_exact=percentiles.exact,
        corners=corners if frontier else (),
        chosen=chosen,
    )


def _with_phases(problem: SmdpProblem, seconds_left: SecondsLeft) -> Answer:
    queue = ModulatedQueue(problem)
    solution = solve_modulated(problem, queue=queue, seconds_left=seconds_left)
    one, tables = solve_one_table(solution, queue), PhaseTables.of(solution)
    filtered = simulate_filtered(problem, tables, one)
    runs = {"filtered": filtered.run, "one table": filtered.run_of_one}
    latency = {name: {percentile_name(p): of.value for p, of in run.percentiles(_shown()).items()} for name, run in runs.items()}
    return Answer(problem, solution, tables.tables, latency=latency, latency_is_exact=False, one_table=one, filtered=filtered)


def _shown(slos: Sequence[Slo] = ()) -> list[float]:
    return sorted({*PERCENTILES, *(slo.percentile for slo in slos)})


def _compared(problem: SmdpProblem) -> dict[str, Actions]:
    """The greedy table, and the static ones that are stable."""
    largest, smallest = problem.max_batch_size, problem.min_batch_size
    tables = {"greedy": greedy(problem)}
    for b in sorted({*STATIC, largest}):
        if smallest <= b <= largest and problem.throughput[b - 1] > problem.arrival_rate:
            tables[f"static {b}"] = np.array([0] * b + [b])
    return tables
