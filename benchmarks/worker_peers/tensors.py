"""What both peers do with a request: the same JSON in and out, by msgspec, and the same session of ONNX Runtime."""

import os

import msgspec
import numpy as np
import onnxruntime

decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def read(body):
    """The rows of a request."""
    tensor = decode(body)["inputs"][0]
    return np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])


def write(array):
    """The document of an answer."""
    tensor = {"name": "y", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
    return {"model_name": "mlp", "model_version": "1", "outputs": [tensor]}


class Network:
    """The network that ``NETWORK`` names."""

    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(os.environ["NETWORK"], options, providers=["CPUExecutionProvider"])

    def compute(self, arrays):
        """The outputs of each of these inputs, computed together."""
        outputs = self.session.run(None, {"x": np.concatenate(arrays)})[0]
        return np.split(outputs, np.cumsum([len(array) for array in arrays])[:-1])
