"""One suite over both stores, with the time injected; then the bodies of the rule against each other."""

import asyncio
import math
import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from sluice.batching import Batcher, Policy
from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.batching.policy import MAX_SLACK
from sluice.buffer_service.arrival_stream import read_arrivals, read_requests
from sluice.buffer_service.members import DOUBLE, MEMBERS, SLACKED, SLACKED_VERSION, member_slack
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_mailbox import MOST_BYTES
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import ID_LENGTH, Events, Limits, QueueLost
from tests.batching.strategies import policies_with_tables_beside, stimuli, ticks

A, B = "aaaaaaaa", "bbbbbbbb"
GREEDY = constructors.greedy(4, servers=1)
PAIRS = constructors.size_or_timeout(2, 1.0)


def member(i, process=A, slack=0.0):
    version = (SLACKED_VERSION, MEMBERS)[i % 2]  # with its body, and a ticket
    told = SLACKED.pack(version, DOUBLE, slack, DOUBLE, math.nan)[ID_LENGTH:] if slack else b""
    return f"{process}{i:08x}".encode() + told + b"body %d \x00\xff" % i


@pytest.fixture(params=["memory", "redis"])
async def open_store(request, redis_server):
    """Opens stores by process name on one backend, under model names that no other test uses."""
    backend, stores = MemoryBackend(), []

    def open_one(process):
        store = MemoryStore(backend, process) if request.param == "memory" else RedisStore(redis_server.url, process)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


async def test_a_queue_without_a_policy_is_lost_until_one_is_installed(open_store, model):
    queue = open_store(A).queue(model, Limits())
    with pytest.raises(QueueLost, match="no policy is installed"):
        await queue.advance(Events([member(1)]))
    await queue.install(PAIRS)
    assert (await queue.advance(Events([member(1)]))).accepted == 1


async def test_a_batch_leaves_when_it_is_full_or_when_its_first_has_waited_the_timeout(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(PAIRS)
    outcome = await queue.advance(Events([member(1), member(2), member(3)]), now=10.0)
    assert [b.members for b in outcome.batches] == [[member(1), member(2)]]
    assert (outcome.wake_in, outcome.queue_length) == (1.0, 1)
    assert (await queue.advance(Events(), now=10.5)).wake_in == 0.5
    assert [b.members for b in (await queue.advance(Events(), now=11.0)).batches] == [[member(3)]]


async def test_the_clock_of_the_store_rules_when_no_time_is_injected(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(PAIRS)
    wake_in = (await queue.advance(Events([member(1)]))).wake_in
    assert wake_in == pytest.approx(1.0, abs=1e-3)


async def test_batches_mix_the_members_of_several_processes(open_store, model):
    ours, theirs = open_store(A).queue(model, Limits()), open_store(B).queue(model, Limits())
    await ours.install(PAIRS)
    assert (await ours.advance(Events([member(1, A)]), now=1.0)).batches == []
    [batch] = (await theirs.advance(Events([member(2, B)]), now=1.1)).batches
    assert batch.members == [member(1, A), member(2, B)]
    assert batch.batch_id.startswith(B)


async def test_a_sweep_says_whether_all_who_were_heard_of_lately_lend_bodies(open_store, model):
    new, later, old = (open_store(name).queue(model, Limits(lease=1.0)) for name in ("p0000001", "p0000002", A))
    await new.install(PAIRS)
    assert (await new.advance(Events(serving=[]), now=0.0)).all_lend is True
    assert (await new.advance(Events(), now=0.1)).all_lend is None
    assert (await later.advance(Events(serving=[]), now=0.2)).all_lend is True
    assert (await old.advance(Events(serving=[]), now=0.3)).all_lend is False
    assert (await new.advance(Events(serving=[]), now=0.4)).all_lend is False
    assert (await new.advance(Events(serving=[]), now=10.2)).all_lend is False
    assert (await new.advance(Events(serving=[]), now=10.4)).all_lend is True  # ten leases after he was heard of


async def test_a_sweep_says_whether_its_process_is_alone(open_store, model):
    ours, theirs = open_store(A).queue(model, Limits()), open_store(B).queue(model, Limits())
    await ours.install(PAIRS)
    assert (await ours.advance(Events(serving=[]), now=0.0)).alone is True
    assert (await ours.advance(Events(), now=0.1)).alone is None
    assert (await theirs.advance(Events(serving=[]), now=0.2)).alone is False
    assert (await ours.advance(Events(serving=[]), now=0.3)).alone is False
    await theirs.advance(Events(serving=[], leaving=True), now=0.4)
    assert (await ours.advance(Events(serving=[]), now=0.5)).alone is True


async def test_a_server_is_free_again_when_its_batch_completes(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(GREEDY)
    [first] = (await queue.advance(Events([member(1)]), now=1.0)).batches
    assert (await queue.advance(Events([member(2), member(3)]), now=1.1)).batches == []
    [second] = (await queue.advance(Events(completed=[first.batch_id]), now=1.2)).batches
    assert second.members == [member(2), member(3)]
    assert second.batch_id != first.batch_id


async def test_completing_twice_frees_no_second_server(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(GREEDY)
    [first] = (await queue.advance(Events([member(1)]), now=1.0)).batches
    [second] = (await queue.advance(Events([member(2)], completed=[first.batch_id]), now=1.1)).batches
    assert second.members == [member(2)]
    assert (await queue.advance(Events([member(3)], completed=[first.batch_id]), now=1.2)).batches == []


async def test_a_full_queue_accepts_as_many_as_fit_in_order(open_store, model):
    queue = open_store(A).queue(model, Limits(max_queue_length=3))
    await queue.install(constructors.static(10))
    assert (await queue.advance(Events([member(i) for i in range(5)]), now=1.0)).accepted == 3
    assert (await queue.advance(Events([member(9)]), now=1.0)).accepted == 0
    await queue.install(constructors.greedy(10))
    [batch] = (await queue.advance(Events(), now=2.0)).batches
    assert batch.members == [member(i) for i in range(3)]


async def test_what_the_policy_serves_no_more_is_dropped_and_handed_back(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.Policy((float("inf"), 0.0), (0, 1), 1, drop_after=0.5))
    await queue.advance(Events([member(1), member(2)]), now=1.0)
    outcome = await queue.advance(Events([member(3)]), now=1.6)
    assert outcome.dropped == [member(2)]
    assert outcome.queue_length == 1


async def test_the_batch_of_a_silent_process_returns_to_the_head_when_its_lease_is_over(open_store, model):
    limits = Limits(lease=5.0)
    silent, alive = open_store(A).queue(model, limits), open_store(B).queue(model, limits)
    await silent.install(GREEDY)
    await silent.advance(Events(serving=[]), now=0.0)
    [lost] = (await silent.advance(Events([member(1), member(2)]), now=1.0)).batches
    await alive.advance(Events([member(3, B)], serving=[]), now=2.0)
    assert (await alive.advance(Events(serving=[]), now=5.0)).batches == []
    [again] = (await alive.advance(Events(serving=[]), now=5.5)).batches
    assert again.members == [member(1), member(2), member(3, B)]
    assert (await silent.advance(Events(completed=[lost.batch_id]), now=5.6)).batches == []  # too late, and harmless


async def test_a_process_that_renews_its_lease_keeps_its_batches(open_store, model):
    limits = Limits(lease=5.0)
    ours, theirs = open_store(A).queue(model, limits), open_store(B).queue(model, limits)
    await ours.install(GREEDY)
    await ours.advance(Events(serving=[]), now=0.0)
    [batch] = (await ours.advance(Events([member(1)]), now=1.0)).batches
    for now in (4.0, 8.0, 12.0):
        assert (await ours.advance(Events(serving=[batch.batch_id]), now=now)).batches == []
        assert (await theirs.advance(Events(serving=[]), now=now + 1)).batches == []


async def test_a_batch_whose_announcement_was_lost_is_released_again(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(GREEDY)
    await queue.advance(Events([member(1)]), now=1.0)  # the answer never arrives
    [again] = (await queue.advance(Events(serving=[]), now=1.5)).batches
    assert again.members == [member(1)]


async def test_members_that_are_lost_together_return_oldest_first_and_those_equally_old_by_their_ids(open_store, model):
    queue = open_store(A).queue(model, Limits(max_attempts=2))
    await queue.install(constructors.no_batching())
    come = [member(i, process) for i in (7, 3, 11, 5, 2, 9) for process in (B, A)]
    await queue.advance(Events([member(99, A)]), now=0.5)
    await queue.advance(Events(come), now=1.0)  # as many batches, none of which is heard of
    back = await queue.advance(Events(serving=[]), now=1.1)
    order = [member(99, A), *sorted(come, key=lambda each: each[:ID_LENGTH])]
    assert [batch.members for batch in back.batches] == [[each] for each in order]
    assert (await queue.advance(Events(serving=[]), now=1.2)).dead == order


async def test_what_is_lost_too_often_is_put_aside_and_handed_back(open_store, model):
    queue = open_store(A).queue(model, Limits(max_attempts=2))
    await queue.install(GREEDY)
    await queue.advance(Events([member(1)]), now=1.0)
    assert (await queue.advance(Events(serving=[]), now=2.0)).dead == []
    outcome = await queue.advance(Events([member(2)], serving=[]), now=3.0)
    assert outcome.dead == [member(1)]
    assert [b.members for b in outcome.batches] == [[member(2)]]


async def test_an_answered_member_starts_with_a_clean_record(open_store, model):
    queue = open_store(A).queue(model, Limits(max_attempts=2))
    await queue.install(GREEDY)
    await queue.advance(Events([member(1)]), now=1.0)
    [again] = (await queue.advance(Events(serving=[]), now=2.0)).batches
    await queue.advance(Events([member(1)], completed=[again.batch_id]), now=3.0)
    assert (await queue.advance(Events(serving=[]), now=4.0)).dead == []


@pytest.mark.parametrize("how", ["gone", "dropped"])
async def test_of_a_member_that_left_the_queue_without_an_answer_no_losses_are_kept(open_store, model, how):
    queue = open_store(A).queue(model, Limits(max_attempts=2))
    await queue.install(replace(GREEDY, drop_after=0.5 if how == "dropped" else None))
    await queue.advance(Events([member(1)]), now=1.0)
    outcome = await queue.advance(Events(serving=[], gone=[member(1)] if how == "gone" else []), now=2.0)
    assert (outcome.queue_length, outcome.dropped) == (0, [member(1)] if how == "dropped" else [])
    await queue.advance(Events([member(1)]), now=3.0)
    assert (await queue.advance(Events(serving=[]), now=3.2)).dead == []


BESIDE = replace(constructors.greedy(1, servers=1), beside=[constructors.greedy(2, servers=1)])


async def test_a_batch_gives_a_server_back_to_the_table_that_released_it_when_it_ends_or_is_lost(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(BESIDE)
    outcome = await queue.advance(Events([member(i) for i in range(6)]), now=1.0)
    _, beside = outcome.batches
    assert [(batch.members, batch.table) for batch in outcome.batches] == [([member(0)], 0), ([member(1), member(2)], 1)]
    assert outcome.busy == 2
    [again] = (await queue.advance(Events(completed=[beside.batch_id]), now=1.1)).batches
    assert (again.members, again.table) == ([member(3), member(4)], 1)
    outcome = await queue.advance(Events(serving=[again.batch_id], completed=["nobody00:1:1:1"]), now=1.2)  # the first is lost
    assert [(batch.members, batch.table) for batch in outcome.batches] == [([member(0)], 0)]
    outcome = await queue.advance(Events(serving=[outcome.batches[0].batch_id]), now=1.3)  # and now the one beside
    assert [(batch.members, batch.table) for batch in outcome.batches] == [([member(3), member(4)], 1)]


async def test_batches_of_a_table_that_is_no_more_take_a_server_of_the_first_and_of_their_own_when_it_is_back(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(BESIDE)
    _, beside = (await queue.advance(Events([member(i) for i in range(4)]), now=1.0)).batches
    await queue.install(constructors.greedy(1, servers=2))
    assert (await queue.advance(Events(), now=1.1)).batches == []
    await queue.install(BESIDE)
    assert (await queue.advance(Events(), now=1.2)).batches == []
    await queue.install(constructors.greedy(1, servers=2))
    [freed] = (await queue.advance(Events(completed=[beside.batch_id]), now=1.3)).batches
    assert freed.table == 0


async def test_the_size_of_a_batch_chooses_its_table_where_each_has_rows_of_its_own(open_store, model):
    queue, never = open_store(A).queue(model, Limits()), math.inf
    few = constructors.Policy((never, 0.5, 0.5, never, 0.0), (0, 1, 2, 0, 2))  # as a plan for every load has them
    await queue.install(constructors.Policy((never, never, never, 0.75, 0.0), (0, 0, 0, 3, 4), beside=[few]))
    assert (await queue.advance(Events([member(1), member(2)]), now=1.0)).wake_in == 0.5
    assert (await queue.advance(Events([member(3)]), now=1.25)).wake_in == 0.5  # three have longer
    [batch] = (await queue.advance(Events(), now=1.75)).batches
    assert (len(batch.members), batch.table) == (3, 0)
    await queue.advance(Events([member(4), member(5)]), now=2.0)
    [batch] = (await queue.advance(Events(), now=2.5)).batches
    assert (len(batch.members), batch.table) == (2, 1)
    full, rest = (await queue.advance(Events([member(i) for i in range(10, 18)]), now=3.0)).batches
    assert (len(full.members), full.table, len(rest.members), rest.table) == (4, 0, 4, 0)
    ended = (await queue.advance(Events([member(i) for i in range(20, 25)], at_most=[(0, 0)]), now=4.0)).batches
    assert [(len(batch.members), batch.table) for batch in ended] == [(2, 1)]  # of five; three wait for their own


async def test_a_server_beside_is_free_after_a_sweep_where_a_version_that_knows_of_none_completed_its_batch(redis_server, model):
    store = RedisStore(redis_server.url, A)
    queue, client = store.queue(model, Limits()), Redis.from_url(redis_server.url)
    await queue.install(BESIDE)
    first, beside = (await queue.advance(Events([member(i) for i in range(4)]), now=1.0)).batches
    await client.hdel(queue.keys[3], beside.batch_id)  # as it does
    [again] = (await queue.advance(Events(serving=[first.batch_id]), now=1.1)).batches
    assert (again.members, again.table) == ([member(3)], 1)
    await client.aclose()
    await store.close()


LATE, EARLY, SOON = member(1, slack=2.0), member(2, slack=-0.5), member(3, slack=0.5)


async def test_who_has_a_slack_waits_for_longer_than_the_table_says_and_leaves_with_others_earliest_deadline_first(
    open_store, model
):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.size_or_timeout(4, 1.0))
    assert (await queue.advance(Events([LATE]), now=1.0)).wake_in == 3.0
    assert (await queue.advance(Events([SOON]), now=1.5)).wake_in == 1.5
    outcome = await queue.advance(
        Events([member(4)]), now=2.0
    )  # its hold begins with that of the one before: who has none is first
    assert (outcome.wake_in, outcome.queue_length, outcome.behind) == (1.0, 3, 2)
    [batch] = (await queue.advance(Events([member(5)]), now=2.5)).batches
    assert batch.members == [member(4), SOON, member(5), LATE]


async def test_a_slack_below_0_lets_a_batch_leave_before_the_table_says(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(replace(constructors.size_or_timeout(4, 1.0), take=(0, 1, 1, 2, 4)))
    await queue.advance(Events([member(1)]), now=1.0)
    assert (await queue.advance(Events([EARLY]), now=1.25)).wake_in == 0.5
    outcome = await queue.advance(Events([LATE]), now=2.0)
    assert [b.members for b in outcome.batches] == [[EARLY, member(1)]] and outcome.wake_in == 3.0


async def test_who_has_a_slack_and_is_lost_returns_to_his_place_and_not_to_the_head(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.greedy(2))
    [batch] = (await queue.advance(Events([LATE, member(4)]), now=1.0)).batches
    assert batch.members == [member(4), LATE]
    later = member(7, slack=1.875)
    [again] = (await queue.advance(Events([member(5), SOON, later], serving=[]), now=1.25)).batches
    assert again.members == [member(4), member(5)]
    [rest] = (await queue.advance(Events([member(6)], completed=[again.batch_id]), now=1.5)).batches
    assert rest.members == [member(6), SOON]
    [last] = (await queue.advance(Events(completed=[rest.batch_id]), now=2.0)).batches
    assert last.members == [LATE, later]


async def test_who_has_a_slack_and_goes_is_in_no_batch_and_one_who_comes_twice_waits_once(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.static(3))
    outcome = await queue.advance(Events([LATE, SOON, LATE]), now=1.0)
    assert (outcome.accepted, outcome.queue_length) == (3, 2)
    assert (await queue.advance(Events([LATE]), now=1.5)).queue_length == 2
    assert (await queue.advance(Events(gone=[SOON, member(3, slack=0.25)]), now=2.0)).queue_length == 1
    [batch] = (await queue.advance(Events([member(4), member(5)]), now=3.5)).batches
    assert batch.members == [LATE, member(4), member(5)]


# With u in a hurry and p patient a hold of 10 + u + p / 8 s: it tells both.
TELLING = Policy([math.inf, *(10.0 + u + p / 8 for u in range(4) for p in range(4) if u + p)], [0] + [1] * 15, columns=4)
HURRIED = [member(i, slack=-0.5) for i in range(20, 25)]
PATIENT = [member(i, slack=0.5) for i in range(30, 35)]


def counted(outcome, since):
    """How many wait in a hurry, and how many are patient, by the hold of ``TELLING`` that runs ``since`` so many seconds."""
    urgent, eighths = divmod((outcome.wake_in + since - 10.0) * 8, 8)
    return urgent, eighths


async def test_a_table_of_columns_counts_who_has_no_slack_or_one_below_0_apart_from_who_has_one_above(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(TELLING)
    assert counted(await queue.advance(Events([PATIENT[0]]), now=1.0), -0.5) == (0, 1)
    assert counted(await queue.advance(Events([member(1)]), now=1.0), 0.0) == (1, 1)
    assert counted(await queue.advance(Events(HURRIED[:1]), now=1.0), 0.5) == (2, 1)
    assert counted(await queue.advance(Events([PATIENT[1], HURRIED[0], PATIENT[0]]), now=1.0), 0.5) == (2, 2)  # two are there
    assert counted(await queue.advance(Events(HURRIED[1:] + PATIENT[2:]), now=1.0), 0.5) == (3, 3)  # and more
    assert counted(await queue.advance(Events(gone=[*HURRIED[1:], *PATIENT[1:], HURRIED[1]]), now=1.0), 0.5) == (2, 1)
    assert counted(await queue.advance(Events(gone=[HURRIED[0], member(1)]), now=1.0), -0.5) == (0, 1)


async def test_who_waits_is_counted_anew_where_a_table_of_columns_follows_one_of_one_column(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(TELLING)
    await queue.advance(Events([HURRIED[0], HURRIED[1], PATIENT[0]]), now=1.0)
    await queue.install(constructors.static(100))
    await queue.advance(Events([HURRIED[2], *PATIENT[1:3]], gone=HURRIED[:2]), now=1.0)
    await queue.install(TELLING)
    assert counted(await queue.advance(Events(), now=1.0), 0.5) == (1, 3)
    assert counted(await queue.advance(Events(gone=PATIENT[1:]), now=1.0), 0.5) == (1, 1)


async def test_who_has_a_slack_and_was_lost_is_counted_again_as_what_he_was(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(Policy([math.inf, 0, 0, 0], [0, 1, 1, 1], columns=2))
    batches = (await queue.advance(Events([*HURRIED[:2], member(1), *PATIENT[:3]], serving=[]), now=1.0)).batches
    assert [batch.members for batch in batches] == [[one] for one in (*HURRIED[:2], member(1), *PATIENT[:3])]
    await queue.install(TELLING)
    assert counted(await queue.advance(Events(serving=[batches[i].batch_id for i in (0, 3, 4)]), now=1.0), 0.5) == (2, 1)
    assert counted(await queue.advance(Events(serving=[batches[3].batch_id]), now=1.0), 0.5) == (3, 2)


async def test_columns_cost_the_script_nothing_where_there_is_one_and_a_look_where_there_are_several(redis_server, model):
    store, client = RedisStore(redis_server.url, A), Redis.from_url(redis_server.url)
    calls = [
        Events([member(1), member(2)], serving=[]),
        Events([HURRIED[0], PATIENT[0]]),
        Events(gone=[member(1)], serving=[]),
        Events([PATIENT[1]], gone=[PATIENT[0]]),
        Events(gone=[HURRIED[0]]),
    ]

    async def commands(table, route):
        """How often the script has called each command."""
        queue = store.queue(model, Limits(), route)
        await queue.install(table)
        if table.columns == 1:
            await client.sadd(queue.keys[12], "what no script that reads it, or writes it, leaves")
        await client.config_resetstat()
        for call in calls:
            await queue.advance(call, now=1.0)
        stats = await client.info("commandstats")
        if table.columns == 1:
            assert await client.type(queue.keys[12]) == b"set"
        return {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats.items()}

    try:
        await commands(constructors.static(100), "loads the script")
        one, several = await commands(constructors.static(100), "one"), await commands(TELLING, "several")
    finally:
        await client.aclose()
        await store.close()
    more = {name: calls - one.get(name, 0) for name, calls in several.items() if calls != one.get(name, 0)}
    # The table's header lies behind that of its columns; what is kept is looked for by each call, and written when it has changed:
    # by the first call, which counts, when the one in a hurry came, and when he went.
    assert more == {"getrange": 5, "get": 5, "zcard": 1, "set": 3}


async def test_a_request_is_given_up_so_much_later_as_its_slack_is_long(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.Policy((math.inf, math.inf, math.inf, 0.0), (0, 0, 0, 3), drop_after=1.0))
    await queue.advance(Events([LATE, member(4)]), now=1.0)
    assert (await queue.advance(Events(), now=2.5)).dropped == [member(4)]
    assert (await queue.advance(Events(), now=4.0)).dropped == []
    assert (await queue.advance(Events(), now=4.25)).dropped == [LATE]


async def test_who_has_a_slack_and_came_after_now_came_now(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.size_or_timeout(9, 1.0))
    assert (await queue.advance(Events([LATE, SOON]), now=1000.0)).wake_in == 1.5
    assert (await queue.advance(Events(), now=999.0)).wake_in == 1.5  # and so the other
    assert [b.members for b in (await queue.advance(Events([EARLY]), now=1000.5)).batches] == [[SOON, EARLY, LATE]]


async def test_after_a_clock_was_set_back_a_sweep_dates_who_came_after_now_behind_one_who_did_not(open_store, model):
    queue = open_store(A).queue(model, Limits(lease=1.0))
    await queue.install(constructors.size_or_timeout(8, 0.0078125))
    old, young = member(1, slack=4.0), member(2, slack=8.0)
    await queue.advance(Events([old], serving=[]), now=1000.0)
    await queue.advance(Events([young], serving=[]), now=1003.0)
    assert (await queue.advance(Events(), now=1001.0)).wake_in == pytest.approx(3.0078125)  # for the old one
    assert (await queue.advance(Events(serving=[]), now=1001.0)).batches == []
    assert (await queue.advance(Events(gone=[old]), now=1004.0)).wake_in == pytest.approx(5.0078125)  # and not 7


async def test_what_is_no_slack_is_none(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.size_or_timeout(9, 1.0))
    for i, slack in enumerate((math.nan, math.inf, -2 * MAX_SLACK)):
        assert (await queue.advance(Events([member(i, slack=slack)]), now=1.0)).wake_in == 1.0
    cut = member(9, slack=2.0)[: ID_LENGTH + 10]
    assert (await queue.advance(Events([cut]), now=1.0)).wake_in == 1.0
    assert [b.members[3:] for b in (await queue.advance(Events(), now=2.0)).batches] == [[cut]]


async def test_who_leaves_takes_no_batch_and_holds_none(open_store, model):
    leaving, staying = open_store(A).queue(model, Limits()), open_store(B).queue(model, Limits())
    await leaving.install(GREEDY)
    await leaving.advance(Events(serving=[]), now=0.0)
    [batch] = (await leaving.advance(Events([member(1)]), now=1.0)).batches
    outcome = await leaving.advance(Events([member(2)], completed=[batch.batch_id], leaving=True), now=1.1)
    assert (outcome.accepted, outcome.batches) == (1, [])
    [rest] = (await staying.advance(Events(serving=[]), now=1.2)).batches
    assert rest.members == [member(2)]


async def test_who_has_gone_leaves_the_queue_and_is_in_no_batch(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.static(3, servers=None))
    outcome = await queue.advance(Events([member(1), member(2), member(1)]), now=1.0)
    assert (len(outcome.batches), outcome.taken) == (1, 3)
    await queue.advance(Events([member(4), member(5)]), now=2.0)
    outcome = await queue.advance(Events(gone=[member(4), member(1), member(99)]), now=2.5)
    assert outcome.queue_length == 1
    outcome = await queue.advance(Events([member(6), member(7)]), now=3.0)
    assert [b.members for b in outcome.batches] == [[member(5), member(6), member(7)]]
    assert outcome.taken == 6


async def test_the_age_of_who_stays_is_his_own_when_somebody_before_him_has_gone(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.size_or_timeout(3, 1.0))
    assert (await queue.advance(Events([member(1)]), now=1.0)).wake_in == 1.0
    await queue.advance(Events([member(2)]), now=1.5)
    outcome = await queue.advance(Events(gone=[member(1)]), now=1.75)
    assert outcome.wake_in == 0.75
    assert (await queue.advance(Events(gone=[member(2)]), now=1.75)).wake_in is None


async def test_who_was_not_heard_of_for_a_lease_judges_nobody(open_store, model):
    first, second = open_store(A).queue(model, Limits(lease=1.0)), open_store(B).queue(model, Limits(lease=1.0))
    await first.install(GREEDY)
    for queue in (first, second):
        await queue.advance(Events(serving=[]), now=0.0)
    [batch] = (await first.advance(Events([member(1)]), now=0.5)).batches
    assert (await second.advance(Events(serving=[]), now=3.0)).batches == []  # perhaps the store was away from both
    assert (await first.advance(Events(serving=[batch.batch_id]), now=3.2)).batches == []
    assert (await second.advance(Events(serving=[]), now=3.9)).batches == []
    [again] = (await second.advance(Events(serving=[]), now=4.5)).batches
    assert again.members == [member(1)]


async def test_who_came_after_now_came_now_and_waits_once_more_for_as_long_as_the_table_says(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.Policy((float("inf"), 0.01), (0, 1), drop_after=0.5))
    assert (await queue.advance(Events([member(1), member(2)]), now=1000.0)).wake_in == pytest.approx(0.01)
    assert (await queue.advance(Events(), now=990.0)).wake_in == pytest.approx(0.01)
    assert (await queue.advance(Events(), now=990.0078125)).wake_in == pytest.approx(0.0021875)
    assert [b.members for b in (await queue.advance(Events(), now=990.25)).batches] == [[member(1)], [member(2)]]
    await queue.install(constructors.Policy((float("inf"), float("inf"), 0.0), (0, 0, 2), drop_after=0.5))
    await queue.advance(Events([member(3)]), now=980.0)
    assert (await queue.advance(Events(), now=970.0)).dropped == []
    assert (await queue.advance(Events(), now=970.75)).dropped == [member(3)]


async def test_a_full_queue_that_came_after_now_is_dated_in_one_call(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.size_or_timeout(20_000, 1.0))
    everything = [member(i) for i in range(10_000)]
    await queue.advance(Events(everything), now=1000.0)
    assert (await queue.advance(Events(), now=990.0)).wake_in == 1.0
    assert (await queue.advance(Events(), now=990.5)).wake_in == 0.5
    [batch] = (await queue.advance(Events(), now=991.0)).batches
    assert batch.members == everything


async def test_a_lease_of_the_future_ends_a_lease_after_it_is_seen(open_store, model):
    dead, alive = open_store(A).queue(model, Limits(lease=1.0)), open_store(B).queue(model, Limits(lease=1.0))
    await dead.install(GREEDY)
    for queue in (dead, alive):
        await queue.advance(Events(serving=[]), now=1000.0)
    [lost] = (await dead.advance(Events([member(1)]), now=1000.0)).batches
    for now in (990.0, 990.5, 991.0):
        assert (await alive.advance(Events(serving=[]), now=now)).batches == []
    [again] = (await alive.advance(Events(serving=[]), now=991.5)).batches
    assert again.members == lost.members


async def test_who_was_heard_of_before_the_clock_was_set_back_judges_nobody_when_he_comes_again(open_store, model):
    serves, judges = (open_store(name).queue(model, Limits(lease=1.0)) for name in (A, B))
    await serves.install(GREEDY)
    for queue in (serves, judges):
        await queue.advance(Events(serving=[]), now=1000.0)
    [batch] = (await serves.advance(Events([member(1)]), now=1000.0)).batches
    await serves.advance(Events(serving=[batch.batch_id]), now=990.0)
    assert (await judges.advance(Events(serving=[]), now=992.0)).batches == []  # the clock was set forward beyond the lease
    await serves.advance(Events(serving=[batch.batch_id]), now=992.1)
    assert (await judges.advance(Events(serving=[]), now=992.2)).batches == []


async def test_a_clock_that_jumps_by_an_hour_takes_no_batch_from_who_serves_it(open_store, model):
    queues = [open_store(name).queue(model, Limits(lease=1.0)) for name in (A, B, "cccccccc")]
    await queues[0].install(constructors.greedy(1, servers=3))
    held, again = [], []
    for i, queue in enumerate(queues):
        await queue.advance(Events(serving=[]), now=0.0)
        held += (await queue.advance(Events([member(i)]), now=0.5)).batches
    for now in (3600.0, 3600.25):
        for queue, batch in zip(queues[:2], held, strict=False):  # the third is dead
            again += (await queue.advance(Events(serving=[batch.batch_id]), now=now)).batches
    assert [batch.members for batch in again] == [held[2].members]


async def test_a_swapped_policy_rules_those_who_wait(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.static(4))
    assert (await queue.advance(Events([member(1)]), now=1.0)).batches == []
    await queue.install(constructors.no_batching())
    assert [b.members for b in (await queue.advance(Events(), now=1.1)).batches] == [[member(1)]]


async def test_the_queues_of_two_routes_and_of_no_route_are_apart(open_store, model):
    store = open_store(A)
    queues = [store.queue(model, Limits(max_queue_length=2), route) for route in ("", "a", "b")]
    for queue, size in zip(queues, (3, 2, 3), strict=True):
        with pytest.raises(QueueLost):
            await queue.advance(Events([member(0)]), now=1.0)
        await queue.install(constructors.static(size))
    batches = [(await queue.advance(Events([member(1), member(2)]), now=1.0)).batches for queue in queues]
    assert [len(released) for released in batches] == [0, 1, 0]
    assert [(await queue.advance(Events([member(3)]), now=1.0)).accepted for queue in queues] == [0, 1, 0]


async def test_all_routes_of_a_model_share_one_record_of_arrivals_and_what_is_recorded_already_is_not_added(
    open_store, model, redis_server
):
    store = open_store(A)
    for now, route in ((10.0, "a"), (11.0, "b"), (12.0, "")):
        queue = store.queue(model, Limits(), route)
        await queue.install(PAIRS)
        await queue.advance(Events([member(1), member(2)], ages=[0.5, 0.0]), now=now)
        moved = await queue.advance(Events([member(3)], leaving=True, recorded=True), now=now)
        assert (moved.accepted, moved.queue_length, moved.batches) == (1, 1, [])
    times = store._backend.arrival_times(model) if isinstance(store, MemoryStore) else read_arrivals(redis_server.url, model)
    assert times.tolist() == [9.5, 10.0, 10.5, 11.0, 11.5, 12.0]


async def test_who_puts_something_into_a_queue_without_serving_keeps_his_lease_there(open_store, model):
    ours, theirs = open_store(A).queue(model, Limits(), "a"), open_store(B).queue(model, Limits(), "a")
    await ours.install(GREEDY)
    [batch] = (await ours.advance(Events([member(1)], serving=[]), now=1.0)).batches
    await ours.advance(Events([member(2)], leaving=True), now=1.1)
    assert (await theirs.advance(Events(serving=[]), now=1.2)).batches == []
    [rest] = (await ours.advance(Events(completed=[batch.batch_id]), now=1.3)).batches
    assert rest.members == [member(2)]


async def test_more_arrivals_than_the_script_may_unpack_at_once_stay_in_order(open_store, model):
    queue = open_store(A).queue(model, Limits())
    await queue.install(constructors.static(5000))
    everything = [member(i) for i in range(5000)]
    [batch] = (await queue.advance(Events(everything), now=1.0)).batches
    assert batch.members == everything


async def test_a_message_reaches_the_process_it_is_for_even_if_it_listens_later(open_store):
    ours, theirs = open_store(A), open_store(B)
    await ours.send(B, b"one")
    listening = asyncio.create_task(ours.receive())
    assert await theirs.receive() == [b"one"]
    await theirs.send(A, b"two")
    assert await listening == [b"two"]


async def test_messages_are_received_as_many_at_once_as_have_so_many_bytes_and_one_at_least(redis_server):
    ours, theirs = RedisStore(redis_server.url, A), RedisStore(redis_server.url, B)
    large, small = b"x" * (2 * MOST_BYTES), b"x" * (MOST_BYTES // 2)
    messages = [large, small, small, small, large, *(b"%d" % i for i in range(200))]
    try:
        for message in messages:
            await ours.send(B, message)
        received = [await theirs.receive() for _ in range(5)]
        assert [len(messages) for messages in received] == [3, 1, 100, 100, 1]
        assert [message for messages in received for message in messages] == messages
    finally:
        await ours.close()
        await theirs.close()


async def test_a_store_that_is_away_says_so(redis_server):
    store = RedisStore("unix:///nowhere/redis.sock", A)
    queue = store.queue("m", Limits())
    with pytest.raises(StoreUnavailable, match="Redis does not answer"):
        await queue.advance(Events([member(1)]))
    with pytest.raises(StoreUnavailable):
        await queue.check()


async def test_two_deployments_share_a_redis_and_neither_sees_the_other(redis_server, model):
    stores = [RedisStore(redis_server.url, A, namespace) for namespace in ("blue", "green", "sluice")]
    queues = [store.queue(model, Limits()) for store in stores]
    assert len({key for queue in queues for key in queue.keys}) == 3 * len(queues[0].keys)
    for queue in queues:
        with pytest.raises(QueueLost):
            await queue.advance(Events([member(1)]), now=1.0)
        await queue.install(PAIRS)
    for store, namespace in zip(stores, ("blue", "green", "sluice"), strict=True):
        await store.send(A, namespace.encode())
    for store, queue, namespace in zip(stores, queues, ("blue", "green", "sluice"), strict=True):
        assert (await queue.advance(Events([member(1)]), now=1.0)).queue_length == 1
        assert read_arrivals(redis_server.url, model, namespace).tolist() == [1.0]
        assert await store.receive() == [namespace.encode()]
        await store.close()
    assert [key for key in queues[2].keys if key.startswith(f"sluice:{{{model}}}:")] == queues[2].keys  # as they always were


# A clock that is set back now and then; its steps are exact in binary, as those forward are.
stimuli_by_a_clock_that_is_set = st.lists(
    st.tuples(ticks | ticks | ticks.map(lambda step: -4 * step), st.integers(0, 12), st.integers(0, 3)), max_size=30
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tables=st.lists(policies_with_tables_beside(), min_size=1, max_size=3),
    events=stimuli | stimuli_by_a_clock_that_is_set,
    limit=st.integers(1, 40),
    slacks=st.just([0.0])
    | st.lists(ticks | ticks.map(lambda slack: 8 * slack) | ticks.map(lambda slack: -slack), min_size=1, max_size=5),
    ages=st.just([]) | st.lists(ticks, min_size=1, max_size=5),
    early=st.just([0.0]) | st.lists(ticks, min_size=1, max_size=3),
)
def test_the_specification_the_memory_store_and_the_redis_script_release_the_same_batches(
    redis_server, tables, events, limit, slacks, ages, early
):
    asyncio.run(_drive_three_bodies(redis_server.url, tables, events, limit, slacks, ages, early))


async def _drive_three_bodies(url, tables, events, limit, slacks, ages, early):
    """Under each of the policies in turn, swapped every few events.

    Slacks and ages are those of one member after the other, and each event has one of ``early``.
    """
    model = uuid.uuid4().hex
    backend = MemoryBackend()
    redis, memory = RedisStore(url, A), MemoryStore(backend, A)
    limits = Limits(limit, max_attempts=1000)
    bodies = [redis.queue(model, limits), memory.queue(model, limits)]
    specification = Batcher(tables[0], member_slack)
    now, heard, called, count, in_flight, arrived, told = 1000.0, 0.0, 0.0, 0, {}, [], []
    try:
        for event, (gap, arrivals, completed) in enumerate(events):
            now += gap
            if event % 5 == 0:
                specification.policy = tables[event // 5 % len(tables)]
                for body in bodies:
                    await body.install(specification.policy)
            members = [member(count + i, slack=slacks[(count + i) % len(slacks)]) for i in range(arrivals)]
            done, serving = list(in_flight)[:completed], None
            for name in done:
                specification.accept(now, completed=1, table=in_flight.pop(name)[0])
            if event % 3 == 2:  # the announcement of the last two is lost
                back = []
                for name in list(in_flight)[-2:]:
                    table, dated = in_flight.pop(name)
                    specification.take_back(1, (), table)
                    back += dated
                specification.take_back(0, sorted(back, key=lambda each: (each[0], each[1][:ID_LENGTH])))
                serving = list(in_flight)
                if heard > now:  # the sweep finds its own process heard of after now
                    specification.set_back(now)
                heard = now
            gone = [member(count // 2, slack=slacks[count // 2 % len(slacks)])] if arrivals % 4 == 3 else []
            specification.withdraw(gone.__contains__)
            fitting = members[: max(0, limit - len(specification))]
            at_most = [(place, arrivals % 3) for place in range(4) if event % 6 == 5 and (arrivals >> place) % 2]
            sizes = [float(count + i) for i in range(arrivals)] if arrivals % 2 else []
            aged = [ages[(count + i) % len(ages)] for i in range(arrivals)] if ages else []
            ejected = [(place, 1 + arrivals % 3) for place in range(4) if event % 4 == 1 and (arrivals >> place) % 2]
            sooner = early[event % len(early)]
            begun = [age + sooner for age in aged[: len(fitting)] or [0.0] * len(fitting)]
            step = specification.advance(now, fitting, at_most=at_most, ages=begun, ejected=ejected)
            brought = Events(members, done, serving, ages=aged, gone=gone, sizes=sizes, at_most=at_most, ejected=ejected)
            brought = replace(brought, early=sooner)
            for body in bodies:
                outcome = await body.advance(brought, now=now)
                assert outcome.accepted == len(fitting)
                assert [tuple(b.members) for b in outcome.batches] == list(step.batches)
                assert [b.table for b in outcome.batches] == list(step.tables)
                assert tuple(outcome.dropped) == step.dropped
                assert outcome.wake_in == (None if step.wake_at is None else step.wake_at - now)
                assert (outcome.queue_length, outcome.behind) == (len(specification), specification.behind(now))
                busy = zip(specification.policy.tables, specification.busy(ejected), strict=True)
                assert outcome.busy == sum(servers for table, servers in busy if table.servers is not None)
            for batch, times in zip(outcome.batches, step.arrived, strict=True):
                in_flight[batch.batch_id] = batch.table, list(zip(times, batch.members, strict=True))
            count += arrivals
            if fitting:
                came = [now - age for age in aged[: len(fitting)] or [0.0] * len(fitting)]
                arrived = [time + min(0.0, now - called) for time in arrived] + came
                called = now
                told += sizes[: len(fitting)] or [math.nan] * len(fitting)
        kept = backend.arrivals(model)
        assert kept.times.tolist() == sorted(arrived)
        assert sorted(map(repr, kept.sizes)) == (sorted(map(repr, told)) if any(size == size for size in told) else [])
        if arrived:
            recorded = read_requests(url, model)
            assert recorded.times.tolist() == sorted(arrived) and recorded.sizes.tobytes() == kept.sizes.tobytes()
    finally:
        await redis.close()
