"""Tables that come into force one after another, and servers that come and go (docs/model.md, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import INF, Policy
from sluice.optimizer.arrays import Array

KEEP = -1


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which of some tables rules when.

    Parameters
    ----------
    tables : sequence of Policy
        All elastic, or none.
    swap_times : array, shape (n_swaps,)
        When another table comes into force, s, ascending; of several swaps at one moment the last counts.
    swap_to : array of int, shape (n_swaps,)
        Which one, by its place in ``tables``; ``KEEP``: the one that rules then goes on, and the servers alone change.
    first : int
        The one in force before the first swap.
    servers : array of int, shape (n_swaps + 1,), optional
        How many servers there are before the first swap and after each one, instead of those of the tables; with 0 nothing leaves.
        Batches in flight at a server that goes end there.

    Raises
    ------
    InvalidInput
        Tables of which some are elastic; times that do not ascend; a table that is none of these; servers for elastic tables.
    """

    tables: Sequence[Policy]
    swap_times: Array
    swap_to: NDArray[np.int64]
    first: int = 0
    servers: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "swap_times", np.array(self.swap_times, dtype=np.float64, ndmin=1))
        object.__setattr__(self, "swap_to", np.array(self.swap_to, dtype=np.int64, ndmin=1))
        n, times, to = len(self.tables), self.swap_times, self.swap_to
        require(n > 0, "tables", n, "at least one table")
        for i, table in enumerate(self.tables):
            of_servers = "of servers, as tables[0] is" if self.tables[0].servers else "elastic, as tables[0] is"
            require((table.servers is None) == self.elastic, f"tables[{i}].servers", table.servers, of_servers)
            require(
                not table.beside,
                f"tables[{i}].beside",
                len(table.beside),
                "no tables: a deployment has those beside",
            )
        require(
            bool(np.isfinite(times).all() and (times[1:] >= times[:-1]).all()),
            "swap_times",
            f"{len(times)} times",
            "finite times in ascending order",
        )
        require(to.shape == times.shape, "swap_to", to.shape, f"a table for each of the {len(times)} swaps")
        place = f"an integer from 0 to {n - 1}, the place of a table"
        require(
            self.servers is not None or not (to == KEEP).any(), "swap_to", KEEP, "the place of a table, where no servers are given"
        )
        require(0 <= self.first < n, "first", self.first, place)
        for i in np.flatnonzero((to < KEEP) | (to >= n))[:1]:
            raise InvalidInput(f"swap_to[{i}]", int(to[i]), place)
        if self.servers is not None:
            servers = np.array(self.servers, dtype=np.int64, ndmin=1)
            object.__setattr__(self, "servers", servers)
            require(not self.elastic, "servers", servers.tolist(), "none, as the tables are elastic")
            require(len(servers) == len(times) + 1, "servers", len(servers), f"{len(times) + 1} numbers: at first, after each swap")
            for i in np.flatnonzero(servers < 0)[:1]:
                raise InvalidInput(f"servers[{i}]", int(servers[i]), "an integer >= 0")

    @classmethod
    def of(cls, policy: Policy) -> Schedule:
        """One table for ever."""
        return cls([policy], np.empty(0), np.empty(0, dtype=np.int64))

    @property
    def elastic(self) -> bool:
        """Whether a function serves, and not servers."""
        return self.tables[0].servers is None

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch that any of the tables can release."""
        return max(table.max_batch_size for table in self.tables)

    @property
    def servers_in_force(self) -> NDArray[np.int64] | None:
        """The servers before the first swap and after each, (n_swaps + 1,); ``None`` for a function."""
        if self.elastic or self.servers is not None:
            return self.servers
        return np.array([self.tables[i].servers for i in (self.first, *self.swap_to)], dtype=np.int64)

    def server_seconds(self, start: float, end: float) -> float:
        """Seconds of servers that are there between two times, without those of a last batch that a leaving one ends."""
        if (servers := self.servers_in_force) is None or end <= start:
            return 0.0
        edges = np.concatenate([[start], np.clip(self.swap_times, start, end), [end]])
        return float(servers @ np.diff(edges))

    @property
    def drop_after(self) -> Array:
        """``drop_after`` of every table, (n_tables,), s; ``inf`` for never."""
        return np.array([INF if table.drop_after is None else table.drop_after for table in self.tables])


def rows_of(tables: Sequence[Policy]) -> tuple[Array, NDArray[np.int64]]:
    """``hold`` (s) and ``take`` of every table, (n_tables, rows); of a shorter one the last row, which speaks for longer queues,
    is repeated.
    """
    hold = np.array(_lengthened([table.hold for table in tables]), dtype=np.float64)
    return hold, np.array(_lengthened([table.take for table in tables]), dtype=np.int64)


def _lengthened(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    rows = max(map(len, columns))
    return [[*column, *[column[-1]] * (rows - len(column))] for column in columns]
