"""The HTTP worker: what it answers, to whom, in which order, and what becomes of models that misbehave."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from sluice.batching.documents import ServiceProfile, read
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import greedy, size_or_timeout
from sluice.lambda_fn.contract import Answer, Batch, Item, decode_answers, decode_metadata, encode_batch
from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.lambda_fn.models.python_model import PythonModel
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.pipeline import Pipeline, Stage
from sluice.lambda_fn.worker import program
from sluice.lambda_fn.worker.served_model import ServedModel, Serving
from tests.lambda_fn.worker_sockets import Gated, Scripted, detail, in_thread, running, served
from tests.waiting import until

BATCH = Batch("echo", [Item("a", "application/json", b'{"x": 1}'), Item("b", "application/octet-stream", b"\0\1")])


class Echo:
    """A stage."""

    def predict(self, value: bytes) -> bytes:
        return value


async def post(client: aiohttp.ClientSession, url: str, data: bytes = b"", **more: Any) -> tuple[int, bytes, Any]:
    async with client.post(url, data=data, **more) as response:
        return response.status, await response.read(), response.headers


async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with client.get(url) as response:
        return response.status, await response.read()


# -- batches


@pytest.mark.parametrize("path", ["/", "/invocations"])
async def test_a_batch_is_answered_with_what_it_took_to_compute(path: str) -> None:
    async with running(served(Sleeper("echo", 0.02))) as (_, url), aiohttp.ClientSession() as client:
        begun = time.perf_counter()
        status, body, headers = await post(client, url + path, encode_batch(BATCH))
        assert status == 200
        assert [(a.status, a.body) for a in decode_answers(body, BATCH)] == [(200, b'{"x": 1}'), (200, b"\0\1")]
        assert 0.02 <= float(headers["sluice-service-time"]) <= time.perf_counter() - begun
        assert int(headers["sluice-memory-mb"]) > 100
        status, body, _ = await post(client, url + path, encode_batch(Batch("echo", [], describe=True)))
        assert decode_metadata(body)["name"] == "echo"
        status, body, _ = await post(client, url + path, encode_batch(Batch("echo", [])))
        assert decode_answers(body, Batch("echo", [])) == []


async def test_of_several_models_the_batch_chooses_and_unknown_ones_fail_each() -> None:
    async with running(served(Sleeper("one")), served(Sleeper("two"))) as (_, url), aiohttp.ClientSession() as client:
        for name in ("one", "two"):
            _, body, _ = await post(client, url, encode_batch(Batch(name, BATCH.items)))
            assert [a.status for a in decode_answers(body, BATCH)] == [200, 200]
        status, body, _ = await post(client, url, encode_batch(Batch("three", BATCH.items)))
        answers = decode_answers(body, BATCH)
        assert (status, [a.status for a in answers]) == (200, [404, 404])
        assert detail(answers[0].body) == "model: 'three' is not allowed; allowed: 'one', 'two'"
        _, body, _ = await post(client, url, encode_batch(Batch("three", [], describe=True)))
        assert decode_metadata(body)["name"] == "one, two"


async def test_one_execution_at_a_time_and_health_is_answered_meanwhile() -> None:
    model = Gated()
    async with running(served(model)) as (_, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(3)]
        await asyncio.to_thread(model.entered.acquire)
        assert (await get(client, url + "/health"))[0] == 200
        assert not any(task.done() for task in sending)
        model.gate.set()
        assert [status for status, *_ in await asyncio.gather(*sending)] == [200] * 3
    assert model.most == 1


async def test_as_many_executions_at_once_as_were_asked_for() -> None:
    model = Gated()
    async with running(served(model, executions=2)) as (_, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(model.entered.acquire)
        model.gate.set()
        await asyncio.gather(*sending)
    assert model.most == 2


async def test_a_queue_that_is_full_is_told_with_when_to_come_again_by_what_was_measured() -> None:
    model = Gated()
    one = served(model, queue=4)
    one.measurements.add(1, seconds=2.5, overhead=0.0)
    async with running(one) as (_, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(3)]
        await until(lambda: one.waiting == 4)
        status, body, headers = await post(client, url, encode_batch(BATCH))
        assert (status, headers["retry-after"]) == (429, "10")  # four requests of 2.5 s
        assert detail(body) == "4 requests wait for 'echo' already; allowed: 4"
        model.gate.set()
        assert [status for status, *_ in await asyncio.gather(*sending)] == [200] * 3


# -- single requests


async def test_single_requests_that_wait_are_computed_together_and_each_gets_its_own() -> None:
    model = Gated()
    one = served(model, greedy(4))
    async with running(one) as (_, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, f"{url}/models/echo", b"0"))]
        await asyncio.to_thread(model.entered.acquire)
        sending += [asyncio.create_task(post(client, f"{url}/models/echo", str(i).encode())) for i in range(1, 9)]
        await until(lambda: one.waiting == 8)
        model.gate.set()
        assert sorted(int(body) for _, body, _ in await asyncio.gather(*sending)) == list(range(9))
        assert [body for _, body, _ in [task.result() for task in sending]] == [str(i).encode() for i in range(9)]
    assert model.sizes == [1, 4, 4]


async def test_a_single_request_waits_for_others_where_it_is_told_to() -> None:
    model = Gated()
    model.gate.set()
    async with running(served(model, size_or_timeout(2, 30.0))) as (_, url), aiohttp.ClientSession() as client:
        answers = await asyncio.gather(*(post(client, f"{url}/models/echo", b"1") for _ in range(2)))
        assert [status for status, *_ in answers] == [200, 200]
    assert model.sizes == [2]


async def test_the_open_inference_protocol_is_spoken_in_json_and_in_binary(network: Path, infer: Any) -> None:
    model = ServedModel("small", in_thread(lambda: OnnxModel("small", str(network))), Serving(greedy(8)))
    async with running(model) as (_, url), aiohttp.ClientSession() as client:
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        item = infer("r", rows, id="mine")
        json = {"content-type": "application/json"}
        status, body, _ = await post(client, f"{url}/v2/models/small/infer", item.body, headers=json)
        (tensor,) = msgspec.json.decode(body)["outputs"]
        assert (status, msgspec.json.decode(body)["id"], tensor["shape"]) == (200, "mine", [2, 3])
        head = msgspec.json.encode(
            {
                "inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": {"binary_data_size": 32}}],
                "parameters": {"binary_data_output": True},
            }
        )
        status, body, headers = await post(
            client,
            f"{url}/v2/models/small/versions/1/infer",
            head + rows.tobytes(),
            headers={"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"},
        )
        length = int(headers["inference-header-content-length"])
        assert np.frombuffer(body[length:], "<f4") == pytest.approx(np.array(tensor["data"], np.float32))
        status, body, _ = await post(client, f"{url}/v2/models/small/infer", b'{"inputs": []}', headers=json)
        assert (status, detail(body)) == (400, "inputs: x missing; allowed, once each: x")
        assert msgspec.json.decode((await get(client, f"{url}/v2/models/small"))[1])["inputs"][0]["shape"] == [-1, 4]
        assert msgspec.json.decode((await get(client, f"{url}/v2/models/small/ready"))[1]) == {"name": "small", "ready": True}
        assert msgspec.json.decode((await get(client, f"{url}/v2/health/live"))[1]) == {"live": True}
        assert "model_repository" in msgspec.json.decode((await get(client, f"{url}/v2"))[1])["extensions"]


def test_the_client_library_of_the_protocol_is_served(network: Path) -> None:
    import tritonclient.http

    async def serve(ready: threading.Event, told: list[str], ended: threading.Event) -> None:
        model = ServedModel("small", in_thread(lambda: OnnxModel("small", str(network))), Serving(greedy(8)))
        async with running(model) as (_, url):
            told.append(url)
            ready.set()
            await asyncio.to_thread(ended.wait)

    ready, ended = threading.Event(), threading.Event()
    told: list[str] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve(ready, told, ended)))
    thread.start()
    try:
        assert ready.wait(10)
        client = tritonclient.http.InferenceServerClient(told[0].removeprefix("http://"))
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("small")
        tensor = tritonclient.http.InferInput("x", [2, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((2, 4), np.float32))
        assert client.infer("small", [tensor]).as_numpy("y").shape == (2, 3)
        client.unload_model("small")
        assert client.get_model_repository_index()[0]["state"] == "UNAVAILABLE"
        client.load_model("small")
        assert client.is_model_ready("small")
        client.close()
    finally:
        ended.set()
        thread.join()


# -- models that misbehave


async def test_a_model_that_raises_is_a_500_with_what_it_raised() -> None:
    def fail(items: Sequence[Item]) -> list[Answer]:
        raise RuntimeError("out of order")

    async with running(served(Scripted(fail))) as (worker, url), aiohttp.ClientSession() as client:
        status, body, _ = await post(client, url, encode_batch(BATCH))
        assert (status, detail(body)) == (500, "RuntimeError: out of order")
        assert worker.repository.models["echo"].tallies.failures == {"RuntimeError": 1}


async def test_of_single_requests_computed_together_the_one_that_fails_fails_alone() -> None:
    def pick(items: Sequence[Item]) -> list[Answer]:
        if any(item.body == b"bad" for item in items):
            raise ValueError("a bad one")
        return [Answer(item.id, 200, "text/plain", item.body) for item in items]

    async with running(served(Scripted(pick), size_or_timeout(3, 5.0))) as (_, url), aiohttp.ClientSession() as client:
        sent = [post(client, f"{url}/models/echo", body) for body in (b"1", b"bad", b"3")]
        answers = await asyncio.gather(*sent)
        assert [status for status, *_ in answers] == [200, 500, 200]
        assert detail(answers[1][1]) == "ValueError: a bad one"


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (lambda items: None, "TypeError"),
        (lambda items: [1, 2], "the model answered with list; allowed: a list of answers"),
        (lambda items: [Answer("a", 200, "text/plain", b"")], "the model gave 1 answers to 2 requests"),
        (lambda items: [Answer("a", "no", "text/plain", b""), Answer("b", 200, 7, b"")], "an answer cannot be sent"),
        (lambda items: [Answer(item.id, 99, "text/plain", b"") for item in items], "status: 99 is not allowed"),
        (lambda items: sys.exit(3), "SystemExit: 3"),
    ],
)
async def test_a_model_that_returns_garbage_is_a_500_that_says_what(garbage: Any, said: str) -> None:
    async with running(served(Scripted(garbage))) as (_, url), aiohttp.ClientSession() as client:
        status, body, _ = await post(client, url, encode_batch(BATCH))
        assert status == 500
        assert said in detail(body)
        assert (await get(client, url + "/health"))[0] == 200


async def test_a_model_that_cannot_describe_itself_is_a_500_and_the_connection_goes_on() -> None:
    class Dumb(Sleeper):
        def metadata(self) -> dict[str, Any]:
            raise RuntimeError("no words")

    async with running(served(Dumb("echo"))) as (_, url), aiohttp.ClientSession() as client:
        status, body = await get(client, f"{url}/v2/models/echo")
        assert (status, detail(body)) == (500, "an error inside the worker; its log has the details")
        assert (await post(client, url, encode_batch(BATCH)))[0] == 200


async def test_an_answer_with_a_header_of_two_lines_does_not_leave() -> None:
    def split(items: Sequence[Item]) -> list[Answer]:
        return [Answer("a", 200, "text/plain", b"x", {"a": "1\r\nset-cookie: b"})]

    async with running(served(Scripted(split))) as (_, url), aiohttp.ClientSession() as client:
        status, body, headers = await post(client, f"{url}/models/echo", b"1")
        assert status == 500
        assert "an answer cannot be sent: headers of 'a'" in detail(body)
        assert "set-cookie" not in headers


async def test_a_model_that_takes_too_long_is_a_504_and_one_that_never_ends_is_not_live() -> None:
    model = Gated()
    one = served(model, timeout=0.3)
    async with running(one) as (_, url), aiohttp.ClientSession() as client:
        sent = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(2)]
        answers = await asyncio.gather(*sent)
        assert [status for status, *_ in answers] == [504, 504]
        said = sorted(detail(body) for _, body, _ in answers)
        assert said == ["it waited for 0.3 s and was not begun", "model 'echo' does not answer within 0.3 s"]
        status, body = await get(client, url + "/v2/health/live")
        assert status == 503
        assert msgspec.json.decode(body)["reason"] == "model 'echo': every execution runs for longer than anybody waits"
        assert model.sizes == [2]
        model.gate.set()
        await until(lambda: not one.busy)
        assert (await get(client, url + "/v2/health/live"))[0] == 200
        assert (await post(client, url, encode_batch(BATCH)))[0] == 200


async def test_a_batch_that_exhausts_the_memory_is_halved_and_the_metadata_tell_what_fits() -> None:
    def small(items: Sequence[Item]) -> list[Answer]:
        if len(items) > 2:
            raise MemoryError
        return [Answer(item.id, 200, item.content_type, item.body) for item in items]

    async with running(served(Scripted(small))) as (_, url), aiohttp.ClientSession() as client:
        batch = Batch("echo", [Item(str(i), "application/json", str(i).encode()) for i in range(8)])
        for _ in range(2):
            _status, body, _ = await post(client, url, encode_batch(batch))
            assert [a.body for a in decode_answers(body, batch)] == [str(i).encode() for i in range(8)]
        described = msgspec.json.decode((await get(client, f"{url}/v2/models/echo"))[1])
        assert described["parameters"] == {"largest_batch": 2}
        profile = read(ServiceProfile, (await get(client, f"{url}/profile"))[1])
        assert profile.model == "echo"
        assert (profile.max_batch_size, [(p.batch_size, p.service_time.n) for p in profile.points]) == (2, [(8, 1)])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_pipeline_that_ended_by_its_own_defect_is_neither_ready_nor_live_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = Pipeline(Stage(Echo, processes=False)).start()
    try:
        async with running(served(PythonModel("echo", pipeline))) as (_, url), aiohttp.ClientSession() as client:
            assert (await post(client, f"{url}/models/echo", b"0"))[:2] == (200, b"0")
            assert (await get(client, url + "/health"))[0] == 200
            monkeypatch.delattr(type(pipeline._state), "returned")
            status, body, _ = await post(client, f"{url}/models/echo", b"0")
            assert (status, detail(body)) == (503, "the pipeline was stopped before this item was answered")
            reason = "the pipeline has ended by a defect: AttributeError: 'PipelineState' object has no attribute 'returned'"
            for path in ("/health", "/ping", "/v2/health/ready", "/v2/health/live", "/v2/models/echo/ready"):
                async with asyncio.timeout(60):
                    while (answer := await get(client, url + path))[0] == 200:
                        await asyncio.sleep(0.005)
                assert answer[0] == 503
                assert reason in msgspec.json.decode(answer[1])["reason"]
            status, body, _ = await post(client, f"{url}/models/echo", b"0")
            assert (status, detail(body)) == (503, reason)
    finally:
        pipeline.stop(0)


# -- who has gone


async def test_who_goes_while_he_waits_is_not_computed_for() -> None:
    model = Gated()
    one = served(model, greedy(1))
    async with running(one) as (worker, url), aiohttp.ClientSession() as client:
        first = asyncio.create_task(post(client, url, encode_batch(BATCH)))
        await asyncio.to_thread(model.entered.acquire)
        second = asyncio.create_task(post(client, f"{url}/models/echo", b"1"))
        await until(lambda: one.waiting == 1)
        second.cancel()
        await until(lambda: one.waiting == 0)
        model.gate.set()
        assert (await first)[0] == 200
        assert worker.server.held == 0
    assert model.sizes == [2]


# -- life


async def test_models_are_loaded_and_unloaded_on_command_but_only_those_it_was_started_with() -> None:
    gated = Gated("big")
    big = served(gated)
    async with running(big, served(Sleeper("small"))) as (_worker, url), aiohttp.ClientSession() as client:
        sending = asyncio.create_task(post(client, url, encode_batch(Batch("big", BATCH.items))))
        await asyncio.to_thread(gated.entered.acquire)
        unloading = asyncio.create_task(post(client, f"{url}/v2/repository/models/big/unload"))
        await until(lambda: big.reason == "being unloaded")
        status, body, headers = await post(client, url, encode_batch(Batch("big", BATCH.items)))
        assert (status, detail(body)) == (503, "model 'big' is being unloaded")
        assert "retry-after" not in headers
        gated.gate.set()
        assert (await sending)[0] == 200, "what was under way is answered first"
        assert (await unloading)[0] == 200
        _, body, _ = await post(client, f"{url}/v2/repository/index")
        assert msgspec.json.decode(body) == [
            {"name": "big", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"},
            {"name": "small", "version": "1", "state": "READY", "reason": ""},
        ]
        _, body, _ = await post(client, f"{url}/v2/repository/index", b'{"ready": true}')
        assert [entry["name"] for entry in msgspec.json.decode(body)] == ["small"]
        assert (await get(client, f"{url}/v2/models/big/ready"))[0] == 503
        assert (await get(client, f"{url}/ping"))[0] == 200, "what was unloaded on command is not missed"
        assert (await post(client, f"{url}/v2/repository/models/big/load"))[0] == 200
        assert (await post(client, url, encode_batch(Batch("big", BATCH.items))))[0] == 200
        status, body, _ = await post(client, f"{url}/v2/repository/models/os.path/load", b'{"parameters": {"path": "x"}}')
        assert (status, detail(body)) == (404, "model: 'os.path' is not allowed; allowed: 'big', 'small'")


async def test_a_model_that_is_being_loaded_is_not_ready_and_one_that_cannot_be_says_why() -> None:
    gate = threading.Event()
    fails = [ValueError("no such file"), None]

    def load() -> Sleeper:
        gate.wait(10)
        error = fails.pop(0)
        if error is not None:
            raise error
        return Sleeper("late")

    late = ServedModel("late", in_thread(load), Serving(greedy(1)))
    async with running(served(Sleeper("echo"))) as (worker, url), aiohttp.ClientSession() as client:
        worker.repository.models["late"] = late
        late.wanted = False
        loading = asyncio.create_task(post(client, f"{url}/v2/repository/models/late/load"))
        await until(lambda: late.reason == "being loaded")
        status, body, headers = await post(client, url, encode_batch(Batch("late", BATCH.items)))
        assert (status, detail(body), headers["retry-after"]) == (503, "model 'late' is being loaded", "1")
        status, body = await get(client, f"{url}/v2/health/ready")
        assert (status, msgspec.json.decode(body)["reason"]) == (503, "model 'late': being loaded")
        gate.set()
        status, body, _ = await loading
        assert (status, detail(body)) == (500, "model 'late' could not be loaded: ValueError: no such file")
        _, body, _ = await post(client, f"{url}/v2/repository/index")
        assert msgspec.json.decode(body)[1]["reason"] == "ValueError: no such file"
        status, body, _ = await post(client, url, encode_batch(Batch("late", BATCH.items)))
        assert (status, detail(body)) == (503, "model 'late' could not be loaded: ValueError: no such file")
        assert (await post(client, f"{url}/v2/repository/models/late/load"))[0] == 200
        assert (await get(client, f"{url}/ping"))[0] == 200


async def test_while_it_drains_what_was_accepted_is_answered_and_what_comes_is_sent_elsewhere() -> None:
    model = Gated()
    one = served(model)
    async with running(one) as (worker, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(2)]
        await asyncio.to_thread(model.entered.acquire)
        await until(lambda: one.waiting == 2)
        stopping = asyncio.create_task(worker.stop(grace=10))
        await until(lambda: worker.repository.draining)
        status, body, headers = await post(client, url, encode_batch(BATCH))
        assert (status, detail(body), headers["retry-after"]) == (503, "this process is being shut down", "1")
        assert (await get(client, f"{url}/ping"))[0] == 503
        assert (await get(client, f"{url}/v2/health/live"))[0] == 200
        model.gate.set()
        assert [status for status, *_ in await asyncio.gather(*sending)] == [200, 200]
        await stopping


async def test_who_still_waits_when_the_drain_is_over_is_told() -> None:
    model = Gated()
    async with running(served(model)) as (worker, url), aiohttp.ClientSession() as client:
        sending = [asyncio.create_task(post(client, url, encode_batch(BATCH))) for _ in range(2)]
        await asyncio.to_thread(model.entered.acquire)
        await worker.stop(grace=0.1)
        for status, body, _ in await asyncio.gather(*sending):
            assert (status, detail(body)) == (503, "this process is being shut down, and the batch did not end within 0.1 s")
        model.gate.set()


# -- what is told


class Timed(Sleeper):
    """Takes its time by a clock of its own, which is exact."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        self.now += self.service_time(len(items))
        return [Answer(item.id, 200, item.content_type, item.body) for item in items]


async def test_service_times_are_handed_out_as_a_profile_that_the_optimizer_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.optimizer.service.times import service_times

    model = Timed("echo", 0.002, 0.001)
    monkeypatch.setattr("sluice.lambda_fn.worker.execution.time", model)
    async with running(served(model)) as (_, url), aiohttp.ClientSession() as client:
        status, body = await get(client, f"{url}/profile")
        assert (status, detail(body)) == (404, "model 'echo' has computed no batch yet, so that there is nothing to tell")
        for size in (1, 2, 4):
            batch = Batch("echo", [Item(str(i), "application/json", b"1") for i in range(size)])
            for _ in range(25):
                await post(client, url, encode_batch(batch))
        profile = read(ServiceProfile, (await get(client, f"{url}/profile?model=echo"))[1])
        assert [(p.batch_size, p.service_time.n) for p in profile.points] == [(1, 25), (2, 25), (4, 25)]
        times = service_times(profile, profile.memory_sizes[0])
        assert times.max_batch_size == 4
        assert times.quantile(0.5) == pytest.approx([0.002 + 0.001 * b for b in (1, 2, 3, 4)])
        status, body = await get(client, f"{url}/profile?model=none")
        assert status == 404


async def test_metrics_count_requests_batches_sizes_seconds_and_failures() -> None:
    def odd(items: Sequence[Item]) -> list[Answer]:
        if len(items) == 3:
            raise KeyError("three")
        return [Answer(item.id, 400 if item.body == b"0" else 200, item.content_type, item.body) for item in items]

    async with running(served(Scripted(odd))) as (_, url), aiohttp.ClientSession() as client:
        for size in (1, 2, 2, 3):
            batch = Batch("echo", [Item(str(i), "application/json", str(i).encode()) for i in range(size)])
            await post(client, url, encode_batch(batch))
        text = (await get(client, f"{url}/metrics"))[1].decode()
    for line in (
        'sluice_worker_requests_total{model="echo",status="200"} 2.0',
        'sluice_worker_requests_total{model="echo",status="400"} 3.0',
        'sluice_worker_batch_failures_total{error="KeyError",model="echo"} 1.0',
        'sluice_worker_batch_size_bucket{le="1.0",model="echo"} 1.0',
        'sluice_worker_batch_size_sum{model="echo"} 5.0',
        'sluice_worker_service_seconds_count{batch_size="2",model="echo"} 2.0',
        'sluice_worker_in_progress{model="echo"} 0.0',
        'sluice_worker_ready{model="echo"} 1.0',
    ):
        assert line in text.splitlines()


async def test_energy_is_asked_for_while_nothing_else_is_computed_and_told_in_the_profile() -> None:
    counter = iter(range(0, 1000, 3))
    gated = Gated("gated")
    models: list[ServedModel] = []
    both = [
        ServedModel(
            model.name, in_thread(lambda model=model: model, lambda: next(counter)), Serving(greedy(1)), lambda: _alone(models)
        )
        for model in (Sleeper("echo"), gated)
    ]
    models += both
    async with running(*both) as (_, url), aiohttp.ClientSession() as client:
        await post(client, url, encode_batch(BATCH))
        blocking = asyncio.create_task(post(client, url, encode_batch(Batch("gated", BATCH.items))))
        await asyncio.to_thread(gated.entered.acquire)
        await post(client, url, encode_batch(BATCH))
        gated.gate.set()
        await blocking
        profile = read(ServiceProfile, (await get(client, f"{url}/profile?model=echo"))[1])
    (point,) = profile.points
    assert (point.service_time.n, point.energy) == (2, 3.0)


def _itself(model: Sleeper) -> Sleeper:
    return model


def _alone(models: list[ServedModel]) -> bool:
    return sum(model.running for model in models) == 1


# -- the program


@pytest.fixture
def started(network: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SLUICE_MODEL": str(network)}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    yield worker
    worker.kill()
    worker.wait()


async def test_started_as_a_program_it_prints_its_url_and_ends_at_sigterm_with_success(started: subprocess.Popen[str]) -> None:
    assert started.stdout is not None
    url = (await asyncio.to_thread(started.stdout.readline)).strip()
    async with aiohttp.ClientSession() as client:
        _, body, _ = await post(client, url, encode_batch(Batch("small", [], describe=True)))
        assert decode_metadata(body)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    started.terminate()
    assert await asyncio.to_thread(started.wait, 10) == 0


def test_started_at_a_port_that_somebody_else_has_it_names_the_port(network: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody_else:
        port = somebody_else.getsockname()[1]
        command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(port)]
        environment = {**os.environ, "SLUICE_MODEL": str(network)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"sluice.lambda_fn.worker: host, port: ('127.0.0.1', {port}) is not allowed; allowed: an address "
    )
    assert "Address already in use" in done.stderr and done.stderr.count("\n") == 1


def test_started_without_a_model_it_says_which_variable_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    allowed = "package.module:Class, file.py:Class or network.onnx"
    assert done.stderr == f"sluice.lambda_fn.worker: SLUICE_MODEL: not set; allowed: {allowed}\n"


def test_a_model_that_cannot_be_loaded_ends_the_program_with_the_cause(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no network")
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0", f"broken={broken}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"sluice.lambda_fn.worker: model: {str(broken)!r} cannot be loaded: InvalidProtobuf: " in done.stderr
    assert "Traceback" not in done.stderr  # of nobody's own code


async def test_sigterm_lets_the_batch_under_way_end() -> None:
    environment = {**os.environ, "SLUICE_MODEL_NAME": "nap", "SLUICE_SLEEPER_INTERCEPT": "0.5", "SLUICE_SLEEPER_SLOPE": "0"}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        url = (await asyncio.to_thread(worker.stdout.readline)).strip()
        async with aiohttp.ClientSession() as client:
            sending = asyncio.create_task(post(client, url, encode_batch(Batch("nap", BATCH.items))))
            async with asyncio.timeout(60):
                while b'in_progress{model="nap"} 1.0' not in (await get(client, f"{url}/metrics"))[1]:
                    await asyncio.sleep(0.01)
            worker.send_signal(signal.SIGTERM)
            assert (await sending)[0] == 200
        assert await asyncio.to_thread(worker.wait, 60) == 0
    finally:
        worker.kill()
        worker.wait()


def test_sagemaker_starts_it_with_serve_at_its_port_on_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(program, "start", lambda *arguments: started.append(arguments))
    assert program.run(["serve"]) == 0
    assert [(named, host, port) for named, _, host, port in started] == [([], "0.0.0.0", 8080)]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SLUICE_EXECUTIONS", "0", "SLUICE_EXECUTIONS: 0 is not allowed; allowed: an integer from 1 to 256"),
        ("SLUICE_QUEUE", "many", "SLUICE_QUEUE: 'many' is not allowed; allowed: an integer"),
        ("SLUICE_WAIT", "nan", "SLUICE_WAIT: 'nan' is not allowed; allowed: a number of seconds, or one with its unit"),
        ("SLUICE_WAIT", "2min", "SLUICE_WAIT: 120.0 is not allowed; allowed: seconds from 0 to 60"),
        ("SLUICE_TIMEOUT", "0", "SLUICE_TIMEOUT: 0.0 is not allowed; allowed: seconds > 0"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(variable: str, value: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        program.WorkerSettings.from_environment({variable: value})


def test_who_waits_for_others_waits_for_less_than_callers_do() -> None:
    said = "SLUICE_WAIT: 0.5 is not allowed; allowed: less than 0.2 s, after which callers get 504 (SLUICE_TIMEOUT)"
    with pytest.raises(InvalidInput, match=re.escape(said)):
        program.WorkerSettings(wait=0.5, timeout=0.2)
    assert program.WorkerSettings(wait=0, timeout=0.2).timeout == 0.2


def test_a_duration_may_have_its_unit_as_an_option_may() -> None:
    found = program.WorkerSettings.from_environment({"SLUICE_WAIT": "5ms", "SLUICE_TIMEOUT": "2min", "SLUICE_DRAIN_TIMEOUT": "7"})
    assert (found.wait, found.timeout, found.drain_timeout) == (0.005, 120.0, 7.0)


def test_models_are_named_once_each() -> None:
    settings = program.WorkerSettings()
    environment = {"SLUICE_MODEL_NAME": "nap", "SLUICE_SLEEPER_INTERCEPT": "0"}
    link = program.open_link([], settings, environment)
    try:
        (model,) = program.open_models([], settings, link)
    finally:
        link.close()
    assert model.name == "nap"
    two = [program.Named.parse("a=x.onnx"), program.Named.parse("a=y.onnx")]
    with pytest.raises(InvalidInput, match="model: 'a' is not allowed; allowed: each name once; NAME=SPEC gives another"):
        program.open_models(two, settings, program.open_link(two, settings, {}))
    with pytest.raises(InvalidInput, match="host, port"):
        program.listen("127.0.0.1", 70000)
