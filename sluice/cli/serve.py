"""`sluice serve`: the buffer, configured by the environment, with the commonest settings as options."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import socket
from pathlib import Path
from typing import Any

import click

from sluice.batching.errors import InvalidInput
from sluice.batching.variables import PREFIX
from sluice.buffer_service.settings import Settings
from sluice.cli.log_options import log_options
from sluice.cli.redis_options import require_redis
from sluice.cli.values import integer

DEFAULT = Settings()

_log = logging.getLogger(__name__)


@click.command()
@click.option("--redis-url", help=f"redis://, rediss://, unix:// or memory:// (this process alone)  [default: {DEFAULT.redis_url}]")
@click.option("--plans", help=f"file:PATH (a plan, or a folder of them), ssm:/path/, or redis:  [default: {DEFAULT.plans}]")
@click.option("--host", help=f"Address to listen on  [default: {DEFAULT.host}]")
@click.option("--port", type=integer, help=f"Port to listen on; 0 chooses one  [default: {DEFAULT.port}]")
@log_options(DEFAULT.log_level)
def command(**options: Any) -> None:
    """Serve models through the batching buffer.

    Every setting is an environment variable SLUICE_* (docs/settings.md); an option given here wins over its variable. SIGTERM
    drains.
    """
    from sluice.buffer_service.app import main  # with the clients of AWS and of Redis, which the help does not need

    settings = _settings(options)
    _require_port(settings.host, settings.port, f"--port ({PREFIX}PORT)", "chooses one")
    if settings.admin_port:
        _require_port(settings.host, settings.admin_port, f"{PREFIX}ADMIN_PORT", "has none")
    if not settings.redis_url.startswith("memory://"):
        require_redis(settings.redis_url, settings.namespace)
    kind, _, path = settings.plans.partition(":")
    if kind == "file":
        _require_plan(path)
    main(settings)


def _settings(options: dict[str, Any]) -> Settings:
    """The environment's, with the options in their place; an error names the option, if there is one, beside its variable."""
    settings = Settings.from_environment()
    try:
        return dataclasses.replace(settings, **{name: value for name, value in options.items() if value is not None})
    except InvalidInput as error:
        name = error.field.removeprefix(PREFIX).lower()
        if name not in options:
            raise
        raise InvalidInput(f"--{name.replace('_', '-')} ({error.field})", error.value, error.allowed) from None


def _require_plan(path: str) -> None:
    """What is there must have a plan in it: who starts with none serves nothing, and a log says so that nobody reads yet."""
    from sluice.buffer_service.plans import FilePlans, plan_of

    if not Path(path).exists():
        _log.warning("waiting for plans: %s does not exist yet (--plans), and until then nothing is served", path)
        return
    refused = ""
    for place, document in FilePlans(path).documents().items():
        try:
            plan_of(document)
        except InvalidInput as error:
            refused = refused or f"{place}: {error}"
        else:
            return
    if refused:
        raise InvalidInput(f"--plans ({PREFIX}PLANS)", f"file:{path}", f"a plan, or a folder with one that can be read. {refused}")


def _require_port(host: str, port: int, option: str, zero: str) -> None:
    """Better now than after the plans were taken: somebody else may have the port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"--host ({PREFIX}HOST)", host, f"an address of this machine ({error.strerror})") from None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput(
                    f"--host ({PREFIX}HOST)", host, "an address of this machine, or 0.0.0.0 for all it has"
                ) from None
            if error.errno in (errno.EADDRINUSE, errno.EACCES):  # of any other the server itself says what to do
                allowed = f"a free port of {host} ({os.strerror(error.errno)}); 0 {zero}"
                raise InvalidInput(option, port, allowed) from None
