"""The compiled event loop of one queue: a policy table over arrivals, in front of servers, of a function, or of both.

It interprets the table as ``batching.Batcher``, the executable specification, does, and adds what a batcher leaves out: the clock,
the service, the environments of the function. Events are arrivals, completions, wake times, and swaps of the table, after which
the new one rules over those as well who wait already; those of one moment are handled as one: completions, arrivals, the swap, the
rule. While every server is busy nothing can leave, so arrivals then wait unseen for the next completion.

Requests leave or are dropped oldest first. So those that wait are a range of the arrivals, a batch is one as well, and the loop
writes five numbers per batch and none per request. It is fed chunk by chunk and stops before the last arrival of a chunk that is
not the last, whose moment may not be over: what waits then is carried into the next chunk.

A function that is told nothing of its environments has one for every batch at once. Otherwise it runs as AWS Lambda does: a batch
takes the environment that was idle for the shortest time; without one a cold start adds its seconds, unless as many batches as
``concurrency`` allows are under way or environments were asked for faster than a bucket of ``burst`` tokens, filled with
``scaling_rate`` a second, gives them: then the batch waits in the queue. An environment idle for more than ``keep_alive`` is gone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled

ELASTIC = -1  # servers of a table that a function serves
FUNCTION, COLD = 1, 2  # marks of a batch: served by the function; by an environment that had to start
_TOKEN = 1 - 1e-9


class Rules(NamedTuple):
    """Tables and what makes another of them rule.

    ``hold``, ``take`` (n_tables, rows) and ``drop_after`` (n_tables,); ``swap_times``, ``swap_to`` (n_swaps,) and the ``servers``
    before the first swap and after each (n_swaps + 1,); ``up``, ``down`` (n_tables,), the table after a batch of the servers that
    took at most, or more than, ``limit`` seconds (empty: the same).
    """

    hold: Array
    take: Indices
    drop_after: Array
    swap_times: Array
    swap_to: Indices
    servers: Indices
    up: Indices
    down: Indices
    limit: float


class Overflow(NamedTuple):
    """The function's table beside that of the servers, (rows,); empty: none."""

    hold: Array
    take: Indices


class Times(NamedTuple):
    """Service times: quantile functions (max_batch_size, n_levels), their levels, and the overhead (max_batch_size,)."""

    levels: Array
    seconds: Array
    overhead: Array


class BySize(NamedTuple):
    """The same by the size of the largest member, with the ``sizes`` in front, (n_sizes,); none: not told apart."""

    sizes: Array
    levels: Array
    seconds: Array
    overhead: Array


class Environments(NamedTuple):
    """The environments of the function.

    Not ``kept``: nobody asks when a batch ends. Without ``cold_starts`` a new environment is as good as an old one.
    """

    kept: bool
    cold_starts: bool
    init_duration: float
    keep_alive: float
    concurrency: float
    scaling_rate: float
    burst: float


class State(NamedTuple):
    """Where the loop stands between two chunks: arrays, since they are changed.

    ``counts``: head, tail, table, swap, batches on servers, batches at the function, oldest idle environment, end of the idle ones.
    ``clock``: wake time, tokens, when they were counted.
    ``busy``, ``late``: a heap of the servers' completions, and whether each took too long; ``running``: that of the function;
    ``idle``: since when environments are, ascending.
    """

    counts: Indices
    clock: Array
    busy: Array
    late: NDArray[np.bool_]
    running: Array
    idle: Array


class Records(NamedTuple):
    """What is written, by batch: its first request, how many, when it left, seconds to the answer, marks."""

    first: Indices
    sizes: Indices
    dispatched: Array
    responses: Array
    marks: NDArray[np.uint8]


@compiled
def run(
    arrivals: Array,
    last: bool,
    rules: Rules,
    overflow: Overflow,
    by_server: Times,
    by_function: Times,
    environments: Environments,
    uniforms: Array,
    request_sizes: Array,
    padded_by_server: BySize,
    padded_by_function: BySize,
    state: State,
    records: Records,
) -> int:
    """Go on to the end of the chunk; the number of batches recorded.

    ``arrivals`` begin with those that wait since the last chunk. ``uniforms`` (empty: service times are deterministic): the k-th
    batch to leave has the k-th. ``request_sizes`` are those of the ``arrivals`` (empty: not told apart).
    """
    counts, clock, busy, late, running, idle = state
    head, tail, rule, swap, n_busy, n_running, idle_from, idle_to = counts
    wake_at, tokens, counted_at = clock
    n, last_row, last_overflow = len(arrivals), rules.hold.shape[1] - 1, len(overflow.hold) - 1
    overflows, adapts, sized = last_overflow > 0, len(rules.up) > 0, len(request_sizes) > 0
    drop_after, servers = rules.drop_after[rule], rules.servers[swap]
    unmarked = late[:0]
    swap_at = rules.swap_times[swap] if swap < len(rules.swap_times) else np.inf
    horizon = np.inf if last else arrivals[n - 1]
    n_batches = 0
    while True:
        if servers >= 0 and n_busy >= servers and not overflows:
            now = min(busy[0] if n_busy > 0 else np.inf, swap_at)
        else:
            now = min(wake_at, swap_at)
            if tail < n:
                now = min(now, arrivals[tail])
            if n_busy > 0:
                now = min(now, busy[0])
            if environments.kept and drop_after < np.inf and n_running > 0:
                now = min(now, running[0])
        if now >= horizon or now == np.inf:
            break
        # who came while all servers were busy came under the table of then, and it drops as if it had been read
        while tail < n and arrivals[tail] < now:
            tail += 1
        while head < tail and arrivals[tail - 1] > arrivals[head] + drop_after:
            head += 1
        while n_busy > 0 and busy[0] <= now:
            if adapts:
                rule = rules.down[rule] if late[0] else rules.up[rule]
            n_busy -= 1
            _remove_earliest(busy, late, n_busy)
        while n_running > 0 and running[0] <= now:
            idle[idle_to] = running[0]
            idle_to += 1
            n_running -= 1
            _remove_earliest(running, unmarked, n_running)
        while tail < n and arrivals[tail] <= now:
            tail += 1
        while swap_at <= now:
            if rules.swap_to[swap] >= 0:
                rule = rules.swap_to[swap]
            swap += 1
            servers = rules.servers[swap]
            swap_at = rules.swap_times[swap] if swap < len(rules.swap_times) else np.inf
        drop_after, wake_at = rules.drop_after[rule], np.inf
        while head < tail:
            oldest = arrivals[head]
            if now > oldest + drop_after:
                head += 1
                continue
            row = min(tail - head, last_row)
            size = rules.take[rule, row]
            elastic = servers == ELASTIC
            leaves = False
            if elastic or n_busy < servers:
                ends = oldest + rules.hold[rule, row]
                leaves = now >= ends
                if not leaves:
                    wake_at = ends
            if overflows and not leaves:
                row = min(tail - head, last_overflow)
                ends = oldest + overflow.hold[row]
                leaves = elastic = now >= ends
                if leaves:
                    size = overflow.take[row]
                else:
                    wake_at = min(wake_at, ends)
            if not leaves:
                break
            mark = 0
            if elastic:
                mark = FUNCTION
                if environments.kept:
                    while idle_from < idle_to and idle[idle_from] + environments.keep_alive < now:
                        idle_from += 1
                    if now > counted_at:
                        tokens = min(environments.burst, tokens + environments.scaling_rate * (now - counted_at))
                    counted_at = now
                    if idle_from < idle_to:
                        idle_to -= 1
                    elif n_running < environments.concurrency and tokens >= _TOKEN:
                        tokens -= 1.0
                        mark += COLD * environments.cold_starts
                    else:
                        if n_running > 0:
                            wake_at = min(wake_at, running[0])
                        if n_running < environments.concurrency:
                            wake_at = min(wake_at, max(now + (1.0 - tokens) / environments.scaling_rate, np.nextafter(now, np.inf)))
                        break
            level = uniforms[n_batches] if len(uniforms) > 0 else 0.0
            if sized:
                largest = request_sizes[head : head + size].max()
                response = _padded(padded_by_function if elastic else padded_by_server, size, level, largest)
            else:
                response = _response(by_function, size, level) if elastic else _response(by_server, size, level)
            if mark == FUNCTION + COLD:
                response += environments.init_duration
            records.first[n_batches] = head
            records.sizes[n_batches] = size
            records.dispatched[n_batches] = now
            records.responses[n_batches] = response
            records.marks[n_batches] = mark
            n_batches += 1
            head += size
            if not elastic:
                _add(busy, late, n_busy, now + response, response > rules.limit)
                n_busy += 1
            elif environments.kept:
                _add(running, unmarked, n_running, now + response, False)
                n_running += 1
    counts[:] = (head, tail, rule, swap, n_busy, n_running, idle_from, idle_to)
    clock[:] = (wake_at, tokens, counted_at)
    return n_batches


@compiled
def _response(times: Times, size: int, level: float) -> float:
    """Seconds of a batch of ``size``: its quantile function at ``level`` < 1, linear between the levels, and the overhead."""
    levels, seconds, row = times.levels, times.seconds, size - 1
    if len(levels) == 1:
        return float(seconds[row, 0] + times.overhead[row])
    above = np.searchsorted(levels, level, side="right")
    below = above - 1
    slope = (seconds[row, above] - seconds[row, below]) / (levels[above] - levels[below])
    return float(slope * (level - levels[below]) + seconds[row, below] + times.overhead[row])


@compiled
def _padded(by_size: BySize, size: int, level: float, largest: float) -> float:
    """The same of a batch whose largest member has the size ``largest``: linear between the sizes, constant below."""
    sizes, seconds, overhead = by_size.sizes, by_size.seconds, by_size.overhead
    above = np.searchsorted(sizes, largest)
    at = Times(by_size.levels, seconds[above], overhead[above])
    response = _response(at, size, level)
    if above == 0 or largest == sizes[above]:
        return response
    smaller = _response(Times(by_size.levels, seconds[above - 1], overhead[above - 1]), size, level)
    return float(smaller + (response - smaller) * (largest - sizes[above - 1]) / (sizes[above] - sizes[above - 1]))


@compiled
def _add(heap: Array, marks: NDArray[np.bool_], length: int, value: float, mark: bool) -> None:
    """Put ``value`` into a binary heap of ``length`` values, the smallest first, of equals those without a mark.

    ``mark`` goes beside it, if ``marks`` has room.
    """
    at = length
    while at > 0:
        parent = (at - 1) // 2
        above = heap[parent]
        if not (value < above or (value == above and not mark and len(marks) > 0 and marks[parent])):
            break
        heap[at] = above
        if len(marks) > 0:
            marks[at] = marks[parent]
        at = parent
    heap[at] = value
    if len(marks) > 0:
        marks[at] = mark


@compiled
def _remove_earliest(heap: Array, marks: NDArray[np.bool_], length: int) -> None:
    """Take the first value out of a binary heap; ``length`` values are left."""
    value, marked = heap[length], len(marks) > 0
    mark = marked and marks[length]
    at = 0
    while 2 * at + 1 < length:
        child = 2 * at + 1
        below = heap[child]
        if child + 1 < length:
            other = heap[child + 1]
            if other < below or (other == below and marked and marks[child] and not marks[child + 1]):
                child += 1
                below = other
        if not (below < value or (below == value and mark and not marks[child])):
            break
        heap[at] = below
        if marked:
            marks[at] = marks[child]
        at = child
    heap[at] = value
    if marked:
        marks[at] = mark
