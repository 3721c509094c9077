"""How a command is told of a Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.settings import NAMESPACE, PREFIX, Settings, without_password

namespace_option = click.option(
    "--namespace", envvar=f"{PREFIX}NAMESPACE", default=NAMESPACE, show_default=True, help="What the keys in Redis begin with."
)

redis_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--redis-url",
    envvar=f"{PREFIX}REDIS_URL",
    default=Settings().redis_url,
    show_default=True,
    help="The Redis of the buffers, as SLUICE_REDIS_URL has it.",
)


def require_redis_url(option: str, url: str) -> None:
    """Better now than at every request; raises ``InvalidInput``."""
    from sluice.buffer_service.redis_servers import check_url  # with Redis's client, which no help needs

    try:
        check_url(url)
    except (ValueError, TypeError, OSError) as error:
        allowed = f"a URL with a port that is a number, options that are known and files that can be read ({error})"
        raise InvalidInput(option, without_password(url), allowed) from None
