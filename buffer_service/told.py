"""What a request tells of itself, as far as the plan in force reads it. What may live here: the record, and reading the class.

    sluice-class       a header: the name of a class of the plan; of the Open Inference Protocol also the parameter ``sluice_class``
    sluice-deadline    a header: seconds within which the answer is wanted, from the arrival; the parameter ``sluice_deadline``
    priority           a parameter, as Triton's clients have it: 1 for the most urgent class of the plan, 2 for the next; 0 is none
    timeout            another: microseconds in the place of ``sluice_deadline``; 0 says none

What stands first counts where several are there. A request that tells no class is of the plan's first. The deadline of a request
takes the place of its class's: its slack is what it has beyond the promise that the tables of its queue are made for. Parameters
are those of a body of the protocol, and are read where a plan has classes, or a promise whose place a deadline may take, as to find
them takes a look at the whole body.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from sluice.batching.documents import Plan
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import MAX_SLACK
from sluice.lambda_fn.contract import UNREADABLE, json_part

CLASS_HEADER, DEADLINE_HEADER = b"sluice-class", b"sluice-deadline"
CLASS_PARAMETER, DEADLINE_PARAMETER = "sluice_class", "sluice_deadline"
PRIORITY, TIMEOUT = "priority", "timeout"
MICROSECONDS = 1_000_000
SHOWN = 80  # bytes of what is wrong, in the answer that says so
LONGEST = 4096  # bytes of a parameter that is read: what is longer is nothing that a plan has, and may take long
NOT_TOLD = msgspec.Raw(b"null")


class Told(NamedTuple):
    """Of a request: its ``size``, its ``slack`` (s), its class (``""``: none), and within how many seconds the answer is wanted.

    ``latency`` is ``inf`` where nothing is promised, and ``None`` where it is what the plan promises to all.
    """

    size: float | None = None
    slack: float = 0.0
    name: str = ""
    latency: float | None = None


NOTHING_TOLD = Told()


class _Parameters(msgspec.Struct):
    """Of a request of the Open Inference Protocol, those of its parameters that are read here, as they are written."""

    sluice_class: msgspec.Raw = NOT_TOLD
    sluice_deadline: msgspec.Raw = NOT_TOLD
    priority: msgspec.Raw = NOT_TOLD
    timeout: msgspec.Raw = NOT_TOLD


class _Request(msgspec.Struct):
    parameters: _Parameters | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_number = msgspec.json.Decoder(float).decode
_decode_scalar = msgspec.json.Decoder(str | int | float | bool | None).decode


class Classes:
    """The classes of a plan, and how a request says of which it is; nobody waits for longer than ``patience`` (s)."""

    def __init__(self, plan: Plan, patience: float = MAX_SLACK) -> None:
        self._longest = min(patience, MAX_SLACK)
        self._promised = {each.name: plan.promised(each.route) for each in plan.classes} or {"": plan.promised("")}
        promised = [each.slo.latency if each.slo is not None else math.inf for each in plan.classes]
        told = (
            Told(slack=each.slack or 0.0, name=each.name, latency=latency)
            for each, latency in zip(plan.classes, promised, strict=True)
        )
        self._told = {each.name: each for each in told}
        self._by_urgency = [each.name for each in sorted(self._told.values(), key=lambda each: (each.latency, each.slack))]
        self._default = next(iter(self._told.values()), NOTHING_TOLD)
        self._reads_parameters = any(promise is not None for promise in self._promised.values()) or bool(self._told)

    def of(self, said: Mapping[bytes, bytes], carried: Mapping[str, str], body: bytes | None) -> Told:
        """Of a request that ``said`` this in headers; ``carried`` are those that its item carries.

        ``body`` is one of the Open Inference Protocol, and ``None`` where it is anything else. Raises ``InvalidInput`` where the
        class is none of the plan's, or the deadline no time, or one that the plan cannot keep to.
        """
        name: Any = said[CLASS_HEADER].decode("latin-1") if CLASS_HEADER in said else None
        deadline: Any = said.get(DEADLINE_HEADER)
        fields = CLASS_HEADER.decode(), DEADLINE_HEADER.decode()
        unsaid = deadline is None or (name is None and bool(self._told))
        if unsaid and self._reads_parameters and (parameters := _parameters(carried, body)) is not None:
            if name is None and (name := _scalar(parameters.sluice_class)) is not None:
                fields = CLASS_PARAMETER, fields[1]
            if deadline is None and (deadline := _scalar(parameters.sluice_deadline)) is not None:
                fields = fields[0], DEADLINE_PARAMETER
            if name is None and self._told:
                name = self._of_priority(_scalar(parameters.priority))
            if deadline is None and (deadline := self._of_timeout(_scalar(parameters.timeout))) is not None:
                fields = fields[0], TIMEOUT
        told = self._default
        if name is not None and self._told:
            if not isinstance(name, str) or name not in self._told:
                raise InvalidInput(fields[0], _shown(name), "a class of the plan: " + ", ".join(self._told))
            told = self._told[name]
        return told if deadline is None else self._within(told, fields[1], deadline)

    def _of_priority(self, priority: Any) -> str | None:
        """The name of the class that has this place by urgency."""
        if priority is None or (priority == 0 and type(priority) is int):
            return None
        if type(priority) is not int or not 1 <= priority <= len(self._by_urgency):
            raise InvalidInput(
                PRIORITY,
                _shown(priority),
                f"an integer: 0 for none, or 1 to {len(self._by_urgency)}: {', '.join(self._by_urgency)}",
            )
        return self._by_urgency[priority - 1]

    def _of_timeout(self, timeout: Any) -> float | None:
        """Seconds."""
        if timeout is None or (timeout == 0 and type(timeout) is int):
            return None
        if type(timeout) is not int or not 0 < timeout <= self._longest * MICROSECONDS:
            allowed = f"microseconds: 0 for none, or an integer above it, at most {self._longest * MICROSECONDS:.0f}"
            raise InvalidInput(TIMEOUT, _shown(timeout), allowed)
        return timeout / MICROSECONDS

    def _within(self, told: Told, field: str, deadline: Any) -> Told:
        """The same with a deadline of its own."""
        if (promised := self._promised[told.name]) is None:
            raise InvalidInput(field, _shown(deadline), "none: the plan in force has no slo that it could be earlier or later than")
        try:
            seconds = _decode_number(deadline) if isinstance(deadline, bytes) else deadline
        except UNREADABLE:
            seconds = None
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= self._longest:
            raise InvalidInput(field, _shown(deadline), f"a number of seconds above 0, at most {self._longest:g}")
        return told._replace(slack=seconds - promised, latency=float(seconds))


def _parameters(carried: Mapping[str, str], body: bytes | None) -> _Parameters | None:
    """Those of the Open Inference Protocol; ``None`` where the body is nothing such."""
    if body is None:
        return None
    try:
        return _decode_request(json_part(carried, body)).parameters
    except UNREADABLE:
        return None


def _scalar(parameter: msgspec.Raw) -> Any:
    """A parameter; where it is a list or an object, or too long for a name or a number, bytes: the beginning of what is written."""
    written = memoryview(parameter)
    try:
        return _decode_scalar(written) if len(written) <= LONGEST else bytes(written[:SHOWN])
    except UNREADABLE:
        return bytes(written[:SHOWN])


def _shown(value: Any) -> Any:
    """What was told, cut where it is long."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value[:SHOWN] if isinstance(value, str) else str(value)[:SHOWN]
