"""The whole loop on this machine: profile a real network, fit a real trace, recommend, serve, replay, compare.

Every part is the real one: Redis, the buffer, ``awslambdaric`` processes with ONNX Runtime, requests over HTTP when the trace says.
What is not real is the machine under the functions: where more of them run at once than it has cores, they slow each other down,
as they would not on Lambda; ``Row.notes`` says where that shows.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, Prediction, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import DispatchFailed, InvalidInput, NotConverged, require
from sluice.lambda_fn.contract import Batch, decode_metadata, encode_batch
from sluice.local.live_demo import LiveDemo, LiveRow
from sluice.local.networks import write_network
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, ReplayProgress, replay, run
from sluice.local.stack import AWS_ENVIRONMENT, BufferProcess, LambdaProcess, buffer_process, lambda_process
from sluice.optimizer.billing import Billing, default_prices
from sluice.optimizer.fits import ArrivalFit, arrival_document, fit_arrivals
from sluice.optimizer.recommend import Answer, Goal, Question, recommend
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.service import ServiceTimes, service_times
from sluice.optimizer.simulation import simulate
from sluice.optimizer.traces.clock import clock_note
from sluice.optimizer.traces.kind import Untold
from sluice.optimizer.traces.trace import Trace, read_trace
from sluice.profiler.invocations import LambdaInvocations
from sluice.profiler.samples import make_sample
from sluice.profiler.service_times import Progress, Sweep, measure_service_times

EXCERPT = Path(__file__).parent / "traces" / "azure_llm_code_excerpt.csv.gz"
TOLERANCE = 0.10  # a measured figure further off its prediction is explained
WARM_UP = 24  # requests at once before a replay, so that it meets no cold start
PROBES, TOGETHER, PROBE_GAP = 60, 4, 0.05  # requests, so many in a row, s between these: what the buffer adds
LEAST_REQUESTS = 20  # of which each replay is measured
LEAST_PHASE = 2.0  # s of live control, in one of which the hundred come that a fit takes
MOST_RATE = 1000.0  # requests/s that this machine is asked for
RNG_SEED = 20261121
MEASURED = 5  # times at most that the function is profiled,
LONGEST = 60.0  # and seconds, as it is measured for longer on a machine that is busy

Say = Callable[[str], None]
Show = Callable[[str, float], None]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve the trace: what was predicted and what came; seconds, and USD per request."""

    name: str
    function: str
    memory_mb: int
    policy: str
    slo_kept: bool
    predicted_latency: float
    measured_latency: float
    predicted_batch_size: float
    measured_batch_size: float
    requests: int
    failures: int
    invocations: int
    cold_starts: int
    predicted_cost: float
    billed_cost: float
    lateness_p99: float
    notes: list[str] = []


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found; ``slo`` is the promise, ``scale`` how many times faster than the trace it ran.

    ``break_even_arrival_rate`` (requests/s) is that from which on a deployed buffer earns its fixed cost, ``moving_cost`` (USD per
    request) what the bytes cost that go through it.
    """

    network: str
    trace: str
    scale: float
    slo: Slo
    arrivals: ArrivalDocument
    plan: Plan
    rows: list[Row]
    live: list[LiveRow]
    break_even_arrival_rate: float | None
    moving_cost: float
    seconds: float

    @property
    def saving(self) -> float:
        """How many times less the recommended setting was billed than no batching."""
        billed = {row.name: row.billed_cost for row in self.rows}
        return billed["no batching"] / billed["recommended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to run. Durations in seconds; ``scale`` is how many times faster than it was recorded the trace is replayed."""

    trace: str = str(EXCERPT)
    scale: float = 5.0
    slo: Slo = Slo(0.2, 95.0)
    network: str = "mlp"
    memory_sizes: tuple[int, ...] = (442, 885, 1769)
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    profile_seconds: float = 45.0
    replay_seconds: float = 40.0
    headroom: float = 0.05
    live_seconds: float = 15.0  # of each phase of live control; 0: it is left out

    def __post_init__(self) -> None:
        require(0 < self.scale < float("inf"), "speed", self.scale, "a number > 0")
        require(0 < self.replay_seconds < float("inf"), "seconds", self.replay_seconds, "a number of seconds > 0")
        long = self.live_seconds == 0 or LEAST_PHASE <= self.live_seconds < float("inf")
        require(long, "live_seconds", self.live_seconds, f"0, or a number of seconds >= {LEAST_PHASE:g}")

    def run(self, say: Say, show: Show) -> DemoReport:
        """Run it; ``say`` gets a line for each step, ``show`` what is going on and how far it is (0..1)."""
        interrupts: list[int] = []

        def interrupt(number: int, frame: FrameType | None) -> None:
            interrupts.append(number)
            raise KeyboardInterrupt

        def show_on(what: str, fraction: float) -> None:
            if interrupts:  # a library on the way caught the first
                raise KeyboardInterrupt
            show(what, fraction)

        previous = signal.signal(signal.SIGINT, interrupt)
        try:
            return self._run(say, show_on)
        finally:
            signal.signal(signal.SIGINT, previous)

    def _run(self, say: Say, show: Show) -> DemoReport:
        started = time.monotonic()
        trace = self._read(say)  # first, as it may be refused
        # boto3 reads these from the environment; whatever stands there must not reach a real account.
        os.environ.update(AWS_ENVIRONMENT)
        with (
            tempfile.TemporaryDirectory(prefix="sluice-demo-") as directory,
            (Path(directory) / "buffer.log").open("wb") as log,
            RedisServer() as redis,
            lambda_process(self._functions(self._make_network(Path(directory), say))) as runtime,
            buffer_process(redis.url, runtime.url, Path(directory), log, log_level="warning") as buffer,
        ):
            say(f"Started Redis (pid {redis.pid}), a Lambda runtime ({runtime.url}) and a buffer, whose page is {buffer.url}/")
            profile, body = self._profile(runtime, say, show)
            alone, front = profile, self._front(profile, buffer, body, say)
            profile = profile.behind(front)
            fitted = self._fit(trace, say, show)
            arrivals = arrival_document(fitted)
            warm = Billing(cold_start_probability=0.0)  # as the replays are
            question = Question(fitted.arrivals, profile, (self.slo,), warm, goal=Goal(headroom=self.headroom))
            answer = recommend(question, lambda fraction: show("Searching memory x batch size x timeout", fraction))
            plans = self._plans(answer, arrivals, trace)
            say(f"Recommended: {answer.best.memory_mb} MB; a batch leaves at {_policy(plans['recommended'])}.")
            rows = []
            for name, plan in plans.items():
                rows.append(self._replay(name, plan, profile, runtime, buffer, trace, body, show))
                say(f"Replayed {rows[-1].requests} requests against {name}.")
        live = self._live(alone, front, trace, say, show)
        return DemoReport(
            network=self.network,
            trace=self.trace,
            scale=self.scale,
            slo=self.slo,
            arrivals=arrivals,
            plan=plans["recommended"],
            rows=rows,
            live=live,
            break_even_arrival_rate=answer.break_even_arrival_rate,
            moving_cost=answer.best.cost.moving,
            seconds=time.monotonic() - started,
        )

    def _read(self, say: Say) -> Trace:
        try:
            recorded = read_trace(self.trace)
        except Untold as error:
            raise InvalidInput(
                "--trace", str(self.trace), f"one whose first column has times or gaps in s, as {error.why}"
            ) from None
        note = clock_note(recorded)
        if note:
            say(f"warning: {note}")
        least, most = LEAST_REQUESTS / self.replay_seconds / recorded.arrival_rate, MOST_RATE / recorded.arrival_rate
        why = f"with {recorded.arrival_rate:.3g} requests/s in the trace {LEAST_REQUESTS} in each replay, to {MOST_RATE:g} a second"
        shortest = f"at least {LEAST_REQUESTS / MOST_RATE:g} s, in which {MOST_RATE:g} requests/s are {LEAST_REQUESTS}"
        require(least <= most, "seconds", self.replay_seconds, shortest)
        require(least <= self.scale <= most, "speed", self.scale, f"{least:.3g} to {most:.3g}: {why}")
        return recorded.sped_up(self.scale)

    def _make_network(self, directory: Path, say: Say) -> Path:
        file = directory / f"{self.network}.onnx"
        write_network(self.network, file)
        say(f"Network: {self.network} ({file.stat().st_size / 1e6:.0f} MB).")
        return file

    def _functions(self, network: Path) -> list[dict[str, Any]]:
        """One for each memory size, as the Lambda runtime is told of them."""
        return [
            {
                "name": f"{self.network}-{memory_mb}",
                "memory_mb": memory_mb,
                "environment": {"SLUICE_MODEL": str(network), "SLUICE_MODEL_NAME": self.network},
            }
            for memory_mb in self.memory_sizes
        ]

    def _profile(self, runtime: LambdaProcess, say: Say, show: Show) -> tuple[ServiceProfile, bytes]:
        invocations = LambdaInvocations(endpoint_url=runtime.url)
        rng = np.random.default_rng(RNG_SEED)
        function = f"{self.network}-{{memory_mb}}:live"
        describe = encode_batch(Batch(self.network, [], describe=True))
        described = invocations(function.format(memory_mb=self.memory_sizes[0]), describe)
        sample = make_sample(decode_metadata(described.payload), rng)
        sweep = Sweep(
            function=function,
            memory_sizes=self.memory_sizes,
            batch_sizes=self.batch_sizes,
            samples=(sample,),
            model=self.network,
        )

        def on_progress(progress: Progress) -> None:
            show(f"Profiling {progress.memory_mb} MB, batch size {progress.batch_size}", progress.fraction)

        def measure(seconds: float) -> ServiceProfile:
            timed, earlier = msgspec.structs.replace(sweep, max_seconds=seconds), [(self.memory_sizes[0], described)]
            measured = measure_service_times(timed, invocations, rng, earlier=earlier, on_progress=on_progress)
            spent = measured.spent
            say(f"Profiled {len(measured.points)} settings with {spent.invocations} invocations in {spent.seconds:.0f} s.")
            return measured.profile

        return usable_profile(measure, self.profile_seconds, say), sample.body

    def _front(self, profile: ServiceProfile, buffer: BufferProcess, body: bytes, say: Say) -> float:
        """Seconds that a client of the buffer waits beyond an invocation: HTTP, Redis and the load generator's own part."""
        memory_mb = self.memory_sizes[-1]
        function = profile.function.replace("{memory_mb}", str(memory_mb))
        buffer.apply(Plan(model=self.network, function=function, policy=PolicyDocument.of(policies.no_batching())))
        url = f"{buffer.url}/models/{self.network}"
        row = [i * PROBE_GAP for i in range(TOGETHER)]  # on a busy machine no more environments start at once
        latency = np.concatenate([run(replay(row, url, body=body)).latency[1:] for _ in range(PROBES // TOGETHER)])
        response = float(np.median(service_times(profile, memory_mb, 1).response[0]))
        front = max(0.0, float(np.median(latency[len(latency) // 4 :])) - response)
        say(f"The buffer adds {front * 1e3:.1f} ms to an invocation." if front > 5e-5 else "The buffer adds too little to be seen.")
        return front

    def _live(self, profile: ServiceProfile, front: float, trace: Trace, say: Say, show: Show) -> list[LiveRow]:
        """The same function, asleep, under a load and with service times that change."""
        if not self.live_seconds:
            return []
        demo = LiveDemo(slo=self.slo, seconds=self.live_seconds, headroom=self.headroom)
        show("Live control: the load triples, the function slows", 0.0)
        rows = demo.run(profile, front, trace.interarrivals)
        requests, names = sum(phase.requests for phase in rows[0].phases), ", ".join(row.name for row in rows)
        say(
            f"Served {requests} requests by each of {names}, in "
            f"{len(demo.rates)} phases: {', '.join(f'{rate:g}' for rate in demo.rates)} requests/s, in the last of which the "
            f"function takes {demo.slower:g} times as long; it sleeps for as long as the profile says."
        )
        return rows

    def _fit(self, trace: Trace, say: Say, show: Show) -> ArrivalFit:
        show("Fitting the trace", 0.0)
        fitted = fit_arrivals(trace, "auto")
        say(
            f"Fitted {len(trace)} arrivals of {Path(self.trace).name}, {self.scale:g} times as fast: {trace.arrival_rate:.1f} "
            f"requests/s in bursts (the gaps' squared coefficient of variation is {trace.statistics().scv:.0f}, that of Poisson "
            f"arrivals 1), by a process of {fitted.arrivals.n_phases} phases."
        )
        return fitted

    def _plans(self, answer: Answer, arrivals: ArrivalDocument, trace: Trace) -> dict[str, Plan]:
        """No batching and greedy beside the recommended plan, each with its own prediction."""
        recommended = answer.plan(self.network, arrivals)
        unbatched = replace(answer, best=answer.no_batching).plan(self.network, arrivals)
        service = service_times(answer.question.profile, answer.best.memory_mb)
        greedy = policies.greedy(service.max_batch_size, servers=1)
        replayed = trace.times[trace.times < self.replay_seconds]
        simulated = simulate(greedy, replayed, service, np.random.default_rng(RNG_SEED))
        latency = {self.slo.name: simulated.percentile_of_answered(self.slo.percentile)}
        prediction = Prediction(latency, simulated.cost(service).per_request, simulated.mean_batch_size)
        return {
            "no batching": unbatched,
            "greedy": msgspec.structs.replace(recommended, policy=PolicyDocument.of(greedy), predicted=prediction, digest=""),
            "recommended": recommended,
        }

    def _replay(
        self,
        name: str,
        plan: Plan,
        profile: ServiceProfile,
        runtime: LambdaProcess,
        buffer: BufferProcess,
        trace: Trace,
        body: bytes,
        show: Show,
    ) -> Row:
        """Apply the plan to the live buffer, warm its function, replay the trace."""
        buffer.apply(plan)
        url = f"{buffer.url}/models/{self.network}"
        run(replay(np.zeros(WARM_UP), url, body=body))
        runtime.reset_usage()

        def on_progress(progress: ReplayProgress) -> None:
            show(f"Replaying: {name}", progress.ended / progress.requests)

        result = run(replay(trace.times, url, body=body, seconds=self.replay_seconds, on_progress=on_progress))
        return self._row(name, plan, profile, result, runtime.usage(plan.function.partition(":")[0]))

    def _row(self, name: str, plan: Plan, profile: ServiceProfile, result: Replay, usage: dict[str, float]) -> Row:
        assert plan.predicted is not None and plan.predicted.cost_per_request is not None
        assert plan.memory_mb is not None
        if not result.answered.any():
            raise DispatchFailed(f"{name}: no request was answered: {next(iter(result.messages))}")
        prices = default_prices()
        requests, invocations = len(result.status), int(usage["invocations"])
        billed = usage["gb_seconds"] * prices.gb_second("x86_64") + invocations * prices.function.request
        measured = result.latency_percentile(self.slo.percentile)
        row = Row(
            name=name,
            function=plan.function,
            memory_mb=plan.memory_mb,
            policy=_policy(plan),
            slo_kept=result.keeps(self.slo),
            predicted_latency=plan.predicted.latency[self.slo.name],
            measured_latency=measured,
            predicted_batch_size=plan.predicted.mean_batch_size,
            measured_batch_size=requests / invocations,
            requests=requests,
            failures=requests - int(result.answered.sum()),
            invocations=invocations,
            cold_starts=int(usage["cold_starts"]),
            predicted_cost=plan.predicted.cost_per_request,
            billed_cost=billed / requests,
            lateness_p99=result.lateness_percentile(99),
        )
        return msgspec.structs.replace(row, notes=notes(row, usage, service_times(profile, plan.memory_mb)))


def usable_profile(measure: Callable[[float], ServiceProfile], seconds: float, say: Say) -> ServiceProfile:
    """A profile that can be used, from ``measure`` in ``seconds``, or in ``MEASURED`` times at most on a machine that is busy.

    It is measured again for half as long again where larger batches seem quicker, up to ``LONGEST``, and for twice as long where
    some settings ran less than twice. The cold starts are those of the first profile, as the environments are warm thereafter.

    Raises
    ------
    InvalidInput, NotConverged
        That of the last time.
    """
    init: dict[int, ServiceTime] = {}
    for left in range(MEASURED - 1, -1, -1):
        try:
            profile = measure(seconds)
            init = init or profile.init
            for memory_mb in profile.memory_sizes:
                service_times(profile, memory_mb)
            return msgspec.structs.replace(profile, init={**profile.init, **init})
        except (InvalidInput, NotConverged) as error:
            if not left:
                raise
            trouble, longer = "noisy", min(1.5 * seconds, max(seconds, LONGEST))
            if isinstance(error, NotConverged):
                trouble, longer = "slow", 2 * seconds
                init = init or (error.best.init if isinstance(error.best, ServiceProfile) else {})
            more = f", and {left - 1} more at most" if left > 1 else ", for the last time"
            seconds = longer
            say(f"This machine is too {trouble} to measure on just now ({error}): measuring again for {seconds:g} s{more}.")
    raise AssertionError("the last time returns or raises")


def notes(row: Row, usage: dict[str, float], service: ServiceTimes) -> list[str]:
    """Why a row's figures are further than ``TOLERANCE`` off their predictions, as far as the run can tell."""
    found = []
    off = row.measured_latency / row.predicted_latency - 1
    if abs(off) > TOLERANCE:
        size = min(max(1, round(row.measured_batch_size)), service.max_batch_size)
        profiled = float(service.mean_response[size - 1] - service.overhead[size - 1])
        mean = usage["duration"] / max(1, row.invocations)
        text = (
            f"the latency measured is {_beside(off)} the one predicted: an invocation took {mean * 1e3:.1f} ms on average, "
            f"{profiled * 1e3:.1f} ms in the profile"
        )
        concurrency, cores = int(usage["max_concurrency"]), os.cpu_count() or 1
        if concurrency > cores:
            text += f"; up to {concurrency} ran at once on the {cores} cores of this machine, where on Lambda each has its own"
        found.append(text)
    off = row.billed_cost / row.predicted_cost - 1
    if abs(off) > TOLERANCE:
        found.append(
            f"the bill is {_beside(off)} the one predicted: the mean batch had {row.measured_batch_size:.2f} requests, where "
            f"{row.predicted_batch_size:.2f} were predicted, and {row.cold_starts} invocations started cold"
        )
    if row.failures:
        found.append(f"{row.failures} requests failed")
    return found


def _beside(off: float) -> str:
    return f"{abs(off):.0%} {'above' if off > 0 else 'below'}"


def _policy(plan: Plan) -> str:
    """A plan's policy in a few words."""
    policy = plan.all_routes[0].policy
    parameters = policy.parameters
    if policy.kind == "size_or_timeout":
        return f"{parameters['batch_size']} or {float(parameters['timeout']) * 1e3:.0f} ms"
    if policy.kind == "deadline":
        return leaves(policy.policy())
    if policy.kind == "greedy":
        return f"up to {parameters['max_batch_size']}, 1 server"
    return policy.kind.replace("_", " ")
