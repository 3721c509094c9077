"""A log that nobody reads: it costs lines, and nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import aiohttp
import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import write
from sluice.batching.log_lines import LONGEST_LINE, LogLines
from sluice.buffer_service.logs import MOST_KINDS, Seldom, UnblockedStream, unblocked
from sluice.local.ports import chosen_port
from tests.buffer_service.conftest import plan

SMALLEST_PIPE = 4096  # bytes
PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    yield reader, writer
    for descriptor in (reader, writer):
        with suppress(OSError):  # a test may have closed it
            os.close(descriptor)


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_what_waits_is_bounded(pipe):
    reader, writer = pipe
    stream = UnblockedStream(writer, LogLines("json"), pending=100_000)
    for i in range(10_000):
        stream.write(f"{i:099}\n")  # what waited for the reader would wait for ever
    stream.close(0.05)
    waits = sum(map(len, stream._lines))
    assert waits <= 100_000
    assert 10_000 - 1_000 - SMALLEST_PIPE // 100 - 2 <= stream.dropped <= 9_000
    taken, deadline = b"", time.monotonic() + PATIENCE
    os.set_blocking(reader, False)
    while stream._thread.is_alive() and time.monotonic() < deadline:
        stream.close(0.001)
        with suppress(BlockingIOError):
            taken += os.read(reader, 2**20)
    with suppress(BlockingIOError):
        taken += os.read(reader, 2**20)
    [said] = [json.loads(line)["message"] for line in taken.splitlines() if line.startswith(b"{")]
    assert said == f"{stream.dropped} lines were dropped here, as nobody read them in time"
    assert taken.startswith(b"%099d\n%099d\n" % (0, 1))


def test_everything_is_written_in_order_where_somebody_reads(pipe):
    reader, writer = pipe
    stream = UnblockedStream(writer)
    lines = [f"line {i}\n" for i in range(1000)]
    for line in lines:
        stream.write(line)
    taken = b""
    while len(taken) < sum(map(len, lines)):
        taken += os.read(reader, 2**20)
    stream.close(PATIENCE)
    assert (taken.decode(), stream.dropped) == ("".join(lines), 0)


def test_a_reader_that_has_gone_costs_lines_alone(pipe):
    reader, writer = pipe
    os.close(reader)
    stream = UnblockedStream(writer)
    stream.write("nobody will see this\n")
    stream.close(PATIENCE)
    assert stream.dropped == 1


def test_lines_of_a_kind_are_said_seldom_and_the_next_says_how_many_were_not():
    said, now = [], [0.0]
    seldom = Seldom(said.append, 10.0, lambda: now[0])
    for now[0] in (0.0, 1.0, 9.9, 10.0, 30.0):
        seldom.say("a", f"at {now[0]}")
    seldom.say("b", "another kind")
    assert said == ["at 0.0", "at 10.0 (2 more like it since the last such line)", "at 30.0", "another kind"]


def test_of_more_kinds_of_lines_than_are_counted_the_one_that_was_said_longest_ago_is_forgotten():
    said, now = [], [0.0]
    seldom = Seldom(said.append, 10.0, lambda: now[0])
    for kind in range(3 * MOST_KINDS):
        seldom.say(str(kind), "a line")
    assert len(said) == 3 * MOST_KINDS and len(seldom._said) == len(seldom._left_out) == MOST_KINDS
    seldom.say(str(2 * MOST_KINDS), "the oldest that is counted")
    assert len(said) == 3 * MOST_KINDS
    seldom.say("0", "one that was forgotten")
    assert len(said) == 3 * MOST_KINDS + 1


async def not_http(port):
    """A connection that earns a line in the log."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"this is not HTTP\r\n\r\n")
    await reader.read()
    writer.close()


async def test_a_process_whose_stdout_and_stderr_nobody_reads_goes_on_serving_and_ends(tmp_path):
    (tmp_path / "plan.json").write_bytes(write(plan(constructors.no_batching(), function="http://127.0.0.1:1")))
    port = chosen_port()
    settings = {"REDIS_URL": "memory://", "PLANS": f"file:{tmp_path}", "PORT": str(port), "DRAIN_TIMEOUT": "2", "CLOUDWATCH": "on"}
    environment = os.environ | {f"SLUICE_{name}": value for name, value in settings.items()}
    pipes = [os.pipe(), os.pipe()]
    for _, writer in pipes:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    command = [sys.executable, "-m", "sluice.cli.main", "serve"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipes[0][1], stderr=pipes[1][1])
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            while True:
                try:
                    await not_http(port)
                    break
                except OSError:
                    assert process.returncode is None
                    await asyncio.sleep(0.02)
            for _ in range(4):  # 200 lines of about 80 bytes
                await asyncio.gather(*(not_http(port) for _ in range(50)))
            async with http.get(f"http://127.0.0.1:{port}/v2/health/live") as response:
                assert response.status == 200
            async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert 'sluice_lines_dropped{stream="stderr"}' in await response.text()
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for descriptor in (descriptor for pair in pipes for descriptor in pair):
            os.close(descriptor)


def logged(line, form="text"):
    """What a process that logs so writes to stderr."""
    script = "import logging, sys; from sluice.batching.log_lines import *; from sluice.buffer_service.logs import unblocked; "
    script += f"lines = LogLines({form!r}); s = unblocked(sys.stderr, lines); log_to(s, lines); "
    script += f"logging.getLogger('x').warning({line}); s.close(5)"
    return subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True).stderr


def test_no_line_is_without_end():
    assert LONGEST_LINE <= len(logged("'y' * 10**6")) <= LONGEST_LINE + 10


def test_a_line_that_cannot_be_formatted_is_named():
    assert logged("'%d of', 'x'").endswith(" WARNING x: a line of x cannot be written: '%d of'\n")
    told = json.loads(logged("'%d of', 'x'", "json"))
    assert (told["level"], told["message"]) == ("WARNING", "a line of x cannot be written: '%d of'")


def test_a_process_without_a_stream_writes_nowhere():
    stream = unblocked(None)
    stream.write("nobody will see this\n")
    stream.close(PATIENCE)
    assert stream.dropped == 0


def test_a_variable_that_is_nearly_a_setting_is_warned_of_at_the_start():
    script = (
        "import os; os.environ['SLUICE_PLAN'] = 'file:x'; from sluice.buffer_service import app\n"
        "app.uvloop.run = lambda served: served.close(); app.main(app.Settings(redis_url='memory://'))"
    )
    said = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True).stderr
    assert "SLUICE_PLAN is no setting of the buffer and changes nothing; is SLUICE_PLANS meant?" in said
