"""A worker is asked over HTTP, and each way it can go wrong says so."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput
from sluice.profiler.invocations import ATTEMPTS
from sluice.profiler.worker_invocations import WorkerInvocations


class Worker:
    """Answers as told, then 200 for ever; ``asked`` times so far."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.asked = 0
        worker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                worker.asked += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                status, headers = worker.answers.pop(0) if worker.answers else (200, {"sluice-memory-mb": "512"})
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    thread = threading.Thread(target=worker.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield worker
    worker.server.shutdown()
    thread.join()
    worker.server.server_close()


def test_the_service_time_is_what_the_worker_says_and_else_the_wall_time(worker: Worker) -> None:
    worker.answers = [(200, {"sluice-service-time": "0.000001", "sluice-memory-mb": "2048"}), (200, {})]
    told = WorkerInvocations()(worker.url, b"x")
    assert (told.payload, told.report.duration, told.report.memory_mb) == (b"x", 1e-6, 2048)
    assert told.wall_time > 1e-6
    other = WorkerInvocations(memory_mb=100)(worker.url, b"x")
    assert (other.report.duration, other.report.memory_mb) == (other.wall_time, 100)


def test_a_busy_worker_is_asked_again_and_given_up_in_the_end(worker: Worker) -> None:
    pauses: list[float] = []
    worker.answers = [(429, {}), (503, {})]
    assert WorkerInvocations(sleep=pauses.append)(worker.url, b"x").payload == b"x"
    assert pauses == [0.2, 0.4]
    worker.answers = [(429, {})] * ATTEMPTS
    with pytest.raises(DispatchFailed, match=r"the worker refused 5 times \(429: x\)"):
        WorkerInvocations(sleep=pauses.append)(worker.url, b"x")


def test_failures_are_told_and_not_repeated(worker: Worker) -> None:
    invoke = WorkerInvocations()
    worker.answers = [(500, {}), (404, {}), (200, {"sluice-memory-mb": "many"}), (200, {})]
    with pytest.raises(FunctionFailed, match=r"failed \(500\): x"):
        invoke(worker.url, b"x")
    with pytest.raises(InvalidInput, match="allowed: the address of a worker"):
        invoke(worker.url, b"x")
    with pytest.raises(FunctionFailed, match="sluice-memory-mb is no number"):
        invoke(worker.url, b"x")
    with pytest.raises(InvalidInput, match="memory: none was given; needed: what the worker has in MB"):
        invoke(worker.url, b"x")
    assert worker.asked == 4


@pytest.mark.parametrize(("address", "kind"), [("http://127.0.0.1:9", DispatchFailed), ("http://127.0.0.1:no", InvalidInput)])
def test_a_worker_that_is_not_there_is_told(address: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        WorkerInvocations()(address, b"x")
