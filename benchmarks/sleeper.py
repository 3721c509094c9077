"""A worker that sleeps as long as a model would take: the environment that makes it one, and its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.local.parent_death import die_with_parent


def sleeper(model: str, intercept: float, slope: float) -> dict[str, str]:
    """The environment of a worker or function that takes ``intercept + slope * b`` seconds for a batch of b."""
    return {"SLUICE_MODEL_NAME": model, "SLUICE_SLEEPER_INTERCEPT": repr(intercept), "SLUICE_SLEEPER_SLOPE": repr(slope)}


@contextmanager
def sleeping_worker(environment: dict[str, str], log: int | None = None) -> Iterator[str]:
    """The address of a worker process with this environment, which ends with its owner; ``log`` is where its log goes."""
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=log, preexec_fn=die_with_parent()
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.kill()
        process.communicate()
