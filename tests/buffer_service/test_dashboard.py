"""The Grafana dashboard, as Prometheus would answer it for a buffer that serves, refuses and fails."""

import asyncio
import json
import math
import re
from pathlib import Path

import pytest

from sluice.batching import policy as constructors
from sluice.buffer_service.invokers import FunctionUnavailable
from tests.buffer_service.conftest import Function, serving
from tests.buffer_service.promql import Scrape, evaluate
from tests.buffer_service.virtual_time import in_virtual_time

DASHBOARD = json.loads((Path(__file__).parents[2] / "dashboards" / "grafana.json").read_text())
TARGETS = [(panel, target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
PRICES = {"gb_second_usd": 1e-5, "invocation_usd": 2e-7}


def asked(expression):
    """As Grafana asks it where all is chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$job", ".*")


async def away(batch):
    raise FunctionUnavailable("gone")


async def all_that_happens(buffer, function):
    """Batches, a queue that is full, a path that there is not, and a function that is away until it is asked no more."""

    async def slowly(batch):
        await asyncio.sleep(0.03)
        return await function.echo(batch)

    function.answer = slowly
    statuses = {status for status, _, _ in await asyncio.gather(*(buffer.post("/models/m", b"%d" % i) for i in range(40)))}
    assert statuses >= {200, 429}
    assert (await buffer.get("/nowhere"))[0] == 404
    function.answer = away
    assert {(await buffer.post("/models/m", b"1"))[0] for _ in range(8)} == {502, 503}
    function.answer = slowly
    while (await buffer.post("/models/m", b"1"))[0] != 200:
        await asyncio.sleep(1.0)


async def scrape(buffer):
    text = (await buffer.get("/metrics"))[2].decode()
    return Scrape.of(asyncio.get_running_loop().time(), text, job="sluice", instance="10.0.0.1:8080")


@pytest.fixture(scope="module")
def scrapes():
    """Two, with everything happening before each, and requests waiting at the second."""
    found = []

    @in_virtual_time
    async def run():
        function = Function()
        async with serving(function, constructors.size_or_timeout(64, 1.0), max_queue_length=24, **PRICES) as buffer:
            buffer.service.telemetry.built("1")
            await all_that_happens(buffer, function)
            found.append(await scrape(buffer))
            await all_that_happens(buffer, function)
            waiting = [asyncio.ensure_future(buffer.post("/models/m", b"1")) for _ in range(3)]
            await asyncio.sleep(0.5)
            found.append(await scrape(buffer))
            await asyncio.gather(*waiting)

    run()
    return found


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=[f"{panel['title']}, {target['refId']}" for panel, target in TARGETS])
def test_every_panel_shows_something_of_a_buffer_at_work(scrapes, panel, target):
    found = evaluate(asked(target["expr"]), *scrapes)
    assert found and all(math.isfinite(value) and value >= 0 for value in found.values())
    if not re.search("sluice_connections|process_cpu_seconds", target["expr"]):  # virtual time has no sockets, and takes no time
        assert any(value > 0 for value in found.values()), found
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert all(legend <= dict(labels).keys() for labels in found)


def test_no_two_lines_of_a_panel_have_the_same_name(scrapes):
    for panel in DASHBOARD["panels"]:
        names = [
            re.sub(r"\{\{(\w+)\}\}", lambda match, labels=labels: dict(labels)[match[1]], target["legendFormat"])
            for target in panel["targets"]
            for labels in evaluate(asked(target["expr"]), *scrapes)
        ]
        assert len(names) == len(set(names)), panel["title"]


def test_a_unit_is_that_of_what_is_shown():
    for panel, target in TARGETS:
        unit, expression = panel["fieldConfig"]["defaults"]["unit"], target["expr"]
        if "_usd" in expression:
            assert unit == "currencyUSD"
        elif "_bytes{" in expression:
            assert unit == "decbytes"
        elif re.search("process_cpu_seconds|violations|_share", expression):
            assert unit == "percentunit"
        elif re.search(r"_seconds(_bucket)?\{", expression):
            assert unit == "s"
        elif expression.count("rate(") == 1:
            assert unit == ("reqps" if re.search("requests|refusals|turned_away", expression) else "cps")
        else:
            assert unit == "none"


def overrides(panel, matcher):
    """What is drawn otherwise than the rest of a panel, by what it is found by: a property and its value each."""
    return {
        override["matcher"]["options"]: {told["id"]: told["value"] for told in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["id"] == matcher
    }


def test_every_line_of_a_panel_is_read_at_one_axis_in_one_unit():
    for panel in DASHBOARD["panels"]:
        changed = {name for each in panel["fieldConfig"]["overrides"] for name in (told["id"] for told in each["properties"])}
        assert changed <= {"color", "custom.lineStyle", "custom.lineWidth"}, panel["title"]


def test_what_is_promised_is_dashed_beside_what_is_measured():
    promises = re.compile("sluice_slo_(seconds|allowed_share)")
    promised = {(panel["id"], target["refId"]) for panel, target in TARGETS if promises.search(target["expr"])}
    assert promised == {
        (panel["id"], target)
        for panel in DASHBOARD["panels"]
        for target, told in overrides(panel, "byFrameRefID").items()
        if told.get("custom.lineStyle", {}).get("fill") == "dash"
    }
    assert {panel["id"] for panel in DASHBOARD["panels"][:2]} == {panel for panel, _ in promised}  # before all else


def test_the_colour_of_a_status_says_whose_fault_it_is():
    (panel,) = [panel for panel, target in TARGETS if "{{status}}" in target["legendFormat"]]
    colours = {pattern.strip("/"): told["color"]["fixedColor"] for pattern, told in overrides(panel, "byRegexp").items()}
    for name, expected in (("m 200", []), ("404 200", []), ("m 429", ["orange"]), ("503 m 404", ["orange"]), ("m 502", ["red"])):
        assert [colour for pattern, colour in colours.items() if re.search(pattern, name)] == expected
    assert {told["color"]["fixedColor"] for told in overrides(panel, "byFrameRefID").values()} == {"purple"}  # who was not answered


@in_virtual_time
async def test_a_panel_that_is_all_zero_while_nobody_asks_has_an_axis_of_small_numbers(function):
    """Grafana's would go to 100 there, which is 10000 %."""
    async with serving(function, constructors.size_or_timeout(64, 1.0), max_queue_length=24, **PRICES) as buffer:
        await all_that_happens(buffer, function)
        found = [await scrape(buffer)]
        await asyncio.sleep(60.0)
        found.append(await scrape(buffer))
    zero = set()
    for panel, target in TARGETS:
        values = [value for value in evaluate(asked(target["expr"]), *found).values() if math.isfinite(value)]
        if values and not any(values) and "process_cpu_seconds" not in target["expr"]:  # which is never zero but in virtual time
            zero.add(panel["title"])
    assert zero == {panel["title"] for panel in DASHBOARD["panels"] if "custom" in panel["fieldConfig"]["defaults"]} - {
        "Late requests, beside what the SLO allows"  # which is of no number then, and zero while all is well
    }
    assert all(set(panel["fieldConfig"]["defaults"].get("custom", {})) <= {"axisSoftMax"} for panel in DASHBOARD["panels"])


@in_virtual_time
async def test_a_panel_that_a_healthy_buffer_leaves_empty_says_why(function):
    async with serving(function, constructors.size_or_timeout(4, 0.01)) as buffer:
        found = []
        for _ in range(2):
            assert {(await buffer.post("/models/m", b"1"))[0] for _ in range(8)} == {200}
            found.append(await scrape(buffer))
    empty = {
        panel["title"]: panel["fieldConfig"]["defaults"].get("noValue")
        for panel in DASHBOARD["panels"]
        if not any(evaluate(asked(target["expr"]), *found) for target in panel["targets"])
    }
    no_price = "No price is told (SLUICE_GB_SECOND_USD)"
    assert empty == {
        "Turned away a second, by reason": "None was turned away",
        "Failed invocations a second, by error": "No invocation failed",
        "Cost of invocations, USD an hour": no_price,
        "Cost of invocations, USD a million requests": no_price,
    }


def test_what_can_be_chosen_is_asked_of_metrics_that_there_are(scrapes):
    queries = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    for name, label in (re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for query in queries):
        assert all(label in dict(labels) for labels in scrapes[-1].series[name])
    used = set(re.findall(r"\$(\w+)", " ".join(target["expr"] for _, target in TARGETS))) - {"__rate_interval"}
    assert used == {each["name"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}


@in_virtual_time
async def test_a_buffer_that_has_answered_nobody_shows_that_all_requests_miss_the_promise(function):
    async def silent(batch):
        await asyncio.sleep(3600.0)

    function.answer = silent
    async with serving(function, constructors.size_or_timeout(4, 0.01), request_timeout=1.0, drain_timeout=1.0) as buffer:
        found = []
        for _ in range(2):
            answers = await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(8)))
            assert {status for status, _, _ in answers} == {504}
            found.append(await scrape(buffer))
    (missed,) = [target["expr"] for panel, target in TARGETS if "violations" in target["expr"]]
    assert evaluate(asked(missed), *found) == {frozenset({("model", "m")}): 1.0}
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Requests a second, by status or error"]
    rates = [rate for target in panel["targets"] for rate in evaluate(asked(target["expr"]), *found).values()]
    assert sum(rates) * (found[1].at - found[0].at) == pytest.approx(8)  # they came, though none has a status of the model


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("avg by (model) (sluice_queue_length)", "avg"),
        ('sluice_queue_length{model="m"}', "only =~"),
        ("rate(sluice_requests_total)", "a rate of no range"),
        ("sum by (model) (1)", "a number where series"),
        ("1 + 1", "no panel"),
        ("clamp_max(1, 2)", "a number where series"),
        ("sluice_queue_length ^ 2", "is not known here"),
        ("sluice_queue_length)", "was expected"),
    ],
)
def test_what_is_not_known_of_promql_is_refused(scrapes, expression, why):
    with pytest.raises(AssertionError, match=why):
        evaluate(expression, *scrapes)


def test_its_panels_fill_the_grid_and_have_names_and_numbers_of_their_own():
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) == 24 * (1 + max(y for _, y in cells))
    assert all(0 <= x < 24 for x, _ in cells)
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    assert sorted(panels, key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"])) == panels
