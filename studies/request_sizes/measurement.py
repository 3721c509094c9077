"""Measure a model that pads over batch x size, by the processor time of its thread: data/request-sizes-profile.json.

    python -m studies.request_sizes.measurement sluice.local.padded_encoder:PaddedEncoder --seconds 420

Every round runs each setting once, in random order, so that a drift of the machine touches all alike; the first round warms up and
is not counted. Processor time is what a quiet core would take of the wall, and stays so where other work shares the machine.
"""

from __future__ import annotations

import importlib
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, write
from sluice.optimizer.arrays import Array

from .results import PROFILE

SIZES = (8, 16, 32, 64, 128, 256, 512)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MEMORY_MB = 1769  # one core
LEVELS = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
DIGITS = 6
VOCABULARY = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the class that is named, and keep the profile."""
    parser = ArgumentParser("python -m studies.request_sizes.measurement", description=__doc__)
    parser.add_argument("model", help="module:Class, whose predict takes objects with tokens")
    parser.add_argument("--seconds", type=float, default=420.0, help="after which no round is begun")
    options = parser.parse_args(arguments)
    module, _, name = options.model.partition(":")
    model = getattr(importlib.import_module(module), name)()
    PROFILE.write_bytes(write(measured(model, options.seconds, np.random.default_rng(0))))


def measured(
    model: Any, seconds: float, rng: np.random.Generator, batch_sizes: Sequence[int] = BATCH_SIZES, sizes: Sequence[int] = SIZES
) -> ServiceProfile:
    """The profile of a model; two counted rounds at least."""
    settings = [(batch_size, size) for batch_size in batch_sizes for size in sizes]
    runs: list[list[float]] = []
    start = time.monotonic()
    while len(runs) < 3 or time.monotonic() - start < seconds:
        took = [0.0] * len(settings)
        for k in rng.permutation(len(settings)):
            batch_size, size = settings[k]
            inputs = [SimpleNamespace(tokens=rng.integers(1, VOCABULARY, size).tolist()) for _ in range(batch_size)]
            began = time.process_time()
            model.predict(inputs)
            took[k] = time.process_time() - began
        runs.append(took)
    points = [_point(*setting, np.array([took[k] for took in runs[1:]])) for k, setting in enumerate(settings)]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return ServiceProfile(function=f"{model.name}-{{memory_mb}}", points=points, measured_at=now)


def _point(batch_size: int, size: int, took: Array) -> ProfilePoint:
    n = len(took)
    quantiles = [(q, _digits(np.quantile(took, q, method="median_unbiased"))) for q in LEVELS if n * min(q, 1 - q) >= 1]
    billed = np.ceil(1000 * took - 1e-9).mean() / 1000
    time_of = ServiceTime(_digits(took.mean()), quantiles, n)
    return ProfilePoint(MEMORY_MB, batch_size, time_of, _digits(billed), size=float(size))


def _digits(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


if __name__ == "__main__":
    main()
