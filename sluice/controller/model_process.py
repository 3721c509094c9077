"""The shell of live control: reads what is recorded of the models, has their tuners decide, and writes the plans.

    every ``LOOK`` s    the plans in force are read where they changed; of each model with records that were not read so many
                        ``PAGES`` of them at most, the first pages together; and tuners are asked what is due
    what is due         is decided elsewhere (``deciding.py``), one model after the other, what happened before what is periodic.
                        While what decides is there, it decides as well what would be due ``take_along`` s later if nothing happened
    a new plan          is written under the lease, and is in force once it is read back as everybody reads it

The reading, and what tuners do to watch, is done in one thread of low priority: the loop renews the lease meanwhile. What is
recorded of a model while it is decided about waits in Redis. A decision that took longer than ``DECIDE_WITHIN`` is too old to
follow; one that was lost is told in the journal, and the plan stays. Where Redis does not answer, nothing is decided, and the
buffers go on with the plans that they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from sluice.batching.documents import Plan
from sluice.batching.errors import InvalidInput, SluiceError, StoreUnavailable
from sluice.batching.urls import without_password
from sluice.buffer_service.presence import Presences
from sluice.buffer_service.redis_plans import HISTORY, RedisPlans
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.stream_reader import NewArrivals, NewBatches, News, RecordReader
from sluice.controller.deciding import Decider
from sluice.controller.journal import Journal
from sluice.controller.model_control import Hole, ModelControl, ModelTuner
from sluice.controller.one_thread import OneThread
from sluice.optimizer.compiled import look_again
from sluice.optimizer.tuning.decision import Decision, Trigger

LOOK = 1.0
PAGES = 20
DECIDE_WITHIN = 60.0
MOST_COUNTED = 200  # models whose counts are written at a look
NOTHING_FOR = 6.0  # seconds without a plan, after which that is said: buffers tell of themselves every five
EVERYTHING_EVERY = 60.0
"""Seconds between two looks at all models, and for routes that have a record of their own."""

_log = logging.getLogger(__name__)


class _Watched(NamedTuple):
    """A model that is controlled."""

    control: ModelControl
    reader: RecordReader


class ModelProcess:
    """Controls the models that have a plan in Redis, until it is cancelled.

    Parameters
    ----------
    tuner_for
        The tuner of a model whose first plan this is; raises ``InvalidInput`` where it cannot be controlled.
    plans, leader
        Where the plans are, and the name that holds the lease.
    decider
        What decides; closed in the end.
    journal
        What is decided.
    url, namespace
        Of the Redis where the buffers record, and what its keys begin with.
    look
        Seconds between two looks.
    take_along
        Seconds by which what is periodic may be decided early.
    """

    def __init__(
        self,
        tuner_for: Callable[[Plan], ModelTuner],
        plans: RedisPlans,
        leader: str,
        decider: Decider,
        journal: Journal,
        url: str,
        namespace: str = NAMESPACE,
        look: float = LOOK,
        take_along: float = 0.0,
    ) -> None:
        self._tuner_for = tuner_for
        self._plans, self._leader, self._decider, self._journal = plans, leader, decider, journal
        self._url, self._namespace = url, namespace
        self._every, self._take_along = look, take_along
        self._watched: dict[str, _Watched] = {}
        self._left_alone: dict[str, str] = {}  # digest of the plan, by model
        self._trouble: dict[str, str] = {}  # by model, what was told last
        self._thread = OneThread()
        self._everything_at = 0.0
        self._news = News(url)
        self._active: set[str] = set()
        self._due: dict[str, Trigger] = {}
        self._something, self._between_looks = asyncio.Event(), asyncio.Lock()
        self._deciding = ""
        self._nothing_since: float | None = None  # no model has a plan; by the loop's clock
        self._nothing_told = False

    async def run(self) -> None:
        """Look, decide and write until cancelled."""
        clock = asyncio.get_running_loop().time
        deciding = asyncio.create_task(self._decide())
        try:
            while True:
                begun = clock()
                try:
                    await self._follow_plans()
                    await self._look(begun)
                except StoreUnavailable as error:
                    for watched in self._watched.values():
                        watched.control.away(watched.reader.now)
                    await self._tell_once("", str(error))
                else:
                    self._trouble.pop("", None)
                await asyncio.sleep(max(0.0, self._every - (clock() - begun)))
        finally:
            deciding.cancel()
            self._thread.do(self._close)
            self._thread.end()
            await asyncio.gather(deciding, return_exceptions=True)
            await self._decider.close()

    async def _follow_plans(self) -> None:
        """Tell the tuners which plans are in force; begin with models that are new, and end with those that have none."""
        plans = {plan.model: plan for plan in await self._plans.plans()}
        await self._tell_of_nothing(bool(plans))
        for gone in self._watched.keys() - plans.keys():
            self._thread.do(self._watched.pop(gone).reader.close)
        since: dict[str, float] | None = None
        for model, plan in plans.items():
            if model == self._deciding:  # its tuner is elsewhere: at the next look
                continue
            if model not in self._watched and self._left_alone.get(model) == plan.digest:
                continue
            if since is None:
                since = {reason.digest: reason.at for reason in reversed(await self._plans.reasons(HISTORY))}
            at = since.get(plan.digest, time.time())
            words = self._watched[model].control.plan(plan, at) if model in self._watched else ""
            if words and self._may_begin_again(plan, at):  # as where other workers took the place of those that there were
                self._thread.do(self._watched.pop(model).reader.close)
            if model not in self._watched:
                words = await self._begin(plan, at)
            if words:
                await self._tell(model, words)

    async def _begin(self, plan: Plan, at: float) -> str:
        """Watch a model that has this plan since then (s); why it is left alone, or ``""``."""
        model = plan.model
        try:
            tuner = self._tuner_for(plan)
        except InvalidInput as error:
            self._left_alone[model] = plan.digest
            return f"plan {plan.digest} is left alone: {error}"
        control = ModelControl(tuner)
        self._watched[model] = _Watched(control, RecordReader(self._url, model, self._namespace))
        self._active.add(model)
        await self._tell(model, f"controlled from plan {plan.digest} on")
        given = await self._plans.given(model)
        control.remember(await self._plans.counts(model))
        words = control.plan(plan, at)
        if given is not None:
            control.given(given)
        return words

    def _may_begin_again(self, plan: Plan, at: float) -> bool:
        """Whether who begins with a plan follows it."""
        try:
            self._tuner_for(plan).in_force(plan, at)
        except InvalidInput:
            return False
        return True

    async def _tell_of_nothing(self, something: bool) -> None:
        """Say once that no model has a plan here, and where the buffers that are there have theirs from."""
        now = asyncio.get_running_loop().time()
        if something or self._nothing_since is None:
            self._nothing_since, self._nothing_told = None if something else now, False
        if self._nothing_told or self._nothing_since is None or now < self._nothing_since + NOTHING_FOR:
            return
        self._nothing_told = True
        presences, sources = Presences(self._url, self._namespace), Counter[str]()
        with contextlib.suppress(StoreUnavailable):  # or it may not ask
            sources.update(heard.presence.plans for heard in await presences.heard())
        await presences.close()
        there = ", ".join(f"{n} of the buffer's processes {'has' if n == 1 else 'have'} plans of {at}" for at, n in sources.items())
        words = "no model has a plan in this Redis, so that nothing is controlled; `sluice plans push PLAN` puts one into force"
        _log.warning("%s%s", words, f", which a buffer follows by --plans redis: ({there})" if there else "")

    async def _look(self, at: float) -> None:
        """Tell the tuners what was recorded, and find out what is to be decided; ``at`` by the loop's clock."""
        everything = at >= self._everything_at
        if everything:
            self._everything_at = at + EVERYTHING_EVERY
        early = self._take_along if self._decider.running else 0.0
        async with self._between_looks:
            watched = {model: one for model, one in self._watched.items() if model != self._deciding}
            found = await self._thread.call(_look, watched, self._news, self._active, everything, early)
            self._active, self._due = found.active, found.due
        for model, error in found.trouble.items():
            await self._tell_once(model, error)
        for model in found.looked_at - found.trouble.keys():
            self._trouble.pop(model, None)
        for model, one in watched.items():
            if (hole := one.control.holes(one.reader.now)) is not None:
                await self._tell_hole(model, hole)
        if self._due:
            self._something.set()
        await self._keep_counts()

    async def _keep_counts(self) -> None:
        """What yesterday brought is remembered by who takes over; a few models at a look, however many there are."""
        counted: dict[str, bytes] = {}
        for model, watched in self._watched.items():
            if len(counted) < MOST_COUNTED and model != self._deciding and (packed := watched.control.counted()):
                counted[model] = packed
        await self._plans.keep_counts(counted)

    async def _decide(self) -> None:
        """Have decided what is due, one after the other: what happened before what is periodic."""
        while True:
            await self._something.wait()
            async with self._between_looks:  # a tuner that is told something is nothing to hand on
                due = [model for model in self._due if model in self._watched]
                if not due:
                    self._something.clear()
                    continue
                model = min(due, key=lambda name: (self._due[name].kind == "periodic", self._due[name].at))
                trigger, watched = self._due.pop(model), self._watched[model]
                self._deciding, begun = model, time.monotonic()
            try:
                decision, tuner = await self._decider.decide(watched.control.tuner, watched.reader.now, trigger)
                watched.control.decided(tuner, decision.at)
                look_again()  # for machine code of what watches, which `sluice compile` may have made meanwhile
                if self._watched.get(model) is watched:
                    await self._follow(model, decision, time.monotonic() - begun)
            except Exception as error:  # a defect, of one model's figures perhaps: the others are controlled all the same
                if not isinstance(error, SluiceError):
                    _log.exception("%s", model)
                watched.control.lost(watched.reader.now)
                await self._tell(model, f"{trigger.words}: the plan stays, as nothing was decided: {error}")
            finally:
                self._deciding = ""

    async def _follow(self, model: str, decision: Decision, seconds: float) -> None:
        """Put what was decided into force, and say so."""
        words = without_password(f"{decision.trigger.words}: {decision.why}")
        if decision.alarm:
            words = f"{words}; {decision.alarm}"
        written = False
        if decision.plan is not None and seconds > DECIDE_WITHIN:
            words = f"{words}; it took {seconds:.0f} s to decide, and is not followed"
        elif decision.plan is not None:
            try:
                await self._plans.write(decision.plan, self._leader, decision.why, leader=self._leader)
                written = True
            except SluiceError as error:
                words = f"{words}; it could not be put into force: {error}"
        await self._journal.note(model, words, **{**decision.document(), "changed": written, "seconds": round(seconds, 3)})
        _log.log(logging.WARNING if decision.alarm else logging.INFO, "%s: %s", model, words)

    async def _tell(self, model: str, words: str) -> None:
        words = without_password(words)
        _log.info("%s: %s", model, words)
        await self._journal.note(model, words)

    async def _tell_hole(self, model: str, hole: Hole) -> None:
        since, until = (datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds") for at in (hole.since, hole.until))
        _log.warning("%s: %s", model, hole.words)
        await self._journal.note(model, hole.words, hole={"since": since, "until": until, "missed": hole.missed, "why": hole.why})

    async def _tell_once(self, model: str, words: str) -> None:
        if self._trouble.get(model) != words:
            self._trouble[model] = words
            _log.warning("%s%s", f"{model}: " if model else "", words)

    def _close(self) -> None:
        self._news.close()
        for watched in self._watched.values():
            watched.reader.close()


class _Looked(NamedTuple):
    """What came of a look: models whose streams grew, that were looked at, with what is due, and with trouble, in words."""

    active: set[str]
    looked_at: set[str]
    due: dict[str, Trigger]
    trouble: dict[str, str]


def _look(watched: dict[str, _Watched], news: News, active: set[str], everything: bool, early: float) -> _Looked:
    """Tell tuners what was recorded since the last look, and ask them what is due.

    Who had records the last time, or could not be read, is looked at without being asked whether he has some.
    """
    found = _Looked(set(), set(), {}, {})
    asked = watched.keys() if everything else active & watched.keys()
    quiet = {model: one.reader for model, one in watched.items() if model not in asked}
    found.looked_at.update(asked, news.of(quiet) if quiet else ())
    found.active.update(found.looked_at)
    known = {} if everything else news.read({model: watched[model].reader for model in found.looked_at})
    for model in found.looked_at:
        try:
            if not _read(watched[model], everything, known.get(model)):
                found.active.remove(model)
        except SluiceError as error:
            watched[model].control.away(watched[model].reader.now)
            found.trouble[model] = str(error)
        except Exception as error:  # a defect
            _log.exception("%s", model)
            found.trouble[model] = f"an error inside the controller: {error!r}"
    for model in watched.keys() - found.trouble.keys():
        control, reader = watched[model]
        try:
            trigger = control.due(reader.now, early)
        except Exception as error:  # a defect
            _log.exception("%s", model)
            found.trouble[model] = f"an error inside the controller: {error!r}"
            continue
        if trigger is not None:
            found.due[model] = trigger
    return found


def _read(watched: _Watched, look_for_routes: bool, known: tuple[NewArrivals, NewBatches] | None) -> bool:
    """Tell a tuner what was recorded, of which the first page may be known; whether anything was."""
    control, reader = watched
    if look_for_routes:
        reader.look_for_routes()
        control.buffers(reader.buffers())
    grown = False
    for _ in range(PAGES):
        arrivals, batches = known or reader.look()
        known = None
        control.back(reader.now)
        control.see(arrivals, batches, reader.buffers)
        grown = grown or bool(arrivals.arrivals.times or batches.batches)
        if not (arrivals.more or batches.more):
            break
    return grown
