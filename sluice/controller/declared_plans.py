"""Plans that are declared outside Redis, as files or parameters: each is put into Redis once, where control goes on from it.

What is declared is in force when it is new: where the model has no plan in Redis, or another was declared than was put there last.
What control, or a person, wrote in Redis since then stays until somebody declares something else. Which digests were put is kept
in Redis (``RedisPlans.declared``), so that a controller that takes over does not put them again; a Redis that lost its data has
neither these nor plans, and gets what is declared.

A declaration that is taken back changes nothing, and where there is none that is told. One that is no plan is told of once, and the
others are put.
"""

from __future__ import annotations

import asyncio
import logging

from sluice.batching.documents import Plan, read
from sluice.batching.errors import InvalidInput, SluiceError
from sluice.buffer_service.plans import PlanSource
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.unwaited import unwaited

EVERY = 10.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


class DeclaredPlans:
    """Puts what ``source`` declares into ``plans``, as the leader of that name."""

    def __init__(self, source: PlanSource, plans: RedisPlans, leader: str) -> None:
        self._source, self._plans, self._leader = source, plans, leader
        self._told: dict[str, str] = {}  # by place, what was told last

    async def follow(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """One look; raises nothing but cancellation."""
        try:
            found = await unwaited(self._source.documents)
            declared = await self._plans.declared()
            in_force = {plan.model for plan in await self._plans.plans()}
        except Exception as error:  # a network, a permission, a file system: whatever it is, what is in force goes on
            self._tell("", f"what is declared is not put into force: {error}")
            return
        if found:
            self._told.pop("", None)
        else:
            self._tell("", "nothing is declared yet where --declared says", logging.WARNING)
        for place, document in found.items():
            try:
                if isinstance(document, InvalidInput):
                    raise document
                plan = read(Plan, document)
                if plan.model not in in_force or declared.get(plan.model) != plan.digest:
                    await self._plans.write(plan, place, "declared", leader=self._leader)
                    await self._plans.note_declared(plan)
                    _log.info("%s: plan %s is declared for %s, and in force", place, plan.digest, plan.model)
            except SluiceError as error:
                self._tell(place, f"{place}: what is declared is not put into force: {error}")
            else:
                self._told.pop(place, None)

    def _tell(self, place: str, words: str, level: int = logging.ERROR) -> None:
        if self._told.get(place) != words:
            _log.log(level, "%s", words)
        self._told[place] = words
