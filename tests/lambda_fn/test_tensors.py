"""Requests become the tensors the model takes, or an error that names the tensor, what it holds and what is allowed."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sluice.lambda_fn import TensorSpec
from sluice.lambda_fn.contract import INFERENCE_HEADER, Answer, Item
from sluice.lambda_fn.interface import DATATYPES
from sluice.lambda_fn.models.base import BadRequest
from sluice.lambda_fn.models.inputs import is_tensor_request
from sluice.lambda_fn.models.tensors import (
    BINARY,
    BYTES,
    DTYPES,
    TensorReader,
    TensorRequest,
    count_rows,
    write_answer,
)

TAKES = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT8", (-1,)))
GIVES = (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1,)))
X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
N = {"name": "n", "shape": [1], "datatype": "INT8", "data": [3]}


def read_request(item: Item, takes: Any, gives: Any) -> TensorRequest:
    return TensorReader(takes, gives)(item)


def json_item(**document: Any) -> Item:
    return Item("a", "application/json", json.dumps(document).encode())


def binary_item(document: dict[str, Any], *tensors: npt.NDArray[Any]) -> Item:
    head = json.dumps(document).encode()
    body = b"".join([head, *(tensor.tobytes() for tensor in tensors)])
    return Item("a", BINARY, body, {INFERENCE_HEADER: str(len(head))})


def with_lengths(*elements: bytes) -> bytes:
    """The elements of a tensor of BYTES as its binary form has them."""
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def objects(elements: list[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


numeric_arrays = st.sampled_from(sorted(set(DTYPES) - {BYTES})).flatmap(
    lambda name: arrays.arrays(
        DTYPES[name],
        arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if name.startswith("FP") else None,
    ).map(lambda array: (name, array))
)


@given(numeric_arrays, st.booleans(), st.booleans())
def test_a_tensor_survives_json_and_binary_both_ways(case: tuple[str, npt.NDArray[Any]], binary_in: bool, binary_out: bool) -> None:
    datatype, array = case
    spec = TensorSpec("x", datatype, (-1,) * array.ndim)
    tensor: dict[str, Any] = {"name": "x", "shape": list(array.shape), "datatype": datatype}
    wanted = {"outputs": [{"name": "x", "parameters": {"binary_data": binary_out}}], "id": "7"}
    if binary_in:
        item = binary_item({"inputs": [{**tensor, "parameters": {"binary_data_size": array.nbytes}}], **wanted}, array)
    else:
        item = json_item(inputs=[{**tensor, "data": array.tolist()}], **wanted)
    request = read_request(item, [spec], [spec])
    assert count_rows(request.inputs) == len(array)
    np.testing.assert_array_equal(request.inputs["x"], array)

    answer = write_answer("a", "m", request, request.inputs)
    head = answer.body[: int(answer.headers[INFERENCE_HEADER])] if binary_out else answer.body
    document = msgspec.json.decode(head)
    (got,) = document["outputs"]
    assert (document["id"], document["model_name"], got["datatype"], got["shape"]) == ("7", "m", datatype, list(array.shape))
    values = np.frombuffer(answer.body[len(head) :], DTYPES[datatype]) if binary_out else np.array(got["data"], DTYPES[datatype])
    np.testing.assert_array_equal(values, array.ravel())
    assert answer.content_type == (BINARY if binary_out else "application/json")


texts = arrays.array_shapes(min_dims=1, max_dims=3, max_side=3).flatmap(
    lambda shape: st.lists(st.text(max_size=5), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda elements: objects([text.encode() for text in elements], shape)
    )
)


@given(texts, st.booleans(), st.booleans())
def test_a_tensor_of_bytes_survives_json_and_binary_both_ways(array: npt.NDArray[Any], binary_in: bool, binary_out: bool) -> None:
    spec = TensorSpec("x", BYTES, (-1,) * array.ndim)
    tensor: dict[str, Any] = {"name": "x", "shape": list(array.shape), "datatype": BYTES}
    elements = array.ravel().tolist()
    if binary_in:
        data = with_lengths(*elements)
        item = binary_item({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}, np.frombuffer(data, np.uint8))
    else:
        item = json_item(inputs=[{**tensor, "data": objects([text.decode() for text in elements], array.shape).tolist()}])
    request = read_request(item, [spec], None)
    np.testing.assert_array_equal(request.inputs["x"], array)
    asked = TensorRequest(request.inputs, None, (("x", binary_out),), False)
    answer = write_answer("a", "m", asked, request.inputs)
    head = answer.body[: int(answer.headers[INFERENCE_HEADER])] if binary_out else answer.body
    (got,) = msgspec.json.decode(head)["outputs"]
    assert (got["datatype"], got["shape"]) == (BYTES, list(array.shape))
    if binary_out:
        assert answer.body[len(head) :] == with_lengths(*elements)
    else:
        assert got["data"] == [text.decode() for text in elements]


def test_the_datatypes_that_a_class_may_name_are_those_that_are_read() -> None:
    assert tuple(DTYPES) == DATATYPES


@pytest.mark.parametrize("values", [np.array(["a", "é"]), np.array([b"a", "é".encode()]), objects(["a", "é".encode()], (2,))])
def test_text_of_any_kind_is_given_as_bytes(values: npt.NDArray[Any]) -> None:
    answer = write_answer("a", "m", TensorRequest({}, None, (), False), {"y": values})
    assert msgspec.json.decode(answer.body)["outputs"] == [{"name": "y", "datatype": BYTES, "shape": [2], "data": ["a", "é"]}]


def write(values: npt.NDArray[Any], *asked: tuple[str, bool]) -> Answer:
    return write_answer("a", "m", TensorRequest({}, None, asked, False), {"y": values})


def test_bytes_that_are_no_text_are_given_in_binary_alone() -> None:
    values = objects([b"\xff"], (1,))
    assert write(values, ("y", True)).body.endswith(with_lengths(b"\xff"))
    with pytest.raises(
        BadRequest, match=r"outputs\[y\]: bytes that are no text .*; allowed in JSON: UTF-8, and any as binary_data"
    ):
        write(values)


def test_an_output_that_is_not_there_or_has_no_name_in_the_protocol_is_told() -> None:
    with pytest.raises(BadRequest, match="outputs: 'z' is not known; allowed: y"):
        write(np.ones(1), ("z", False))
    with pytest.raises(ValueError, match="output 'y': dtype complex128 is not allowed"):
        write(np.ones(1, complex))
    with pytest.raises(ValueError, match="output 'y': an element of type int is not allowed; allowed: bytes or str"):
        write(objects(["a", 3], (2,)))


def test_a_model_that_names_no_tensors_takes_any() -> None:
    request = read_request(json_item(inputs=[X, {**N, "name": "q", "shape": [2], "data": [1, 2]}]), None, None)
    assert {name: array.shape for name, array in request.inputs.items()} == {"x": (1, 2), "q": (2,)}
    assert (request.outputs, request.binary) == ((), False)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (json_item(inputs=[X]), True),
        (json_item(inputs=[]), False),
        (json_item(inputs="text"), False),
        (json_item(inputs=[{"name": "x"}]), False),
        (Item("a", "application/json", b"[1]"), False),
        (Item("a", "text/plain", b"{"), False),
        (Item("a", BINARY, b"{}", {"Inference-Header-Content-Length": "2"}), True),
    ],
)
def test_a_tensor_request_is_told_by_its_header_or_its_fields(item: Item, expected: bool) -> None:
    assert is_tensor_request(item) is expected


def lying(data: bytes, *shape: int) -> Item:
    tensor = {"name": "t", "shape": list(shape), "datatype": BYTES, "parameters": {"binary_data_size": len(data)}}
    return binary_item({"inputs": [tensor]}, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (lying(b"\xff\xff\xff\xffab", 1), "inputs[t]: the length 4294967295 of element 0 is not allowed; allowed: 0 to 2"),
        (lying(with_lengths(b"ab") + b"\x03\0\0\0cd", 2), "inputs[t]: the length 3 of element 1 is not allowed; allowed: 0 to 2"),
        (lying(with_lengths(b"ab", b"c"), 1), "binary_data_size: 11 is not allowed; allowed: 6, where the last element"),
        (lying(with_lengths(b"abcdef"), 2), "binary_data_size: 10 is not allowed; element 1 of BYTES [2] lies beyond it"),
        (lying(b"", 10**12), "binary_data_size: 0 is not allowed; allowed: at least 4000000000000, for BYTES"),
        (
            json_item(inputs=[{"name": "t", "shape": [2], "datatype": BYTES, "data": ["a", 3]}]),
            "not an array of BYTES: not all are",
        ),
        (json_item(inputs=[{"name": "t", "shape": [2], "datatype": BYTES, "data": [["a"], ["b", "c"]]}]), "not an array of BYTES"),
        (json_item(inputs=[{"name": "t", "shape": [3], "datatype": BYTES, "data": ["a"]}]), "1 values do not fill the shape [3]"),
        (json_item(inputs=[{"name": "t", "shape": [1], "datatype": "BF16", "data": [1]}]), "inputs[t].datatype: 'BF16' is not"),
        (json_item(inputs=[{"name": "t", "shape": [], "datatype": "FP32", "data": [1]}]), "inputs[t].shape: [] is not allowed"),
    ],
)
def test_tensors_that_lie_are_refused_by_name_whatever_the_model_takes(item: Item, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(item, None, None)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "data", "is_read"),
    [
        ([2, 3], [[1, 2, 3], [4, 5, 6]], True),
        ([2, 3], [[1, 2, 3, 4, 5, 6]], True),  # flat, but for a pair of brackets
        ([6], [[1], [2], [3], [4], [5], [6]], True),
        ([1, 2, 3], [[1, 2, 3], [4, 5, 6]], True),
        ([2, 3], [[1, 2], [3, 4], [5, 6]], False),  # its transpose, perhaps
        ([6, 1], [[1, 2], [3, 4], [5, 6]], True),
        ([1, 6], [[1, 2], [3, 4], [5, 6]], True),  # as an image for a tensor of its pixels
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "INT64", BYTES])
def test_nested_data_are_rows_of_the_shape(shape: list[int], data: list[Any], is_read: bool, datatype: str) -> None:
    values = [[str(value) for value in row] for row in data] if datatype == BYTES else data
    item = json_item(inputs=[{"name": "t", "shape": shape, "datatype": datatype, "data": values}])
    if is_read:
        assert [int(value) for value in read_request(item, None, None).inputs["t"].flat] == [1, 2, 3, 4, 5, 6]
    else:
        with pytest.raises(BadRequest, match=re.escape(f"inputs[t].data: rows nested as [3, 2] are none of the shape {shape}")):
            read_request(item, None, None)


def test_data_may_be_flat_or_nested() -> None:
    flat = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
    nested = {**flat, "data": [[1, 2], [3, 4]]}
    n = {**N, "shape": [2], "data": [1, 2]}
    one, two = (read_request(json_item(inputs=[x, n]), TAKES, GIVES) for x in (flat, nested))
    np.testing.assert_array_equal(one.inputs["x"], two.inputs["x"])


def test_outputs_come_as_asked_for_and_else_all_in_order() -> None:
    def asked(**more: Any) -> TensorRequest:
        return read_request(json_item(inputs=[X, N], **more), TAKES, GIVES)

    assert asked().outputs == (("y", False), ("z", False))
    assert asked(parameters={"binary_data_output": True}).outputs == (("y", True), ("z", True))
    some = [{"name": "z"}, {"name": "y", "parameters": {"binary_data": False}}]
    assert asked(parameters={"binary_data_output": True}, outputs=some).outputs == (("z", True), ("y", False))


def test_inputs_share_one_batch_dimension() -> None:
    request = read_request(json_item(inputs=[{**X, "shape": [2, 2], "data": [1, 2, 3, 4]}, N]), TAKES, GIVES)
    with pytest.raises(BadRequest, match="inputs: first dimensions {'x': 2, 'n': 1} differ"):
        count_rows(request.inputs)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Item("a", "application/json", b"nonsense"), "body: not an inference request: "),
        (json_item(outputs=[]), "missing required field `inputs`"),
        (json_item(inputs=[X]), "inputs: n missing; allowed, once each: x, n"),
        (json_item(inputs=[X, N, {**N, "name": "q"}]), "inputs: 'q' is not known; allowed, once each: x, n"),
        (json_item(inputs=[X, N, N]), "inputs: 'n' is named twice"),
        (json_item(inputs=[{**X, "datatype": "FP64"}, N]), "inputs[x].datatype: 'FP64' is not allowed; allowed: 'FP32'"),
        (
            json_item(inputs=[{**X, "shape": [1, 3]}, N]),
            "inputs[x].shape: [1, 3] is not allowed; allowed: [-1, 2], where -1 is any",
        ),
        (json_item(inputs=[{**X, "shape": [2]}, N]), "inputs[x].shape: [2] is not allowed"),
        (json_item(inputs=[{**X, "shape": [0, 2], "data": []}, N]), "inputs[x].shape: [0, 2] is not allowed"),
        (json_item(inputs=[{**X, "data": [1]}, N]), "inputs[x].data: 1 values do not fill the shape [1, 2]"),
        (json_item(inputs=[{**X, "data": ["1", "2"]}, N]), "inputs[x].data: not an array of FP32"),
        (json_item(inputs=[{**X, "data": [None, 2]}, N]), "inputs[x].data: not an array of FP32"),
        (json_item(inputs=[{**X, "data": [[1], [2, 3]]}, N]), "inputs[x].data: not an array of FP32"),
        (json_item(inputs=[{**X, "data": [1e300, 1]}, N]), "inputs[x].data: not an array of FP32: overflow"),
        (json_item(inputs=[X, {**N, "data": [300]}]), "inputs[n].data: not an array of INT8: values from 300 to 300"),
        (json_item(inputs=[X, {**N, "data": [1.5]}]), "inputs[n].data: not an array of INT8: values from 1.5 to 1.5"),
        (json_item(inputs=[{k: v for k, v in X.items() if k != "data"}, N]), "inputs[x].data: missing"),
        (json_item(inputs=[X, N], outputs=[{"name": "w"}]), "outputs: 'w' is not known; allowed: y, z"),
        (Item("a", BINARY, b"{}"), f"header {INFERENCE_HEADER}: missing"),
        (Item("a", BINARY, b"{}", {INFERENCE_HEADER: "3"}), f"header {INFERENCE_HEADER}: '3' is not allowed; allowed: 0 to 2"),
        (Item("a", BINARY, b"{}", {INFERENCE_HEADER: "-1"}), f"header {INFERENCE_HEADER}: '-1' is not allowed"),
        (Item("a", BINARY, b"{}", {INFERENCE_HEADER: "9" * 5000}), f"header {INFERENCE_HEADER}: '{'9' * 20}' is not allowed"),
        (
            binary_item({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": 8}}, N]}, np.zeros(1, np.float32)),
            "inputs[x].parameters.binary_data_size: 8 is not allowed; allowed: 0 to 4",
        ),
        (
            binary_item({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": 4}}, N]}, np.zeros(1, np.float32)),
            "inputs[x].parameters.binary_data_size: 4 is not allowed; allowed: 8, for FP32 [1, 2]",
        ),
        (binary_item({"inputs": [X, N]}, np.zeros(1, np.float32)), "body: 4 bytes after the last binary tensor; allowed: none"),
    ],
)
def test_a_request_that_the_model_does_not_take_is_refused_by_name(item: Item, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(item, TAKES, GIVES)
    assert message in str(caught.value)


def test_the_client_of_triton_is_understood_and_understands() -> None:
    client = pytest.importorskip("tritonclient.http")
    tensor = client.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.5, -2]], np.float32))
    body, length = client.InferenceServerClient.generate_request_body([tensor])
    request = read_request(Item("a", BINARY, body, {"Inference-Header-Content-Length": str(length)}), TAKES[:1], GIVES[:1])
    answer = write_answer("a", "m", request, {"y": request.inputs["x"] * 2})
    result = client.InferenceServerClient.parse_response_body(answer.body, header_length=int(answer.headers[INFERENCE_HEADER]))
    np.testing.assert_array_equal(result.as_numpy("y"), [[3, -4]])
