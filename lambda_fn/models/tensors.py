"""Requests and answers of the Open Inference Protocol v2 as tensors, in JSON and in its binary extension.

    JSON      {"id": …, "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.1, 0.2, 0.3, 0.4]}],
               "outputs": [{"name": "y", "parameters": {"binary_data": true}}], "parameters": {"binary_data_output": true}}
    binary    the same JSON with ``"parameters": {"binary_data_size": n}`` in place of ``data``, then the tensors' bytes in the
              order of the inputs, little-endian, row-major; the header ``inference-header-content-length`` has the JSON's length

``data`` may be flat or nested. An element of BYTES is a string in JSON; in binary it is its length in four bytes, little-endian,
and then itself; here it is ``bytes`` in an array of objects. ``POST /models/{model}`` takes the same bodies: a function sees no
difference. What may live here: the protocol and the check of a request against what a model takes. What may not: a model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..contract import BINARY, INFERENCE_HEADER, JSON, MOST_DIGITS, UNREADABLE, Answer, Item, json_end
from ..interface import TensorSpec
from .base import BadRequest

Array = npt.NDArray[Any]

BYTES = "BYTES"
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
    BYTES: np.dtype(object),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<I")


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


class TensorRequest(NamedTuple):
    """One request, checked."""

    inputs: dict[str, Array]
    id: str | None
    outputs: tuple[tuple[str, bool], ...]
    """What is asked for, in order: the name, and whether in binary. Empty: all that the model gives."""
    binary: bool
    """Whether outputs come in binary of which nothing is said."""


class TensorReader:
    """Reads the requests to a model that takes and gives these tensors (``None``: any)."""

    def __init__(self, takes: Sequence[TensorSpec] | None, gives: Sequence[TensorSpec] | None) -> None:
        self._takes = None if takes is None else {spec.name: spec for spec in takes}
        self._gives = None if gives is None else [spec.name for spec in gives]
        self._all_in_json = tuple([(name, False) for name in self._gives or ()])

    def __call__(self, item: Item) -> TensorRequest:
        """The tensors of a request; raises ``BadRequest``."""
        document, tail = _split(item)
        try:
            request = _decode(document)
        except UNREADABLE as error:
            raise BadRequest(f"body: not an inference request: {error}") from None
        inputs = _read_inputs(request, tail, self._takes)
        binary = request.parameters.binary_data_output
        outputs = _read_outputs(request, self._gives) if request.outputs or binary else self._all_in_json
        return TensorRequest(inputs, request.id, outputs, binary)


def count_rows(inputs: Mapping[str, Array]) -> int:
    """The length of the batch dimension that all inputs share; raises ``BadRequest`` where they differ."""
    if len(inputs) == 1:
        for array in inputs.values():
            return len(array)
    rows = {name: len(array) for name, array in inputs.items()}
    if len(set(rows.values())) > 1:
        raise BadRequest(f"inputs: first dimensions {rows} differ; allowed: one batch dimension for all inputs")
    return next(iter(rows.values()))


def check_outputs(outputs: Mapping[str, Array], gives: Sequence[TensorSpec]) -> None:
    """Raise ``ValueError`` unless the outputs are those that the model said it gives."""
    for spec in gives:
        if spec.name not in outputs:
            raise ValueError(f"output {spec.name!r}: missing; the model gives {', '.join(s.name for s in gives)}")
        array, datatype = _typed(spec.name, outputs[spec.name])
        if datatype != spec.datatype or not _fits(array.shape, spec.shape):
            got = f"{datatype} of shape {list(array.shape)}"
            raise ValueError(f"output {spec.name!r}: {got} is not allowed; allowed: {spec.datatype} of shape {list(spec.shape)}")


def write_answer(item_id: str, model: str, request: TensorRequest, outputs: Mapping[str, Array]) -> Answer:
    """The answer to a request, in JSON unless it asked for binary tensors.

    Raises
    ------
    BadRequest
        The request asks for an output that there is not, or in JSON for bytes that are no text.
    ValueError
        An array has a type that the protocol has no name for.
    """
    written: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, binary in request.outputs or [(name, request.binary) for name in outputs]:
        array = outputs.get(name)
        if array is None:
            raise BadRequest(f"outputs: {name!r} is not known; allowed: {', '.join(outputs)}")
        datatype = DATATYPES.get(array.dtype)
        if datatype is None or datatype == BYTES:
            array, datatype = _typed(name, array)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if binary:
            tail.append(_to_bytes(array, datatype))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            # JSON has no word for NaN and the infinities: msgspec writes null.
            entry["data"] = array.ravel().tolist() if datatype != BYTES else _to_texts(name, array)
        written.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": written}
    if request.id is not None:
        document["id"] = request.id
    head = _encode(document)
    if not tail:
        return Answer(item_id, 200, JSON, head)
    return Answer(item_id, 200, BINARY, b"".join([head, *tail]), {INFERENCE_HEADER: str(len(head))})


def _typed(name: str, array: Array) -> tuple[Array, str]:
    """An output as the protocol has it, and the name of its type; the elements of BYTES become ``bytes``."""
    if array.dtype.kind in "OSU":
        flat = np.empty(array.size, object)
        for index, value in enumerate(array.ravel().tolist()):
            if not isinstance(value, str | bytes):
                raise ValueError(
                    f"output {name!r}: an element of type {type(value).__name__} is not allowed; allowed: bytes or str"
                )
            flat[index] = value.encode() if isinstance(value, str) else value
        return flat.reshape(array.shape), BYTES
    datatype = DATATYPES.get(array.dtype) or DATATYPES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise ValueError(f"output {name!r}: dtype {array.dtype} is not allowed; allowed: those of {', '.join(DTYPES)}")
    return array, datatype


def _to_bytes(array: Array, datatype: str) -> bytes:
    if datatype == BYTES:
        return b"".join([part for element in array.ravel() for part in (_LENGTH.pack(len(element)), element)])
    return array.astype(DTYPES[datatype], copy=False).tobytes()


def _to_texts(name: str, array: Array) -> list[str]:
    try:
        return [element.decode() for element in array.ravel()]
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"outputs[{name}]: bytes that are no text ({error}); allowed in JSON: UTF-8, and any as binary_data"
        ) from None


_NO_TAIL = memoryview(b"")


def _split(item: Item) -> tuple[bytes, memoryview]:
    """The JSON of a body and the bytes of its binary tensors."""
    if not item.headers and item.content_type == JSON:
        return item.body, _NO_TAIL  # as most are
    text = next((value for name, value in item.headers.items() if name.lower() == INFERENCE_HEADER), None) if item.headers else None
    if text is None:
        if item.content_type != JSON and item.content_type.partition(";")[0].strip().lower() == BINARY:
            raise BadRequest(f"header {INFERENCE_HEADER}: missing; it must say how many bytes of the body are JSON")
        return item.body, _NO_TAIL
    if (end := json_end(text, len(item.body))) is None:
        shown, most = text[:MOST_DIGITS], len(item.body)
        raise BadRequest(f"header {INFERENCE_HEADER}: {shown!r} is not allowed; allowed: 0 to {most}, the length of the body")
    return item.body[:end], memoryview(item.body)[end:]


def _read_inputs(request: _Request, tail: memoryview, takes: Mapping[str, TensorSpec] | None) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for tensor in request.inputs:
        spec = None if takes is None else takes.get(tensor.name)
        if tensor.name in inputs or (takes is not None and spec is None):
            which = "named twice" if tensor.name in inputs else "not known"
            raise BadRequest(f"inputs: {tensor.name!r} is {which}; allowed, once each: {_names(takes)}")
        if spec is None or tensor.datatype != spec.datatype or not _fits(tensor.shape, spec.shape):
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
    if not inputs or (takes is not None and len(inputs) < len(takes)):
        missing = [name for name in takes or () if name not in inputs]
        raise BadRequest(f"inputs: {', '.join(missing) or 'all'} missing; allowed, once each: {_names(takes)}")
    if tail:
        raise BadRequest(f"body: {len(tail)} bytes after the last binary tensor; allowed: none")
    return inputs


def _names(takes: Mapping[str, TensorSpec] | None) -> str:
    return "any name" if takes is None else ", ".join(takes)


def _check_input(tensor: _Input, spec: TensorSpec | None) -> None:
    datatypes = [spec.datatype] if spec is not None else list(DTYPES)
    if tensor.datatype not in datatypes:
        allowed = ", ".join(map(repr, datatypes))
        raise BadRequest(f"inputs[{tensor.name}].datatype: {tensor.datatype!r} is not allowed; allowed: {allowed}")
    shape = spec.shape if spec is not None else (-1,) * max(1, len(tensor.shape))
    if not _fits(tensor.shape, shape):
        raise BadRequest(
            f"inputs[{tensor.name}].shape: {tensor.shape} is not allowed; allowed: {list(shape)}, where -1 is any length >= 1"
        )


def _fits(shape: Sequence[int], allowed: Sequence[int]) -> bool:
    """Whether a shape is one of those allowed, where -1 is any length >= 1."""
    if len(shape) != len(allowed):
        return False
    for got, want in zip(shape, allowed, strict=True):  # noqa: SIM110  (a third of what a generator costs)
        if got < 1 or (want != got and want != -1):
            return False
    return True


def _from_json(tensor: _Input) -> Array:
    if tensor.data is None:
        raise BadRequest(f"inputs[{tensor.name}].data: missing; allowed: the tensor's numbers, or binary_data_size")
    if tensor.datatype == BYTES:
        return _from_texts(tensor)
    dtype = DTYPES[tensor.datatype]
    if (code := _PACKED.get(tensor.datatype)) and len(tensor.data) == math.prod(tensor.shape):
        try:
            return np.frombuffer(bytearray(_packer(len(tensor.data), code)(*tensor.data)), dtype).reshape(tensor.shape)
        except (struct.error, OverflowError):  # not a flat list of numbers that fit, as most are: below it is told why
            pass
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
        array = _cast(array, dtype)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BadRequest(f"inputs[{tensor.name}].data: not an array of {tensor.datatype}: {error}") from None
    return _shaped(tensor, array)


@lru_cache(maxsize=64)
def _packer(length: int, code: str) -> Callable[..., bytes]:
    return struct.Struct(f"<{length}{code}").pack


_PACKED = {"FP32": "f", "FP64": "d"}
"""How ``struct`` packs a datatype, in a third of numpy's time; it raises for a number that is too large, and for what is none."""


@np.errstate(over="raise")  # which costs half of what a block does
def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.astype(dtype, copy=False)


def _shaped(tensor: _Input, array: Array) -> Array:
    if array.size != math.prod(tensor.shape):
        raise BadRequest(f"inputs[{tensor.name}].data: {array.size} values do not fill the shape {tensor.shape}")
    if array.ndim > 1 and _are_apart(array.shape, tensor.shape):  # read on, it would be another tensor than is meant
        nested = list(array.shape)
        raise BadRequest(f"inputs[{tensor.name}].data: rows nested as {nested} are none of the shape {tensor.shape}")
    return array.reshape(tensor.shape)


def _are_apart(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether rows of two shapes, of whatever depth, overlap without one being made of the other."""
    sizes = sorted({*accumulate(reversed(one), mul), *accumulate(reversed(other), mul)} - {0})
    return any(larger % smaller for smaller, larger in pairwise(sizes))


def _from_texts(tensor: _Input) -> Array:
    try:
        texts = np.array(tensor.data, dtype=object)
        if not all(isinstance(text, str) for text in texts.flat):
            raise ValueError("not all are strings of one nesting")
        array = np.empty(texts.size, object)
        array[:] = [text.encode() for text in texts.flat]
    except ValueError as error:
        raise BadRequest(f"inputs[{tensor.name}].data: not an array of BYTES: {error}") from None
    return _shaped(tensor, array.reshape(texts.shape))


def _from_bytes(tensor: _Input, data: memoryview) -> Array:
    if tensor.datatype == BYTES:
        return _from_lengths(tensor, data)
    dtype = DTYPES[tensor.datatype]
    needed = math.prod(tensor.shape) * dtype.itemsize
    if len(data) != needed:
        field = f"inputs[{tensor.name}].parameters.binary_data_size"
        raise BadRequest(f"{field}: {len(data)} is not allowed; allowed: {needed}, for {tensor.datatype} {tensor.shape}")
    return np.frombuffer(data, dtype).reshape(tensor.shape)


def _from_lengths(tensor: _Input, data: memoryview) -> Array:
    """The elements of BYTES, each behind its length; what the lengths say is checked against what is there."""
    field, count = f"inputs[{tensor.name}].parameters.binary_data_size", math.prod(tensor.shape)
    if count * _LENGTH.size > len(data):
        raise BadRequest(f"{field}: {len(data)} is not allowed; allowed: at least {count * _LENGTH.size}, for BYTES {tensor.shape}")
    array, at = np.empty(count, object), 0
    for index in range(count):
        left = len(data) - at - _LENGTH.size
        if left < 0:
            raise BadRequest(f"{field}: {len(data)} is not allowed; element {index} of BYTES {tensor.shape} lies beyond it")
        (length,) = _LENGTH.unpack_from(data, at)
        if length > left:
            raise BadRequest(f"inputs[{tensor.name}]: the length {length} of element {index} is not allowed; allowed: 0 to {left}")
        at += _LENGTH.size + length
        array[index] = bytes(data[at - length : at])
    if at < len(data):
        raise BadRequest(f"{field}: {len(data)} is not allowed; allowed: {at}, where the last element of BYTES {tensor.shape} ends")
    return array.reshape(tensor.shape)


def _read_outputs(request: _Request, gives: Sequence[str] | None) -> tuple[tuple[str, bool], ...]:
    by_default = request.parameters.binary_data_output
    if not request.outputs:
        return tuple((name, by_default) for name in gives or ())
    for output in request.outputs:
        if gives is not None and output.name not in gives:
            raise BadRequest(f"outputs: {output.name!r} is not known; allowed: {', '.join(gives)}")
    return tuple((o.name, by_default if o.parameters.binary_data is None else o.parameters.binary_data) for o in request.outputs)
