"""One batch put to a model: what is asked, what comes of it, and both as the computer (computer.py) is sent and sends them.

What may live here: who is to blame for a failure, what is measured. What may not: a thread, a socket, a queue. A batch in frames is
sent as it came, so that its first bytes tell what it is; whatever else as plain tuples, pickled by who trusts the other end. Bodies
of ``OUT_OF_BAND`` bytes and more, of frames together, are beside it in a file in memory.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import batch_frames, contract
from ..batch_frames import Sealed
from ..contract import JSON, Answer, Item
from ..models.memory import WithinMemory
from ..pipeline.payloads import OUT_OF_BAND, Encoded, MemoryFile, decode, encode, read, write
from .energy import Energy


class Asked(NamedTuple):
    """What one caller asks for: the items of a batch, or ``single``, one that may be computed with those of others.

    Answers to a batch that is ``Sealed`` are in frames (batch_frames.py).
    """

    single: bool
    items: list[Item] | Sealed


class Opened(NamedTuple):
    """The same where it is computed; ``framed``: the answers to a batch are to be in frames."""

    single: bool
    items: list[Item]
    framed: bool = False


Answered = tuple[int, str, bytes, dict[str, str], float]
"""What one caller is answered: status, content type, body, headers; and the seconds that the batch took to compute."""


class Outcome(NamedTuple):
    """What an execution came to: for each caller an answer, or why there is none; the time it took (s) where it counts.

    ``largest`` batch that the memory takes, where that is known; ``failure`` is the kind of error, where the batch failed;
    ``statuses`` of all requests that have an answer, and how many have it.
    """

    results: list[Answered | str]
    statuses: dict[int, int]
    size: int
    seconds: float
    overhead: float
    joules: float | None
    failure: str
    largest: int | None


def encode_asked(callers: Sequence[Asked], spare: MemoryFile | None = None) -> Encoded:
    """What an execution is asked: a batch in frames, alone, or of others a tuple for a single request, a list of them for a batch.

    A ``spare`` file may be written over.
    """
    if type(items := callers[0].items) is Sealed:
        if items.size >= OUT_OF_BAND and (file := write(items.bodies, items.size, spare)) is not None:
            return Encoded(items.head, file)
        return Encoded(b"".join((items.head, *items.bodies)))
    asked: list[Any] = []
    for single, items in callers:
        assert type(items) is list
        tuples = [(item.id, item.content_type, _apart(item.body), item.headers) for item in items]
        asked.append(tuples[0] if single else tuples)
    return encode(asked, True)


def decode_asked(payload: Encoded) -> list[Opened]:
    """The inverse of ``encode_asked``."""
    if batch_frames.is_framed(payload.head):
        if payload.file is None:
            return [Opened(False, batch_frames.decode_batch(payload.head).items, True)]
        return [Opened(False, batch_frames.open_sealed(payload.head, partial(read, payload.file)), True)]
    return [
        Opened(True, [Item(*asked)]) if type(asked) is tuple else Opened(False, [Item(*item) for item in asked])
        for asked in decode(payload)
    ]


def encode_outcome(outcome: Outcome) -> Encoded:
    """What an execution answers."""
    results: list[Any] = [
        result if isinstance(result, str) or len(result[2]) < OUT_OF_BAND else (*result[:2], _apart(result[2]), *result[3:])
        for result in outcome.results
    ]
    return encode((results, *outcome[1:]), True)


def decode_outcome(payload: Encoded) -> Outcome:
    """The inverse of ``encode_outcome``."""
    return Outcome._make(decode(payload))


def compute(model: WithinMemory, callers: Sequence[Opened], energy: Energy | None) -> Outcome:
    """Compute a batch; ``energy`` where it is to be measured. It never raises."""
    items = callers[0].items if len(callers) == 1 else [item for caller in callers for item in caller.items]
    largest, joules, failure = model.largest, None, ""
    before = energy() if energy is not None else 0.0
    begun = time.perf_counter()
    try:
        answers = _checked(model.answer(items), items)
    except BaseException as error:
        if len(callers) > 1:
            return _compute_apart(model, callers)
        failure = type(error).__name__
        return Outcome([f"{failure}: {error}"], {}, len(items), 0.0, 0.0, None, failure, model.largest)
    seconds = time.perf_counter() - begun
    if energy is not None:
        joules = energy() - before
    encoding = time.perf_counter()
    results: list[Answered | str] = []
    statuses: dict[int, int] = {}
    first = 0
    for single, own, framed in callers:
        if single:
            answer = answers[first]
            if answer.status == 200 and answer.content_type == JSON and not answer.headers and type(answer.body) is bytes:
                results.append((200, JSON, answer.body, {}, seconds))  # as most are
                statuses[200] = statuses.get(200, 0) + 1
                first += 1
                continue
        try:
            results.append(_told(single, framed, answers[first : first + len(own)], seconds, statuses))
        except Exception as error:  # an answer that is no answer: of a type that cannot be written, or with a header of two lines
            failure = type(error).__name__
            results.append(f"an answer cannot be sent: {error}")
        first += len(own)
    if model.largest is not largest and not failure:  # time and energy of what failed are in it
        return Outcome(results, statuses, len(items), 0.0, 0.0, None, "OutOfMemory", model.largest)
    return Outcome(results, statuses, len(items), seconds, time.perf_counter() - encoding, joules, failure, model.largest)


def _compute_apart(model: WithinMemory, callers: Sequence[Opened]) -> Outcome:
    """The single requests of a batch that failed, each alone: the one that fails again is to blame."""
    outcomes = [compute(model, (caller,), None) for caller in callers]
    failure = next((outcome.failure for outcome in outcomes if outcome.failure), "TogetherOnly")
    results = [result for outcome in outcomes for result in outcome.results]
    statuses: Counter[int] = Counter()
    for outcome in outcomes:
        statuses.update(outcome.statuses)
    return Outcome(results, dict(statuses), len(results), 0.0, 0.0, None, failure, model.largest)


def _checked(answers: object, items: Sequence[Item]) -> list[Answer]:
    """The answers if they are such; raises ``TypeError`` or ``ValueError`` that says what they are."""
    if not isinstance(answers, list) or not all([isinstance(answer, Answer) for answer in answers]):
        raise TypeError(f"the model answered with {type(answers).__name__}; allowed: a list of answers")
    if len(answers) != len(items):
        raise ValueError(f"the model gave {len(answers)} answers to {len(items)} requests")
    return answers


def _told(single: bool, framed: bool, answers: list[Answer], seconds: float, statuses: dict[int, int]) -> Answered:
    counted = {200: len(answers)}
    if [answer.status for answer in answers].count(200) < len(answers):  # else all are as most are
        counted = _statuses(answers)
    # Plain values, whatever a model made them of: who reads them has none of its classes.
    told: Answered
    if framed:
        frames = b"".join(batch_frames.encode_answers(answers, contract.Measured(service=seconds)))
        told = (200, batch_frames.MEDIA_TYPE, frames, {}, seconds)
    elif not single:
        told = (200, JSON, contract.encode_answers(answers, contract.Measured(service=seconds)), {}, seconds)
    else:
        (answer,) = answers
        contract.check_sendable(answer)
        if not isinstance(answer.body, bytes):
            raise TypeError(f"the body is {type(answer.body).__name__}; allowed: bytes")
        headers = {str(name): str(value) for name, value in answer.headers.items()}
        told = (int(answer.status), str(answer.content_type), bytes(answer.body), headers, seconds)
    for status, count in counted.items():
        statuses[status] = statuses.get(status, 0) + count
    return told


def _statuses(answers: list[Answer]) -> dict[int, int]:
    """How often there is each; raises ``ValueError`` where one is none."""
    for answer in answers:
        if not 200 <= answer.status <= 599:
            raise ValueError(f"status: {answer.status!r} is not allowed; allowed: 200 to 599")
    return Counter([int(answer.status) for answer in answers])


def _apart(body: bytes) -> Any:
    """Kept out of the pickle where it is large."""
    return body if len(body) < OUT_OF_BAND else pickle.PickleBuffer(body)
