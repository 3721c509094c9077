"""A profile in which one time is in another unit, or disagrees with the others, is refused by the name of its field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, write
from sluice.batching.errors import InvalidInput
from sluice.batching.quantiles import quantile_points
from sluice.cli.profile_files import read_profile

QUANTILES = [(0.05, 0.019), (0.5, 0.02), (0.95, 0.025)]


def document() -> dict[str, Any]:
    points = [
        ProfilePoint(mb, b, ServiceTime(0.02 * b, [(q, b * s) for q, s in QUANTILES], 20), 0.02 * b + 0.001, 0.004)
        for mb in (885, 1769)
        for b in (1, 2, 32)
    ]
    way, init = ServiceTime(0.003, [(0.5, 0.003)], 10), {1769: ServiceTime(0.25, [(0.5, 0.25), (0.9, 0.3)], 10)}
    made = ServiceProfile(function="f-{memory_mb}", points=points, way=way, init=init, max_batch_size=32)
    found: dict[str, Any] = json.loads(write(made))
    return found


def read(told: dict[str, Any], folder: Path) -> ServiceProfile:
    (folder / "profile.json").write_text(json.dumps(told))
    return read_profile(str(folder / "profile.json"))


def test_what_was_measured_is_read_as_it_is(tmp_path: Path) -> None:
    assert json.loads(write(read(document(), tmp_path))) == document()


MISTAKES = {
    "a mean in milliseconds": (
        ("points", 1, "service_time", "mean"),
        40.0,
        "0.00752 to 5 s, as its quantiles are 0.038 to 0.05 s",
        "0.04",
    ),
    "a mean in kiloseconds": (("points", 1, "service_time", "mean"), 0.00004, "0.00752 to 5 s", "0.04"),
    "what is billed, in milliseconds": (
        ("points", 0, "billed_duration"),
        21.0,
        "0.0002 to 2 s, as the service time is 0.02 s",
        "0.021",
    ),
    "what is billed, a thousandth": (("points", 0, "billed_duration"), 0.000021, "0.0002 to 2 s", "0.021"),
    "the way of an invocation in milliseconds": (("points", 5, "overhead"), 400.0, "0 to 64 s", "0.4"),
    "INIT in milliseconds": (("init", "1769", "mean"), 250.0, "0.026 to 30 s, as its quantiles are 0.25 to 0.3 s", "0.25"),
    "the way through the buffer in milliseconds": (("way", "mean"), 3.0, "0.0003 to 0.3 s", "0.003"),
}


@pytest.mark.parametrize(("place", "value", "allowed", "meant"), MISTAKES.values(), ids=MISTAKES)
def test_a_time_in_another_unit_is_refused_with_what_was_meant(
    place: tuple[str | int, ...], value: float, allowed: str, meant: str, tmp_path: Path
) -> None:
    told = document()
    inside: Any = told
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    with pytest.raises(InvalidInput) as refused:
        read(told, tmp_path)
    field = re.sub(r"\.(\d)\.", r"[\1].", ".".join(map(str, place)))
    assert refused.value.field == f"{tmp_path / 'profile.json'}: {field}" and refused.value.value == value
    assert refused.value.allowed.startswith(allowed)
    assert refused.value.allowed.endswith(f"all times are in seconds: did you mean {meant}?")


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_a_batch_size_whose_times_all_are_in_another_unit_is_refused(factor: float, tmp_path: Path) -> None:
    told = document()
    for point in told["points"]:
        times = point["service_time"]
        by = factor if point["batch_size"] == 32 else 40.0 if factor < 1 else 1.0
        times["mean"], times["quantiles"] = times["mean"] * by, [[q, by * s] for q, s in times["quantiles"]]
        point["billed_duration"] *= by
    with pytest.raises(InvalidInput, match=r"points\[2\]\.service_time\.quantiles: .* as a batch of 2 takes .*: did you mean"):
        read(told, tmp_path)


def test_of_a_profile_of_means_alone_these_are_compared(tmp_path: Path) -> None:
    told = document()
    for point in told["points"]:
        time = point["service_time"]
        factor = 1000.0 if point["batch_size"] == 32 else 1.0
        time["mean"], time["quantiles"] = factor * time["mean"], []
        point["billed_duration"] *= factor
    with pytest.raises(
        InvalidInput, match=r"points\[2\]\.service_time\.mean: 640.0 .* as a batch of 2 takes .*: did you mean 0.64"
    ):
        read(told, tmp_path)


def test_a_way_that_is_a_difference_of_times_may_be_less_than_its_quantiles_come_to(tmp_path: Path) -> None:
    told = document()
    told["way"] = {"mean": 0.0002, "quantiles": [[0.05, 0.0], [0.5, 0.0005], [0.95, 0.0036]], "n": 20}
    assert read(told, tmp_path).way == ServiceTime(0.0002, [(0.05, 0.0), (0.5, 0.0005), (0.95, 0.0036)], 20)


def test_a_short_time_in_which_the_machine_stalled_is_no_mistake(tmp_path: Path) -> None:
    told = document()
    first = told["points"][0]
    first["service_time"] = {"mean": 0.9, "quantiles": [], "n": 5}
    first["billed_duration"] = 0.9
    assert read(told, tmp_path).points[0].service_time.mean == 0.9


def test_a_difference_that_no_unit_explains_is_refused_without_a_guess(tmp_path: Path) -> None:
    told = document()
    told["points"][1]["service_time"]["mean"] = 1e-7
    told["points"][1]["billed_duration"] = 1e-7
    with pytest.raises(InvalidInput) as refused:
        read(told, tmp_path)
    assert "did you mean" not in refused.value.allowed


OF_NO_FUNCTION = {
    "memory in GB": ("memory_mb", 4, r"points\[0\]\.memory_mb: 4 is not allowed; allowed: 128 to 10240 MB of a function; a worker"),
    "more memory than there is": ("memory_mb", 24105, r"points\[0\]\.memory_mb: 24105 is not allowed"),
    "nothing billed": ("billed_duration", 0.0, r"points\[0\]\.billed_duration: 0.0 is not allowed; allowed: seconds > 0"),
    "longer than it may take": (
        "service_time",
        {"mean": 901.0},
        r"points\[0\]\.service_time: 901.0 is not allowed; allowed: at most 900 s, when a function is ended",
    ),
}


@pytest.mark.parametrize(("name", "value", "words"), OF_NO_FUNCTION.values(), ids=OF_NO_FUNCTION)
def test_what_no_function_has_is_refused_and_a_worker_may_have(name: str, value: Any, words: str, tmp_path: Path) -> None:
    told = document()
    told["points"] = [point for point in told["points"] if point["memory_mb"] == 885][:1]
    told["points"][0] |= {name: value} | ({"billed_duration": 901.0} if name == "service_time" else {})
    with pytest.raises(InvalidInput, match=words):
        read(told, tmp_path)
    told["function"] = "http://gpu:8500"
    assert read(told, tmp_path).function == "http://gpu:8500"


@pytest.mark.parametrize(
    ("n", "usual", "longest"),
    [(60, 0.001, 0.25), (60, 0.005, 1.5), (40, 0.005, 1.0), (200, 0.005, 5.0), (20, 0.02, 30.0), (3, 0.02, 3.0)],
)
def test_a_profile_in_which_one_run_took_long_is_no_mistake(n: int, usual: float, longest: float, tmp_path: Path) -> None:
    runs = [usual] * (n - 1) + [longest]
    stalled = ServiceTime(sum(runs) / n, quantile_points(runs), n)
    even = ServiceTime(1.5 * usual, quantile_points([1.5 * usual] * n), n)
    points = [ProfilePoint(885, size, time, time.mean) for size, time in ((1, stalled), (2, even))]
    made = ServiceProfile(function="f", points=points, max_batch_size=2)
    assert read(json.loads(write(made)), tmp_path) == made
