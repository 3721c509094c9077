"""The functions of HarmonyBatch's model, what they take for a batch and what an invocation costs: data/harmonybatch-model.json.

A batch of b on a CPU function of c vCPU takes alpha exp(-c / beta) + gamma seconds, with coefficients for each b from 1 to 4: one
set for the mean, which is billed, one for the longest, which the promise is about. On a GPU function of m of the M GB of a device
it takes L = slope b + intercept seconds of the whole device, M / m times as long in the mean; at longest it meets
ceil(L / (m t)) slices of length t (M - m) that belong to others. All prices are CNY.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.service import ServiceTimes

from ..publishing import DATA

FILE = DATA / "harmonybatch-model.json"
STEP = 0.05  # vCPU, in which functions can be had
MOST_VCPU = 5.0  # beyond which the longest time of no batch falls by a millisecond
MEMORY_STEP = 64  # MB
VCPU_PER_GB = 4.0  # of memory, the least; the most is one GB for each vCPU
WHOLE, EXACT = "whole seconds", "exact"
BILLS = (WHOLE, EXACT)


class CpuModel(msgspec.Struct, frozen=True):
    """Ranges of vCPU and batch sizes; MB for each of a batch and beside; coefficients alpha, beta (vCPU), gamma by batch size."""

    vcpu: tuple[float, float]
    batch_size: tuple[int, int]
    memory_mb: tuple[float, float]
    mean: list[tuple[float, float, float]]
    longest: list[tuple[float, float, float]]


class GpuModel(msgspec.Struct, frozen=True):
    """Range of device memory and batch sizes, seconds of the whole device, its slices (s), and what of its host comes with it.

    ``smallest_gb`` is what the network needs; ``margin`` multiplies the longest time of a part of the device.
    """

    memory_gb: tuple[int, int]
    batch_size: tuple[int, int]
    host_memory_mb: int
    slope: float
    intercept: float
    slice: float
    device_gb: int
    smallest_gb: int
    gb_per_vcpu: float
    margin: float


class Prices(msgspec.Struct, frozen=True):
    """CNY."""

    vcpu_second: float
    gb_second: float
    gpu_gb_second: float
    invocation: float


class Model(msgspec.Struct, frozen=True):
    """What is kept of HarmonyBatch's repository."""

    source: str
    licence: str
    cpu: CpuModel
    gpu: GpuModel
    prices: Prices


@cache
def model() -> Model:
    """As the file has it."""
    return msgspec.json.decode(FILE.read_bytes(), type=Model)


@dataclass(frozen=True, eq=False)
class Function:
    """A function by name; what batches of 1, 2, ... take at longest and are billed for, and CNY of an invocation with each.

    ``service.seconds`` are the longest times, ``service.billed_duration`` the mean ones.
    """

    name: str
    service: ServiceTimes
    invocation: Array

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU function."""
        return self.name.startswith("GPU")

    def up_to(self, batch_size: int) -> Function:
        """The same for batches of at most ``batch_size``."""
        return Function(self.name, self.service.up_to(batch_size), self.invocation[:batch_size])


def exponential(coefficients: tuple[float, float, float], vcpu: float) -> float:
    """Seconds of a batch on so many vCPU."""
    alpha, beta, gamma = coefficients
    return alpha * math.exp(-vcpu / beta) + gamma


def memory_needed(batch_size: int) -> int:
    """MB for batches of this size, in whole steps."""
    each, beside = model().cpu.memory_mb
    return _stepped(each * batch_size + beside)


def cpu_function(vcpu: float, batch_size: int) -> Function:
    """A CPU function whose memory is enough for a largest batch, and at least a GB for each vCPU."""
    cpu, prices = model().cpu, model().prices
    memory_mb = max(memory_needed(batch_size), _stepped(1024 * vcpu))
    longest, mean = (np.array([exponential(of, vcpu) for of in each[:batch_size]]) for each in (cpu.longest, cpu.mean))
    rate = vcpu * prices.vcpu_second + memory_mb / 1024 * prices.gb_second
    return _function(f"CPU {vcpu:.4g} vCPU", memory_mb, longest, mean, prices.invocation + rate * mean)


def gpu_function(memory_gb: int, bill: str) -> Function:
    """A GPU function; its seconds are billed whole, or exactly."""
    gpu, prices = model().gpu, model().prices
    alone = gpu.slope * np.arange(gpu.batch_size[0], gpu.batch_size[1] + 1, dtype=np.float64) + gpu.intercept
    slices = np.ceil(alone / (memory_gb * gpu.slice))
    margin = 1.0 if memory_gb == gpu.device_gb else gpu.margin
    longest = margin * ((gpu.device_gb - memory_gb) * slices * gpu.slice + alone)
    mean = gpu.device_gb / memory_gb * alone
    host = memory_gb / gpu.gb_per_vcpu * prices.vcpu_second + gpu.host_memory_mb / 1024 * prices.gb_second
    rate = host + memory_gb * prices.gpu_gb_second
    billed = np.asarray(np.ceil(mean) if bill == WHOLE else mean)
    return _function(f"GPU {memory_gb} GB", gpu.host_memory_mb, longest, billed, prices.invocation + rate * billed)


def _function(name: str, memory_mb: int, longest: Array, billed: Array, invocation: Array) -> Function:
    return Function(name, ServiceTimes(memory_mb, longest[:, None], np.zeros(len(longest)), billed), invocation)


@cache
def functions(bill: str) -> tuple[Function, ...]:
    """All that a plan may use: CPU functions in steps of vCPU, with the memory of each largest batch, and GPU functions."""
    found: list[Function] = []
    lowest, largest = model().cpu.vcpu[0], model().cpu.batch_size[1]
    for k in range(math.ceil(lowest / STEP), round(MOST_VCPU / STEP) + 1):
        vcpu = k * STEP
        ends = {max(memory_needed(b), _stepped(1024 * vcpu)): b for b in range(1, largest + 1)}
        found += [cpu_function(vcpu, b) for memory_mb, b in ends.items() if memory_mb <= VCPU_PER_GB * vcpu * 1024]
    first, last = max(model().gpu.memory_gb[0], model().gpu.smallest_gb), model().gpu.memory_gb[1]
    return (*found, *(gpu_function(memory_gb, bill) for memory_gb in range(first, last + 1)))


def _stepped(memory_mb: float) -> int:
    """Whole steps of memory, as HarmonyBatch rounds: the MB first cut to whole ones."""
    return MEMORY_STEP * math.ceil(int(memory_mb) / MEMORY_STEP)
