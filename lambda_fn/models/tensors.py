"""Requests and answers of the Open Inference Protocol v2 as tensors, in JSON and in its binary extension.

    JSON      {"id": …, "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.1, 0.2, 0.3, 0.4]}],
               "outputs": [{"name": "y", "parameters": {"binary_data": true}}], "parameters": {"binary_data_output": true}}
    binary    the same JSON with ``"parameters": {"binary_data_size": n}`` in place of ``data``, then the tensors' bytes in the
              order of the inputs, little-endian, row-major; the header ``inference-header-content-length`` has the JSON's length

``data`` may be flat or nested. ``POST /models/{model}`` takes the same bodies: a function sees no difference. What may live here:
the protocol and the check of a request against what a model takes. What may not: a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..contract import INFERENCE_HEADER, JSON, Answer, Item

Array = npt.NDArray[Any]

BINARY = "application/octet-stream"
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


class BadRequest(ValueError):
    """A body that is not what the model takes; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives. In ``shape``, -1 is any length; the first dimension is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


class _Parameters(msgspec.Struct, frozen=True):
    binary_data_size: int | None = None
    binary_data: bool | None = None
    binary_data_output: bool = False


_NO_PARAMETERS = _Parameters()


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters = _NO_PARAMETERS
    data: list[Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters = _NO_PARAMETERS


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    outputs: list[_Output] = []
    parameters: _Parameters = _NO_PARAMETERS


_decode = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """One request, checked: ``rows`` is its own batch dimension, the same in every input."""

    inputs: dict[str, Array]
    rows: int
    id: str | None
    outputs: tuple[tuple[str, bool], ...]
    """What is asked for, in order: the name, and whether in binary."""


def read_request(item: Item, takes: Sequence[TensorSpec], gives: Sequence[TensorSpec]) -> TensorRequest:
    """The tensors of a request to a model that takes and gives these; raises ``BadRequest``."""
    document, tail = _split(item)
    try:
        request = _decode(document)
    except msgspec.DecodeError as error:
        raise BadRequest(f"body: not an inference request: {error}") from None
    inputs = _read_inputs(request, tail, {spec.name: spec for spec in takes})
    rows = {name: len(array) for name, array in inputs.items()}
    if len(set(rows.values())) > 1:
        raise BadRequest(f"inputs: first dimensions {rows} differ; allowed: one batch dimension for all inputs")
    return TensorRequest(inputs, next(iter(rows.values())), request.id, _read_outputs(request, [spec.name for spec in gives]))


def write_answer(item_id: str, model: str, request: TensorRequest, outputs: Mapping[str, Array]) -> Answer:
    """The answer to a request, in JSON unless it asked for binary tensors."""
    written: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, binary in request.outputs:
        array = outputs[name]
        entry: dict[str, Any] = {"name": name, "datatype": DATATYPES[array.dtype.newbyteorder("<")], "shape": list(array.shape)}
        if binary:
            tail.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            # JSON has no word for NaN and the infinities: msgspec writes null.
            entry["data"] = array.ravel().tolist()
        written.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": written}
    if request.id is not None:
        document["id"] = request.id
    head = _encode(document)
    if not tail:
        return Answer(item_id, 200, JSON, head)
    return Answer(item_id, 200, BINARY, b"".join([head, *tail]), {INFERENCE_HEADER: str(len(head))})


def _split(item: Item) -> tuple[bytes, memoryview]:
    """The JSON of a body and the bytes of its binary tensors."""
    text = next((value for name, value in item.headers.items() if name.lower() == INFERENCE_HEADER), None)
    if text is None:
        if item.content_type.partition(";")[0].strip().lower() == BINARY:
            raise BadRequest(f"header {INFERENCE_HEADER}: missing; it must say how many bytes of the body are JSON")
        return item.body, memoryview(b"")
    if not (text.isascii() and text.isdecimal()) or int(text) > len(item.body):
        raise BadRequest(
            f"header {INFERENCE_HEADER}: {text!r} is not allowed; allowed: 0 to {len(item.body)}, the length of the body"
        )
    return item.body[: int(text)], memoryview(item.body)[int(text) :]


def _read_inputs(request: _Request, tail: memoryview, takes: Mapping[str, TensorSpec]) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for tensor in request.inputs:
        spec = takes.get(tensor.name)
        if spec is None or tensor.name in inputs:
            which = "named twice" if spec is not None else "not known"
            raise BadRequest(f"inputs: {tensor.name!r} is {which}; allowed, once each: {', '.join(takes)}")
        _check_input(tensor, spec)
        size = tensor.parameters.binary_data_size
        if size is None:
            inputs[tensor.name] = _from_json(tensor)
        else:
            if not 0 <= size <= len(tail):
                field = f"inputs[{tensor.name}].parameters.binary_data_size"
                raise BadRequest(f"{field}: {size} is not allowed; allowed: 0 to {len(tail)}, the bytes that are left")
            inputs[tensor.name] = _from_bytes(tensor, tail[:size])
            tail = tail[size:]
    missing = [name for name in takes if name not in inputs]
    if missing:
        raise BadRequest(f"inputs: {', '.join(missing)} missing; allowed, once each: {', '.join(takes)}")
    if tail:
        raise BadRequest(f"body: {len(tail)} bytes after the last binary tensor; allowed: none")
    return inputs


def _check_input(tensor: _Input, spec: TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise BadRequest(f"inputs[{tensor.name}].datatype: {tensor.datatype!r} is not allowed; allowed: {spec.datatype!r}")
    fits = len(tensor.shape) == len(spec.shape) and all(
        got >= 1 and want in (-1, got) for got, want in zip(tensor.shape[1:], spec.shape[1:], strict=True)
    )
    # The first dimension is the batch's: any number of rows, whatever a network with a fixed one says.
    if not fits or tensor.shape[0] < 1:
        allowed = [-1, *spec.shape[1:]]
        raise BadRequest(
            f"inputs[{tensor.name}].shape: {tensor.shape} is not allowed; allowed: {allowed}, where -1 is any length >= 1"
        )


def _from_json(tensor: _Input) -> Array:
    if tensor.data is None:
        raise BadRequest(f"inputs[{tensor.name}].data: missing; allowed: the tensor's numbers, or binary_data_size")
    dtype = DTYPES[tensor.datatype]
    try:
        array: Array = np.asarray(tensor.data)
        # What numpy would convert in silence: text, null, 1.5 to an integer, 300 to a byte, 1e300 to FP32.
        if array.dtype.kind not in "biuf":
            raise ValueError("not all are numbers of one nesting")
        if dtype.kind in "iub" and array.dtype.kind == "f":
            exact = np.asarray(tensor.data, dtype=object)  # numpy makes floats of [0, 2**63] too
            array = exact if all(type(value) is int for value in exact.flat) else array
        if dtype.kind in "iub" and array.size:
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if array.dtype.kind == "f" or array.min() < low or array.max() > high:
                raise ValueError(f"values from {array.min()} to {array.max()}; allowed: integers from {low} to {high}")
        with np.errstate(over="raise"):
            array = array.astype(dtype, copy=False)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BadRequest(f"inputs[{tensor.name}].data: not an array of {tensor.datatype}: {error}") from None
    if array.size != math.prod(tensor.shape):
        raise BadRequest(f"inputs[{tensor.name}].data: {array.size} values do not fill the shape {tensor.shape}")
    return array.reshape(tensor.shape)


def _from_bytes(tensor: _Input, data: memoryview) -> Array:
    dtype = DTYPES[tensor.datatype]
    needed = math.prod(tensor.shape) * dtype.itemsize
    if len(data) != needed:
        field = f"inputs[{tensor.name}].parameters.binary_data_size"
        raise BadRequest(f"{field}: {len(data)} is not allowed; allowed: {needed}, for {tensor.datatype} {tensor.shape}")
    return np.frombuffer(data, dtype).reshape(tensor.shape)


def _read_outputs(request: _Request, gives: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    by_default = request.parameters.binary_data_output
    if not request.outputs:
        return tuple((name, by_default) for name in gives)
    for output in request.outputs:
        if output.name not in gives:
            raise BadRequest(f"outputs: {output.name!r} is not known; allowed: {', '.join(gives)}")
    return tuple((o.name, by_default if o.parameters.binary_data is None else o.parameters.binary_data) for o in request.outputs)
