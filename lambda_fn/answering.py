"""A batch put to a model: what both doors, Lambda's handler and the HTTP worker, do with it."""

from __future__ import annotations

from .contract import Answer, Batch, failed
from .models.base import Model


def answer(model: Model, batch: Batch) -> list[Answer]:
    """One answer per request of the batch, in order; a batch for another model gets 404 for each."""
    if batch.model != model.name:
        detail = f"model: {batch.model!r} is not allowed; allowed: {model.name!r}"
        return [failed(item.id, 404, "Unknown model", detail) for item in batch.items]
    return model.answer(batch.items)
