"""What the worker chooses and measures: providers, service times, energy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.lambda_fn.models.providers import choose_providers, unused_gpu
from sluice.lambda_fn.worker.energy import energy_of
from sluice.lambda_fn.worker.measurements import SAMPLE, SIZES, Measurements

CUDA, TENSORRT, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("available", "named", "chosen"),
    [
        ([TENSORRT, CUDA, CPU], None, [CUDA, CPU]),
        ([CPU], None, [CPU]),
        ([TENSORRT, CUDA, CPU], "tensorrt,cuda", [TENSORRT, CUDA, CPU]),
        ([CUDA, CPU], "cpu", [CPU]),
    ],
)
def test_providers_are_what_is_there_unless_they_are_named(available: list[str], named: str | None, chosen: list[str]) -> None:
    assert choose_providers(available, {} if named is None else {"SLUICE_PROVIDERS": named}) == chosen


def test_a_provider_that_is_none_or_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="SLUICE_PROVIDERS: 'gpu' is not allowed; allowed: tensorrt, cuda, cpu"):
        choose_providers([CPU], {"SLUICE_PROVIDERS": "gpu"})
    with pytest.raises(ValueError, match="SLUICE_PROVIDERS: 'cuda' is not in this ONNX Runtime, which has CPU"):
        choose_providers([CPU], {"SLUICE_PROVIDERS": "cuda,cpu"})


def test_a_gpu_that_is_not_used_is_told_with_what_helps_and_one_that_is_or_is_not_wanted_is_not() -> None:
    gpu = ["/dev/nvidia0"]
    assert "pip install onnxruntime-gpu" in unused_gpu(gpu, [CPU], [CPU], {})
    assert "its CUDA provider did not start" in unused_gpu(gpu, [CPU], [CUDA, CPU], {})
    assert unused_gpu(gpu, [CUDA, CPU], [CUDA, CPU], {}) == ""
    assert unused_gpu(gpu, [CPU], [CPU], {"SLUICE_PROVIDERS": "cpu"}) == ""
    assert unused_gpu([], [CPU], [CPU], {}) == ""


def test_what_is_kept_of_measurements_is_bounded_and_the_mean_counts_all() -> None:
    measurements = Measurements()
    for i in range(SAMPLE + 100):
        measurements.add(4, seconds=float(i), overhead=0.5)
    assert len(measurements.by_size[4].recent) == SAMPLE
    for size in range(1, SIZES + 100):
        measurements.add(size, seconds=1.0, overhead=0.0)
    assert len(measurements.by_size) == SIZES
    profile = measurements.profile("f", "m", 100, None)
    assert profile is not None
    point = next(point for point in profile.points if point.batch_size == 4)
    assert point.service_time.n == SAMPLE + 101
    assert point.service_time.mean == pytest.approx((sum(range(SAMPLE + 100)) + 1) / (SAMPLE + 101))
    assert (point.energy, point.overhead) == (None, pytest.approx(0.5 * (SAMPLE + 100) / (SAMPLE + 101)))


class Nvml(SimpleNamespace):
    """Three GPUs that have taken 1, 2 and 4 J; the fourth does not count."""

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return [1000, 2000, 4000][handle]


@pytest.mark.parametrize(("visible", "joules"), [(None, 7), ("2", 4), ("0, GPU-1", 3)])
def test_energy_is_that_of_the_gpus_which_the_process_may_see(visible: str | None, joules: float) -> None:
    energy = energy_of(Nvml(), visible)
    assert energy is not None
    assert energy() == joules


@pytest.mark.parametrize("visible", ["", "9"])
def test_without_a_gpu_that_counts_no_energy_is_measured(visible: str) -> None:
    assert energy_of(Nvml(), visible) is None

    class Away(Nvml):
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    away: Any = Away()
    assert energy_of(away, None) is None
