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
    fixed_workers         those that `sluice recommend` finds
    autoscaled            a SageMaker endpoint            workers whose number follows the load, late
    with_overflow         MArk                            workers, and a function for what overflows

Every docstring says what of the original is kept and what is left out. None sees an arrival before it has come.

``NAMES`` has them by name, with what each needs; a ``Situation`` is what they are made for, and ``named_deployments`` makes them.
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
from sluice.optimizer.baselines.in_time import largest_throughput, seconds_in_time
from sluice.optimizer.baselines.names import NAMES, USAGE, all_names, named, named_deployments, require_all_taken, written
from sluice.optimizer.baselines.overflow import Forecasting, with_overflow
from sluice.optimizer.baselines.situation import Situation, Workload
from sluice.optimizer.baselines.sizing import MOST_WORKERS, fewest_workers
from sluice.optimizer.baselines.workers import aimd, deadline, early_drop, fixed_workers, greedy, smdp, static

__all__ = [
    "MOST_WORKERS",
    "NAMES",
    "USAGE",
    "Forecasting",
    "Situation",
    "TargetTracking",
    "Workload",
    "aimd",
    "all_names",
    "autoscaled",
    "deadline",
    "early_drop",
    "fewest_workers",
    "fixed_workers",
    "greedy",
    "largest_throughput",
    "last_moment",
    "named",
    "named_deployments",
    "no_batching",
    "past_windows",
    "recommended",
    "reoptimised",
    "require_all_taken",
    "seconds_in_time",
    "size_or_timeout",
    "smdp",
    "static",
    "with_headroom",
    "with_overflow",
    "written",
]
