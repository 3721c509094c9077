"""What a worker of a stage does with the items that it is given: calls ``predict``, and finds out whose error an error is.

A stage without a batch size gets one item at a time, one with a batch size a list of them, also of one. An output that is an
exception is its item's error, and a batch that raises is halved (``halving.py``).
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ..halving import outputs_of, said
from .errors import ItemTooLarge, StageError, StageTraceback
from .payloads import Encoded, encode


class Raised(NamedTuple):
    """An item's error, and the traceback as text where there is one."""

    error: BaseException
    text: str


def why_not(error: BaseException) -> str:
    """Why a worker cannot start: the error and the line of its author's code in the first line, the traceback in the others."""
    from ..importing import told  # it imports what only such an error needs

    return told(error).replace("\n", " ") + "\n" + "".join(traceback.format_exception(error))


def call_one(predict: Callable[[Any], Any], value: Any) -> Any:
    """The output for one item, or ``Raised``; an item that could not be read is that already, and stays."""
    if isinstance(value, Raised):
        return value
    try:
        output = predict(value)
    except BaseException as error:
        return _raised(error)
    return _raised(output) if isinstance(output, BaseException) else output


def call_batch(predict: Callable[[list[Any]], Any], values: list[Any]) -> list[Any]:
    """One output or ``Raised`` for each item, in order; items that could not be read are that already, and stay."""
    read = [value for value in values if not isinstance(value, Raised)]

    def uninterrupted(some: list[Any]) -> Any:
        try:
            return predict(some)
        except KeyboardInterrupt as error:  # raised by the stage: no signal comes here
            raise StageError(said(error)) from error

    outputs = iter(outputs_of(uninterrupted, read) if read else ())
    called = (value if isinstance(value, Raised) else next(outputs) for value in values)
    return [_raised(output) if isinstance(output, BaseException) else output for output in called]


def _raised(error: BaseException) -> Raised:
    text = ""
    trace = error.__traceback__
    if trace is not None:  # else it was made and returned
        while trace is not None and trace.tb_frame.f_code.co_filename in _CALLERS:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        error = error.with_traceback(trace)  # which also an exception takes that lets nothing else be set
    # SystemExit and its like would end the caller, and a future of an event loop takes no StopIteration.
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = StageError(said(error))
    return Raised(error, text)


_CALLERS = {function.__code__.co_filename for function in (call_one, outputs_of)}
"""Files that call a stage: their lines of a traceback tell its author nothing."""


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
    try:
        itself = pickle.dumps(error, 5)
        if not isinstance(pickle.loads(itself), Exception):
            itself = b""
    except Exception:  # many an exception cannot be made again from its args
        itself = b""
    if len(itself) > max_payload // 2:
        itself = b""
    return Encoded(pickle.dumps((itself, said(error)[: max_payload // 4], text[-max_payload // 4 :]), 5))


def decode_error(payload: Encoded) -> Exception:
    """The error for its caller."""
    itself, words, text = pickle.loads(payload.head)
    error: Exception
    try:
        error = pickle.loads(itself) if itself else StageError(words)
    except Exception:
        error = StageError(words)
    if text:
        with contextlib.suppress(Exception):  # one that lets nothing be set, as a frozen dataclass
            error.__cause__ = StageTraceback(text)
    return error
