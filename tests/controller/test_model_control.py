"""Control of single models: what a tuner is told, what comes of its decisions, and what goes on when something fails."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import time
import uuid
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from sluice.batching import policy as constructors
from sluice.batching.documents import LinearServiceTime, Plan, PolicyDocument, ServiceProfile, Slo, WarmEnvironments
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.arrival_record import Arrivals
from sluice.buffer_service.arrival_stream import FIELD, stream_key
from sluice.buffer_service.presence import Presence, Presences
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.stream_reader import NewArrivals, NewBatches
from sluice.controller import model_control, model_process
from sluice.controller.deciding import Decider, DecidingProcess
from sluice.controller.journal import Journal, read_journal
from sluice.controller.leadership import lead
from sluice.controller.model_control import ModelControl, ModelTuner
from sluice.controller.model_process import ModelProcess
from sluice.controller.model_setups import ModelSetups, by_model
from sluice.local.redis_server import RedisServer
from sluice.optimizer.compiled import compiled, without_numba
from sluice.optimizer.recommend.offers import machine_offer
from sluice.optimizer.tuning.day_counts import BUCKET, UNKNOWN, DayCounts
from sluice.optimizer.tuning.decision import Decision, Trigger
from tests.controller.deciding_tuner import DecidingTuner

A = "aaaaaaaa"
TRIGGER = Trigger("rate", 1.0, "the rate is another")


def plan(model: str = "m", batch_size: int = 1) -> Plan:
    table = constructors.size_or_timeout(batch_size, 0.01) if batch_size > 1 else constructors.no_batching()
    return Plan(model=model, function="f", policy=PolicyDocument.of(table), slo=Slo(0.2))


def decision(chosen: Plan | None, alarm: str = "") -> Decision:
    return Decision(1.0, TRIGGER, (), chosen, "", "", 0.0, 0.0, 0, "it is cheaper", alarm, 1.0, 0.0, 0.0)


class FakeTuner:
    """Remembers what it was told; once told of ``wants`` arrivals it decides for a plan, each time that it is not in force."""

    def __init__(self, chosen: Plan | None = None, wants: int = 1, refuses: str = "") -> None:
        self.chosen, self.wants, self.refuses = chosen, wants, refuses
        self.times: list[float] = []
        self.seen: list[MeasuredBatch] = []
        self.holes: list[tuple[float, float]] = []
        self.plans: list[str] = []
        self.known: list[str] = []
        self.counts = DayCounts()

    def arrived(self, times: Any) -> None:
        self.counts.see(times)  # first, as tests wait for the times, in another thread
        self.times += list(times)

    @property
    def counted_until(self) -> int:
        return self.counts.until

    def counted(self) -> bytes:
        return self.counts.packed()

    def remember(self, counts: bytes) -> None:
        self.counts.restore(counts)

    def missed(self, since: float, until: float) -> None:
        self.holes.append((since, until))

    def batches(self, batches: Any) -> None:
        self.seen += batches

    def in_force(self, plan: Plan, since: float) -> None:
        if plan.digest == self.refuses:
            raise InvalidInput("plan.routes", "2 routes", "none")
        self.plans.append(plan.digest)

    def given(self, plan: Plan) -> None:
        self.known.append(plan.digest)

    def due(self, now: float) -> Trigger | None:
        wanted = self.chosen is not None and self.plans[-1] != self.chosen.digest
        return TRIGGER if wanted and len(self.times) >= self.wants else None

    def decide(self, now: float, trigger: Trigger) -> Decision:
        return decision(self.chosen)


def came(*times: float, missed: int = 0, began_anew: bool = False, more: bool = False) -> NewArrivals:
    return NewArrivals(Arrivals(array("d", times), array("d")), missed, began_anew, 0.0, more)


NOTHING = NewBatches([], 0, False, 0.0, False)


def test_a_tuner_is_told_times_that_ascend_and_of_every_hole() -> None:
    tuner = FakeTuner()
    control = ModelControl(tuner)
    control.see(came(1.0, 2.0), NOTHING)
    control.see(came(1.9, 3.0), NOTHING)
    control.see(came(9.0, missed=5), NOTHING)
    control.see(came(8.5, 9.5, began_anew=True), NOTHING)
    assert tuner.times == [1.0, 2.0, 2.0, 3.0, 9.0, 9.0, 9.5]
    assert tuner.holes == [(3.0, 9.0), (9.0, 9.0)]


STEADY = tuple(i / 10 for i in range(100))
"""Ten requests a second, for ten seconds."""


def told(*pages: NewArrivals, away: tuple[float, float] | None = None, buffers: Any = None) -> tuple[FakeTuner, ModelControl]:
    """After ten steady seconds, and these pages; the record could not be read from the first time to the second one."""
    tuner = FakeTuner()
    control = ModelControl(tuner)
    control.see(came(*STEADY), NOTHING)
    control.buffers({A: 9.0})
    if away is not None:
        control.away(away[0])
        control.back(away[1])
    for page in pages:
        control.see(page, NOTHING, lambda: buffers)
    return tuner, control


def test_a_record_that_begins_anew_with_nothing_in_it_is_a_hole_up_to_the_next_request() -> None:
    tuner, control = told(came(began_anew=True, more=True), came(14.0, 14.1))
    assert tuner.holes == [(9.9, 14.0)] and tuner.times[-2:] == [14.0, 14.1]
    hole = control.holes(20.0)
    assert hole is not None and "a hole of 4.1 s: Redis had lost the record" in hole.words


def test_a_silence_while_redis_was_away_is_no_rate_of_zero() -> None:
    tuner, control = told(came(13.1, 13.2, 20.0), away=(10.0, 13.0))
    assert tuner.holes == [(9.9, 13.1)]  # what comes later is a silence of those who ask
    hole = control.holes(20.0)
    assert hole is not None and hole.why == "Redis did not answer"


def test_where_the_controller_alone_was_cut_off_or_few_would_have_come_there_is_no_hole() -> None:
    went_on = tuple(10 + i / 10 for i in range(40))
    assert told(came(*went_on), away=(10.0, 13.0))[0].holes == []
    assert told(came(10.3), away=(9.95, 10.25))[0].holes == []
    tuner, control = told(away=(10.0, 13.0))
    assert tuner.holes == [] and control.holes(20.0) is None


def test_a_silence_after_which_all_buffers_are_others_is_a_hole_and_one_of_the_callers_is_none() -> None:
    assert told(came(14.0), buffers={"bbbbbbbb": 14.0})[0].holes == [(9.9, 14.0)]
    assert told(came(14.0), buffers={A: 9.0, "bbbbbbbb": 14.0})[0].holes == [(9.9, 14.0)]  # killed, and known still
    assert told(came(14.0), buffers={A: 14.0})[0].holes == []
    assert told(came(14.0), buffers={A: 14.0, "bbbbbbbb": 14.0})[0].holes == []
    assert told(came(10.8), buffers={"bbbbbbbb": 10.8})[0].holes == []  # a moment


def test_holes_are_told_once_a_minute_as_one() -> None:
    _, control = told(came(12.0, missed=30))
    first = control.holes(12.0)
    assert first is not None and (first.since, first.until, first.missed) == (9.9, 12.0, 30)
    assert first.why == "30 requests were trimmed before they were read"
    control.see(came(30.0, missed=7), NOTHING)
    control.see(came(40.0, missed=8), NOTHING)
    assert control.holes(71.0) is None
    second = control.holes(72.0)
    assert second is not None and (second.since, second.until, second.missed) == (12.0, 40.0, 15)
    assert control.holes(200.0) is None


def test_nothing_is_decided_before_all_that_is_recorded_was_read_nor_without_a_plan_that_control_follows() -> None:
    control = ModelControl(FakeTuner(plan(batch_size=4), refuses=plan(batch_size=3).digest))
    control.see(came(1.0, more=True), NOTHING)
    assert control.due(2.0) is None
    assert control.plan(plan(), 0.0) == ""
    assert control.due(2.0) is None
    control.see(came(), NOTHING)
    assert control.due(2.0) is not None
    assert "is left alone: plan.routes" in control.plan(plan(batch_size=3), 0.0)
    assert control.plan(plan(batch_size=3), 0.0) == ""
    assert control.due(2.0) is None


def test_a_model_is_set_up_by_its_profile_or_else_by_what_its_plan_says() -> None:
    profile = ServiceProfile(function="m-{memory_mb}", model="m", service_time=LinearServiceTime(0.01, 0.001))
    sized = replace(plan(), memory_mb=1769, digest="")
    assert ModelSetups(memory_sizes=(512, 1024), profiles={"m": profile}).tuner(plan()).setup.function_at(512) == "m-512"
    assert ModelSetups().tuner(sized).setup.memory_of("f") == 1769
    with pytest.raises(InvalidInput, match="memory_mb"):
        ModelSetups().tuner(plan())
    with pytest.raises(InvalidInput, match="slo"):
        ModelSetups().tuner(replace(sized, slo=None, digest=""))
    warm = ModelSetups().tuner(replace(sized, warm=WarmEnvironments(2), digest="")).setup
    assert (warm.warm, warm.warm_function) == (WarmEnvironments(2), "f")
    with pytest.raises(InvalidInput, match="--profile"):
        by_model([("a.json", profile), ("b.json", profile)])


def test_workers_are_offered_to_the_model_of_their_profile_beside_its_function() -> None:
    profile = ServiceProfile(function="m-{memory_mb}", model="m", service_time=LinearServiceTime(0.01, 0.001))
    workers = ServiceProfile(function="http://w:8500", model="m", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8)
    setups = ModelSetups({"m": profile, "n": profile}, memory_sizes=(512,), offers={"m": (machine_offer("w", workers, 0.5, 8),)})
    assert [offer.name for offer in setups.tuner(plan()).setup.offers] == ["w"]
    assert setups.tuner(plan()).setup.memory_of("m-512") == 512
    assert setups.tuner(replace(plan(), model="n", digest="")).setup.offers == ()


class Here:
    """Decides in the process that asks."""

    running = False

    async def decide(self, tuner: ModelTuner, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
        return tuner.decide(now, trigger), tuner

    async def close(self) -> None:
        pass


def test_fixed_servers_are_set_up_by_the_profile_that_is_theirs() -> None:
    profile = ServiceProfile(function="http://w:8500", model="m", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8)
    setup = ModelSetups(profiles={"m": profile}, servers=3).tuner(plan()).setup
    assert setup.servers == 3 and [offer.function for offer in setup.offers] == ["http://w:8500"]
    assert setup.memory_of("http://w:8500") is None
    several = replace(plan(), function="http://a:1,http://b:1", digest="")
    tuner = ModelSetups(profiles={"m": profile}, servers=2).tuner(several)  # one of them was measured, or another like them
    assert [offer.function for offer in tuner.setup.offers] == [several.function]
    tuner.in_force(replace(several, policy=PolicyDocument.of(constructors.greedy(8, 2)), digest=""), 0.0)
    with pytest.raises(InvalidInput, match="plan.function: 'http://a:1,http://b:1' is not allowed; allowed: 3 addresses with"):
        ModelSetups(profiles={"m": profile}, servers=3).tuner(several)
    with pytest.raises(InvalidInput, match="--profile: none was given; needed: that of m's workers, with --servers"):
        ModelSetups(servers=3).tuner(replace(plan(), memory_mb=1769, digest=""))


class Bench:
    """A namespace in a Redis, with a queue that records, and controllers of it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.namespace, self.folder = url, uuid.uuid4().hex, folder
        self.plans = RedisPlans(url, self.namespace)
        self.store = RedisStore(url, A, self.namespace)
        self.tasks: list[asyncio.Task[None]] = []
        self.others: list[RedisPlans] = []
        self.recorded = 0

    def record(self, *times: float, model: str = "m") -> None:
        """Requests came then (s since 1970), as a buffer of then recorded them."""
        with redis.Redis.from_url(self.url) as client:
            for at in times:
                self.recorded += 1
                entry = {FIELD: struct.pack("<df", at, 0.0)}
                client.xadd(stream_key(model, self.namespace), entry, id=f"{self.recorded}-0")

    def trim(self, model: str = "m") -> None:
        """What was recorded is not kept any more."""
        with redis.Redis.from_url(self.url) as client:
            client.xtrim(stream_key(model, self.namespace), maxlen=0, approximate=False)

    async def request(self, count: int = 1, model: str = "m") -> None:
        queue = self.store.queue(model, Limits())
        await queue.install(constructors.no_batching())
        await queue.advance(Events([f"{A}{i:08x}".encode() for i in range(count)]))

    def controller(
        self, tuner_for: Callable[[Plan], Any], name: str = "c", lease: float = 0.6, decider: Decider | None = None
    ) -> asyncio.Task[None]:
        plans, decider = RedisPlans(self.url, self.namespace), decider or Here()
        self.others.append(plans)
        journal = Journal(self.folder / f"{name}.jsonl", plans)

        def work() -> Any:
            return ModelProcess(tuner_for, plans, name, decider, journal, self.url, self.namespace, look=0.02).run()

        self.tasks.append(asyncio.create_task(lead(plans, name, work, lease)))
        return self.tasks[-1]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.02)

    async def until_in_force(self, digest: str, model: str = "m") -> None:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(Exception):
                    if {each.model: each.digest for each in await self.plans.plans()}.get(model) == digest:
                        return
                await asyncio.sleep(0.02)

    def words(self, name: str = "c") -> str:
        return "\n".join(f"{entry['model']}: {entry['words']}" for entry in read_journal(self.folder / f"{name}.jsonl"))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for each in (self.plans, self.store, *self.others):
            with contextlib.suppress(Exception):
                await each.close()


@pytest.fixture
async def bench(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Bench]:
    one = Bench(redis_server.url, tmp_path)
    yield one
    await one.close()


async def test_workers_that_others_take_the_place_of_are_controlled_on(bench: Bench) -> None:
    profile = ServiceProfile(function="http://a:1", model="m", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8)
    setups, table = ModelSetups(profiles={"m": profile}, servers=2), PolicyDocument.of(constructors.greedy(8, 2))
    one, two = (replace(plan(), function=workers, policy=table, digest="") for workers in ("http://a:1", "http://a:1,http://b:1"))
    bench.controller(setups.tuner)
    for each in (one, two, one):
        await bench.plans.write(each, "somebody")
        await bench.until(lambda each=each: bench.words().endswith(f"m: controlled from plan {each.digest} on"))  # type: ignore[misc]
    await bench.plans.write(plan(batch_size=4), "somebody")  # a function, of which nothing is known here
    await bench.until(lambda: f"plan {plan(batch_size=4).digest} is left alone: " in bench.words())


async def test_what_a_tuner_decides_from_what_was_recorded_comes_into_force_and_is_in_the_journal(bench: Bench) -> None:
    tuner, chosen = FakeTuner(plan(batch_size=4), wants=3), plan(batch_size=4)
    await bench.plans.write(plan(), "somebody")
    bench.controller(lambda _: tuner)
    await bench.request(3)
    await bench.until_in_force(chosen.digest)
    await bench.until(lambda: tuner.plans == [plan().digest, chosen.digest])
    written = (await bench.plans.history("m"))[0]
    assert (written.plan.digest, written.by, written.why) == (chosen.digest, "c", "it is cheaper")
    await bench.until(lambda: "m: the rate is another: it is cheaper" in bench.words())
    assert len(tuner.times) == 3


async def test_at_a_decision_loops_are_looked_for_that_were_not_kept_before(bench: Bench) -> None:
    def double(x: float) -> float:
        return 2 * x

    function: Any = compiled(double)
    kept: list[Any] = []

    class Kept:
        def find(self, kinds: Any, without_llvm: bool) -> Any:
            return next(iter(kept), None)

    function._kept = Kept()
    with without_numba():
        assert function(1.0) == 2.0
        kept.append(lambda x: 3 * x)
        assert function(1.0) == 2.0  # nothing is looked for at every call
        await bench.plans.write(plan(), "somebody")
        bench.controller(lambda _: FakeTuner(plan(batch_size=4), wants=3))
        await bench.request(3)
        await bench.until_in_force(plan(batch_size=4).digest)
        assert function(1.0) == 3.0


async def test_where_no_model_has_a_plan_that_is_said_once_with_where_the_buffers_have_theirs_from(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_process, "NOTHING_FOR", 0.05)
    presences = Presences(bench.url, bench.namespace)
    await presences.tell("pAAAAAAA", Presence(host="h", release="1", plans="file:plans"))
    await presences.close()
    bench.controller(lambda _: FakeTuner(plan()))

    def said() -> list[str]:
        return [text for record in caplog.records if "no model has a plan in this Redis" in (text := record.getMessage())]

    await bench.until(said)
    assert "(1 of the buffer's processes has plans of file:plans)" in said()[0] and "sluice plans push PLAN" in said()[0]
    await asyncio.sleep(0.3)
    assert len(said()) == 1
    await bench.plans.write(plan(), "somebody")
    await bench.until(lambda: f"m: controlled from plan {plan().digest} on" in bench.words())


async def test_a_model_that_cannot_be_controlled_and_a_tuner_that_fails_keep_no_other_from_it(bench: Bench) -> None:
    class Broken(FakeTuner):
        def due(self, now: float) -> Trigger | None:
            raise ZeroDivisionError("a defect")

    good = FakeTuner(plan("good", 4), wants=0)

    def tuner_for(first: Plan) -> FakeTuner:
        if first.model == "odd":
            raise InvalidInput("slo", None, "an SLO")
        return good if first.model == "good" else Broken()

    for model in ("broken", "good", "odd"):
        await bench.plans.write(plan(model), "somebody")
    bench.controller(tuner_for)
    await bench.until_in_force(plan("good", 4).digest, "good")
    assert bench.words().count("odd: plan") == 1


async def test_a_decision_that_cannot_be_followed_keeps_no_other_model_from_being_decided_about(bench: Bench) -> None:
    class Defective(Here):
        async def decide(self, tuner: Any, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
            found = tuner.decide(now, trigger)
            return (dataclasses.replace(found, plan=42) if tuner.chosen.model == "broken" else found), tuner

    tuners = {name: FakeTuner(plan(name, 4), wants=0) for name in ("broken", "good")}
    tuners["good"].wants = 1
    for name in tuners:
        await bench.plans.write(plan(name), "somebody")
    bench.controller(lambda first: tuners[first.model], decider=Defective())
    await bench.until(lambda: "broken: the rate is another: the plan stays, as nothing was decided: " in bench.words())
    await bench.request(1, "good")
    await bench.until_in_force(plan("good", 4).digest, "good")


async def test_a_decision_that_took_too_long_is_not_followed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "DECIDE_WITHIN", 0.0)
    await bench.plans.write(plan(), "somebody")
    bench.controller(lambda _: FakeTuner(plan(batch_size=4), wants=0))
    await bench.until(lambda: "is not followed" in bench.words())
    assert [each.digest for each in await bench.plans.plans()] == [plan().digest]


async def test_a_process_that_dies_while_it_decides_leaves_the_plan_and_the_next_decision_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_control, "AGAIN", 0.1)
    tuner, fates = DecidingTuner(plan(batch_size=4)), [("dies",), ("decides",)]

    class Mortal(DecidingProcess):
        async def decide(self, tuner: Any, now: float, trigger: Trigger) -> Any:
            tuner.fates = fates.pop(0)
            assert [each.digest for each in await bench.plans.plans()] == [plan().digest]
            return await super().decide(tuner, now, trigger)

    await bench.plans.write(plan(), "somebody")
    bench.controller(lambda _: tuner, decider=Mortal())
    await bench.until_in_force(plan(batch_size=4).digest)
    assert "the plan stays, as nothing was decided: the process that decides died (-9)" in bench.words()
    assert [written.by for written in await bench.plans.history("m")] == ["c", "somebody"]


async def test_while_one_model_is_decided_about_the_others_are_read_and_what_happened_is_decided_before_what_is_periodic(
    bench: Bench,
) -> None:
    go_on, order = asyncio.Event(), list[str]()

    class Periodic(FakeTuner):
        def due(self, now: float) -> Trigger | None:
            found = super().due(now)
            return found and found._replace(kind="periodic")

    class Urgent(FakeTuner):
        is_due = False

        def due(self, now: float) -> Trigger | None:
            found = super().due(now)
            self.is_due = self.is_due or found is not None
            return found

    class Waits(Here):
        async def decide(self, tuner: Any, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
            order.append(tuner.chosen.model)
            await go_on.wait()
            return tuner.decide(now, trigger), tuner

    tuners = {name: kind(plan(name, 4), wants=0) for name, kind in (("a", FakeTuner), ("b", Periodic), ("c", Urgent))}
    tuners["b"].wants = tuners["c"].wants = 1
    for name in tuners:
        await bench.plans.write(plan(name), "somebody")
    bench.controller(lambda first: tuners[first.model], decider=Waits())
    await bench.until(lambda: order == ["a"])
    await bench.request(1, "b")
    await bench.until(lambda: tuners["b"].times)
    await bench.request(1, "c")
    await bench.until(lambda: tuners["c"].is_due)  # type: ignore[attr-defined]
    await asyncio.sleep(0.1)  # the look goes on to its end
    go_on.set()
    for name in tuners:
        await bench.until_in_force(plan(name, 4).digest, name)
    assert list(dict.fromkeys(order)) == ["a", "c", "b"]  # one may be decided about again before its plan was read back


def test_what_is_periodic_is_decided_early_where_it_costs_little_and_nothing_else_is() -> None:
    class Later(FakeTuner):
        kind: Any = "periodic"

        def due(self, now: float) -> Trigger | None:
            return TRIGGER._replace(kind=self.kind) if now >= 10.0 else None

    tuner = Later()
    control = ModelControl(tuner)
    control.plan(plan(), 0.0)
    control.see(came(1.0), NOTHING)
    assert control.due(6.0) is None and control.due(6.0, 3.0) is None
    assert control.due(6.0, 4.0) is not None
    control.decided(tuner, 3.0)  # whose own period is short by now: it would be due at every look
    assert control.due(6.0, 4.0) is None
    assert control.due(7.0, 4.0) is not None
    tuner.kind = "start"
    assert control.due(7.0, 4.0) is None
    control.lost(10.0)
    assert control.due(69.0) is None
    assert control.due(70.0) is not None


async def test_of_two_controllers_one_writes_and_the_other_goes_on_when_it_is_gone(bench: Bench) -> None:
    first, second = FakeTuner(plan(batch_size=4), wants=0), FakeTuner(plan(batch_size=5), wants=0)
    await bench.plans.write(plan(), "somebody")
    one = bench.controller(lambda _: first, "one")
    await bench.until_in_force(plan(batch_size=4).digest)
    bench.controller(lambda _: second, "two")
    await asyncio.sleep(0.3)
    assert second.plans == []
    one.cancel()
    await bench.until_in_force(plan(batch_size=5).digest)
    assert [written.by for written in await bench.plans.history("m")] == ["two", "one", "somebody"]


async def test_who_takes_over_knows_the_plan_that_somebody_gave_and_goes_back_to_it_if_it_likes(bench: Bench) -> None:
    first, second = FakeTuner(plan(batch_size=4), wants=0), FakeTuner()
    await bench.plans.write(plan(), "somebody")
    one = bench.controller(lambda _: first, "one")
    await bench.until_in_force(plan(batch_size=4).digest)
    one.cancel()
    bench.controller(lambda _: second, "two")
    await bench.until(lambda: second.known)
    assert (second.plans, second.known) == ([plan(batch_size=4).digest], [plan().digest])


async def test_who_takes_over_knows_what_came_though_the_record_does_not_reach_back_any_more(bench: Bench) -> None:
    first, second = FakeTuner(), FakeTuner()
    await bench.plans.write(plan(), "somebody")
    bench.record(*(bucket * BUCKET + 1.0 for bucket in (1, 2, 2, 3, 3, 3, 4)))
    one = bench.controller(lambda _: first, "one")
    await bench.until(lambda: len(first.times) == 7)
    async with asyncio.timeout(30):
        while not await bench.plans.counts("m"):
            await asyncio.sleep(0.02)
    bench.trim()
    one.cancel()
    bench.record(4 * BUCKET + 2.0, 5 * BUCKET)
    bench.controller(lambda _: second, "two")
    await bench.until(lambda: len(second.times) == 2)
    assert struct.unpack("<3I", second.counts.packed()[-12:]) == (2, 3, UNKNOWN)  # of the time 4 nobody knows the whole


async def test_a_hole_in_the_record_is_in_the_journal_and_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    tuner = FakeTuner()
    await bench.plans.write(plan(), "somebody")
    bench.controller(lambda _: tuner)
    bench.record(1000.0, 1001.0)
    await bench.until(lambda: len(tuner.times) == 2)
    bench.recorded += 30  # which are trimmed before they are read
    bench.record(1010.0)
    await bench.until(lambda: "30 requests were trimmed before they were read" in bench.words())
    assert tuner.holes == [(1001.0, 1010.0)]
    assert "m: the record of arrivals has a hole of 9 s: 30 requests were trimmed" in caplog.text
    [hole] = [entry["hole"] for entry in read_journal(bench.folder / "c.jsonl") if "hole" in entry]
    assert hole == {
        "since": "1970-01-01T00:16:41.000+00:00",
        "until": "1970-01-01T00:16:50.000+00:00",
        "missed": 30,
        "why": "30 requests were trimmed before they were read",
    }


async def test_a_redis_that_was_away_is_a_hole_in_the_record_of_every_model(tmp_path: Path) -> None:
    with RedisServer(append_only=True) as server:
        bench = Bench(server.url, tmp_path)
        try:
            tuner = FakeTuner()
            await bench.plans.write(plan(), "somebody")
            bench.controller(lambda _: tuner, lease=30.0)
            now = time.time()
            bench.record(*(now - 1 + i / 50 for i in range(50)))
            await bench.until(lambda: len(tuner.times) == 50)
            server.kill()
            await asyncio.sleep(0.5)
            server.start()
            bench.record(time.time())
            await bench.until(lambda: "Redis did not answer" in bench.words())
            assert [since for since, _ in tuner.holes] == [tuner.times[49]]
        finally:
            await bench.close()


async def test_a_controller_goes_on_when_redis_was_away_and_has_lost_everything(tmp_path: Path) -> None:
    with RedisServer() as server:
        bench = Bench(server.url, tmp_path)
        try:
            tuner = FakeTuner(plan(batch_size=4), wants=0)
            await bench.plans.write(plan(), "somebody")
            bench.controller(lambda _: tuner)
            await bench.until_in_force(plan(batch_size=4).digest)
            with redis.Redis.from_url(server.url) as client:
                client.flushall()
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(0.2)
            await bench.plans.write(plan(batch_size=2), "somebody")
            await bench.until_in_force(plan(batch_size=4).digest)
        finally:
            await bench.close()
