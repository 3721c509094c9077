"""Requests of several classes in the simulator: against the batcher and the specification of deployments, and what is counted."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching import Policy
from sluice.batching import policy as policies
from sluice.batching.documents import RequestClass, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function import shared_holds_law
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import chunks, queue_loop, queue_run
from sluice.optimizer.simulation.chunks import MergedArrivals, SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Adaptation, Beside, Deployment, Environments
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.schedule import KEEP, Schedule
from sluice.optimizer.simulation.several_queues import RoutedDeployment
from sluice.optimizer.simulation.sized_deployment import SizedDeployment, SizedQueue
from sluice.optimizer.simulation.statistics import RunStatistics, cheapest_kept
from sluice.optimizer.simulation.streaming import simulate_deployments
from tests.batching import strategies
from tests.optimizer.batcher_loop import run_batcher
from tests.optimizer.deployment_loop import run_deployment
from tests.optimizer.queue_stimuli import environments, gaps, rng, run_in_chunks, service, splits


def deterministic(*seconds: float) -> ServiceTimes:
    return ServiceTimes(1024, np.array(seconds)[:, None], np.zeros(len(seconds)), np.array(seconds))


def with_slacks(*slacks: float) -> list[RequestClass]:
    return [RequestClass(f"c{k}", slack=slack) for k, slack in enumerate(slacks)]


classes = st.lists(st.integers(-64, 64).map(lambda n: n / 64) | st.just(0.0), min_size=1, max_size=4).map(lambda s: with_slacks(*s))


def drawn_classes(data: st.DataObject, classes: list[RequestClass], n: int) -> Indices:
    place = st.integers(0, len(classes) - 1)
    return np.array(data.draw(st.lists(place, min_size=n, max_size=n)), dtype=np.int64)


# --- the same table, the same stimuli


@settings(max_examples=80, deadline=None)
@given(st.lists(strategies.policies_with_tables_beside(), min_size=1, max_size=3), classes, st.data(), gaps, service, splits)
def test_every_batch_is_that_of_a_batcher_that_knows_the_slacks(
    tables: list[Policy],
    classes: list[RequestClass],
    data: st.DataObject,
    gaps: list[float],
    service: ServiceTimes,
    sizes: list[int],
) -> None:
    beside, elastic = tables[0].beside, tables[0].servers is None
    own = [replace(table, servers=None if elastic else data.draw(st.integers(1, 3)), beside=()) for table in tables]
    swaps = data.draw(st.lists(st.tuples(strategies.ticks | st.just(0.0), st.integers(0, len(own) - 1)), max_size=20))
    schedule = Schedule(own, np.cumsum([gap for gap, _ in swaps]), [to for _, to in swaps])
    times, class_of = np.cumsum(gaps), drawn_classes(data, classes, len(gaps))
    deployment = Deployment(schedule, service, beside=[Beside(table, service) for table in beside], classes=classes)
    served = run_in_chunks(deployment, times, sizes, class_of)
    by_table: list[int] = []
    expected = run_batcher(schedule, times, service, rng(), beside, by_table, [classes[k].slack or 0.0 for k in class_of])
    assert [(leaves, response, members) for leaves, response, members, *_ in served] == expected
    assert [place for *_, place, _ in served] == by_table


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(st.data(), classes, gaps, service, st.none() | environments, splits)
def test_all_that_a_deployment_may_have_serves_classes_as_specified(
    data: st.DataObject,
    classes: list[RequestClass],
    gaps: list[float],
    service: ServiceTimes,
    environments: Environments | None,
    sizes: list[int],
) -> None:
    tables = [replace(table, servers=1) for table in data.draw(st.lists(strategies.any_tables, min_size=1, max_size=3))]
    place = st.integers(0, len(tables) - 1)
    swap = st.tuples(strategies.ticks | st.just(0.0), place | st.just(KEEP), st.integers(0, 3))
    swaps = data.draw(st.lists(swap, max_size=20))
    servers = [data.draw(st.integers(0, 3)), *(count for *_, count in swaps)]
    schedule = Schedule(tables, np.cumsum([gap for gap, *_ in swaps]), [to for _, to, _ in swaps], data.draw(place), servers)
    second = data.draw(st.none() | strategies.any_tables)
    beside = [] if second is None else [Beside(replace(second, servers=None, drop_after=None), service, environments)]
    adaptation = None
    if data.draw(st.booleans()):
        successors = st.lists(place, min_size=len(tables), max_size=len(tables))
        adaptation = Adaptation(data.draw(strategies.ticks) + 1 / 64, data.draw(successors), data.draw(successors))
    deployment = Deployment(schedule, service, beside=beside, adaptation=adaptation, classes=classes)
    times, class_of = np.cumsum(gaps), drawn_classes(data, classes, len(gaps))
    assert run_in_chunks(deployment, times, sizes, class_of) == run_deployment(deployment, times, rng(), class_of.tolist())


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(strategies.any_tables, environments, classes, st.data(), gaps, service, splits)
def test_environments_serve_classes_as_specified(
    policy: Policy,
    environments: Environments,
    classes: list[RequestClass],
    data: st.DataObject,
    gaps: list[float],
    service: ServiceTimes,
    sizes: list[int],
) -> None:
    deployment = Deployment(replace(policy, servers=None), service, environments, classes=classes)
    times, class_of = np.cumsum(gaps), drawn_classes(data, classes, len(gaps))
    assert run_in_chunks(deployment, times, sizes, class_of) == run_deployment(deployment, times, rng(), class_of.tolist())


def test_classes_without_slack_are_as_none() -> None:
    table = Policy([math.inf, 0.02, 0.01, 0.005, 0.0], [0, 1, 2, 3, 4], drop_after=0.1)
    times = np.cumsum(np.random.default_rng(1).exponential(1 / 300, 5000))
    class_of = np.random.default_rng(2).integers(0, 3, 5000)
    alike = simulate_deployment(Deployment(table, TIMES), times, rng())
    run = simulate_deployment(Deployment(table, TIMES, classes=with_slacks(0.0, 0.0, 0.0)), times, rng(), classes=class_of)
    assert np.array_equal(run.latency, alike.latency, equal_nan=True) and np.array_equal(run.batch_of, alike.batch_of)


# --- what an error planted in the loop leads to

SEEDS = 200
PLANTED = {
    "waits for no slack": ("begins = arrivals[heads[line]] + slacks[line]", "begins = arrivals[heads[line]]"),
    "serves who came first first": ("begins = arrivals[heads[other]] + slacks[other]", "begins = arrivals[heads[other]]"),
    "has a hold of 0 wait for a slack": ("leaves = leaves or hold[table, row] == 0", "pass"),
    "drops by the arrival": (
        "now > begins + drop_after",
        "now > (begins if lines is None else arrivals[heads[line]]) + drop_after",
    ),
    "drops by the arrival while servers are busy": (
        "arrivals[heads[line]] + slacks[line] + drop_after",
        "arrivals[heads[line]] + drop_after",
    ),
    "drops nobody while servers are busy": ("elif drop_after < np.inf", "elif False"),
    "takes one with a slack of those who are alike": ("if alike else slacks[other] == 0", "if alike else slacks[other] != 0"),
    "takes the last of those who are alike": ("heads[other] < heads[line] if", "heads[other] > heads[line] if"),
    "takes who has not come": ("if heads[other] < tail:", "if heads[other] < len(arrivals):"),
    "fills a batch from one line": (
        "line = _most_urgent(arrivals, slacks, heads, tail)\n                    n_patient",
        "line = line if heads[line] < tail else _most_urgent(arrivals, slacks, heads, tail)\n                    n_patient",
    ),
    "counts who is patient as in a hurry": ("patient[tail] - n_patient)", "0)"),
    "counts who is patient and has left": ("patient[tail] - n_patient)", "patient[tail])"),
    "counts who is in a hurry by all who wait": ("min(waiting - patient,", "min(waiting,"),
    "has a table of one column count those in a hurry": (
        "return min(waiting, rows - 1)",
        "return min(waiting - patient, rows - 1)",
    ),
}


def without_machine_code(sound: str = "", defective: str = "") -> ModuleType:
    """The loop in plain Python, with an error in it."""
    text = Path(queue_loop.__file__).read_text()
    assert sound in text
    module = ModuleType("queue_loop_in_python")
    patched = text.replace(sound, defective).replace("@compiled\n", "").replace("@inlined\n", "")
    exec(compile(patched, module.__name__, "exec"), vars(module))
    return module


def stimulus(seed: int) -> tuple[Deployment, Array, Indices, list[int]]:
    """A small run in which many moments meet, of tables that are swapped, and its chunks."""
    draw, n = np.random.default_rng(seed), 40
    servers = [None, 1, 2][draw.integers(3)]
    tables = []
    for drop_after, columns in ((None, 1), (0.5, 1), (0.25, 3)):
        rows = int(draw.integers(2, 6)) * columns
        hold = [draw.integers(0, 24) / 64 * draw.integers(0, 2) for _ in range(rows)]
        take = [int(draw.integers(1, sum(divmod(row, columns)) + 1)) for row in range(1, rows)]
        tables.append(Policy([math.inf, *hold[1:]], [0, *take], servers, drop_after, columns=columns))
    schedule = Schedule(tables, np.sort(draw.integers(0, 160, 4)) / 64, draw.integers(0, 3, 4), int(draw.integers(3)))
    classes = with_slacks(*(draw.integers(-8, 24, draw.integers(1, 4)) / 64), 0.0)
    times = np.cumsum(draw.integers(0, 8, n) / 64)
    seconds = ServiceTimes(1024, draw.integers(1, 20, (8, 1)) / 64, np.zeros(8), np.ones(8))
    class_of, chunks = draw.integers(0, len(classes), n), draw.integers(1, 20, 4).tolist()
    return Deployment(schedule, seconds, classes=classes), times, class_of, chunks


def goes_wrong(seed: int) -> bool:
    deployment, times, class_of, chunks = stimulus(seed)
    slacks = [deployment.classes[k].slack or 0.0 for k in class_of]
    expected = run_batcher(deployment.schedule, times, deployment.service, rng(), slacks=slacks)
    try:
        return [batch[:3] for batch in run_in_chunks(deployment, times, chunks, class_of)] != expected
    except IndexError:  # it took more than waited
        return True


def test_the_loop_in_plain_python_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_run, "queue_loop", without_machine_code())
    assert not any(map(goes_wrong, range(SEEDS)))


@pytest.mark.parametrize("error", PLANTED)
def test_an_error_planted_in_the_loop_is_found(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_run, "queue_loop", without_machine_code(*PLANTED[error]))
    assert any(map(goes_wrong, range(SEEDS))), f"{SEEDS} seeds did not find a loop that {error}"


# --- what a run says

TIMES = deterministic(*np.arange(0.011, 0.019, 0.001))


def test_who_can_wait_fills_the_batches_of_those_who_cannot_and_waits_his_own_time_alone() -> None:
    deployment = Deployment(policies.size_or_timeout(4, 0.25), deterministic(*[0.5] * 4), classes=with_slacks(0.0, 2.0))
    run = simulate_deployment(deployment, np.array([0.0, 1.0, 4.0, 5.0]), rng(), classes=np.array([1, 0, 1, 1]))
    assert run.dispatch_times.tolist() == [1.25, 6.25] and run.batch_of.tolist() == [0, 0, 1, 1]
    assert run.waiting_time.tolist() == [1.25, 0.25, 2.25, 1.25]
    assert run.of_class(0).latency.tolist() == [0.75] and run.of_class(1).latency.tolist() == [1.75, 2.75, 1.75]


def test_the_batches_of_a_run_with_classes_are_ranges_of_the_order_in_which_requests_left() -> None:
    deployment = Deployment(policies.greedy(1), deterministic(1.0), classes=with_slacks(0.0, 9.0))
    run = simulate_deployment(deployment, np.array([0.0, 0.1, 0.2, 0.3]), rng(), classes=np.array([1, 1, 0, 0]))
    assert run.order is not None and run.order.tolist() == [0, 2, 3, 1]
    assert run.batch_of.tolist() == [0, 3, 1, 2] and run.mean_batch_size == 1.0


def test_each_class_has_percentiles_and_violations_of_its_own() -> None:
    times = np.arange(2000) * 0.01
    deployment = Deployment(policies.size_or_timeout(1, 0.0), deterministic(0.005), classes=with_slacks(0.0, 0.0))
    run = simulate_deployment(deployment, times, rng(), classes=np.arange(2000) % 2)
    assert run.of_class(1).percentile(95).value == pytest.approx(0.005)
    assert run.of_class(1).estimate_violations(0.001).value == 1.0 and run.of_class(0).estimate_violations(0.006).value == 0.0


ROUTED = [RequestClass("a", slack=0.0, route="r")]
CLASSED = Deployment(policies.no_batching(), deterministic(0.5), classes=with_slacks(0.0, 1.0))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: simulate_deployment(CLASSED, np.zeros(3), rng()), "classes: 0 .* one for each of 3 arrivals"),
        (lambda: simulate_deployment(CLASSED, np.zeros(1), rng(), classes=np.array([2])), "class: 2 .* from 0 to 1, the place"),
        (lambda: simulate_deployment(CLASSED, np.zeros(1), rng(), classes=np.array([-1])), "class: -1 .* from 0 to 1"),
        (
            lambda: simulate_deployment(replace(CLASSED, classes=()), np.zeros(1), rng(), classes=np.array([0])),
            "classes: 1 .* none, as the deployment has none",
        ),
        (
            lambda: Deployment(policies.no_batching(), TIMES, classes=[RequestClass("a")]),
            "slack of a: none was given; needed: .* -86400 to 86400",
        ),
        (lambda: Deployment(policies.no_batching(), TIMES, classes=with_slacks(1e9)), "slack of c0: 1000000000.0 .* 86400"),
        (lambda: Deployment(policies.no_batching(), TIMES, classes=with_slacks(*[0.0] * 257)), "classes: 257 .* at most 256"),
    ],
)
def test_classes_that_cannot_be_are_refused(run: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run()


# --- what is counted of a long run

SEVERAL = [poisson(200), mmpp2(100, 10, 0.5, 0.5), poisson(2)]
PROMISED = [
    RequestClass("interactive", Slo(0.1), 0.0),
    RequestClass("report", Slo(0.5, 99), 0.4),
    RequestClass("nightly", slack=5.0),
]
HELD = Policy([math.inf, *[0.08] * 3, 0.0], [0, 1, 2, 3, 4], servers=3, drop_after=0.09)
DEPLOYMENT = Deployment(HELD, deterministic(0.025, 0.026, 0.027, 0.05), classes=PROMISED)


def test_processes_are_merged_in_the_order_of_their_times() -> None:
    arrivals = MergedArrivals(SEVERAL, 20_000, seed=3)
    times, class_of = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    assert len(times) == len(class_of) == 20_000 and (np.diff(times) >= 0).all()
    for k, process in enumerate(SEVERAL):
        rng = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(4, k)))
        alone = np.cumsum(process.sample(20_000, rng))
        assert times[class_of == k] == pytest.approx(alone[: (class_of == k).sum()])
        n = int((class_of == k).sum())
        assert alone[n] > times[-1]  # all of it that came by then is there


def test_merged_arrivals_do_not_depend_on_their_pieces_but_by_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(MergedArrivals([poisson(5), poisson(1)], 3000, seed=1).chunks()))
    monkeypatch.setattr(chunks, "CHUNK", 100)
    pieces = list(MergedArrivals([poisson(5), poisson(1)], 3000, seed=1).chunks())
    assert len(pieces) > 10 and np.concatenate(pieces) == pytest.approx(whole)


def test_the_statistics_of_each_class_are_those_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 777)
    arrivals = MergedArrivals(SEVERAL, 30_000, seed=5)
    times, class_of = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    whole = simulate_deployment(DEPLOYMENT, times, np.random.default_rng(7), classes=class_of)
    run = simulate_deployments({"it": DEPLOYMENT}, arrivals, [0.1], seed=7)["it"]
    assert run.n_batches == whole.n_batches and run.answered == int(whole.answered.sum()) < 30_000
    assert run.violations() == pytest.approx(whole.estimate_violations(0.1))
    for k, of in enumerate(run.classes):
        alone = whole.of_class(k)
        assert of.n_requests == (class_of == k).sum() and of.answered == int((~np.isnan(alone.latency)).sum())
        if of.estimates:
            assert of.percentile(95).value == pytest.approx(alone.percentile(95).value, rel=1e-3)
        for slo in of.slos:
            assert of.violations() == pytest.approx(alone.estimate_violations(slo.latency))
    assert [of.estimates for of in run.classes] == [True, True, True] and [len(of.slos) for of in run.classes] == [1, 1, 0]


def test_a_run_keeps_its_promises_where_each_class_does() -> None:
    times = np.arange(4000) * 0.04
    arrivals = TraceArrivals(times, classes=np.arange(4000) % 2)
    table = policies.size_or_timeout(2, 0.05)

    def run(*slos: Slo | None) -> RunStatistics:
        classes = [RequestClass(f"c{k}", slo, 0.0) for k, slo in enumerate(slos)]
        return simulate_deployments({"it": Deployment(table, deterministic(0.01, 0.01), classes=classes)}, arrivals)["it"]

    slow, quick, none = Slo(1.0), Slo(0.02), None
    assert run(slow, slow).surely_keeps([]) is True and run(slow, slow).keeps([])
    assert run(quick, slow).surely_keeps([]) is False and not run(quick, slow).keeps([])  # the first of two waits for the second
    assert [of.kept for of in run(slow, none).classes] == [True, True] and run(none, none).promises is False
    assert cheapest_kept({"a": run(slow, slow)}, []) == "a" and cheapest_kept({"a": run(none, none)}, []) is None


def test_a_class_of_few_requests_tells_how_many_and_keeps_nothing_surely() -> None:
    arrivals = TraceArrivals(np.arange(200.0), classes=(np.arange(200) == 7).astype(int))
    classes = [RequestClass("most", Slo(1.0), 0.0), RequestClass("few", Slo(1.0), 0.0), RequestClass("none", Slo(1.0), 0.0)]
    run = simulate_deployments({"it": Deployment(policies.no_batching(), deterministic(0.5), classes=classes)}, arrivals)["it"]
    assert [(of.n_requests, of.estimates, of.kept) for of in run.classes] == [(199, True, True), (1, False, None), (0, False, None)]
    assert run.surely_keeps([]) is None and run.keeps([])


def test_classes_that_choose_their_route_are_served_as_each_queue_alone_serves_its_own() -> None:
    classes = [
        RequestClass("report", Slo(0.5), 0.4, route="slow"),
        RequestClass("interactive", Slo(0.1), 0.0, route="fast"),
        RequestClass("page", Slo(0.3), 0.2, route="fast"),
    ]
    fast = Deployment(policies.size_or_timeout(4, 0.08), deterministic(0.015, 0.016, 0.017, 0.018))
    slow = Deployment(policies.size_or_timeout(8, 0.4), deterministic(*[0.05] * 8))
    arrivals = MergedArrivals(SEVERAL, 20_000, seed=5)
    times, class_of = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
    routed = RoutedDeployment(classes, {"fast": fast, "slow": slow})
    run = simulate_deployments({"it": routed}, arrivals, [0.5])["it"]
    quick = np.flatnonzero(class_of != 0)
    alone = simulate_deployment(routed.deployments[0], times[quick], rng(), classes=class_of[quick] - 1)
    assert [of.n_requests for of in run.queues] == [len(quick), 20_000 - len(quick)]
    assert [of.request_class.name for of in run.classes] == ["interactive", "page", "report"]
    for k, of in enumerate(run.queues[0].classes):
        assert of.violations() == pytest.approx(alone.of_class(k).estimate_violations(of.slos[0].latency), rel=0.1)
    assert run.queues[0].mean_batch_size == pytest.approx(alone.mean_batch_size)
    assert run.n_batches == sum(of.n_batches for of in run.queues) and run.answered == 20_000
    assert run.cost.per_request == pytest.approx(sum(of.answered * of.cost.per_request for of in run.queues) / 20_000, rel=1e-6)
    assert routed.with_energy(np.ones(8)).energy is not None and routed.names == ["fast", "slow"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda: simulate_deployments({"a": DEPLOYMENT}, SampledArrivals(poisson(1), 100, 0)),
            "classes: none was given; .* has some",
        ),
        (
            lambda: simulate_deployments({"a": DEPLOYMENT}, TraceArrivals(np.arange(100.0), classes=np.full(100, 3))),
            "class: 3 .* from 0 to 2, the place",
        ),
        (lambda: TraceArrivals(np.arange(100.0), classes=np.zeros(3)), "classes: 3 .* one for each of 100"),
        (
            lambda: simulate_deployments({"a": RoutedDeployment(ROUTED, {"r": DEPLOYMENT})}, SampledArrivals(poisson(1), 100, 0)),
            "classes: none was given; .* the queues are chosen by them",
        ),
        (
            lambda: simulate_deployments(
                {"a": RoutedDeployment(ROUTED, {"r": DEPLOYMENT})}, TraceArrivals(np.arange(100.0), classes=np.full(100, -1))
            ),
            "class: -1 .* from 0 to 0, the place",
        ),
        (lambda: RoutedDeployment(ROUTED, {"s": DEPLOYMENT}), "route of a: 'r' .* one of: s"),
        (lambda: RoutedDeployment(ROUTED, {"r": DEPLOYMENT, "s": DEPLOYMENT}), "classes of s: 0 .* at least one"),
        (lambda: SizedDeployment([SizedQueue(math.inf, DEPLOYMENT)]), "classes: 3 .* none, as the queues are chosen by size"),
        (lambda: MergedArrivals([], 10, 0), "processes: 0 .* at least one"),
        (lambda: MergedArrivals(SEVERAL, 0, 0), "n_requests: 0 .* integer >= 1"),
        (lambda: MergedArrivals(SEVERAL, 10, -1), "seed: -1 .* integer >= 0"),
    ],
)
def test_runs_of_classes_that_cannot_be_are_refused(run: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run()


# --- the exact law of classes that share a table


@pytest.mark.parametrize("holds", [(0.12, 0.1, 0.06), (0.06, 0.12, 0.02)])
def test_classes_wait_as_their_law_says(holds: tuple[float, ...]) -> None:
    """Shares of each class within four latencies, and the mean batch, within 4 standard errors of 12 runs; exact, or as drawn."""
    table, slacks = Policy([math.inf, *holds, 0.0], [0, 1, 2, 3, 4]), [0.0, 0.1, 3.0]
    processes, seconds = [poisson(12), mmpp2(30, 2, 1.0, 0.5), poisson(3)], deterministic(0.011, 0.012, 0.013, 0.014)
    law = shared_holds_law(processes, slacks, np.array(table.hold[1:-1]))
    deployment = Deployment(table, seconds, classes=with_slacks(*slacks))
    runs = []
    for seed in range(12):
        arrivals = MergedArrivals(processes, 6000, seed)
        times, class_of = (np.concatenate(list(pieces)) for pieces in (arrivals.chunks(), arrivals.class_chunks()))
        runs.append(simulate_deployment(deployment, times, rng(), classes=class_of))
    seen = [(law.mean_batch_size[-1], [run.mean_batch_size for run in runs])]
    for k in range(3):
        latency = law.latency(k, seconds)
        for within in (0.03, 0.08, 0.13, 0.2):
            seen.append(
                (latency.cdf(np.array([within])).item(), [float((run.of_class(k).latency <= within).mean()) for run in runs])
            )
    for law_says, values in seen:
        drawn = 0.004 if law.latency(0, seconds).confidence else 0.0  # what a law of drawn arrivals may be off by
        assert abs(np.mean(values) - law_says) < 4 * np.std(values, ddof=1) / math.sqrt(len(values)) + 1e-9 + drawn * law_says
