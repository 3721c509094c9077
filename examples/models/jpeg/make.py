"""Makes the network that model.py serves, with weights drawn from a seed: python make.py

In a project of your own it is a network that was trained, as an exporter wrote it.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES = 8, 4

rng = np.random.default_rng(3)
weights = {
    "kernels": rng.standard_normal((CHANNELS, 3, 5, 5), dtype=np.float32) / 5,
    "layer": rng.standard_normal((CHANNELS, CLASSES), dtype=np.float32),
}
nodes = [
    helper.make_node("Conv", ["pixels", "kernels"], ["convolved"], strides=[2, 2]),
    helper.make_node("Relu", ["convolved"], ["features"]),
    helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
    helper.make_node("Flatten", ["pooled"], ["flat"]),
    helper.make_node("MatMul", ["flat", "layer"], ["scores"]),
    helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
]
graph = helper.make_graph(
    nodes,
    "jpeg",
    [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 64, 64])],
    [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
    [numpy_helper.from_array(array, name) for name, array in weights.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, Path(__file__).with_name("network.onnx"))
