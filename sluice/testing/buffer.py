"""A whole buffer in the memory of a test, in virtual or in real time: what is sent to it, and what it answers.

    virtual    no thread, no socket, no waiting: time passes only where the test waits for an answer or sleeps, and jumps to the
               next thing that happens; what is sent before that comes together. A batch takes what ``takes`` says, else no time.
    real       a thread of its own, by the clock of this machine, and HTTP at ``url`` besides, for the tester's own client.

What may live here: the two times, and asking past HTTP, as the server gives requests to the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import threading
import time as clock
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from sluice.batching.documents import Plan, PolicyDocument, read, write
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.batching.variables import PREFIX
from sluice.buffer_service.app import IN_MEMORY, BufferService, Server
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.routes import Routes
from sluice.buffer_service.settings import VARIABLES, Settings
from sluice.http.connection import Fields, Head
from sluice.http.server import Request
from sluice.testing.functions import Functions, Invocation, Takes, name_of
from sluice.testing.virtual_time import VirtualLoop

QUIET = {"redis_url": "memory://", "page": "off", "leave_delay": 0.0, "drain_timeout": 1.0}
"""Settings of a buffer in a test, unless it says others."""
FUNCTION = "of-this-test"
"""The name of the function in a plan that is made of a policy."""
PLAN = "a plan, the path of its file, a policy"
"""What may be given as one."""

T = TypeVar("T")


@dataclass(frozen=True)
class Answered:
    """What came back: at what time (s, by the buffer's clock), and as HTTP has it; names of headers are in lower case."""

    at: float
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The value of a body in JSON."""
        return json.loads(self.body)

    @property
    def waited(self) -> float | None:
        """Seconds in the queue; ``None`` where it left in no batch."""
        told = self.headers.get("sluice-waited")
        return None if told is None else float(told)

    @property
    def batch_size(self) -> int | None:
        """With how many it left in a batch, itself among them; ``None`` where it left in none."""
        told = self.headers.get("sluice-batch-size")
        return None if told is None else int(told)


class Time(Protocol):
    """How time passes for a buffer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let time pass until the work is done."""

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Have it done then."""

    def end(self) -> None:
        """Nothing more is done."""


class VirtualTime:
    """Time that passes while the test waits, and then at once."""

    def __init__(self) -> None:
        _require_no_loop()
        self.loop = VirtualLoop()
        self.clock = self.loop.time
        self._due: dict[float, list[Callable[[], None]]] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            _require_no_loop()
        except InvalidInput:
            work.close()
            raise
        return self.loop.run_until_complete(work)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        when = self.loop.time() + seconds
        if when not in self._due:
            self._due[when] = []
            self.loop.call_at(when, self._come, when)
        self._due[when].append(do)

    def _come(self, when: float) -> None:
        """What comes at one time comes in order, which timers of one time do not keep."""
        for do in self._due.pop(when):
            do()

    def end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


def _require_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput("time", "virtual", "real in a test that is itself asynchronous: virtual time has a loop of its own")


class RealTime:
    """The time of this machine, in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = clock.perf_counter
        self._thread = threading.Thread(target=self.loop.run_forever, name="sluice buffer", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, do)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


TIMES: dict[str, Callable[[], Time]] = {"virtual": VirtualTime, "real": RealTime}


class _Client:
    """Who waits for one answer."""

    def __init__(self, answered: asyncio.Future[Answered], clock: Callable[[], float]) -> None:
        self._answered = answered
        self._clock = clock

    def go_ahead(self) -> None: ...

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        headers = {"content-type": content_type} | {name.decode(): value.decode("latin-1") for name, value in fields}
        if not self._answered.done():
            self._answered.set_result(Answered(self._clock(), int(status), headers, bytes(body)))


class Sent:
    """A request that was sent."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._answered: asyncio.Future[Answered] = time.loop.create_future()
        self._request: Request | None = None

    def begin(self, routes: Routes, head: Head, body: bytes) -> None:
        """It comes."""
        if self._answered.done():
            return  # given up before
        self._request = routes.begin(head, _Client(self._answered, self._time.clock))
        if self._request is not None:
            if body:
                self._request.piece(body)
            self._request.end()

    @cached_property
    def answer(self) -> Answered:
        """What came back; waits for it."""
        return self._time.run(_until(self._answered))

    @property
    def is_answered(self) -> bool:
        """Whether it is by now; nothing is waited for."""
        return self._answered.done() and not self._answered.cancelled()

    def give_up(self) -> None:
        """The client goes, without an answer."""
        self._time.run(self._give_up())

    async def _give_up(self) -> None:
        if self._request is not None and not self._answered.done():
            self._request.gone()
        self._answered.cancel()


class MemoryBuffer:
    """A buffer that runs in this test, and a client for it."""

    def __init__(self, service: BufferService, time: Time, plans: _Plans | None, functions: Functions | None) -> None:
        self._service = service
        self._time = time
        self._plans = plans
        self._functions = functions
        self._server = Server(service)
        self._routes = Routes(service, "0")
        self._sent: list[Sent] = []

    @property
    def url(self) -> str:
        """Where it answers over HTTP, in real time."""
        if self._server.http.listener is None:
            raise InvalidInput("time", "virtual", "real, where HTTP is asked: in virtual time there is no socket")
        return f"http://127.0.0.1:{self._server.http.port}"

    @property
    def models(self) -> list[str]:
        """The names of the models that it serves."""
        return sorted(self._service.models)

    @property
    def now(self) -> float:
        """Seconds by the buffer's clock; virtual ones begin at 0."""
        return self._time.clock()

    @property
    def invocations(self) -> list[Invocation]:
        """The batches that the test's own models got, in order."""
        return list(self._functions.invocations) if self._functions is not None else []

    def send(
        self,
        body: Any = b"",
        path: str = "",
        headers: Mapping[str, str] | None = None,
        after: float = 0.0,
        method: str = "POST",
    ) -> Sent:
        """A request, ``after`` so many seconds; bytes go as they are, all else in JSON.

        Without a path it is one for an inference of the only model that is served.
        """
        content_type = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.lower(): value for name, value in (headers or {}).items()}
        fields = {"content-length": str(len(payload)), **({"content-type": content_type} if payload else {}), **named}
        path, _, query = (path or f"/models/{self._only_model()}").partition("?")
        encoded = tuple((name.encode(), value.encode("latin-1")) for name, value in fields.items())
        sent = Sent(self._time)
        self._sent.append(sent)
        self._time.later(after, partial(sent.begin, self._routes, Head(method, path, encoded, query=query), payload))
        return sent

    def ask(self, body: Any = b"", path: str = "", headers: Mapping[str, str] | None = None) -> Answered:
        """What is answered to one request."""
        return self.send(body, path, headers).answer

    def ask_all(self, bodies: Iterable[Any], every: float = 0.0, path: str = "") -> list[Answered]:
        """What is answered to each of several, of which one comes ``every`` so many seconds; 0: all at once."""
        sent = [self.send(body, path, after=number * every) for number, body in enumerate(bodies)]
        return [each.answer for each in sent]

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answered:
        """What is answered to GET."""
        return self.send(path=path, headers=headers, method="GET").answer

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self._time.run(asyncio.sleep(seconds))

    def follow(self, plan: Plan | Policy | str | os.PathLike[str]) -> None:
        """Another plan, or that of another file, is in force, also for who waits; raises ``InvalidInput`` where it is refused."""
        if self._plans is None:
            allowed = "one that was given a plan; write this one there"
            raise InvalidInput("follow", "a buffer whose plans are read elsewhere", allowed)
        self._plans.plan = _plan(plan, self._only_model()) if isinstance(plan, Policy) else _read(plan, PLAN)
        self._time.run(self._look())

    async def start(self) -> None:
        await self._service.start()
        _check(self._service)
        if isinstance(self._time, RealTime):
            await self._server.http.start("127.0.0.1", 0)

    async def stop(self) -> None:
        self._server.http.stop_listening()
        self._server.http.close()
        for each in self._sent:
            await each._give_up()
        await self._service.stop()

    async def _look(self) -> None:
        await self._service.look()
        _check(self._service)

    def _only_model(self) -> str:
        if len(self.models) != 1:
            served = ", ".join(self.models) or "none is"
            raise InvalidInput("path", "", f"one that names a model, as several may be served: {served}")
        return self.models[0]


class _Plans:
    """A plan source that a test may change."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def documents(self) -> dict[str, bytes]:
        return {self.plan.model: write(self.plan)}


@contextlib.contextmanager
def memory_buffer(
    model: Any = None,
    plan: Plan | Policy | str | os.PathLike[str] = "",
    *,
    time: str = "virtual",
    takes: Takes | None = None,
    **settings: Any,
) -> Iterator[MemoryBuffer]:
    """A buffer in the memory of this process, until the block ends.

    Parameters
    ----------
    model
        What answers: a class or an object with ``predict``, a function of a batch, or several of these by the names of the
        functions in the plan. ``None`` leaves each function to where the plan says it is: Lambda, or a worker.
    plan
        A plan, the path of its file, a policy for this model alone, or where plans are read, as ``SLUICE_PLANS`` says it.
    time
        ``virtual`` or ``real``.
    takes
        Seconds that a batch of so many requests takes beside what its model computes, of which virtual time has none.
    settings
        Any of ``Settings``, such as ``max_queue_length=10`` or ``request_timeout="200ms"``.

    Raises
    ------
    InvalidInput
        Where one of these is not allowed, or the plan is refused.
    """
    if time not in TIMES:
        raise InvalidInput("time", time, " or ".join(TIMES))
    given = _given(plan, model)
    if isinstance(given, str):
        settings = {"plans": given, **settings}
    used = _settings({**QUIET, **settings})
    in_memory = used.redis_url.startswith(IN_MEMORY)
    if time == "virtual" and not (in_memory and model is not None):
        what = "Redis is asked" if model is not None else "functions are asked where the plan says they are"
        raise InvalidInput("time", time, f"real, where {what}: in virtual time there is no socket")
    passing = TIMES[time]()
    try:
        functions = Functions(model, takes, passing.clock) if model is not None else None
        source = _Plans(given) if isinstance(given, Plan) else None
        invoker = LocalInvoker(functions) if functions is not None else None
        store = MemoryStore(MemoryBackend(passing.clock), new_process_name()) if in_memory else None
        service = BufferService(used, store, invoker, source, passing.clock)
        buffer = MemoryBuffer(service, passing, source, functions)
        try:
            passing.run(buffer.start())
            yield buffer
        finally:
            passing.run(buffer.stop())
    finally:
        passing.end()


def _settings(given: Mapping[str, Any]) -> Settings:
    """These by their names, as their variables would have them."""
    known = {variable.removeprefix(PREFIX).lower(): variable for variable in VARIABLES}
    for name, value in given.items():
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        require(name in known, name, value, f"a setting of the buffer (docs/settings.md){meant}")
    return Settings.from_environment({known[name]: str(value) for name, value in given.items()})


def _given(plan: Plan | Policy | str | os.PathLike[str], model: Any) -> Plan | str:
    if isinstance(plan, Policy):
        if model is None or isinstance(model, Mapping):
            raise InvalidInput("plan", "a policy", "a plan, where there is not one model that the policy could be for")
        return _plan(plan, name_of(model))
    if isinstance(plan, str) and plan.startswith(("file:", "ssm:")):
        return plan
    return _read(plan, f"{PLAN}, file:PATH or ssm:/path/")


def _read(plan: Plan | str | os.PathLike[str], allowed: str) -> Plan:
    """A plan, or that of a file."""
    if isinstance(plan, Plan):
        return plan
    if not (isinstance(plan, str | os.PathLike) and os.path.isfile(plan)):
        raise InvalidInput("plan", plan, allowed)
    with open(plan, "rb") as file:
        return read(Plan, file.read(), os.fspath(plan))


def _plan(policy: Policy, model: str) -> Plan:
    return Plan(model=model, function=FUNCTION, policy=PolicyDocument.of(policy))


def _check(service: BufferService) -> None:
    """Raise for the plan that is refused."""
    if service.refusals:
        last = service.refusals[-1]
        raise InvalidInput("plan", last.place, f"one that can be followed: {last.reason}")


async def _until(answered: asyncio.Future[Answered]) -> Answered:
    return await asyncio.shield(answered)
