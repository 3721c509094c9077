"""A fleet of workers that runs: what becomes known of them is told to the fleet's control loop, and what that says becomes orders.

    seen         how many requests of each family came since the last look
    registered   who is there, alive, and has what loaded
    planned      the plan that was asked for
    measured     batches that ended
    beyond       what batches take is another thing than was known
    load_failed  a worker did not load what it was ordered to
    wake         the time ``wake_at`` has come

Each answers with ``Orders``: the plans that are new, which worker loads what, whether a plan is asked for, and what is to be told
to who operates. A worker gets a device's place while it is alive and one of its type is free, and loses it when it dies, leaves, or
loses what it had loaded. No clock is read and nobody is asked anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import Plan, PolicyDocument, Route
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import Policy
from sluice.batching.urls import without_password
from sluice.buffer_service.worker_registry import Registered
from sluice.optimizer.arrays import Array
from sluice.optimizer.control import ControlledFleet, FleetController, FleetOutcomeWatch, Instructions, Queue
from sluice.optimizer.control.headroom import Choice
from sluice.optimizer.control.rollout import IDLE
from sluice.optimizer.fleet.specification import Fleet

SHARE = 0.02
"""By how much the share of a route must have moved for a plan that changes nothing else."""
LOAD_WITHIN = 600.0
"""Seconds that loading a variant may take."""
REST = 30.0
"""Seconds for which a worker that failed to load is not asked again."""
READY, LOADING = "READY", "LOADING"


class Load(NamedTuple):
    """A worker is to load a variant, having given up others."""

    address: str
    variant: str
    unload: tuple[str, ...]


@dataclass(frozen=True)
class Orders:
    """What is to be done now: first the plans come into force, then workers load; ``said`` is what happened, in words.

    ``since_last`` is what came of the placement before, where ``said`` tells of another.
    """

    plans: Sequence[Plan] = ()
    loads: Sequence[Load] = ()
    plan_wanted: bool = False
    said: Sequence[str] = ()
    since_last: Mapping[str, Any] | None = None


@dataclass
class _Worker:
    """Who has a device's place: the variant it serves or loads, ``None`` for none."""

    address: str
    hosts: int | None = None
    loading: int | None = None
    until: float = np.inf  # s, when loading has taken too long
    ready: tuple[str, ...] = ()  # all that it has loaded


@dataclass
class _Told:
    """What is collected while the loop is told several things at once."""

    changed: bool = False
    plan_wanted: bool = False
    loads: list[Load] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    since_last: Mapping[str, Any] | None = None


class LiveFleet:
    """The fleet of a file, as it runs.

    Parameters
    ----------
    fleet : Fleet
        Its devices are places: as many workers of each type count, the others are told of and left alone.
    controller : FleetController
        Of this fleet, new.
    now : float
        s.
    """

    def __init__(self, fleet: Fleet, controller: FleetController, now: float) -> None:
        self._fleet, self._controller = fleet, controller
        self._places: list[_Worker | None] = []
        self._types: list[int] = []
        for d, device in enumerate(fleet.devices):
            self._types += [d] * device.count
            self._places += [None] * device.count
        self._type_of = {device.name: d for d, device in enumerate(fleet.devices)}
        self._names = [variant.name for variant in fleet.variants]
        self._in_force: dict[str, Plan] = {}
        self._placed = b""  # the counts of the last plan
        self._outcome = FleetOutcomeWatch(fleet)
        self._queues: Sequence[Queue] = ()
        self._resting: dict[str, float] = {}
        self._left_alone: frozenset[str] = frozenset()
        for place in range(len(self._places)):
            controller.died(now, place)  # nobody has come yet

    @property
    def wake_at(self) -> float:
        """When ``wake`` is to be called at the latest, s; ``inf`` for not at all."""
        return self._controller.wake_at

    @property
    def workers(self) -> int:
        """How many have a place."""
        return sum(worker is not None for worker in self._places)

    def seen(self, now: float, counts: Array) -> Orders:
        """Requests of each family since the last look, (n_families,), or in equal parts of that time, (n_parts, n_families)."""
        self._outcome.came(counts)
        return self._alone(now, self._controller.see(now, counts))

    def measured(self, family: str, batches: Sequence[MeasuredBatch]) -> None:
        """Batches of a family that ended."""
        self._outcome.batches(family, batches)

    @property
    def placed_since(self) -> float | None:
        """When variants were last placed otherwise (s); ``None`` where they never were."""
        return self._outcome.since

    def planned(self, now: float, choice: Choice, in_no_batch: Mapping[str, int]) -> Orders:
        """The plan that was asked for; where it places variants otherwise than the last, what it expects is said, and what came of
        that: ``in_no_batch`` are requests of each family since then that broke the promise and left in no batch.
        """
        placed, told = choice.plan.counts.tobytes(), _Told()
        if placed != self._placed:
            told.said, told.since_last = [self._expects(choice)], self._outcome.told(now, in_no_batch)
            self._outcome.restart(now, choice)
        self._placed = placed
        self._note(now, self._controller.adopt(now, choice), told)
        return self._orders(told)

    def _expects(self, choice: Choice) -> str:
        plan, problem = choice.plan, choice.plan.problem
        rates = []
        for name, demand, room, missing in zip(
            self._fleet.family_names, problem.demand, choice.headroom, plan.missing, strict=True
        ):
            short = f", of which {missing:.3g} are not served" if missing else ""
            rates.append(f"{demand / room:.3g} requests/s of {name} with room for {demand:.3g}{short}")
        placed = zip(self._names, plan.counts.sum(axis=0).tolist(), strict=True)
        variants = ", ".join(f"{variant} on {n}" for variant, n in placed if n)
        accurate = f"{variants}; {plan.accuracy:.3g} % accurate where so many come" if variants else "nobody serves"
        return f"planned for {', '.join(rates)}: {accurate}"

    def beyond(self, now: float, fleet: Fleet, words: str) -> Orders:
        """Batches take what the profiles of this fleet say, which is another thing than was known."""
        told = _Told(said=[words])
        self._note(now, self._controller.follow(now, ControlledFleet.of(fleet)), told)
        return self._orders(told)

    def wake(self, now: float) -> Orders:
        """The time ``wake_at`` has come."""
        return self._alone(now, self._controller.wake(now))

    def load_failed(self, now: float, address: str, reason: str) -> Orders:
        """A worker did not load what it was ordered to."""
        told = _Told()
        for place, worker in enumerate(self._places):
            if worker is not None and worker.address == address and worker.loading is not None:
                self._give_rest(now, place, worker, reason, told)
        return self._orders(told)

    def registered(self, now: float, workers: Mapping[str, Registered]) -> Orders:
        """Everybody the registry knows."""
        told = _Told()
        for place, worker in enumerate(self._places):
            if worker is not None:
                self._look_at(now, place, worker, workers.get(worker.address), told)
        taken = {worker.address for worker in self._places if worker is not None}
        self._resting = {address: until for address, until in self._resting.items() if until > now}
        left_alone: list[str] = []
        for address, found in sorted(workers.items()):
            states = found.registration.variants.values()
            if address in taken or not found.alive or address in self._resting or any(each.state == LOADING for each in states):
                continue
            free = self._free(found.registration.device)
            if free is None:
                left_alone.append(address)
            else:
                self._take(now, free, address, found, told)
        if frozenset(left_alone) - self._left_alone:
            told.said.append(f"no place in the fleet file for {', '.join(map(without_password, left_alone))}")
        self._left_alone = frozenset(left_alone)
        return self._orders(told)

    def _free(self, device: str) -> int | None:
        """A place that nobody has, for a worker of this type."""
        wanted = self._type_of.get(device)
        places = (i for i, worker in enumerate(self._places) if worker is None and self._types[i] == wanted)
        return next(places, None)

    def _look_at(self, now: float, place: int, worker: _Worker, found: Registered | None, told: _Told) -> None:
        """What has become of a worker."""
        device = self._fleet.devices[self._types[place]].name
        if found is None or not found.alive or found.registration.device != device:
            why = "is gone" if found is None else "leaves" if found.registration.leaving else f"is silent for {found.silent:.1f} s"
            self._lose(now, place, why, told)
            return
        worker.ready = _ready(found)
        if worker.loading is not None:
            if self._names[worker.loading] in worker.ready:
                worker.hosts, worker.loading, worker.until = worker.loading, None, np.inf
                self._note(now, self._controller.loaded(now, place), told)
            elif now >= worker.until:
                self._give_rest(now, place, worker, f"not within {LOAD_WITHIN:g} s", told)
        elif worker.hosts is not None and self._names[worker.hosts] not in worker.ready:
            self._lose(now, place, f"has lost {self._names[worker.hosts]}", told)

    def _give_rest(self, now: float, place: int, worker: _Worker, reason: str, told: _Told) -> None:
        """It failed to load, and is not asked again for a while."""
        assert worker.loading is not None
        self._resting[worker.address] = now + REST
        self._lose(now, place, f"did not load {self._names[worker.loading]}: {reason}", told)

    def _lose(self, now: float, place: int, why: str, told: _Told) -> None:
        worker = self._places[place]
        assert worker is not None
        self._places[place] = None
        told.said.append(f"{without_password(worker.address)} {why}")
        self._note(now, self._controller.died(now, place), told)

    def _take(self, now: float, place: int, address: str, found: Registered, told: _Told) -> None:
        ready, throughput = _ready(found), self._controller.problem.throughput[self._types[place]]
        hosts = next((m for m, name in enumerate(self._names) if name in ready and throughput[m] > 0), None)
        self._places[place] = _Worker(address, hosts, ready=ready)
        told.said.append(f"{without_password(address)} joins with {'nothing' if hosts is None else self._names[hosts]}")
        self._note(now, self._controller.joined(now, place, IDLE if hosts is None else hosts), told)

    def _alone(self, now: float, instructions: Instructions) -> Orders:
        told = _Told()
        self._note(now, instructions, told)
        return self._orders(told)

    def _note(self, now: float, instructions: Instructions, told: _Told) -> None:
        """What the loop says; its queues are those that hold until it says others."""
        told.changed = True
        told.plan_wanted |= instructions.plan_wanted
        for place, variant in instructions.load:
            worker = self._places[place]
            if worker is None:
                continue
            name = self._names[variant]
            worker.hosts, worker.loading, worker.until = None, variant, now + LOAD_WITHIN
            told.loads.append(Load(worker.address, name, tuple(each for each in worker.ready if each != name)))
        self._queues = instructions.queues

    def _orders(self, told: _Told) -> Orders:
        return Orders(self._plans(told) if told.changed else (), told.loads, told.plan_wanted, told.said, told.since_last)

    def _plans(self, told: _Told) -> list[Plan]:
        """The plans of the families for which something has changed."""
        plans = []
        for q, family in enumerate(self._fleet.families):
            routes = [route for queue in self._queues if self._family(queue) == q and (route := self._route(queue)) is not None]
            if not routes:
                if family.name in self._in_force:
                    del self._in_force[family.name]
                    told.said.append(f"nobody serves {family.name}: its last plan stays in force")
                continue
            whole = sum(route.share for route in routes)
            shares = [replace(route, share=route.share / whole) for route in routes]
            plan = Plan(model=family.name, routes=shares, slo=family.slo)
            if _differs(self._in_force.get(family.name), plan):
                self._in_force[family.name] = plan
                plans.append(plan)
        return plans

    def _family(self, queue: Queue) -> int:
        return int(self._fleet.family_of_variant[queue.variant])

    def _route(self, queue: Queue) -> Route | None:
        """The route that a queue is, where it gets requests."""
        assert isinstance(queue.table, Policy)  # tables that adapt are the simulation's
        addresses = [worker.address for place in queue.devices if (worker := self._places[place]) is not None]
        if queue.share <= 0 or not addresses:
            return None
        variant = self._fleet.variants[queue.variant]
        name = f"{variant.name}.{self._fleet.devices[queue.device_type].name}"
        return Route(name, ",".join(addresses), PolicyDocument.of(queue.table), queue.share, variant.name, variant.accuracy)


def _ready(found: Registered) -> tuple[str, ...]:
    return tuple(name for name, variant in found.registration.variants.items() if variant.state == READY)


def _differs(before: Plan | None, after: Plan) -> bool:
    """Whether it is worth telling the buffers: another route, worker or table, or a share that has moved."""
    if before is None or before.all_routes == after.all_routes:
        return before is None
    if [replace(route, share=0) for route in before.routes] != [replace(route, share=0) for route in after.routes]:
        return True
    return any(abs(old.share - new.share) > SHARE for old, new in zip(before.routes, after.routes, strict=True))
