"""A text encoder in ONNX Runtime with its tokenizer: text in, a vector out."""

from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from sluice.lambda_fn import ItemError

HERE = Path(__file__).parent


class TextEncoder:
    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
        self.tokenizer.enable_truncation(128)
        self.tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a small function has one processor, whatever the machine below it has
        self.session = onnxruntime.InferenceSession(HERE / "encoder.onnx", options)

    def predict(self, inputs: list[str]) -> list[object]:
        encodings = self.tokenizer.encode_batch(inputs)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.float32)
        if not mask.any():
            return [ItemError(422, "a text without a word")] * len(inputs)
        (vectors,) = self.session.run(["embedding"], {"ids": ids, "mask": mask})
        return [v if m.any() else ItemError(422, "a text without a word") for v, m in zip(vectors, mask, strict=True)]
