"""A batching table in words: when a batch leaves, and how many requests it takes. Pure, of a ``Policy`` alone."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from sluice.batching.policy import INF, Policy

MOST_SPANS = 24
"""Of a table that are shown; a table may have ``policy.MAX_ROWS`` rows."""


class Span(NamedTuple):
    """Rows that say the same: how many wait, how long the oldest of them does (s, ``None``: for ever), and how many then leave."""

    waiting: str
    hold: float | None
    leave: str


def duration(seconds: float) -> str:
    """Seconds as people read them: ``25 ms``, ``1.5 s``."""
    return f"{1e3 * seconds:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def spans(policy: Policy) -> list[Span]:
    """The rows of a table of one column from one waiting request on, those together that say the same."""
    table = enumerate(zip(policy.hold, policy.take, strict=True))
    rows = [(q, hold, 0 if hold == INF or take == q else take) for q, (hold, take) in table]
    found = []
    for (hold, part), group in groupby(rows[1:], key=lambda row: row[1:]):
        members = [q for q, _, _ in group]
        first, last = members[0], members[-1]
        open_ended = last == len(rows) - 1
        waiting = f"{first} or more" if open_ended else str(first) if first == last else f"{first} to {last}"
        leave = "" if hold == INF else str(part) if part else str(last) if first == last else "all"
        if leave == "all" and open_ended:
            leave = f"all, {last} at most"
        found.append(Span(waiting, None if hold == INF else hold, leave))
    return found


def sentences(policy: Policy) -> list[str]:
    """What a table has the buffer do, a sentence each."""
    said = [_release(policy)]
    if policy.servers is not None:
        said.append(f"At most {policy.servers} {'batch is' if policy.servers == 1 else 'batches are'} at work at a time.")
    if policy.drop_after is not None:
        said.append(f"Who has waited for {duration(policy.drop_after)} is given up.")
    return said


def _release(policy: Policy) -> str:
    largest, free = policy.max_batch_size, "" if policy.servers is None else " while a server is free"
    if policy.columns > 1:
        return f"How many leave, and when, hangs on how many wait in a hurry and how many are patient; {largest} at most{free}."
    holds = policy.hold[1:]
    if largest == 1 and holds[0] == 0:
        return f"Every request leaves at once, alone{free}."
    if max(holds) == 0:
        return f"All that wait leave at once{free}, {largest} at most."
    over = [hold == 0 for hold in holds]
    if over != sorted(over):
        return f"A batch of {largest} at most leaves{free}, after a wait that goes up and down with how many there are."
    before = [hold for hold in holds if hold > 0]
    wait = f"its oldest request has waited for {_range(before)}" if min(before) < INF else ""
    if wait and len(set(before)) > 1:
        wait += ", by how many there are"
    full = f"{next(q for q in range(1, len(policy.hold)) if max(policy.hold[q:]) == 0)} wait" if holds[-1] == 0 else ""
    return f"A batch of {largest} at most leaves{free} as soon as {', or '.join(filter(None, (full, wait)))}."


def _range(holds: list[float]) -> str:
    finite = [hold for hold in holds if hold < INF]
    least, most = min(finite), max(finite)
    told = duration(most) if least == most else f"{duration(least)} to {duration(most)}"
    return told if len(finite) == len(holds) else f"{told}, or for ever"
