"""The profiler against the real local Lambda runtime, with the sleeper as the ruler."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np
import pytest

from sluice.lambda_fn import contract
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


class Kept:
    """Invokes, and keeps what the runtime reported of every invocation, by function and size of the batch, in order."""

    def __init__(self, url):
        self._invoke = LambdaInvocations(url)
        self.runs = defaultdict(list)

    def __call__(self, function, payload):
        run = self._invoke(function, payload)
        self.runs[function, len(contract.decode_batch(payload).items)].append(run)
        return run

    def reports(self, function):
        return [run.report for (name, _), runs in self.runs.items() if name == function for run in runs]


async def test_the_sleepers_service_time_is_measured_and_the_bill_agrees_with_the_runtimes_own(runtime):
    sweep = Sweep(
        function="ruler-{memory_mb}:live",
        memory_sizes=(1769, 3008),
        batch_sizes=(1, 8, 32),
        samples=(Sample(b'{"x": [1, 2, 3]}'),),
        model="ruler",
        n_min=5,
        n_max=5,
    )
    invoke = Kept(runtime.url)
    measured = await asyncio.to_thread(measure_service_times, sweep, invoke, np.random.default_rng(0))

    digit = 1e-5 / 2  # s, by which a report, in hundredths of a millisecond, is off at the most
    for point in measured.profile.points:
        counted = invoke.runs[sweep.function_at(point.memory_mb), point.batch_size][1:]  # the first warmed up
        durations = [run.report.duration for run in counted]
        # How much later than its time the ruler ends is the machine's; never before, and the profile has what the runtime saw.
        assert min(durations) >= INTERCEPT + SLOPE * point.batch_size - digit
        assert point.service_time.n == len(counted) == 5
        assert point.service_time.mean == pytest.approx(np.mean(durations))
        assert dict(point.service_time.quantiles)[0.5] == pytest.approx(np.median(durations))
        assert point.billed_duration == pytest.approx(np.mean([run.report.billed_duration for run in counted]))
        assert all(0 <= run.report.billed_duration - run.report.duration + digit < 0.001 + 2 * digit for run in counted)
        assert point.overhead > 0
        assert point.service_time.mean + point.overhead == pytest.approx(np.mean([run.wall_time for run in counted]))
    for memory_mb in sweep.memory_sizes:
        usage, reports = runtime.usage(f"ruler-{memory_mb}"), invoke.reports(sweep.function_at(memory_mb))
        init = measured.profile.init[memory_mb]
        assert init.n == usage.cold_starts == 1
        assert init.mean == pytest.approx(usage.init_duration, abs=digit)
        assert usage.invocations == len(reports)
        assert sum(report.duration for report in reports) == pytest.approx(usage.duration, abs=digit * len(reports))
    usages = [runtime.usage(f"ruler-{memory_mb}") for memory_mb in sweep.memory_sizes]
    assert sum(usage.invocations for usage in usages) == measured.spent.invocations
    assert sum(usage.gb_seconds for usage in usages) == pytest.approx(measured.spent.gb_seconds)
