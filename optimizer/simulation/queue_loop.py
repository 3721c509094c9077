"""The compiled event loop of one queue: policy tables over arrivals, each in front of servers of its own or of a function.

It interprets the tables as ``batching.Batcher``, the executable specification, does, and adds what a batcher leaves out: the clock,
the service, the environments of a function. Events are arrivals, completions, wake times, and swaps of the policy's own table,
after which the new one rules over those as well who wait already; those of one moment are handled as one: completions, arrivals,
the swap, the rule. Where there is no table beside, nothing can leave while every server is busy, so arrivals then wait unseen for
the next completion. A table is known by its place: 0 the policy's own, 1 the first beside it.

Requests leave or are dropped oldest first. So those that wait are a range of the arrivals, a batch is one as well, and the loop
writes five numbers per batch and none per request. It is fed chunk by chunk and stops before the last arrival of a chunk that is
not the last, whose moment may not be over: what waits then is carried into the next chunk.

Requests of several classes leave in the order in which their holds begin (``policy.py``). Within a class that is the order in which
they came, so each class is a line, and the next to leave is the first of one of the lines. The loop then writes for each request
when it had its turn, and a batch is a range of the turns. Without classes it is compiled for itself (``lines`` is ``None``).

A function that is told nothing of its environments has one for every batch at once. Otherwise it runs as AWS Lambda does: a batch
takes the environment that was idle for the shortest time; without one a cold start adds its seconds, unless as many batches as
``concurrency`` allows are under way or environments were asked for faster than a bucket of ``burst`` tokens, filled with
``scaling_rate`` a second, gives them: its table is then passed over, as that of busy servers is, until one of them may be had. An
environment idle for more than ``keep_alive`` is gone. Every ``pinged_every`` seconds as many pings as are ``pinged`` count as the
use of those that were idle for the shortest time, and start others where fewer are. Pings are caught up with when an environment is
taken or given back: in between they change nothing but since when these are idle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.policy import MAX_BESIDE
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled, inlined

ELASTIC = 1 << 62  # servers of a table that a function serves: more than there are batches
COLD = 1  # added to the mark of a batch, twice the place of its table, whose environment had to start
_LATE = MAX_BESIDE + 1  # in the place of 0: a batch of the policy's own table that took too long
_TOKEN = 1 - 1e-9


class Tables(NamedTuple):
    """The policy's own tables, of which one rules, then those beside; and what makes another of them rule.

    ``hold``, ``take`` (n_own + n_beside, rows); the ``rows`` and ``columns`` that a table has of its own (n_own + n_beside,), read
    where there are classes; ``drop_after`` (n_own,); ``swap_times``, ``swap_to`` (n_swaps,) and the ``servers`` before the first
    swap and after each (n_swaps + 1,), those ``beside`` (n_beside,); ``up``, ``down`` (n_own,), the table after a batch of the
    policy's own that took at most, or more than, ``limit`` seconds (empty: the same).
    """

    hold: Array
    take: Indices
    rows: Indices
    columns: Indices
    drop_after: Array
    swap_times: Array
    swap_to: Indices
    servers: Indices
    up: Indices
    down: Indices
    limit: float


class Times(NamedTuple):
    """Service times by place: quantile functions (n_places, n_sizes, max_batch_size, n_levels), their levels (n_places, n_levels),
    and the overhead (n_places, n_sizes, max_batch_size), by the size of the largest member with the ``sizes`` (n_places, n_sizes);
    one that is not read where sizes are not told apart.
    """

    sizes: Array
    levels: Array
    seconds: Array
    overhead: Array


class Environments(NamedTuple):
    """The environments of the functions, by place, (n_places,) each; where not ``told``, a batch takes a new one that is warm.

    ``attended``: somebody asks when a batch ends.
    """

    attended: NDArray[np.bool_]
    told: NDArray[np.bool_]
    init_duration: Array
    keep_alive: Array
    concurrency: Array
    scaling_rate: Array
    burst: Array
    pinged_every: Array
    pinged: Indices


class State(NamedTuple):
    """Where the loop stands between two chunks: arrays, since they are changed.

    ``counts``: head, tail, table, swap, batches in ``ends``; ``wake``: the wake time, (1,).
    ``ends``: a heap of the completions that somebody asks for; ``marks``: the places of their tables (empty: all 0).
    By place, (n_places,) each: ``servers``; batches ``in_flight``; ``tokens`` and when they were ``counted``; and in ``idle``
    (n_places, n) since when environments are, ascending, from ``idle_from`` to ``idle_to``; how many times they were ``pinged``.
    """

    counts: Indices
    wake: Array
    ends: Array
    marks: NDArray[np.uint8]
    servers: Indices
    in_flight: Indices
    tokens: Array
    counted: Array
    idle: Array
    idle_from: Indices
    idle_to: Indices
    pinged: Array


class Records(NamedTuple):
    """What is written, by batch: its first request, how many, when it left, seconds to the answer, and its mark.

    A mark is twice the place of the table, and ``COLD`` more where an environment had to start.
    """

    first: Indices
    sizes: Indices
    dispatched: Array
    responses: Array
    marks: NDArray[np.uint8]


class Lines(NamedTuple):
    """The lines in which requests of several classes wait.

    ``slacks`` of the classes (n_classes,), s; how many of the first 0, 1, ... arrivals are ``patient``, their slacks being above 0
    (n_arrivals + 1,); the arrival ``following`` each in its line (n_arrivals,), and the first of each, in
    ``heads`` (n_classes,), whose moment may be still to come; n_arrivals where there is none. The ``order`` (n_arrivals,) in which
    they have their turns is written.
    """

    slacks: Array
    patient: Indices
    following: Indices
    heads: Indices
    order: Indices


@compiled
def run(
    arrivals: Array,
    last: bool,
    tables: Tables,
    times: Times,
    environments: Environments,
    uniforms: Array,
    request_sizes: Array,
    state: State,
    records: Records,
    lines: Lines | None,
) -> int:
    """Go on to the end of the chunk; the number of batches recorded.

    ``arrivals`` begin with those that wait since the last chunk. ``uniforms`` (empty: service times are deterministic): the k-th
    batch to leave has the k-th. ``request_sizes`` are those of the ``arrivals`` (empty: not told apart). ``lines``: ``None`` where
    there are no classes; then the ``first`` of a batch is an arrival, else a turn.
    """
    # Taken out once: every array of a record is counted whenever the record is read, which may take longer than the reading.
    counts, wake, ends, marks, servers, in_flight, tokens, counted, idle, idle_from, idle_to, _ = state
    hold, take, rows, columns, drops_after, swap_times, swap_to, servers_after, up, down, limit = tables
    attended, told, init_duration, keep_alive, concurrency, scaling_rate, burst, pinged_every, _ = environments
    sizes, levels, seconds, overhead = times
    first, members, dispatched, responses, marked = records
    if lines is not None:
        slacks, patient, following, heads, order = lines
    head, tail, rule, swap, n_ends = counts
    wake_at = wake[0]
    n, last_row, n_places, n_own = len(arrivals), hold.shape[1] - 1, len(in_flight), len(drops_after)
    beside, adapts, sized = n_places > 1, len(up) > 0, len(request_sizes) > 0
    fixed = len(uniforms) == 0 and not sized
    drop_after = drops_after[rule]
    swap_at = swap_times[swap] if swap < len(swap_times) else np.inf
    horizon = np.inf if last else arrivals[n - 1]
    serves = servers.min() < ELASTIC
    n_batches, n_patient = 0, 0  # the latter have had their turns
    while True:
        now = swap_at
        if beside or in_flight[0] < servers[0]:
            now = min(now, wake_at)
            if tail < n:
                now = min(now, arrivals[tail])
        if n_ends > 0 and (serves or drop_after < np.inf):
            now = min(now, ends[0])
        if now >= horizon or now == np.inf:
            break
        # who came while all servers were busy came under the table of then, and it drops as if it had been read
        while tail < n and arrivals[tail] < now:
            tail += 1
        if lines is None:
            while head < tail and arrivals[tail - 1] > arrivals[head] + drop_after:
                head += 1
        elif drop_after < np.inf:
            while head < tail:
                line = _most_urgent(arrivals, slacks, heads, tail)
                if arrivals[tail - 1] <= arrivals[heads[line]] + slacks[line] + drop_after:
                    break
                n_patient += _take_first(slacks, following, heads, order, line, head)
                head += 1
        while n_ends > 0 and ends[0] <= now:
            place, ended = 0, ends[0]
            if len(marks) > 0:
                late = marks[0] == _LATE
                place = 0 if late else marks[0]
                if adapts and place == 0:
                    rule = down[rule] if late else up[rule]
            n_ends -= 1
            _remove_earliest(ends, marks, n_ends)
            if pinged_every[place] < np.inf:
                n_ends = _ping(ended, place, environments, state, n_ends)
            in_flight[place] -= 1
            if told[place]:
                idle[place, idle_to[place]] = ended
                idle_to[place] += 1
        while tail < n and arrivals[tail] <= now:
            tail += 1
        while swap_at <= now:
            if swap_to[swap] >= 0:
                rule = swap_to[swap]
            swap += 1
            servers[0] = servers_after[swap]
            swap_at = swap_times[swap] if swap < len(swap_times) else np.inf
        drop_after, wake_at = drops_after[rule], np.inf
        while head < tail:
            if lines is None:
                begins = arrivals[head]
            else:
                line = _most_urgent(arrivals, slacks, heads, tail)
                begins = arrivals[heads[line]] + slacks[line]
            if now > begins + drop_after:
                if lines is not None:
                    n_patient += _take_first(slacks, following, heads, order, line, head)
                head += 1
                continue
            row, wake_at = min(tail - head, last_row), np.inf
            leaves, place, table, cold = False, 0, rule, 0
            while not leaves and place < n_places:
                if in_flight[place] < servers[place]:
                    table = n_own + place - 1 if place > 0 else rule
                    if lines is not None:
                        row = _row(rows[table], columns[table], tail - head, patient[tail] - n_patient)
                    due = begins + hold[table, row]
                    leaves = now >= due
                    if lines is not None:
                        leaves = leaves or hold[table, row] == 0
                    if not leaves:
                        wake_at = min(wake_at, due)
                    elif told[place]:
                        if pinged_every[place] < np.inf:
                            n_ends = _ping(now, place, environments, state, n_ends)
                        while idle_from[place] < idle_to[place] and idle[place, idle_from[place]] + keep_alive[place] < now:
                            idle_from[place] += 1
                        if now > counted[place]:
                            tokens[place] = min(burst[place], tokens[place] + scaling_rate[place] * (now - counted[place]))
                        counted[place] = now
                        granted = _granted(idle_to, idle_from, tokens, place, in_flight[place], concurrency[place])
                        leaves, cold = granted >= 0, max(granted, 0)
                        if not leaves:
                            wake_at = min(wake_at, ends[0] if n_ends > 0 else np.inf)
                            if in_flight[place] < concurrency[place]:
                                filled_at = now + (1.0 - tokens[place]) / scaling_rate[place]
                                wake_at = min(wake_at, max(filled_at, np.nextafter(now, np.inf)))
                place += 1
            if not leaves:
                break
            place -= 1
            size = take[table, row]
            if lines is not None:
                for turn in range(head, head + size):
                    line = _most_urgent(arrivals, slacks, heads, tail)
                    n_patient += _take_first(slacks, following, heads, order, line, turn)
            level = uniforms[n_batches] if len(uniforms) > 0 else 0.0
            if fixed:
                response = seconds[place, 0, size - 1, 0] + overhead[place, 0, size - 1]
            elif sized:
                largest = (
                    request_sizes[head : head + size].max() if lines is None else request_sizes[order[head : head + size]].max()
                )
                response = _padded(sizes, levels, seconds, overhead, place, size, level, largest)
            else:
                response = _response(levels, seconds, overhead, place, 0, size, level)
            if cold > 0:
                response += init_duration[place]
            first[n_batches] = head
            members[n_batches] = size
            dispatched[n_batches] = now
            responses[n_batches] = response
            marked[n_batches] = 2 * place + cold
            n_batches += 1
            head += size
            if attended[place]:
                late = place == 0 and response > limit
                _add(ends, marks, n_ends, now + response, _LATE if late else place)
                n_ends += 1
                in_flight[place] += 1
    counts[0], counts[1], counts[2], counts[3], counts[4] = head, tail, rule, swap, n_ends
    wake[0] = wake_at
    return n_batches


@compiled
def line_up(classes: Indices, slacks: Array) -> Lines:
    """The lines of arrivals of these ``classes`` (n_arrivals,)."""
    n = len(classes)
    patient, following, heads = np.zeros(n + 1, dtype=np.int64), np.empty(n, dtype=np.int64), np.full(len(slacks), n)
    for i in range(n):
        patient[i + 1] = patient[i] + (slacks[classes[i]] > 0)
    for i in range(n - 1, -1, -1):
        following[i] = heads[classes[i]]
        heads[classes[i]] = i
    return Lines(slacks, patient, following, heads, np.empty(n, dtype=np.int64))


@inlined
def _most_urgent(arrivals: Array, slacks: Array, heads: Indices, tail: int) -> int:
    """The line whose first request has the next turn, of all arrivals before ``tail``: that whose hold begins first.

    Of equals it is one without a slack, and of these the one that came first.
    """
    line, earliest = -1, np.inf
    for other in range(len(heads)):
        if heads[other] < tail:
            begins = arrivals[heads[other]] + slacks[other]
            sooner = line < 0 or begins < earliest
            if not sooner and begins == earliest:
                alike = (slacks[other] == 0) == (slacks[line] == 0)
                sooner = heads[other] < heads[line] if alike else slacks[other] == 0
            if sooner:
                line, earliest = other, begins
    return line


@inlined
def _take_first(slacks: Array, following: Indices, heads: Indices, order: Indices, line: int, turn: int) -> int:
    """The first of a line has its turn; 1 where it is patient, else 0."""
    order[turn] = heads[line]
    heads[line] = following[heads[line]]
    return 1 if slacks[line] > 0 else 0


@inlined
def _row(rows: int, columns: int, waiting: int, patient: int) -> int:
    """The row of a table that speaks for so many who wait, of whom some are patient (``Policy.row``)."""
    if columns == 1:
        return min(waiting, rows - 1)
    return min(waiting - patient, rows // columns - 1) * columns + min(patient, columns - 1)


@inlined
def _ping(now: float, place: int, environments: Environments, state: State, n_ends: int) -> int:
    """Catch up with the pings of a function until ``now``; the number of batches, and pings, that are under way then."""
    every, since = environments.pinged_every[place], state.pinged[place]
    so_far = np.floor(now / every)
    if so_far <= since:
        return n_ends
    first, last = (since + 1) * every, so_far * every
    state.pinged[place] = so_far
    most, top = environments.pinged[place], state.idle_to[place]
    while most > state.idle_to[place] - top and top > state.idle_from[place]:
        if state.idle[place, top - 1] + environments.keep_alive[place] < first:
            state.idle_from[place] = top  # who was idle for longer is gone as well
            break
        top -= 1
        state.idle[place, top] = max(state.idle[place, top], last)
    started = first + environments.init_duration[place]
    may = min(float(most), environments.concurrency[place] - state.in_flight[place])
    for _ in range(int(may) - (state.idle_to[place] - top)):
        if started > now:
            _add(state.ends, state.marks, n_ends, started, place)
            state.in_flight[place] += 1
            n_ends += 1
        else:
            state.idle[place, state.idle_to[place]] = max(started, last)
            state.idle_to[place] += 1
    return n_ends


@inlined
def _granted(idle_to: Indices, idle_from: Indices, tokens: Array, place: int, running: int, concurrency: float) -> int:
    """Whether a batch gets an environment now: 0 one that is warm, ``COLD``, or -1."""
    if idle_from[place] < idle_to[place]:
        idle_to[place] -= 1
        return 0
    if running < concurrency and tokens[place] >= _TOKEN:
        tokens[place] -= 1.0
        return COLD
    return -1


@inlined
def _response(levels: Array, seconds: Array, overhead: Array, place: int, at: int, size: int, level: float) -> float:
    """Seconds of a batch of ``size``: its quantile function at ``level`` < 1, linear between the levels, and the overhead.

    Of the table at ``place``, for a largest member of the size ``at`` that place among those told apart.
    """
    row, below, above = size - 1, 0, levels.shape[1] - 1
    while above - below > 1:
        middle = (below + above) // 2
        if levels[place, middle] <= level:
            below = middle
        else:
            above = middle
    slope = (seconds[place, at, row, above] - seconds[place, at, row, below]) / (levels[place, above] - levels[place, below])
    return float(slope * (level - levels[place, below]) + seconds[place, at, row, below] + overhead[place, at, row])


@inlined
def _padded(
    sizes: Array, levels: Array, seconds: Array, overhead: Array, place: int, size: int, level: float, largest: float
) -> float:
    """The same of a batch whose largest member has the size ``largest``: linear between the sizes, constant below."""
    above = int(np.searchsorted(sizes[place], largest))
    response = _response(levels, seconds, overhead, place, above, size, level)
    if above == 0 or largest == sizes[place, above]:
        return response
    smaller = _response(levels, seconds, overhead, place, above - 1, size, level)
    below, here = sizes[place, above - 1], sizes[place, above]
    return float(smaller + (response - smaller) * (largest - below) / (here - below))


@inlined
def _add(heap: Array, marks: NDArray[np.uint8], length: int, value: float, mark: int) -> None:
    """Put ``value`` into a binary heap of ``length`` values, the smallest first, of equals that with the smallest mark.

    ``mark`` goes beside it, if ``marks`` has room.
    """
    at = length
    while at > 0:
        parent = (at - 1) // 2
        above = heap[parent]
        if not (value < above or (value == above and len(marks) > 0 and mark < marks[parent])):
            break
        heap[at] = above
        if len(marks) > 0:
            marks[at] = marks[parent]
        at = parent
    heap[at] = value
    if len(marks) > 0:
        marks[at] = mark


@inlined
def _remove_earliest(heap: Array, marks: NDArray[np.uint8], length: int) -> None:
    """Take the first value out of a binary heap; ``length`` values are left."""
    value, marked = heap[length], len(marks) > 0
    mark = marks[length] if marked else 0
    at = 0
    while 2 * at + 1 < length:
        child = 2 * at + 1
        below = heap[child]
        if child + 1 < length:
            other = heap[child + 1]
            if other < below or (other == below and marked and marks[child + 1] < marks[child]):
                child += 1
                below = other
        if not (below < value or (below == value and marked and marks[child] < mark)):
            break
        heap[at] = below
        if marked:
            marks[at] = marks[child]
        at = child
    heap[at] = value
    if marked:
        marks[at] = mark
