"""FLEET.yaml: what it may say, and how it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.fleet import DeviceType, Fleet, plan_fleet, read_fleet
from sluice.optimizer.fleet.fleet_file import read_demand, read_running
from sluice.optimizer.report.fleet_wording import sentences

FLEET = """
devices:
  cpu: {count: 3, memory_mb: 1769}
  gpu: {workers: [http://g:1, http://g:2]}
families:
  seen:
    slo: {latency: 0.3, percentile: 99}
    variants:
      small:
        accuracy: 70
        profiles:
          cpu: {1: 2e-2, 8: 0.16}
          gpu: {intercept: 0.01, slope: 0.001, max_batch: 32}
      large:
        accuracy: 80
        memory_mb: 1000
        memory_mb_per_request: 10.5
        profiles: {gpu: {intercept: 0.02, slope: 0.01, max_batch: 16}}
  read:
    slo: 1.0
    variants:
      only: {accuracy: 60, profiles: {cpu: profiles/only.json}}
demand: {seen: 100, read: 4.5}
running:
  cpu: {only: 1, small: 1}
  http://g:2: large
"""


def profile(memory_sizes: tuple[int, ...] = (885, 1769)) -> bytes:
    """0.1 s at 1769 MB for one, 0.2 s for four."""
    times = {1: 0.1, 4: 0.2}
    points = [ProfilePoint(m, b, ServiceTime(s * 1769 / m), s * 1769 / m) for m in memory_sizes for b, s in times.items()]
    return write(ServiceProfile(function="only-{memory_mb}", points=points))


def written(folder: Path, text: str = FLEET) -> Path:
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles" / "only.json").write_bytes(profile())
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path


def test_a_file_says_devices_families_profiles_demand_and_what_runs(tmp_path: Path) -> None:
    fleet = read_fleet(written(tmp_path))
    assert [(device.name, device.count) for device in fleet.devices] == [("cpu", 3), ("gpu", 2)]
    assert list(fleet.types_by_device) == ["cpu-1", "cpu-2", "cpu-3", "http://g:1", "http://g:2"]
    assert [family.slo for family in fleet.families] == [Slo(0.3, 99), Slo(1.0, 95)]
    assert [variant.name for variant in fleet.variants] == ["small", "large", "only"] and fleet.variants[
        1
    ].memory_mb_per_request == 10.5
    assert fleet.running == {"cpu-1": "only", "cpu-2": "small", "http://g:2": "large"}
    problem = fleet.problem()
    assert problem.devices.tolist() == [3, 2] and problem.demand.tolist() == [100, 4.5] and problem.family.tolist() == [0, 0, 1]
    assert problem.throughput == pytest.approx(np.array([[50, 0, 20], [32 / 0.042, 13 / 0.15, 0]]), rel=1e-6)
    assert problem.running is not None and problem.running.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert fleet.problem(max_batch=1).throughput[1] == pytest.approx([1 / 0.011, 1 / 0.03, 0])
    assert plan_fleet(fleet).feasible


def test_a_profile_of_several_memory_sizes_is_read_at_the_device_s_or_at_the_one_named(tmp_path: Path) -> None:
    assert read_fleet(written(tmp_path)).profiles["cpu", "only"].service.seconds[0] == 0.1
    named = FLEET.replace("cpu: profiles/only.json", "cpu: {file: profiles/only.json, memory_mb: 885}")
    assert read_fleet(written(tmp_path, named)).profiles["cpu", "only"].service.seconds[0] == pytest.approx(0.1 * 1769 / 885)
    with pytest.raises(InvalidInput, match=r"profiles.cpu.memory_mb: none .* one of the profile's: 885, 1769"):
        read_fleet(written(tmp_path, FLEET.replace(", memory_mb: 1769", "")))


def test_demand_and_what_runs_may_stand_in_files_of_their_own(tmp_path: Path) -> None:
    fleet = read_fleet(written(tmp_path, FLEET.split("demand:")[0]))
    assert fleet.demand == {} and fleet.running is None
    (tmp_path / "demand.json").write_text('{"read": 3}')
    assert read_demand(tmp_path / "demand.json", fleet) == {"read": 3}
    (tmp_path / "running.yaml").write_text("cpu: [only, null]\n")
    assert read_running(tmp_path / "running.yaml", fleet) == {"cpu-1": "only", "cpu-2": None}
    (tmp_path / "plan.json").write_text('{"version": 1, "placement": {"cpu-3": "small", "cpu-1": null}}')
    assert read_running(tmp_path / "plan.json", fleet) == {"cpu-3": "small", "cpu-1": None}


def test_what_batches_take_beyond_their_profiles_is_no_time_of_theirs(tmp_path: Path) -> None:
    """Told for all, or by family: batches of ``only`` take 0.1 s a request, within 1 s."""
    fleet = read_fleet(written(tmp_path))
    assert fleet.behind(0.0).profiles["cpu", "only"] is fleet.profiles["cpu", "only"]
    for told in (0.05, {fleet.families[1].name: 0.05}):
        service = fleet.behind(told).profiles["cpu", "only"].service
        assert service.mean_response == pytest.approx(fleet.profiles["cpu", "only"].service.mean_response + 0.05)
        assert (service.seconds == fleet.profiles["cpu", "only"].service.seconds).all()
    apart = fleet.behind({fleet.families[1].name: 0.05}).profiles
    assert all(apart[key] is profile for key, profile in fleet.profiles.items() if key[1] != "only")


def test_a_profile_may_fall_with_the_batch_size(tmp_path: Path) -> None:
    fleet = read_fleet(written(tmp_path, FLEET.replace("{1: 2e-2, 8: 0.16}", "{1: 0.05, 4: 0.02, 8: 0.1}")))
    assert fleet.capacity(0, 0) == (4, pytest.approx(200))


def test_anchors_and_merges_of_yaml_work(tmp_path: Path) -> None:
    text = FLEET.replace(
        "profiles: {gpu: {intercept: 0.02, slope: 0.01, max_batch: 16}}", "profiles: {gpu: {<<: *line, slope: 0.01}}"
    )
    fleet = read_fleet(written(tmp_path, text.replace("gpu: {intercept: 0.01", "gpu: &line {intercept: 0.01")))
    assert fleet.profiles["gpu", "large"].service.seconds[:2, 0] == pytest.approx([0.02, 0.03])


def test_a_line_is_asked_about_where_a_request_alone_takes_far_longer_than_its_slo_and_not_before(tmp_path: Path) -> None:
    """Of 0.3 s: whichever of both is the longer, with the other beside it, and not one alone."""
    for intercept, slope in (("1.9", "0.9"), ("0.05", "2.9"), ("2s", "2"), ("3s", "0.1")):
        text = FLEET.replace("intercept: 0.02, slope: 0.01", f"intercept: {intercept}, slope: {slope}")
        seconds = read_fleet(written(tmp_path, text)).profiles["gpu", "large"].service.seconds
        assert seconds[0, 0] == pytest.approx(float(intercept.rstrip("s")) + float(slope))
    for intercept, slope, asked in ((2.0, 1.1, "intercept: 2"), (1.1, 2.0, "slope: 2"), (3.0, 0.0, "intercept: 3")):
        text = FLEET.replace("intercept: 0.02, slope: 0.01", f"intercept: {intercept}, slope: {slope}")
        with pytest.raises(InvalidInput, match=f"large.profiles.gpu.{asked}.0 is not allowed; allowed: ."):
            read_fleet(written(tmp_path, text))


def test_times_of_a_profile_may_have_their_units(tmp_path: Path) -> None:
    text = FLEET.replace("{1: 2e-2, 8: 0.16}", "{1: 20ms, 8: 0.16s}")
    text = text.replace("intercept: 0.02, slope: 0.01", "intercept: 0ms, slope: 10ms").replace("{latency: 0.3,", "{latency: 300ms,")
    profiles, plain = read_fleet(written(tmp_path, text)).profiles, read_fleet(written(tmp_path)).profiles
    assert (profiles["cpu", "small"].service.seconds == plain["cpu", "small"].service.seconds).all()
    assert profiles["gpu", "large"].service.seconds[:2, 0] == pytest.approx([0.01, 0.02])


def test_an_slo_may_have_its_unit(tmp_path: Path) -> None:
    text = FLEET.replace("slo: 1.0", "slo: 1200ms").replace("latency: 0.3", "latency: 0.3s")
    assert [family.slo for family in read_fleet(written(tmp_path, text)).families] == [Slo(0.3, 99), Slo(1.2, 95)]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("slope: 0.01, max", "slope: 10s, max", "one request takes 10.02 s where 0.3 s is promised"),
        ("slope: 0.01, max", "slope: 0.2, max", "one request takes 0.22 s, more than half of the 0.3 s that is promised"),
        ("http://g:2]}", "http://g:2], memory_mb: 1010}", "it needs 1010.5 MB of the 1010 that the largest device with a profile"),
    ],
)
def test_a_variant_that_serves_on_no_device_is_said_to_with_the_reason(old: str, new: str, why: str, tmp_path: Path) -> None:
    assert read_fleet(written(tmp_path)).unservable == () and old in FLEET
    fleet = read_fleet(written(tmp_path, FLEET.replace(old, new)))
    assert [(of.variant, of.family, of.promised) for of in fleet.unservable] == [("large", "seen", 0.3)]
    said = [sentence for sentence in sentences(plan_fleet(fleet, headroom=1)) if "serves" in sentence]
    assert len(said) == 1 and said[0].startswith(f"large serves on no device: {why}")


def test_the_quickest_device_that_a_variant_fits_into_is_what_counts(tmp_path: Path) -> None:
    """It fits into a cpu, which is too slow; the gpu, where it would be in time, is too small."""
    text = FLEET.replace("profiles: {gpu: {intercept: 0.02,", "profiles: {cpu: {1: 0.4}, gpu: {intercept: 0.02,")
    fleet = read_fleet(written(tmp_path, text.replace("http://g:2]}", "http://g:2], memory_mb: 1010}")))
    assert fleet.quickest(1) == (0.4, "cpu") and [(of.variant, of.seconds) for of in fleet.unservable] == [("large", 0.4)]


def test_memory_by_request_bounds_nothing_on_devices_without_a_memory(tmp_path: Path) -> None:
    """Where ``large`` is the only one of its family, it is served in batches: it takes less than half of the SLO."""
    slow = FLEET.replace("{1: 2e-2, 8: 0.16}", "{1: 20s}").replace("intercept: 0.01,", "intercept: 10s,")
    fleet = read_fleet(written(tmp_path, slow))
    assert fleet.capacity(1, 1) == (13, pytest.approx(13 / 0.15)) and [of.variant for of in fleet.unservable] == ["small"]


def test_what_batches_take_beyond_their_profiles_counts_for_who_can_serve(tmp_path: Path) -> None:
    """``only`` takes 0.1 s within 1 s; no other of its family does, so that it may take 95 % of it."""
    fleet = read_fleet(written(tmp_path))
    assert fleet.behind({"read": 0.8}).unservable == ()
    (of,) = fleet.behind({"read": 0.88}).unservable
    assert (of.variant, of.seconds, of.part) == ("only", pytest.approx(0.98), 0.95)
    said = list(sentences(plan_fleet(fleet.behind({"read": 0.88}), headroom=1)))
    assert "only serves on no device: one request takes 0.98 s, more than 95 % of the 1 s that is promised" in said


@pytest.mark.parametrize(
    ("old", "new", "refused", "allowed"),
    [
        ("accuracy: 70", "accuracy: -1", "families.seen.variants.small.accuracy: -1", "percent, 0 to 100"),
        ("accuracy: 70", "accuracy: 101", "families.seen.variants.small.accuracy: 101", "percent, 0 to 100"),
        ("accuracy: 70", "accuracy: 0.7", "families.seen.variants.small.accuracy: 0.7", "percent, 0 to 100; did you mean 70?"),
        ("accuracy: 70", "accuracy: high", "families.seen.variants.small.accuracy: 'high'", "percent"),
        ("accuracy: 70", "accuracy: .nan", "families.seen.variants.small.accuracy: nan", ""),
        ("accuracy: 70", "accuracy: yes", "families.seen.variants.small.accuracy: True", ""),
        ("accuracy: 70", "precision: 70", "variants.small.precision: 70", "one of the keys: accuracy, memory_mb"),
        ("        accuracy: 70\n", "", "families.seen.variants.small.accuracy: none was given", "an entry, beside profiles"),
        ("{cpu: profiles/only.json}", "{}", "variants.only.profiles: {}", "a mapping with at least one entry"),
        ("{cpu: profiles/only.json}", "{tpu: {1: 1}}", "only.profiles.tpu: {1: 1}", "one of the devices: cpu, gpu"),
        (", profiles: {cpu: profiles/only.json}", "", "variants.only.profiles: none was given", "an entry, beside accuracy"),
        ("profiles/only.json", "profiles/none.json", "only.profiles.cpu: 'profiles/none.json'", "a readable file"),
        ("profiles/only.json", "fleet.yaml", "only.profiles.cpu: fleet.yaml: ServiceProfile: ", ""),
        (
            "slo: 1.0",
            "slo: 0.104",
            "families.read.slo: 0.104",
            "at least 0.1053 s, as one request takes 0.1 s on the quickest (only on cpu)",
        ),
        ("{1: 2e-2, 8: 0.16}", "{1: 20, 8: 160}", "small.profiles.cpu.1: 20", "20ms if milliseconds are meant, 20s if"),
        ("{1: 2e-2, 8: 0.16}", "{1: 2e-2, 8: 160}", "small.profiles.cpu.8: 160", "160ms if milliseconds are"),
        ("intercept: 0.02, slope: 0.01", "intercept: 20, slope: 10", "large.profiles.gpu.intercept: 20", "20ms if"),
        ("intercept: 0.02, slope: 0.01", "intercept: 1, slope: 2", "large.profiles.gpu.slope: 2", "2ms if milliseconds are meant"),
        ("{1: 2e-2, 8: 0.16}", "{1: 0ms}", "small.profiles.cpu.1: '0ms'", "a number of seconds > 0"),
        ("slo: 1.0", "slo: 0", "families.read.slo: 0", "a number of seconds > 0"),
        ("slo: 1.0", "slo: 0ms", "families.read.slo: '0ms'", "a number of seconds > 0"),
        ("slo: 1.0", "slo: 1000", "families.read.slo: 1000", "1000ms if milliseconds are meant, 1000s if seconds are"),
        (
            "slo: 1.0",
            "slo: 1 day",
            "families.read.slo: '1 day'",
            "a number of seconds, or one with its unit (us, ms, s, min, h), as in 200ms",
        ),
        ("slo: 1.0", "slo: 2h", "families.read.slo: '2h'", "at most 3600 s"),
        ("slo: {latency: 0.3,", "slo: {latency: 300,", "families.seen.slo.latency: 300", "300ms if milliseconds are meant"),
        ("percentile: 99", "percentile: 100", "families.seen.slo.percentile: 100", "a number strictly between"),
        ("percentile: 99", "quantile: 0.99", "families.seen.slo.quantile: 0.99", "one of the keys: latency, perc"),
        ("accuracy: 60, ", "accuracy: 60, memory_mb: 2000, ", "families.read.variants: ['only']", "a variant that fits"),
        ("demand: {seen: 100, read: 4.5}", "demand: {seen: 0, read: 0}", "demand: {'seen': 0, 'read': 0}", "a rate > 0"),
        ("demand: {seen: 100", "demand: {scene: 100", "demand.scene: 100", "a rate for one of the families: seen, read"),
        ("demand: {seen: 100", "demand: {seen: -1", "demand.seen: -1", "requests/s >= 0"),
        ("demand: {seen: 100", "demand: {seen: .inf", "demand.seen: inf", "requests/s >= 0"),
        ("cpu: {only: 1, small: 1}", "tpu: {only: 1}", "running.tpu: {'only': 1}", "one of the device types and devices: cpu"),
        ("cpu: {only: 1, small: 1}", "cpu: {onyx: 1}", "running.cpu.onyx: 1", "one of the variants: small, large"),
        ("cpu: {only: 1, small: 1}", "cpu: {only: 4}", "running.cpu: {'only': 4}", "at most 3, the devices"),
        ("cpu: {only: 1, small: 1}", "cpu: [only, onyx]", "running.cpu[1]: 'onyx'", "one of the variants"),
        ("cpu: {only: 1, small: 1}", "cpu: only", "running.cpu: 'only'", "how many devices"),
        ("demand: {seen: 100", "demand: {seen: 1.0e+308", "demand.seen: 1e+308", "requests/s, at most 1e+09"),
        (
            "cpu: {only: 1, small: 1}",
            "cpu: {only: 1000000000000}",
            "running.cpu: {'only': 1000000000000}",
            "at most 3, the devices",
        ),
        ("http://g:2: large", "cpu-2: large", "running.cpu-2: 'large'", "each device once; its type's entry names it, too"),
        ("cpu: {only: 1, small: 1}", "cpu-2: small\n  cpu: [only, null]", "running.cpu: ['only', None]", "each device once; cpu-2"),
        ("cpu: {only: 1, small: 1}", "cpu: [[only]]", "running.cpu[0]: ['only']", "one of the variants"),
        ("{count: 3,", "{count: 100001,", "devices.cpu.count: 100001", "at most 100000"),
        ("max_batch: 32", "max_batch: 100000000000", "small.profiles.gpu.max_batch: 100000000000", "at most 100000"),
        ("8: 0.16}", "1000000000: 0.16}", "small.profiles.cpu: {1: '2e-2', 1000000000: 0.16}", "batch sizes of at most 100000"),
        ("{count: 3,", "{count: 2.5,", "devices.cpu.count: 2.5", "an integer >= 0"),
        ("{count: 3,", "{count: -1,", "devices.cpu.count: -1", "an integer >= 0"),
        ("{count: 3,", "{number: 3,", "devices.cpu.number: 3", "one of the keys: count, memory_mb, workers"),
        ("{count: 3, memory_mb: 1769}", "3", "devices.cpu: 3", "a mapping"),
        ("{count: 3, memory_mb: 1769}", "{memory_mb: 1769}", "devices.cpu: {'memory_mb': 1769}", "a mapping with a count"),
        ("http://g:2]", "http://g:1]", "devices.gpu.workers: ['http://g:1', 'http://g:1']", "a list of different"),
        ("http://g:2]", "http://g:1/]", "devices.gpu.workers: ['http://g:1', 'http://g:1/']", "a list of different"),
        ("http://g:2]", "8]", "devices.gpu.workers[1]: 8", "the address of a worker"),
        ("http://g:2]", "'g:2']", "devices.gpu.workers[1]: 'g:2'", "http://HOST:PORT; did you mean http://g:2?"),
        ("http://g:2]", "ftp://g:2]", "devices.gpu.workers[1]: 'ftp://g:2'", "http://HOST:PORT"),
        ("{workers:", "{count: 3, workers:", "devices.gpu.count: 3", "2, as many as workers"),
        ("      large:", "      only:", "families.read.variants.only: 'only'", "a name of its own in the fleet: families.seen"),
        ("      large:", "      small:", "line 14: 'small'", "each name once in a mapping"),
        ("      large:", "      no:", "families.seen.variants.False: False", "a name; in quotes"),
        ("families:", "family:", "fleet.yaml: family: {'seen': ", ""),
        ("{1: 2e-2, 8: 0.16}", "{2: 0.1}", "small.profiles.cpu: {2: 0.1}", "batch size 1 among"),
        ("{1: 2e-2, 8: 0.16}", "{0: 0.1, 1: 1}", "small.profiles.cpu: {0: 0.1, 1: 1}", "batch sizes >= 1"),
        ("{1: 2e-2, 8: 0.16}", "{1: 0}", "small.profiles.cpu.1: 0", "a number of seconds > 0"),
        ("{1: 2e-2, 8: 0.16}", "{one: 1}", "small.profiles.cpu: {'one': 1}", "seconds by batch size"),
        (
            "slope: 0.001, max_batch: 32",
            "slope: 0.001",
            "small.profiles.gpu.max_batch: none was given",
            "an entry, beside intercept",
        ),
        (
            "intercept: 0.01, slope: 0.001",
            "intercept: 0, slope: 0",
            "small.profiles.gpu: {'intercept': 0, 'slope': 0, 'max_batch': 32}",
            "",
        ),
        ("demand: {seen", "demand: {seen: {", "line 23: ", ""),
        ("demand: {seen", "demand: [seen", "line 23: ", ""),
    ],
)
def test_bad_entries_are_refused_by_path_value_and_what_is_allowed(
    old: str, new: str, refused: str, allowed: str, tmp_path: Path
) -> None:
    assert old in FLEET
    with pytest.raises(InvalidInput) as caught:
        read_fleet(written(tmp_path, FLEET.replace(old, new, 1)))
    said = str(caught.value)
    assert said.startswith("fleet.yaml: ") and refused in said
    assert f" is not allowed; allowed: {allowed}" in said or f"; needed: {allowed}" in said


@pytest.mark.parametrize(
    ("text", "message"), [("", "none was given; needed: a mapping"), ("- cpu", "['cpu'] is not allowed"), ("{}", "{} is not")]
)
def test_what_is_no_fleet_at_all_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        read_fleet(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"FLEET.yaml: .*none.yaml' is not allowed; allowed: a file that exists"):
        read_fleet(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"bytes.yaml' is not allowed; allowed: a readable file \(not UTF-8\)"):
        read_fleet(tmp_path / "bytes.yaml")


@pytest.mark.full
def test_a_hundred_thousand_devices_are_read_and_planned(tmp_path: Path) -> None:
    large = read_fleet(
        written(tmp_path, FLEET.replace("{count: 3,", "{count: 100000,").replace("{only: 1, small: 1}", "{only: 90000}"))
    )
    plan = plan_fleet(large)
    assert plan.feasible and len(plan.placement) == 100_002 and len(large.running or {}) == 90_001
    with pytest.raises(InvalidInput, match=r"devices: cpu-1, .*cpu-20, and 99982 more$"):
        large.with_running({"cpu-0": "only"})


def test_records_refuse_what_a_file_may_not_say(tmp_path: Path) -> None:
    fleet = read_fleet(written(tmp_path))
    with pytest.raises(InvalidInput, match="devices: 'cpu' .* each name once in the fleet"):
        Fleet((fleet.devices[0], fleet.devices[0]), fleet.families, fleet.profiles)
    for name in ("cpu", "gpu"):
        with pytest.raises(InvalidInput, match=f"devices: '{name}' .* a name that is no device's address or name"):
            Fleet((DeviceType("cpu", 2), DeviceType("gpu", 2, workers=("http://a:1", name))), fleet.families, fleet.profiles)
    with pytest.raises(InvalidInput, match=r"running.cpu-4: 'small' .* one of the devices: cpu-1, "):
        fleet.with_running({"cpu-4": "small"})
    with pytest.raises(InvalidInput, match=r"running.cpu-1: 'huge' .* one of the variants"):
        fleet.with_running({"cpu-1": "huge"})
