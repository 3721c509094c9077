"""How a model stands: its plan, whether what that promises is kept, and what it cost, from what the buffers recorded.

No clock and no I/O; ``status.py`` reads and shows. Of what was recorded the newest ``window`` seconds say whether a promise is
kept, and all of it what it cost. A request counts as late where it was answered later than promised, or with 5xx, or where it had
no answer, as one that is refused before it is in a batch: these are in no record, and each process counts them
(``unanswered.py``). Costs are those of functions: the GB-seconds that were billed, or where nobody told these those of the
function's own time, to which INIT of a cold start comes, and the fee of an invocation for each batch; so are those of a function
behind HTTP whose plan names its memory size. Environments that the plan in force has provisioned cost their hours, as if they
had been there since the first batch, and batches on them less; a batch that found as many others under way was on demand, and so
was a cold one. Of workers costs are their hours, where a price is told. What is not told, or has no price, is not known.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluice.batching.documents import Plan, Slo, percentile_name
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.followers import Followers, told_followers
from sluice.buffer_service.redis_plans import Reason
from sluice.buffer_service.unanswered import Unanswered
from sluice.optimizer.billing import Billing
from sluice.optimizer.billing.cost import measured_cost
from sluice.optimizer.billing.prices import HOURS_PER_MONTH

FOLLOWED_WITHIN = 5.0
"""Seconds from when a plan was put into force until requests that come are batched by it, at every buffer that follows it."""
MOST_OTHERS = 4
"""Plans that are named beside the one in force."""


class Promise(NamedTuple):
    """An SLO, which percent of the requests were late, and whether that is kept: ``None`` where too few came to tell.

    ``measured`` is the percentile that was (s), or where that is not ``exact`` the end of the bucket in which it was; ``None``: not
    known.
    """

    percentile: float
    latency: float
    late_percent: float | None
    kept: bool | None
    measured: float | None
    exact: bool


class Noticed(NamedTuple):
    """What controllers wrote last: a decision, with its alarm, and a hole in the record; in words, and when (s since 1970)."""

    decided: str = ""
    decided_at: float | None = None
    alarm: str = ""
    hole: str = ""
    hole_at: float | None = None


class Spent(NamedTuple):
    """USD, for so many requests since a time (s since 1970; ``None``: not told); of ``untold`` batches none is.

    ``unknown`` says why it is not known at all, ``""`` where it is or nobody tells why.
    """

    since: float | None
    requests: int
    untold: int
    usd: float | None
    usd_per_million: float | None
    usd_per_month: float | None
    unknown: str = ""


class OtherPlan(NamedTuple):
    """Of the latest ``of`` batches so many left by another plan than the one in force, or a buffer says why it does not follow."""

    digest: str
    batches: int
    of: int
    reason: str = ""


class ModelStatus(NamedTuple):
    """Of one model; ``seconds`` are those of which it is told what came, and whether promises were kept.

    ``requests`` were in batches, or broke the promise without an answer. ``followers`` are the buffers that follow the plan in
    Redis; ``None``: it is not known which there are.
    """

    model: str
    digest: str
    made_at: str | None
    put: Mapping[str, Any] | None
    followers: Followers | None
    seconds: float
    requests: int
    arrival_rate: float | None
    mean_batch_size: float | None
    promises: Sequence[Promise]
    predicted_usd_per_million: float | None
    spent: Spent
    unanswered: Unanswered
    other_plans: Sequence[OtherPlan]
    noticed: Noticed

    @property
    def kept(self) -> bool | None:
        """Whether every promise is: ``None`` where one is not known and none is broken."""
        verdicts = [promise.kept for promise in self.promises]
        return False if False in verdicts else None if None in verdicts or not verdicts else True

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        promises = [promise._asdict() for promise in self.promises]
        others = [each._asdict() for each in self.other_plans]
        followers = self.followers.document() if self.followers is not None else None
        told = {"promises": promises, "spent": self.spent._asdict(), "unanswered": self.unanswered._asdict()}
        return (
            self._asdict()
            | told
            | {"followers": followers, "other_plans": others, "noticed": self.noticed._asdict(), "kept": self.kept}
        )


def recorded_status(
    plan: Plan,
    put: Reason | None,
    followers: Followers,
    batches: Sequence[MeasuredBatch],
    unanswered: Unanswered,
    noticed: Noticed,
    now: float,
    window: float,
    billing: Billing,
    worker_usd: float | None,
) -> ModelStatus:
    """Of a model in force by ``plan`` whose ``batches`` were recorded; ``now`` is by the clock that dated them (s).

    ``worker_usd`` is what an hour of a worker costs; ``None``: not known.
    """
    lately = [batch for batch in batches if batch.ended_at > now - window]
    since = min((batch.ended_at for batch in batches), default=now)
    seconds = min(window, max(now - since, unanswered.late_for))
    in_batches = sum(batch.size for batch in lately)
    requests = in_batches + unanswered.late
    predicted = plan.predicted.cost_per_request if plan.predicted is not None else None
    slos = [slo for slo in (plan.slo, *plan.other_slos) if slo is not None]
    return ModelStatus(
        plan.model,
        plan.digest,
        plan.made_at,
        put._asdict() if put is not None else None,
        followers,
        seconds,
        requests,
        requests / seconds if seconds > 0 and requests else None,
        in_batches / len(lately) if lately else None,
        [_promise(slo, lately, unanswered.late) for slo in slos],
        None if predicted is None else 1e6 * predicted,
        _spent(plan, batches, since, now, billing, worker_usd),
        unanswered,
        _other_plans(plan, put, lately),
        noticed,
    )


def noticed_of(decisions: Iterable[Mapping[str, Any]]) -> Noticed:
    """What is newest in what the journal has of a model, newest first (``buffer_service/page/decisions.py``)."""
    found = Noticed()
    for each in decisions:
        if each["trigger"] and not found.decided:
            found = found._replace(decided=each["sentence"], decided_at=each["at"], alarm=each["alarm"])
        if each["hole"] and not found.hole:
            found = found._replace(hole=each["sentence"], hole_at=each["at"])
    return found


def _other_plans(plan: Plan, put: Reason | None, batches: Sequence[MeasuredBatch]) -> list[OtherPlan]:
    """By which other plans batches left whose first request came when this one was to be in force everywhere."""
    if put is None:  # so many plans were written since that it is not known when this one was
        return []
    told = [batch.digest for batch in batches if batch.digest and batch.first_came >= put.at + FOLLOWED_WITHIN]
    return [OtherPlan(digest, n, len(told)) for digest, n in Counter(told).most_common(MOST_OTHERS) if digest != plan.digest]


def told_status(told: Mapping[str, Any], told_at: float) -> ModelStatus:
    """Of a model as the live page of a buffer tells it (``buffer_service/page/status.py``); of all processes where it can.

    Which plan is refused is of that one process; ``told_at`` is when it told it (s since 1970).
    """
    shared, cost, plan = told["all_processes"], told["cost"], told["plan"]
    measured = shared if shared is not None else told["measured"]
    unanswered = Unanswered(told_at - told["measured"]["seconds"], told["measured"]["refused"])
    if shared is None:
        ended, failed = measured["ended"], 0
    else:  # which tells of those in batches
        if (of_all := shared.get("unanswered")) is not None:  # of none where the buffer is an earlier one
            unanswered = Unanswered(of_all["since"], of_all["by_error"], of_all["late"])
            without = unanswered.late
        else:  # of the others this process knows its own
            without = sum(n for error, n in unanswered.by_error.items() if error != "ClientLeft")
        ended, failed = shared["requests"] + without, shared["failed"] + without
    promises = []
    for i, slo in enumerate(plan["promises"]):
        late = _late(measured, shared, ended, failed) if i == 0 and ended and measured["late"] is not None else None
        if i == 0:
            kept = _kept(slo["percentile"], late, ended)
        elif failed > ended * (1 - slo["percentile"] / 100):
            kept = False
        else:
            kept = _kept_by_bounds(slo, measured["latency"])
            kept = None if failed and kept else kept  # the latencies are of those that were answered
        bounds = None if failed else _bounds(slo, measured["latency"])
        end = None if bounds is None else bounds["at_most"]
        promises.append(Promise(slo["percentile"], slo["latency"], late, kept, end, exact=False))
    used = cost["used"] or {}
    hourly = used.get("usd_per_hour")
    spent = Spent(
        None,
        used.get("requests", 0),
        0,
        None,
        used.get("usd_per_million"),
        hourly * HOURS_PER_MONTH if hourly is not None else None,
        cost.get("unknown", ""),
    )
    return ModelStatus(
        told["name"],
        plan["digest"],
        plan["made_at"],
        plan["put"],
        told_followers(there) if (there := plan.get("followers")) is not None else None,
        measured["seconds"],
        measured["came"] if shared is None else ended,
        measured["arrival_rate"],
        measured["mean_batch_size"],
        promises,
        cost["predicted"]["usd_per_million"],
        spent,
        unanswered,
        [OtherPlan(astray["digest"] or "", 0, 0, astray["reason"])] if (astray := plan["refused"]) is not None else [],
        noticed_of(told["decisions"]),
    )


def _late(measured: Mapping[str, Any], shared: Mapping[str, Any] | None, ended: int, failed: int) -> float:
    """Percent of those that ended: of all processes who failed is counted apart, and of the others some tell their latency."""
    if shared is None:
        return 100 * float(measured["late"]) / ended
    of_answered = shared["late"] / shared["answered"] if shared["answered"] else 0.0
    return float(100 * (of_answered * (ended - failed) + failed) / ended)


def _promise(slo: Slo, batches: Sequence[MeasuredBatch], unanswered: int) -> Promise:
    """What latencies tell stands for all answers of their batch: other processes have the callers of some of them."""
    counted = late = float(unanswered)
    took: list[tuple[float, float]] = []  # a latency, and how many answers it stands for
    for batch in batches:
        if batch.latencies:
            answered = batch.size - batch.failed
            took += [(latency, answered / len(batch.latencies)) for latency in batch.latencies]
            counted += answered
            late += answered * sum(latency > slo.latency for latency in batch.latencies) / len(batch.latencies)
        counted, late = counted + batch.failed, late + batch.failed
    percent = 100 * late / counted if counted else None
    kept = _kept(slo.percentile, percent, counted)
    return Promise(slo.percentile, slo.latency, percent, kept, _percentile(slo, took, counted), exact=True)


def _percentile(slo: Slo, took: list[tuple[float, float]], counted: float) -> float | None:
    """The latency that as many of all requests kept as the SLO promises; ``None`` where so many have none."""
    left = slo.quantile * counted
    for latency, stands_for in sorted(took):
        left -= stands_for
        if left <= 1e-9 * counted:
            return latency
    return None


def _kept(percentile: float, late_percent: float | None, requests: float) -> bool | None:
    """``None`` where even one late request would be too many."""
    allowed = 100 - percentile
    if late_percent is None or requests * allowed < 100:
        return None
    return late_percent <= allowed + 1e-9


def _kept_by_bounds(slo: Mapping[str, Any], latencies: Sequence[Mapping[str, Any]]) -> bool | None:
    """By a percentile that is known to lie between two ends of buckets."""
    known = _bounds(slo, latencies)
    if known is None:
        return None
    if known["at_most"] is not None and known["at_most"] <= slo["latency"]:
        return True
    return False if known["above"] >= slo["latency"] else None


def _bounds(slo: Mapping[str, Any], latencies: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((each for each in latencies if each["name"] == percentile_name(slo["percentile"])), None)


def _spent(
    plan: Plan, batches: Sequence[MeasuredBatch], since: float, now: float, billing: Billing, worker_usd: float | None
) -> Spent:
    workers = _workers(plan) if worker_usd is not None and batches else 0
    usd, requests, untold = (worker_usd or 0.0) * workers * (now - since) / 3600, 0, 0
    usd += _kept_warm(plan, billing) * (now - since)
    for batch, provisioned in _by_environment(plan, batches):
        memory_mb = memory_of(batch.function, plan)
        if memory_mb is not None:
            cost = measured_cost(batch, memory_mb, billing, provisioned=provisioned)
        else:
            cost = 0.0 if workers and "://" in batch.function else math.nan  # in their hours
        if math.isnan(cost):
            untold += 1
            continue
        usd += cost
        requests += batch.size
    if not requests:
        return Spent(since if batches else None, 0, untold, None, None, None, _why_unknown(plan, batches))
    month = usd / (now - since) * 3600 * HOURS_PER_MONTH if now > since else None
    return Spent(since, requests, untold, usd, 1e6 * usd / requests, month)


def _why_unknown(plan: Plan, batches: Sequence[MeasuredBatch]) -> str:
    """Why nothing is known of what it costs, by the latest of its batches."""
    if not batches:
        return "no batch is recorded"
    function = max(batches, key=lambda batch: batch.ended_at).function
    if memory_of(function, plan) is not None:
        return "no invocation told its time"
    if "://" in function:
        return "workers serve it, of which --worker-usd tells what an hour costs"
    return f"neither the plan nor its name tells the memory size of {function}"


def _provisioned(plan: Plan) -> dict[tuple[str, int], tuple[str, int]]:
    """By route and place of the table the Lambda function that serves it, and how many environments of it are provisioned."""
    found = {}
    for route in plan.all_routes:
        for place, (function, table) in enumerate(zip(route.functions, route.rule().tables, strict=True)):
            n = table.servers or (route.warm.provisioned if route.warm else 0)
            if n and "://" not in function:
                found[route.name, place] = function, n
    return found


def _kept_warm(plan: Plan, billing: Billing) -> float:
    """USD of a second of what is there whether or not a request comes: provisioned environments, and pings."""
    usd, prices, of = 0.0, billing.prices, billing.architecture
    for function, n in _provisioned(plan).values():
        if memory_mb := memory_of(function, plan):
            usd += n * prices.provisioned(memory_mb, of).reserved_per_hour / 3600
    for route in plan.all_routes:
        for function in route.functions if route.warm and route.warm.pinged_every else ():
            memory_mb = memory_of(function, plan)
            if route.warm and memory_mb:
                usd += prices.pings(route.warm.pinged, memory_mb, of) / route.warm.pinged_every
    return usd


def _by_environment(plan: Plan, batches: Sequence[MeasuredBatch]) -> Iterator[tuple[MeasuredBatch, bool]]:
    """The batches as they began, each with whether it found a provisioned environment, which serve before others start."""
    provisioned = _provisioned(plan)
    under_way: dict[tuple[str, int], list[float]] = {key: [] for key in provisioned}  # when those on such environments end
    for batch in sorted(batches, key=lambda batch: batch.ended_at - batch.seconds):
        key = batch.route, batch.table
        function, n = provisioned.get(key, ("", 0))
        ends = under_way.get(key, [])
        while ends and ends[0] <= batch.ended_at - batch.seconds:
            heapq.heappop(ends)
        found = batch.function == function and len(ends) < n and not batch.cold
        if found:
            heapq.heappush(ends, batch.ended_at)
        yield batch, found


def _workers(plan: Plan) -> int:
    """How many workers behind HTTP a plan asks: of each function as many as it has addresses, or its tables have servers."""
    found: dict[str, int] = {}
    for route in plan.all_routes:
        for function, table in zip(route.functions, route.rule().tables, strict=True):
            if "://" in function and memory_of(function, plan) is None:
                found[function] = max(found.get(function, 0), table.servers or 0, len(function.split(",")))
    return sum(found.values())


def memory_of(function: str, plan: Plan) -> int | None:
    """MB of a function that a batch names: what its plan says of it, or its name; ``None`` of workers."""
    first = plan.all_routes[0]
    workers = "://" in function and first.policy.servers is not None
    if len(plan.all_routes) == 1 and function == first.functions[0] and not workers and plan.memory_mb is not None:
        return plan.memory_mb
    if "://" in function:
        return None
    named = re.search(r"[-_]([1-9][0-9]{2,4})(:[^:]*)?$", function)
    return int(named[1]) if named else None
