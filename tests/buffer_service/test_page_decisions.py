"""What the live page tells of decisions: read from what controllers wrote, with what was measured beside it."""

import asyncio
import json
import time

import msgspec
import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.page.decisions import LOOK_EVERY, MOST_CONSIDERED, MOST_CORRECTIONS, MOST_WORDS, Decisions, decision_of
from sluice.buffer_service.page.history import SAMPLE_EVERY
from sluice.buffer_service.page.status import MOST_DECISIONS
from sluice.buffer_service.redis_plans import RedisPlans
from tests.buffer_service.conftest import Plans, serving
from tests.buffer_service.virtual_time import in_virtual_time

CONSIDERED = {
    "name": "as it is",
    "digest": "d1",
    "predicted": {"usd_per_million": 1.0, "percentile": 0.1},
    "rehearsed": {"usd_per_million": [1.1, 1.0, 1.2], "percentile": [0.15, 0.14, 0.16], "late": [0.01, 0.0, 0.02]},
    "keeps": True,
}


def entry(at, **more):
    """As a controller writes it."""
    told = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{1000 * (at % 1):03.0f}+00:00",
        "model": "m",
        "words": "nothing is cheaper",
        "trigger": {"kind": "rate", "words": "three times as many requests"},
        "considered": [CONSIDERED],
        "in_force": "as it is",
        "chosen": "",
        "changed": False,
        "digest": None,
        "saving_usd_per_hour": 0.0,
        "arrival_rate": 12.5,
        "alarm": "",
    }
    return msgspec.json.encode(told | more)


class Journal:
    """What a Redis has, or does not tell."""

    def __init__(self, *lines, leader="host:1:abc"):
        self.lines, self.name, self.away, self.asked = list(lines), leader, False, 0

    async def decisions(self, most):
        self.asked += 1
        if self.away:
            raise StoreUnavailable("Redis does not answer")
        return self.lines[:most]

    async def reasons(self, most):
        return []

    async def leader(self):
        return self.name

    async def close(self):
        self.lines = None


def test_an_entry_is_told_with_what_it_was_due_for_what_it_compared_and_what_it_expected():
    told = decision_of(entry(1000.5, chosen="as it is"))
    assert (told["at"], told["model"], told["trigger"]) == (1000.5, "m", "three times as many requests")
    assert (told["words"], told["changed"], told["arrival_rate"]) == ("nothing is cheaper", False, 12.5)
    (considered,) = told["considered"]
    assert (considered["name"], considered["usd_per_million"], considered["keeps"]) == ("as it is", [1.1, 1.0, 1.2], True)


def test_what_came_of_the_one_before_and_what_was_corrected_are_told_and_bounded():
    since = {"requests": 4, "late": 0.5, "percentile": None, "expected": {"late": 0.1, "usd_per_million": [1, 2, 3]}}
    setting = {"memory_mb": 512, "batch_size": 2, "batches": 9, "latency": [0.001, None], "cost": "x"}
    told = decision_of(entry(0.0, since_last=since, measured_less_predicted=[setting] * 99, expected=CONSIDERED))
    assert told["expected"]["digest"] == "d1" and len(told["corrections"]) == MOST_CORRECTIONS
    assert told["corrections"][0] == setting | {"cost": None}
    came = told["since_last"]
    assert (came["requests"], came["late"], came["seconds"]) == (4, 0.5, None)
    assert came["expected"] == {"late": 0.1, "percentile": None, "usd_per_million": [1, 2, 3]}
    for wrong in ([], "x", {"requests": "4"}):
        assert decision_of(entry(0.0, since_last=wrong, measured_less_predicted=3, expected=[]))["since_last"] is None


async def test_a_decision_has_what_the_next_one_says_came_of_it_and_the_cost_of_others_is_told_at_the_rate_of_now(function):
    since = {"requests": 4000, "late": 0.02}
    plans = [CONSIDERED, CONSIDERED | {"digest": "d2", "keeps": False}]
    new = entry(time.time() - 1.0, since_last=since, considered=plans, given="d2", unbatched="d9", expected=CONSIDERED)
    async with serving(function, None, plans=served(), journal=Journal(new, entry(time.time() - 4000.0))) as buffer:
        model = (await told(buffer))["models"][0]
    assert [each["came"] and each["came"]["requests"] for each in model["decisions"]] == [None, 4000]
    rehearsed = model["cost"]["rehearsed"]
    assert (rehearsed["serving"]["usd_per_million"], rehearsed["given"]["keeps"], rehearsed["unbatched"]) == (
        pytest.approx(1.1),
        False,
        None,
    )


def test_the_reason_of_a_decision_is_told_where_it_has_one_beside_its_words():
    told = decision_of(entry(0.0, why="it costs 3 % less", words="more came: it costs 3 % less; it could not be put into force"))
    assert (told["words"], told["hole"]) == ("it costs 3 % less", False)
    assert told["sentence"] == "more came: it costs 3 % less; it could not be put into force"


def test_an_entry_about_a_hole_is_told_apart():
    assert [decision_of(entry(0.0, hole=hole))["hole"] for hole in ({"missed": 3}, 3, None)] == [True, False, False]


@pytest.mark.parametrize(
    "line",
    [b"", b"garbage", b"[]", b"3", b"{}", b'{"at": 3}', b'{"at": "yesterday"}', b'{"at": "0001-01-01"}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_entry_is_left_out(line):
    assert decision_of(line) is None


def test_of_an_entry_by_somebody_else_what_has_another_type_is_left_out_and_what_is_long_is_cut():
    wrong = {"trigger": [1], "considered": [3, {"name": 7, "rehearsed": 1}], "why": 5, "alarm": "x" * 10_000, "digest": {}}
    told = decision_of(entry(0.0, **wrong, changed="yes", arrival_rate=True, change_usd="1"))
    assert (told["trigger"], told["words"], told["digest"], told["changed"]) == ("", "nothing is cheaper", None, False)
    assert (told["arrival_rate"], told["change_usd"], len(told["alarm"])) == (None, None, MOST_WORDS)
    nothing = {"name": "", "digest": "", "usd_per_million": None, "percentile": None, "late": None, "keeps": False}
    assert told["considered"] == [nothing]
    assert len(decision_of(entry(0.0, considered=[CONSIDERED] * 99))["considered"]) == MOST_CONSIDERED
    for interval, is_told in (([1], None), ([1, None, "x"], [1.0, None, None]), ("abc", None)):
        (considered,) = decision_of(entry(0.0, considered=[{"rehearsed": {"usd_per_million": interval}}]))["considered"]
        assert considered["usd_per_million"] == is_told


async def test_decisions_are_looked_for_seldom_and_stay_while_the_store_is_away():
    now, journal = [0.0], Journal(entry(1.0), b"garbage")
    decisions = Decisions(journal, lambda: now[0])
    for _ in range(3):
        await decisions.look()
    assert (journal.asked, len(decisions.entries), decisions.leader) == (1, 1, "host:1:abc")
    journal.away = True
    now[0] += LOOK_EVERY
    await decisions.look()
    assert (journal.asked, len(decisions.entries), decisions.trouble) == (2, 1, "Redis does not answer")
    journal.away = False
    journal.lines.insert(0, entry(2.0))
    now[0] += LOOK_EVERY
    await decisions.look()
    assert (len(decisions.entries), decisions.trouble) == (2, "")


async def told(buffer):
    status, _, body = await buffer.get("/status")
    assert status == 200
    return json.loads(body)


def served():
    policy = PolicyDocument.of(constructors.no_batching())
    return Plans(Plan(model="m", function="f", policy=policy, slo=Slo(0.5)))


@in_virtual_time
async def test_beside_a_decision_stands_what_was_measured_from_it_to_the_next(function):
    journal = Journal()
    async with serving(function, None, plans=served(), journal=journal) as buffer:
        for n in (1, 2, 4, 8, 16):  # after each sample; the last has none behind it
            await asyncio.sleep(0.5 * SAMPLE_EVERY)
            for _ in range(n):
                await buffer.post("/models/m", b"1")
            await asyncio.sleep(0.5 * SAMPLE_EVERY)
        began = time.time() - 5 * SAMPLE_EVERY
        journal.lines = [entry(began + 2.9 * SAMPLE_EVERY), entry(began + 0.9 * SAMPLE_EVERY), entry(began - 1e4)]
        new, old, before = (await told(buffer))["models"][0]["decisions"]
    assert (new["measured"]["ended"], old["measured"]["ended"], before["measured"]) == (8 + 16, 2, None)
    assert old["measured"]["seconds"] == pytest.approx(SAMPLE_EVERY, abs=0.1)


@in_virtual_time
async def test_a_model_without_decisions_has_none_and_who_leads_is_told(function):
    lines = [entry(1.0 + i, model="other") for i in range(20)]
    async with serving(function, None, plans=served(), journal=Journal(*lines)) as buffer:
        document = await told(buffer)
    assert document["models"][0]["decisions"] == []
    assert len(document["other_decisions"]) == MOST_DECISIONS
    assert document["control"] == {"leader": "host:1:abc", "trouble": None}


async def test_what_a_controller_wrote_to_redis_is_told(function, redis_server):
    plans = RedisPlans(redis_server.url, "page")
    (plan,) = served().plans
    try:
        for at in (1.0, 2.0):
            await plans.note_decision(entry(at))
        await plans.write(structs.replace(plan, memory_mb=512, digest=""), "others", "of no concern")
        await plans.write(plan, "tester", "it is the only one")
        assert await plans.lead("host:2:def", 60.0)
    finally:
        await plans.close()
    async with serving(function, None, plans=served(), journal=RedisPlans(redis_server.url, "page")) as buffer:
        document = await told(buffer)
    assert [each["at"] for each in document["models"][0]["decisions"]] == [2.0, 1.0]
    assert document["control"] == {"leader": "host:2:def", "trouble": None}
    put = document["models"][0]["plan"]["put"]
    assert (put["by"], put["why"], put["digest"]) == ("tester", "it is the only one", plan.digest)


async def test_a_redis_that_is_away_is_said_and_the_page_goes_on(function):
    async with serving(function, None, plans=served(), journal=RedisPlans("redis://127.0.0.1:1/0")) as buffer:
        document = await told(buffer)
    assert "does not answer" in document["control"]["trouble"]
    assert [model["name"] for model in document["models"]] == ["m"]
