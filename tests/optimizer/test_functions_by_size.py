"""Which function serves which size of batch: every row in time, and the search held against all assignments."""

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching.batcher import Batcher
from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import INF, Policy, decide
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.billing import Billing
from sluice.optimizer.billing.cold_starts import Share
from sluice.optimizer.recommend import Limits, Question
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.functions_by_size import Assignment, FunctionsBySize
from sluice.optimizer.recommend.last_moment import last_moment

MEMORY_SIZES = (512, 885, 1769)


LAWS = ((0.004, 0.012), (0.006, 0.004), (0.006, 0.001))
"""Seconds of a batch by memory size, intercept and for each request: with little memory one alone is cheap, with much many are."""


def profile(laws: tuple[tuple[float, float], ...] = LAWS, largest: int = 6, init: float = 0.0) -> ServiceProfile:
    points = []
    for (memory_mb, (intercept, slope)), n in itertools.product(zip(MEMORY_SIZES, laws, strict=True), range(1, largest + 1)):
        points.append(ProfilePoint(memory_mb, n, ServiceTime(intercept + slope * n), intercept + slope * n))
    cold = {memory_mb: ServiceTime(init) for memory_mb in MEMORY_SIZES} if init else {}
    return ServiceProfile(function="mlp-{memory_mb}:live", points=points, init=cold)


def sizes_of(
    of: ServiceProfile,
    arrivals: ArrivalProcess | float = 10.0,
    latency: float = 0.1,
    loads: tuple[float, float] = (0.1, 100.0),
    limits: Limits | None = None,
) -> FunctionsBySize:
    process = arrivals if isinstance(arrivals, ArrivalProcess) else poisson(arrivals)
    return FunctionsBySize(FunctionSettings(Question(process, of, (Slo(latency, 95),), limits=limits or Limits())), loads)


@cache
def three() -> FunctionsBySize:
    return sizes_of(profile())


assignments = st.lists(st.sampled_from((0, 1, 2)), min_size=1, max_size=6).map(tuple)


@pytest.mark.proof
@pytest.mark.parametrize("arrivals", [poisson(3), poisson(60), mmpp2(100, 5, 2, 1)])
@pytest.mark.parametrize("laws", [LAWS, ((0.004, 0.012), (0.007, 0.0065), (0.003, 0.002))])
def test_the_search_finds_the_best_of_all_assignments(arrivals: ArrivalProcess, laws: tuple[tuple[float, float], ...]) -> None:
    search = sizes_of(profile(laws, 5), arrivals, 0.08, (0.1, 100.0))
    found = search.best()
    allowed = [of for of in itertools.product(range(3), repeat=len(found)) if all(search.left[j, n] >= 0 for n, j in enumerate(of))]
    assert search.objective(found) == pytest.approx(min(map(search.objective, allowed)), abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(assignments, st.lists(st.floats(0, 0.03), min_size=1, max_size=40))
def test_by_every_assignment_nobody_is_late_whatever_the_arrivals_do(of: Assignment, gaps: list[float]) -> None:
    search = three()
    whole, times = search.whole(of), np.cumsum(np.array(gaps) + 1e-9)
    batcher, wake, batches = Batcher[float](whole), None, []
    for time in [*times.tolist(), INF]:
        while wake is not None and wake < time:
            step = batcher.tick(wake)
            batches += [(wake, batch) for batch in step.batches]
            wake = step.wake_at
        if time < INF:
            step = batcher.arrive(time, [time])
            batches += [(time, batch) for batch in step.batches]
            wake = step.wake_at
    assert sum(len(batch) for _, batch in batches) == len(gaps)
    for left, batch in batches:
        service = search.question.services[of[len(batch) - 1]]
        assert left + service.response[len(batch) - 1, 0] <= batch[0] + 0.1


@settings(max_examples=60, deadline=None)
@given(assignments, st.lists(st.floats(0, 0.03), min_size=1, max_size=40))
def test_the_tables_beside_one_another_do_what_the_whole_does_and_the_size_chooses(of: Assignment, gaps: list[float]) -> None:
    search = three()
    tables = search.tables(of)
    first, *others = (policy for _, policy in tables)
    together = Batcher[int](Policy(first.hold, first.take, beside=others))
    alone = Batcher[int](search.whole(of))
    time, wake = 0.0, None
    for i, gap in enumerate(gaps):
        time += gap
        while wake is not None and wake < time:
            at, seen = together.tick(wake), alone.tick(wake)
            assert at.batches == seen.batches and at.wake_at == seen.wake_at
            assert [tables[place][0] for place in at.tables] == [of[len(batch) - 1] for batch in at.batches]
            wake = at.wake_at
        at, seen = together.arrive(time, [i]), alone.arrive(time, [i])
        assert at.batches == seen.batches and at.wake_at == seen.wake_at
        assert [tables[place][0] for place in at.tables] == [of[len(batch) - 1] for batch in at.batches]
        wake = at.wake_at


def test_a_queue_beyond_the_largest_batch_goes_to_another_function_where_its_own_takes_no_more() -> None:
    first, beside = (policy for _, policy in three().tables((1, 1, 2, 2, 2, 2)))
    policy = Policy(first.hold, first.take, beside=[beside])
    assert decide(policy, 6, 0.0, 0.0, 0, 0)[1:] == (6, None, 0)
    assert decide(policy, 6, 0.0, 0.0, 0, 0, ended={0})[1:] == (2, None, 1)
    assert decide(policy, 4, 0.0, 0.0, 0, 0, ended={0}).wake_at == first.hold[4]  # its own, as no other serves four


def test_with_one_function_the_table_is_that_of_the_last_moment() -> None:
    search = three()
    known = last_moment(search.question.services[1], search.question.slos)
    assert known is not None
    assert search.whole((1,) * 6).hold == pytest.approx(known.hold, abs=1e-6) and search.whole((1,) * 6).take == known.take
    [(j, table)] = search.tables((1,) * 6)
    assert j == 1 and table.hold == search.whole((1,) * 6).hold


def test_where_one_name_stands_for_all_memory_sizes_one_function_serves_all_sizes() -> None:
    law, init = LinearServiceTime(0.02, 0.01), {512: ServiceTime(20.0), 1769: ServiceTime(0.1)}  # where few come, most is the INIT
    of = [ServiceProfile(function=name, service_time=law, init=init, max_batch_size=6) for name in ("mlp-{memory_mb}", "mlp")]
    apart, alike = (sizes_of(each, 100.0, 0.3, (1e-5, 1.0), Limits(memory_sizes=tuple(init))).best() for each in of)
    assert len(set(apart)) == 2 and len(set(alike)) == 1


def test_a_memory_size_that_is_slower_and_dearer_is_not_used() -> None:
    dearer = ((0.012, 0.012), *LAWS[1:])
    assert 0 in sizes_of(profile()).best() and 0 not in sizes_of(profile(dearer)).best()


def test_rows_end_with_the_batch_that_costs_least_when_full() -> None:
    points = []
    for n, seconds in ((1, 0.01), (4, 0.012), (8, 0.09)):  # 8 cost more each than 4
        points.append(ProfilePoint(1769, n, ServiceTime(seconds), seconds))
    search = sizes_of(ServiceProfile(function="f-{memory_mb}", points=points), 10.0, 0.2)
    full = search.cost[0] / np.arange(1, 9)
    assert len(search.best()) == 4 == int(full.argmin()) + 1


def test_cold_starts_are_counted_at_each_load_for_each_function() -> None:
    warm, cold = (sizes_of(profile(init=init), 5.0, 0.06, (0.001, 10.0)) for init in (0.0, 2.0))
    of: Assignment = (1, 1, 2, 2, 2, 2)
    assert all(cold.usd(of, factor) > warm.usd(of, factor) for factor in cold.factors)
    pmf = cold.batch_size_pmf(of, 0.001)
    apart, together = cold.cold_starts(pmf, of, 0.001), cold.cold_starts(pmf, (1,) * 6, 0.001)
    assert set(apart) == {1, 2} and 1 >= apart[2].batches > together[1].batches > 0.2
    told = Question(poisson(5), profile(init=2.0), (Slo(0.06, 95),), Billing(cold_start_probability=0.1))
    share = FunctionsBySize(FunctionSettings(told), (0.1, 10.0))
    assert share.usd(of, 1.0) > warm.usd(of, 1.0) and set(share.cold_starts(pmf, of, 1.0).values()) == {Share(0.1, 0.1)}


def test_what_cannot_win_even_warm_is_left_out_and_nothing_else() -> None:
    arrivals, cold = poisson(0.5), profile(largest=3, init=2.0)
    search = sizes_of(cold, arrivals, 0.06)
    alone = [sizes_of(cold, arrivals, 0.06, limits=Limits(memory_sizes=(memory_mb,))).least for memory_mb in MEMORY_SIZES]
    assert search.least == pytest.approx(np.min(alone, axis=0), rel=1e-12)
    best = search.best()
    every = itertools.product(range(3), repeat=len(best))
    allowed = [of for of in every if all(search.left[j, n] >= 0 for n, j in enumerate(of))]
    assert search.objective(best) == min(map(search.objective, allowed))


def test_batch_sizes_are_worked_out_once_for_an_assignment_and_a_load_and_once_for_all_loads_that_fill_alike() -> None:
    search = sizes_of(profile(), mmpp2(100, 5, 2, 1), 0.08, (1.0, 1e6))
    at = [search.batch_size_pmf((0, 1, 1), factor) for factor in (2.0, 2.0, 1e5, 1e6)]
    assert at[0] is at[1] and at[2] is at[3] and at[0] is not at[2]


def test_little_is_lost_at_the_rate_itself() -> None:
    search = sizes_of(profile(), 10.0, 0.08, (0.1, 1000.0))
    here = {of: float(search.relative(of)[search.factors == 1.0][0]) for of in ((1,) * 6, (2,) * 6)}
    assert search.relative((2,) * 6).mean() < search.relative((1,) * 6).mean() and here[(2,) * 6] > 1.005 > here[(1,) * 6]
    assert search.objective((1,) * 6) < search.objective((2,) * 6)


def test_no_hold_is_longer_than_the_longest_timeout_considered() -> None:
    search = sizes_of(profile(), limits=Limits(max_timeout=0.02))
    assert max(search.holds(search.best())) == 0.02
