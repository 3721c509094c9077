"""The energy of the GPUs that this process computes on, through NVML where it is there (``pip install nvidia-ml-py``).

The counter is a GPU's, whoever computes on it; so what a batch took is only asked while nothing else runs here, and who shares the
GPU with others measures theirs too. NVML brings the counter up to date some ten to fifty times a second: the energy of one short
batch is a matter of chance, the mean over many is not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

Energy = Callable[[], float]
"""Joules since some moment."""

_log = logging.getLogger(__name__)


def open_energy() -> Energy | None:
    """The counter of all visible GPUs together; ``None`` where there is none, or NVML is not installed."""
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return energy_of(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))


def energy_of(nvml: Any, visible: str | None) -> Energy | None:
    """The counter through this module of NVML; ``visible``: numbers or UUIDs of GPUs with commas between (``None``: all)."""
    try:
        nvml.nvmlInit()
        handles = _handles(nvml, visible)
        for handle in handles:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # no driver, no GPU, or one that does not count
        _log.info("energy is not measured: %s", error)
        return None
    if not handles:
        return None
    return lambda: sum(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles) / 1000  # millijoules


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name) for name in names
    ]
