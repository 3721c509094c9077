"""Batching by size class: the partition of least cost, its prediction against runs with every request's own size, its plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, ProfilePoint, RequestSize, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.arrivals import mmpp2, poisson
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost, Billing
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend import (
    Goal,
    Limits,
    Question,
    SizedAnswer,
    machine_offer,
    recommend,
    recommend_classes,
    size_classes,
)
from sluice.optimizer.recommend.function_choice import cheapest_setting, choose_setting
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.recorded import recorded
from sluice.optimizer.recommend.size_classes import _OpenClass, candidate_boundaries, cheapest_partitions
from sluice.optimizer.report.sizes import headline
from sluice.optimizer.report.wording import per_million
from sluice.optimizer.service import SizeMix, service_by_size
from sluice.optimizer.simulation import Deployment, SizedDeployment, SizedQueue, simulate_deployment, simulate_sizes
from tests.optimizer.sized_profiles import MIXES, long_tailed, sized_profile

MIX = MIXES["long-tailed"]


def question(arrivals: ArrivalProcess | float = 50.0, mix: SizeMix = MIX, slo: float = 0.3, **others: object) -> Question:
    process = poisson(arrivals) if isinstance(arrivals, float) else arrivals
    return Question(process, sized_profile(spread=True), (Slo(slo, 95.0),), mix=mix, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_partition_found_is_the_cheapest_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    last = int(rng.integers(1, 7))
    cost = np.triu(rng.random((last + 1, last + 1)), 1) + np.tril(np.full((last + 1, last + 1), np.inf))
    cost[rng.random(cost.shape) < 0.2] = np.inf
    totals, parts = cheapest_partitions(cost, 4)
    assert list(totals) == list(range(1, min(4, last) + 1))
    for k, total in totals.items():
        every = [[0, *inside, last] for inside in combinations(range(1, last), k - 1)]
        assert total == min(sum(cost[pair] for pair in pairwise(ends)) for ends in every)
        if np.isfinite(total):
            assert len(parts[k]) == k and sum(cost[pair] for pair in parts[k]) == pytest.approx(total)


@pytest.mark.proof
def test_the_classes_found_are_the_best_of_every_partition_of_the_boundaries() -> None:
    """Each class asked as a question of its own, whatever the search of partitions does."""
    whole = question(limits=Limits(max_batch_size=8))
    ends = [16.0, 48.0, 160.0, MIX.largest]
    answer = recommend_classes(whole, 3, ends)
    costs = {}
    for k in (1, 2, 3):
        for inside in combinations(ends[:-1], k - 1):
            edges = [-1.0, *inside, ends[-1]]
            costs[inside] = sum(class_cost(whole, above, up_to) for above, up_to in pairwise(edges))
        assert answer.by_number[k] == pytest.approx(min(usd for inside, usd in costs.items() if len(inside) == k - 1), rel=1e-12)
    assert answer.cost.per_request == pytest.approx(answer.by_number[len(answer.classes)], rel=1e-9)
    assert answer.saving == pytest.approx(1 - answer.cost.per_request / answer.by_number[1])


@pytest.mark.proof
@pytest.mark.parametrize("arrivals", [poisson(400.0), mmpp2(120, 20, 1.0, 0.5), poisson(2.0)], ids=["busy", "bursty", "rare"])
def test_no_setting_of_a_class_costs_less_than_its_bound_and_a_class_beyond_is_not_searched_for(
    arrivals: ArrivalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []

    def found(settings: FunctionSettings, known: FunctionSetting | None) -> Any:
        of, best = settings.question, cheapest_setting(settings, known)
        assert best is not None and of.mix is not None and of.measured is not None
        searched.append(_OpenClass.of(of, 1.0, of.mix, of.measured).least_cost / best.cost.per_request)
        return best

    monkeypatch.setattr(size_classes, "cheapest_setting", found)
    answer = recommend_classes(question(arrivals))
    edges = len(answer.boundaries) + 1
    assert max(searched) <= 1
    assert len(searched) < edges * (edges - 1) / 2 or arrivals.arrival_rate == 2.0


@pytest.mark.proof
@pytest.mark.parametrize("policies_considered", ["all", "size-or-timeout"])
@pytest.mark.parametrize("arrivals", [poisson(60.0), mmpp2(120, 20, 1.0, 0.5)], ids=["Poisson", "bursty"])
def test_memory_sizes_that_are_ruled_out_would_not_have_been_taken(
    arrivals: ArrivalProcess, policies_considered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every class is asked for at all memory sizes as well, runners-up and all."""
    points = [
        replaced(point, billed_duration=point.billed_duration * slower, service_time=ServiceTime(point.service_time.mean * slower))
        for memory_mb, slower in ((1024, 1.0), (1769, 1.02), (2048, 1.2), (3538, 1.9))
        for point in sized_profile(memory_sizes=(memory_mb,), batch_sizes=(1, 2, 4)).points
    ]
    considered = []

    def counted(settings: FunctionSettings, known: FunctionSetting | None) -> Any:
        considered.append(len(settings.services))
        return cheapest_setting(settings, known)

    monkeypatch.setattr(size_classes, "cheapest_setting", counted)
    limits = Limits(max_batch_size=4, policies=policies_considered)
    whole = replace(question(arrivals, limits=limits), profile=ServiceProfile(function="encoder-{memory_mb}:live", points=points))
    ends = [32.0, 128.0, MIX.largest]
    answer = recommend_classes(whole, 3, ends)
    assert sum(considered) < 6 * 4
    for k in (1, 2, 3):
        every = [[-1.0, *inside, ends[-1]] for inside in combinations(ends[:-1], k - 1)]
        least = min(sum(class_cost(whole, *of) for of in pairwise(edges)) for edges in every)
        assert answer.by_number[k] == pytest.approx(least, rel=1e-4)
    for of in answer.classes:
        exhaustive = choose_setting(FunctionSettings(replace(of.question, limits=limits)), lambda done: None).settings[0]
        assert (of.best.memory_mb, of.best.batch_size) == (exhaustive.memory_mb, exhaustive.batch_size)
        assert (of.best.table is None) is (exhaustive.table is None)


@pytest.mark.parametrize("premium", [0.0, 0.01, 0.3])
def test_what_is_known_of_other_memory_sizes_is_kept_where_it_would_have_come_first(premium: float) -> None:
    """One memory size after the other, in either order, comes to what all at once come to."""
    profile = sized_profile(memory_sizes=(1024, 1769), batch_sizes=(1, 4))
    whole = Question(poisson(60.0), profile, (Slo(0.15),), mix=MIXES["two sizes"], goal=Goal(premium=premium))
    first = choose_setting(FunctionSettings(whole), lambda done: None).settings[0]
    for order in ((1024, 1769), (1769, 1024)):
        best = None
        for memory_mb in order:
            best = cheapest_setting(FunctionSettings(replace(whole, limits=Limits((memory_mb,)))), best)
        assert best is not None and best.cost.per_request == pytest.approx(first.cost.per_request, rel=1e-4)
        assert (best.memory_mb, best.batch_size, best.table is None) == (first.memory_mb, first.batch_size, first.table is None)


def class_cost(whole: Question, above: float, up_to: float) -> float:
    share = MIX.share(above, up_to)
    part = replace(whole, arrivals=whole.arrivals.thinned(share), mix=MIX.between(above, up_to))
    return share * choose_setting(FunctionSettings(part), lambda done: None).settings[0].cost.per_request


@pytest.fixture(scope="module")
def answer() -> SizedAnswer:
    return recommend_classes(question(mmpp2(120, 20, 1.0, 0.5)))


@pytest.mark.proof
def test_latency_and_cost_of_a_class_are_those_of_a_run_with_every_size_its_own(answer: SizedAnswer) -> None:
    """Independent marks: percentiles within 1 %, and shares within the SLO and cost within four standard errors of many runs."""
    assert len(answer.classes) > 1 and answer.saving is not None and answer.saving > 0.05
    runs, n, deployment = [], 60_000, answer.deployment(MIX)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        times = np.cumsum(answer.question.arrivals.sample(n, rng))
        runs.append(simulate_sizes(deployment, times, MIX.draw(n, rng), rng))
    for percentile in (50, 95, 99):
        seen = np.mean([run.percentile(percentile).value for run in runs])
        assert answer.latency.percentile(percentile) == pytest.approx(seen, rel=0.01)
    at = answer.latency.percentile(90)
    for predicted, seen_in in (
        (answer.cost.per_request, [run.cost_per_request for run in runs]),
        (answer.latency.probability_within(at), [float((run.latency <= at).mean()) for run in runs]),
        (answer.latency.mean_batch_size, [run.mean_batch_size for run in runs]),
    ):
        error = np.std(seen_in, ddof=1) / np.sqrt(len(seen_in))
        assert abs(predicted - np.mean(seen_in)) < 4 * error
    for k, of in enumerate(answer.classes):
        seen = np.mean([run.percentile_of_class(k, 95) for run in runs])
        assert of.best.latency.percentile(95) == pytest.approx(seen, rel=0.01)
        assert of.best.keeps(answer.question.slos)


@pytest.mark.full
def test_at_the_rate_from_which_queues_pay_a_run_saves_what_the_buffer_costs(answer: SizedAnswer) -> None:
    """Batches are emptier or fuller there than at the rate that was asked for, and a request costs something else."""
    rate, here, direct = answer.break_even_arrival_rate, answer.question.arrivals.arrival_rate, answer.no_batching
    assert rate is not None and direct is not None and not here / 1.5 < rate < 1.5 * here
    seen = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        times = np.cumsum(answer.question.arrivals.sped_up(rate / here).sample(60_000, rng))
        seen.append(simulate_sizes(answer.deployment(MIX), times, MIX.draw(60_000, rng), rng).cost_per_request)
    moved = answer.cost.by_request - answer.cost.per_request  # which is as much at any rate
    saved = direct.cost.by_request - moved - float(np.mean(seen))
    fixed = answer.cost.fixed_per_month - direct.cost.fixed_per_month
    assert rate * SECONDS_PER_MONTH * saved == pytest.approx(fixed, rel=0.02)
    constant = fixed / (SECONDS_PER_MONTH * (direct.cost.by_request - answer.cost.by_request))
    assert abs(constant / rate - 1) > 0.02  # what it would be if a request cost the same there


def test_classes_that_move_bytes_which_one_queue_without_batching_does_not_are_told_as_dearer(answer: SizedAnswer) -> None:
    assert answer.one_queue is not None
    direct = replace(answer.one_queue, cost=replace(answer.cost, compute=answer.cost.compute / 2, requests=0.0, init=0.0))
    dearer = replace(answer, one_queue=direct)
    times = answer.cost.by_request / direct.cost.by_request
    assert headline(dearer).endswith(
        f", {times:.2f} times what it is without regard to size ({per_million(direct.cost.by_request)}), where nothing moves"
        " through a buffer."
    )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (0.9, "1.11 times what it is without"),
        (0.997, "as much as without"),
        (1.00001, "as much as without"),
        (1.002, "0.2 % less than without"),
    ],
)
def test_classes_that_cost_as_much_as_one_queue_are_not_told_as_a_number_of_times_it(
    answer: SizedAnswer, times: float, said: str
) -> None:
    assert answer.one_queue is not None
    other = replace(answer.one_queue, cost=BatchCost(compute=times * answer.cost.by_request))
    assert f" USD per million requests, {said} regard to size (" in headline(replace(answer, one_queue=other))


def test_one_queue_regardless_of_size_is_predicted_as_well() -> None:
    """Size-or-timeout, where most batches are of several sizes."""
    times = service_by_size(sized_profile(True), 1769, 8).under(MIX)
    rng, n = np.random.default_rng(5), 400_000
    deployment = Deployment(policies.size_or_timeout(8, 0.1), times)
    one = SizedDeployment([SizedQueue(np.inf, deployment)])
    run = simulate_sizes(one, np.cumsum(rng.exponential(1 / 40, n)), MIX.draw(n, rng), np.random.default_rng(6))
    mixed = simulate_deployment(deployment, np.cumsum(rng.exponential(1 / 40, n)), np.random.default_rng(6))
    for percentile in (50, 95, 99):
        assert run.percentile(percentile).value == pytest.approx(mixed.percentile(percentile).value, rel=0.01)


def test_sizes_that_follow_each_other_pad_less_than_independent_ones() -> None:
    """What the assumption costs, and which way: runs of fifty requests of one size each."""
    times = service_by_size(sized_profile(True), 1769, 8).under(MIX)
    rng, n = np.random.default_rng(5), 100_000
    arrivals, drawn = np.cumsum(rng.exponential(1 / 40, n)), np.repeat(MIX.draw(n // 50, rng), 50)
    queue = SizedDeployment([SizedQueue(np.inf, Deployment(policies.size_or_timeout(8, 0.1), times))])
    in_runs = simulate_sizes(queue, arrivals, drawn, np.random.default_rng(6))
    shuffled = simulate_sizes(queue, arrivals, rng.permutation(drawn), np.random.default_rng(6))
    assert in_runs.cost_per_request < 0.9 * shuffled.cost_per_request
    assert in_runs.percentile(50).value < shuffled.percentile(50).value


def test_a_batch_takes_as_long_as_its_largest_member_has_it() -> None:
    times = service_by_size(sized_profile(), 1769, 4).under(MIX)
    arrivals, sizes = np.array([0.0, 0.01, 0.02, 1.0, 1.5]), np.array([5.0, 80.0, 9.0, 512.0, 8.0])
    deployment = Deployment(policies.size_or_timeout(3, 0.2), times)
    run = simulate_deployment(deployment, arrivals, np.random.default_rng(0), sizes)
    expected = [times.by_size.seconds(np.array([s]))[0, n - 1, 0] + 0.001 + 1e-6 * s for n, s in ((3, 80.0), (1, 512.0), (1, 8.0))]
    assert run.batch_sizes.tolist() == [3, 1, 1] and run.response_times == pytest.approx(expected)


def test_sizes_are_carried_from_chunk_to_chunk() -> None:
    from sluice.optimizer.simulation.queue_run import QueueRun

    times = service_by_size(sized_profile(), 1769, 8).under(MIX)
    rng, n = np.random.default_rng(2), 500
    arrivals, sizes = np.cumsum(rng.exponential(0.02, n)), MIX.draw(n, rng)
    deployment = Deployment(policies.greedy(8, 1), times)
    whole = QueueRun(deployment, np.random.default_rng(0), sized=True).feed(arrivals, True, sizes).batches
    run = QueueRun(deployment, np.random.default_rng(0), sized=True)
    parts = [run.feed(arrivals[i : i + 50], i + 50 == n, sizes[i : i + 50]).batches.responses for i in range(0, n, 50)]
    assert np.concatenate(parts).tolist() == whole.responses.tolist()


def test_sizes_and_service_times_that_do_not_go_together_are_refused() -> None:
    times = service_by_size(sized_profile(), 1769, 4).under(MIX)
    arrivals = np.array([0.0, 1.0])
    with pytest.raises(InvalidInput, match="sizes: 1 is not allowed; allowed: one for each arrival"):
        simulate_deployment(Deployment(policies.no_batching(), times), arrivals, np.random.default_rng(0), np.array([5.0]))
    with pytest.raises(InvalidInput, match="size: 600.0 is not allowed; allowed: at most 512"):
        simulate_deployment(Deployment(policies.no_batching(), times), arrivals, np.random.default_rng(0), np.array([5.0, 600.0]))
    plain = FunctionSettings(Question(poisson(1.0), sized_profile().of_size(8), (Slo(1.0),))).services[0]
    with pytest.raises(InvalidInput, match="as the service times do not tell sizes apart"):
        simulate_deployment(Deployment(policies.no_batching(), plain), arrivals, np.random.default_rng(0), np.array([5.0, 6.0]))


def test_thinned_arrivals_are_those_that_a_coin_keeps() -> None:
    process = mmpp2(120, 20, 1.0, 0.5)
    thinned, rng = process.thinned(0.3), np.random.default_rng(1)
    assert thinned.arrival_rate == pytest.approx(0.3 * process.arrival_rate)
    assert pytest.approx(process.D0 + process.D1) == (thinned.D0 + thinned.D1)
    times = np.cumsum(process.sample(400_000, rng))
    gaps = np.diff(times[rng.random(len(times)) < 0.3])
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(thinned.scv, rel=0.03)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(thinned.autocorrelation([1])[0], abs=0.01)
    with pytest.raises(InvalidInput, match="share: 0 is not allowed"):
        process.thinned(0)


def test_classes_that_are_worth_nothing_are_not_made() -> None:
    points = [
        ProfilePoint(1769, b, ServiceTime(0.01 + 0.001 * b), 0.01 + 0.001 * b, size=size) for b in (1, 8) for size in (8.0, 512.0)
    ]
    same = ServiceProfile(function="f", points=points)
    answer = recommend_classes(replace(question(), profile=same))
    assert len(answer.classes) == 1 and answer.saving == pytest.approx(0.0)
    plan = answer.plan("m", RequestSize("header"))
    assert plan.policy is not None and not plan.routes and plan.size is not None


def test_the_plan_has_a_route_for_each_class(answer: SizedAnswer) -> None:
    plan = answer.plan("encoder", RequestSize("json", "inputs.0.shape.1"))
    assert read(Plan, write(plan)) == plan
    assert [route.up_to for route in plan.routes] == [*(of.up_to for of in answer.classes[:-1]), None]
    assert sum(route.share for route in plan.routes) == pytest.approx(1)
    assert plan.predicted is not None and plan.predicted.latency["p95"] == answer.latency.percentile(95)
    assert plan.predicted.cost_per_request == answer.cost.per_request
    for route, of in zip(plan.routes, answer.classes, strict=True):
        assert route.policy.policy() == of.best.policy and route.function == f"encoder-{of.best.memory_mb}:live"


def test_every_request_passes_the_buffer_where_there_are_classes_and_every_snapshot_is_kept() -> None:
    """The large ones go one by one and need more memory: a function of their own, which by itself needs no buffer."""
    billing, mix = Billing(payload_bytes=4096, snap_start=True), MIXES["two sizes"]
    profile = sized_profile(spread=True, memory_sizes=(1769, 3538))
    points = [p for p in profile.points if (p.batch_size == 1 if p.size == 512 else p.memory_mb == 1769)]
    profile = ServiceProfile(function=profile.function, points=points)
    answer = recommend_classes(Question(poisson(200.0), profile, (Slo(0.015, 95.0),), billing, mix=mix), boundaries=[20])
    assert [of.best.batch_size == 1 for of in answer.classes] == [False, True]
    assert [of.best.memory_mb for of in answer.classes] == [1769, 3538]
    prices = billing.prices
    assert answer.cost.cache == pytest.approx(prices.cache_per_request(*billing.moved))
    assert (
        answer.cost.load_balancer == pytest.approx(prices.load_balancer_per_request(*billing.moved)) and answer.cost.load_balancer
    )
    assert answer.cost.network == pytest.approx(prices.network_per_request(*billing.moved))
    kept = billing.prices.function.snap_start.cache_gb_second * SECONDS_PER_MONTH * (1769 + 3538) / 1024
    assert answer.cost.fixed_terms == pytest.approx({**prices.fixed_terms(), "snapshot": kept})


def test_a_class_that_alone_misses_the_slo_goes_with_others_or_the_question_is_infeasible() -> None:
    """Of 512 tokens takes 17 ms and more at best; one request in a hundred may, as five may be late."""
    mix = SizeMix(np.array([8.0, 100.0, 512.0]), np.array([0.59, 0.4, 0.01]))
    slo = 0.0115
    answer = recommend_classes(question(mix=mix, slo=slo), boundaries=[8, 100])
    assert answer.classes[-1].above < 100 and answer.classes[-1].up_to == 512
    with pytest.raises(Infeasible, match="no setting keeps p95 within 0.004 s: the best reachable is"):
        recommend_classes(question(mix=mix, slo=0.004), boundaries=[8, 100])


def test_candidates_are_few_and_part_requests_and_work() -> None:
    candidates = candidate_boundaries(MIX, [8, 16, 32, 64, 128, 256, 512], most=6)
    assert len(candidates) == 6 and candidates[-1] == MIX.largest and candidates == sorted(candidates)
    one = MIXES["one size"]
    assert candidate_boundaries(one, [8, 512]) == [100.0]
    cut = SizeMix.of(np.minimum(long_tailed(largest=1e9), 16))
    assert candidate_boundaries(cut, [8, 512])[-1] == 16


def test_what_classes_are_not_made_for_is_refused() -> None:
    offer = machine_offer("worker", sized_profile().of_size(8), 0.5, 8)
    for asked, message in (
        (question(offers=(offer,)), "offers: .'worker'. is not allowed; allowed: none beside sizes"),
        (question(goal=Goal("latency", 1e-5)), "objective: 'latency' is not allowed; allowed: cost, where requests have sizes"),
        (question(goal=Goal(max_cost=1e-5)), "max_cost: 1e-05 is not allowed; allowed: none, where requests have sizes"),
        (Question(poisson(1.0), sized_profile().of_size(8), (Slo(1.0),)), "sizes: none was given; needed: the mix of the sizes"),
    ):
        with pytest.raises(InvalidInput, match=message):
            recommend_classes(asked)
    with pytest.raises(InvalidInput, match="size_classes: 0 is not allowed"):
        recommend_classes(question(), most=0)


def test_of_requests_whose_sizes_were_recorded_nothing_is_said_of_what_comes_next() -> None:
    rng = np.random.default_rng(4)
    times, sizes = np.cumsum(rng.exponential(0.02, 500)), rng.choice(MIX.values, 500, p=MIX.shares)
    assert recommend(question(mix=MIX, recorded=recorded(times, sizes))).cost_again is None
