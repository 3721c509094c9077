"""The batch of a model of tensors: stacked, computed, split; a bad item fails alone.

What may live here: what is the same for every model of tensors. What may not: a runtime of networks, or the encoding of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..contract import ONE_BY_ONE, Answer, Item, failed
from ..interface import TensorSpec
from .base import BadRequest
from .memory import exhausts_memory
from .tensors import Array, TensorReader, TensorRequest, count_rows, write_answer

LONGEST_REASON = 500
"""Characters of an error that the metadata repeat."""


class TensorModel(ABC):
    """A model of the Open Inference Protocol: a subclass says what it takes and gives, and computes.

    Every request brings one or more rows along the first dimension. Requests that agree in their other dimensions are computed
    together. An item that is not what the model takes fails alone with 400. If the computation of several raises, each is computed
    alone, and those that raise again fail with 500; but where several exhaust the memory, ``answer`` raises that. A model whose
    batch dimension is fixed takes requests of so many rows, and computes each alone; its metadata say so, and where a batch failed
    of which each request alone did not.

    Attributes
    ----------
    platform : str
        As the metadata names it.
    takes, gives : tuple of TensorSpec
    """

    platform = ""

    def __init__(self, name: str, takes: tuple[TensorSpec, ...], gives: tuple[TensorSpec, ...]) -> None:
        self.name = name
        self.takes = takes
        self.gives = gives
        fixed = [spec for spec in takes if spec.shape[0] != -1]
        self._one_by_one = f"the batch dimension of input {fixed[0].name!r} is fixed: {fixed[0].shape[0]}" if fixed else ""
        self._fixed = bool(fixed)
        self._read = TensorReader(takes, gives)
        self._failed_together = 0  # requests of the smallest batch that failed though each of them alone did not

    @abstractmethod
    def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs for the inputs, by name."""

    def metadata(self) -> dict[str, Any]:
        inputs, outputs = [spec.metadata() for spec in self.takes], [spec.metadata() for spec in self.gives]
        described = {"name": self.name, "versions": ["1"], "platform": self.platform, "inputs": inputs, "outputs": outputs}
        return described | ({"parameters": {ONE_BY_ONE: self._one_by_one}} if self._one_by_one else {})

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        alike: dict[tuple[object, ...], list[tuple[int, TensorRequest, int]]] = {}
        names = [spec.name for spec in self.takes]
        for index, item in enumerate(items):
            try:
                request = self._read(item)
                rows = count_rows(request.inputs)
            except BadRequest as error:
                answers[index] = failed(item.id, 400, "Bad request", str(error))
                continue
            if len(names) == 1:
                shapes: tuple[object, ...] = request.inputs[names[0]].shape[1:]
            else:
                shapes = tuple([request.inputs[name].shape[1:] for name in names])
            members = alike.get(shapes)
            if members is None:
                members = alike[shapes] = []
            members.append((index, request, rows))
        for members in alike.values():
            results = self._compute_all([request.inputs for _, request, _ in members], [rows for *_, rows in members])
            for (index, request, _), result in zip(members, results, strict=True):
                item_id = items[index].id
                try:
                    if isinstance(result, Exception):
                        raise result
                    answers[index] = write_answer(item_id, self.name, request, result)
                except BadRequest as error:
                    answers[index] = failed(item_id, 400, "Bad request", str(error))
                except Exception as error:
                    answers[index] = failed(item_id, 500, "Model failed", f"{type(error).__name__}: {error}")
        return [answers[index] for index in range(len(items))]

    def _compute_all(self, inputs: Sequence[Mapping[str, Array]], rows: Sequence[int]) -> list[Mapping[str, Array] | Exception]:
        """The outputs of each request, or why it has none."""
        if len(inputs) == 1 or self._fixed:
            return [self._compute_alone(one) for one in inputs]
        try:
            return list(self._compute_together(inputs, rows))
        except Exception as error:
            if exhausts_memory(error):
                raise  # fewer may fit: the batch is halved by who knows the size that fits (memory.py)
            # One of them is poisonous, or the network does not take several: each alone says which.
            results = [self._compute_alone(one) for one in inputs]
            if not any(isinstance(result, Exception) for result in results):
                self._note(len(inputs), error)
            return results

    def _note(self, requests: int, error: Exception) -> None:
        """Keep for the metadata that a batch failed of which each request alone did not, the smallest such batch."""
        if not self._failed_together or requests < self._failed_together:
            self._failed_together = requests
            what = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
            self._one_by_one = f"a batch of {requests} requests failed, and each of them alone did not: {what}"

    def _compute_alone(self, inputs: Mapping[str, Array]) -> Mapping[str, Array] | Exception:
        try:
            return self.compute(inputs)
        except Exception as error:
            return error

    def _compute_together(self, inputs: Sequence[Mapping[str, Array]], rows: Sequence[int]) -> list[dict[str, Array]]:
        stacked = {spec.name: np.concatenate([one[spec.name] for one in inputs]) for spec in self.takes}
        outputs = self.compute(stacked)
        ends = list(accumulate(rows))
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != ends[-1]:
                raise ValueError(f"output {name}: shape {array.shape} cannot be split among {ends[-1]} rows")
        return [
            {name: array[end - length : end] for name, array in outputs.items()} for length, end in zip(rows, ends, strict=True)
        ]
