"""The latest rows of numbers: a ring of an array, where they take a sixth of the memory that objects of Python would."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array


class LatestRows:
    """The last ``kept`` rows of so many ``columns``; there is room for twice as many as are held, at the most, and none pickled."""

    def __init__(self, kept: int, columns: int) -> None:
        self._kept = kept
        self._held = np.empty((0, columns))  # grows to ``kept`` rows, and is a ring from then on
        self._seen = 0

    def __len__(self) -> int:
        return min(self._seen, len(self._held))

    def __getstate__(self) -> tuple[int, Array]:
        return self._kept, self.rows()

    def __setstate__(self, state: tuple[int, Array]) -> None:
        self._kept, self._held = state
        self._seen = len(self._held)

    def extend(self, rows: Array) -> None:
        """Take in rows, (n, columns), the latest last."""
        rows = rows[-self._kept :]
        if not len(rows):
            return
        held, together = len(self._held), len(self) + len(rows)
        if held < min(together, self._kept):
            grown = np.empty((min(max(together, 2 * held), self._kept), rows.shape[1]))
            grown[: len(self)] = self._held[: len(self)]
            self._held = grown
        place = self._seen % len(self._held)
        before_end = min(len(rows), len(self._held) - place)
        self._held[place : place + before_end] = rows[:before_end]
        self._held[: len(rows) - before_end] = rows[before_end:]
        self._seen += len(rows)

    def rows(self, latest: int | None = None) -> Array:
        """Those that are kept, or the ``latest`` of them, (n, columns), the latest last; not to be written to, nor to be kept."""
        n = len(self) if latest is None else min(latest, len(self))
        end = self._seen % len(self._held) if n else 0
        if n <= end or not n:
            return self._held[end - n : end]
        return np.concatenate([self._held[len(self._held) + end - n :], self._held[:end]])

    def clear(self) -> None:
        """Forget them."""
        self._held, self._seen = np.empty((0, self._held.shape[1])), 0
