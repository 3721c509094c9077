"""Networks to serve, made here: no download, the same bytes for the same seed.

    mlp         a multilayer perceptron, input ``x`` FP32 [batch, 512]: bound by reading its weights, so a batch costs little more
                than a single request, and batching pays even on one core
    googlenet   GoogLeNet (inception_v1), input ``data_0`` FP32 [batch, 3, 224, 224]: bound by arithmetic, so on one core a batch
                of b takes b times as long

    python -m sluice.local.networks mlp .networks/mlp.onnx

GoogLeNet's graph is the one the ``onnx`` package ships for its own tests, whose weights are constants and whose batch is 1: the
weights are drawn anew (with constants the output ignores the input) and the batch is made symbolic.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20261121
OPSET = 17
IR_VERSION = 8
MLP_WIDTHS = (512, 2560, 2560, 2560, 512)


def make_mlp(seed: int = SEED, widths: tuple[int, ...] = MLP_WIDTHS) -> onnx.ModelProto:
    """Fully connected layers with ReLU between, ``x`` [batch, widths[0]] to ``y`` [batch, widths[-1]]."""
    rng = np.random.default_rng(seed)
    nodes, weights, name = [], [], "x"
    last = len(widths) - 2
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        weights.append(numpy_helper.from_array(_draw(rng, (fan_in, fan_out), fan_in), f"w{layer}"))
        weights.append(numpy_helper.from_array(_draw(rng, (fan_out,), 100), f"b{layer}"))
        out = "y" if layer == last else f"h{layer}"
        nodes.append(helper.make_node("Gemm", [name, f"w{layer}", f"b{layer}"], [out if layer == last else f"a{layer}"]))
        if layer != last:
            nodes.append(helper.make_node("Relu", [f"a{layer}"], [out]))
        name = out
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", widths[-1]])],
        weights,
    )
    return _checked(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION))


def make_googlenet(seed: int = SEED) -> onnx.ModelProto:
    """GoogLeNet, ``data_0`` [batch, 3, 224, 224] to ``prob_1`` [batch, 1000]."""
    rng = np.random.default_rng(seed)
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_inception_v1.onnx")
    graph = model.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {node.output[0]: stored.pop(node.input[0]) for node in graph.node if node.op_type == "ConstantOfShape"}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    reshapes_of_data = {n.input[1] for n in nodes if n.op_type == "Reshape" and n.input[0] not in shapes}
    for name, array in stored.items():
        if name in reshapes_of_data:
            stored[name] = np.concatenate([[-1], array[1:]]).astype(np.int64)
        elif array.dtype == np.float32:
            stored[name] = _draw(rng, array.shape, 100)
    for name, shape in shapes.items():
        stored[name] = _draw(rng, tuple(int(size) for size in shape), int(np.prod(shape[1:])))
    inputs = [value for value in graph.input if value.name not in stored and not value.name.endswith("__SHAPE")]
    for value in [*inputs, *graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    rebuilt = helper.make_graph(nodes, "googlenet", inputs, list(graph.output), weights)
    return _checked(helper.make_model(rebuilt, opset_imports=list(model.opset_import), ir_version=IR_VERSION))


def _draw(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> npt.NDArray[np.float32]:
    """Normal weights of variance 2 / fan_in, so that the signal neither fades nor grows through ReLUs (He et al. 2015)."""
    drawn = rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(2 / fan_in))
    return drawn.astype(np.float32)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(model)
    return model


MAKERS: dict[str, Callable[[], onnx.ModelProto]] = {"mlp": make_mlp, "googlenet": make_googlenet}


def write_network(name: str, path: str | Path) -> Path:
    """Make the network into a file; an interrupted run leaves no half of one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(MAKERS[name]().SerializeToString(deterministic=True))
    return partial.replace(path)


def main() -> None:
    """Make one network into a file."""
    parser = argparse.ArgumentParser(prog="python -m sluice.local.networks", description="Make a network to serve.")
    parser.add_argument("name", choices=sorted(MAKERS))
    parser.add_argument("path", help="the .onnx file to write")
    arguments = parser.parse_args()
    try:
        path = write_network(arguments.name, arguments.path)
    except OSError as error:
        print(f"sluice.local.networks: {arguments.path}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
