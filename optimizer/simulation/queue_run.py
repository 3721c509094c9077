"""One queue being simulated: arrivals in, chunk by chunk, and batches out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import queue_loop
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.queue_loop import ELASTIC, Records, State

Scalar = TypeVar("Scalar", bound=np.generic)

_NO_SIZES = queue_loop.BySize(np.empty(0), np.empty(0), np.empty((0, 0, 0)), np.empty((0, 0)))
_NO_TABLE = queue_loop.Overflow(np.empty(0), np.empty(0, dtype=np.int64))


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
    sizes : array
        Those of ``arrivals``; empty where requests are not sized.
    """

    arrivals: Array
    n_waited: int
    batches: Records
    n_left: int
    sizes: Array


class QueueRun:
    """A deployment under way. Uniform numbers for service times are taken from ``rng``: at most one for each request.

    Where the requests are ``sized`` a batch takes as long as its members' own sizes have it, and not as the mix of sizes.
    """

    def __init__(self, deployment: Deployment, rng: np.random.Generator, sized: bool = False) -> None:
        schedule, overflow, adaptation = deployment.schedule, deployment.overflow, deployment.adaptation
        n_swaps = len(schedule.swap_times)
        servers = schedule.servers_in_force
        unchanged = np.empty(0, dtype=np.int64)
        self._rules = queue_loop.Rules(
            schedule.hold,
            schedule.take,
            schedule.drop_after,
            schedule.swap_times,
            schedule.swap_to,
            np.full(n_swaps + 1, ELASTIC, dtype=np.int64) if servers is None else servers,
            unchanged if adaptation is None else adaptation.up,
            unchanged if adaptation is None else adaptation.down,
            np.inf if adaptation is None else adaptation.latency,
        )
        self._overflow = _NO_TABLE
        if overflow is not None:
            self._overflow = queue_loop.Overflow(np.array(overflow.policy.hold), np.array(overflow.policy.take, dtype=np.int64))
        function = deployment.service if overflow is None else overflow.service
        self._sized = sized
        self._by_server, self._by_function = _times(deployment.service), _times(function)
        self._padded = (_by_size(deployment.service, sized), _by_size(function, sized))
        # The rule is read at completions too, where requests grew too old meanwhile: a function that drops must know of them.
        drops = (schedule.elastic or overflow is not None) and bool((schedule.drop_after < np.inf).any())
        self._environments = _environments(deployment.function_environments, drops)
        self._rng = rng
        self._random = not (deployment.service.deterministic and function.deterministic)
        self._uniforms = np.empty(0)
        none = np.empty(0)
        self._state = State(
            np.array([0, 0, schedule.first, 0, 0, 0, 0, 0]),
            np.array([np.inf, self._environments.burst, 0.0]),
            none,
            np.empty(0, dtype=np.bool_),
            none,
            none,
        )
        self._waiting = self._waiting_sizes = none

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
        given = (self._rules, self._overflow, self._by_server, self._by_function, self._environments)
        n_batches = queue_loop.run(arrivals, last, *given, self._uniforms, request_sizes, *self._padded, state, records)
        head = int(state.counts[0])
        state.counts[:2] -= head
        self._waiting, self._waiting_sizes = np.array(arrivals[head:]), np.array(request_sizes[head:])
        self._uniforms = self._uniforms[n_batches:]
        first, members, dispatched, responses, marks = records
        batches = Records(first[:n_batches], members[:n_batches], dispatched[:n_batches], responses[:n_batches], marks[:n_batches])
        return Progress(arrivals, n_waited, batches, head, request_sizes)

    def _check_sizes(self, sizes: Array, n: int) -> None:
        require(len(sizes) == n * self._sized, "sizes", len(sizes), "one for each arrival, or none")
        if self._sized:
            end = min(float(of.sizes[-1]) for of in self._padded)
            largest = float(sizes.max(initial=0.0))
            require(0 <= largest <= end, "size", largest, f"at most {end:g}, the largest that the service times speak of")

    def _with_room(self, n: int) -> State:
        """The state in arrays that ``n`` more batches fit into; no more are under way than there are servers."""
        counts, clock, busy, late, running, idle = self._state
        n_busy, n_running, idle_from, idle_to = counts[4:]
        most = int(min(n_busy + n, max(n_busy, self._rules.servers.max())))
        elastic = n if self._environments.kept else 0
        counts[6:] = 0, idle_to - idle_from
        return State(
            counts,
            clock,
            _longer(busy[:n_busy], most),
            _longer(late[:n_busy], most if len(self._rules.up) else 0),
            _longer(running[:n_running], int(n_running) + elastic),
            _longer(idle[idle_from:idle_to], int(idle_to - idle_from + n_running) + elastic),
        )


def _environments(environments: Environments | None, drops: bool) -> queue_loop.Environments:
    if environments is None:
        return queue_loop.Environments(drops, False, 0.0, np.inf, np.inf, np.inf, np.inf)
    concurrency = np.inf if environments.concurrency is None else float(environments.concurrency)
    rest = (environments.init_duration, environments.keep_alive, concurrency, environments.scaling_rate, float(environments.burst))
    return queue_loop.Environments(True, True, *rest)


def checked_times(arrival_times: Array) -> Array:
    """Arrival times as the loop takes them; raises ``InvalidInput`` unless they are finite, ascending, and at least one."""
    times = np.ascontiguousarray(arrival_times, dtype=np.float64)
    if times.ndim != 1 or len(times) == 0 or not np.isfinite(times).all() or (times[1:] < times[:-1]).any():
        raise InvalidInput(
            "arrival_times", f"{times.size} times of shape {times.shape}", "finite times in ascending order, at least one"
        )
    return times


def _times(service: ServiceTimes) -> queue_loop.Times:
    return queue_loop.Times(service.quantile_levels, np.ascontiguousarray(service.seconds), service.overhead)


def _by_size(service: ServiceTimes, sized: bool) -> queue_loop.BySize:
    if not sized:
        return _NO_SIZES
    if not isinstance(service, MixedServiceTimes):
        raise InvalidInput("sizes", "given", "none, as the service times do not tell sizes apart")
    of = service.by_size
    return queue_loop.BySize(of.sizes, of.quantile_levels, np.ascontiguousarray(of.seconds(of.sizes)), of.overhead(of.sizes))


def _longer(values: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    longer: NDArray[Scalar] = np.empty(length, dtype=values.dtype)
    longer[: min(len(values), length)] = values[:length]
    return longer
