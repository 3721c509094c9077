"""The same works as models of our worker: ``SLUICE_MODEL=model.py:Total``."""

from __future__ import annotations

from typing import Any

import numpy as np


class Echo:
    """The body as it came."""

    def predict(self, inputs: list[bytes]) -> list[Any]:
        from sluice.lambda_fn.interface import Reply

        return [Reply(body, "application/json") for body in inputs]


class Total:
    """The sum of a list of numbers in JSON."""

    def predict(self, inputs: list[list[float]]) -> list[dict[str, float]]:
        return [{"sum": sum(numbers)} for numbers in inputs]


class Tensors:
    """The sum of a binary tensor of the Open Inference Protocol."""

    def predict(self, inputs: list[dict[str, np.ndarray]]) -> list[dict[str, float]]:
        return [{"sum": float(tensors["x"].sum())} for tensors in inputs]
