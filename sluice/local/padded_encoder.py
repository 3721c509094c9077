"""A transformer encoder that takes lists of token ids, one a request, and pads a batch to the longest: made here, from a seed.

    SLUICE_MODEL=sluice.local.padded_encoder:PaddedEncoder sluice worker ...

A request is ``{"tokens": [3, 17, 9]}``, 1 to ``LONGEST`` ids from 1 to ``VOCABULARY - 1``; its size is the number of them, which a
plan reads as ``{"by": "json", "name": "tokens"}``. The answer is a vector of 32 numbers, the same in any batch. A batch takes as
long as its longest request has it for all of them: what classes of sizes are for.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnxruntime

from sluice.lambda_fn import ItemError
from sluice.local.fleet_networks import LONGEST, make_encoder

LAYERS, WIDTH, HEADS = 6, 384, 6
VOCABULARY = 1000


class Tokens(msgspec.Struct):
    """What a request says."""

    tokens: list[int]


class PaddedEncoder:
    """The network and the padding; ``heads`` divides ``width``."""

    name = "padded-encoder"

    def __init__(self, layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS) -> None:
        network = make_encoder(layers, layers, width, heads, tokens=None, vocabulary=VOCABULARY)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(network.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def predict(self, inputs: list[Tokens]) -> list[object]:
        """The vector of each; an error of those that are too long, or no tokens."""
        allowed = f"1 to {LONGEST} ids from 1 to {VOCABULARY - 1}"
        fine = [1 <= len(one.tokens) <= LONGEST and all(0 < token < VOCABULARY for token in one.tokens) for one in inputs]
        rows = [one.tokens for one, is_fine in zip(inputs, fine, strict=True) if is_fine]
        vectors = iter(self._encode(rows) if rows else ())
        return [next(vectors) if is_fine else ItemError(422, f"tokens: allowed: {allowed}") for is_fine in fine]

    def _encode(self, rows: list[list[int]]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for filled, row in zip(padded, rows, strict=True):
            filled[: len(row)] = row
        vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]
        (vectors,) = self.session.run(["y"], {"tokens": padded})
        return vectors
