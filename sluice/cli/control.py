"""`sluice control`: watches what runs, plans anew, and puts the plans into force."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

import click

from sluice.batching.errors import InvalidInput, require
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.cli.redis_options import namespace_option, redis_option, require_redis_url
from sluice.controller.fleet_process import FleetProcess
from sluice.controller.journal import Journal, read_journal
from sluice.controller.leadership import LEASE, controller_name, lead
from sluice.optimizer.control import ControlSettings
from sluice.optimizer.fleet import read_fleet, solve_fleet


@click.command("control")
@click.option("--fleet", "fleet_path", metavar="FLEET.yaml", help="The fleet whose workers register (`sluice worker --register`).")
@click.option(
    "--period", type=float, default=10.0, show_default=True, metavar="SECONDS", help="Between plans when nothing happens."
)
@click.option("--load-time", type=float, default=5.0, show_default=True, metavar="SECONDS", help="What loading a variant takes.")
@click.option(
    "--lease", type=float, default=LEASE, show_default=True, metavar="SECONDS", help="After which another controller leads."
)
@click.option("--journal", "journal_path", metavar="FILE", help="Write what is decided here, a line of JSON each.")
@click.option("--explain", metavar="FILE", help="Read such a file back as sentences, and do nothing else.")
@redis_option
@namespace_option
def command(
    fleet_path: str | None,
    period: float,
    load_time: float,
    lease: float,
    journal_path: str | None,
    explain: str | None,
    redis_url: str,
    namespace: str,
) -> None:
    """Watch a fleet of workers and the requests that come, and plan as both change; until SIGTERM.

    The buffers follow with SLUICE_PLANS=redis:. Of several controllers one leads; without any the last plans stay in force.
    """
    if explain is not None:
        for entry in read_journal(Path(explain)):
            model = f"{entry['model']}: " if entry["model"] else ""
            click.echo(f"{entry['at']}  {model}{entry['words']}")
        return
    require(fleet_path is not None, "--fleet", fleet_path, "the file of the fleet to follow, or --explain FILE")
    require(lease >= 0.3, "--lease", lease, "seconds >= 0.3")
    require_redis_url("--redis-url", redis_url)
    if redis_url.startswith("memory://"):
        raise InvalidInput("--redis-url", redis_url, "the Redis of the buffers")
    fleet = read_fleet(str(fleet_path))
    settings = ControlSettings(period=period, load_time=load_time, decision_time=None)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    async def run() -> None:
        plans = RedisPlans(redis_url, namespace)
        journal = Journal(Path(journal_path) if journal_path else None, plans)
        name = controller_name()
        try:
            await lead(
                plans,
                name,
                lambda: FleetProcess(fleet, solve_fleet, settings, plans, name, journal, redis_url, namespace).run(),
                lease,
            )
        finally:
            await plans.close()

    asyncio.run(_until_told(run()))


async def _until_told(work: Coroutine[None, None, None]) -> None:
    """The work, until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
