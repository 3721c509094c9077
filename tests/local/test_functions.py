"""Functions are checked where they enter; bills and log lines are Lambda's."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching.errors import InvalidInput
from sluice.local.functions import Function, Outcome, Usage

seconds = st.floats(0, 900, allow_nan=False)


def outcome(duration: float, init_duration: float | None = None, **more: Any) -> Outcome:
    settings: dict[str, Any] = {"max_memory_mb": 123, "log": b"", **more}
    return Outcome("id", b"", None, duration, init_duration, **settings)


@given(seconds, st.none() | seconds)
def test_the_bill_is_the_whole_time_in_milliseconds_rounded_up(duration: float, init_duration: float | None) -> None:
    billed = outcome(duration, init_duration).billed_duration
    total = duration + (init_duration or 0)
    assert billed >= 0.001 and billed >= total - 1e-6 and (billed < total + 0.001 or billed == 0.001)
    assert math.isclose(billed * 1000, round(billed * 1000))


def test_a_whole_millisecond_is_not_rounded_up() -> None:
    assert [outcome(ms / 1000).billed_duration for ms in range(1, 100)] == [ms / 1000 for ms in range(1, 100)]


def test_the_report_line_is_lambdas() -> None:
    warm = outcome(0.01234)
    assert warm.report(1769) == (
        "REPORT RequestId: id\tDuration: 12.34 ms\tBilled Duration: 13 ms\tMemory Size: 1769 MB\tMax Memory Used: 123 MB\t\n"
    )
    cold = outcome(0.01234, 0.11)
    assert cold.report(1769) == (
        "REPORT RequestId: id\tDuration: 12.34 ms\tBilled Duration: 123 ms\tMemory Size: 1769 MB\tMax Memory Used: 123 MB\t"
        "Init Duration: 110.00 ms\t\n"
    )


def test_the_log_tail_is_the_last_4_kb() -> None:
    tail = outcome(0.001, log=b"x" * 10_000).log_tail(128, "1")
    assert len(tail) == 4096 and tail.endswith(b"Max Memory Used: 123 MB\t\n")
    assert (
        outcome(0.001, log=b"hello\n").log_tail(128, "1").startswith(b"START RequestId: id Version: 1\nhello\nEND RequestId: id\n")
    )


def test_usage_sums_what_is_billed() -> None:
    usage = Usage()
    usage.add(outcome(0.0101), 2048)
    usage.add(outcome(0.01, 0.1), 2048)
    assert usage.invocations == 2 and usage.cold_starts == 1
    assert usage.billed_duration == pytest.approx(0.011 + 0.110)
    assert usage.gb_seconds == pytest.approx(2 * 0.121)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "function name: '' is not allowed; allowed: a name"),
        ({"memory_mb": 64}, "function memory_mb: 64 is not allowed; allowed: 128 to 10240"),
        ({"timeout": 901.0}, "function timeout: 901.0 is not allowed; allowed: seconds in (0, 900]"),
        ({"handler": "handler"}, "function handler: 'handler' is not allowed; allowed: module.attribute"),
        ({"concurrency_limit": -1}, "function concurrency_limit: -1 is not allowed; allowed: a number >= 0"),
    ],
)
def test_a_function_that_lambda_would_not_take_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Function(**{"name": "f", **settings})
    assert str(caught.value) == message
