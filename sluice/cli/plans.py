"""`sluice plans`: the plans in the buffers' Redis, from where each change is pushed to all of them."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import chain
from typing import TypeVar

import click
from rich.markup import escape
from rich.table import Table

from sluice.batching.documents import Plan, write
from sluice.batching.errors import InvalidInput, require
from sluice.buffer_service.plans import doubts
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.cli import output
from sluice.cli.document_files import read_document
from sluice.cli.redis_options import namespace_option, naming_redis, redis_option, require_redis
from sluice.cli.suggestions import SuggestingGroup
from sluice.cli.values import FILE

Answer = TypeVar("Answer")
LONGEST_WHY = 500  # characters
WHO_FOLLOWS = "`sluice status` says which buffers follow, and why others do not."


@click.group("plans", cls=SuggestingGroup)
def command() -> None:
    """Put plans into force at all buffers at once, see them, and go back.

    For buffers that run with SLUICE_PLANS=redis: (or --plans redis:). Who pushes is named in the history.
    """


@command.command("push")
@click.argument("files", type=FILE, metavar="PLAN.json...", nargs=-1, required=True)
@click.option("--why", default="", help="What the history says beside your name.")
@redis_option
@namespace_option
def push(files: tuple[str, ...], why: str, redis_url: str, namespace: str) -> None:
    """Have the buffers follow these plans from now on."""
    require(why.isprintable() and len(why) <= LONGEST_WHY, "--why", why[:80], f"one line of at most {LONGEST_WHY} characters")
    plans = [read_document(Plan, file, "PLAN.json") for file in files]
    models = [plan.model for plan in plans]
    twice = next((model for at, model in enumerate(models) if model in models[:at]), None)
    require(twice is None, "PLAN.json", twice, "one plan a model")
    for words in chain.from_iterable(map(doubts, plans)):
        click.echo(f"warning: {words}", err=True)

    async def each(board: RedisPlans) -> None:
        for plan in plans:
            await board.write(plan, getpass.getuser(), why)
            click.echo(f"{plan.model}: {plan.digest} is pushed")

    _with(redis_url, namespace, each)
    click.echo(WHO_FOLLOWS)


@command.command("show")
@click.argument("model", required=False, default="")
@redis_option
@namespace_option
@output.json_option
def show(model: str, redis_url: str, namespace: str, as_json: bool) -> None:
    """The plans in force, or that of one model."""
    plans = _with(redis_url, namespace, lambda board: board.plans())
    if model:
        plans = [plan for plan in plans if plan.model == model] or _none(model)
    if as_json:
        output.print_json(plans[0] if model else plans)
        return
    table = Table("model", "digest", "made at", "functions")
    for plan in sorted(plans, key=lambda plan: plan.model):
        functions = ", ".join(function for route in plan.all_routes for function in route.functions)
        table.add_row(escape(plan.model), plan.digest, plan.made_at or "", escape(functions))
    output.stdout.print(table)


@command.command("history")
@click.argument("model", required=False, default="")
@redis_option
@namespace_option
@output.json_option
def history(model: str, redis_url: str, namespace: str, as_json: bool) -> None:
    """What was put into force, newest first: when, by whom and why."""
    written = _with(redis_url, namespace, lambda board: board.history(model))
    if model and not written:
        _none(model)
    if as_json:
        output.print_json([{"at": each.at, "by": each.by, "why": each.why, "plan": each.plan} for each in written])
        return
    table = Table("at (UTC)", "model", "digest", "by", "why")
    for each in written:
        at = datetime.fromtimestamp(each.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, escape(each.plan.model), each.plan.digest, escape(each.by), escape(each.why))
    output.stdout.print(table)


@command.command("back")
@click.argument("model")
@click.option("--to", "digest", default="", help="The digest of the plan to go back to  [default: the one before]")
@redis_option
@namespace_option
def back(model: str, digest: str, redis_url: str, namespace: str) -> None:
    """Put the plan before the one in force, or an earlier one, into force again."""

    async def restore(board: RedisPlans) -> Plan:
        in_force = next((plan.digest for plan in await board.plans() if plan.model == model), "")
        earlier = [each.plan for each in await board.history(model) if each.plan.digest != in_force]
        wanted = [plan for plan in earlier if digest in ("", plan.digest)]
        if not wanted:
            known = ", ".join(dict.fromkeys(plan.digest for plan in earlier)) or "none is kept"
            allowed = (
                f"the digest of an earlier plan of {model}: {known}"
                if digest
                else f"a model with a plan before its last one: {known}"
            )
            raise InvalidInput("--to" if digest else "model", digest or model, allowed)
        await board.write(wanted[0], getpass.getuser(), f"back from {in_force}")
        return wanted[0]

    plan = _with(redis_url, namespace, restore)
    click.echo(
        f"{plan.model}: {plan.digest} is pushed again ({len(write(plan))} bytes, made at {plan.made_at or 'an unknown time'})"
    )
    click.echo(WHO_FOLLOWS)


def _none(model: str) -> list[Plan]:
    raise InvalidInput("model", model, "one that has a plan in this Redis; `sluice plans show` lists them")


def _with(redis_url: str, namespace: str, work: Callable[[RedisPlans], Awaitable[Answer]]) -> Answer:
    """What the work answers; it gets the plans of a Redis that is closed after it."""
    require_redis(redis_url)

    async def run() -> Answer:
        board = RedisPlans(redis_url, namespace)
        try:
            return await work(board)
        finally:
            await board.close()

    with naming_redis(redis_url):
        return asyncio.run(run())
