"""The port to the queues: what the dispatcher needs of a store, and the records that cross it.

A store belongs to one process of the buffer, which it knows by ``process``, a name of 8 characters. Its queues may be shared with
other processes. A member is bytes that no store reads, but for its first 16: the request's id, which starts with the name of the
process that the request's caller waits at; and its slack, where it has one (``members.py``).

Implementations: ``redis_store.RedisStore`` and ``memory_store.MemoryStore``; one suite of tests runs over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from sluice.batching import Policy
from sluice.batching.errors import DispatchFailed
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.results import Bounds, Results

ID_LENGTH = 16
PROCESS_LENGTH = 8
STARTS_WITHIN = 60  # seconds after which another starts environments that the first one has not
THERE_FOR = 300  # seconds for which those that were started are taken to be there, whoever follows the plan


def lends(process: str) -> bool:
    """Whether a process reads tickets and lends bodies (``members.py``): names of the versions that do not are hexadecimal."""
    return process[:1] not in "0123456789abcdef"


def queue_name(model: str, route: str = "") -> str:
    """One name for a queue; no model has it, as a colon is in no model's name."""
    return f"{model}:{route}" if route else model


def batch_name(process: str, call: int, number: int, table: int = 0) -> str:
    """The name of a batch, which says whose it is and which of the policy's tables released it."""
    name = f"{process}:{call}:{number}"
    return f"{name}:{table}" if table else name


def table_of(batch_id: str) -> int:
    """The place of the table that released a batch, in ``Policy.tables``; of what no store named, the first."""
    if batch_id.count(":") < 3:
        return 0
    place = batch_id.split(":")[3]
    return int(place) if place.isdecimal() else 0


class QueueLost(DispatchFailed):
    """The store does not know the queue (any more): install its policy and submit again what waits."""


class Released(NamedTuple):
    """A batch to send: it stays leased to this process until its id is among ``Events.completed``."""

    batch_id: str
    members: list[bytes]

    @property
    def table(self) -> int:
        """The place of the table that released it, in ``Policy.tables``."""
        return table_of(self.batch_id)


@dataclass(frozen=True, slots=True)
class Events:
    """Everything that happened on this process since its last call.

    ``serving``, when not ``None``, renews the leases of these batches and takes back what others lost: batches whose process has
    not been heard of within the lease, and batches of this process that it does not know of (an answer that got lost). Those
    that left past the queue are named too, so that nobody is forgotten who serves one.
    ``leaving`` takes the events but releases nothing, and forgets this process once it serves nothing.
    ``ages`` says how many seconds before this call each of the arrivals came, as a single-precision float keeps it; without it,
    all came now. Their holds run from then, and so does the record of arrivals (``arrival_stream.py``), from which the traffic is
    learned; for that alone are ``sizes``, that of each arrival or ``nan``; without it none was told. ``recorded`` arrivals are in
    the record already: they come from another queue of the model. ``gone`` are members of this process's callers who wait no
    more. ``at_most`` are places of tables whose functions take no more now, and how many batches this process takes from each by
    this call before it has ended (``policy.py``); ``ejected`` are places of tables some of whose servers are, as far as this
    process knows, and how many: they count as busy, but for the last that a table has. ``measured`` are batches for the record of
    batches, of this route, whose ``ended_at`` counts from this call. So many requests were ``refused`` since the last, as too many
    waited: they are in no record, and whoever plans is to know of them. ``direct`` says, as ``ages`` do, when those came who left
    in batches of this process without having waited at the queue: they are recorded, and count as taken; none come with
    ``recorded`` arrivals. The holds of the arrivals, but not their record, run so many seconds ``early`` (``hold_lateness.py``).
    """

    arrivals: Sequence[bytes] = ()
    completed: Sequence[str] = ()
    serving: Sequence[str] | None = None
    leaving: bool = False
    ages: Sequence[float] = ()
    recorded: bool = False
    gone: Sequence[bytes] = ()
    sizes: Sequence[float] = ()
    at_most: Sequence[tuple[int, int]] = ()
    measured: Sequence[MeasuredBatch] = ()
    refused: int = 0
    direct: Sequence[float] = ()
    ejected: Sequence[tuple[int, int]] = ()
    early: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the store answers to ``Events``.

    The first ``accepted`` arrivals were taken, the rest refused because the queue is full. ``wake_in`` is the time in seconds until
    ``advance`` must be called again, at the latest. ``dropped`` were older than the policy serves, ``dead`` were lost too often.
    Of the ``queue_length`` that wait, ``behind`` stand behind who comes now without a slack. ``taken`` is how many members have
    left in batches since the queue began, ``busy`` how many servers have a batch in flight or are ejected, of tables that have any.
    Another ``epoch`` than the last time means that the store lost the queue in between. ``all_lend`` says, at a sweep, whether all
    processes that were heard of lately read tickets and lend bodies, and ``alone`` whether there is no other; else ``None``.
    """

    accepted: int = 0
    batches: list[Released] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    wake_in: float | None = None
    queue_length: int = 0
    behind: int = 0
    taken: int = 0
    busy: int = 0
    epoch: str = ""
    all_lend: bool | None = None
    alone: bool | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queue bounds: its length, the lease in seconds, how often a member may be lost, and what it keeps a record of: the
    newest arrival times, and the newest measured batches. A body of more bytes than are ``carried`` stays with the process of its
    caller where all can ask for it; what is less goes through the queue, as it costs less than to ask.
    """

    max_queue_length: int = 10_000
    lease: float = 0.6
    max_attempts: int = 3
    arrivals_kept: int = 1_000_000
    batches_kept: int = 100_000
    carried: int = 16 * 1024


class Turn(Enum):
    """Where the environments are that an edition of a plan asks for: to be started by who asks, or by another, or there."""

    FIRST = auto()
    STARTING = auto()
    THERE = auto()


class Queue(Protocol):
    """The queue of one route of a model; a model without routes has the one whose route is ``""``."""

    async def install(self, policy: Policy) -> None:
        """This table rules from now on, for every process."""

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        """Take the events, apply the rule. ``now`` (seconds) replaces the store's own clock in tests.

        Raises ``QueueLost`` where no policy is installed and ``StoreUnavailable`` where the store does not answer; the events may
        then have been taken or not.
        """

    async def check(self) -> None:
        """Raise ``StoreUnavailable`` unless a call that changes the queue would be executed."""

    async def turn(self, edition: str) -> Turn:
        """Whose it is to start what an edition of a plan asks for: of the ``FIRST`` who asks, for ``STARTS_WITHIN`` s."""

    async def there(self, edition: str) -> None:
        """What the edition asks for is there, and is taken to be for ``THERE_FOR`` s."""

    async def pings_in(self, edition: str, within: float) -> float:
        """0 where whoever asks is to ping what an edition of a plan keeps, as nobody will for so long; else s until one is to."""

    async def pinged(self, edition: str, every: float) -> None:
        """All of it was pinged: nobody is to for so many s."""


class Store(Protocol):
    """The queues, and the mail between processes."""

    @property
    def process(self) -> str: ...

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        """The queue of a route; all queues of a model share its records of arrivals and of batches."""

    def results(self, model: str, bounds: Bounds) -> Results:
        """What is kept of the model's requests whose answers are fetched later, or asked for again."""

    async def send(self, process: str, message: bytes) -> None:
        """Put a message into another process's list."""

    async def receive(self) -> list[bytes]:
        """Wait for messages to this process; may return none."""

    async def close(self) -> None:
        """Release connections; this process receives no messages any more."""
