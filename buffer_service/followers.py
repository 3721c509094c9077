"""Who follows the plan in force of a model, by what the processes of the buffer told of themselves (``presence.py``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sluice.buffer_service.presence import Heard, OtherPlan

MOST_NAMED = 16
"""Buffers that do not follow a plan and are named in JSON, of each model."""
MOST_REASONS = 4
"""That are told in words."""


class Astray(NamedTuple):
    """A process that serves a model by another plan than the one in force, or (``""``) not at all, and why, where that is known."""

    process: str
    host: str
    follows: str
    reason: str


class Followers(NamedTuple):
    """Of so many buffers, how many follow the plan ``digest`` of a model.

    Those ``before`` told of themselves before they read it, and followed what was in force then. Of ``unknown`` it is not known:
    they did not follow that, or have more such models than they name. ``astray`` need not name all others, which do not follow.
    """

    digest: str
    buffers: int
    follow: int
    before: int
    unknown: int
    astray: Sequence[Astray]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        named = [each._asdict() for each in self.astray[:MOST_NAMED]]
        return self._asdict() | {"astray": named, "astray_left_out": self._beyond(len(named))}

    def words(self) -> str:
        """As a person is told; who does the same for the same reason is told of together."""
        if not self.buffers:
            return "no buffer tells of itself"
        if self.follow == self.buffers:
            return f"{self.buffers} buffer{'s follow' if self.buffers > 1 else ' follows'}"
        alike: defaultdict[tuple[str, str], list[Astray]] = defaultdict(list)
        for each in self.astray:
            alike[each.follows, each.reason].append(each)
        told = [f"{self.follow} of {self.buffers} buffers follow{'s' if self.follow == 1 else ''}"]
        groups = list(alike.values())
        told += map(_words, groups[:MOST_REASONS])
        if left_out := self._beyond(sum(map(len, groups[:MOST_REASONS]))):
            told.append(f"{left_out} more do{'es' if left_out == 1 else ''} not")
        if self.before:
            told.append(
                f"{self.before} followed what was in force before, and ha{'s' if self.before == 1 else 've'} not told of this one"
            )
        if self.unknown:
            told.append(f"of {self.unknown} it is not known")
        return "; ".join(told)

    def _beyond(self, named: int) -> int:
        """How many more do not follow than so many."""
        return self.buffers - self.follow - self.before - self.unknown - named


def followers(model: str, digest: str, put_at: float, buffers: Sequence[Heard]) -> Followers:
    """Who follows the plan ``digest`` of a model, which was written at ``put_at`` or before (s since 1970)."""
    follow, before, unknown, astray = 0, 0, 0, []
    for process, _, presence in buffers:
        other = presence.others.get(model)
        if other is not None and other.follows == digest:  # it refuses one that is not in force here
            follow += 1
        elif other is None and not presence.left_out:
            follow, before = (follow + 1, before) if presence.read_at >= put_at else (follow, before + 1)
        elif other is None or presence.read_at < put_at:
            unknown += 1
        else:
            astray.append(Astray(process, presence.host, other.follows, _reason(presence.plans, other, digest)))
    return Followers(digest, len(buffers), follow, before, unknown, astray)


def told_followers(document: Mapping[str, Any]) -> Followers:
    """What ``Followers.document`` told, of those that it names."""
    astray = [Astray(*(each[name] for name in Astray._fields)) for each in document["astray"]]
    counts = document["buffers"], document["follow"], document["before"], document["unknown"]
    return Followers(document["digest"], *counts, astray)


def _reason(plans: str, other: OtherPlan, digest: str) -> str:
    if plans == "redis:":  # of one before this, it says nothing of this
        return other.reason if other.refused in ("", digest) else ""
    place = f"its plans come from {plans}"
    return f"{place}, where it refuses one: {other.reason}" if other.reason else place


def _words(alike: Sequence[Astray]) -> str:
    first, s, es = alike[0], *(("s", "es") if len(alike) == 1 else ("", ""))
    others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    does = f"follow{s} plan {first.follows}" if first.follows else f"do{es} not serve it"
    return f"{first.process} on {first.host}{others} {does}{f': {first.reason}' if first.reason else ''}"
