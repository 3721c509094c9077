"""`sluice fleet` as its users meet it: the page that describes it, documents, exit codes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from sluice.batching.documents import Plan, read, write
from sluice.cli import output
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.fleet import FleetPlan, plan_fleet, read_fleet
from sluice.optimizer.fleet.solver_output import solver_on_stderr
from tests.cli.conftest import Document, Run

pytestmark = pytest.mark.usefixtures("searched_once")
PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
EXAMPLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
OVERLOAD = ("--demand", "vision=3500", "--demand", "text=3000")


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's example, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "stdout", Console(width=80))
    (tmp_path / "fleet.yaml").write_text(EXAMPLE)
    return "fleet.yaml"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> FleetPlan:
    """What is planned for it where Python asks."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    path.write_text(EXAMPLE)
    return plan_fleet(read_fleet(str(path)))


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("shown", re.findall(r"```console\n\$ sluice (.*?)```", PAGE, re.DOTALL), ids=["served", "missing"])
def test_the_page_shows_what_its_commands_print(shown: str, exit_of: Run) -> None:
    command, _, printed = shown.partition("\n")
    code, stdout, _ = exit_of(*shlex.split(command))
    assert [line.rstrip() for line in stdout.splitlines()] == printed.splitlines()
    assert code == printed.startswith("missing: ")


@pytest.mark.full
@pytest.mark.usefixtures("fleet")
def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    planned, followed = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(planned, {})
    assert "resnet152" in capsys.readouterr().out
    exec(followed, {})
    assert "0.00% late" in capsys.readouterr().out


@pytest.mark.usefixtures("fleet")
def test_every_option_is_on_the_page(shown_by: Callable[..., str]) -> None:
    for option in re.findall(r"--[a-z-]+", shown_by("fleet", "--help")):
        assert option in PAGE or option in ("--json", "--help"), option


@pytest.mark.full
def test_the_document_is_the_plan(fleet: str, planned: FleetPlan, document_of: Document) -> None:
    answer, plan = document_of("fleet", fleet), planned
    assert answer["placement"] == plan.placement and answer["feasible"] and answer["converged"]
    assert answer["accuracy"] == pytest.approx(plan.accuracy) and answer["gap"] < 1e-6
    assert {group["variant"] for group in answer["groups"]} == {"resnet18", "resnet152", "bert-base"}


def test_an_answer_is_what_runs_next_and_changes_nothing(fleet: str, document_of: Document, tmp_path: Path) -> None:
    first = document_of("fleet", fleet, "--out", str(tmp_path / "plan.json"))
    assert len(first["changes"]) == 4
    again = document_of("fleet", fleet, "--running", str(tmp_path / "plan.json"))
    assert again["changes"] == {} and again["placement"] == first["placement"]


def test_what_buffer_and_network_take_is_left_free_by_the_tables(fleet: str, document_of: Document) -> None:
    tables = {}
    for told in ("0", "20ms"):
        groups = document_of("fleet", fleet, "--buffer-overhead", told)["groups"]
        tables[told] = {(group["variant"], group["device_type"]): group["policy"]["drop_after"] for group in groups}
    both = tables["0"].keys() & tables["20ms"].keys()
    assert both and all(tables["20ms"][key] != tables["0"][key] for key in both)


def test_demand_comes_from_a_file_or_from_the_command_line(fleet: str, document_of: Document, tmp_path: Path) -> None:
    (tmp_path / "demand.yaml").write_text("text: 5\n")
    asked = document_of("fleet", fleet, "--demand", "demand.yaml")["families"]
    assert (asked["vision"]["asked"], asked["text"]["asked"]) == (0, 5)
    asked = document_of("fleet", fleet, "--demand", "text=7.5")["families"]
    assert (asked["vision"]["asked"], asked["text"]["asked"]) == (220, 7.5)


def test_too_much_demand_exits_with_one_and_the_best_there_is(fleet: str, exit_of: Run) -> None:
    code, stdout, _ = exit_of("fleet", fleet, *OVERLOAD, "--json")
    answer = json.loads(stdout)
    assert code == 1 and not answer["feasible"] and answer["devices_wanted"] == {"cpu": 25, "gpu": 4}
    for more, served in ((25, True), (24, False)):
        Path("larger.yaml").write_text(EXAMPLE.replace("count: 4", f"count: {4 + more}"))
        assert exit_of("fleet", "larger.yaml", *OVERLOAD)[0] == (not served)


def test_headroom_beyond_the_fleet_is_said_but_all_is_served(fleet: str, exit_of: Run) -> None:
    code, stdout, _ = exit_of("fleet", fleet, "--headroom", "15")
    room = float(re.findall("all is served, with room for a headroom of (.*) only", stdout)[0])
    assert code == 0 and 1 < room < 15 and "all, with a headroom of 15, would be served with" in stdout
    for more, served in ((0, True), (0.02, False)):
        assert ("only" not in exit_of("fleet", fleet, "--headroom", f"{room + more:.2f}")[1]) is served


SHARE = r"([\d.e-]+) % \(([\d.e-]+) to ([\d.e-]+)\)"
SERVED = "all demand is served"
LACK = "missing: 1138 requests/s of vision, 1118 requests/s of text; of all requests"


@pytest.mark.parametrize(
    ("options", "code", "begins"),
    [
        ((), 0, f"{SERVED} within the SLOs: {SHARE} late or given up under Poisson arrivals, effective accuracy 81.30 %"),
        (("--headroom", "1", "--batching", "published"), 1, f"{SERVED}, but too much of it late .*, {SHARE} of vision where 1 %"),
        (
            ("--headroom", "1.2", "--violations", "1e-9"),
            1,
            f"{SERVED}, but more of it may be late .*, {SHARE} of vision where 1e-07 %",
        ),
        (OVERLOAD, 1, f"{LACK} {SHARE} late or given up"),
        (
            ("--demand", "vision=1e9"),
            1,
            "missing: .*; it is too large to be simulated, so that nothing is said of how many are late",
        ),
    ],
)
def test_the_first_line_says_what_becomes_of_the_requests(
    options: tuple[str, ...], code: int, begins: str, fleet: str, exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout", Console(width=400))
    exited, stdout, _ = exit_of("fleet", fleet, *options)
    assert exited == code and re.match(begins, stdout.splitlines()[0]), stdout.splitlines()[0]


def test_variants_that_serve_on_no_device_are_named_and_no_others(
    fleet: str, exit_of: Run, document_of: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout", Console(width=400))
    assert "serves on no device" not in exit_of("fleet", fleet, "--headroom", "1")[1]
    too_slow = EXAMPLE.replace("{1: 0.140, 2: 0.260}", "{1: 140s, 2: 260s}").replace("slope: 0.0045", "slope: 4.5s")
    too_large = too_slow.replace("accuracy: 83.2", "accuracy: 83.2\n        memory_mb: 99999")
    Path(fleet).write_text(too_large)
    said = [line for line in exit_of("fleet", fleet)[1].splitlines() if "serves on no device" in line]
    assert said == [
        "resnet152 serves on no device: one request takes 4.508 s where 0.3 s is promised",
        "bert-tiny serves on no device: it needs 99999 MB of the 4096 that the largest device with a profile of it has",
    ]
    slow, large = document_of("fleet", fleet)["unservable"]
    assert slow == {
        "variant": "resnet152",
        "family": "vision",
        "seconds": pytest.approx(4.508),
        "promised": 0.3,
        "memory_mb": 1080,
        "largest_mb": 16000,
    }
    assert (large["variant"], large["seconds"], large["memory_mb"], large["largest_mb"]) == ("bert-tiny", None, 99999, 4096)


@pytest.mark.full
def test_the_headroom_is_the_least_that_does_unless_one_is_given(fleet: str, document_of: Document, exit_of: Run) -> None:
    chosen, without = document_of("fleet", fleet), json.loads(exit_of("fleet", fleet, "--headroom", "1", "--json")[1])
    assert (chosen["headroom"], chosen["headroom_asked"]) == (1.05, None) and chosen["predicted"]["kept"]
    assert (without["headroom"], without["headroom_asked"]) == (1, 1) and not without["predicted"]["kept"]
    fewer = document_of("fleet", fleet, "--violations", "0.0001")
    assert fewer["headroom"] > 1.05 and fewer["predicted"]["violations"]["high"] <= 1e-4


def test_arrivals_that_come_in_bursts_are_predicted_more_violations(fleet: str, document_of: Document, exit_of: Run) -> None:
    Path("bursts.json").write_bytes(write(mmpp2(4.0, 0.25, 0.5, 0.5).document()))
    given = ("--headroom", "1.05", "--arrivals", "text=bursts.json")
    calm, bursty = document_of("fleet", fleet, "--headroom", "1.05"), json.loads(exit_of("fleet", fleet, *given, "--json")[1])
    late = [answer["families"]["text"]["predicted"]["violations"] for answer in (calm, bursty)]
    assert late[1]["low"] > late[0]["high"]
    assert calm["families"]["vision"]["predicted"] == bursty["families"]["vision"]["predicted"]
    assert "under the arrivals given" in " ".join(exit_of("fleet", fleet, *given)[1].split())


@pytest.mark.full
def test_the_same_fleet_is_told_the_same(fleet: str, planned: FleetPlan, document_of: Document) -> None:
    first, second = document_of("fleet", fleet), planned.document()
    assert first | {"seconds": 0} == json.loads(write(second)) | {"seconds": 0}


@pytest.mark.full
def test_the_batching_asked_for_is_the_table_of_every_queue(fleet: str, document_of: Document) -> None:
    for batching, kind, drops in (
        ("brief-hold", "brief_hold", True),
        ("deadline", "deadline", True),
        ("published", "deadline", False),
    ):
        policies = [group["policy"] for group in document_of("fleet", fleet, "--batching", batching)["groups"]]
        assert {policy["kind"] for policy in policies} == {kind}
        assert all((policy["drop_after"] is not None) == drops for policy in policies)
    by_default = [group["policy"] for group in document_of("fleet", fleet)["groups"]]
    assert {policy["kind"] for policy in by_default} == {"brief_hold"}


def test_the_batch_rule_reaches_the_tables(fleet: str, document_of: Document) -> None:
    """bert-base on a gpu, measured at 1, 8 and 32: 32 is the largest within 250 ms, 8 the quickest per request."""
    Path(fleet).write_text(EXAMPLE.replace("gpu: {1: 0.009, 8: 0.021, 32: 0.066}", "gpu: {1: 0.009, 8: 0.021, 32: 0.166}"))
    asked = ("--demand", "vision=0", "--batching", "deadline")
    best, largest = (document_of("fleet", fleet, *asked, "--batch-rule", rule)["groups"] for rule in ("best", "largest"))
    for groups, size in ((best, 8), (largest, 32)):
        assert [max(g["policy"]["take"]) for g in groups if (g["variant"], g["device_type"]) == ("bert-base", "gpu")] == [size]


def test_what_the_solver_prints_by_itself_stays_off_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with solver_on_stderr():
        os.write(1, b"written\n")
        ctypes.CDLL(None).puts(b"printed")
    os.write(1, b"document\n")
    assert capfd.readouterr() == ("document\n", "written\nprinted\n")


@pytest.mark.full
def test_plans_are_written_for_each_family(fleet: str, shown_by: Callable[..., str], exit_of: Run, tmp_path: Path) -> None:
    addressed = EXAMPLE.replace("count: 4", "workers: [http://c:1, http://c:2, http://c:3, http://c:4]")
    (tmp_path / "addressed.yaml").write_text(addressed)
    shown_by("fleet", "addressed.yaml", "--plans", "plans")
    for family in ("vision", "text"):
        plan = read(Plan, (tmp_path / "plans" / f"{family}.json").read_bytes())
        assert plan.model == family and sum(route.share for route in plan.routes) == pytest.approx(1)
        assert plan.slo is not None and plan.predicted is not None and plan.predicted.cost_per_request is None
        assert plan.predicted.latency[plan.slo.name] <= plan.slo.latency and plan.predicted.mean_batch_size >= 1
        assert plan.predicted.violations is not None and plan.predicted.violations <= plan.slo.error_budget
    code, _, stderr = exit_of("fleet", fleet, "--plans", "plans")
    assert (
        code == 2
        and "devices.cpu.workers: none was given; needed: the addresses of its devices, to which a plan routes: add workers: to cpu"
        in stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--demand", "scene=3"), "demand: 'scene=3' is not allowed; allowed: a rate for one of the families: vision, text"),
        (("--demand", "text=much"), "demand: 'text=much' is not allowed; allowed: a file, or FAMILY=RATE"),
        (("--demand", "text=-3"), "demand.text: -3.0 is not allowed; allowed: requests/s >= 0"),
        (("--demand", "none.yaml"), "demand: 'none.yaml' is not allowed; allowed: a file that exists"),
        (("--running", "none.yaml"), "running: 'none.yaml' is not allowed; allowed: a file that exists"),
        (("--demand", "text=0", "--demand", "vision=0"), "is not allowed; allowed: a rate > 0 for at least one family"),
        (("--running", "fleet.yaml"), "fleet.yaml: devices: "),
        (("--demand", "text=1e308"), "demand.text: 1e+308 is not allowed; allowed: requests/s, at most 1e+09"),
        (("--headroom", "1e300"), "headroom: 1e+300 is not allowed; allowed: at most 4.545e+06, which makes a demand of 1e+09"),
        (("--headroom", "0"), "headroom: 0.0 is not allowed; allowed: a factor of the demand, at least 1, as"),
        (
            ("--headroom", "0.1"),
            "headroom: 0.1 is not allowed; allowed: a factor of the demand, at least 1, as the demand comes first; "
            "did you mean 1.1?",
        ),
        (("--time-limit", "-1"), "time_limit: -1.0 is not allowed; allowed: a number of seconds > 0"),
        (("--gap", "0"), "gap: 0.0 is not allowed; allowed: percentage points above 0 and below 100"),
        (("--headroom", "much"), "headroom: 'much' is not allowed; allowed: a factor of the demand, at least 1, or auto"),
        (("--violations", "1"), "violations: 1.0 is not allowed; allowed: a share strictly between 0 and 1"),
        (("--arrivals", "text"), "arrivals: 'text' is not allowed; allowed: FAMILY=FILE, an arrivals document of a family"),
        (("--batching", "aimd"), "Invalid value for '--batching'"),
        (("--batch-rule", "least"), "Invalid value for '--batch-rule'"),
    ],
)
def test_misuse_exits_with_two_and_says_what_is_allowed(arguments: tuple[str, ...], message: str, fleet: str, exit_of: Run) -> None:
    code, stdout, stderr = exit_of("fleet", fleet, *arguments)
    assert code == 2 and message in stderr and stdout == ""


def test_the_arrivals_of_a_family_are_told_once(fleet: str, tmp_path: Path, exit_of: Run) -> None:
    file = tmp_path / "arrivals.json"
    file.write_bytes(write(mmpp2(60, 5, 1, 0.5).document()))
    code, _, stderr = exit_of("fleet", fleet, "--arrivals", f"text={file}", "--arrivals", f"text={file}")
    assert code == 2 and f"arrivals: 'text={file}' is not allowed; allowed: each family once" in stderr


def test_a_fleet_that_is_not_there_is_named_as_the_argument(tmp_path: Path, exit_of: Run) -> None:
    code, stdout, stderr = exit_of("fleet", str(tmp_path / "none.yaml"))
    assert (code, stdout) == (2, "") and f"FLEET.yaml: {str(tmp_path / 'none.yaml')!r} is not allowed; allowed: a file" in stderr
    assert "FLEET.yaml: '" in exit_of("fleet", str(tmp_path))[2]  # a folder


def test_a_bad_file_exits_with_two_and_names_the_entry(fleet: str, exit_of: Run) -> None:
    Path(fleet).write_text(EXAMPLE.replace("accuracy: 78.3", "accuracy: -78.3"))
    code, _, stderr = exit_of("fleet", fleet)
    assert code == 2 and "fleet.yaml: families.vision.variants.resnet152.accuracy: -78.3 is not allowed" in stderr
