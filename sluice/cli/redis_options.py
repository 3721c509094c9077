"""How a command is told of a Redis."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.batching.urls import refused_url, without_password
from sluice.batching.variables import PREFIX
from sluice.buffer_service.settings import NAMESPACE, Settings, require_namespace


def _allowed(context: click.Context, option: click.Parameter, namespace: str) -> str:
    require_namespace("--namespace", namespace)
    return namespace


def _set(variable: str, default: str) -> Callable[[], str]:
    """What a variable says, where it is set; one that is empty is no default, as with all others."""
    return lambda: os.environ.get(PREFIX + variable, default)


namespace_option = click.option(
    "--namespace",
    default=_set("NAMESPACE", NAMESPACE),
    callback=_allowed,
    help=f"What the keys in Redis begin with  [default: {NAMESPACE}]",
)

redis_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--redis-url",
    default=_set("REDIS_URL", Settings().redis_url),
    help=f"The Redis of the buffers, as SLUICE_REDIS_URL has it  [default: {Settings().redis_url}]",
)


@contextmanager
def naming_redis(url: str, option: str = "--redis-url") -> Iterator[None]:
    """Say of a Redis that is away, or refuses, where it was looked for."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{error}; at {without_password(url)} ({option})") from None


def require_redis(url: str, namespace: str = "", option: str = f"--redis-url ({PREFIX}REDIS_URL)") -> None:
    """Better now than at every request: a URL that leads somewhere, and, where a Redis answers, one that lets this user in.

    Of a ``namespace`` that is given, also whether he may write there. Raises ``InvalidInput``.
    """
    from sluice.buffer_service.redis_access import refusal  # with Redis's client, which no help needs
    from sluice.buffer_service.redis_servers import check_url

    shown = refused_url(url)
    if re.match("(redis|rediss|unix)://", url) is None:
        allowed = "redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix://PATH"
        host = re.fullmatch(r"[\w.-]+(:\d+)?", url)
        raise InvalidInput(option, shown, f"{allowed}; did you mean redis://{url}?" if host else allowed)
    try:
        check_url(url)
    except (ValueError, TypeError, OSError) as error:
        unquoted = re.search("[/?#].*@", url.partition("://")[2]) is not None  # and the error may say a part of it
        why = "in a password, / ? # and @ are written %2F %3F %23 and %40" if unquoted else error
        allowed = f"a URL with a port that is a number, options that are known and files that can be read ({why})"
        raise InvalidInput(option, shown, allowed) from None
    if said := asyncio.run(refusal(url, namespace)):
        raise InvalidInput(option, shown, f"user, password and database as this Redis has them, with the rights it takes ({said})")
