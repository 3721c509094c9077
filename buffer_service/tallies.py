"""Counters and histograms of one thread, as a scrape of prometheus_client takes them.

That library's own take a lock for each value and look for its bucket from the least on, which costs a request more than its part
of a batch. What may live here: what a request is counted by. What happens once a batch or more rarely uses the library's.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """How often something happened."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Distribution:
    """How many values fell into each bucket, whose upper ends are included, and their sum."""

    __slots__ = ("_ends", "counts", "sum")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self._ends, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, float]]:
        """The upper end of each bucket, and how many values are not above it."""
        total = 0
        for end, count in zip((*map(float, self._ends), "+Inf"), self.counts, strict=True):
            total += count
            yield str(end), total


Tally = TypeVar("Tally", Count, Distribution)


class _Tallies(Collector, Generic[Tally]):
    """A tally for each combination of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._tallies: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """The tally of these labels; from now on a scrape shows it."""
        if values not in self._tallies:
            self._tallies[values] = self._new()
        return self._tallies[values]

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Forget all that have these labels."""
        places = [(self._labels.index(name), value) for name, value in labels.items()]
        for values in [values for values in self._tallies if all(values[place] == value for place, value in places)]:
            del self._tallies[values]

    def describe(self) -> Iterable[Metric]:
        """What the registry keeps others from being named."""
        return self.collect()

    @abstractmethod
    def _new(self) -> Tally: ...

    @abstractmethod
    def collect(self) -> Iterable[Metric]: ...


class Counters(_Tallies[Count]):
    """A counter for each combination of labels."""

    def _new(self) -> Count:
        return Count()

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._tallies.items():
            family.add_metric(values, count.value)
        return [family]


class Histograms(_Tallies[Distribution]):
    """A histogram for each combination of labels; ``ends`` are the upper ends of its buckets, ascending."""

    def __init__(self, name: str, text: str, labels: Sequence[str], ends: Sequence[float], registry: CollectorRegistry) -> None:
        self._ends = ends
        super().__init__(name, text, labels, registry)

    def _new(self) -> Distribution:
        return Distribution(self._ends)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, distribution in self._tallies.items():
            family.add_metric(values, list(distribution.buckets()), distribution.sum)
        return [family]
