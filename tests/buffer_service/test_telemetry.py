"""What operators read: Prometheus text, and lines of the embedded metric format from which CloudWatch makes metrics."""

import asyncio
import io
import json
import random

import pytest
from msgspec import structs
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, Route, Slo
from sluice.batching.errors import DeadlinePassed, QueueFull, StoreUnavailable
from sluice.buffer_service import telemetry as telemetry_module
from sluice.buffer_service.redis_servers import Away, NotLetIn
from sluice.buffer_service.telemetry import MOST_WORKERS, SAMPLE, Sample, Telemetry, reason_of

NOW = 1_764_000_000.25
SLO = 0.2


def plan(policy=None, function="f", slo=SLO, model="m", percentile=95.0):
    policy = policy or constructors.size_or_timeout(4, 0.1)
    return Plan(model=model, function=function, policy=PolicyDocument.of(policy), slo=slo and Slo(slo, percentile))


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def telemetry(stream):
    return Telemetry(stream, lambda: NOW, "mlp-prod")


def scrape(telemetry):
    """The samples of a scrape by name and labels."""
    families = text_string_to_metric_families(generate_latest(telemetry.registry).decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def emitted(stream):
    """The lines written, held against the specification of the embedded metric format (CloudWatch User Guide)."""
    documents = [json.loads(line) for line in stream.getvalue().splitlines()]
    for document in documents:
        assert isinstance(document["_aws"]["Timestamp"], int)
        assert len(json.dumps(document)) < 256 * 1024
        for directive in document["_aws"]["CloudWatchMetrics"]:
            assert directive.keys() == {"Namespace", "Dimensions", "Metrics"}
            for dimension in (name for names in directive["Dimensions"] for name in names):
                assert isinstance(document[dimension], str)
            assert len(directive["Metrics"]) <= 100
            for metric in directive["Metrics"]:
                assert metric["Unit"] in ("Seconds", "Count")
                value = document[metric["Name"]]
                values = value if isinstance(value, list) else [value]
                assert 1 <= len(values) <= 100
                assert all(isinstance(v, int | float) for v in values)
            named = {metric["Name"] for metric in directive["Metrics"]}
            assert document.keys() == {"_aws", *named, *(name for names in directive["Dimensions"] for name in names)}
    return documents


def test_a_scrape_has_every_metric_by_its_name(telemetry):
    model = telemetry.model(plan())
    model.answered(200, 0.05)
    model.answered(200, 0.3)
    model.refused(QueueFull("m", 10))
    model.sent(3, "f")
    model.invoked(0.04)
    model.failed("FunctionFailed", "f")
    model.waiting(7)
    telemetry.plan_refused("invalid")
    samples, of_m = scrape(telemetry), ("model", "m")
    assert samples["sluice_requests_total", of_m, ("status", "200")] == 2
    assert samples["sluice_refusals_total", ("error", "QueueFull"), of_m] == 1
    assert samples["sluice_latency_seconds_count", of_m] == 2
    assert samples["sluice_latency_seconds_sum", of_m] == pytest.approx(0.35)
    assert samples["sluice_latency_seconds_bucket", ("le", "0.05"), of_m] == 1
    assert samples["sluice_slo_violations_total", of_m] == 2
    assert samples["sluice_batch_size_sum", of_m] == 3
    assert samples["sluice_invocation_seconds_sum", of_m] == 0.04
    assert samples["sluice_invocation_failures_total", ("error", "FunctionFailed"), of_m] == 1
    assert samples["sluice_queue_length", of_m] == 7
    assert samples["sluice_plan_info", ("digest", plan().digest), ("function", "f"), of_m, ("policy", "size_or_timeout")] == 1
    assert samples["sluice_plan_refused_total", ("reason", "invalid")] == 1
    assert samples["sluice_plan_refused_timestamp_seconds",] == NOW


def test_a_model_without_traffic_is_in_the_scrape_with_zeros(telemetry):
    telemetry.model(plan())
    samples = scrape(telemetry)
    assert samples["sluice_latency_seconds_count", ("model", "m")] == 0
    assert samples["sluice_slo_violations_total", ("model", "m")] == 0


def test_models_are_counted_apart(telemetry):
    telemetry.model(plan()).answered(200, 0.1)
    telemetry.model(plan(model="n")).answered(500, 0.1)
    samples = scrape(telemetry)
    assert samples["sluice_requests_total", ("model", "m"), ("status", "200")] == 1
    assert samples["sluice_requests_total", ("model", "n"), ("status", "500")] == 1
    assert samples["sluice_slo_violations_total", ("model", "m")] == 0


def test_another_plan_replaces_the_labels_of_the_one_before(telemetry):
    model = telemetry.model(plan())
    another = plan(constructors.greedy(8), "g:live")
    model.follow(another)
    info = {key: value for key, value in scrape(telemetry).items() if key[0] == "sluice_plan_info"}
    labels = ("digest", another.digest), ("function", "g:live"), ("model", "m"), ("policy", constructors.greedy(8).kind)
    assert info == {("sluice_plan_info", *labels): 1}


def test_the_share_that_may_be_late_is_that_of_the_plan_in_force(telemetry):
    def allowed():
        return {key: value for key, value in scrape(telemetry).items() if key[0] == "sluice_slo_allowed_share"}

    model = telemetry.model(plan(percentile=99.0))
    assert allowed() == {("sluice_slo_allowed_share", ("model", "m")): 0.01}
    model.follow(plan(percentile=80.0))
    assert allowed() == {("sluice_slo_allowed_share", ("model", "m")): 0.2}
    model.follow(plan(slo=None))
    assert allowed() == {}


def routed(*routes):
    """A plan with routes of these names, shares and accuracies, in front of the functions ``f`` and ``g`` in turn."""
    policy = PolicyDocument.of(constructors.greedy(8))
    named = [Route(name, "fg"[i % 2], policy, share, accuracy=accuracy) for i, (name, share, accuracy) in enumerate(routes)]
    return Plan(model="m", routes=named, slo=Slo(SLO))


def test_a_route_is_counted_for_itself_and_for_its_model(telemetry, stream):
    model = telemetry.model(routed(("a", 0.75, 69.8), ("b", 0.25, None)))
    a, b = model.route("a"), model.route("b")
    for route, status in ((a, 200), (a, 200), (b, 502)):
        route.sent(2, "f")
        route.invoked(0.04)
        route.answered(status, 0.3, "a" if route is a else "b")
    a.answered(200, 0.1, "b")  # it was moved
    a.answered(200, 0.1, "unknown")
    b.refused(QueueFull("m", 10))
    b.failed("FunctionFailed", "f")
    a.waiting(3)
    b.waiting(4)
    model.emit()
    samples, of_m, of_a, of_b = scrape(telemetry), ("model", "m"), ("route", "a"), ("route", "b")
    assert samples["sluice_requests_total", of_m, ("status", "200")] == 4
    assert samples["sluice_route_requests_total", of_m, of_a, ("status", "200")] == 2
    assert samples["sluice_route_requests_total", of_m, of_b, ("status", "200")] == 1
    assert samples["sluice_route_requests_total", of_m, of_b, ("status", "502")] == 1
    assert samples["sluice_route_latency_seconds_count", of_m, of_b] == 2
    assert samples["sluice_batch_size_sum", of_m] == 6
    assert samples["sluice_route_batch_size_sum", of_m, of_a] == 4
    assert samples["sluice_invocation_seconds_count", of_m] == 3
    assert samples["sluice_route_invocation_seconds_count", of_m, of_b] == 1
    assert samples["sluice_refusals_total", ("error", "QueueFull"), of_m] == 1
    assert samples["sluice_route_invocation_failures_total", ("error", "FunctionFailed"), of_m, of_b] == 1
    assert samples["sluice_queue_length", of_m] == 7
    assert samples["sluice_route_queue_length", of_m, of_b] == 4
    assert samples["sluice_route_share", of_m, of_a] == 0.75
    assert samples["sluice_route_accuracy", of_m, of_a] == 69.8
    assert ("sluice_route_accuracy", of_m, of_b) not in samples
    [line] = emitted(stream)
    assert (line["Requests"], line["SloViolations"]) == (6, 4)


def test_what_each_function_of_the_plan_in_force_is_asked_for_is_counted_and_no_other(telemetry):
    overflow = structs.replace(plan(), beside=[Beside("g", PolicyDocument.of(constructors.greedy(8)))], digest="")
    model = telemetry.model(overflow)
    model.sent(2, "f")
    model.sent(3, "g")
    model.sent(4, "g")
    model.failed("FunctionUnavailable", "f")
    for i in range(100):
        model.sent(1, f"gone{i}")
        model.failed("FunctionFailed", f"gone{i}")
    samples, of_f, of_g = scrape(telemetry), (("function", "f"), ("model", "m")), (("function", "g"), ("model", "m"))
    counted = {key[0][len("sluice_function_") :]: value for key, value in samples.items() if key[1:] == of_g}
    assert counted == {"batches_total": 2, "requests_total": 7} | {k: v for k, v in counted.items() if k.endswith("created")}
    assert samples["sluice_function_batches_total", *of_f] == 1 and samples["sluice_function_requests_total", *of_f] == 2
    assert samples["sluice_function_failures_total", ("error", "FunctionUnavailable"), *of_f] == 1
    assert sum(key[0] == "sluice_function_batches_total" for key in samples) == 2
    assert sum(key[0] == "sluice_function_failures_total" for key in samples) == 1
    assert {dict(key[1:])["function"] for key in samples if key[0] == "sluice_plan_info"} == {"f", "g"}
    model.follow(plan(function="g"))
    samples = scrape(telemetry)
    assert samples["sluice_function_batches_total", *of_g] == 2  # goes on
    assert not [key for key in samples if ("function", "f") in key]


def test_a_route_that_is_left_has_no_share_and_when_it_is_forgotten_no_metrics(telemetry):
    model = telemetry.model(routed(("a", 0.5, 70.0), ("b", 0.5, 80.0)))
    route = model.route("a")
    route.sent(1, "f")
    route.failed("FunctionFailed", "f")
    route.answered(200, 0.1, "a")
    route.waiting(5)
    model.follow(routed(("b", 1.0, 80.0)))
    assert scrape(telemetry)["sluice_route_share", ("model", "m"), ("route", "a")] == 0
    model.forget("a")
    samples = scrape(telemetry)
    assert not [key for key in samples if ("route", "a") in key]
    assert samples["sluice_queue_length", ("model", "m")] == 0
    assert samples["sluice_route_share", ("model", "m"), ("route", "b")] == 1


def test_the_plan_in_force_is_told_for_every_function_of_its_routes(telemetry):
    model = telemetry.model(plan(function="g"))
    for document, functions in ((routed(("a", 0.5, None), ("b", 0.5, None)), ["f", "g"]), (routed(("a", 1.0, None)), ["f"])):
        model.follow(document)
        told = [dict(key[1:])["function"] for key in scrape(telemetry) if key[0] == "sluice_plan_info"]
        assert sorted(told) == functions


def test_the_slo_of_the_plan_in_force_counts(telemetry, stream):
    model = telemetry.model(plan(slo=0.1))
    model.answered(200, 0.15)
    model.follow(plan(slo=0.2))
    model.answered(200, 0.15)
    model.follow(plan(slo=None))
    model.answered(200, 100.0)
    model.answered(502, 0.1)
    model.refused(DeadlinePassed("no answer within 60 s"))
    model.emit()
    [line] = emitted(stream)
    assert (line["Requests"], line["SloViolations"]) == (5, 1)


def test_a_line_says_what_happened_and_when(telemetry, stream):
    model = telemetry.model(plan())
    model.sent(2, "f")
    model.answered(200, 0.1)
    model.answered(200, 0.2)
    model.emit()
    assert emitted(stream) == [
        {
            "_aws": {
                "Timestamp": 1_764_000_000_250,
                "CloudWatchMetrics": [
                    {
                        "Namespace": "Sluice",
                        "Dimensions": [["Deployment", "Model"]],
                        "Metrics": [
                            {"Name": "Requests", "Unit": "Count"},
                            {"Name": "SloViolations", "Unit": "Count"},
                            {"Name": "Latency", "Unit": "Seconds"},
                            {"Name": "BatchSize", "Unit": "Count"},
                        ],
                    }
                ],
            },
            "Deployment": "mlp-prod",
            "Model": "m",
            "Requests": 2,
            "SloViolations": 0,
            "Latency": [0.1, 0.2],
            "BatchSize": [2],
        }
    ]


def test_requests_and_violations_are_exact_however_many_there_were(telemetry, stream):
    model = telemetry.model(plan())
    for i in range(10_000):
        model.answered(200, 0.201 if i % 20 == 0 else 0.199)
        model.sent(1 + i % 4, "f")
    model.emit()
    [line] = emitted(stream)
    assert (line["Requests"], line["SloViolations"]) == (10_000, 500)
    assert (len(line["Latency"]), len(line["BatchSize"])) == (100, 100)


@pytest.mark.parametrize("metric", ["Latency", "BatchSize"])
def test_the_sample_is_of_the_whole_period_and_not_of_its_beginning(telemetry, stream, metric):
    model = telemetry.model(plan())
    for i in range(10_000):
        model.sent(i, "f")
        model.answered(200, float(i))
    model.emit()
    [line] = emitted(stream)
    # The mean of 100 of 0..9999 has a standard error of 289; seven of them are never left.
    assert abs(sum(line[metric]) / 100 - 4999.5) < 7 * 289


def test_a_refused_request_and_a_5xx_violate_the_slo_and_a_4xx_in_time_does_not(telemetry, stream):
    model = telemetry.model(plan())
    model.refused(QueueFull("m", 10))
    model.refused(DeadlinePassed("no answer within 60 s"))
    model.answered(502, 0.01)
    model.answered(504, 0.01)
    model.answered(400, 0.01)
    model.answered(200, SLO)
    model.emit()
    [line] = emitted(stream)
    assert (line["Requests"], line["SloViolations"]) == (6, 4)
    assert line["Latency"] == [0.01, 0.01, 0.01, SLO]


def test_a_metric_without_a_value_is_left_out(telemetry, stream):
    model = telemetry.model(plan())
    model.refused(QueueFull("m", 10))
    model.emit()
    [line] = emitted(stream)
    assert (line["Requests"], line["SloViolations"]) == (1, 1)
    assert line.keys().isdisjoint({"Latency", "BatchSize"})


def test_an_idle_model_writes_nothing(telemetry, stream):
    model = telemetry.model(plan())
    model.emit()
    assert stream.getvalue() == ""
    model.answered(200, 0.1)
    model.emit()
    model.emit()
    assert len(emitted(stream)) == 1


def test_every_line_starts_from_zero(telemetry, stream):
    model = telemetry.model(plan())
    model.answered(200, 0.3)
    model.sent(1, "f")
    model.emit()
    model.answered(200, 0.1)
    model.sent(4, "f")
    model.emit()
    _, second = emitted(stream)
    assert {k: second[k] for k in ("Requests", "SloViolations", "Latency", "BatchSize")} == {
        "Requests": 1,
        "SloViolations": 0,
        "Latency": [0.1],
        "BatchSize": [4],
    }


def test_without_a_stream_no_line_is_written(capsys):
    model = Telemetry().model(plan())
    model.answered(200, 0.1)
    model.emit()
    assert capsys.readouterr().out == ""


def test_ejections_are_shown_of_so_many_workers_those_that_were_ejected_last():
    telemetry = Telemetry()
    for n in range(2 * MOST_WORKERS):
        telemetry.ejected(f"http://worker{n}")
        telemetry.ejected("http://always")
    text = generate_latest(telemetry.registry).decode()
    shown = [line for line in text.splitlines() if line.startswith("sluice_worker_ejections_total{")]
    assert len(shown) == MOST_WORKERS
    assert f'sluice_worker_ejections_total{{worker="http://always"}} {2.0 * MOST_WORKERS}' in shown
    assert not any('"http://worker0"' in line for line in shown)


def steady(text):
    """What the process itself does not change meanwhile."""
    return [line for line in text.splitlines() if not line.startswith(b"process_")]


async def test_a_scrape_is_what_the_registry_has_and_others_have_their_turns_meanwhile(telemetry, monkeypatch):
    for i in range(50):
        model = telemetry.model(plan(model=f"m{i}"))
        model.answered(200, 0.01)
        model.invoked(0.1)
    monkeypatch.setattr(telemetry_module, "SLICE", 0.0)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    assert steady(await telemetry.scrape()) == steady(generate_latest(telemetry.registry))
    others.cancel()
    assert turns > 50


async def test_who_asks_while_a_scrape_is_made_gets_the_same_and_who_goes_spoils_it_for_nobody(telemetry, monkeypatch):
    telemetry.model(plan())
    monkeypatch.setattr(telemetry_module, "SLICE", 0.0)
    first, second = (asyncio.create_task(telemetry.scrape()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    text = await second
    assert steady(text) == steady(generate_latest(telemetry.registry))
    assert first.cancelled()
    assert await telemetry.scrape() is not text


def test_requests_answered_together_are_counted_as_each_alone():
    latencies, waited = [0.05, SLO, 0.3, 0.01], [0.04, 0.1, 0.2, 0.0]
    together, alone = Telemetry(), Telemetry()
    together.model(plan()).answered_together(latencies, waited)
    for latency, wait in zip(latencies, waited, strict=True):
        alone.model(plan()).answered(200, latency, waited=wait)
    counted, expected = ({key: value for key, value in scrape(each).items() if ("model", "m") in key} for each in (together, alone))
    assert counted == pytest.approx(expected)
    assert counted["sluice_slo_violations_total", ("model", "m")] == 1


def test_values_that_come_together_are_in_a_sample_as_if_each_came_alone(monkeypatch):
    monkeypatch.setattr(telemetry_module, "SAMPLE", 8)
    values = [float(i) for i in range(5000)]
    monkeypatch.setattr(telemetry_module, "random", random.Random(29))
    together = Sample()
    for first in range(0, len(values), 50):
        together.add_all(values[first : first + 50])
    monkeypatch.setattr(telemetry_module, "random", random.Random(29))
    alone = Sample()
    for value in values:
        alone.add(value)
    assert together.values == alone.values


def test_a_sample_has_every_value_of_a_period_with_the_same_chance(monkeypatch):
    monkeypatch.setattr(telemetry_module, "random", random.Random(1))
    few = Sample()
    for value in range(SAMPLE):
        few.add(value)
    assert few.values == list(range(SAMPLE))
    periods, values = 400, 10 * SAMPLE
    found = [0] * 10  # by tenth of the period
    for _ in range(periods):
        sample = Sample()
        for value in range(values):
            sample.add(value)
        assert len(set(sample.values)) == SAMPLE
        for value in sample.values:
            found[value // SAMPLE] += 1
    expected = periods * SAMPLE / 10
    assert sum((count - expected) ** 2 / (0.9 * expected) for count in found) < 27.9  # chi square of 9, 0.1 %


@pytest.mark.parametrize("error", [Away("first"), NotLetIn("WRONGPASS"), StoreUnavailable("full")])
def test_that_the_store_is_away_is_one_reason_however_it_was_found_out(error, telemetry):
    telemetry.model(plan()).refused(error)
    telemetry.turned_away(reason_of(error))
    found = scrape(telemetry)
    assert found["sluice_turned_away_total", ("reason", "StoreUnavailable")] == 1
    assert found["sluice_refusals_total", ("error", "StoreUnavailable"), ("model", "m")] == 1


async def test_what_is_paid_by_the_hour_has_no_price_by_its_use(telemetry):
    telemetry.price(0.0, 0.25)
    model = telemetry.model(plan())
    for function in ("http://worker:8500", "https://a,https://b", "sagemaker://endpoint", "f:live"):
        model.invoked(0.1, function=function)
    assert b'sluice_cost_usd_total{model="m"} 0.25\n' in await telemetry.scrape()
