"""The quantiles of every setting three ways: simulated, by the exact law, by BATCH."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.function.latency import LatencyPrediction, predict_latency

from .results import Row
from .settings import Setting, as_in_batch, grid, held_out
from .simulator import simulate

QUANTILES = (0.5, 0.9, 0.95, 0.99)
HELD_OUT_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
N_HELD_OUT = 40
N_REQUESTS = 10_000_000
N_BLOCKS = 200  # for the standard error; the slowest bursts here last some hundreds of requests


def compute(n_requests: int) -> Iterator[Row]:
    """Every setting of the page."""
    for i, setting in enumerate([*grid(), *as_in_batch()]):
        yield from compare(setting, QUANTILES, n_requests, np.random.default_rng([1, i]))
    for i in range(N_HELD_OUT):
        rng = np.random.default_rng([2, i])
        yield from compare(held_out(rng), HELD_OUT_QUANTILES, n_requests, rng)


def compare(setting: Setting, quantiles: Sequence[float], n_requests: int, rng: np.random.Generator) -> Iterator[Row]:
    """The quantiles of one setting, a row for each."""
    exact = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout)
    paper = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout, "batch-paper")
    latencies = simulate(setting, n_requests, rng)
    for q, met in zip(quantiles, held_against(latencies, exact, quantiles), strict=True):
        yield Row(
            setting.group,
            setting.process,
            setting.law,
            setting.batch_size,
            setting.timeout,
            exact.mean_batch_size,
            q,
            met.simulated,
            met.standard_error,
            met.exact,
            paper.quantile(q),
            met.z,
        )


class Met(NamedTuple):
    """A quantile (s) of simulated latencies, its standard error, the predicted quantile, and its standard score as in ``Row``."""

    simulated: float
    standard_error: float
    exact: float
    z: float


def held_against(latencies: Array, exact: LatencyPrediction, quantiles: Sequence[float]) -> Iterator[Met]:
    """Simulated latencies, a multiple of ``N_BLOCKS``, beside a prediction of them."""
    ascending = np.sort(latencies)

    def simulated_quantile(q: float) -> float:
        return float(ascending[min(max(int(np.ceil(q * len(ascending))) - 1, 0), len(ascending) - 1)])

    for q in quantiles:
        predicted, simulated = exact.quantile(q), simulated_quantile(q)
        _, error = share_within(latencies, simulated)
        edge = predicted + 1e-8 * exact.longest  # beyond what the search for the quantile leaves open: atoms are on one side
        share, error_there = share_within(latencies, edge)
        spread = (simulated_quantile(q + error) - simulated_quantile(q - error)) / 2
        yield Met(simulated, spread, predicted, (share - exact.probability_within(edge)) / max(error_there, 1e-12))


def share_within(latencies: Array, seconds: float) -> tuple[float, float]:
    """The share of latencies up to ``seconds``, and its standard error by means of successive blocks."""
    blocks = (latencies <= seconds).reshape(N_BLOCKS, -1).mean(axis=1)
    return float(blocks.mean()), float(blocks.std(ddof=1) / np.sqrt(N_BLOCKS))
