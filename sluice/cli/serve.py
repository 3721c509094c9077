"""`sluice serve`: the buffer, configured by the environment, with the commonest settings as options."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from sluice.buffer_service.app import main
from sluice.buffer_service.settings import Settings


@click.command()
@click.option("--redis-url", help="redis://, rediss://, unix:// or memory:// (this process alone).")
@click.option("--plans", help="file:PATH (a plan, or a folder of them) or ssm:/path/.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 chooses one.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to log on stderr.")
def command(**options: Any) -> None:
    """Serve models through the batching buffer.

    Every setting is an environment variable SLUICE_*; an option given here wins over its variable. SIGTERM drains.
    """
    given = {name: value for name, value in options.items() if value is not None}
    main(dataclasses.replace(Settings.from_environment(), **given))
