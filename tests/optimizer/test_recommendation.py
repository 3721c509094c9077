"""Service times, cost, the event loop, and the search held against brute force by simulation."""

import itertools
import json
import math

import numpy as np
import pytest

from batching import policy as policies
from batching.documents import LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from batching.errors import Infeasible, InvalidInput
from optimizer.analysis.cost import SECONDS_PER_MONTH, break_even_arrival_rate, default_prices, predict_cost, read_prices
from optimizer.analysis.service import ServiceTimes, service_times
from optimizer.arrivals.mmpp import mmpp2
from optimizer.arrivals.poisson import poisson
from optimizer.decision.recommend import recommend
from optimizer.simulation.event_loop import simulate
from optimizer.simulation.size_or_timeout import simulate_size_or_timeout


def profile(memory_sizes: tuple[int, ...] = (512, 1769), batch_sizes: tuple[int, ...] = (1, 4, 8)) -> ServiceProfile:
    points = []
    for memory_mb in memory_sizes:
        for batch_size in batch_sizes:
            mean = (0.006 + 0.001 * batch_size) * 1769 / memory_mb
            time = ServiceTime(mean, [(0.05, 0.95 * mean), (0.5, mean), (0.95, 1.1 * mean)], 50)
            points.append(ProfilePoint(memory_mb, batch_size, time, math.ceil(mean * 1000) / 1000, 0.002))
    return ServiceProfile(function="mlp-{memory_mb}", points=points)


LINEAR = ServiceProfile(function="f", service_time=LinearServiceTime(0.001, 0.0003), max_batch_size=32)


def test_no_cheaper_setting_keeps_the_slo_by_brute_force_simulation() -> None:
    arrivals, slo = mmpp2(300, 20, 2, 0.5), Slo(0.06, 95)
    answer = recommend(arrivals, profile(), slo)
    times = np.cumsum(arrivals.sample(40_000, np.random.default_rng(6)))
    cheapest = math.inf
    for memory_mb in (512, 1769):
        service = service_times(profile(), memory_mb)
        for batch_size in range(1, 9):
            for timeout in np.linspace(0, 0.06, 25):
                waits, sizes = simulate_size_or_timeout(times, batch_size, timeout)
                slowest = np.repeat(np.quantile(service.response, 0.5, axis=1)[sizes - 1], sizes)
                if np.quantile(waits + slowest, 0.95) <= 0.06 * 0.98:  # in time with 2 % to spare for the noise of one path
                    pmf = np.bincount(sizes, minlength=batch_size + 1)[1:] / len(sizes)
                    cheapest = min(cheapest, predict_cost(pmf, service).per_request)
    best = answer.best
    assert best.cost.per_request < cheapest * 1.02
    run = simulate(best.policy(), times, service_times(profile(), best.memory_mb), np.random.default_rng(0))
    assert run.percentile(95) < 0.06 * 1.03
    assert run.cost(service_times(profile(), best.memory_mb)).per_request == pytest.approx(best.cost.per_request, rel=0.05)
    assert best.latency.percentile(95) <= 0.06 * (1 + 1e-6)


def test_the_answer_holds_what_it_is_compared_with() -> None:
    answer = recommend(poisson(200), profile(), Slo(0.06, 95))
    assert answer.no_batching.batch_size == 1 and answer.no_batching_keeps_slo
    costs = [s.cost.per_request for s in (answer.best, *answer.runners_up)]
    assert costs == sorted(costs) and len(costs) == 6
    frontier = [(p.latency, p.cost_per_request) for p in answer.frontier]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(frontier)) and len(frontier) > 2
    fixed = default_prices().fixed_infrastructure_per_month
    rate = answer.break_even_arrival_rate
    assert rate is not None
    none, best = answer.no_batching.cost, answer.best.cost
    saving = none.per_request + none.logs - best.per_request - best.logs
    assert saving * rate * SECONDS_PER_MONTH == pytest.approx(fixed)


def test_the_plan_is_ready_for_the_buffer() -> None:
    arrivals = poisson(200)
    answer = recommend(arrivals, profile(), Slo(0.06, 95))
    plan = read(Plan, write(answer.plan(profile(), "mlp", arrivals.document())))
    assert plan.function == f"mlp-{answer.best.memory_mb}" and plan.memory_mb == answer.best.memory_mb
    assert plan.policy.policy() == policies.size_or_timeout(answer.best.batch_size, answer.best.timeout)
    assert plan.predicted is not None and plan.predicted.latency["p95"] <= 0.06 * (1 + 1e-6)


def test_headroom_keeps_a_tighter_slo() -> None:
    answer = recommend(poisson(200), profile(), Slo(0.06, 95), headroom=0.2)
    assert answer.best.latency.percentile(95) <= 0.048 * (1 + 1e-6)
    assert answer.plan(profile(), "mlp").slo == Slo(0.06, 95)


def test_least_latency_within_a_budget() -> None:
    slo = Slo(0.1, 95)
    cheapest = recommend(poisson(200), profile(), slo).best
    budget = cheapest.cost.per_request * 1.5
    quickest = recommend(poisson(200), profile(), slo, objective="latency", max_cost=budget).best
    assert quickest.cost.per_request <= budget
    assert quickest.latency.percentile(95) < cheapest.latency.percentile(95)


def test_an_slo_below_the_fastest_is_infeasible_and_says_the_best() -> None:
    with pytest.raises(Infeasible, match="no setting keeps p95 within 0.001 s: the best reachable is .* at 1769 MB") as caught:
        recommend(poisson(10), profile(), Slo(0.001, 95))
    best = caught.value.best
    assert best is not None and best["memory_mb"] == 1769 and best["batch_size"] == 1
    answer = recommend(poisson(10), profile(), Slo(best["latency"] * 1.0001, 95))  # what it says is reachable is
    assert answer.best.memory_mb == 1769


def test_a_budget_below_the_cheapest_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="the cheapest costs") as caught:
        recommend(poisson(200), profile(), Slo(0.1, 95), max_cost=1e-12)
    assert caught.value.best is not None and caught.value.best["cost_per_request"] > 1e-12


def test_the_payload_bounds_the_batch() -> None:
    answer = recommend(poisson(2000), profile(), Slo(0.2, 95), payload_bytes=2 * 2**20)
    assert answer.best.batch_size <= 3
    with pytest.raises(InvalidInput, match="payload_bytes: 7340032"):
        recommend(poisson(2000), profile(), Slo(0.2, 95), payload_bytes=7 * 2**20)


def test_a_linear_profile_needs_a_memory_size() -> None:
    assert recommend(poisson(200), LINEAR, Slo(0.06, 95), memory_sizes=[1024]).best.memory_mb == 1024
    with pytest.raises(InvalidInput, match="as a linear profile names none"):
        recommend(poisson(200), LINEAR, Slo(0.06, 95))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "joy"}, "objective: 'joy'"),
        ({"objective": "latency"}, "max_cost: None"),
        ({"max_cost": -1.0}, "max_cost: -1.0"),
        ({"headroom": 1.0}, "headroom: 1.0"),
        ({"timeouts": [-0.1]}, "timeouts"),
        ({"memory_sizes": [333]}, "memory_mb: 333 is not allowed; allowed: one of the profile's: 512, 1769"),
        ({"max_batch_size": 0}, "max_batch_size: 0"),
        ({"architecture": "vax"}, "architecture: 'vax'"),
    ],
)
def test_a_question_that_makes_no_sense_names_its_field(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        recommend(poisson(10), profile(), Slo(0.1, 95), **options)


# --- cost


def pmf_at(size: int, largest: int) -> np.ndarray:
    return np.eye(largest)[size - 1]


def test_cost_is_eq_1_of_batch_with_its_constants() -> None:
    prices = read_prices(
        json.dumps(
            {
                "read_on": "2020-11-01",
                "region": "us-east-1",
                "lambda": {
                    "gb_second": {"x86_64": 1.66667e-5},
                    "request": 2e-7,
                    "granularity": 0.1,
                    "payload_limit_bytes": 6291456,
                },
            }
        ).encode()
    )
    service = ServiceTimes(3008, np.array([[0.05], [0.25]]), np.zeros(2), np.array([0.05, 0.25]))
    cost = predict_cost(pmf_at(2, 2), service, prices)
    assert cost.compute == pytest.approx(0.3 * 3008 / 1024 * 1.66667e-5 / 2)
    assert cost.requests == pytest.approx(2e-7 / 2)
    assert cost.per_request == pytest.approx(cost.compute + cost.requests)


def test_a_coarse_granularity_makes_batching_save_more() -> None:
    service = ServiceTimes(1769, np.linspace(0.012, 0.045, 8)[:, None], np.zeros(8), np.linspace(0.012, 0.045, 8))
    saving = {}
    for granularity in (0.001, 0.1):
        one, eight = (predict_cost(pmf_at(n, 8), service, granularity=granularity).per_request for n in (1, 8))
        saving[granularity] = one / eight
    assert saving[0.1] == pytest.approx(8.0)
    assert 2 < saving[0.001] < 3


def test_a_whole_number_of_milliseconds_is_not_rounded_up() -> None:
    service = ServiceTimes(1024, np.array([[0.1]]), np.zeros(1), np.array([0.1]))
    assert service.mean_billed(0.001) == pytest.approx([0.1])


def test_what_the_papers_leave_out_stands_apart() -> None:
    service = ServiceTimes(1024, np.array([[0.1]]), np.zeros(1), np.array([0.1]))
    cost = predict_cost(np.ones(1), service, cold_start_probability=0.01, init_duration=2.0)
    assert cost.init == pytest.approx(0.01 * 2.0 * 1.66667e-5)
    assert cost.logs > 0 and cost.fixed_per_month > 0
    assert break_even_arrival_rate(cost, cost) is None


def price_list(**function: object) -> str:
    whole = {"gb_second": {"arm64": 1e-5}, "request": 2e-7, "granularity": 0.001, "payload_limit_bytes": 6291456, **function}
    known = {name: value for name, value in whole.items() if value is not None}
    return json.dumps({"read_on": "x", "region": "y", "lambda": known})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a price list as in prices.json"),
        ('{"read_on": "x"}', "missing required field `region`"),
        (price_list(gb_second={"arm64": -1.0}), "prices: arm64: -1.0 is not allowed; allowed: USD >= 0"),
        (price_list(granularity=None), "missing required field `granularity`"),
        (price_list(payload_limit_bytes=None), "missing required field `payload_limit_bytes`"),
        (price_list(payload_limit_bytes=0), "prices: payload_limit_bytes: 0 is not allowed"),
    ],
)
def test_a_bad_price_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_prices(text.encode())


# --- service times


def test_service_times_are_interpolated_between_measured_batch_sizes_only() -> None:
    service = service_times(profile(), 1769)
    assert service.max_batch_size == 8
    assert service.response.mean(axis=1)[:4] == pytest.approx(
        np.interp([1, 2, 3, 4], [1, 4], [service.response[0].mean(), service.response[3].mean()])
    )
    with pytest.raises(InvalidInput, match="batch_size: 9 is not allowed; allowed: 1 to 8, as the profile measured"):
        service_times(profile(), 1769, 9)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(2, 0.1)], "batch_size 1 measured as well"),
        ([(1, 0.2), (2, 0.1)], "service_time.mean at memory_mb 512, batch_size 2: 0.1 is not allowed"),
    ],
)
def test_a_profile_with_holes_or_that_falls_is_refused(points: list[tuple[int, float]], message: str) -> None:
    bad = ServiceProfile(function="f", points=[ProfilePoint(512, b, ServiceTime(s), s) for b, s in points])
    with pytest.raises(InvalidInput, match=message):
        service_times(bad, 512)


def test_a_fall_within_noise_is_levelled() -> None:
    points = [ProfilePoint(512, b, ServiceTime(s), s) for b, s in ((1, 0.100), (2, 0.095), (4, 0.2))]
    assert service_times(ServiceProfile(function="f", points=points), 512).seconds[:2, 0] == pytest.approx([0.1, 0.1])


def test_a_linear_profile_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_batch_size: None"):
        service_times(ServiceProfile(function="f", service_time=LinearServiceTime(0.1, 0.1)), 512)


# --- the event loop


def deterministic(batch_size: int, seconds: float) -> ServiceTimes:
    return ServiceTimes(1024, np.full((batch_size, 1), seconds), np.zeros(batch_size), np.full(batch_size, seconds))


def test_the_event_loop_and_the_formula_free_road_make_the_same_batches() -> None:
    rng = np.random.default_rng(3)
    times = np.cumsum(mmpp2(50, 5, 1, 2).sample(5000, rng))
    waits, sizes = simulate_size_or_timeout(times, 5, 0.1)
    run = simulate(policies.size_or_timeout(5, 0.1), times, deterministic(5, 0.01), rng)
    assert np.array_equal(run.batch_sizes, sizes)
    assert run.waiting_time == pytest.approx(waits, abs=1e-9)
    assert run.latency == pytest.approx(waits + 0.01, abs=1e-9)


def test_one_greedy_server_with_batches_of_one_is_the_queue_of_pollaczek_and_khinchine() -> None:
    rng, load, seconds = np.random.default_rng(8), 0.5, 0.01
    means = [
        simulate(
            policies.greedy(1), np.cumsum(poisson(load / seconds).sample(4000, rng)), deterministic(1, seconds), rng
        ).waiting_time.mean()
        for _ in range(16)
    ]
    exact = load * seconds / (2 * (1 - load))
    assert abs(np.mean(means) - exact) < 4 * np.std(means, ddof=1) / 4


def test_greedy_serves_everything_in_order_on_its_servers() -> None:
    rng = np.random.default_rng(9)
    run = simulate(policies.greedy(8, servers=2), np.cumsum(poisson(300).sample(3000, rng)), deterministic(8, 0.02), rng)
    assert run.answered.all() and (np.diff(run.batch_of) >= 0).all()
    in_service = [((run.dispatch_times <= t) & (run.dispatch_times + 0.02 > t + 1e-9)).sum() for t in run.dispatch_times[::20]]
    assert max(in_service) <= 2


def test_requests_that_no_event_releases_are_not_answered() -> None:
    run = simulate(policies.static(4), np.arange(10.0), deterministic(4, 0.1), np.random.default_rng(0))
    assert run.answered.sum() == 8 and np.isnan(run.latency[8:]).all()


def test_unsorted_arrivals_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ascending order"):
        simulate(policies.no_batching(), np.array([1.0, 0.5]), deterministic(1, 0.1), np.random.default_rng(0))
