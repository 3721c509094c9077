"""What the live page reads: one bounded document of what this process knows of its models, in seconds, USD and requests.

Every number is measured by this process, or by all under ``all_processes``, or stands under ``predicted`` and is what the plan says
of itself; where something is not known there is ``null``. Costs of an hour are at the rate of all processes where that is known.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from sluice.batching.documents import Plan, RequestClass, Route, Slo, percentile_name
from sluice.batching.policy import Policy
from sluice.batching.urls import without_password
from sluice.buffer_service.invokers import Health
from sluice.buffer_service.page.buffers import Buffers
from sluice.buffer_service.page.decisions import Decisions
from sluice.buffer_service.page.devices import Devices
from sluice.buffer_service.page.history import KEPT, MOST_PARTS, SAMPLE_EVERY, History, Window, quantile_bounds
from sluice.buffer_service.page.recorded import Recorded, Shared
from sluice.buffer_service.page.table_words import MOST_SPANS, sentences, spans
from sluice.buffer_service.page.unanswered import UnansweredEverywhere
from sluice.buffer_service.plans import Refusal
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.telemetry import SECONDS, SIZES, Counted, Invoked, Totals

MOST_MODELS = 50
"""That are told of at length, those with the most requests first; a process may serve hundreds."""
SAMPLED_AT_ONCE = 50  # models, behind which others have their turn: half a millisecond
MOST_DECISIONS = 8  # of a model
MOST_WORKERS_TOLD = 32  # of a function, those that are not well first
USUAL = (50.0, 95.0, 99.0)  # percentiles


class Prices(NamedTuple):
    """Of functions, USD; 0 where they are not told."""

    gb_second: float
    invocation: float


class Watched(Protocol):
    """What the page needs of the composition root."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    @property
    def refusals(self) -> Sequence[Refusal]: ...

    def health(self, function: str) -> Mapping[str, Health]: ...


class Watch:
    """Keeps the last minutes of each model, and tells of them; ``clock`` is monotonic, ``date`` since 1970 (s)."""

    def __init__(
        self,
        watched: Watched,
        decisions: Decisions,
        recorded: Recorded,
        unanswered: UnansweredEverywhere,
        devices: Devices,
        buffers: Buffers,
        clock: Callable[[], float],
        date: Callable[[], float],
        prices: Prices,
    ) -> None:
        self._watched = watched
        self._decisions = decisions
        self._recorded = recorded
        self._unanswered = unanswered
        self._devices = devices
        self._buffers = buffers
        self._prices = prices
        self._clock = clock
        self._date = date
        self._began = clock()
        self._histories: dict[str, History] = {}
        self._plans: dict[str, tuple[Plan, dict[str, Any]]] = {}  # by model, what was told of it last

    async def sample(self) -> None:
        """Keep how the counters of every model stand now."""
        for n, (name, model) in enumerate(list(self._watched.models.items()), 1):
            self._history(name).take(self._clock(), model.telemetry.totals())
            if n % SAMPLED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def tell(self) -> dict[str, Any]:
        """The document; between two models others have their turn."""
        now = self._clock()
        models, refusals = self._watched.models, self._watched.refusals
        came = {name: self._history(name).came_since(model.telemetry.came) for name, model in models.items()}
        busiest = sorted(came, key=lambda name: (-came[name], name))[:MOST_MODELS]
        await self._decisions.look()
        await self._devices.look()
        await self._buffers.look()
        await self._recorded.look({name: _limit(models[name].plan.slo) for name in busiest})
        shared = {name: known for name in busiest if (known := self._recorded.of(name)) is not None}
        await self._unanswered.look({name: known.seconds for name, known in shared.items()})
        told = []
        for name in sorted(busiest):
            told.append(self._tell_model(self._clock(), name, shared.get(name), refusals))
            await asyncio.sleep(0)
        return {
            "at": datetime.fromtimestamp(self._date(), UTC).isoformat(timespec="milliseconds"),
            "up": now - self._began,
            "kept": SAMPLE_EVERY * KEPT,
            "models": told,
            "models_left_out": len(models) - len(busiest),
            "recorded": {"trouble": self._recorded.trouble or None},
            "control": {"leader": self._decisions.leader, "trouble": self._decisions.trouble or None},
            "fleet": self._devices.tell(),
            "other_decisions": [entry for entry in self._decisions.entries if entry["model"] not in models][:MOST_DECISIONS],
            "refused_plans": [_refused(refusal) for refusal in refusals if refusal.model not in models][:MOST_MODELS],
        }

    async def close(self) -> None:
        """Release connections."""
        await self._decisions.close()
        await self._recorded.close()
        await self._devices.close()

    def _history(self, name: str) -> History:
        return self._histories.setdefault(name, History())

    def _tell_model(self, now: float, name: str, shared: Shared | None, refusals: Sequence[Refusal]) -> dict[str, Any]:
        model, history = self._watched.models[name], self._history(name)
        plan, totals = model.plan, model.telemetry.totals()
        window = history.window(now, totals)
        rate = shared.arrival_rate if shared is not None else window.arrival_rate
        reason = self._decisions.reasons.get((name, plan.digest))
        refused = [_refused(refusal) for refusal in refusals if refusal.model == name]
        decisions = self._tell_decisions(now, name, plan.slo, history, totals)
        return {
            "name": name,
            "plan": self._tell_plan(plan)
            | {"refused": refused[-1] if refused else None, "put": reason._asdict() if reason is not None else None}
            | {"followers": self._buffers.tell(name, self._decisions.reasons)},
            "waiting": sum(totals.waiting.values()),
            "measured": _tell_window(plan.slo, window),
            "all_processes": None
            if shared is None
            else _tell_shared(plan.slo, shared) | {"unanswered": self._unanswered.tell(name)},
            "series": [interval._asdict() | {"end": interval.end - now} for interval in history.intervals(now, totals)],
            "classes": [_tell_class(each, window) for each in plan.classes[:MOST_PARTS]],
            "classes_left_out": max(0, len(plan.classes) - MOST_PARTS),
            "routes": [self._tell_route(model, route, window, totals.waiting) for route in plan.all_routes[:MOST_PARTS]],
            "routes_left_out": max(0, len(plan.all_routes) - MOST_PARTS),
            "invoked": _tell_invoked(window.invoked),
            "cost": _tell_cost(plan, rate)
            | {
                "used": _tell_used(plan, window.invoked, rate, self._prices),
                "unknown": _why_unknown(plan, window.invoked, rate, self._prices),
                "rehearsed": _tell_rehearsed(decisions, rate),
            },
            "decisions": decisions,
        }

    def _tell_decisions(self, now: float, name: str, slo: Slo | None, history: History, totals: Totals) -> list[dict[str, Any]]:
        """The newest decisions about a model, each with what happened from it to the next: here, and as the next one tells it."""
        set_off, told, until, came = self._date() - now, [], now, None
        for entry in [entry for entry in self._decisions.entries if entry["model"] == name][:MOST_DECISIONS]:
            since = entry["at"] - set_off
            window = history.between(since, until, now, totals)
            measured = _tell_window(slo, window) if window is not None else None
            told.append({**entry, "measured": measured, "came": came if entry["trigger"] else None})  # what is only noted is none
            until, came = since, entry["since_last"]
        return told

    def _tell_plan(self, plan: Plan) -> dict[str, Any]:
        """What is always the same of a plan, made once."""
        known, told = self._plans.get(plan.model, (None, {}))
        if known is not plan:
            told = _tell_plan(plan)
            self._plans[plan.model] = plan, told
        return told

    def _tell_route(self, model: ServedModel, route: Route, window: Window, waiting: Mapping[str, int]) -> dict[str, Any]:
        measured = window.routes.get(route.name)
        answered = sum(each.answered for each in window.routes.values())
        functions = []
        for standing in model.standings(route.name):
            health = self._watched.health(standing.function)
            ill_first = sorted(health.items(), key=lambda known: (known[1].tried_in is None, -known[1].doubts, -known[1].pace))
            functions.append(
                {
                    "function": _shown(standing.function) if not health else f"{len(health)} workers",
                    "under_way": standing.under_way,
                    "asked_in": standing.asked_in,
                    "workers": [{"address": address} | each._asdict() for address, each in ill_first[:MOST_WORKERS_TOLD]],
                    "workers_left_out": max(0, len(health) - MOST_WORKERS_TOLD),
                }
            )
        return {
            "name": route.name,
            "variant": route.variant,
            "accuracy": route.accuracy,
            "share": route.share,
            "up_to": route.up_to,
            "measured_share": measured.answered / answered if measured is not None and answered else None,
            "waiting": waiting.get(route.name, 0),
            "mean_batch_size": _mean(measured.sizes if measured is not None else window.sizes if not route.name else None),
            "functions": functions,
        }


def _tell_plan(plan: Plan) -> dict[str, Any]:
    tables = [
        {"route": route.name, "function": _shown(function)} | _tell_table(table)
        for route in plan.all_routes[:MOST_PARTS]
        for function, table in zip(route.functions, route.rule().tables, strict=True)
    ]
    return {
        "digest": plan.digest,
        "made_at": plan.made_at,
        "memory_mb": plan.memory_mb,
        "promises": [_tell_slo(slo) for slo in (plan.slo, *plan.other_slos) if slo is not None],
        "tables": tables,
        "predicted": msgspec.to_builtins(plan.predicted) if plan.predicted is not None else None,
    }


def _tell_table(table: Policy) -> dict[str, Any]:
    rows = spans(table) if table.columns == 1 else []
    return {
        "kind": table.kind,
        "words": sentences(table),
        "rows": [row._asdict() for row in rows[:MOST_SPANS]],
        "rows_left_out": max(0, len(rows) - MOST_SPANS),
    }


def _tell_slo(slo: Slo) -> dict[str, Any]:
    return {"percentile": slo.percentile, "latency": slo.latency}


def _tell_window(slo: Slo | None, window: Window) -> dict[str, Any]:
    return {
        "seconds": window.seconds,
        "arrival_rate": window.arrival_rate,
        "came": window.came,
        "ended": window.ended,
        "late": window.late,
        "refused": dict(window.refused),
        "latency": _tell_latency(slo, window.latency),
        "batches": sum(window.sizes.counts),
        "mean_batch_size": _mean(window.sizes),
        "batch_sizes": [
            {"sizes": label, "batches": count} for label, count in zip(_size_labels(), window.sizes.counts, strict=True) if count
        ],
    }


def _tell_shared(slo: Slo | None, shared: Shared) -> dict[str, Any]:
    return {
        "seconds": shared.seconds,
        "came": shared.came,
        "arrival_rate": shared.arrival_rate,
        "batches": shared.batches,
        "requests": shared.requests,
        "mean_batch_size": shared.requests / shared.batches if shared.batches else None,
        "failed": shared.failed,
        "answered": shared.answered,
        "late": shared.late if slo is not None else None,
        "latency": _tell_latency(slo, shared.latency),
    }


def _limit(slo: Slo | None) -> float:
    return slo.latency if slo is not None else math.inf


def _tell_class(each: RequestClass, window: Window) -> dict[str, Any]:
    measured = window.classes.get(each.name)
    return {
        "name": each.name,
        "route": each.route,
        "slack": each.slack,
        "promise": _tell_slo(each.slo) if each.slo is not None else None,
        "ended": measured.ended if measured is not None else 0,
        "late": measured.late if measured is not None else 0,
        "latency": _tell_latency(each.slo, measured.latency) if measured is not None else [],
    }


def _tell_latency(slo: Slo | None, latency: Counted) -> list[dict[str, Any]]:
    """Percentiles of the answers, each between two ends of buckets."""
    told = []
    for percentile in sorted({*USUAL, *([slo.percentile] if slo is not None else [])}):
        bounds = quantile_bounds(latency.counts, SECONDS, percentile / 100)
        if bounds is not None:
            above, at_most = bounds
            told.append({"name": percentile_name(percentile), "above": above, "at_most": at_most if at_most < math.inf else None})
    return told


def _tell_cost(plan: Plan, rate: float | None) -> dict[str, Any]:
    """What the plan says a request costs (USD), with its batches and without any, and that at the arrival rate that is measured."""
    usd = alone = None
    if plan.predicted is not None:
        usd, alone = plan.predicted.cost_per_request, plan.predicted.cost_without_batching
    return {"predicted": _usd(usd, rate), "predicted_without_batching": _usd(None if alone is msgspec.UNSET else alone, rate)}


def _tell_rehearsed(decisions: Sequence[Mapping[str, Any]], rate: float | None) -> dict[str, Any] | None:
    """What the last decision that compared plans found the plan to cost that serves, that which somebody gave, and no batching."""
    last = next((each for each in decisions if each["considered"]), None)
    if last is None:
        return None
    digests = {"serving": (last["expected"] or {}).get("digest"), "given": last["given"], "unbatched": last["unbatched"]}
    found: dict[str, Any] = {}
    for name, digest in digests.items():
        one = next((each for each in last["considered"] if digest and each["digest"] == digest), None)
        if one is None:
            found[name] = None
            continue
        usd = (one["usd_per_million"] or [None])[0]
        found[name] = _usd(None if usd is None else usd / 1e6, rate) | {"keeps": one["keeps"]}
    return found


def _tell_invoked(invoked: Invoked) -> dict[str, Any]:
    return {
        "invocations": invoked.invocations,
        "cold": invoked.cold,
        "mean_seconds": invoked.seconds / invoked.timed if invoked.timed else None,
    }


def _tell_used(plan: Plan, invoked: Invoked, rate: float | None, prices: Prices) -> dict[str, Any] | None:
    """What invocations come to by the prices that are set and the time that they told, at the rate at which requests come; and what
    they would without batching, if all took what those of one request did. Of one Lambda function, whose memory the plan has; what
    is kept warm is paid by the hour too, for which no price is set.
    """
    if _unused(plan, invoked, rate) or rate is None or plan.memory_mb is None:
        return None
    gb, priced = plan.memory_mb / 1024, bool(prices.gb_second) and not _is_kept_warm(plan)

    def usd(seconds: float, invocations: int) -> float:
        return seconds * gb * prices.gb_second + invocations * prices.invocation

    hourly = 3600 * rate  # requests
    used = usd(invoked.seconds, invoked.timed) / invoked.requests if priced else None
    alone = usd(invoked.seconds_alone, invoked.alone) / invoked.alone if priced and invoked.alone else None
    return {
        "invocations": invoked.timed,
        "requests": invoked.requests,
        "gb_seconds_per_hour": invoked.seconds * gb / invoked.requests * hourly,
        "usd_per_million": 1e6 * used if used is not None else None,
        "usd_per_hour": used * hourly if used is not None else None,
        "alone": invoked.alone,
        "usd_per_million_alone": 1e6 * alone if alone is not None else None,
        "usd_per_hour_alone": alone * hourly if alone is not None else None,
    }


def _unused(plan: Plan, invoked: Invoked, rate: float | None) -> str:
    """Why it is not known what invocations used, ``""`` where it is."""
    functions = [function for route in plan.all_routes for function in route.functions]
    if len(functions) != 1:
        return "several functions serve it, and the buffer reckons with one"
    if "://" in functions[0]:
        return "what is behind HTTP serves it, and the buffer reckons with Lambda's prices"
    if plan.memory_mb is None:
        return "the plan names no memory size"
    if not invoked.timed:
        return "no invocation told its time lately"
    return "too little came lately" if rate is None else ""


def _is_kept_warm(plan: Plan) -> bool:
    """By the hour: what pings keep costs some thousandths of that, and is left out."""
    return any(bool(route.warm and route.warm.provisioned) or route.policy.servers is not None for route in plan.all_routes)


def _why_unknown(plan: Plan, invoked: Invoked, rate: float | None, prices: Prices) -> str:
    """Why it is not known what it costs, ``""`` where it is."""
    if why := _unused(plan, invoked, rate):
        return why
    if _is_kept_warm(plan):
        return "what is kept warm is paid by the hour, and the buffer has no price of that"
    return "" if prices.gb_second else "the buffer has no prices (SLUICE_GB_SECOND_USD, SLUICE_INVOCATION_USD)"


def _usd(per_request: float | None, rate: float | None) -> dict[str, float | None]:
    return {
        "usd_per_million": 1e6 * per_request if per_request is not None else None,
        "usd_per_hour": 3600 * per_request * rate if per_request is not None and rate is not None else None,
    }


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"place": refusal.place, "model": refusal.model, "digest": refusal.digest or None, "reason": refusal.reason}


def _mean(sizes: Counted | None) -> float | None:
    batches = sum(sizes.counts) if sizes is not None else 0
    return sizes.sum / batches if sizes is not None and batches else None


def _size_labels() -> list[str]:
    """Of the buckets of batch sizes: ``1``, ``2``, ``3 to 4``, and so on."""
    lows = [1, *(end + 1 for end in SIZES)]
    closed = [str(end) if low == end else f"{low} to {end}" for low, end in zip(lows, SIZES, strict=False)]
    return [*closed, f"{lows[-1]} or more"]


def _shown(function: str) -> str:
    """A function as it may be shown, each worker without its password."""
    return ",".join(map(without_password, function.split(",")))
