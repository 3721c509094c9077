"""Speed of policy iteration with an exact tail, beside the papers' methods in the same run.

The papers' basic scenario, GoogLeNet on a Tesla P4, with weights of 1 per ms and 1 per W. Value iteration is given the smallest
state space in which the optimal table comes to within the accuracy of its gain in the endless queue; that has to be known first,
and the time to find it is not counted. One core, compiled code warm, CPU time, median of the runs. Memory is the peak resident size
of a process that does that one thing, beyond what it held after small problems of the kind.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.approximate_iterations import (
    Actions,
    GrowingQueue,
    approximate_policy_iteration,
    approximate_value_iteration,
)
from benchmarks.one_core import on_one_core
from benchmarks.smoke import usually
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.law import ServiceLaw, deterministic, exponential
from sluice.optimizer.smdp import SmdpProblem, SmdpSolution, affine, evaluate
from sluice.optimizer.smdp.frontier import solve_frontier, solve_weights
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration
from sluice.optimizer.smdp.value_iteration import evaluate_in_finite_chain, solve_by_value_iteration

R = TypeVar("R")

RUNS = usually(5, smoke=1)
LONG = 1.0  # s; what takes longer is run once
ACCURACY = 1e-8  # of the gain
OVERFLOW_COST = 1000.0
CASES: tuple[tuple[int, float, Callable[[Array], ServiceLaw]], ...] = (
    (32, 0.5, deterministic),
    (32, 0.9, deterministic),
    (32, 0.5, exponential),
    (256, 0.5, deterministic),
    (256, 0.9, deterministic),
)[: usually(5, smoke=1)]
TABLE_STATE = usually(160, smoke=64)  # s_max of the papers' comparison
TABLE_COSTS = usually((0.0, 100.0), smoke=(100.0,))
REACHED = 1e-6  # of the gain
WEIGHTS = np.linspace(0.0, 15.0, usually(100, smoke=5))  # as in figure 4 of the journal version
SUBSET = usually(4, smoke=1)  # weights for which value iteration is run


def googlenet(rho: float, max_batch_size: int, law: Callable[[Array], ServiceLaw] = deterministic) -> SmdpProblem:
    """The basic scenario at a load, s and J."""
    mean = affine(1.0524e-3, 0.3051e-3, max_batch_size)
    energy = affine(19.603e-3, 19.899e-3, max_batch_size)
    return SmdpProblem(rho * max_batch_size / mean[-1], law(mean), energy, 1, 1e3, 1.0)


def enough_states(solution: SmdpSolution) -> int:
    """The smallest s_max for which the gain of the table in the finite chain is right to the accuracy."""

    def missed(max_state: int) -> bool:
        table = longer(solution.actions[0], max_state + 2)
        gain, _ = evaluate_in_finite_chain(solution.problem, table, OVERFLOW_COST)
        return abs(gain / solution.gain - 1) > ACCURACY / 2

    enough = solution.problem.max_batch_size
    short = enough - 1
    while missed(enough):
        short, enough = enough, 2 * enough
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (middle, enough) if missed(middle) else (short, middle)
    return enough


def longer(table: Actions, n_states: int) -> Actions:
    """The first rows of a table, as many as wanted; its last row stands for those it does not have."""
    return np.append(table, np.full(max(0, n_states - len(table)), table[-1]))[:n_states]


# --- what is measured


def one_problem(console: Console) -> None:
    """Policy iteration against value iteration, to the same accuracy and to the papers'."""
    table = Table(title=f"One problem, gain to {ACCURACY:g} of itself")
    for name in ("B_max, load, law", "method", "states", "iterations", "ms", "ratio", "peak MB", "gain off by", "its table by"):
        table.add_column(name, justify="left" if name in ("B_max, load, law", "method") else "right")
    runs = [in_child(partial(methods, *case)) for case in CASES]
    peaks = [[in_child(partial(grown, run)) for _, run in of_case] for of_case in runs]  # before this process grows itself
    for (size, rho, law), of_case, megabytes in zip(CASES, runs, peaks, strict=True):
        results = [(name, *timed(run), peak) for (name, run), peak in zip(of_case, megabytes, strict=True)]
        _, quick, exact, _ = results[0]
        for i, (name, seconds, solution, peak) in enumerate(results):
            table.add_row(
                f"{size}, {rho:g}, {law.__name__}" if i == 0 else "",
                name,
                str(solution.actions.shape[1]),
                str(solution.iterations),
                f"{1e3 * seconds:.2f}",
                f"{seconds / quick:.1f}" if i else "",
                f"{peak:.1f}",
                f"{abs(solution.gain / exact.gain - 1):.0e}",
                f"{cost_of_table(solution) / exact.gain - 1:.0e}",
            )
        table.add_section()
    console.print(table)
    console.print(
        "Ratio: time over that of policy iteration. Value iteration stops at a span of 1e-8 of the gain, which is what it can "
        "promise, and at the papers' 0.01. 'Its table by': what the table costs in the endless queue above the least."
    )


def methods(size: int, rho: float, law: Callable[[Array], ServiceLaw]) -> list[tuple[str, Callable[[], SmdpSolution]]]:
    """The methods by name, each ready to run on a problem."""
    problem = googlenet(rho, size, law)
    exact = solve_by_policy_iteration(problem)
    max_state = enough_states(exact)
    iterate = partial(solve_by_value_iteration, problem, max_state=max_state, overflow_cost=OVERFLOW_COST, max_iterations=10**6)
    return [
        ("policy iteration", partial(solve_by_policy_iteration, problem)),
        ("value iteration", partial(iterate, epsilon=ACCURACY * exact.gain)),
        ("value iteration, span 0.01", partial(iterate, epsilon=0.01)),
    ]


def approximations(console: Console) -> None:
    """The papers' comparison with iterations on a growing state space, their table III."""
    problem = googlenet(0.5, 32)
    quick, exact = timed(partial(solve_by_policy_iteration, problem))
    table = Table(title=f"Load 0.5, B_max 32, s_max {TABLE_STATE}: when the table of each method first comes to its last gain")
    for name in ("method", "iterations", "ms", "states", "gain", "Delta", "gain, cut"):
        table.add_column(name, justify="left" if name == "method" else "right")
    table.add_row("policy iteration", str(exact.iterations), f"{1e3 * quick:.2f}", str(exact.actions.shape[1]), f"{exact.gain:.2f}")
    for overflow_cost in TABLE_COSTS:
        table.add_section()
        for n in around(first_good(problem, overflow_cost, exact.gain)):
            run = partial(value_iterations, problem, overflow_cost, n)
            seconds, solution = timed(run)
            table.add_row(
                f"value iteration, c_o = {overflow_cost:g}",
                str(n),
                f"{1e3 * seconds:.2f}",
                str(TABLE_STATE + 2),
                f"{solution.gain:.2f}",
                f"{solution.overflow_cost:.0e}",
            )
    for name, steps in (
        ("AVI", partial(approximate_value_iteration, problem, 10, 800)),
        ("API", partial(approximate_policy_iteration, problem, 14)),
    ):
        table.add_section()
        gains = [(n, *on_both(problem, queue)) for n, queue in steps()]
        reached = next(i for i, (*_, cut) in enumerate(gains) if abs(cut / gains[-1][-1] - 1) < REACHED)
        for i in (reached // 2, reached - 1, reached, 2 * reached):
            n, states, whole, cut = gains[i]
            seconds, _ = timed(partial(last_of, steps, i))
            table.add_row(name, str(n), f"{1e3 * seconds:.2f}", str(states), f"{whole:.2f}", "", f"{cut:.2f}")
    console.print(table)
    console.print(
        f"Cut: the first {TABLE_STATE + 2} states of the table, as far as it has them, with c_o = 100, as the whole. API counts "
        "improvements of the table. In print value iteration took 1.93 s and 0.73 s to 38.86, AVI 9.36 s and API 3.94 s to 42.53."
    )


def frontier(console: Console) -> None:
    """A hundred weights of the power, and the whole hull."""
    problem = googlenet(0.7, 32)
    table = Table(title=f"Load 0.7, B_max 32: {len(WEIGHTS)} weights of the power from {WEIGHTS[0]:g} to {WEIGHTS[-1]:g}")
    for name in ("", "tables", "ms", "ratio", "greatest difference"):
        table.add_column(name, justify="right" if name else "left")
    problems = [problem.weighted(1e3, float(weight)) for weight in WEIGHTS]
    hull, corners = timed(partial(solve_frontier, problem))
    warm, solutions = timed(lambda: solve_weights(problem, WEIGHTS))
    anew, single = timed(lambda: [solve_by_policy_iteration(p) for p in problems])
    gains = np.array([solution.gain for solution in solutions])
    subset = np.linspace(0, len(WEIGHTS) - 1, SUBSET).astype(int)
    spaces = [enough_states(single[i]) for i in subset]

    def by_value_iteration() -> list[float]:
        return [
            solve_by_value_iteration(
                problems[i], max_state=space, overflow_cost=OVERFLOW_COST, epsilon=ACCURACY * gains[i], max_iterations=10**6
            ).gain
            for i, space in zip(subset, spaces, strict=True)
        ]

    slow, iterated = timed(by_value_iteration)
    slow *= len(WEIGHTS) / SUBSET
    distinct = str(len({solution.actions.tobytes() for solution in solutions}))
    envelope = np.array([min(p.cost(c.solution.mean_latency, c.solution.power) for c in corners) for p in problems])
    for name, tables, seconds, found, expected in (
        ("warm starts", distinct, warm, gains, gains),
        ("each anew", distinct, anew, np.array([solution.gain for solution in single]), gains),
        (f"value iteration, from {SUBSET} of them", "", slow, np.array(iterated), gains[subset]),
        ("every corner, any weight", str(len(corners)), hull, envelope, gains),
    ):
        difference = "" if found is expected else f"{np.abs(found / expected - 1).max():.0e}"
        table.add_row(name, tables, f"{1e3 * seconds:.1f}", f"{seconds / warm:.1f}", difference)
    console.print(table)


def cost_of_table(solution: SmdpSolution) -> float:
    """What the table of a solution costs in the endless queue."""
    performance = evaluate(solution.problem, solution.actions[0])
    return solution.problem.cost(performance.mean_latency, performance.power)


def value_iterations(problem: SmdpProblem, overflow_cost: float, n: int) -> SmdpSolution:
    """So many of the papers' iterations."""
    return solve_by_value_iteration(problem, max_state=TABLE_STATE, overflow_cost=overflow_cost, epsilon=1e-300, max_iterations=n)


def first_good(problem: SmdpProblem, overflow_cost: float, gain: float) -> int:
    """After how many iterations the table is the one they end with."""
    bad, good = 0, 1
    while abs(value_iterations(problem, overflow_cost, good).gain / gain - 1) > REACHED:
        bad, good = good, 2 * good
    while good - bad > 1:
        middle = (bad + good) // 2
        there = abs(value_iterations(problem, overflow_cost, middle).gain / gain - 1) <= REACHED
        bad, good = (bad, middle) if there else (middle, good)
    return good


def around(n: int) -> list[int]:
    """Half of it, just before, there, and twice."""
    return sorted({max(1, n // 2), max(1, n - 1), n, 2 * n})


def on_both(problem: SmdpProblem, queue: GrowingQueue) -> tuple[int, float, float]:
    """States of a table, and its gain on all of them and on those of the papers' scheme."""
    table = queue.table
    whole, _ = evaluate_in_finite_chain(problem, table, TABLE_COSTS[-1])
    cut, _ = evaluate_in_finite_chain(problem, table[: TABLE_STATE + 2], TABLE_COSTS[-1])
    return len(table), whole, cut


def last_of(steps: Callable[[], Iterator[tuple[int, GrowingQueue]]], i: int) -> None:
    """Take the steps up to the one with the index ``i``."""
    for j, _ in enumerate(steps()):
        if j == i:
            return


def timed(run: Callable[[], R]) -> tuple[float, R]:
    """Median CPU seconds of a run, after one to warm up, and its result; what takes long is run once."""
    start = time.process_time()
    result = run()
    seconds = [time.process_time() - start]
    if seconds[0] > LONG:
        return seconds[0], result
    seconds.clear()
    for _ in range(RUNS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def in_child(run: Callable[[], R]) -> R:
    """The result of a run in a process of its own, forked from this one."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(run()))
    child.start()
    result: R = receiver.recv()
    child.join()
    return result


def grown(run: Callable[[], object]) -> float:
    """By how many MB the peak resident size of this process grows in a run."""
    warm_up()
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024


def warm_up() -> None:
    """Load the compiled code by small problems."""
    for law in (deterministic, exponential):
        small = googlenet(0.5, 4, law)
        solve_by_policy_iteration(small)
        solve_by_value_iteration(small, max_state=20, overflow_cost=OVERFLOW_COST)


def main() -> None:
    """Measure in a process that has one core."""
    on_one_core("smdp", measured)


def measured() -> None:
    """Print all tables."""
    terminal = Console(width=140)
    warm_up()
    one_problem(terminal)
    approximations(terminal)
    frontier(terminal)


if __name__ == "__main__":
    main()
