"""Requests of different size before an encoder that pads, live: size classes, and one queue that batches whatever comes.

The lengths are those of a real trace, a ``SHRUNK``-th of its tokens: plans are made for the first half of its requests, and the
second half is sent, in its order. The encoder (``sluice.local.padded_encoder``) runs in the local Lambda, behind a buffer with its
Redis, on this machine; what a batch of each size takes is measured first, and so is the way through the buffer, as what one request
after the other takes beyond that. Arrivals are Poisson; every request has a body of its own length. Printed are what was predicted
for the mix; what a simulation with the very arrivals and lengths comes to, which leaves out what chance does to so few; and what
was measured, the cost by the durations that were billed. Last stands the simulation with all batches as much slower than in the
profile as they were: other work on the machine moves that too, and what a prediction leaves out does not. It takes under two
minutes. A sleeper of the encoder's law needs no core, and measures the way alone.

``python -m benchmarks sizes_live [--sleeper] [--seconds 32] [--rate 10] [--slo 0.5] [--headroom 0.1]``
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as replaced

from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, RequestSize, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import Policy
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run
from sluice.local.sized_body import bodies_of_sizes
from sluice.local.stack import AWS_ENVIRONMENT, BufferProcess, LambdaProcess, buffer_process, lambda_process
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing import default_prices
from sluice.optimizer.recommend import FunctionSetting, Goal, Limits, Question, SizedAnswer, poisson, recommend_classes
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.service import SizeMix
from sluice.optimizer.simulation import Function, SizedDeployment, SizedQueue, simulate_sizes
from sluice.optimizer.traces.trace import read_sizes
from sluice.profiler.invocations import LambdaInvocations
from sluice.profiler.samples import Sample
from sluice.profiler.service_times import Sweep, measure_service_times

TRACE = Path(__file__).parents[1] / "examples" / "traces" / "azure_llm_code_tokens.csv.gz"
SHRUNK = 60
MODEL, MEMORY = "padded-encoder", 1769
FUNCTION = f"{MODEL}-{MEMORY}"
SIZES, BATCHES = usually(((8, 32, 64, 128), (1, 2, 4, 8)), smoke=((8, 128), (1, 4)))
ENCODER = {"SLUICE_MODEL": "sluice.local.padded_encoder:PaddedEncoder"}
LAW = {"INTERCEPT": 0.003, "SLOPE": 0.0005, "SIZE_SLOPE": 0.00036}  # s, s a request, s a request and token of the largest
SLEEPER = {f"SLUICE_SLEEPER_{name}": str(seconds) for name, seconds in LAW.items()}
SIZE = RequestSize("header")
PROFILE_SECONDS, RUNS = usually((20.0, (5, 20)), smoke=(2.0, (2, 2)))
ALONE, GAP, SETTLING = usually((40, 0.1, 10), smoke=(8, 0.05, 2))  # that measure the way: requests, s between, not counted
BodyOf = Callable[[float], bytes]
WARM = usually(4, smoke=1)  # environments that are started before
SEED = 11


class Way(NamedTuple):
    """A way to serve the requests: its plan, what is predicted (s, USD), and what is simulated, by the profile."""

    plan: Plan
    p95: float
    cost: float
    deployment: Callable[[ServiceProfile], SizedDeployment]


class Measured(NamedTuple):
    """p95 (s), USD per request, and seconds billed in all."""

    p95: float
    cost: float
    billed: float


def main() -> None:
    """Print p95 and cost of both ways: predicted, simulated on the requests that are sent, and measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleeper", action="store_true", default=usually(False, smoke=True))  # which starts in a fifth of the time
    parser.add_argument("--seconds", type=positive, default=usually(32.0, smoke=1.0))
    parser.add_argument("--rate", type=positive, default=10.0)
    parser.add_argument("--slo", type=positive, default=0.5)
    parser.add_argument("--headroom", type=float, default=0.1)
    options = parser.parse_args()
    lengths = np.ceil(read_sizes(TRACE) / SHRUNK)
    known, ahead = lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]
    known = known[: usually(None, smoke=4)]  # each length may end a class
    rng = np.random.default_rng(SEED)
    times = np.cumsum(rng.exponential(1 / options.rate, int(options.seconds * options.rate)))
    sizes = np.resize(ahead, len(times))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        model = (SLEEPER if options.sleeper else ENCODER) | {"SLUICE_MODEL_NAME": MODEL}
        cloud = stack.enter_context(lambda_process([{"name": FUNCTION, "memory_mb": MEMORY, "environment": model}]))
        redis = stack.enter_context(RedisServer())
        (plans := folder / "plans").mkdir()
        buffer = stack.enter_context(buffer_process(redis.url, cloud.url, plans, log, log_level="warning"))
        body = bodies_of_sizes(b'{"size": 1}', "size") if options.sleeper else bodies_of_sizes(b'{"tokens": [7]}', "tokens")
        profile, way = profile_of(cloud, buffer, body)
        question = Question(
            poisson(options.rate),
            profile,
            (Slo(options.slo),),
            limits=Limits(max_batch_size=max(BATCHES)),
            goal=Goal(headroom=options.headroom),
            mix=SizeMix.of(known),
        )
        ways = {"size classes": classes(recommend_classes(question), sizes), "one queue": one_queue(question, sizes)}
        live = {name: measured(of.plan, buffer, cloud, body, times, sizes) for name, of in ways.items()}
    print(f"{len(times)} requests, {options.rate:g}/s; the way through the buffer takes {1e3 * way:.1f} ms")
    print(f"{'':26s} predicted   on these   measured   measured by: predicted, on these")
    for name, of in ways.items():
        show(name, of, live[name], profile, times, sizes)
    saved = 1 - live["size classes"].cost / live["one queue"].cost
    print(f"Measured, size classes cost {100 * saved:.1f} % less than one queue that batches without regard to size.")


def show(name: str, of: Way, live: Measured, profile: ServiceProfile, times: Array, sizes: Array) -> None:
    """p95 and cost: predicted, simulated on these requests, measured; the latter by both, p95 also by batches so slow."""

    def simulated(by: ServiceProfile) -> Measured:
        ran = simulate_sizes(of.deployment(by), times, sizes, np.random.default_rng(SEED))
        seconds = ran.statistics.cost.compute * len(times) / default_prices().gb_second("x86_64") / (MEMORY / 1024)
        return Measured(p95(ran.latency), ran.cost_per_request, seconds)

    queues = of.deployment(profile).queues
    print(f"{name}: " + ", ".join(f"lengths up to {queue.up_to:g} by {queue.deployment.max_batch_size}" for queue in queues))
    here = simulated(profile)
    slower = live.billed / here.billed
    for what, predicted, on_these, seen, unit in (
        ("p95, ms", of.p95, here.p95, live.p95, 1e3),
        ("USD per million", of.cost, here.cost, live.cost, 1e6),
    ):
        values = " ".join(f"{unit * value:10.4g}" for value in (predicted, on_these, seen))
        print(f"  {what:24s}{values}   {seen / predicted:13.3f} {seen / on_these:9.3f}")
    as_slow = simulated(slowed(profile, slower)).p95
    print(f"  batches took {slower:.3f} times what they took in the profile; p95 with such batches {1e3 * as_slow:.4g}, ", end="")
    print(f"{live.p95 / as_slow:.3f}", flush=True)


def slowed(profile: ServiceProfile, by: float) -> ServiceProfile:
    """The same with all batches so many times as slow."""
    points = []
    for point in profile.points:
        time = point.service_time
        quantiles = [(q, by * seconds) for q, seconds in time.quantiles]
        slow = ServiceTime(by * time.mean, quantiles, time.n)
        points.append(replaced(point, service_time=slow, billed_duration=by * point.billed_duration))
    return replaced(profile, points=points)


def p95(latency: Array) -> float:
    """s."""
    return float(np.percentile(latency, 95, method="inverted_cdf"))


def classes(answer: SizedAnswer, sizes: Array) -> Way:
    """A queue for each size class."""
    plan = answer.plan(MODEL, SIZE)

    def deployment(profile: ServiceProfile) -> SizedDeployment:
        by = replace(answer, question=replace(answer.question, profile=profile))
        return by.deployment(SizeMix.of(sizes))

    return Way(plan, answer.latency.percentile(95), answer.cost.per_request, deployment)


def one_queue(question: Question, sizes: Array) -> Way:
    """Batches as large as the SLO allows, without regard to size."""
    settings = FunctionSettings(question)
    service = settings.services[0].up_to(settings.search.max_batch_size)
    found = last_moment(service, question.promised, question.longest_timeout)
    assert found is not None, "nothing keeps the SLO"
    setting: FunctionSetting = settings.held(0, found)

    def deployment(profile: ServiceProfile) -> SizedDeployment:
        function = Function(profile, MEMORY, question.billing, mix=SizeMix.of(sizes))
        return SizedDeployment([SizedQueue(np.inf, setting.deployment(function))])

    return Way(plan_of(setting.policy), setting.latency.percentile(95), setting.cost.per_request, deployment)


def plan_of(policy: Policy) -> Plan:
    """One queue with this table."""
    return Plan(model=MODEL, function=f"{FUNCTION}:live", policy=PolicyDocument.of(policy), size=SIZE)


def profile_of(cloud: LambdaProcess, buffer: BufferProcess, body: BodyOf) -> tuple[ServiceProfile, float]:
    """Service times by batch and size, whose overhead has the way through the buffer; and that way, s."""
    samples = tuple(Sample(body(size), size=size) for size in SIZES)
    profile = swept(cloud, samples, MODEL, BATCHES)
    buffer.apply(plan_of(policies.no_batching()))
    one = next(point for point in profile.points if (point.batch_size, point.size) == (1, SIZES[0]))
    way = way_beyond(one, lambda times: send(buffer, body, times, np.full(len(times), float(SIZES[0]))))
    return profile.behind(way), way


def swept(cloud: LambdaProcess, samples: tuple[Sample, ...], model: str, batch_sizes: tuple[int, ...]) -> ServiceProfile:
    """Service times of the model's function."""
    os.environ.update(AWS_ENVIRONMENT)
    sweep = Sweep(
        function=f"{model}-{{memory_mb}}:live",
        memory_sizes=(MEMORY,),
        batch_sizes=batch_sizes,
        samples=samples,
        model=model,
        precision=0.02,
        n_min=RUNS[0],
        n_max=RUNS[1],
        max_seconds=PROFILE_SECONDS,
    )
    return measure_service_times(sweep, LambdaInvocations(cloud.url), np.random.default_rng(SEED)).profile


def way_beyond(one: ProfilePoint, ask: Callable[[Array], Replay]) -> float:
    """Seconds that one request after the other takes through a buffer that does not batch, beyond a batch of ``one``."""
    ask(np.zeros(WARM))
    alone = ask(np.linspace(0.0, GAP * (ALONE - 1), ALONE))
    return max(0.0, float(np.median(alone.latency[SETTLING:])) - one.service_time.mean - one.overhead)


def measured(plan: Plan, buffer: BufferProcess, cloud: LambdaProcess, body: BodyOf, times: Array, sizes: Array) -> Measured:
    """The requests, sent."""
    buffer.apply(plan)
    cloud.reset_usage()
    live = send(buffer, body, times, sizes)
    usage, prices = cloud.usage(FUNCTION), default_prices()
    dollars = usage["gb_seconds"] * prices.gb_second("x86_64") + usage["invocations"] * prices.function.request
    return Measured(p95(live.latency), dollars / len(times), usage["billed_duration"])


def send(buffer: BufferProcess, body: BodyOf, times: Array, sizes: Array) -> Replay:
    """Requests of these sizes at these times (s), all of which must be answered."""
    live = run(replay(times, f"{buffer.url}/models/{MODEL}", body=lambda index: body(float(sizes[index])), sizes=sizes))
    assert live.answered.all(), live.messages
    return live


if __name__ == "__main__":
    main()
