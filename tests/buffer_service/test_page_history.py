"""What happened between two samples of a model's counters, fact by fact; the time is a number."""

import math

import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, Slo
from sluice.batching.errors import QueueFull
from sluice.buffer_service.page.history import KEPT, MOST_PARTS, SAMPLE_EVERY, History, quantile_bounds
from sluice.buffer_service.telemetry import SECONDS, Telemetry
from sluice.buffer_service.told import Told
from sluice.lambda_fn.contract import Measured

POLICY = PolicyDocument.of(constructors.size_or_timeout(4, 0.1))


def plan(classes=()):
    return Plan(model="m", function="f", policy=POLICY, slo=Slo(0.2), classes=[RequestClass(name, Slo(0.4)) for name in classes])


@pytest.fixture
def model():
    return Telemetry().model(plan(["web"]))


def serve(model, n, latency=0.1, name=""):
    for _ in range(n):
        model.came += 1
        model.answered(200, latency, told=Told(name=name))
    model.sent(n, "f")


def test_a_window_counts_what_happened_since_its_oldest_sample_and_nothing_before(model):
    serve(model, 5, latency=9.0)
    history = History()
    history.take(100.0, model.totals())
    serve(model, 3)
    model.came += 1
    model.refused(QueueFull("m", 10))
    serve(model, 1, latency=0.3, name="web")
    window = history.window(110.0, model.totals())
    assert (window.seconds, window.came, window.ended, window.late) == (10.0, 5, 5, 2)
    assert window.refused == {"QueueFull": 1}
    assert window.arrival_rate == 0.5
    assert (sum(window.sizes.counts), window.sizes.sum) == (2, 4)
    assert (window.classes["web"].ended, window.classes["web"].late) == (1, 1)
    assert quantile_bounds(window.latency.counts, SECONDS, 0.5) == (0.075, 0.1)


def test_what_functions_told_is_counted_anew_when_the_memory_size_changes(model):
    model.invoked(0.1, 2, Measured(service=0.5))
    history = History()
    history.take(0.0, model.totals())
    model.invoked(0.1, 1, Measured(service=0.25))
    invoked = history.window(5.0, model.totals()).invoked
    assert (invoked.invocations, invoked.seconds, invoked.requests, invoked.alone) == (1, 0.25, 1, 1)
    model.follow(structs.replace(plan(), memory_mb=512, digest=""))
    for _ in range(3):
        model.invoked(0.1, 4, Measured(service=1.0))
    invoked = history.window(5.0, model.totals()).invoked
    assert (invoked.invocations, invoked.seconds, invoked.requests, invoked.alone) == (3, 3.0, 12, 0)


def test_before_any_sample_nothing_happened(model):
    serve(model, 5)
    window = History().window(7.0, model.totals())
    assert (window.came, window.ended, window.arrival_rate) == (0, 0, None)
    assert History().intervals(7.0, model.totals()) == []


def test_intervals_follow_one_another_up_to_now(model):
    history = History()
    for now, n in ((0.0, 0), (5.0, 10), (10.0, 20)):
        serve(model, n)
        history.take(now, model.totals())
    model.waiting(3)
    first, second, last = history.intervals(12.0, model.totals())
    assert [each.arrival_rate for each in (first, second, last)] == [2.0, 4.0, 0.0]
    assert [each.end for each in (first, second, last)] == [5.0, 10.0, 12.0]
    assert (last.seconds, last.waiting, second.batches, second.requests) == (2.0, 3, 1, 20)


def test_no_more_samples_are_kept_than_said_nor_more_classes(model):
    model.follow(plan([f"c{i}" for i in range(2 * MOST_PARTS)]))
    history = History()
    for i in range(3 * KEPT):
        history.take(i * SAMPLE_EVERY, model.totals())
    window = history.window(3 * KEPT * SAMPLE_EVERY, model.totals())
    assert window.seconds == KEPT * SAMPLE_EVERY
    assert len(history.intervals(3 * KEPT * SAMPLE_EVERY, model.totals())) == KEPT
    assert len(window.classes) == MOST_PARTS
    assert all(len(totals.classes) == MOST_PARTS for _, totals in history._samples)


def test_a_class_that_the_plan_lost_and_has_again_is_counted_anew(model):
    serve(model, 5, name="web")
    history = History()
    history.take(0.0, model.totals())
    model.follow(plan())
    model.follow(plan(["web"]))
    serve(model, 2, name="web")
    assert history.window(5.0, model.totals()).classes["web"].ended == 2


@pytest.mark.parametrize(
    ("counts", "quantile", "bounds"),
    [
        ([0, 0, 0], 0.5, None),
        ([1, 0, 0], 0.5, (0.0, 1.0)),
        ([1, 1, 0], 0.5, (0.0, 1.0)),
        ([1, 1, 0], 0.51, (1.0, 2.0)),
        ([0, 0, 1], 0.01, (2.0, math.inf)),
    ],
)
def test_a_quantile_lies_between_the_ends_of_its_bucket(counts, quantile, bounds):
    assert quantile_bounds(counts, (1.0, 2.0), quantile) == bounds
