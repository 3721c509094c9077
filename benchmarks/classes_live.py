"""Two applications with promises of their own in one queue, live: what each waits and what a request costs, as predicted.

A sleeper, so that batches take the same whatever else the machine does, runs in the local Lambda behind a buffer with Redis. What
a batch takes is measured first, and so is the way through the buffer, as what one request after the other takes beyond that. The
table waits to the last moment for the stricter promise, with the largest batch that is cheapest for both together; the other class
has what its promise has beyond that as its slack. Arrivals are Poisson. Printed are p50, p95 and p99 of each class and the cost of
a request: predicted by the exact law (docs/model.md, 2.9), simulated on the very arrivals, which leaves out what chance does to so
few, and measured, the cost by the durations that were billed. It takes about two minutes, half a minute with ``--seconds 4``.

``python -m benchmarks classes_live [--rates 50,5] [--slos 0.2,1] [--seconds 60]``
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.sizes_live import MEMORY, SEED, swept, way_beyond
from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, ServiceProfile, Slo
from sluice.batching.policy import Policy, no_batching
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run
from sluice.local.stack import BufferProcess, LambdaProcess, buffer_process, lambda_process
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing import default_prices
from sluice.optimizer.function.class_holds import shared_holds_law
from sluice.optimizer.recommend import Limits, Question, poisson
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.simulation import Deployment
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.profiler.samples import Sample

MODEL = "sleeper"
FUNCTION = f"{MODEL}-{MEMORY}"
LAW = {"SLUICE_SLEEPER_INTERCEPT": "0.03", "SLUICE_SLEEPER_SLOPE": "0.008"}  # s, s a request
BATCHES = usually((1, 2, 4, 8, 16), smoke=(1, 4))
WARM = usually(8, smoke=1)  # environments that are started before
NAMES = ("interactive", "report")
PERCENTILES = (50, 95, 99)


class Expected(NamedTuple):
    """A plan, the percentiles of each class, shape (n_classes, n_percentiles), s, and USD per request."""

    plan: Plan
    latency: Array
    cost: float


def main() -> None:
    """Print the percentiles and the cost: predicted, simulated on the requests that are sent, and measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", default=usually("50,5", smoke="20,5"))
    parser.add_argument("--slos", default="0.2,1")
    parser.add_argument("--seconds", type=positive, default=usually(60.0, smoke=0.5))
    options = parser.parse_args()
    rates, promises = (tuple(map(float, given.split(","))) for given in (options.rates, options.slos))
    rng = np.random.default_rng(SEED)
    times = [np.sort(rng.uniform(0, options.seconds, rng.poisson(rate * options.seconds))) for rate in rates]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        model = LAW | {"SLUICE_MODEL_NAME": MODEL}
        cloud = stack.enter_context(lambda_process([{"name": FUNCTION, "memory_mb": MEMORY, "environment": model}]))
        redis = stack.enter_context(RedisServer())
        (plans := folder / "plans").mkdir()
        buffer = stack.enter_context(buffer_process(redis.url, cloud.url, plans, log, log_level="warning"))
        profile, way = profile_of(cloud, buffer)
        expected = predicted(profile, rates, promises)
        buffer.apply(expected.plan)
        cloud.reset_usage()
        live = run(of_all_classes(buffer, times))
        usage, prices = cloud.usage(FUNCTION), default_prices()
    n = sum(map(len, times))
    dollars = (usage["gb_seconds"] * prices.gb_second("x86_64") + usage["invocations"] * prices.function.request) / n
    here = simulated(expected.plan, profile, live)
    slacks = ", ".join(f"{each.name} {each.slack:.3f} s" for each in expected.plan.classes)
    assert expected.plan.policy is not None
    print(f"{n} requests in {options.seconds:g} s; the way through the buffer takes {1e3 * way:.1f} ms")
    print(f"batches of up to {max(expected.plan.policy.take)}; slacks: {slacks}")
    print(f"{'':22s} predicted   on these   measured   measured by: predicted, on these")
    for k, (name, seen) in enumerate(zip(NAMES, live, strict=True)):
        for i, percentile in enumerate(PERCENTILES):
            by = 1e3 * expected.latency[k, i], 1e3 * here.latency[k, i], 1e3 * seen.latency_percentile(percentile)
            show(f"{name} p{percentile}, ms", *by)
    show("USD per million", 1e6 * expected.cost, 1e6 * here.cost, 1e6 * dollars)
    late = max(1e3 * seen.lateness_percentile(99) for seen in live)
    print(f"p99 of how late the generator sent: {late:.1f} ms")


def show(what: str, predicted_: float, on_these: float, measured: float) -> None:
    """A row."""
    values = " ".join(f"{value:10.4g}" for value in (predicted_, on_these, measured))
    print(f"{what:22s}{values}   {measured / predicted_:13.3f} {measured / on_these:9.3f}", flush=True)


def predicted(profile: ServiceProfile, rates: Sequence[float], promises: Sequence[float]) -> Expected:
    """The table that is cheapest for all together, and what it makes of each class."""
    strictest = min(promises)
    question = Question(poisson(sum(rates)), profile, (Slo(strictest),), limits=Limits(max_batch_size=max(BATCHES)))
    settings = FunctionSettings(question)
    (service,) = settings.services
    arrivals, slacks = [poisson(rate) for rate in rates], [promise - strictest for promise in promises]
    table = last_moment(service.up_to(max(BATCHES)), question.slos)
    assert table is not None, "nothing keeps the strictest SLO"
    holds = np.array(table.hold[1:-1])
    pmfs = shared_holds_law(arrivals, slacks, holds).batch_size_pmf
    costs = [settings.bill(pmf[: b + 1], service, 0.0).per_request for b, pmf in enumerate(pmfs)]
    best = int(np.argmin(costs)) + 1
    law = shared_holds_law(arrivals, slacks, holds[: best - 1])
    latencies = [law.latency(k, service) for k in range(len(rates))]
    classes = [RequestClass(name, Slo(promise), slack) for name, promise, slack in zip(NAMES, promises, slacks, strict=True)]
    policy = Policy((*table.hold[:best], 0.0), table.take[: best + 1], kind=table.kind)
    plan = Plan(model=MODEL, function=f"{FUNCTION}:live", policy=PolicyDocument.of(policy), slo=Slo(strictest), classes=classes)
    percentiles = np.array([[latency.percentile(percentile) for percentile in PERCENTILES] for latency in latencies])
    return Expected(plan, percentiles, costs[best - 1])


def simulated(plan: Plan, profile: ServiceProfile, live: Sequence[Replay]) -> Expected:
    """The same of the very arrivals."""
    question = Question(poisson(1.0), profile, (Slo(1.0),), limits=Limits(max_batch_size=max(BATCHES)))
    (service,) = question.services
    assert plan.policy is not None
    times = np.concatenate([seen.intended for seen in live])
    order = np.argsort(times, kind="stable")
    of_class = np.repeat(np.arange(len(live)), [len(seen.intended) for seen in live])[order]
    deployment = Deployment(plan.policy.policy(), service, classes=plan.classes, billing=question.billing)
    ran = simulate_deployment(deployment, times[order], np.random.default_rng(SEED), classes=of_class)
    percentiles = [np.percentile(ran.of_class(k).latency, PERCENTILES, method="inverted_cdf") for k in range(len(live))]
    return Expected(plan, np.array(percentiles), ran.cost(service, question.billing).per_request)


def profile_of(cloud: LambdaProcess, buffer: BufferProcess) -> tuple[ServiceProfile, float]:
    """Service times, whose overhead has the way through the buffer; and that way, s."""
    profile = swept(cloud, (Sample(b"1"),), MODEL, BATCHES)
    buffer.apply(Plan(model=MODEL, function=f"{FUNCTION}:live", policy=PolicyDocument.of(no_batching())))
    run(asked(buffer, np.zeros(WARM)))
    one = next(point for point in profile.points if point.batch_size == 1)
    way = way_beyond(one, lambda times: run(asked(buffer, times)))
    return profile.behind(way), way


async def of_all_classes(buffer: BufferProcess, times: Sequence[Array]) -> list[Replay]:
    """The requests of each class at its times, together."""
    return await asyncio.gather(*(asked(buffer, each, name) for each, name in zip(times, NAMES, strict=True)))


async def asked(buffer: BufferProcess, times: Array, name: str = "") -> Replay:
    """Requests at these times, all of which must be answered."""
    headers = {"sluice-class": name} if name else {}
    live = await replay(times, f"{buffer.url}/models/{MODEL}", body=b"1", headers=headers)
    assert live.answered.all(), live.messages
    return live


if __name__ == "__main__":
    main()
