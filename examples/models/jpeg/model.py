"""Classification of images: the bytes of a JPEG, or whatever Pillow reads, in; a label out."""

from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

LABELS = ("dawn", "noon", "dusk", "night")
SIZE = (64, 64)


class Jpeg:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(Path(__file__).with_name("network.onnx"), options)

    def predict(self, inputs: list[Image.Image]) -> list[dict[str, object]]:
        pixels = np.stack([np.asarray(image.convert("RGB").resize(SIZE), np.float32) / 255 for image in inputs])
        (probabilities,) = self.session.run(None, {"pixels": pixels.transpose(0, 3, 1, 2)})
        return [{"label": LABELS[row.argmax()], "probability": row.max()} for row in probabilities]
