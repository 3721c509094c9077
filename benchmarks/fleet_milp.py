"""Speed of fleet planning in counts per device type, beside one boolean per device and variant in the same run.

The other formulation is Proteus's (Ahmad et al., ASPLOS'24, section 4): x[i, m] whether device i hosts variant m, z[i, m] what it
serves. Both go to the same solver with the same gap and time limit. Random fleets: families of variants whose accuracy rises with
their work, device types of different speed with noise on each pair, so that about a third of the pairs survive pruning; the
demand is a part of what the fleet could serve of it at most. Wall-clock time, one core.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import block_array, coo_array, eye_array, kron

from benchmarks.one_core import on_one_core
from benchmarks.smoke import usually
from sluice.optimizer.fleet import FleetProblem, FleetSolution, solve_fleet
from sluice.optimizer.fleet.pareto import worth_hosting

TIME_LIMIT = 5.0  # s


class Size(NamedTuple):
    """A fleet's."""

    devices: int
    types: int
    variants: int
    families: int


SMALL = Size(8, 2, 9, 3)
PROTEUS = Size(40, 3, 33, 6)
LARGE = Size(160, 3, 450, 17)


def random_fleet(rng: np.random.Generator, size: Size, load: float) -> FleetProblem:
    """A random fleet whose demand is ``load`` times the most that fractions of devices could serve in its proportions."""
    family = np.sort(np.concatenate([np.arange(size.families), rng.integers(0, size.families, size.variants - size.families)]))
    work = np.exp(rng.uniform(0.0, np.log(60.0), size.variants))
    accuracy = np.empty(size.variants)
    for q in range(size.families):
        members = family == q
        rank = (np.argsort(np.argsort(work[members])) + 1) / members.sum()
        accuracy[members] = 100 - rng.uniform(2, 30) * (1 - np.sqrt(rank)) + rng.normal(0, 0.5, members.sum())
    speed = np.exp(rng.uniform(0.0, np.log(8.0), size.types))
    noise = np.exp(rng.normal(0, 0.25, (size.types, size.variants)))
    throughput = np.floor(1000 * speed[:, None] / work * noise)
    throughput[(rng.random(throughput.shape) < 0.1) | (throughput < 3)] = 0
    devices = rng.multinomial(size.devices - size.types, np.ones(size.types) / size.types) + 1
    mix = rng.permutation(1 / np.arange(1, size.families + 1) ** rng.uniform(0.3, 1.2))
    whole = FleetProblem(devices, throughput, np.clip(accuracy, 0, 100), family, mix / mix.sum())
    return whole.with_demand(load * _most(whole) * whole.demand)


def _most(problem: FleetProblem) -> float:
    """How many times the demand fractions of devices could serve."""
    n_types, n_families = len(problem.devices), problem.n_families
    fastest = np.stack([problem.throughput[:, problem.family == q].max(axis=1) for q in range(n_families)], axis=1)
    served = coo_array((fastest.ravel(), (np.tile(np.arange(n_families), n_types), np.arange(fastest.size))))
    fits = kron(eye_array(n_types), np.ones((1, n_families)))
    found = linprog(
        np.append(np.zeros(fastest.size), -1.0),
        A_ub=block_array([[fits, coo_array((n_types, 1))]]),
        b_ub=problem.devices,
        A_eq=block_array([[served, coo_array(-problem.demand[:, None])]]),
        b_eq=np.zeros(n_families),
    )
    return float(found.x[-1])


@dataclass(frozen=True)
class PerDevice:
    """What the formulation with one boolean per device found."""

    accuracy: float
    gap: float  # percentage points
    seconds: float


def solve_per_device(problem: FleetProblem, time_limit: float = TIME_LIMIT, gap: float = 0.01) -> PerDevice:
    """The greatest mean accuracy with all the demand served, by one boolean per device and variant; nan where none was found."""
    start = time.perf_counter()
    kinds = np.repeat(np.arange(len(problem.devices)), problem.devices)
    throughput = problem.throughput[kinds]
    n, k = throughput.shape
    total = problem.demand.sum()
    hosts_one = kron(eye_array(n), np.ones((1, k)))
    within = block_array([[-coo_array((throughput.ravel() / total, (np.arange(n * k),) * 2)), eye_array(n * k)]])
    families = coo_array((np.ones(k), (problem.family, np.arange(k))), shape=(problem.n_families, k))
    all_served = kron(np.ones((1, n)), families)
    found = milp(
        np.concatenate([np.zeros(n * k), -np.tile(problem.accuracy / 100, n)]),
        integrality=np.repeat([1, 0], n * k),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(block_array([[hosts_one, coo_array((n, n * k))]]).tocsc(), -np.inf, 1),
            LinearConstraint(within.tocsc(), -np.inf, 0),
            LinearConstraint(
                block_array([[coo_array((problem.n_families, n * k)), all_served]]).tocsc(),
                problem.demand / total,
                problem.demand / total,
            ),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": gap / 100},
    )
    seconds = time.perf_counter() - start
    if found.x is None:
        return PerDevice(np.nan, np.inf, seconds)
    return PerDevice(-100 * found.fun, 100 * (found.fun - found.mip_dual_bound), seconds)


# --- what is measured


def both(console: Console) -> None:
    """Counts against booleans."""
    table = Table(title=f"Counts per type against one boolean per device; limit {TIME_LIMIT:g} s, gap 0.01 percentage points")
    for name in (
        "devices × variants × families",
        "load",
        "counts, s",
        "booleans, s",
        "ratio",
        "accuracy, counts",
        "booleans",
        "gap",
    ):
        table.add_column(name, justify="right")
    for size in usually((SMALL, PROTEUS), smoke=(SMALL,)):
        for load in (0.3, 0.6, 0.8):
            problem = random_fleet(np.random.default_rng(1), size, load)
            counts, booleans = solve_fleet(problem, TIME_LIMIT), solve_per_device(problem)
            table.add_row(
                f"{size.devices} × {size.variants} × {size.families}",
                f"{load:g}",
                f"{counts.seconds:.3f}",
                f"{booleans.seconds:.3f}",
                f"{booleans.seconds / counts.seconds:.1f}",
                f"{counts.accuracy:.4f}",
                f"{booleans.accuracy:.4f}",
                f"{booleans.gap:.4f}",
            )
    console.print(table)


def counts(console: Console) -> None:
    """Time, gap and swaps of random fleets, from nothing and from a placement that runs."""
    table = Table(title=f"Counts per type, limit {TIME_LIMIT:g} s; then from that placement, with the demand moved by up to 20 %")
    for name in ("devices × variants × families", "load", "gap asked", "pairs", "worth it", "mean, s", "max, s", "largest gap"):
        table.add_column(name, justify="right")
    for name in ("mean, s", "max, s", "swaps"):
        table.add_column(f"then: {name}", justify="right")
    for size, runs, gap in usually(((PROTEUS, 8, 0.01), (LARGE, 2, 0.05)), smoke=((SMALL, 2, 0.05),)):
        for load in (0.03, 0.1, 0.3, 0.6, 1.2):
            rng = np.random.default_rng(0)
            problems = [random_fleet(rng, size, load) for _ in range(runs)]
            fresh = [solve_fleet(problem, TIME_LIMIT, gap) for problem in problems]
            later = [moved(rng, solution, gap) for solution in fresh]
            table.add_row(
                f"{size.devices} × {size.variants} × {size.families}",
                f"{load:g}",
                f"{gap:g}",
                str(problems[0].throughput.size),
                f"{np.mean([worth_hosting(problem).sum() for problem in problems]):.0f}",
                *(f"{pick([s.seconds for s in fresh]):.3f}" for pick in (np.mean, max)),
                f"{max(s.gap for s in fresh):.4f}",
                *(f"{pick([s.seconds for s in later]):.3f}" for pick in (np.mean, max)),
                f"{np.mean([s.swaps for s in later]):.1f}",
            )
    console.print(table)


def moved(rng: np.random.Generator, solution: FleetSolution, gap: float) -> FleetSolution:
    """The plan after the demand has changed."""
    demand = solution.problem.demand * rng.uniform(0.8, 1.2, solution.problem.n_families)
    return solve_fleet(solution.problem.with_demand(demand).with_running(solution.counts), TIME_LIMIT, gap)


def main() -> None:
    """Measure in a process that has one core."""
    on_one_core("fleet_milp", measured)


def measured() -> None:
    """Print all tables."""
    terminal = Console(width=150)
    both(terminal)
    counts(terminal)


if __name__ == "__main__":
    main()
