"""Which of several workers is asked, fact by fact; the time is a number."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest

from sluice.buffer_service.invokers.worker_health import (
    EJECT_AFTER,
    FIRST_EJECTION,
    LONGEST_EJECTION,
    MOST_KNOWN,
    End,
    Health,
    Workers,
)
from sluice.buffer_service.invokers.worker_pace import Paces

ABC = ("a", "b", "c")


def fail(workers, now, address, times=1, end=End.GONE, among=ABC):
    """A worker fails so often, when nobody else is idle; how often it was ejected for it."""
    others = [workers.choose(now, [other]) for other in among if other != address]
    ejections = 0
    for _ in range(times):
        assert workers.choose(now, [address]) == address
        ejections += workers.ended(now, address, end)
    for other in others:
        workers.ended(now, other, End.OPEN)
    return ejections


def ask(workers, now, n, addresses=ABC, again=False):
    """So many batches at once; who is asked."""
    chosen = [workers.choose(now, addresses, again) for _ in range(n)]
    for address in chosen:
        workers.ended(now, address, End.PASSED)
    return chosen


def test_the_idlest_is_asked_and_the_earliest_named_of_equals():
    assert ask(Workers(), 0.0, 5) == ["a", "b", "c", "a", "b"]


def test_failures_in_a_row_eject_and_one_that_was_answered_between_them_does_not():
    workers = Workers()
    assert fail(workers, 0.0, "a", EJECT_AFTER - 1) == 0
    ask(workers, 0.0, 3)
    assert fail(workers, 0.0, "a", EJECT_AFTER - 1) == 0
    assert fail(workers, 0.0, "a") == 1
    assert set(ask(workers, 0.5 * FIRST_EJECTION, 20)) == {"b", "c"}


def test_after_the_ejection_one_batch_is_the_trial_and_when_it_is_answered_the_worker_is_as_the_others():
    workers = Workers()
    fail(workers, 0.0, "a", EJECT_AFTER)
    first, *others = [workers.choose(FIRST_EJECTION, ABC) for _ in range(6)]
    assert first == "a" and "a" not in others
    workers.ended(FIRST_EJECTION, "a", End.PASSED)
    assert workers.choose(FIRST_EJECTION, ABC) == "a"


def test_a_trial_that_fails_ejects_for_twice_as_long_up_to_a_bound():
    workers, now, spans = Workers(), 0.0, []
    fail(workers, now, "a", EJECT_AFTER)
    for _ in range(8):
        begin = now
        while workers.choose(now, ABC) != "a":
            now += FIRST_EJECTION / 8
            assert now < 1000
        assert workers.ended(now, "a", End.FAILED)
        spans.append(now - begin)
    assert spans == [min(LONGEST_EJECTION, FIRST_EJECTION * 2**i) for i in range(8)]


def test_of_several_that_are_due_the_one_that_was_asked_longest_ago_is_tried():
    workers = Workers()
    for address in "ab":
        fail(workers, 0.0, address, EJECT_AFTER, among="ab")
    tried, now = [], 0.0
    for _ in range(6):
        now += LONGEST_EJECTION  # both are due
        tried.append(workers.choose(now, "ab"))
        workers.ended(now, tried[-1], End.GONE)
    assert tried in (["a", "b"] * 3, ["b", "a"] * 3)


def test_a_trial_is_nobodys_second_attempt():
    workers = Workers()
    fail(workers, 0.0, "a", EJECT_AFTER)
    assert set(ask(workers, FIRST_EJECTION, 6, again=True)) == {"b", "c"}


def test_when_all_are_ejected_all_are_asked():
    workers = Workers()
    for address in ABC:
        fail(workers, 0.0, address, EJECT_AFTER)
    assert set(ask(workers, 0.5 * FIRST_EJECTION, 3)) == set(ABC)
    assert ask(workers, 0.5 * FIRST_EJECTION, 3) == list(ABC)  # they answered, and are well


def test_a_batch_that_fails_everywhere_ejects_nobody_and_one_that_another_answers_counts():
    workers = Workers()
    assert sum(fail(workers, 0.0, address, 20, End.FAILED) for address in ABC) == 0
    assert [workers.blame(0.0, "a") for _ in range(EJECT_AFTER)] == [False] * (EJECT_AFTER - 1) + [True]
    assert set(ask(workers, 0.0, 20)) == {"b", "c"}


def test_who_failed_lately_is_not_the_second_opinion():
    workers = Workers()
    for address in "ab":
        fail(workers, 0.0, address, 1, End.FAILED)
    busy = workers.choose(0.0, ["c"])
    assert workers.choose(0.0, ABC, again=True) == "c"
    workers.ended(0.0, busy, End.PASSED)


def test_of_one_that_is_idle_and_well_nothing_is_kept():
    workers = Workers()
    fail(workers, 0.0, "a", EJECT_AFTER)
    ask(workers, FIRST_EJECTION, 3)
    ask(workers, FIRST_EJECTION, 3)
    assert workers._known == {}


@pytest.mark.parametrize("end", [End.FAILED, End.GONE])
def test_one_of_four_that_fails_fast_draws_a_few_batches_and_not_most_of_them(end):
    """Four workers in virtual time, 10 ms a batch, one fails after 0.1 ms; whatever fails is asked for elsewhere, once."""
    workers, asked, lost, names = Workers(), Counter(), 0, ("a", "b", "c", "d")
    under_way: list[tuple[float, str, str]] = []  # until when, at whom, and who failed it before
    for i in range(5000):
        now = 0.003 * i  # three workers have 90 % of what they can do
        while under_way and under_way[0][0] <= now:
            done, address, before = heapq.heappop(under_way)
            bad = address == "a"
            workers.ended(done, address, end if bad else End.PASSED)
            if bad and not before:
                other = workers.choose(done, [name for name in names if name != address], again=True)
                heapq.heappush(under_way, (done + 0.01, other, address))
            elif not bad and before:
                workers.blame(done, before)
            lost += bad and bool(before)
        address = workers.choose(now, names)
        asked[address] += 1
        heapq.heappush(under_way, (now + (0.0001 if address == "a" else 0.01), address, ""))
    assert lost == 0
    assert asked["a"] <= 5000 / 4 * 0.05  # 15 s hold the first failures and four trials


def test_of_more_workers_than_are_known_the_idle_one_that_was_asked_longest_ago_is_forgotten():
    workers = Workers()
    assert fail(workers, 0.0, "stays", EJECT_AFTER, among=())
    workers.choose(0.0, ["at work"])
    for plan in range(3 * MOST_KNOWN):
        workers.choose(1.0 + plan, [f"of plan {plan}"])
        workers.ended(1.0 + plan, f"of plan {plan}", End.GONE)
        workers.choose(1.0 + plan, ["stays"])  # the one that is asked all the time is not forgotten
        workers.ended(1.0 + plan, "stays", End.OPEN)
        workers.blame(1.0 + plan, f"blamed by {plan}")
        assert len(workers._known) <= MOST_KNOWN
    assert workers._known["stays"].ejections == 1 and "of plan 0" not in workers._known
    workers.ended(9999.0, "at work", End.PASSED)


def test_those_that_are_ejected_are_told_with_when_each_is_tried_and_with_their_batches():
    workers = Workers()
    assert workers.ejected(0.0, ABC) == ([], 0)
    assert workers.choose(0.0, ["a"]) == "a"  # which hangs
    fail(workers, 0.0, "a", EJECT_AFTER)
    fail(workers, 0.5, "b", EJECT_AFTER)
    assert workers.ejected(0.75, ABC) == ([FIRST_EJECTION - 0.75, FIRST_EJECTION - 0.25], 1)
    assert workers.ejected(0.75, ["b", "c", "d"]) == ([FIRST_EJECTION - 0.25], 0)
    assert workers.ejected(9.0, ABC) == ([0.0, 0.0], 1)  # both are due
    workers.ended(9.0, "a", End.OPEN)
    assert [workers.choose(9.0, ABC) for _ in range(2)] == ["a", "b"]
    assert workers.ejected(9.0, ABC) == ([0.0, 0.0], 0)  # on trial
    workers.ended(9.0, "a", End.PASSED)
    assert workers.ejected(9.0, ABC) == ([0.0], 0)


def test_the_health_of_a_worker_is_told():
    workers = Workers()
    assert workers.health(0.0, "a") == Health()
    fail(workers, 0.0, "a", EJECT_AFTER)
    assert workers.health(0.25 * FIRST_EJECTION, "a") == Health(0, EJECT_AFTER, 0.75 * FIRST_EJECTION)
    assert workers.choose(FIRST_EJECTION, ABC) == "a"
    assert workers.health(2 * FIRST_EJECTION, "a") == Health(1, EJECT_AFTER, 0.0)
    workers.ended(2 * FIRST_EJECTION, "a", End.PASSED)
    assert workers.health(2 * FIRST_EJECTION, "a") == Health()


def test_who_failed_is_asked_after_the_others_for_as_long_as_an_ejection_and_then_as_any():
    workers, paces = Workers(), Paces(ABC)
    fail(workers, 0.0, "a", 2)
    for now, asked in ((1.0, {"b", "c"}), (2 * FIRST_EJECTION + 0.01, {"a", "b", "c"})):
        seen = set()
        for _ in range(6):
            chosen = workers.choose(now, ABC, paces=paces)
            workers.ended(now, chosen, End.PASSED)
            seen.add(chosen)
        assert seen == asked
    assert workers.health(9.0, "a").doubts == 0  # it passed


def test_a_doubt_begins_when_a_call_has_failed_however_long_that_took():
    workers, paces = Workers(), Paces(("a", "b"))
    workers.choose(0.0, ["a"])
    workers.ended(30.0, "a", End.GONE)  # a time-out
    chosen = []
    for now in (30.1, 30.2, 30.3):
        chosen.append(workers.choose(now, ("a", "b"), paces=paces))
        workers.ended(now, chosen[-1], End.PASSED)
    assert chosen == ["b", "b", "b"]
