"""What every server of `python -m benchmarks peers` does with a request, ours among them; ``WORK`` names it."""

import json
import os
import time

import msgspec
import numpy as np

INTERCEPT, SLOPE = 1.05e-3, 0.305e-3  # s, s a request: GoogLeNet on a Tesla P4

_decode = msgspec.json.Decoder(list[float]).decode
encode = msgspec.json.Encoder().encode


def echo(bodies):
    return bodies


def total(bodies):
    """The sum of a list of numbers in JSON."""
    return [encode({"sum": sum(_decode(body))}) for body in bodies]


def tensors(bodies):
    """The sum of a binary tensor, after a line of JSON as the Open Inference Protocol has it."""
    answers = []
    for body in bodies:
        head, _, raw = body.partition(b"\n")
        assert json.loads(head)["inputs"][0]["datatype"] == "FP32"
        answers.append(encode({"sum": float(np.frombuffer(raw, np.float32).sum())}))
    return answers


def sleep(bodies):
    """What takes l(b) = 1.05 + 0.305 b ms."""
    time.sleep(INTERCEPT + SLOPE * len(bodies))
    return bodies


WORKS = {"echo": echo, "total": total, "tensors": tensors, "sleep": sleep}
work = WORKS[os.environ.get("WORK", "echo")]
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "32"))
WAIT_MS = float(os.environ.get("WAIT_MS", "5"))
