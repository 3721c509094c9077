"""A live fleet beside its simulation: the page is made of its data, and what was simulated is found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.optimizer.fleet import solve_fleet
from studies.fleet_live import sleepers
from studies.fleet_live.computation import simulated
from studies.fleet_live.demand import day, fleet, length
from studies.fleet_live.drawings import draw
from studies.fleet_live.live import CLASSES
from studies.fleet_live.page import page
from studies.fleet_live.results import LIVE, SIMULATED, Study, read
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def study() -> Study:
    return read()


def test_the_models_sleep_for_as_long_as_their_profiles_say_and_answer_with_their_accuracy() -> None:
    described = fleet()
    for variant in described.variants:
        made = getattr(sleepers, CLASSES[variant.name])
        expected = made.intercept + made.slope * np.arange(1, described.profiles["cpu", variant.name].service.max_batch_size + 1)
        assert described.profiles["cpu", variant.name].service.mean_response == pytest.approx(expected)
        assert made.accuracy == variant.accuracy


def test_the_day_is_that_of_the_counts_and_the_fleet_cannot_serve_its_peak_at_its_most_accurate() -> None:
    arrivals = day()
    assert length() == 288 and [len(times) for times in arrivals] == [10096, 6631]
    assert all(times[0] >= 0 and times[-1] <= length() for times in arrivals)
    peak = np.array([np.histogram(times, np.arange(0.0, length() + 24, 24.0))[0].max() / 24.0 for times in arrivals])
    plan = solve_fleet(fleet().problem().with_demand(peak))
    assert not plan.missing.any() and plan.accuracy < 84


@pytest.mark.parametrize(("demand", "one", "two"), [((60.0, 40.0), 81.67, 82.38), ((45.0, 30.0), 83.94, 83.94)])
def test_two_variants_on_a_device_at_once_would_gain_at_most_what_devices_of_half_the_speed_do(
    demand: tuple[float, float], one: float, two: float
) -> None:
    whole = fleet().problem().with_demand(np.array(demand))
    halves = replace(whole, devices=2 * whole.devices, throughput=whole.throughput / 2)
    assert [solve_fleet(each).accuracy for each in (whole, halves)] == pytest.approx([one, two], abs=0.01)


@pytest.mark.full
def test_the_page_is_made_of_the_data(study: Study) -> None:
    assert_published("fleet-live", page(study), draw(study), 60_000)


@pytest.mark.proof
def test_what_was_simulated_is_found_again(study: Study) -> None:
    found, changes = simulated(SIMULATED, study.facts.idle, 0.0)
    assert changes == study.facts.hosts_changed[SIMULATED]
    for kept, again in zip(study.of(SIMULATED), found, strict=True):
        assert (kept.arrivals, kept.in_time, kept.hosts) == (again.arrivals, again.in_time, again.hosts)
        assert kept.accuracy == pytest.approx(again.accuracy)


@pytest.mark.full
def test_both_got_the_same_requests(study: Study) -> None:
    assert [window.arrivals for window in study.of(LIVE)] == [window.arrivals for window in study.of(SIMULATED)]
