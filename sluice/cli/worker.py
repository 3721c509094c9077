"""`sluice worker`: models behind HTTP, configured by the environment, with its settings as options."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.log_lines import last_words
from sluice.batching.urls import is_http
from sluice.batching.variables import PREFIX
from sluice.cli.log_options import log_options
from sluice.cli.redis_options import namespace_option, require_redis
from sluice.cli.values import DURATION, WAIT, integer
from sluice.controller.registration import registered_at
from sluice.lambda_fn.worker.link import LoadFailed
from sluice.lambda_fn.worker.program import Beside, Named, WorkerSettings, start

DEFAULT = WorkerSettings()
HEARTBEAT = 1.0  # s


@click.command()
@click.argument("models", nargs=-1, metavar="[NAME=]SPEC...")
@click.option("--port", type=integer, default=8500, show_default=True, help="Port to listen on; 0 chooses one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--executions", type=integer, help=f"Batches of a model computed at once  [default: {DEFAULT.executions}]")
@click.option("--threads", type=integer, help="Threads of one execution  [default: the CPUs, shared among the executions]")
@click.option("--batch-size", type=integer, help=f"Single requests computed together, at most  [default: {DEFAULT.batch_size}]")
@click.option("--wait", type=WAIT, help=f"That a single request waits for others  [default: {DEFAULT.wait:g}]")
@click.option("--queue", type=integer, help=f"Requests of a model that may wait  [default: {DEFAULT.queue}]")
@click.option("--timeout", type=DURATION, help=f"That a caller waits for a batch  [default: {DEFAULT.timeout:g}]")
@click.option(
    "--drain-timeout",
    type=DURATION,
    help=f"That batches under way have to end at SIGTERM  [default: {DEFAULT.drain_timeout:g}]",
)
@click.option("--unloaded", multiple=True, metavar="NAME", help="Load this model when told to, not at the start; may be repeated.")
@click.option("--register", metavar="URL", help="The Redis in which the worker tells of itself, for `sluice control --fleet`.")
@click.option("--device", metavar="TYPE", help="With --register: the type of this machine, as the fleet file names it.")
@click.option(
    "--advertise", metavar="URL", default="", help="With --register: where others reach the worker, if not where it listens."
)
@click.option("--heartbeat", type=DURATION, help=f"With --register: how often it tells  [default: {HEARTBEAT:g}]")
@namespace_option
@log_options("warning")
def command(
    models: tuple[str, ...],
    port: int,
    host: str,
    unloaded: tuple[str, ...],
    register: str | None,
    device: str | None,
    advertise: str,
    heartbeat: float | None,
    namespace: str,
    **options: Any,
) -> None:
    """Serve models over HTTP: batches of the buffer, and single requests of the Open Inference Protocol.

    SPEC is what SLUICE_MODEL may be; without one, the environment says what is served. NAME is what callers call it. Every setting
    is an environment variable SLUICE_*; an option given here wins over its variable. SIGTERM drains.
    """
    require(0 <= port <= 65535, "--port", port, "0 to 65535")
    named = [Named.parse(text) for text in models]
    settings = _settings({name: value for name, value in options.items() if value is not None})
    beside = _registration(register, namespace, device, advertise, heartbeat, host)
    try:
        start(named, settings, host, port, unloaded, beside)
    except LoadFailed as error:
        last_words("sluice", str(error), error.cause)
        sys.exit(2)


def _registration(
    register: str | None, namespace: str, device: str | None, advertise: str, heartbeat: float | None, host: str
) -> Beside | None:
    """What tells the registry of this worker, where that is asked for."""
    if register is None:
        for option, value in (("--device", device), ("--advertise", advertise or None), ("--heartbeat", heartbeat)):
            require(value is None, option, value, "given with --register URL alone")
        return None
    if device is None:
        raise InvalidInput("--device", NOT_GIVEN, "the type of this machine, as the fleet file names it (with --register)")
    require(bool(advertise) or host not in ("0.0.0.0", "::"), "--advertise", advertise, f"needed where --host is {host}")
    require(not advertise or is_http(advertise), "--advertise", advertise, "http://HOST:PORT")
    require_redis(register, option="--register")
    return registered_at(register, namespace, device, HEARTBEAT if heartbeat is None else heartbeat, advertise)


def _settings(given: dict[str, Any]) -> WorkerSettings:
    """The environment's, with the options in their place; an error names the option beside its variable."""
    settings = WorkerSettings.from_environment()
    try:
        return dataclasses.replace(settings, **given)
    except InvalidInput as error:
        option = "--" + error.field.removeprefix(PREFIX).lower().replace("_", "-")
        raise InvalidInput(f"{option} ({error.field})", error.value, error.allowed) from None
