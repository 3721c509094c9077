"""The examples of docs/models.md: each is served by a real worker over HTTP as the page says, from a copy of its folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from sluice.batching.documents import Plan, read, write
from sluice.lambda_fn.contract import Answer, Batch, Item, decode_answers, decode_metadata, encode_batch
from sluice.local.parent_death import die_with_parent
from sluice.local.ports import chosen_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "models"
PAGE = (ROOT / "docs" / "models.md").read_text()
SERVED = {"iris": "Iris", "text_encoder": "TextEncoder", "jpeg": "Jpeg", "pytorch": "Digits", "service": "Euros"}


def inherited() -> dict[str, str]:
    """This environment without what was set for another model; and one thread of OpenMP, as more spin for each other."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")} | {"OMP_NUM_THREADS": "1"}


class Served:
    """A model behind a worker."""

    def __init__(self, folder: Path, url: str, metadata: dict[str, Any]) -> None:
        self.folder = folder
        self.url = url
        self.metadata = metadata

    async def ask(self, *requests: tuple[str, bytes]) -> list[Answer]:
        """The answers to one batch, of contents and their types."""
        items = [Item(str(index), content_type, body) for index, (content_type, body) in enumerate(requests)]
        batch = Batch(self.metadata["name"], items)
        async with aiohttp.ClientSession() as client, client.post(f"{self.url}/", data=encode_batch(batch)) as response:
            assert response.status == 200, await response.text()
            return decode_answers(await response.read(), batch)


@contextlib.asynccontextmanager
async def serve(name: str, to: Path, **settings: str) -> AsyncIterator[Served]:
    """An example in a folder of its own, made ready by its script and served by the line of the page."""
    folder = shutil.copytree(EXAMPLES / name, to / name, ignore=shutil.ignore_patterns("*.onnx", "*.pt", "*.joblib", "__pycache__"))
    for script in ("make.py", "train.py"):
        if (folder / script).exists():
            subprocess.run([sys.executable, script], cwd=folder, env=inherited(), check=True, timeout=120)
    line = f"SLUICE_MODEL=model.py:{SERVED[name]}"
    assert f"{line} python -m sluice.lambda_fn.worker --port 8500" in PAGE
    environment = {**inherited(), **dict([line.split("=", 1)]), **settings}
    describe = encode_batch(Batch("", [], describe=True))
    async with worker(environment, folder) as url, aiohttp.ClientSession() as client, client.post(url, data=describe) as response:
        yield Served(folder, url, decode_metadata(await response.read()))


@contextlib.asynccontextmanager
async def worker(environment: dict[str, str], folder: Path) -> AsyncIterator[str]:
    """The address of a worker started in a folder."""
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).strip()
        assert url, f"the worker ended with {await asyncio.to_thread(process.wait)}"
        yield url
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def sample(folder: Path) -> tuple[str, bytes]:
    """The request that lies beside an example."""
    (path,) = folder.glob("request.*")
    return {".json": "application/json", ".jpeg": "image/jpeg"}[path.suffix], path.read_bytes()


def value(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body)


def detail(answer: Answer) -> str:
    return str(msgspec.json.decode(answer.body)["detail"])


@pytest.mark.full
async def test_iris_names_the_species_and_refuses_a_flower_without_petals_alone(tmp_path: Path) -> None:
    virginica = b'{"sepal_length": 6.3, "sepal_width": 3.3, "petal_length": 6, "petal_width": 2.5}'
    async with serve("iris", tmp_path) as served:
        first, bad, last = await served.ask(
            sample(served.folder), ("application/json", b'{"sepal_length": 5}'), ("application/json", virginica)
        )
    assert (value(first)["species"], value(last)["species"]) == ("setosa", "virginica")
    assert 0.5 < value(first)["probability"] <= 1
    assert (bad.status, detail(bad)) == (400, "body: Object missing required field `sepal_width`")


async def test_the_text_encoder_gives_a_text_the_same_vector_in_any_batch(tmp_path: Path) -> None:
    async with serve("text_encoder", tmp_path) as served:
        (alone,) = await served.ask(sample(served.folder))
        long = ("text/plain", b"who comes first is served first, and who comes last waits for the whole queue")
        among, other, empty, garbage = await served.ask(sample(served.folder), long, ("text/plain", b""), ("text/plain", b"\xff"))
        assert served.metadata["name"] == "text-encoder"
    assert value(alone) == pytest.approx(value(among), abs=1e-6)
    assert sum(x * x for x in value(other)) == pytest.approx(1, abs=1e-5) and value(other) != value(among)
    assert (empty.status, detail(empty)) == (422, "a text without a word")
    assert garbage.status == 400 and detail(garbage).startswith("body: not text in utf-8")


async def test_jpeg_labels_an_image_and_refuses_what_is_none_alone(tmp_path: Path) -> None:
    async with serve("jpeg", tmp_path) as served:
        content_type, body = sample(served.folder)
        good, text, half = await served.ask((content_type, body), (content_type, b"no image"), (content_type, body[:-200]))
    assert value(good)["label"] in ("dawn", "noon", "dusk", "night") and 0.25 <= value(good)["probability"] <= 1
    assert [text.status, half.status] == [400, 400]
    assert detail(text) == "body: 8 bytes of image/jpeg are no image that Pillow reads"


async def test_pytorch_takes_and_gives_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    async with serve("pytorch", tmp_path) as served:
        request = json.loads(sample(served.folder)[1])
        two = json.loads(json.dumps(request))
        two["inputs"][0] |= {"shape": [2, 64], "data": 2 * two["inputs"][0]["data"]}
        two["inputs"][0]["data"][-1] = 9
        narrow = json.loads(json.dumps(request))
        narrow["inputs"][0]["shape"] = [64, 1]
        bodies = [("application/json", json.dumps(r).encode()) for r in (request, two, narrow)]
        one, several, bad = await served.ask(*bodies)
    assert served.metadata["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}]
    ((logits,), (both,)) = value(one)["outputs"], value(several)["outputs"]
    assert (logits["shape"], both["shape"]) == ([1, 10], [2, 10])
    assert both["data"][:10] == pytest.approx(logits["data"], abs=1e-5) and both["data"][10:] != both["data"][:10]
    assert bad.status == 400 and "inputs[pixels].shape: [64, 1] is not allowed" in detail(bad)


class Rates(BaseHTTPRequestHandler):
    """A service that knows the dollar, fails on the franc, and does not answer for the pound."""

    stopping = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/GBP":
            self.stopping.wait(30)
            return
        self.send_response({"/USD": 200, "/CHF": 500}.get(self.path, 404))
        self.end_headers()
        self.wfile.write(b'{"rate": 0.5}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def rates() -> Iterator[str]:
    Rates.stopping.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Rates) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Rates.stopping.set()
        server.shutdown()
        thread.join()


@pytest.mark.full
async def test_what_another_service_does_not_answer_fails_alone(tmp_path: Path, rates: str) -> None:
    async with serve("service", tmp_path, RATES_URL=rates) as served:
        others = [
            ("application/json", b'{"amount": 1, "currency": "%s"}' % currency) for currency in (b"CHF", b"XYZ", b"GBP", b"../")
        ]
        dollar, *answers = await served.ask(sample(served.folder), *others)
    assert value(dollar) == {"euros": 5.0}
    assert [(a.status, detail(a)) for a in answers] == [
        (502, "CHF: the service answered 500"),
        (422, "XYZ: the service answered 404"),
        (504, "the service does not answer: timed out"),
        (422, "currency: '../' is not allowed; allowed: letters, such as USD"),
    ]


async def test_a_service_that_is_not_there_fails_each_with_504(tmp_path: Path) -> None:
    async with serve("service", tmp_path, RATES_URL="http://127.0.0.1:9") as served:
        answers = await served.ask(sample(served.folder), sample(served.folder))
    assert [a.status for a in answers] == [504, 504]


@pytest.mark.parametrize("name", SERVED)
def test_the_page_shows_the_class_as_it_is(name: str) -> None:
    assert f"```python\n{(EXAMPLES / name / 'model.py').read_text()}```" in PAGE
    assert {path.name for path in (EXAMPLES / name).iterdir()} >= {"model.py", "requirements.txt"}
    assert f"../examples/models/{name}" in PAGE


def test_there_is_no_example_that_the_page_does_not_show() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(SERVED)


async def test_the_first_model_of_the_page_answers_as_the_page_says(tmp_path: Path) -> None:
    """Its two files, its two programs and its request; only the ports are others."""
    first = PAGE.partition("## What an input is")[0]
    ((class_,), (plan,), (lines,)) = (re.findall(rf"```{kind}\n(.*?)```", first, re.DOTALL) for kind in ("python", "json", "sh"))
    start_worker, start_buffer, ask = lines.splitlines()
    (tmp_path / "plans").mkdir()
    (tmp_path / "model.py").write_text(class_)
    setting, program = start_worker.split(" ", 1)
    assert program == "python -m sluice.lambda_fn.worker --port 8500 &"
    async with worker({**inherited(), **dict([setting.split("=")])}, tmp_path) as url:
        (tmp_path / "plans" / "doubler.json").write_text(plan.replace("http://127.0.0.1:8500", url))
        port = chosen_port()
        command = [
            str(Path(sys.executable).parent / "sluice"),
            *start_buffer.removesuffix(" &").replace("8080", str(port)).split()[1:],
        ]
        buffer = subprocess.Popen(command, env=inherited(), cwd=tmp_path, preexec_fn=die_with_parent())
        try:
            body = re.findall(r"-d (\S+)$", ask)[0].encode()
            target = re.findall(r"http://127.0.0.1:8080(\S+)", ask)[0]
            headers = {"content-type": re.findall(r"content-type: ([^']+)'", ask)[0]}
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                async with asyncio.timeout(60):
                    while not await ready(client):
                        await asyncio.sleep(0.05)
                good, bad = await asyncio.gather(*(client.post(target, data=data, headers=headers) for data in (body, b'"text"')))
                assert (good.status, f"The answer is `{await good.text()}`" in first) == (200, True)
                assert bad.status == 400
                assert f"`` {(await bad.json(content_type=None))['detail']} ``" in first
        finally:
            buffer.terminate()
            await asyncio.to_thread(buffer.wait)


@pytest.mark.full
def test_the_first_model_is_measured_and_gets_a_plan_by_the_lines_of_the_page(tmp_path: Path) -> None:
    """The port is another, the sweep is short, and the class takes so long that it is measured well enough in it."""
    first, measured = PAGE.partition("## What an input is")[0], PAGE.partition("## Measured")[2].partition("## A project")[0]
    (class_,) = re.findall(r"```python\n(.*?)```", first, re.DOTALL)
    (functions,), (lines,) = (re.findall(rf"```{kind}\n(.*?)```", measured, re.DOTALL) for kind in ("json", "sh"))
    (tmp_path / "model.py").write_text(
        "import time\n" + class_.replace("return", "time.sleep(0.02 + 0.001 * len(inputs))\n        return")
    )
    (tmp_path / "functions.json").write_text(functions.replace("9001", "0"))
    start, export, *steps = lines.splitlines()
    program, file = re.fullmatch(r"python -m (\S+) (\S+) &", start).groups()  # type: ignore[union-attr]
    command = [sys.executable, "-m", program, file]
    with subprocess.Popen(
        command, env=inherited(), cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
    ) as runtime:
        try:
            assert runtime.stdout is not None
            url = runtime.stdout.readline().strip()
            steps[1] = steps[1].replace("--yes", "--yes --batch-size 1,8 --min-runs 5 --max-runs 5")
            script = "\n".join(["set -e", export.replace("http://127.0.0.1:9001", url), *steps])
            environment = {**inherited(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100
            )
        finally:
            runtime.terminate()
    assert done.returncode == 0, done.stderr
    plan = read(Plan, (tmp_path / "plans" / "doubler.json").read_bytes())
    assert plan.model == "doubler" and plan.function == f"doubler-{plan.memory_mb}"
    edited = json.loads(write(plan)) | {"function": "http://127.0.0.1:8500", "digest": ""}  # as the page says of a worker
    del edited["started"]
    assert read(Plan, json.dumps(edited)).function == "http://127.0.0.1:8500"


async def ready(client: aiohttp.ClientSession) -> bool:
    try:
        async with client.get("/v2/models/doubler/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
