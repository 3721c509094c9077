"""The addresses that a name has."""

from __future__ import annotations

import asyncio
import ipaddress
import socket


async def addresses_of(host: str, port: int) -> list[str]:
    """Of a name what the system knows, each once, in its order; raises ``OSError``, or ``UnicodeError`` of what can be no name.

    Who connects looks a name up here and not in ``create_connection``: in uvloop's, a lookup that fails after the connecting was
    given up is an exception that nobody retrieves.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
