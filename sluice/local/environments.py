"""One execution environment of the local Lambda: one process, one invocation at a time, and the Runtime API's view of it.

What may live here: the life of a process (starting, idle, busy, gone) and what is known of its invocation. What may not: HTTP, and
which environment gets which invocation. Everything runs in one event loop, so that no state needs a lock.

    start ──> starting ──first poll──> idle <──answer── busy ──death, timeout, too much memory──> gone
                  └── an invocation may wait here for the first poll: its cold start is billed with it
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable

import msgspec

from sluice.local.bootstrap import CPU_SHARE, PARENT
from sluice.local.functions import LATEST, LOG_TAIL, MAX_RESPONSE, REGION, Function, Invocation, Outcome

INIT_TIMEOUT = 60.0
"""Seconds a cold start may take. Lambda allows 10 and then tries once more; a busy laptop needs more, and only once."""
LOG_CHUNKS = 1000
INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")


class EnvironmentGone(Exception):
    """The runtime API is asked for an environment that is no more."""


class Environment:
    """A function's process, from spawn to death.

    Parameters
    ----------
    runtime_api : str
        ``host:port`` of the Runtime API; the environment's own path is added.
    on_gone : callable
        Called once when the process has ended, whatever the reason.
    """

    def __init__(self, function: Function, runtime_api: str, on_gone: Callable[[Environment], None]) -> None:
        self.id = uuid.uuid4().hex
        self.function = function
        self.gone = False
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # or has ended before
        self.log: deque[bytes] = deque(maxlen=LOG_CHUNKS)
        self.reap: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._on_gone = on_gone
        self._init_duration: float | None = None
        self._init_is_billed = False
        self._init_error: bytes | None = None
        self._poll: asyncio.Future[Invocation] | None = None
        self._invocation: Invocation | None = None
        self._answer: asyncio.Future[Outcome] | None = None
        self._delivered_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._log_tail = bytearray()
        self._log_ended = False
        self._peak_mb = 0
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        self._spawned_at = time.perf_counter()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "sluice.local.bootstrap"],
                cwd=function.working_directory,
                env=process_environment(function, f"{runtime_api}/{self.id}", self.id),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,  # Ctrl-C is for whoever runs the runtime; it ends us in good order
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(write_end)
        self._pidfd = os.pidfd_open(self._child.pid)
        self._loop.add_reader(self._pipe, self._read_log)
        self._loop.add_reader(self._pidfd, self._on_death)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def run(self, invocation: Invocation) -> Outcome:
        """Run one invocation; the environment must be free."""
        assert self._answer is None and not self.gone
        self._invocation, self._answer, self._delivered_at = invocation, self._loop.create_future(), None
        self._log_tail.clear()
        if self._poll is not None:
            poll, self._poll = self._poll, None
            self._deliver()
            poll.set_result(invocation)
        elif self._init_duration is None:
            self._timer = self._loop.call_later(INIT_TIMEOUT, self._time_out)
        return await self._answer

    def end(self) -> None:
        """Have the process end, and do not wait for it: nothing may be handed to it any more."""
        if not self.gone:
            self._child.kill()

    def kill(self) -> None:
        """End the process now."""
        if not self.gone:
            self._child.kill()
            self._child.wait()
            self._on_death()

    # --- The Runtime API's side -------------------------------------------------------------------------------------------------

    async def next_invocation(self) -> Invocation:
        """``GET /runtime/invocation/next``: waits for work; raises ``EnvironmentGone``."""
        if self._init_duration is None:
            self._init_duration = time.perf_counter() - self._spawned_at
            self.started.set_result(None)
        if self._invocation is not None and self._delivered_at is None:
            self._deliver()
            return self._invocation
        self._poll = self._loop.create_future()
        return await self._poll

    def deadline_ms(self) -> int:
        """When the present invocation times out, in ms since 1970, as ``Lambda-Runtime-Deadline-Ms`` has it."""
        return int((time.time() + self.function.timeout) * 1e3)  # down, so that a function is never told more than its timeout

    def answer(self, request_id: str, payload: bytes, error: str | None = None) -> bool:
        """``POST …/response`` or ``…/error``; false when that invocation is not the present one."""
        if self._invocation is None or self._invocation.request_id != request_id or self._delivered_at is None:
            return False
        if len(payload) > MAX_RESPONSE:
            text = f"Response payload size exceeded maximum allowed payload size ({MAX_RESPONSE} bytes)."
            self._finish(_error("Function.ResponseSizeTooLarge", text), "Unhandled", "error")
        else:
            self._finish(payload, error)
        return True

    def init_error(self, payload: bytes) -> None:
        """``POST /runtime/init/error``: the process ends next."""
        self._init_error = payload

    # --- Within -----------------------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._delivered_at = time.perf_counter()
        self._timer = self._loop.call_later(self.function.timeout, self._time_out)

    def _finish(self, payload: bytes, error: str | None, status: str | None = None, duration: float | None = None) -> None:
        answer, invocation = self._answer, self._invocation
        if answer is None or invocation is None:
            return
        now = time.perf_counter()
        if self._timer is not None:
            self._timer.cancel()
        self._read_log()
        memory_mb = self._max_memory_mb()
        cold = not self._init_is_billed
        self._init_is_billed = True
        init_duration = (now - self._spawned_at if self._init_duration is None else self._init_duration) if cold else None
        if duration is None:
            duration = 0.0 if self._delivered_at is None else now - self._delivered_at
        too_much = self.function.enforce_memory and memory_mb > self.function.memory_mb and not self.gone
        if too_much:
            memory_mb = self.function.memory_mb
            payload = _exit_error("Runtime.OutOfMemory", invocation.request_id, "Runtime exited with error: signal: killed")
            error, status = "Unhandled", "error\tError Type: Runtime.OutOfMemory"
        outcome = Outcome(invocation.request_id, payload, error, duration, init_duration, memory_mb, bytes(self._log_tail), status)
        self._invocation = self._answer = None
        if not answer.cancelled():
            answer.set_result(outcome)
        if too_much:
            self.kill()

    def _time_out(self) -> None:
        assert self._invocation is not None
        request_id = self._invocation.request_id
        if self._delivered_at is None:
            text, duration = f"Init timed out after {INIT_TIMEOUT:.2f} seconds", 0.0
        else:
            text, duration = f"Task timed out after {self.function.timeout:.2f} seconds", self.function.timeout
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._read_log()
        self._keep_log(f"{stamp} {request_id} {text}\n\n".encode())
        self._finish(_exit_error("Sandbox.Timedout", request_id, text), "Unhandled", "timeout", duration)
        self.kill()

    def _on_death(self) -> None:
        if self.gone:
            return
        code = self._child.wait()
        self.gone = True
        if not self.started.done():
            self.started.set_result(None)
        if self.reap is not None:
            self.reap.cancel()
        if self._invocation is not None:
            ended = f"signal: {signal.Signals(-code).name[3:].lower()}" if code < 0 else f"exit status {code}"
            ended = ended.replace("signal: kill", "signal: killed")
            text = f"Runtime exited with error: {ended}"
            payload = self._init_error or _exit_error("Runtime.ExitError", self._invocation.request_id, text)
            self._finish(payload, "Unhandled", "error\tError Type: Runtime.ExitError")
        self._read_log()
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._pipe)
        os.close(self._pidfd)
        os.close(self._pipe)
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(EnvironmentGone(self.id))
            self._poll.exception()  # the process that polled is gone with it: nobody may be left to look
        self._on_gone(self)

    def _read_log(self) -> None:
        """What the process has written so far: it wrote it before it answered, so it is in the pipe by then."""
        while not self._log_ended:
            try:
                chunk = os.read(self._pipe, 65536)
            except BlockingIOError:
                return
            if chunk:
                self._keep_log(chunk)
            else:
                self._log_ended = True
                self._loop.remove_reader(self._pipe)

    def _keep_log(self, chunk: bytes) -> None:
        self.log.append(chunk)
        self._log_tail += chunk
        del self._log_tail[:-LOG_TAIL]

    def _max_memory_mb(self) -> int:
        """The peak of the resident memory, in whole MB; of a process that has ended, as last seen."""
        try:
            with open(f"/proc/{self._child.pid}/status", "rb") as status:
                high_water = next((line for line in status if line.startswith(b"VmHWM:")), None)
        except OSError:
            high_water = None
        if high_water is not None:
            self._peak_mb = -(-int(high_water.split()[1]) // 1024)
        return self._peak_mb


def process_environment(function: Function, runtime_api: str, log_stream: str) -> dict[str, str]:
    """The environment variables of a function's process: Lambda's, then the function's own."""
    threads = str(max(1, math.ceil(function.cpu_share)))
    return {
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        # On Lambda the process sees as many CPUs as its memory buys, and libraries start a thread for each; here it sees them all.
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        **function.environment,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.11",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": LATEST,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": log_stream,
        "AWS_LAMBDA_RUNTIME_API": runtime_api,
        "AWS_REGION": REGION,
        "LAMBDA_TASK_ROOT": function.working_directory,
        "TZ": ":UTC",
        "_HANDLER": function.handler,
        CPU_SHARE: repr(function.cpu_share),
        PARENT: str(os.getpid()),
    }


def _error(kind: str, message: str) -> bytes:
    return msgspec.json.encode({"errorType": kind, "errorMessage": message})


def _exit_error(kind: str, request_id: str, text: str) -> bytes:
    return _error(kind, f"RequestId: {request_id} Error: {text}")
