"""The request that a sweep repeats, or one of each size: the user's own, or made from what the function says its model takes.

Service times depend on the request (parsing JSON is part of them), so a sample of the real traffic is the better of the two.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import numpy as np

from sluice.batching.errors import NOT_GIVEN, FunctionFailed, InvalidInput
from sluice.lambda_fn import contract
from sluice.lambda_fn.contract import PAYLOAD_LIMIT
from sluice.profiler.invocations import Invocation, Invoke


class Sample(msgspec.Struct, frozen=True):
    """One request as its caller would send it; a body of a JSON type must be JSON (``InvalidInput``).

    ``size`` is its size in the model's own unit, where requests are told apart by that.
    """

    body: bytes
    content_type: str = contract.JSON
    headers: dict[str, str] = {}
    size: float | None = None

    def __post_init__(self) -> None:
        if contract.is_json(self.content_type):
            try:
                contract.check_json(self.body)
            except contract.WireError as error:
                raise InvalidInput("payload", self.body[:80], f"a JSON document, as {self.content_type} says ({error})") from None


def sample_batch(sample: Sample, model: str, batch_size: int) -> contract.Batch:
    """A batch of ``batch_size`` copies of the sample, each with an id of its own."""
    items = [contract.Item(f"r{i}", sample.content_type, sample.body, sample.headers) for i in range(batch_size)]
    return contract.Batch(model, items)


def largest_batch(sample: Sample, model: str, limit: int = PAYLOAD_LIMIT) -> int:
    """The largest batch of the sample whose payload is within ``limit`` bytes, by default Lambda's; 0 if not even one is."""
    one, two = (len(contract.encode_batch(sample_batch(sample, model, batch_size))) for batch_size in (1, 2))
    per_item = two - one
    left = limit - (one - per_item)
    largest = 0
    # Items with an id of the same number of digits are of the same size.
    for digits in itertools.count(1):
        ids = 10 if digits == 1 else 9 * 10 ** (digits - 1)
        fitting = min(ids, max(0, left) // (per_item + digits - 1))
        largest += fitting
        if fitting < ids:
            break
        left -= ids * (per_item + digits - 1)
    return largest


def describe_model(invoke: Invoke, function: str, model: str) -> tuple[Invocation, dict[str, object]]:
    """What the function says its model takes, and the invocation that asked it.

    Raises
    ------
    FunctionFailed
        The answer is no metadata.
    """
    described = invoke(function, contract.encode_batch(contract.Batch(model, [], describe=True)))
    try:
        return described, contract.decode_metadata(described.payload)
    except contract.WireError as error:
        raise FunctionFailed(f"{function} does not say what model {model!r} takes ({error}); give a --payload") from None


def make_sample(metadata: dict[str, Any], rng: np.random.Generator) -> Sample:
    """A request of random numbers for a model that describes itself as the Open Inference Protocol v2 has it.

    Unknown dimensions (-1) become 1. Floats are standard normal, rounded to six decimals; integers are 0 or 1. A model without
    inputs takes any body and gets an empty one.

    Raises
    ------
    InvalidInput
        The model names no inputs, or one whose type cannot be made up.
    """
    inputs = metadata.get("inputs")
    parameters = metadata.get("parameters")
    if isinstance(parameters, dict) and contract.INPUT in parameters:
        allowed = f"a sample request: the model takes {parameters[contract.INPUT]}, which cannot be made up"
        raise InvalidInput("payload", NOT_GIVEN, allowed)
    if not isinstance(inputs, list):
        raise InvalidInput("payload", NOT_GIVEN, "a sample request: the function does not describe its model's inputs")
    tensors = []
    for tensor in inputs:
        datatype = str(tensor.get("datatype"))
        shape = [max(1, int(size)) for size in tensor.get("shape", [])]
        count = int(np.prod(shape))
        data: list[Any]
        if re.fullmatch(r"B?FP\d+", datatype):
            data = rng.standard_normal(count).round(6).tolist()
        elif re.fullmatch(r"U?INT\d+", datatype):
            data = rng.integers(0, 2, count).tolist()
        elif datatype == "BOOL":
            data = rng.integers(0, 2, count).astype(bool).tolist()
        else:
            raise InvalidInput(
                "payload", NOT_GIVEN, f"a sample request: input {tensor.get('name')!r} of type {datatype} cannot be made up"
            )
        tensors.append({"name": tensor.get("name"), "datatype": datatype, "shape": shape, "data": data})
    return Sample(msgspec.json.encode({"inputs": tensors}))
