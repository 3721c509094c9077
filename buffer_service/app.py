"""The composition root: settings in, a running service out. The only place of the buffer where its parts are chosen and joined."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import uvloop

from sluice.batching.documents import Plan, Route
from sluice.batching.errors import Draining, InvalidInput, KeyRefused, StoreUnavailable, UnknownKey, UnknownModel, require
from sluice.batching.heap import keep_freed_memory
from sluice.batching.log_lines import LogLines, log_to
from sluice.batching.urls import without_password
from sluice.batching.variables import PREFIX, misspelt
from sluice.buffer_service.alarms import Alarms, LoopAlarms, open_alarms
from sluice.buffer_service.api_keys import Keyring
from sluice.buffer_service.callers import Callers, new_process_name
from sluice.buffer_service.dispatcher import describe
from sluice.buffer_service.followed_keys import KeyFollower
from sluice.buffer_service.invokers import (
    FunctionUnavailable,
    Health,
    HttpInvoker,
    Invoker,
    InvokerBySyntax,
    UnknownFunction,
    named_functions,
)
from sluice.buffer_service.kept_answers import KeepingInvoker
from sluice.buffer_service.kept_requests import MARGIN, Keeper
from sluice.buffer_service.lending import Lending
from sluice.buffer_service.logs import Seldom, unblocked
from sluice.buffer_service.mail import hand_out
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.page import Buffers, Decisions, Devices, Door, Prices, Recorded, UnansweredEverywhere, Watch
from sluice.buffer_service.plans import PlanFollower, PlanSource, Refusal, SilentFunction, check_waits, plan_source
from sluice.buffer_service.presence import Presence, PresenceRecord, Presences
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.results import Bounds
from sluice.buffer_service.routes import Routes
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.settings import VARIABLES, Settings
from sluice.buffer_service.store import Limits, Store
from sluice.buffer_service.stream_reader import RecordReader
from sluice.buffer_service.telemetry import Telemetry
from sluice.buffer_service.unanswered import Counted, UnansweredCounts, UnansweredRecord
from sluice.buffer_service.worker_registry import WorkerRegistry
from sluice.http.connection import Fields, Patience
from sluice.http.room import Connections, Room
from sluice.http.server import HttpServer

if TYPE_CHECKING:
    from sluice.buffer_service.bearer_tokens import BearerTokens
    from sluice.buffer_service.traces import Traces

EMIT_INTERVAL = 10.0  # seconds between two lines for CloudWatch
RECEIVE_PAUSE = 0.2  # seconds between two tries to receive while the store is away
CHECK_TIMEOUT = 5.0  # seconds a function has to say which model it serves, before its plan is taken all the same
SILENT_INTERVAL = 60.0  # seconds between two lines about a function that does not answer
LAST_CALL = 0.9  # the part of the drain after which who still waits is told
LAST_LINES = 0.5  # seconds that each of them has for what waits to be written at the end
IN_MEMORY = "memory://"
"""What a URL begins with where there is no Redis."""

_log = logging.getLogger(__name__)


class BufferService:
    """One process of the buffer; parts that are given replace those that the settings would choose.

    ``clock`` (s, monotonic) is the one by which requests are served.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store | None = None,
        invoker: Invoker | None = None,
        plans: PlanSource | None = None,
        clock: Callable[[], float] = time.perf_counter,
        telemetry: Telemetry | None = None,
        journal: RedisPlans | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        self.waiting = Room(settings.max_waiting_bytes)
        self.untaken = Room(settings.max_waiting_bytes)
        self.answers = Room(settings.max_waiting_bytes)
        self.connections = Connections(_most_connections())
        self.telemetry.price(settings.gb_second_usd, settings.invocation_usd)
        self.telemetry.measure(self.connections, waiting=self.waiting, untaken=self.untaken, answers=self.answers)
        self._store = store
        if invoker is None:
            invoker = InvokerBySyntax(settings.invoke_timeout, self.telemetry.ejected, self.answers)
        self._invoker = invoker
        patience = settings.request_timeout + MARGIN
        bounds = Bounds(settings.results_kept, settings.results_bytes, settings.results_life, patience)
        self.keeper = Keeper(bounds, self._opened)
        self.traces = traces if traces is not None or settings.traces == "off" else _traces()
        asked = invoker if self.traces is None else self.traces.invoker(invoker)
        self._asked = KeepingInvoker(asked, self.keeper) if settings.results_kept else asked
        source = plans if plans is not None else plan_source(settings)
        self._follower = PlanFollower(source, settings.plan_interval, self._follow, self._refused)
        self._tokens = _tokens_of(settings)
        self._keyring = Keyring(self._tokens is not None) if settings.api_keys else None
        self._epoch = time.time
        alone = store is None and settings.redis_url.startswith(IN_MEMORY)
        shared = store is None and not alone
        kept = (0, 0) if alone else (settings.arrivals_kept, settings.batches_kept)  # of whom is alone nobody could read them
        self._limits = Limits(settings.max_queue_length, settings.lease, settings.max_attempts, *kept)
        self._models: dict[str, ServedModel] = {}
        self._clock = clock
        self._silent = Seldom(_log.warning, SILENT_INTERVAL)
        if journal is None and shared:
            journal = RedisPlans(settings.redis_url, settings.namespace)
        prices = Prices(settings.gb_second_usd, settings.invocation_usd)
        recorded = Recorded(partial(RecordReader, settings.redis_url, namespace=settings.namespace) if shared else None, clock)
        devices = Devices(WorkerRegistry(settings.redis_url, settings.namespace) if shared else None, clock)
        self._unanswered = self._presence = None
        unanswered, buffers = UnansweredEverywhere(None, clock), Buffers(None, dict, clock)
        if shared:
            counts = UnansweredCounts(settings.redis_url, settings.namespace)
            self._unanswered = UnansweredRecord(counts, self._without_answer, time.time)
            unanswered = UnansweredEverywhere(counts, clock)
            told = Presence(host=socket.gethostname(), release=version("sluice-batching"), plans=without_password(settings.plans))
            presences = Presences(settings.redis_url, settings.namespace)
            looks = not isinstance(source, RedisPlans)
            there = source if isinstance(source, RedisPlans) else RedisPlans(settings.redis_url, settings.namespace)
            self._presence = PresenceRecord(presences, told, there, looks, self._digests, self._follower.refusals)
            buffers = Buffers(presences, self._presence.in_force, clock)
        watch = Watch(self, Decisions(journal, clock), recorded, unanswered, devices, buffers, clock, time.time, prices)
        self.page = Door(watch, clock) if settings.page == "on" else None
        self._callers: Callers | None = None
        self._lending: Lending | None = None
        self._alarms: Alarms = LoopAlarms()
        self._tasks: list[asyncio.Task[None]] = []
        self._drain_until: float | None = None

    async def start(self) -> None:
        """Open the store, take the plans in force, follow what comes."""
        if self._store is None:
            self._store = open_store(self.settings)
        self._alarms = open_alarms(self._clock)
        self._callers = Callers(self._store.process, self.settings.request_timeout, self._clock, self._alarms)
        await self._follower.look()
        self._lending = Lending(self._store.send, self._callers.lendable)
        for work in (self._receive(self._store, self._callers, self._lending), self._follower.follow(), self._emit()):
            self._tasks.append(asyncio.create_task(work))
        if self._keyring is not None:
            keys = KeyFollower(self.settings.api_keys, self.settings.plan_interval, self._keyring)
            await keys.look()
            self._tasks.append(asyncio.create_task(keys.follow()))
        if self._tokens is not None:
            from sluice.buffer_service.bearer_tokens import JwksFollower

            issuer = JwksFollower(self.settings.jwt_jwks, self._tokens)
            await issuer.look()
            self._tasks.append(asyncio.create_task(issuer.follow()))
        if self.page is not None:
            self._tasks.append(asyncio.create_task(self.page.keep_samples()))
        if self._unanswered is not None:
            self._tasks.append(asyncio.create_task(self._unanswered.follow()))
        if self._presence is not None:
            self._tasks.append(asyncio.create_task(self._presence.follow(self._store.process)))

    async def stop(self) -> None:
        """Finish the batches under way, leave the queues, release everything."""
        for task in self._tasks[1:]:
            task.cancel()
        self.begin_drain()
        try:
            async with asyncio.timeout_at(self._drain_until):
                await asyncio.gather(*(model.close() for model in self._models.values()))
                await self.keeper.close()
        except TimeoutError:
            _log.warning("batches under way did not end in time; their leases will expire")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lending is not None:
            await self._lending.close()
        for model in self._models.values():
            model.telemetry.emit()
        await self._invoker.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        await self._follower.close()
        if self.page is not None:
            await self.page.close()
        if self._unanswered is not None:
            await self._unanswered.close()
        if self._presence is not None:
            await self._presence.close()
        if self._store is not None:
            try:
                await self._store.close()
            except StoreUnavailable as error:
                _log.warning("%s", error)
        self._alarms.close()

    def begin_drain(self) -> None:
        """From now on ``drain_timeout`` runs: who still waits near its end gets an error that says so."""
        if self._drain_until is not None:
            return
        loop = asyncio.get_running_loop()
        self._drain_until = loop.time() + self.settings.drain_timeout
        if self._callers is not None:
            error = Draining(f"this process is being shut down and had no answer within {self.settings.drain_timeout:g} s")
            loop.call_later(LAST_CALL * self.settings.drain_timeout, self._callers.fail_all, error)

    async def look(self) -> None:
        """Follow the plans that are there now, without waiting for the next look."""
        await self._follower.look()

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Those that are served, by name."""
        return self._models

    @property
    def refusals(self) -> list[Refusal]:
        """The plans that are not followed."""
        return self._follower.refusals()

    def _without_answer(self) -> dict[str, Counted]:
        """By model, how many requests had no answer since this process began."""
        told = ((name, model.telemetry) for name, model in self._models.items())
        return {name: Counted(errors, telemetry.unanswered_late) for name, telemetry in told if (errors := telemetry.unanswered)}

    def _digests(self) -> dict[str, str]:
        """By which plan each model is served."""
        return {name: model.plan.digest for name, model in self._models.items()}

    def health(self, function: str) -> Mapping[str, Health]:
        """How the workers of a function are, by address, where it has several."""
        return self._invoker.health(function) if isinstance(self._invoker, (HttpInvoker, InvokerBySyntax)) else {}

    def model(self, name: str) -> ServedModel:
        """The model of that name; raises ``UnknownModel``."""
        try:
            return self._models[name]
        except KeyError:
            raise UnknownModel(name, list(self._models)) from None

    def admit(self, name: str, headers: Fields, counts: bool = True) -> str:
        """The class of who asks for a model, by his API key or token, ``""`` where that has none; raises ``KeyRefused``.

        ``counts`` says whether it is a request, of which there may be so many a second.
        """
        if self._keyring is None and self._tokens is None:
            return ""
        try:
            if self._tokens is not None and (token := self._tokens.given(headers)):
                return self._tokens.opens(self._epoch(), name, token).of_class
            if self._keyring is None:
                raise UnknownKey(False, key=False, token=True)
            key = self._keyring.admit(self._clock(), name, headers) if counts else self._keyring.opens(name, headers)
        except KeyRefused as error:
            self.telemetry.key_refused(error.reason)
            raise
        return key.of_class

    def asker(self, headers: Fields) -> str:
        """A digest of who asks, by his API key or token; ``""`` where nobody needs one. Raises ``KeyRefused``."""
        if self._keyring is None and self._tokens is None:
            return ""
        if self._tokens is not None and (token := self._tokens.given(headers)):
            name = f"token {self._tokens.known(self._epoch(), token).subject}"
        elif self._keyring is None:
            raise UnknownKey(False, key=False, token=True)
        else:
            name = f"key {self._keyring.known(headers).name}"
        return hashlib.sha256(name.encode()).hexdigest()[:32]

    def _opened(self) -> Store:
        assert self._store is not None
        return self._store

    def opened(self, headers: Fields) -> list[str]:
        """The models that are served, by name: where keys or tokens are needed, those that it opens. Raises ``KeyRefused``."""
        names = sorted(self._models)
        if self._keyring is None and self._tokens is None:
            return names
        try:
            if self._tokens is not None and (token := self._tokens.given(headers)):
                models: Collection[str] | None = self._tokens.known(self._epoch(), token).models
            elif self._keyring is None:
                raise UnknownKey(False, key=False, token=True)
            else:
                models = self._keyring.known(headers).models
        except KeyRefused as error:
            self.telemetry.key_refused(error.reason)
            raise
        return names if models is None else [name for name in names if name in models]

    async def describe(self, name: str) -> dict[str, Any]:
        """The metadata of a model, the plan in force, and any that is refused; raises ``UnknownModel`` or ``FunctionFailed``."""
        document = await self.model(name).describe()
        refusals = self._follower.refusals(name)
        if refusals:
            last = refusals[-1]
            document["plan"]["refused"] = {"place": last.place, "digest": last.digest or None, "reason": last.reason}
        return document

    async def unready(self, name: str | None = None) -> str | None:
        """Why new requests, for this model or for any of all, should be sent elsewhere; ``None``: they are welcome."""
        models = list(self._models.values()) if name is None else [self.model(name)]
        if self._drain_until is not None:
            return "this process is being shut down"
        if not models:
            return "no plan is in force"
        if self._tokens is not None and not len(self._tokens):
            return "no key of the issuer of tokens is known"
        if self._tokens is None and self._keyring is not None and not len(self._keyring):
            return "no API key is in force, and who asks needs one"
        if starting := [model.plan.model for model in models if model.starting]:
            return f"environments of {', '.join(starting)} are being started"
        try:
            await asyncio.gather(*(model.check() for model in models))
        except StoreUnavailable as error:
            return str(error)
        return None

    def _refused(self, refusal: Refusal) -> None:
        self.telemetry.plan_refused(refusal.kind)

    async def _follow(self, plan: Plan) -> None:
        """Serve a plan from now on; raises ``UnknownFunction`` or ``InvalidInput`` where it cannot be."""
        assert self._store is not None and self._callers is not None
        check_waits(plan, self.settings.request_timeout)
        current = self._models.get(plan.model)
        await self._check_functions(plan, current.plan.all_routes if current is not None else [])
        if current is not None:
            await current.follow(plan)
            return
        telemetry = self.telemetry.model(plan)
        parts = self._store, self._limits, self._callers, self._asked, telemetry, self.answers
        self._models[plan.model] = ServedModel(plan, *parts)

    async def _check_functions(self, plan: Plan, in_force: Sequence[Route] = ()) -> None:
        """Refuse a plan whose functions do not exist, serve other models, or are silent while those ``in_force`` answer."""
        known = {(route.name, function, route.variant) for route in in_force for function in route.functions}
        asked = [(route, place) for route in plan.all_routes for place in range(len(route.functions))]
        new = [(route, place) for route, place in asked if (route.name, route.functions[place], route.variant) not in known]
        checks = await asyncio.gather(*(self._check_function(plan.model, route, route.functions[place]) for route, place in new))
        for error in (answer for answers in checks for answer in answers if isinstance(answer, BaseException)):
            raise error
        silent = [named for named, answers in zip(new, checks, strict=True) if not any(answers)]
        if silent and await self._any_answers(plan.model, in_force):
            route, place = silent[0]
            field = f"beside[{place - 1}].function" if place else "function"
            field += f" of route {route.name}" if route.name else ""
            shown = without_password(route.functions[place])
            raise SilentFunction(field, shown, "one that answers, as one of the plan in force does")

    async def _check_function(self, model: str, route: Route, function: str) -> list[bool | BaseException]:
        """Of each worker of a function of a route, whether it answers, or what is wrong with it."""
        checks = (self._check_one(model, route, worker) for worker in named_functions(function))
        return await asyncio.gather(*checks, return_exceptions=True)

    async def _any_answers(self, model: str, routes: Sequence[Route]) -> bool:
        """Whether there is a function of these routes that answers, and as it should."""
        checks = (self._check_function(model, route, function) for route in routes for function in route.functions)
        found = await asyncio.gather(*checks)
        return any(answer is True for answers in found for answer in answers)

    async def _check_one(self, model: str, route: Route, function: str) -> bool:
        """Whether a function answers when it is asked about its model; raises where that is another."""
        field, expected = (f"variant of route {route.name}", route.variant) if route.variant else ("model", model)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                served = (await describe(expected, function, self._invoker)).get("name", expected)
        except UnknownFunction:
            raise
        except Exception as error:
            reason = error if str(error) else type(error).__name__
            self._silent.say(
                function, f"{model}: function {without_password(function)} could not be asked about its model: {reason}"
            )
            return not isinstance(error, (FunctionUnavailable, TimeoutError))
        if served != expected:
            raise InvalidInput(field, expected, f"the model that {without_password(function)} serves, {served!r}")
        return True

    async def _receive(self, store: Store, callers: Callers, lending: Lending) -> None:
        store_away = Seldom(_log.warning)
        where = without_password(self.settings.redis_url)
        while True:
            try:
                hand_out(await store.receive(), callers, lending.asked, self.telemetry.set_aside)
            except StoreUnavailable as error:
                store_away.say("store", f"{error}; at {where} (--redis-url, SLUICE_REDIS_URL; memory:// needs no Redis)")
                await asyncio.sleep(RECEIVE_PAUSE)
            except Exception:  # a defect; what it was about is lost, and the next message must come all the same
                _log.exception("a message was not handed out")
                await asyncio.sleep(RECEIVE_PAUSE)

    async def _emit(self) -> None:
        while True:
            await asyncio.sleep(EMIT_INTERVAL)
            for model in self._models.values():
                model.telemetry.emit()


def _tokens_of(settings: Settings) -> BearerTokens | None:
    """What decides about tokens, where the settings know an issuer; raises ``InvalidInput`` where they know a part of one."""
    for field, value in (("SLUICE_JWT_ISSUER", settings.jwt_issuer), ("SLUICE_JWT_AUDIENCE", settings.jwt_audience)):
        allowed = "empty where SLUICE_JWT_JWKS is, as nobody is asked for a token then"
        require(not value or bool(settings.jwt_jwks), field, value, allowed)
    if not settings.jwt_jwks:
        return None
    from sluice.buffer_service.bearer_tokens import BearerTokens  # with joserfc and cryptography: 7 MB, a tenth of the start

    return BearerTokens(settings.jwt_issuer, settings.jwt_audience)


def _traces() -> Traces:
    """Spans that are exported; raises ``InvalidInput`` where nothing is there to do so."""
    try:
        from sluice.buffer_service.traces import Traces
    except ImportError as error:
        allowed = "off where OpenTelemetry is not installed: pip install 'sluice-batching[otel]'"
        raise InvalidInput("SLUICE_TRACES", "on", f"{allowed} ({error})") from None
    return Traces.exported()


def open_store(settings: Settings) -> Store:
    """The store that ``SLUICE_REDIS_URL`` names."""
    process = new_process_name()
    if settings.redis_url.startswith(IN_MEMORY):
        return MemoryStore(MemoryBackend(), process)
    return RedisStore(settings.redis_url, process, settings.namespace, settings.spread_routes == "yes")


class Server:
    """Runs a service and its HTTP server, until it is told to stop; then drains."""

    def __init__(self, service: BufferService) -> None:
        self._service = service
        settings = service.settings
        patience = Patience(header=settings.header_timeout, body=settings.body_timeout, keep_alive=settings.keep_alive)
        release, apart = version("sluice-batching"), settings.admin_port > 0
        service.telemetry.built(release)
        rooms = service.waiting, service.untaken, service.connections
        self.http = HttpServer(Routes(service, release, operated=not apart).begin, patience, *rooms)
        self.admin = HttpServer(Routes(service, release, asked=False).begin, patience, *rooms) if apart else None
        for server in self._servers:
            server.told_off = lambda status: service.telemetry.turned_away(f"Connection{status.value}")
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()

    @property
    def _servers(self) -> list[HttpServer]:
        return [server for server in (self.http, self.admin) if server is not None]

    async def serve(self) -> None:
        """Serve until ``stop``."""
        settings = self._service.settings
        try:
            await _unless(self._stopping, self._start())
            if self._stopping.is_set():  # nobody was served yet
                return
            # What is there now stays as long as the process: full collections, which stop all requests, need not look at it again.
            gc.collect()
            gc.freeze()
            _log.info("listening on http://%s:%d", settings.host, self.http.port)
            self.listening.set()
            await self._stopping.wait()
            await self._drain()
        finally:
            for server in self._servers:
                server.close()
            if not self._forced.is_set():
                await self._service.stop()

    async def _start(self) -> None:
        """Take the plans in force, and listen."""
        settings = self._service.settings
        await self._service.start()
        await _listen(self.http, settings.host, settings.port, "PORT")
        if self.admin is not None:
            await _listen(self.admin, settings.host, settings.admin_port, "ADMIN_PORT")
            _log.info("metrics and the page on http://%s:%d", settings.host, self.admin.port)

    def stop(self, at_once: bool = False) -> None:
        """Drain, and end; ``at_once``: whatever is under way, if the drain has begun already."""
        if at_once and self._stopping.is_set():
            self._forced.set()
        self._stopping.set()

    async def _drain(self) -> None:
        """Answer who waits, as long as there is time for that."""
        settings = self._service.settings
        delay = _leave_delay(settings)
        self._service.begin_drain()
        for server in self._servers:
            server.keep_none()
        await _unless(self._forced, asyncio.sleep(delay))  # who asks whether this process is ready sends nothing more
        for server in self._servers:
            server.stop_listening()
        left = settings.drain_timeout - delay
        await _unless(self._forced, asyncio.gather(*(server.leave(left) for server in self._servers)))


async def _unless(told: asyncio.Event, work: Awaitable[Any]) -> None:
    """The work, which is cancelled when ``told``; raises what it raises."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.wait([working])


async def _listen(server: HttpServer, host: str, port: int, setting: str) -> None:
    """Raises ``InvalidInput`` where somebody has the port, perhaps since it was looked at first."""
    try:
        await server.start(host, port)
    except OSError as error:
        raise InvalidInput(PREFIX + setting, port, f"a free port of {host} ({error.strerror or error})") from None


def _most_connections() -> int:
    """Of clients: what is left of the descriptors is for workers, the store, plans and logs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most * 3 // 4 if most != resource.RLIM_INFINITY else sys.maxsize


def _leave_delay(settings: Settings) -> float:
    """Half of the drain at the most (s): who waits for an answer comes before who might still come."""
    return min(settings.leave_delay, settings.drain_timeout / 2)


async def run(service: BufferService) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second SIGINT ends at once."""
    keep_freed_memory()
    server = Server(service)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.stop)
    loop.add_signal_handler(signal.SIGINT, server.stop, True)
    await server.serve()


def main(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    lines = LogLines(settings.log_format, settings.log_level)
    out, err = unblocked(sys.stdout, lines), unblocked(sys.stderr, lines)
    log_to(err, lines)
    for name, meant in misspelt(os.environ, VARIABLES).items():
        _log.warning("%s is no setting of the buffer and changes nothing; is %s meant?", name, meant)
    telemetry = Telemetry(out if settings.cloudwatch == "on" else None, deployment=settings.namespace)
    telemetry.watch("stdout", out)
    telemetry.watch("stderr", err)
    # A connection each for the callers who wait: as many as the system allows, not as few as it starts with.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        uvloop.run(run(BufferService(settings, telemetry=telemetry)))
    finally:
        out.close(LAST_LINES)
        err.close(LAST_LINES)
