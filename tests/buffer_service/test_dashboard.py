"""The Grafana dashboard asks for metrics that there are, with labels that they have."""

import json
import re
from pathlib import Path

from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.batching.policy import no_batching
from sluice.buffer_service.telemetry import Telemetry
from sluice.http.room import Connections, Room

DASHBOARD = json.loads((Path(__file__).parents[2] / "dashboards" / "grafana.json").read_text())


def expressions():
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return asked + [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]


def there():
    """The metrics of a buffer, by name, with their labels."""
    telemetry = Telemetry()
    telemetry.built("1")
    telemetry.measure(Connections(1), waiting=Room(1))
    telemetry.price(1.0, 1.0)
    model = telemetry.model(Plan(model="m", function="f", policy=PolicyDocument.of(no_batching()), slo=Slo(0.5)))
    model.answered(200, 0.1, waited=0.1)
    model.sent(1, "f")
    model.invoked(0.1)
    model.failed("E", "f")
    model.suspended()
    model.refused(ValueError())
    model.waiting(0)
    telemetry.turned_away("X")
    found = {}
    for family in telemetry.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_and_label_that_it_names_exists():
    found = there()
    asked = {name for text in expressions() for name in re.findall(r"\b(?:sluice|process)_[a-z_]+", text)}
    assert len(asked) > 12
    assert asked <= found.keys()
    for text in expressions():
        for name, selector in re.findall(r"\b((?:sluice|process)_[a-z_]+)\{([^}]*)\}", text):
            assert set(re.findall(r"([a-z]+)=~", selector)) - {"job"} <= found[name], text  # job is Prometheus's own
        named = {label for name in asked if name in text for label in found[name]}
        assert {label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")} <= named, text


def test_its_panels_do_not_overlap_and_have_names_of_their_own():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["title"] for panel in DASHBOARD["panels"]})
