"""Counters, gauges and histograms of one thread, and a scrape of them in pieces.

prometheus_client's own take a lock for each value and look for its bucket from the least on, which costs a request more than its
part of a batch; and a scrape of it makes an object of every sample, in one go: with a thousand models 0.9 s, in which nobody is
served. Here what has not changed since the last scrape is the text that it was then.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = Sequence[tuple[str, str]]
"""Names and values, by name."""


class Count:
    """How often something happened."""

    __slots__ = ("_shown", "_text", "value")

    def __init__(self) -> None:
        self.value = 0
        self._shown = -1
        self._text = ""

    def text(self, name: str, labels: Labels) -> str:
        """Its line of a scrape; ``name`` and labels are the same each time."""
        if self.value != self._shown:
            self._text, self._shown = _line(name, labels, self.value), self.value
        return self._text


class Level:
    """How much of something there is."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def text(self, name: str, labels: Labels) -> str:
        """Its line of a scrape."""
        return _line(name, labels, self.value)


class Distribution:
    """How many values fell into each bucket, whose upper ends are included, and their sum."""

    __slots__ = ("_ends", "_shown", "_text", "counts", "sum")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.sum = 0.0
        self._shown = -1
        self._text = ""

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self._ends, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """More values, for less than each alone."""
        counts, ends = self.counts, self._ends
        for value in values:
            counts[bisect_left(ends, value)] += 1
        self.sum += sum(values)

    def buckets(self) -> Iterator[tuple[str, float]]:
        """The upper end of each bucket, and how many values are not above it."""
        total = 0
        for end, count in zip((*map(float, self._ends), "+Inf"), self.counts, strict=True):
            total += count
            yield str(end), total

    def text(self, name: str, labels: Labels) -> str:
        """Its lines of a scrape; ``name`` and labels are the same each time."""
        if (total := sum(self.counts)) != self._shown:
            lines = [_line(f"{name}_bucket", sorted((*labels, ("le", end))), count) for end, count in self.buckets()]
            lines += [_line(f"{name}_count", labels, total), _line(f"{name}_sum", labels, self.sum)]
            self._text, self._shown = "".join(lines), total
        return self._text


_in_go: Callable[[float], str] = floatToGoString
Number = TypeVar("Number", Count, Level)
Tally = TypeVar("Tally", Count, Level, Distribution)


class _Tallies(Collector, Generic[Tally]):
    """A tally for each combination of labels."""

    kind = ""
    suffix = ""  # of the name in a scrape

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._tallies: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """The tally of these labels; from now on a scrape shows it."""
        if values not in self._tallies:
            self._tallies[values] = self._new()
        return self._tallies[values]

    def remove(self, *values: str) -> None:
        """Forget that of these labels."""
        self._tallies.pop(values, None)

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Forget all that have these labels."""
        places = [(self._labels.index(name), value) for name, value in labels.items()]
        for values in [values for values in self._tallies if all(values[place] == value for place, value in places)]:
            del self._tallies[values]

    def pieces(self) -> Iterator[str]:
        """The text of a scrape: a head, then tally by tally, each as it stands when its turn comes."""
        name = self._name + self.suffix
        yield f"# HELP {name} {self._text}\n# TYPE {name} {self.kind}\n"
        for values, tally in list(self._tallies.items()):
            yield tally.text(name, sorted(zip(self._labels, values, strict=True)))

    def describe(self) -> Iterable[Metric]:
        """What the registry keeps others from being named."""
        return self.collect()

    @abstractmethod
    def _new(self) -> Tally: ...

    @abstractmethod
    def collect(self) -> Iterable[Metric]: ...


class _Numbers(_Tallies[Number]):
    """A number for each combination of labels."""

    tally: type[Number]
    family: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily

    def _new(self) -> Number:
        return self.tally()

    def collect(self) -> Iterable[Metric]:
        family = self.family(self._name, self._text, labels=self._labels)
        for values, number in self._tallies.items():
            family.add_metric(values, number.value)
        return [family]


class Counters(_Numbers[Count]):
    """A counter for each combination of labels."""

    kind, suffix, tally = "counter", "_total", Count


class Amounts(_Numbers[Level]):
    """A counter of what is no whole number, for each combination of labels."""

    kind, suffix, tally = "counter", "_total", Level


class Gauges(_Numbers[Level]):
    """A gauge for each combination of labels."""

    kind, tally, family = "gauge", Level, GaugeMetricFamily


class Histograms(_Tallies[Distribution]):
    """A histogram for each combination of labels; ``ends`` are the upper ends of its buckets, ascending."""

    kind = "histogram"

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


class Registry(CollectorRegistry):
    """A registry that also gives its text in pieces; each metric that is no tally is one, and should have few samples."""

    def __init__(self) -> None:
        super().__init__()
        self._registered: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._registered.append(collector)

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._registered.remove(collector)

    def pieces(self) -> Iterator[str]:
        """What ``generate_latest`` gives at once; what is registered, counted or forgotten meanwhile may be there or not."""
        for collector in list(self._registered):
            if isinstance(collector, _Tallies):
                yield from collector.pieces()
            else:
                alone: Any = collector  # it asks of a registry no more than what is collected
                yield generate_latest(alone).decode()


def _line(name: str, labels: Labels, value: float) -> str:
    shown = f"{value}.0" if type(value) is int and 0 <= value < 1_000_000 else _in_go(value)
    if not labels:
        return f"{name} {shown}\n"
    named = ",".join([f'{label}="{_escaped(text)}"' for label, text in labels])
    return f"{name}{{{named}}} {shown}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
