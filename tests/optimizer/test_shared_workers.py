"""Workers that applications share: the grouping, what was simulated, the plan, and what bounds the search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, read, write
from sluice.batching.errors import Infeasible
from sluice.buffer_service.plans import check_waits
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import mmpp2
from sluice.optimizer.baselines import Situation, Workload, written
from sluice.optimizer.billing import Billing
from sluice.optimizer.recommend import Application, Goal, Question, SharingAnswer, WorkerOffer, machine_offer, recommend_sharing
from sluice.optimizer.recommend import shared_workers as searched
from sluice.optimizer.recommend.application import by_promise
from sluice.optimizer.recommend.demand import SharedDemand
from sluice.optimizer.recommend.horizon import Horizon
from sluice.optimizer.recommend.queues_on_record import merged
from sluice.optimizer.recommend.shared_queues import SharedQueues
from sluice.optimizer.recommend.shared_workers import Group, SharedWorkers
from sluice.optimizer.recommend.worker_queue import WorkerQueue
from sluice.optimizer.report import sharing as told
from sluice.optimizer.simulation import simulate_deployments
from sluice.optimizer.simulation.chunks import MergedArrivals
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.function import Function
from tests.optimizer.batcher_loop import run_batcher
from tests.optimizer.test_sharing import CORE, application, asked, drawn, profile, queues_of

THREE = [application("web", 300.0, 0.1), application("report", 50.0, 0.5), application("nightly", 5.0, 2.0, 99.0)]


def machine(usd_per_hour: float, **others: float) -> WorkerOffer:
    return machine_offer("core", profile(memory_sizes=(CORE,), **others), usd_per_hour, 32)  # type: ignore[arg-type]


def offered(*offers: WorkerOffer, **others: object) -> Question:
    return replace(asked(**others), offers=offers)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def answer() -> SharingAnswer:
    return recommend_sharing(offered(machine(0.02)), THREE)


@pytest.fixture(scope="module")
def by_functions() -> SharingAnswer:
    """The answer where no workers are offered."""
    return recommend_sharing(asked(), THREE)


def test_a_group_is_served_by_workers_where_these_cost_less(answer: SharingAnswer, by_functions: SharingAnswer) -> None:
    (queue,) = answer.queues
    assert isinstance(queue, WorkerQueue) and queue.policy.servers == queue.setting.workers == 1
    assert queue.cost.machines * queue.arrival_rate * 3600 == pytest.approx(0.02)
    assert answer.cost.per_request < by_functions.cost.per_request
    assert all(low <= of.slo.latency for of, (_, low, _) in zip(queue.applications, map(queue.reached, range(3)), strict=True))


def test_workers_cost_what_the_plan_is_billed_on_the_arrivals_recorded() -> None:
    times = [
        np.cumsum(of.arrivals.sample(int(200 * of.arrivals.arrival_rate), np.random.default_rng(k))) for k, of in enumerate(THREE)
    ]
    known = [replace(of, recorded=came) for of, came in zip(THREE, times, strict=True)]
    answer, run = recommend_sharing(offered(machine(0.02)), known), merged(times)
    (queue,) = answer.queues
    assert run is not None and isinstance(queue, WorkerQueue)
    function = Function(answer.question.profile, CORE, answer.question.billing)
    workload = Workload(THREE[0].arrivals, run.times, run, tuple(of.name for of in THREE))
    of_plan = written(answer.plan("m"), Situation(workload, function, worker=machine(0.02)))
    seen = simulate_deployments({"": of_plan}, run)[""]
    assert answer.cost.per_request == pytest.approx(seen.cost.per_request, rel=1e-12)
    assert answer.fitted is not None and answer.fitted.per_request == pytest.approx(answer.cost.per_request, rel=0.1)


def test_the_plan_is_what_was_simulated_and_keeps_every_promise_in_another_run_and_with_the_batcher(answer: SharingAnswer) -> None:
    plan = read(Plan, write(answer.plan("m")))
    (queue,) = answer.queues
    assert isinstance(queue, WorkerQueue) and plan.policy is not None
    assert (plan.function, plan.policy.policy().servers) == (queue.setting.offer.function, 1)
    assert [of.slack for of in plan.classes] == list(queue.slacks) == [0.0, 0.4, pytest.approx(1.9)]
    offer = queue.setting.offer
    deployment = replace(offer.under(plan.policy.policy()), classes=plan.classes)
    arrivals = MergedArrivals([of.arrivals for of in queue.applications], 60_000, 7)
    times, classes = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    run = simulate_deployment(deployment, times, np.random.default_rng(3), classes=classes)
    for k, of in enumerate(plan.classes):
        assert of.slo is not None and (run.of_class(k).latency > of.slo.latency).mean() <= of.slo.error_budget
    few = slice(0, 2000)
    slacks = [plan.classes[k].slack or 0.0 for k in classes[few]]
    specified = run_batcher(plan.policy.policy(), times[few], offer.service, np.random.default_rng(3), slacks=slacks)
    run = simulate_deployment(deployment, times[few], np.random.default_rng(3), classes=classes[few])
    assert [len(members) for *_, members in specified] == run.batch_sizes.tolist()
    assert [leaves for leaves, *_ in specified] == pytest.approx(run.dispatch_times.tolist())


def test_what_is_told_of_workers_says_how_many_and_what_each_class_met(answer: SharingAnswer) -> None:
    assert "(up to 32, at once, 1 × core)" in told.headline(answer)
    first, second, *_ = told.sentences(answer)
    assert first.startswith("Every promise is kept: of web, report and nightly in a run of these arrivals, with 95 % confidence.")
    assert second == "web, report and nightly: Serve with 1 worker (core); a free one takes all that wait, up to 32."
    (queue,) = told.sharing_document(answer, answer.plan("m"))["queues"]
    assert [of["method"] for of in queue["classes"]] == ["simulated"] * 3 and all(of["interval"] for of in queue["classes"])


def test_a_function_beside_the_workers_takes_what_they_cannot_serve_in_time_and_nobody_is_late() -> None:
    core = replace(machine(0.05), function="http://core:8500")
    more = [application("web", 1000.0, 0.1), application("report", 200.0, 0.5), application("nightly", 5.0, 2.0)]
    answer = recommend_sharing(offered(core), more)
    (queue,) = answer.queues
    assert isinstance(queue, WorkerQueue) and queue.setting.workers == 1 and queue.memory_mb == 885
    assert "at the last moment the function with 885 MB takes the oldest" in told.sentences(answer)[1]
    assert told.sentences(answer)[0].startswith("Every promise is kept by the table, whatever the arrivals do.")
    plan = read(Plan, write(answer.plan("m")))
    check_waits(plan, 60.0)
    (beside,) = plan.beside
    assert plan.policy is not None and (plan.function, beside.function) == ("http://core:8500", "perceptron-885")
    function = Function(profile(), 885, Billing())
    overflow = function.beside(beside.policy.policy())
    deployment = replace(core.under(plan.policy.policy(), beside=[overflow]), classes=plan.classes)
    arrivals = MergedArrivals([of.arrivals for of in queue.applications], 60_000, 7)
    times, classes = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    run = simulate_deployment(deployment, times, np.random.default_rng(3), classes=classes)
    for k, of in enumerate(queue.applications):
        assert run.of_class(k).latency.max() <= of.slo.latency + 1e-9
    by_function = run.batch_sizes[run.by_function].sum() / len(times)
    assert by_function == pytest.approx(queue.setting.by_function.value, rel=0.2)  # type: ignore[union-attr]


class Priced(SharedWorkers):
    """Workers whose cost for a group is told, beyond what is said to be the least."""

    def __init__(self, applications: tuple[Application, ...], seed: int) -> None:
        super().__init__(applications, offered(machine(0.03)))
        self._rng, self.asked = np.random.default_rng(seed), 0
        n = len(applications)
        groups = [group for size in range(1, n + 1) for group in itertools.combinations(range(n), size)]
        self._beyond = dict(zip(groups, 1 + self._rng.exponential(0.3, len(groups)), strict=True))

    def _cheapest(self, group: Group, cheaper_than: float) -> WorkerQueue | None:
        self.asked += 1
        usd = self.usd(group)
        applications = tuple(self._applications[k] for k in group)
        return Told(applications, usd, self._rates[list(group)].sum()) if usd < cheaper_than else None

    def beside(self, group: Group, cheaper_than: float) -> WorkerQueue | None:
        return None

    def usd(self, group: Group) -> float:
        """No part of a group costs more than the group."""
        rates = self._rates
        parts = (part for size in range(1, len(group) + 1) for part in itertools.combinations(group, size))
        per_second = max(self._floor(part) * self._beyond[part] * rates[list(part)].sum() for part in parts)
        return float(per_second / rates[list(group)].sum())

    def _floor(self, group: Group) -> float:
        return self._least_of(0, group, float(self._rates[list(group)].sum()))


class Told(WorkerQueue):
    """A queue of which only the cost is known."""

    def __init__(self, applications: tuple[Application, ...], usd: float, rate: float) -> None:
        object.__setattr__(self, "applications", applications)
        object.__setattr__(self, "_told", (usd, rate))

    @property
    def usd(self) -> float:
        return float(self.__dict__["_told"][0])

    @property
    def arrival_rate(self) -> float:
        return float(self.__dict__["_told"][1])


def partitions(n: int) -> list[list[Group]]:
    if n == 0:
        return [[]]
    found = []
    for parts in partitions(n - 1):
        found += [[*parts, (n - 1,)], *([*parts[:i], (*part, n - 1), *parts[i + 1 :]] for i, part in enumerate(parts))]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_over_functions_and_workers_is_cheaper_than_what_is_found(seed: int) -> None:
    applications = by_promise(drawn(seed, 5))
    functions = queues_of(list(applications))
    workers = Priced(applications, seed)
    shared = SharedQueues(applications, functions._services, functions._usd, None, workers)
    found = shared.cheapest()
    assert found is not None
    rates: Array = shared._rates

    def cost(group: Group) -> float:
        by_function = functions.together(group)
        usd = min(np.inf if by_function is None else by_function.usd, workers.usd(group))
        return float(usd * rates[list(group)].sum())

    least = min(sum(map(cost, parts)) for parts in partitions(5))
    assert sum(queue.usd * queue.arrival_rate for queue in found) == pytest.approx(least, rel=1e-9)
    assert workers.asked < 31  # of 31 groups


def test_workers_too_dear_for_every_group_are_not_simulated(by_functions: SharingAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "WorkerTrials", None)  # who simulates fails
    dear = recommend_sharing(offered(machine(5.0)), THREE)
    assert dear.cost == by_functions.cost and not dear.cut_short


def test_the_least_that_is_said_of_a_group_is_beneath_what_it_comes_to(answer: SharingAnswer) -> None:
    workers = SharedWorkers(by_promise(THREE), offered(machine(0.02)))
    (queue,) = answer.queues
    neighbours = workers.least_of_neighbours()
    assert workers.least((0, 1, 2)) <= queue.usd
    for start, end in itertools.combinations(range(4), 2):
        group = tuple(range(start, end))
        assert neighbours[start, end] == pytest.approx(workers.least(group) * workers._rates[list(group)].sum())


def test_a_search_that_is_spent_takes_the_functions_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "MOST_SIMULATED", 0)
    cut = recommend_sharing(offered(machine(0.02)), THREE)
    assert cut.cut_short and not any(isinstance(of, WorkerQueue) and of.setting.rests_on_fit for of in cut.queues)
    assert "Not every group for which workers may be cheaper was simulated: there are too many." in told.sentences(cut)


def test_a_promise_that_workers_alone_keep_is_kept() -> None:
    quick = machine(0.02, intercept=0.001, slope=0.0001)
    strict = [application("strict", 50.0, 0.004), application("calm", 20.0, 1.0)]
    with pytest.raises(Infeasible, match="class strict: no function"):
        recommend_sharing(asked(), strict)
    answer = recommend_sharing(offered(quick), strict)
    assert isinstance(answer.queues[0], WorkerQueue) and "no batching" not in answer.compared
    assert answer.at_the_strictest is None and all(sentence for sentence in told.sentences(answer))
    with pytest.raises(Infeasible, match="for one request, and workers do not either \\(core\\)"):
        recommend_sharing(offered(quick), [application("a", 5.0, 0.001), application("b", 5.0, 1.0)])


def test_more_workers_than_can_be_had_for_all_queues_together_do_not_compete() -> None:
    far = [application("web", 300.0, 0.0065), application("night", 300.0, 2.0)]  # one at a time, and many together
    free, bound = (recommend_sharing(offered(replace(machine(0.01), max_workers=most)), far) for most in (100, 5))
    wanted = [queue.setting.workers for queue in free.queues if isinstance(queue, WorkerQueue)]
    assert len(wanted) == 2 and max(wanted) <= 5 < sum(wanted)
    assert not any(isinstance(queue, WorkerQueue) for queue in bound.queues)


def test_a_rare_class_comes_often_enough_in_a_run_to_tell_whether_its_promise_is_kept() -> None:
    demand = SharedDemand((application("often", 500.0, 0.1), application("rare", 0.01, 0.5)))
    offer = machine(0.1)
    horizon = Horizon.of(demand.arrivals, offer, policies.greedy(8, 2))
    often, rare = demand.drawn(horizon, 1 << 18, np.random.default_rng(0)).places
    assert len(rare) > 0.7 * 8 / 0.05  # 5 of these would come otherwise
    assert len(often) > 0.99 * (1 << 18)


def test_phases_that_no_run_shows_leave_a_group_to_the_function() -> None:
    lasting = mmpp2(200.0, 50.0, 1e-6, 1e-6)
    workers = SharedWorkers(by_promise([application("web", lasting, 0.1)]), offered(machine(0.001)))
    assert workers.least((0,)) < 1.0 and workers.cheapest((0,), 1.0) is None


def test_what_rests_on_no_fit_is_taken_up_to_the_premium(by_functions: SharingAnswer) -> None:
    (by_function,) = by_functions.queues
    hour = 0.95 * by_function.cost.per_request * by_function.arrival_rate * 3600
    for part, rests in ((0.0, True), (0.1, False)):
        (queue,) = recommend_sharing(offered(machine(hour), goal=Goal(premium=part)), THREE).queues
        assert (isinstance(queue, WorkerQueue) and queue.setting.rests_on_fit) == rests
