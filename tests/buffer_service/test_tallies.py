"""What a scrape finds in our tallies is what it finds in the library's, at once or in pieces."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sluice.buffer_service.tallies import Amounts, Counters, Distribution, Gauges, Histograms, Registry

ENDS = (0.001, 0.5, 1, 60)


def text(registry):
    """A scrape, but for when each series began, which ours do not say."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_histograms_are_those_of_the_library_also_at_the_ends_of_buckets_and_beyond():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histograms("seconds", "How long.", ("model",), ENDS, ours)
    other = Histogram("seconds", "How long.", ("model",), buckets=ENDS, registry=theirs)
    for value in (*ENDS, 0.0, 61.0, *np.random.default_rng(1).exponential(0.7, 200)):
        for histograms in (mine, other):
            histograms.labels("a").observe(value)
    for histograms in (mine, other):
        histograms.labels("never")
    assert text(ours) == text(theirs)


def test_values_together_are_counted_as_each_alone():
    values = [0.0, 0.1, 0.25, 0.3, 7.0, 0.1]
    together, alone = Distribution([0.1, 0.25, 1.0]), Distribution([0.1, 0.25, 1.0])
    together.observe_all(values)
    for value in values:
        alone.observe(value)
    assert list(together.buckets()) == list(alone.buckets())
    assert together.counts == [3, 1, 1, 1]
    assert together.sum == pytest.approx(alone.sum)


def test_counters_are_those_of_the_library_and_are_forgotten_by_any_of_their_labels():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Counters("requests", "By status.", ("model", "status"), ours)
    other = Counter("requests", "By status.", ("model", "status"), registry=theirs)
    for labels in (("a", "200"), ("b", "200"), ("a", "200"), ("a", "500")):
        mine.labels(*labels).value += 1
        other.labels(*labels).inc()
    assert text(ours) == text(theirs)
    for counters in (mine, other):
        counters.remove_by_labels({"model": "a"})
    assert text(ours) == text(theirs)
    assert mine.labels("a", "200").value == 0


def test_a_name_is_taken_once():
    registry = CollectorRegistry()
    Counters("requests", "By status.", (), registry)
    with pytest.raises(ValueError, match="requests"):
        Histograms("requests", "By status.", (), ENDS, registry)


STRANGE = 'back\\slash "quoted"\nnew line'


def filled():
    """A registry of ours with each kind, one of the library's, labels around ``le``, and nobody's series."""
    registry = Registry()
    counters = Counters("requests", "By status.", ("model", "status"), registry)
    gauges = Gauges("waiting", "When last seen.", ("model",), registry)
    histograms = Histograms("seconds", "How long.", ("class", "model"), ENDS, registry)
    Gauge("of_the_library", "Not ours.", registry=registry).set(3.5)
    Counters("never", "Of nobody.", ("model",), registry)
    Amounts("usd", "Of money.", ("model",), registry).labels("a").value += 0.25
    Counters("unnamed", "Without labels.", (), registry).labels().value = 7
    for model in ("a", STRANGE):
        counters.labels(model, "200").value = 12_345_678
        counters.labels(model, "500")
        gauges.labels(model).value = 0.1 if model == "a" else 10_000_000
        for value in (*ENDS, 0.0, 61.0):
            histograms.labels("z", model).observe(value)
    return registry, counters, gauges, histograms


def test_the_pieces_of_a_scrape_are_the_scrape():
    registry, *_ = filled()
    pieces = list(registry.pieces())
    assert "".join(pieces) == generate_latest(registry).decode()
    assert len(pieces) > 10


def test_a_later_scrape_shows_what_has_changed_and_what_has_gone():
    registry, counters, gauges, histograms = filled()
    list(registry.pieces())
    counters.labels("a", "200").value += 1
    gauges.labels("a").value = 0.2
    histograms.labels("z", "a").observe(0.5)
    assert "".join(registry.pieces()) == generate_latest(registry).decode()
    counters.remove("a", "500")
    gauges.remove("never was")
    histograms.remove_by_labels({"model": STRANGE})
    text = "".join(registry.pieces())
    assert text == generate_latest(registry).decode()
    assert "500" not in text.replace(STRANGE, "") or 'model="a",status="500"' not in text


def test_what_comes_and_goes_while_a_scrape_is_read_ends_it_not():
    registry, counters, *_ = filled()
    for i, _ in enumerate(registry.pieces()):
        counters.labels(f"new{i}", "200").value += 1
        counters.remove_by_labels({"model": "a"})
        Counters(f"later{i}", "Registered meanwhile.", (), registry)


def test_what_is_registered_no_more_is_in_no_scrape():
    registry, counters, *_ = filled()
    registry.unregister(counters)
    assert "requests" not in "".join(registry.pieces())
