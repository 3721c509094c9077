"""Has the mean of a sequence left a known level by a step, up or down? Page's sums (docs/model.md, section 10).

Of values that are normal about the level with variance ``phi``, one of them adds its log-likelihood ratio of a level a step away,
over the threshold, and a sum that falls below nought begins again there. It is told when a sum reaches 1; for a step of that size
nothing that has as few false alarms is told sooner. ``phi`` is that of sums of eight, as it is measured (``dispersion``), so that
values may depend on their neighbours, and the threshold half the square of Student's quantile for its degrees of freedom. No value
adds more than an eighth, or than a fourth where it is by itself: it takes seven at the least that may have one cause, of which one
is by itself, or four that have none in common.

References: Page, Biometrika 41 (1954) 100; Lorden, Ann. Math. Statist. 42 (1971) 1897, for the least delay.
"""

from __future__ import annotations

from math import inf

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled
from sluice.optimizer.tuning.dispersion import WINSOR, Dispersion, differ, estimate
from sluice.optimizer.tuning.level_scan import FEWEST_PARTS, Found, thresholds_for

SCALE = 3  # doublings: sums of eight values tell the dispersion
ENOUGH = 1.0 - 1e-9  # thresholds, as eighths are rounded
BY_ITSELF = 2.0  # values for which one counts that shares no cause with those before it


class StepSum:
    """Sees values one after another and tells when they have left the level by about a step.

    Parameters
    ----------
    step : float
        > 0.
    run_length : float
        Values between two false alarms in the mean.
    horizon : int
        Doublings of a value: what varies more slowly is a change of the level.
    """

    def __init__(self, step: float, run_length: float, horizon: int) -> None:
        require(0 < step < inf, "step", step, "a number > 0")
        self._step, self.level = step, 0.0
        self.dispersion = Dispersion.empty(horizon)
        self._run_length = run_length
        self._sums = np.zeros((2, 3))

    def restart(self, level: float) -> None:
        """Hold what comes against this level; what is known of the dispersion stays."""
        self.level = level
        self._sums[:] = 0.0

    def see(self, values: Array, counting: Array) -> Found | None:
        """Take in values up to the first change, after which ``values[consumed:]`` are to be seen, against the new level.

        ``counting``, of the same shape, is for how many each counts, of the eight that it takes: 1, or ``BY_ITSELF``.
        """
        thresholds = thresholds_for(self._run_length, tests=1)
        consumed = _add(values, counting, self.level, self._step, thresholds, self._sums, self.dispersion)
        if consumed < 0:
            return None
        _, total, length = self._sums[int(np.argmax(self._sums[:, 0]))].tolist()
        before, after = self.level, total / length
        self.restart(after)
        return Found(consumed, before, after, int(length))


@compiled
def _add(values: Array, counting: Array, level: float, step: float, thresholds: Array, sums: Array, held: Dispersion) -> int:
    """How many values are taken in when a change is found, -1 where none is; ``sums``: ratio, sum and number since it was 0."""
    for i in range(len(values)):
        differ(values[i], 0, WINSOR, held)
        for side in range(2):
            beyond = values[i] - level if side == 0 else level - values[i]
            if sums[side, 0] <= 0 and beyond <= step / 2:
                continue
            if held.stale[0]:
                estimate(held)
            threshold = thresholds[min(int(held.known[SCALE]), len(thresholds) - 1)]
            sums[side, 0] += min(step * (beyond - step / 2) / (held.phi[SCALE] * threshold), counting[i] / FEWEST_PARTS)
            if sums[side, 0] <= 0:
                sums[side, 0] = sums[side, 1] = sums[side, 2] = 0.0
                continue
            sums[side, 1] += values[i]
            sums[side, 2] += 1
            if sums[side, 0] >= ENOUGH:
                return i + 1
    return -1
