"""The parts of the local system as processes of their own."""

import json
import urllib.request

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument
from sluice.local.stack import buffer_process


def plan(timeout):
    # Nothing listens there; a function that is away may come back, so that its plan is followed all the same.
    return Plan(model="m", function="http://127.0.0.1:9", policy=PolicyDocument.of(policies.size_or_timeout(4, timeout)))


def in_force(buffer):
    with urllib.request.urlopen(f"{buffer.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return [line.partition('digest="')[2].partition('"')[0] for line in lines if line.startswith("sluice_plan_info{")]


def test_a_plan_that_changes_only_its_holds_is_in_force_when_it_has_been_applied(tmp_path):
    first, second = plan(0.1), plan(0.2)
    with (tmp_path / "log").open("wb") as log, buffer_process("memory://", "http://127.0.0.1:9", tmp_path, log) as buffer:
        buffer.apply(first)
        assert in_force(buffer) == [first.digest]
        buffer.apply(second)
        assert in_force(buffer) == [second.digest] != [first.digest]
        assert json.loads((tmp_path / "plan.json").read_text())["digest"] == second.digest
