"""`sluice recommend --class`: the answer, its plan and its page, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.batching.documents import Plan, ProfilePoint, ServiceProfile, ServiceTime, read, write
from sluice.optimizer.arrivals import mmpp2
from tests.cli.conftest import Document, Run
from tests.optimizer.test_sharing import CORE
from tests.optimizer.test_sharing import profile as perceptron


@pytest.fixture
def profiled(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    path.write_bytes(write(perceptron()))
    return str(path)


@pytest.mark.full
def test_the_answer_says_who_shares_a_queue_and_writes_the_plan_and_the_page(
    shown_by: Callable[..., str], profiled: str, tmp_path: Path
) -> None:
    arrivals = tmp_path / "a:b.json"  # a colon in its name
    arrivals.write_bytes(write(mmpp2(8.0, 2.0, 0.1, 0.1).document()))
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    classes = ("--class", "web:50:p95=0.1", "--class", f"report:{arrivals}:p99=0.5", "--class", "nightly:0.5:2")
    told = shown_by("recommend", "--profile", profiled, *classes, "--out", str(plan), "--report", str(page))
    verdict, _, said = " ".join(told.split()).partition(" on. ")
    assert verdict.startswith("Do not deploy for this alone: the queue with a buffer (105.02 of it fixed) costs ")
    assert "; it pays from " in verdict
    assert said.startswith("One queue for web, report and nightly (") and "less than a queue for each" in said
    written = read(Plan, plan.read_bytes())
    assert [(of.name, of.slo and of.slo.name) for of in written.classes] == [("web", "p95"), ("report", "p99"), ("nightly", "p95")]
    html = page.read_text()
    assert (
        all(f"<h2>{section}</h2>" in html for section in ("Queues", "Latency", "Cost"))
        and 'class="headline">Do not deploy for this alone: ' in html
        and "One queue for web, report and nightly" in html
    )


def test_as_json_every_queue_and_application_is_there(document_of: Document, profiled: str) -> None:
    document = document_of("recommend", "--profile", profiled, "--class", "a:300:p95=0.012", "--class", "b:200:p95=2")
    assert [[of["name"] for of in queue["classes"]] for queue in document["queues"]] == [["a"], ["b"]]
    assert [route["name"] for route in document["plan"]["routes"]] == ["a", "b"]
    assert document["saving"] == pytest.approx(0.0)
    assert document["queues"][0]["classes"][0]["method"] == "exact"


@pytest.mark.full
def test_workers_compete_and_the_plan_that_has_them_is_simulated(
    shown_by: Callable[..., str], document_of: Document, profiled: str, tmp_path: Path
) -> None:
    worker, plan, page = (str(tmp_path / name) for name in ("worker.json", "plan.json", "page.html"))
    Path(worker).write_bytes(write(perceptron(memory_sizes=(CORE,))))
    workers, classes = ("--worker", f"{worker}:0.02"), (("web", 300), ("report", 50))
    asked = [text for name, rate in classes for text in ("--class", f"{name}:{rate}:p95=0.1")]
    written = ("--out", plan, "--report", page)
    told = shown_by("recommend", "--profile", profiled, *workers, *asked, *written)
    assert "One queue for web and report (up to 32, at once, 1 × worker:0.02)" in " ".join(told.split())
    assert "<h2>Latency</h2>" in Path(page).read_text()
    arrivals = [text for name, rate in classes for text in ("--class", f"{name}:{rate}")]
    run = document_of("simulate", "--policy", plan, "--profile", profiled, *workers, *arrivals, "--requests", "5000")
    (ran,) = run["policies"].values()
    assert all(of["keeps_slo"] for of in ran["classes"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--class", "web:50"], "--class: 'web:50' is not allowed; allowed: NAME:ARRIVALS:SLO"),
        (
            ["--class", "web:50:p95=100"],
            "--class: 'web:50:p95=100' is not allowed; allowed: NAME:ARRIVALS:SLO, the SLO 100ms if milliseconds are meant",
        ),
        (["--class", "web:50:p95"], "--class: 'web:50:p95' is not allowed; allowed: NAME:ARRIVALS:SLO, the SLO one latency"),
        (
            ["--class", "w b:50:0.1"],
            "an arrivals document or a trace, the name 1 to 128 of A-Z a-z 0-9 . _ -",
        ),
        (
            ["--class", "web:50:fast"],
            "--class: 'web:50:fast' is not allowed; allowed: NAME:ARRIVALS:SLO, the SLO a number of seconds, or one",
        ),
        (["--class", "web:fast:0.2"], "--class: 'fast' is not allowed; allowed: a file that exists"),
        (["--class", "a b:50:0.2"], "--class: 'a b:50' is not allowed"),
        (["--class", "a:5:0.2", "--class", "a:6:0.3"], "each class once"),
        (["--class", "a:nan:0.2"], "--class: 'a:nan' is not allowed; allowed: a rate above 0, in requests/s"),
        (["--class", "a:5:0.2", "--slo", "0.1"], "--slo: '0.1' is not allowed; allowed: none beside --class"),
        (["--class", "a:5:0.2", "--percentile", "99"], "--percentile: 99.0 is not allowed; allowed: none beside --class"),
        (["--class", "a:5:0.2", "--objective", "latency"], "--objective: 'latency' is not allowed; allowed: cost beside --class"),
        (["--class", "a:5:0.2", "--poisson", "3"], "--poisson: 3.0 is not allowed; allowed: none beside --class"),
        (["--class", "a:5:0.2", "--mmpp2", "1,2,3,4"], "--mmpp2: '1,2,3,4' is not allowed; allowed: none beside --class"),
        (["--class", "a:5:0.2", "--trace", "t.csv"], "none beside --class: sluice simulate --policy PLAN"),
        (
            ["--class", "a:5:0.2", "--size-classes", "2"],
            "--size-classes: 2 is not allowed; allowed: a profile of requests of one size",
        ),
        (["--class", "a:5:0.2", "--max-timeout", "0.1"], "max_timeout: 0.1 is not allowed"),
        (["--class", "a:5:0.2", "--policies", "size-or-timeout"], "policies: 'size-or-timeout' is not allowed"),
        (["--class", "a:5:0.2", "--objective", "latency", "--max-cost", "1e-6"], "objective: 'latency' is not allowed"),
        (["--poisson", "3"], "--slo: none was given; needed: a latency"),
        (["--slo", "0.2"], "exactly one of --arrivals, --poisson and --mmpp2, or --class for each"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_option(exit_of: Run, profiled: str, given: list[str], said: str) -> None:
    code, out, err = exit_of("recommend", "--profile", profiled, *given)
    assert (code, out) == (2, "") and said in err


def test_a_promise_that_nothing_keeps_names_the_class(exit_of: Run, profiled: str) -> None:
    code, _, err = exit_of("recommend", "--profile", profiled, "--class", "web:5:0.001", "--class", "b:5:1")
    assert code == 1 and "class web: no function answers p95 within 1 ms" in err


def test_a_promise_of_a_class_that_may_be_meant_in_milliseconds_is_a_question(exit_of: Run, profiled: str) -> None:
    code, _, err = exit_of("recommend", "--profile", profiled, "--class", "web:5:200")
    meant = "the SLO 200ms if milliseconds are meant, 200s if seconds are"
    assert code == 2 and f"--class: 'web:5:200' is not allowed; allowed: NAME:ARRIVALS:SLO, {meant}" in err


@pytest.mark.parametrize(("given", "said"), [([], "--profile: 'm' is not allowed"), (["--sizes", "SIZES"], "--sizes: '")])
def test_sizes_of_requests_are_refused_with_what_to_do_instead(exit_of: Run, tmp_path: Path, given: list[str], said: str) -> None:
    points = [ProfilePoint(CORE, n, ServiceTime(n / 100), n / 100, size=size) for n in (1, 2) for size in (1.0, 2.0)]
    profile, sizes = tmp_path / "profile.json", tmp_path / "sizes.csv"
    profile.write_bytes(write(ServiceProfile(function="m", points=points, model="m")))
    sizes.write_text("size\n1\n2\n")
    options = [str(sizes) if of == "SIZES" else of for of in given]
    code, out, err = exit_of("recommend", "--profile", str(profile), "--class", "a:5:0.5", *options)
    assert (code, out) == (2, "") and said in err
    assert "measure that of their largest requests" in err and "or ask for each application by itself with its sizes" in err
