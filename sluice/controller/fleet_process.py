"""The shell of a live fleet: reads the record of arrivals and the registry, has plans made, writes them, and has workers load.

    ten times a second       how many requests came, or less often where the SLOs are long
    twice a second           the fleet is told of them (``ControlSettings.look``)
    every ``LOOK`` s         the registry is read
    every ``MEASURE`` s      what batches took is compared with their profiles; what they take beyond is planned with
    when a plan is asked for it is worked out in a thread; what comes meanwhile waits for nobody
    when there are orders    plans are written; ``SETTLE`` s later, when every buffer has them, workers unload and load

Where Redis does not answer, the workers, plans and shares stay as they are, and the time that went by unseen is not told to the
fleet: it is no time without requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import Plan
from sluice.batching.errors import FunctionFailed, SluiceError
from sluice.batching.urls import without_password
from sluice.buffer_service.invokers.http_client import ClientError, HttpClient
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.stream_reader import NewBatches, RecordReader
from sluice.buffer_service.unanswered import UnansweredCounts
from sluice.buffer_service.worker_registry import WorkerRegistry
from sluice.controller.arrival_counts import ArrivalCounts
from sluice.controller.journal import Journal
from sluice.controller.live_fleet import LOAD_WITHIN, LiveFleet, Load, Orders
from sluice.http.room import Room
from sluice.optimizer.control import ControlledFleet, ControlSettings, FleetController, OverheadWatch
from sluice.optimizer.control.headroom import Planner
from sluice.optimizer.fleet.specification import Fleet

LOOK = 0.25
MEASURE = 1.0
SETTLE = 0.3
MOST_PARTS = 10  # of a second
ANSWER_LIMIT = 1024 * 1024  # bytes that a worker says of loading

_log = logging.getLogger(__name__)


class FleetProcess:
    """Follows one fleet until it is cancelled.

    Parameters
    ----------
    fleet : Fleet
        Its demand is what is expected before anything was seen; its ``workers`` are not read: workers register.
    planner : callable
    settings : ControlSettings
    plans, name
        Where plans are written, and the name that leads there.
    journal : Journal
        Gets what happens, in words.
    url, namespace
        The Redis of the buffers.
    """

    def __init__(
        self,
        fleet: Fleet,
        planner: Planner,
        settings: ControlSettings,
        plans: RedisPlans,
        name: str,
        journal: Journal,
        url: str,
        namespace: str,
    ) -> None:
        self._controller = FleetController(ControlledFleet.of(fleet), planner, settings)
        self._fleet = fleet
        self._registry = WorkerRegistry(url, namespace)
        self._overhead = OverheadWatch(fleet)
        self._batches = {name: RecordReader(url, name, namespace) for name in fleet.family_names}
        self._read_to_the_end: set[str] = set()
        self._unanswered = UnansweredCounts(url, namespace)
        self._arrivals = ArrivalCounts(url, list(fleet.family_names), namespace)
        self._plans, self._name = plans, name
        self._journal = journal
        self._looks = settings.look
        self._parts = min(max(1, round(MOST_PARTS * settings.look)), self._controller.n_parts)
        self._unwritten: dict[str, Plan] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        self._clock = asyncio.get_running_loop().time
        self._live = LiveFleet(self._fleet, self._controller, self._clock())
        self._http = HttpClient(LOAD_WITHIN)
        try:
            await asyncio.gather(self._count(), self._look(), self._measure())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(self._registry.close(), self._unanswered.close(), self._arrivals.close(), self._http.close())
            for reader in self._batches.values():
                reader.close()

    # -- what is seen

    async def _count(self) -> None:
        await self._arrivals_until_they_are_told()
        due, within = self._clock(), []
        while True:
            due += self._looks / self._parts
            await asyncio.sleep(due - self._clock())
            try:
                within.append(await self._arrivals.since_last_look())
            except SluiceError as error:
                self._note_trouble(error)
                await self._arrivals_until_they_are_told()
                seconds = self._clock() - (due - len(within) * self._looks / self._parts)
                words = f"how many came in {seconds:.3g} s is not known, as Redis did not answer: the forecast is that of before"
                self._say("", [words])
                due, within = self._clock(), []
                continue
            if len(within) == self._parts:
                self._do(self._live.seen(self._clock(), np.array(within, dtype=np.float64)))
                within = []
            if self._clock() - due > 1.0:  # the machine was away
                due = self._clock()

    async def _arrivals_until_they_are_told(self) -> None:
        while True:
            try:
                await self._arrivals.since_last_look()
                return
            except SluiceError as error:
                self._note_trouble(error)
                await asyncio.sleep(LOOK)

    async def _look(self) -> None:
        while True:
            try:
                workers = await self._registry.workers()
            except SluiceError as error:
                self._note_trouble(error)
            else:
                self._trouble = ""
                self._do(self._live.registered(self._clock(), workers))
                if self._unwritten:
                    self._start(self._write())
            await asyncio.sleep(min(LOOK, max(0.0, self._live.wake_at - self._clock())))
            if self._live.wake_at <= self._clock():
                self._do(self._live.wake(self._clock()))

    async def _measure(self) -> None:
        while True:
            try:
                for family, reader in self._batches.items():
                    found = await asyncio.to_thread(_batches_of, reader)
                    self._overhead.see(family, found.batches)
                    if family in self._read_to_the_end:  # what is older came under other plans
                        self._live.measured(family, found.batches)
                    elif not found.more:
                        self._read_to_the_end.add(family)
            except SluiceError as error:
                self._note_trouble(error)
            else:
                if self._overhead.settle(self._clock()):
                    self._do(self._live.beyond(self._clock(), self._overhead.fleet, self._overhead.words))
            await asyncio.sleep(MEASURE)

    def _note_trouble(self, error: SluiceError) -> None:
        if str(error) != self._trouble:
            _log.warning("the fleet stays as it is: %s", error)
        self._trouble = str(error)

    # -- what is done

    def _do(self, orders: Orders) -> None:
        self._say("", orders.said, {} if orders.since_last is None else {"since_last_placement": orders.since_last})
        if orders.plan_wanted:
            self._start(self._plan())
        for plan in orders.plans:
            shares = ", ".join(f"{route.name} {route.share:.0%} by {len(route.function.split(','))}" for route in plan.routes)
            self._say(plan.model, [shares])
            self._unwritten[plan.model] = replace(plan, made_at=datetime.now(UTC).isoformat(timespec="milliseconds"))
        if orders.plans:
            self._start(self._write())
        self._say("", [f"{without_password(load.address)} is to load {load.variant}" for load in orders.loads])
        for load in orders.loads:
            self._start(self._load(load))

    def _say(self, model: str, sentences: Sequence[str], figures: Mapping[str, Any] = MappingProxyType({})) -> None:
        if sentences:
            self._start(self._note(model, sentences, figures))

    async def _note(self, model: str, sentences: Sequence[str], figures: Mapping[str, Any]) -> None:
        """Sentences, the first with its figures."""
        for place, words in enumerate(sentences):
            _log.info("%s%s", f"{model}: " if model else "", words)
            await self._journal.note(model, words, **(figures if place == 0 else {}))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a defect of the controller: %r", error, exc_info=error)

    async def _plan(self) -> None:
        choice, in_no_batch = await asyncio.gather(asyncio.to_thread(self._controller.deciding()), self._in_no_batch())
        self._do(self._live.planned(self._clock(), choice, in_no_batch))

    async def _in_no_batch(self) -> dict[str, int]:
        """Requests of each family that broke the promise in no batch since variants were placed; none where that cannot be read."""
        since = self._live.placed_since
        if since is None:
            return {}
        try:
            return {name: (await self._unanswered.of(name, self._clock() - since)).late for name in self._fleet.family_names}
        except SluiceError as error:
            self._note_trouble(error)
            return {}

    async def _write(self) -> None:
        """Those that are not written yet; what cannot be now is tried again at the next look."""
        for plan in list(self._unwritten.values()):
            try:
                await self._plans.write(plan, self._name, "the fleet has changed", self._name)
            except SluiceError as error:
                self._note_trouble(error)
                continue
            if self._unwritten.get(plan.model) is plan:
                del self._unwritten[plan.model]

    async def _load(self, load: Load) -> None:
        """First the buffers are to send this worker nothing for what it gives up."""
        await asyncio.sleep(SETTLE)
        try:
            for variant in load.unload:
                await self._repository(load.address, variant, "unload")
            await self._repository(load.address, load.variant, "load")
        except (ClientError, FunctionFailed, TimeoutError) as error:
            self._do(self._live.load_failed(self._clock(), load.address, str(error) or type(error).__name__))

    async def _repository(self, address: str, variant: str, action: str) -> None:
        url = f"{address}/v2/repository/models/{variant}/{action}"
        answer = await self._http.post(url, (), (), ANSWER_LIMIT, Room.without_end())
        if answer.status != 200:
            text = answer.body[:1000].decode(errors="replace")
            raise ClientError(f"{action} of {variant} was answered {answer.status}: {text}")


def _batches_of(reader: RecordReader) -> NewBatches:
    """Those that ended since the last look."""
    reader.look_for_routes()
    return reader.batches()
