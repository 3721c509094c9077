"""Which applications share a queue: the grouping of least cost, its plan, what it tells, and what it refuses."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.documents import (
    Plan,
    ProfilePoint,
    RequestClass,
    ServiceProfile,
    ServiceTime,
    Slo,
    WarmEnvironments,
    read,
    write,
)
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.buffer_service.plans import check_waits
from sluice.optimizer.arrivals import mmpp2, poisson
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.baselines import Situation, Workload, written
from sluice.optimizer.billing.cost import Billing, invocation_costs
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend import Application, Goal, Question, ServedQueue, SharingAnswer, recommend_sharing
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.queues_on_record import billed, merged
from sluice.optimizer.recommend.served_queue import QueueAtLoad, cost_of_queues
from sluice.optimizer.recommend.shared_queues import SharedQueues, _Floor
from sluice.optimizer.report import sharing as told
from sluice.optimizer.simulation import simulate_deployments
from sluice.optimizer.simulation.chunks import MergedArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.function import Function

CORE = 1769


def profile(
    intercept: float = 0.0056, slope: float = 0.00074, memory_sizes: tuple[int, ...] = (885, CORE), init: float | None = None
) -> ServiceProfile:
    """The time of a batch of n is ``intercept + slope n`` on one core, in proportion slower on less."""
    points = [
        ProfilePoint(
            memory_mb, n, ServiceTime((intercept + slope * n) * CORE / memory_mb), (intercept + slope * n) * CORE / memory_mb
        )
        for memory_mb, n in itertools.product(memory_sizes, (1, 2, 4, 8, 16, 32))
    ]
    starts = {} if init is None else dict.fromkeys(memory_sizes, ServiceTime(init))
    return ServiceProfile(function="perceptron-{memory_mb}", points=points, init=starts, model="perceptron")


def application(name: str, arrivals: float | ArrivalProcess, latency: float, percentile: float = 95.0) -> Application:
    return Application(name, poisson(arrivals) if isinstance(arrivals, float) else arrivals, Slo(latency, percentile))


def asked(of: ServiceProfile | None = None, **others: object) -> Question:
    return Question(poisson(1.0), of or profile(), (Slo(1.0, 95.0),), **others)  # type: ignore[arg-type]


def drawn(seed: int, n: int) -> list[Application]:
    rng = np.random.default_rng(seed)
    rates, latencies = 10 ** rng.uniform(0, 3, n), 10 ** rng.uniform(-2.1, 0.3, n)
    return [application(f"a{k}", float(rate), float(slo)) for k, (rate, slo) in enumerate(zip(rates, latencies, strict=True))]


def queues_of(applications: list[Application], of: ServiceProfile | None = None) -> SharedQueues:
    question = asked(of)
    usd = [compute + fee for compute, fee in (invocation_costs(service, question.billing) for service in question.services)]
    return SharedQueues(applications, question.services, usd)


def cost_of_any_partition(shared: SharedQueues) -> float:
    """USD per second of the cheapest of all partitions, neighbours or not."""
    n = len(shared.applications)
    least = np.zeros(1 << n)
    for of in range(1, 1 << n):
        lowest, options, part = of & -of, [], of
        while part:
            if part & lowest:
                queue = shared.together(tuple(k for k in range(n) if part >> k & 1))
                options.append(least[of ^ part] + (np.inf if queue is None else queue.usd * queue.arrival_rate))
            part = (part - 1) & of
        least[of] = min(options)
    return float(least[-1])


@pytest.mark.parametrize(("seed", "n"), [(seed, 2 + seed % 4) for seed in range(12)] + [(109, 6), (100, 8)])
def test_no_partition_is_cheaper_than_what_is_found(seed: int, n: int) -> None:
    shared = queues_of(drawn(seed, n), profile(intercept=0.0056 if seed % 2 else 0.002))
    found = shared.cheapest()
    assert found is not None and sorted(of.name for queue in found for of in queue.applications) == [f"a{k}" for k in range(n)]
    assert sum(queue.usd * queue.arrival_rate for queue in found) == pytest.approx(cost_of_any_partition(shared), rel=1e-12)


def test_the_neighbours_found_are_the_cheapest_of_all_neighbours() -> None:
    for seed in (5, 7, 109):
        shared = queues_of(drawn(seed, 6), profile())
        found = shared.neighbours()
        assert found is not None
        every = []
        for inside in itertools.chain.from_iterable(itertools.combinations(range(1, 6), k) for k in range(6)):
            parts = [shared.together(tuple(range(*part))) for part in itertools.pairwise([0, *inside, 6])]
            every.append(sum(np.inf if queue is None else queue.usd * queue.arrival_rate for queue in parts))
        assert sum(queue.usd * queue.arrival_rate for queue in found) == pytest.approx(min(every), rel=1e-12)


def test_the_best_partition_is_not_always_one_of_neighbours() -> None:
    """Else comparing all would be for nothing."""
    shared = queues_of(drawn(109, 6), profile())
    neighbours, any_groups = shared.neighbours(), shared.any_groups()
    assert neighbours is not None and any_groups is not None
    apart, least = (sum(queue.usd * queue.arrival_rate for queue in queues) for queues in (neighbours, any_groups))
    assert 1.01 * least < apart < 1.02 * least


def test_no_queue_costs_less_than_what_is_said_to_be_the_least() -> None:
    shared = queues_of(drawn(3, 5))
    for start, end in itertools.combinations(range(6), 2):
        queue = shared.together(tuple(range(start, end)))
        if queue is not None:
            assert shared._least_costs[start, end] <= queue.usd * queue.arrival_rate * (1 + 1e-9)


def test_a_hundred_applications_ask_for_few_of_their_groups() -> None:
    shared = queues_of(drawn(5, 100))
    found = shared.cheapest()
    assert found is not None and sum(len(queue.applications) for queue in found) == 100
    assert len(shared._found) < 2000  # of 5050


def test_the_floor_is_the_cheapest_mixture_of_sizes() -> None:
    usd = np.array([1.0, 1.9, 2.0, 4.0])
    floor = _Floor(usd)
    assert floor.least(np.array(1.0)) == 1.0
    assert floor.least(np.array(2.0)) == pytest.approx(1.5 / 2)  # as much of one as of three, not two at a time
    assert floor.least(np.array(np.inf)) == pytest.approx(2 / 3)


def test_every_promise_is_kept_by_the_table() -> None:
    """Whoever waits longest in a batch of any size is in time, and the slacks are as long as that allows."""
    shared = queues_of([application("a", 3.0, 0.1, 95.0), application("b", 2.0, 0.4, 99.0), application("c", 1.0, 0.4, 50.0)])
    for j, service in enumerate(asked().services):
        holds, slacks = shared.table((0, 1, 2), j)
        for of, slack in zip(shared.applications, slacks, strict=True):
            spare = seconds_left(service, [of.slo])[1 : len(holds) + 1] - holds - slack
            assert (spare >= -1e-9).all() and spare.min() < 2e-6
        assert slacks[0] == 0


def test_who_is_told_what_a_queue_for_each_and_one_for_all_cost() -> None:
    answer = recommend_sharing(
        asked(), [application("slow", 0.5, 2.0), application("quick", 50.0, 0.1), application("mid", 5.0, 0.5)]
    )
    assert [of.name for of in answer.applications] == ["quick", "mid", "slow"]
    (queue,) = answer.queues
    assert queue.named == "quick, mid and slow" and answer.saving == pytest.approx(0.119, abs=0.002)
    assert list(answer.compared) == ["recommended", "a queue for each", "one queue at the strictest promise", "no batching"]
    cost = {name: of.per_request for name, of in answer.compared.items()}
    assert cost["recommended"] < cost["one queue at the strictest promise"] < cost["a queue for each"] < cost["no batching"]
    assert told.headline(answer).startswith("One queue for quick, mid and slow (22 or 92.9 to 78.1 ms, 1769 MB): 0.0835 USD")
    assert "11.9 % less than a queue for each" in told.headline(answer)
    for law, of in zip(queue.latencies, queue.applications, strict=True):
        assert law.confidence is None and law.percentile(95) <= of.slo.latency


def test_what_sharing_saves_is_a_part_of_the_cost_that_is_told() -> None:
    """Bytes that are moved cost the same in any queue, and are in both."""
    answer = recommend_sharing(
        asked(billing=Billing(payload_bytes=2_000)), [application("web", 2.0, 0.1), application("mail", 2.0, 0.5)]
    )
    told_of = re.search(
        r": ([\d.]+) USD per million requests, ([\d.]+) % less than a queue for each \(([\d.]+)\)", told.headline(answer)
    )
    assert told_of is not None and answer.cost.moving > 0.1 * answer.cost.per_request
    shared, percent, apart = map(float, told_of.groups())
    assert percent == pytest.approx(100 * (1 - shared / apart), abs=0.05)


@pytest.mark.parametrize(("web", "report", "n_queues"), [((3.0, 0.1), (2.0, 0.5), 1), ((300.0, 0.012), (200.0, 2.0), 2)])
def test_at_the_break_even_rate_a_month_of_queues_costs_what_no_batching_does_in_a_run_too(
    web: tuple[float, float], report: tuple[float, float], n_queues: int
) -> None:
    both = [application("web", *web), application("report", *report)]
    answer = recommend_sharing(asked(), both)
    rate = answer.break_even_arrival_rate
    assert rate is not None and len(answer.queues) == n_queues
    times, classes = zip(
        *MergedArrivals([of.arrivals.sped_up(rate / answer.arrival_rate) for of in both], 100_000, 1).merged(), strict=True
    )
    each = billed(answer.question, TraceArrivals(np.concatenate(times), None, np.concatenate(classes)), both, answer.queues)
    month = SECONDS_PER_MONTH * rate * (cost_of_queues(each).by_request - answer.compared["no batching"].by_request)
    assert month + answer.cost.fixed_per_month == pytest.approx(0.0, abs=0.02 * answer.cost.fixed_per_month)


def test_who_starts_cold_here_does_not_at_the_break_even_rate_of_queues() -> None:
    seldom, often = (
        recommend_sharing(asked(profile(init=0.8)), [application("web", rate, 3.0), application("report", 2 * rate, 9.0)])
        for rate in (0.2, 20.0)
    )
    assert cost_of_queues(seldom.unbatched).init > 2e-9 > cost_of_queues(often.unbatched).init
    assert seldom.break_even_arrival_rate == pytest.approx(often.break_even_arrival_rate, rel=0.03)


def recorded(rate: float, seconds: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds)))


def test_records_are_laid_so_that_they_end_together_and_run_for_as_long_as_the_shortest() -> None:
    run = merged([np.array([0.0, 100.0, *np.arange(200.0, 301.0)]), np.arange(50.0, 111.0, 0.5)])
    assert run is not None and run.classes is not None and run.span == 60.5 and run.times[0] == 0.0
    assert run.times[run.classes == 0].tolist() == np.arange(0.5, 61.0).tolist()
    assert run.times[run.classes == 1].tolist() == np.arange(0.0, 61.0, 0.5).tolist()


@pytest.mark.parametrize(
    "records", [[], [np.arange(900.0), None], [np.arange(900.0), np.empty(0)], [np.arange(10.0), np.arange(10.0)]]
)
def test_where_a_class_has_no_record_or_all_are_too_few_nothing_is_run(records: list[np.ndarray | None]) -> None:
    assert merged(records) is None


@pytest.mark.parametrize(("rates", "strict", "n_queues"), [((60.0, 40.0), 0.1, 1), ((300.0, 200.0), 0.012, 2)])
def test_what_is_said_to_cost_is_what_the_plan_is_billed_on_the_arrivals_recorded(
    rates: tuple[float, float], strict: float, n_queues: int
) -> None:
    """One queue and one for each; a trace that ends with what was recorded, as long as the shorter of the records."""
    records = recorded(rates[0], 300.0, 1), recorded(rates[1], 200.0, 2)
    both = [
        replace(application("a", rates[0], strict), recorded=records[0]),
        replace(application("b", rates[1], 2.0), recorded=records[1]),
    ]
    answer, predicted = (
        recommend_sharing(asked(profile(init=0.4)), of) for of in (both, [replace(of, recorded=None) for of in both])
    )
    run = merged(records)
    assert run is not None and len(answer.queues) == n_queues
    workload = Workload(poisson(100.0), run.times, run, ("a", "b"))
    situation = Situation(workload, Function(answer.question.profile, CORE, answer.question.billing, answer.question.environments))
    seen = simulate_deployments({"": written(answer.plan("m"), situation)}, run)[""]
    assert answer.cost.per_request == pytest.approx(seen.cost.per_request, rel=1e-12)
    assert answer.fitted == predicted.cost and predicted.fitted is None
    assert answer.arrival_rate == pytest.approx(run.arrival_rate) and answer.cost.init > 0
    assert [of.policy for of in answer.queues] == [of.policy for of in predicted.queues]
    for name, cost in answer.compared.items():
        assert cost.per_request == pytest.approx(predicted.compared[name].per_request, rel=0.1), name
    (sentence,) = (of for of in told.sentences(answer) if of.startswith("Costs are"))
    assert (
        f"a run over the {run.n_requests} arrivals recorded" in sentence
        and f"of the latest {run.span:.4g} s of each class" in sentence
    )
    assert "Costs are predicted from the arrival processes alone: not every class has" in " ".join(told.sentences(predicted))


@pytest.mark.parametrize("keep_alive", [300.0, 30.0])
def test_what_is_kept_warm_is_billed_on_the_arrivals_recorded_as_in_a_run_of_the_plan(keep_alive: float) -> None:
    """A ping, and an environment that is provisioned."""
    (web, _), times = SELDOM, recorded(0.003, 3e5, 3)
    question = asked(profile(init=0.8), environments=replace(LAMBDA, keep_alive=keep_alive))
    answer, run = recommend_sharing(question, [replace(web, recorded=times)]), merged([times])
    assert run is not None and answer.queues[0].warm
    function = Function(question.profile, CORE, question.billing, question.environments)
    situation = Situation(Workload(web.arrivals, run.times, run, ("web",)), function)
    seen = simulate_deployments({"": written(answer.plan("m"), situation)}, run)[""]
    assert answer.cost.per_request == pytest.approx(seen.cost.per_request, rel=1e-12)
    assert (answer.cost.pings > 0) == (keep_alive == 300) and (answer.cost.machines > 0) == (keep_alive == 30)


@pytest.mark.parametrize(("rate", "warm"), [(30.0, False), (100.0, True)])
def test_what_is_always_at_work_is_provisioned_though_no_cold_start_harms_where_that_saves_more_than_the_premium(
    rate: float, warm: bool
) -> None:
    environments = replace(LAMBDA, keep_alive=1800.0)
    alike = [application("web", rate, 2.0), application("report", rate, 3.0)]
    (queue,), (without,) = (
        recommend_sharing(asked(profile(0.2, 0.02, (CORE,), init), environments=environments), alike).queues for init in (0.4, None)
    )
    assert isinstance(queue, ServedQueue) and bool(queue.provisioned) is warm
    assert (queue.cost.per_request * (1 + asked().goal.premium) < without.cost.per_request) is warm


def test_queues_that_share_what_is_kept_warm_are_not_run_as_each_would_have_its_own() -> None:
    answer = recommend_sharing(asked(profile(init=0.4)), SELDOM)
    record = np.arange(0.0, 3e5, 300.0)
    again = recommend_sharing(asked(profile(init=0.4)), [replace(of, recorded=record) for of in SELDOM])
    assert any(isinstance(of, ServedQueue) and of.warm_queues > 1 for of in (*answer.queues, *answer.separate))
    assert again.fitted is None and again.cost == answer.cost


def test_a_network_whose_time_goes_with_its_batch_gains_nothing_and_says_so() -> None:
    of = profile(intercept=0.0, slope=0.1, memory_sizes=(CORE,))
    answer = recommend_sharing(asked(of), [application("a", 5.0, 0.5), application("b", 1.0, 2.0)])
    assert 0 <= answer.saving < 0.01
    text = " ".join((told.headline(answer), *told.sentences(answer)))
    assert "worth nothing here" in text or "a queue for each application is as good" in text


def test_one_plan_has_all_who_share_and_a_route_for_each_queue_else() -> None:
    alike = [application("web", 50.0, 0.1), application("report", 5.0, 0.5)]
    together = recommend_sharing(asked(), alike).plan("m")
    assert together.function and [of.slack for of in together.classes] == [0.0, pytest.approx(0.4, abs=1e-5)]
    apart = recommend_sharing(asked(), [application("web", 300.0, 0.012), application("report", 200.0, 2.0)]).plan("m")
    assert [route.name for route in apart.routes] == [of.route for of in apart.classes] == ["web", "report"]
    assert [route.share for route in apart.routes] == pytest.approx([0.6, 0.4])
    for plan in (together, apart):
        assert read(Plan, write(plan)) == plan
        assert plan.slo == plan.classes[0].slo and plan.predicted is not None


def test_headroom_is_kept_free_and_the_promise_told_is_the_one_asked_for() -> None:
    applications = [application("web", 50.0, 0.1), application("report", 5.0, 0.5)]
    plain, free = (recommend_sharing(asked(goal=Goal(headroom=part)), applications) for part in (0.0, 0.2))
    assert max(free.queues[0].policy.hold[1:]) < max(plain.queues[0].policy.hold[1:]) - 0.015
    assert free.queues[0].applications[0].slo == Slo(0.1, 95.0)


def test_bursts_of_many_phases_are_drawn_and_their_interval_told() -> None:
    bursts = [application(f"a{k}", mmpp2(20.0 + k, 1.0, 0.5, 0.1), 0.1 * (k + 1)) for k in range(8)]
    answer = recommend_sharing(asked(), bursts)
    rows = told.application_rows(answer)
    assert any(not of.exact and of.reached.low < of.reached.high for of in rows)
    assert "drawn arrivals" in " ".join(told.sentences(answer))


def test_cold_starts_are_in_cost_and_latency_and_a_promise_that_they_break_is_said_to_be_broken() -> None:
    often, seldom = (
        [application("web", rate, 0.1), application("report", rate / 10, 0.5)] for rate in (50.0, 0.002)
    )  # environments are kept for 300 s
    kept = recommend_sharing(asked(profile(init=3.0)), often)
    broken = recommend_sharing(asked(profile(init=3.0), billing=Billing(cold_start_probability=0.4)), seldom)
    assert all(queue.keeps(k) for queue in kept.queues for k in range(len(queue.applications)))
    assert "Every promise is kept" in told.sentences(kept)[0]
    queue = broken.queues[0]
    assert queue.cold_starts == 0.4 and queue.cost.init > 0 and not queue.keeps(0)
    assert not any(of.warm for of in broken.queues) and not broken.plan("m").warm  # nobody knows whom that would help
    assert told.sentences(broken)[0].startswith("Cold starts make more requests of web, report late than promised. ")
    assert "of INIT" in told.sentences(broken)[1]


def test_cold_starts_count_in_the_choice_of_the_function() -> None:
    """Where every other invocation pays for two seconds of INIT a small function is cheap, which is dear where none does."""
    of, both = profile(init=2.0, memory_sizes=(512, CORE)), [application("a", 5.0, 0.1), application("b", 2.5, 0.5)]
    chosen = [recommend_sharing(asked(of, billing=Billing(cold_start_probability=share)), both).queues for share in (0.0, 0.5)]
    assert [[queue.memory_mb for queue in queues] for queues in chosen] == [[CORE], [512]]
    assert chosen[1][0].cold_starts == 0.5


def test_who_hardly_comes_shares_a_queue_that_is_warm_where_alone_cold_starts_would_break_his_promise() -> None:
    rare, often = application("rare", 0.001, 0.3, 99.9), application("often", 300.0, 0.5)
    answer = recommend_sharing(asked(profile(init=0.4)), [rare, often])
    (queue,) = answer.queues
    assert queue.missed == 0 and not queue.warm and answer.separate[0].warm and answer.saving > 0


def test_who_hardly_comes_has_an_environment_of_his_own_where_that_is_cheaper_than_his_promise_to_all() -> None:
    rare, often = application("rare", 0.001, 0.012, 99.9), application("often", 300.0, 0.5)
    answer = recommend_sharing(asked(profile(init=0.4)), [rare, often])
    assert [bool(queue.warm) for queue in answer.queues] == [True, False] and answer.at_the_strictest is not None
    assert answer.cost.per_request < answer.at_the_strictest.cost.per_request
    routes = answer.plan("m").routes
    assert [bool(route.warm) for route in routes] == [True, False]


def test_nobody_is_held_for_longer_than_callers_wait() -> None:
    plan = recommend_sharing(asked(), [application("web", 5.0, 0.1), application("night", 0.01, 3000.0)]).plan("m")
    check_waits(plan, request_timeout=60.0)
    assert max(of.slack or 0.0 for of in plan.classes) > 40


def test_a_promise_that_no_function_keeps_is_refused_by_the_name_of_its_class() -> None:
    with pytest.raises(Infeasible, match="class web: no function answers p95 within 1 ms; the quickest takes 6.34 ms"):
        recommend_sharing(asked(), [application("web", 5.0, 0.001), application("report", 5.0, 1.0)])


@pytest.mark.parametrize(
    ("applications", "question", "field"),
    [
        ([], {}, "classes"),
        ([application("a", 1.0, 1.0), application("a", 2.0, 0.5)], {}, "classes"),
        ([application("a", 1.0, 1.0)], {"goal": Goal(max_cost=1.0)}, "max_cost"),
        ([application("a", 1.0, 1.0)], {"goal": Goal("latency", 1.0)}, "objective"),
    ],
)
def test_what_does_not_go_together_with_classes_is_refused(
    applications: list[Application], question: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        recommend_sharing(asked(**question), applications)
    assert refused.value.field == field


SELDOM = [application("web", 0.003, 0.3), application("report", 0.001, 1.2)]


@pytest.mark.parametrize(
    ("keep_alive", "said"),
    [
        (300.0, "The buffer keeps, of perceptron-885, 1 environment warm by pings every 4 minutes."),
        (30.0, "Keep 1 of perceptron-885 provisioned (ProvisionedMemory=885, ProvisionedConcurrency=1)."),  # too short for a ping
    ],
)
def test_where_cold_starts_would_break_promises_one_environment_is_kept_for_all_queues_and_paid_once(
    keep_alive: float, said: str
) -> None:
    answer = recommend_sharing(asked(profile(init=0.8), environments=replace(LAMBDA, keep_alive=keep_alive)), SELDOM)
    assert not any(of.missed for of in (*answer.queues, *answer.separate))
    told_of = told.sentences(answer)
    assert told_of[0].startswith("Every promise is kept, by the tables and by the environments that are kept warm.")
    assert [sentence for sentence in told_of if sentence.startswith(("The buffer keeps", "Keep"))] == [said]
    plan = answer.plan("m")
    pinged = keep_alive == 300 and len(plan.routes) > 1  # by one of the routes
    assert sum(bool(route.warm) for route in plan.all_routes) == (1 if pinged else len(plan.all_routes))
    prices = Billing().prices
    hourly, ping = prices.provisioned(885, "x86_64").reserved_per_hour, prices.pings(1, 885, "x86_64")
    for queues in (answer.queues, answer.separate):  # of a function once, whether or not its queues are one
        per_second = sum((of.cost.machines + of.cost.pings) * of.arrival_rate for of in queues)
        assert per_second == pytest.approx(hourly / 3600 if keep_alive == 30 else ping / 240)


def test_environments_that_queues_of_a_function_have_each_for_themselves_are_pinged_together() -> None:
    """The pings of one would else keep those of the other, as they come at another moment."""
    apart = [application("web", 0.8, 0.7, 99.9), application("report", 0.4, 1.2, 99.9)]
    answer = recommend_sharing(asked(profile(intercept=0.4, slope=0.1, memory_sizes=(CORE,), init=3.0)), apart)
    each = [of.warm.pinged for of in answer.separate if of.warm]
    assert len(each) == 2 and [of.warm_queues for of in answer.separate] == [1, 1]
    chosen = replace(answer, queues=answer.separate)
    routes = chosen.plan("m").routes
    assert [route.warm or None for route in routes] == [WarmEnvironments(pinged_every=240.0, pinged=sum(each)), None]
    said = f"The buffer keeps, of perceptron-1769, {sum(each)} environments warm by pings every 4 minutes."
    assert said in told.sentences(chosen)


def test_queues_that_often_run_at_once_do_not_share_an_environment() -> None:
    """The other's batch is under way for most of the time, so that the one environment is no longer kept for both."""
    apart = [application("web", 0.4, 0.7, 99.9), application("report", 0.3, 2.5, 99.9)]
    slow = profile(intercept=0.4, slope=0.1, memory_sizes=(CORE,), init=3.0)
    answer = recommend_sharing(asked(slow, environments=replace(LAMBDA, keep_alive=30.0)), apart)
    assert not any(of.missed for of in answer.separate)
    assert [of.warm_queues for of in answer.separate] == [1, 1] and all(of.provisioned for of in answer.separate)
    said = [sentence for sentence in told.sentences(replace(answer, queues=answer.separate)) if sentence.startswith("Keep")]
    total = sum(of.provisioned for of in answer.separate)
    assert said == [f"Keep {total} of perceptron-1769 provisioned (ProvisionedMemory=1769, ProvisionedConcurrency={total})."]


# --- for every load


THREE = [application("web", 50.0, 0.1), application("report", 5.0, 0.5), application("nightly", 0.5, 2.0)]
EVERY_LOAD = Goal(loads=(0.1, 100.0))


@pytest.fixture(scope="module")
def answer_for_every_load() -> SharingAnswer:
    return recommend_sharing(asked(goal=EVERY_LOAD), THREE)


@pytest.fixture(scope="module")
def for_every_load(answer_for_every_load: SharingAnswer) -> ServedQueue:
    (queue,) = answer_for_every_load.queues
    return queue


@pytest.mark.proof
@pytest.mark.parametrize("factor", [0.1, 1.0, 31.622776601684])
def test_a_queue_for_every_load_costs_in_a_run_what_is_predicted_and_nobody_is_late(
    for_every_load: ServedQueue, factor: float
) -> None:
    queue = for_every_load
    assert len(queue.functions) > 1
    question = asked(goal=EVERY_LOAD)
    at = {of.called: Function(question.profile, of.service.memory_mb, question.billing) for of in queue.functions}
    (first, table), *others = queue.tables
    classes = [RequestClass(of.name, of.slo, slack) for of, slack in zip(queue.applications, queue.queue.slacks, strict=True)]
    beside = [at[called].beside(each) for called, each in others]
    deployment = replace(at[first].under(table), beside=beside, classes=classes)
    arrivals = MergedArrivals([of.arrivals.sped_up(factor) for of in queue.applications], 200_000, 5)
    times, class_of = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    run = simulate_deployment(deployment, times, np.random.default_rng(1), classes=class_of)
    for k, of in enumerate(queue.applications):
        assert run.of_class(k).latency.max() <= of.slo.latency + 1e-9
    (load,) = (load for load in queue.loads if load.factor == factor)
    usd = 0.0
    for of in queue.functions:
        compute, fee = invocation_costs(of.service, question.billing)
        own = [n for first, last in of.stretches for n in range(first, last + 1)]
        usd += sum(float(compute[n - 1] + fee) * int((run.batch_sizes == n).sum()) for n in own)
    assert usd / len(times) == pytest.approx(load.usd, rel=0.01)


def test_a_queue_for_every_load_is_nearly_as_cheap_at_its_rates_and_cheaper_beyond_them(for_every_load: ServedQueue) -> None:
    (one,) = recommend_sharing(asked(), THREE).queues
    assert not one.functions and not one.loads
    assert for_every_load.cost.per_request <= one.cost.per_request * 1.01
    assert for_every_load.loads[-1].usd < 0.95 * for_every_load.loads[-1].usd_of_one_function
    assert for_every_load.loads[-1].usd_of_one_function == pytest.approx(one.cost.per_request, rel=0.7)


def test_what_is_not_saved_costs_more(answer_for_every_load: SharingAnswer, for_every_load: ServedQueue) -> None:
    loads = (QueueAtLoad(0.1, 1.0159, 1.0), QueueAtLoad(100.0, 0.8, 1.0))
    said = told.sentences(replace(answer_for_every_load, queues=(replace(for_every_load, loads=loads),)))
    at_these = "beside the cheapest table at these rates that costs 1.59 % more at 0.1 and saves 20.00 % at 100 times the rates."
    assert [sentence for sentence in said if sentence.endswith(at_these)]


@pytest.mark.full
def test_the_plan_of_a_queue_for_every_load_has_its_functions_beside_one_another(
    answer_for_every_load: SharingAnswer, for_every_load: ServedQueue
) -> None:
    answer = answer_for_every_load
    plan = read(Plan, write(answer.plan("m")))
    check_waits(plan, 60.0)
    assert [plan.function, *(each.function for each in plan.beside)] == [of.called for of in for_every_load.functions]
    assert plan.memory_mb is None
    (sentence,) = (sentence for sentence in told.sentences(answer) if "chooses the function" in sentence)
    assert for_every_load.by_size in sentence
    (queue,) = told.sharing_document(answer, plan)["queues"]
    assert len(queue["beside"]) == len(plan.beside) and queue["loads"][0]["factor"] == 0.1


def test_one_memory_size_many_applications_or_one_load_have_the_table_of_one_function() -> None:
    single = asked(profile(memory_sizes=(CORE,)), goal=EVERY_LOAD)
    many = [application(f"a{k}", 5.0, 0.1 + 0.1 * k) for k in range(9)]
    for question, applications in ((single, THREE), (asked(), THREE), (asked(goal=EVERY_LOAD), many)):
        assert all(not of.functions for of in recommend_sharing(question, applications).queues)


def test_where_one_function_serves_every_size_as_well_as_any_the_answer_says_so() -> None:
    """Twice the memory is no quicker."""
    times = [(memory_mb, n, 0.005 + 0.001 * n) for memory_mb in (885, CORE) for n in (1, 2, 4, 8)]
    points = [ProfilePoint(memory_mb, n, ServiceTime(seconds), seconds) for memory_mb, n, seconds in times]
    both = [application("web", 50.0, 0.1), application("report", 1.0, 0.5)]
    answer = recommend_sharing(asked(ServiceProfile(function="m-{memory_mb}", points=points), goal=EVERY_LOAD), both)
    (queue,) = answer.queues
    assert isinstance(queue, ServedQueue) and not queue.functions
    said = "One function serves web and report at every size of a batch: another for some saves less than 0.5 % from 0.1 to 100"
    assert f"{said} times these rates." in told.sentences(answer)


@pytest.mark.proof
def test_two_queues_are_one_where_that_is_cheaper_once_the_size_of_a_batch_chooses_its_function() -> None:
    """Set 4 has a queue more where one function serves each."""
    names = [
        [{of.name for of in queue.applications} for queue in recommend_sharing(asked(goal=goal), drawn(4, 4)).queues]
        for goal in (Goal(), Goal(loads=(0.1, 1000.0)))
    ]
    assert [len(groups) for groups in names] == [3, 2] and names[1][1] == names[0][1] | names[0][2]
