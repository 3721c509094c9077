"""The systems of the literature as deployments: what each does, and that none knows an arrival before it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer import baselines
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.baselines import Forecasting, TargetTracking
from sluice.optimizer.baselines.autoscaling import as_schedule
from sluice.optimizer.baselines.overflow import worth_having
from sluice.optimizer.recommend import Limits, Question, WorkerOffer, recommend
from sluice.optimizer.service.times import ServiceTimes, service_times
from sluice.optimizer.simulation.chunks import SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments

SLO = Slo(0.2, 95)


def profile(intercept: float = 0.01, slope: float = 0.002, largest: int = 16) -> ServiceProfile:
    """A batch of b takes ``intercept + slope b`` s at 1769 MB, and twice that at half of it."""
    points = []
    for memory_mb in (885, 1769):
        for size in (1, largest // 2, largest):
            seconds = (intercept + slope * size) * 1769 / memory_mb
            points.append(ProfilePoint(memory_mb, size, ServiceTime(seconds), seconds))
    return ServiceProfile(function="f-{memory_mb}", points=points)


def function(**law: float) -> Function:
    return Function(profile(**law), 1769)


def offer(price: float = 0.04, **law: float) -> WorkerOffer:
    return WorkerOffer("worker", service_times(profile(**law), 1769), price)


def at_rates(*pieces: tuple[float, float], seed: int = 0) -> Array:
    """Poisson arrivals of each rate (1/s) for so many seconds, one after the other."""
    rng = np.random.default_rng(seed)
    times, start = [], 0.0
    for rate, seconds in pieces:
        times.append(start + np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds))))
        start += seconds
    return np.concatenate(times)


def ran(deployment: Deployment, times: Array, slo: Slo = SLO) -> RunStatistics:
    return simulate_deployments({"": deployment}, TraceArrivals(times), [slo.latency])[""]


def before(deployment: Deployment, when: float) -> list[tuple[float, object]]:
    """The tables and servers that come into force before a moment."""
    schedule = deployment.schedule
    tables = [schedule.tables[i] for i in (schedule.first, *schedule.swap_to.tolist())]
    servers = [None] * len(tables) if schedule.servers is None else schedule.servers.tolist()
    moments = [-np.inf, *schedule.swap_times.tolist()]
    return [(at, (table, k)) for at, table, k in zip(moments, tables, servers, strict=True) if at < when]


# --- nobody sees what is yet to come


def _autoscaled(times: Array) -> Deployment:
    return baselines.autoscaled(
        offer(), SLO, times, TargetTracking(10.0, period=10, lag=0, periods_out=1, periods_in=3, cooldown=0)
    )


def _with_overflow(times: Array) -> Deployment:
    return baselines.with_overflow(offer(price=0.002), function(), SLO, times, Forecasting(period=10, memory=1, lag=0))


def _reoptimised(times: Array) -> Deployment:
    return baselines.reoptimised(function(), [SLO], baselines.past_windows(times, 50, step=50, model="poisson"))


@pytest.mark.full
def test_a_worker_that_is_given_back_the_moment_it_comes_was_there() -> None:
    schedule = as_schedule(policies.greedy(4, 1), 2.0, 0, [(240.0, -1), (240.0, 1)])
    assert schedule.servers_in_force is not None and schedule.servers_in_force.tolist() == [0, 1, 0]
    assert schedule.swap_times.tolist() == [242.0, 242.0]


@pytest.mark.proof
@pytest.mark.parametrize("make", [_autoscaled, _with_overflow, _reoptimised])
def test_what_is_yet_to_come_changes_nothing_that_was_decided(make: Callable[[Array], Deployment]) -> None:
    one, now = at_rates((20, 100), (40, 200)), 195.0
    other = np.concatenate([one[one < now], now + at_rates((2000, 5), (10, 100), seed=1)])
    assert len(before(make(one), now)) > 1
    assert before(make(one), now) == before(make(other), now)
    assert before(make(one), 300.0) != before(make(other), 300.0)


# --- workers that come and go


def test_an_autoscaled_endpoint_is_late_by_its_alarm_and_its_start() -> None:
    tracking = TargetTracking(target=50.0, period=10, periods_out=3, lag=40, cooldown=20)
    times = at_rates((30, 200), (120, 300))
    deployment = baselines.autoscaled(offer(), SLO, times, tracking)
    schedule = deployment.schedule
    assert schedule.servers is not None and schedule.servers[0] == 1
    first = schedule.swap_times[0]
    assert 200 + 30 + 40 <= first <= 200 + 40 + 40 + 1  # three whole periods, which begin with the first arrival, and the start
    assert schedule.servers[-1] == pytest.approx(120 / 50, abs=1)
    run = ran(deployment, times)
    fixed = ran(baselines.greedy(offer(), 1, SLO), times)
    assert run.violation_ratio() <= fixed.violation_ratio()


def test_an_autoscaled_endpoint_gives_up_workers_after_fifteen_quiet_periods() -> None:
    tracking = TargetTracking(target=50.0, period=10, cooldown=20, lag=0)
    rates = np.array([200.0] * 5 + [20.0] * 30)
    changes = tracking.changes(rates, first=4)
    assert changes == [((5 + 15) * 10.0, -3)]


def test_a_cooldown_keeps_the_next_alarm_from_adding_workers_twice() -> None:
    tracking = TargetTracking(target=50.0, period=10, periods_out=1, cooldown=100, lag=50)
    changes = tracking.changes(np.array([100.0, *[300.0] * 20]), first=1)
    assert changes[0] == (60.0, 1)
    assert changes[1] == (110.0 + 50.0, 4)  # not before 100 s after the first


def test_impossible_autoscaling_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"lag: -1 is not allowed; allowed: a number of seconds >= 0"):
        TargetTracking(1.0, lag=-1)
    with pytest.raises(InvalidInput, match=r"memory: 0 is not allowed; allowed: an integer >= 1"):
        Forecasting(memory=0)


# --- workers and a function


def test_the_function_serves_what_workers_cannot_serve_in_time() -> None:
    times = at_rates((300, 120), (1500, 30), (300, 60))
    one = offer(price=0.001)
    deployment = baselines.with_overflow(one, function(), SLO, times, Forecasting(period=10, lag=20), first_rate=300)
    alone = replace(deployment, beside=())
    run = ran(deployment, times)
    assert run.violation_ratio() < 0.01 < ran(alone, times).violation_ratio()
    assert 0 < run.by_function < 0.5
    assert run.cost.compute > 0 and run.cost.machines > 0


def test_workers_are_had_only_where_they_are_cheaper_than_the_function() -> None:
    served = baselines.largest_throughput(offer().service, SLO)
    assert worth_having(offer(price=1e3), function(), SLO, 5 * served) == 0
    assert worth_having(offer(price=1e-6), function(), SLO, 2.5 * served) == 3
    assert worth_having(offer(price=1e-6), function(), SLO, 0.0) == 0
    per_second = 0.04 / 3600
    by_function = float(function().cost_by_batch[-1]) / 16
    assert worth_having(offer(0.04), function(), SLO, 2 * served) == (2 if by_function * served > per_second else 0)


def test_at_the_last_moment_nobody_is_late_before_an_elastic_function() -> None:
    times = at_rates((5, 60), (400, 20), (50, 40))
    run = ran(baselines.last_moment(function(), [SLO]), times)
    assert run.violation_ratio() == 0
    assert run.mean_batch_size > ran(baselines.size_or_timeout(function(), 16, 0.05), times).mean_batch_size
    cold = replace(function(), environments=Environments(init_duration=1.0))
    assert ran(baselines.last_moment(cold, [SLO]), times).violation_ratio() > 0


# --- workers whose number stays


def test_the_limit_of_aimd_grows_by_one_and_shrinks_by_a_tenth() -> None:
    adaptation = baselines.aimd(offer(), 1, SLO).adaptation
    assert adaptation is not None and adaptation.latency == 0.1
    assert adaptation.up.tolist() == [*range(1, 16), 15]
    assert [int(table) + 1 for table in adaptation.down[[0, 1, 9, 15]]] == [1, 1, 9, 14]


def test_the_limit_of_aimd_shrinks_after_late_batches() -> None:
    slow = offer(slope=0.01)  # of which 9 take the objective of 0.1 s
    run = ran(baselines.aimd(slow, 1, SLO), at_rates((500, 30)), SLO)  # far more than it can serve
    sizes = np.flatnonzero(run.batch_size_pmf) + 1
    assert sizes.max() == 10  # one step beyond, and back by a tenth
    assert {9, 10} <= set(sizes.tolist()) and run.batch_size_pmf[8] == pytest.approx(0.5, abs=0.05)


def test_two_batches_fit_into_the_slo() -> None:
    assert len(baselines.seconds_in_time(offer().service, Slo(0.05))) == 7  # 0.024 s each
    assert baselines.greedy(offer(), 2, Slo(0.05)).schedule.tables[0].max_batch_size == 7
    assert len(baselines.seconds_in_time(offer().service, Slo(0.001))) == 1  # one request is served whatever it takes
    assert baselines.greedy(offer(), 2).schedule.tables[0].max_batch_size == 16


def test_early_drop_gives_up_who_would_be_late() -> None:
    times = at_rates((700, 20))
    run = ran(baselines.early_drop(offer(), 1, Slo(0.1)), times, Slo(0.1))
    assert run.dropped > 0 and run.percentile(50).value <= 0.1
    assert ran(baselines.greedy(offer(), 1, Slo(0.1)), times, Slo(0.1)).violation_ratio() > run.violation_ratio()
    with pytest.raises(InvalidInput, match=r"slo: 0.02 is not allowed; allowed: at least twice the service time of one request"):
        baselines.early_drop(offer(), 1, Slo(0.02))


def test_the_smdp_table_keeps_the_slo_and_saves_busy_seconds() -> None:
    arrivals = SampledArrivals(poisson(200), 40_000, 0)
    tables = {"smdp": baselines.smdp(offer(), 1, 200, [SLO]), "greedy": baselines.greedy(offer(), 1)}
    runs = simulate_deployments(tables, arrivals, [SLO.latency])
    assert runs["smdp"].violation_ratio() <= 0.05
    busy = {name: run.utilisation for name, run in runs.items()}
    assert busy["smdp"] is not None and busy["greedy"] is not None and busy["smdp"] < 0.7 * busy["greedy"]


def test_where_a_larger_batch_saves_nothing_the_smdp_table_never_waits() -> None:
    table = baselines.smdp(offer(intercept=0.0, slope=0.01), 2, 100, [SLO]).schedule.tables[0]
    assert table.servers == 2 and set(table.hold[1:]) == {0.0}


def test_the_fewest_workers_are_fewest() -> None:
    times = at_rates((1500, 20))

    def with_workers(workers: int) -> Deployment:
        return baselines.greedy(offer(), workers, SLO)

    enough = baselines.fewest_workers(with_workers, times, [SLO])
    assert enough > 1
    assert ran(with_workers(enough), times).violation_ratio() <= 0.05 < ran(with_workers(enough - 1), times).violation_ratio()


def test_where_no_number_of_workers_keeps_the_slo_there_are_only_as_many_as_help() -> None:
    impossible = Slo(0.001)
    workers = baselines.fewest_workers(lambda k: baselines.greedy(offer(), k, impossible), at_rates((100, 10)), [impossible])
    assert workers == 1


# --- a function with settings


def test_recommended_is_the_winner_of_the_recommendation() -> None:
    arrivals = poisson(50)
    cheap = offer(price=1e-4)
    by_worker = recommend(Question(arrivals, profile(), SLO, offers=[cheap]))
    worker = baselines.recommended(by_worker, function())
    assert worker.schedule.tables[0].servers == 1 and worker.price_per_worker_hour == 1e-4
    alone = recommend(Question(arrivals, profile(), SLO, limits=Limits(policies="size-or-timeout")))
    deployment = baselines.recommended(alone, function())
    assert deployment.service.memory_mb == alone.best.memory_mb
    assert ran(deployment, at_rates((50, 300))).cost.per_request == pytest.approx(alone.best.cost.per_request, rel=0.03)


def test_settings_follow_the_load_of_the_window_before() -> None:
    times = at_rates((20, 200), (150, 200))
    deployment = baselines.reoptimised(
        function(), [SLO], baselines.past_windows(times, 100, step=100, model="poisson"), headroom=0.02
    )
    tables = deployment.schedule.tables
    assert tables[0].kind == "no_batching"
    assert deployment.schedule.swap_times[0] == pytest.approx(100, abs=1)
    assert tables[1].parameters["timeout"] < tables[3].parameters["timeout"]  # which is seldom reached
    assert all(earlier < later for earlier, later in pairwise(deployment.schedule.swap_times))


def test_without_a_setting_that_keeps_the_slo_nothing_is_batched() -> None:
    windows = baselines.past_windows(at_rates((50, 60)), 30)
    tables = baselines.reoptimised(function(), [Slo(0.001)], windows).schedule.tables
    assert {table.kind for table in tables} == {"no_batching"}
    assert baselines.with_headroom(function(), [Slo(0.001)], poisson(50), at_rates((50, 60))).schedule.max_batch_size == 1


def test_headroom_is_taken_until_the_past_would_have_been_in_time() -> None:
    pairs = np.sort(np.concatenate([at_rates((20, 120)), 0.16 + at_rates((20, 120))]))  # whom a Poisson fit does not expect
    process: ArrivalProcess = poisson(40)
    exact = baselines.with_headroom(function(), [SLO], process, pairs, headrooms=(0.0,))
    kept = baselines.with_headroom(function(), [SLO], process, pairs)
    for deployment in (exact, kept):
        assert ran(deployment, pairs).violation_ratio() <= 0.05
    assert kept.schedule.max_batch_size >= exact.schedule.max_batch_size


def test_every_baseline_says_what_it_keeps_and_leaves_out() -> None:
    papers = ["no_batching", "size_or_timeout", "recommended", "reoptimised", "last_moment", "greedy", "static", "smdp"]
    for name in [*papers, "deadline", "early_drop", "aimd", "autoscaled", "with_overflow"]:
        words = (getattr(baselines, name).__doc__ or "").lower()
        assert "left out" in words and "kept" in words, name


def test_a_seed_gives_the_same_answer() -> None:
    levels = np.array([0.0, 1.0])
    random = ServiceTimes(1769, np.linspace([0.005], [0.02], 8) * [[1.0, 2.0]], np.zeros(8), np.linspace(0.01, 0.03, 8), levels)
    workers = WorkerOffer("worker", random, 0.04)
    tables = {"aimd": baselines.aimd(workers, 1, SLO), "deadline": baselines.deadline(workers, 1, SLO)}
    one, same, other = (simulate_deployments(tables, SampledArrivals(poisson(100), 5000, 0), [0.2], seed) for seed in (1, 1, 2))
    for name in tables:
        assert one[name].percentile(95) == same[name].percentile(95)
        assert one[name].mean_latency != other[name].mean_latency
