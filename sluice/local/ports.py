"""Ports for servers that must be told one before they bind it: Redis, and a buffer that somebody waits for at its URL.

A port that was free a moment ago is somebody's a moment later where the kernel gives it to the next who asks for any. So these lie
below the range that it gives from, and each process goes round through ports of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

FIRST = 10_000
PROCESSES = 512
"""As many processes of successive ids choose among different ports."""
GIVEN_FROM = 32_768
"""Where the range of the kernel begins, unless it says so itself."""

_turn = itertools.count()


def chosen_port() -> int:
    """A port of 127.0.0.1 that is free and stays so until somebody binds it who was told."""
    end = _given_from()
    mine = range(FIRST + os.getpid() % PROCESSES, end, PROCESSES) or range(end - 1, end)
    for _ in mine:
        port = mine[next(_turn) % len(mine)]
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    with socket.create_server(("127.0.0.1", 0)) as listener:  # all of them are taken
        return int(listener.getsockname()[1])


def _given_from() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return GIVEN_FROM
