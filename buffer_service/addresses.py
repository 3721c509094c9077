"""The addresses that a name has, and a connection to one of them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


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


async def connect(
    made: Callable[[], P], host: str, port: int, within: float, context: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, P]:
    """To the first address of a host that takes it, within so many seconds, of which each has its share; over TLS with a context.

    Raises ``OSError``: that of the last address, or ``TimeoutError``; or as ``addresses_of``. Small writes are sent at once
    (``TCP_NODELAY``), as the loop has it.
    """
    failure, name = OSError(f"{host} has no address"), host if context is not None else None
    try:
        async with asyncio.timeout(within):
            addresses = await addresses_of(host, port)
    except TimeoutError:
        raise TimeoutError(f"no address within {within:g} s") from None
    for address in addresses:
        try:
            async with asyncio.timeout(within / len(addresses)):
                return await asyncio.get_running_loop().create_connection(made, address, port, ssl=context, server_hostname=name)
        except TimeoutError:
            failure = TimeoutError(f"no connection within {within:g} s")
        except OSError as error:
            failure = error
    raise failure
