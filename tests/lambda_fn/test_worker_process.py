"""The process that computes: what dies with it, what is tried again, and what is left when all is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from sluice.batching.policy import greedy
from sluice.lambda_fn import batch_frames
from sluice.lambda_fn.contract import Batch, Item, decode_answers, encode_batch
from sluice.lambda_fn.worker import link, program
from sluice.lambda_fn.worker.priority import give_way
from sluice.lambda_fn.worker.program import HttpWorker
from sluice.lambda_fn.worker.served_model import Life, ServedModel, Serving
from tests.lambda_fn.worker_sockets import Gated, detail, in_thread, running
from tests.processes import LONG, Gate, ended
from tests.waiting import until

MODEL = '''
import os, signal, threading

class Obedient:
    """Does what an input says; nothing of it can be pickled."""

    def __init__(self):
        self.lock, self.twice = threading.Lock(), lambda value: 2 * value
        if os.path.exists("fatal"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists("loading"):
            open("loading").close()
        if os.path.exists("broken.json"):
            raise FileNotFoundError("the weights are gone")

    def predict(self, inputs: list[bytes]):
        return [self.one(*value.decode().split()) for value in inputs]

    def one(self, what, *rest):
        if what == "pid":
            return str(os.getpid())
        if what == "held":
            open(rest[0]).close()
        if what == "break":
            self.broken = "the GPU has gone"
        if what == "large":
            return bytes(int(rest[0]))
        if what == "die" or (what == "once" and not os.path.exists("died")):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return what
'''


async def post(client: aiohttp.ClientSession, url: str, data: bytes = b"") -> tuple[int, bytes]:
    headers = {"content-type": "application/octet-stream"}
    async with client.post(url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(30)) as response:
        return response.status, await response.read()


async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with client.get(url) as response:
        return response.status, msgspec.json.decode(await response.read())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model lies, and where its process runs."""
    (tmp_path / "obedient.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def gate(folder: Path) -> Iterator[Gate]:
    """What the model computes is held there."""
    gate = Gate(folder / "gate")
    yield gate
    gate.close()


@contextlib.asynccontextmanager
async def computed(**settings: Any) -> AsyncIterator[tuple[HttpWorker, ServedModel, str]]:
    """A worker whose model computes in a process."""
    named = [program.Named.parse("m=obedient.py:Obedient")]
    asked = program.WorkerSettings(**settings)
    link = program.open_link(named, asked)
    (model,) = program.open_models(named, asked, link)
    async with running(model) as (worker, url):
        yield worker, model, url
    assert link._computer is None


def process_of(model: ServedModel) -> int:
    return int(model.link._computer.process.pid)  # type: ignore[union-attr]


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_what_cannot_be_pickled_is_computed_in_a_process_of_its_own_and_ends_with_the_worker(folder: Path) -> None:
    async with computed() as (_, model, url), aiohttp.ClientSession() as client:
        status, body = await post(client, f"{url}/models/m", b"pid")
        pid = int(body)
        assert (status, pid) == (200, process_of(model))
        assert pid != os.getpid()
        batch = Batch("m", [Item("a", "application/octet-stream", b"pid"), Item("b", "application/octet-stream", b"b")])
        status, body = await post(client, url, encode_batch(batch))
        assert [answer.body for answer in decode_answers(body, batch)] == [str(pid).encode(), b"b"]
    assert not is_there(pid)


async def test_what_a_process_had_when_it_was_killed_is_computed_once_more_by_the_next(folder: Path) -> None:
    async with computed() as (_, model, url), aiohttp.ClientSession() as client:
        first = process_of(model)
        sent = [asyncio.create_task(post(client, f"{url}/models/m", data)) for data in (b"once", b"other", b"pid")]
        answers = await asyncio.gather(*sent)
        assert [status for status, _ in answers] == [200, 200, 200]
        assert int(answers[2][1]) in (first, process_of(model))
        assert process_of(model) != first
        assert not is_there(first)
        assert (await get(client, f"{url}/health"))[0] == 200
        assert model.tallies.failures == {"ProcessDied": 1}


async def test_a_request_that_kills_its_process_again_fails_and_those_beside_it_do_not(folder: Path, gate: Gate) -> None:
    async with computed(batch_size=8) as (_, model, url), aiohttp.ClientSession() as client:
        blocking = asyncio.create_task(post(client, f"{url}/models/m", b"held gate"))
        await until(lambda: model.running)
        sent = [asyncio.create_task(post(client, f"{url}/models/m", data)) for data in (b"one", b"die", b"two")]
        await until(lambda: model.waiting == 3)
        gate.open()
        assert (await blocking)[0] == 200
        one, die, two = await asyncio.gather(*sent)
        assert (one, two) == ((200, b"one"), (200, b"two"))
        assert (die[0], detail(die[1])) == (500, "the process that computed it has ended twice: it was killed by SIGKILL")
        await until(lambda: model.life is Life.READY)
        assert (await post(client, f"{url}/models/m", b"three")) == (200, b"three")
        assert model.tallies.failures == {"ProcessDied": 2}


async def test_a_process_killed_from_outside_is_started_again_and_until_then_the_worker_is_not_ready(
    folder: Path, gate: Gate
) -> None:
    async with computed() as (_, model, url), aiohttp.ClientSession() as client:
        sending = asyncio.create_task(post(client, f"{url}/models/m", b"held gate"))
        await until(lambda: model.running)
        waiting = asyncio.create_task(post(client, f"{url}/models/m", b"waits"))
        await until(lambda: model.waiting)
        loading = Gate(folder / "loading")
        os.kill(process_of(model), signal.SIGKILL)
        await until(lambda: model.life is Life.LOADING)
        status, said = await get(client, f"{url}/health")
        reason = "being loaded again, as the process that computes has ended: it was killed by SIGKILL"
        assert (status, said["reason"]) == (503, f"model 'm': {reason}")
        status, body = await post(client, f"{url}/models/m", b"new")
        assert (status, detail(body)) == (503, f"model 'm' is {reason}")
        loading.open()
        gate.open()
        assert await sending == (200, b"held")
        loading.close()
        assert await waiting == (200, b"waits")
        assert (await get(client, f"{url}/health"))[0] == 200


async def test_where_the_process_cannot_be_started_again_who_waits_is_told_why(folder: Path) -> None:
    async with computed() as (_, _model, url), aiohttp.ClientSession() as client:
        (folder / "broken.json").touch()
        status, body = await post(client, f"{url}/models/m", b"die")
        assert status == 503
        assert "Obedient() failed: FileNotFoundError: the weights are gone" in detail(body)
        assert "the weights are gone" in (await get(client, f"{url}/health"))[1]["reason"]
        (folder / "broken.json").unlink()
        assert (await post(client, f"{url}/v2/repository/models/m/load"))[0] == 200
        assert (await post(client, f"{url}/models/m", b"again")) == (200, b"again")


async def test_a_model_that_says_it_is_broken_is_told_by_its_process(folder: Path) -> None:
    async with computed() as (_, model, url), aiohttp.ClientSession() as client:
        assert (await post(client, f"{url}/models/m", b"break"))[0] == 200
        await until(lambda: model.dead)
        assert (await get(client, f"{url}/v2/health/live")) == (503, {"live": False, "reason": "model 'm': the GPU has gone"})


async def test_large_bodies_go_and_come_in_files_that_are_gone_afterwards(folder: Path) -> None:
    async with computed(executions=2) as (_, model, url), aiohttp.ClientSession() as client:
        large = b"large 5000000" + b" " * 3_000_000
        answers = await asyncio.gather(*(post(client, f"{url}/models/m", large) for _ in range(6)))
        assert [(status, len(body)) for status, body in answers] == [(200, 5_000_000)] * 6
        for pid in (os.getpid(), process_of(model)):
            files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
            assert not [file for file in files if "sluice-payload" in file]


async def test_large_batches_in_frames_go_in_one_file_that_is_written_over_and_over_and_closed_where_it_is_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"content-type": batch_frames.MEDIA_TYPE}

    async def ask(client: aiohttp.ClientSession, url: str, bodies: list[bytes]) -> list[str]:
        batch = Batch("m", [Item(str(i), "application/octet-stream", body) for i, body in enumerate(bodies)])
        async with client.post(url, data=b"".join(batch_frames.encode_batch(batch)), headers=headers) as response:
            answers, _ = batch_frames.decode_measured_answers(await response.read(), batch)
        assert [(answer.status, answer.body) for answer in answers] == [(200, body.split()[0]) for body in bodies]
        entries = Path("/proc/self/fd").iterdir()
        links = [os.readlink(entry) for entry in entries if entry.is_symlink()]
        return [link for link in links if "sluice-payload" in link]

    async with computed() as (_, _, url), aiohttp.ClientSession() as client:
        for first in (b"one ", b"two ", b"three "):
            assert len(await ask(client, url, [first + bytes([32]) * 300_000, b"four" + bytes([32]) * len(first)])) == 1
        assert len(await ask(client, url, [b"five " * 3])) == 1
        monkeypatch.setattr(link, "MOST_SPARE", 100_000)
        assert await ask(client, url, [b"six " + bytes([32]) * 200_000]) == []


async def test_a_model_is_loaded_and_unloaded_in_the_same_process(folder: Path) -> None:
    async with computed() as (_, model, url), aiohttp.ClientSession() as client:
        pid = process_of(model)
        assert (await post(client, f"{url}/v2/repository/models/m/unload"))[0] == 200
        assert (await post(client, f"{url}/models/m", b"x"))[0] == 503
        assert (await post(client, f"{url}/v2/repository/models/m/load"))[0] == 200
        assert await post(client, f"{url}/models/m", b"pid") == (200, str(pid).encode())


async def test_while_it_drains_a_process_that_dies_is_started_again_for_what_was_accepted(folder: Path, gate: Gate) -> None:
    async with computed() as (worker, model, url), aiohttp.ClientSession() as client:
        sending = asyncio.create_task(post(client, f"{url}/models/m", b"held gate"))
        await until(lambda: model.running)
        stopping = asyncio.create_task(worker.stop(grace=LONG))
        await until(lambda: worker.repository.draining)
        os.kill(process_of(model), signal.SIGKILL)
        gate.open()
        assert await sending == (200, b"held")
        await stopping


def started(folder: Path, before: Callable[[], object] | None = None) -> tuple[subprocess.Popen[str], str, int]:
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "m=obedient.py:Obedient", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=before)
    assert worker.stdout is not None
    url = worker.stdout.readline().strip()
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    return worker, url, int(children[0]) if children else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_the_worker_ends_its_process_ends(folder: Path, number: signal.Signals) -> None:
    worker, url, child = started(folder)
    assert url.startswith("http://") and is_there(child)
    worker.send_signal(number)
    worker.communicate(timeout=LONG)
    assert ended(child)


@pytest.mark.parametrize(("before", "policy"), [(os.SCHED_OTHER, os.SCHED_BATCH), (os.SCHED_IDLE, os.SCHED_IDLE)])
def test_a_worker_takes_no_core_from_who_runs_and_stays_what_it_was_told_to_be(folder: Path, before: int, policy: int) -> None:
    worker, _, child = started(folder, partial(os.sched_setscheduler, 0, before, os.sched_param(0)))
    threads = [int(thread) for pid in (worker.pid, child) for thread in os.listdir(f"/proc/{pid}/task")]
    assert {os.sched_getscheduler(thread) for thread in threads} == {policy}
    worker.terminate()
    worker.communicate(timeout=LONG)


def test_who_may_not_give_way_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(_: int, policy: int, __: object) -> None:
        asked.append(policy)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    give_way()
    assert asked == [os.SCHED_BATCH]
    monkeypatch.delattr(os, "SCHED_BATCH")  # as another system has none
    give_way()
    assert len(asked) == 1


def test_a_process_that_dies_while_its_model_is_loaded_ends_the_worker_with_how_it_died(folder: Path) -> None:
    (folder / "fatal").touch()
    worker, url, _ = started(folder)
    _, said = worker.communicate(timeout=LONG)
    assert (worker.returncode, url) == (2, "")
    assert said == "sluice.lambda_fn.worker: the process that computes has ended: it was killed by SIGKILL\n"


async def test_single_requests_that_come_in_one_turn_of_the_loop_go_together() -> None:
    model = Gated()
    served = ServedModel("echo", in_thread(lambda: model), Serving(greedy(4)))
    async with running(served):
        done: list[Any] = []
        for number in range(3):
            assert served.submit([Item(str(number), "text/plain", b"x")], True, done.append) is not None
        model.gate.set()
        await until(lambda: len(done) == 3)
    assert model.sizes == [3]


async def test_a_batch_document_that_killed_its_process_twice_fails_as_a_whole(folder: Path) -> None:
    async with computed() as (_, _model, url), aiohttp.ClientSession() as client:
        batch = Batch("m", [Item("a", "application/octet-stream", b"die"), Item("b", "application/octet-stream", b"b")])
        status, body = await post(client, url, encode_batch(batch))
        assert status == 500
        assert "has ended twice" in detail(body)
