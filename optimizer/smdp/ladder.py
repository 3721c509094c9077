"""First descents of the queue while full batches are served (docs/model.md, section 4.3).

Above the last row of a table the server takes ``b`` requests at a time, and the number waiting moves by ``K - b`` per service,
``K`` being the arrivals meanwhile. ``descents[i - 1]`` is the probability that the queue, from any length up there, first falls
below that length by ``i``, 1 <= i <= b: the descending ladder height of a random walk. It turns what lies above into an average of
what lies below, h(s) = sum_i descents[i] h(s - i), without an end of the state space and without an error.

Wiener-Hopf: ``1 - z^-b A(z) = (1 - sum_i descents[i] z^-i) * (a function without zeros inside)``, A(z) = E z^K, the zeros of the
first factor being the b zeros of ``z^b - A(z)`` in the closed unit disc. It is read off the logarithm on a circle that separates
those from the next: just outside the unit circle, unless the load is so high that the next is there as well; then just inside, with
the zero at 1 divided out.

Reference: Feller, An Introduction to Probability Theory II, section XII.3; Bini, Latouche, Meini, Numerical Methods for Structured
Markov Chains, section 3.3.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import NotConverged
from sluice.optimizer.arrays import Array

_DIGITS = 38.0  # natural logarithm of the accuracy wanted of the coefficients of a Laurent series
_ALIASING = 1e-16  # largest coefficient where the series is cut
_MOST_POINTS = 2**22
_HALVINGS = 20
_ROUNDING = 1e-9


def first_descents(counts: Array, batch_size: int, mean: float, variance: float) -> Array:
    """Ladder heights of a queue served in batches of ``batch_size``.

    Parameters
    ----------
    counts : array, shape (n_counts,)
        Probabilities of 0, 1, ... arrivals during a service, as far as they matter.
    batch_size : int
        More than ``mean``.
    mean, variance : float
        Of the arrivals during a service.

    Returns
    -------
    descents : array, shape (batch_size,)
        ``descents[i - 1]`` is the probability of a first descent by ``i``; sums to 1.

    Raises
    ------
    NotConverged
        No circle separates the zeros.
    """
    drift = batch_size - mean
    outside = 2 / batch_size if variance == 0 else min(drift / variance, 2 / batch_size)
    inside = 0.0 if variance == 0 else ((drift - np.sqrt(drift**2 - 4j * np.pi * variance)).real / variance) / 2
    radii = (radius / 2**n for n in range(_HALVINGS) for radius in (outside, inside) if radius)
    for log_radius in sorted(radii, key=abs, reverse=True):  # the nearer to the unit circle, the more it costs
        descents = _factor(counts, batch_size, log_radius)
        if descents is not None:
            return descents
    raise NotConverged("the first descents of the queue", None, float("nan"))


def _factor(counts: Array, batch_size: int, log_radius: float) -> Array | None:
    """The descents by the circle of radius ``exp(log_radius)``; ``None`` where it does not separate the zeros."""
    logarithm = _logarithm_series(counts, batch_size, log_radius)
    if logarithm is None:
        return None
    # Those of z^-1, z^-2, ... are the logarithm of the factor wanted; n c_n = sum_k k l_k c_(n-k) undoes the logarithm.
    last = batch_size if log_radius > 0 else batch_size - 1
    powers = np.arange(last + 1)
    slopes = powers * logarithm[: last + 1] * np.exp(log_radius * powers)
    factor = np.zeros(batch_size + 1)
    factor[0] = 1.0
    for n in range(1, last + 1):
        factor[n] = slopes[1 : n + 1] @ factor[n - 1 :: -1][:n] / n
    if log_radius < 0:
        factor[1:] -= factor[:-1].copy()
    descents = -factor[1:]
    if (descents < -_ROUNDING).any() or abs(descents.sum() - 1) > _ROUNDING:
        return None
    descents = np.maximum(descents, 0.0)
    return np.asarray(descents / descents.sum())


def _logarithm_series(counts: Array, batch_size: int, log_radius: float) -> Array | None:
    """``l_m exp(-m log_radius)``, l_m being the coefficient of z^-m in the logarithm; ``None`` where it winds around 0."""
    radius = np.exp(log_radius)
    scaled = counts * radius ** np.arange(len(counts))
    n_points = 2 ** int(np.ceil(np.log2(max(_DIGITS / abs(log_radius), 4 * batch_size, len(counts)))))
    while n_points <= _MOST_POINTS:
        w = np.exp(-2j * np.pi * np.arange(n_points) / n_points) / radius  # 1 / z
        values = 1 - n_points * np.fft.ifft(scaled, n_points) * w**batch_size
        if log_radius < 0:
            values = values / (1 - w)
        angle = np.unwrap(np.angle(np.append(values, values[0])))
        if abs(angle[-1] - angle[0]) > 1:  # other zeros than those wanted lie inside
            return None
        series = np.fft.ifft(np.log(np.abs(values)) + 1j * angle[:-1]).real
        middle = n_points // 2
        if np.abs(series[middle - 4 : middle + 4]).max() < _ALIASING:
            return np.asarray(series)
        n_points *= 2
    return None
