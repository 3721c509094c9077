"""`sluice status`: the plans in force, whether their promises are kept, and what they cost so far."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec

from sluice.batching.documents import percentile_name
from sluice.batching.errors import InvalidInput, StoreUnavailable, require
from sluice.batching.measured import MeasuredBatch
from sluice.batching.urls import is_http, without_password
from sluice.buffer_service.followers import followers
from sluice.buffer_service.page.decisions import decision_of
from sluice.buffer_service.presence import Heard, Presences
from sluice.buffer_service.redis_plans import HISTORY, RedisPlans
from sluice.buffer_service.stream_reader import RecordReader
from sluice.buffer_service.unanswered import UnansweredCounts
from sluice.cli import output
from sluice.cli.cost_options import architecture_option, price_list
from sluice.cli.given import require_none_given
from sluice.cli.model_status import MOST_OTHERS, ModelStatus, Noticed, OtherPlan, Promise, noticed_of, recorded_status, told_status
from sluice.cli.redis_options import namespace_option, naming_redis, redis_option, require_redis
from sluice.cli.values import DURATION, FILE
from sluice.optimizer.billing import Billing

TIMEOUT = 10.0  # s
MOST_DECISIONS = 200  # of the journal in Redis, of all models
MOST_BYTES = 64 * 1024 * 1024  # of what a buffer tells


@click.command("status")
@click.argument("model", required=False, default="")
@click.option(
    "--url", metavar="http://HOST:PORT", help="Ask a buffer for its page's figures instead of Redis, where that cannot be reached."
)
@click.option(
    "--window",
    type=DURATION,
    default=300.0,
    show_default=True,
    help="The newest so many say whether a promise is kept; a buffer has its own five minutes.",
)
@click.option(
    "--worker-usd",
    type=float,
    metavar="USD",
    help="What an hour of a worker behind HTTP costs; without it workers are not in the costs.",
)
@click.option("--prices", type=FILE, metavar="FILE", help="Prices laid over the dated ones that come along; any part of them.")
@architecture_option
@redis_option
@namespace_option
@output.json_option
def command(
    model: str,
    url: str | None,
    window: float,
    worker_usd: float | None,
    prices: str | None,
    architecture: str,
    redis_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Say of each model, or of one, which plan is in force, who follows it, whether it keeps its promise, and what it cost so far.

    From what the buffers recorded in Redis, as far back as they keep it (SLUICE_BATCHES_KEPT); a promise is neither kept nor broken
    where too few requests came to tell.
    """
    require(0 < window < float("inf"), "--window", window, "a number of seconds > 0")
    require(worker_usd is None or 0 <= worker_usd < float("inf"), "--worker-usd", worker_usd, "USD an hour, >= 0")
    billing = Billing(price_list(prices), architecture)
    if url is not None:
        require(worker_usd is None, "--worker-usd", worker_usd, "none with --url: a buffer does not tell of the workers' hours")
        by_its_own = "none beside --url: the buffer answers by its own"
        require_none_given(("window", "prices", "architecture", "redis_url", "namespace"), by_its_own)
        found = _told(url)
    else:
        if redis_url.startswith("memory://"):
            raise InvalidInput("--redis-url", redis_url, "the Redis of the buffers; of a buffer without one say --url")
        require_redis(redis_url)
        with naming_redis(redis_url):
            found = asyncio.run(_recorded(redis_url, namespace, model, window, billing, worker_usd))
    if model:
        found = found._replace(models=[status for status in found.models if status.model == model])
        known = "one that has a plan in force; `sluice status` lists them"
        require(bool(found.models), "model", model, known)
    if as_json:
        output.print_json({"version": 1, "at": datetime.now(UTC).isoformat(timespec="seconds")} | found.document())
        return
    _show(found)


class Found(NamedTuple):
    """Who leads, the buffers that are there (``None``: it is not known which), and the models.

    ``trouble`` is why who leads is not known as it is now, ``""`` where it is.
    """

    leader: str
    buffers: Sequence[Heard] | None
    models: Sequence[ModelStatus]
    trouble: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        there = None
        if self.buffers is not None:
            told = ((each.process, each.silent, msgspec.to_builtins(each.presence)) for each in self.buffers)
            there = [{"process": process, "silent": silent} | presence for process, silent, presence in told]
        models = [each.document() for each in self.models]
        return {"leader": self.leader or None, "trouble": self.trouble or None, "buffers": there, "models": models}


async def _recorded(redis_url: str, namespace: str, model: str, window: float, billing: Billing, worker_usd: float | None) -> Found:
    presences = Presences(redis_url, namespace)
    try:
        buffers = await presences.heard()  # before the plans: none is told of as older than what it follows
    finally:
        await presences.close()
    board = RedisPlans(redis_url, namespace)
    try:
        plans = [plan for plan in await board.plans() if model in ("", plan.model)]
        reasons = await board.reasons(HISTORY)
        put = {(each.model, each.digest): each for each in reversed(reasons)}
        leader = await board.leader()
        decisions = [told for line in await board.decisions(MOST_DECISIONS) if (told := decision_of(line)) is not None]
    finally:
        await board.close()
    statuses, counts = [], UnansweredCounts(redis_url, namespace)
    try:
        for plan in sorted(plans, key=lambda plan: plan.model):
            batches, now = _batches(redis_url, plan.model, namespace)
            noticed = noticed_of(each for each in decisions if each["model"] == plan.model)
            reason = put.get((plan.model, plan.digest))
            put_at = reason.at if reason is not None else min((each.at for each in reasons), default=0.0)
            there = followers(plan.model, plan.digest, put_at, buffers)
            known = reason, there, batches, await counts.of(plan.model, window), noticed
            statuses.append(recorded_status(plan, *known, now, window, billing, worker_usd))
    finally:
        await counts.close()
    return Found(leader, buffers, statuses)


def _batches(redis_url: str, model: str, namespace: str) -> tuple[list[MeasuredBatch], float]:
    """All that is kept of a model, and when that was by the clock of Redis (s)."""
    reader = RecordReader(redis_url, model, namespace)
    try:
        reader.look_for_routes()
        batches: list[MeasuredBatch] = []
        while True:
            new = reader.batches()
            batches += new.batches
            if not new.more:
                return batches, reader.now
    finally:
        reader.close()


def _told(url: str) -> Found:
    """What a buffer tells of all its models."""
    require(is_http(url), "--url", without_password(url), "http://HOST:PORT of a buffer")
    place = f"{url.rstrip('/')}/status"
    try:
        with urllib.request.urlopen(place, timeout=TIMEOUT) as answer:
            document = msgspec.json.decode(answer.read(MOST_BYTES))
        at = datetime.fromisoformat(document["at"]).timestamp()
        control, models = document["control"], [told_status(each, at) for each in document["models"]]
        return Found(control["leader"], None, models, control.get("trouble") or "")
    except urllib.error.HTTPError as error:
        allowed = "a buffer with a page: not SLUICE_PAGE=off, and at SLUICE_ADMIN_PORT where that is set"
        raise InvalidInput("--url", without_password(place), f"{allowed} (it answers {error.code})") from None
    except OSError as error:
        raise StoreUnavailable(f"{without_password(place)} does not answer: {getattr(error, 'reason', error)}") from None
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput("--url", without_password(place), f"a buffer of this version ({error})") from None


def _show(found: Found) -> None:
    for status in found.models:
        click.echo(f"{status.model}: plan {status.digest}{_put(status)}")
        if status.followers is not None:
            of = "" if status.followers.digest == status.digest else f"of plan {status.followers.digest} in Redis: "
            click.echo(f"  {of}{status.followers.words()}")
        for promise in status.promises:
            click.echo(f"  {percentile_name(promise.percentile)} within {1000 * promise.latency:g} ms: {_verdict(promise)}")
        click.echo(f"  {_came(status)}")
        for line in (*_unanswered(status), _spent(status), *map(_other_plan, status.other_plans), *_noticed(status.noticed)):
            click.echo(f"  {line}")
    if not found.models:
        click.echo("no model has a plan here")
        for place, n in Counter(each.presence.plans for each in found.buffers or ()).most_common(MOST_OTHERS):
            click.echo(f"{_buffers(n)} there with plans from {place}")
    leads = f"{found.leader} leads" if found.leader else "nobody plans by himself"
    if found.trouble:
        before = f"; {found.leader} led when that was known last" if found.leader else ""
        leads = f"who leads is not known: {found.trouble}{before}"
    click.echo(f"control: {leads}")


def _put(status: ModelStatus) -> str:
    if status.put is None:
        return f", made at {status.made_at}" if status.made_at else ""
    why = f": {status.put['why']}" if status.put["why"] else ""
    return f", put into force {_date(status.put['at'])} UTC by {status.put['by']}{why}"


def _buffers(n: int) -> str:
    return f"{n} buffers are" if n > 1 else "1 buffer is"


def _verdict(promise: Promise) -> str:
    if promise.kept is None and promise.late_percent is None:
        return "no requests"
    late = (
        "" if promise.late_percent is None else f", {promise.late_percent:.3g} % late of the {100 - promise.percentile:.3g} allowed"
    )
    if promise.measured is not None:
        late = f", {'' if promise.exact else 'at most '}{1000 * promise.measured:.4g} ms{late}"
    return {True: "kept", False: "not kept", None: "too few requests to tell"}[promise.kept] + late


def _came(status: ModelStatus) -> str:
    said = [f"{status.requests} requests in {status.seconds:.0f} s"]
    if status.arrival_rate is not None:
        said.append(f"{status.arrival_rate:.4g}/s")
        size = status.mean_batch_size
        said.append(f"in batches of {size:.3g}" if size is not None else "none of them in a batch")
    if status.unanswered.late:
        said.append(f"{status.unanswered.late} of them late without an answer, in no batch")
    return ", ".join(said)


def _unanswered(status: ModelStatus) -> list[str]:
    by_error, since = status.unanswered.by_error, status.unanswered.since
    if not by_error or since is None:
        return []
    counts = ", ".join(f"{n} {error}" for error, n in sorted(by_error.items(), key=lambda each: -each[1]))
    return [f"without an answer since {_date(since)} UTC, late or not, in a batch or not: {counts}"]


def _other_plan(other: OtherPlan) -> str:
    if other.reason:
        return f"another plan{f', {other.digest},' if other.digest else ''} is not followed by this buffer: {other.reason}"
    return f"{other.batches} of {other.of} batches left by another plan, {other.digest}, which some buffer follows"


def _noticed(noticed: Noticed) -> Iterator[str]:
    if noticed.decided:
        alarm = ", with an alarm" if noticed.alarm else ""
        yield f"decided last, {_date(noticed.decided_at)} UTC{alarm}: {noticed.decided}"
    if noticed.hole:
        yield f"{_date(noticed.hole_at)} UTC: {noticed.hole}"


def _spent(status: ModelStatus) -> str:
    spent = status.spent
    if spent.usd_per_million is None:
        return f"what it costs is not known{f': {spent.unknown}' if spent.unknown else ''}"
    since = f"{spent.usd:.4g} USD since {_date(spent.since)} UTC, " if spent.usd is not None and spent.since is not None else ""
    predicted = status.predicted_usd_per_million
    beside = f" (predicted {predicted:.4g})" if predicted is not None else ""
    month = f", {spent.usd_per_month:.4g} a month" if spent.usd_per_month is not None else ""
    return f"{since}{spent.usd_per_million:.4g} USD per million requests{beside}{month}"


def _date(at: Any) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
