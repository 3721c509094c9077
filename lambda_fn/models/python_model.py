"""The class of a user behind the protocol of models: requests become inputs, outputs become answers, and what fails fails alone.

``predict`` is called with all inputs of a batch that could be read; where it raises, the batch is halved (halving.py), but where
several exhaust the memory, ``answer`` raises that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..contract import INPUT, Answer, Item
from ..halving import outputs_of
from ..interface import ItemError, TensorSpec
from .inputs import Input, UnreadableKind, kind_of_inputs, reader_of, shown
from .memory import exhausts_memory
from .outputs import write_error, write_output

logger = logging.getLogger(__name__)


class PythonModel:
    """An object with ``predict(inputs) -> outputs`` as a model.

    Parameters
    ----------
    served : object
        Has ``predict``; its annotation says what an input is (``inputs.py``). ``takes`` and ``gives``, if it has them, are
        sequences of ``TensorSpec`` that requests and outputs are checked against, and that the metadata name.

    Raises
    ------
    UnreadableKind
        The annotation is of no kind that requests can be read as, or ``takes`` or ``gives`` are no tensors.
    """

    def __init__(self, name: str, served: Any) -> None:
        self.name = name
        self._served = served
        self._predict: Callable[[list[Any]], Any] = served.predict
        self._takes, self._gives = _specs(served, "takes"), _specs(served, "gives")
        kind = kind_of_inputs(self._predict)
        self._read = reader_of(kind, self._takes, self._gives)
        self._input = f"list[{shown(kind)}]"

    def metadata(self) -> dict[str, Any]:
        inputs, outputs = ([spec.metadata() for spec in specs or ()] for specs in (self._takes, self._gives))
        described = {"name": self.name, "versions": ["1"], "platform": "python", "inputs": inputs, "outputs": outputs}
        return described | ({} if self._takes else {"parameters": {INPUT: self._input}})

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        reads: list[Input | Exception] = []
        for item in items:
            try:
                reads.append(self._read(item))
            except Exception as error:  # a class of the user may check what it is made of
                reads.append(error)
        outputs = iter(outputs_of(self._predict, [read.value for read in reads if isinstance(read, Input)], exhausts_memory))
        answers, told = [], False
        for item, read in zip(items, reads, strict=True):
            if isinstance(read, Exception):
                answers.append(write_error(item.id, read))
                continue
            output = next(outputs)
            if isinstance(output, BaseException) and not isinstance(output, ItemError) and not told:
                told = True  # one of a batch is enough for the log
                logger.warning("predict of %s failed on an input", self.name, exc_info=output)
            answers.append(write_output(item, read, output, self.name, self._gives))
        return answers

    @property
    def broken(self) -> str:
        """Why the object cannot serve any more, where it says so in ``broken``, as a pipeline does; empty: it can."""
        reason = getattr(self._served, "broken", "")
        return reason if isinstance(reason, str) else ""

    def close(self) -> None:
        """Give back what the object holds beyond memory, where it says how: ``close``, or a pipeline's ``stop``."""
        for name in ("close", "stop"):
            if callable(end := getattr(self._served, name, None)):
                end()
                return


def _specs(served: Any, field: str) -> Sequence[TensorSpec] | None:
    specs = getattr(served, field, None)
    if specs is None or (isinstance(specs, list | tuple) and all(isinstance(spec, TensorSpec) for spec in specs)):
        return specs
    allowed = 'a list or a tuple of TensorSpec, as in (TensorSpec("x", "FP32", (-1, 4)),)'
    raise UnreadableKind(f"{field}: {specs!r} is not allowed; allowed: {allowed}")
