"""Stages, each an ordinary class with workers of its own, put together and served as one model: docs/stages.md.

flow.py             what a user writes: Stage, Sequential, Ensemble, Switch
pipeline_state.py   what decides: which item is where, who works on it (no clock, no I/O)
pipeline.py         what does: one thread; workers.py, worker_process.py: who works
admission.py        who may enter
calls.py            what a worker does with a batch, and whose error an error is
frames.py, payloads.py   what passes between processes
"""

from __future__ import annotations

from .errors import (
    DeadlinePassed,
    ItemTooLarge,
    PipelineError,
    PipelineFull,
    PipelineStopped,
    ProcessDied,
    StageDown,
    StageError,
    StageTimeout,
    StartupFailed,
)
from .flow import Ensemble, Sequential, Stage, Switch
from .pipeline import Pipeline

__all__ = [
    "DeadlinePassed",
    "Ensemble",
    "ItemTooLarge",
    "Pipeline",
    "PipelineError",
    "PipelineFull",
    "PipelineStopped",
    "ProcessDied",
    "Sequential",
    "Stage",
    "StageDown",
    "StageError",
    "StageTimeout",
    "StartupFailed",
    "Switch",
]
