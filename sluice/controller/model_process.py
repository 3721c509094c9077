"""The shell of live control: reads what is recorded of the models, has their tuners decide, and writes the plans.

    every ``LOOK`` s    the plans in force are read where they changed; of each model what was recorded since the last look, so many
                        ``PAGES`` at most; and what is due is decided
    a new plan          is written under the lease, and is in force once it is read back as everybody reads it

Everything that a tuner does, and the reading, is done in one thread of low priority, one model after the other: the loop renews the
lease meanwhile. What is recorded while a decision is made waits in Redis. A decision that took longer than ``DECIDE_WITHIN`` is too
old to follow. Where Redis does not answer, nothing is decided, and the buffers go on with the plans that they have.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from sluice.batching.documents import Plan
from sluice.batching.errors import InvalidInput, SluiceError, StoreUnavailable
from sluice.buffer_service.redis_plans import HISTORY, RedisPlans
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.stream_reader import RecordReader
from sluice.controller.journal import Journal
from sluice.controller.model_control import ModelControl, ModelTuner
from sluice.controller.one_thread import OneThread
from sluice.optimizer.tuning.decision import Decision

LOOK = 1.0
PAGES = 20
DECIDE_WITHIN = 60.0
ROUTES_EVERY = 60.0
"""Seconds between two looks for routes that have a record of their own."""

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
    journal
        What is decided.
    url, namespace
        Of the Redis where the buffers record, and what its keys begin with.
    look
        Seconds between two looks.
    """

    def __init__(
        self,
        tuner_for: Callable[[Plan], ModelTuner],
        plans: RedisPlans,
        leader: str,
        journal: Journal,
        url: str,
        namespace: str = NAMESPACE,
        look: float = LOOK,
    ) -> None:
        self._tuner_for = tuner_for
        self._plans, self._leader, self._journal = plans, leader, journal
        self._url, self._namespace = url, namespace
        self._look = look
        self._watched: dict[str, _Watched] = {}
        self._left_alone: dict[str, str] = {}  # digest of the plan, by model
        self._trouble: dict[str, str] = {}  # by model, what was told last
        self._thread = OneThread()
        self._routes_at = 0.0

    async def run(self) -> None:
        """Look, decide and write until cancelled."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                begun = clock()
                try:
                    await self._follow_plans()
                except StoreUnavailable as error:
                    await self._tell_once("", str(error))
                else:
                    self._trouble.pop("", None)
                    look_for_routes = begun >= self._routes_at
                    for model in list(self._watched):
                        await self._look_at(model, look_for_routes)
                    if look_for_routes:
                        self._routes_at = begun + ROUTES_EVERY
                await asyncio.sleep(max(0.0, self._look - (clock() - begun)))
        finally:
            self._thread.do(self._close)  # behind what is being decided, whose outcome nobody follows
            self._thread.end()

    async def _follow_plans(self) -> None:
        """Tell the tuners which plans are in force; begin with models that are new, and end with those that have none."""
        plans = {plan.model: plan for plan in await self._plans.plans()}
        for gone in self._watched.keys() - plans.keys():
            self._thread.do(self._watched.pop(gone).reader.close)
        since: dict[str, float] | None = None
        for model, plan in plans.items():
            if model not in self._watched and self._left_alone.get(model) != plan.digest:
                try:
                    tuner = self._tuner_for(plan)
                except InvalidInput as error:
                    self._left_alone[model] = plan.digest
                    await self._tell(model, f"plan {plan.digest} is left alone: {error}")
                    continue
                self._watched[model] = _Watched(ModelControl(tuner), RecordReader(self._url, model, self._namespace))
                await self._tell(model, f"controlled from plan {plan.digest} on")
            if model in self._watched:
                if since is None:
                    since = {reason.digest: reason.at for reason in reversed(await self._plans.reasons(HISTORY))}
                words = self._watched[model].control.plan(plan, since.get(plan.digest, time.time()))
                if words:
                    await self._tell(model, words)

    async def _look_at(self, model: str, look_for_routes: bool) -> None:
        watched = self._watched[model]
        begun = time.monotonic()
        try:
            decision = await self._thread.call(_look, watched, look_for_routes)
        except SluiceError as error:
            await self._tell_once(model, str(error))
            return
        except Exception as error:  # a defect, of one model's figures perhaps: the others are controlled all the same
            _log.exception("%s", model)
            await self._tell_once(model, f"an error inside the controller: {error!r}")
            return
        self._trouble.pop(model, None)
        if decision is not None:
            await self._follow(model, decision, time.monotonic() - begun)

    async def _follow(self, model: str, decision: Decision, seconds: float) -> None:
        """Put what was decided into force, and say so."""
        words = f"{decision.trigger.words}: {decision.why}"
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
        _log.info("%s: %s", model, words)

    async def _tell(self, model: str, words: str) -> None:
        _log.info("%s: %s", model, words)
        await self._journal.note(model, words)

    async def _tell_once(self, model: str, words: str) -> None:
        if self._trouble.get(model) != words:
            self._trouble[model] = words
            _log.warning("%s%s", f"{model}: " if model else "", words)

    def _close(self) -> None:
        for watched in self._watched.values():
            watched.reader.close()


def _look(watched: _Watched, look_for_routes: bool) -> Decision | None:
    """Tell a tuner what was recorded since the last look, and what came of it."""
    control, reader = watched
    if look_for_routes:
        reader.look_for_routes()
    for _ in range(PAGES):
        arrivals, batches = reader.arrivals(), reader.batches()
        control.see(arrivals, batches)
        if not (arrivals.more or batches.more):
            break
    return control.decide(reader.now)
