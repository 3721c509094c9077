"""Tables that wait to the last moment: their law held against size-or-timeout and simulation, and what they promise."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import predict_cost
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.function.latency import predict_falling_holds, predict_latency
from sluice.optimizer.recommend import Goal, Limits, Question, recommend
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.report import wording
from sluice.optimizer.service.times import ServiceTimes, service_times
from sluice.optimizer.simulation.event_loop import simulate

BURSTY = mmpp2(100, 10, 10, 2)
FIXED = ServiceProfile(function="f-{memory_mb}", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=8)


def service(batch_size: int, levels: int = 1, intercept: float = 0.006, slope: float = 0.001) -> ServiceTimes:
    mean = intercept + slope * np.arange(1, batch_size + 1)
    spread = np.linspace(0.8, 1.4, levels) if levels > 1 else np.ones(1)
    return ServiceTimes(1024, mean[:, None] * spread, np.full(batch_size, 0.001), mean)


def measured(memory_sizes: tuple[int, ...] = (885, 1769)) -> ServiceProfile:
    points = []
    for memory_mb, size in itertools.product(memory_sizes, (1, 4, 8)):
        mean = (0.006 + 0.001 * size) * 1769 / memory_mb
        time = ServiceTime(mean, [(0.05, 0.95 * mean), (0.5, mean), (0.95, 1.1 * mean)], 50)
        points.append(ProfilePoint(memory_mb, size, time, math.ceil(mean * 1000) / 1000, 0.002))
    return ServiceProfile(function="mlp-{memory_mb}", points=points)


@pytest.mark.parametrize("arrivals", [poisson(200), BURSTY])
@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize(("batch_size", "timeout"), [(1, 0.0), (2, 0.03), (8, 0.03), (8, 0.0), (5, 0.2)])
def test_with_equal_holds_the_law_is_that_of_size_or_timeout(
    arrivals: ArrivalProcess, levels: int, batch_size: int, timeout: float
) -> None:
    times = np.linspace(0, timeout + 0.03, 60)
    of = service(batch_size, levels)
    law = predict_falling_holds(arrivals, of, policies.size_or_timeout(batch_size, timeout))
    known = predict_latency(arrivals, of, batch_size, timeout)
    assert law.batch_size_pmf == pytest.approx(known.batch_size_pmf, abs=1e-12)
    assert law.cdf(times) == pytest.approx(known.cdf(times), abs=1e-9)
    assert law.percentile(95) == pytest.approx(known.percentile(95), rel=1e-6)


@pytest.mark.parametrize("arrivals", [poisson(200), BURSTY])
@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize("slope", [0.001, 0.006])
def test_a_simulation_contains_the_exact_law(arrivals: ArrivalProcess, levels: int, slope: float) -> None:
    of = service(8, levels, slope=slope)
    table = last_moment(of, [Slo(0.06, 95)])
    assert table is not None
    law = predict_falling_holds(arrivals, of, table)
    times = np.linspace(0.012, 0.06, 9)
    within, sizes = [], []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        run = simulate(table, np.cumsum(arrivals.sample(10_000, rng)), of, rng)
        within.append([(run.latency <= t * (1 + 1e-9)).mean() for t in times])
        sizes.append(np.bincount(run.batch_sizes, minlength=law.batch_size + 1)[1:] / run.n_batches)
    for seen, exact in ((np.array(within), law.cdf(times)), (np.array(sizes), law.batch_size_pmf)):
        error = seen.std(axis=0, ddof=1) / 4 + 1e-4
        assert (np.abs(seen.mean(axis=0) - exact) < 4 * error).all()


gaps = st.lists(st.one_of(st.just(1e-9), st.floats(1e-9, 0.01), st.floats(1e-9, 0.2)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(gaps, st.integers(1, 12), st.floats(0.008, 0.3), st.floats(0, 0.02))
def test_nobody_is_late_whatever_the_arrivals_do_one_by_one(gaps: list[float], batch_size: int, slo: float, slope: float) -> None:
    of = service(batch_size, intercept=0.005 - slope if slope < 0.005 else 0.0, slope=slope)
    table = last_moment(of, [Slo(slo, 90)])
    if table is None:
        assert of.mean_response[0] > slo * (1 - 1e-8)
        return
    run = simulate(table, np.cumsum(gaps), of, np.random.default_rng(0))
    assert run.answered.all() and run.latency.max() <= slo


@settings(max_examples=60, deadline=None)
@given(gaps, st.floats(0.02, 0.2), st.floats(0.5, 0.99), st.floats(1, 1.5))
def test_every_batch_leaves_in_time_at_every_percentile_promised(
    gaps: list[float], slo: float, quantile: float, later: float
) -> None:
    of = service(8, levels=5)
    slos = [Slo(slo, 100 * quantile), Slo(later * slo, 50 * (1 + quantile))]
    table = last_moment(of, slos)
    if table is None:
        return
    times = np.cumsum(gaps)
    run = simulate(table, times, of, np.random.default_rng(0))
    oldest = times[np.cumsum(run.batch_sizes) - run.batch_sizes]
    for kept in slos:
        assert (run.dispatch_times - oldest + of.quantile(kept.quantile)[run.batch_sizes - 1] <= kept.latency).all()


def test_waiting_for_one_more_would_be_too_late() -> None:
    of = service(8)
    table = last_moment(of, [Slo(0.06, 95)])
    assert table is not None and table.kind == "deadline" and table.servers is None
    assert table.hold[1:8] == pytest.approx(0.06 - of.mean_response[1:])
    assert last_moment(of, [Slo(0.0075, 95)]) is None
    capped = last_moment(of, [Slo(0.06, 95)], longest=0.045)
    assert capped is not None and capped.hold[1:8] == pytest.approx(np.minimum(0.06 - of.mean_response[1:], 0.045))
    short = last_moment(of, [Slo(0.011, 95)])  # of eight only three are ever in time
    assert short is not None and short.max_batch_size == 3 and short.hold[3] == 0


@pytest.mark.parametrize("profile", [FIXED, measured()])
@pytest.mark.parametrize("arrivals", [poisson(60), BURSTY])
@pytest.mark.parametrize("slo", [0.03, 0.2])
@pytest.mark.proof
def test_no_recommendation_without_a_premium_costs_more_than_the_best_size_or_timeout(
    profile: ServiceProfile, arrivals: ArrivalProcess, slo: float
) -> None:
    asked = Limits((1769,)) if profile is FIXED else Limits()
    alone = recommend(Question(arrivals, profile, Slo(slo, 95), limits=replace(asked, policies="size-or-timeout")))
    answer = recommend(Question(arrivals, profile, Slo(slo, 95), limits=asked, goal=Goal(premium=0.0)))
    assert alone.best.table is None and all(setting.table is None for setting in alone.runners_up)
    assert answer.best.cost.per_request <= alone.best.cost.per_request
    assert answer.best.latency.probability_within(slo) >= 0.95 - 1e-8
    least = {point.latency: point.cost_per_request for point in alone.frontier}
    assert all(point.cost_per_request <= least.get(point.latency, math.inf) for point in answer.frontier)
    if answer.best.table is not None:
        known = [(s.memory_mb, s.batch_size, s.timeout) for s in answer.runners_up]
        assert (alone.best.memory_mb, alone.best.batch_size, alone.best.timeout) in known


def test_a_table_that_costs_less_wins_and_is_in_the_plan() -> None:
    arrivals = poisson(60)
    answer = recommend(Question(arrivals, FIXED, Slo(0.1, 99.9), limits=Limits((1769,))))
    best, of = answer.best, service_times(FIXED, 1769)
    assert answer.winner is best and best.table is not None and best.timeout == best.table.hold[1]
    assert best.cost.per_request < answer.runners_up[0].cost.per_request
    plan = read(Plan, write(answer.plan("mlp", arrivals.document())))
    assert plan.policy is not None and plan.policy.policy() == best.table == best.policy and plan.policy.kind == "deadline"
    rng = np.random.default_rng(1)
    run = simulate(best.policy, np.cumsum(arrivals.sample(100_000, rng)), of, rng)
    assert run.latency.max() <= 0.1 and run.mean_batch_size == pytest.approx(best.mean_batch_size, rel=0.01)
    assert run.cost(of).per_request == pytest.approx(best.cost.per_request, rel=0.01)
    assert run.percentile_of_answered(50) == pytest.approx(best.latency.percentile(50), rel=0.02)


def test_the_largest_batch_is_the_cheapest_by_brute_force() -> None:
    points = [  # a batch of four is the best use of the function, beyond it the bill grows faster than the batch
        ProfilePoint(1769, size, ServiceTime(seconds), seconds) for size, seconds in ((1, 0.01), (4, 0.012), (5, 0.03), (16, 0.2))
    ]
    profile = ServiceProfile(function="f", points=points)
    of, slo, arrivals = service_times(profile, 1769), Slo(0.08, 99.99), poisson(60)
    answer = recommend(Question(arrivals, profile, slo))
    costs = []
    for b in range(2, 17):
        table = last_moment(of.up_to(b), [Slo(slo.latency, 99.99)])
        assert table is not None
        costs.append(predict_cost(predict_falling_holds(arrivals, of, table).batch_size_pmf, of).per_request)
    tables = [s for s in (answer.best, *answer.runners_up) if s.table is not None]
    assert len(tables) == 1 and tables[0].cost.per_request == pytest.approx(min(costs))
    assert tables[0].batch_size == int(np.argmin(costs)) + 2 == 4


def test_several_percentiles_are_all_kept_by_the_table() -> None:
    slos = [Slo(0.08, 95), Slo(0.0805, 99.5)]
    answer = recommend(Question(poisson(60), measured(), slos))
    table = answer.best if answer.best.table is not None else next(s for s in answer.runners_up if s.table is not None)
    assert all(table.latency.probability_within(slo.latency) >= slo.quantile for slo in slos)


def test_a_budget_that_only_the_table_keeps_is_kept() -> None:
    arrivals, slo, asked = poisson(60), Slo(0.1, 99.9), Limits((1769,))
    alone = recommend(Question(arrivals, FIXED, slo, limits=replace(asked, policies="size-or-timeout"))).best.cost.per_request
    least = recommend(Question(arrivals, FIXED, slo, limits=asked)).best.cost.per_request
    answer = recommend(Question(arrivals, FIXED, slo, limits=asked, goal=Goal(max_cost=(alone + least) / 2)))
    assert answer.best.table is not None and answer.best.cost.per_request == pytest.approx(least) and answer.runners_up == ()
    with pytest.raises(Infeasible, match="the cheapest costs") as caught:
        recommend(Question(arrivals, FIXED, slo, limits=asked, goal=Goal(max_cost=least * 0.999)))
    assert caught.value.best is not None and caught.value.best["cost_per_request"] == pytest.approx(least)
    quickest = recommend(
        Question(arrivals, FIXED, slo, limits=asked, goal=Goal(objective="latency", max_cost=(alone + least) / 2))
    ).best
    assert quickest.table is not None and quickest.cost.per_request <= (alone + least) / 2
    assert quickest.latency.percentile(99.9) < 0.1


@pytest.mark.proof
def test_the_quickest_within_a_budget_is_no_slower_than_the_best_size_or_timeout() -> None:
    slo, asked = Slo(0.1, 95), Limits((1769,))
    for arrivals in (poisson(60), BURSTY):
        budget = recommend(Question(arrivals, FIXED, slo, limits=asked)).best.cost.per_request * 1.2
        both, alone = (
            recommend(
                Question(
                    arrivals, FIXED, slo, limits=replace(asked, policies=allowed), goal=Goal(objective="latency", max_cost=budget)
                )
            ).best
            for allowed in ("all", "size-or-timeout")
        )
        assert both.latency.percentile(95) <= alone.latency.percentile(95) and both.cost.per_request <= budget * (1 + 1e-9)


def test_a_premium_takes_the_table_that_needs_no_fit() -> None:
    arrivals, slo, asked = BURSTY, Slo(0.03, 80), Limits((1769,))
    strict = recommend(Question(arrivals, FIXED, slo, limits=asked))
    (table,) = [s for s in strict.runners_up if s.table is not None]
    more = table.cost.per_request / strict.best.cost.per_request - 1
    assert strict.best.table is None and more > 0
    assert recommend(Question(arrivals, FIXED, slo, limits=asked, goal=Goal(premium=more * 1.01))).best.table == table.table
    assert recommend(Question(arrivals, FIXED, slo, limits=asked, goal=Goal(premium=more * 0.9))).best.table is None


def test_given_timeouts_leave_no_room_for_tables_and_the_longest_bounds_their_holds() -> None:
    arrivals, slo, asked = poisson(60), Slo(0.1, 99.9), Limits((1769,))
    assert recommend(Question(arrivals, FIXED, slo, limits=replace(asked, timeouts=[0.05, 0.09]))).best.table is None
    bounded = recommend(Question(arrivals, FIXED, slo, limits=replace(asked, max_timeout=0.05)))
    for setting in (bounded.best, *bounded.runners_up):
        assert setting.timeout <= 0.05 * (1 + 1e-9)


def test_the_table_is_predicted_at_other_rates_and_breaks_even() -> None:
    arrivals = poisson(60)
    answer = recommend(Question(arrivals, FIXED, Slo(0.1, 99.9), limits=Limits((1769,))))
    best, of = answer.best, service_times(FIXED, 1769)
    assert best.table is not None
    for row in answer.sensitivity:
        there = predict_falling_holds(arrivals.sped_up(row.factor), of, best.table)
        assert row.latency["p99.9"] == pytest.approx(there.percentile(99.9)) and row.keeps_slos
        assert row.mean_batch_size == pytest.approx(there.mean_batch_size)
    rate = answer.break_even_arrival_rate
    assert rate is not None
    law = FallingHolds(poisson(rate), np.array(best.table.hold[1:-1]))
    batched, none = predict_cost(law.batch_size_pmf[-1], of), answer.no_batching.cost
    saving = none.by_request - batched.by_request
    assert saving * rate * 30.4375 * 86400 == pytest.approx(batched.fixed_per_month, rel=0.05)


def test_the_sentence_says_what_is_done() -> None:
    answer = recommend(Question(poisson(60), FIXED, Slo(0.1, 99.9), limits=Limits((1769,))))
    assert wording.headline(answer) == (
        "Hold requests until 8 are there or waiting for one more would make the oldest late: 92 ms with one waiting, 91 ms with 2, "
        "86 ms with 7. Run the function with 1769 MB."
    )
    assert "kept for any arrivals one by one, by prediction p99.9" in wording.kept(answer)


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ([0.1, 0.2], r"holds: \[0.1, 0.2\] is not allowed; allowed: seconds >= 0 that do not rise with the number waiting"),
        ([-0.1], r"holds: \[-0.1\] is not allowed"),
        ([math.inf], r"holds: \[inf\] is not allowed"),
        ([math.nan], r"holds: \[nan\] is not allowed"),
    ],
)
def test_holds_that_do_not_fall_are_refused(holds: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        FallingHolds(poisson(1), np.array(holds))


@pytest.mark.parametrize("policy", [policies.greedy(4, 1), policies.static(4, None), policies.early_drop(1, [0.1], None)])
def test_the_law_is_refused_for_other_tables(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="policy: '.*' is not allowed; allowed: an elastic table that takes all"):
        predict_falling_holds(poisson(1), service(4), policy)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Limits(policies="greedy"), "policies: 'greedy' is not allowed; allowed: all or size-or-timeout"),
        (lambda: Goal(premium=-0.1), "premium: -0.1 is not allowed; allowed: a part of the cost from 0 to 1"),
        (lambda: Goal(premium=5.0), r"premium: 5.0 is not allowed; allowed: a part of the cost from 0 to 1 \(0.05 for 5 %\)"),
        (lambda: Goal(premium=math.nan), "premium: nan is not allowed"),
        (lambda: Goal(premium=math.inf), "premium: inf is not allowed"),
    ],
)
def test_misuse_names_the_field(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask()
