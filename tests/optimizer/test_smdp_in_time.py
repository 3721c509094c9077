"""What is told of a server when the time is up: the best table so far, and what none can cost less than."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from math import inf

import numpy as np
import pytest

from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import deterministic, exponential
from sluice.optimizer.smdp import answer_problem, full_document, solve, solve_frontier
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles
from sluice.optimizer.smdp.policy_iteration import greedy
from tests.optimizer.smdp_problems import LAWS, googlenet, random_problem


def steps(n: int) -> Callable[[], float]:
    """Seconds that are left: enough until it was asked ``n`` times."""
    asked = chain(repeat(1.0, n), repeat(0.0))
    return lambda: next(asked)


@pytest.mark.parametrize("law", ["deterministic", "exponential", "hyperexponential"])
@pytest.mark.parametrize("seed", range(4))
def test_the_least_cost_lies_between_the_bound_and_the_best_table_so_far(law: str, seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), LAWS[law])
    best = solve(problem).gain
    for n in range(3):
        stopped = solve(problem, seconds_left=steps(n))
        if stopped.bound is None:  # it was done before
            assert stopped.converged and stopped.gain == pytest.approx(best)
        else:
            assert not stopped.converged and stopped.iterations == n + 1
            assert stopped.bound <= best * (1 + 1e-9) and best <= stopped.gain * (1 + 1e-9)


def test_with_phases_it_does_as_well() -> None:
    problem = replace(googlenet(0.5, 3.0, 8), arrivals=mmpp2(1500.0, 300.0, 20.0, 10.0))
    best = solve(problem)
    stopped = solve(problem, seconds_left=steps(0))
    assert stopped.bound is not None and not stopped.converged and best.bound is None
    assert stopped.bound <= best.gain < stopped.gain


def test_a_bound_that_is_near_says_that_little_is_left_to_gain() -> None:
    problem = googlenet(0.7, 20.0)
    best, bounds = solve(problem), []
    for n in range(best.iterations - 1):
        bound = solve(problem, seconds_left=steps(n)).bound
        bounds.append(-inf if bound is None else bound)
    assert bounds[-1] > bounds[0] and bounds[-1] > 0.9 * best.gain


def test_without_time_the_frontier_has_its_ends_alone() -> None:
    problem = googlenet(0.5, max_batch_size=8)
    whole = solve_frontier(problem)
    short = solve_frontier(problem, steps(0))
    assert len(short) <= 2 < len(whole) and short[0].least_weight == 0 and short[-1].largest_weight == inf


def test_percentiles_whose_exact_law_would_take_longer_than_is_left_are_simulated() -> None:
    problem = googlenet(0.5, max_batch_size=8, law=exponential)
    exact, simulated = LatencyPercentiles(problem), LatencyPercentiles(problem, seconds_left=steps(0))
    at = exact.estimate(greedy(problem), 95), simulated.estimate(greedy(problem), 95)
    assert exact.exact and not simulated.exact
    assert at[0].low == at[0].high and at[1].low <= at[0].value * 1.001 and at[0].value <= at[1].high * 1.001


def test_an_answer_in_no_time_is_whole_and_says_so() -> None:
    found = answer_problem(googlenet(0.7, 20.0, 8, deterministic), seconds_left=steps(0))
    document = full_document(found)
    assert document["converged"] is False and document["bound"] == found.solution.bound
    assert not found.latency_is_exact and set(found.latency) == {*found.compared, "optimal"}
    assert full_document(answer_problem(googlenet(0.7, 20.0, 8)))["bound"] is None
