"""What a scrape finds in our tallies is what it finds in the library's."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sluice.buffer_service.tallies import Counters, Histograms

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
