"""The request that a sweep repeats."""

import json

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.lambda_fn import contract
from sluice.lambda_fn.contract import PAYLOAD_LIMIT
from sluice.profiler.samples import Sample, largest_batch, make_sample, sample_batch


@pytest.mark.parametrize("length", [400, 1000, 700_000, PAYLOAD_LIMIT - 200])
def test_the_largest_batch_fits_and_one_more_does_not(length):
    sample = Sample(b'"' + b"x" * length + b'"')
    largest = largest_batch(sample, "mlp")
    assert len(contract.encode_batch(sample_batch(sample, "mlp", largest))) <= PAYLOAD_LIMIT
    assert len(contract.encode_batch(sample_batch(sample, "mlp", largest + 1))) > PAYLOAD_LIMIT


def test_a_request_larger_than_the_limit_fits_in_no_batch():
    assert largest_batch(Sample(b"x" * PAYLOAD_LIMIT, "application/octet-stream"), "mlp") == 0


def test_a_json_sample_must_be_json():
    with pytest.raises(
        InvalidInput, match=r"payload: b'\{oops' is not allowed; allowed: a JSON document, as application/json says"
    ):
        Sample(b"{oops")


def test_a_binary_sample_may_be_anything():
    assert Sample(b"\x00\xff", "application/octet-stream").body == b"\x00\xff"


def test_a_sample_is_made_of_the_inputs_that_a_model_describes():
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
        {"name": "ids", "datatype": "INT64", "shape": [-1, 2, 3]},
        {"name": "mask", "datatype": "BOOL", "shape": [2]},
    ]
    body = json.loads(make_sample({"name": "m", "inputs": inputs}, np.random.default_rng(0)).body)
    assert [(t["name"], t["datatype"], t["shape"], len(t["data"])) for t in body["inputs"]] == [
        ("x", "FP32", [1, 4], 4),
        ("ids", "INT64", [1, 2, 3], 6),
        ("mask", "BOOL", [2], 2),
    ]


def test_a_model_without_inputs_gets_none():
    assert json.loads(make_sample({"name": "sleeper", "inputs": []}, np.random.default_rng(0)).body) == {"inputs": []}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"name": "m"}, "does not describe its model's inputs"),
        ({"inputs": [], "parameters": {"input": "list[str]"}}, r"the model takes list\[str\], which cannot be made up"),
        ({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}]}, "input 'text' of type BYTES cannot be made up"),
    ],
)
def test_what_cannot_be_made_up_asks_for_a_sample(metadata, message):
    with pytest.raises(InvalidInput, match=message):
        make_sample(metadata, np.random.default_rng(0))
