"""The table of a server at the rate that is seen is the optimal one of its band."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.server.latency import server_latency
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve
from sluice.optimizer.tuning import rate_tables
from sluice.optimizer.tuning.rate_tables import RateTables

MEAN = affine(1.0524e-3, 0.3051e-3, 8)
CAPACITY = 8 / float(MEAN[-1])
PROBLEM = SmdpProblem(poisson(0.5 * CAPACITY), deterministic(MEAN), affine(19.603e-3, 19.899e-3, 8), 1, 1e3, 1.0)


def cost(policy: Policy, rate: float) -> float:
    problem = replace(PROBLEM, arrivals=poisson(rate))
    actions = [take if hold == 0 else 0 for hold, take in zip(policy.hold, policy.take, strict=True)]
    performance = evaluate(problem, np.array(actions, dtype=np.int64))
    return problem.cost(performance.mean_latency, performance.power)


@pytest.mark.full
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_no_table_of_another_rate_costs_less_beyond_the_width_of_a_band(load: float) -> None:
    tables, rate = RateTables(PROBLEM), load * CAPACITY
    best = solve(replace(PROBLEM, arrivals=poisson(rate))).gain
    assert cost(tables.at(rate), rate) < 1.003 * best


def test_a_rate_within_its_band_changes_no_table() -> None:
    tables = RateTables(PROBLEM)
    middle = tables.middle(0.5 * CAPACITY)
    assert tables.at(middle * 1.04) is tables.at(middle) is tables.at(middle / 1.04)
    assert tables.middle(middle * 1.06) == pytest.approx(1.1 * middle)


def test_beyond_the_capacity_the_server_takes_all_it_can() -> None:
    policy = RateTables(PROBLEM).at(3 * CAPACITY)
    assert policy.take[-1] == 8
    assert policy.hold[-1] == 0


def test_tables_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_tables, "MOST_KEPT", 3)
    tables = RateTables(PROBLEM)
    first = tables.at(0.1 * CAPACITY)
    assert tables.at(0.1 * CAPACITY) is first
    for load in (0.2, 0.3, 0.4):
        tables.at(load * CAPACITY)
    assert tables.at(0.1 * CAPACITY) is not first
    assert len(pickle.dumps(tables)) < 20_000


@pytest.mark.full
def test_with_an_slo_the_table_of_least_power_that_keeps_it_is_taken_and_less_of_the_budget_takes_more_power() -> None:
    slo = Slo(4 * float(PROBLEM.service.mean[-1]), 95)
    tables = RateTables(PROBLEM, [slo], budgets=(1.0, 0.25))
    rate = tables.middle(0.4 * CAPACITY)
    problem = replace(PROBLEM, arrivals=poisson(rate))
    power, late = [], []
    for policy, budget in zip(tables.all_at(rate), tables.budgets, strict=True):
        actions = np.array([take if hold == 0 else 0 for hold, take in zip(policy.hold, policy.take, strict=True)])
        power.append(evaluate(problem, actions).power)
        law = server_latency(rate, problem.service, actions.tolist())
        late.append(law.percentile(100 - 5 * budget) / slo.latency)
    assert max(late) <= 1 < max(late) * 1.5
    quickest = evaluate(problem, solve(problem.weighted(1.0, 0.0)).actions[0]).power
    assert power[0] <= power[1] < quickest


def test_with_an_slo_nobody_waits_at_an_idle_server_until_he_is_late() -> None:
    slo = Slo(4 * float(PROBLEM.service.mean[-1]), 95)
    policy = RateTables(PROBLEM, [slo]).at(0.4 * CAPACITY)
    waits = [(hold, take, n) for n, (hold, take) in enumerate(zip(policy.hold, policy.take, strict=True)) if n and hold > 0]
    assert waits
    for hold, take, n in waits:
        assert take == n
        assert 0.9 * slo.latency < hold + MEAN[n - 1] < slo.latency
    assert RateTables(PROBLEM).at(0.4 * CAPACITY).hold[1] in (0.0, np.inf)


def test_several_servers_follow_the_table_of_one_with_its_share() -> None:
    one, three = RateTables(PROBLEM), RateTables(PROBLEM, servers=3)
    rate = one.middle(0.5 * CAPACITY)
    assert three.solved(3 * rate)[0] == replace(one.solved(rate)[0], servers=3)


def test_what_is_no_rate_and_arrivals_with_phases_are_refused() -> None:
    with pytest.raises(InvalidInput, match="arrival_rate: 0 is not allowed"):
        RateTables(PROBLEM).at(0)
    with pytest.raises(InvalidInput, match="band: 1 is not allowed"):
        RateTables(PROBLEM, band=1)
    phased = replace(PROBLEM, arrivals=mmpp2(0.7 * CAPACITY, 0.1 * CAPACITY, 1.0, 1.0))
    with pytest.raises(InvalidInput, match="a table of its own"):
        RateTables(phased)
