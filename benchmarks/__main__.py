"""`make bench`: every benchmark, one after the other; or those named, as in ``python -m benchmarks buffer_throughput``."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = (
    "buffer_throughput",
    "many_models",
    "analysis",
    "class_law",
    "arrival_fits",
    "simulator",
    "smdp",
    "smdp_live",
    "smdp_rates",
    "fleet_milp",
    "split_queue",
    "worker",
    "worker_path",
    "pipeline",
)

for name in sys.argv[1:] or BENCHMARKS:
    if name not in BENCHMARKS:
        sys.exit(f"benchmark: {name!r} is not allowed; allowed: {', '.join(BENCHMARKS)}")
    importlib.import_module(f"benchmarks.{name}").main()
