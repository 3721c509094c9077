"""Random policies and stimuli, for every test that drives a body of the rule."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from sluice.batching import Policy

# Times are multiples of 1/64 s: exact in binary, so that ties between holds and events happen and are the same everywhere.
ticks = st.integers(0, 64).map(lambda n: n / 64)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any valid table of up to 8 rows beyond the empty queue."""
    rows = draw(st.integers(1, 8))
    hold, take = [math.inf], [0]
    for q in range(1, rows + 1):
        waits = q < rows and draw(st.booleans()) and draw(st.booleans())
        hold.append(math.inf if waits else draw(ticks))
        take.append(draw(st.integers(0 if waits else 1, q)))
    servers = draw(st.none() | st.integers(1, 3))
    drop_after = draw(st.none() | st.none() | ticks)
    return Policy(hold, take, servers, drop_after)


@st.composite
def grids(draw: st.DrawFn) -> Policy:
    """Any valid table of 2 to 5 columns, for up to 4 requests in a hurry."""
    columns, last = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    hold, take = [math.inf], [0]
    for row in range(1, (last + 1) * columns):
        urgent, patient = divmod(row, columns)
        waits = urgent < last and patient < columns - 1 and draw(st.booleans()) and draw(st.booleans())
        hold.append(math.inf if waits else draw(ticks))
        take.append(draw(st.integers(0 if waits else 1, urgent + patient)))
    servers = draw(st.none() | st.integers(1, 3))
    drop_after = draw(st.none() | st.none() | ticks)
    return Policy(hold, take, servers, drop_after, columns=columns)


def row_in_words(table: Policy, urgent: int, patient: int = 0) -> int:
    """The row of a table that speaks for a queue: the last one that speaks of no more of either kind, not as the rule finds it."""
    if table.columns == 1:
        return max(row for row in range(len(table.hold)) if row <= urgent + patient)
    return max(row for row in range(len(table.hold)) if row // table.columns <= urgent and row % table.columns <= patient)


any_tables = policies() | grids()


@st.composite
def policies_with_tables_beside(draw: st.DrawFn, tables: st.SearchStrategy[Policy] = any_tables) -> Policy:
    """Any valid table, of columns or of one, and up to three beside it."""
    beside = [replace(table, drop_after=None) for table in draw(st.lists(tables, max_size=3))]
    return replace(draw(tables), beside=beside)


# (time since the last event, arrivals, batches completed if so many are in flight)
stimuli = st.lists(st.tuples(ticks, st.integers(0, 12), st.integers(0, 3)), max_size=30)
