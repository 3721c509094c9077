"""Whose turn it is: batches as they stand, single requests together, within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import INF, Policy, early_drop, greedy, size_or_timeout
from sluice.lambda_fn.contract import Item
from sluice.lambda_fn.worker.turns import Turns, Work


def work(size: int = 1, single: bool = True) -> Work:
    return Work([Item(str(i), "application/json", b"1") for i in range(size)], single, lambda _: None)


def test_single_requests_that_wait_are_taken_together_up_to_the_table() -> None:
    turns = Turns(greedy(3), executions=1, limit=100)
    works = [work() for _ in range(5)]
    for one in works:
        assert turns.came(0.0, one)
    assert turns.next(0.0).batch == tuple(works[:3])
    assert turns.next(0.0).batch == ()
    turns.ended()
    assert turns.next(1.0).batch == tuple(works[3:])


def test_a_batch_stands_as_it_is_and_goes_when_it_came_first() -> None:
    turns = Turns(greedy(8), executions=1, limit=100)
    first, batch, last = work(), work(4, single=False), work()
    for now, one in enumerate((first, batch, last)):
        turns.came(float(now), one)
    order = []
    for now in range(3, 5):
        order.append(turns.next(float(now)).batch)
        turns.ended()
    assert order == [(first, last), (batch,)]  # who waits with the first goes with it


def test_a_single_request_waits_for_others_as_the_table_says_but_a_batch_need_not_wait_for_it() -> None:
    turns = Turns(size_or_timeout(2, 0.5), executions=1, limit=100)
    single, batch = work(), work(3, single=False)
    turns.came(1.0, single)
    assert turns.next(1.0).wake_at == 1.5
    turns.came(1.2, batch)
    assert turns.next(1.2).batch == (batch,)
    turns.ended()
    assert turns.next(1.5).batch == (single,)


def test_no_more_wait_than_the_limit_but_a_batch_that_finds_nobody_is_taken_whatever_its_size() -> None:
    turns = Turns(greedy(1), executions=1, limit=3)
    assert turns.came(0.0, work(10, single=False))
    assert not turns.came(0.0, work())
    turns.next(0.0)
    assert turns.came(0.0, work(3, single=False))
    assert not turns.came(0.0, work())


def test_who_has_waited_for_too_long_or_has_gone_does_not_wait_any_more() -> None:
    turns = Turns(greedy(1), executions=1, limit=10)
    running, old, gone, young = works = [work() for _ in range(4)]
    for now, one in enumerate(works):
        turns.came(float(now), one)
    turns.next(0.0)
    assert turns.withdraw(gone)
    assert not turns.withdraw(running)
    assert turns.expire(came_before=2.5) == [old]
    turns.ended()
    assert turns.next(9.0).batch == (young,)
    turns.ended()
    assert turns.idle


def test_a_table_that_drops_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"drop_after: 0\.1 is not allowed; allowed: null"):
        Turns(early_drop(0.2, [0.1]), executions=1, limit=10)


@given(st.lists(st.one_of(st.integers(1, 6), st.sampled_from(["single", "ended", "gone"])), max_size=60), st.integers(1, 3))
def test_every_request_leaves_once_and_no_more_run_or_wait_than_may(events: list[object], executions: int) -> None:
    turns = Turns(greedy(4), executions, limit=8)
    accepted: list[Work] = []
    begun: list[Work] = []
    for now, event in enumerate(events):
        if event == "ended":
            if turns.running:
                turns.ended()
        elif event == "gone":
            waiting = [one for one in accepted if one not in begun]
            if waiting and turns.withdraw(waiting[-1]):
                accepted.remove(waiting[-1])
        else:
            one = work() if event == "single" else work(int(str(event)), single=False)
            if turns.came(float(now), one):
                accepted.append(one)
        while batch := turns.next(float(now)).batch:
            assert sum(len(one.items) for one in batch) <= max(4, len(batch[0].items))
            begun += batch
        assert turns.running <= executions
        waiting = sum(len(one.items) for one in accepted if one not in begun)
        assert turns.waiting == waiting <= max(8, 6)
    assert len(begun) == len(set(map(id, begun)))
    assert all(one in accepted for one in begun)


def test_tables_beside_another_are_refused() -> None:
    with pytest.raises(InvalidInput, match="policy.beside: 1 is not allowed; allowed: no tables: the executions serve one"):
        Turns(replace(greedy(2), beside=[greedy(2)]), executions=1, limit=100)


def test_a_table_of_columns_is_refused() -> None:
    with pytest.raises(InvalidInput, match="policy.columns: 2 is not allowed; allowed: 1: no request of a worker has a slack"):
        Turns(Policy((INF, 0, 0, 0), (0, 1, 1, 1), columns=2), executions=1, limit=100)


def test_what_an_execution_had_that_was_lost_goes_again_before_all_others_and_each_alone() -> None:
    turns = Turns(greedy(4), executions=1, limit=10)
    first, second, third = works = [work() for _ in range(3)]
    for one in works[:2]:
        turns.came(0.0, one)
    assert turns.next(0.0).batch == (first, second)
    turns.came(1.0, third)
    turns.lost([first, second])
    assert (turns.waiting, turns.running, first.again) == (3, 0, True)
    assert turns.withdraw(second)
    assert turns.next(2.0).batch == (first,)
    assert not turns.withdraw(first)
    turns.ended()
    assert turns.next(3.0).batch == (third,)
    turns.lost([third])
    assert turns.expire(came_before=2.0) == [third]
    assert turns.idle
