"""How long a batch takes: service times from a profile, by size of its requests too, and laws of one server's."""

from __future__ import annotations

from sluice.optimizer.service.by_size import (
    MixedServiceTimes,
    ServiceBySize,
    require_sizes_of,
    service_by_size,
    service_times_under,
)
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
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.smoothing import Smoothed, smooth, smoothed_profile
from sluice.optimizer.service.times import ServiceTimes, service_times, service_times_up_to

__all__ = [
    "EmpiricalLaw",
    "MixedServiceTimes",
    "ScaledLaw",
    "ServiceBySize",
    "ServiceLaw",
    "ServiceTimes",
    "SizeMix",
    "Smoothed",
    "deterministic",
    "erlang",
    "exponential",
    "gamma",
    "hyperexponential",
    "law_named",
    "require_sizes_of",
    "service_by_size",
    "service_times",
    "service_times_under",
    "service_times_up_to",
    "smooth",
    "smoothed_profile",
]
