"""What systems of the literature do with one queue, each as a ``Deployment`` to be simulated beside the others.

    no_batching           AWS Lambda as it is             an elastic function
    size_or_timeout       settings made by hand
    recommended           BATCH, once
    reoptimised           BATCH, window by window
    last_moment           the rule of Proteus before a function
    with_headroom         recommended, tried on the past
    greedy, static        a loop without a timer          workers whose number stays
    smdp                  Xu et al.
    deadline              Proteus
    aimd                  Clipper
    early_drop            Nexus
    fixed_workers         the pool `sluice recommend` offers
    autoscaled            a SageMaker endpoint            workers whose number follows the load, late
    hybrid                MArk                            workers and a function

Every docstring says what of the original is kept and what is left out. None sees an arrival before it has come.
"""

from __future__ import annotations

from sluice.optimizer.baselines.autoscaling import TargetTracking, autoscaled
from sluice.optimizer.baselines.functions import (
    last_moment,
    no_batching,
    past_windows,
    recommended,
    reoptimised,
    size_or_timeout,
    with_headroom,
)
from sluice.optimizer.baselines.hardware import Function, largest_throughput, on_workers, seconds_in_time
from sluice.optimizer.baselines.sizing import MOST_WORKERS, fewest_workers
from sluice.optimizer.baselines.spillover import Forecasting, hybrid
from sluice.optimizer.baselines.workers import aimd, deadline, early_drop, fixed_workers, greedy, smdp, static

__all__ = [
    "MOST_WORKERS",
    "Forecasting",
    "Function",
    "TargetTracking",
    "aimd",
    "autoscaled",
    "deadline",
    "early_drop",
    "fewest_workers",
    "fixed_workers",
    "greedy",
    "hybrid",
    "largest_throughput",
    "last_moment",
    "no_batching",
    "on_workers",
    "past_windows",
    "recommended",
    "reoptimised",
    "seconds_in_time",
    "size_or_timeout",
    "smdp",
    "static",
    "with_headroom",
]
