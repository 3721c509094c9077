"""What the controllers wrote of their decisions, as the live page tells it: read from Redis seldom, and only while somebody asks.

An entry is an object of JSON (``sluice/controller/journal.py``); whoever wrote it, no more of it is told than has a bound here,
and what is no text or no number where one is expected is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_plans import Reason, RedisPlans

LOOK_EVERY = 5.0  # s
MOST_READ = 100  # decisions of all models together
MOST_PLANS = 20  # of the history of plans
MOST_CONSIDERED = 12  # plans, of one decision
MOST_CORRECTIONS = 16
MOST_WORDS = 1000  # characters of a text

Told = Mapping[str, Any]


class Decisions:
    """The newest decisions in a Redis, newest first, and who leads; ``plans`` of ``None``: there is nowhere to look.

    ``clock`` is monotonic (s). ``trouble`` is why nothing could be read last, ``""`` where something could. ``reasons`` are by whom
    and why the newest plans were written, by model and digest.
    """

    def __init__(self, plans: RedisPlans | None, clock: Callable[[], float]) -> None:
        self.leader = self.trouble = ""
        self.entries: list[Told] = []
        self.reasons: dict[tuple[str, str], Reason] = {}
        self._plans = plans
        self._clock = clock
        self._look_at = -math.inf
        self._lines: list[bytes] = []
        self._newest: list[Reason] = []

    async def look(self) -> None:
        """Read what is there, unless that was done lately."""
        if self._plans is None or self._clock() < self._look_at:
            return
        try:
            lines, self.leader, self.trouble = await self._plans.decisions(MOST_READ), await self._plans.leader(), ""
            newest = await self._plans.reasons(1)
            if newest != self._newest:
                written = await self._plans.reasons(MOST_PLANS)
                self._newest, self.reasons = newest, {(each.model, each.digest): each for each in reversed(written)}
        except StoreUnavailable as error:
            self.trouble = str(error)
        else:
            if lines != self._lines:
                self._lines, self.entries = lines, [told for line in lines if (told := decision_of(line)) is not None]
        self._look_at = self._clock() + LOOK_EVERY

    async def close(self) -> None:
        """Close the connections."""
        if self._plans is not None:
            await self._plans.close()


def decision_of(line: bytes) -> Told | None:
    """What is told of an entry; ``None`` of what is none."""
    try:
        entry = msgspec.json.decode(line)
        at = datetime.fromisoformat(entry["at"]).timestamp()
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError, OverflowError):
        return None
    trigger, considered = entry.get("trigger"), entry.get("considered")
    expected, corrections = entry.get("expected"), entry.get("measured_less_predicted")
    in_force, chosen = _text(entry.get("in_force")), _text(entry.get("chosen"))
    return {
        "at": at,
        "model": _text(entry.get("model")),
        "words": _text(entry.get("why")) or _text(entry.get("words")),
        "sentence": _text(entry.get("words")),
        "trigger": _text(trigger.get("words") if isinstance(trigger, dict) else trigger),
        "alarm": _text(entry.get("alarm")),
        "hole": isinstance(entry.get("hole"), dict),
        "changed": entry.get("changed") is True,
        "digest": _text(entry.get("digest")) or None,
        "arrival_rate": _number(entry.get("arrival_rate")),
        "saving_usd_per_hour": _number(entry.get("saving_usd_per_hour")),
        "change_usd": _number(entry.get("change_usd")),
        "in_force": in_force,
        "chosen": chosen,
        "expected": _considered(expected) if isinstance(expected, dict) else None,
        "given": _text(entry.get("given")),
        "unbatched": _text(entry.get("unbatched")),
        "promise": _text(entry.get("promise")),
        "way": _number(entry.get("way")),
        "bias": _number(entry.get("bias")),
        "since_last": _since_last(entry.get("since_last")),
        "corrections": [
            _correction(each)
            for each in (corrections if isinstance(corrections, list) else [])[:MOST_CORRECTIONS]
            if isinstance(each, dict)
        ],
        "considered": [
            _considered(each)
            for each in (considered if isinstance(considered, list) else [])[:MOST_CONSIDERED]
            if isinstance(each, dict)
        ],
    }


def _considered(each: Mapping[str, Any]) -> dict[str, Any]:
    rehearsed = each.get("rehearsed")
    if not isinstance(rehearsed, dict):
        rehearsed = {}
    return {
        "name": _text(each.get("name")),
        "digest": _text(each.get("digest")),
        "usd_per_million": _interval(rehearsed.get("usd_per_million")),
        "percentile": _interval(rehearsed.get("percentile")),
        "late": _interval(rehearsed.get("late")),
        "keeps": each.get("keeps") is True,
    }


def _since_last(told: object) -> dict[str, Any] | None:
    """What came of the decision before, as its controller measured it."""
    if not isinstance(told, dict) or _number(told.get("requests")) is None:
        return None
    names = ("seconds", "requests", "arrival_rate", "mean_batch_size", "late", "percentile", "usd_per_million")
    expected = told.get("expected")
    if not isinstance(expected, dict):
        expected = {}
    of: dict[str, Any] = {name: _number(expected.get(name)) for name in ("late", "percentile")}
    of["usd_per_million"] = _interval(expected.get("usd_per_million"))
    return {name: _number(told.get(name)) for name in names} | {"expected": of if expected else None}


def _correction(each: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured less what was predicted of a setting: each a mean and its standard error."""
    numbers: dict[str, Any] = {name: _number(each.get(name)) for name in ("memory_mb", "batch_size", "batches")}
    return numbers | {name: _numbers(each.get(name), 2) for name in ("latency", "cost")}


def _text(value: object) -> str:
    return value[:MOST_WORDS] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None


def _interval(value: object) -> list[float | None] | None:
    """An estimate and its bounds."""
    return _numbers(value, 3)


def _numbers(value: object, n: int) -> list[float | None] | None:
    return [_number(each) for each in value] if isinstance(value, list) and len(value) == n else None
