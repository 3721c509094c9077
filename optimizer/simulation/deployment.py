"""What is put before a queue and run: tables, and what serves their batches (docs/model.md, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import MAX_CLASSES, RequestClass
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import INF, MAX_BESIDE, MAX_SERVERS, MAX_SLACK, Policy, next_aimd_limit
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cold_starts import KEEP_ALIVE
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.schedule import Schedule


@dataclass(frozen=True)
class Environments:
    """How a platform runs the environments of a function, as AWS Lambda does.

    Parameters
    ----------
    init_duration : float
        Seconds that a cold start takes before it serves.
    keep_alive : float
        Seconds after which an idle environment is gone; of several idle ones the last used serves.
    concurrency : int or None
        Batches under way at most; ``None``: any number.
    scaling_rate : float
        New environments per second that are granted in the long run (Lambda: 100, as 1000 every 10 s).
    burst : int
        New environments that are granted at once after a pause (Lambda: 1000).
    pinged_every : float
        Seconds from one time to the next, at their multiples, at which as many pings as are ``pinged`` come at once: they go to the
        environments that were idle for the shortest time, which are then as if they had been used; where fewer are idle others
        start. Longer than ``init_duration`` and no longer than ``keep_alive``; ``inf``: there are none.
    started : int
        Environments that were started for a run, and are there when it begins.
    pinged : int
        How many pings come at once.
    """

    init_duration: float = 0.0
    keep_alive: float = np.inf
    concurrency: int | None = None
    scaling_rate: float = np.inf
    burst: int = 1000
    pinged_every: float = np.inf
    started: int = 0
    pinged: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.init_duration < np.inf, "init_duration", self.init_duration, "a number of seconds >= 0")
        require(self.keep_alive >= 0, "keep_alive", self.keep_alive, "a number of seconds >= 0")
        whole = self.concurrency is None or (self.concurrency % 1 == 0 and 1 <= self.concurrency <= MAX_SERVERS)
        require(whole, "concurrency", self.concurrency, f"an integer >= 1, at most {MAX_SERVERS}, or none")
        require(self.scaling_rate > 0, "scaling_rate", self.scaling_rate, "environments per second > 0")
        whole = self.burst % 1 == 0 and 1 <= self.burst <= MAX_SERVERS
        require(whole, "burst", self.burst, f"an integer >= 1, at most {MAX_SERVERS}")
        whole = self.started % 1 == 0 and 0 <= self.started <= MAX_SERVERS
        require(whole, "started", self.started, f"an integer >= 0, at most {MAX_SERVERS}")
        whole = self.pinged % 1 == 0 and 1 <= self.pinged <= MAX_SERVERS
        require(whole, "pinged", self.pinged, f"an integer >= 1, at most {MAX_SERVERS}")
        most = f"up to {self.keep_alive:g}, for which an unused environment is kept"
        allowed = f"seconds > {self.init_duration:g}, those of a cold start, {most}"
        kept = self.init_duration < self.pinged_every <= self.keep_alive or np.isinf(self.pinged_every)
        require(kept, "pinged_every", self.pinged_every, allowed)

    @property
    def there_first(self) -> int:
        """How many of those that were ``started`` there may be."""
        return self.started if self.concurrency is None else min(self.started, self.concurrency)

    @property
    def starts_at_once(self) -> bool:
        """Whether a batch never waits for its environment, but where more are asked for at once than are granted."""
        return self.init_duration == 0 and self.concurrency is None


LAMBDA = Environments(0.0, KEEP_ALIVE, None, 100.0, 1000)  # how AWS Lambda runs them, but for the INIT, which is the function's


@dataclass(frozen=True, eq=False)
class Serving:
    """A table and what serves its batches: a function where it is elastic, else the servers that it names.

    Parameters
    ----------
    policy : Policy or Schedule
        One table, or, of a deployment's own, several that are swapped on the way.
    service : ServiceTimes
        Must reach the largest batch.
    environments : Environments or None
        Of a function; ``None``: one for every batch, warm.
    function : str
        Its name, as a plan has it; empty: nobody's to know.
    price_per_worker_hour, price_per_worker_second, price_per_batch : float
        USD for an hour of a server that is there (one that goes while it serves ends its batch unpaid), for a second that is
        billed of a batch, for a batch that it serves.
    provisioned : bool
        Whether the servers are environments of a function: its invocations are logged and leave the network.
    """

    policy: Policy | Schedule
    service: ServiceTimes
    environments: Environments | None = None
    function: str = field(default="", kw_only=True)
    price_per_worker_hour: float = field(default=0.0, kw_only=True)
    price_per_worker_second: float = field(default=0.0, kw_only=True)
    price_per_batch: float = field(default=0.0, kw_only=True)
    provisioned: bool = field(default=False, kw_only=True)
    schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.policy if isinstance(self.policy, Schedule) else Schedule.of(self.policy)
        object.__setattr__(self, "schedule", schedule)
        self.service.up_to(schedule.max_batch_size)
        require(self.elastic or self.environments is None, "environments", self.environments, "none, as servers serve the table")
        for name in ("price_per_worker_hour", "price_per_worker_second", "price_per_batch"):
            require(0 <= getattr(self, name) < np.inf, name, getattr(self, name), "USD >= 0")

    @property
    def elastic(self) -> bool:
        """Whether a function serves, and not servers."""
        return self.schedule.elastic


@dataclass(frozen=True, eq=False)
class Beside(Serving):
    """A table beside others of the same queue, and what serves it: it is read whenever those before it release nothing.

    Raises
    ------
    InvalidInput
        Tables that are swapped, or that drop.
    """

    policy: Policy

    def __post_init__(self) -> None:
        require(isinstance(self.policy, Policy), "beside.policy", "a schedule", "one table: the first alone is swapped")
        super().__post_init__()
        (table,) = self.schedule.tables
        require(table.drop_after is None, "beside.policy.drop_after", table.drop_after, "none: the table that it is beside drops")


@dataclass(frozen=True, eq=False)
class Adaptation:
    """Tables that follow each other as batches complete: an automaton of tables.

    Parameters
    ----------
    latency : float
        Seconds that a batch may take from dispatch to answer.
    up, down : array of int, shape (n_tables,)
        The table that rules after a batch that took at most, or more than, ``latency`` under table ``i``.
    """

    latency: float
    up: NDArray[np.int64]
    down: NDArray[np.int64]

    def __post_init__(self) -> None:
        require(self.latency > 0, "adaptation.latency", self.latency, "a number of seconds > 0")
        for name in ("up", "down"):
            to = np.array(getattr(self, name))
            require(bool((to % 1 == 0).all()), f"adaptation.{name}", to.tolist(), "places of tables, integers >= 0")
            object.__setattr__(self, name, to.astype(np.int64))

    @classmethod
    def aimd(cls, latency: float, largest: int, step: int = 1, backoff: float = 0.9) -> Adaptation:
        """Of the tables ``policy.aimd(1)`` to ``aimd(largest)``: additive increase, multiplicative decrease (Clipper)."""
        limits = range(1, largest + 1)
        up = [min(next_aimd_limit(limit, 0.0, latency, step, backoff), largest) - 1 for limit in limits]
        down = [next_aimd_limit(limit, INF, latency, step, backoff) - 1 for limit in limits]
        return cls(latency, np.array(up), np.array(down))


@dataclass(frozen=True, eq=False)
class Deployment(Serving):
    """A policy and what serves it, with its prices; and what stands beside it, in the order in which their tables are read.

    Parameters
    ----------
    beside : sequence of Beside, at most ``MAX_BESIDE``
        Other functions and servers for the same queue.
    classes : sequence of RequestClass, at most ``MAX_CLASSES``
        Of its requests, each with its ``slack``; empty: all requests are alike.
    adaptation : Adaptation or None
        Swaps of the policy's own tables by what their batches took.
    energy : array, shape (>= max_batch_size,), optional
        J that a batch of 1, 2, ... takes, wherever it is served.
    billing : Billing
        Of the functions; the share of cold starts is what the run shows, whatever stands there.
    note : str
        What who reads the run should know of how the policy was made.

    Raises
    ------
    InvalidInput
        Environments without a function, an adaptation without workers, an automaton of other tables, too many beside; a class
        without a slack.
    """

    _: KW_ONLY
    beside: Sequence[Beside] = ()
    classes: Sequence[RequestClass] = ()
    adaptation: Adaptation | None = None
    energy: Array | None = None
    billing: Billing = field(default_factory=Billing)
    note: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "beside", tuple(self.beside))
        object.__setattr__(self, "classes", tuple(self.classes))
        require(len(self.beside) <= MAX_BESIDE, "beside", len(self.beside), f"at most {MAX_BESIDE} tables")
        require(len(self.classes) <= MAX_CLASSES, "classes", len(self.classes), f"at most {MAX_CLASSES}")
        for each in self.classes:
            slack = np.nan if each.slack is None else each.slack
            require(
                abs(slack) <= MAX_SLACK,
                f"slack of {each.name}",
                each.slack,
                f"a number of seconds from {-MAX_SLACK:g} to {MAX_SLACK:g}",
            )
        require(not self.elastic or self.adaptation is None, "adaptation", "given", "none, as a function serves the table")
        largest = self.max_batch_size
        if self.energy is not None:
            require(len(self.energy) >= largest, "energy", len(self.energy), f"joules of batches up to the largest, {largest}")
            for b, joules in enumerate(self.energy, 1):
                require(0 <= joules < np.inf, f"energy at batch size {b}", float(joules), "a number >= 0")
        if self.adaptation is not None:
            n = len(self.schedule.tables)
            for name in ("up", "down"):
                to = getattr(self.adaptation, name)
                require(to.shape == (n,), f"adaptation.{name}", to.shape, f"a table for each of the {n}")
                require(bool(((to >= 0) & (to < n)).all()), f"adaptation.{name}", to.tolist(), f"integers from 0 to {n - 1}")

    @property
    def serving(self) -> tuple[Serving, ...]:
        """What serves, in the order of the tables: this one, then those beside."""
        return (self, *self.beside)

    @property
    def n_tables(self) -> int:
        """How many these are."""
        return 1 + len(self.beside)

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch of any table."""
        return max(side.schedule.max_batch_size for side in self.serving)


def require_classes(classes: Indices, n_classes: int) -> None:
    """Raise ``InvalidInput`` unless each of the ``classes`` of requests is the place of one of so many."""
    for k in classes[(classes < 0) | (classes >= n_classes)][:1]:
        raise InvalidInput("class", int(k), f"an integer from 0 to {n_classes - 1}, the place of one of the deployment's")
