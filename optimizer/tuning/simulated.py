"""Control in virtual time: a ``Tuner`` follows arrivals, and the simulated queue follows its plans (docs/control.md).

The queue is what ``optimizer.simulation`` runs, with the service times and the INIT that the function truly has, which may change
on the way; the tuner knows the profile alone, and what it measures. Who waits when a plan changes goes on waiting under the new
one, and environments stay for as long as the platform keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import Plan, ServiceProfile
from sluice.batching.environments import PREPARED_WITHIN, not_serving
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import INF
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.queue_run import Progress, QueueRun, checked_times
from sluice.optimizer.tuning.decision import Decision
from sluice.optimizer.tuning.deployments import deployment_of, way_to_servers
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.stretched import stretched
from sluice.optimizer.tuning.tuner import Tuner

STEP = 1.0  # s


@dataclass(frozen=True)
class ServiceChange:
    """From ``at`` (s, by the clock of the arrivals) on, batches take ``factor`` times as long as the profile says."""

    at: float
    factor: float

    def __post_init__(self) -> None:
        require(0 <= self.at < INF, "service_change.at", self.at, "a number of seconds >= 0")
        require(0 < self.factor < INF, "service_change.factor", self.factor, "a number > 0")


@dataclass(frozen=True, eq=False)
class ControlledRun:
    """What came of it.

    Parameters
    ----------
    arrival_times, latency : array, shape (n_requests,)
        s, in order of arrival.
    usd, joules : array, shape (n_requests,)
        What each request cost, and took of energy: its part of its batch, and of what was pinged and started since the last came;
        ``nan`` where no energy is known.
    machines_usd, cold_usd, moving_usd : float
        What the workers cost that were there, what of ``usd`` new environments cost, and what moving the requests did, which is
        in neither.
    batches, cold : int
    decisions : tuple of Decision
    profiles : tuple of (ServiceProfile or None)
        What the tuner planned with at each.
    plans : tuple of (float, Plan)
        From when (s) each was in force.
    """

    arrival_times: Array
    latency: Array
    usd: Array
    joules: Array
    machines_usd: float
    cold_usd: float
    moving_usd: float
    batches: int
    cold: int
    decisions: tuple[Decision, ...]
    profiles: tuple[ServiceProfile | None, ...]
    plans: tuple[tuple[float, Plan], ...]

    @property
    def cost_per_request(self) -> float:
        """USD for what serves it, which is what a plan changes."""
        return float((self.usd.sum() + self.machines_usd) / len(self.usd))

    @property
    def by_request(self) -> float:
        """USD for a request with what moving it costs, as other policies are shown."""
        return self.cost_per_request + self.moving_usd / len(self.usd)

    def windows(self, seconds: float) -> Indices:
        """Which window of so many seconds each request came in, from the first arrival on."""
        return np.asarray(((self.arrival_times - self.arrival_times[0]) // seconds).astype(np.int64))

    def late_by_window(self, seconds: float, latency: float) -> tuple[Indices, Indices]:
        """Requests and those of them beyond a latency (s), of each window that has some."""
        _, window = np.unique(self.windows(seconds), return_inverse=True)
        return np.bincount(window), np.bincount(window, weights=~(self.latency <= latency)).astype(np.int64)


def simulate_control(
    setup: TuningSetup,
    arrival_times: Array,
    *,
    settings: TuningSettings | None = None,
    truth: ServiceProfile | None = None,
    changes: Sequence[ServiceChange] = (),
    first: Plan | None = None,
    step: float = STEP,
    decision: float = 0.0,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> ControlledRun:
    """Run a tuner over arrivals.

    Parameters
    ----------
    arrival_times : array
        s, ascending.
    truth : ServiceProfile, optional
        What the function truly takes; by default what the setup knows.
    changes : sequence of ServiceChange
    first : Plan, optional
        In force at the beginning; by default the tuner's first.
    step : float
        Seconds between two looks of the tuner.
    decision : float
        Seconds from when something is due until what is decided about it is in force, at the next look.
    seed : int
        Of the service times, and of who takes which route.

    Raises
    ------
    InvalidInput
        Times that do not ascend; no profile at all.
    """
    times = checked_times(arrival_times)
    profile = truth or setup.profile
    require(profile is not None, "truth", None, "the profile of the function, as the setup has none")
    assert profile is not None
    require(0 < step < INF, "step", step, "a number of seconds > 0")
    tuner, queue = Tuner(setup, settings), _Queue(setup, profile, sorted(changes, key=lambda change: change.at), seed)
    require(0 <= decision < INF, "decision", decision, "a number of seconds >= 0")
    decisions: list[tuple[Decision, ServiceProfile | None]] = []
    plans: list[tuple[float, Plan]] = []
    coming: list[tuple[float, Plan | None]] = []  # what is being decided: when it is in force, and the plan

    def decide(now: float) -> None:
        if coming and now < coming[0][0]:
            return
        if coming and (plan := coming.pop()[1]) is not None:
            follow(plan, now)
        trigger = tuner.due(now)
        if trigger is None:
            return
        found = tuner.decide(now, trigger)
        decisions.append((found, tuner.profile))
        if decision and plans:
            coming.append((now + decision, found.plan))
        elif found.plan is not None:
            follow(found.plan, now)

    def follow(plan: Plan, now: float) -> None:
        queue.follow(plan, now)
        tuner.in_force(plan, now)
        plans.append((now, plan))

    now = float(times[0])
    if first is not None:
        follow(first, now)
    else:
        decide(now)
    at = 0
    while at < len(times):
        now = max(now + step, now + step * ((times[at] - now) // step))
        until = int(np.searchsorted(times, now, side="right"))
        if until > at:
            chunk = times[at:until]
            queue.feed(chunk, until == len(times))
            at = until
            tuner.arrived(chunk)
        tuner.batches(queue.ended(now))
        decide(now)
        on_progress(at / len(times))
    return queue.result(times, decisions, tuple(plans), now)


def simulate_plans(
    setup: TuningSetup, arrival_times: Array, plans: Sequence[tuple[float, Plan]], changes: Sequence[ServiceChange] = ()
) -> ControlledRun:
    """The same queue under plans that nobody tunes: each from its time (s) on, the first from the beginning.

    Raises
    ------
    InvalidInput
        Times that do not ascend; no profile at all; no plan.
    """
    times = checked_times(arrival_times)
    require(setup.profile is not None, "setup.profile", None, "the profile of the function")
    require(bool(plans), "plans", len(plans), "at least one")
    assert setup.profile is not None
    queue = _Queue(setup, setup.profile, sorted(changes, key=lambda change: change.at), 0, watched=False)
    ends = [at for at, _ in plans[1:]] + [INF]
    fed = 0
    for (at, plan), end in zip(plans, ends, strict=True):
        queue.follow(plan, max(at, float(times[0])))
        until = int(np.searchsorted(times, end))
        if until > fed:
            queue.feed(times[fed:until], until == len(times))
        fed = until
    return queue.result(times, (), tuple(plans), float(times[-1]))


class _Queue:
    """The simulated queues of the plan in force: one, or two where another plan is tried with a share."""

    def __init__(
        self, setup: TuningSetup, profile: ServiceProfile, changes: Sequence[ServiceChange], seed: int, watched: bool = True
    ) -> None:
        self._watched = watched
        self._setup, self._profile, self._changes = setup, profile, list(changes)
        self._factor, self._now = 1.0, 0.0
        self._plan: Plan | None = None
        self._runs: list[_Route] = []
        self._parked: dict[str, Array] = {}
        self._rng = np.random.default_rng([seed, 1])
        self._deal = np.random.default_rng([seed, 2])
        self._pending: list[MeasuredBatch] = []
        self._found: list[tuple[Array, Array, Array, Array]] = []  # arrival times, latencies, USD, J
        self._batches = self._cold = self._invoked = 0
        self._machines = self._cold_usd = 0.0
        self._owed = 0.0  # USD for pings and what was started, of which nobody who came has his part yet
        self._coming: tuple[float, Plan | None] = INF, None  # when it is in force

    def follow(self, plan: Plan, now: float) -> None:
        """This plan is in force from now on, or when environments are there that are started of functions that do not serve yet."""
        asked = {name for route in plan.all_routes if route.there_first for name in route.functions}
        new = set[str]() if self._plan is None else asked & not_serving(self._plan, plan)
        if new:
            sizes = [self._setup.memory_of(name) for name in new]
            init = max((init.mean for mb, init in self._profile.init.items() if mb in sizes), default=0.0)
            self._coming = now + min(init, PREPARED_WITHIN), plan
        else:
            self._coming = INF, None
            self._follow(plan, now)

    def _pass(self, now: float) -> None:
        """What is paid by the second, until now."""
        self._machines += sum(run.bill.per_second for run in self._runs) * (now - self._now)
        self._owed += sum(run.bill.pings_per_second for run in self._runs) * (now - self._now)
        self._now = now

    def _follow(self, plan: Plan | None, now: float, starts: bool = True) -> None:
        assert plan is not None
        profile = stretched(self._profile, self._factor)
        self._pass(now)
        self._plan = plan
        before, self._runs = self._runs, []
        for k, route in enumerate(plan.all_routes):
            deployment = deployment_of(route, self._setup, profile)
            old = before[k] if k < len(before) else None
            run = QueueRun(deployment, self._rng) if old is None else old.run.taken_over(now, deployment, self._parked, starts)
            way, far = 0.0 if profile.way is None else profile.way.mean, way_to_servers(self._setup, profile)
            self._runs.append(_Route(route.name, run, deployment, way, far))
            self._owed += (started := float(self._runs[-1].bill.cold @ run.started))
            self._cold_usd += started
        for gone in before[len(self._runs) :]:
            self._take(gone, gone.run.feed(np.empty(0), True))

    def feed(self, times: Array, last: bool) -> None:
        """Requests come at these times; changes of the service times take place at the first arrival after them."""
        while min(change := self._changes[0].at if self._changes else INF, coming := self._coming[0]) <= times[-1]:
            cut = int(np.searchsorted(times, min(change, coming)))
            if cut:
                self._feed(times[:cut], False)
            times = times[cut:]
            if coming < change:
                self._follow(self._coming[1], coming)
                self._coming = INF, None
            else:
                self._factor = self._changes.pop(0).factor
                self._follow(self._plan, change, starts=False)
        self._feed(times, last)

    def _feed(self, times: Array, last: bool) -> None:
        assert self._plan is not None
        which = np.zeros(len(times), dtype=np.int64)
        if len(self._runs) > 1:
            which = (self._deal.random(len(times)) >= self._plan.routes[0].share).astype(np.int64)
        for k, route in enumerate(self._runs):
            mine = times[which == k]
            if len(mine) or (last and route.run.n_waiting):
                self._take(route, route.run.feed(mine, last))

    def _take(self, route: _Route, progress: Progress) -> None:
        """What a chunk of arrivals led to."""
        batches = progress.batches
        tables, cold = batches.marks // 2, batches.marks % 2
        usd = route.bill.usd(batches.sizes, tables.astype(np.int64), cold.astype(np.int64))
        ends = batches.dispatched + batches.responses
        batch = np.repeat(np.arange(len(ends)), batches.sizes)
        offset = np.arange(len(batch)) - np.repeat(np.cumsum(batches.sizes) - batches.sizes, batches.sizes)
        came = progress.requests.times[batches.first[batch] + offset]
        latency = batches.dispatched[batch] - came + batches.responses[batch] + route.far
        energy = route.energy
        joules = np.full(len(usd), np.nan) if energy is None else energy[batches.sizes - 1]
        each = usd[batch] / batches.sizes[batch]
        if len(each):
            self._pass(max(self._now, float(came[-1])))
            each, self._owed = each + self._owed / len(each), 0.0
        self._found.append((came, latency, each, joules[batch] / batches.sizes[batch]))
        self._batches += len(ends)
        self._cold += int(cold.sum())
        self._invoked += int(batches.sizes[route.invoked[tables]].sum())
        self._cold_usd += float((usd - route.bill.usd(batches.sizes, tables.astype(np.int64), np.zeros_like(cold, np.int64))).sum())
        if self._watched:
            self._measure(route, progress, ends, latency)

    def _measure(self, route: _Route, progress: Progress, ends: Array, latency: Array) -> None:
        """The batches as a buffer measures them, to be told when they have ended."""
        batches = progress.batches
        tables, cold = batches.marks // 2, batches.marks % 2
        digest = self._plan.digest if self._plan is not None else ""
        edges = np.concatenate([[0], np.cumsum(batches.sizes)]).tolist()
        seconds = latency.tolist()
        for i, (end, size, table, is_cold, took) in enumerate(
            zip(ends.tolist(), batches.sizes.tolist(), tables.tolist(), cold.tolist(), batches.responses.tolist(), strict=True)
        ):
            overhead, init, step = route.known[table]
            service = took - overhead[size - 1] - is_cold * init
            billed = np.ceil((service + is_cold * init) / step - 1e-9) * step
            told = tuple(seconds[edges[i] : edges[i + 1]])
            self._pending.append(
                MeasuredBatch(
                    end - route.ways[table],
                    route.name,
                    table,
                    route.functions[table],
                    digest,
                    size,
                    took - route.ways[table],
                    service,
                    billed,
                    bool(is_cold),
                    0,
                    told,
                )
            )

    def ended(self, now: float) -> list[MeasuredBatch]:
        """The batches that have ended since the last time, in the order of their ends."""
        found = sorted(batch for batch in self._pending if batch.ended_at <= now)
        self._pending = [batch for batch in self._pending if batch.ended_at > now]
        return found

    def result(
        self,
        times: Array,
        decisions: Sequence[tuple[Decision, ServiceProfile | None]],
        plans: tuple[tuple[float, Plan], ...],
        now: float,
    ) -> ControlledRun:
        """When all has been fed."""
        self._pass(now)
        came, *others = (np.concatenate(values) for values in zip(*self._found, strict=True))
        order = np.argsort(came, kind="stable")
        latency, usd, joules = (values[order] for values in others)
        usd[-1] += self._owed
        found = came[order], latency, usd, joules
        told, profiles = tuple(decision for decision, _ in decisions), tuple(profile for _, profile in decisions)
        moving = self._setup.billing.moving
        moved = len(latency) * (moving["cache"] + moving["load_balancer"]) + self._invoked * moving["network"]
        return ControlledRun(*found, self._machines, self._cold_usd, moved, self._batches, self._cold, told, profiles, plans)


class _Route:
    """A queue under way with its bill; of each of its functions the overhead by batch size, INIT and the step of the bill, s.

    ``invoked`` says of each table whether a function serves it. ``way`` is in the overhead of the functions, s, but in no
    invocation; ``far`` in the latencies alone, before fixed servers.
    """

    def __init__(self, name: str, run: QueueRun, deployment: Deployment, way: float, far: float) -> None:
        self.name, self.run, self.bill, self.energy, self.far = name, run, Bill.of(deployment), deployment.energy, far
        self.invoked = np.array([side.elastic or side.provisioned for side in deployment.serving])
        self.ways = np.where(self.invoked, way, 0.0).tolist()
        self.functions = [side.function for side in deployment.serving]
        self.known = [
            (
                side.service.overhead.tolist(),
                0.0 if side.environments is None else side.environments.init_duration,
                deployment.billing.step,
            )
            for side in deployment.serving
        ]
