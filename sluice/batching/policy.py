"""A batching policy is a table; this module holds the table, the rule that reads it, and a constructor per policy.

With ``q`` requests waiting, row ``min(q, Q)`` says

    hold[q]   how long, in seconds, the oldest of them must have waited before a batch leaves (inf: never by time alone)
    take[q]   how many then leave, oldest first

and beside the rows stand ``servers``, the most batches in flight at once (``None``: elastic), and ``drop_after``, the age in
seconds beyond which a waiting request is given up (``None``: never). Row 0 is an empty queue and holds for ever.

The rule, at every arrival, completion and timer (docs/model.md, section 6):

    1. requests older than ``drop_after`` are dropped;
    2. while a server is free, q > 0 and ``now >= oldest arrival + hold[q]``: ``take[q]`` requests leave;
    3. if then a server is free and ``hold[q]`` is finite, wake at ``oldest arrival + hold[q]``.

A policy may have tables ``beside`` it, each for a function of its own, elastic or with servers of its own: MArk's overflow (Zhang
et al., ATC'19) has workers, and beside them a function whose table releases the oldest at the last moment. In 2. the first table
releases, of the policy's and those beside it in their order, that has a free server and whose hold has ended; after every release
all are read again with the queue that is left. In 3. the first to end of the holds of all that have a free server wakes.
``drop_after`` is the policy's own. A table whose function takes no more for now has ``ended``: it is not read at a length at which
another has a finite hold, with a free server or without, and is at the others, where nobody would leave by time alone. Servers that
are ejected, as their workers fail, are not free; but one of a table counts as well, whatever is said.

A request may have a ``slack``, seconds on one side or the other of the promise that the table was made for: it waits as one that
came so much later (or, below 0, earlier), and its holds run from ``arrival + slack``. So a table that waits to the last moment for
an SLO of 0.2 s serves a request that has 0.5 s with a slack of 0.3: ``hold[q, class] = hold[q] + slack[class]``. A hold of 0 is
over for everybody: the batch is full, or the server free. In the rule the oldest is then the one whose holds run from the earliest
moment, and it is first in a batch: earliest deadline first. Who has a long slack fills batches that leave for others.
``drop_after`` runs from the same moment.

A table may have ``columns``: it then reads how many wait in a hurry and how many are patient, whose slack is above 0. With C > 1
columns, ``u`` waiting whose slack is at most 0 and ``p`` patient ones, the row is ``min(u, U) * C + min(p, C - 1)``, where the
table has ``(U + 1) * C`` rows:

    row             0        1     ...  C - 1      C     C + 1  ...   (U + 1) * C - 1
    u, p          0, 0     0, 1        0, C - 1   1, 0   1, 1         U, C - 1

Such a row takes ``u + p`` at most, and where it speaks for longer queues, with U or C - 1, its hold is finite. Nothing else
differs: the row says how many leave and after which wait, and who they are is settled by the order above. So a patient one that has
outwaited its slack still counts as patient, and may leave before one in a hurry. One column counts all who wait, and is all that
requests without a slack need.

Ties: what happens at the very moment a hold ends is served by it (``>=``), and a request is dropped only strictly after
``drop_after``. The comparison is written with the sum, never with the age, so that the wake time it announces satisfies it in
floating point too. Three bodies interpret the table: ``batching.Batcher``, the simulator, and ``buffer_service/lua/advance.lua``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.batching.errors import InvalidInput

INF = math.inf

# What a plan's table may ask of a buffer. Beyond these a number is a slip of the pen, and would cost every process time and memory.
MAX_ROWS = 65_536  # rows; a buffer's queue has 10 000 requests at most, unless it is told otherwise
MAX_HOLD = 86_400.0  # seconds; a buffer also refuses what its callers would not wait for
MAX_SERVERS = 1_000_000  # batches in flight
MAX_BESIDE = 7  # tables beside a policy
MAX_SLACK = MAX_HOLD  # seconds, on either side

Parameter = float | int | str


@dataclass(frozen=True, slots=True)
class Policy:
    """A batching policy.

    Parameters
    ----------
    hold : sequence of float, length Q + 1
        Seconds; non-negative, ``inf`` allowed except in the last row, which speaks for every longer queue.
    take : sequence of int, length Q + 1
        ``0 <= take[q] <= q``, and at least 1 wherever ``hold[q]`` is finite.
    servers : int or None
        Batches in flight at most; ``None`` is elastic.
    drop_after : float or None
        Seconds after which a waiting request is dropped.
    kind, parameters
        Where the table comes from; nothing interprets them.
    beside : sequence of Policy, at most ``MAX_BESIDE``
        Tables that are read, in order, whenever those before release nothing; none has a ``drop_after`` or tables beside it.
    columns : int
        C: ``hold`` and ``take`` are a grid, of a row for each number of requests in a hurry and a column for each number of
        patient ones. An entry takes no more than wait at least; those of the last row and column have finite holds.

    Raises
    ------
    InvalidInput
        Also for a table that asks to wait for a moment already past: a negative or undefined hold, or a finite hold that takes
        nothing when it ends.
    """

    hold: Sequence[float]
    take: Sequence[int]
    servers: int | None = None
    drop_after: float | None = None
    kind: str = "table"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    beside: Sequence[Policy] = ()
    columns: int = 1

    def __post_init__(self) -> None:
        # Frozen: normalise once, so that equal tables compare equal whatever sequence they came in.
        object.__setattr__(self, "hold", tuple(float(h) for h in self.hold))
        object.__setattr__(self, "take", tuple(self.take))
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "beside", tuple(self.beside))
        if len(self.hold) != len(self.take):
            raise InvalidInput("take", len(self.take), f"as many rows as hold has ({len(self.hold)})")
        if len(self.hold) < 2:
            raise InvalidInput("hold", len(self.hold), "at least 2 rows: the empty queue and one request waiting")
        self._check_columns()
        if self.hold[0] != INF or self.take[0] != 0:
            raise InvalidInput("hold[0], take[0]", (self.hold[0], self.take[0]), "inf and 0: an empty queue holds")
        last = len(self.hold) // self.columns - 1
        for row, (hold, take) in enumerate(zip(self.hold, self.take, strict=True)):
            urgent, patient = divmod(row, self.columns)
            if math.isnan(hold) or hold < 0:
                raise InvalidInput(f"hold[{row}]", hold, "a number of seconds >= 0 or inf: the moment it names is already past")
            if not isinstance(take, int) or isinstance(take, bool) or not 0 <= take <= urgent + patient:
                raise InvalidInput(f"take[{row}]", take, f"an integer from 0 to {urgent + patient}")
            if hold < INF and take == 0:
                raise InvalidInput(f"take[{row}]", take, "at least 1, as hold is finite: it would wake for a moment already past")
            if hold == INF and (urgent == last or 0 < patient == self.columns - 1):
                raise InvalidInput(f"hold[{row}]", INF, "finite: this row speaks for every longer queue")
        if self.servers is not None and (not isinstance(self.servers, int) or self.servers < 1):
            raise InvalidInput("servers", self.servers, "an integer >= 1, or null for elastic")
        if self.drop_after is not None and not (0 <= self.drop_after < INF):
            raise InvalidInput("drop_after", self.drop_after, "a number of seconds >= 0, or null for never")
        if len(self.beside) > MAX_BESIDE:
            raise InvalidInput("beside", len(self.beside), f"at most {MAX_BESIDE} tables")
        for i, table in enumerate(self.beside):
            if table.drop_after is not None:
                raise InvalidInput(f"beside[{i}].drop_after", table.drop_after, "null: the policy that it is beside drops")
            if table.beside:
                raise InvalidInput(f"beside[{i}].beside", len(table.beside), "no tables: it is beside another itself")

    def _check_columns(self) -> None:
        if not isinstance(self.columns, int) or isinstance(self.columns, bool) or self.columns < 1:
            raise InvalidInput("columns", self.columns, "an integer >= 1")
        if self.columns > 1 and (len(self.hold) % self.columns or len(self.hold) < 2 * self.columns):
            allowed = f"a multiple of the {self.columns} columns, at least {2 * self.columns}"
            raise InvalidInput("hold", len(self.hold), f"{allowed}: nobody in a hurry waits, or one does")

    @property
    def tables(self) -> tuple[Policy, ...]:
        """The tables in the order in which they are read: this one, then those beside it."""
        return (self, *self.beside)

    @property
    def elastic(self) -> bool:
        """Whether a table releases however many batches are in flight."""
        return any(table.servers is None for table in self.tables)

    def row(self, urgent: int, patient: int = 0) -> int:
        """The row that speaks for a queue of so many whose slack is at most 0, and so many whose slack is above."""
        if self.columns == 1:
            return min(urgent + patient, len(self.hold) - 1)
        return min(urgent, len(self.hold) // self.columns - 1) * self.columns + min(patient, self.columns - 1)

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch the table can release; those beside it have their own."""
        return max(self.take)


class Decision(NamedTuple):
    """What the rule says now: ``drop``, or ``take`` that many of the oldest by that ``table``, or else ``wake_at`` then.

    ``wake_at`` is in seconds, ``None``: at an event. ``table`` is a place in ``Policy.tables``.
    """

    drop: bool
    take: int
    wake_at: float | None
    table: int = 0


def decide(
    policy: Policy,
    queue_length: int,
    oldest_arrival: float,
    now: float,
    *in_flight: int,
    ended: Collection[int] = (),
    patient: int = 0,
) -> Decision:
    """One turn of the rule; call again with the queue that is left until it neither drops nor takes.

    Parameters
    ----------
    queue_length : int
        Requests waiting.
    oldest_arrival, now : float
        Seconds on one clock; ``oldest_arrival``, with its slack, is not read when the queue is empty.
    *in_flight : int
        Batches released and not yet completed: by the policy's own table, then by each of those beside it.
    ended : collection of int
        Places of tables that are not read at a length of the queue at which another has a finite hold.
    patient : int
        How many of those who wait have a slack above 0; only a table with columns reads it.
    """
    if queue_length == 0:
        return Decision(False, 0, None)
    if policy.drop_after is not None and now > oldest_arrival + policy.drop_after:
        return Decision(True, 0, None)
    wake_at, waiting = INF, (queue_length - patient, patient)
    if ended and all(table.hold[table.row(*waiting)] == INF for place, table in enumerate(policy.tables) if place not in ended):
        ended = ()
    for place, (table, busy) in enumerate(zip(policy.tables, in_flight, strict=True)):
        if place in ended or (table.servers is not None and busy >= table.servers):
            continue
        row = table.row(*waiting)
        ends = oldest_arrival + table.hold[row]
        if now >= ends or table.hold[row] == 0:
            return Decision(False, table.take[row], None, place)
        wake_at = min(wake_at, ends)
    return Decision(False, 0, wake_at if wake_at < INF else None)


def no_batching() -> Policy:
    """Every request leaves alone and at once."""
    return Policy((INF, 0.0), (0, 1), kind="no_batching")


def size_or_timeout(batch_size: int, timeout: float) -> Policy:
    """A batch leaves with ``batch_size`` requests or ``timeout`` seconds after its first, whichever is sooner.

    The policy of BATCH (Ali et al., SC'20, section III-B), in front of an elastic function.
    """
    _check_batch_size("batch_size", batch_size)
    if not 0 <= timeout < INF:
        raise InvalidInput("timeout", timeout, "a number of seconds >= 0")
    hold = [INF] + [float(timeout)] * (batch_size - 1) + [0.0]
    return Policy(
        hold, tuple(range(batch_size + 1)), kind="size_or_timeout", parameters={"batch_size": batch_size, "timeout": float(timeout)}
    )


def greedy(max_batch_size: int, servers: int | None = 1) -> Policy:
    """Work-conserving: a free server takes all that wait, up to ``max_batch_size``."""
    _check_batch_size("max_batch_size", max_batch_size)
    return Policy(
        [INF] + [0.0] * max_batch_size,
        tuple(range(max_batch_size + 1)),
        servers,
        kind="greedy",
        parameters={"max_batch_size": max_batch_size},
    )


def static(batch_size: int, servers: int | None = 1) -> Policy:
    """Every batch has exactly ``batch_size`` requests, however long they wait."""
    _check_batch_size("batch_size", batch_size)
    hold = [INF] * batch_size + [0.0]
    take = [0] * batch_size + [batch_size]
    return Policy(hold, take, servers, kind="static", parameters={"batch_size": batch_size})


def control_limit(limit: int, max_batch_size: int, servers: int | None = 1) -> Policy:
    """A free server waits for ``limit`` requests, then takes all up to ``max_batch_size`` (Deb and Serfozo, 1973)."""
    _check_batch_size("limit", limit)
    _check_batch_size("max_batch_size", max_batch_size)
    rows = max(limit, max_batch_size) + 1
    hold = [INF if q < limit else 0.0 for q in range(rows)]
    take = [0 if q < limit else min(q, max_batch_size) for q in range(rows)]
    return Policy(hold, take, servers, kind="control_limit", parameters={"limit": limit, "max_batch_size": max_batch_size})


def smdp(actions: Sequence[int], servers: int | None = 1, columns: int = 1) -> Policy:
    """The table of a solved semi-Markov decision process: with ``q`` waiting take ``actions[q]``, and wait where that is 0.

    With ``columns`` the actions are those of a grid, row by row, as ``Policy`` has it.

    Xu et al., SMDP-based dynamic batching (ICC'23 and journal version): the action space is {0} and [B_min, min(s, B_max)].
    """
    hold = [INF if a == 0 else 0.0 for a in actions]
    return Policy(hold, tuple(actions), servers, kind="smdp", columns=columns)


def deadline(slo: float, service_times: Sequence[float], servers: int | None = 1) -> Policy:
    """Wait for one more request as long as the batch with it would still be in time for the oldest.

    The proactive, non-work-conserving batching of Proteus (Ahmad et al., ASPLOS'24, section 5): with ``q`` waiting, hold until
    the oldest is ``slo - service_times[q]`` old (``service_times[q]`` serves ``q + 1`` requests).

    Parameters
    ----------
    slo : float
        Seconds.
    service_times : sequence of float, length max_batch_size
        Seconds for a batch of 1, 2, ...
    """
    _check_service_times(slo, service_times)
    largest = len(service_times)
    hold = [INF] + [max(0.0, slo - service_times[q]) for q in range(1, largest)] + [0.0]
    return Policy(hold, tuple(range(largest + 1)), servers, kind="deadline", parameters={"slo": slo, "max_batch_size": largest})


def aimd(limit: int, servers: int | None = 1) -> Policy:
    """Greedy under a limit that moves: Clipper's additive increase, multiplicative decrease (Crankshaw et al., NSDI'17).

    The table for one value of the limit; whoever sees a batch complete swaps it for ``aimd(next_aimd_limit(...))``.
    """
    table = greedy(limit, servers)
    return Policy(table.hold, table.take, servers, kind="aimd", parameters={"limit": limit})


def next_aimd_limit(limit: int, latency: float, slo: float, step: int = 1, backoff: float = 0.9) -> int:
    """Clipper's next batch-size limit after a batch that took ``latency`` seconds under a limit of ``slo`` seconds."""
    return limit + step if latency <= slo else max(1, int(limit * backoff))


def early_drop(slo: float, service_times: Sequence[float], servers: int | None = 1) -> Policy:
    """Greedy with batches of the largest size that fits twice into the SLO; drop who could not be served in time by one.

    After Nexus (Shen et al., SOSP'19): a batch must end within half the SLO, so that a request which just missed one is in time
    for the next, and a head of the queue that even a full batch started now would fail is dropped. Nexus chooses the dropped
    prefix by a sliding window over the queue at each dispatch; the table keeps the window's length fixed.
    """
    _check_service_times(slo, service_times)
    feasible = [b for b, s in enumerate(service_times, 1) if 2 * s <= slo]
    if not feasible:
        raise InvalidInput("slo", slo, f"at least twice the service time of one request ({2 * service_times[0]:g} s)")
    largest = max(feasible)
    table = greedy(largest, servers)
    parameters: dict[str, Parameter] = {"slo": slo, "max_batch_size": largest}
    return Policy(table.hold, table.take, servers, slo - service_times[largest - 1], "early_drop", parameters)


def _check_batch_size(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(name, value, "an integer >= 1")


def _check_service_times(slo: float, service_times: Sequence[float]) -> None:
    if not 0 < slo < INF:
        raise InvalidInput("slo", slo, "a number of seconds > 0")
    if not service_times:
        raise InvalidInput("service_times", service_times, "at least the service time of one request")
    for b, s in enumerate(service_times, 1):
        if not 0 <= s < INF:
            raise InvalidInput(f"service_times[{b - 1}]", s, "a number of seconds >= 0")
