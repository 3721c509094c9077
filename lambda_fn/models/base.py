"""The protocol every model keeps, and how a batch is put to it. No numpy, so that a model without tensors starts without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..contract import Answer, Batch, Item, failed


class BadRequest(ValueError):
    """A body that is not what the model takes; the message names the field, its value and what is allowed."""


class Model(Protocol):
    """Something that answers a batch.

    ``answer`` returns one answer per item, in order, each with a status of its own: it does not raise because of what one item
    holds. It is called by one thread at a time.
    """

    name: str

    def metadata(self) -> dict[str, Any]:
        """The model metadata of the Open Inference Protocol v2."""
        ...

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        """One answer per item, in order."""
        ...


def answer(model: Model, batch: Batch) -> list[Answer]:
    """One answer per request of the batch, in order; a batch for another model gets 404 for each."""
    if batch.model != model.name:
        detail = f"model: {batch.model!r} is not allowed; allowed: {model.name!r}"
        return [failed(item.id, 404, "Unknown model", detail) for item in batch.items]
    return model.answer(batch.items)
