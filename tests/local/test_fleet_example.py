"""The fleet in examples/fleet is what its README says: measured, consistent, and worth planning."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import ServiceProfile, read
from sluice.cli.main import main
from sluice.local.fleet_networks import FAMILIES, INPUT_SEED, N_INPUTS, Family, likeliest_class
from sluice.local.fleet_profiles import BATCH_SIZES, MEMORY_SIZES
from sluice.optimizer.control.control import run_control
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.controller import ControlSettings
from sluice.optimizer.fleet import FleetPlan, plan_fleet, read_fleet, solve_fleet
from sluice.optimizer.simulation.batch_means import estimate_share
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule, simulate_fleet
from sluice.optimizer.simulation.fleet_run import FleetRun

pytestmark = pytest.mark.full

EXAMPLE = Path("examples/fleet")
VARIANTS = [name for family in FAMILIES for name in family.variants]


def accuracies() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = msgspec.json.decode((EXAMPLE / "accuracies.json").read_bytes())
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_a_profile_has_every_type_and_batch_size_and_rises_with_the_batch_and_falls_with_the_cpu(name: str) -> None:
    profile = read(ServiceProfile, (EXAMPLE / "profiles" / f"{name}.json").read_bytes())
    assert profile.function == f"{name}-{{memory_mb}}" and profile.measured_at is not None
    points = [profile.points_at(memory_mb) for memory_mb in MEMORY_SIZES]
    assert [[point.batch_size for point in row] for row in points] == [list(BATCH_SIZES)] * len(MEMORY_SIZES)
    seconds = np.array([[point.service_time.mean for point in row] for row in points])
    assert (np.diff(seconds, axis=0) < 0).all() and (np.diff(seconds, axis=1) > 0).all()
    assert all(point.service_time.n >= 20 for row in points for point in row)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_cut_is_less_accurate_and_quicker(family: Family) -> None:
    measured = accuracies()[family.name]
    assert list(measured) == list(family.variants)
    assert list(measured.values()) == sorted(measured.values(), reverse=True)
    profiles = [read(ServiceProfile, (EXAMPLE / "profiles" / f"{name}.json").read_bytes()) for name in measured]
    seconds = np.array([[point.service_time.mean for point in profile.points] for profile in profiles])
    assert (np.diff(seconds, axis=0) < 0).all()


def test_the_fleet_has_the_families_with_their_measured_accuracies_on_the_memory_sizes_profiled() -> None:
    fleet = read_fleet(EXAMPLE / "fleet.yaml")
    described = {family.name: {variant.name: variant.accuracy for variant in family.variants} for family in fleet.families}
    assert described == accuracies()
    assert [device.memory_mb for device in fleet.devices] == list(MEMORY_SIZES)
    assert len(fleet.profiles) == len(VARIANTS) * len(MEMORY_SIZES)


@pytest.mark.proof
def test_accuracy_measured_again_is_the_one_written_down(tmp_path: Path) -> None:
    """On the first inputs of all, of the encoder's ends: within four standard errors of a part of a sample."""
    (encoder,) = (family for family in FAMILIES if family.name == "encoder")
    whole, *_, last = encoder.variants
    inputs, n = encoder.inputs(np.random.default_rng(INPUT_SEED), N_INPUTS), 60
    classes = []
    for name in (whole, last):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(encoder.make(encoder.variants[name]).SerializeToString())
        classes.append(likeliest_class(path, inputs[:n]))
    written = accuracies()["encoder"][last] / 100
    error = np.sqrt(written * (1 - written) * (1 / n - 1 / N_INPUTS))
    assert abs(np.mean(classes[0] == classes[1]) - written) < 4 * error


def test_the_plan_mixes_variants_and_serves_all() -> None:
    plan = plan_fleet(read_fleet(EXAMPLE / "fleet.yaml"))
    assert plan.feasible
    for family in plan.families:
        assert len({group.variant for group in plan.groups if group.family == family and group.share}) >= 2
    assert 98 < plan.accuracy < 100


def test_a_tenth_of_headroom_keeps_random_arrivals_in_time_where_a_full_plan_that_gives_nobody_up_does_not() -> None:
    full, roomy = (simulated(planned(headroom=headroom, batching="published")) for headroom in (1.0, 1.1))
    assert full.violation_ratio > 0.05
    assert roomy.violation_ratio < 0.005
    assert 98 < roomy.effective_accuracy < full.effective_accuracy


def test_the_plan_does_on_other_arrivals_what_it_predicts() -> None:
    """All families in one run, for half a minute: the confidence intervals meet."""
    plan = planned()
    assert plan.predicted is not None and plan.predicted.kept
    run, predicted = simulated(plan, seconds=30.0), plan.predicted.violations
    seen = estimate_share(~run.in_time)
    assert seen.low <= predicted.high and predicted.low <= seen.high
    assert run.effective_accuracy == pytest.approx(plan.predicted.effective_accuracy, abs=0.05)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "violations"),
    [
        ({"headroom": 1.0, "batching": "published"}, "23 %"),
        ({"headroom": 1.1, "batching": "published"}, "0.01 %"),
        ({}, "0.48 %"),
        ({"violations": 0.001}, "0.002 %"),
    ],
)
def test_the_violations_that_the_readme_names_are_predicted(options: dict[str, Any], violations: str) -> None:
    plan = planned(**options)
    assert plan.predicted is not None
    share = 100 * plan.predicted.violations.value
    digits = len(violations.split()[0].lstrip("0."))
    assert f"{share:.{digits}g} %" == violations and violations in (EXAMPLE / "README.md").read_text(encoding="utf-8")


def test_when_demand_grows_accuracy_gives_way_before_requests_do() -> None:
    """Demand rises to over twice the file's and falls again; the control loop against the plan it began with."""
    fleet = read_fleet(EXAMPLE / "fleet.yaml")
    rng, seconds = np.random.default_rng(2), 30.0
    arrivals = []
    for rate in fleet.demand.values():
        times = np.sort(rng.uniform(0, seconds, rng.poisson(2.3 * rate * seconds)))
        arrivals.append(times[rng.uniform(0, 2.3, len(times)) < 0.4 + 1.9 * np.sin(np.pi * times / seconds) ** 2])
    controlled = ControlledFleet.of(fleet.with_demand({name: 0.4 * rate for name, rate in fleet.demand.items()}))

    def run(settings: ControlSettings) -> FleetRun:
        operation = run_control(controlled, arrivals, functools.partial(solve_fleet, gap=0.02), settings)
        return simulate_fleet(operation.schedule, arrivals, controlled.slos, np.random.default_rng(1))

    scaled, fixed = run(ControlSettings()), run(ControlSettings(period=10 * seconds, bursts=False))
    assert scaled.violation_ratio < 0.5 * fixed.violation_ratio
    assert scaled.throughput > 1.5 * fixed.throughput
    windows = scaled.series(seconds / 10)
    assert windows.effective_accuracy.min() < 97 < windows.effective_accuracy[0]


def planned(**options: Any) -> FleetPlan:
    return plan_fleet(read_fleet(EXAMPLE / "fleet.yaml"), **options)


def simulated(plan: FleetPlan, seconds: float = 20.0) -> FleetRun:
    """The fleet under Poisson arrivals at its demand, all families in one run."""
    fleet, groups = plan.fleet, [group for group in plan.groups if group.share]
    types, variants = [device.name for device in fleet.devices], [variant.name for variant in fleet.variants]
    queues = [
        FleetQueue(
            types.index(group.device_type),
            variants.index(group.variant),
            fleet.family_names.index(group.family),
            group.accuracy,
            group.policy,
            fleet.profiles[group.device_type, group.variant].service,
        )
        for group in groups
    ]
    schedule = FleetSchedule(queues, [], [[group.share for group in groups]], [[len(group.devices) for group in groups]])
    rng = np.random.default_rng(1)
    arrivals = [np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds))) for rate in fleet.demand.values()]
    return simulate_fleet(schedule, arrivals, np.array([family.slo.latency for family in fleet.families]), rng)


def test_the_readme_shows_the_tables_that_its_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    ((command, shown),) = re.findall(r"```\n\$ (sluice fleet [^\n]*)\n(.*?)```", readme, re.DOTALL)
    monkeypatch.setenv("COLUMNS", "132")
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit, match="0"):
        main()
    assert cells(capsys.readouterr().out) == cells(shown) != []


def cells(printed: str) -> list[list[str]]:
    """The rows of the tables."""
    rows = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize(
    ("demand", "feasible", "accuracy"),
    [({"mlp": 1500, "encoder": 150}, True, 100.0), ({"mlp": 9000}, True, 93.5), ({"mlp": 20000}, False, None)],
)
def test_the_demands_that_the_readme_names_are_served_as_it_says(
    demand: dict[str, float], feasible: bool, accuracy: float | None
) -> None:
    options = " ".join(f"--demand {family}={rate}" for family, rate in demand.items())
    assert f"`{options}`" in (EXAMPLE / "README.md").read_text(encoding="utf-8")
    fleet = read_fleet(EXAMPLE / "fleet.yaml")
    plan = plan_fleet(fleet.with_demand({**fleet.demand, **demand}))
    assert plan.feasible == feasible
    assert accuracy is None or plan.accuracy == pytest.approx(accuracy, abs=0.05)
