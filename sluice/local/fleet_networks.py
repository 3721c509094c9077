"""Families of networks that trade accuracy for time, made here: no download, the same weights for the same seed.

    mlp        a multilayer perceptron, input ``x`` FP32 [batch, 64], bound by reading its weights. Cut by rank: every matrix W of
               n x m is drawn as A diag(s) B, where A and B have independent normal entries and s_k = (1 + k / 32)^-2.5; a variant
               keeps the first r columns of A and rows of B and multiplies by the two in turn, r (n + m) weights for n m.
    encoder    a transformer encoder, input ``tokens`` INT64 [batch, 64], bound by arithmetic. Cut by depth: what layer l adds is
               scaled by 0.7 / 2^l; a variant ends after the first layers and has the same head.

The first variant of a family is the whole network. The **accuracy** of a variant is how often its likeliest class is that of the
whole network, in percent, counted over seeded inputs: measured, as there is no other truth about networks that nobody trained.

    python -m sluice.local.fleet_networks .networks

makes them all and prints the accuracies; ``sluice.local.fleet_profiles`` measures their service times.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.local.networks import IR_VERSION, OPSET, SEED

Array = npt.NDArray[Any]

N_INPUTS = 2000
"""Inputs over which accuracy is counted: a standard error of 0.2 percentage points at 99 %, 0.7 at 90 %."""
INPUT_SEED = SEED + 1


@dataclass(frozen=True, slots=True)
class Family:
    """A network and its cuts.

    Parameters
    ----------
    cut_by : str
        What a cut counts: ``rank`` or ``layers``.
    cuts : tuple of int
        The whole network's first, then descending.
    make : callable
        The network with this cut.
    takes : str
        The input's name.
    inputs : callable
        ``inputs(rng, n)``: n random inputs, one a row.
    """

    name: str
    cut_by: str
    cuts: tuple[int, ...]
    make: Callable[[int], onnx.ModelProto]
    takes: str
    inputs: Callable[[np.random.Generator, int], Array]

    @property
    def variants(self) -> dict[str, int]:
        """Cut by the name of the variant, the whole network first."""
        return {f"{self.name}-{self.cut_by}{cut}": cut for cut in self.cuts}

    def write(self, folder: Path) -> dict[str, Path]:
        """Make the networks into ``folder``, unless they are there; the file of each variant."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: folder / f"{name}.onnx" for name in self.variants}
        for name, path in files.items():
            if not path.exists():
                partial = path.with_suffix(".partial")
                partial.write_bytes(self.make(self.variants[name]).SerializeToString(deterministic=True))
                partial.replace(path)
        return files

    def measure_accuracies(self, files: Mapping[str, Path], n: int = N_INPUTS) -> dict[str, float]:
        """Accuracy of each variant in percent, over ``n`` inputs."""
        inputs = self.inputs(np.random.default_rng(INPUT_SEED), n)
        classes = {name: likeliest_class(path, inputs) for name, path in files.items()}
        whole = next(iter(classes.values()))
        return {name: 100 * int(np.count_nonzero(found == whole)) / n for name, found in classes.items()}

    def request(self, row: Array) -> bytes:
        """One input as a caller of the Open Inference Protocol sends it; floats are rounded to six decimals."""
        whole = np.issubdtype(row.dtype, np.integer)
        data = row.tolist() if whole else row.astype(float).round(6).tolist()
        tensor = {"name": self.takes, "datatype": "INT64" if whole else "FP32", "shape": [1, len(row)], "data": data}
        return msgspec.json.encode({"inputs": [tensor]})


def likeliest_class(path: Path, inputs: Array, chunk: int = 100) -> Array:
    """The class that the network finds likeliest, for each row of ``inputs``."""
    model = OnnxModel(path.stem, str(path))
    (takes,), (gives,) = model.takes, model.gives
    parts = np.split(inputs, range(chunk, len(inputs), chunk))
    return np.concatenate([model.compute({takes.name: part})[gives.name].argmax(axis=1) for part in parts])


def make_mlp(rank: int, widths: tuple[int, ...] = (64, 3072, 3072, 3072, 3072, 32), seed: int = SEED) -> onnx.ModelProto:
    """Layers with tanh between, ``x`` [batch, widths[0]] to ``y`` [batch, widths[-1]], with matrices of at most this rank.

    A matrix that its two factors would not make smaller stays whole.
    """
    rng = np.random.default_rng(seed)
    graph = _Graph()
    value = "x"
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        left, right = _factors(rng, fan_in, fan_out)
        if layer > 0:
            value = graph.add("Tanh", value)
        if rank < len(right) and rank * (fan_in + fan_out) < fan_in * fan_out:
            value = graph.add("MatMul", value, graph.weight(left[:, :rank]))
            value = graph.add("MatMul", value, graph.weight(right[:rank]))
        else:
            value = graph.add("MatMul", value, graph.weight(left @ right))
    return graph.model("mlp", ("x", TensorProto.FLOAT, widths[0]), value, widths[-1])


def _factors(rng: np.random.Generator, fan_in: int, fan_out: int) -> tuple[Array, Array]:
    """A diag(s) and B of a matrix that keeps the variance of its input; dropping their last is almost the best cut to a rank."""
    full_rank = min(fan_in, fan_out)
    spectrum = (1 + np.arange(full_rank) / 32) ** -2.5
    spectrum /= np.sqrt(np.sum(spectrum**2))
    left = rng.standard_normal((fan_in, full_rank), dtype=np.float32) * (spectrum / np.sqrt(fan_in)).astype(np.float32)
    return left, rng.standard_normal((full_rank, fan_out), dtype=np.float32)


def make_encoder(
    layers: int,
    depth: int = 8,
    width: int = 256,
    heads: int = 4,
    tokens: int | None = 64,
    vocabulary: int = 1000,
    classes: int = 32,
    seed: int = SEED,
) -> onnx.ModelProto:
    """The first ``layers`` of ``depth``, ``tokens`` [batch, tokens] to ``y`` [batch, classes].

    Without a number of ``tokens`` that dimension is symbolic, up to ``LONGEST``: token 0 fills rows up to the longest of their
    batch, and nothing looks at it, so that a row has the same answer in any batch.

    A layer is x + attention(norm(x)), then x + perceptron(norm(x)) with a hidden layer of 4 ``width`` (Xiong et al., On Layer
    Normalization in the Transformer Architecture, ICML 2020, the "pre-LN" form, with tanh inside); the head reads the mean over
    the tokens.
    """
    rng = np.random.default_rng(seed)
    graph = _Graph()
    split = graph.weight(np.array([0, 0, heads, width // heads]))
    merge = graph.weight(np.array([0, 0, width]))
    norm = (graph.weight(np.ones(width, np.float32)), graph.weight(np.zeros(width, np.float32)))

    def draw(fan_in: int, fan_out: int, scale: float = 1.0) -> Array:
        return rng.standard_normal((fan_in, fan_out), dtype=np.float32) * np.float32(scale / np.sqrt(fan_in))

    def unseen() -> str:
        """What is added to the scores of the tokens that fill a row up, [batch, 1, 1, tokens]."""
        lowered = graph.add(
            "Mul", graph.add("Sub", kept, graph.weight(np.array(1, np.float32))), graph.weight(np.array(1e9, np.float32))
        )
        return graph.add("Unsqueeze", lowered, graph.weight(np.array([1, 2])))

    def attention(value: str, weights: list[Array]) -> str:
        by_head = [graph.add("Reshape", graph.add("MatMul", value, graph.weight(weight)), split) for weight in weights[:3]]
        query, key, values = (graph.add("Transpose", part, perm=perm) for part, perm in zip(by_head, HEADS_FIRST, strict=True))
        scores = graph.add("MatMul", query, key)
        if tokens is None:
            scores = graph.add("Add", scores, hidden_tokens)
        seen = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        return graph.add(
            "MatMul", graph.add("Reshape", graph.add("Transpose", seen, perm=(0, 2, 1, 3)), merge), graph.weight(weights[3])
        )

    value = graph.add("Gather", graph.weight(rng.standard_normal((vocabulary, width), dtype=np.float32)), "tokens")
    places = graph.weight(rng.standard_normal((LONGEST if tokens is None else tokens, width), dtype=np.float32) / 5)
    if tokens is None:
        kept = graph.add("Cast", graph.add("Not", graph.add("Equal", "tokens", graph.weight(np.array(0)))), to=TensorProto.FLOAT)
        hidden_tokens = unseen()
        length = graph.add("Shape", "tokens", start=1, end=2)
        places = graph.add("Slice", places, graph.weight(np.array([0])), length)
    value = graph.add("Add", value, places)
    head = draw(width, classes)
    for layer in range(layers):
        added = 0.7 / 2**layer
        sharpness = (width // heads) ** -0.25  # on queries and keys each: their product has variance 1 (Vaswani et al. 2017)
        scales = (sharpness, sharpness, 1.0, added)
        normed = graph.add("LayerNormalization", value, *norm)
        value = graph.add("Add", value, attention(normed, [draw(width, width, scale) for scale in scales]))
        hidden = graph.add("MatMul", graph.add("LayerNormalization", value, *norm), graph.weight(draw(width, 4 * width)))
        perceptron = graph.add("MatMul", graph.add("Tanh", hidden), graph.weight(draw(4 * width, width, added)))
        value = graph.add("Add", value, perceptron)
    if tokens is None:
        weight = graph.add("Div", kept, graph.add("ReduceSum", kept, graph.weight(np.array([1])), keepdims=1))
        row = graph.add("MatMul", graph.add("Unsqueeze", weight, graph.weight(np.array([1]))), value)
        value = graph.add("LayerNormalization", graph.add("Squeeze", row, graph.weight(np.array([1]))), *norm)
    else:
        value = graph.add("LayerNormalization", graph.add("ReduceMean", value, axes=(1,), keepdims=0), *norm)
    value = graph.add("MatMul", value, graph.weight(head))
    return graph.model("encoder", ("tokens", TensorProto.INT64, tokens), value, classes)


LONGEST = 512
"""Tokens of the longest row of an encoder without a fixed number of them."""
HEADS_FIRST = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
"""[batch, tokens, heads, width] of queries, keys (transposed as well) and values to [batch, heads, …]."""


class _Graph:
    """Nodes and weights in the order in which they are added, named by their place."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, array: Array) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def model(self, name: str, takes: tuple[str, int, int | None], last: str, n_classes: int) -> onnx.ModelProto:
        self._nodes[-1].output[0] = "y"
        assert last == f"v{len(self._nodes) - 1}"
        inputs = [helper.make_tensor_value_info(takes[0], takes[1], ["batch", takes[2] or takes[0]])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", n_classes])]
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model


def _normal(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_normal((n, 64), dtype=np.float32).round(6)


def _words(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(0, 1000, (n, 64))


FAMILIES = (
    Family("mlp", "rank", (3072, 320, 160, 80), make_mlp, "x", _normal),
    Family("encoder", "layers", (8, 6, 4, 3), make_encoder, "tokens", _words),
)


def main() -> None:
    """Make the networks and print their accuracies as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.local.fleet_networks", description="Make families of networks to serve."
    )
    parser.add_argument("folder", type=Path, help="where the .onnx files go; those that are there are kept")
    folder = parser.parse_args().folder
    try:
        accuracies = {family.name: family.measure_accuracies(family.write(folder)) for family in FAMILIES}
    except OSError as error:
        print(f"sluice.local.fleet_networks: {folder}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    print(msgspec.json.format(msgspec.json.encode(accuracies)).decode())


if __name__ == "__main__":
    main()
