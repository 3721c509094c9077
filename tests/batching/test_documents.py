import codecs
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import (
    ArrivalDocument,
    Beside,
    LinearServiceTime,
    Plan,
    PolicyDocument,
    Prediction,
    ProfilePoint,
    RequestClass,
    RequestSize,
    Route,
    ServiceProfile,
    ServiceTime,
    Slo,
    WarmEnvironments,
    quantile_of,
    read,
    write,
)
from sluice.batching.errors import InvalidInput
from tests.batching.strategies import grids, policies

POLICY = PolicyDocument.of(constructors.size_or_timeout(2, 0.1))
ARRIVALS = ArrivalDocument(model="mmpp", arrival_rate=2.0, D0=[[-4.0, 1.0], [1.0, -2.0]], D1=[[3.0, 0.0], [0.0, 1.0]])
PROFILE = ServiceProfile(
    function="mlp-{memory_mb}",
    points=[
        ProfilePoint(512, 1, ServiceTime(0.02, [(0.5, 0.02), (0.9, 0.03)], 10), 0.021, 0.004),
        ProfilePoint(512, 2, ServiceTime(0.03), 0.031),
    ],
    init={512: ServiceTime(0.4)},
)
PLAN = Plan(
    model="mlp",
    function="mlp-512:live",
    policy=POLICY,
    slo=Slo(0.2, 95),
    memory_mb=512,
    predicted=Prediction({"p95": 0.15}, 1e-6, 1.5),
    arrivals=ARRIVALS,
    made_at="2026-11-21T00:00:00Z",
)


ROUTED = Plan(
    model="resnet",
    routes=[
        Route("18.cpu", "resnet18:live", POLICY, 0.25, "resnet18", 69.8),
        Route("50.gpu", "http://a:1,http://b:1", POLICY, 0.75),
    ],
    slo=Slo(0.2),
)

SIZED_PROFILE = ServiceProfile(
    function="encoder-{memory_mb}",
    points=[
        ProfilePoint(512, batch_size, ServiceTime(0.01 * batch_size * size), 0.01 * batch_size * size, size=size)
        for batch_size in (2, 1)
        for size in (64.0, 16.0)
    ],
)
SIZED = Plan(
    model="encoder",
    routes=[Route("short", "encoder:live", POLICY, 0.7, up_to=64.0), Route("long", "encoder:live", POLICY, 0.3)],
    size=RequestSize("header"),
)


def sized(first="", last="", size='{"by": "header"}'):
    """The JSON of a plan with two routes chosen by size, each with these fields beside its table."""
    table = '"function": "f", "share": 0.5, "policy": {"hold": [null, 0], "take": [0, 1]}'
    return f'{{"model": "m", "size": {size}, "routes": [{{"name": "a", {first} {table}}}, {{"name": "b", {last} {table}}}]}}'


def routed(second, beside=""):
    """The JSON of a plan with route ``a``, which gets half of the requests, and a second one of these fields."""
    table = '"function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}'
    return f'{{"model": "m", {beside} "routes": [{{"name": "a", "share": 0.5, {table}}}, {{{second}, {table}}}]}}'


@pytest.mark.parametrize("document", [ARRIVALS, PROFILE, PLAN, ROUTED, SIZED_PROFILE, SIZED])
def test_a_document_survives_the_round_trip(document):
    assert read(type(document), write(document)) == document


@given(policies() | grids())
def test_every_policy_survives_the_round_trip_through_a_plan(policy):
    plan = Plan(model="m", function="f", policy=PolicyDocument.of(policy))
    assert read(Plan, write(plan)).policy.policy() == policy


names = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
functions = st.from_regex(r"[A-Za-z0-9:$_-]+|https?://[a-z]{1,9}:[1-9][0-9]{0,3}/[^\s\x00-\x1f\x7f,]*", fullmatch=True)


request_sizes = st.one_of(
    st.just(RequestSize("bytes")),
    st.builds(RequestSize, st.just("header"), st.from_regex(r"[A-Za-z0-9-]{0,128}", fullmatch=True)),
    st.builds(
        RequestSize,
        st.just("json"),
        st.lists(st.from_regex(r"[a-zA-Z0-9_ äß$'-]{1,15}", fullmatch=True), min_size=1, max_size=16).map(".".join),
    ),
)


@st.composite
def routed_plans(draw):
    size = draw(st.one_of(st.none(), request_sizes))
    weights = draw(st.dictionaries(names, st.floats(1e-3, 1e3), min_size=1, max_size=5))
    total = sum(weights.values())
    routes = [
        Route(
            name,
            draw(functions),
            PolicyDocument.of(draw(policies() | grids())),
            weight / total,
            draw(st.one_of(st.just(""), names)),
            draw(st.one_of(st.none(), st.floats(0, 100))),
            up_to=float(place) if size is not None and place < len(weights) else None,
        )
        for place, (name, weight) in enumerate(weights.items(), 1)
    ]
    return Plan(model=draw(names), routes=routes, size=size)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])  # to draw one takes long where others want the cores
@given(routed_plans())
def test_every_routed_plan_survives_the_round_trip(plan):
    assert read(Plan, write(plan)) == plan


def test_plans_that_have_the_buffer_do_the_same_have_the_same_digest():
    said_otherwise = structs.replace(PLAN, predicted=None, arrivals=None, made_at=None, slo=Slo(0.2, 95.0), digest="")
    assert said_otherwise.digest == PLAN.digest
    assert read(Plan, write(PLAN)).digest == PLAN.digest
    assert json.loads(write(PLAN))["digest"] == PLAN.digest


def test_plans_without_functions_beside_keep_the_digest_that_they_had_before_there_were_any():
    assert structs.replace(PLAN, digest="").digest == "f1c541d9f81075b1"
    assert structs.replace(ROUTED, digest="").digest == "1191823f9addd781"


OVERFLOW = Beside("mlp-1769:live", PolicyDocument.of(constructors.size_or_timeout(4, 0.15)))


def test_environments_kept_warm_are_part_of_document_and_digest_only_where_there_are_some():
    assert "warm" not in json.loads(write(PLAN)) and "warm" not in json.loads(write(ROUTED))["routes"][0]
    plan = structs.replace(PLAN, warm=WarmEnvironments(2), digest="")
    assert read(Plan, write(plan)) == plan and plan.digest != PLAN.digest
    assert json.loads(write(plan))["warm"] == {"provisioned": 2} and plan.all_routes[0].warm == plan.warm
    more = structs.replace(PLAN, warm=WarmEnvironments(3), digest="")
    assert more.digest != plan.digest
    routed = Plan(model="m", routes=[Route("a", "mlp-512:live", POLICY, 1.0, warm=WarmEnvironments(1))])
    assert read(Plan, write(routed)) == routed


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({"function": "http://gpu:8500"}, "none of http://gpu:8500: environments are a Lambda function's"),
        ({"policy": PolicyDocument.of(constructors.greedy(4, servers=2))}, "none beside a table with servers"),
        ({"beside": [OVERFLOW]}, "none where functions are beside one another"),
    ],
)
def test_environments_are_kept_warm_of_a_lambda_function_that_serves_alone(said, allowed):
    with pytest.raises(InvalidInput, match=f"warm: .*{allowed}"):
        structs.replace(PLAN, warm=WarmEnvironments(1), digest="", **said)


def test_environments_that_are_started_are_part_of_the_document_where_there_are_some_and_not_of_the_digest():
    assert "started" not in json.loads(write(PLAN)) and "started" not in json.loads(write(ROUTED))["routes"][0]
    plan = structs.replace(PLAN, started=3, digest="")
    assert read(Plan, write(plan)) == plan and plan.digest == structs.replace(PLAN, digest="").digest
    assert json.loads(write(plan))["started"] == plan.all_routes[0].started == 3
    routed = Plan(model="m", routes=[Route("a", "mlp-512:live", POLICY, 1.0, started=2)])
    assert read(Plan, write(routed)) == routed


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"started": 101}, "started: 101 is not allowed; allowed: an integer from 0 to 100"),
        ({"started": -1}, "started: -1 is not allowed; allowed: an integer from 0 to 100"),
        ({"function": "http://gpu:8500"}, "started: 1 .*none of http://gpu:8500: environments are a Lambda function's"),
        ({"policy": PolicyDocument.of(constructors.greedy(4, servers=2))}, "started: 1 .*none beside a table with servers"),
        ({"beside": [Beside("http://gpu:8500", OVERFLOW.policy)]}, "started: 1 .*none of http://gpu:8500"),
        (
            {"beside": [Beside("g", PolicyDocument.of(constructors.greedy(4, servers=2)))]},
            "started: 1 .*none beside a table with serv",
        ),
        ({"warm": WarmEnvironments(2)}, "started: 1 .*none beside environments that are kept warm"),
        ({"routes": ROUTED.routes, "function": "", "policy": None}, "started: 1 .*none beside routes"),
    ],
)
def test_environments_are_started_of_lambda_functions_alone(said, message):
    with pytest.raises(InvalidInput, match=message):
        structs.replace(PLAN, digest="", **{"started": 1, **said})


@pytest.mark.parametrize(
    "said",
    [
        {"function": "http://user:secret@gpu:99999"},
        {"function": "http://user:secret@gpu 1"},
        {"function": "http://user:secret@gpu:8500", "routes": ROUTED.routes},
        {"function": "http://user:secret@gpu:8500", "warm": WarmEnvironments(1)},
        {"beside": [Beside("http://user:secret@gpu:8500", POLICY)] * 2},
    ],
)
def test_a_refused_plan_shows_no_password_of_its_workers(said):
    with pytest.raises(InvalidInput, match="@gpu") as refused:
        structs.replace(PLAN, digest="", **said)
    assert "secret" not in str(refused.value)


def test_environments_are_kept_warm_in_one_way():
    assert json.loads(write(structs.replace(PLAN, warm=WarmEnvironments(pinged_every=240), digest="")))["warm"] == {
        "pinged_every": 240.0
    }
    with pytest.raises(InvalidInput, match="warm.provisioned: 0 is not allowed; allowed: an integer from 1"):
        WarmEnvironments()
    with pytest.raises(InvalidInput, match="warm.pinged_every: 240.0 is not allowed; allowed: none beside provisioned"):
        WarmEnvironments(1, 240.0)
    with pytest.raises(InvalidInput, match="warm.pinged_every: 0.5 is not allowed; allowed: seconds from 1 to 86400"):
        WarmEnvironments(pinged_every=0.5)


def test_functions_beside_survive_the_round_trip_and_are_part_of_the_digest():
    plan = structs.replace(PLAN, beside=[OVERFLOW], digest="")
    assert read(Plan, write(plan)) == plan and plan.digest != PLAN.digest
    assert plan.all_routes[0].rule() == replace(POLICY.policy(), beside=[OVERFLOW.policy.policy()])
    assert plan.all_routes[0].functions == ["mlp-512:live", "mlp-1769:live"]
    routed = structs.replace(ROUTED, routes=[structs.replace(ROUTED.routes[0], beside=[OVERFLOW]), ROUTED.routes[1]], digest="")
    assert read(Plan, write(routed)) == routed and routed.digest != ROUTED.digest
    again = structs.replace(plan, beside=[Beside("mlp-3008:live", OVERFLOW.policy)], digest="")
    assert again.digest != plan.digest


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ([Beside("mlp-512:live", POLICY)], r"beside\[0\].function: 'mlp-512:live' .* each function once"),
        ([OVERFLOW, OVERFLOW], r"beside\[1\].function: 'mlp-1769:live' .* each function once"),
        ([Beside("mlp.live", POLICY)], r"beside\[0\].function: 'mlp.live' .* a Lambda function"),
        ([Beside(f"f{i}", POLICY) for i in range(8)], "beside: 8 .* at most 7 functions"),
        (
            [Beside("f", PolicyDocument.of(constructors.early_drop(1.0, [0.3])))],
            r"beside\[0\].policy.drop_after: 0.7 .* null: the table that it is beside drops",
        ),
    ],
)
def test_functions_beside_that_cannot_be_are_refused_by_field_and_value(beside, message):
    with pytest.raises(InvalidInput, match="^" + message):
        structs.replace(PLAN, beside=beside, digest="")
    with pytest.raises(InvalidInput, match=r"routes\[0\]." + message):
        structs.replace(ROUTED, routes=[Route("a", "mlp-512:live", POLICY, 1.0, beside=beside)], digest="")


def test_functions_beside_stand_in_the_routes_where_there_are_routes():
    with pytest.raises(InvalidInput, match="beside: '1 functions' .* none beside routes"):
        structs.replace(ROUTED, beside=[OVERFLOW], digest="")


def test_a_policy_with_tables_beside_it_is_no_policy_document():
    with pytest.raises(InvalidInput, match="beside: 1 .* they are no part of this document"):
        PolicyDocument.of(replace(constructors.greedy(1), beside=[constructors.greedy(1)]))


def test_a_plan_keeps_its_digest_where_another_program_writes_its_whole_numbers_without_a_point():
    plan = Plan(model="m", function="f", policy=PolicyDocument.of(constructors.size_or_timeout(4, 1.0)), slo=Slo(2.0))
    written = write(plan)
    assert b"1.0" in written and b"2.0" in written
    again = read(Plan, written.replace(b".0", b""))
    assert again.digest == plan.digest and again == plan


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"function": "mlp-512"},
        {"policy": structs.replace(POLICY, hold=[h and h + 0.001 for h in POLICY.hold])},
        {"policy": structs.replace(POLICY, drop_after=1.0)},
        {"slo": Slo(0.3, 95)},
        {"other_slos": [Slo(0.3, 99)]},
        {"memory_mb": 1024},
    ],
    ids=str,
)
def test_a_plan_that_has_the_buffer_do_anything_else_has_another_digest(change):
    assert structs.replace(PLAN, **change, digest="").digest != PLAN.digest


def test_one_column_is_left_out_of_a_plan_and_of_its_digest_and_several_are_in_both():
    grid = PolicyDocument(hold=[None, 0.5, 0.25, 0.0], take=[0, 1, 1, 2], columns=2)
    plan = structs.replace(PLAN, policy=grid, digest="")
    assert b"columns" not in write(PLAN) and write(plan).count(b'"columns": 2') == 1
    assert read(Plan, write(plan)) == plan and plan.policy.policy().columns == 2
    flat = structs.replace(plan, policy=PolicyDocument(grid.hold, grid.take), digest="")
    assert len({PLAN.digest, plan.digest, flat.digest}) == 3
    said = write(PLAN).replace(b'"take":', b'"columns": 1, "take":')
    assert read(Plan, said) == PLAN and b"columns" not in write(read(Plan, said))


def test_the_table_of_the_page_waits_for_whom_and_how_long_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "classes.md").read_text()
    [grid] = [block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"columns"' in block]
    policy = read(PolicyDocument, grid).policy()
    rows = {waiting: policy.row(*waiting) for waiting in ((0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (9, 9))}
    assert {waiting: policy.hold[row] for waiting, row in rows.items()} == {
        (0, 1): 2.0, (1, 0): 0.15, (1, 1): 0.1, (2, 0): 0.0, (2, 1): 0.0, (9, 9): 0.0,
    }  # fmt: skip
    assert (policy.take[rows[2, 0]], policy.take[rows[2, 1]]) == (2, 3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (b"0", "columns: 0 .* an integer >= 1"),
        (b"3", "hold: 4 .* a multiple of the 3 columns, at least 6"),
        (b'"2"', "columns: '2'"),
    ],
)
def test_columns_that_cannot_be_are_refused_with_their_field(columns, message):
    with pytest.raises(InvalidInput, match=message):
        read(PolicyDocument, b'{"hold": [null, 0, 0, 0], "take": [0, 1, 1, 1], "columns": %s}' % columns)


def test_plans_without_sizes_keep_the_identity_that_they_had_before_there_were_sizes():
    assert (PLAN.digest, ROUTED.digest) == ("f1c541d9f81075b1", "1191823f9addd781")


def test_how_a_size_is_read_and_which_route_it_takes_belong_to_the_identity_of_a_plan():
    wider = [structs.replace(SIZED.routes[0], up_to=65.0), SIZED.routes[1]]
    dealt = [structs.replace(route, up_to=None) for route in SIZED.routes]
    others = [{"size": RequestSize("bytes")}, {"routes": wider}, {"routes": dealt, "size": None}]
    others.append({"routes": [structs.replace(SIZED.routes[0], up_to=0.0), SIZED.routes[1]]})
    assert len({SIZED.digest, *(structs.replace(SIZED, **other, digest="").digest for other in others)}) == 5
    recorded = structs.replace(PLAN, size=RequestSize("bytes"), digest="")
    assert recorded.digest != PLAN.digest and read(Plan, write(recorded)) == recorded


def test_a_plan_with_sizes_keeps_its_digest_where_another_program_writes_its_whole_numbers_without_a_point():
    assert b"64.0" in write(SIZED) and read(Plan, write(SIZED).replace(b"64.0", b"64")) == SIZED


def test_the_header_of_a_size_is_sluice_size_unless_another_is_named():
    assert RequestSize("header") == RequestSize("header", "sluice-size") == RequestSize("header", "Sluice-Size")
    assert read(Plan, sized('"up_to": 8,')).size == RequestSize("header", "sluice-size")


def test_a_profile_knows_its_sizes_and_the_points_of_each():
    assert PROFILE.sizes == [] and SIZED_PROFILE.sizes == [16.0, 64.0]
    short = SIZED_PROFILE.of_size(16.0)
    assert short.sizes == [] and [(p.batch_size, p.service_time.mean) for p in short.points_at(512)] == [(1, 0.16), (2, 0.32)]
    assert [(p.batch_size, p.size) for p in SIZED_PROFILE.points_at(512)] == [(1, 16.0), (1, 64.0), (2, 16.0), (2, 64.0)]
    with pytest.raises(InvalidInput, match="size: 32.0 is not allowed; allowed: one of the profile's: 16, 64"):
        SIZED_PROFILE.of_size(32.0)
    with pytest.raises(InvalidInput, match="size: 16.0 is not allowed; allowed: one of the profile's: none, it has no sizes"):
        PROFILE.of_size(16.0)


def test_a_profile_that_was_written_before_there_were_sizes_is_read():
    old = write(PROFILE).replace(b',\n      "size": null', b"")
    assert b'"size": null' not in old and read(ServiceProfile, old) == PROFILE


def test_a_plan_changed_by_hand_under_its_old_digest_is_refused():
    changed = write(PLAN).replace(b'"mlp-512:live"', b'"mlp-1024:live"')
    with pytest.raises(
        InvalidInput, match=f"digest: '{PLAN.digest}' is not allowed; allowed: [0-9a-f]{{16}}, that of the plan as it"
    ):
        read(Plan, changed)


def test_a_plan_of_machines_that_are_there_anyway_predicts_no_cost_but_violations():
    fleet = msgspec.structs.replace(ROUTED, predicted=Prediction({"p50": 0.05, "p95": 0.15}, None, 3.5, 0.0003))
    assert read(Plan, write(fleet)) == fleet and b'"cost_per_request": null' in write(fleet)


def test_a_prediction_that_was_written_before_violations_were_is_read():
    old = write(PLAN).replace(b',\n    "violations": null', b"")
    assert b"violations" not in old and read(Plan, old) == PLAN


def test_a_prediction_without_a_word_on_cost_is_refused():
    silent = write(PLAN).replace(b'    "cost_per_request": 1e-6,\n', b"")
    assert b"cost_per_request" not in silent
    with pytest.raises(InvalidInput, match="cost_per_request"):
        read(Plan, silent)


def test_the_ways_of_a_plan_are_its_routes_or_the_one_way_that_it_is():
    assert ROUTED.all_routes == ROUTED.routes
    assert PLAN.all_routes == [Route("", PLAN.function, POLICY, 1.0)]


def test_the_plans_of_the_page_on_architecture_are_some():
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    routed, overflow = (read(Plan, document) for document in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    assert [route.variant for route in routed.routes] == ["resnet50", "resnet18"]
    assert overflow.all_routes[0].functions[1:] == ["resnet-1769:live"] and overflow.all_routes[0].rule().elastic


def test_the_plan_of_the_page_on_sizes_is_one():
    page = (Path(__file__).parents[2] / "docs/sizes.md").read_text()
    [document] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert [route.up_to for route in read(Plan, document).routes] == [64.0, None]
    told = [msgspec.json.decode(line, type=RequestSize) for line in re.findall(r"^\| `(\{.*?\})`", page, re.MULTILINE)]
    assert [size.by for size in told] == ["header", "bytes", "json"]


def test_a_byte_order_mark_before_a_document_is_passed_over():
    document = write(PLAN)
    assert read(Plan, codecs.BOM_UTF8 + document) == read(Plan, "\ufeff" + document.decode()) == PLAN


def test_null_in_hold_is_infinite():
    document = b'{"model": "m", "function": "f", "policy": {"hold": [null, null, 0], "take": [0, 0, 2]}}'
    assert read(Plan, document).policy.policy().hold == (math.inf, math.inf, 0.0)


def test_a_linear_profile_is_accepted():
    profile = read(ServiceProfile, b'{"function": "f", "service_time": {"intercept": 0.001, "slope": 0.0003}}')
    assert profile.service_time == LinearServiceTime(0.001, 0.0003)
    assert profile.memory_sizes == []


def test_a_memory_size_that_was_not_measured_is_named_with_those_that_were():
    with pytest.raises(InvalidInput, match="memory_mb: 1024 .* one of the profile's: 512"):
        PROFILE.points_at(1024)
    assert [p.batch_size for p in PROFILE.points_at(512)] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Plan, '{"model": 3, "function": "f", "policy": {}}', "plan.json: model: 3 .* expected `str`"),
        (Plan, '{"model": "m", "function": "f"}', "policy: none .* a table, or else routes"),
        (Plan, '{"model": "m", "function": "f", "polcy": {}}', "json: polcy: {} .* no such field, but version, model, .*, digest$"),
        (Plan, '{"model": "a b", "function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}}', "model: 'a b'"),
        (Plan, '{"model": "m", "function": "", "policy": {"hold": [null, 0], "take": [0, 1]}}', "function: ''"),
        (Plan, '{"model": "m", "function": "f", "policy": {"hold": [null, -1], "take": [0, 1]}}', r"policy: hold\[1\]: -1.0"),
        (Plan, '{"version": 2, "model": "m", "function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}}', "version: 2 .*: 1"),
        (Plan, '{"model": "m"', "a JSON document"),
        (Plan, '{"model": "m", "slo": {"latency": NaN}}', "Plan: latency: 'NaN' is not allowed; allowed: a number that JSON has"),
        (Plan, '{"model": "é", "slo": {"latency": NaN}}', "Plan: latency: 'NaN' is not allowed"),
        (Plan, '{"slo": {"latency": NaNcy}}', "Plan: .* a JSON document"),
        (Plan, '{"slo": {"latency": -Infinity}}', "Plan: latency: '-Infinity' is not allowed; allowed: a number that JSON has"),
        (Plan, '{"model": "m"}', "function: '' .* or else routes"),
        (Plan, '{"model": "m", "routes": []}', "function: '' .* or else routes"),
        (Plan, routed('"name": "b", "share": 0'), r"routes\[1\].share: 0.0 .* a part > 0"),
        (Plan, routed('"name": "b", "share": 0.4'), "routes: sum of share: 0.9 .* 1, within 1e-6"),
        (Plan, routed('"name": "b", "share": 0.500002'), "routes: sum of share: 1.00000[0-9]* .* 1, within 1e-6"),
        (Plan, routed('"name": "a", "share": 0.5'), r"routes\[1\].name: 'a' .* each name once"),
        (Plan, routed('"name": "", "share": 0.5'), r"routes\[1\].name: '' .* 1 to 128"),
        (Plan, routed('"name": "b:c", "share": 0.5'), r"routes\[1\].name: 'b:c' .* 1 to 128"),
        (Plan, routed('"name": "b", "variant": "c d", "share": 0.5'), r"routes\[1\].variant: 'c d' .* 1 to 128"),
        (Plan, routed('"name": "b", "accuracy": 101, "share": 0.5'), r"routes\[1\].accuracy: 101.0 .* from 0 to 100"),
        (Plan, routed('"name": "b", "weight": 0.5'), r"json: routes\[1\].weight: 0.5 .* no such field, but name, .*, started$"),
        (Plan, routed('"name": "b", "share": 0.5').replace('"f"', '""'), r"routes\[0\].function: ''"),
        (Plan, routed('"name": "b", "share": 0.5').replace("0]", "-1]"), r"routes\[0\].policy: hold\[1\]: -1.0"),
        (Plan, routed('"name": "b", "share": 0.5', '"function": "g",'), "function: 'g' .* none beside routes"),
        (Plan, write(PLAN).replace(b'"mlp-512:live"', b'""').decode(), "function: ''"),
        (Plan, sized(), r"routes\[0\].up_to: none .* a size >= 0"),
        (Plan, sized('"up_to": -1,'), r"routes\[0\].up_to: -1.0 .* a size >= 0"),
        (Plan, sized('"up_to": 8,', '"up_to": 9,'), r"routes\[1\].up_to: 9.0 .* none of the last route"),
        (
            Plan,
            sized('"up_to": 8,').replace(
                '{"name": "b"',
                '{"name": "c", "up_to": 8, "function": "f", "share": 0.1, '
                '"policy": {"hold": [null, 0], "take": [0, 1]}}, {"name": "b"',
            ),
            r"routes\[1\].up_to: 8.0 .* a size > 8, that of the route before",
        ),
        (Plan, sized('"up_to": 8,', size="null"), r"routes\[0\].up_to: 8.0 .* none without a size in the plan"),
        (Plan, sized('"up_to": 8,', size='{"by": "tokens"}'), "size: size.by: 'tokens' .* header, bytes, json"),
        (Plan, sized('"up_to": 8,', size='{"by": "header", "name": "a b"}'), "size.name: 'a b' .* the name of a header"),
        (Plan, sized('"up_to": 8,', size='{"by": "bytes", "name": "n"}'), "size.name: 'n' .* none beside bytes"),
        (Plan, sized('"up_to": 8,', size='{"by": "json"}'), "size.name: '' .* a path such as inputs.0.shape.1"),
        (Plan, sized('"up_to": 8,', size='{"by": "json", "name": "a\\nb"}'), r"size.name: 'a\\nb' .* a path"),
        (Plan, sized('"up_to": 8,', size='{"by": "json", "name": "a..b"}'), r"size.name: 'a\.\.b' .* a path"),
        (ServiceProfile, '{"function": "f"}', "points"),
        (
            ServiceProfile,
            '{"function": "f", "points": ['
            '{"memory_mb": 512, "batch_size": 1, "size": 16, "service_time": {"mean": 1}, "billed_duration": 1},'
            '{"memory_mb": 512, "batch_size": 1, "size": 16.0, "service_time": {"mean": 2}, "billed_duration": 1}]}',
            "points: 'memory_mb 512, batch_size 1, size 16' .* each triple once",
        ),
        (
            ServiceProfile,
            '{"function": "f", "points": ['
            '{"memory_mb": 512, "batch_size": 1, "size": 16, "service_time": {"mean": 1}, "billed_duration": 1},'
            '{"memory_mb": 512, "batch_size": 2, "service_time": {"mean": 2}, "billed_duration": 1}]}',
            "points: '1 of 2 without a size' .* a size of every point, or of none",
        ),
        (
            ServiceProfile,
            '{"function": "f", "points": ['
            '{"memory_mb": 512, "batch_size": 1, "size": -1, "service_time": {"mean": 1}, "billed_duration": 1}]}',
            r"points\[0\]: size: -1.0 .* a size >= 0",
        ),
        (ServiceProfile, '{"function": "f", "service_time": {"intercept": -1, "slope": 1}}', "service_time.intercept: -1"),
        (ServiceProfile, '{"function": "f", "service_time": {"intercept": 0, "slope": 0}}', "intercept or a slope > 0"),
        (
            ServiceProfile,
            '{"function": "f", "points": [{"memory_mb": "x", "batch_size": 1, "service_time": {"mean": 1}, "billed_duration": 1}]}',
            r"points\[0\].memory_mb: 'x'",
        ),
        (
            ServiceProfile,
            '{"function": "f", "points": ['
            '{"memory_mb": 512, "batch_size": 1, "service_time": {"mean": 1}, "billed_duration": 1},'
            '{"memory_mb": 512, "batch_size": 1, "service_time": {"mean": 2}, "billed_duration": 1}]}',
            "each pair once",
        ),
        (
            ServiceProfile,
            '{"function": "http://ana:secret@h", "points": ['
            '{"memory_mb": 512, "batch_size": 1, "service_time": {"mean": 1}, "billed_duration": 1},'
            '{"memory_mb": 1024, "batch_size": 1, "service_time": {"mean": 1}, "billed_duration": 1}]}',
            r"function: 'http://\*\*\*@h' .* a name with {memory_mb} in it, since there are points of 2 memory sizes",
        ),
        (
            ServiceProfile,
            '{"function": "f", "points": [{"memory_mb": 512, "batch_size": 1, "billed_duration": 1,'
            ' "service_time": {"mean": 1, "quantiles": [[0.5, 2], [0.4, 3]]}}]}',
            r"quantiles\[1\]: \(0.4, 3.0\) .* rising from",
        ),
        (ArrivalDocument, '{"model": "poisson", "arrival_rate": 1, "D0": [[-1]], "D1": [[2]]}', r"row 0 of D0 \+ D1: 1.0"),
        (ArrivalDocument, '{"model": "poisson", "arrival_rate": 1, "D0": [[1]], "D1": [[-1]]}', r"D0\[0\]\[0\]: 1.0 .* negative"),
        (ArrivalDocument, '{"model": "renewal", "arrival_rate": 1, "D0": [[-1]], "D1": [[1]]}', "model: 'renewal'"),
        (ArrivalDocument, '{"model": "map", "arrival_rate": 0, "D0": [[-1]], "D1": [[1]]}', "arrival_rate: 0"),
    ],
)
def test_a_wrong_document_names_the_field_the_value_and_what_is_allowed(kind, text, message):
    with pytest.raises(InvalidInput, match=message):
        read(kind, text, "plan.json" if kind is Plan else "")


@pytest.mark.parametrize("percentile", [0, 100, 120])
def test_a_percentile_of_0_or_100_is_no_slo(percentile):
    with pytest.raises(InvalidInput, match=f"slo.percentile: {percentile} .* strictly between 0 and 100"):
        Slo(0.2, percentile)


def test_an_slo_needs_a_positive_latency():
    with pytest.raises(InvalidInput, match="slo.latency: 0"):
        Slo(0.0)


def test_an_slo_in_other_units_is_a_question():
    with pytest.raises(InvalidInput, match=r"slo.percentile: 0.95 is not allowed; .* at least 1; did you mean 95\?"):
        Slo(0.5, 0.95)
    for where in ({"slo": Slo(5000)}, {"other_slos": [Slo(5000)]}, {"classes": [RequestClass("a", slo=Slo(5000), slack=0.0)]}):
        with pytest.raises(InvalidInput, match="slo.latency: 5000 is not allowed; allowed: a number of seconds > 0, at most 3600"):
            Plan(model="m", function="f", policy=PolicyDocument.of(constructors.no_batching()), **where)


@pytest.mark.parametrize(
    ("percentile", "name"), [(95.0, "p95"), (99.9, "p99.9"), (99.99999, "p99.99999"), (200 / 3, "p66.6666666666667")]
)
def test_a_percentile_is_named_by_all_its_digits(percentile, name):
    assert Slo(1.0, percentile).name == name


def test_an_slo_knows_its_quantile_its_error_budget_and_itself_with_headroom() -> None:
    slo = Slo(0.2, 99.9)
    assert slo.quantile == quantile_of(99.9) == pytest.approx(0.999)
    assert slo.error_budget == pytest.approx(1 - slo.quantile) and Slo(0.2, 95).error_budget == 0.05
    assert slo.within(0.25) == Slo(0.2 * 0.75, 99.9) and slo.within(0) == slo
    with pytest.raises(InvalidInput, match="headroom: 1 is not allowed; allowed: a fraction of the SLO, 0 <= headroom < 1"):
        slo.within(1)


@pytest.mark.parametrize("percentile", [0, 100, math.nan])
def test_a_percentile_that_no_quantile_is_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidInput, match="percentile: .* a number strictly between 0 and 100"):
        quantile_of(percentile)


def test_a_profile_behind_a_buffer_has_every_overhead_longer_and_nothing_else() -> None:
    points = [ProfilePoint(1769, b, ServiceTime(0.01 * b), 0.01 * b, 0.001 * b) for b in (1, 2)]
    near = ServiceProfile(function="f", points=points)
    far = near.behind(0.005)
    assert [point.overhead for point in far.points] == [0.006, 0.007]
    assert far.behind(0) == far and [structs.replace(point, overhead=0) for point in far.points] == [
        structs.replace(point, overhead=0) for point in points
    ]
    linear = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.001))
    assert linear.behind(0.0) == linear
    for profile, seconds in ((near, -1.0), (near, float("inf")), (linear, 0.1)):
        with pytest.raises(InvalidInput, match="overhead: .* is not allowed"):
            profile.behind(seconds)
