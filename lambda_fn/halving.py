"""``predict`` of a batch, and whose error an error is.

An output that is an exception is its input's error. A batch that raises is halved, and so on, until the input that fails stands
alone: k inputs that fail among n cost about 2 k log2(n / k) calls more, 2 n - 2 at the most. So an input may be computed more than
once, as everywhere behind the buffer. Outputs of another number than the inputs are an error for all, since halving would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any


class WrongOutputs(Exception):
    """What ``predict`` returned is not one output for each input."""


def outputs_of(
    predict: Callable[[list[Any]], Any], inputs: Sequence[Any], lets_out: Callable[[BaseException], bool] = lambda _: False
) -> list[Any]:
    """An output or an exception for each input; an error of several inputs that ``lets_out`` is raised instead of halving them."""
    if not inputs:
        return []
    try:
        outputs = predict(list(inputs))
        listed = list(outputs) if _is_list(outputs) else None
    except KeyboardInterrupt:  # of who runs all this
        raise
    except BaseException as error:  # SystemExit, and CancelledError of an event loop within
        if len(inputs) == 1:
            return [error]
        if lets_out(error):
            raise
        half = (len(inputs) + 1) // 2
        return outputs_of(predict, inputs[:half], lets_out) + outputs_of(predict, inputs[half:], lets_out)
    if listed is None:
        wrong = f"predict returned {type(outputs).__name__} for {len(inputs)} inputs; allowed: a list of as many outputs"
    elif len(listed) != len(inputs):
        wrong = f"predict returned {len(listed)} outputs for {len(inputs)} inputs; allowed: as many as there are inputs"
    else:
        return listed
    return [WrongOutputs(wrong)] * len(inputs)


def said(error: BaseException) -> str:
    """The type of an error and what it says."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """What an error says, whatever its ``__str__`` does."""
    try:
        return str(error)
    except Exception as why:
        return f"(its text cannot be had: {type(why).__name__})"


def _is_list(outputs: Any) -> bool:
    """Whether each element is an output: not of an array without dimensions, nor of a table, which is a list of its columns."""
    if not isinstance(outputs, Collection) or isinstance(outputs, str | bytes | bytearray | Mapping | Set):
        return False
    return getattr(outputs, "ndim", 1) != 0 and not hasattr(outputs, "columns")
