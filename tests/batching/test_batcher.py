import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching import Batcher, Policy
from sluice.batching import policy as constructors
from sluice.batching.errors import InvalidInput
from tests.batching.strategies import grids, policies, policies_with_tables_beside, row_in_words, stimuli, ticks

INF = math.inf


def run(policy, events):
    """Drive a Batcher as its owner must, ringing every timer on time; yield (now, step, arrival times of its members).

    Batches complete in the order in which they left.
    """
    batcher = Batcher(policy)
    now, member, wake_at, history = 1000.0, 0, None, []
    arrived = {}
    in_flight = []

    def record(at, step):
        history.append((at, step))
        in_flight.extend(step.tables)
        for table, servers in enumerate(table.servers for table in policy.tables):
            assert servers is None or in_flight.count(table) <= servers
        assert batcher.busy() == [in_flight.count(table) for table in range(len(policy.tables))]
        return step.wake_at

    for gap, arrivals, completed in events:
        due = now + gap
        while wake_at is not None and wake_at <= due:
            now = wake_at
            wake_at = record(now, batcher.tick(now))
        now = due
        members = list(range(member, member + arrivals))
        member += arrivals
        arrived |= dict.fromkeys(members, now)
        for table in in_flight[:completed]:
            batcher.accept(now, completed=1, table=table)
        del in_flight[:completed]
        wake_at = record(now, batcher.advance(now, members))
    return batcher, history, arrived


@given(policies_with_tables_beside(), stimuli)
def test_each_request_leaves_exactly_once_and_in_order(policy, events):
    batcher, history, arrived = run(policy, events)
    left = [m for _, step in history for m in sorted([*step.dropped, *(m for batch in step.batches for m in batch)])]
    assert left == list(range(len(left)))
    assert len(left) + len(batcher) == len(arrived)


@given(policies_with_tables_beside(), stimuli)
def test_no_batch_is_larger_than_its_table_takes_and_none_is_empty(policy, events):
    _, history, _ = run(policy, events)
    for _, step in history:
        for batch, table in zip(step.batches, step.tables, strict=True):
            assert 1 <= len(batch) <= policy.tables[table].max_batch_size
            assert list(batch) == sorted(batch)


@given(policies_with_tables_beside(), stimuli)
def test_never_more_batches_of_a_table_in_flight_than_it_has_servers(policy, events):
    _, history, _ = run(policy, events)  # which asserts it after every step
    for _, step in history:
        for table, servers in enumerate(table.servers for table in policy.tables):
            assert servers is None or step.tables.count(table) <= servers


@given(policies_with_tables_beside(), stimuli, st.lists(st.integers(0, 4), max_size=8))
def test_servers_that_are_ejected_have_no_batch_but_for_the_last_of_a_table(policy, events, ejected):
    batcher, now = Batcher(policy), 1000.0
    for gap, arrivals, _ in events:
        now += gap
        before = batcher.busy()
        step = batcher.advance(now, range(arrivals), ejected=list(enumerate(ejected)))
        for place, (table, busy) in enumerate(zip(policy.tables, batcher.busy(), strict=True)):
            if table.servers is not None and place in step.tables:
                left = table.servers - (ejected[place] if place < len(ejected) else 0)
                assert before[place] < busy <= max(1, left)


def test_an_ejected_server_of_an_elastic_table_or_of_none_says_nothing():
    batcher = Batcher(constructors.no_batching())
    assert len(batcher.advance(0.0, range(3), ejected=[(0, 9), (7, 1)]).batches) == 3


@given(st.integers(1, 8), st.integers(0, 64), stimuli)
def test_nobody_waits_longer_than_the_timeout_of_an_elastic_policy(batch_size, timeout, events):
    policy = constructors.size_or_timeout(batch_size, timeout / 64)
    _, history, arrived = run(policy, events)
    for now, step in history:
        for batch in step.batches:
            assert now <= arrived[batch[0]] + timeout / 64
            assert len(batch) == batch_size or now == arrived[batch[0]] + timeout / 64


@given(policies(), stimuli)
def test_while_a_server_is_free_no_request_waits_past_its_hold(policy, events):
    batcher = Batcher(policy)
    now, count, waiting = 1000.0, 0, []
    for gap, arrivals, completed in events:
        now += gap
        waiting += [(now, count + i) for i in range(arrivals)]
        step = batcher.advance(now, range(count, count + arrivals), min(completed, batcher.in_flight))
        count += arrivals
        gone = {m for batch in step.batches for m in batch} | set(step.dropped)
        waiting = [(arrived, m) for arrived, m in waiting if m not in gone]
        free = policy.servers is None or batcher.in_flight < policy.servers
        if free and waiting:
            ends = waiting[0][0] + policy.hold[row_in_words(policy, len(waiting))]
            assert now < ends
            assert step.wake_at == (ends if ends < INF else None)
        else:
            assert step.wake_at is None


@given(policies(), stimuli)
def test_a_table_beside_that_never_has_a_free_server_changes_nothing(policy, events):
    busy = Policy((INF, 0.0), (0, 1), 1)
    batcher, alone = Batcher(replace(policy, beside=[busy])), Batcher(policy)
    batcher.arrive(0.0, "?")
    if not batcher.busy()[1]:
        return  # the policy's own table took the first at once, or dropped it
    alone.accept(0.0)
    now, count = 1000.0, 0
    for gap, arrivals, completed in events:
        now += gap
        done = min(completed, alone.in_flight)
        step, same = (one.advance(now, range(count, count + arrivals), done) for one in (batcher, alone))
        assert (step.batches, step.dropped, step.wake_at) == (same.batches, same.dropped, same.wake_at)
        count += arrivals


@given(policies_with_tables_beside(), stimuli)
def test_a_table_releases_what_those_before_it_do_not_and_nobody_waits_past_a_hold(policy, events):
    batcher = Batcher(policy)
    now, count, times = 1000.0, 0, []
    for gap, arrivals, _ in events:
        now += gap
        busy = batcher.busy()
        times += [now] * arrivals
        step = batcher.advance(now, range(count, count + arrivals))
        count += arrivals
        dropped = len(step.dropped)
        for batch, place in zip(step.batches, step.tables, strict=True):
            while policy.drop_after is not None and now > times[0] + policy.drop_after:
                times, dropped = times[1:], dropped - 1
            assert place == next(i for i, table in enumerate(policy.tables) if _ends(table, busy[i], times) <= now)
            assert len(batch) == policy.tables[place].take[row_in_words(policy.tables[place], len(times))]
            times, busy[place] = times[len(batch) :], busy[place] + 1
        times = times[dropped:]
        ends = min((_ends(table, busy[i], times) for i, table in enumerate(policy.tables)), default=INF)
        assert now < ends and step.wake_at == (ends if ends < INF else None)


def _ends(table, in_flight, times):
    """When the hold of a table ends, ``inf`` where it has no free server or nobody waits."""
    if not times or (table.servers is not None and in_flight >= table.servers):
        return INF
    return times[0] + table.hold[row_in_words(table, len(times))]


@given(grids(), st.lists(st.tuples(ticks, st.lists(ticks.map(lambda slack: 4 * slack - 1), max_size=6)), max_size=20))
def test_of_a_grid_the_row_is_that_of_those_in_a_hurry_and_of_the_patient_who_wait(policy, events):
    batcher = Batcher(replace(policy, servers=None, drop_after=None), lambda member: member[1])
    now, count, waiting = 1000.0, 0, []  # of each the moment from which its hold runs, whether it has a slack, and who it is
    for gap, slacks in events:
        now += gap
        members = [(count + i, slack) for i, slack in enumerate(slacks)]
        waiting = sorted([*waiting, *((now + slack, slack != 0, (number, slack)) for number, slack in members)])
        count += len(slacks)
        step = batcher.advance(now, members)
        for batch in step.batches:
            row = row_in_words(policy, *_counted(waiting))
            assert now >= waiting[0][0] + policy.hold[row] or policy.hold[row] == 0
            assert [member for _, _, member in waiting[: policy.take[row]]] == list(batch)
            waiting = waiting[len(batch) :]
        ends = waiting[0][0] + policy.hold[row_in_words(policy, *_counted(waiting))] if waiting else INF
        assert step.wake_at == (ends if ends < INF else None) and now < ends


def _counted(waiting):
    """How many wait whose slack is at most 0, and how many whose slack is above."""
    patient = sum(slack > 0 for *_, (_, slack) in waiting)
    return len(waiting) - patient, patient


def test_a_patient_request_that_has_outwaited_its_slack_leaves_before_one_in_a_hurry_and_counts_as_patient_until_then():
    policy = Policy((INF, 9.0, INF, 0.5, 0.0, 0.0), (0, 1, 0, 1, 2, 1), columns=2)
    batcher = Batcher(policy, lambda member: 1.0 if member.isupper() else 0.0)
    assert batcher.arrive(0.0, "P").wake_at == 10.0
    step = batcher.arrive(2.0, "a")  # one of either kind wait, and the patient one should have left at 1.5
    assert (step.batches, step.wake_at) == ((("P",),), None)
    assert batcher.arrive(2.25, "Q").wake_at == 2.5
    step = batcher.tick(2.5)
    assert (step.batches, step.wake_at) == ((("a",),), 12.25)


def test_the_function_beside_takes_what_would_be_late_and_gives_no_server_back():
    overflow = constructors.size_or_timeout(8, 0.5)
    batcher = Batcher(replace(constructors.greedy(1), beside=[overflow]))
    assert batcher.arrive(0.0, "a").tables == (0,)
    assert batcher.arrive(1.0, "b").wake_at == 1.5
    batcher.arrive(1.25, "c")
    step = batcher.tick(1.5)
    assert (step.batches, step.tables, step.wake_at) == ((("b", "c"),), (1,), None)
    batcher.arrive(2.0, "d")
    assert batcher.complete(2.1, table=1).batches == ()
    assert batcher.complete(2.2).batches == (("d",),)


def test_batches_of_a_table_that_the_policy_has_no_more_take_a_server_of_the_first_until_they_end():
    batcher = Batcher(replace(constructors.greedy(1), beside=[constructors.greedy(1)]))
    assert batcher.arrive(0.0, "abc").tables == (0, 1)
    assert batcher.swap(1.0, constructors.greedy(1, servers=2)).batches == ()
    assert batcher.busy() == [2]
    assert batcher.complete(2.0, table=1).batches == (("c",),)


@given(policies(), stimuli)
def test_what_is_older_than_drop_after_is_never_served(policy, events):
    _, history, arrived = run(policy, events)
    for now, step in history:
        for batch in step.batches:
            for member in batch:
                assert policy.drop_after is None or now <= arrived[member] + policy.drop_after
        for member in step.dropped:
            assert policy.drop_after is not None and now > arrived[member] + policy.drop_after


def test_a_swapped_table_rules_those_who_wait_already():
    batcher = Batcher(constructors.static(8))
    batcher.arrive(0.0, "abc")
    assert batcher.swap(1.0, constructors.greedy(2)).batches == (("a", "b"),)


def test_a_lost_batch_returns_to_the_head_with_its_age():
    batcher = Batcher(constructors.size_or_timeout(2, 1.0))
    assert batcher.arrive(0.0, ["a"]).wake_at == 1.0
    assert batcher.arrive(0.25, ["b"]).batches == (("a", "b"),)
    batcher.arrive(0.5, ["c"])
    batcher.take_back(1, [(0.0, "a")])  # b is not to be served again
    assert batcher.in_flight == 0
    assert batcher.tick(0.75).batches == (("a", "c"),)


def test_the_hold_of_who_is_brought_late_runs_from_when_he_came_and_he_stands_behind_who_was_brought_before():
    batcher = Batcher(constructors.size_or_timeout(3, 1.0))
    assert batcher.arrive(0.75, ["a", "b"], [0.5, 0.0]).wake_at == 1.25
    assert batcher.tick(1.25).batches == (("a", "b"),)
    assert batcher.arrive(2.0, ["c"]).wake_at == 3.0
    assert batcher.arrive(2.5, ["d"], [0.75]).wake_at == 3.0
    assert batcher.tick(3.0).batches == (("c", "d"),)
    assert batcher.arrive(5.0, ["e"], [1.5]).batches == (("e",),)


def test_when_time_runs_back_who_waits_came_now_and_his_hold_runs_on_from_there():
    batcher = Batcher(constructors.size_or_timeout(3, 1.0))
    batcher.arrive(1000.0, "ab")
    assert batcher.tick(990.0).wake_at == 991.0
    assert batcher.tick(990.5).wake_at == 991.0
    step = batcher.tick(991.0)
    assert (step.batches, step.arrived) == ((("a", "b"),), ((990.0, 990.0),))


def test_who_came_after_now_is_dated_when_he_is_the_oldest():
    batcher = Batcher(constructors.size_or_timeout(4, 1.0))
    batcher.arrive(10.0, "a")
    batcher.arrive(10.75, "b")
    assert batcher.arrive(10.25, "c").wake_at == 11.0
    batcher.withdraw("a".__eq__)
    assert batcher.tick(10.5).wake_at == 11.5
    assert batcher.tick(11.5).arrived == ((10.5, 10.5),)


def test_a_time_that_is_no_number_is_refused():
    with pytest.raises(InvalidInput, match="now: nan .* a number of seconds"):
        Batcher(constructors.no_batching()).tick(float("nan"))


def test_more_completions_than_batches_in_flight_are_refused():
    batcher = Batcher(constructors.no_batching())
    batcher.arrive(0.0, "a")
    with pytest.raises(InvalidInput, match="completed: 2 .* from 0 to the 1 batches in flight"):
        batcher.complete(1.0, 2)
    with pytest.raises(InvalidInput, match="batches: 2"):
        batcher.take_back(2, [])
    with pytest.raises(InvalidInput, match="completed: 1 .* from 0 to the 0 batches in flight"):
        batcher.complete(1.0, table=1)


def test_a_finite_hold_below_an_infinite_one_sends_a_smaller_batch_when_the_queue_shrinks():
    policy = Policy((INF, 0.5, INF, 0.0), (0, 1, 0, 2), None)
    batcher = Batcher(policy)
    assert batcher.arrive(0.0, "abc").batches == (("a", "b"),)
    assert batcher.tick(0.5).batches == (("c",),)
