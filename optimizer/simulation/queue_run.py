"""One queue being simulated: arrivals in, chunk by chunk, and batches out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.batching.environments import PREPARED_WITHIN
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import queue_loop
from sluice.optimizer.simulation.deployment import Deployment, Environments, Serving, require_classes
from sluice.optimizer.simulation.queue_loop import ELASTIC, Records, State
from sluice.optimizer.simulation.schedule import rows_of

Scalar = TypeVar("Scalar", bound=np.generic)
NONE: Indices = np.empty(0, dtype=np.int64)


class Requests(NamedTuple):
    """Requests, in arrays: ``times`` of arrival, s, and what else is told of them, empty where it is not.

    ``sizes``; ``classes``, by their places among the deployment's; the ``places`` of the requests among those of the queue, and
    ``among_all``, those of several queues.
    """

    times: Array
    sizes: Array = np.empty(0)
    classes: Indices = NONE
    places: Indices = NONE
    among_all: Indices = NONE

    def of(self, which: Indices) -> Requests:
        """Some of them, in this order."""
        return Requests._make(values[which] if len(values) else values for values in self)

    def after(self, first: int) -> Requests:
        """All but the first so many, in arrays of their own."""
        return Requests._make(np.array(values[first:]) for values in self)

    def then(self, others: Requests) -> Requests:
        """These and those."""
        return Requests._make(np.concatenate(pair) if len(pair[0]) else pair[1] for pair in zip(self, others, strict=True))


@dataclass(frozen=True, eq=False)
class Progress:
    """What a chunk of arrivals led to.

    Parameters
    ----------
    came : Requests
        Those of the chunk.
    requests : Requests
        They and those that waited since the last chunk: who left or was dropped, in that order, then who waits, in order of
        arrival. ``places`` are told where the former is another order than that of arrival.
    batches : Records
        In order of dispatch; ``first`` counts within ``requests``. Who is between two batches, or before the first, was dropped.
    n_left : int
        How many of ``requests`` had left or been dropped at the end; the others wait.
    """

    came: Requests
    requests: Requests
    batches: Records
    n_left: int

    def of_class(self, k: int) -> Progress:
        """The same for the requests of one class, as if they had left in batches of their own, each with what was theirs of one."""
        came, requests = (
            Requests(all_of.times, all_of.sizes).of(np.flatnonzero(all_of.classes == k)) for all_of in (self.came, self.requests)
        )
        before, batches = parts_of_batches(self.requests.classes == k, self.batches)
        return Progress(came, requests, batches, int(before[self.n_left]))


def parts_of_batches(mine: NDArray[np.bool_], batches: Records) -> tuple[Indices, Records]:
    """How many are ``mine`` among the first 0, 1, ... requests, and the batches that have some, with those alone."""
    before = np.concatenate([[0], np.cumsum(mine)])
    first = before[batches.first]
    sizes = before[batches.first + batches.sizes] - first
    some = sizes > 0
    return before, Records._make(values[some] for values in batches._replace(first=first, sizes=sizes))


class QueueRun:
    """A deployment under way. Uniform numbers for service times are taken from ``rng``: at most one for each request.

    Where the requests are ``sized`` a batch takes as long as its members' own sizes have it, and not as the mix of sizes. Tables of
    several columns without classes are refused (``InvalidInput``).
    """

    def __init__(self, deployment: Deployment, rng: np.random.Generator, sized: bool = False) -> None:
        schedule, serving = deployment.schedule, deployment.serving
        drops = bool((schedule.drop_after < np.inf).any())
        self._tables = _tables(deployment)
        for columns in (table.columns for side in serving for table in side.schedule.tables if not deployment.classes):
            require(columns == 1, "columns", columns, "1 where there are no classes, as nobody has a slack")
        self._slacks = np.array([each.slack for each in deployment.classes], dtype=np.float64)
        self._sized = sized
        self._times = _times([side.service for side in serving], sized)
        self._environments = _environments(serving, drops)
        self._started = [0 if side.environments is None else side.environments.there_first for side in serving]
        self.started = self._started
        """How many environments were started for it, by place."""
        self._rng = rng
        self._random = not all(side.service.deterministic for side in serving)
        self._marked = len(serving) > 1 or deployment.adaptation is not None
        self._uniforms, self._waiting, self._n_came = np.empty(0), Requests(np.empty(0)), 0
        n = len(serving)
        self._names = [side.function for side in serving]
        servers = [int(self._tables.servers[0]), *(_servers_of(side.policy) for side in deployment.beside)]
        self._state = State(
            counts=np.array([0, 0, schedule.first, 0, 0]),
            wake=np.array([np.inf]),
            ends=np.empty(0),
            marks=np.empty(0, dtype=np.uint8),
            servers=np.array(servers),
            in_flight=np.zeros(n, dtype=np.int64),
            tokens=self._environments.burst.copy(),
            counted=np.zeros(n),
            idle=np.empty((n, 0)),
            idle_from=np.zeros(n, dtype=np.int64),
            idle_to=np.zeros(n, dtype=np.int64),
            pinged=np.zeros(n),
        )

    @property
    def n_waiting(self) -> int:
        """Requests that wait, those of the last chunk included whose moment is not over."""
        return len(self._waiting.times)

    def feed(
        self,
        arrival_times: Array,
        last: bool,
        sizes: Array | None = None,
        classes: Indices | None = None,
        among_all: Indices | None = None,
    ) -> Progress:
        """Go on with the arrivals at these times, s, ascending and not before those fed already; ``last``: there are no more.

        ``sizes`` are those of the arrivals, where requests are sized, ``classes`` theirs, where the deployment has some;
        ``among_all`` their places among the requests of several queues.
        """
        came = self._requests(arrival_times, sizes, classes, among_all)
        requests = self._waiting.then(came)
        n = len(requests.times)
        if self._random and n > len(self._uniforms):
            self._uniforms = np.concatenate([self._uniforms, self._rng.random(n - len(self._uniforms))])
        if n and any(self._started):
            self._state = self._with_started(float(requests.times[0]))
        state = self._state = self._with_room(n)
        # There are n batches at most; what of these arrays is never touched takes no memory.
        records = Records(
            np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n), np.empty(n), np.empty(n, dtype=np.uint8)
        )
        lines = queue_loop.line_up(requests.classes, self._slacks) if len(self._slacks) else None
        given = (self._tables, self._times, self._environments, self._uniforms, requests.sizes, state, records, lines)
        n_batches = queue_loop.run(requests.times, last, *given)
        head = int(state.counts[0])
        state.counts[:2] -= head
        if lines is not None:
            waits = np.ones(n, dtype=np.bool_)
            waits[lines.order[:head]] = False
            lines.order[head:] = np.flatnonzero(waits)
            requests = requests.of(lines.order)
        self._waiting = requests.after(head)
        self._uniforms = self._uniforms[n_batches:]
        return Progress(came, requests, Records._make(values[:n_batches] for values in records), head)

    def taken_over(
        self, at: float, deployment: Deployment, parked: dict[str, Array] | None = None, starts: bool = True
    ) -> QueueRun:
        """The same queue under another deployment from ``at`` (s) on, the end of what was fed: who waits goes on waiting.

        Environments and servers are known by the name of their function, each of which a deployment has once: those of a function
        that goes are put into ``parked``, as the times (s) since when they are idle, and taken from there when it comes back. What
        the deployment has ``started``, or ``pinged``, is started beyond those that are idle, where it ``starts`` anew. Deployments
        without classes and without an adaptation alone.
        """
        plain = not len(self._slacks) and not len(self._tables.up)
        require(plain, "deployment", "classes or an adaptation", "neither, where a queue is taken over")
        run = QueueRun(deployment, self._rng, self._sized)
        run._waiting, run._uniforms, run._n_came = self._waiting, self._uniforms, self._n_came
        asked, run._started = run._started, []
        old, new, parked = self._state, run._state, {} if parked is None else parked
        under_way = int(old.counts[4])
        ends = old.ends[:under_way]
        places = old.marks[:under_way] if self._marked else np.zeros(under_way, dtype=np.uint8)
        for place, name in enumerate(self._names):
            idle = old.idle[place, old.idle_from[place] : old.idle_to[place]]
            parked[name] = np.sort(np.concatenate([idle, ends[places == place]])) if name not in run._names else idle
        found = [parked.pop(name, np.empty(0)) for name in run._names]
        alive = run._environments.keep_alive
        found = [since[since >= at - kept] for since, kept in zip(found, alive, strict=True)]
        kept = [ends[places == self._names.index(name)] if name in self._names else np.empty(0) for name in run._names]
        there = [len(since) + int((ending <= at).sum()) for since, ending in zip(found, kept, strict=True)]
        run.started = [max(0, n - idle) if starts else 0 for n, idle in zip(asked, there, strict=True)]
        still = np.maximum(run._environments.init_duration - PREPARED_WITHIN, 0.0)  # for which no plan waits
        found = [np.append(since, np.full(n, at + more)) for since, n, more in zip(found, run.started, still, strict=True)]
        back = [since[since > at] for since in found]  # what was under way at a function when it went
        idle_of = [since[(since <= at) & told] for since, told in zip(found, run._environments.told, strict=True)]
        in_flight = [np.sort(np.concatenate(both)) for both in zip(kept, back, strict=True)]
        all_ends = np.concatenate(in_flight)
        order = np.argsort(all_ends, kind="stable")  # ascending: a heap
        marks = np.repeat(np.arange(len(in_flight)), list(map(len, in_flight)))[order].astype(np.uint8)
        idle_rows = np.empty((len(found), max(map(len, idle_of))))
        for row, since in zip(idle_rows, idle_of, strict=True):
            row[: len(since)] = since
        new.counts[1], new.counts[4] = old.counts[1], len(all_ends)
        new.pinged[:] = np.floor(at / run._environments.pinged_every)
        new.wake[0] = min(float(old.wake[0]), at)
        run._state = new._replace(
            ends=all_ends[order],
            marks=marks if run._marked else np.empty(0, dtype=np.uint8),
            in_flight=np.array([len(of) for of in in_flight]),
            idle=idle_rows,
            idle_to=np.array([len(since) for since in idle_of]),
        )
        return run

    def _requests(self, times: Array, sizes: Array | None, classes: Indices | None, among_all: Indices | None) -> Requests:
        """Checked; numbered where they need not leave in order of arrival."""
        n, n_classes = len(times), len(self._slacks)
        told = [NONE if places is None else places for places in (classes, among_all)]
        requests = Requests(times, np.empty(0) if sizes is None else sizes, told[0], NONE, told[1])
        require(len(requests.sizes) == n * self._sized, "sizes", len(requests.sizes), "one for each arrival, or none")
        if self._sized:
            end = float(self._times.sizes.max(axis=1, where=self._times.sizes < np.inf, initial=0.0).min())
            largest = float(requests.sizes.max(initial=0.0))
            require(0 <= largest <= end, "size", largest, f"at most {end:g}, the largest that the service times speak of")
        if n_classes == 0:
            require(len(requests.classes) == 0, "classes", len(requests.classes), "none, as the deployment has none")
            return requests
        require(len(requests.classes) == n, "classes", len(requests.classes), f"one for each of {n} arrivals")
        require_classes(requests.classes, n_classes)
        self._n_came += n
        return requests._replace(places=np.arange(self._n_came - n, self._n_came))

    def _with_started(self, at: float) -> State:
        """The state before the first arrival (s), with what was started for the run: idle since then."""
        n, self._started = self._started, []
        return self._state._replace(idle=np.full((len(n), max(n)), at), idle_to=np.array(n))

    def _with_room(self, n: int) -> State:
        """The state in arrays that ``n`` more batches fit into, and what pings start: at first, and where batches take those."""
        of, environments = self._state, self._environments
        pinged = np.isfinite(environments.pinged_every)
        n = 2 * n + int(environments.pinged[pinged].sum()) if pinged.any() else n
        under_way = int(of.counts[4])
        here = [row[start:end] for row, start, end in zip(of.idle, of.idle_from, of.idle_to, strict=True)]
        told = self._environments.told.any()
        idle = np.empty((len(here), max(map(len, here)) + under_way + n if told else 0))
        for row, since in zip(idle, here, strict=True):
            row[: len(since)] = since
        return of._replace(
            ends=_longer(of.ends[:under_way], under_way + n),
            marks=_longer(of.marks[:under_way], under_way + n if self._marked else 0),
            idle=idle,
            idle_from=np.zeros(len(here), dtype=np.int64),
            idle_to=np.array([len(since) for since in here]),
        )


def _servers_of(policy: Policy) -> int:
    return ELASTIC if policy.servers is None else policy.servers


def _tables(deployment: Deployment) -> queue_loop.Tables:
    schedule, adaptation = deployment.schedule, deployment.adaptation
    tables = [*schedule.tables, *(side.policy for side in deployment.beside)]
    servers = schedule.servers_in_force
    unchanged = np.empty(0, dtype=np.int64)
    return queue_loop.Tables(
        *rows_of(tables),
        np.array([len(table.hold) for table in tables]),
        np.array([table.columns for table in tables]),
        schedule.drop_after,
        schedule.swap_times,
        schedule.swap_to,
        np.full(len(schedule.swap_times) + 1, ELASTIC) if servers is None else servers,
        unchanged if adaptation is None else adaptation.up,
        unchanged if adaptation is None else adaptation.down,
        np.inf if adaptation is None else adaptation.latency,
    )


def _environments(serving: Sequence[Serving], drops: bool) -> queue_loop.Environments:
    """``drops``: the rule is read at completions too, where requests grew too old meanwhile; so functions' must be known."""
    all_of = [side.environments or Environments() for side in serving]
    return queue_loop.Environments(
        np.array([drops or not side.elastic or side.environments is not None for side in serving]),
        np.array([side.environments is not None for side in serving]),
        np.array([of.init_duration for of in all_of]),
        np.array([of.keep_alive for of in all_of]),
        np.array([np.inf if of.concurrency is None else of.concurrency for of in all_of]),
        np.array([of.scaling_rate for of in all_of]),
        np.array([float(of.burst) for of in all_of]),
        np.array([of.pinged_every for of in all_of]),
        np.array([of.pinged for of in all_of]),
    )


def checked_times(arrival_times: Array) -> Array:
    """Arrival times as the loop takes them; raises ``InvalidInput`` unless they are finite, ascending, and at least one."""
    times = np.ascontiguousarray(arrival_times, dtype=np.float64)
    if times.ndim != 1 or len(times) == 0 or not np.isfinite(times).all() or (times[1:] < times[:-1]).any():
        raise InvalidInput(
            "arrival_times", f"{times.size} times of shape {times.shape}", "finite times in ascending order, at least one"
        )
    return times


def _times(services: Sequence[ServiceTimes], sized: bool) -> queue_loop.Times:
    """The service times in arrays that all fit into; what is beyond those of one of them is never read."""
    each = [_sized_times(service) if sized else _mixed_times(service) for service in services]
    sizes, levels, seconds, overhead = zip(*each, strict=True)
    return queue_loop.Times(_together(sizes, np.inf), _together(levels, 1.0), _together(seconds), _together(overhead))


def _mixed_times(service: ServiceTimes) -> tuple[Array, Array, Array, Array]:
    return np.zeros(1), *_at_two_levels(service.quantile_levels, service.seconds[None]), service.overhead[None]


def _at_two_levels(levels: Array, seconds: Array) -> tuple[Array, Array]:
    """The same at two levels at least; deterministic times are alike at both."""
    return (levels, seconds) if len(levels) > 1 else (np.array([0.0, 1.0]), np.repeat(seconds, 2, axis=-1))


def _sized_times(service: ServiceTimes) -> tuple[Array, Array, Array, Array]:
    if not isinstance(service, MixedServiceTimes):
        raise InvalidInput("sizes", "given", "none, as the service times do not tell sizes apart")
    of = service.by_size
    return of.sizes, *_at_two_levels(of.quantile_levels, of.seconds(of.sizes)), of.overhead(of.sizes)


def _together(arrays: Sequence[Array], beyond: float = 0.0) -> Array:
    """Arrays in one, (n_arrays, ...), with ``beyond`` where one is shorter than the longest."""
    shape = np.max([array.shape for array in arrays], axis=0)
    together = np.full((len(arrays), *shape), beyond)
    for part, array in zip(together, arrays, strict=True):
        part[tuple(map(slice, array.shape))] = array
    return together


def _longer(values: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    longer: NDArray[Scalar] = np.empty(length, dtype=values.dtype)
    longer[: min(len(values), length)] = values[:length]
    return longer
