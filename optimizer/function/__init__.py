"""What batching does in front of an elastic function, on paper: batch sizes, waits, latency."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.optimizer.when_asked import names_when_asked

if TYPE_CHECKING:
    from sluice.optimizer.function.any_holds import AnyHolds
    from sluice.optimizer.function.batching_law import MOST_BATCH
    from sluice.optimizer.function.class_holds import shared_holds_law
    from sluice.optimizer.function.falling_holds import FallingHolds
    from sluice.optimizer.function.latency import (
        METHODS,
        SIMULATED,
        LatencyPrediction,
        predict_falling_holds,
        predict_latency,
        with_cold_starts,
    )
    from sluice.optimizer.function.waiting_time import SizeOrTimeout, predict_batch_size_pmf, predict_waiting_time_cdf
else:
    __getattr__ = names_when_asked(__name__)

__all__ = [
    "METHODS",
    "MOST_BATCH",
    "SIMULATED",
    "AnyHolds",
    "FallingHolds",
    "LatencyPrediction",
    "SizeOrTimeout",
    "predict_batch_size_pmf",
    "predict_falling_holds",
    "predict_latency",
    "predict_waiting_time_cdf",
    "shared_holds_law",
    "with_cold_starts",
]
