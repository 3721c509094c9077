"""A fleet planned, started and asked: real workers behind one name a family, by the shares of the plan."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml

from sluice.batching.documents import Plan, read
from sluice.buffer_service.invokers import LocalInvoker
from sluice.lambda_fn.contract import Answer, Batch
from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.local.fleet_networks import Family
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from sluice.local.stack import BufferProcess, buffer_process
from sluice.optimizer.fleet import plan_fleet, read_fleet
from sluice.optimizer.fleet.prediction import run_family
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, serving
from tests.buffer_service.virtual_time import in_virtual_time
from tests.local.test_fleet_networks import ENCODER, MLP

pytestmark = pytest.mark.full

FAMILIES = (MLP, ENCODER)
N_WORKERS = {"a": 3, "b": 2}
PER_WORKER = {1: 100.0, 2: 300.0}  # requests/s of the first (the whole network) and of the second variant
DEMAND = {"mlp": 640, "encoder": 360}
REQUESTS = 300
PACE = 150.0  # requests/s of a family: less than planned for, so that a busy machine gives nobody up
SLO = 1.0  # seconds
READY = 60.0  # seconds


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    return {name: path for family in FAMILIES for name, path in family.write(folder).items()}


def fleet_of(files: Mapping[str, Path]) -> dict[str, Any]:
    """FLEET.yaml: two types of workers, at ports of theirs, and two variants a family, of measured accuracies."""
    devices = {kind: {"workers": [f"http://127.0.0.1:{chosen_port()}" for _ in range(n)]} for kind, n in N_WORKERS.items()}
    families = {}
    for family in FAMILIES:
        accuracies = family.measure_accuracies({name: files[name] for name in family.variants}, n=200)
        families[family.name] = {
            "slo": SLO,
            "variants": {
                name: {"accuracy": accuracies[name], "profiles": {kind: profile(rate) for kind in N_WORKERS}}
                for name, rate in zip(family.variants, PER_WORKER.values(), strict=False)
            },
        }
    return {"devices": devices, "families": families, "demand": DEMAND}


def profile(rate: float) -> dict[str, float]:
    """Batches of up to four, four at this rate."""
    return {"intercept": 2 / rate, "slope": 0.5 / rate, "max_batch": 4}


def workers(placement: Mapping[str, str], files: Mapping[str, Path]) -> AbstractContextManager[None]:
    """A worker process for each device, with the variant that it is to host."""
    hosted = placement.items()
    return started({at: {"SLUICE_MODEL": str(files[variant]), "SLUICE_MODEL_NAME": variant} for at, variant in hosted})


@contextmanager
def started(environments: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """A worker process at each address, with these variables of the environment."""
    processes = []
    try:
        for address, environment in environments.items():
            command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", address.rpartition(":")[2]]
            processes.append(subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE))
        for address, worker in zip(environments, processes, strict=True):
            assert worker.stdout is not None and worker.stdout.readline().decode().strip() == address
        yield
    finally:
        for worker in processes:
            worker.kill()
            worker.communicate()


async def ask(buffer: BufferProcess, family: Family, inputs: Any) -> list[tuple[str, str, list[float]]]:
    """Of each input's answer: the route, the model that gave it, and the output; the inputs come as a Poisson process."""
    async with aiohttp.ClientSession() as http:
        deadline = time.monotonic() + READY
        while True:
            async with http.get(f"{buffer.url}/v2/models/{family.name}/ready") as answer:
                if answer.status == 200:
                    break
            assert time.monotonic() < deadline, answer.status
            await asyncio.sleep(0.05)

        async def infer(row: Any) -> tuple[str, str, list[float]]:
            url, headers = f"{buffer.url}/v2/models/{family.name}/infer", {"content-type": "application/json"}
            async with http.post(url, data=family.request(row), headers=headers) as answer:
                body = await answer.json()
                assert answer.status == 200, body
                return answer.headers["sluice-route"], body["model_name"], body["outputs"][0]["data"]

        async def later(seconds: float, row: Any) -> tuple[str, str, list[float]]:
            await asyncio.sleep(seconds)
            return await infer(row)

        gaps = np.random.default_rng(3).exponential(1 / PACE, len(inputs))
        return await asyncio.gather(*(later(at, row) for at, row in zip(np.cumsum(gaps), inputs, strict=True)))


def test_every_answer_is_that_of_the_variant_it_was_routed_to_and_the_routes_are_taken_by_their_shares(
    files: dict[str, Path], tmp_path: Path, redis_server: RedisServer
) -> None:
    fleet_file, answer_file, plans = tmp_path / "fleet.yaml", tmp_path / "answer.json", tmp_path / "plans"
    plans.mkdir()
    fleet_file.write_text(yaml.safe_dump(fleet_of(files), sort_keys=False))
    command = [str(fleet_file), "--out", str(answer_file), "--plans", str(plans)]
    subprocess.run([sys.executable, "-m", "sluice.cli.main", "fleet", *command], check=True, capture_output=True)
    placement = json.loads(answer_file.read_text())["placement"]
    assert sorted(Counter(placement.values()).items()) == [
        ("encoder-layers2", 1),
        ("encoder-layers4", 1),
        ("mlp-rank16", 2),
        ("mlp-rank64", 1),
    ]
    with (
        workers(placement, files),
        (tmp_path / "buffer.log").open("wb") as log,
        buffer_process(redis_server.url, "http://127.0.0.1:1", plans, log) as buffer,
    ):
        for family in FAMILIES:
            plan = read(Plan, (plans / f"{family.name}.json").read_bytes())
            assert {route.policy.kind for route in plan.routes} == {"brief_hold"}
            assert plan.predicted is not None and plan.predicted.latency["p95"] <= SLO
            inputs = family.inputs(np.random.default_rng(7), REQUESTS)
            answers = asyncio.run(ask(buffer, family, inputs))

            variants = {route.name: route.variant for route in plan.routes}
            assert len(set(variants.values())) == 2
            assert [model for _, model, _ in answers] == [variants[route] for route, _, _ in answers]
            for variant in set(variants.values()):
                model = OnnxModel(variant, str(files[variant]))
                outputs = model.compute({family.takes: inputs})["y"]
                for (_, by, given), output in zip(answers, outputs, strict=True):
                    assert by != variant or np.allclose(given, output, rtol=1e-4, atol=1e-5)

            taken = Counter(route for route, _, _ in answers)
            for route in plan.routes:
                assert abs(taken[route.name] - route.share * REQUESTS) < 1


SLEEPER = {"intercept": 0.15, "slope": 0.05, "max_batch": 8}  # five in half of 0.8 s, 12.5 a second and worker
SLEEPERS, SECONDS = 3, 60.0
ASKED = 1.1 * SLEEPERS * 12.5  # requests/s: more than can be served, so that there is something to count


class Workers(Function):
    """Workers that take their profiled times, each one batch at a time, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = 0
        self.answer = self.work

    async def work(self, batch: Batch) -> list[Answer]:
        self.at_work += 1
        assert self.at_work <= SLEEPERS
        await asyncio.sleep(SLEEPER["intercept"] + SLEEPER["slope"] * len(batch.items))
        self.at_work -= 1
        return await self.echo(batch)


@in_virtual_time
async def test_as_many_are_late_of_workers_that_take_their_profiled_times_as_is_predicted_for_the_same_arrivals(
    tmp_path: Path,
) -> None:
    addresses = [f"http://10.0.0.1:850{i}" for i in range(SLEEPERS)]
    variants = {"sleeper": {"accuracy": 100, "profiles": {"a": SLEEPER}}}
    families = {"asleep": {"slo": 0.8, "variants": variants}}
    described = {"devices": {"a": {"workers": addresses}}, "families": families, "demand": {"asleep": ASKED}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(described))
    fleet_plan = plan_fleet(read_fleet(tmp_path / "fleet.yaml"))
    (document,) = fleet_plan.plans()
    rng = np.random.default_rng(11)
    times = np.cumsum(rng.exponential(1 / ASKED, int(ASKED * SECONDS)))
    predicted = run_family(fleet_plan.fleet, fleet_plan.groups, times, rng).violation_ratio
    assert len(fleet_plan.groups[0].devices) == SLEEPERS and 0.03 < predicted < 0.3
    (route,) = document.routes
    invoker = LocalInvoker(dict.fromkeys([route.function, *addresses], Workers()))
    async with serving(Function(), NO_BATCHING, plans=Plans(document), invoker=invoker) as buffer:
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def late(at: float) -> bool:
            await asyncio.sleep(begun + at - loop.time())
            status, _, _ = await buffer.post("/models/asleep", b"{}")
            return status != 200 or loop.time() - begun - at > 0.8

        assert np.mean(await asyncio.gather(*(late(at) for at in times))) == pytest.approx(predicted, abs=0.01)
