"""The batch of a model of tensors: stacked, computed, split; a bad item fails alone.

What may live here: what is the same for every model of tensors. What may not: a runtime of networks, or the encoding of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..contract import Answer, Item, failed
from .memory import exhausts_memory
from .tensors import Array, BadRequest, TensorRequest, TensorSpec, read_request, write_answer


class TensorModel(ABC):
    """A model of the Open Inference Protocol: a subclass says what it takes and gives, and computes.

    Every request brings one or more rows along the first dimension. Requests that agree in their other dimensions are computed
    together. An item that is not what the model takes fails alone with 400. If the computation of several raises, each is computed
    alone, and those that raise again fail with 500; but where several exhaust the memory, ``answer`` raises that.

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

    @abstractmethod
    def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs for the inputs, by name."""

    def metadata(self) -> dict[str, Any]:
        inputs, outputs = [spec.metadata() for spec in self.takes], [spec.metadata() for spec in self.gives]
        return {"name": self.name, "versions": ["1"], "platform": self.platform, "inputs": inputs, "outputs": outputs}

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        alike: dict[tuple[tuple[int, ...], ...], list[tuple[int, TensorRequest]]] = {}
        for index, item in enumerate(items):
            try:
                request = read_request(item, self.takes, self.gives)
            except BadRequest as error:
                answers[index] = failed(item.id, 400, "Bad request", str(error))
                continue
            alike.setdefault(tuple(request.inputs[spec.name].shape[1:] for spec in self.takes), []).append((index, request))
        for members in alike.values():
            results = self._compute_all([request for _, request in members])
            for (index, request), result in zip(members, results, strict=True):
                item_id = items[index].id
                if isinstance(result, Exception):
                    answers[index] = failed(item_id, 500, "Model failed", f"{type(result).__name__}: {result}")
                else:
                    answers[index] = write_answer(item_id, self.name, request, result)
        return [answers[index] for index in range(len(items))]

    def _compute_all(self, requests: Sequence[TensorRequest]) -> list[Mapping[str, Array] | Exception]:
        """The outputs of each request, or why it has none."""
        if len(requests) > 1:
            try:
                return list(self._compute_together(requests))
            except Exception as error:
                if exhausts_memory(error):
                    raise  # fewer may fit: the batch is halved by who knows the size that fits (memory.py)
                # One of them is poisonous, or the network does not take several: each alone says which.
                return [result for request in requests for result in self._compute_all([request])]
        try:
            return [self.compute(requests[0].inputs)]
        except Exception as error:
            return [error]

    def _compute_together(self, requests: Sequence[TensorRequest]) -> list[dict[str, Array]]:
        stacked = {spec.name: np.concatenate([request.inputs[spec.name] for request in requests]) for spec in self.takes}
        outputs = self.compute(stacked)
        ends = np.cumsum([request.rows for request in requests])
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != ends[-1]:
                raise ValueError(f"output {name}: shape {array.shape} cannot be split among {ends[-1]} rows")
        return [
            {name: array[end - request.rows : end] for name, array in outputs.items()}
            for request, end in zip(requests, ends, strict=True)
        ]
