"""A table for several workers: never worse than its candidates, and one worker's is the optimal one."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import greedy, static
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.smdp import solve
from sluice.optimizer.smdp.several_workers import solve_workers
from tests.optimizer.smdp_problems import googlenet


def test_one_worker_comes_to_what_theory_says() -> None:
    problem = googlenet(0.7)
    found, exact = solve_workers(problem, 1), solve(problem)
    assert found.mean_latency.low < exact.mean_latency < found.mean_latency.high
    assert found.cost == pytest.approx(exact.gain, rel=0.01)


@pytest.mark.parametrize("workers", [2, 5])
def test_greedy_and_static_workers_cost_more(workers: int) -> None:
    problem = googlenet(0.5)
    found = solve_workers(problem, workers)
    assert found.policy.servers == workers
    rng = np.random.default_rng(9)
    times = np.cumsum(rng.exponential(1 / (workers * problem.arrival_rate), 400_000))
    for policy in (greedy(32, workers), static(8, workers), static(32, workers)):
        run = simulate(policy, times, problem.service.service_times(), rng)
        power = problem.energy[run.batch_sizes - 1].sum() / times[-1]
        assert problem.cost(float(np.nanmean(run.latency)), power) > found.cost


def test_no_workers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="workers: 0 is not allowed; allowed: an integer >= 1"):
        solve_workers(googlenet(0.5), 0)
