"""One queue being simulated: arrivals in, chunk by chunk, and batches out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import queue_loop
from sluice.optimizer.simulation.deployment import Deployment, Environments, Serving
from sluice.optimizer.simulation.queue_loop import ELASTIC, Records, State
from sluice.optimizer.simulation.schedule import rows_of

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Progress:
    """What a chunk of arrivals led to.

    Parameters
    ----------
    arrivals : array
        Those that waited since the last chunk, then the new ones, s.
    n_waited : int
        How many the former are.
    batches : Records
        In order of dispatch; ``first`` counts within ``arrivals``. Who is between two batches, or before the first, was dropped.
    n_left : int
        How many of ``arrivals`` had left or been dropped at the end; the others wait.
    """

    arrivals: Array
    n_waited: int
    batches: Records
    n_left: int


class QueueRun:
    """A deployment under way. Uniform numbers for service times are taken from ``rng``: at most one for each request.

    Where the requests are ``sized`` a batch takes as long as its members' own sizes have it, and not as the mix of sizes.
    """

    def __init__(self, deployment: Deployment, rng: np.random.Generator, sized: bool = False) -> None:
        schedule, serving = deployment.schedule, deployment.serving
        drops = bool((schedule.drop_after < np.inf).any())
        self._tables = _tables(deployment)
        self._sized = sized
        self._times = _times([side.service for side in serving], sized)
        self._environments = _environments(serving, drops)
        self._rng = rng
        self._random = not all(side.service.deterministic for side in serving)
        self._marked = len(serving) > 1 or deployment.adaptation is not None
        self._uniforms = self._waiting = self._waiting_sizes = np.empty(0)
        n = len(serving)
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
        )

    def feed(self, arrival_times: Array, last: bool, sizes: Array | None = None) -> Progress:
        """Go on with the arrivals at these times, s, ascending and not before those fed already; ``last``: there are no more.

        ``sizes`` are those of the arrivals, where requests are sized.
        """
        arrivals = np.concatenate([self._waiting, arrival_times]) if len(self._waiting) else arrival_times
        request_sizes = self._waiting_sizes if sizes is None else np.concatenate([self._waiting_sizes, sizes])
        self._check_sizes(request_sizes, len(arrivals))
        n, n_waited = len(arrivals), len(self._waiting)
        if self._random and n > len(self._uniforms):
            self._uniforms = np.concatenate([self._uniforms, self._rng.random(n - len(self._uniforms))])
        state = self._state = self._with_room(n)
        # There are n batches at most; what of these arrays is never touched takes no memory.
        records = Records(
            np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n), np.empty(n), np.empty(n, dtype=np.uint8)
        )
        given = (self._tables, self._times, self._environments)
        n_batches = queue_loop.run(arrivals, last, *given, self._uniforms, request_sizes, state, records)
        head = int(state.counts[0])
        state.counts[:2] -= head
        self._waiting, self._waiting_sizes = np.array(arrivals[head:]), np.array(request_sizes[head:])
        self._uniforms = self._uniforms[n_batches:]
        first, members, dispatched, responses, marks = records
        batches = Records(first[:n_batches], members[:n_batches], dispatched[:n_batches], responses[:n_batches], marks[:n_batches])
        return Progress(arrivals, n_waited, batches, head)

    def _check_sizes(self, sizes: Array, n: int) -> None:
        require(len(sizes) == n * self._sized, "sizes", len(sizes), "one for each arrival, or none")
        if self._sized:
            end = float(self._times.sizes.max(axis=1, where=self._times.sizes < np.inf, initial=0.0).min())
            largest = float(sizes.max(initial=0.0))
            require(0 <= largest <= end, "size", largest, f"at most {end:g}, the largest that the service times speak of")

    def _with_room(self, n: int) -> State:
        """The state in arrays that ``n`` more batches fit into."""
        of = self._state
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
