"""PromQL as far as the Grafana dashboard goes, over the scrapes of a test.

What is not known here is refused, so that no expression is in the dashboard that nobody has seen answered. A ``rate`` is that from
the first scrape to the last, which Prometheus would extrapolate to the ends of the range; what only the last one has, has none.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_TOKEN = re.compile(r'\s*(?:(\d+(?:\.\d+)?(?:e\d+)?)(?![a-z])|([A-Za-z_:][A-Za-z0-9_:]*)|("[^"]*")|(\[\w+\]|=~|[-+*/(){},=]))')
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
}


class Scrape(NamedTuple):
    """What was there at a time (s): values by name and labels, among them those that Prometheus adds itself."""

    at: float
    series: dict[str, Vector]

    @classmethod
    def of(cls, at: float, text: str, **added: str) -> Scrape:
        """Of a text in Prometheus' format."""
        series: dict[str, Vector] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series.setdefault(sample.name, {})[frozenset({**sample.labels, **added}.items())] = sample.value
        return cls(at, series)


def evaluate(expression: str, *scrapes: Scrape) -> Vector:
    """What the expression comes to at the last scrape."""
    parser = _Parser(expression, scrapes)
    value = parser.either()
    parser.expect("")
    assert isinstance(value, dict), f"{expression}: a number, which is no panel"
    return value


def _by(vector: Vector, names: Iterable[str]) -> dict[Labels, list[tuple[Labels, float]]]:
    kept, groups = set(names), dict[Labels, list[tuple[Labels, float]]]()
    for labels, value in vector.items():
        groups.setdefault(frozenset(pair for pair in labels if pair[0] in kept), []).append((labels, value))
    return groups


def _quantile(q: float, buckets: list[tuple[float, float]]) -> float:
    """Of a histogram by its cumulative counts, straight within a bucket; what is beyond the last bound is at the last bound."""
    buckets = sorted(buckets)
    assert math.isinf(buckets[-1][0])
    rank = q * buckets[-1][1]
    if not buckets[-1][1]:
        return math.nan
    lower, below = 0.0, 0.0
    for upper, count in buckets:
        if count >= rank:
            return lower if math.isinf(upper) else lower + (upper - lower) * (rank - below) / (count - below)
        lower, below = upper, count
    raise AssertionError("counts that do not rise")


def _combined(symbol: str, left: Value, right: Value) -> Value:
    apply = _ARITHMETIC[symbol]
    if isinstance(left, dict) and isinstance(right, dict):
        return {labels: apply(left[labels], right[labels]) for labels in left.keys() & right.keys()}
    if isinstance(left, dict):
        return {labels: apply(value, right) for labels, value in left.items()}  # type: ignore[arg-type]
    if isinstance(right, dict):
        return {labels: apply(left, value) for labels, value in right.items()}
    return apply(left, right)


class _Parser:
    """By recursive descent, from what binds least; what is parsed is evaluated at once."""

    def __init__(self, expression: str, scrapes: tuple[Scrape, ...]) -> None:
        self._expression = expression
        self._scrapes = scrapes
        self._tokens: list[str] = []
        place = 0
        while expression[place:].strip():
            match = _TOKEN.match(expression, place)
            assert match is not None, f"{expression}: {expression[place:]!r} is not known here"
            self._tokens.append(match[0].strip())
            place = match.end()

    def expect(self, token: str) -> None:
        found = self._tokens.pop(0) if self._tokens else ""
        assert found == token, f"{self._expression}: {found!r} where {token!r} was expected"

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def either(self) -> Value:
        value = self._sum()
        while self._next() == "or":
            self.expect("or")
            other = self._sum()
            assert isinstance(value, dict) and isinstance(other, dict), f"{self._expression}: or is of vectors"
            value = {**other, **value}
        return value

    def _sum(self) -> Value:
        value = self._product()
        while self._next() in ("+", "-"):
            value = _combined(self._tokens.pop(0), value, self._product())
        return value

    def _product(self) -> Value:
        value = self._operand()
        while self._next() in ("*", "/"):
            value = _combined(self._tokens.pop(0), value, self._operand())
        return value

    def _operand(self) -> Value:
        token = self._tokens.pop(0)
        if token[0].isdigit():
            return float(token)
        if token == "(":
            value = self.either()
            self.expect(")")
            return value
        if token in ("sum", "max"):
            self.expect("by")
            names, reduce = self._listed("(", ")"), sum if token == "sum" else max
            vector = self._opened()
            self.expect(")")
            return {labels: reduce(value for _, value in members) for labels, members in _by(vector, names).items()}
        if token == "rate":
            self.expect("(")
            selected = self._selector(self._tokens.pop(0))
            assert re.fullmatch(r"\[\w+\]", self._tokens.pop(0)), f"{self._expression}: a rate of no range"
            self.expect(")")
            first, last = self._scrapes[0], self._scrapes[-1]
            before, now = selected(first), selected(last)
            return {
                # A counter that fell began anew.
                labels: (value - (before[labels] if before[labels] <= value else 0)) / (last.at - first.at)
                for labels, value in now.items()
                if labels in before
            }
        if token == "clamp_max":
            vector = self._opened()
            self.expect(",")
            most = float(self._tokens.pop(0))
            self.expect(")")
            return {labels: min(value, most) for labels, value in vector.items()}
        if token == "histogram_quantile":
            self.expect("(")
            q = float(self._tokens.pop(0))
            self.expect(",")
            vector = self._series()
            self.expect(")")
            names = {name for labels in vector for name, _ in labels} - {"le"}
            return {
                labels: _quantile(q, [(float(dict(each)["le"]), value) for each, value in members])
                for labels, members in _by(vector, names).items()
            }
        return self._selector(token)(self._scrapes[-1])

    def _opened(self) -> Vector:
        self.expect("(")
        return self._series()

    def _series(self) -> Vector:
        value = self.either()
        assert isinstance(value, dict), f"{self._expression}: a number where series were expected"
        return value

    def _listed(self, opening: str, closing: str) -> list[str]:
        self.expect(opening)
        end = self._tokens.index(closing)
        found, self._tokens = self._tokens[:end], self._tokens[end + 1 :]
        return [token for token in found if token != ","]

    def _selector(self, name: str) -> Callable[[Scrape], Vector]:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and self._next() != "(", f"{self._expression}: {name} is not known here"
        told = self._listed("{", "}") if self._next() == "{" else []
        matchers = [
            (label, pattern.strip('"'))
            for label, sign, pattern in zip(told[::3], told[1::3], told[2::3], strict=True)
            if sign == "=~"
        ]
        assert 3 * len(matchers) == len(told), f"{self._expression}: only =~ is known here"

        def select(scrape: Scrape) -> Vector:
            return {
                labels: value
                for labels, value in scrape.series.get(name, {}).items()
                if all(re.fullmatch(pattern, dict(labels).get(label, "")) for label, pattern in matchers)
            }

        return select
