"""When requests are brought to the queue changes nothing: what leaves, and when, is what the rule says of when they came.

States of several processes at one queue, in virtual time; calls take none, and are as many as the states ask for. The other road is
a batcher that is told of everything at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest

from sluice.batching import Batcher, Policy
from sluice.batching import policy as constructors
from sluice.batching.documents import PolicyDocument, Route
from sluice.buffer_service import route_arrivals
from sluice.buffer_service.arrival_record import ArrivalRecord
from sluice.buffer_service.batch_record import BatchRecord
from sluice.buffer_service.members import member_id
from sluice.buffer_service.queue_state import QueueState
from sluice.buffer_service.route_arrivals import FILLED, GATHERED
from sluice.buffer_service.route_batches import DIRECT, RouteBatches
from sluice.buffer_service.route_facts import Caller
from sluice.buffer_service.route_state import RouteState
from sluice.buffer_service.store import Limits
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Item

LIMITS = Limits()
ROUNDED = 1e-6  # s; ages are of single precision
RATES = [100, 200, 1000, 4000, 20_000]  # 1/s
SEEDS = [
    (6, 10, 174, 517, *range(200, 230)),
    pytest.param(range(230, 350), marks=pytest.mark.proof),
]  # those first found what was wrong once


class Came(NamedTuple):
    """A request: when (s), at which process, and its slack (s)."""

    at: float
    process: int
    slack: float


class Left(NamedTuple):
    """A batch: when (s), and which requests, by their place among all."""

    at: float
    requests: list[int]


class Case(NamedTuple):
    policy: Policy
    requests: list[Came]
    served_in: Callable[[int], float]  # s, by the size of a batch


class Agenda:
    """What happens when; what happens at one moment happens in the order in which it was put down."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Any]] = []
        self._serial = count()

    def put(self, at: float, what: Any) -> None:
        heapq.heappush(self._due, (at, next(self._serial), what))

    @property
    def next_at(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def due(self, now: float) -> list[Any]:
        due = []
        while self.next_at <= now:
            due.append(heapq.heappop(self._due)[2])
        return due


def drawn(seed: int, processes: int, tables: Callable[[random.Random], Policy], slacks: tuple[float, ...]) -> Case:
    rng = random.Random(seed)
    policy, rate, seconds = tables(rng), rng.choice(RATES), rng.choice([0.0012, 0.01, 0.02])
    at, requests = 1.0, []
    for _ in range(rng.randint(5, 80)):
        rate = rng.choice(RATES) if rng.random() < 0.2 else rate
        at += rng.expovariate(rate)
        requests.append(Came(at, rng.randrange(processes), rng.choice(slacks)))
    return Case(policy, requests, lambda size: seconds + 0.00013 * size)


def any_table(rng: random.Random) -> Policy:
    rows = rng.randint(1, 7)
    hold = [math.inf] + [rng.choice([math.inf, 0.0, 0.0, 0.0003, 0.0007, 0.002, 0.02]) for _ in range(rows - 1)]
    hold.append(rng.choice([0.0, 0.0005, 0.01]))
    take = [rng.randint(1, q) if hold[q] < math.inf else 0 for q in range(rows + 1)]
    return Policy(hold, take, rng.choice([None, None, None, 1, 2]))


def size_or_timeout(rng: random.Random) -> Policy:
    table = constructors.size_or_timeout(rng.randint(2, 8), rng.choice([0.0005, 0.002, 0.01, 0.03]))
    return replace(table, servers=rng.choice([None, 1, 1, 2, 3]))


def brought(case: Case, processes: int) -> list[Left]:
    """What leaves where states bring requests to a queue."""
    names = [f"process{i}" for i in range(processes)]
    route = Route("", "f", PolicyDocument.of(case.policy), 1.0)
    waiting: list[dict[str, Caller]] = [{} for _ in names]
    states = [RouteState("m", route, LIMITS, name, here, 1e6) for name, here in zip(names, waiting, strict=True)]
    queue, calls, agenda, left = QueueState(ArrivalRecord(), BatchRecord()), count(), Agenda(), list[Left]()
    for i, request in enumerate(case.requests):
        agenda.put(request.at, i)

    def turns(now: float) -> float:
        wake_at, again = math.inf, True
        while again:
            wake_at, again = math.inf, False
            for name, state in zip(names, states, strict=True):
                do = state.turn(now)
                for invocation in do.invoke:
                    if f":{DIRECT}:" in invocation.batch_id:
                        left.append(Left(now, [int(item.id[8:], 16) for item in invocation.items]))
                    agenda.put(now + case.served_in(len(invocation.items)), (state, invocation))
                for message in do.send:
                    state.sent(now, message)
                if do.call is not None:
                    if do.call.install is not None:
                        queue.install(do.call.install, "1")
                    outcome = queue.advance(name, next(calls), do.call.events, LIMITS, now)
                    left.extend(Left(now, [int(member_id(m)[8:], 16) for m in batch.members]) for batch in outcome.batches)
                    state.called(now, outcome)
                again = again or do.call is not None or bool(do.send)
                wake_at = min(wake_at, do.wake_at)
        return wake_at

    now = 0.0
    while (wake_at := turns(now)) < 6.0:
        now = min(agenda.next_at, wake_at)
        for what in agenda.due(now):
            if isinstance(what, int):
                request = case.requests[what]
                item = Item(f"{names[request.process]}{what:08x}", "application/json", b"1")
                told = Told(slack=request.slack) if request.slack else NOTHING_TOLD
                caller = waiting[request.process][item.id] = Caller(states[request.process].name, item, now, told)
                states[request.process].came(now, caller)
            else:
                state, invocation = what
                answers = [Answer(item.id, 200, "", b"") for item in invocation.items]
                state.served(now, invocation.batch_id, answers, invocation.part)
    return left


def told_at_once(case: Case) -> list[Left]:
    """What leaves where a batcher hears of everything as it happens."""
    batcher, agenda, left = Batcher[int](case.policy, lambda i: case.requests[i].slack), Agenda(), list[Left]()
    for i, request in enumerate(case.requests):
        agenda.put(request.at, i)
    wake_at = math.inf
    while (now := min(agenda.next_at, wake_at)) < 6.0:
        due = agenda.due(now)
        came = [what for what in due if what is not None]
        step = batcher.advance(now, came, completed=len(due) - len(came))
        for batch in step.batches:
            left.append(Left(now, list(batch)))
            agenda.put(now + case.served_in(len(batch)), None)
        wake_at = math.inf if step.wake_at is None else step.wake_at
    return left


@pytest.fixture(params=[route_arrivals.AVERAGED, 1.0], ids=["", "how fast they come is known from two"])
def averaged(request, monkeypatch):
    """So that batches fill at a process while the few of a case come."""
    monkeypatch.setattr(route_arrivals, "AVERAGED", request.param)


@pytest.mark.usefixtures("averaged")
@pytest.mark.parametrize("seeds", SEEDS, ids=["", "more"])
@pytest.mark.parametrize("slacks", [(0.0,), (0.0, 0.0, 0.03, -0.005)], ids=["nobody has a slack", "some have"])
def test_what_one_process_brings_leaves_as_if_the_queue_had_heard_of_each_when_he_came(slacks, seeds):
    for seed in seeds:
        case = drawn(seed, 1, any_table if seed % 2 else size_or_timeout, slacks)
        found, wanted = brought(case, 1), told_at_once(case)
        assert [batch.requests for batch in found] == [batch.requests for batch in wanted], seed
        assert [batch.at for batch in found] == pytest.approx([batch.at for batch in wanted], abs=ROUNDED), seed


def test_in_some_of_these_cases_a_batch_takes_the_place_of_one_that_has_ended(monkeypatch):
    places, taken = [], RouteBatches.take_directly

    def take_directly(self, now, callers, takes_place=False):
        places.append(takes_place)
        taken(self, now, callers, takes_place)

    monkeypatch.setattr(RouteBatches, "take_directly", take_directly)
    for seed in range(200, 210):
        brought(drawn(seed, 1, size_or_timeout, (0.0,)), 1)
    assert any(places)


@pytest.mark.usefixtures("averaged")
@pytest.mark.parametrize("seeds", SEEDS, ids=["", "more"])
@pytest.mark.parametrize("processes", [2, 3])
def test_what_several_processes_bring_leaves_soon_after_the_first_hold_is_over_and_a_server_free(processes, seeds):
    """Of who came first of all that had not left, as he is among the first to leave.

    But for who was gathered: whoever came after him elsewhere, and was brought before him, has the hold that counts.
    """
    for seed in seeds:
        case = drawn(seed, processes, size_or_timeout, (0.0,))
        found, servers = brought(case, processes), case.policy.servers or math.inf
        assert sorted(i for batch in found for i in batch.requests) == list(range(len(case.requests)))
        gathered = GATHERED if case.policy.servers else max(GATHERED, min(FILLED, case.policy.hold[1] / 2))
        ends: list[float] = []  # of all batches before
        for n, batch in enumerate(found):
            not_left = min(i for later in found[n:] for i in later.requests)
            free_at = sorted(ends)[-int(servers)] if len(ends) >= servers else 0.0
            due = max(case.requests[not_left].at + case.policy.hold[1], free_at)
            assert batch.at <= due + gathered + ROUNDED, (seed, batch)
            ends.append(batch.at + case.served_in(len(batch.requests)))
