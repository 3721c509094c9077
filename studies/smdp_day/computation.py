"""A day of the load balancer on one server under every policy, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_in_table
from functools import cache

import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.recommend.offers import machine_offer
from sluice.optimizer.tuning.candidates import unbatched
from sluice.optimizer.tuning.rate_tables import MOST_LOAD, RateTables, tables_of
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, simulate_control, simulate_plans

from ..rows import read_rows
from .results import AGAIN, BANDS, BUSIEST, CLAIRVOYANT, CONTROL, GREEDY, LATEST, LOADS, MEAN, Counted, Row

SLO = Slo(3.0, 95)
WINDOW = 300.0  # s
LOAD = "load balancer"
BUSY = 0.85  # of the capacity, in the busiest window
LARGEST = 32
SLOWER = 200  # times than the server of the papers, so that a day has two hundred thousand requests
SERVICE = 1.0524e-3 * SLOWER, 0.3051e-3 * SLOWER  # s, and a request
ENERGY = 19.603e-3 * SLOWER, 19.899e-3 * SLOWER  # J
BUDGET = 0.5  # of the errors, of the tables that go by the period before
STEP = 10.0  # s between two looks


def setup() -> TuningSetup:
    """GoogLeNet on a Tesla P4, slowed down, and nothing else."""
    sizes = (1, LARGEST)
    seconds, joules = ([start + slope * b for b in sizes] for start, slope in (SERVICE, ENERGY))
    points = [
        ProfilePoint(1, b, ServiceTime(each), each, energy=energy) for b, each, energy in zip(sizes, seconds, joules, strict=True)
    ]
    profile = ServiceProfile(function="http://server:8500", points=points, max_batch_size=LARGEST)
    offer = machine_offer("server", profile, 0.0, LARGEST)
    return TuningSetup("googlenet", (SLO,), profile, offers=(offer,), max_batch_size=LARGEST, servers=1)


def capacity() -> float:
    """Requests/s."""
    return LARGEST / (SERVICE[0] + SERVICE[1] * LARGEST)


def rates() -> Array:
    """Requests/s of each window."""
    counts = np.array([counted.requests for counted in read_rows(LOADS, Counted) if counted.load == LOAD], dtype=np.float64)
    return np.asarray(counts * BUSY * capacity() / counts.max())


def arrivals() -> Array:
    """Poisson within each window, s."""
    rng = np.random.default_rng(1)
    drawn = rng.poisson(rates() * WINDOW)
    return np.concatenate([WINDOW * k + np.sort(rng.uniform(0, WINDOW, n)) for k, n in enumerate(drawn)])


@cache
def optimal() -> RateTables:
    """Those of the server."""
    mine = setup()
    found = tables_of(mine.offers[0], mine.slos, 1, LARGEST)
    assert found is not None
    return found


def plan_of(policy: Policy) -> Plan:
    """The server under a table."""
    return replace(unbatched(setup())[0].plan, policy=PolicyDocument.of(policy), digest="")


def fixed() -> dict[str, Plan]:
    """The plans that stay."""
    of_mean, of_busiest = (optimal().solved(float(rate))[0] for rate in (rates().mean(), rates().max()))
    latest = last_moment(setup().offers[0].service, [SLO])
    assert latest is not None
    last = plan_of(replace_in_table(latest, servers=1))
    return {GREEDY: unbatched(setup())[0].plan, LATEST: last, MEAN: plan_of(of_mean), BUSIEST: plan_of(of_busiest)}


def following(times: Array, again: bool) -> list[tuple[float, Plan]]:
    """A table at the end of each window, by its rate; the first is greedy."""
    place = optimal().budgets.index(BUDGET)
    of_budget = RateTables(optimal().problem, setup().slos, budgets=(BUDGET,))
    found = [(float(times[0]), fixed()[GREEDY])]
    counts = np.bincount((times // WINDOW).astype(np.int64))
    for k, n in enumerate(counts[:-1].tolist()):
        rate = max(n, 1) / WINDOW
        most = MOST_LOAD * capacity()
        plan = plan_of(of_budget.solved(min(rate, most))[0] if again else optimal().all_at(rate)[place])
        if plan.digest != found[-1][1].digest:
            found.append((WINDOW * (k + 1), plan))
    return found


def tried() -> list[Plan]:
    """What the clairvoyant has: the plans that stay, and the tables of every band of the day."""
    bands = {optimal().middle(rate): rate for rate in rates().tolist() if rate > 0}
    plans = [*fixed().values(), *(plan_of(policy) for rate in bands.values() for policy in optimal().all_at(rate))]
    return list({plan.digest: plan for plan in plans}.values())


def compute() -> list[Row]:
    """Everything."""
    return list(_rows(arrivals()))


def _rows(times: Array) -> Iterator[Row]:
    plans = {name: [(float(times[0]), plan)] for name, plan in fixed().items()}
    plans |= {BANDS: following(times, False), AGAIN: following(times, True)}
    runs = {name: simulate_plans(setup(), times, of) for name, of in plans.items()}
    runs[CONTROL] = simulate_control(setup(), times, step=STEP)
    n = np.bincount((times // WINDOW).astype(np.int64))
    there = n > 0
    others = [simulate_plans(setup(), times, [(float(times[0]), plan)]) for plan in tried()]
    joules, seconds, late = _by_window([*runs.values(), *others], len(n))
    keeps = late <= SLO.error_budget * n
    feasible = keeps.any(axis=0) & there
    shares = joules / len(times), seconds / len(times), late / len(times)
    day = len(times), int(there.sum()), int(feasible.sum())
    for k, (name, run) in enumerate(runs.items()):
        j, s, share = (float(each[k].sum()) for each in shares)
        yield Row(name, *day, int((keeps[k] & feasible).sum()), j, s, share, max(1, len(run.plans)))
    best = np.where(feasible, np.where(keeps, joules, np.inf), late).argmin(axis=0)  # else the one with the fewest late
    j, s, share = (float(each[best, np.arange(len(n))].sum()) for each in shares)
    yield Row(CLAIRVOYANT, *day, int(feasible.sum()), j, s, share, 1 + int((np.diff(best[there]) != 0).sum()))


def _by_window(runs: list[ControlledRun], windows: int) -> tuple[Array, Array, Array]:
    """J, seconds of latency and requests that were late, by run and window; who waits at the end of the day is in none of them."""
    found = []
    for run in runs:
        window = (run.arrival_times // WINDOW).astype(np.int64)
        late = (~(run.latency <= SLO.latency)).astype(np.float64)
        found.append([np.bincount(window, weights=of, minlength=windows) for of in (run.joules, run.latency, late)])
    joules, seconds, late = np.array(found).transpose(1, 0, 2)
    return joules, seconds, late
