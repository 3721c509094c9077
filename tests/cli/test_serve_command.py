"""`sluice serve` refuses what it cannot serve with before it starts."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.buffer_service import app
from sluice.buffer_service.settings import Settings
from tests.cli.conftest import Run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of every buffer that would have been run."""
    settings: list[Settings] = []
    monkeypatch.setattr(app, "main", settings.append)
    return settings


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--redis-url", "foo", "--redis-url (SLUICE_REDIS_URL): 'foo' is not allowed; allowed: redis://, rediss://, unix:// or"),
        ("--plans", "plans", "--plans (SLUICE_PLANS): 'plans' is not allowed; allowed: file:PATH, ssm:/path/ or redis:"),
        ("--port", "65536", "--port (SLUICE_PORT): 65536 is not allowed; allowed: 0 to 65535"),
        ("--host", "", "--host (SLUICE_HOST): '' is not allowed; allowed: an address of this machine"),
    ],
)
def test_a_value_that_is_not_allowed_names_the_option_that_was_typed(
    option: str, value: str, message: str, exit_of: Run, started: list[Settings]
) -> None:
    code, _, err = exit_of("serve", option, value)
    assert code == 2 and message in err and started == []


def test_a_port_that_somebody_has_is_refused_before_a_plan_is_taken(exit_of: Run, started: list[Settings]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = exit_of("serve", "--redis-url", "memory://", "--port", str(port))
    allowed = "a free port of 127.0.0.1 (Address already in use); 0 chooses one"
    assert code == 2 and started == []
    assert err == f"sluice: --port (SLUICE_PORT): {port} is not allowed; allowed: {allowed}"


def test_so_is_one_for_who_operates_it(exit_of: Run, started: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SLUICE_ADMIN_PORT", str(port))
        code, _, err = exit_of("serve", "--redis-url", "memory://", "--port", "0")
    allowed = "a free port of 127.0.0.1 (Address already in use); 0 has none"
    assert (code, started) == (2, []) and err == f"sluice: SLUICE_ADMIN_PORT: {port} is not allowed; allowed: {allowed}"


def test_what_only_a_variable_sets_is_named_by_it_alone(
    exit_of: Run, started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ADMIN_PORT", "18081")
    code, _, err = exit_of("serve", "--redis-url", "memory://", "--port", "18081")
    allowed = "0 to 65535, and another than SLUICE_PORT; 0 has no port of its own"
    assert (code, started) == (2, []) and err == f"sluice: SLUICE_ADMIN_PORT: 18081 is not allowed; allowed: {allowed}"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://127.0.0.1:abc/0", "'abc'"),
        ("redis://127.0.0.1/0?socket_timeout=long", "'socket_timeout'"),
        ("redis://127.0.0.1/0?ssl_ca_certs=/dev/null", "'ssl_ca_certs'"),
        ("rediss://127.0.0.1/0?ssl_ca_cert=/dev/null", "'ssl_ca_cert'"),
        ("rediss://user:secret@cache/0?ssl_ca_certs=/no/such/file", "'/no/such/file'"),
        ("redis://user:secret/2@cache/0", "in a password, / ? # and @ are written %2F %3F %23 and %40"),
        ("rediss://cache/0?ssl_certfile=/dev/null&ssl_keyfile=/no/such/key", "'/no/such/key'"),
        ("rediss://cache/0?ssl_ca_certs=/dev/null", "no certificate"),
    ],
)
def test_a_redis_url_that_no_connection_can_be_made_with_is_refused_before_a_plan_is_taken(
    url: str, reason: str, exit_of: Run, started: list[Settings]
) -> None:
    code, _, err = exit_of("serve", "--redis-url", url, "--port", "0")
    assert code == 2 and started == []
    assert err.startswith(
        f"sluice: --redis-url (SLUICE_REDIS_URL): '{re.sub('user:secret(/2)?', '***', url)}' is not allowed; allowed: "
    )
    assert reason in err and "secret" not in err


def test_plans_that_are_not_there_yet_are_waited_for_and_that_is_said(
    tmp_path: Path, exit_of: Run, started: list[Settings]
) -> None:
    place = tmp_path / "plans"
    code, _, err = exit_of("serve", "--plans", f"file:{place}", "--port", "0")
    assert code == 0 and [settings.plans for settings in started] == [f"file:{place}"]
    said = f"waiting for plans: {place} does not exist yet (--plans), and until then nothing is served"
    assert err.endswith(f" WARNING sluice.cli.serve: {said}")
    place.mkdir()
    assert exit_of("serve", "--plans", f"file:{place}", "--port", "0")[2] == ""


def test_what_is_no_plan_is_refused_before_it_starts(tmp_path: Path, exit_of: Run, started: list[Settings]) -> None:
    page = tmp_path / "report.json"
    page.write_text("<!doctype html>")
    for path in (page, tmp_path):
        code, _, err = exit_of("serve", "--plans", f"file:{path}", "--port", "0")
        assert (code, started) == (2, [])
        allowed = f"a plan, or a folder with one that can be read. {page}: Plan: '<!doctype html>'"
        assert err.startswith(f"sluice: --plans (SLUICE_PLANS): 'file:{path}' is not allowed; allowed: {allowed}"), err

    good = Plan(model="m", function="f", policy=PolicyDocument.of(constructors.size_or_timeout(4, 0.1)))
    (tmp_path / "good.json").write_bytes(write(good))  # the other is told of in the log, and again where it changes
    assert exit_of("serve", "--plans", f"file:{tmp_path}", "--port", "0")[0] == 0
    assert [settings.plans for settings in started] == [f"file:{tmp_path}"]
