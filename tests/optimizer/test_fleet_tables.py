"""Which table a group of devices wants: the evidence in docs/fleet.md, counted again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fleet import DEPLOYABLE, Fleet, plan_fleet, read_fleet
from sluice.optimizer.fleet.prediction import simulate_plan
from sluice.optimizer.fleet.tables import brief_hold

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
REQUESTS = 100_000
HEADROOMS = (1.0, 1.1)


def hyperexponential(scv: float) -> ArrivalProcess:
    """Renewals of rate 1 with this SCV > 1, two exponential phases of balanced means."""
    p = (1 + np.sqrt((scv - 1) / (scv + 1))) / 2
    rates = 2 * np.array([p, 1 - p])
    return ArrivalProcess(-np.diag(rates), np.outer(rates, [p, 1 - p]))


ARRIVALS = {"Poisson": poisson(1.0), "SCV 10": hyperexponential(10.0), "bursts": mmpp2(2.0, 0.5, 0.005, 0.005)}


@cache
def fleets(folder: Path) -> dict[str, Fleet]:
    path = folder / "fleet.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    page, example = read_fleet(path).with_running(None), read_fleet(ROOT / "examples" / "fleet" / "fleet.yaml")
    return {
        "of this page": page,
        "of this page, demand x 5": page.with_demand({name: 5 * rate for name, rate in page.demand.items()}),
        "examples/fleet": example,
        "examples/fleet, demand x 0.6": example.with_demand({name: 0.6 * rate for name, rate in example.demand.items()}),
    }


def counted(folder: Path) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Violations, %, of each table on each fleet, the mean over the headrooms."""
    for name, fleet in fleets(folder).items():
        plans = {b: [plan_fleet(fleet, headroom=h, batching=b) for h in HEADROOMS] for b in DEPLOYABLE}
        for kind, process in ARRIVALS.items():
            arrivals = dict.fromkeys(fleet.family_names, process)
            found = {}
            for batching, of in plans.items():
                runs = [simulate_plan(fleet, plan.groups, arrivals, requests=REQUESTS) for plan in of]
                found[str(batching)] = float(np.mean([100 * run.violations.value for run in runs if run is not None]))
            yield name, kind, found


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, dict[str, float]]]:
    return list(counted(tmp_path_factory.mktemp("fleets")))


@pytest.mark.proof
def test_the_page_shows_the_violations_that_are_counted(rows: list[tuple[str, str, dict[str, float]]]) -> None:
    shown = re.findall(r"^\| ((?:of this page|examples/fleet)[^|]*) \| ([^|]+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [(name, kind, cells.split(" | ")) for name, kind, cells in shown] == [
        (name, kind, [f"{value:.2f}" for value in found.values()]) for name, kind, found in rows
    ]


@pytest.mark.proof
def test_the_table_by_default_has_the_fewest_violations_or_nearly(rows: list[tuple[str, str, dict[str, float]]]) -> None:
    means = {batching: float(np.mean([found[batching] for *_, found in rows])) for batching in DEPLOYABLE}
    *most, last = [f"{mean:.2f}" for mean in means.values()]
    assert f"In the mean of these rows: {', '.join(most)} and {last} %" in PAGE
    assert means["brief_hold"] <= 1.1 * min(means.values())
    for other in ("deadline", "published", "greedy"):
        assert all(found["brief_hold"] <= found[other] + 0.05 for *_, found in rows) and means["brief_hold"] < 0.7 * means[other]


def test_nobody_is_held_for_longer_than_until_he_is_given_up() -> None:
    table = brief_hold(0.3, np.array([0.1, 0.15, 0.295]))
    assert table.drop_after == pytest.approx(0.005)
    assert max(table.hold[1:]) == table.drop_after  # a tenth of the slack of two requests is 0.015 s
