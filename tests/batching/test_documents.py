import json
import math
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
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
    Route,
    ServiceProfile,
    ServiceTime,
    Slo,
    quantile_of,
    read,
    write,
)
from sluice.batching.errors import InvalidInput
from tests.batching.strategies import policies

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


def routed(second, beside=""):
    """The JSON of a plan with route ``a``, which gets half of the requests, and a second one of these fields."""
    table = '"function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}'
    return f'{{"model": "m", {beside} "routes": [{{"name": "a", "share": 0.5, {table}}}, {{{second}, {table}}}]}}'


@pytest.mark.parametrize("document", [ARRIVALS, PROFILE, PLAN, ROUTED], ids=lambda d: type(d).__name__)
def test_a_document_survives_the_round_trip(document):
    assert read(type(document), write(document)) == document


@given(policies())
def test_every_policy_survives_the_round_trip_through_a_plan(policy):
    plan = Plan(model="m", function="f", policy=PolicyDocument.of(policy))
    assert read(Plan, write(plan)).policy.policy() == policy


names = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
functions = st.from_regex(r"[A-Za-z0-9:$_-]+|https?://[a-z]{1,9}:[1-9][0-9]{0,3}/[^\s\x00-\x1f\x7f,]*", fullmatch=True)


@st.composite
def routed_plans(draw):
    weights = draw(st.dictionaries(names, st.floats(1e-3, 1e3), min_size=1, max_size=5))
    total = sum(weights.values())
    routes = [
        Route(
            name,
            draw(functions),
            PolicyDocument.of(draw(policies())),
            weight / total,
            draw(st.one_of(st.just(""), names)),
            draw(st.one_of(st.none(), st.floats(0, 100))),
        )
        for name, weight in weights.items()
    ]
    return Plan(model=draw(names), routes=routes)


@settings(max_examples=30)
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


def test_the_routed_plan_of_the_page_on_architecture_is_one():
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    [document] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert [route.variant for route in read(Plan, document).routes] == ["resnet50", "resnet18"]


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
        (Plan, '{"model": "m", "function": "f"}', "policy: None .* a table, or else routes"),
        (Plan, '{"model": "m", "function": "f", "polcy": {}}', "allowed: an object without the unknown field `polcy`$"),
        (Plan, '{"model": "a b", "function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}}', "model: 'a b'"),
        (Plan, '{"model": "m", "function": "", "policy": {"hold": [null, 0], "take": [0, 1]}}', "function: ''"),
        (Plan, '{"model": "m", "function": "f", "policy": {"hold": [null, -1], "take": [0, 1]}}', r"policy: hold\[1\]: -1.0"),
        (Plan, '{"version": 2, "model": "m", "function": "f", "policy": {"hold": [null, 0], "take": [0, 1]}}', "version: 2 .*: 1"),
        (Plan, '{"model": "m"', "a JSON document"),
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
        (Plan, routed('"name": "b", "weight": 0.5'), r"routes\[1\]: .* unknown field `weight`"),
        (Plan, routed('"name": "b", "share": 0.5').replace('"f"', '""'), r"routes\[0\].function: ''"),
        (Plan, routed('"name": "b", "share": 0.5').replace("0]", "-1]"), r"routes\[0\].policy: hold\[1\]: -1.0"),
        (Plan, routed('"name": "b", "share": 0.5', '"function": "g",'), "function: 'g' .* none beside routes"),
        (Plan, write(PLAN).replace(b'"mlp-512:live"', b'""').decode(), "function: ''"),
        (ServiceProfile, '{"function": "f"}', "points"),
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


@pytest.mark.parametrize(
    ("percentile", "name"), [(95.0, "p95"), (99.9, "p99.9"), (99.99999, "p99.99999"), (2 / 3, "p0.666666666666667")]
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
