"""One format of the log for all processes, and no warning again and again."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import EndpointConnectionError

from sluice.batching.errors import InvalidInput
from sluice.batching.log_lines import LONGEST_LINE, MOST_KINDS, LogLines, Repeated, log_to, log_to_stderr


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for library in ("botocore", "botocore.credentials", "urllib3"):
        logging.getLogger(library).setLevel(logging.NOTSET)
    sys.excepthook, threading.excepthook = hooks


def written(lines: LogLines) -> io.StringIO:
    """What is logged from now on."""
    stream = io.StringIO()
    log_to(stream, lines)
    return stream


def test_a_line_of_text_has_time_level_and_logger() -> None:
    stream = written(LogLines())
    logging.getLogger("sluice.x").info("served %d", 3)
    logging.getLogger("redis").warning("a library's")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(" INFO sluice.x: served 3") and second.endswith(" WARNING redis: a library's")


def test_a_line_of_json_is_one_line_with_the_stack_of_calls_within() -> None:
    stream = written(LogLines("json", "warning"))
    logging.getLogger("sluice.x").info("not told at this level")
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        logging.getLogger("sluice.x").exception("a batch of %d failed ✗", 3)
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert told["level"] == "ERROR" and told["logger"] == "sluice.x" and told["message"] == "a batch of 3 failed ✗"
    assert told["traceback"].endswith("RuntimeError: two\nlines") and told["time"].endswith("Z")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_told_has_a_longest_length(form: str) -> None:
    stream = written(LogLines(form))
    logging.getLogger("x").info("y" * 10**6)
    assert LONGEST_LINE <= len(stream.getvalue()) <= LONGEST_LINE + 200


def record(said: str, level: int = logging.WARNING, logger: str = "x") -> logging.LogRecord:
    return logging.LogRecord(logger, level, "", 0, said, (), None)


@pytest.mark.parametrize(("level", "told"), [("info", ["is away"]), ("debug", ["found credentials", "is away"])])
def test_the_library_of_aws_tells_where_its_keys_are_to_who_looks_for_a_defect(level: str, told: list[str]) -> None:
    stream = written(LogLines("text", level))
    logging.getLogger("botocore.credentials").info("found credentials")
    logging.getLogger("botocore.endpoint").warning("is away")
    assert [line.partition(": ")[2] for line in stream.getvalue().splitlines()] == told


def test_what_the_library_of_aws_signs_and_sends_is_told_at_no_level() -> None:
    """Neither the token of a role's session, which is in each request that is signed, nor a document of keys or plans."""
    stream = written(LogLines("text", "debug"))
    SigV4Auth(Credentials("key", "secret", "token of a role"), "lambda", "us-east-1").add_auth(AWSRequest("POST", "http://h", {}))
    session = botocore.session.Session()
    session.set_credentials("key", "secret", "token of a role")
    client = session.create_client(
        "ssm", "us-east-1", endpoint_url="http://127.0.0.1:1", config=Config(retries={"total_max_attempts": 1})
    )
    with pytest.raises(EndpointConnectionError):
        client.put_parameter(Name="/keys", Value="hashed keys", Type="String")
    assert stream.getvalue() == ""


def test_a_warning_is_told_once_a_minute_with_how_often_it_came() -> None:
    now = [0.0]
    repeated = Repeated(60.0, lambda: now[0])
    told = []
    for now[0] in range(130):
        for each in (record("Redis is away"), record("a batch failed" if now[0] == 7 else f"at m{now[0]}")):
            if repeated.filter(each):
                told.append((now[0], each.getMessage()))
    again = [(at, line) for at, line in told if line.startswith("Redis")]
    assert again == [
        (0, "Redis is away"),
        (60, "Redis is away (59 more like it in the last 60 s)"),
        (120, "Redis is away (59 more like it in the last 60 s)"),
    ]
    assert (7, "a batch failed") in told and len(told) == 130 + 3, "all others are told at once"


def test_warnings_that_differ_in_their_numbers_alone_are_told_as_one() -> None:
    now = [0.0]
    repeated = Repeated(60.0, lambda: now[0])
    told = []
    for k in range(44):
        now[0] = k / 4.4
        each = record(f"mlp-2: {k} requests wait, {k / 7:.3f}s of work at <Queue object at 0x7f{k:03x}> (slot {k})")
        told += [each.getMessage()] if repeated.filter(each) else []
    assert len(told) == 1
    now[0] = 60.0
    assert repeated.filter(again := record("mlp-2: 99 requests wait, 5ms of work at <Queue object at 0x7f999> (slot 1)"))
    assert again.getMessage().endswith("(slot 1) (43 more like it in the last 60 s)")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mlp1: a batch of 3 failed", "mlp2: a batch of 3 failed"),
        ("7: a batch of 3 failed", "8: a batch of 3 failed"),
        ("mlp-1 is away", "mlp-2 is away"),
        ("queue of '1' is full", "queue of '2' is full"),
        ("worker http://10.0.0.7:8500 fails", "worker http://10.0.0.7:8501 fails"),
        ("worker 10.0.0.7 fails", "worker 10.0.0.8 fails"),
        ("file:plans/1.json: plan refused", "file:plans/2.json: plan refused"),
        ("a batch failed: 5 s", "a call failed: 5 s"),
    ],
)
def test_those_of_different_models_workers_and_places_are_told_each(one: str, other: str) -> None:
    repeated = Repeated(60.0, lambda: 0.0)
    assert repeated.filter(record(one)) and repeated.filter(record(other)) and not repeated.filter(record(one))


def test_those_that_are_of_different_errors_are_told_each() -> None:
    repeated = Repeated(60.0, lambda: 0.0)

    def raised(error: Exception) -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "", 0, "a batch failed", (), (type(error), error, None))

    assert repeated.filter(raised(ValueError("1"))) and repeated.filter(raised(KeyError("1")))
    assert not repeated.filter(raised(ValueError("2")))


def test_what_is_no_warning_is_told_each_time_and_loggers_and_levels_are_apart() -> None:
    repeated = Repeated(60.0, lambda: 0.0)
    assert all(repeated.filter(record("decided", logging.INFO)) for _ in range(3))
    assert (
        repeated.filter(record("away"))
        and repeated.filter(record("away", logging.ERROR))
        and repeated.filter(record("away", logger="y"))
    )
    assert not repeated.filter(record("away"))


def test_the_kinds_that_are_counted_are_bounded() -> None:
    repeated = Repeated(60.0, lambda: 0.0)
    for k in range(10 * MOST_KINDS):
        assert repeated.filter(record(f"of request r{k}"))
    assert len(repeated._told) == MOST_KINDS
    assert repeated.filter(record("of request r0")), "forgotten, and so told again"
    assert not repeated.filter(record(f"of request r{10 * MOST_KINDS - 1}"))


def test_a_warning_that_does_not_fit_its_text_harms_nobody() -> None:
    broken = logging.LogRecord("x", logging.WARNING, "", 0, "%d of", ("x",), None)
    assert Repeated().filter(broken) and Repeated().filter(broken)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [("SLUICE_LOG_FORMAT", "xml", "text or json"), ("SLUICE_LOG_LEVEL", "loud", "debug, info, warning or error")],
)
def test_another_format_or_level_is_refused(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidInput, match=f"{variable}: '{value}' is not allowed; allowed: {allowed}"):
        log_to_stderr("info", {variable: value})


def test_a_variable_that_is_empty_is_not_allowed_either() -> None:
    for variable in ("SLUICE_LOG_FORMAT", "SLUICE_LOG_LEVEL"):
        with pytest.raises(InvalidInput, match=f"{variable}: '' is not allowed"):
            log_to_stderr("info", {variable: ""})


def test_the_environment_says_both_and_may_say_neither() -> None:
    assert LogLines.of({}, "warning") == LogLines("text", "warning")
    assert LogLines.of({"SLUICE_LOG_FORMAT": "json", "SLUICE_LOG_LEVEL": "debug"}, "warning") == LogLines("json", "debug")


def test_a_copy_of_a_process_warns_though_another_thread_was_about_to() -> None:
    repeated, warning = Repeated(), logging.LogRecord("x", logging.WARNING, "", 0, "away", (), None)
    with repeated._counting:
        if not (pid := os.fork()):
            signal.alarm(5)
            os._exit(0 if repeated.filter(warning) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
