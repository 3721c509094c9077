"""The worker as a program: what the command line and the environment ask for, start, SIGTERM, end.

    SLUICE_EXECUTIONS      batches of a model that are computed at once; a model is then called by so many threads
    SLUICE_THREADS         threads of one execution; by default the CPUs of this process, shared among the executions
    SLUICE_BATCH_SIZE      single requests that are computed together at the most; 1: each alone
    SLUICE_WAIT            seconds that a single request waits for others while an execution is free
    SLUICE_QUEUE           requests of a model that may wait
    SLUICE_TIMEOUT         seconds that a caller waits for a batch, its turn included
    SLUICE_DRAIN_TIMEOUT   seconds that what was accepted has to end at SIGTERM

What is served, where no model is named on the command line, is what ``loading`` reads from the environment.

    SLUICE_MODEL=mlp.onnx python -m sluice.lambda_fn.worker --port 8500

SageMaker starts a container with the argument ``serve``, and asks at port 8080 of any address.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_type_hints

from sluice.batching.durations import LONGEST, seconds
from sluice.batching.errors import InvalidInput, require
from sluice.batching.heap import keep_freed_memory
from sluice.batching.log_lines import last_words, log_to_stderr
from sluice.batching.policy import Policy, greedy, size_or_timeout
from sluice.batching.told_to_end import done_when_told
from sluice.batching.variables import PREFIX, misspelt
from sluice.http.machine import cpus, memory_mb

from ..loading import SLEEPER
from ..loading import VARIABLES as OF_MODELS
from ..pipeline.child import ChildProcess
from . import computer
from .http_server import HttpLimits, HttpServer
from .link import Link, LoadFailed, Source
from .priority import give_way
from .repository import Repository
from .routes import Routes
from .served_model import ServedModel, Serving

FLUSH = 5.0
"""Seconds that clients have to take their last answers."""

MAX_MODELS = 256
SAGEMAKER_PORT = 8080

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How models are served; see above. ``threads`` 0: the CPUs of this process, shared among the executions."""

    executions: int = 1
    threads: int = 0
    batch_size: int = 32
    wait: float = 0.0
    queue: int = 1024
    timeout: float = 60.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        for field, least, most in (("executions", 1, 256), ("threads", 0, 1024), ("batch_size", 1, 65535), ("queue", 1, 1_000_000)):
            value = getattr(self, field)
            require(least <= value <= most, _variable(field), value, f"an integer from {least} to {most}")
        for field, most_seconds in (("wait", 60.0), ("timeout", LONGEST), ("drain_timeout", LONGEST)):
            value = getattr(self, field)
            require(0 <= value <= most_seconds, _variable(field), value, f"seconds from 0 to {most_seconds:g}")
        require(self.timeout > 0, _variable("timeout"), self.timeout, "seconds > 0")
        in_time = self.wait == 0 or self.wait < self.timeout
        require(
            in_time,
            _variable("wait"),
            self.wait,
            f"less than {self.timeout:g} s, after which callers get 504 ({_variable('timeout')})",
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> WorkerSettings:
        """Raises ``InvalidInput`` that names the variable."""
        kinds = get_type_hints(cls)
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(_variable(field.name))
            if text is None:
                continue
            try:
                given[field.name] = int(text) if kinds[field.name] is int else seconds(text)
            except ValueError as error:
                allowed = "an integer" if kinds[field.name] is int else str(error)
                raise InvalidInput(_variable(field.name), text, allowed) from None
        return cls(**given)

    @property
    def policy(self) -> Policy:
        """How single requests are put together."""
        if self.wait:
            return size_or_timeout(self.batch_size, self.wait)
        return greedy(self.batch_size)

    @property
    def execution_threads(self) -> int:
        """Threads of one execution."""
        return self.threads or max(1, cpus() // self.executions)


@dataclass(frozen=True, slots=True)
class Named:
    """A model as the command line names it: ``[NAME=]SPEC``; ``name`` is empty where the model brings its own."""

    name: str
    spec: str

    @classmethod
    def parse(cls, text: str) -> Named:
        """Raises ``InvalidInput``."""
        found = re.fullmatch(r"(?:([A-Za-z0-9._-]{1,128})=)?(.+)", text)
        require(found is not None, "model", text, "[NAME=]SPEC: a name of A-Z a-z 0-9 . _ - and what is served")
        assert found is not None
        return cls(found[1] or "", found[2])


UNNAMED = (Named("", ""),)
"""What is served where nothing is named: what the environment says."""


def open_link(named: Sequence[Named], settings: WorkerSettings, environment: Mapping[str, str] = os.environ) -> Link:
    """The way to the process that computes these models, else the one that the environment describes."""
    require(len(named) <= MAX_MODELS, "model", len(named), f"at most {MAX_MODELS} models")
    environments = [_environment(one, settings, environment) for one in named or UNNAMED]
    return Link(partial(ChildProcess, computer.__name__, environments))


def open_models(named: Sequence[Named], settings: WorkerSettings, link: Link) -> list[ServedModel]:
    """The models of a link.

    One that brings its own name is made here; raises what loading raises, and ``InvalidInput`` where two have one name.
    """
    serving = Serving(settings.policy, settings.executions, settings.queue, settings.timeout)
    models: list[ServedModel] = []

    def alone() -> bool:
        return sum(model.running for model in models) == 1

    for key, one in enumerate(named or UNNAMED):
        name = one.name or link.make(key)
        require(all(model.name != name for model in models), "model", name, "each name once; NAME=SPEC gives another")
        models.append(ServedModel(name, Source(link, key), serving, alone))
    return models


def _environment(named: Named, settings: WorkerSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """What ``loading`` makes the model of: all that the worker knows of that."""
    wanted = {**environment, "SLUICE_THREADS": str(settings.execution_threads)}
    if named.spec:
        for variable in (*SLEEPER, "SLUICE_MODEL_NAME"):
            wanted.pop(variable, None)
        wanted["SLUICE_MODEL"] = named.spec
        if named.name:
            wanted["SLUICE_MODEL_NAME"] = named.name
    return wanted


class HttpWorker:
    """Models behind a socket."""

    def __init__(self, models: Sequence[ServedModel], limits: HttpLimits | None = None) -> None:
        self._links = {model.link for model in models}
        self.repository = Repository(models)
        routes = Routes(self.repository, _version(), memory_mb())
        self.server = HttpServer(routes, limits, routes.screen)
        routes.measure(self.server)

    async def start(self, listener: socket.socket, unloaded: Sequence[str] = ()) -> None:
        """Listen, and load all models but those; raises what loading raises."""
        await self.server.start(listener)
        await self.repository.start(unloaded)

    async def stop(self, grace: float) -> None:
        """Answer what was accepted, for ``grace`` s at the most, and refuse what comes; then end."""
        await self.repository.drain(grace)
        self.server.stop_listening()
        await self.server.leave(FLUSH)
        self.server.close()
        await asyncio.gather(*(link.end() for link in self._links))


Beside = Callable[[Repository, str], Coroutine[None, None, None]]
"""What runs beside serving, given the models and the URL, from when these are loaded: cancelled once all is answered."""


async def serve(
    worker: HttpWorker, listener: socket.socket, unloaded: Sequence[str], drain_timeout: float, beside: Beside | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; prints the URL once the models are loaded. Raises what loading raises."""
    told = asyncio.Event()
    running: list[asyncio.Future[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    starting, ending = asyncio.ensure_future(worker.start(listener, unloaded)), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            print(_url(listener), flush=True)
            # What is there now stays: full collections, which stop all requests, need not look at it again.
            gc.collect()
            gc.freeze()
            if beside is not None:
                running.append(asyncio.ensure_future(beside(worker.repository, _url(listener))))
            await ending
        starting.cancel()
        await worker.stop(drain_timeout)
    finally:
        worker.server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket that nobody has; raises ``InvalidInput``."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        allowed = f"an address of this machine with a free port ({error}); port 0 chooses one"
        raise InvalidInput("host, port", (host, port), allowed) from None


def start(
    named: Sequence[Named],
    settings: WorkerSettings,
    host: str,
    port: int,
    unloaded: Sequence[str] = (),
    beside: Beside | None = None,
) -> None:
    """The whole program; raises ``InvalidInput``, or ``LoadFailed`` where a model cannot be loaded."""
    keep_freed_memory()
    give_way()
    known = [*(_variable(field.name) for field in fields(WorkerSettings)), *OF_MODELS]
    for name, meant in misspelt(os.environ, known).items():
        _log.warning("%s is no setting of a worker and changes nothing; is %s meant?", name, meant)
    listener = listen(host, port)
    link = open_link(named, settings)
    try:
        models = open_models(named, settings, link)
        names = [model.name for model in models]
        for name in unloaded:
            require(name in names, "unloaded", name, "one of " + ", ".join(names))
        _run(serve(HttpWorker(models), listener, unloaded, settings.drain_timeout, beside))
    except LoadFailed as error:
        raise _as_named(error) if named else error from None
    finally:
        link.close()


def _as_named(error: LoadFailed) -> LoadFailed:
    """The same of a model that was named here, and not by a variable."""
    return LoadFailed(re.sub("^SLUICE_MODEL:", "model:", str(error)), error.said, error.cause)


def run(arguments: Sequence[str] | None = None) -> int:
    """``python -m sluice.lambda_fn.worker``; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sluice.lambda_fn.worker", description="Models behind HTTP, in batches.")
    parser.add_argument("models", nargs="*", metavar="[NAME=]SPEC", help="by default what SLUICE_MODEL says")
    parser.add_argument("--port", type=int, help="0 is a free one")
    parser.add_argument("--host", help="by default this machine alone")
    given = parser.parse_args(arguments)
    in_sagemaker = given.models == ["serve"]
    if given.port is None and not in_sagemaker:
        parser.error("the following arguments are required: --port")
    port = SAGEMAKER_PORT if given.port is None else given.port
    host = given.host or ("0.0.0.0" if in_sagemaker else "127.0.0.1")
    try:
        log_to_stderr("warning")
        named = [] if in_sagemaker else [Named.parse(text) for text in given.models]
        with done_when_told():
            start(named, WorkerSettings.from_environment(), host, port)
    except (InvalidInput, LoadFailed) as error:
        last_words("sluice.lambda_fn.worker", str(error), getattr(error, "cause", ""))
        return 2
    return 0


def _run(work: Coroutine[None, None, None]) -> None:
    """With uvloop where it is installed, which takes half the CPU."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _variable(field: str) -> str:
    return PREFIX + field.upper()


def _version() -> str:
    try:
        return version("sluice-batching")
    except PackageNotFoundError:  # copied, not installed
        return "0"
