"""Benchmarks that measure in a process that has one core: numpy reads how many it may use as it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def on_one_core(name: str, body: Callable[[], object]) -> None:
    """Run ``body``, where this process has one core; where it has not, run the benchmark in another one that has."""
    if ONE_CORE.items() <= os.environ.items():
        body()
    else:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=os.environ | ONE_CORE, check=True)
