"""A journal as sentences: what is read back of a decision is what the tuner wrote."""

from __future__ import annotations

from math import nan
from typing import Any

import msgspec
import pytest

from sluice.controller.explained import explained
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.tuning.cost_curve import CostCurve
from sluice.optimizer.tuning.decision import Considered, Decision, Trigger
from sluice.optimizer.tuning.live_profile import Bias
from sluice.optimizer.tuning.outcome import Expected, Outcome

CURVE = CostCurve(tuple(float(2**k) for k in range(13)), (Estimate(4e-7, 3e-7, 5e-7),) * 13)
OLD = Considered(
    "in force", "a1", None, None, Estimate(5e-7, 5e-7, 5e-7), Estimate(0.04, 0.03, 0.05), Estimate(1, 1, 1), 1.0, False
)
NEW = Considered(
    "last moment", "b2", 3e-7, 0.09, Estimate(4e-7, 3e-7, 5e-7), Estimate(0.09, 0.08, 0.1), Estimate(0, 0, 0), 0.0, True
)
CAME = Outcome(300.0, 1200, 2.0, 0.002, 0.141, 4.01e-7, Expected(0.003, 0.142, CURVE))
DECISION = Decision(
    1.7e9, Trigger("rate", 1.7e9, "more come"), (NEW, OLD), None, "last moment", "in force", 0.1, 0.0, 0, "it is cheaper", "",
    24.0, 0.001, 0.0025, CURVE, NEW, "a1", "a1", "p95", CAME, (Bias(1769, 4, 120, 0.0021, 0.0001, 0.03, nan),),
)  # fmt: skip


def entry(**figures: Any) -> Any:
    document = {**DECISION.document(), "model": "m", "words": "more come: it is cheaper", **figures}
    return msgspec.json.decode(msgspec.json.encode(document))


def test_a_decision_is_told_with_what_it_compared_and_expected_and_what_came_of_the_one_before() -> None:
    assert list(explained(entry())) == [
        "2023-11-14T22:13:20.000+00:00  m: more come: it is cheaper",
        "    what came of the decision before: 1200 requests in 300 s, 4/s, 2 a batch: p95 141 ms (expected 142 ms), "
        "0.2 % late (expected 0.3 %), 0.401 USD per million (expected at this rate 0.4 (0.3 to 0.5))",
        "    compared at 24 requests/s, as rehearsed; USD per million requests, p95, late:",
        "      last moment (serves from now on): 0.4 (0.3 to 0.5), 90 ms, 0 %",
        "      in force (as somebody gave it): 0.5, 40 ms, 100 %, does not surely keep the promise",
        "    measured less predicted, with standard errors; seconds of a batch, and part of its cost:",
        "      1769 MB, batches of 4: +2.1 ± 0.1 ms, +3 % of the cost (120 batches)",
        "    on the way through the buffer: 2.5 ms; added to every rehearsal: 1 ms",
        "    USD per million requests (in 95 % of windows): 0.4 (0.3 to 0.5) at 1/s, 0.4 (0.3 to 0.5) at 8/s, "
        "0.4 (0.3 to 0.5) at 64/s, 0.4 (0.3 to 0.5) at 512/s, 0.4 (0.3 to 0.5) at 4.1e+03/s",
    ]


def test_what_came_of_the_placement_of_a_fleet_is_told_by_family() -> None:
    expected = {"arrival_rate": 40.0, "room_for": 60.0, "late": 0.05, "accuracy": 81.25}
    family = {"requests": 2100, "arrival_rate": 42.0, "late": 0.004, "accuracy": 80.5, "expected": expected}
    quiet = {"requests": 0, "arrival_rate": 0.0, "late": None, "accuracy": None, "expected": expected | {"accuracy": None}}
    figures = {"since_last_placement": {"seconds": 50.0, "families": {"vision": family, "text": quiet}}}
    assert list(explained({"at": "2023-11-14T22:13:20+00:00", "model": "", "words": "planned for more", **figures})) == [
        "2023-11-14T22:13:20+00:00  planned for more",
        "    what came of the placement before, of 50 s; as planned in brackets:",
        "      vision: 2100 requests, 42/s (40, with room for 60), 0.4 % late (5 % are promised at most), "
        "accuracy 80.5 % (81.25 %)",
        "      text: 0 requests, 0/s (40, with room for 60), not known late (5 % are promised at most), "
        "accuracy not known (not known)",
    ]


@pytest.mark.parametrize("wrong", [{"considered": 3}, {"since_last": []}, {"bias": "x"}, {"cost_by_rate": [[1]]}])
def test_of_figures_of_another_kind_the_sentence_is_told(wrong: dict[str, Any]) -> None:
    assert list(explained(entry(**wrong))) == ["2023-11-14T22:13:20.000+00:00  m: more come: it is cheaper"]


def test_an_entry_of_an_earlier_version_is_told_as_far_as_it_goes() -> None:
    told = entry()
    for name in ("since_last", "expected", "given", "promise", "measured_less_predicted", "unbatched"):
        del told[name]
    assert "    compared at 24 requests/s, as rehearsed; USD per million requests, percentile, late:" in list(explained(told))
