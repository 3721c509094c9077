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


def unit_of(panel, target):
    """What Grafana writes beside the numbers of a target, which has an axis of its own where it is not the panel's."""
    units = {
        override["matcher"]["options"]: {told["id"]: told["value"] for told in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["id"] == "byFrameRefID"
    }
    assert units.keys() <= {each["refId"] for each in panel["targets"]}
    assert all(told["custom.axisPlacement"] == "right" and "(right)" in panel["title"] for told in units.values())
    return units.get(target["refId"], panel["fieldConfig"]["defaults"])["unit"]


def test_a_unit_is_that_of_what_is_shown():
    for panel, target in TARGETS:
        unit, expression = unit_of(panel, target), target["expr"]
        if "_usd" in expression:
            assert unit == "currencyUSD"
        elif "_bytes{" in expression:
            assert unit == "decbytes"
        elif "process_cpu_seconds" in expression or "violations" in expression:
            assert unit == "percentunit"
        elif re.search(r"_seconds(_bucket)?\{", expression):
            assert unit == "s"
        elif expression.count("rate(") == 1:
            assert unit == ("reqps" if re.search("requests|turned_away", expression) else "cps")
        else:
            assert unit == "none"


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


def test_its_panels_do_not_overlap_and_have_names_of_their_own():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["title"] for panel in DASHBOARD["panels"]})
