"""What Lambda reports of an invocation is read as it is printed."""

import base64
import json

import pytest

from sluice.batching.errors import FunctionFailed
from sluice.profiler.reports import Report, parse_report


def tail(*lines: str) -> str:
    return base64.b64encode("\n".join(lines).encode()).decode()


WARM = "REPORT RequestId: 3897\tDuration: 12.34 ms\tBilled Duration: 13 ms\tMemory Size: 512 MB\tMax Memory Used: 90 MB\t"


def test_a_warm_run_has_its_durations_in_seconds_and_no_init():
    report = parse_report(tail("START RequestId: 3897 Version: $LATEST", "END RequestId: 3897", WARM))
    assert report == Report(pytest.approx(0.01234), pytest.approx(0.013), 512, 90, None)


def test_a_cold_start_shows_its_init_apart():
    assert parse_report(tail(WARM + "Init Duration: 210.50 ms\t")).init_duration == pytest.approx(0.2105)


def test_a_line_of_the_function_that_looks_like_a_report_is_not_taken():
    fake = WARM.replace("12.34", "99.99")
    assert parse_report(tail(fake, "END RequestId: 3897", WARM, "XRAY TraceId: 1")).duration == pytest.approx(0.01234)


def test_the_json_log_format_says_the_same():
    metrics = {"durationMs": 12.34, "billedDurationMs": 13, "memorySizeMB": 512, "maxMemoryUsedMB": 90, "initDurationMs": 210.5}
    record = {"requestId": "3897", "metrics": metrics, "status": "success"}
    line = json.dumps({"time": "2026-11-01T00:00:00Z", "type": "platform.report", "record": record})
    assert parse_report(tail(line)) == Report(pytest.approx(0.01234), pytest.approx(0.013), 512, 90, pytest.approx(0.2105))


def test_a_log_without_a_report_is_shown():
    with pytest.raises(FunctionFailed, match=r"no REPORT line in the log tail .*nothing to see"):
        parse_report(tail("nothing to see"))


def test_a_report_that_lacks_a_field_names_it():
    with pytest.raises(FunctionFailed, match="lacks Billed Duration, Max Memory Used"):
        parse_report(tail("REPORT RequestId: 1\tDuration: 1.00 ms\tMemory Size: 512 MB"))


def test_a_tail_that_is_not_base64_says_so():
    with pytest.raises(FunctionFailed, match="not base64"):
        parse_report("!!!")
