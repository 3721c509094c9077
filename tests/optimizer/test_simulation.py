"""The event loop against the specification it interprets, against closed forms in standard errors, and its intervals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import poisson as poisson_law

from sluice.batching import Policy
from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import estimate_quantile, estimate_share, share_of_blocks, slowest
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate, simulate_schedule
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout
from tests.batching import strategies
from tests.optimizer.batcher_loop import run_batcher

INF = math.inf


def deterministic(batch_size: int, seconds: float) -> ServiceTimes:
    return ServiceTimes(1024, np.full((batch_size, 1), seconds), np.zeros(batch_size), np.full(batch_size, seconds))


def exponential(mean: float) -> ServiceTimes:
    """One request at a time; the quantile function is linear over steps of 0.01 means."""
    steps = np.arange(0, 25, 0.01)
    levels = np.append(-np.expm1(-steps), 1.0)
    return ServiceTimes(1024, mean * np.append(steps, 25.0)[None, :], np.zeros(1), np.full(1, mean), levels)


# --- the same table, the same stimuli


def as_batches(run: SimulationResult) -> list[tuple[float, float, list[int]]]:
    by_batch = zip(run.dispatch_times, run.response_times, run.first_of_batch, run.batch_sizes, strict=True)
    return [(float(t), float(r), list(range(first, first + size))) for t, r, first, size in by_batch]


# with its multiples of 1/64 s completions, arrivals, ends of holds and drops meet in the same moment
service_in_ticks = st.lists(strategies.ticks, min_size=1, max_size=4).map(
    lambda quantiles: ServiceTimes(1024, np.tile(sorted(quantiles), (8, 1)), np.full(8, 1 / 64), np.ones(8))
)
gaps_in_ticks = st.lists(strategies.ticks | st.just(0.0), min_size=1, max_size=60)
any_gaps = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def test_what_grows_too_old_is_dropped_at_a_completion_too() -> None:
    policy = Policy([np.inf, 0.0, 0.0, 47 / 64, 44 / 64], [0, 1, 1, 1, 1], None, 45 / 64)
    times = np.array([0.0, 0.0, 0.0, 1 / 64])
    service = ServiceTimes(1024, np.full((4, 1), 1 / 64), np.full(4, 1 / 64), np.ones(4))
    run = simulate(policy, times, service, np.random.default_rng(0))  # the first batch ends at 46/64: two are dropped, one leaves
    assert as_batches(run) == run_batcher(policy, times, service, np.random.default_rng(0))
    assert run.dispatch_times.tolist() == [44 / 64, 46 / 64] and run.batch_of.tolist() == [0, -1, -1, 1]


@settings(max_examples=120, deadline=None)
@given(strategies.policies(), st.none() | st.integers(1, 9), gaps_in_ticks | any_gaps, service_in_ticks)
def test_every_batch_is_the_batchers_member_by_member(
    policy: Policy, servers: int | None, gaps: list[float], service: ServiceTimes
) -> None:
    policy, times = replace(policy, servers=servers), np.cumsum(gaps)
    run = simulate(policy, times, service, np.random.default_rng(4))
    expected = run_batcher(policy, times, service, np.random.default_rng(4))
    assert as_batches(run) == expected
    left = {member: (i, now) for i, (now, _, members) in enumerate(expected) for member in members}
    assert [left.get(r, (-1,))[0] for r in range(len(times))] == run.batch_of.tolist()
    assert run.waiting_time == pytest.approx(
        [left[r][1] - times[r] if r in left else np.nan for r in range(len(times))], nan_ok=True
    )
    assert np.array_equal(run.answered, run.batch_of >= 0)


@settings(max_examples=50, deadline=None)
@given(gaps_in_ticks | any_gaps, st.integers(1, 8), strategies.ticks)
def test_the_event_loop_and_the_road_without_events_make_the_same_batches(
    gaps: list[float], batch_size: int, timeout: float
) -> None:
    times = np.cumsum(gaps)
    waits, sizes = simulate_size_or_timeout(times, batch_size, timeout)
    run = simulate(policies.size_or_timeout(batch_size, timeout), times, deterministic(8, 0.01), np.random.default_rng(0))
    assert np.array_equal(run.batch_sizes, sizes)
    assert np.array_equal(run.waiting_time, waits)
    assert run.latency == pytest.approx(waits + 0.01, abs=1e-12)


@pytest.mark.parametrize("servers", [1, 3, 40])
def test_many_servers_never_serve_more_than_they_are(servers: int) -> None:
    rng = np.random.default_rng(9)
    run = simulate(policies.greedy(4, servers), np.cumsum(poisson(60 * servers).sample(4000, rng)), deterministic(4, 0.02), rng)
    starts, ends = run.dispatch_times, np.sort(run.dispatch_times + run.response_times)
    in_service = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    assert in_service.max() == servers
    assert run.answered.all() and (np.diff(run.batch_of) >= 0).all()


def test_the_kth_batch_meets_the_same_luck_under_every_policy() -> None:
    levels = np.array([0.0, 0.3, 1.0])
    service = ServiceTimes(1024, np.tile([0.01, 0.02, 0.1], (8, 1)), np.zeros(8), np.ones(8), levels)
    times = np.cumsum(poisson(100).sample(2000, np.random.default_rng(1)))
    rngs = [np.random.default_rng(2), np.random.default_rng(2)]
    alone, greedy = (
        simulate(p, times, service, rng) for p, rng in zip((policies.no_batching(), policies.greedy(8)), rngs, strict=True)
    )
    assert np.array_equal(alone.response_times[: len(greedy.batch_sizes)], greedy.response_times)
    assert rngs[0].random() == rngs[1].random()


# --- tables that are swapped


@pytest.mark.proof
@settings(max_examples=300, deadline=None)
@given(
    st.data(), st.none() | st.integers(1, 4), st.none() | st.none() | strategies.ticks, gaps_in_ticks | any_gaps, service_in_ticks
)
def test_every_batch_is_that_of_a_batcher_whose_table_is_swapped(
    data: st.DataObject, servers: int | None, drop_after: float | None, gaps: list[float], service: ServiceTimes
) -> None:
    drawn = data.draw(st.lists(strategies.policies(), min_size=1, max_size=4))
    tables = [replace(table, servers=servers, drop_after=drop_after) for table in drawn]
    place = st.integers(0, len(tables) - 1)
    swaps = data.draw(st.lists(st.tuples(strategies.ticks | st.just(0.0) | st.floats(0, 1), place), max_size=40))
    schedule = Schedule(tables, np.cumsum([gap for gap, _ in swaps]), [to for _, to in swaps], data.draw(place))
    times = np.cumsum(gaps)
    run = simulate_schedule(schedule, times, service, np.random.default_rng(4))
    assert as_batches(run) == run_batcher(schedule, times, service, np.random.default_rng(4))


def test_a_swap_rules_over_those_who_wait_already() -> None:
    times = np.array([0.0, 1.0, 2.0])
    schedule = Schedule([policies.static(4), policies.greedy(1)], [5.0], [1])
    run = simulate_schedule(schedule, times, deterministic(4, 0.5), np.random.default_rng(0))
    assert run.dispatch_times.tolist() == [5.0, 5.5, 6.0]


def test_a_swap_while_the_server_is_busy_waits_for_the_completion() -> None:
    schedule = Schedule([policies.greedy(2), policies.static(2)], [0.1, 0.2, 0.3], [1, 0, 1])
    run = simulate_schedule(schedule, np.array([0.0, 0.05, 0.9]), deterministic(2, 0.5), np.random.default_rng(0))
    assert as_batches(run) == [(0.0, 0.5, [0]), (0.9, 0.5, [1, 2])]


def test_of_several_swaps_at_one_moment_the_last_counts() -> None:
    schedule = Schedule([policies.static(3), policies.greedy(3), policies.static(2)], [1.0, 1.0], [1, 2])
    run = simulate_schedule(schedule, np.array([0.0, 3.0]), deterministic(3, 0.5), np.random.default_rng(0))
    assert as_batches(run) == [(3.0, 0.5, [0, 1])]


def test_a_table_that_is_swapped_for_itself_changes_nothing() -> None:
    times = np.cumsum(poisson(200).sample(2000, np.random.default_rng(1)))
    table = Policy([INF, 0.02, 0.01, 0.005, 0.0], [0, 1, 2, 3, 4], servers=2)
    schedule = Schedule([table, table], np.linspace(0, times[-1], 500), np.arange(500) % 2)
    swapped = simulate_schedule(schedule, times, deterministic(4, 0.01), np.random.default_rng(0))
    assert as_batches(swapped) == as_batches(simulate(table, times, deterministic(4, 0.01), np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("tables", "times", "to", "first", "message"),
    [
        ([], [], [], 0, "tables: 0 .* at least one table"),
        (
            [policies.greedy(2), policies.no_batching()],
            [],
            [],
            0,
            r"tables\[1\].servers: none was given; needed: .*of servers, as tables\[0\] is",
        ),
        ([policies.no_batching(), policies.greedy(2)], [], [], 0, r"tables\[1\].servers: 1 .* elastic, as tables\[0\] is"),
        ([policies.greedy(2)], [1.0, 0.5], [0, 0], 0, "swap_times: '2 times' .* ascending order"),
        ([policies.greedy(2)], [math.nan], [0], 0, "swap_times: '1 times' .* finite"),
        ([policies.greedy(2)], [1.0], [0, 0], 0, r"swap_to: \(2,\) .* each of the 1 swaps"),
        ([policies.greedy(2)], [1.0, 2.0], [0, 1], 0, r"swap_to\[1\]: 1 .* from 0 to 0"),
        ([policies.greedy(2)], [1.0], [-1], 0, "swap_to: -1 .* the place of a table, where no servers are given"),
        ([policies.greedy(2)], [], [], 1, "first: 1 .* from 0 to 0, the place of a table"),
    ],
)
def test_a_schedule_that_is_none_names_why(
    tables: list[Policy], times: list[float], to: list[int], first: int, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Schedule(tables, times, to, first)


@pytest.mark.parametrize(
    ("table", "servers", "message"),
    [
        (policies.no_batching(), [1], r"servers: \[1\] .* none, as the tables are elastic"),
        (policies.greedy(2), [1, 2], "servers: 2 .* 1 numbers: at first, after each swap"),
        (policies.greedy(2), [-1], r"servers\[0\]: -1 .* integer >= 0"),
        (replace(policies.greedy(2), beside=[policies.greedy(2)]), [1], r"tables\[0\].beside: 1 .* a deployment has those beside"),
    ],
)
def test_servers_that_cannot_be_are_refused(table: Policy, servers: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Schedule([table], [], [], servers=servers)


def test_server_seconds_follow_the_swaps_between_two_times() -> None:
    schedule = Schedule([policies.greedy(2)], [1.0, 4.0], [0, 0], servers=[2, 0, 5])
    assert schedule.server_seconds(0.5, 5.0) == 2 * 0.5 + 5
    assert schedule.server_seconds(5.0, 5.0) == 0.0


# --- closed forms


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def in_equilibrium(policy: Policy, rate: float, service: ServiceTimes, n: int = 60_000, n_runs: int = 16) -> list[SimulationResult]:
    rng = np.random.default_rng(8)
    return [simulate(policy, np.cumsum(poisson(rate).sample(n, rng)), service, rng) for _ in range(n_runs)]


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
@pytest.mark.parametrize(
    ("service", "second_moment"), [(deterministic(1, 0.01), 1), (exponential(0.01), 2)], ids=["M/D/1", "M/M/1"]
)
def test_one_server_without_batches_waits_as_pollaczek_and_khinchine_say(
    load: float, service: ServiceTimes, second_moment: float
) -> None:
    runs = in_equilibrium(policies.greedy(1), load / 0.01, service)
    mean, error = mean_and_error([run.waiting_time[5000:].mean() for run in runs])
    assert abs(mean - load * second_moment * 0.01 / (2 * (1 - load))) < 4 * error
    busy, error = mean_and_error([run.utilisation or 0.0 for run in runs])
    assert abs(busy - load) < 4 * error


def test_waits_before_one_constant_server_have_erlangs_distribution() -> None:
    load, seconds = 0.7, 0.01

    def within(wait: float) -> float:
        """M/D/1: P(W <= t) = (1 - rho) sum_j (-x_j)^j / j! exp(x_j) with x_j = lambda (t - j D), j up to t / D."""
        x = load / seconds * (wait - seconds * np.arange(int(wait / seconds) + 1))
        return (1 - load) * sum((-xj) ** j / math.factorial(j) * math.exp(xj) for j, xj in enumerate(x))

    runs = in_equilibrium(policies.greedy(1), load / seconds, deterministic(1, seconds))
    for wait in (0.002, 0.015, 0.04, 0.083):
        mean, error = mean_and_error([(run.waiting_time[5000:] <= wait).mean() for run in runs])
        assert abs(mean - within(wait)) < 4 * error


def erlang_c(offered: float, servers: int) -> float:
    """Probability that a request of M/M/k waits."""
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking / (1 - offered / servers * (1 - blocking))


@pytest.mark.parametrize(("servers", "load"), [(2, 0.8), (10, 0.9)])
def test_k_servers_wait_as_erlang_c_says(servers: int, load: float) -> None:
    runs = in_equilibrium(policies.greedy(1, servers), servers * load / 0.01, exponential(0.01))
    waits = erlang_c(servers * load, servers)
    mean, error = mean_and_error([(run.waiting_time[5000:] > 0).mean() for run in runs])
    assert abs(mean - waits) < 4 * error
    mean, error = mean_and_error([run.waiting_time[5000:].mean() for run in runs])
    assert abs(mean - waits * 0.01 / (servers * (1 - load))) < 4 * error


def test_a_greedy_server_without_a_largest_batch_takes_what_came_during_the_last_service() -> None:
    # Constant service D of any batch: sizes are independent, Poisson(lambda D) with 0 replaced by 1.
    expected = 3.0
    runs = in_equilibrium(policies.greedy(200), expected / 0.01, deterministic(200, 0.01))
    pmf = poisson_law(expected).pmf(np.arange(200))
    for size in (1, 2, 5):
        mean, error = mean_and_error([(run.batch_sizes == size).mean() for run in runs])
        assert abs(mean - pmf[size] - pmf[0] * (size == 1)) < 4 * error
    mean, error = mean_and_error([run.mean_batch_size for run in runs])
    assert abs(mean - expected - pmf[0]) < 4 * error
    mean, error = mean_and_error([run.waiting_time.mean() for run in runs])  # half a service for all but those who find it free
    assert abs(mean - 0.005 * expected / (expected + pmf[0])) < 4 * error


# --- what a run says


def test_requests_that_no_event_releases_are_not_answered() -> None:
    run = simulate(policies.static(4), np.arange(10.0), deterministic(4, 0.1), np.random.default_rng(0))
    assert run.answered.sum() == 8 and np.isnan(run.latency[8:]).all() and (run.batch_of[8:] == -1).all()
    assert run.percentile_of_answered(100) == pytest.approx(3.1)


def test_nothing_may_ever_be_released() -> None:
    run = simulate(policies.static(4), np.arange(3.0), deterministic(4, 0.1), np.random.default_rng(0))
    assert len(run.batch_sizes) == 0 and not run.answered.any() and run.utilisation == 0.0


def test_unanswered_requests_count_as_violations_and_as_slowest() -> None:
    times = np.cumsum(poisson(300).sample(20_000, np.random.default_rng(3)))
    policy = Policy((INF, 0.0), (0, 1), servers=1, drop_after=0.02)
    run = simulate(policy, times, deterministic(1, 0.004), np.random.default_rng(0))
    dropped = 1 - run.answered.mean()
    assert 0.1 < dropped < 0.3
    assert run.estimate_violations(1.0).value == pytest.approx(dropped, abs=0.01)
    assert run.percentile(95).value == INF and run.percentile_of_answered(95) < 0.03


def test_an_elastic_function_has_no_utilisation() -> None:
    run = simulate(policies.no_batching(), np.arange(0, 10, 0.1), deterministic(1, 0.05), np.random.default_rng(0))
    assert run.utilisation is None
    assert run.mean_in_flight == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("times", [[1.0, 0.5], [], [0.0, math.nan], [0.0, INF]])
def test_arrival_times_that_are_none_are_refused(times: list[float]) -> None:
    with pytest.raises(InvalidInput, match="arrival_times: .* finite times in ascending order, at least one"):
        simulate(policies.no_batching(), np.array(times), deterministic(1, 0.1), np.random.default_rng(0))


def test_a_batch_beyond_the_profile_is_refused() -> None:
    with pytest.raises(InvalidInput, match="batch_size: 9 .* 1 to 8, as the profile measured"):
        simulate(policies.greedy(9), np.arange(20.0), deterministic(8, 0.1), np.random.default_rng(0))


# --- batch means


@pytest.mark.proof
def test_intervals_cover_as_often_as_they_say() -> None:
    load, runs, exact = 0.6, [], -math.log(0.05) / (100 - 60)  # the latency of M/M/1 is exponential
    rng = np.random.default_rng(12)
    for _ in range(300):
        runs.append(simulate(policies.greedy(1), np.cumsum(poisson(load / 0.01).sample(30_000, rng)), exponential(0.01), rng))
    percentiles = [run.percentile(95) for run in runs]
    violations = [run.estimate_violations(exact) for run in runs]
    slack = 4 * math.sqrt(0.05 * 0.95 / 300)
    assert np.mean([e.low <= exact <= e.high for e in percentiles]) == pytest.approx(0.95, abs=slack)
    assert np.mean([e.low <= 0.05 <= e.high for e in violations]) == pytest.approx(0.95, abs=slack)


@pytest.mark.parametrize(("percentile", "worst"), [(50, 0.025), (95, 0.03), (99, 0.04), (99.9, 0.025)])
def test_what_is_rare_is_seldom_more_than_the_upper_end(percentile: float, worst: float) -> None:
    """M/M/1 at load 0.8, whose latency is exponential: with Student's t alone 15 % of the upper ends are too low at p99."""
    left, rng, runs = 1 - percentile / 100, np.random.default_rng(3), 150
    exact, below, above = -math.log(left) / (100 - 80), 0, 0
    for _ in range(runs):
        run = simulate(policies.greedy(1), np.cumsum(poisson(80).sample(33_000, rng)), exponential(0.01), rng)
        share = run.estimate_violations(exact)
        below, above = below + (share.high < left), above + (share.low > left)
    slack = 3 * math.sqrt(worst * (1 - worst) / runs)
    assert below / runs < worst + slack and above / runs < 0.025 + slack


def test_the_limits_of_what_is_frequent_are_those_of_students_t() -> None:
    counts = np.random.default_rng(4).negative_binomial(50, 0.05, 32)
    low, high = share_of_blocks(counts, 20_000)[1:]
    student = 2 * stats.t(31).ppf(0.975) * counts.std(ddof=1) / math.sqrt(32) / 20_000
    assert high - low == pytest.approx(student, rel=0.01)


def test_the_limits_of_independent_requests_are_those_of_clopper_and_pearson() -> None:
    happened = np.random.default_rng(6).random(3300) < 0.02
    seen = np.count_nonzero(happened[100:])
    ends = stats.beta([seen, seen + 1], [3200 - seen + 1, 3200 - seen]).ppf([0.025, 0.975])
    assert estimate_share(happened)[1:] == pytest.approx(ends, rel=0.15)


def test_what_was_never_seen_may_come_in_clusters_as_what_is_more_frequent() -> None:
    never, often = np.zeros(33_000, dtype=bool), np.repeat(np.random.default_rng(7).random(3300) < 0.1, 10)
    alone, among = estimate_share(never), estimate_share(never, among=often)
    assert 6 < among.high / alone.high < 20 and among.low == alone.low == 0


def test_the_slowest_are_a_tenth_or_all_that_are_alike() -> None:
    rng = np.random.default_rng(8)
    assert slowest(rng.random(50_000)).mean() == pytest.approx(0.1, abs=0.02)
    waited = np.where(rng.random(50_000) < 0.3, 0.05 + rng.normal(0, 1e-12, 50_000), rng.uniform(0, 0.04, 50_000))
    assert (slowest(waited) == (waited > 0.049)).all()
    lost = np.where(rng.random(50_000) < 0.2, np.nan, waited)
    assert (slowest(lost) == np.isnan(lost)).all()


def test_a_percentile_is_surely_within_the_slo_when_the_violations_are_surely_few() -> None:
    rng = np.random.default_rng(2)
    run = simulate(policies.greedy(8), np.cumsum(mmpp2(400, 20, 2, 0.5).sample(50_000, rng)), deterministic(8, 0.01), rng)
    for slo in np.linspace(0.011, 0.03, 40):
        surely = run.percentile(95).high <= slo
        assert surely == (run.estimate_violations(float(slo)).high <= 0.05) or abs(run.percentile(95).high - slo) < 2e-4


def test_blocks_that_depend_on_each_other_are_merged() -> None:
    rng = np.random.default_rng(5)
    slow = np.repeat(rng.random(40) < 0.5, 1000)  # what happens goes on for 1000 requests; a block of 32 has 1212
    shuffled = rng.permutation(slow)
    wide, narrow = estimate_share(slow, blocks=256), estimate_share(shuffled, blocks=256)
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_what_was_never_seen_is_not_impossible() -> None:
    never = estimate_share(np.zeros(3300, dtype=bool))
    assert never == (0.0, 0.0, pytest.approx(math.log(40) / 3200))
    assert estimate_quantile(np.arange(3300.0), 0.9999).high == INF


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate_share(np.zeros(10, dtype=bool)), "n_requests: 10 .* at least 66"),
        (lambda: estimate_quantile(np.zeros(10), 0.5), "n_requests: 10 .* at least 66"),
        (lambda: estimate_share(np.zeros(100, dtype=bool), 1.0), "confidence: 1.0 .* strictly between 0 and 1"),
        (lambda: estimate_share(np.zeros(100, dtype=bool), blocks=1), "blocks: 1 .* an integer >= 2"),
        (lambda: estimate_quantile(np.zeros(100), 1.0), "quantile: 1.0 .* strictly between 0 and 1"),
    ],
)
def test_an_interval_that_cannot_be_had_names_why(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
