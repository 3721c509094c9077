"""What a worker of a stage does with the items that it is given: calls ``predict``, and finds out whose error an error is.

A stage without a batch size gets one item at a time, one with a batch size a list of them, also of one. An output that is an
exception is its item's error. A batch that raises is halved until the item that fails stands alone; where two items failed alone
and none passed, no item seems to be to blame, and the rest gets the last error. Outputs of another number than the inputs are an
error for all, since halving would hide it.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .errors import ItemTooLarge, StageError, StageTraceback
from .payloads import Encoded, encode

HOPELESS = 2  # items that fail alone while none of their batch passes


class Raised(NamedTuple):
    """An item's error, and the traceback as text where there is one."""

    error: BaseException
    text: str


def call_one(predict: Callable[[Any], Any], value: Any) -> Any:
    """The output for one item, or ``Raised``."""
    try:
        output = predict(value)
    except BaseException as error:
        return _raised(error)
    return Raised(output, "") if isinstance(output, BaseException) else output


def call_batch(predict: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
    """One output or ``Raised`` for each item, in order."""
    outputs: list[Any] = [None] * len(values)
    parts = [range(len(values))]
    passed, failed_alone = False, 0
    while parts:
        part = parts.pop()
        try:
            answers = _checked(predict([values[i] for i in part]), len(part))
        except WrongOutputs as error:
            return [Raised(error, "") for _ in values]
        except BaseException as error:
            raised = _raised(error)
            failed_alone += len(part) == 1
            if len(part) == 1:
                outputs[part[0]] = raised
            else:
                half = (len(part) + 1) // 2
                parts += (part[half:], part[:half])
            if failed_alone >= HOPELESS and not passed:
                for i in (i for part in parts for i in part):
                    outputs[i] = raised
                break
        else:
            passed = True
            for i, answer in zip(part, answers, strict=True):
                outputs[i] = Raised(answer, "") if isinstance(answer, BaseException) else answer
    return outputs


class WrongOutputs(StageError):
    """``predict`` of a batch returned something else than one output for each of its inputs."""


def _checked(outputs: Any, inputs: int) -> Sequence[Any]:
    if isinstance(outputs, (str, bytes, bytearray, dict, set)) or not (
        hasattr(outputs, "__len__") and hasattr(outputs, "__iter__")
    ):
        raise WrongOutputs(
            f"predict: a {type(outputs).__name__} is not allowed; allowed: a list of {inputs} outputs, one for each input"
        )
    if len(outputs) != inputs:
        raise WrongOutputs(f"predict: {len(outputs)} outputs for {inputs} inputs are not allowed; allowed: one for each input")
    return list(outputs)


def _raised(error: BaseException) -> Raised:
    # From the frame of the stage's own code on: what called it tells its author nothing.
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    error.__traceback__ = trace
    if not isinstance(error, Exception):  # SystemExit and its like would end the caller
        error = StageError(f"{type(error).__name__}: {error}")
    return Raised(error, text)


def encode_output(output: Any, files: bool, max_payload: int) -> tuple[bool, Encoded]:
    """Whether it is an error, and the payload, which is no larger than it may be."""
    if isinstance(output, Raised):
        return True, encode_error(output, max_payload)
    try:
        payload = encode(output, files)
    except Exception as error:
        what = f"output: a {type(output).__name__} cannot be pickled, as a stage in another process needs it: {error!r}"
        return True, encode_error(Raised(StageError(what), ""), max_payload)
    if payload.size > max_payload:
        what = f"output: {payload.size} bytes are not allowed; allowed: at most {max_payload} (max_payload)"
        return True, encode_error(Raised(ItemTooLarge(what), ""), max_payload)
    return False, payload


def encode_error(raised: Raised, max_payload: int) -> Encoded:
    """The payload of an error: what can be read anywhere, and the exception itself where it can be pickled."""
    error, text = raised
    said = f"{type(error).__name__}: {error}"[: max_payload // 4]
    try:
        itself = pickle.dumps(error, 5)
        pickle.loads(itself)
    except Exception:  # many an exception cannot be made again from its args
        itself = b""
    if len(itself) > max_payload // 2:
        itself = b""
    return Encoded(pickle.dumps((itself, said, text[-max_payload // 4 :]), 5))


def decode_error(payload: Encoded) -> Exception:
    """The error for its caller."""
    itself, said, text = pickle.loads(payload.head)
    error: Exception
    try:
        error = pickle.loads(itself) if itself else StageError(said)
    except Exception:
        error = StageError(said)
    if text:
        error.__cause__ = StageTraceback(text)
    return error
