"""`sluice control`: watches what runs, plans anew, and puts the plans into force."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import click

from sluice.batching.documents import PLACEHOLDER, Plan, Slo, require_function
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.heap import give_freed_memory_back
from sluice.batching.urls import refused_url
from sluice.buffer_service.plans import source_at
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.cli.arrival_options import behind_buffer, way_option
from sluice.cli.cost_options import price_options
from sluice.cli.document_files import read_document
from sluice.cli.file_kinds import JOURNAL, written_option
from sluice.cli.log_options import log_options
from sluice.cli.profile_files import read_profile
from sluice.cli.redis_options import namespace_option, redis_option, require_redis
from sluice.cli.slo_options import slo_options
from sluice.cli.tuning_options import KEPT_IN, kept_in_option
from sluice.cli.values import DURATION, FILE, PERIOD, WAIT, integer, numbers_option
from sluice.controller.deciding import DecidingProcess
from sluice.controller.declared_plans import DeclaredPlans
from sluice.controller.explained import explained
from sluice.controller.journal import Journal, read_journal
from sluice.controller.leadership import LEASE, controller_name, lead
from sluice.controller.model_process import ModelProcess
from sluice.controller.model_setups import ModelSetups, by_model
from sluice.optimizer.billing import Billing
from sluice.optimizer.compiled import without_numba
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.simulation.function import LARGEST_BATCH
from sluice.optimizer.tuning.setup import TuningSettings

LOAD_TIME = 5.0  # s
FLEET_LOOK = 0.5  # s; a plan is written as often at most
LEAST_WINDOW, MOST_WINDOW = 120.0, 43_200.0  # s: of less no plan is compared, and of yesterday more would not be known


@click.command("control")
@click.option(
    "--fleet", "fleet_path", type=FILE, metavar="FLEET.yaml", help="The fleet whose workers register (`sluice worker --register`)."
)
@click.option(
    "--profile",
    "profile_paths",
    multiple=True,
    type=FILE,
    metavar="FILE|FOLDER",
    help="Profiles of the models that have a plan in Redis; of a model without one, its live batches are learned from.",
)
@click.option(
    "--declared",
    metavar="file:PATH|ssm:/path/",
    help="Plans that are declared there go into Redis, each when it is new; control goes on from them.",
)
@slo_options
@click.option(
    "--function", default="", metavar="NAME", help="As plans name it, {memory_mb} its memory size  [default: the profile's]"
)
@numbers_option("--memory", "memory_sizes", metavar="MB", help="Consider only these memory sizes; may be repeated.")
@click.option(
    "--servers",
    type=integer,
    metavar="K",
    help="The profiles are of workers, of which so many serve each model, and nothing else: the plan is their table. With "
    "--worker: how many of each are there.",
)
@click.option(
    "--worker",
    "worker_texts",
    multiple=True,
    metavar="PROFILE:PRICE",
    help="Workers that are there and may serve in the function's place, or with it beside them: their profile, which names the "
    "model, and a machine of the price list or USD per hour; may be repeated.",
)
@click.option("--max-batch-size", type=integer, help=f"Requests in a batch, at most  [default: {LARGEST_BATCH}]")
@price_options
@click.option("--period", type=DURATION, help="Between decisions when nothing happens  [default: 300; of a fleet 10]")
@click.option(
    "--window",
    type=PERIOD,
    help="Of the past that plans are rehearsed on, at most: from 2min to 12h, of which the newest 32768 requests count  "
    "[default: 30min]",
)
@kept_in_option
@click.option("--load-time", type=DURATION, help=f"What loading a variant of a fleet takes  [default: {LOAD_TIME:g}]")
@way_option
@click.option("--lease", type=WAIT, default=LEASE, show_default=True, help="After which another controller leads.")
@written_option("--journal", "journal_path", kinds=(JOURNAL,), help="Write what is decided here, a line of JSON each.")
@click.option("--explain", type=FILE, metavar="FILE", help="Read such a file back as sentences, and do nothing else.")
@redis_option
@namespace_option
@log_options("info")
def command(
    fleet_path: str | None,
    profile_paths: tuple[str, ...],
    declared: str | None,
    slos: tuple[Slo, ...],
    function: str,
    memory_sizes: tuple[int, ...],
    servers: int | None,
    worker_texts: tuple[str, ...],
    max_batch_size: int | None,
    billing: Billing,
    period: float | None,
    window: float | None,
    kept_in: float | None,
    load_time: float | None,
    buffer_overhead: float | None,
    lease: float,
    journal_path: str | None,
    explain: str | None,
    redis_url: str,
    namespace: str,
) -> None:
    """Watch the models that have a plan, or a fleet of workers, and plan as what comes and what it takes change; until SIGTERM.

    The buffers follow with SLUICE_PLANS=redis:. Of several controllers one leads; without any the last plans stay in force.
    """
    if explain is not None:
        entries = list(read_journal(Path(explain)))
        if not entries and Path(explain).stat().st_size:
            raise InvalidInput("--explain", explain, "a file that `sluice control --journal` wrote")
        for entry in entries:
            for line in explained(entry):
                click.echo(line)
        return
    in_bounds = window is None or LEAST_WINDOW <= window <= MOST_WINDOW
    require(in_bounds, "--window", window, f"from {LEAST_WINDOW / 60:g}min to {MOST_WINDOW / 3600:g}h")
    require(lease >= 0.3, "--lease", lease, "seconds >= 0.3")
    require(servers is None or servers >= 1, "--servers", servers, "an integer >= 1")
    most = LARGEST_BATCH if max_batch_size is None else max_batch_size
    if function:
        try:
            require_function("--function", function.replace(PLACEHOLDER, "512"))
        except InvalidInput as error:
            raise InvalidInput("--function", refused_url(function), error.allowed) from None
    require(1 <= most <= LARGEST_BATCH, "--max-batch-size", most, f"an integer from 1 to {LARGEST_BATCH}")
    if redis_url.startswith("memory://"):
        raise InvalidInput("--redis-url", redis_url, "the Redis of the buffers")
    require_redis(redis_url, namespace)
    known = declared is None or re.match("file:.|ssm:/", declared) is not None
    require(known, "--declared", declared, "file:PATH or ssm:/path/")
    if declared is not None and declared.startswith("file:"):
        place = Path(declared.removeprefix("file:"))
        require(place.exists(), "--declared", declared, "file:PATH of a file or folder that exists")
        if place.is_file():
            read_document(Plan, str(place), "--declared")
    if declared is not None and declared.startswith("ssm:"):
        import boto3  # noqa: F401  # before there are threads: what one of them is importing a copy of this process would wait for
    plans = RedisPlans(redis_url, namespace)
    name = controller_name()
    journal = Journal(Path(journal_path) if journal_path else None, plans)
    there = redis_url, namespace
    if fleet_path is not None:
        from sluice.controller.fleet_process import FleetProcess  # what plans fleets, and 100 MB
        from sluice.optimizer.control import ControlSettings
        from sluice.optimizer.fleet import read_fleet, solve_fleet

        own = {"--profile": profile_paths, "--slo": [slo.name for slo in slos], "--function": function, "--memory": memory_sizes}
        numbers = {"--servers": servers, "--max-batch-size": max_batch_size}
        for option, value in (own | numbers | {"--worker": worker_texts}).items():
            require(not value, option, value, "none beside --fleet, whose file says it")
        require(window is None, "--window", window, "none beside --fleet, which keeps two minutes of the demand")
        require(kept_in is None, KEPT_IN, kept_in, "none beside --fleet")
        fleet = read_fleet(fleet_path).behind(buffer_overhead or 0.0)
        of_fleet = ControlSettings(
            look=FLEET_LOOK,
            period=10.0 if period is None else period,
            load_time=LOAD_TIME if load_time is None else load_time,
            decision_time=None,
        )

        async def work() -> None:
            await FleetProcess(fleet, solve_fleet, of_fleet, plans, name, journal, *there).run()

    else:
        require(load_time is None, "--load-time", load_time, "given with --fleet alone")
        alone = servers is not None and not worker_texts
        require(not alone or bool(profile_paths), "--profile", NOT_GIVEN, "those of the workers, with --servers")
        gc.freeze()  # what was imported stays
        give_freed_memory_back()  # of records that are read and of what is decided, of which another time there is less
        usual = TuningSettings()
        settings = replace(
            usual,
            period=usual.period if period is None else period,
            memory=window or usual.memory,
            kept_in=kept_in or usual.kept_in,
        )
        profiles = by_model((path, behind_buffer(read_profile(path), buffer_overhead)) for path in _files(profile_paths))
        offers = _offers(worker_texts, billing, most, servers)
        fixed = None if worker_texts else servers
        setups = ModelSetups(profiles, slos, function, memory_sizes, billing, most, settings, fixed, offers)

        async def work() -> None:
            with without_numba():  # what watches; what is decided is decided in another process
                await ModelProcess(
                    setups.tuner, plans, name, DecidingProcess(), journal, *there, take_along=settings.period / 2
                ).run()

    async def leading() -> None:
        also = () if declared is None else (DeclaredPlans(source_at(declared), plans, name).follow(),)
        await asyncio.gather(work(), *also)

    async def run() -> None:
        try:
            await lead(plans, name, leading, lease)
        finally:
            await plans.close()

    asyncio.run(_until_told(run()))


def _offers(texts: Sequence[str], billing: Billing, max_batch_size: int, each: int | None) -> dict[str, tuple[WorkerOffer, ...]]:
    """By model, the workers that are there, so many of each."""
    found: dict[str, tuple[WorkerOffer, ...]] = {}
    for text in texts:
        from sluice.cli.worker_options import read_worker  # what recommends, and 100 MB

        require(each is not None, "--servers", each, "how many there are of each --worker")
        assert each is not None
        offer = replace(read_worker(text, billing.prices, max_batch_size), max_workers=each)
        model = read_profile(text.rpartition(":")[0], "--worker").model
        found[model] = (*found.get(model, ()), offer)
    return found


def _files(paths: Sequence[str]) -> list[str]:
    """These, and of a folder every ``*.json`` in it."""
    found: list[str] = []
    for path in paths:
        files = sorted(Path(path).glob("*.json")) if Path(path).is_dir() else [Path(path)]
        require(bool(files), "--profile", path, "a profile, or a folder with some (*.json)")
        found += map(str, files)
    return found


async def _until_told(work: Coroutine[None, None, None]) -> None:
    """The work, until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
