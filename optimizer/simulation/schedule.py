"""Tables that come into force one after another: what a buffer runs whose plan is swapped (docs/model.md, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batching.errors import InvalidInput, require
from batching.policy import Policy
from optimizer.arrivals.map import Array


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which of some tables rules when.

    Parameters
    ----------
    tables : sequence of Policy
        All with the same ``servers`` and ``drop_after``: these are of the workers and of the promise, not of the rule.
    swap_times : array, shape (n_swaps,)
        When another table comes into force, s, ascending; of several swaps at one moment the last counts.
    swap_to : array of int, shape (n_swaps,)
        Which one, by its place in ``tables``.
    first : int
        The one in force before the first swap.

    Raises
    ------
    InvalidInput
        Tables that differ in ``servers`` or ``drop_after``; times that do not ascend; a table that is none of these.
    """

    tables: Sequence[Policy]
    swap_times: Array
    swap_to: NDArray[np.int64]
    first: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "swap_times", np.array(self.swap_times, dtype=np.float64, ndmin=1))
        object.__setattr__(self, "swap_to", np.array(self.swap_to, dtype=np.int64, ndmin=1))
        n, times, to = len(self.tables), self.swap_times, self.swap_to
        require(n > 0, "tables", n, "at least one table")
        for i, table in enumerate(self.tables):
            for name in ("servers", "drop_after"):
                mine, others = getattr(table, name), getattr(self.tables[0], name)
                require(mine == others, f"tables[{i}].{name}", mine, f"{others}, that of tables[0]: a swap cannot change it")
        require(
            bool(np.isfinite(times).all() and (times[1:] >= times[:-1]).all()),
            "swap_times",
            f"{len(times)} times",
            "finite times in ascending order",
        )
        require(to.shape == times.shape, "swap_to", to.shape, f"a table for each of the {len(times)} swaps")
        place = f"an integer from 0 to {n - 1}, the place of a table"
        require(0 <= self.first < n, "first", self.first, place)
        for i in np.flatnonzero((to < 0) | (to >= n))[:1]:
            raise InvalidInput(f"swap_to[{i}]", int(to[i]), place)

    @property
    def servers(self) -> int | None:
        """Batches in flight at most."""
        return self.tables[0].servers

    @property
    def drop_after(self) -> float | None:
        """Seconds after which a waiting request is dropped."""
        return self.tables[0].drop_after

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch that any of the tables can release."""
        return max(table.max_batch_size for table in self.tables)

    @property
    def hold(self) -> Array:
        """``hold`` of every table, (n_tables, rows); a shorter one's last row, which speaks for longer queues, is repeated."""
        return np.array([_lengthened(table.hold, self._rows) for table in self.tables], dtype=np.float64)

    @property
    def take(self) -> NDArray[np.int64]:
        """``take`` of every table, in the same way."""
        return np.array([_lengthened(table.take, self._rows) for table in self.tables], dtype=np.int64)

    @property
    def _rows(self) -> int:
        return max(len(table.hold) for table in self.tables)


def _lengthened(column: Sequence[float], rows: int) -> list[float]:
    return [*column, *[column[-1]] * (rows - len(column))]
