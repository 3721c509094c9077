"""Batches that exhaust the memory, of a GPU or of the machine: halved until they fit, and the size that does is remembered.

    failed      a batch of so many requests exhausted the memory: batches of at most half as many from now on
    passed      a batch fitted; after ``TRY_AFTER`` that were split, twice as many are tried again, as somebody else may have
                held the memory, or one request was large

A request that exhausts it alone fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contract import Answer, Item, failed
from .base import Model

TRY_AFTER = 100
"""Split batches after which a larger one is tried."""
LARGEST_BATCH = "largest_batch"
"""The parameter of the metadata that has what was learned."""

_OUT_OF_MEMORY = (
    "out of memory",
    "failed to allocate memory",
    "out_of_memory",
    "alloc_failed",
    "bad_alloc",
)


def exhausts_memory(error: BaseException) -> bool:
    """Whether it is the memory that a computation failed for: Python's own error, and what the runtimes of networks say."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError) and not type(error).__module__.startswith("onnxruntime"):
        return False
    text = str(error)[:2000].lower()
    return any(words in text for words in _OUT_OF_MEMORY)


class WithinMemory:
    """A model that gets no larger batches than fit; otherwise the same.

    What it wraps raises where a batch of several exhausts the memory.

    Attributes
    ----------
    largest : int or None
        Requests of the largest batch that is tried; ``None`` while no batch has failed for lack of memory.
    """

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.model = model
        self.largest: int | None = None
        self._split = 0

    @property
    def broken(self) -> str:
        """Why the model cannot serve any more, where it says so; empty: it can."""
        return getattr(self.model, "broken", "")

    def metadata(self) -> dict[str, Any]:
        described = self.model.metadata()
        if self.largest is None:
            return described
        return described | {"parameters": {**described.get("parameters", {}), LARGEST_BATCH: self.largest}}

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        """As the model's; raises what that raises, but for lack of memory."""
        largest = self.largest
        if largest is not None and len(items) > largest:
            self._split += 1
            if self._split > TRY_AFTER:
                self._split = 0
                self.largest = largest = 2 * largest
        return self._answer_parts(items, len(items) if largest is None else largest)

    def _answer_parts(self, items: Sequence[Item], size: int) -> list[Answer]:
        answers: list[Answer] = []
        begin = 0
        while begin < len(items):
            part = items[begin : begin + size]
            try:
                answers += self.model.answer(part)
            except Exception as error:
                if not exhausts_memory(error):
                    raise
                if len(part) > 1:
                    size = self._failed(len(part))
                    continue
                detail = f"the request exhausts the memory: {type(error).__name__}: {error}"
                answers.append(failed(part[0].id, 500, "Model failed", detail))
            begin += len(part)
        return answers

    def _failed(self, size: int) -> int:
        half = size // 2
        self.largest = half if self.largest is None else min(self.largest, half)
        self._split = 0
        return half
