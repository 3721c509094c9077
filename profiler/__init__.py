"""Measures a function: service times over memory and batch size, cold starts, overhead (`sluice profile`).

``measure_service_times`` runs a ``Sweep`` through whatever invokes (``LambdaInvocations``: the Invoke API of AWS or of the local
runtime; ``WorkerInvocations``: a worker over HTTP; ``SimulatedFunction``: a function of known service time, in virtual time).
"""

from __future__ import annotations

from sluice.batching.documents import model_of
from sluice.profiler.invocations import Invocation, Invoke, LambdaInvocations
from sluice.profiler.samples import Sample, describe_model, make_sample
from sluice.profiler.service_times import MeasuredPoint, MeasuredServiceTimes, Sweep, SweepCost, measure_service_times
from sluice.profiler.simulated import SimulatedFunction
from sluice.profiler.worker_invocations import WorkerInvocations

__all__ = [
    "Invocation",
    "Invoke",
    "LambdaInvocations",
    "MeasuredPoint",
    "MeasuredServiceTimes",
    "Sample",
    "SimulatedFunction",
    "Sweep",
    "SweepCost",
    "WorkerInvocations",
    "describe_model",
    "make_sample",
    "measure_service_times",
    "model_of",
]
