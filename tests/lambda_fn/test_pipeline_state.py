"""What decides in a pipeline: random runs with every fault, and single claims with numbers for times."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from sluice.batching import policy
from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.pipeline.errors import DeadlinePassed, StageTimeout
from sluice.lambda_fn.pipeline.flow import Ensemble, Flow, Sequential, Stage, Switch, lay_out
from sluice.lambda_fn.pipeline.pipeline_state import MAX_PAUSE, START_TIMEOUT, Outcome, PipelineState
from tests.lambda_fn.pipeline_simulation import Anything, simulate

SEEDS = 100


def test_every_item_is_answered_once_with_its_own_whatever_fails() -> None:
    assert [line for seed in range(SEEDS) for line in simulate(seed)] == []


@pytest.mark.proof
def test_so_it_is_in_many_more_runs() -> None:
    assert [line for seed in range(SEEDS, 6 * SEEDS) for line in simulate(seed)] == []


def started(flow: Flow, max_bytes: int = 10**9, can_stop: bool = True) -> PipelineState:
    """The state of a pipeline whose workers are ready at time 0."""
    layout = lay_out(flow, 1000)
    state = PipelineState(layout.rules, layout.entry, max_bytes)
    state.start(0.0)
    for worker in state.turn(0.0).start:
        state.ready(worker, 0.0, can_stop)
    state.turn(0.0)
    return state


def sent(work: list[tuple[int, list[Any]]]) -> list[tuple[int, list[Any]]]:
    return [(worker, [ticket.item.caller for ticket in tickets]) for worker, tickets in work]


def back(state: PipelineState, worker: int, now: float, seconds: float = 1.0) -> None:
    """A worker returns all that it has aboard."""
    outcomes = [Outcome(number, False, "output", 10) for number in state.workers[worker].aboard]
    state.returned(worker, outcomes, seconds, now)


def test_the_wait_of_a_batch_counts_from_its_oldest_item_and_is_not_begun_again() -> None:
    state = started(Stage(Anything, batch_size=10, wait=1.0))
    for i in range(4):  # each comes before the wait since the one before it is over
        state.came(i, "", 1)
        turn = state.turn(0.3 * i)
        assert (turn.work, turn.wake_at) == ([], 1.0)
    assert sent(state.turn(1.0).work) == [(0, [0, 1, 2, 3])]


def test_a_table_says_when_a_batch_leaves_and_its_servers_are_the_workers() -> None:
    state = started(Stage(Anything, policy=policy.control_limit(2, 3), workers=2))
    state.came(0, "", 1)
    assert state.turn(0.0).work == []
    for i in range(1, 7):
        state.came(i, "", 1)
    assert sent(state.turn(0.0).work) == [(1, [0, 1, 2]), (0, [3, 4, 5])]


def test_a_slow_worker_is_given_nothing_ahead_and_a_quick_one_what_is_settled() -> None:
    for seconds, ahead in ((1.0, []), (0.0001, [(0, [4, 5])])):
        state = started(Stage(Anything, batch_size=2))
        state.came(0, "", 1)
        state.turn(0.0)
        back(state, 0, 0.0, seconds)
        for i in (2, 3, 4, 5, 6):
            state.came(i, "", 1)
        assert sent(state.turn(0.0).work) == [(0, [2, 3]), *ahead]
        back(state, 0, 0.0, seconds)
        rest = [(0, [6])] if ahead else [(0, [4, 5])]
        assert sent(state.turn(0.0).work) == rest


def silent(workers: int, can_stop: bool = True) -> PipelineState:
    """Quick workers, each with ten of the items from 100 on, of which all but worker 0 return theirs after 20 ms."""
    state = started(Stage(Anything, workers=workers), can_stop=can_stop)
    state.came(0, "", 1)
    (worker, _), *_ = state.turn(0.0).work
    back(state, worker, 0.0, 0.0001)
    state.turn(0.0)
    for i in range(10 * workers):
        state.came(100 + i, "", 1)
    given = dict(sent(state.turn(0.0).work))
    assert {len(items) for items in given.values()} == {10} and len(given) == workers
    for other in range(1, workers):
        back(state, other, 0.02, 0.001)
    return state


def test_what_a_silent_worker_has_not_begun_goes_to_others_before_what_came_later() -> None:
    state = silent(2)
    aboard = list(state.workers[0].aboard.values())
    for i in range(100):
        state.came(200 + i, "", 1)
    turn = state.turn(0.02)
    assert turn.stop == [(0, aboard[-1].place + 1)] and [worker for worker, _ in turn.work] == [1]
    state.stopped(0, aboard[1].place)
    assert state.turn(0.021).work == []
    back(state, 1, 0.022, 0.001)
    ((worker, items),) = sent(state.turn(0.022).work)
    assert worker == 1 and items[:9] == [ticket.item.caller for ticket in aboard[1:]]
    back(state, 0, 0.03)
    assert state.workers[0].aboard == {}


def test_what_others_say_they_skipped_is_given_anew_once() -> None:
    state = silent(2)
    aboard = list(state.workers[0].aboard.values())
    state.turn(0.02)
    state.stopped(0, aboard[2].place)  # it had said that it begins the second, and saw then that it was stopped
    state.skipped(0, [ticket.place for ticket in aboard[1:]])
    taken = [items for _, items in sent(state.turn(0.021).work)]
    assert sorted(item for items in taken for item in items) == sorted(ticket.item.caller for ticket in aboard[1:])
    state.skipped(0, [ticket.place for ticket in aboard[1:]])
    assert state.turn(0.021).work == []


def test_a_worker_that_has_begun_nothing_keeps_one_item_and_gets_no_other_before_it_says_so() -> None:
    state = silent(3)
    first, *others = [ticket.item.caller for ticket in state.workers[0].aboard.values()]
    places = [ticket.place for ticket in state.workers[0].aboard.values()]
    assert state.turn(0.02).stop
    state.stopped(0, places[0])
    given = dict(sent(state.turn(0.021).work))
    assert set(given) == {1, 2} and sorted(given[1] + given[2]) == others
    state.skipped(0, places)
    assert sent(state.turn(0.03).work) == [(0, [first])]


def test_a_worker_that_cannot_be_stopped_keeps_what_it_has() -> None:
    state = silent(2, can_stop=False)
    turn = state.turn(0.02)
    assert turn.stop == [] and len(state.workers[0].aboard) == 10


def test_what_was_aboard_a_process_that_died_is_tried_once_more_alone() -> None:
    state = started(Stage(Anything, batch_size=3))
    for i in range(3):
        state.came(i, "", 1)
    assert sent(state.turn(0.0).work) == [(0, [0, 1, 2])]
    state.died(0, "killed", 0.0)
    assert state.turn(0.0).start == [0]
    state.ready(0, 0.1)
    for i in range(3):
        assert sent(state.turn(0.1).work) == [(0, [i])]
        back(state, 0, 0.1)
    assert [answer.failed for answer in state.turn(0.1).answers] == [False]


def test_a_worker_that_does_not_last_is_started_again_ever_later_up_to_a_bound() -> None:
    state = started(Stage(Anything))
    now, pauses = 0.0, []
    for _ in range(12):
        state.died(0, "killed", now)
        turn = state.turn(now)
        while not turn.start:
            assert turn.wake_at is not None
            pauses.append(turn.wake_at - now)
            now = turn.wake_at
            turn = state.turn(now)
        state.ready(0, now)
        state.turn(now)
    assert pauses == sorted(pauses) and pauses[0] < 0.5 and pauses[-1] == pytest.approx(MAX_PAUSE)
    state.died(0, "killed", now + 60)
    assert state.turn(now + 60).start == [0]


def test_a_pipeline_that_was_frozen_kills_no_worker_for_the_time() -> None:
    state = started(Stage(Anything, workers=2, timeout=3.0))
    state.came(0, "", 1)
    (worker,) = (number for number, _ in state.turn(0.0).work)
    state.died(1 - worker, "killed", 0.0)
    assert state.turn(0.2).start == [1 - worker]
    thawed = state.turn(1000.0)
    assert (thawed.answers, thawed.kill, thawed.wake_at) == ([], [], 1003.0)
    late = state.turn(1003.0)  # from here on it has been running
    assert late.kill == [worker] and isinstance(late.answers[0].payload, StageTimeout)
    assert state.turn(1000.0 + START_TIMEOUT).kill == [1 - worker]


def test_deadlines_of_items_that_are_answered_are_not_kept() -> None:
    state = started(Stage(Anything))
    for i in range(5_000):
        state.came(i, "", 1, deadline=3600.0)
        state.turn(0.0)
        back(state, 0, 0.0)
        state.turn(0.0)
    assert len(state._deadlines) < 200


def test_a_late_result_is_dropped() -> None:
    state = started(Stage(Anything))
    state.came("late", "", 1, deadline=1.0)
    state.turn(0.0)
    (answer,) = state.turn(1.0).answers
    assert isinstance(answer.payload, DeadlinePassed)
    back(state, 0, 2.0)
    assert state.turn(2.0).answers == [] and state.bytes == state.items == 0


def test_while_too_many_bytes_are_held_one_worker_works_and_the_last_stage_first() -> None:
    state = started(Sequential(Stage(Anything, workers=2), Stage(Anything, workers=2)), max_bytes=25)
    for i in range(4):
        state.came(i, "", 10)
    assert len(state.turn(0.0).work) == 1
    back(state, 1, 0.0)  # one of four is before the second stage now
    assert sent(state.turn(0.0).work) == [(3, [0])]
    back(state, 3, 0.0)
    state.turn(0.0)  # 30 bytes
    assert sum(bool(worker.aboard) for worker in state.workers) == 1


def test_an_item_fails_with_the_first_part_of_an_ensemble_that_does_and_the_others_are_dropped() -> None:
    state = started(Ensemble(Stage(Anything), Sequential(Stage(Anything), Stage(Anything))))
    state.came("x", "", 1)
    work = state.turn(0.0).work
    assert len(work) == 2
    worker, (ticket,) = work[0]
    state.returned(worker, [Outcome(ticket.number, True, "error", 0)], 0.1, 0.0)
    assert [(answer.caller, answer.failed) for answer in state.turn(0.0).answers] == [("x", True)]
    back(state, work[1][0], 1.0)
    turn = state.turn(1.0)
    assert turn.work == [] and turn.answers == [] and state.bytes == 0


def test_a_misspelt_option_of_a_stage_is_told_the_one_that_is_meant() -> None:
    class Own(Anything):
        def __init__(self, worker: int = 0, **more: int) -> None: ...

    for made_by, name, meant in (
        (Anything, "batchsize", "batch_size"),
        (Anything, "batchSize", "batch_size"),
        (Anything, "num_workers", "workers"),
        (Own, "timout", "timeout"),
        (min, "process", "processes"),  # of C, which tells no signature
    ):
        with pytest.raises(InvalidInput, match=f"{name}: 2 is not allowed; allowed: an option of Stage, .* did you mean {meant}."):
            Stage(made_by, **{name: 2})
    assert Stage(Own, worker=1, weight=2, path=3).kwargs == {"worker": 1, "weight": 2, "path": 3}


def test_what_cannot_be_a_stage_is_refused_with_what_may() -> None:
    for arguments, message in (
        (dict(workers=0), "workers: 0 is not allowed; allowed: an integer from 1 to 256"),
        (dict(batch_size=0), "batch_size: 0 is not allowed"),
        (dict(wait=0.1), "wait: 0.1 is not allowed; allowed: 0 without batch_size"),
        (dict(batch_size=2, policy=policy.greedy(2)), "allowed: one of policy and batch_size"),
        (dict(policy=replace(policy.greedy(2), beside=[policy.greedy(2)])), "allowed: a table without others beside it"),
        (dict(policy=policy.Policy((policy.INF, 0, 0, 0), (0, 1, 1, 1), columns=2)), "allowed: a table of one column"),
        (dict(policy="greedy"), "policy: 'greedy' is not allowed; allowed: a table of sluice.batching.policy, or None"),
        (dict(timeout=1, processes=False), "None where workers are threads"),
        (dict(cpus=[999]), r"cpus: 999 is not allowed; allowed: one of \d"),
        (dict(cpus=[min(os.sched_getaffinity(0))], workers=2), "one entry for each of the 2 workers"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Stage(Anything, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a class with a method predict"):
        Stage(int)
    with pytest.raises(InvalidInput, match="Sequential: .* allowed: at least one part"):
        Sequential()
    with pytest.raises(InvalidInput, match="Switch: 3 is not allowed; allowed: parts that are a Stage"):
        Switch(len, 3)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match="max_items: 4 is not allowed; allowed: at least 8: the table of Anything waits for so many"
    ):
        lay_out(Stage(Anything, policy=policy.static(8)), max_items=4)
