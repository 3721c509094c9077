"""First descents of the queue where arrivals have phases (docs/model.md, section 4.5).

Above the last row of a table the number waiting moves by ``K - b`` per service, jointly with the phase. ``descents[i - 1]`` is the
matrix of probabilities that the queue, from any length up there, first falls below that length by ``i``, by phase before and phase
then: the descending ladder height of a random walk modulated by a chain. So h(s) = sum_i descents[i - 1] h(s - i) for whatever has
no cost of its own up there, without an end of the state space and without an error.

Wiener-Hopf: with ``F(z) = I - diag(z^-b) sum_k counts[k] z^k`` there is ``F(z) = U(z) L(z)``, ``L(z) = I - sum_i descents[i - 1]
z^-i``, where ``U`` and its inverse are power series in ``z``. Matrices do not commute, so no logarithm separates the two as in
``ladder``; but ``L F^-1 = U^-1`` has no negative powers: a linear system for ``L`` with the Laurent coefficients ``H_n`` of
``F^-1`` on a circle:

    sum_(i=1..b) descents[i - 1] H_(i-n) = H_(-n),    n = 1 ... b.                                                    (4.12)

The circle lies between 1 and the decay rate of the queue. There ``F`` is regular: the spectral radius of ``I - F(z)``, as that of
a positive matrix, is largest at the real point of the circle, and below 1 there. The zero of ``F`` at 1, which comes near where the
load is high, is divided out.

Reference: Asmussen, Applied Probability and Queues, section XI.2; Bini, Latouche, Meini, Numerical Methods for Structured Markov
Chains, section 3.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import NotConverged
from sluice.optimizer.arrays import Array

_DIGITS = 38.0  # natural logarithm of the accuracy wanted of the coefficients of a Laurent series
_LARGEST = 2**24  # complex numbers on the circle: some seconds of work
_HALVINGS = 60
_STEPS = 30
_ROUNDING = 1e-7


def first_descents(counts: Array, batch_sizes: NDArray[np.int64], phases: Array) -> Array:
    """Ladder heights of a queue served in batches of ``batch_sizes[i]`` that begin in phase ``i``.

    Parameters
    ----------
    counts : array, shape (n_counts, n_phases, n_phases)
        Probabilities of 0, 1, ... arrivals during a service by phase at its start and at its end, as far as they matter.
    batch_sizes : array of int, shape (n_phases,)
        So large that the queue falls in the mean.
    phases : array, shape (n_phases,)
        Stationary phase probabilities from service to service.

    Returns
    -------
    descents : array, shape (largest of batch_sizes, n_phases, n_phases)
        ``descents[i - 1]`` are probabilities of a first descent by ``i``; the rows of their sum are 1.

    Raises
    ------
    NotConverged
        A load so near 1, or phases that last so long, that the circle would need too many points.
    """
    b, n = int(batch_sizes.max()), counts.shape[1]
    log_radius = _log_radius(counts, batch_sizes)
    n_points = 2 ** int(np.ceil(np.log2(max(_DIGITS / log_radius, 8 * b, 2 * len(counts)))))
    if n_points * n * n > _LARGEST:
        raise NotConverged("the first descents of the queue need too many points on a circle", None, log_radius)
    # z^-1 on the upper half of the circle; the lower is its conjugate
    w = np.exp(-2j * np.pi * np.arange(n_points // 2 + 1) / n_points - log_radius)
    scaled = counts * np.exp(log_radius * np.arange(len(counts)))[:, None, None]
    generating = np.conj(np.fft.rfft(scaled, n_points, axis=0))  # sum_k counts[k] z^k
    F = np.eye(n) - w[:, None, None] ** batch_sizes[:, None] * generating
    # F(1) 1 = 0; F (I + 1 phases w / (1 - w)) has no zero there, and a left factor divides the descents by the same
    F += F.sum(axis=2)[:, :, None] * phases * (w / (1 - w))[:, None, None]
    # The coefficient of z^n, times radius^n, is at index n.
    H = np.fft.irfft(np.conj(np.linalg.inv(F)), n_points, axis=0)
    offsets = np.arange(b)[:, None] - np.arange(b)  # i - n
    system = H[offsets].transpose(1, 3, 0, 2).reshape(b * n, b * n)  # transposed: (n, end phase; i, phase between)
    right = H[-np.arange(1, b + 1)].transpose(0, 2, 1).reshape(b * n, n)
    scaled_factor = np.linalg.solve(system, right).reshape(b, n, n).transpose(0, 2, 1)
    descents = scaled_factor * np.exp(log_radius * np.arange(1, b + 1))[:, None, None]
    descents[1:] -= descents[:-1].sum(axis=2)[:, :, None] * phases
    descents[0] += phases
    if (descents < -_ROUNDING).any() or np.abs(descents.sum(axis=(0, 2)) - 1).max() > _ROUNDING:
        raise NotConverged("the first descents of the queue", None, float(np.abs(descents.sum(axis=(0, 2)) - 1).max()))
    descents = np.maximum(descents, 0.0)
    return np.asarray(descents / descents.sum(axis=(0, 2))[:, None])


def _log_radius(counts: Array, batch_sizes: NDArray[np.int64]) -> float:
    """Half of the logarithm at which the tail of the queue decays, or what is ample for batches of that size."""

    def radius(x: float) -> float:
        moved = np.tensordot(np.exp(x * np.arange(len(counts))), counts, axes=1) * np.exp(-x * batch_sizes)[:, None]
        return float(np.abs(np.linalg.eigvals(moved)).max())

    above = 4 / float(batch_sizes.max())
    if radius(above) < 1:
        return above / 2
    below = above / 2
    for _ in range(_HALVINGS):
        if radius(below) < 1:
            break
        below, above = below / 2, below
    for _ in range(_STEPS):
        middle = (below + above) / 2
        below, above = (middle, above) if radius(middle) < 1 else (below, middle)
    return below / 2
