"""How long a batch takes: service times from a profile, and laws of one server's."""

from __future__ import annotations

from sluice.optimizer.service.law import (
    EmpiricalLaw,
    ScaledLaw,
    ServiceLaw,
    deterministic,
    erlang,
    exponential,
    gamma,
    hyperexponential,
    law_named,
)
from sluice.optimizer.service.smoothing import Smoothed, smooth, smoothed_profile
from sluice.optimizer.service.times import ServiceTimes, service_times, service_times_up_to

__all__ = [
    "EmpiricalLaw",
    "ScaledLaw",
    "ServiceLaw",
    "ServiceTimes",
    "Smoothed",
    "deterministic",
    "erlang",
    "exponential",
    "gamma",
    "hyperexponential",
    "law_named",
    "service_times",
    "service_times_up_to",
    "smooth",
    "smoothed_profile",
]
