"""Classes that choose the route: what such a plan may be, whose request goes where, what becomes of who waits, over HTTP too."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, RequestSize, Route, Slo, read, write
from sluice.batching.errors import InvalidInput
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.members import Unreadable, decode_member, encode_member, member_told
from sluice.buffer_service.plans import check_waits
from sluice.buffer_service.routing import ClassRoutes
from sluice.buffer_service.told import DEADLINE_HEADER, Classes, Told
from sluice.lambda_fn.contract import Item
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, serving
from tests.buffer_service.test_served_model import HELD, sample, serving_plan, until, until_waiting
from tests.buffer_service.virtual_time import in_virtual_time

FAST, SLOW = RequestClass("fast", Slo(0.2), route="quick"), RequestClass("slow", Slo(1.5), route="bulk")
NIGHTLY = RequestClass("nightly", slack=0.5, route="bulk")
PAGE = Path(__file__).parents[2] / "docs" / "classes.md"


def plan(*classes: RequestClass, table: constructors.Policy = NO_BATCHING, **fields) -> Plan:
    """A plan with a route on function ``f`` for each that a class names."""
    names = list(dict.fromkeys(each.route for each in classes))
    routes = [Route(name, "f", PolicyDocument.of(table), 1 / len(names)) for name in names]
    return Plan(**({"model": "m", "routes": routes, "classes": list(classes)} | fields))


# --- the plan


def test_a_plan_whose_classes_choose_routes_survives_the_round_trip_and_a_class_without_a_route_is_written_as_before():
    routed = plan(FAST, SLOW, NIGHTLY)
    assert read(Plan, write(routed)) == routed
    assert [each.get("route") for each in json.loads(write(routed))["classes"]] == ["quick", "bulk", "bulk"]
    plain = Plan(model="m", routes=routed.routes, classes=[RequestClass("any", slack=1.0)])
    assert json.loads(write(plain))["classes"] == [{"name": "any", "slack": 1.0}]


def test_the_routes_of_classes_belong_to_the_digest_and_a_plan_whose_classes_name_none_keeps_its_own():
    unrouted = [RequestClass("a", Slo(1.0)), RequestClass("n", slack=50)]
    table = PolicyDocument([None, 0.1], [0, 1])
    assert Plan(model="m", function="f", policy=table, slo=Slo(0.2), classes=unrouted).digest == "d7486987fa271df8"
    moved = plan(FAST, SLOW, msgspec.structs.replace(NIGHTLY, route="quick"))
    assert len({plan(FAST, SLOW, NIGHTLY).digest, moved.digest, plan(FAST, SLOW).digest}) == 3


def test_a_class_has_the_slack_that_its_slo_has_beyond_the_strictest_of_its_route_and_without_one_beyond_the_plans():
    others = [RequestClass("calm", Slo(2.0), route="bulk"), RequestClass("own", Slo(3.0), slack=0.25, route="bulk")]
    routed = plan(FAST, SLOW, *others, slo=Slo(0.1))
    assert [each.slack for each in routed.classes] == pytest.approx([0.0, 0.0, 0.5, 0.25])
    assert [routed.promised(name) for name in ("quick", "bulk")] == [0.2, 1.5]
    assert plan(RequestClass("any", slack=1.0, route="r"), slo=Slo(0.1)).promised("r") == 0.1
    assert plan(RequestClass("any", slack=1.0, route="r")).promised("r") is None


HALVES = [Route(name, "f", PolicyDocument.of(NO_BATCHING), 0.5) for name in ("quick", "bulk")]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"classes": [FAST, RequestClass("any", slack=1.0)]},
            r"classes\[1\].route: '' .* a route of the plan, as other classes name",
        ),
        ({"classes": [RequestClass("any", slack=1.0), FAST]}, r"classes\[1\].route: 'quick' .* none, as other classes name none"),
        (
            {"classes": [RequestClass("any", slack=1.0, route="slow")]},
            r"classes\[0\].route: 'slow' .* a route of the plan: quick, bulk",
        ),
        ({"classes": [FAST]}, r"routes\[1\].name: 'bulk' .* the route of a class, as classes choose the routes"),
        (
            {"classes": [FAST], "routes": [], "function": "f", "policy": PolicyDocument.of(NO_BATCHING)},
            r"classes\[0\].route: 'quick' .* none, as the plan has no routes",
        ),
        (
            {"routes": [msgspec.structs.replace(HALVES[0], up_to=8.0), HALVES[1]], "size": RequestSize("header")},
            "size: RequestSize.* none beside classes that choose their routes",
        ),
    ],
)
def test_a_plan_whose_classes_cannot_choose_the_routes_is_refused_with_its_field_and_value(fields, said):
    with pytest.raises(InvalidInput, match=said):
        Plan(**({"model": "m", "routes": HALVES, "classes": [FAST, SLOW]} | fields))


def test_a_slack_is_held_against_the_tables_of_its_own_route():
    holds = {"quick": constructors.size_or_timeout(2, 0.1), "bulk": constructors.size_or_timeout(2, 0.75)}
    routes = [Route(name, "f", PolicyDocument.of(table), 0.5) for name, table in holds.items()]
    check_waits(plan(FAST, NIGHTLY, routes=routes), 1.25)
    with pytest.raises(InvalidInput, match=r"classes\[1\].slack: 0.5 .* at most 0.45 s: with the longest hold of 0.75 s"):
        check_waits(plan(FAST, NIGHTLY, routes=routes), 1.2)
    calm = RequestClass("calm", slack=0.5, route="quick")
    check_waits(plan(calm, RequestClass("slow", slack=0.0, route="bulk"), routes=routes), 1.2)


def test_the_plan_of_the_page_on_classes_with_routes_is_one():
    documents = [text for text in re.findall("```json\n(.*?)```", PAGE.read_text(), re.DOTALL) if '"routes"' in text]
    assert [read(Plan, text).routed_by_class for text in documents] == [True]


# --- which route


@given(st.permutations([FAST, SLOW, NIGHTLY]), st.sampled_from(["fast", "slow", "nightly", "", "gone"]))
def test_a_request_takes_the_route_of_its_class_and_of_a_class_that_is_gone_that_of_the_first(classes, name):
    wanted = next((each.route for each in classes if each.name == name), classes[0].route)
    assert ClassRoutes(classes).next(Told(name=name)) == wanted


def test_a_deadline_is_held_against_the_promise_that_the_tables_of_the_route_are_made_for():
    classes = Classes(plan(FAST, SLOW, NIGHTLY, RequestClass("any", slack=1.0, route="rest")))

    def slack(name: str) -> float:
        return classes.of({DEADLINE_HEADER: b"2", b"sluice-class": name.encode()}, {}, b"").slack

    assert [slack(name) for name in ("fast", "slow", "nightly")] == pytest.approx([1.8, 0.5, 0.5])
    with pytest.raises(InvalidInput, match="none: the plan in force has no slo"):
        slack("any")


@given(
    told=st.builds(
        Told,
        size=st.none() | st.floats(0, 1e18),
        slack=st.floats(-9, 9),
        name=st.text("abc.-", max_size=8),
        latency=st.none(),
    ),
    body=st.binary(max_size=20),
)
def test_a_member_carries_its_class_and_gives_it_back(told, body):
    item = Item("processs00000001", "text/plain", body, {"a": "b"})
    member = encode_member(item, told)
    assert (decode_member(member), member_told(member)) == (item, told)


def test_a_member_whose_class_is_torn_is_unreadable_and_told_nothing():
    member = encode_member(Item("processs00000001", "text/plain", b"x"), Told(slack=3.0, name="fast"))
    with pytest.raises(Unreadable, match="the request processs00000001"):
        decode_member(member[:-1])
    assert member_told(member[:-1]) == Told()


# --- the buffer


async def post(buffer, *names: str):
    """Requests of these classes at once, each with its number for a body: the route of each answer."""
    told = [{"sluice-class": name} if name else {} for name in names]
    asked = [asyncio.create_task(buffer.post("/models/m", b"%d" % i, **headers)) for i, headers in enumerate(told)]
    answers = await asyncio.gather(*asked)
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(len(names))]
    return [headers.get("sluice-route") for _, headers, _ in answers]


@in_virtual_time
async def test_requests_wait_in_the_queue_of_their_class_and_the_metrics_count_each_route_apart():
    function = Function()
    async with serving_plan(plan(FAST, SLOW, NIGHTLY, table=constructors.size_or_timeout(4, 0.1)), {"f": function}) as buffer:
        routes = await post(buffer, "fast", "slow", "", "nightly", "slow", "fast")
        assert routes == ["quick", "bulk", "quick", "bulk", "bulk", "quick"]
        assert {route: sample(buffer, "sluice_route_requests_total", status="200", route=route) for route in ("quick", "bulk")} == {
            "quick": 3, "bulk": 3,
        }  # fmt: skip
        assert sample(buffer, "sluice_class_requests_total", **{"class": "fast"}) == 3
        assert sample(buffer, "sluice_route_share", route="bulk") == 0.5
        described = json.loads((await buffer.get("/v2/models/m"))[2])["plan"]["classes"]
    assert sorted([int(item.body) for item in batch.items] for batch in function.batches) == [[0, 2, 5], [1, 4, 3]]
    assert described == [
        {"name": "fast", "slo": {"latency": 0.2, "percentile": 95.0}, "slack": 0.0, "route": "quick"},
        {"name": "slow", "slo": {"latency": 1.5, "percentile": 95.0}, "slack": 0.0, "route": "bulk"},
        {"name": "nightly", "slack": 0.5, "route": "bulk"},
    ]


@in_virtual_time
async def test_who_waits_at_a_route_that_goes_moves_to_that_of_his_class_and_who_is_of_none_to_that_of_the_first():
    async with serving_plan(plan(FAST, SLOW, NIGHTLY, table=HELD), {"f": Function()}) as buffer:
        waiting = asyncio.create_task(post(buffer, "nightly", "fast", "slow", "nightly", ""))
        await until_waiting(buffer, 5)
        first, other = (RequestClass(name, Slo(0.5), route=route) for name, route in (("slow", "s"), ("fast", "f")))
        await buffer.model.follow(plan(first, other))
        assert await waiting == ["s", "f", "s", "s", "f"]


@in_virtual_time
async def test_the_class_of_who_waits_is_known_under_plans_without_routes_and_with_shares_too():
    held = PolicyDocument.of(HELD)
    classes = [msgspec.structs.replace(each, route="", slack=0.0) for each in (FAST, SLOW)]
    async with serving_plan(Plan(model="m", function="f", policy=held, classes=classes), {"f": Function()}) as buffer:
        waiting = asyncio.create_task(post(buffer, "slow", "fast", "slow", "fast", "slow"))
        await until_waiting(buffer, 5)
        halves = [Route(name, "f", held, 0.5) for name in "ab"]
        await buffer.model.follow(Plan(model="m", routes=halves, classes=classes))
        await until(lambda: [sample(buffer, "sluice_route_queue_length", route=route) for route in "ab"] == [3, 2])
        await buffer.model.follow(plan(FAST, SLOW))
        assert await waiting == ["bulk", "quick", "bulk", "quick", "bulk"]


@in_virtual_time
async def test_who_waits_at_a_route_that_stays_is_served_there_whatever_route_his_class_has_now():
    function = Function()
    async with serving_plan(plan(FAST, SLOW, table=HELD), {"f": function}) as buffer:
        waiting = asyncio.create_task(post(buffer, "fast", "slow"))
        await until_waiting(buffer, 2)
        swapped = [msgspec.structs.replace(each, route=route) for each, route in ((FAST, "bulk"), (SLOW, "quick"))]
        await buffer.model.follow(plan(*swapped))
        assert await waiting == ["quick", "bulk"]
        assert await post(buffer, "fast", "slow") == ["bulk", "quick"]


async def test_over_http_each_class_is_answered_by_its_route_and_what_is_none_is_refused():
    document = plan(FAST, SLOW, NIGHTLY, table=constructors.size_or_timeout(2, 0.01))
    async with serving(Function(), NO_BATCHING, plans=Plans(document), invoker=LocalInvoker({"f": Function()})) as buffer:
        assert await post(buffer, "fast", "slow", "nightly", "") == ["quick", "bulk", "bulk", "quick"]
        parameters = b'{"parameters": {"sluice_class": "nightly"}}'
        status, headers, _ = await buffer.post("/v2/models/m/infer", parameters)
        assert (status, headers["sluice-route"]) == (200, "bulk")
        status, _, body = await buffer.post("/models/m", b"1", **{"sluice-class": "quick"})
        assert (status, json.loads(body)["detail"]) == (
            400, "sluice-class: 'quick' is not allowed; allowed: a class of the plan: fast, slow, nightly",
        )  # fmt: skip
