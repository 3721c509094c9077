"""What is behind a buffer in a test: the model of who tests, as a function in this process.

What may live here: how a class, an object or a function of a batch becomes what a plan's ``function`` names. Requests become inputs
and outputs answers as in a worker and on Lambda (docs/models.md): a request that cannot be read fails alone there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from sluice.batching.errors import InvalidInput, require
from sluice.lambda_fn.contract import decode_batch, encode_answers, encode_metadata
from sluice.lambda_fn.loading import dashed
from sluice.lambda_fn.models.memory import WithinMemory
from sluice.lambda_fn.models.python_model import PythonModel

Takes = Callable[[int], float]
"""Seconds that a batch of so many requests takes beside what its model computes."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A batch as its function got it: when (s, by the buffer's clock), which function, how many requests."""

    at: float
    function: str
    size: int


class _Predicts:
    """A function of a batch as an object with ``predict``."""

    def __init__(self, predict: Callable[[list[Any]], Any]) -> None:
        self.predict = predict


def served_by(model: Any) -> Any:
    """An object with ``predict``: of a class, one that is made without arguments; of a function of a batch, around it."""
    made = model() if isinstance(model, type) else model
    if callable(getattr(made, "predict", None)):
        return made
    if isinstance(model, type) or not callable(model):
        raise InvalidInput("model", made, "a class or an object with predict(inputs), or a function of a batch: inputs to outputs")
    return _Predicts(model)


def name_of(model: Any) -> str:
    """What a model is called where no plan says it: its ``name``, or else its own in lower case with dashes."""
    named = getattr(model, "name", None)
    if isinstance(named, str):
        return named
    return dashed(getattr(model, "__name__", type(model).__name__)) or "model"


class Functions(Mapping[str, Callable[[bytes], Awaitable[bytes]]]):
    """Functions by the names that plans have for them: each of the ``models`` by its own, or one that answers to every name.

    ``invocations`` has what they were asked for, in order.
    """

    def __init__(self, models: Any, takes: Takes | None, clock: Callable[[], float]) -> None:
        allowed = "a function of how many requests a batch has, to its seconds"
        require(takes is None or callable(takes), "takes", takes, allowed)
        by_name = isinstance(models, Mapping)
        self._one = None if by_name else _model(models)
        self._models = {name: _model(model) for name, model in models.items()} if by_name else {}
        self._takes = takes
        self._clock = clock
        self.invocations: list[Invocation] = []

    def __getitem__(self, name: str) -> Callable[[bytes], Awaitable[bytes]]:
        model = self._one if self._one is not None else self._models[name]

        async def invoke(payload: bytes) -> bytes:
            batch = decode_batch(payload)
            if batch.ping:
                return encode_answers([])
            if batch.describe:
                return encode_metadata(model.metadata() | {"name": batch.model})
            self.invocations.append(Invocation(self._clock(), name, len(batch.items)))
            answers = await asyncio.get_running_loop().run_in_executor(None, model.answer, batch.items)
            if self._takes is not None:
                seconds = self._takes(len(batch.items))
                known = isinstance(seconds, int | float) and 0 <= seconds < inf
                require(known, "takes", seconds, "a function to seconds >= 0")
                await asyncio.sleep(seconds)
            return encode_answers(answers)

        return invoke

    def __contains__(self, name: object) -> bool:
        return self._one is not None or name in self._models

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def _model(model: Any) -> WithinMemory:
    return WithinMemory(PythonModel(name_of(model), served_by(model)))
