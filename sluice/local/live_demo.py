"""Live control beside a plan that nobody changes, and plans made anew by BATCH: a load that triples, a function that slows.

Redis, the buffers, the controller and the requests are real. The function sleeps for as long as the profile says a batch takes
(``sleeper.py``), with the spread that it says: three copies of it could not compute side by side on one machine. What is predicted
is simulated with the same arrivals: the same plans at the same moments, and the same tuner. As that may decide otherwise than it
did live, the plans that were in force live are simulated too, each from the moment on at which it was written.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import Plan, PolicyDocument, ServiceProfile, Slo, write
from sluice.batching.errors import DispatchFailed, StoreUnavailable
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run
from sluice.local.sleeper import Sleeper, Slept
from sluice.local.stack import buffer_process, control_process
from sluice.optimizer.arrays import Array
from sluice.optimizer.baselines.functions import past_windows, reoptimised
from sluice.optimizer.billing import Billing, default_prices
from sluice.optimizer.recommend import Goal, Question, recommend
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.tuning.candidates import fitted
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control, simulate_plans

MODEL = "live"
STATIC, BATCH, CONTROL = "static", "BATCH again", "controlled"
LATER = 2.0  # s from the plans being there to the first arrival
LOOK = 1.0  # s between two looks of the controller
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are levels of which few already have the service times' law
TRIES = 10  # to write a plan, on a machine so busy that Redis does not answer in time


class LivePhase(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve during one phase; seconds, and USD per request. ``late_at_last`` is of its second half.

    What is ``predicted`` was known beforehand; ``modelled`` is what the plans come to that were in force.
    """

    requests: int
    late: float
    late_at_last: float
    predicted_latency: float
    modelled_latency: float
    measured_latency: float
    predicted_cost: float
    modelled_cost: float
    billed_cost: float


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve, phase by phase, and how many plans it had one after another."""

    name: str
    phases: list[LivePhase]
    plans: int
    failures: int

    def kept(self, slo: Slo) -> bool:
        """Whether in the second half of every phase so many of all requests were in time as the SLO wants."""
        return all(phase.late_at_last <= slo.error_budget for phase in self.phases)

    @property
    def cost(self) -> float:
        """USD per request, as billed."""
        requests = sum(phase.requests for phase in self.phases)
        return sum(phase.billed_cost * phase.requests for phase in self.phases) / requests


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDemo:
    """What to run.

    Parameters
    ----------
    slo : Slo
    rates : tuple of float
        Requests/s of each phase; in the last the function is slower. Before the first is one like it, which only the plans see.
    seconds : float
        Of a phase.
    slower : float
        Times as long a batch takes in the last.
    headroom : float
        Part of the promised latency that plans which stay, and BATCH's, keep free.
    beside : tuple of str
        What runs beside live control: ``STATIC``, ``BATCH``.
    kept_in : float
        Seconds in each of which the controller is to keep the promise.
    """

    slo: Slo
    rates: tuple[float, ...] = (20.0, 60.0, 20.0, 20.0)
    seconds: float = 20.0
    slower: float = 3.0
    headroom: float = 0.05
    beside: tuple[str, ...] = (STATIC, BATCH)
    kept_in: float = TuningSettings.kept_in

    @property
    def arms(self) -> tuple[str, ...]:
        """All ways to serve that are run."""
        return (*self.beside, CONTROL)

    def arrivals(self, gaps: Array) -> tuple[Array, Array]:
        """What was seen before, and what comes, s from the first phase on: the gaps of a trace, phase by phase at its rate."""
        found, at = [], 0
        for k, rate in enumerate((self.rates[0], *self.rates)):
            n = round(rate * self.seconds)
            ends = np.cumsum(gaps[(at + np.arange(n + 1)) % len(gaps)])
            at += n + 1
            found.append((k - 1) * self.seconds + ends[:n] * (self.seconds / ends[-1]))
        return found[0], np.concatenate(found[1:])

    def run(self, profile: ServiceProfile, front: float, gaps: Array) -> list[LiveRow]:
        """Run the arms side by side on the arrivals of a trace, at the rate of each phase.

        Parameters
        ----------
        profile : ServiceProfile
            Of the function, by memory size.
        front : float
            Seconds that the buffer adds to an invocation: static plans leave them free, and a controller measures them itself.
        gaps : array
            Of a trace (s), as many as phases need; they are used again from the first on.
        """
        return self.serve(profile, front, *self.arrivals(gaps))

    def serve(self, profile: ServiceProfile, front: float, seen: Array, times: Array) -> list[LiveRow]:
        """The same on any arrivals (s, from the first phase on), after others that only the plans have seen."""
        with tempfile.TemporaryDirectory(prefix="sluice-live-") as directory:
            return run(self._run(replace(profile, init={}), front, seen, times, Path(directory)))

    async def _run(self, profile: ServiceProfile, front: float, seen: Array, times: Array, directory: Path) -> list[LiveRow]:
        kinds = {mb: service_times(profile, mb) for mb in profile.memory_sizes}

        posted: Counter[str] = Counter()

        def takes(path: str, size: int) -> tuple[float, float]:
            posted[path] += 1
            at = kinds[int(path.rpartition("/")[2])]
            return at.seconds_at(size, posted[path] * GOLDEN % 1.0), float(at.overhead[size - 1])

        sleeper = Sleeper(MODEL, takes)
        async with AsyncExitStack() as stack:
            redis = stack.enter_context(RedisServer())
            log = stack.enter_context((directory / "live.log").open("wb"))
            url = await stack.enter_async_context(sleeper.serving())
            named = {arm: replace(profile, function=f"{url}/{k}/{{memory_mb}}", model=MODEL) for k, arm in enumerate(self.arms)}
            plans = {arm: self._plans(arm, of.behind(front), seen, times) for arm, of in named.items()}
            predicted = {arm: self._predicted(arm, of.behind(front), plans[arm], times) for arm, of in named.items()}
            sources = {arm: RedisPlans(redis.url, f"arm{k}") for k, arm in enumerate(self.arms)}
            for arm in self.arms:
                stack.push_async_callback(sources[arm].close)
                await _written(sources[arm], plans[arm][0][1])

            def started(k: int) -> str:
                folder = directory / str(k)
                folder.mkdir()
                buffer = buffer_process(redis.url, url, folder, log, plans="redis:", namespace=f"arm{k}", log_level="error")
                return f"{stack.enter_context(buffer).url}/models/{MODEL}"

            # In threads, for a buffer asks the function what it serves, which this loop answers.
            buffers = await asyncio.gather(*(asyncio.to_thread(started, k) for k in range(len(self.arms))))
            urls = dict(zip(self.arms, buffers, strict=True))
            file = directory / "profile.json"
            file.write_bytes(write(named[CONTROL]))
            stack.enter_context(control_process(redis.url, f"arm{self.arms.index(CONTROL)}", file, log, self.kept_in))
            began, began_utc = time.perf_counter() + LATER, time.time() + LATER
            changing = asyncio.create_task(self._change(sleeper, plans, sources, began))
            await asyncio.sleep(LATER)
            replays = await asyncio.gather(*(replay(times, urls[arm]) for arm in self.arms))
            await changing
            followed = [(written.at - began_utc, written.plan) for written in reversed(await sources[CONTROL].history(MODEL))]
        came = plans | {CONTROL: [(at, plan) for at, plan in followed if at <= times[-1]]}
        modelled = predicted | {
            CONTROL: simulate_plans(self._setup(named[CONTROL].behind(front)), times, came[CONTROL], self._changes)
        }
        return [
            self._row(
                arm, times, replays[k], predicted[arm], modelled[arm], self._billed(sleeper.slept, f"/{k}/", done), len(came[arm])
            )
            for k, arm in enumerate(self.arms)
            for done in [began + times + replays[k].latency]
        ]

    async def _change(
        self, sleeper: Sleeper, plans: dict[str, list[tuple[float, Plan]]], sources: dict[str, RedisPlans], began: float
    ) -> None:
        """What is another from some moment on: plans that were made beforehand, and the function."""
        later = [(at, arm, plan) for arm, of in plans.items() for at, plan in of[1:]]
        moments = [*later, ((len(self.rates) - 1) * self.seconds, "", None)]
        for at, arm, plan in sorted(moments, key=lambda moment: moment[0]):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            if plan is None:
                sleeper.factor = self.slower
            else:
                await _written(sources[arm], plan)

    def _setup(self, profile: ServiceProfile) -> TuningSetup:
        return TuningSetup(MODEL, (self.slo,), profile)

    def _plans(self, arm: str, profile: ServiceProfile, seen: Array, times: Array) -> list[tuple[float, Plan]]:
        """From when on (s) which is in force, as far as that is known beforehand."""
        goal, warm = Goal(headroom=self.headroom), Billing(cold_start_probability=0.0)
        best = recommend(Question(fitted(seen), profile, (self.slo,), warm, goal=goal)).winner
        first = replace(plan_of(best, [self.slo], MODEL), digest="")
        if arm != BATCH:
            return [(0.0, first)]
        memory_mb = first.memory_mb or profile.memory_sizes[-1]
        function = Function(profile, memory_mb)
        windows = past_windows(np.concatenate([seen, times]), self.seconds, start=0.0, step=self.seconds / 2)
        schedule = reoptimised(function, [self.slo], windows, headroom=self.headroom).schedule
        tables = [schedule.tables[i] for i in (schedule.first, *schedule.swap_to)]
        moments = [0.0, *schedule.swap_times.tolist()]
        own = profile.function.replace("{memory_mb}", str(memory_mb))
        made = [
            (
                at,
                replace(
                    first, function=own, memory_mb=memory_mb, beside=[], policy=PolicyDocument.of(table), digest="", predicted=None
                ),
            )
            for at, table in zip(moments, tables, strict=True)
        ]
        return [plan for k, plan in enumerate(made) if k + 1 == len(made) or made[k + 1][0] > plan[0]]

    def _predicted(self, arm: str, profile: ServiceProfile, plans: list[tuple[float, Plan]], times: Array) -> ControlledRun:
        if arm == CONTROL:
            settings, first = TuningSettings(kept_in=self.kept_in), plans[0][1]
            return simulate_control(self._setup(profile), times, settings=settings, changes=self._changes, first=first, step=LOOK)
        return simulate_plans(self._setup(profile), times, plans, changes=self._changes)

    @property
    def _changes(self) -> list[ServiceChange]:
        return [ServiceChange((len(self.rates) - 1) * self.seconds, self.slower)]

    def _billed(self, slept: list[Slept], path: str, done: Array) -> Array:
        """USD of each request: its share of its batch, which is told by when requests were answered (s, on the sleeper's clock).

        Batches that end together may be taken for each other; the sum is what was billed, whoever was not answered.
        """
        prices = default_prices()
        batches = sorted((batch for batch in slept if batch.path.startswith(path)), key=lambda batch: batch.ended)
        memory_mb = np.array([int(batch.path.rpartition("/")[2]) for batch in batches])
        billed = np.ceil(1e3 * np.array([batch.seconds for batch in batches])) / 1e3 * memory_mb / 1024
        sizes = np.array([batch.size for batch in batches])
        shares = np.repeat((billed * prices.gb_second("x86_64") + prices.function.request) / sizes, sizes)
        order = np.argsort(done, kind="stable")
        of = order[np.minimum(np.arange(len(shares)), len(order) - 1)]
        return np.bincount(of, shares, minlength=len(order)).astype(float)

    def _row(
        self, arm: str, times: Array, replayed: Replay, predicted: ControlledRun, modelled: ControlledRun, usd: Array, plans: int
    ) -> LiveRow:
        if not replayed.answered.any():
            raise DispatchFailed(f"{arm}: no request was answered: {next(iter(replayed.messages))}")
        latency = np.where(replayed.answered, replayed.latency, np.inf)
        late = ~(latency <= self.slo.latency)
        phase = np.minimum((times // self.seconds).astype(int), len(self.rates) - 1)

        def percentile(latency: Array) -> float:
            return float(np.quantile(latency, self.slo.quantile, method="inverted_cdf"))

        return LiveRow(
            name=arm,
            phases=[
                LivePhase(
                    requests=int(here.sum()),
                    late=float(late[here].mean()),
                    late_at_last=float(late[last].sum() / max(1, last.sum())),
                    predicted_latency=percentile(predicted.latency[here]),
                    modelled_latency=percentile(modelled.latency[here]),
                    measured_latency=percentile(latency[here]),
                    predicted_cost=float(predicted.usd[here].mean()),
                    modelled_cost=float(modelled.usd[here].mean()),
                    billed_cost=float(usd[here].mean()),
                )
                for k in range(len(self.rates))
                for here in [phase == k]
                for last in [here & (times % self.seconds >= self.seconds / 2)]
            ],
            plans=plans,
            failures=int((~replayed.answered).sum()),
        )


async def _written(source: RedisPlans, plan: Plan) -> None:
    for left in range(TRIES - 1, -1, -1):
        try:
            return await source.write(plan, "demo")
        except StoreUnavailable:
            if not left:
                raise
