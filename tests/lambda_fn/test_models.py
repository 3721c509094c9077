"""A batch answers as its items alone would; a bad item fails alone; the sleeper takes exactly its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from sluice.lambda_fn import TensorSpec
from sluice.lambda_fn.contract import Answer, Batch, Item
from sluice.lambda_fn.loading import LoadingError, load_model, threads
from sluice.lambda_fn.models.base import answer
from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.lambda_fn.models.sleeper import SPIN, Sleeper, size_of
from sluice.lambda_fn.models.tensor_model import TensorModel

Array = npt.NDArray[Any]
Infer = Callable[..., Item]
Output = Callable[[Answer], Array]


class Doubler(TensorModel):
    """Twice the input, and the batches it was asked to compute; a NaN-free 13 anywhere makes the whole computation fail."""

    def __init__(self) -> None:
        super().__init__("doubler", (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, -1)),))
        self.shapes: list[tuple[int, ...]] = []

    def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        x = inputs["x"]
        self.shapes.append(x.shape)
        if (x == 13).any():
            raise RuntimeError("unlucky")
        return {"y": 2 * x}


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from(["good", "bad", "poison"])), min_size=1, max_size=6)
)
def test_each_item_gets_its_own_answer_whatever_the_others_are(cases: list[tuple[int, int, str]]) -> None:
    model, items, expected = Doubler(), [], []
    for index, (rows, width, kind) in enumerate(cases):
        x = np.full((rows, width), 13 if kind == "poison" else index + 100, np.float32)
        datatype = "INT8" if kind == "bad" else "FP32"
        tensor = {"name": "x", "shape": [rows, width], "datatype": datatype, "data": x.tolist()}
        items.append(Item(str(index), "application/json", msgspec.json.encode({"inputs": [tensor]})))
        expected.append({"good": (2 * x).ravel().tolist(), "bad": 400, "poison": 500}[kind])
    answers = model.answer(items)
    assert [a.id for a in answers] == [item.id for item in items]
    for got, want in zip(answers, expected, strict=True):
        if isinstance(want, int):
            assert got.status == want
        else:
            assert got.status == 200 and msgspec.json.decode(got.body)["outputs"][0]["data"] == want


def test_items_of_one_shape_are_computed_together_and_split_by_their_own_rows(infer: Infer, output: Output) -> None:
    model = Doubler()
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (1, 3, 2)]
    answers = model.answer([infer(str(i), x) for i, x in enumerate(arrays)])
    assert model.shapes == [(6, 2)]
    for got, x in zip(answers, arrays, strict=True):
        np.testing.assert_array_equal(output(got), 2 * x)


def test_the_poisonous_item_fails_alone_with_what_it_raised(infer: Infer) -> None:
    answers = Doubler().answer([infer("a", np.ones((1, 1))), infer("b", np.full((1, 1), 13)), infer("c", np.ones((1, 1)))])
    assert [a.status for a in answers] == [200, 500, 200]
    assert msgspec.json.decode(answers[1].body)["detail"] == "RuntimeError: unlucky"


def test_a_model_whose_outputs_are_not_per_row_answers_each_item_alone(infer: Infer, output: Output) -> None:
    class Total(Doubler):
        def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            return {"y": inputs["x"].sum(keepdims=True)}

    model = Total()
    assert "parameters" not in model.metadata()
    answers = model.answer([infer("a", np.ones((2, 2))), infer("b", np.ones((3, 2)))])
    assert [output(a).tolist() for a in answers] == [[[4.0]], [[6.0]]]
    assert model.metadata()["parameters"]["one_by_one"] == (
        "a batch of 2 requests failed, and each of them alone did not: "
        "ValueError: output y: shape (1, 1) cannot be split among 5 rows"
    )


def test_a_poisonous_item_is_no_reason_to_say_that_the_model_takes_no_batches(infer: Infer) -> None:
    model = Doubler()
    model.answer([infer("a", np.ones((1, 1))), infer("b", np.full((1, 1), 13))])
    assert "parameters" not in model.metadata()


def test_a_batch_for_another_model_is_not_answered(infer: Infer) -> None:
    (got,) = answer(Doubler(), Batch("other", [infer("a", np.ones((1, 1)))]))
    assert got.status == 404
    assert msgspec.json.decode(got.body)["detail"] == "model: 'other' is not allowed; allowed: 'doubler'"


def test_an_onnx_batch_equals_its_items_alone(network: Path, infer: Infer, output: Output) -> None:
    model = OnnxModel("small", str(network))
    rng = np.random.default_rng(0)
    items = [infer(str(i), rng.standard_normal((1 + i % 3, 4)).astype(np.float32)) for i in range(9)]
    together = model.answer(items)
    for item, got in zip(items, together, strict=True):
        (alone,) = model.answer([item])
        np.testing.assert_allclose(output(got), output(alone), rtol=1e-5)


def test_onnx_metadata_is_that_of_the_open_inference_protocol(network: Path) -> None:
    assert OnnxModel("small", str(network)).metadata() == {
        "name": "small",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }


def one_node(path: Path, node: onnx.NodeProto, kind: int, *shape: int | str) -> Path:
    """A network of one node from ``x`` to ``y``, tensors of one kind and shape."""
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in "xy")
    graph = helper.make_graph([node], "one", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_network_of_a_fixed_batch_says_so_and_is_never_asked_for_another(tmp_path: Path, infer: Infer, output: Output) -> None:
    class Watched(OnnxModel):
        rows: list[int] = []

        def compute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            self.rows.append(len(inputs["x"]))
            return super().compute(inputs)

    model = Watched(
        "fixed", str(one_node(tmp_path / "fixed.onnx", helper.make_node("Relu", ["x"], ["y"]), TensorProto.FLOAT, 1, 2))
    )
    assert model.metadata()["parameters"] == {"one_by_one": "the batch dimension of input 'x' is fixed: 1"}
    first, two, last = model.answer([infer("a", np.ones((1, 2))), infer("b", np.ones((2, 2))), infer("c", -np.ones((1, 2)))])
    assert (output(first).tolist(), output(last).tolist()) == ([[1, 1]], [[0, 0]])
    assert (two.status, model.rows) == (400, [1, 1])
    assert "inputs[x].shape: [2, 2] is not allowed; allowed: [1, 2]" in msgspec.json.decode(two.body)["detail"]


def test_a_network_of_strings_takes_and_gives_bytes_that_are_text(tmp_path: Path) -> None:
    path = one_node(tmp_path / "text.onnx", helper.make_node("Identity", ["x"], ["y"]), TensorProto.STRING, "batch", 1)
    model = OnnxModel("text", str(path))
    assert model.metadata()["inputs"] == [{"name": "x", "datatype": "BYTES", "shape": [-1, 1]}]
    tensor = {"name": "x", "shape": [1, 1], "datatype": "BYTES"}
    bodies = [msgspec.json.encode({"inputs": [{**tensor, "data": [text]}]}) for text in ("a", "é")]
    head = msgspec.json.encode({"inputs": [{**tensor, "parameters": {"binary_data_size": 5}}]})
    garbage = Item("c", "application/octet-stream", head + b"\1\0\0\0\xff", {"inference-header-content-length": str(len(head))})
    *good, bad = model.answer([*(Item(str(i), "application/json", body) for i, body in enumerate(bodies)), garbage])
    assert [msgspec.json.decode(a.body)["outputs"][0]["data"] for a in good] == [["a"], ["é"]]
    assert bad.status == 400 and "inputs[x]: bytes that are no text" in msgspec.json.decode(bad.body)["detail"]


class Oversleeping:
    """A clock that ticks when it is looked at, and whose sleep ends late by as much as the sleeper allows for."""

    TICK = 1e-6

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += self.TICK
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + SPIN


def test_the_sleeper_takes_its_time_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, clock = Sleeper("s", intercept=0.004, slope=0.001), Oversleeping()
    items = [Item(str(i), "text/plain", b"%d" % i) for i in range(3)]
    begun = time.perf_counter()
    answers = sleeper.answer(items)
    assert time.perf_counter() - begun >= 0.007
    assert [a.body for a in answers] == [b"0", b"1", b"2"]
    monkeypatch.setattr("sluice.lambda_fn.models.sleeper.time", clock)
    sleeper.answer(items)
    assert 0.007 <= clock.now <= 0.007 + 5 * clock.TICK


def test_a_sleeper_takes_the_time_of_the_largest_for_each() -> None:
    sleeper = Sleeper("s", intercept=0.01, slope=0.001, size_slope=0.0005)
    bodies = [b'{"size": 4}', b"2.5", b'{"text": "x"}', b"no json", b'{"size": -9}']
    assert [size_of(Item("0", "application/json", body)) for body in bodies] == [4.0, 2.5, 0.0, 0.0, 0.0]
    assert sleeper.service_time(3, 4.0) == pytest.approx(0.01 + 3 * (0.001 + 4 * 0.0005))
    start = time.perf_counter()
    sleeper.answer([Item(str(i), "application/json", body) for i, body in enumerate(bodies)])
    assert time.perf_counter() - start >= sleeper.service_time(5, 4.0) - 1e-9


def test_a_sleeper_of_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sleeper 's': intercept -1, slope 0\.0 and size_slope 0\.0 must be seconds >= 0"):
        Sleeper("s", -1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "SLUICE_MODEL: not set; allowed: package.module:Class, file.py:Class or network.onnx"),
        (
            {"SLUICE_MODEL": "mlp"},
            "SLUICE_MODEL: 'mlp' is not allowed; allowed: package.module:Class, file.py:Class or network.onnx",
        ),
        ({"SLUICE_MODEL": "m:"}, "SLUICE_MODEL: 'm:' is not allowed"),
        (
            {"SLUICE_MODEL": "mlp", "SLUICE_MODEL_FILE": "mlp.onnx"},
            "SLUICE_MODEL_FILE: no longer read; set SLUICE_MODEL=mlp.onnx and SLUICE_MODEL_NAME=mlp",
        ),
        ({"SLUICE_MODEL": "f.onnx", "SLUICE_SLEEPER_SLOPE": "1"}, "SLUICE_MODEL and SLUICE_SLEEPER_SLOPE are both set"),
        ({"SLUICE_SLEEPER_SLOPE": "1"}, "SLUICE_MODEL_NAME: not set is not allowed; allowed: 1 to 128 of A-Z a-z 0-9 . _ -"),
        ({"SLUICE_MODEL_NAME": "a b", "SLUICE_SLEEPER_SLOPE": "1"}, "SLUICE_MODEL_NAME: 'a b' is not allowed"),
        ({"SLUICE_MODEL": "no.onnx", "LAMBDA_TASK_ROOT": "/x"}, "SLUICE_MODEL: '/x/no.onnx' is not a file"),
        (
            {"SLUICE_MODEL_NAME": "m", "SLUICE_SLEEPER_SLOPE": "1 s"},
            "SLUICE_SLEEPER_SLOPE: '1 s' is not allowed; allowed: seconds >= 0",
        ),
        ({"SLUICE_MODEL_NAME": "m", "SLUICE_SLEEPER_SLOPE": "inf"}, "SLUICE_SLEEPER_SLOPE: 'inf' is not allowed"),
    ],
)
def test_an_environment_that_describes_no_model_is_refused_by_variable(environment: dict[str, str], message: str) -> None:
    with pytest.raises(LoadingError) as caught:
        load_model(environment)
    assert message in str(caught.value)


def test_an_environment_describes_a_network_or_a_sleeper(network: Path) -> None:
    environment = {"SLUICE_MODEL": network.name, "LAMBDA_TASK_ROOT": str(network.parent)}
    model, named = load_model(environment), load_model({**environment, "SLUICE_MODEL_NAME": "m"})
    assert isinstance(model, OnnxModel) and (model.name, named.name) == ("small", "m")
    sleeper = load_model({"SLUICE_MODEL_NAME": "m", "SLUICE_SLEEPER_SLOPE": "0.5"})
    assert isinstance(sleeper, Sleeper) and sleeper.service_time(3) == 1.5
    padding = load_model({"SLUICE_MODEL_NAME": "m", "SLUICE_SLEEPER_SIZE_SLOPE": "0.25", "SLUICE_SLEEPER_INTERCEPT": "1"})
    assert isinstance(padding, Sleeper) and padding.service_time(2, 3.0) == 2.5


def test_a_file_that_is_no_network_is_told_with_what_the_runtime_says(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    with pytest.raises(LoadingError, match=r"SLUICE_MODEL: '.*broken\.onnx' cannot be loaded: InvalidProtobuf"):
        load_model({"SLUICE_MODEL": str(tmp_path / "broken.onnx")})


@pytest.mark.parametrize(("memory_mb", "expected"), [(128, 1), (1769, 1), (3008, 2), (5307, 3), (10240, 6)])
def test_threads_are_those_the_memory_buys(memory_mb: int, expected: int) -> None:
    assert threads({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(memory_mb)}) == expected


def test_threads_elsewhere_are_one_or_those_asked_for() -> None:
    assert threads({}) == 1
    assert threads({"SLUICE_THREADS": "4"}) == 4
    with pytest.raises(LoadingError, match="SLUICE_THREADS: '0' is not allowed; allowed: an integer >= 1"):
        threads({"SLUICE_THREADS": "0"})
