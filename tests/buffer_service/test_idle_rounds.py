"""However many queues of a process nobody is at: they cost so many calls a second, and each has its turn."""

import heapq
from collections import Counter
from itertools import pairwise

from sluice.batching import policy as constructors
from sluice.batching.documents import PolicyDocument, Route
from sluice.buffer_service.idle_rounds import IDLE, IDLE_SWEEPS, TOGETHER, IdleRounds
from sluice.buffer_service.route_state import Caller, RouteState
from sluice.buffer_service.store import Limits, Outcome
from sluice.lambda_fn.contract import Item

HERE = "hereeeee"
ROUTE = Route("", "f", PolicyDocument.of(constructors.greedy(4, servers=1)), 1.0)
LIMITS = Limits()


def test_no_place_is_earlier_than_it_may_be_and_few_lie_together():
    rounds = IdleRounds()
    places = [rounds.place(10.1) for _ in range(100)]
    together = Counter(places)
    assert min(places) >= 10.1 + IDLE
    assert places == sorted(places)
    assert max(together.values()) <= IDLE_SWEEPS * TOGETHER + 1
    assert max(places) <= 10.1 + IDLE + 100 / IDLE_SWEEPS + TOGETHER
    assert rounds.place(1000.0) == 1000.0 + IDLE


class Process:
    """So many routes of one process in virtual time, whose queues answer at once that nobody waits."""

    def __init__(self, routes):
        self.rounds = IdleRounds()
        self.waiting = {}
        self.states = [RouteState(f"m{i}", ROUTE, LIMITS, HERE, self.waiting, 60.0, rounds=self.rounds) for i in range(routes)]
        self.calls = []  # when, and whose
        self.alarms = [(0.0, i) for i in range(routes)]
        self.waits = Counter()  # who says that so many wait

    def turn(self, now, i):
        instructions = self.states[i].turn(now)
        while instructions.call is not None:
            self.calls.append((now, i))
            self.states[i].called(now, Outcome(len(instructions.call.events.arrivals), queue_length=self.waits[i], epoch="1"))
            instructions = self.states[i].turn(now)
        if instructions.wake_at < float("inf"):
            heapq.heappush(self.alarms, (instructions.wake_at, i))

    def run(self, until):
        while self.alarms[0][0] <= until:
            self.turn(*heapq.heappop(self.alarms))

    def between(self, start, end):
        return [call for call in self.calls if start < call[0] <= end]


def test_a_thousand_queues_that_nobody_is_at_are_swept_each_in_its_turn_and_few_at_a_time():
    process = Process(1000)
    process.run(160.0)
    seconds = Counter(int(at) for at, _ in process.between(2.0, 160.0))
    assert max(seconds.values()) <= 2 * IDLE_SWEEPS * (1 + TOGETHER)
    for start in (5.0, 57.0, 109.0):
        assert {i for _, i in process.between(start, start + 1000 / IDLE_SWEEPS + IDLE)} == set(range(1000))


def test_each_turn_of_a_queue_is_two_sweeps_within_a_lease_so_that_it_may_judge():
    process = Process(200)
    process.run(60.0)
    times = [at for at, i in process.calls if i == 7][2:]
    assert len(times) >= 8
    assert all(second - first <= LIMITS.lease for first, second in zip(times[::2], times[1::2], strict=False))


def test_a_queue_alone_is_swept_about_once_in_idle():
    process = Process(1)
    process.run(60.0)
    gaps = [after - before for (before, _), (after, _) in zip(process.calls[2:], process.calls[3:], strict=False)]
    assert max(gaps) <= IDLE + LIMITS.lease + TOGETHER


def test_a_queue_where_somebody_waits_is_swept_by_its_lease_however_many_others_there_are():
    process = Process(1000)
    process.run(10.0)
    process.waits[3] = 1
    caller = process.waiting["x"] = Caller(process.states[3].name, Item("x", "application/json", b"1"), 10.0)
    process.states[3].came(10.0, caller)
    process.turn(10.0, 3)
    process.run(20.0)
    times = [at for at, i in process.between(10.0, 20.0) if i == 3]
    assert max(after - before for before, after in zip([10.0, *times], times, strict=False)) <= LIMITS.lease / 3 + 1e-9
    del process.waiting["x"]
    process.waits[3] = 0
    process.run(100.0)
    assert len([i for _, i in process.between(21.0, 100.0) if i == 3]) <= 8


def test_queues_that_are_busy_now_and_then_put_off_no_turn_of_the_others():
    process = Process(100)
    process.run(5.0)
    for tick in range(60):
        now = 5.0 + tick * 0.1
        process.run(now)
        for i in range(50):
            item = Item(f"{HERE}{tick * 50 + i:08x}", "application/json", b"1")
            process.states[i].came(now, Caller(process.states[i].name, item, now))
            process.turn(now, i)
    process.run(30.0)
    for i in range(50, 100):
        times = [at for at, whose in process.between(5.0, 30.0) if whose == i]
        assert (
            max(after - before for before, after in zip([5.0, *times], times, strict=False))
            <= 100 / IDLE_SWEEPS + 2 * IDLE + 2 * TOGETHER
        )


def test_a_process_that_is_late_with_every_call_sweeps_no_more_often_for_it():
    process = Process(1)
    now = 0.0
    while now < 100.0:
        at, i = heapq.heappop(process.alarms)
        now = max(at, now + 2 * LIMITS.lease)
        process.turn(now, i)
    sweeps = [now for now, _ in process.calls[2:]]
    gaps = [after - before for before, after in pairwise(sweeps)]
    assert max(gaps[::2]) < min(gaps[1::2]) or max(gaps[1::2]) < min(gaps[::2])  # two, then a pause
