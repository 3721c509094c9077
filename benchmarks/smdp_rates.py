"""A table that follows the rate against one static table, over a day's load of one server (docs/smdp.md).

The server of the SMDP papers (GoogLeNet on a Tesla P4, batches of up to 32). The rate goes from ``low`` to ``high`` of the capacity
and back, hour by hour as a sine. First exactly: what each table costs at the rate of each hour, and the mean over the day. Then in
virtual time, each hour drawn in to ``SECONDS``, with tables that follow the arrivals of the last ``SEEN`` seconds alone.

``python -m benchmarks smdp_rates``
"""

from __future__ import annotations

from time import process_time

import numpy as np

from benchmarks.smoke import usually
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.solution import Actions
from sluice.optimizer.tuning.rate_tables import RateTables

LARGEST = 32
SECONDS = usually(10.0, smoke=1.5)  # of an hour, in virtual time
SEEN = 1.0  # s whose arrivals are the rate of the next
DAYS = usually(((0.1, 0.9), (0.3, 0.7), (0.05, 0.2), (0.75, 0.95)), smoke=((0.1, 0.9),))
WEIGHTS = usually((0.1, 1.0, 10.0), smoke=(1.0,))  # of a watt, beside 1 of a millisecond


def main() -> None:
    """Print a row for each day and weight."""
    print(
        "load        weight of a W   following   mean rate   busiest   best static   greedy   | live: following, mean rate, changes"
    )
    for low, high in DAYS:
        for weight in WEIGHTS:
            print(_row(low, high, weight), flush=True)


def server(load: float, weight: float) -> SmdpProblem:
    """GoogLeNet on a Tesla P4 at a load; a ms of mean latency weighs 1."""
    mean, energy = affine(1.0524e-3, 0.3051e-3, LARGEST), affine(19.603e-3, 19.899e-3, LARGEST)
    return SmdpProblem(poisson(load * LARGEST / mean[-1]), deterministic(mean), energy, 1, 1e3, weight)


def _row(low: float, high: float, weight: float) -> str:
    loads = (low + high) / 2 + (low - high) / 2 * np.cos(2 * np.pi * np.arange(24) / 24)
    problems = [server(float(load), weight) for load in loads]
    tables = RateTables(problems[0])
    began = process_time()
    followed = [_actions(tables.at(problem.arrival_rate)) for problem in problems]
    took = (process_time() - began) / len(set(tables.middle(problem.arrival_rate) for problem in problems))
    static = {"mean rate": _actions(solve(server(float(loads.mean()), weight)).policy())}
    static["busiest"] = _actions(solve(server(float(loads.max()), weight)).policy())
    following = float(np.mean([_cost(problem, actions) for problem, actions in zip(problems, followed, strict=True)]))
    costs = {name: _day(problems, actions) for name, actions in static.items()}
    costs["best static"] = min(_day(problems, actions) for actions in followed)
    costs["greedy"] = _day(problems, greedy(problems[0]))
    exact = "  ".join(f"{100 * (cost / following - 1):+8.2f} %" for cost in costs.values())
    live = _live(problems, tables)
    return f"{low:g} to {high:g}  {weight:6g}  {following:10.4f}  {exact}  | {live}  ({1e3 * took:.0f} ms a table)"


def _actions(policy: Policy) -> Actions:
    """What a table does with 0, 1, ... waiting."""
    return np.array([take if hold == 0 else 0 for hold, take in zip(policy.hold, policy.take, strict=True)], dtype=np.int64)


def _cost(problem: SmdpProblem, actions: Actions) -> float:
    performance = evaluate(problem, actions)
    return problem.cost(performance.mean_latency, performance.power)


def _day(problems: list[SmdpProblem], actions: Actions) -> float:
    return float(np.mean([_cost(problem, actions) for problem in problems]))


def _live(problems: list[SmdpProblem], tables: RateTables) -> str:
    rng = np.random.default_rng(0)
    pieces = []
    for hour, problem in enumerate(problems):
        n = rng.poisson(problem.arrival_rate * SECONDS)
        pieces.append(SECONDS * hour + np.sort(rng.random(n)) * SECONDS)
    times = np.concatenate(pieces)
    mean_rate = len(times) / (SECONDS * len(problems))
    schedule = _following(times, tables, tables.at(mean_rate))
    costs = [_measured(each, times, problems) for each in (schedule, Schedule.of(tables.at(mean_rate)))]
    return f"{costs[0]:8.3f}  {100 * (costs[1] / costs[0] - 1):+6.2f} %  {len(schedule.swap_times):4}"


def _following(times: Array, tables: RateTables, first: Policy) -> Schedule:
    """The tables of the rates that were just seen."""
    policies, swaps = [first], []
    ends = np.arange(times[0] + SEEN, times[-1], SEEN)
    for count, at in zip(np.diff(np.searchsorted(times, ends), prepend=0).tolist(), ends.tolist(), strict=True):
        policy = tables.at(max(count, 1) / SEEN)
        if policy is not policies[-1]:
            policies.append(policy)
            swaps.append(at)
    return Schedule(policies, np.array(swaps), np.arange(1, len(policies)))


def _measured(schedule: Schedule, times: Array, problems: list[SmdpProblem]) -> float:
    problem = problems[0]
    service = problem.service.service_times()
    result = simulate_deployment(Deployment(schedule, service), times, np.random.default_rng(1))
    hour = (times / SECONDS).astype(np.int64)
    hours = [np.nanmean(result.latency[hour == h]) for h in range(len(problems))]  # who is waiting at the end is not answered
    power = problem.energy[result.batch_sizes - 1].sum() / (SECONDS * len(problems))
    return problem.cost(float(np.mean(hours)), float(power))


if __name__ == "__main__":
    main()
