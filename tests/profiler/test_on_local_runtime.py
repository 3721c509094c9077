"""The profiler against the real local Lambda runtime, with the sleeper as the ruler."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sluice.local.functions import Function
from sluice.local.lambda_runtime import LambdaRuntime
from sluice.profiler.invocations import LambdaInvocations
from sluice.profiler.samples import Sample
from sluice.profiler.service_times import Sweep, measure_service_times

pytestmark = pytest.mark.full

INTERCEPT, SLOPE = 0.010, 0.001


@pytest.fixture
async def runtime(monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    environment = {"SLUICE_MODEL_NAME": "ruler", "SLUICE_SLEEPER_INTERCEPT": str(INTERCEPT), "SLUICE_SLEEPER_SLOPE": str(SLOPE)}
    functions = [Function(name=f"ruler-{memory_mb}", memory_mb=memory_mb, environment=environment) for memory_mb in (1769, 3008)]
    async with LambdaRuntime(functions) as runtime:
        yield runtime


async def test_the_sleepers_service_time_is_measured_and_the_bill_agrees_with_the_runtimes_own(runtime):
    sweep = Sweep(
        function="ruler-{memory_mb}:live",
        memory_sizes=(1769, 3008),
        batch_sizes=(1, 8, 32),
        samples=(Sample(b'{"x": [1, 2, 3]}'),),
        model="ruler",
        n_min=10,
        n_max=30,
        max_seconds=8,
    )
    invoke = LambdaInvocations(runtime.url)
    measured = await asyncio.to_thread(measure_service_times, sweep, invoke, np.random.default_rng(0))

    for point in measured.profile.points:
        true = INTERCEPT + SLOPE * point.batch_size
        median = dict(point.service_time.quantiles)[0.5]
        # The ruler ends within a fraction of a millisecond of its time and never before; handler and Runtime API add under 3 ms.
        assert true <= median < true + 0.003
        assert point.service_time.mean >= true
        assert point.service_time.mean <= point.billed_duration < point.service_time.mean + 0.0015
        assert 0 < point.overhead < 0.02
    assert set(measured.profile.init) == {1769, 3008}
    assert all(init.n == 1 and init.mean > 0.02 for init in measured.profile.init.values())
    usages = [runtime.usage(f"ruler-{memory_mb}") for memory_mb in (1769, 3008)]
    assert sum(usage.invocations for usage in usages) == measured.spent.invocations
    assert sum(usage.gb_seconds for usage in usages) == pytest.approx(measured.spent.gb_seconds, rel=1e-3)
