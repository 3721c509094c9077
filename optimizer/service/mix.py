"""How large requests are: a mix of sizes, drawn independently (docs/model.md, section 9).

Of ``n`` requests drawn from a mix with the distribution function F the largest has F^n, so its quantile function is that of the
mix at q^(1/n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array

MAX_VALUES = 1024  # different sizes that are kept apart
_TOP = MAX_VALUES // 2  # of them the largest, as those are what a batch is padded to


@dataclass(frozen=True, eq=False)
class SizeMix:
    """The sizes of requests and how often each occurs.

    Parameters
    ----------
    values : array, shape (n_values,)
        Sizes >= 0 in the model's own unit, each once, ascending.
    shares : array, shape (n_values,)
        Parts of the requests > 0 that have these sizes; they sum to one.
    n_requests : int or None
        Of how many requests this is known; ``None`` where it is no sample.
    """

    values: Array
    shares: Array
    n_requests: int | None = None

    def __post_init__(self) -> None:
        values, shares = np.asarray(self.values, dtype=np.float64), np.asarray(self.shares, dtype=np.float64)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "shares", shares)
        require(len(values) > 0 and values.shape == shares.shape == (len(values),), "sizes", values.shape, "at least one")
        rising = np.isfinite(values).all() and values[0] >= 0 and (np.diff(values) > 0).all()
        require(bool(rising), "sizes", values.tolist(), "numbers >= 0, each once, ascending")
        whole = (shares > 0).all() and abs(shares.sum() - 1) < 1e-9
        require(bool(whole), "shares", shares.tolist(), "parts > 0 that sum to 1")

    @classmethod
    def of(cls, sizes: ArrayLike, source: str = "sizes") -> SizeMix:
        """The mix of the sizes of some requests, shape (n_requests,).

        Of more than ``MAX_VALUES`` different sizes the largest stay apart, and the others are taken together in groups of as many
        different ones, each at its mean.

        Raises
        ------
        InvalidInput
            No size, or one that is no number >= 0, by its place.
        """
        seen = checked_sizes(sizes, source)
        require(len(seen) > 0, source, [], "at least one size")
        values, counts = np.unique(seen, return_counts=True)
        if len(values) > MAX_VALUES:
            group = np.concatenate([np.arange(len(values) - _TOP) * _TOP // (len(values) - _TOP), np.arange(_TOP, 2 * _TOP)])
            together = np.bincount(group, weights=counts)
            values, counts = np.bincount(group, weights=counts * values) / together, together
        return cls(values, counts / len(seen), len(seen))

    @property
    def largest(self) -> float:
        """The largest size."""
        return float(self.values[-1])

    @property
    def mean(self) -> float:
        """The mean size."""
        return float(self.values @ self.shares)

    def quantile(self, q: float) -> float:
        """The smallest size that at least a part ``q`` of the requests do not exceed."""
        return float(self.values[min(int(np.searchsorted(np.cumsum(self.shares), q - 1e-12)), len(self.values) - 1)])

    def share(self, above: float, up_to: float) -> float:
        """Part of the requests that are larger than ``above`` and at most ``up_to``."""
        return min(float(self.shares[(self.values > above) & (self.values <= up_to)].sum()), 1.0)

    def between(self, above: float, up_to: float) -> SizeMix:
        """The mix of those alone.

        Raises
        ------
        InvalidInput
            There are none.
        """
        inside = (self.values > above) & (self.values <= up_to)
        require(bool(inside.any()), "sizes", (above, up_to), "an interval that holds sizes of the mix")
        return SizeMix(self.values[inside], self.shares[inside] / self.shares[inside].sum())

    def of_the_largest(self, max_batch_size: int) -> Array:
        """``[n - 1, k]``: probability that ``values[k]`` is the largest size among ``n``: (max_batch_size, n_values)."""
        below = np.append(0.0, np.minimum(np.cumsum(self.shares), 1.0))
        below[-1] = 1.0
        return np.asarray(np.diff(below[None, :] ** np.arange(1, max_batch_size + 1)[:, None], axis=1))

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` sizes, drawn independently, (n,)."""
        return np.asarray(rng.choice(self.values, size=n, p=self.shares))

    def drawn_for(self, n_recorded: int, seed: int = 0) -> Array:
        """Sizes for so many arrivals of a record that has none, (n_recorded,): always the same of a seed, whoever asks."""
        return self.draw(n_recorded, np.random.default_rng([seed, 2]))


def checked_sizes(sizes: ArrayLike, source: str = "sizes") -> Array:
    """Sizes of requests as an array, (n_requests,); raises ``InvalidInput`` where one is no number >= 0, by its place."""
    seen = np.asarray(sizes, dtype=np.float64)
    for i in np.flatnonzero(~(np.isfinite(seen) & (seen >= 0)))[:1]:
        raise InvalidInput(f"{source}: size {i + 1}", float(seen[i]), "a number >= 0")
    return seen
