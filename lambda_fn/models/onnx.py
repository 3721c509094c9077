"""A network in ONNX Runtime, with whatever batch comes.

What may live here: the session and how it is set up. Threads are an argument, never the machine's cores: a function has the CPU its
memory buys, and idle threads that spin would spend it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from ..interface import TensorSpec
from .base import BadRequest
from .providers import choose_providers, gpu_files, unused_gpu
from .tensor_model import TensorModel
from .tensors import BYTES, Array

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": BYTES,
}
_log = logging.getLogger(__name__)


class OnnxModel(TensorModel):
    """An ONNX network.

    Parameters
    ----------
    path : str
        The ``.onnx`` file. A first dimension that is not symbolic is taken as it is: requests of other sizes are refused.
    threads : int
        Of one execution.
    """

    platform = "onnxruntime_onnx"

    def __init__(self, name: str, path: str, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        available = onnxruntime.get_available_providers()
        self._session = onnxruntime.InferenceSession(path, options, providers=choose_providers(available, os.environ))
        if warning := unused_gpu(gpu_files(), self._session.get_providers(), available, os.environ):
            _log.warning("%s", warning)
        takes = tuple(_spec(node, path) for node in self._session.get_inputs())
        super().__init__(name, takes, tuple(_spec(node, path) for node in self._session.get_outputs()))
        self._output_names = [spec.name for spec in self.gives]

    def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        feed = {name: _as_texts(name, array) if array.dtype == object else array for name, array in inputs.items()}
        return dict(zip(self._output_names, self._session.run(self._output_names, feed), strict=True))


def _spec(node: Any, path: str) -> TensorSpec:
    """A tensor as ONNX Runtime describes it."""
    if node.type not in DATATYPES:
        raise ValueError(f"{path}: {node.name} is {node.type}, which is not served; served: {', '.join(DATATYPES)}")
    if not node.shape:
        raise ValueError(f"{path}: {node.name} has no dimensions; served: tensors whose first dimension is the batch")
    return TensorSpec(node.name, DATATYPES[node.type], tuple(size if isinstance(size, int) else -1 for size in node.shape))


def _as_texts(name: str, array: Array) -> Array:
    """Elements of BYTES as ONNX Runtime takes strings: it would write other bytes out as Python shows them."""
    texts = np.empty(array.size, object)
    try:
        texts[:] = [element.decode() for element in array.flat]
    except UnicodeDecodeError as error:
        raise BadRequest(f"inputs[{name}]: bytes that are no text ({error}); allowed: UTF-8") from None
    return texts.reshape(array.shape)
