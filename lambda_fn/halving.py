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
    except (Exception, SystemExit) as error:
        if len(inputs) == 1:
            return [error]
        if lets_out(error):
            raise
        half = (len(inputs) + 1) // 2
        return outputs_of(predict, inputs[:half], lets_out) + outputs_of(predict, inputs[half:], lets_out)
    if not isinstance(outputs, Collection) or isinstance(outputs, str | bytes | bytearray | Mapping | Set):
        wrong = f"predict returned {type(outputs).__name__} for {len(inputs)} inputs; allowed: a list of as many outputs"
    elif len(outputs) != len(inputs):
        wrong = f"predict returned {len(outputs)} outputs for {len(inputs)} inputs; allowed: as many as there are inputs"
    else:
        return list(outputs)
    return [WrongOutputs(wrong)] * len(inputs)
