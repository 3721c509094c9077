"""Laws of the service time of a batch, as a server with memoryless arrivals meets them (docs/model.md, section 4.1).

``G_b`` is the service time of a batch of ``b``, with mean ``l(b)``. What queueing needs of it is its first two moments and the
number of events of a Poisson process of rate ``r`` that fall into it,

    p_k^[b] = E[ e^{-r G_b} (r G_b)^k / k! ],                                                                        (4.1)

in closed form for every law here: Poisson where ``G_b`` is fixed, negative binomial for a gamma law (Erlang and exponential among
them), a mixture of geometric laws for a hyperexponential, incomplete gamma functions for a measured quantile function.

Reference: Xu, Zhou, Niu, SMDP-based dynamic batching (journal version), eqs (1)-(6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

LEVELS = 2000  # of the quantile functions that stand for a law where it is simulated
MOST_PHASES = 100  # of a law that is followed phase by phase
TAIL = 1e-10  # the share of the services that are longer than any of these


class ServiceLaw(Protocol):
    """Law of the service time by batch size, 1 to ``len(mean)``."""

    @property
    def mean(self) -> Array:
        """Mean service time l(b), s, shape (max_batch_size,)."""
        ...

    @property
    def second_moment(self) -> Array:
        """Second moment of the service time, s^2, shape (max_batch_size,)."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether batches of one size all take as long."""
        ...

    @property
    def phases(self) -> tuple[Array, Array] | None:
        """Initial probabilities (n,) and generator (n, n), 1 / mean, where every size takes the time to absorption of one chain,
        stretched to its mean; ``None`` for other laws, and for more than ``MOST_PHASES`` phases."""
        ...

    def counts(self, rate: float, n_counts: int) -> Array:
        """Probability of 0 ... ``n_counts`` - 1 events of a Poisson process during a service, (max_batch_size, n_counts)."""
        ...

    def service_times(self) -> ServiceTimes:
        """The quantile functions, for the simulator."""
        ...


class Shape(Protocol):
    """Law of a service time over its mean: a positive random variable of mean 1."""

    @property
    def scv(self) -> float:
        """Its squared coefficient of variation."""
        ...

    def counts(self, means: Array, n_counts: int) -> Array:
        """Probabilities of 0 ... ``n_counts`` - 1 events where ``means`` are expected, (len(means), n_counts)."""
        ...

    def quantile(self, levels: Array) -> Array:
        """Its quantile function, same shape."""
        ...

    @property
    def phases(self) -> tuple[Array, Array] | None:
        """Initial probabilities (n,) and generator (n, n) where it is the time to absorption of a chain, else ``None``."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """Always the mean."""

    scv = 0.0
    phases = None

    def counts(self, means: Array, n_counts: int) -> Array:
        k = np.arange(n_counts)
        return np.asarray(np.exp(special.xlogy(k, means[:, None]) - means[:, None] - special.gammaln(k + 1)))

    def quantile(self, levels: Array) -> Array:
        return np.ones_like(levels)


@dataclass(frozen=True)
class Gamma:
    """Gamma law; ``shape`` 1 is exponential, an integer Erlang with so many stages."""

    shape: float

    def __post_init__(self) -> None:
        require(0 < self.shape < np.inf, "shape", self.shape, "a number > 0")

    @property
    def scv(self) -> float:
        return 1 / self.shape

    @property
    def phases(self) -> tuple[Array, Array] | None:
        if self.shape % 1 or self.shape > MOST_PHASES:
            return None
        n = int(self.shape)
        return np.eye(n)[0], n * (np.eye(n, k=1) - np.eye(n))

    def counts(self, means: Array, n_counts: int) -> Array:
        k, m = np.arange(n_counts), means[:, None]
        binomial = special.gammaln(k + self.shape) - special.gammaln(self.shape) - special.gammaln(k + 1)
        # Logarithms of 1 - p and p, where p = m / (m + shape), without a difference of nearly equal numbers.
        return np.asarray(np.exp(binomial - self.shape * np.log1p(m / self.shape) - k * np.log1p(self.shape / m)))

    def quantile(self, levels: Array) -> Array:
        return np.asarray(special.gammaincinv(self.shape, levels) / self.shape)


@dataclass(frozen=True)
class Hyperexponential:
    """With ``probabilities[i]`` exponential with mean ``means[i]``; the means are over the whole law's."""

    probabilities: Sequence[float]
    means: Sequence[float]

    def __post_init__(self) -> None:
        p, m = self.probabilities, self.means
        require(len(p) == len(m) and len(p) > 0, "means", tuple(m), f"as many as probabilities ({len(p)})")
        require(all(x > 0 for x in p) and abs(sum(p) - 1) < 1e-9, "probabilities", tuple(p), "numbers > 0 with sum 1")
        mean = sum(x * y for x, y in zip(p, m, strict=True))
        require(all(0 < x < np.inf for x in m) and abs(mean - 1) < 1e-9, "means", tuple(m), "numbers > 0 with mean 1")

    @property
    def scv(self) -> float:
        return 2 * float(np.dot(self.probabilities, np.square(self.means))) - 1

    @property
    def phases(self) -> tuple[Array, Array] | None:
        return np.array(self.probabilities), -np.diag(1 / np.array(self.means))

    def counts(self, means: Array, n_counts: int) -> Array:
        k = np.arange(n_counts)
        result = np.zeros((len(means), n_counts))
        for p, m in zip(self.probabilities, self.means, strict=True):
            expected = m * means[:, None]
            result += p * np.exp(-np.log1p(expected) - k * np.log1p(1 / expected))
        return result

    def quantile(self, levels: Array) -> Array:
        p, m = np.array(self.probabilities), np.array(self.means)
        low, high = np.zeros_like(levels), np.full_like(levels, -np.log(TAIL / 2) * m.max())
        for _ in range(100):  # halvings: to the last digit
            middle = (low + high) / 2
            above = np.exp(-middle[..., None] / m) @ p > 1 - levels
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray((low + high) / 2)


@dataclass(frozen=True, eq=False)
class ScaledLaw:
    """A law of one shape for every batch size: ``G_b`` is ``mean[b - 1]`` times a random variable of mean 1.

    Parameters
    ----------
    mean : array, shape (max_batch_size,)
        Mean service time, s.
    shape : Shape
    """

    mean: Array
    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _checked_mean(self.mean))

    @property
    def second_moment(self) -> Array:
        """Second moment of the service time, s^2, shape (max_batch_size,)."""
        return np.asarray(self.mean**2 * (1 + self.shape.scv))

    @property
    def fixed(self) -> bool:
        """Whether the shape is always 1."""
        return self.shape.scv == 0

    @property
    def phases(self) -> tuple[Array, Array] | None:
        """Those of the shape."""
        phases = self.shape.phases
        return None if phases is None or len(phases[0]) > MOST_PHASES else phases

    def counts(self, rate: float, n_counts: int) -> Array:
        """(4.1), shape (max_batch_size, n_counts)."""
        return self.shape.counts(rate * self.mean, n_counts)

    def service_times(self) -> ServiceTimes:
        """The quantile functions, exact where service is deterministic, elsewhere linear between ``LEVELS`` levels."""
        none = np.zeros(len(self.mean))
        if self.fixed:
            return ServiceTimes(1, self.mean[:, None], none, self.mean)
        tail = np.geomspace(1 / LEVELS, TAIL, LEVELS // 4)
        levels = np.concatenate([np.linspace(0, 1 - 1 / LEVELS, LEVELS), 1 - tail[1:-1], [1.0]])
        values = self.shape.quantile(np.minimum(levels, 1 - TAIL))
        return ServiceTimes(1, np.outer(self.mean, values), none, self.mean, levels)


@dataclass(frozen=True, eq=False)
class EmpiricalLaw:
    """The law of measured service times: their quantile functions, linear between levels, with the overhead of an invocation."""

    measured: ServiceTimes

    def __post_init__(self) -> None:
        _checked_mean(self.mean)

    @cached_property
    def mean(self) -> Array:
        """Mean time from dispatch to answer, s, shape (max_batch_size,)."""
        return self.measured.mean_response

    @property
    def fixed(self) -> bool:
        """Whether nothing but means was measured."""
        return self.measured.deterministic

    @property
    def phases(self) -> None:
        """None are known."""
        return None

    @cached_property
    def second_moment(self) -> Array:
        """Second moment of the time from dispatch to answer, s^2, shape (max_batch_size,)."""
        if self.fixed:
            return np.asarray(self.mean**2)
        low, high = self.measured.response[:, :-1], self.measured.response[:, 1:]
        return np.asarray((low**2 + low * high + high**2) / 3 @ np.diff(self.measured.quantile_levels))

    def counts(self, rate: float, n_counts: int) -> Array:
        """(4.1), shape (max_batch_size, n_counts): on a piece between two levels the service time is uniform."""
        if self.fixed:
            return Deterministic().counts(rate * self.mean, n_counts)
        k = np.arange(n_counts)
        weights = np.diff(self.measured.quantile_levels)
        result = np.empty((len(self.mean), n_counts))
        for b, seconds in enumerate(self.measured.response):
            jumps = rate * seconds
            width = np.diff(jumps)
            narrow = width < 1e-6 * (1 + jumps[1:])  # there the difference below would lose its digits
            at_least = special.gammainc(k + 1, jumps[:, None])  # P(Poisson(jumps) > k)
            within = np.diff(at_least, axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                # integral over the piece of the Poisson probability of k, over its width
                uniform = within / width[:, None]
            middle = Deterministic().counts((jumps[:-1] + jumps[1:]) / 2, n_counts)
            result[b] = weights @ np.where(narrow[:, None], middle, uniform)
        return result

    def service_times(self) -> ServiceTimes:
        """What was measured."""
        return self.measured


def deterministic(mean: ArrayLike) -> ScaledLaw:
    """Fixed service times ``mean`` (s) for batches of 1, 2, ..."""
    return ScaledLaw(np.asarray(mean, dtype=np.float64), Deterministic())


def exponential(mean: ArrayLike) -> ScaledLaw:
    """Exponential service times with these means (s)."""
    return gamma(mean, 1.0)


def erlang(mean: ArrayLike, stages: int) -> ScaledLaw:
    """Erlang service times of ``stages`` stages with these means (s)."""
    require(1 <= stages < np.inf and stages % 1 == 0, "stages", stages, "an integer >= 1")
    return gamma(mean, float(stages))


def gamma(mean: ArrayLike, shape: float) -> ScaledLaw:
    """Gamma service times with these means (s); the squared coefficient of variation is ``1 / shape``."""
    return ScaledLaw(np.asarray(mean, dtype=np.float64), Gamma(shape))


def hyperexponential(
    mean: ArrayLike, probabilities: Sequence[float] = (2 / 3, 1 / 3), means: Sequence[float] = (0.5, 2.0)
) -> ScaledLaw:
    """Hyperexponential service times with these means (s); by default the paper's, of squared coefficient of variation 2."""
    return ScaledLaw(np.asarray(mean, dtype=np.float64), Hyperexponential(tuple(probabilities), tuple(means)))


def law_named(name: str, mean: Array) -> ServiceLaw:
    """The law of a name, with its shape where it has one (``erlang:3``, ``gamma:0.5``), with these means (s)."""
    kind, _, parameter = name.partition(":")
    if kind in ("erlang", "gamma"):
        try:
            shape = float(parameter)
        except ValueError:
            raise InvalidInput("distribution", name, f"{kind} with its shape, as in {kind}:2") from None
        require(kind == "gamma" or shape % 1 == 0, "distribution", name, "erlang with a whole number of stages")
        return gamma(mean, shape)
    allowed = "deterministic, erlang:K, exponential, hyperexponential or gamma:SHAPE"
    require(name in _WITHOUT_SHAPE, "distribution", name, allowed)
    return _WITHOUT_SHAPE[name](mean)


_WITHOUT_SHAPE: dict[str, Callable[[Array], ServiceLaw]] = {
    "deterministic": deterministic,
    "exponential": exponential,
    "hyperexponential": hyperexponential,
}


def _checked_mean(mean: Array) -> Array:
    mean = np.array(mean, dtype=np.float64, ndmin=1)
    require(mean.ndim == 1, "service.mean", mean.shape, "one number for each batch size")
    if not len(mean):
        raise InvalidInput("service.mean", 0, "the mean service time of at least a batch of 1")
    for b, seconds in enumerate(mean, 1):
        require(0 < seconds < np.inf, f"service.mean at batch size {b}", float(seconds), "a number of seconds > 0")
    return mean
