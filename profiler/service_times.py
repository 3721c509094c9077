"""Service times of a function over memory, batch size and the size of requests, measured by invoking it.

The sweep invokes one batch at a time, so that nothing queues and what Lambda reports as Duration is the service time l(M, b) of
docs/model.md. It proceeds in rounds; in each round every open point (memory, batch size, size of its requests) is run once, in
random order, so that a drift of the machine touches all points alike. The first run of a point warms it up and is not counted.

Stopping rule. A point is closed as *precise* when the 95 % confidence interval of its mean (Student t, n - 1 degrees of freedom)
has a half-width of at most ``precision`` times the mean, after at least ``n_min`` runs; else after ``n_max`` runs; else when its
time is up. (Looking after each run makes the coverage a little less than 95 %: Chow & Robbins, Ann. Math. Statist. 36 (1965) 457;
``n_min`` bounds the loss.) The time is shared out evenly among the open points, and what a closed point leaves over goes to the
others.

At the end the function is asked whether it computes batches one by one, where there were any.

Cold starts (the report has an INIT duration) are kept apart by memory size and never counted as service times.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sluice.batching.documents import PLACEHOLDER, ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.durations import LONGEST_SWEEP
from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput, NotConverged, require
from sluice.batching.quantiles import quantile_points
from sluice.lambda_fn import contract
from sluice.profiler.invocations import Invocation, Invoke
from sluice.profiler.samples import Sample, describe_model, largest_batch, sample_batch
from sluice.profiler.worker_invocations import is_worker, payload_limit

MOST_RUNS = 100_000
MOST_MEMORY = 100_000_000
"""MB, 100 TB: more than any machine has."""
PRECISE, RUNS_USED, TIME_UP = "precise", "n_max", "time"


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how well.

    Parameters
    ----------
    function:
        Name, ``name:alias`` or ARN; with ``{memory_mb}`` in it where several memory sizes are asked for; or a worker's address.
    memory_sizes, batch_sizes:
        MB, requests; of a worker, the one that it has.
    samples:
        The request that fills the batches; or several that have sizes, of which each batch has one: every size is measured.
    model:
        The model's name in the batches.
    precision:
        Half-width of the confidence interval of a mean, relative to the mean.
    n_min, n_max:
        Counted runs of a point.
    max_seconds:
        Wall time of the whole sweep. No run is begun after it; none is begun that is expected to end after it.

    Raises ``InvalidInput`` naming the field, also where a batch exceeds the payload that Lambda, or a worker, takes.
    """

    function: str
    memory_sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    samples: tuple[Sample, ...]
    model: str
    precision: float = 0.03
    n_min: int = 20
    n_max: int = 200
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        require(bool(self.function), "function", self.function, "a function's name, name:alias or ARN")
        for field, values, allowed in (
            ("memory", self.memory_sizes, "memory sizes from 128 to 10240 MB, each once"),
            ("batch_size", self.batch_sizes, "batch sizes >= 1, each once"),
        ):
            require(len(values) > 0 and len(set(values)) == len(values), field, values, allowed)
        least, most, of = (1, MOST_MEMORY, " of a machine") if is_worker(self.function) else (128, 10240, "")
        for memory_mb in self.memory_sizes:
            require(least <= memory_mb <= most, "memory", memory_mb, f"memory sizes{of} from {least} to {most} MB")
        for batch_size in self.batch_sizes:
            require(batch_size >= 1, "batch_size", batch_size, "batch sizes >= 1")
        allowed = "1 among them: what one request takes is what batches are compared with"
        require(1 in self.batch_sizes, "batch_size", self.batch_sizes, allowed)
        require(
            len(self.memory_sizes) == 1 or PLACEHOLDER in self.function,
            "function",
            self.function,
            f"a name with {PLACEHOLDER} in it, since {len(self.memory_sizes)} memory sizes are asked for",
        )
        require(0 < self.precision < 1, "precision", self.precision, "a number strictly between 0 and 1")
        require(self.n_min >= 2, "n_min", self.n_min, "an integer >= 2")
        allowed = f"an integer >= n_min ({self.n_min}), at most {MOST_RUNS}"
        require(self.n_min <= self.n_max <= MOST_RUNS, "n_max", self.n_max, allowed)
        allowed = f"a number of seconds > 0, at most {LONGEST_SWEEP:g}"
        require(0 < self.max_seconds <= LONGEST_SWEEP, "max_seconds", self.max_seconds, allowed)
        sizes = [sample.size for sample in self.samples]
        told = sizes == [None] or (len(sizes) > 0 and None not in sizes and len(set(sizes)) == len(sizes))
        require(told, "size", sizes, "a size of every payload, each once, or one payload without")
        require(all(0 <= size < math.inf for size in sizes if size is not None), "size", sizes, "sizes >= 0")
        limit = payload_limit(self.function)
        largest = min(largest_batch(sample, self.model, limit) for sample in self.samples)
        if max(self.batch_sizes) > largest:
            fitting = f"at most {largest}" if largest else "none: a single request is too large"
            who = "the worker's" if is_worker(self.function) else "Lambda's"
            allowed = f"{fitting}, the largest batch of this payload within {who} {limit} bytes"
            raise InvalidInput("batch_size", max(self.batch_sizes), allowed)

    def function_at(self, memory_mb: int) -> str:
        """The function that has this memory size."""
        return self.function.replace(PLACEHOLDER, str(memory_mb))

    def cost_bound(self, asked: int = 0) -> SweepCost:
        """What the sweep costs at the most, ``asked`` invocations that were made for it before included.

        Runs follow one another, so what is billed cannot exceed the wall time at the largest memory size, but for the rounding of
        each run up to a millisecond and for the one run under way when the time is up.
        """
        points = len(self.memory_sizes) * len(self.batch_sizes) * len(self.samples)
        invocations = asked + points * (self.n_max + 1) + (max(self.batch_sizes) > 1)
        gigabytes = max(self.memory_sizes) / 1024
        return SweepCost(invocations, gigabytes * (self.max_seconds + 0.001 * invocations), self.max_seconds)


class SweepCost(msgspec.Struct, frozen=True):
    """Invocations, GB-seconds billed, and seconds of wall time of a sweep."""

    invocations: int
    gb_seconds: float
    seconds: float

    def usd(self, price_gb_second: float, price_request: float) -> float:
        """The price in USD, from the prices of a GB-second and of a request."""
        return self.gb_seconds * price_gb_second + self.invocations * price_request


class MeasuredPoint(msgspec.Struct, frozen=True):
    """How well a point is known: counted runs, relative half-width of the mean's confidence interval, and why it was closed.

    ``stopped`` is ``"precise"``, ``"n_max"`` or ``"time"``.
    """

    memory_mb: int
    batch_size: int
    n: int
    relative_half_width: float
    stopped: str
    size: float | None = None

    @property
    def setting(self) -> str:
        """What was measured, in words."""
        return f"{self.memory_mb} MB, batch size {self.batch_size}" + ("" if self.size is None else f", size {self.size:g}")


class MeasuredServiceTimes(msgspec.Struct, frozen=True):
    """The profile, how well each of its points is known, and what measuring it cost."""

    profile: ServiceProfile
    points: list[MeasuredPoint]
    spent: SweepCost

    @property
    def converged(self) -> bool:
        """Whether every point is as precise as was asked."""
        return self.n_imprecise == 0

    @property
    def n_imprecise(self) -> int:
        """How many points are less precise than was asked."""
        return sum(point.stopped != PRECISE for point in self.points)

    @property
    def least_precise(self) -> MeasuredPoint:
        """The point whose mean is known worst."""
        return max(self.points, key=lambda point: point.relative_half_width)


class Progress(msgspec.Struct, frozen=True):
    """How far a sweep is: ``fraction`` 0 to 1, points closed, and the run just done."""

    fraction: float
    closed: int
    points: int
    memory_mb: int
    batch_size: int
    invocations: int
    seconds: float
    size: float | None = None


def relative_half_width(durations: Sequence[float]) -> float:
    """Half-width of the 95 % confidence interval (Student t) of the mean, over the mean; inf below two values."""
    n = len(durations)
    if n < 2:
        return math.inf
    from scipy.special import stdtrit  # which takes a fifth of a second to import

    mean = float(np.mean(durations))
    half_width = float(stdtrit(n - 1, 0.975)) * float(np.std(durations, ddof=1)) / math.sqrt(n)
    return half_width / mean if mean > 0 else 0.0


def summarize(durations: Sequence[float]) -> ServiceTime:
    """Mean and quantiles of durations in seconds."""
    return ServiceTime(float(np.mean(durations)), quantile_points(durations), len(durations))


def measure_service_times(
    sweep: Sweep,
    invoke: Invoke,
    rng: np.random.Generator,
    *,
    measured_at: str | None = None,
    earlier: Sequence[tuple[int, Invocation]] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> MeasuredServiceTimes:
    """Measure the service times of a function over memory and batch size, and the size of requests where there are several.

    Parameters
    ----------
    sweep:
        What is to be measured.
    invoke:
        Invokes a function and waits, e.g. ``LambdaInvocations()``.
    rng:
        Draws the order of the points within a round.
    measured_at:
        The time of the measurement for the profile, ISO 8601 in UTC.
    earlier:
        Invocations made before, with the memory sizes in MB they were for: their cost and their cold starts count.
    on_progress:
        Called after every run.
    clock:
        Seconds, monotonic.

    Raises
    ------
    InvalidInput
        A function does not exist, or has another memory size than its name was to select.
    FunctionFailed
        A run failed or an item was not answered with 200; names the point and what the function said.
    DispatchFailed
        The service does not answer.
    NotConverged
        A point has fewer than two counted runs when the time is up; ``best`` is the profile of the others, or ``None``.
    """
    measurement = _Measurement(sweep, invoke, rng, on_progress, clock)
    for memory_mb, run in earlier:
        measurement.book(memory_mb, run)
    return measurement.run(measured_at)


class _Point:
    """The runs of one (memory, batch size, size of requests) so far."""

    def __init__(self, sweep: Sweep, memory_mb: int, batch_size: int, sample: Sample) -> None:
        self.memory_mb = memory_mb
        self.batch_size = batch_size
        self.size = sample.size
        self.function = sweep.function_at(memory_mb)
        self.batch = sample_batch(sample, sweep.model, batch_size)
        self.payload = contract.encode_batch(self.batch)
        self.durations: list[float] = []
        self.billed: list[float] = []
        self.overheads: list[float] = []
        self.attempts = 0  # runs, the warm-up apart
        self.spent = 0.0  # s of wall time in them
        self.expected = (
            0.0  # s that the next run will take: as long as the warm-up, then as the mean attempt up to the last warm one
        )
        self.half_width = math.inf  # of the mean's confidence interval, relative
        self.stopped: str | None = None

    def __str__(self) -> str:
        return f"memory_mb {self.memory_mb}, batch_size {self.batch_size}" + ("" if self.size is None else f", size {self.size:g}")

    def ran(self, run: Invocation, seconds: float) -> None:
        """Take in a run that took ``seconds`` of wall time; one that started cold is paid for, and measures nothing."""
        self.attempts += 1
        self.spent += seconds
        if run.report.init_duration is not None:
            return
        self.expected = self.spent / self.attempts
        self.durations.append(run.report.duration)
        self.billed.append(run.report.billed_duration)
        self.overheads.append(max(0.0, run.wall_time - run.report.duration))
        self.half_width = relative_half_width(self.durations)

    def stops(self, sweep: Sweep) -> str | None:
        """Why no more runs are needed, or allowed; ``None`` while they are."""
        if len(self.durations) >= sweep.n_min and self.half_width <= sweep.precision:
            return PRECISE
        return RUNS_USED if self.attempts >= sweep.n_max else None

    def done(self, sweep: Sweep) -> float:
        """The part of its runs that is done, 0 to 1, as far as the spread so far lets foresee."""
        if self.stopped is not None:
            return 1.0
        n = len(self.durations)
        needed = n * (self.half_width / sweep.precision) ** 2 if n >= 2 else 0.0
        return min(0.99, n / min(max(needed, sweep.n_min), sweep.n_max))

    def profile_point(self) -> ProfilePoint:
        billed, overhead = float(np.mean(self.billed)), float(np.mean(self.overheads))
        return ProfilePoint(self.memory_mb, self.batch_size, summarize(self.durations), billed, overhead, size=self.size)


class _Measurement:
    def __init__(
        self,
        sweep: Sweep,
        invoke: Invoke,
        rng: np.random.Generator,
        on_progress: Callable[[Progress], None],
        clock: Callable[[], float],
    ) -> None:
        self.sweep = sweep
        self.invoke = invoke
        self.rng = rng
        self.on_progress = on_progress
        self.clock = clock
        self.started = clock()
        samples = sorted(sweep.samples, key=lambda sample: sample.size or 0.0)
        settings = itertools.product(sorted(sweep.memory_sizes), sorted(sweep.batch_sizes), samples)
        self.points = [_Point(sweep, memory_mb, batch_size, sample) for memory_mb, batch_size, sample in settings]
        self.sharable = 0.0  # s that the points share: those of the sweep without the warm-ups
        self.inits: dict[int, list[float]] = {}
        self.answer_bytes = 0  # of the largest body that answered a request
        self.invocations = 0
        self.gb_seconds = 0.0

    def run(self, measured_at: str | None) -> MeasuredServiceTimes:
        for point in self.points:  # warm up
            if self.elapsed() < self.sweep.max_seconds:
                point.expected = self.run_once(point).report.duration
        self.sharable = self.sweep.max_seconds - self.elapsed()
        while self.round():
            pass
        return self.result(measured_at, self.one_by_one())

    def one_by_one(self) -> str | None:
        """Why the function computes a batch one by one, if it says so; asked last, as it may have learned it from the batches."""
        if max(self.sweep.batch_sizes) == 1:
            return None
        memory_mb = max(self.sweep.memory_sizes)
        try:
            run, metadata = describe_model(self.invoke, self.sweep.function_at(memory_mb), self.sweep.model)
        except DispatchFailed:
            return None  # a function need not describe its model, and what was measured stands
        self.book(memory_mb, run)
        parameters = metadata.get("parameters")
        reason = parameters.get(contract.ONE_BY_ONE) if isinstance(parameters, dict) else None
        return str(reason) if reason else None

    def elapsed(self) -> float:
        return self.clock() - self.started

    def round(self) -> bool:
        """Run every open point that has time left once; false when there was none."""
        ran = False
        open_points = [point for point in self.points if point.stopped is None]
        for index in self.rng.permutation(len(open_points)):
            point = open_points[index]
            if self.has_time(point):
                self.measure(point)
                ran = True
        if not ran:
            for point in open_points:
                point.stopped = TIME_UP
        return ran

    def has_time(self, point: _Point) -> bool:
        """Whether the next run of a point ends in time if it takes as long as expected: in that of the sweep, and in its share.

        The first two runs need no share, as without them the point has no interval at all.
        """
        if self.elapsed() + point.expected > self.sweep.max_seconds:
            return False
        return len(point.durations) < 2 or point.spent + point.expected <= self.share()

    def share(self) -> float:
        """Seconds that an open point may spend in all: an equal part of what the closed ones leave over."""
        closed = [point.spent for point in self.points if point.stopped is not None]
        return (self.sharable - sum(closed)) / (len(self.points) - len(closed))

    def measure(self, point: _Point) -> None:
        start = self.clock()
        run = self.run_once(point)
        point.ran(run, self.clock() - start)
        point.stopped = point.stops(self.sweep)
        self.report_progress(point)

    def run_once(self, point: _Point) -> Invocation:
        try:
            run = self.invoke(point.function, point.payload)
            self.book(point.memory_mb, run)
            answers = contract.decode_answers(run.payload, point.batch)
        except contract.WireError as error:
            raise FunctionFailed(f"{point}: {point.function} does not speak the batch format: {error}") from None
        except DispatchFailed as error:
            kind = FunctionFailed if isinstance(error, FunctionFailed) else DispatchFailed
            raise kind(f"{point}: {error}") from None
        if run.report.memory_mb != point.memory_mb:
            allowed = f"{run.report.memory_mb}, which is what {point.function} has"
            raise InvalidInput("memory", point.memory_mb, allowed)
        for index, answer in enumerate(answers):
            if answer.status != 200:
                said = answer.body[:500].decode("utf-8", "replace")
                if answer.status == 404 and "Unknown model" in said:
                    raise InvalidInput("model", self.sweep.model, f"the name by which {point.function} knows its model ({said})")
                raise FunctionFailed(f"{point}: item {index} was answered with status {answer.status}: {said}")
        self.answer_bytes = max(self.answer_bytes, *(len(answer.body) for answer in answers))
        return run

    def book(self, memory_mb: int, run: Invocation) -> None:
        """Count what an invocation costs and whether it was a cold start."""
        self.invocations += 1
        self.gb_seconds += run.report.billed_duration * run.report.memory_mb / 1024
        if run.report.init_duration is not None:
            self.inits.setdefault(memory_mb, []).append(run.report.init_duration)

    def report_progress(self, point: _Point) -> None:
        by_runs = sum(p.done(self.sweep) for p in self.points) / len(self.points)
        seconds = self.elapsed()
        fraction = min(1.0, max(by_runs, seconds / self.sweep.max_seconds))
        closed = sum(p.stopped is not None for p in self.points)
        at = point.memory_mb, point.batch_size, self.invocations, seconds, point.size
        self.on_progress(Progress(fraction, closed, len(self.points), *at))

    def result(self, measured_at: str | None, one_by_one: str | None) -> MeasuredServiceTimes:
        known = [point for point in self.points if len(point.durations) >= 2]
        profile = None
        if known:
            told = self.sweep.samples[0].size is None  # of requests of several sizes one number would be that of none of them
            profile = ServiceProfile(
                function=self.sweep.function,
                model=self.sweep.model,
                points=[point.profile_point() for point in known],
                init={memory_mb: summarize(durations) for memory_mb, durations in sorted(self.inits.items())},
                measured_at=measured_at,
                one_by_one=one_by_one,
                request_bytes=len(self.sweep.samples[0].body) if told else None,
                answer_bytes=self.answer_bytes if told else None,
            )
        missing = [point for point in self.points if len(point.durations) < 2]
        if profile is None or missing:
            cold = sum(map(len, self.inits.values()))
            reason = (
                f"{len(missing)} of {len(self.points)} points have fewer than two warm runs after {self.elapsed():.1f} s and "
                f"{self.invocations} invocations ({cold} of them cold starts), the first at {missing[0]}; "
                "allow more time, or ask for fewer points"
            )
            raise NotConverged(reason, profile, math.inf)
        points = [
            MeasuredPoint(p.memory_mb, p.batch_size, len(p.durations), p.half_width, p.stopped or TIME_UP, p.size) for p in known
        ]
        return MeasuredServiceTimes(profile, points, SweepCost(self.invocations, self.gb_seconds, self.elapsed()))
