"""How a request says its class and its deadline, and what a buffer does with them: read, held, refused, counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.flood import apart
from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, Slo, read, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import MAX_SLACK
from sluice.buffer_service.members import Unreadable, decode_member, encode_member, member_size, member_slack
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.plans import check_waits
from sluice.buffer_service.told import CLASS_HEADER, DEADLINE_HEADER, NOTHING_TOLD, Classes, Told
from sluice.lambda_fn.contract import INFERENCE_HEADER, Item
from tests.buffer_service.conftest import Function, Plans, memory, serving
from tests.buffer_service.test_overload import BATCH, CAPACITY, SERVICE_TIME, SLOTS, Throttled, Worker
from tests.buffer_service.test_served_model import sample, serving_plan
from tests.buffer_service.virtual_time import in_virtual_time

PROMISED = Slo(0.2)
FAST, SLOW, ANY = RequestClass("fast", PROMISED), RequestClass("slow", Slo(1.5)), RequestClass("any", slack=60.0)
PATIENT = RequestClass("any", slack=1.85)  # with the table as long as callers wait in these tests
TABLE = constructors.size_or_timeout(8, 0.125)


def plan(*classes: RequestClass, slo: Slo | None = PROMISED, table: constructors.Policy = TABLE) -> Plan:
    return Plan(model="m", function="f", policy=PolicyDocument.of(table), slo=slo, classes=list(classes))


# --- the plan


def test_a_class_has_the_slack_that_its_slo_has_beyond_the_plans_unless_it_says_another():
    told = [RequestClass("sooner", Slo(0.15)), SLOW, ANY, RequestClass("own", Slo(1.0), slack=0.5)]
    assert [each.slack for each in plan(*told).classes] == pytest.approx([-0.05, 1.3, 60.0, 0.5])
    assert read(Plan, write(plan(*told))) == plan(*told)


def test_a_plan_without_classes_keeps_its_digest_and_one_with_others_has_another():
    without = plan()
    assert without.digest == "5899458ed3f9118b"
    assert len({without.digest, plan(FAST).digest, plan(FAST, SLOW).digest, plan(SLOW, FAST).digest}) == 4


@pytest.mark.parametrize(
    ("classes", "slo", "said"),
    [
        ([RequestClass("a b", slack=0.0)], None, r"classes\[0\].name: 'a b' is not allowed"),
        ([RequestClass("a", slack=0.0), RequestClass("a", slack=1.0)], None, r"classes\[1\].name: 'a' .* each name once"),
        (
            [RequestClass("a")],
            Slo(0.2),
            r"classes\[0\].slack: none was given; needed: .* or else an slo of the class and one of the plan",
        ),
        (
            [RequestClass("a", Slo(0.2))],
            None,
            r"classes\[0\].slack: none was given; needed: .* or else an slo of the class and one of the plan",
        ),
        ([RequestClass("a", slack=math.inf)], None, r"classes\[0\].slack: inf .* from -86400 to 86400"),
        ([RequestClass("a", slack=math.nan)], None, r"classes\[0\].slack: nan"),
        ([RequestClass(f"c{i}", slack=0.0) for i in range(257)], None, "classes: 257 .* at most 256"),
    ],
)
def test_a_class_that_is_none_is_refused_with_its_field(classes, slo, said):
    with pytest.raises(InvalidInput, match=said):
        plan(*classes, slo=slo)


def test_a_slack_for_which_no_caller_waits_is_refused_with_the_longest_hold():
    check_waits(plan(ANY), 60.125)
    allowed = (
        r"at most 59.875 s: with the longest hold of 0.125 s that is 60 s, after which callers get 504 \(SLUICE_REQUEST_TIMEOUT\)"
    )
    with pytest.raises(InvalidInput, match=rf"classes\[1\].slack: 60.0 is not allowed; allowed: {allowed}"):
        check_waits(plan(FAST, ANY), 60.0)


def test_a_class_that_would_be_dropped_as_it_comes_is_refused_with_the_time_after_which_requests_are():
    table = replace(constructors.greedy(8, servers=1), drop_after=0.5)
    hurried = RequestClass("hurried", slack=-0.5)
    check_waits(plan(RequestClass("hurried", slack=-0.4), table=table), 60.0)
    with pytest.raises(
        InvalidInput, match=r"classes\[1\].slack: -0.5 is not allowed; allowed: more than -0.5 s: drop_after is 0.5 s"
    ):
        check_waits(plan(FAST, hurried, table=table), 60.0)


# --- what a request tells


@pytest.mark.parametrize(
    ("said", "body", "name", "slack", "latency"),
    [
        ({}, b"1", "fast", 0.0, 0.2),
        ({CLASS_HEADER: b"slow"}, b"1", "slow", 1.3, 1.5),
        ({CLASS_HEADER: b"any"}, b"1", "any", 60.0, math.inf),
        ({DEADLINE_HEADER: b"0.5"}, b"1", "fast", 0.3, 0.5),
        ({DEADLINE_HEADER: b"0.05", CLASS_HEADER: b"slow"}, b"1", "slow", -0.15, 0.05),
        ({}, b'{"parameters": {"sluice_class": "slow"}, "inputs": []}', "slow", 1.3, 1.5),
        ({}, b'{"parameters": {"sluice_deadline": 1, "other": {}}}', "fast", 0.8, 1.0),
        ({CLASS_HEADER: b"any"}, b'{"parameters": {"sluice_class": "slow", "sluice_deadline": 1}}', "any", 0.8, 1.0),
        ({}, b'{"parameters": {"priority": 2}}', "slow", 1.3, 1.5),
        ({}, b'{"parameters": {"priority": 3, "timeout": 1000000}}', "any", 0.8, 1.0),
        ({}, b'{"parameters": {"priority": 0, "timeout": 0}}', "fast", 0.0, 0.2),
        ({}, b'{"parameters": {"priority": 3, "sluice_class": "slow", "timeout": 9, "sluice_deadline": 1}}', "slow", 0.8, 1.0),
        ({CLASS_HEADER: b"slow", DEADLINE_HEADER: b"1"}, b'{"parameters": {"priority": 7, "timeout": -1}}', "slow", 0.8, 1.0),
        ({}, b'{"parameters": null}', "fast", 0.0, 0.2),
        ({}, b'{"parameters": [1]}', "fast", 0.0, 0.2),
        ({}, b"\xff\x00", "fast", 0.0, 0.2),
    ],
)
def test_a_class_and_a_deadline_are_told_by_header_or_parameter_and_the_first_class_is_that_of_who_tells_none(
    said, body, name, slack, latency
):
    told = Classes(plan(FAST, SLOW, ANY)).of(said, {}, body)
    assert (told.name, told.slack, told.latency) == (name, pytest.approx(slack), latency)


def test_priorities_go_by_what_is_promised_wherever_a_class_stands_in_the_plan():
    classes = Classes(plan(SLOW, ANY, FAST))
    named = [classes.of({}, {}, b'{"parameters": {"priority": %d}}' % priority).name for priority in (0, 1, 2, 3)]
    assert named == ["slow", "fast", "slow", "any"]


def test_of_a_body_with_binary_tensors_the_parameters_in_front_are_read():
    front = b'{"parameters": {"sluice_class": "slow"}}'
    classes = Classes(plan(FAST, SLOW))
    assert classes.of({}, {INFERENCE_HEADER: str(len(front))}, front + b"\xff\x00binary").name == "slow"
    assert classes.of({}, {INFERENCE_HEADER: "9" * 5000}, front).name == "fast"


@pytest.mark.parametrize(
    ("said", "body", "refused"),
    [
        ({CLASS_HEADER: b"quick"}, b"", "sluice-class: 'quick' is not allowed; allowed: a class of the plan: fast, slow"),
        ({CLASS_HEADER: b"\xff" * 900}, b"", "sluice-class: '" + "ÿ" * 80 + "' is"),
        ({}, b'{"parameters": {"sluice_class": 7}}', "sluice_class: '7' is not allowed; allowed: a class"),
        ({}, b'{"parameters": {"sluice_class": [{"a": 1}]}}', """sluice_class: '[{"a": 1}]' is not allowed; allowed: a class"""),
        ({}, b'{"parameters": {"sluice_deadline": [1]}}', "sluice_deadline: '[1]'"),
        (
            {DEADLINE_HEADER: b"soon"},
            b"",
            "sluice-deadline: 'soon' is not allowed; allowed: a number of seconds above 0, at most 86400",
        ),
        ({DEADLINE_HEADER: b"0"}, b"", "sluice-deadline: '0'"),
        ({DEADLINE_HEADER: b"-1"}, b"", "sluice-deadline: '-1'"),
        ({DEADLINE_HEADER: b"NaN"}, b"", "sluice-deadline: 'NaN'"),
        ({DEADLINE_HEADER: b"1e9"}, b"", "sluice-deadline: '1e9'"),
        ({}, b'{"parameters": {"sluice_deadline": true}}', "sluice_deadline: 'True'"),
        ({}, b'{"parameters": {"sluice_deadline": "1"}}', "sluice_deadline: '1'"),
        (
            {},
            b'{"parameters": {"priority": 3}}',
            "priority: '3' is not allowed; allowed: an integer: 0 for none, or 1 to 2: fast, slow",
        ),
        ({}, b'{"parameters": {"priority": true}}', "priority: 'True' is not allowed"),
        ({}, b'{"parameters": {"priority": -1}}', "priority: '-1' is not allowed"),
        (
            {},
            b'{"parameters": {"timeout": 0.5}}',
            "timeout: '0.5' is not allowed; allowed: microseconds: 0 for none, or an integer",
        ),
        ({}, b'{"parameters": {"timeout": 86400000001}}', "timeout: '86400000001' is not allowed; allowed: microseconds: 0 for"),
    ],
)
def test_what_is_no_class_of_the_plan_or_no_time_is_refused_with_its_name_and_value(said, body, refused):
    with pytest.raises(InvalidInput) as error:
        Classes(plan(FAST, SLOW)).of(said, {}, body)
    assert str(error.value).startswith(refused)


def test_nothing_is_made_of_a_parameter_that_is_neither_a_name_nor_a_number():
    values = b"[%s]" % b",".join([b"{}"] * 200_000)  # 13 MB as objects of Python
    classes = Classes(plan(FAST, SLOW))
    for name in (b"sluice_class", b"sluice_deadline"):
        tracemalloc.start()
        with pytest.raises(InvalidInput, match=r"'\[\{\},\{\},"):
            classes.of({}, {}, b'{"parameters": {"%s": %s}}' % (name, values))
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
        tracemalloc.stop()


def test_a_plan_without_classes_reads_deadlines_alone_and_one_without_an_slo_takes_none():
    body = b'{"parameters": {"sluice_class": "slow", "priority": 7, "sluice_deadline": 1}}'
    for said in ({}, {CLASS_HEADER: b"slow"}):
        assert Classes(plan()).of(said, {}, body) == Told(slack=pytest.approx(0.8), latency=1.0)
        assert Classes(plan()).of(said, {}, b'{"parameters": {"priority": 7}}') is NOTHING_TOLD
        assert Classes(plan()).of(said, {}, None) is NOTHING_TOLD, "no body of the protocol has no parameters"
        assert Classes(plan(slo=None)).of(said, {}, body) is NOTHING_TOLD
    assert Classes(plan()).of({}, {}, b'{"parameters": {"timeout": 50000}}').latency == 0.05
    with pytest.raises(InvalidInput, match="timeout: '90000000' is not allowed; allowed: microseconds: 0 for none, or an integer"):
        Classes(plan(), patience=60.0).of({}, {}, b'{"parameters": {"timeout": 90000000}}')
    assert Classes(plan()).of({DEADLINE_HEADER: b"1"}, {}, b"").slack == pytest.approx(0.8)
    with pytest.raises(
        InvalidInput, match="sluice-deadline: '90' is not allowed; allowed: a number of seconds above 0, at most 60"
    ):
        Classes(plan(), patience=60.0).of({DEADLINE_HEADER: b"90"}, {}, b"")
    with pytest.raises(InvalidInput, match="none: the plan in force has no slo that it could be earlier or later than"):
        Classes(plan(slo=None)).of({DEADLINE_HEADER: b"1"}, {}, b"")


# --- members


@given(
    slack=st.floats(-MAX_SLACK, MAX_SLACK).filter(bool),
    size=st.none() | st.floats(0, 1e18),
    body=st.binary(max_size=20),
    headers=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)
def test_a_member_carries_its_slack_and_its_size_and_gives_them_back(slack, size, body, headers):
    item = Item("processs00000001", "text/plain", body, headers)
    member = encode_member(item, Told(size, slack))
    assert (decode_member(member), member_slack(member), member_size(member)) == (item, slack, size)
    plain = encode_member(item, Told(size))
    assert (decode_member(plain), member_slack(plain), member_size(plain)) == (item, 0.0, size)


def test_a_member_with_a_slack_that_is_torn_is_unreadable_and_has_none():
    member = encode_member(Item("processs00000001", "text/plain", b""), Told(slack=3.0))
    for torn in (member[:30], member[:17] + b"\x00" + member[18:]):
        assert member_slack(torn) == 0.0 and member_size(torn) is None
        with pytest.raises(Unreadable, match="the request processs00000001"):
            decode_member(torn)


# --- the buffer


@in_virtual_time
async def test_requests_of_all_classes_leave_in_one_batch_when_the_first_of_them_must_the_most_urgent_first():
    function = Function()
    async with serving_plan(plan(FAST, SLOW, PATIENT), {"f": function}) as buffer:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def post(delay, body, **headers):
            await asyncio.sleep(delay)
            status, _, answer = await buffer.post(
                "/models/m", body, **{name.replace("_", "-"): value for name, value in headers.items()}
            )
            return status, answer, round(loop.time() - began, 2)

        answers = await asyncio.gather(
            post(0.0, b"0", sluice_class="any"),
            post(0.1, b"1", sluice_class="slow"),
            post(0.2, b"2", sluice_deadline="0.5"),
            post(1.0, b"3"),
            post(2.0, b"4", sluice_class="slow"),
            post(2.1, b"5", sluice_deadline="0.1"),
        )
        # The third may wait 0.3 s beyond the 0.125 s of the table; the sixth must leave 0.1 s before them.
        assert [(status, int(body), at) for status, body, at in answers] == [
            (200, 0, 0.63), (200, 1, 0.63), (200, 2, 0.63), (200, 3, 1.13), (200, 4, 2.12), (200, 5, 2.12),
        ]  # fmt: skip
        named = {name: sample(buffer, "sluice_class_requests_total", **{"class": name}) for name in ("fast", "slow", "any")}
        assert named == {"fast": 3, "slow": 2, "any": 1}
        assert sample(buffer, "sluice_class_latency_seconds_sum", **{"class": "any"}) == pytest.approx(0.625, abs=0.002)
        assert sample(buffer, "sluice_class_slo_violations_total", **{"class": "fast"}) == 0
    assert [[int(item.body) for item in batch.items] for batch in function.batches] == [[2, 1, 0], [3], [5, 4]]


@in_virtual_time
async def test_a_plan_without_classes_keeps_to_the_deadline_in_a_request_of_the_protocol_and_passes_over_other_bodies():
    async with serving_plan(plan(), {"f": Function()}) as buffer:

        async def answered(path: str, parameters: str) -> tuple[int, bytes, float]:
            began = asyncio.get_running_loop().time()
            status, _, answer = await buffer.post(path, b'{"parameters": %s}' % parameters.encode())
            return status, answer, asyncio.get_running_loop().time() - began

        protocol = "/v2/models/m/infer"
        for path, parameters, after in (
            (protocol, "{}", 0.125),
            (protocol, '{"sluice_deadline": 0.1}', 0.025),
            (protocol, '{"timeout": 100000, "priority": 1}', 0.025),
            ("/v2/models/m/versions/1/infer", '{"timeout": 500000}', 0.425),
            ("/models/m", '{"sluice_deadline": 0.1}', 0.125),
        ):
            assert (await answered(path, parameters))[::2] == (200, pytest.approx(after, abs=0.002)), (path, parameters)
        status, answer, _ = await answered(protocol, '{"sluice_deadline": "soon"}')
        assert status == 400 and b"sluice_deadline: 'soon' is not allowed; allowed: a number of seconds above 0" in answer


@in_virtual_time
async def test_each_class_is_judged_by_its_own_promise_and_a_class_that_is_no_more_is_gone_from_the_scrapes():
    function = Function()

    async def slow(batch):
        await asyncio.sleep(0.5)
        return await function.echo(batch)

    function.answer = slow
    calm = RequestClass("slow", Slo(1.5), slack=0.5)
    async with serving_plan(plan(FAST, calm, PATIENT), {"f": function}) as buffer:
        told = ({}, {"sluice-class": "slow"}, {"sluice-class": "any"}, {"sluice-class": "slow", "sluice-deadline": "0.3"})
        for headers in told:
            assert (await buffer.post("/models/m", b"1", **headers))[0] == 200
        violations = [sample(buffer, "sluice_class_slo_violations_total", **{"class": each}) for each in ("fast", "slow", "any")]
        assert violations == [1, 1, 0] and sample(buffer, "sluice_slo_violations_total") == 2
        await buffer.model.follow(plan(FAST))
        text = (await buffer.get("/metrics"))[2]
        assert b'class="fast"' in text and b'class="slow"' not in text


@in_virtual_time
async def test_what_is_no_class_is_refused_with_400_and_the_others_are_served():
    async with serving_plan(plan(FAST, SLOW), {"f": Function()}) as buffer:
        status, headers, body = await buffer.post("/models/m", b"1", **{"sluice-class": "quick"})
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        assert json.loads(body)["detail"] == "sluice-class: 'quick' is not allowed; allowed: a class of the plan: fast, slow"
        parameters = b'{"parameters": {"sluice_class": "slow"}}'
        assert (await buffer.post("/v2/models/m/infer", parameters))[0] == 200
        assert sample(buffer, "sluice_class_requests_total", **{"class": "slow"}) == 1


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_flood_of_best_effort_is_refused_and_leaves_the_strict_class_as_it_was(processes):
    @in_virtual_time
    async def run():
        loop = asyncio.get_running_loop()
        backend, worker = memory(), Worker()
        table = PolicyDocument.of(constructors.greedy(BATCH))
        plans = Plans(plan(FAST, PATIENT, slo=Slo(0.2), table=constructors.greedy(BATCH)))
        took: dict[tuple[str, bool], list[float]] = {}
        statuses: list[int] = []

        async def one(buffer, name, flooded):
            came = loop.time()
            status = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": name})
            if name == "fast":
                assert status == 200
                took.setdefault((name, flooded), []).append(loop.time() - came)
            else:
                statuses.append(status)

        async with contextlib.AsyncExitStack() as stack:
            stores = [MemoryStore(backend, f"process{i}") for i in range(processes)]
            buffers = [await stack.enter_async_context(serving(worker, table, store, plans)) for store in stores]
            rng = np.random.default_rng(3)
            strict = np.sort(rng.uniform(0, 6.0, int(0.3 * CAPACITY * 6)))
            flood = np.sort(rng.uniform(2.0, 4.0, int(10 * CAPACITY * 2)))
            tasks = []
            for when, name in sorted([(t, "fast") for t in strict] + [(t, "any") for t in flood]):
                await asyncio.sleep(max(0.0, when - loop.time()))
                tasks.append(asyncio.create_task(one(buffers[len(tasks) % processes], name, 2.0 < when < 4.0)))
            await asyncio.gather(*tasks)
        # Who comes in the flood waits for the batch at work, which is a full one now, and is in the next.
        assert np.quantile(took["fast", True], 0.95) <= 2 * SERVICE_TIME + 0.01
        assert np.quantile(took["fast", False], 0.95) <= 2 * SERVICE_TIME
        assert statuses.count(429) > 0.8 * len(statuses) and statuses.count(200) >= 0.6 * CAPACITY * 2

    run()


@pytest.mark.parametrize(
    ("multiple", "processes"), [(3, 1), pytest.param(10, 1, marks=pytest.mark.proof), pytest.param(10, 2, marks=pytest.mark.full)]
)
def test_patient_requests_wait_as_long_as_their_promise_allows_and_those_in_between_are_not_refused_for_them(multiple, processes):
    @in_virtual_time
    async def run():
        loop = asyncio.get_running_loop()
        backend, worker, table = memory(), Worker(), constructors.greedy(BATCH)
        promised = {"fast": 0.25, "calm": 1.25, "patient": 10.25}
        plans = Plans(plan(*(RequestClass(name, Slo(slo)) for name, slo in promised.items()), slo=Slo(0.25), table=table))
        asked = Counter()
        in_time = Counter()

        async def one(buffer, name):
            came = loop.time()
            status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": name})
            asked[name] += 1
            in_time[name] += status == 200 and loop.time() - came <= promised[name]

        async with contextlib.AsyncExitStack() as stack:
            stores = [MemoryStore(backend, f"process{i}") for i in range(processes)]
            buffers = [await stack.enter_async_context(serving(worker, table, store, plans)) for store in stores]
            rng, under = np.random.default_rng(3), 4.0
            loads = {"fast": 1 / 3, "calm": 0.1, "patient": multiple}
            came = [(t, name) for name, load in loads.items() for t in rng.uniform(0, under, int(load * CAPACITY * under))]
            tasks = []
            for when, name in sorted(came):
                await asyncio.sleep(max(0.0, when - loop.time()))
                tasks.append(asyncio.create_task(one(buffers[len(tasks) % processes], name)))
            await asyncio.gather(*tasks)
        assert in_time["fast"] == asked["fast"] and in_time["calm"] == asked["calm"]
        # 0.57 of the capacity in the flood; and behind it four fifths of the 10 s that are theirs, less what comes meanwhile.
        assert in_time["patient"] >= 1.4 * CAPACITY * under

    run()


async def asked_by_class(function, table, slacks, loads, capacity, lasts, patience=60.0):
    """When requests of classes came, of those with these slacks beside a promise of 0.6 s, and their statuses (0: gave up)."""
    loop = asyncio.get_running_loop()
    plans = Plans(plan(*(RequestClass(name, slack=slack) for name, slack in slacks.items()), slo=Slo(0.6), table=table))
    ended: dict[str, list[tuple[float, int]]] = {name: [] for name in slacks}

    async def one(name):
        came, status = loop.time(), 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": name})
        ended[name].append((came, status))

    async with serving(function, PolicyDocument.of(table), plans=plans, request_timeout=60.0) as buffer:
        rng = np.random.default_rng(3)
        came = [(t, name) for name, load in loads.items() for t in rng.uniform(0, lasts, int(load * capacity * lasts))]
        tasks = []
        for when, name in sorted(came):
            await asyncio.sleep(max(0.0, when - loop.time()))
            tasks.append(asyncio.create_task(one(name)))
        await asyncio.gather(*tasks)
    return ended


@pytest.mark.parametrize(("slack", "least", "most"), [(0.01, 0.8, 1.0), (0.1, 0.5, 0.8), (0.5, 0.0, 0.5)])
def test_under_overload_who_has_a_little_more_time_than_the_strict_is_refused_a_little_more_often(slack, least, most):
    @in_virtual_time
    async def run():
        both = {"fast": 0.75, "other": 0.75}
        ended = await asked_by_class(Worker(), constructors.greedy(BATCH), {"fast": 0.0, "other": slack}, both, CAPACITY, 5.0)
        answered = {name: sum(status == 200 for _, status in of) for name, of in ended.items()}
        assert least <= answered["other"] / answered["fast"] <= most
        assert sum(answered.values()) >= 0.95 * CAPACITY * 5.0

    run()


@pytest.mark.proof
def test_before_a_function_that_is_throttled_for_long_the_strict_are_served_before_the_patient():
    @in_virtual_time
    async def run():
        table, capacity = constructors.size_or_timeout(BATCH, 0.02), SLOTS * CAPACITY
        loads = {"fast": 0.5, "patient": 2.0}
        ended = await asked_by_class(Throttled(), table, {"fast": 0.0, "patient": 10.0}, loads, capacity, 12.0, patience=2.0)
        late = {name: [status for came, status in of if came >= 8.0] for name, of in ended.items()}
        assert late["fast"].count(200) >= 0.9 * len(late["fast"])
        assert late["fast"].count(200) + late["patient"].count(200) >= 0.85 * capacity * 4.0  # fewer wait for a slot

    run()


@in_virtual_time
async def test_with_columns_that_give_the_patient_no_place_beside_others_a_flood_leaves_the_p95_of_the_strict_where_it_was():
    loop = asyncio.get_running_loop()
    table, took = apart(2), {False: [], True: []}
    begins, ends = 8.0, 16.0
    rng = np.random.default_rng(3)
    came = [(t, "fast") for t in rng.uniform(0, ends, int(CAPACITY / 3 * ends))]
    came += [(t, "any") for t in rng.uniform(begins, ends, int(1.5 * CAPACITY * (ends - begins)))]
    async with serving(Worker(), table, plans=Plans(plan(FAST, RequestClass("any", slack=50.0), table=table))) as buffer:

        async def one(name):
            when = loop.time()
            status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": name})
            if name == "fast":
                assert status == 200
                took[when > begins].append(loop.time() - when)

        tasks = {"fast": [], "any": []}
        for when, name in sorted(came):
            await asyncio.sleep(max(0.0, when - loop.time()))
            tasks[name].append(asyncio.create_task(one(name)))
        await asyncio.gather(*tasks["fast"])
        for task in tasks["any"]:
            task.cancel()
        await asyncio.gather(*tasks["any"], return_exceptions=True)
    before, flooded = (np.quantile(took[under], 0.95) for under in (False, True))
    assert flooded <= 1.1 * before
