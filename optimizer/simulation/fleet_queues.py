"""A fleet, run: requests are routed to queues by shares that change, and every queue is run by the event loop on its own.

Routing looks at no queue and queues know nothing of each other, so the fleet falls into queues exactly: first every family's
arrivals are routed, then each queue's part goes through ``simulate_deployment`` with servers that come and go, then the requests
are put back in order of arrival. Behind a queue stands a group, the devices of one type that host one variant, or one device alone:
that is up to who makes the list of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.deployment import Adaptation, Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment
from sluice.optimizer.simulation.fleet_run import FleetRun
from sluice.optimizer.simulation.routing import route
from sluice.optimizer.simulation.schedule import Schedule


@dataclass(frozen=True, eq=False)
class AdaptiveTables:
    """Tables that follow each other as batches complete, from the first on; servers that come or go begin with it anew."""

    tables: Sequence[Policy]
    adaptation: Adaptation


@dataclass(frozen=True, eq=False)
class FleetQueue:
    """A queue and what stands behind it.

    Parameters
    ----------
    device_type, variant, family : int
        By their places in the fleet.
    accuracy : float
        Of the variant, percent.
    policy : Policy or AdaptiveTables
        The table; its ``servers`` are replaced by those of the schedule.
    service : ServiceTimes
        Of the variant on one device of the type.
    """

    device_type: int
    variant: int
    family: int
    accuracy: float
    policy: Policy | AdaptiveTables
    service: ServiceTimes


@dataclass(frozen=True, eq=False)
class FleetSchedule:
    """Who serves what, when.

    Parameters
    ----------
    queues : sequence of FleetQueue
    times : array, shape (n_changes,)
        When shares or servers change, s, ascending.
    shares : array, shape (n_changes + 1, n_queues)
        Of the requests of its family that a queue gets, before the first change and after each; in any unit.
    servers : array of int, shape (n_changes + 1, n_queues)
        Devices behind each queue, in the same way; of a queue that loses some, batches in service end normally.

    Raises
    ------
    InvalidInput
        Times that do not ascend; shares or servers of another shape, or negative.
    """

    queues: Sequence[FleetQueue]
    times: Array
    shares: Array
    servers: Indices

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", tuple(self.queues))
        object.__setattr__(self, "times", np.array(self.times, dtype=np.float64, ndmin=1))
        object.__setattr__(self, "shares", np.array(self.shares, dtype=np.float64, ndmin=2))
        object.__setattr__(self, "servers", np.array(self.servers, dtype=np.int64, ndmin=2))
        require(bool((self.times[1:] >= self.times[:-1]).all()), "times", f"{len(self.times)} times", "ascending")
        shape = (len(self.times) + 1, len(self.queues))
        for name in ("shares", "servers"):
            values = getattr(self, name)
            require(values.shape == shape, name, values.shape, f"{shape}: before the changes and after each, by queue")
            for at, queue in np.argwhere(~((values >= 0) & (values < np.inf)))[:1]:
                raise InvalidInput(f"{name}[{at}, {queue}]", values[at, queue].item(), "a finite number >= 0")


def simulate_fleet(
    schedule: FleetSchedule,
    arrivals: Sequence[Array],
    slos: Array,
    rng: np.random.Generator,
    random_routing: bool = False,
) -> FleetRun:
    """Run a fleet over the arrivals of its families.

    Parameters
    ----------
    schedule : FleetSchedule
    arrivals : sequence of arrays, one per family
        Ascending, s.
    slos : array, shape (n_families,)
        s.
    rng : numpy.random.Generator
        Draws service times, where these are random, and queues, if routing is.
    random_routing : bool
        Each request goes to a queue drawn by the shares; else routing is balanced (``route``).

    Raises
    ------
    InvalidInput
        A queue of a family without arrivals given; as ``route`` and ``simulate_deployment``.
    """
    require(len(slos) == len(arrivals), "slos", len(slos), f"one for each of the {len(arrivals)} families")
    for i, queue in enumerate(schedule.queues):
        require(0 <= queue.family < len(arrivals), f"queues[{i}].family", queue.family, f"one of the {len(arrivals)} families")
    times = np.concatenate([np.asarray(a, dtype=np.float64) for a in arrivals])
    family = np.repeat(np.arange(len(arrivals)), [len(a) for a in arrivals])
    queue_of = np.concatenate([_routed(schedule, q, a, rng if random_routing else None) for q, a in enumerate(arrivals)])
    latency = np.full(len(times), np.nan)
    accuracy = np.full(len(times), np.nan)
    busy, batches = np.zeros(len(schedule.queues)), np.zeros(len(schedule.queues), dtype=np.int64)
    for i, queue in enumerate(schedule.queues):
        mine = np.flatnonzero(queue_of == i)  # of one family, so in order of arrival
        if not len(mine):
            continue
        accuracy[mine] = queue.accuracy
        run = _run(schedule, i, times[mine], rng)
        latency[mine] = run.latency
        busy[i], batches[i] = run.response_times.sum(), run.n_batches
    order = np.argsort(times, kind="stable")
    present = _server_seconds(schedule, times[order])
    slos = np.asarray(slos, dtype=np.float64)
    by_request = (times[order], family[order], queue_of[order], latency[order], accuracy[order])
    return FleetRun(*by_request, slos, batches, busy, present)


def _routed(schedule: FleetSchedule, family: int, arrivals: Array, rng: np.random.Generator | None) -> Indices:
    """Place in ``schedule.queues`` of every request of one family."""
    members = np.array([i for i, queue in enumerate(schedule.queues) if queue.family == family], dtype=np.int64)
    if not len(members):
        return np.full(len(arrivals), -1, dtype=np.int64)
    shares = schedule.shares[:, members]
    changes = np.flatnonzero((shares[1:] != shares[:-1]).any(axis=1))
    queue = route(arrivals, schedule.times[changes], shares[np.append(0, changes + 1)], rng)
    return np.where(queue < 0, -1, members[queue])


def _run(schedule: FleetSchedule, queue: int, times: Array, rng: np.random.Generator) -> SimulationResult:
    """One queue with its servers over time."""
    servers = schedule.servers[:, queue]
    changes = np.flatnonzero(servers[1:] != servers[:-1])
    of = schedule.queues[queue]
    tables, adaptation = ([of.policy], None) if isinstance(of.policy, Policy) else (of.policy.tables, of.policy.adaptation)
    rules = Schedule(
        tables, schedule.times[changes], np.zeros(len(changes), dtype=np.int64), servers=servers[np.append(0, changes + 1)]
    )
    return simulate_deployment(Deployment(rules, of.service, adaptation=adaptation), times, rng)


def _server_seconds(schedule: FleetSchedule, times: Array) -> Array:
    """Seconds for which each queue's servers were there, from 0 to the last arrival, (n_queues,)."""
    ends = np.clip(
        np.concatenate([[0.0], schedule.times, [times[-1] if len(times) else 0.0]]), 0.0, times[-1] if len(times) else 0.0
    )
    return np.asarray(np.diff(ends) @ schedule.servers)
