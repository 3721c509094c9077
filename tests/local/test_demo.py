"""The demo with little of everything: what it promises in full length, it must do in short."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from sluice.local.demo import Row, notes
from sluice.optimizer.service.times import service_times
from tests.batching.test_documents import PROFILE

pytestmark = pytest.mark.full

SHORT = """
import sys, msgspec
from sluice.local import demo as module
module.WARM_UP = 4  # requests, each of which may start an environment that computes for half a second
module.PROBES = 20
# At this speed few come at once: each environment of the function that is started for one costs half a second of CPU.
few = dict(memory_sizes=(885, 1769), batch_sizes=(1, 2, 4), scale=2.0)
demo = module.Demo(**few, profile_seconds=2.0, replay_seconds=3.0, live_seconds=2.0)
report = demo.run(lambda line: print(line, file=sys.stderr, flush=True), lambda what, fraction: None)
print(msgspec.json.encode(report).decode())
"""


def start(mark):
    return subprocess.Popen(
        [sys.executable, "-c", SHORT],
        env=os.environ | {"SLUICE_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(mark):
    """The processes that inherited the mark: the demo, its functions and its buffer (Redis writes over its environment)."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if mark in (process / "environ").read_text(errors="replace"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def test_the_demo_runs_from_the_network_to_the_comparison_and_leaves_nothing_running():
    mark = uuid.uuid4().hex
    demo = start(mark)
    out, said = demo.communicate(timeout=300)
    assert demo.returncode == 0, said
    report = json.loads(out)
    assert [row["name"] for row in report["rows"]] == ["no batching", "greedy", "recommended"]
    for row in report["rows"]:
        assert row["failures"] == 0
        assert row["requests"] > 20
        assert row["invocations"] * row["measured_batch_size"] == pytest.approx(row["requests"])
    assert [(live["name"], len(live["phases"])) for live in report["live"]] == [
        ("static", 4),
        ("BATCH again", 4),
        ("controlled", 4),
    ]
    for live in report["live"]:
        assert [phase["requests"] for phase in live["phases"]] == [40, 120, 40, 40] and live["failures"] == 0
        assert all(phase["billed_cost"] > 0 for phase in live["phases"])
    unbatched, _, recommended = report["rows"]
    assert unbatched["invocations"] == unbatched["requests"]
    assert recommended["invocations"] < recommended["requests"]
    assert recommended["billed_cost"] < unbatched["billed_cost"]
    assert "Recommended: " in said
    assert alive(mark) == []


def test_ctrl_c_leaves_nothing_running():
    mark = uuid.uuid4().hex
    demo = start(mark)
    redis = next(Path(f"/proc/{found[1]}") for line in demo.stderr if (found := re.match(r"Started Redis \(pid (\d+)\)", line)))
    assert redis.exists()
    assert len(alive(mark)) >= 3  # the demo, the Lambda runtime, the buffer
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=30)
    assert demo.returncode != 0
    assert alive(mark) == []
    assert not redis.exists()


def test_a_figure_far_off_its_prediction_is_explained_with_what_the_run_saw():
    row = Row(
        name="no batching",
        function="f",
        memory_mb=512,
        policy="no batching",
        slo_kept=False,
        predicted_latency=0.1,
        measured_latency=0.15,
        predicted_batch_size=2.0,
        measured_batch_size=1.0,
        requests=10,
        failures=3,
        invocations=10,
        cold_starts=1,
        predicted_cost=1e-6,
        billed_cost=1.3e-6,
        lateness_p99=0.001,
    )
    usage = {"duration": 0.25, "max_concurrency": 7}
    latency, cost, failures = notes(row, usage, service_times(PROFILE, 512))
    assert latency.startswith(
        "the latency measured is 50% above the one predicted: an invocation took 25.0 ms on average, 23.0 ms in the profile"
    )
    assert "up to 7 ran at once" in latency
    assert cost.startswith("the bill is 30% above the one predicted: the mean batch had 1.00 requests, where 2.00 were predicted")
    assert failures == "3 requests failed"
