"""The nearest values in order: least squares under x_1 <= x_2 <= ..., by pooling neighbours that are not.

Every value is a pool of its own at first; one that lies below the pool before it is joined with that, at their mean, until none
does. To import `scipy.optimize` for its own takes longer than to read a profile.

Reference: Barlow, Bartholomew, Bremner, Brunk, Statistical Inference under Order Restrictions (1972), section 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.optimizer.arrays import Array


def in_order(values: Sequence[float] | Array, weights: Sequence[float] | Array) -> Array:
    """The values, (n,), that do not fall and are nearest to these in the mean square by these weights, each > 0."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for mean, weight in zip(np.asarray(values).tolist(), np.asarray(weights).tolist(), strict=True):
        n = 1
        while pools and pools[-1][0] >= mean:
            its_mean, its_weight, its_n = pools.pop()
            mean, weight, n = (its_weight * its_mean + weight * mean) / (its_weight + weight), its_weight + weight, its_n + n
        pools.append((mean, weight, n))
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools])
