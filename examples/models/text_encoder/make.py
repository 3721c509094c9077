"""Makes what model.py serves: a tokenizer learned from a few sentences, and a network of weights drawn from a seed: python make.py

In a project of your own these two files come with a published model, as its exporter wrote them.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
SENTENCES = (
    "a queue is short while its servers are fast",
    "requests wait together and leave in one batch",
    "a batch that waits for one more request is late",
    "the slower the server the longer the queue",
    "who comes first is served first",
)
WIDTH, DIMENSIONS = 32, 8

tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
tokenizer.train_from_iterator(SENTENCES, trainer)
tokenizer.save(str(HERE / "tokenizer.json"))

# The mean of the tokens' vectors, those of padding left out, through one layer, at length one.
rng = np.random.default_rng(7)
weights = {
    "vectors": rng.standard_normal((tokenizer.get_vocab_size(), WIDTH), dtype=np.float32),
    "layer": rng.standard_normal((WIDTH, DIMENSIONS), dtype=np.float32),
    "last": np.array([-1], np.int64),
    "tokens": np.array([1], np.int64),
}
nodes = [
    helper.make_node("Gather", ["vectors", "ids"], ["each"]),
    helper.make_node("Unsqueeze", ["mask", "last"], ["kept"]),
    helper.make_node("Mul", ["each", "kept"], ["masked"]),
    helper.make_node("ReduceSum", ["masked", "tokens"], ["sum"], keepdims=0),
    helper.make_node("ReduceSum", ["mask", "tokens"], ["length"], keepdims=1),
    helper.make_node("Div", ["sum", "length"], ["mean"]),
    helper.make_node("MatMul", ["mean", "layer"], ["dense"]),
    helper.make_node("LpNormalization", ["dense"], ["embedding"], axis=-1, p=2),
]
graph = helper.make_graph(
    nodes,
    "text_encoder",
    [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "tokens"]),
    ],
    [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", DIMENSIONS])],
    [numpy_helper.from_array(array, name) for name, array in weights.items()],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), HERE / "encoder.onnx")
