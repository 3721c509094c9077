"""Markovian arrival processes (docs/model.md, section 1).

A chain of ``n_phases`` phases jumps at the rates of ``D0`` silently and at those of ``D1`` with an arrival; ``D0 + D1`` is a
generator. Poisson is one phase, an MMPP has a diagonal ``D1``. Stationary phases solve ``stationary (D0 + D1) = 0``, those just
after an arrival ``embedded P = embedded`` with ``P = (-D0)^-1 D1``; inter-arrival times have raw moments
``m_k = k! embedded (-D0)^-k 1``.

References: Neuts, A versatile Markovian point process, J. Appl. Prob. 16 (1979); Casale, Zhang, Smirni, KPC-Toolbox (2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.batching.documents import ArrivalDocument, ArrivalMatrices
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled

_TOLERANCE = 1e-8  # of a row sum, relative to the row's own rate


@dataclass(frozen=True, eq=False)
class ArrivalProcess:
    """A stationary Markovian arrival process.

    Parameters
    ----------
    D0 : array, shape (n_phases, n_phases)
        Rates (1/s) of the jumps without an arrival; the diagonal is negative and makes the rows of ``D0 + D1`` sum to zero.
    D1 : array, shape (n_phases, n_phases)
        Rates (1/s) of the jumps with an arrival.
    model : {"poisson", "mmpp", "map"}
        The family it belongs to.

    Raises
    ------
    InvalidInput
        Names the row that is not one of a MAP, or that no arrival ever happens.
    """

    D0: Array
    D1: Array
    model: str = "map"

    def __post_init__(self) -> None:
        D0, D1 = (np.array(D, dtype=float, ndmin=2) for D in (self.D0, self.D1))
        object.__setattr__(self, "D0", D0)
        object.__setattr__(self, "D1", D1)
        n = len(D0)
        for name, D in (("D0", D0), ("D1", D1)):
            if D.shape != (n, n):
                raise InvalidInput(name, D.shape, f"the shape ({n}, {n})")
            if not np.isfinite(D).all():
                raise InvalidInput(name, D.tolist(), "finite rates")
        for i in range(n):
            if D0[i, i] >= 0:
                raise InvalidInput(f"D0[{i}][{i}]", float(D0[i, i]), "a negative rate")
            if (np.delete(D0[i], i) < 0).any():
                raise InvalidInput(f"row {i} of D0", D0[i].tolist(), "rates >= 0 off the diagonal")
            if (D1[i] < 0).any():
                raise InvalidInput(f"row {i} of D1", D1[i].tolist(), "rates >= 0")
            excess = float(D0[i].sum() + D1[i].sum())
            if abs(excess) > _TOLERANCE * -D0[i, i]:
                raise InvalidInput(f"row {i} of D0 + D1", excess, "a sum of 0")
        if not D1.any():
            raise InvalidInput("D1", D1.tolist(), "at least one rate > 0: no arrival ever happens")
        _check_phases_meet(D0, D1)
        D0.flags.writeable = D1.flags.writeable = False

    @property
    def n_phases(self) -> int:
        """Number of phases."""
        return len(self.D0)

    @cached_property
    def stationary(self) -> Array:
        """Phase probabilities at a random time, shape (n_phases,)."""
        return stationary_distribution(self.D0 + self.D1)

    @cached_property
    def arrival_rate(self) -> float:
        """Requests per second in the long run."""
        return float(self.stationary @ self.D1.sum(axis=1))

    @cached_property
    def to_next_arrival(self) -> Array:
        """Phase just after the next arrival given the phase now, ``(-D0)^-1 D1``, shape (n_phases, n_phases)."""
        return np.asarray(np.linalg.solve(-self.D0, self.D1), dtype=np.float64)

    @cached_property
    def embedded(self) -> Array:
        """Phase probabilities just after an arrival, shape (n_phases,)."""
        flow = self.stationary @ self.D1
        return np.asarray(flow / flow.sum())

    def sped_up(self, factor: float) -> ArrivalProcess:
        """The same process with time running ``factor`` times as fast: ``factor`` times the arrival rate, the same SCV.

        Raises
        ------
        InvalidInput
            A factor that is not positive.
        """
        require(0 < factor < np.inf, "factor", factor, "a number > 0")
        return ArrivalProcess(self.D0 * factor, self.D1 * factor, self.model)

    def thinned(self, share: float) -> ArrivalProcess:
        """The arrivals of which each is kept with probability ``share``, independently: D0 + (1 - share) D1, share D1."""
        require(0 < share <= 1, "share", share, "a part of the arrivals, 0 < share <= 1")
        return self if share == 1 else ArrivalProcess(self.D0 + (1 - share) * self.D1, share * self.D1, self.model)

    def moment(self, order: int) -> float:
        """Raw moment of the inter-arrival time, in s^order."""
        vector: Array = np.ones(self.n_phases)
        for _ in range(order):
            vector = np.asarray(np.linalg.solve(-self.D0, vector), dtype=np.float64)
        return factorial(order) * float(self.embedded @ vector)

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the inter-arrival time."""
        return self.moment(2) / self.moment(1) ** 2 - 1

    @property
    def skewness(self) -> float:
        """Skewness of the inter-arrival time."""
        mean, second, third = (self.moment(order) for order in (1, 2, 3))
        return float((third - 3 * second * mean + 2 * mean**3) / (second - mean**2) ** 1.5)

    def autocorrelation(self, lags: ArrayLike) -> Array:
        """Autocorrelation of inter-arrival times at ``lags`` (integers >= 1), same shape."""
        wanted = np.atleast_1d(np.asarray(lags, dtype=int))
        mean, variance = self.moment(1), self.moment(2) - self.moment(1) ** 2
        ahead = np.linalg.solve(-self.D0, np.ones(self.n_phases))
        here = np.linalg.solve(-self.D0.T, self.embedded)
        values = np.empty(int(wanted.max()) + 1)
        values[0] = 1.0
        for lag in range(1, len(values)):
            ahead = self.to_next_arrival @ ahead
            values[lag] = (float(here @ ahead) - mean**2) / variance
        return np.asarray(values[wanted])

    def sample(self, n: int, rng: np.random.Generator, phase: int | None = None) -> Array:
        """``n`` successive inter-arrival times in seconds, started just after an arrival in equilibrium, or in a ``phase``."""
        require(n >= 0, "n", n, "an integer >= 0")
        return next(self.sample_chunks(n, max(n, 1), rng, phase), np.empty(0))

    def sample_chunks(self, n: int, size: int, rng: np.random.Generator, phase: int | None = None) -> Iterator[Array]:
        """The same in pieces of at most ``size``, in the memory of one."""
        if self.n_phases == 1:
            for start in range(0, n, size):
                yield rng.exponential(1 / self.D1[0, 0], min(size, n - start))
            return
        phase = int(rng.choice(self.n_phases, p=self.embedded)) if phase is None else phase
        for start in range(0, n, size):
            gaps, phase = _sample(*self._jumps, phase, min(size, n - start), rng)
            yield gaps

    def sample_dealt(self, n: int, pieces: int, rng: np.random.Generator) -> Array:
        """The same ``n`` in equal ``pieces``, each started anew: in every phase as often as the phase is met just after an arrival.

        Phases that last longer than a run are so seen in it, in every part of it nearly as often as their probability has it:
        multiples of the golden ratio from a random one, modulo 1, are read as quantiles of the phase. Each gap has the law that it
        has in ``sample``; what is kept from piece to piece is nothing.
        """
        require(1 <= pieces <= max(n, 1), "pieces", pieces, f"an integer from 1 to {max(n, 1)}")
        if self.n_phases == 1:
            return self.sample(n, rng)
        quantiles = (rng.random() + np.arange(pieces) * (5**0.5 - 1) / 2) % 1
        phases = np.minimum(np.searchsorted(np.cumsum(self.embedded), quantiles, side="right"), self.n_phases - 1)
        lengths = np.diff(np.arange(pieces + 1) * n // pieces).tolist()
        begun = zip(phases.tolist(), lengths, strict=True)
        return np.concatenate([_sample(*self._jumps, phase, length, rng)[0] for phase, length in begun])

    @cached_property
    def _jumps(self) -> tuple[Array, Array]:
        """Mean seconds to the next jump from each phase, and its laws, (n_phases, 2 n_phases), those with an arrival last."""
        rates = -np.diag(self.D0)
        jumps = np.hstack([self.D0, self.D1])
        jumps[np.diag_indices(self.n_phases)] = 0.0
        cumulative = np.cumsum(jumps / rates[:, None], axis=1)
        return 1 / rates, np.asarray(cumulative / cumulative[:, -1:])

    def document(
        self,
        fitted_from: dict[str, Any] | None = None,
        goodness: dict[str, Any] | None = None,
        without: Sequence[ArrivalProcess] = (),
    ) -> ArrivalDocument:
        """The process as the rooms exchange it, and, where they are known, those ``without`` each block of its trace."""
        return ArrivalDocument(
            model=self.model,
            arrival_rate=self.arrival_rate,
            D0=self.D0.tolist(),
            D1=self.D1.tolist(),
            fitted_from=fitted_from or {},
            goodness=goodness or {},
            without=[ArrivalMatrices(other.D0.tolist(), other.D1.tolist()) for other in without],
        )

    @classmethod
    def of(cls, document: ArrivalDocument) -> ArrivalProcess:
        """The process a document describes; its ``arrival_rate`` must be that of its matrices."""
        process = cls(np.array(document.D0), np.array(document.D1), document.model)
        if abs(process.arrival_rate - document.arrival_rate) > 1e-6 * process.arrival_rate:
            raise InvalidInput("arrival_rate", document.arrival_rate, f"the rate of D0 and D1, {process.arrival_rate:g}")
        return process

    @classmethod
    def without_each_block(cls, document: ArrivalDocument) -> tuple[ArrivalProcess, ...]:
        """What a document says the process would be without each block of its trace; none where it does not say."""
        return tuple(cls(np.array(other.D0), np.array(other.D1), "map") for other in document.without)


def _check_phases_meet(D0: Array, D1: Array) -> None:
    """Raise ``InvalidInput`` unless the phases end in one class, whatever the first, and arrivals happen in it."""
    n = len(D0)
    leads: NDArray[np.bool_] = (D0 > 0) | (D1 > 0) | np.eye(n, dtype=bool)
    for _ in range(n.bit_length()):
        leads = leads @ leads
    closed = [i for i in range(n) if not (leads[i] & ~leads[:, i]).any()]
    for i in closed:
        if not leads[i, closed[0]]:
            raise InvalidInput(
                "D0 + D1",
                f"phases {np.flatnonzero(leads[closed[0]]).tolist()} and {np.flatnonzero(leads[i]).tolist()} never meet",
                "an irreducible chain",
            )
    if not D1[closed].any():
        raise InvalidInput(
            "D1", D1.tolist(), f"at least one rate > 0 from phases {closed}, which are never left: no arrival ever happens"
        )


@compiled
def _sample(means: Array, cumulative: Array, phase: int, n: int, rng: np.random.Generator) -> tuple[Array, int]:
    """``n`` gaps from ``phase``, and the phase after them.

    ``cumulative`` (n_phases, 2 n_phases) are the laws of the next jump, those with an arrival last.
    """
    n_phases = len(means)
    gaps = np.empty(n)
    for i in range(n):
        elapsed = 0.0
        while True:
            elapsed += rng.standard_exponential() * means[phase]
            uniform = rng.random()
            target = 0
            while cumulative[phase, target] <= uniform:
                target += 1
            if target >= n_phases:
                phase = target - n_phases
                break
            phase = target
        gaps[i] = elapsed
    return gaps, phase


def stationary_distribution(generator: Array) -> Array:
    """Probability vector ``x`` with ``x generator = 0``, for one generator (n, n) or a stack (..., n, n).

    One balance equation is replaced by the sum; a transition matrix ``K`` enters as ``K - I``.

    Raises
    ------
    InvalidInput
        When there is more than one such vector: the chain falls apart.
    """
    n = generator.shape[-1]
    if n == 1:
        return np.ones(generator.shape[:-1])
    system = np.swapaxes(generator, -1, -2).copy()
    scale = np.abs(system).max(axis=(-1, -2), keepdims=True)
    system /= np.where(scale > 0, scale, 1.0)
    system[..., -1, :] = 1.0
    right = np.zeros((*generator.shape[:-1], 1))
    right[..., -1, 0] = 1.0
    try:
        solution = np.linalg.solve(system, right)[..., 0]
    except np.linalg.LinAlgError:
        raise InvalidInput("D0 + D1", generator.tolist(), "an irreducible chain: some phases never meet") from None
    solution = np.clip(solution, 0.0, None)
    if not np.isfinite(solution).all():
        raise InvalidInput("D0 + D1", generator.tolist(), "an irreducible chain: some phases never meet")
    return np.asarray(solution / solution.sum(axis=-1, keepdims=True))
