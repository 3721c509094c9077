"""Requests of the Open Inference Protocol, and a small network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from sluice.lambda_fn.contract import Answer, Item
from sluice.local.networks import make_mlp

FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A perceptron from 4 to 3 numbers."""
    path = tmp_path_factory.mktemp("networks") / "small.onnx"
    path.write_bytes(make_mlp(seed=1, widths=(4, 8, 3)).SerializeToString())
    return path


@pytest.fixture(scope="session")
def infer() -> Callable[..., Item]:
    """Builds an inference request for input ``x``."""

    def build(item_id: str, array: npt.NDArray[np.generic], datatype: str = "FP32", **more: object) -> Item:
        tensor = {"name": "x", "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}
        return Item(item_id, "application/json", msgspec.json.encode({"inputs": [tensor], **more}))

    return build


@pytest.fixture(scope="session")
def output() -> Callable[[Answer], FloatArray]:
    """Reads the only output of an answer in JSON."""

    def read(answer: Answer) -> FloatArray:
        assert answer.status == 200, answer.body
        (tensor,) = msgspec.json.decode(answer.body)["outputs"]
        return np.array(tensor["data"], np.float32).reshape(tensor["shape"])

    return read
