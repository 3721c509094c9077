"""Random stimuli of a simulated queue in which many moments meet, and the queue run over them chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.queue_run import QueueRun
from tests.batching import strategies
from tests.optimizer.deployment_loop import Served

gaps = st.lists(strategies.ticks | st.just(0.0), min_size=1, max_size=60)
service = st.lists(strategies.ticks, min_size=1, max_size=4).map(
    lambda quantiles: ServiceTimes(1024, np.tile(sorted(quantiles), (8, 1)), np.full(8, 1 / 64), np.ones(8))
)
# rates are powers of two, so that tokens are exact
unpinged = st.builds(
    Environments,
    strategies.ticks,
    strategies.ticks | st.just(math.inf),
    st.none() | st.integers(1, 4),
    st.sampled_from([0.25, 1.0, 4.0, 64.0]),
    st.integers(1, 3),
)
pinged = st.builds(
    lambda of, every, more, n: replace(
        of, pinged_every=of.init_duration + every + 1 / 64, keep_alive=of.init_duration + every + more, pinged=n
    ),
    unpinged,
    strategies.ticks,
    (strategies.ticks | st.just(math.inf)).map(lambda seconds: seconds + 1 / 64),
    st.integers(1, 4),
)
environments = unpinged | pinged
splits = st.lists(st.integers(0, 9), max_size=12)


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def run_in_chunks(deployment: Deployment, times: Array, sizes: list[int], classes: Indices | None = None) -> list[Served]:
    """The batches as ``run_deployment`` tells them, of a run over chunks of these ``sizes``, and the rest."""
    run = QueueRun(deployment, rng())
    ends = np.clip(np.cumsum(sizes), 0, len(times)).tolist()
    batches: list[Served] = []
    seen = 0
    for start, end in zip([0, *ends], [*ends, len(times)], strict=True):
        if end == start and end < len(times):
            continue
        progress = run.feed(times[start:end], end == len(times), classes=None if classes is None else classes[start:end])
        places = progress.requests.places if classes is not None else seen + np.arange(len(progress.requests.times))
        for first, size, leaves, response, mark in zip(*progress.batches, strict=True):
            members = places[first : first + size].tolist()
            batches.append((float(leaves), float(response), members, int(mark) // 2, bool(mark % 2)))
        seen += progress.n_left
        if end == len(times):
            break
    return batches
