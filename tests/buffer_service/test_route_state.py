"""The state of a route, fact by fact: no loop, no store, no function, and the time is a number."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from msgspec import structs

from sluice.batching import Policy
from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, PolicyDocument, Route
from sluice.batching.errors import Draining, QueueFull, StoreUnavailable
from sluice.buffer_service import route_life, route_state
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.arrival_record import ArrivalRecord
from sluice.buffer_service.batch_record import BROUGHT_EVERY, BROUGHT_WITHIN, BatchRecord
from sluice.buffer_service.batch_state import BatchState, Cause, Failure
from sluice.buffer_service.hold_lateness import LATEST, WEIGHT
from sluice.buffer_service.members import decode_member, encode_member, is_ticket, member_id, ticket_length
from sluice.buffer_service.queue_state import QueueState
from sluice.buffer_service.redis_servers import Away
from sluice.buffer_service.results import ADDRESS
from sluice.buffer_service.route_arrivals import FILLED, GATHERED, LARGEST_CALL
from sluice.buffer_service.route_batches import LEAST_OVERDUE, OVERDUE, RETRY, SENDINGS
from sluice.buffer_service.route_facts import TOLD, Caller
from sluice.buffer_service.route_instructions import NEVER, Hasten
from sluice.buffer_service.route_life import LIVES, Fact, Life
from sluice.buffer_service.route_state import SWEEPS, RouteState
from sluice.buffer_service.store import Events, Limits, Outcome, QueueLost, Released
from sluice.buffer_service.told import Told
from sluice.lambda_fn.contract import Answer, Item

HERE, THERE = "hereeeee", "thereeee"
LIMITS = Limits(max_queue_length=100, lease=6.0)
PATIENCE = 30.0
AWAY = StoreUnavailable("away")


class Bench:
    """A state, and whoever tells it facts."""

    def __init__(self, policy=None, route="", function="f", process=HERE, others=0, limits=LIMITS):
        """``others`` are requests of other processes that wait at the queue, past which nobody leaves."""
        self.process = process
        self.others = others
        self.waiting: dict[str, Caller] = {}
        self.route = Route(route, function, PolicyDocument.of(policy or constructors.greedy(4, servers=1)), 1.0)
        self.state = RouteState("m", self.route, limits, process, self.waiting, PATIENCE)

    def come(self, now, n=1):
        """So many requests; their ids."""
        callers = [self.caller(now) for _ in range(n)]
        for caller in callers:
            self.state.came(now, caller)
        return [caller.item.id for caller in callers]

    def caller(self, now):
        """One of whom the state was not told."""
        item = Item(f"{self.process}{len(self.waiting):08x}", "application/json", b"1")
        caller = self.waiting[item.id] = Caller(self.state.name, item, now)
        return caller

    def call(self, now):
        """The call of this turn, which there must be."""
        call = self.state.turn(now).call
        assert call is not None
        return call

    def begun(self):
        """Announced, at time 0, with nothing to do before the next sweep."""
        self.call(0.0)
        self.state.called(0.0, Outcome(queue_length=self.others, epoch="1"))
        assert self.state.turn(0.0).call is None
        return self

    def batch(self, now, n=2, batch_id="b1"):
        """So many requests come and leave as a batch; their ids, and the instructions."""
        ids = self.come(now, n)
        begun = self.state.turn(now)
        if begun.invoke:  # they left past the queue
            if begun.call is not None:
                self.state.called(now, Outcome(epoch="1"))
            return ids, begun
        members = list(begun.call.events.arrivals)
        self.state.called(now, Outcome(n, [Released(batch_id, members)], queue_length=self.others, epoch="1"))
        return ids, self.state.turn(now)


def answers(ids, status=200):
    return [Answer(request_id, status, "application/json", b"2") for request_id in ids]


# --- what the state is


STATES = [
    "route_state",
    "route_arrivals",
    "route_facts",
    "route_batches",
    "batch_state",
    "queue_state",
    "arrival_record",
    "batch_record",
    "members",
    "store",
    "admission",
    "circuit",
    "suspects",
    "function_state",
    "route_functions",
    "route_admission",
    "told",
    "slack_line",
    "api_keys",
    "route_instructions",
    "route_life",
    "idle_rounds",
    "results",
    "hold_lateness",
]


@pytest.mark.parametrize("name", [*STATES, "invokers/worker_health", "invokers/worker_pace"])
def test_a_state_imports_no_clock_no_loop_and_no_network(name):
    source = (Path(route_state.__file__).parent / f"{name}.py").read_text()
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert imported.isdisjoint({"asyncio", "time", "random", "secrets", "socket", "redis", "sluice.buffer_service.callers"})
    ours = {module.removeprefix("sluice.buffer_service.") for module in imported if module.startswith("sluice.buffer_service.")}
    assert "store" in ours or name not in {"route_state", "queue_state", "members"}
    assert ours <= {*STATES, "invokers.worker_pace"}


def test_the_table_of_lives_is_the_one_that_is_drawn():
    header, _, *rows = [line.split() for line in route_life.__doc__.split("    state  ")[1].split("\n\n")[0].splitlines()]
    assert header[:3] == ["retire", "nobody", "waits"]
    facts = [Fact.RETIRE, Fact.NOBODY_WAITS, Fact.FOLLOW, Fact.LEAVE, Fact.SAID_GOODBYE]
    drawn = {
        Life[name]: {fact: Life[then] for fact, then in zip(facts, cells, strict=False) if then != "-"} for name, *cells in rows
    }
    assert drawn == LIVES


@pytest.mark.parametrize(("life", "fact"), [(life, fact) for life in Life for fact in Fact if fact not in LIVES[life]])
def test_a_fact_that_is_not_in_the_row_of_the_state_is_an_error(life, fact):
    state = Bench().state
    state._facts._enter(life)
    with pytest.raises(KeyError):
        state._facts.live(fact)


def test_the_same_facts_give_the_same_instructions():
    def run():
        bench = Bench().begun()
        ids, first = bench.batch(0.1, 3)
        bench.state.served(0.2, "b1", answers(ids))
        return first, bench.state.turn(0.2)

    assert run() == run()


# --- asking the queue


def test_the_first_call_installs_the_table_and_announces_the_process():
    call = Bench(constructors.greedy(4, servers=1)).call(0.0)
    assert call.install.servers == 1 and call.install.drop_after == PATIENCE
    assert (call.events.arrivals, call.events.serving) == ([], [])


def test_one_call_takes_all_that_came_meanwhile_with_its_age():
    bench = Bench().begun()
    bench.come(1.0)
    first = bench.call(1.0)
    for now in (1.1, 1.2):
        bench.come(now)
        assert bench.state.turn(now).call is None  # one at a time
    bench.state.called(1.5, Outcome(1, epoch="1"))
    second = bench.call(1.5)
    assert (len(first.events.arrivals), first.events.ages) == (1, [0.0])
    assert second.events.ages == pytest.approx([0.4, 0.3])


def test_the_next_turn_is_due_when_the_queue_said_and_three_times_in_a_lease():
    bench = Bench()
    bench.call(0.0)
    bench.state.called(0.1, Outcome(wake_in=0.25, epoch="1"))
    assert bench.state.turn(0.1).wake_at == pytest.approx(0.35)
    assert bench.state.turn(0.3).call is None
    assert bench.call(0.36).events.serving is None
    bench.state.called(0.4, Outcome(epoch="1"))
    assert bench.state.turn(0.4).wake_at == LIMITS.lease / 3
    assert bench.call(LIMITS.lease / 3).events.serving == []


def left_late(bench, now, late, hold=0.1):
    """Two come, and their batch leaves so many seconds after the hold of the first is over; how early holds run from then on."""
    bench.come(now, 2)
    members, due = bench.call(now).events.arrivals, hold + min(late, 0.0)
    bench.state.called(now, Outcome(2, wake_in=due, queue_length=2, epoch="1"))
    assert bench.call(now + due).events.arrivals == []
    bench.state.called(now + hold + late + 1e-9, Outcome(0, [Released(f"b{now}", list(members))], epoch="1"))
    ids = [member_id(member) for member in members]
    bench.state.served(now + hold + late, f"b{now}", answers(ids))
    for request_id in ids:
        bench.waiting.pop(request_id)
    bench.come(now + 1)
    events = bench.call(now + 1).events
    bench.state.called(now + 1, Outcome(0, epoch="1"))
    bench.waiting.clear()
    return events.early


def test_holds_run_earlier_by_as_much_as_batches_leave_later_than_they_end():
    bench = Bench(constructors.size_or_timeout(4, 0.1), others=1).begun()
    early = 0.0
    for i in range(60):
        before, early = early, left_late(bench, 2.0 * i, (0.003 if i % 2 else 0.001) - early)
        assert early == pytest.approx(before + max(WEIGHT, 1 / (i + 1)) * ((0.003 if i % 2 else 0.001) - before), abs=1e-8)
    assert early == pytest.approx(0.002, abs=2e-4)
    assert left_late(bench, 200.0, 0.3) == left_late(bench, 202.0, -0.06) == early, (
        "what stood still, or no hold was met, tells nothing"
    )
    for i in range(60):
        early = left_late(bench, 300.0 + 2 * i, -0.003)
    assert early == 0.0, "nothing is held for longer than its table says"
    for i in range(60):
        early = left_late(bench, 500.0 + 2 * i, 0.03)
    assert early == LATEST, "who is so late has another trouble"


def test_no_hold_is_made_shorter_than_half_of_it_so_that_what_leaves_late_is_seen_again():
    bench = Bench(constructors.size_or_timeout(4, 0.003), others=1).begun()
    for i in range(30):
        early = left_late(bench, 2.0 * i, 0.004, hold=0.003)
    assert early == 0.0015
    for i in range(60):
        early = left_late(bench, 100.0 + 2.0 * i, -0.0014, hold=0.003)
    assert early == 0.0


def test_of_tables_that_say_nothing_of_holds_nothing_is_made_up_for():
    bench = Bench(constructors.size_or_timeout(4, 0.1), others=1).begun()
    assert left_late(bench, 2.0, 0.003) == pytest.approx(0.003, abs=1e-8)
    holds = constructors.size_or_timeout(4, 0.1)
    for now, policy in ((10.0, replace(holds, servers=2)), (20.0, holds)):
        bench.state.follow(now, structs.replace(bench.route, policy=PolicyDocument.of(policy)))
        bench.state.called(now, Outcome(epoch="1")) if bench.state.turn(now).call else None
        bench.come(now + 1)
        assert bench.call(now + 1).events.early == 0.0
        bench.state.called(now + 1, Outcome(1, epoch="1"))
        bench.waiting.clear()


def test_whose_batch_leaves_as_it_is_full_or_as_others_come_says_nothing_of_how_late_holds_end():
    bench = Bench(constructors.size_or_timeout(4, 0.1), others=1).begun()
    bench.batch(1.0, 4)  # full
    bench.come(2.0, 2)
    first = bench.call(2.0).events.arrivals
    bench.state.called(2.0, Outcome(2, wake_in=0.1, queue_length=2, epoch="1"))
    bench.come(2.2)
    second = bench.call(2.2).events
    bench.state.called(2.2, Outcome(1, [Released("b2", [*first, *second.arrivals])], epoch="1"))
    bench.come(3.0)
    assert second.early == bench.call(3.0).events.early == 0.0


def test_who_comes_while_every_server_has_a_batch_of_this_process_is_brought_by_the_call_that_ends_it():
    bench = Bench(constructors.greedy(4, servers=1)).begun()
    ids, _ = bench.batch(0.1)
    late = bench.come(0.11, 2)
    assert not bench.state.due(0.11) and bench.state.turn(0.11).call is None
    assert bench.state.asks_at == 0.1 + FRESH
    bench.state.served(0.112, "b1", answers(ids))
    events = bench.call(0.112).events
    assert events.completed == ["b1"] and events.ages == pytest.approx([0.002] * 2)
    assert list(map(member_id, events.arrivals)) == late


def test_where_such_a_batch_lasts_he_is_brought_soon_all_the_same_so_that_others_see_who_waits():
    bench = Bench(constructors.greedy(4, servers=1)).begun()
    bench.batch(0.1)
    bench.come(0.11)
    assert bench.state.turn(0.115).wake_at == 0.1 + FRESH
    assert len(bench.call(0.1 + FRESH).events.arrivals) == 1
    bench.state.called(0.13, Outcome(1, queue_length=1, epoch="1"))
    bench.come(0.2)
    assert bench.state.due(0.2)


def test_nobody_waits_beyond_his_hold_for_one_who_came_after_him_at_another_process():
    hold, left = 0.1, {}
    policy = replace(constructors.size_or_timeout(4, hold), servers=1)
    benches = {process: Bench(policy, process=process) for process in (HERE, THERE)}
    queue, calls = QueueState(ArrivalRecord(), BatchRecord()), count()

    def turns(now, end):
        while now <= end:
            for process, bench in benches.items():
                while (call := bench.state.turn(now).call) is not None:
                    if call.install is not None:
                        queue.install(call.install, "1")
                    outcome = queue.advance(process, next(calls), call.events, LIMITS, now)
                    left.update({member_id(member): now for batch in outcome.batches for member in batch.members})
                    bench.state.called(now, outcome)
            now = min(bench.state.asks_at for bench in benches.values())

    turns(0.0, 0.9)
    first = benches[HERE].come(1.0)
    turns(1.0, 1.11)  # he left when his hold was over, and the server has his batch
    [waits] = benches[HERE].come(1.11)
    turns(1.11, 1.115)
    benches[THERE].come(1.115)
    turns(1.115, 1.12)
    [batch_id] = benches[HERE].state._batches.under_way
    benches[HERE].state.served(1.12, batch_id, answers(first))
    turns(1.12, 1.5)
    assert left[waits] <= 1.11 + hold + GATHERED


def test_who_comes_while_every_server_has_a_batch_is_brought_soon_where_holds_are_spans_of_time():
    bench = Bench(replace(constructors.size_or_timeout(4, 0.1), servers=1)).begun()
    bench.batch(0.1, 4)
    for i in range(3):
        bench.come(0.11 + i / 10_000)
        assert bench.state.turn(0.11 + i / 10_000).wake_at == pytest.approx(0.11 + GATHERED)
    assert len(bench.call(0.11 + GATHERED).events.arrivals) == 3


def test_he_is_brought_at_once_where_a_batch_may_leave_with_him():
    bench = Bench(constructors.greedy(4, 2)).begun()
    bench.batch(0.1)
    bench.come(0.1 + GATHERED / 2)
    assert bench.state.due(0.1 + GATHERED / 2)
    assert len(bench.call(0.1 + GATHERED / 2).events.arrivals) == 1


# --- who leaves past the queue


def test_who_came_leaves_past_the_queue_where_that_would_release_him_at_once_and_it_hears_of_it_soon():
    bench = Bench(constructors.size_or_timeout(3, 0.1)).begun()
    ids = bench.come(0.1, 7)
    now = bench.state.turn(0.1)
    assert now.call is None and [[item.id for item in each.items] for each in now.invoke] == [ids[:3], ids[3:6]]
    assert [bench.waiting[i].batch_size for i in ids] == [3] * 6 + [0] and now.wake_at == pytest.approx(0.1 + GATHERED)
    call = bench.call(0.1 + GATHERED).events  # the last of them is brought, and the others told of
    assert [member_id(member) for member in call.arrivals] == ids[6:] and call.direct == pytest.approx([GATHERED] * 6)
    bench.state.called(0.11, Outcome(1, queue_length=1, wake_in=0.09, epoch="1"))
    for batch in now.invoke:
        bench.state.served(0.12, batch.batch_id, answers([item.id for item in batch.items]))
    assert [answer.id for answer in bench.state.turn(0.12).tell] == ids[:6]
    ended = bench.call(0.12 + BROUGHT_WITHIN).events
    assert ended.completed == [] and [batch.size for batch in ended.measured] == [3, 3] and ended.direct == []


def test_a_full_batch_leaves_while_a_call_that_brings_nobody_is_under_way_and_not_while_another_is():
    bench = Bench(constructors.size_or_timeout(3, 0.1)).begun()
    bench.come(0.1, 3)
    assert len(bench.state.turn(0.1).invoke) == 1
    told = bench.call(0.1 + FRESH).events
    assert (len(told.direct), told.arrivals) == (3, [])
    assert bench.state.came(0.1 + FRESH, caller := bench.caller(0.1 + FRESH)) == NEVER  # with whom a batch is not full
    bench.come(0.1 + FRESH, 1)
    assert bench.state.turn(0.1 + FRESH).invoke == []
    assert bench.state.came(0.1 + FRESH, bench.caller(0.1 + FRESH)) <= 0.1 + FRESH
    (left,) = bench.state.turn(0.1 + FRESH).invoke
    assert len(left.items) == 3 and left.items[0] is caller.item
    bench.state.called(0.13, Outcome(epoch="1"))
    assert len(bench.call(0.1 + 2 * FRESH).events.direct) == 3  # who left meanwhile
    bench.state.called(0.15, Outcome(epoch="1"))
    bench.come(0.2)
    assert len(bench.call(0.2 + GATHERED).events.arrivals) == 1
    bench.come(0.2 + GATHERED, 3)  # perhaps one waits at the queue, whose batch this is
    assert bench.state.turn(0.2 + GATHERED).invoke == []


def taken_over(alone=True, came=3, waits=0, ejected=0, policy=None):
    """A process whose batch of two has ended, so many came meanwhile, and its ids; it is told of before any call."""
    bench = Bench(policy or constructors.greedy(4, servers=1))
    bench.call(0.0)
    bench.state.called(0.0, Outcome(epoch="1", alone=alone))
    ids, begun = bench.batch(0.1, batch_id="b1")
    if waits:
        bench.come(0.11, waits)
        bench.call(0.1 + FRESH)
        bench.state.called(0.1 + FRESH, Outcome(waits, queue_length=waits, epoch="1"))
    came = bench.come(0.15, came)
    bench.state._arrivals.ejected = ejected
    bench.state.served(0.2, begun.invoke[0].batch_id, answers(ids))
    return bench, came


def alone_at_work():
    """A process that is alone and has one batch under way, and no other; the ids of its members, and the instructions."""
    bench, _ = taken_over(came=0)
    bench.call(0.2)
    bench.state.called(0.2, Outcome(epoch="1", alone=True))
    return bench, *bench.batch(0.3, batch_id="b2")


def test_where_a_process_is_alone_who_came_takes_the_place_of_a_batch_that_ended_and_the_queue_hears_of_it():
    bench, came = taken_over()
    assert bench.state.may_leave
    begun = bench.state.turn(0.2, may_call=False)
    assert [item.id for item in begun.invoke[0].items] == came
    assert [bench.waiting[i].batch_size for i in came] == [3] * 3
    told = bench.call(0.2).events
    assert (told.completed, told.arrivals) == ([], []) and told.direct == pytest.approx([0.05] * 3)
    bench.state.called(0.201, Outcome(epoch="1"))
    swept_at = LIMITS.lease / SWEEPS
    assert bench.call(swept_at).events.serving == ["b1"]
    bench.state.called(swept_at, Outcome(epoch="1", alone=True))
    bench.come(swept_at)
    bench.state.served(2.1, begun.invoke[0].batch_id, answers(came))
    (last,) = bench.state.turn(2.1, may_call=False).invoke  # in the same place
    bench.call(2.1)
    bench.state.called(2.1, Outcome(epoch="1"))
    bench.state.served(2.2, last.batch_id, answers([item.id for item in last.items]))
    assert bench.call(2.2).events.completed == ["b1"]


def test_who_comes_in_the_round_in_which_a_batch_ended_takes_its_place():
    bench, _ = taken_over(came=0)
    bench.state.turn(0.2, may_call=False)
    assert bench.state.came(0.2, bench.caller(0.2)) <= 0.2 and bench.state.may_leave
    assert len(bench.state.turn(0.2, may_call=False).invoke) == 1


@pytest.mark.parametrize(
    "why_not",
    [
        {"alone": False},
        {"came": 5},  # of whom one would wait
        {"waits": 1},
        {"policy": Policy([math.inf, math.inf, math.inf, math.inf, 0.0], (0, 0, 0, 0, 4), servers=1)},
        {"policy": constructors.size_or_timeout(4, 0.2)},  # no server is waited for
    ],
    ids=["others were heard of", "more came than leave", "one waits at the queue", "a hold", "elastic"],
)
def test_nobody_takes_the_place_of_a_batch_where(why_not):
    bench, _ = taken_over(**why_not)
    assert bench.state.turn(0.2).invoke == []


@pytest.mark.parametrize(("ejected", "taken"), [(0, 1), (1, 0)])
def test_an_ejected_worker_is_a_server_less_for_who_takes_the_place_of_a_batch(ejected, taken):
    bench, _ = taken_over(came=0, policy=constructors.greedy(4, servers=2), ejected=ejected)
    bench.state._batches.under_way["b0"] = BatchState([], [], "1", 0.1)
    bench.come(0.2)
    assert len(bench.state.turn(0.2, may_call=False).invoke) == taken


def test_nobody_takes_a_place_in_a_queue_that_was_lost():
    bench, ids, begun = alone_at_work()
    bench.call(LIMITS.lease / SWEEPS)
    bench.state.served(2.01, begun.invoke[0].batch_id, answers(ids))
    bench.state.called(2.02, Outcome(epoch="2", alone=True))
    bench.come(2.02)
    assert bench.state.turn(2.02, may_call=False).invoke == []
    assert bench.call(2.02).events.completed == ["b2"]  # which a replica that took over may have


def test_nobody_takes_a_place_longer_than_a_lease_after_a_sweep_as_others_may_have_taken_the_batch_back():
    bench, ids, begun = alone_at_work()
    bench.state.served(LIMITS.lease + 0.1, begun.invoke[0].batch_id, answers(ids))
    bench.come(LIMITS.lease + 0.1)
    assert bench.state.turn(LIMITS.lease + 0.1, may_call=False).invoke == []


def test_nobody_takes_the_place_of_a_batch_of_the_last_life_of_a_queue():
    bench, ids, begun = alone_at_work()
    bench.call(LIMITS.lease / SWEEPS)
    bench.state.called(2.0, Outcome(epoch="2", alone=True))
    bench.state.served(2.1, begun.invoke[0].batch_id, answers(ids))
    bench.come(2.1)
    assert bench.state.turn(2.1, may_call=False).invoke == []


def test_what_was_measured_just_after_a_call_brought_some_is_brought_soon_though_nobody_comes_any_more():
    bench = Bench(constructors.greedy(1, servers=1)).begun()
    for batch, (came, ended) in enumerate([(1.0, 1.1), (1.1, 1.1 + BROUGHT_EVERY / 2)]):
        ids, begun = bench.batch(came, 1, f"b{batch}")
        bench.state.served(ended, begun.invoke[0].batch_id, answers(ids))
        told = bench.call(ended)
        assert told.events.completed == [f"b{batch}"] and len(told.events.measured) == (batch == 0)
        bench.state.called(ended, Outcome(epoch="1"))
    assert bench.state.turn(ended).wake_at == pytest.approx(ended + BROUGHT_WITHIN)
    assert [batch.size for batch in bench.call(ended + BROUGHT_WITHIN).events.measured] == [1]


@pytest.mark.parametrize(
    "policy", [constructors.greedy(2, servers=1), replace(constructors.size_or_timeout(2, 0.1), servers=3)], ids=lambda p: p.kind
)
def test_nobody_leaves_past_a_queue_whose_servers_are_shared(policy):
    bench = Bench(policy).begun()
    bench.come(0.1, 2)
    assert len(bench.call(0.1).events.arrivals) == 2


def test_nobody_leaves_past_one_who_waits_at_the_queue_nor_while_it_is_asked_or_away():
    bench = gathering(constructors.size_or_timeout(2, 0.1))
    bench.come(1.0002, 2)
    assert len(bench.call(1.0002).events.arrivals) == 2
    bench.come(1.0003, 2)
    assert bench.state.turn(1.0003).invoke == []  # a call is under way
    bench.state.called(1.001, StoreUnavailable("away"))
    assert len(bench.call(1.001).events.arrivals) == 2
    bench.state.called(1.002, Outcome(2, queue_length=0, epoch="1"))
    bench.come(1.003, 2)
    assert [len(each.items) for each in bench.state.turn(1.003).invoke] == [2]


def test_nobody_leaves_past_the_queue_that_drops_who_came_as_long_ago():
    bench = Bench(replace(constructors.size_or_timeout(2, 0.1), drop_after=0.5)).begun()
    bench.come(1.0)
    bench.call(1.0)
    bench.come(1.01, 2)
    bench.state.called(1.02 + 0.5, Outcome(1, queue_length=0, epoch="1"))  # which took its time
    begun = bench.state.turn(1.02 + 0.5)
    assert begun.invoke == [] and begun.call is not None and begun.call.events.ages == pytest.approx([0.51, 0.51])


def test_nobody_leaves_past_a_queue_that_was_not_heard_of_yet():
    bench = Bench(constructors.no_batching())
    bench.come(0.0)
    assert len(bench.call(0.0).events.arrivals) == 1


def test_a_request_whose_answer_is_kept_takes_the_way_through_the_queue_so_that_others_can_serve_it():
    bench = Bench(constructors.no_batching()).begun()
    item = Item(f"{HERE}kept0000", "application/json", b"1", {ADDRESS: "m/k1/00"})
    caller = bench.waiting[item.id] = Caller(bench.state.name, item, 0.1)
    bench.state.came(0.1, caller)
    assert len(bench.call(0.1).events.arrivals) == 1


@pytest.mark.parametrize("told", [Told(slack=0.1), Told(slack=-0.1), Told(size=3.0)], ids=str)
def test_who_has_a_slack_or_a_size_takes_the_way_through_the_queue_and_others_later_need_not(told):
    bench = Bench(constructors.no_batching()).begun()
    item = Item(f"{HERE}told0000", "application/json", b"1")
    caller = bench.waiting[item.id] = Caller(bench.state.name, item, 0.1, told)
    bench.state.came(0.1, caller)
    members = list(bench.call(0.1).events.arrivals)
    bench.state.called(0.1, Outcome(1, [Released("b1", members)], epoch="1"))
    bench.state.turn(0.1)
    ids = bench.come(0.2)
    assert [[item.id for item in each.items] for each in bench.state.turn(0.2).invoke] == [ids]


def test_who_left_past_the_queue_of_a_route_that_is_retired_moves_on_as_others_do():
    bench = Bench(constructors.greedy(2, servers=None), route="a").begun()
    ids, begun = bench.batch(0.1)
    bench.state.retire(0.2)
    bench.call(0.2)
    bench.state.called(0.21, Outcome(epoch="1"))
    bench.state.served(0.3, begun.invoke[0].batch_id, Failure(Cause.UNAVAILABLE, "gone"))
    [move] = bench.state.turn(0.3).move
    assert [decode_member(member).id for member in move.members] == ids  # whole requests, which the other queue keeps
    bench.state.moved(0.4, move, StoreUnavailable("away"))
    assert [member_id(member) for member in bench.call(0.4).events.arrivals] == ids  # nobody else has them


@pytest.mark.parametrize("kept", [0, 100], ids=["nothing is measured", "batches are measured"])
def test_a_retired_route_is_drained_as_soon_as_the_last_batch_that_left_past_the_queue_has_ended(kept):
    bench = Bench(constructors.greedy(2, servers=None), route="a", limits=replace(LIMITS, batches_kept=kept)).begun()
    ids, begun = bench.batch(0.1)
    bench.state.retire(0.2)
    bench.call(0.2)
    bench.state.called(0.21, Outcome(epoch="1"))
    bench.state.served(0.3, begun.invoke[0].batch_id, answers(ids))
    bench.call(0.3)
    bench.state.called(0.31, Outcome(epoch="1"))
    assert bench.state.turn(0.31).drained


def served_by(function, policy=None):
    """A bench whose function answered a batch within 0.5 s, and has another since 1.0."""
    bench = Bench(policy or constructors.greedy(4, servers=1), function=function).begun()
    ids, begun = bench.batch(0.1, batch_id="b1")
    bench.state.served(0.6, begun.invoke[0].batch_id, answers(ids))
    bench.call(0.6)
    bench.state.called(0.6, Outcome(epoch="1"))
    _, begun = bench.batch(1.0, batch_id="b2")
    [invocation] = begun.invoke
    bench.state.turn(1.0)
    return bench, invocation


def now_at(bench, now, function):
    """What is done once the route has this function."""
    bench.state.follow(now, structs.replace(bench.route, function=function))
    return bench.state.turn(now, may_call=False).hasten


def test_a_batch_at_a_worker_that_the_plan_has_no_more_is_given_up_when_it_is_overdue_and_another_is_asked():
    bench, invocation = served_by("http://a,http://b")
    assert now_at(bench, 1.5, "http://b") == [Hasten(invocation.batch_id, invocation.part, 1.0 + OVERDUE * 0.5)]
    bench.state.served(3.0, invocation.batch_id, Failure(Cause.UNAVAILABLE, "given up"), invocation.part)
    [again] = bench.state.turn(3.0, may_call=False).invoke
    assert (again.batch_id, again.function, again.items) == (invocation.batch_id, "http://b", invocation.items)


def test_a_batch_of_a_route_that_the_plan_has_no_more_is_given_up_when_it_is_overdue():
    bench, invocation = served_by("http://a")
    bench.state.retire(1.5)
    [hasten] = bench.state.turn(1.5, may_call=False).hasten
    assert hasten == (invocation.batch_id, invocation.part, 1.0 + OVERDUE * 0.5)


def test_what_a_route_that_the_plan_has_no_more_asks_for_in_smaller_parts_is_given_up_when_it_is_overdue():
    bench, invocation = served_by("http://a")
    bench.state.retire(1.5)
    bench.state.turn(1.5, may_call=False)
    bench.state.served(1.6, invocation.batch_id, Failure(Cause.TOO_LARGE, "too large"), invocation.part)
    turn = bench.state.turn(1.6, may_call=False)
    assert len(turn.invoke) == len(turn.hasten) == 1
    assert turn.hasten[0] == (invocation.batch_id, turn.invoke[0].part, pytest.approx(1.6 + OVERDUE * 0.5))


def test_a_batch_at_workers_beside_others_that_the_plan_has_alone_now_is_given_up_when_it_is_overdue():
    bench = Bench(function="http://a")
    alone, beside = bench.route, Beside("http://b", bench.route.policy)
    bench.route = structs.replace(alone, beside=[beside])
    bench.state = RouteState("m", bench.route, LIMITS, HERE, bench.waiting, PATIENCE)
    bench.begun()
    ids, begun = bench.batch(0.1, batch_id="b1")
    bench.state.served(0.6, begun.invoke[0].batch_id, answers(ids))
    bench.call(0.6)
    bench.state.called(0.6, Outcome(epoch="1"))
    bench.come(1.0, 2)
    members = list(bench.call(1.0).events.arrivals)
    bench.state.called(1.0, Outcome(0, [Released("p:1:0:1", members)], epoch="1"))
    [invocation] = bench.state.turn(1.0).invoke
    assert invocation.function == "http://b"
    bench.state.follow(1.5, alone)
    [hasten] = bench.state.turn(1.5, may_call=False).hasten
    assert hasten == (invocation.batch_id, invocation.part, 1.0 + OVERDUE * 0.5)


@pytest.mark.parametrize(
    ("function", "policy"), [("f", None), ("http://a", constructors.greedy(4, servers=None)), ("sagemaker://e", None)]
)
def test_no_batch_is_given_up_that_takes_no_server_of_those_that_are_left_or_that_a_platform_ends(function, policy):
    bench, _ = served_by(function, policy)
    assert now_at(bench, 1.5, "http://b") == []


def test_no_batch_is_given_up_whose_worker_is_in_the_plan_or_while_nobody_knows_how_long_batches_take():
    for function in ("http://a", "http://a,http://c"):
        bench, _ = served_by("http://a")
        assert now_at(bench, 1.5, function) == []
    bench = Bench(function="http://a").begun()
    bench.batch(0.1)
    assert now_at(bench, 1.5, "http://b") == []


def test_a_batch_whose_worker_is_back_in_the_plan_before_it_is_overdue_is_waited_for_as_before():
    bench, (batch_id, _, _, _, part, *_) = served_by("http://a")
    assert now_at(bench, 1.5, "http://b") == [Hasten(batch_id, part, 1.0 + OVERDUE * 0.5)]
    assert now_at(bench, 1.6, "http://c") == []  # it is known
    assert now_at(bench, 1.7, "http://a") == [Hasten(batch_id, part, NEVER)]


def test_who_takes_milliseconds_has_a_second_all_the_same():
    bench, invocation = served_by("http://a")
    ids = [item.id for item in invocation.items]
    for n in range(500):  # what took long is forgotten
        bench.state.served(1.0, invocation.batch_id, answers(ids), invocation.part)
        bench.call(1.0)
        bench.state.called(1.0, Outcome(epoch="1"))
        ids, begun = bench.batch(1.0, batch_id=f"c{n}")
        [invocation] = begun.invoke
    [hasten] = now_at(bench, 1.2, "http://b")
    assert hasten.until == 1.0 + LEAST_OVERDUE


def test_who_left_past_the_queue_and_waits_no_more_is_not_looked_for_there():
    bench = Bench(constructors.no_batching()).begun()
    [request_id], _ = bench.batch(0.1, 1)
    bench.call(0.1 + FRESH)
    bench.state.called(0.1 + FRESH, Outcome(epoch="1"))
    assert not bench.state.gone(0.2, bench.waiting.pop(request_id))
    assert bench.state.turn(0.2).call is None and not bench.state._gone


def test_a_large_body_that_left_past_the_queue_of_a_route_that_is_retired_moves_on_as_a_ticket():
    bench = Bench(constructors.no_batching(), route="a")
    bench.call(0.0)
    bench.state.called(0.0, Outcome(epoch="1", all_lend=True))
    bench.state.turn(0.0)
    item = Item(f"{HERE}{0:08x}", "application/json", b"1" * (LIMITS.carried + 1))
    caller = bench.waiting[item.id] = Caller(bench.state.name, item, 0.1)
    bench.state.came(0.1, caller)
    [invocation] = bench.state.turn(0.1).invoke
    bench.state.retire(0.2)
    bench.state.served(0.3, invocation.batch_id, Failure(Cause.UNAVAILABLE, "gone"))
    [move] = bench.state.turn(0.3).move
    assert [is_ticket(member) for member in move.members] == [True] and ticket_length(move.members[0]) == len(item.body)


def test_who_leaves_has_his_lease_as_long_as_a_batch_that_left_past_the_queue_is_under_way():
    bench, queue = Bench(constructors.no_batching()), QueueState(ArrivalRecord(), BatchRecord())
    queue.install(constructors.no_batching(), "1")

    def call(now):
        outcome = queue.advance(HERE, int(1000 * now), bench.call(now).events, LIMITS, now)
        bench.state.called(now, outcome)
        return bench.state.turn(now)

    call(0.0)
    queue.advance(THERE, 0, Events(serving=[]), LIMITS, 0.0)
    bench.come(0.1)
    assert len(bench.state.turn(0.1).invoke) == 1
    bench.state.leave(0.2)
    for sweep in range(1, 4):
        call(sweep * LIMITS.lease / SWEEPS)
        queue.advance(THERE, sweep, Events(serving=[]), LIMITS, sweep * LIMITS.lease / SWEEPS)
    bench.come(6.1)  # which he takes while he ends, and through the queue
    [invocation] = call(6.1).invoke
    queue.advance(THERE, 9, Events(serving=[]), LIMITS, 6.2)
    assert list(queue.in_flight) == [invocation.batch_id]  # nobody took it back


def test_what_a_process_does_not_tell_the_queue_of_at_once_it_tells_before_it_ends():
    bench = Bench(constructors.no_batching()).begun()
    ids, begun = bench.batch(0.1, 1)
    bench.state.leave(0.101)
    assert not bench.state.turn(0.101).closed
    bench.state.served(0.11, begun.invoke[0].batch_id, answers(ids))
    for answer in (told := bench.state.turn(0.11)).tell:
        bench.waiting.pop(answer.id)
    goodbye = (told.call or bench.call(0.111)).events
    assert goodbye.leaving and len(goodbye.direct) == 1


def gathering(policy, queue_length=1, wake_in=0.1):
    """Someone came to the queue at time 1, and so many wait there."""
    bench = Bench(policy).begun()
    bench.come(1.0)
    bench.call(1.0)
    bench.state.called(1.0, Outcome(1, wake_in=wake_in, queue_length=queue_length, epoch="1"))
    assert bench.state.turn(1.0).call is None
    return bench


def test_who_comes_soon_after_another_is_brought_with_those_who_follow_and_at_once_when_a_batch_is_full():
    bench = gathering(constructors.size_or_timeout(4, 0.1))
    for i in (1, 2):
        bench.come(1.0 + i / 10_000)
        assert bench.state.turn(1.0 + i / 10_000).wake_at == pytest.approx(1.0001 + GATHERED)
    bench.come(1.0003)
    assert len(bench.call(1.0003).events.arrivals) == 3


def test_whoever_is_gathered_is_brought_when_the_first_of_them_has_waited_for_so_long():
    bench = gathering(constructors.size_or_timeout(4, 0.1))
    bench.come(1.0001)
    call = bench.call(1.0001 + GATHERED)
    assert call.events.ages == pytest.approx([GATHERED])


def test_who_comes_alone_is_brought_at_once():
    bench = gathering(constructors.size_or_timeout(4, 0.1))
    bench.come(1.01)
    assert bench.state.due(1.01)


def test_nobody_is_gathered_beyond_the_hold_of_who_leaves_first():
    short = constructors.size_or_timeout(4, GATHERED / 2)
    bench = gathering(short, 0, None)  # nobody waits: the hold is that of the first who is gathered
    bench.come(1.0 + GATHERED / 4)
    assert bench.state.asks_at == pytest.approx(1.0 + 3 * GATHERED / 4)
    shorter_with_each = Policy([math.inf, 0.1, 0.0006, 0.0004, 0.0], (0, 1, 2, 3, 4))
    bench = gathering(shorter_with_each, 1, 0.1)
    bench.come(1.0001)
    assert bench.state.asks_at == pytest.approx(1.0006)
    bench.come(1.0002)
    assert bench.state.asks_at == pytest.approx(1.0004)


def test_nobody_is_gathered_beyond_his_own_hold_where_who_waits_is_patient():
    hold, slack = 0.1, 10.0  # another process's caller waits, and may do so for long
    bench = gathering(constructors.size_or_timeout(3, hold), 2, hold + slack)
    bench.come(1.0001)
    assert bench.state.due(1.0001)  # three are a batch, whose hold of 0 is over for everybody
    bench = gathering(constructors.size_or_timeout(4, GATHERED / 2), 1, GATHERED / 2 + slack)
    bench.come(1.0001)
    assert bench.state.asks_at == pytest.approx(1.0001 + GATHERED / 2)


def test_nobody_is_gathered_where_it_is_not_known_whose_hold_ends_first():
    bench = gathering(constructors.size_or_timeout(4, 0.1), 1, None)  # as where batches of others had all servers
    bench.come(1.0001)
    assert bench.state.due(1.0001)
    bench = gathering(constructors.size_or_timeout(4, 0.1))
    item = Item(f"{HERE}late0000", "application/json", b"1")
    caller = bench.waiting[item.id] = Caller(bench.state.name, item, 1.0001, Told(slack=-0.05))
    bench.state.came(1.0001, caller)
    assert bench.state.due(1.0001)


def test_who_came_while_a_call_was_under_way_is_gathered_by_what_it_was_answered():
    bench = Bench(constructors.size_or_timeout(4, 0.1)).begun()
    bench.come(1.0)
    bench.call(1.0)
    bench.come(1.0002, 3)
    bench.state.called(1.0003, Outcome(1, wake_in=0.1, queue_length=1, epoch="1"))
    assert len(bench.call(1.0003).events.arrivals) == 3  # a batch is full with them
    bench.come(1.0004)
    bench.state.called(1.0005, Outcome(3, wake_in=None, queue_length=0, epoch="1"))
    assert bench.state.turn(1.0005).wake_at == pytest.approx(1.0004 + GATHERED)


def filling(waited=0, hold=0.1, policy=None):
    """Requests came so fast, up to time 1, that batches of 4 filled here; at the queue so many of others wait."""
    bench = Bench(policy or constructors.size_or_timeout(4, hold), others=waited).begun()
    for i in range(0, 800, 4):
        came = 1.0 + (i - 800) / 10_000
        ids = bench.come(came, 4)
        done = bench.state.turn(came)
        if done.call is not None:
            bench.state.called(came, Outcome(len(done.call.events.arrivals), queue_length=waited, wake_in=1.0, epoch="1"))
        for batch in done.invoke:
            bench.state.served(came, batch.batch_id, answers([item.id for item in batch.items]))
        for request_id in ids:
            bench.waiting.pop(request_id)
    bench.call(1.0 + BROUGHT_WITHIN)
    bench.state.called(1.0 + BROUGHT_WITHIN, Outcome(queue_length=waited, wake_in=1.0 if waited else None, epoch="1"))
    return bench


@pytest.mark.parametrize(("hold", "gathered"), [(0.1, FILLED), (0.003, 0.0015)])
def test_where_batches_fill_here_who_comes_waits_for_that_for_a_while_and_is_brought_then(hold, gathered):
    bench = filling(hold=hold)
    bench.come(1.2)  # alone
    assert bench.state.turn(1.2).wake_at == pytest.approx(1.2 + gathered)
    bench.come(1.2 + gathered / 2, 2)
    assert bench.state.turn(1.2 + gathered / 2).call is None
    call = bench.call(1.2 + gathered)
    assert len(call.events.arrivals) == 3


def test_where_batches_fill_here_a_call_brings_who_leaves_with_those_who_wait_and_the_others_fill_the_next():
    bench = filling(waited=2)
    bench.come(1.2, 5)
    assert [member_id(member)[8:] for member in bench.call(1.2).events.arrivals] == ["00000000", "00000001"]
    bench.state.called(1.2, Outcome(2, queue_length=0, epoch="1"))
    assert bench.state.turn(1.2).wake_at == pytest.approx(1.2 + FILLED)
    bench.come(1.201)
    left = bench.state.turn(1.201)
    assert [len(batch.items) for batch in left.invoke] == [4] and left.call is None


def test_where_batches_fill_here_a_call_for_what_ended_brings_nobody_who_would_only_wait():
    bench = filling()
    ids = bench.come(1.2, 4)
    (batch,) = bench.state.turn(1.2).invoke
    bench.state.served(1.201, batch.batch_id, answers(ids))
    bench.come(1.2 + FRESH - 0.001, 3)
    told = bench.call(1.2 + FRESH).events
    assert (len(told.direct), told.arrivals) == (4, [])
    bench.state.called(1.2 + FRESH, Outcome(epoch="1"))
    assert bench.state.turn(1.2 + FRESH).wake_at == pytest.approx(1.2 + FRESH - 0.001 + FILLED)


def test_where_batches_fill_here_all_are_brought_when_a_hold_ends_at_the_queue_as_the_row_may_hold_longer_with_them():
    bench = filling(waited=1, policy=Policy([math.inf, 0.95, 2.0, 2.0, 0.0], (0, 1, 2, 3, 4)))
    wakes_at = 1.0 + BROUGHT_WITHIN + 1.0
    bench.come(wakes_at - 0.001)
    assert len(bench.call(wakes_at).events.arrivals) == 1


def test_where_batches_fill_here_all_are_brought_where_fewer_would_leave_in_other_batches():
    bench = filling(waited=1, policy=Policy([math.inf, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0], (0, 1, 2, 3, 4, 4, 3)))
    bench.come(1.2, 5)  # of six at the queue three leave, of three nobody
    assert len(bench.call(1.2).events.arrivals) == 5


def test_where_batches_fill_here_and_a_call_failed_who_came_meanwhile_is_brought_by_the_next_at_once_and_told():
    bench = filling()
    bench.come(1.2)
    bench.call(1.2 + FILLED)
    bench.come(1.2 + FILLED + 0.0001)
    bench.state.called(1.2 + FILLED + 0.0002, AWAY)
    assert len(bench.call(1.2 + FILLED + 0.0002).events.arrivals) == 1


def test_a_batch_of_an_elastic_function_that_ended_is_reported_by_the_next_call_and_soon():
    bench = gathering(constructors.size_or_timeout(2, 0.1))
    ids = bench.come(1.0001)
    members = list(bench.call(1.0001).events.arrivals)
    bench.state.called(1.0001, Outcome(1, [Released("b1", members)], epoch="1"))
    bench.state.turn(1.0001)
    bench.state.served(1.1, "b1", answers(ids))
    assert bench.state.turn(1.1).wake_at == pytest.approx(1.1 + FRESH)
    bench.come(1.11)
    assert bench.call(1.11).events.completed == ["b1"]


def test_while_a_call_is_under_way_nothing_is_due():
    bench = Bench()
    bench.call(0.0)
    assert bench.state.turn(0.0).wake_at == NEVER


def test_who_finds_the_queue_full_or_the_store_away_is_refused():
    bench = Bench().begun()
    ids = bench.come(1.0, 3)
    bench.call(1.0)
    bench.state.called(1.1, Outcome(1, epoch="1"))
    assert [(r.request_id, type(r.error)) for r in bench.state.turn(1.1).refuse] == [(i, QueueFull) for i in ids[1:]]
    [late] = bench.come(1.2)
    bench.call(1.2)
    bench.state.called(1.3, AWAY)
    assert bench.state.turn(1.3).refuse == [(late, AWAY)]


def test_requests_that_were_refused_are_told_of_with_the_next_call_and_once():
    bench = Bench().begun()
    for _ in range(3):
        bench.state.turned_away()
    bench.come(1.0, 2)
    assert bench.call(1.0).events.refused == 3
    bench.state.turned_away()
    bench.state.called(1.1, Outcome(1, epoch="1"))  # the other did not find room
    bench.come(1.2)
    assert bench.call(1.2).events.refused == 2
    bench.state.called(1.2, Outcome(1, epoch="1"))
    bench.come(1.3)
    assert bench.call(1.3).events.refused == 0


@pytest.mark.parametrize("failure", [AWAY, QueueLost("lost")])
def test_requests_that_were_refused_are_told_of_again_where_the_call_failed(failure):
    bench = Bench().begun()
    bench.state.turned_away()
    bench.come(1.0)
    assert bench.call(1.0).events.refused == 1
    bench.state.called(1.1, failure)
    bench.come(1.2)
    assert bench.call(1.2).events.refused == 1


def test_a_failed_call_is_said_once_asked_again_soon_and_brings_again_what_it_completed_with_a_sweep():
    bench = Bench().begun()
    ids, _ = bench.batch(0.1)
    bench.state.served(0.2, "b1", answers(ids))
    assert bench.call(0.2).events.completed == ["b1"]
    for now in (0.3, 0.5):
        bench.state.called(now, AWAY)
        instructions = bench.state.turn(now)
        assert len(instructions.log) == (now == 0.3)
        assert instructions.call is None and instructions.wake_at == now + RETRY
        again = bench.call(now + RETRY)
        assert (again.events.completed, again.events.serving) == (["b1"], [])


def test_a_table_that_comes_while_another_is_being_installed_is_installed_by_the_next_call():
    bench = Bench(constructors.greedy(4))
    bench.call(0.0)
    bench.state.follow(0.1, Route("", "f", PolicyDocument.of(constructors.greedy(2)), 1.0))
    bench.state.called(0.2, AWAY)
    assert bench.call(0.2 + RETRY).install.max_batch_size == 2


# --- batches


def test_a_batch_is_complete_when_it_is_answered_and_its_callers_are_told_with_the_call():
    bench = Bench().begun()
    ids, instructions = bench.batch(0.1)
    assert [item.id for item in instructions.invoke[0].items] == ids
    bench.state.served(0.2, "b1", answers(ids))
    instructions = bench.state.turn(0.2)
    assert instructions.call.events.completed == ["b1"]
    assert [answer.id for answer in instructions.tell] == ids
    assert {bench.waiting[i].queue for i in ids} == {TOLD}


def test_who_has_gone_is_not_computed_for():
    bench = Bench().begun()
    ids = bench.come(0.1, 2)
    members = list(bench.call(0.1).events.arrivals)
    del bench.waiting[ids[0]]
    bench.state.called(0.2, Outcome(2, [Released("b1", members)], epoch="1"))
    assert [item.id for item in bench.state.turn(0.2).invoke[0].items] == ids[1:]


def test_answers_for_another_process_are_sent_before_the_batch_is_complete_and_tried_again_and_then_given_up():
    bench = Bench().begun()
    stranger = THERE + "00000000"
    bench.call(2.0)
    member = encode_member(Item(stranger, "application/json", b"1"))
    bench.state.called(2.0, Outcome(0, [Released("b1", [member])], epoch="1"))
    bench.state.turn(2.0)
    bench.state.served(2.0, "b1", answers([stranger]))
    now = 2.0
    for _ in range(SENDINGS):
        instructions = bench.state.turn(now)
        [message] = instructions.send
        assert message.process == THERE and instructions.call is None
        bench.state.sent(now, message, AWAY)
        now += RETRY
    instructions = bench.state.turn(now)
    assert instructions.send == () and "away" in instructions.log[0][1]
    events = bench.call(4.0).events
    assert (events.completed, events.serving) == ([], [])  # the sweep takes it back


def test_a_process_that_leaves_takes_no_batch_for_a_caller_whom_it_refuses_just_now():
    bench = Bench().begun()
    bench.come(0.1)
    bench.call(0.1)
    bench.state.leave(0.1)
    bench.state.called(0.2, Outcome(0, queue_length=100, epoch="1"))
    instructions = bench.state.turn(0.2)
    assert len(instructions.refuse) == 1
    assert instructions.call.events.leaving


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_that_completes_no_batch_is_tried_as_long_as_its_caller_may_wait_but_not_by_a_process_that_ends(ends):
    bench = Bench().begun()
    bench.call(2.0)
    stranger = encode_member(Item(THERE + "00000000", "application/json", b"1"))
    bench.state.called(2.0, Outcome(0, dropped=[stranger], epoch="1"))
    if ends:
        bench.state.leave(2.0)
    now, tried = 2.0, 0
    while messages := bench.state.turn(now, may_call=False).send:
        tried += 1
        bench.state.sent(now, messages[0], AWAY)
        now += RETRY
    assert tried == (SENDINGS if ends else PATIENCE / RETRY)


def test_a_batch_that_fails_is_halved_until_the_item_that_fails_stands_alone_one_part_at_a_time():
    bench = Bench().begun()
    ids, instructions = bench.batch(0.1, 4)
    poison, asked, now = ids[2], [], 0.1
    while instructions.invoke:
        [invocation] = instructions.invoke
        part = [item.id for item in invocation.items]
        asked.append([ids.index(i) for i in part])
        now += 0.1
        bench.state.served(now, "b1", Failure(Cause.FAILED, "choked") if poison in part else answers(part))
        instructions = bench.state.turn(now)
    assert asked == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
    assert {answer.id: answer.status for answer in instructions.tell} == {i: 502 if i == poison else 200 for i in ids}


@pytest.mark.parametrize(
    ("cause", "status"), [(Cause.UNAVAILABLE, 502), (Cause.TOO_LARGE, 413), (Cause.FAILED, 502), (Cause.DEFECT, 500)]
)
def test_what_helps_no_item_fails_it_with_its_status(cause, status):
    bench = Bench().begun()
    _, _ = bench.batch(0.1, 1)
    bench.state.served(0.2, "b1", Failure(cause, "so it is"))
    assert [answer.status for answer in bench.state.turn(0.2).tell] == [status]


# --- a queue that was lost


def test_who_waits_comes_again_to_a_queue_that_was_lost_with_the_time_when_he_came_but_not_who_is_computed():
    bench = Bench().begun()
    batch, _ = bench.batch(0.5)
    waits = bench.come(1.0)
    bench.call(1.0)
    bench.state.called(1.0, Outcome(1, queue_length=1, epoch="1"))
    bench.call(1.0 + LIMITS.lease)
    bench.state.called(1.0 + LIMITS.lease, QueueLost("lost"))
    call = bench.call(1.0 + LIMITS.lease)
    assert [member_id(member) for member in call.events.arrivals] == waits
    assert call.events.ages == pytest.approx([LIMITS.lease])
    assert call.install is not None and call.events.serving == ["b1"]
    assert all(bench.waiting[i].queue == bench.state.name for i in batch)


def test_another_epoch_is_a_queue_that_was_lost_and_has_not_heard_of_this_process():
    bench = Bench().begun()
    waits = bench.come(1.0)
    bench.call(1.0)
    bench.state.called(1.0, Outcome(1, queue_length=1, epoch="1"))
    [new] = bench.come(1.1)
    bench.call(1.1)
    bench.state.called(1.1, Outcome(1, queue_length=1, epoch="2"))
    call = bench.call(1.1)
    assert [member_id(member) for member in call.events.arrivals] == waits and new not in waits
    assert call.events.serving == []


def test_a_batch_that_is_given_up_after_its_queue_was_lost_comes_again():
    bench = Bench(route="a").begun()
    ids = bench.come(0.1, 2)
    members = list(bench.call(0.1).events.arrivals)
    bench.state.retire(0.1)
    bench.state.called(0.2, Outcome(2, [Released("b1", members)], epoch="1"))
    instructions = bench.state.turn(0.2)
    [move] = instructions.move
    assert move.members == members
    bench.state.called(0.3, Outcome(0, epoch="2"))
    assert bench.call(0.3).events.arrivals == []  # they are under way
    bench.state.moved(0.4, move, AWAY)
    bench.state.called(0.5, Outcome(0, epoch="2"))
    assert [member_id(member) for member in bench.call(0.5).events.arrivals] == ids


# --- a route that goes


def retired():
    """A route whose function is asked for a batch, with one more who waits; then it is retired."""
    bench = Bench(constructors.greedy(1, servers=1), route="a").begun()
    ids = bench.come(0.1, 2)
    members = list(bench.call(0.1).events.arrivals)
    bench.state.called(0.2, Outcome(2, [Released("b1", members[:1])], queue_length=1, epoch="1"))
    bench.state.turn(0.2)
    bench.state.retire(0.3)
    return bench, ids, members


def test_a_retired_route_holds_nobody_and_moves_who_waited():
    bench, _, members = retired()
    call = bench.call(0.3)
    assert call.install.hold == (NEVER, 0.0) and call.install.servers is None
    bench.state.called(0.4, Outcome(0, [Released("b2", members[1:])], epoch="1"))
    instructions = bench.state.turn(0.4)
    assert instructions.move == [("b2", members[1:])] and not instructions.invoke


def test_a_retired_route_is_drained_when_nobody_waits_and_closed_when_it_has_said_goodbye():
    bench, ids, members = retired()
    bench.call(0.3)
    bench.state.called(0.4, Outcome(0, [Released("b2", members[1:])], epoch="1"))
    [move] = bench.state.turn(0.4).move
    bench.waiting[ids[1]].queue = "m:b"  # as the other route does when its queue has taken him
    bench.state.moved(0.5, move)
    bench.state.served(0.5, "b1", answers(ids[:1]))
    assert bench.call(0.5).events.completed == ["b2", "b1"]
    bench.state.called(0.6, Outcome(epoch="1"))
    assert bench.state.turn(0.6).drained and bench.state.life is Life.DRAINED
    bench.state.leave(0.7)
    goodbye = bench.call(0.7).events
    assert (goodbye.leaving, goodbye.serving) == (True, [])
    bench.state.called(0.8, Outcome(epoch="1"))
    assert bench.state.turn(0.8).closed


@pytest.mark.parametrize("came", [0, 2])
def test_a_process_that_leaves_with_a_route_just_retired_first_moves_who_waits_there(came):
    bench = Bench(constructors.static(8), route="a").begun()
    ids = bench.come(0.1)
    members = list(bench.call(0.1).events.arrivals)
    bench.state.called(0.1, Outcome(1, queue_length=1, epoch="1"))
    bench.come(0.2, came)
    bench.state.retire(0.2)
    bench.state.leave(0.2)
    call = bench.call(0.2)
    assert call.install.servers is None and len(call.events.arrivals) == came and not call.events.leaving
    bench.state.called(0.3, Outcome(came, [Released("b1", members + call.events.arrivals)], epoch="1"))
    [move] = bench.state.turn(0.3).move
    assert len(move.members) == len(ids) + came
    for caller in bench.waiting.values():
        caller.queue = "m:b"  # the route that adopted them
    bench.state.moved(0.4, move)
    goodbye = bench.call(0.4).events
    assert (goodbye.leaving, goodbye.serving, goodbye.completed) == (True, [], ["b1"])


def test_a_process_that_leaves_with_a_route_just_retired_moves_on_all_that_was_moved_there_in_several_calls():
    bench = Bench(constructors.static(8), route="a").begun()
    strangers = [encode_member(Item(f"{THERE}{i:08x}", "application/json", b"1")) for i in range(LARGEST_CALL + 1)]
    for members in (strangers[:-1], strangers[-1:]):
        bench.state.adopt(0.1, members)
    bench.state.retire(0.1)
    bench.state.leave(0.1)
    for number, members in enumerate((strangers[:-1], strangers[-1:])):
        events = bench.call(0.1).events
        assert (events.arrivals, events.leaving) == (members, False)
        bench.state.called(0.2, Outcome(len(members), [Released(f"b{number}", members)], epoch="1"))
        [move] = bench.state.turn(0.2, may_call=False).move
        assert move.members == members


def test_a_process_that_leaves_a_route_just_retired_does_not_wait_for_a_store_that_is_away():
    bench = Bench(route="a").begun()
    bench.state.retire(0.2)
    bench.state.leave(0.2)
    bench.call(0.2)
    bench.state.called(0.3, AWAY)
    assert bench.call(0.3).events.leaving
    bench.state.called(0.4, AWAY)
    assert bench.state.turn(0.4).closed


def test_a_process_that_leaves_serves_on_until_none_of_its_callers_is_at_the_queue():
    bench = Bench().begun()
    [caller] = bench.come(0.1)
    [late] = bench.come(0.1)
    bench.state.leave(0.1)
    events = bench.call(0.1).events
    assert (len(events.arrivals), events.leaving) == (2, False)
    bench.state.called(0.2, Outcome(2, [Released("b1", events.arrivals[:1])], queue_length=1, epoch="1"))
    bench.state.served(0.3, "b1", answers([caller]))
    assert bench.state.turn(0.3, may_call=False).tell == answers([caller])
    del bench.waiting[caller]
    events = bench.call(0.3).events
    assert (events.completed, events.leaving) == (["b1"], False)
    bench.state.called(0.4, Outcome(epoch="1"))
    assert bench.state.turn(0.4).call is None  # the other one is at work on another process
    del bench.waiting[late]  # he has his answer from there
    goodbye = bench.call(0.5).events
    assert (goodbye.leaving, goodbye.serving) == (True, [])


def test_who_was_refused_by_a_store_that_was_not_asked_need_not_leave_its_queue_and_what_must_is_bounded(monkeypatch):
    bench = Bench().begun()
    for error, left in ((Away("it is away", asked=False), 0), (AWAY, 1)):
        bench.come(0.1)
        bench.call(0.1)
        bench.state.called(0.2, error)
        bench.state.turn(0.2, may_call=False)
        assert len(bench.state._gone) == left
    monkeypatch.setattr(route_state, "GONE_BYTES", 100)
    for _ in range(10):
        bench.come(0.3)
        bench.call(0.3)
        bench.state.called(0.4, AWAY)
        bench.state.turn(0.4, may_call=False)
    assert sum(map(len, bench.state._gone)) <= 100


def test_who_left_while_the_queue_was_lost_is_not_submitted_again():
    bench = Bench().begun()
    stays, leaves = bench.come(0.1, 2)
    bench.call(0.1)
    assert bench.state.gone(0.2, bench.waiting.pop(leaves))
    bench.state.called(0.3, QueueLost("no policy"))
    assert [member_id(member) for member in bench.call(0.3).events.arrivals] == [stays]


def test_who_comes_after_the_goodbye_is_refused_at_once():
    bench = Bench().begun()
    bench.state.leave(0.1)
    assert bench.call(0.1).events.leaving
    during = bench.come(0.2)
    bench.state.called(0.3, Outcome(epoch="1"))
    instructions = bench.state.turn(0.4)
    assert [(refusal.request_id, type(refusal.error)) for refusal in instructions.refuse] == [(i, Draining) for i in during]
    assert isinstance(bench.state.refuses(0.5), Draining)
    assert instructions.closed and instructions.call is None
    assert not any(bench.state.gone(0.5, bench.waiting[i]) for i in during)
    assert bench.state.turn(0.5).call is None


def test_a_batch_that_its_function_leaves_without_an_answer_is_moved_from_a_retired_route_and_asked_again_under_another_function():
    bench, ids, _ = retired()
    bench.state.served(0.4, "b1", Failure(Cause.UNAVAILABLE, "gone"))
    assert [member_id(member) for move in bench.state.turn(0.4).move for member in move.members] == ids[:1]
    bench = Bench(function="f").begun()
    ids, _ = bench.batch(0.1)
    bench.state.follow(0.2, Route("", "g", bench.route.policy, 1.0))
    bench.state.served(0.3, "b1", Failure(Cause.UNAVAILABLE, "gone"))
    [invocation] = bench.state.turn(0.3).invoke
    assert (invocation.function, [item.id for item in invocation.items]) == ("g", ids)


def test_who_moved_here_and_comes_again_after_a_lost_queue_tells_his_size_then_too():
    bench, told = Bench(route="b").begun(), Told(size=7.0)
    item = Item(f"{HERE}moved000", "application/json", b"1")
    bench.waiting[item.id] = Caller("m:a", item, 0.0, told)
    bench.state.adopt(0.1, [encode_member(item, told)])
    bench.call(0.1)
    bench.state.called(0.1, Outcome(1, queue_length=1, epoch="1"))
    bench.come(0.2)
    bench.call(0.2)
    bench.state.called(0.2, Outcome(1, epoch="2"))
    again = bench.call(0.2).events
    assert (len(again.arrivals), list(again.sizes)) == (1, [7.0])


def leaving_with(member):
    """Who leaves a retired route, and has a batch of another process's caller there."""
    bench = Bench().begun()
    bench.come(0.1)
    bench.call(0.1)
    bench.state.called(0.1, Outcome(1, [Released("b1", [member])], epoch="1"))
    bench.waiting.clear()
    bench.state.retire(0.2)
    bench.state.leave(0.2)
    bench.call(0.2)
    return bench


def test_who_leaves_a_retired_route_takes_out_again_whom_he_could_not_move_before_he_says_goodbye():
    member = encode_member(Item(f"{THERE}00000001", "application/json", b"1"))
    bench = leaving_with(member)
    bench.state.called(0.2, Outcome(epoch="1"))
    bench.state.served(0.3, "b1", Failure(Cause.UNAVAILABLE, "it is gone"))
    [move] = bench.state.turn(0.3).move
    bench.state.moved(0.4, move, AWAY)
    assert bench.state.turn(0.4).call is None
    sweep = bench.call(LIMITS.lease / 3).events
    assert (sweep.serving, sweep.leaving) == ([], False)  # which puts him back, and gets him again
    bench.state.called(2.1, Outcome(0, [Released("b2", [member])], epoch="1"))
    [move] = bench.state.turn(2.1).move
    bench.state.moved(2.2, move)
    goodbye = bench.call(2.2).events
    assert (goodbye.completed, goodbye.leaving) == (["b2"], True)


def test_he_ends_where_the_store_stays_away():
    bench = leaving_with(encode_member(Item(f"{THERE}00000001", "application/json", b"1")))
    bench.state.called(0.2, AWAY)
    bench.state.served(0.3, "b1", Failure(Cause.UNAVAILABLE, "it is gone"))
    [move] = bench.state.turn(0.3).move
    bench.state.moved(0.4, move, AWAY)
    for _ in range(2 * SENDINGS):
        if bench.state.life is Life.CLOSED:
            break
        now = max(0.4, bench.state.asks_at)
        bench.call(now)
        bench.state.called(now, AWAY)
    assert bench.state.life is Life.CLOSED


def test_members_are_adopted_in_a_call_of_their_own_and_their_callers_wait_here_when_it_took_them():
    bench = Bench(route="b").begun()
    ids = bench.come(0.1, 2)
    members = list(bench.call(0.1).events.arrivals)
    bench.state.called(0.1, Outcome(2, queue_length=2, epoch="1"))
    for i in ids:
        bench.waiting[i].queue = "m:a"
    adoption = bench.state.adopt(0.2, members)
    bench.come(0.2)
    events = bench.call(0.2).events
    assert (events.arrivals, events.recorded) == (members, True)
    assert {bench.waiting[i].queue for i in ids} == {"m:a"}
    bench.state.called(0.3, Outcome(1, queue_length=3, epoch="1"))
    instructions = bench.state.turn(0.3)
    assert instructions.adopted == [(adoption, None)]
    assert [(answer.id, answer.status) for answer in instructions.tell] == [(ids[1], 429)]
    assert (bench.waiting[ids[0]].queue, bench.waiting[ids[1]].queue) == ("m:b", TOLD)
    assert len(instructions.call.events.arrivals) == 1 and not instructions.call.events.recorded


def test_who_could_not_be_moved_still_waits_where_he_was_and_comes_again_there_when_that_queue_is_lost():
    waiting: dict[str, Caller] = {}
    table = PolicyDocument.of(constructors.greedy(4))
    old, new = (RouteState("m", Route(name, "f", table, 1.0), LIMITS, HERE, waiting, PATIENCE) for name in "ab")
    item = Item(f"{HERE}00000000", "application/json", b"1")
    caller = waiting[item.id] = Caller("m:a", item, 0.0)
    old.came(0.0, caller)
    members = list(old.turn(0.0).call.events.arrivals)
    old.retire(0.0)
    old.called(0.1, Outcome(1, [Released("b1", members)], epoch="1"))
    [move] = old.turn(0.1).move
    new.adopt(0.1, move.members)
    new.turn(0.1)
    new.called(0.2, AWAY)  # its first call, so that it cannot tell later that its queue was lost
    old.called(0.2, AWAY)
    old.moved(0.2, move, AWAY)
    old.turn(0.4)
    old.called(0.5, QueueLost("lost"))
    assert [member_id(member) for member in old.turn(0.5).call.events.arrivals] == [item.id]


def test_members_that_come_in_many_small_batches_share_calls_and_hold_up_no_new_request():
    bench = Bench(route="b").begun()
    strangers = [encode_member(Item(f"{THERE}{i:08x}", "application/json", b"1")) for i in range(1000)]
    adoptions = [bench.state.adopt(0.1, [member]) for member in strangers]
    new = bench.come(0.1)
    called, settled = [], []
    for _ in range(3):
        call = bench.call(0.1)
        called.append(call.events.arrivals)
        bench.state.called(0.1, Outcome(len(call.events.arrivals), queue_length=1, epoch="1"))
        settled += bench.state._todo.adopted
    assert called[0] + called[1] == strangers and len(called[0]) == LARGEST_CALL
    assert [member_id(member) for member in called[2]] == new
    assert settled == [(adoption, None) for adoption in adoptions]


def test_members_that_several_batches_bring_are_refused_from_the_last_and_come_again_to_a_queue_that_was_lost():
    bench = Bench(route="b").begun()
    strangers = [encode_member(Item(f"{THERE}{i:08x}", "application/json", b"1")) for i in range(4)]
    adoptions = [bench.state.adopt(0.1, strangers[:2]), bench.state.adopt(0.1, strangers[2:])]
    bench.call(0.1)
    bench.state.called(0.1, QueueLost("lost"))
    assert bench.call(0.1).events.arrivals == strangers
    bench.state.called(0.2, Outcome(1, queue_length=1, epoch="2"))
    instructions = bench.state.turn(0.2)
    assert instructions.adopted == [(adoption, None) for adoption in adoptions]
    [message] = instructions.send
    assert [(answer.id, answer.status) for answer in message.answers] == [(member_id(m), 429) for m in strangers[1:]]


def test_a_process_that_leaves_keeps_its_lease_until_its_batches_are_finished_and_says_goodbye_once():
    bench = Bench().begun()
    ids, _ = bench.batch(0.1)
    bench.state.leave(0.2)
    sweep = bench.call(LIMITS.lease / 3).events
    assert (sweep.leaving, sweep.serving) == (True, ["b1"])
    bench.state.called(2.1, Outcome(epoch="1"))
    bench.state.served(2.2, "b1", answers(ids))
    goodbye = bench.call(2.2).events
    assert (goodbye.completed, goodbye.serving) == (["b1"], [])
    bench.state.called(2.3, AWAY)
    instructions = bench.state.turn(2.3)
    assert instructions.closed and instructions.call is None and instructions.wake_at == NEVER


def test_nobody_is_refused_for_an_elastic_function_that_was_busy_when_nobody_waits_for_it_any_more():
    bench = Bench(constructors.no_batching())
    bench.state = RouteState("m", bench.route, LIMITS, HERE, bench.waiting, 0.6)
    bench.begun()
    [waits], begun = bench.batch(1.0, 1)
    batch_id = begun.invoke[0].batch_id
    bench.state.served(1.0, batch_id, Failure(Cause.BUSY, "throttled", retry_after=0.4))
    bench.call(1.0 + FRESH)
    bench.state.called(1.0 + FRESH, Outcome(epoch="1"))
    resting = bench.state.turn(1.0 + FRESH)
    later = bench.come(1.4)
    assert bench.state.refuses(1.4) is not None  # one more would wait behind these
    bench.state.gone(1.4, bench.waiting.pop(waits))
    ended = bench.state.turn(resting.wake_at)
    assert [[item.id for item in each.items] for each in ended.invoke] == [later] and bench.state._admission._put_off == 0
    assert bench.state.refuses(resting.wake_at) is None


def test_nobody_is_refused_for_a_worker_that_crashed_as_if_the_function_were_throttled_still():
    bench = Bench(constructors.no_batching())
    bench.state = RouteState("m", bench.route, LIMITS, HERE, bench.waiting, 0.6)
    bench.begun()
    batch_id = bench.batch(1.0, 1)[1].invoke[0].batch_id
    bench.state.served(1.0, batch_id, Failure(Cause.BUSY, "throttled", chance=0.1))
    assert bench.state.turn(1.0).invoke == [] and len(bench.state.turn(1.01).invoke) == 1
    bench.state.served(1.1, batch_id, Failure(Cause.FAILED, "choked"))  # from here on nobody waits for a throttle
    bench.call(1.1 + BROUGHT_WITHIN)
    bench.state.called(1.1 + BROUGHT_WITHIN, Outcome(epoch="1"))
    batch_id = bench.batch(2.0, 1)[1].invoke[0].batch_id
    bench.state.served(2.1, batch_id, Failure(Cause.CRASHED, "reset"))
    for answer in bench.state.turn(2.1).tell:
        bench.waiting.pop(answer.id)
    bench.call(2.1 + BROUGHT_WITHIN)
    bench.state.called(2.1 + BROUGHT_WITHIN, Outcome(epoch="1"))
    batch_id = bench.batch(2.2, 1)[1].invoke[0].batch_id
    bench.state.served(2.21, batch_id, Failure(Cause.UNAVAILABLE, "it starts again"))
    assert bench.state.turn(2.21).tell == []  # it waits for the worker
    bench.come(2.25)
    assert bench.state.refuses(2.25) is None


def test_a_part_that_a_busy_function_refused_moves_as_soon_as_the_part_beside_it_is_told_where_the_route_is_gone():
    bench = Bench(constructors.greedy(2, servers=None), route="a").begun()
    ids, begun = bench.batch(0.1)
    batch_id = begun.invoke[0].batch_id
    bench.state.served(0.2, batch_id, Failure(Cause.FAILED, "choked"), begun.invoke[0].part)
    first, second = bench.state.turn(0.2).invoke  # its halves
    bench.state.served(0.3, batch_id, Failure(Cause.BUSY, "throttled", retry_after=9.0), first.part)
    bench.state.turn(0.3)
    bench.state.retire(0.31)
    bench.state.turn(0.31)
    bench.state.served(0.35, batch_id, Failure(Cause.FAILED, "choked"), second.part)
    assert [[member_id(member) for member in move.members] for move in bench.state.turn(0.35).move] == [ids[:1]]


def test_a_part_that_a_busy_function_refused_is_asked_of_another_as_soon_as_the_part_beside_it_ends():
    bench = Bench(constructors.greedy(2, servers=None), function="f").begun()
    ids, begun = bench.batch(0.1)
    batch_id = begun.invoke[0].batch_id
    bench.state.served(0.2, batch_id, Failure(Cause.FAILED, "choked"), begun.invoke[0].part)
    first, second = bench.state.turn(0.2).invoke
    bench.state.served(0.3, batch_id, Failure(Cause.BUSY, "throttled", retry_after=9.0), first.part)
    bench.state.follow(0.31, Route("", "g", bench.route.policy, 1.0))
    bench.state.served(0.35, batch_id, Failure(Cause.FAILED, "choked"), second.part)
    assert [(each.function, [item.id for item in each.items]) for each in bench.state.turn(0.35).invoke] == [("g", ids[:1])]


def test_whose_request_another_process_moved_here_waits_here_and_does_not_come_again_where_he_was():
    waiting: dict[str, Caller] = {}
    table = PolicyDocument.of(constructors.greedy(4))
    old, new = (RouteState("m", Route(name, "f", table, 1.0), LIMITS, HERE, waiting, PATIENCE) for name in "ab")
    item = Item(f"{HERE}00000000", "application/json", b"1")
    caller = waiting[item.id] = Caller("m:a", item, 0.0)
    old.came(0.0, caller)
    members = list(old.turn(0.0).call.events.arrivals)
    old.called(0.1, Outcome(1, queue_length=1, epoch="1"))
    new.turn(0.1)
    new.called(0.2, Outcome(1, [Released("b1", members)], epoch="1"))  # who moved it told nobody
    assert [invocation.items for invocation in new.turn(0.2).invoke] == [[item]]
    old.turn(9.0)
    old.called(9.0, QueueLost("lost"))
    assert old.turn(9.0).call.events.arrivals == []


# --- who stands before a newcomer


class Uncounted(list):
    """What must not be looked through for each request: as many may wait for a store that is away as callers have patience for."""

    def __iter__(self):
        raise AssertionError("looked through")


def told(bench, now, *slacks):
    """A request of each slack comes; who they are."""
    callers = []
    for slack in slacks:
        caller = Caller(bench.state.name, Item(f"{HERE}{len(bench.waiting):08x}", "application/json", b"1"), now, Told(slack=slack))
        bench.waiting[caller.item.id] = caller
        bench.state.came(now, caller)
        callers.append(caller)
    return callers


def before(bench, slack, monkeypatch):
    """How many a request of this slack has before it who came since the queue was heard of."""
    counted = []
    with monkeypatch.context() as patch:
        patch.setattr(bench.state._admission, "refuses", lambda now, waiting, coming, *_: counted.append(coming))
        assert bench.state.refuses(1.0, slack) is None
    return counted[0]


def test_who_came_with_a_slack_above_0_is_not_before_those_without_and_who_came_with_less_is(monkeypatch):
    bench = Bench().begun()
    told(bench, 1.0, 5.0, -0.1, 0.0, 5.0)
    assert (before(bench, 0.0, monkeypatch), before(bench, 3.0, monkeypatch)) == (2, 4)
    bench.call(1.0)
    patient, *_ = told(bench, 1.0, 5.0, -0.1)
    assert (before(bench, 0.0, monkeypatch), before(bench, 3.0, monkeypatch)) == (3, 6)
    bench.state.gone(1.0, patient)
    assert (before(bench, 0.0, monkeypatch), before(bench, 3.0, monkeypatch)) == (3, 5)
    bench.state.called(1.0, QueueLost("lost"))
    assert (before(bench, 0.0, monkeypatch), before(bench, 3.0, monkeypatch)) == (3, 5)
    told(bench, 1.0, *[5.0] * LARGEST_CALL)
    bench.call(1.0)
    assert before(bench, 0.0, monkeypatch) == 3


def test_who_stands_before_a_request_is_known_without_a_look_at_all_who_came(monkeypatch):
    bench = Bench().begun()
    told(bench, 1.0, 5.0, 0.0)
    bench.call(1.0)
    told(bench, 1.0, 5.0, 0.0)
    bench.state._arrivals.callers = Uncounted(bench.state._arrivals.callers)
    bench.state._asked.arrivals = Uncounted(bench.state._asked.arrivals)
    assert before(bench, 0.0, monkeypatch) == 2


@pytest.mark.parametrize(("left", "part"), [(2.9, 0.5), (3.1, 1e-3)])
def test_whether_somebody_was_served_within_his_slack_is_settled_when_he_leaves_the_queue_and_not_by_his_answer(left, part):
    bench = Bench().begun()
    callers = told(bench, 1.0, 0.0, 2.0)
    members = list(bench.call(1.0).events.arrivals)
    bench.state.called(left, Outcome(2, [Released("b1", members)], epoch="1"))
    bench.state.turn(left)
    for caller in callers:
        bench.state.answered(9.0, caller)
    assert bench.state._slack_line.part(2.0) == part


def test_those_with_a_slack_above_0_leave_a_tenth_of_the_queue_to_the_others():
    bench = Bench(policy=constructors.size_or_timeout(4, 0.1)).begun()
    for _ in range(LIMITS.max_queue_length):
        if bench.state.refuses(0.1, 5.0) is None:
            told(bench, 0.1, 5.0)
    refusal = bench.state.refuses(0.1, 5.0)
    assert isinstance(refusal, QueueFull) and "90 requests wait" in str(refusal)
    assert bench.state.refuses(0.1) is None and bench.state.refuses(0.1, -0.1) is None
    arrivals = bench.call(0.1).events.arrivals
    bench.state.called(0.1, Outcome(len(arrivals), queue_length=90, behind=90, epoch="1"))
    assert isinstance(bench.state.refuses(0.11, 5.0), QueueFull) and not bench.state.due(0.11)
    assert isinstance(bench.state.refuses(1.0, 5.0), QueueFull) and bench.state.due(1.0)  # perhaps there is room by now
    bench.call(1.0)
    bench.state.called(1.0, Outcome(queue_length=89, behind=89, epoch="1"))
    assert bench.state.refuses(1.0, 5.0) is None
