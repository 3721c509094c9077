"""Deployments against their specification, in chunks and whole, and what is counted of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching import Policy
from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import INF, MAX_BESIDE
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import chunks
from sluice.optimizer.simulation.batch_means import estimate_mean, estimate_quantile, estimate_quantile_of_counts
from sluice.optimizer.simulation.chunks import SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Adaptation, Beside, Deployment, Environments
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.simulation.schedule import KEEP, Schedule
from sluice.optimizer.simulation.streaming import simulate_deployments
from tests.batching import strategies
from tests.optimizer.batcher_loop import run_batcher
from tests.optimizer.deployment_loop import run_deployment
from tests.optimizer.queue_stimuli import environments, gaps, rng, run_in_chunks, service, splits


def deterministic(*seconds: float) -> ServiceTimes:
    return ServiceTimes(1024, np.array(seconds)[:, None], np.zeros(len(seconds)), np.array(seconds))


# --- the same deployment, the same stimuli


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(strategies.policies(), environments, gaps, service, splits)
def test_a_function_with_environments_serves_as_specified(
    policy: Policy, environments: Environments, gaps: list[float], service: ServiceTimes, sizes: list[int]
) -> None:
    deployment = Deployment(replace(policy, servers=None), service, environments)
    times = np.cumsum(gaps)
    assert run_in_chunks(deployment, times, sizes) == run_deployment(deployment, times, rng())


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.data(), gaps, service, st.none() | environments, splits)
def test_servers_that_change_with_a_function_beside_them_serve_as_specified(
    data: st.DataObject, gaps: list[float], service: ServiceTimes, environments: Environments | None, sizes: list[int]
) -> None:
    tables = [replace(table, servers=1) for table in data.draw(st.lists(strategies.policies(), min_size=1, max_size=3))]
    place = st.integers(0, len(tables) - 1)
    swap = st.tuples(strategies.ticks | st.just(0.0), place | st.just(KEEP), st.integers(0, 3))
    swaps = data.draw(st.lists(swap, max_size=20))
    servers = [data.draw(st.integers(0, 3)), *(count for *_, count in swaps)]
    schedule = Schedule(tables, np.cumsum([gap for gap, *_ in swaps]), [to for _, to, _ in swaps], data.draw(place), servers)
    second = data.draw(st.none() | strategies.policies())
    beside = [] if second is None else [Beside(replace(second, servers=None, drop_after=None), service, environments)]
    adaptation = None
    if data.draw(st.booleans()):
        successors = st.lists(place, min_size=len(tables), max_size=len(tables))
        adaptation = Adaptation(data.draw(strategies.ticks) + 1 / 64, data.draw(successors), data.draw(successors))
    deployment = Deployment(schedule, service, beside=beside, adaptation=adaptation)
    times = np.cumsum(gaps)
    assert run_in_chunks(deployment, times, sizes) == run_deployment(deployment, times, rng())


of_one_column = strategies.policies_with_tables_beside(strategies.policies())
serving = st.tuples(strategies.policies(), st.none() | environments, service)


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(strategies.policies(), st.lists(serving, min_size=1, max_size=MAX_BESIDE), st.none() | environments, gaps, service, splits)
def test_tables_beside_one_another_serve_as_specified_each_with_its_own(
    policy: Policy,
    others: list[tuple[Policy, Environments | None, ServiceTimes]],
    environments: Environments | None,
    gaps: list[float],
    service: ServiceTimes,
    sizes: list[int],
) -> None:
    beside = [
        Beside(replace(table, drop_after=None), service, environments if table.servers is None else None)
        for table, environments, service in others
    ]
    deployment = Deployment(policy, service, environments if policy.servers is None else None, beside=beside)
    times = np.cumsum(gaps)
    assert run_in_chunks(deployment, times, sizes) == run_deployment(deployment, times, rng())


@settings(max_examples=60, deadline=None)
@given(st.lists(of_one_column, min_size=1, max_size=3), st.data(), gaps, service, splits)
def test_tables_beside_one_another_release_the_batches_that_a_batcher_does(
    tables: list[Policy], data: st.DataObject, gaps: list[float], service: ServiceTimes, sizes: list[int]
) -> None:
    beside, elastic = tables[0].beside, tables[0].servers is None
    own = [replace(table, servers=None if elastic else data.draw(st.integers(1, 3)), beside=()) for table in tables]
    swaps = data.draw(st.lists(st.tuples(strategies.ticks | st.just(0.0), st.integers(0, len(own) - 1)), max_size=20))
    schedule = Schedule(own, np.cumsum([gap for gap, _ in swaps]), [to for _, to in swaps])
    times = np.cumsum(gaps)
    deployment = Deployment(schedule, service, beside=[Beside(table, service) for table in beside])
    served = run_in_chunks(deployment, times, sizes)
    by_table: list[int] = []
    expected = run_batcher(schedule, times, service, rng(), beside, by_table)
    assert [(leaves, response, members) for leaves, response, members, *_ in served] == expected
    assert [place for *_, place, _ in served] == by_table


# --- what servers and environments do, by hand


def test_a_server_that_goes_ends_its_batch_and_one_that_comes_serves_at_once() -> None:
    schedule = Schedule([policies.greedy(1)], [0.5, 3.0], [0, 0], servers=[1, 0, 2])
    batches = run_deployment(Deployment(schedule, deterministic(1.0)), times := np.array([0.0, 0.1, 0.2]), rng())
    assert [(leaves, members) for leaves, _, members, *_ in batches] == [(0.0, [0]), (3.0, [1]), (3.0, [2])]
    assert run_in_chunks(Deployment(schedule, deterministic(1.0)), times, []) == batches


def test_a_cold_start_costs_its_seconds_and_an_environment_is_kept_for_its_time() -> None:
    environments = Environments(init_duration=0.5, keep_alive=2.0)
    deployment = Deployment(policies.no_batching(), deterministic(0.25), environments)
    batches = run_in_chunks(deployment, np.array([0.0, 0.1, 1.0, 5.0]), [])
    assert [(response, cold) for _, response, _, _, cold in batches] == [(0.75, True), (0.75, True), (0.25, False), (0.75, True)]


def test_an_environment_that_is_pinged_is_kept_and_whoever_needs_a_second_starts_cold() -> None:
    environments = Environments(init_duration=0.5, keep_alive=2.0, pinged_every=1.5)
    deployment = Deployment(policies.no_batching(), deterministic(0.25), environments)
    batches = run_in_chunks(deployment, np.array([0.0, 9.0, 9.125, 20.0, 20.125]), [])
    assert [cold for *_, cold in batches] == [True, False, True, False, True]
    with pytest.raises(
        InvalidInput, match="pinged_every: 1.5 is not allowed; allowed: seconds > 0.5, those of a cold start, up to 1,"
    ):
        replace(environments, keep_alive=1.0)
    busy = replace(deployment, service=deterministic(2.0))  # finds the one that it kept busy at 1.5 s and starts another
    assert [cold for *_, cold in run_in_chunks(busy, np.array([0.0, 2.1]), [])] == [True, False]


def test_pings_are_billed_for_the_time_of_the_run() -> None:
    pinged = Deployment(policies.no_batching(), deterministic(0.25), Environments(keep_alive=2.0, pinged_every=1.5))
    run = simulate_deployments({"": pinged}, TraceArrivals(np.arange(0.0, 3000.0, 30.0)))[""]
    per_second = default_prices().pings(1, 1024, "x86_64", by_buffer=False) / 1.5
    assert run.cost.pings * run.answered == pytest.approx(per_second * run.span, rel=1e-9)
    assert run.cost.per_request == pytest.approx(run.cost.pings + run.cost.compute + run.cost.requests)


def test_environments_that_were_started_are_there_for_the_first_batches_and_are_billed() -> None:
    environments = Environments(init_duration=0.5, keep_alive=2.0, started=2)
    deployment = Deployment(policies.no_batching(), deterministic(0.25), environments)
    times = np.array([10.0, 10.1, 10.2, 14.0])
    assert [cold for *_, cold in run_in_chunks(deployment, times, [])] == [False, False, True, True]
    run = simulate_deployments({"": deployment}, TraceArrivals(np.arange(0.0, 100.0)))[""]
    without = replace(deployment, environments=replace(environments, started=0))
    cold = simulate_deployments({"": without}, TraceArrivals(np.arange(0.0, 100.0)))[""]
    assert (run.cold_starts, cold.cold_starts) == (0, 1)
    each, pings = cold.cost.init * cold.answered, default_prices().pings(2, 1024, "x86_64")
    assert each > 0 and run.cost.init * run.answered == pytest.approx(2 * each + pings)
    bounded = replace(deployment, environments=replace(environments, started=8, concurrency=2))
    ends = [leaves + response for leaves, response, *_ in run_in_chunks(bounded, np.full(6, 10.0), [])]
    assert ends == [10.25, 10.25, 10.5, 10.5, 10.75, 10.75], "no more than there may be"
    with pytest.raises(InvalidInput, match="started: -1 is not allowed"):
        replace(environments, started=-1)


def test_beyond_the_concurrency_batches_wait_and_beyond_the_burst_they_start_at_the_scaling_rate() -> None:
    at_once = np.zeros(4)
    limited = Deployment(policies.no_batching(), deterministic(1.0), Environments(concurrency=2))
    assert [leaves for leaves, *_ in run_in_chunks(limited, at_once, [])] == [0.0, 0.0, 1.0, 1.0]
    scaled = Deployment(policies.no_batching(), deterministic(1.0), Environments(scaling_rate=4.0, burst=2))
    assert [leaves for leaves, *_ in run_in_chunks(scaled, at_once, [])] == [0.0, 0.0, 0.25, 0.5]


def test_the_function_serves_what_the_servers_leave_waiting_too_long() -> None:
    function = Beside(policies.size_or_timeout(8, 0.5), deterministic(*[0.1] * 8))
    deployment = Deployment(policies.greedy(1), deterministic(10.0), beside=[function])
    batches = run_in_chunks(deployment, np.array([0.0, 1.0, 1.25]), [])
    assert [(leaves, members, place) for leaves, _, members, place, _ in batches] == [(0.0, [0], 0), (1.5, [1, 2], 1)]


def test_a_late_batch_halves_the_limit_and_one_in_time_adds_one() -> None:
    tables = [policies.aimd(limit) for limit in (1, 2, 3, 4)]
    adaptation = Adaptation(0.35, up=[1, 2, 3, 3], down=[0, 0, 0, 1])
    deployment = Deployment(Schedule(tables, [], []), deterministic(0.1, 0.2, 0.3, 0.4), adaptation=adaptation)
    batches = run_in_chunks(deployment, np.zeros(20), [])
    assert [len(members) for _, _, members, *_ in batches] == [1, 2, 3, 4, 2, 3, 4, 1]


def test_who_is_too_old_for_the_table_that_follows_is_dropped() -> None:
    tables = [replace(policies.greedy(1), drop_after=10.0), replace(policies.greedy(1), drop_after=0.5)]
    deployment = Deployment(Schedule(tables, [], []), deterministic(1.0), adaptation=Adaptation(0.5, up=[0, 1], down=[1, 1]))
    assert [members for _, _, members, *_ in run_in_chunks(deployment, np.array([0.0, 0.1, 0.8]), [])] == [[0], [2]]


# --- what is counted

BURSTY = mmpp2(400, 40, 0.5, 0.2)
RANDOM = ServiceTimes(1769, np.outer(np.arange(1, 9), [0.001, 0.002, 0.006]), np.full(8, 0.001), np.arange(1, 9) * 0.003)
SLOS = (0.02, 0.05)


def test_the_statistics_of_chunks_are_those_of_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 777)
    table = replace(policies.greedy(8, servers=2), drop_after=0.06)
    arrivals = SampledArrivals(BURSTY, 40_000, seed=5)
    times = np.concatenate(list(arrivals.chunks()))
    whole = simulate(table, times, RANDOM, np.random.default_rng(7))
    run = simulate_deployments({"greedy": Deployment(table, RANDOM)}, arrivals, SLOS, seed=7, bins=20)["greedy"]
    assert run.answered == whole.answered.sum() and run.dropped == (~whole.answered).sum() and run.unanswered == 0
    assert run.n_batches == whole.n_batches and run.mean_batch_size == pytest.approx(whole.mean_batch_size)
    assert run.batch_size_pmf == pytest.approx(np.bincount(whole.batch_sizes, minlength=9)[1:] / whole.n_batches)
    for k, slo in enumerate(SLOS):
        assert run.violations(k).value == whole.estimate_violations(slo).value
        assert run.violations(k) == pytest.approx(whole.estimate_violations(slo), rel=0.1)  # the slowest tenth by bins, or sampled
        assert run.violation_ratio(k) == pytest.approx(np.mean(~(whole.latency <= slo)))
    for percentile in (50, 95, 99):
        exact = whole.percentile(percentile)
        mine = run.percentile(percentile)
        assert exact.value * (1 - 1e-12) <= mine.value <= exact.value * (1 + 1 / 1000)
        assert mine == pytest.approx(exact, rel=5e-3)  # the ends move with the share of a bin
    assert run.utilisation == pytest.approx(whole.response_times.sum() / 2 / (run.end - times[0]))
    series = run.series
    assert series is not None and series.arrivals.sum() == 40_000 and series.answered.sum() == run.answered
    assert series.in_time.sum() == (whole.latency <= SLOS[0]).sum()
    assert series.mean_latency @ series.answered == pytest.approx(np.nansum(whole.latency))


def test_the_mean_latency_is_that_of_blocks_of_requests() -> None:
    arrivals = SampledArrivals(poisson(300), 33_000, seed=5)
    times = np.concatenate(list(arrivals.chunks()))
    whole = simulate(policies.greedy(8), times, RANDOM, np.random.default_rng(7))
    run = simulate_deployments({"greedy": Deployment(policies.greedy(8), RANDOM)}, arrivals, seed=7)["greedy"]
    assert run.mean_latency == pytest.approx(estimate_mean(whole.latency))


def test_what_waits_for_ever_is_neither_answered_nor_dropped() -> None:
    run = simulate_deployments({"static": Deployment(policies.static(8), RANDOM)}, TraceArrivals(np.arange(100) / 10.0), [1.0])
    assert (run["static"].answered, run["static"].dropped, run["static"].unanswered) == (96, 0, 4)


def test_a_deployment_alone_and_among_others_does_the_same() -> None:
    deployments = {
        "function": Deployment(policies.size_or_timeout(8, 0.01), RANDOM, Environments(0.2, 60.0, 50, 10.0, 5)),
        "servers": Deployment(policies.greedy(8, servers=2), RANDOM),
    }
    arrivals = SampledArrivals(BURSTY, 20_000, seed=1)
    together = simulate_deployments(deployments, arrivals, SLOS, seed=3)
    for name, deployment in deployments.items():
        alone = simulate_deployments({name: deployment}, arrivals, SLOS, seed=3)[name]
        assert alone.percentile(95) == together[name].percentile(95) and alone.cost == together[name].cost
    other = simulate_deployments(deployments, arrivals, SLOS, seed=4)
    assert other["servers"].percentile(95) != together["servers"].percentile(95)


def test_a_deployment_is_billed_for_its_batches_cold_starts_and_machines() -> None:
    prices = default_prices()
    times = np.arange(100) * 1.0
    function = Deployment(policies.no_batching(), deterministic(0.5), Environments(init_duration=0.25, keep_alive=0.1))
    cost = simulate_deployments({"f": function}, TraceArrivals(times))["f"].cost
    gb_second = prices.gb_second("x86_64")
    assert (cost.compute, cost.init, cost.requests) == pytest.approx((0.5 * gb_second, 0.25 * gb_second, prices.function.request))
    servers = Deployment(
        policies.greedy(1, 2), deterministic(0.5), price_per_worker_hour=3.6, price_per_worker_second=2, price_per_batch=1
    )
    run = simulate_deployments({"s": servers}, TraceArrivals(times))["s"]
    assert run.worker_seconds == pytest.approx(2 * 99.5)
    assert run.cost.per_request == pytest.approx(0.001 * 2 * 99.5 / 100 + 2 * 0.5 + 1)
    behind = replace(deterministic(0.5), overhead=np.array([0.1]))  # which is nobody's bill
    run = simulate_deployments({"s": replace(servers, service=behind)}, TraceArrivals(times))["s"]
    assert run.cost.per_request == pytest.approx(0.001 * 2 * run.worker_seconds / 2 / 100 + 2 * 0.5 + 1)
    both = Deployment(
        policies.greedy(1), deterministic(1.5), beside=[Beside(policies.no_batching(), deterministic(0.5))], price_per_batch=1
    )
    run = simulate_deployments({"b": both}, TraceArrivals(times))["b"]
    assert run.by_function == pytest.approx(0.5) and run.cost.machines == pytest.approx(0.5)
    assert run.cost.compute == pytest.approx(0.5 * 0.5 * gb_second)


def test_what_serves_each_table_is_counted_and_billed_apart() -> None:
    """Three requests at once, every 10 s: one for the server, one for the function that may run one batch, one for the other."""
    gb_second, fee = default_prices().gb_second("x86_64"), default_prices().function.request
    few = Environments(init_duration=0.25, keep_alive=1.0, concurrency=1)
    beside = [
        Beside(policies.no_batching(), deterministic(0.5), few, function="few"),
        Beside(policies.no_batching(), replace(deterministic(2.0), memory_mb=2048), function="many"),
    ]
    workers = Deployment(policies.greedy(1), deterministic(4.0), function="worker", beside=beside, price_per_worker_hour=3600)
    times = np.repeat(np.arange(100) * 10.0, 3)
    run = simulate_deployments({"all": workers}, TraceArrivals(times))["all"]
    by_name = {side.serving.function: side for side in run.serving}
    assert [(side.batches, side.requests, side.share) for side in run.serving] == [(100, 100, pytest.approx(1 / 3))] * 3
    assert [by_name[name].cold_starts for name in ("worker", "few", "many")] == [0, 100, 0]
    assert [side.billed_duration for side in run.serving] == pytest.approx([400.0, 75.0, 200.0])
    assert by_name["few"].cost.per_request == pytest.approx((0.75 * gb_second + fee) / 3)
    assert by_name["many"].cost.per_request == pytest.approx((2 * 2.0 * gb_second + fee) / 3)
    assert by_name["worker"].cost.per_request == pytest.approx(994 / 300)
    assert by_name["worker"].utilisation == run.utilisation == pytest.approx(400 / 994)
    assert run.cost.per_request == pytest.approx(sum(side.cost.per_request for side in run.serving))
    assert run.by_function == pytest.approx(2 / 3) and run.cold_starts == 100
    assert run.cost.fixed_terms == dict(default_prices().fixed_terms())


def test_a_batch_leaves_by_the_next_table_while_a_function_has_no_environment() -> None:
    one = Environments(concurrency=1)
    beside = [Beside(policies.no_batching(), deterministic(0.25)), Beside(policies.no_batching(), deterministic(9.0))]
    deployment = Deployment(policies.no_batching(), deterministic(1.0), one, beside=beside)
    batches = run_in_chunks(deployment, np.array([0.0, 0.5, 2.0]), [])
    assert [(leaves, place) for leaves, _, _, place, _ in batches] == [(0.0, 0), (0.5, 1), (2.0, 0)]


def test_energy_is_that_of_the_batches() -> None:
    deployment = Deployment(policies.static(2), deterministic(0.1, 0.1), energy=np.array([1.0, 5.0]))
    assert simulate_deployments({"a": deployment}, TraceArrivals(np.arange(100.0)))["a"].energy_per_request == pytest.approx(2.5)


def test_percentiles_cover_the_true_one_as_often_as_they_say() -> None:
    """M/D/1 at load 0.5: the 95th percentile of the wait against 40 runs of 20 000 requests."""
    true = simulate_deployments(
        {"a": Deployment(policies.greedy(1), deterministic(0.01))}, SampledArrivals(poisson(50), 1_000_000, 99)
    )["a"].percentile(95)
    hits = 0
    for seed in range(40):
        run = simulate_deployments(
            {"a": Deployment(policies.greedy(1), deterministic(0.01))}, SampledArrivals(poisson(50), 20_000, seed)
        )
        low, high = run["a"].percentile(95)[1:]
        hits += low <= true.value <= high
    assert hits >= 33  # 38 expected; fewer than 33 has probability 0.01


def test_arrivals_and_service_times_of_one_seed_know_nothing_of_each_other() -> None:
    """M/M/1 at load 0.9, runs of 1000: a long gap before a long service would shorten the waits."""
    steps = np.arange(0, 25, 0.01)
    levels = np.append(-np.expm1(-steps), 1.0)
    exponential = ServiceTimes(1024, 0.01 * np.append(steps, 25.0)[None, :], np.zeros(1), np.full(1, 0.01), levels)
    queue = {"a": Deployment(policies.greedy(1), exponential)}
    means = [
        [
            simulate_deployments(queue, SampledArrivals(poisson(90), 1000, seed), seed=other)["a"].mean_latency.value
            for seed, other in pairs
        ]
        for pairs in (zip(range(300), range(300), strict=True), zip(range(300), range(300, 600), strict=True))
    ]
    same, apart = (np.array(column) for column in means)
    assert abs(same.mean() - apart.mean()) < 4 * math.hypot(same.std(), apart.std()) / math.sqrt(300)


def test_a_mean_latency_is_that_of_those_answered() -> None:
    times = np.concatenate([np.arange(1000.0), 1000 + np.arange(900) * 1e-3, 2000 + np.arange(1400.0)])
    table = replace(policies.greedy(1), drop_after=0.0)
    run = simulate_deployments({"a": Deployment(table, deterministic(0.25))}, TraceArrivals(times), bins=10)["a"]
    assert run.dropped > 800 and run.mean_latency.value == pytest.approx(0.25)
    assert run.series is not None and np.isnan(run.series.mean_latency[run.series.answered == 0]).all()


def test_an_interval_covers_a_percentile_that_is_an_atom() -> None:
    """A share near 1 % is slow: the 99th percentile is the fast time or the slow one, and an interval says so."""
    covered, values = 0, np.array([0.1, 1.0])
    for seed in range(200):
        slow = np.random.default_rng(seed).random(6600) < 0.0098
        low, high = estimate_quantile(np.where(slow, 1.0, 0.1), 0.99)[1:]
        counts = np.column_stack([~slow, slow]).reshape(33, 200, 2).sum(axis=1)[1:]
        assert (low, high) == estimate_quantile_of_counts(counts, values, 0.99)[1:]
        covered += low <= 0.1 <= high
    assert covered >= 180


# --- what is none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_duration": -1.0}, "init_duration: -1.0 .* seconds >= 0"),
        ({"keep_alive": -1.0}, "keep_alive: -1.0 .* seconds >= 0"),
        ({"concurrency": 0}, "concurrency: 0 .* integer >= 1"),
        ({"scaling_rate": 0.0}, "scaling_rate: 0.0 .* per second > 0"),
        ({"burst": 0}, "burst: 0 .* integer >= 1"),
        ({"burst": 1_000_001}, "burst: 1000001 .* at most 1000000"),
        ({"concurrency": 1_000_001}, "concurrency: 1000001 .* at most 1000000, or none"),
        ({"burst": 1.5}, "burst: 1.5 .* integer >= 1"),
        ({"concurrency": 1.5}, "concurrency: 1.5 .* integer >= 1"),
    ],
)
def test_environments_that_cannot_be_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Environments(**arguments)  # type: ignore[arg-type]


def test_a_deployment_that_cannot_be_is_refused() -> None:
    one = deterministic(1.0)
    with pytest.raises(InvalidInput, match="batch_size: 2 .* 1 to 1, as the profile measured"):
        Deployment(policies.greedy(2), one)
    with pytest.raises(InvalidInput, match="environments: .* none, as servers serve the table"):
        Deployment(policies.greedy(1), one, Environments())
    with pytest.raises(InvalidInput, match="adaptation: 'given' .* none, as a function serves the table"):
        Deployment(policies.no_batching(), one, adaptation=Adaptation(1.0, [0], [0]))
    with pytest.raises(InvalidInput, match="environments: .* none, as servers serve the table"):
        Beside(policies.greedy(1), one, Environments())
    with pytest.raises(InvalidInput, match=r"beside.policy.drop_after: 1.0 .* none: the table that it is beside drops"):
        Beside(replace(policies.no_batching(), drop_after=1.0), one)
    with pytest.raises(InvalidInput, match="beside.policy: 'a schedule' .* one table"):
        Beside(Schedule.of(policies.no_batching()), one)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"tables\[0\].beside: 1 .* no tables: a deployment has those beside"):
        Beside(replace(policies.no_batching(), beside=[policies.no_batching()]), one)
    with pytest.raises(InvalidInput, match="columns: 2 .* 1 where there are no classes"):
        QueueRun(Deployment(Policy((INF, 0, 0, 0), (0, 1, 1, 1), columns=2), one), rng())
    with pytest.raises(InvalidInput, match="beside: 8 .* at most 7 tables"):
        Deployment(policies.no_batching(), one, beside=[Beside(policies.no_batching(), one)] * 8)
    with pytest.raises(InvalidInput, match=r"adaptation.up: \(2,\) .* a table for each of the 1"):
        Deployment(policies.greedy(1), one, adaptation=Adaptation(1.0, [0, 0], [0]))
    with pytest.raises(InvalidInput, match=r"adaptation.down: \[1\] .* integers from 0 to 0"):
        Deployment(policies.greedy(1), one, adaptation=Adaptation(1.0, [0], [1]))
    with pytest.raises(InvalidInput, match=r"adaptation.up: \[0.7\] .* integers >= 0"):
        Adaptation(1.0, [0.7], [0])
    with pytest.raises(InvalidInput, match="adaptation.latency: 0 .* seconds > 0"):
        Adaptation(0, [0], [0])
    with pytest.raises(InvalidInput, match="price_per_batch: -1 .* USD >= 0"):
        Deployment(policies.greedy(1), one, price_per_batch=-1)
    with pytest.raises(InvalidInput, match="energy: 1 .* joules of batches up to the largest, 2"):
        Deployment(policies.greedy(2), deterministic(1.0, 2.0), energy=np.ones(1))


class Announced(TraceArrivals):
    """Arrivals that are more than they say, or fewer."""

    def __init__(self, times: Array, beyond: int = -1) -> None:
        super().__init__(times)
        self._beyond = beyond

    @property
    def n_requests(self) -> int:
        return len(self.times) + self._beyond


def test_a_run_that_cannot_be_is_refused() -> None:
    fine = {"a": Deployment(policies.greedy(1), deterministic(1.0))}
    arrivals = TraceArrivals(np.arange(100.0))
    with pytest.raises(InvalidInput, match="deployments: {} .* at least one"):
        simulate_deployments({}, arrivals)
    with pytest.raises(InvalidInput, match="n_requests: 10 .* at least 66, for confidence intervals"):
        simulate_deployments(fine, TraceArrivals(np.arange(10.0)))
    with pytest.raises(InvalidInput, match=r"latencies\[1\]: 0.0 .* seconds > 0"):
        simulate_deployments(fine, arrivals, [1.0, 0.0])
    with pytest.raises(InvalidInput, match="bins: -1 .* integer >= 0"):
        simulate_deployments(fine, arrivals, bins=-1)
    with pytest.raises(InvalidInput, match="n_requests: 0 .* integer >= 1"):
        SampledArrivals(poisson(1.0), 0, 0)
    with pytest.raises(InvalidInput, match="arrivals: 100 .* at most 99, as 99 requests were announced"):
        simulate_deployments(fine, Announced(np.arange(100.0)))
    with pytest.raises(InvalidInput, match="arrivals: 100 .* the 101 requests that were announced"):
        simulate_deployments(fine, Announced(np.arange(100.0), 1))
    with pytest.raises(InvalidInput, match="seed: -1 .* integer >= 0"):
        simulate_deployments(fine, arrivals, seed=-1)
    with pytest.raises(InvalidInput, match="seed: -1 .* integer >= 0"):
        SampledArrivals(poisson(1.0), 1, -1)
    run = simulate_deployments(fine, arrivals)["a"]
    with pytest.raises(InvalidInput, match="k: 0 .* one of the 0 latencies"):
        run.violations()
    with pytest.raises(InvalidInput, match="percentile: 100 .* strictly between 0 and 100"):
        run.percentile(100)
    with pytest.raises(InvalidInput, match=r"arrival_times: '4 times of shape \(2, 2\)'"):
        TraceArrivals(np.zeros((2, 2)))
    with pytest.raises(InvalidInput, match="arrival_times: '2 times of shape .* ascending"):
        TraceArrivals(np.array([1.0, 0.0]))
