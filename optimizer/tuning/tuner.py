"""One model's plan while its requests come: proposed by analysis, chosen by rehearsal, corrected by what is measured.

``due`` says whether there is something to decide and is cheap; ``decide`` takes some tenths of a second of one core where arrivals
are fitted and proposals made anew, as the rate or the service times are others, and some hundredths where those made before are
rehearsed again. Neither reads a clock. What is kept is bounded: arrivals one by one by ``TuningSettings.max_requests`` and
``memory``, counts of two days, the last batches of each setting.

A plan is taken that surely keeps every promise in the next window, those who are late while its environments start included; of
these the cheapest. It takes the place of the one in force where what it saves, with 95 % confidence, is more than the
change costs, in as long as that one has served: nobody knows for how long the next one will, and who changes when as much could
have been saved loses no more by waiting than by the change. ``kept_in`` counts at the least and the ``horizon`` at the most. Where
the one in force does not surely keep the promises, it goes to what does, unless that costs more than the windows are worth that
would break them (``choice.py``). Who waits for a plan to be cheaper by the profile never learns where that is wrong: once
measurements show so, a memory size that may be cheaper is tried with a few requests, for less than that may save, and once an hour
at the most (``doubt.py``). (docs/control.md)
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, expm1, inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sluice.batching.documents import Plan, ServiceProfile, Slo, percentile_name
from sluice.batching.errors import InvalidInput, require
from sluice.batching.measured import MeasuredBatch
from sluice.batching.urls import without_password
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.recommend.words import milliseconds, two_digits
from sluice.optimizer.service.times import service_times_up_to
from sluice.optimizer.simulation.batch_means import Estimate, estimate_quantile
from sluice.optimizer.simulation.function import LARGEST_BATCH
from sluice.optimizer.tuning.back_off import BackOff
from sluice.optimizer.tuning.canary import CANARY, plain, require_plain, single_route, trying
from sluice.optimizer.tuning.changes import BurstinessTest, RateTest
from sluice.optimizer.tuning.decision import Decision, Kind, Trigger
from sluice.optimizer.tuning.deployments import deployment_of, usd_of_pings, way_to_servers
from sluice.optimizer.tuning.drift import ServiceWatch
from sluice.optimizer.tuning.latest_fit import OTHER_RATE, LatestFit
from sluice.optimizer.tuning.latest_rows import LatestRows
from sluice.optimizer.tuning.learning import grown
from sluice.optimizer.tuning.live_profile import FEWEST, Bias, LiveProfile
from sluice.optimizer.tuning.next_window import kept_in_next
from sluice.optimizer.tuning.outcome import Expected, OutcomeWatch
from sluice.optimizer.tuning.promise import PromiseWatch
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.recent_arrivals import RecentArrivals
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.slow_drift import SlowDrift
from sluice.optimizer.tuning.way import WayWatch

if TYPE_CHECKING:
    from sluice.optimizer.tuning.choice import Choice
    from sluice.optimizer.tuning.trials import Trials, Tried

FEWEST_AT_RATE = 10  # requests, of a lower rate, before who serves at it is to be another for what might come
OTHER_BUDGET = 1.5  # ratio of what may be late of the batches, likewise
OTHER_TIMES = 0.03  # of the mean service time at any setting, likewise
REFUSED_AFTER = 10.0  # s from which batches of other plans tell that the buffers do not follow one, where none is of it
MOST_KEPT, MOST_OF_WORKERS = 20, 4  # proposals that are rehearsed again and again, and of each workers that are offered
LATENCIES_KEPT = 4096  # by which the bias is found
LATEST = 64  # of them, that tell how many wait
UNSURE = "nothing surely keeps the promise"
MOST_CORRECTIONS = 16  # settings of which a decision tells what was measured less predicted
LEAST_RELIEF = 0.02  # of energy or latency, for which a plan is changed that costs the same


class _ProposedFor(NamedTuple):
    """A rate (requests/s) and whether it was seen for a moment only, service times, the way in them (s), and what is in time."""

    rate: float
    brief: bool
    profile: ServiceProfile
    way: float
    in_time: tuple[Slo, ...]


class _Held(NamedTuple):
    """A change that can wait: since when it does, when it is decided about again (s), and what for."""

    since: float
    until: float
    trigger: Trigger


class Tuner:
    """Watches one model and decides about its plan.

    Parameters
    ----------
    setup : TuningSetup
    settings : TuningSettings
    """

    def __init__(self, setup: TuningSetup, settings: TuningSettings | None = None) -> None:
        self.setup, self.settings = setup, settings or TuningSettings()
        known = setup.profile  # whose way is watched apart: no batch takes it, as the buffer measures batches
        self.live = LiveProfile(None if known is None else known.without_way, setup.function, setup.memory_sizes[-1])
        most, needed = self.settings.max_requests, self.settings.remembered(min(slo.error_budget for slo in setup.slos))
        self._recent = RecentArrivals(self.settings.memory, most, needed)
        self._rate, self._burstiness = RateTest(), BurstinessTest(max(slo.latency for slo in setup.slos))
        self._promises = [PromiseWatch(slo) for slo in setup.slos]
        self._services = None if self.function is None else ServiceWatch(self.function)
        self._drift = SlowDrift(self.live, self.settings.period)
        self._outcome = OutcomeWatch(setup)
        self._way = WayWatch(setup.slos, None if known is None else known.way)
        self._in_time = setup.slos  # percentiles at which batches must be in time
        self._back_off = BackOff(self.settings.pause, self.settings.period)
        self._promise_back_off = BackOff(self.settings.pause, self.settings.period)
        self._latencies = LatestRows(LATENCIES_KEPT, 2)  # when answered (s), seconds
        self._plan: Plan | None = None
        self._since = self._began = self._decided = self._changed = -inf  # ``_began``: with or without another tried beside it
        self._held: _Held | None = None
        self._expected: Expected | None = None  # of the last decision
        self._before: Plan | None = None  # that served before one of control came, until a batch of that was seen
        self._first = ""  # the digest of the plan that it began with
        self._not_followed = 0  # batches since then, which were of other plans
        self._shunned: dict[str, float] = {}  # functions, or digests of plans, that buffers refused, and until when (s)
        self._awaited, self._lag = "", 0.0  # the digest that was decided last, and seconds from such a decision until it served
        self._compared, self._compared_over = False, 0.0  # plans, ever; and seconds of arrivals, the last time
        self._proposals: dict[str, Proposal] = {}
        self._given: Proposal | None = None  # what somebody else put in force, and can always be gone back to
        self._proposed_for: _ProposedFor | None = None
        self._fitted: LatestFit | None = None
        self._packed_tables = b""  # of fixed servers, and their profile: who watches has no use for what solves them
        self._every_load: tuple[Proposal | None, ServiceProfile, float, tuple[Slo, ...]] | None = None
        self._tried: dict[str, int] = {}  # batches of each function since it was first tried
        self._in_trial = 0  # batches of what is tried beside the plan in force
        self._doubting = ""  # the digest of the plan that tries a memory size of which the profile may be wrong,
        self._doubted: dict[int, float] = {}  # and when (s) each was tried so
        self._bias = 0.0
        self._fell = False  # the rate, and was seen since then for a moment only

    # --- what it is told

    def arrived(self, times: Array) -> None:
        """Requests came, at these times (s, ascending)."""
        self._recent.see(times)
        self._rate.see(times)
        self._burstiness.see(times)

    def remember(self, counts: bytes) -> None:
        """What was counted before this tuner began (``DayCounts.packed``)."""
        self._recent.counts.restore(counts)

    def missed(self, since: float, until: float) -> None:
        """The record has a hole between these times (s): what came before it does not go on behind it, and is not rehearsed."""
        self._recent.forget()
        self._recent.counts.hole(since, until)
        self._rate.resume(until)
        self._burstiness.resume(until)
        self._outcome.restart(until, self._expected, self._pings)

    def batches(self, batches: Sequence[MeasuredBatch]) -> None:
        """Batches ended, in this order."""
        self.live.see(batches)
        self._drift.see(batches, self._decided)
        own = [batch for batch in batches if self._plan is None or batch.digest in ("", self._plan.digest)]
        came = [batch for batch in own if batch.first_came >= self._since]  # who waited before it came is no proof against a plan
        for promise in self._promises:
            promise.see(came)
        if self._services is not None:  # what is tried out of doubt takes another time, and that is no change
            self._services.see([batch for batch in batches if batch.route != CANARY or batch.digest != self._doubting])
        self._way.see(came)
        self._outcome.see(came)
        self._before = None if own else self._before
        self._not_followed += sum(batch.first_came >= self._since + REFUSED_AFTER for batch in batches)
        for batch in batches:
            self._tried[batch.function] = self._tried.get(batch.function, 0) + 1
        if self._plan is not None and self._plan.routes:
            tried = self._plan.routes[1].name
            self._in_trial += sum(batch.digest == self._plan.digest and batch.route == tried for batch in batches)
        if self._plan is not None:
            warm = [batch for batch in own if not batch.cold]  # which rehearsals know of
            rows = [(batch.ended_at, latency) for batch in warm for latency in batch.latencies]
            self._latencies.extend(np.array(rows).reshape(-1, 2))
        while len(self._tried) > len(self.setup.memory_sizes) + len(self.setup.offers):
            del self._tried[next(iter(self._tried))]

    def in_force(self, plan: Plan, since: float) -> None:
        """This plan serves, since then (s).

        Raises
        ------
        InvalidInput
            A plan that control does not follow: with routes, classes or a size of requests, or functions that it does not know.
        """
        self._require_known(plan)
        if self._plan is not None and plan.digest == self._plan.digest:
            return
        if plan.digest == self._awaited:
            self._lag = max(since - self._decided, 0.0)
        else:
            self._keep_given(plan)
            self._held, self._expected = None, None
        self._before, self._not_followed = self._plan if plan.digest == self._awaited else None, 0
        before = None if self._plan is None else self._base.digest
        self._plan, self._since, self._in_trial = plan, since, 0
        self._outcome.restart(since, self._expected, self._pings)
        if self._base.digest != before:
            self._began = since
        self._way.follow(plan)
        self._back_off.restart()
        self._promise_back_off.restart()
        self._latencies.clear()
        for promise in self._promises:
            promise.restart()

    def given(self, plan: Plan) -> None:
        """Somebody else put this plan into force last, before this tuner began: it can be gone back to.

        Raises
        ------
        InvalidInput
            As ``in_force``.
        """
        self._require_known(plan)
        self._keep_given(plan)
        if self._plan is not None and plan.digest != self._plan.digest:  # which another controller wrote
            self._before = plan

    def _keep_given(self, plan: Plan) -> None:
        if not plan.routes:
            self._given = Proposal("as it was given", plan)

    def _require_known(self, plan: Plan) -> None:
        require_plain(plan)
        for route in plan.all_routes:
            for name in route.functions:
                offered = any(offer.function == name for offer in self.setup.offers)
                known = self.setup.memory_of(name) is not None or offered
                require(known, "plan.function", name, f"a function of {self.setup.function}, or workers that are offered")
            warm = self.setup.warm_of(route.functions)
            if warm is None and route.pinged:
                every, keep_alive = route.pinged.pinged_every, self.setup.environments.keep_alive
                allowed = f"{keep_alive:g} s at most, for which an unused environment is taken to be kept"
                require(every <= keep_alive, "plan.warm.pinged_every", every, allowed)
            else:
                allowed = f"what is there as far as is known: {warm}"
                require((route.warm or None) == warm, "plan.warm", route.warm or None, allowed)

    # --- what it says

    @property
    def counted_until(self) -> int:
        """The number of the last time that is over, of those whose requests are counted; -1 before the first is."""
        return self._recent.counts.until

    def counted(self) -> bytes:
        """How many requests came, of two days."""
        return self._recent.counts.packed()

    @property
    def function(self) -> ServiceProfile | None:
        """The service times of the function, as they are known; ``None`` where nothing is."""
        found = self.live.profile()
        return found if found is None or self.setup.profile is not None else grown(found, self.setup.max_batch_size)

    @property
    def profile(self) -> ServiceProfile | None:
        """The service times that it plans with: of the function behind the buffer."""
        found = self.function
        return None if found is None else self._way.before(found)

    @property
    def _pings(self) -> float:
        """What the pings of the plan in force cost, USD per second."""
        routes = () if self._plan is None else self._plan.all_routes
        return sum(usd_of_pings(route, self.setup) for route in routes)

    @property
    def bias(self) -> float:
        """Seconds by which live latencies were found to exceed rehearsed ones."""
        return self._bias

    def due(self, now: float) -> Trigger | None:
        """What there is to decide, if anything."""
        if self._plan is None:
            return Trigger("start", now, "no plan is in force") if now >= self._decided + self.settings.pause else None
        if now < self._decided + self.settings.pause:
            return None
        if self._before is not None and self._not_followed >= FEWEST:
            words = f"the buffers have not followed plan {self._plan.digest} since it was written {now - self._since:.0f} s ago"
            return Trigger("refused", now, words)
        for promise in self._promises:
            if promise.alarm is not None and self._promise_back_off.heeds(None, now - self._decided):
                return Trigger("promise", promise.alarm.at, promise.alarm.words)
        if self._services is not None and self._services.alarm is not None:
            return Trigger("service", self._services.alarm.at, self._services.alarm.words)
        if self._drift.heeded(now - self._decided):
            return Trigger("service", now, "batches surely take another time than before the last decision")
        if self._way.longer:
            return Trigger("way", now, f"requests are {milliseconds(self._way.measured)} on their way through the buffer")
        if len(self._plan.routes) and self._held is None and self._canary_told():
            tried = " and ".join(self._plan.routes[1].functions)
            return Trigger("canary", now, f"{self._in_trial} batches were measured of {tried}")
        kinds: tuple[tuple[Kind, RateTest | BurstinessTest], ...] = (("rate", self._rate), ("burstiness", self._burstiness))
        for kind, test in kinds:
            rate = self._rate.rate if kind == "rate" else None
            if test.alarm is not None and self._back_off.heeds(rate, now - self._decided):
                return Trigger(kind, test.alarm.at, test.alarm.words)
        if self._held is not None and now >= self._held.until:
            return self._held.trigger
        if not self._compared:
            enough = len(self._recent) >= self.settings.fewest and self._recent.span >= self.settings.shortest
            enough = enough and self.live.known_or_measured
            return Trigger("start", now, "enough was seen to compare plans") if enough else None
        again = max(self._compared_over, self.settings.shortest)
        if now >= self._decided + min(self.settings.period, again):  # else nobody need know how long few requests took
            period = min(self.settings.stretched(self._recent.span) * self.settings.period, again)
            if now >= self._decided + period:
                return Trigger("periodic", now, f"{period:.4g} s have passed")
        return None

    def decide(self, now: float, trigger: Trigger) -> Decision:
        """Whether another plan is to come into force."""
        outcome, promise = self._outcome.told(), percentile_name(self.setup.slos[0].percentile)
        decision = replace(self._decide(now, trigger), since_last=outcome, corrections=self._corrections(), promise=promise)
        serves = decision.expected
        self._expected = None if serves is None else Expected(serves.late.value, serves.percentile.value, decision.cost)
        self._outcome.restart(now, self._expected, self._pings)
        return decision

    # --- how it gets there

    def _corrections(self) -> tuple[Bias, ...]:
        """What was measured less predicted, of the settings with the most batches, in order."""
        most = sorted(self.live.bias(), key=lambda bias: -bias.n)[:MOST_CORRECTIONS]
        return tuple(sorted(most, key=lambda bias: (bias.memory_mb, bias.batch_size)))

    def _decide(self, now: float, trigger: Trigger) -> Decision:
        before, self._decided, self._awaited = self._decided, now, ""
        held, self._held = self._held, None
        self._take_note(before)
        if self._before is not None and self._not_followed >= FEWEST:
            return self._go_back(now, trigger, self._before)
        function, profile, times = self.function, self.profile, self._recent.times()
        if self._plan is None and (profile is None or len(times) < self.settings.fewest):
            return self._begin(now, trigger, *self._first_for(profile))
        if profile is None or function is None:
            return self._stays(now, trigger, "no batch was measured yet, and there is no profile")
        if len(times) < self.settings.fewest or times[-1] <= times[0]:
            begun = self._plan is not None and self._plan.digest == self._first
            if begun and trigger.urgent:
                first, why = self._first_for(profile)
                if first.plan.digest != self._first:
                    return self._begin(now, trigger, first, why)
            known = f"{len(times)} requests are remembered"
            return self._stays(now, trigger, f"{known}, and it takes {self.settings.fewest} to compare plans")
        if not self._compared:
            self._services = ServiceWatch(function)  # by what was measured, where that is not what was profiled
        self._compared, self._compared_over = True, self._recent.span
        trials = self._new_trials(profile, self._at_this_rate(times), now)
        self._propose(trials, trigger)
        self._find_bias(trials, times, 1.0 if trigger.kind == "promise" else 0.5)
        if trigger.kind == "promise":
            trials.begin_with(self._waiting(trials))
        decision = self._choose(trials, trigger, held)
        if decision.plan is not None and trials.waiting:  # which may be more than those need who come afterwards
            until = now + max(self.settings.least_between, self.settings.shortest)
            self._held = _Held(now, until, Trigger("periodic", until, "the plan was chosen for who waited then, too"))
        self._look_again(now, decision.plan or self._plan)
        if decision.plan is None and trigger.kind == "promise":
            self._promise_back_off.found_right(trials.rate, True)
        self._drift.decided(trials.rate, decision.plan is not None)
        if decision.plan is None and now >= self._changed + self.settings.least_between:
            again = held is not None and held.trigger == trigger
            self._back_off.found_right(trials.rate, trigger.kind in ("rate", "burstiness") and not again)
        return decision

    def _look_again(self, now: float, plan: Plan | None) -> None:
        """A rate that was seen for a moment is known by some percent, which decide where servers are busy: look again."""
        from sluice.optimizer.tuning.trials import bounded

        seconds, settings = self._rate.seconds, self.settings
        if self._held is not None or plan is None or plan.routes or not bounded(plan) or seconds >= settings.shortest:
            return
        until = now + max(min(seconds, settings.shortest - seconds), settings.pause)
        words = f"requests had come at this rate for {seconds:.3g} s when it was decided about"
        self._held = _Held(now, until, Trigger("rate", until, words))

    def _go_back(self, now: float, trigger: Trigger, before: Plan) -> Decision:
        """To the plan that is followed, as the buffers refuse the one that was written: a function is not there, perhaps."""
        assert self._plan is not None
        serving = {name for route in before.all_routes for name in route.functions}
        refused = {name for route in self._plan.all_routes for name in route.functions} - serving
        until = now + self.settings.horizon
        self._shunned = {name: end for name, end in self._shunned.items() if end > now}
        self._shunned |= dict.fromkeys(refused or {self._plan.digest}, until)
        self._changed, self._awaited = now, before.digest
        what = ", ".join(sorted(refused)) or "it"
        why = f"the plan before it is put back; {what} is not tried again for {self.settings.horizon:g} s"
        return replace(self._stays(now, trigger, ""), plan=before, why=why)

    def _shuns(self, plan: Plan, now: float) -> bool:
        """Whether the buffers lately refused it, or a plan with one of its functions."""
        names = {plan.digest, *(name for route in plan.all_routes for name in route.functions)}
        return any(self._shunned.get(name, now) > now for name in names)

    def _take_note(self, before: float) -> None:
        """Of what was noticed since the decision ``before`` (s)."""
        since = [promise.alarm.since for promise in self._promises if promise.alarm is not None]
        if self._services is not None and self._services.alarm is not None:
            self._restart(self._services.alarm.since)
        elif since and self.live.other_since(min(since)):  # by less than is told unasked, but a table to the last moment is late
            self._restart(min(since))
        elif self._drift.since(before):
            self._restart(before)
        elif self._tried_from_doubt and self._canary_told() and self._services is not None and self.function is not None:
            self._services.refreshed(self.function)  # of what was tried as it was measured, be it to serve
        self._drift.take_note()
        if 0 < self._rate.rate < inf:
            requests = self._rate.rate * self.settings.kept_in
            self._in_time = kept_in_next(self.setup.slos, requests, self._way.batch_size, self.settings.confidence)
            self._way.in_time(self._in_time)
        self._way.settle()
        self._rate.clear()
        self._burstiness.clear()
        for promise in self._promises:
            promise.clear()

    def _restart(self, since: float) -> None:
        """Service times are others since then (s): what was measured before tells nothing, be it of batches or of latencies."""
        self.live.restart(since)
        told = self._latencies.rows()
        self._latencies.clear()
        self._latencies.extend(told[told[:, 0] >= since])
        self._back_off.restart()
        self._promise_back_off.restart()
        function = self.function
        if self._services is not None:
            self._services.clear()
            if function is not None:
                self._services.refreshed(function)

    @property
    def _tried_from_doubt(self) -> bool:
        """Whether something is tried that the profile has dearer than what serves (``doubt.py``)."""
        return self._plan is not None and self._plan.digest == self._doubting

    def _canary_told(self) -> bool:
        """Whether each function that is tried was measured, or as much as that takes of all: some seldom serve of a share."""
        assert self._plan is not None
        names, enough = self._plan.routes[1].functions, self.settings.canary_batches
        if self._tried_from_doubt:
            return self._in_trial >= enough or all(self.live.measured(self.setup.memory_of(name) or 0) >= FEWEST for name in names)
        return self._in_trial >= enough * len(names) or all(self._tried.get(name, 0) >= enough for name in names)

    def _new_trials(self, profile: ServiceProfile, times: Array, now: float) -> Trials:
        """What a decision at ``now`` tries, over these arrivals, and at the rate that yesterday tells of where that is another."""
        from sluice.optimizer.tuning.trials import Trials

        settings = self.settings
        ratio = self._recent.counts.ratio_to_come(now, settings.memory)
        far = not 1 / settings.yesterday < ratio < settings.yesterday and ratio > 0
        brief = self._rate.seconds < settings.shortest
        busier = self._rate.at_most(settings.confidence) if brief else 1.0
        return Trials(self.setup, settings, profile, now, self._bias, times, to_come=ratio if far else 1.0, busier=busier)

    def _at_this_rate(self, times: Array) -> Array:
        """The arrivals as they would have come at the rate of now: those before its last change sped up or slowed down."""
        rate, seconds = self._rate.rate, self._rate.seconds
        since = times[-1] - seconds
        before = times[times < since]
        self._fell = rate == 0
        if not isfinite(rate) or rate <= 0 or len(before) < 2 or before[-1] <= before[0]:
            return times
        factor = (len(before) - 1) / float(since - before[0]) / rate  # a silence before the change belongs to what was before
        self._fell = factor >= OTHER_RATE and (seconds < self.settings.shortest or rate * seconds < FEWEST_AT_RATE)
        if 1 / OTHER_RATE < factor < OTHER_RATE:
            return times
        return np.concatenate([since - (since - before) * factor, times[len(before) :]])

    def _propose(self, of: Trials, trigger: Trigger) -> None:
        """Proposals for the arrivals, which are fitted for it, and made anew where those that there are were made for others."""
        anew = self._must_propose(of.profile, of.rate)
        if anew or self._fitted is None or self._fitted.is_old(of, trigger):
            # 100 MB of fits and searches, which who only rehearses does without
            from sluice.optimizer.tuning.candidates import fitted

            arrivals = fitted(of.times)
            self._rate.expect(arrivals)
            self._fitted = LatestFit.to(of)
            if anew:
                self._propose_for(of.profile, arrivals, of.rate)
        if self.setup.servers is not None:
            self._keep(self._of_servers(self.setup.servers, of.profile, of.rate))

    def _must_propose(self, profile: ServiceProfile, rate: float) -> bool:
        """Whether the rate or the service times are others than those that proposals were made for.

        Also where that rate was seen for a moment only, and this one for longer: of busy workers a few percent of it decide. To
        fixed servers a table for each rate is proposed, for which nothing is fitted.
        """
        if self.setup.servers is not None:
            return False
        for_ = self._proposed_for
        if for_ is None or not 1 / OTHER_RATE < rate / for_.rate < OTHER_RATE:
            return True
        brief = self._rate.seconds < self.settings.shortest
        if _other_in_time(self._in_time, for_.in_time):
            return True
        return self._way.seconds != for_.way or _differ(profile, for_.profile) or (for_.brief and not brief)

    def _propose_for(self, profile: ServiceProfile, arrivals: ArrivalProcess, rate: float) -> None:
        """Make proposals anew; those for other service times are forgotten."""
        from sluice.optimizer.tuning.candidates import every_load, propose, unbatched

        for_ = self._proposed_for
        if for_ is not None and (self._way.seconds != for_.way or _differ(profile, for_.profile)):
            self._proposals.clear()
            self._every_load = None
        found = [*unbatched(self.setup), *propose(self.setup, profile, arrivals, self._in_time)]
        made = self._every_load
        if made is None or _differ(profile, made[1]) or not 0.1 < rate / made[2] < 10 or _other_in_time(self._in_time, made[3]):
            found_for = every_load(self.setup, profile, rate, self._in_time)
            self._every_load = made = found_for, profile, rate, self._in_time
        if made[0] is not None:
            found.append(made[0])
        self._keep(found)
        brief = self._rate.seconds < self.settings.shortest
        self._proposed_for = _ProposedFor(rate, brief, profile, self._way.seconds, self._in_time)

    def _of_servers(self, servers: int, profile: ServiceProfile, rate: float) -> list[Proposal]:
        """Greedy, to the last moment, and the optimal tables; those of other rates stay, unless service times are others."""
        from sluice.optimizer.tuning.candidates import tables, unbatched
        from sluice.optimizer.tuning.rate_tables import tables_of

        known = pickle.loads(self._packed_tables) if self._packed_tables else None
        slos = tuple(slo.sooner(way_to_servers(self.setup, profile)) for slo in self.setup.slos)
        if known is None or _differ(profile, known[2]):
            self._proposals.clear()
            service = service_times_up_to(profile.without_way, self.setup.memory_sizes[0], self.setup.max_batch_size)
            offer = replace(self.setup.offers[0], service=service)
            known = tables_of(offer, slos, servers, self.setup.max_batch_size), service, profile
        optimal, service, _ = known
        found = [*unbatched(self.setup), *tables(self.setup, service, slos, optimal, rate)]
        self._packed_tables = pickle.dumps(known)  # with those that were solved now
        return found

    def _keep(self, found: Sequence[Proposal]) -> None:
        for proposal in found:
            self._proposals.pop(proposal.plan.digest, None)
            self._proposals[proposal.plan.digest] = proposal
        while len(self._proposals) > MOST_KEPT + MOST_OF_WORKERS * len(self.setup.offers):
            del self._proposals[next(iter(self._proposals))]

    def _find_bias(self, trials: Trials, times: Array, weight: float) -> None:
        """By how much the percentile that was measured exceeds that of the rehearsal of the plan in force, if surely at all.

        Both are of the same requests, since the plan came into force: where the rate has changed, those before it tell nothing of
        the latencies since. ``weight`` is what this has beside what was found before: all where the promise was surely broken, as
        the rehearsal alone would leave the plan that breaks it.
        """
        from sluice.optimizer.tuning.rehearsal import rehearse

        if self._plan is None or self._plan.routes or not self._latencies:
            return
        at, latency = self._latencies.rows().T
        came = at - latency
        known = came >= max(self._since, times[0])
        seen = latency[known]
        if len(seen) < self.settings.fewest:
            return
        times = times[(times >= came[known].min()) & (times <= came[known].max())]
        if len(times) < self.settings.fewest:
            return
        quantile = self.setup.slos[0].quantile
        measured = estimate_quantile(seen, quantile)
        try:
            expected = rehearse(trials.deployment(self._plan), times, self.setup.slos, 1.0, bias=trials.way)
        except InvalidInput:  # batches larger than any that was measured
            return
        apart = measured.low > expected.percentile.high or measured.high < expected.percentile.low
        beyond = measured.value - expected.percentile.value if apart else 0.0
        self._bias = min(max((1 - weight) * self._bias + weight * beyond, 0.0), self.setup.slos[0].latency / 2)
        trials.bias = self._bias

    def _waiting(self, of: Trials) -> int:
        """About how many requests will wait, before servers that are too few, for more than is promised when a plan comes.

        By Little's law of the latest latencies, and what comes beyond what the servers carry until what is decided is in force.
        """
        from sluice.optimizer.tuning.trials import most_carried

        if self._plan is None or self._plan.routes or single_route(self._plan).policy.servers is None:
            return 0
        latest = self._latencies.rows(LATEST)[:, 1]
        late = float(np.median(latest)) - self.setup.slos[0].latency if len(latest) else 0.0
        if late <= 0:
            return 0
        carried = most_carried(deployment_of(single_route(self._plan), self.setup, of.profile))
        return int(min(late * of.rate + max(of.rate - carried, 0.0) * self._lag, self.settings.max_requests))

    def _begin(self, now: float, trigger: Trigger, best: Proposal, why: str) -> Decision:
        """The first plan, before there is anything to rehearse; another one where that was made for other service times."""
        begins = "it begins anew" if self._first else "it begins"
        self._changed, self._awaited, self._first = now, best.plan.digest, best.plan.digest
        why = f"{begins} with {best.name}: {why}"
        return Decision(now, trigger, (), best.plan, best.name, "", 0.0, 0.0, 0, why, "", 0.0, self._bias, self._way.seconds)

    def _first_for(self, profile: ServiceProfile | None) -> tuple[Proposal, str]:
        """What is begun with, and why."""
        from sluice.optimizer.tuning.candidates import every_load, unbatched

        first = every_load(self.setup, profile, 1.0, self._in_time) if profile is not None and self.setup.servers is None else None
        why = "batches are learned from" if profile is None else "it rests on no fit" if first else "nothing is quicker"
        return first or unbatched(self.setup)[0], why

    def _stays(self, now: float, trigger: Trigger, why: str) -> Decision:
        return Decision(
            now, trigger, (), None, "", "", 0.0, 0.0, 0, f"the plan stays: {why}", "", 0.0, self._bias, self._way.seconds
        )

    def _choose(self, of: Trials, trigger: Trigger, held: _Held | None) -> Decision:
        from sluice.optimizer.tuning.choice import SURE_OF_COST, choose
        from sluice.optimizer.tuning.warmed import kept_warm

        settings, slos, now = self.settings, self.setup.slos, of.now
        serving = None
        if self._plan is not None:
            made = self._proposals.get(self._base.digest)
            serving = of.tried(replace(made, name=f"in force: {made.name}") if made else Proposal("in force", self._base))
        known = {proposal.plan.digest: proposal for proposal in (self._given, *self._proposals.values()) if proposal is not None}
        wanted = [proposal for proposal in known.values() if not self._shuns(proposal.plan, now)]
        tried = [found for proposal in wanted if (found := of.tried(proposal)) is not None]
        if serving is not None:
            tried = [one for one in tried if one.proposal.plan.digest != serving.proposal.plan.digest]
            tried.append(serving)
        if not tried:
            return self._stays(now, trigger, "of no plan it is known what its batches take")
        of.compare(tried, self._plan)
        if kept := kept_warm(of, tried):
            tried += kept
            of.compare(tried, self._plan)
        horizon = min(settings.horizon, max(now - self._began, settings.kept_in))
        choice = choose(tried, serving, of.rate * horizon)
        best, alarm = choice.best, ""
        if not choice.fit and all(run.cannot_keep(slos) for run in best.runs):
            alarm = f"nothing keeps {slos[0].name} within {milliseconds(slos[0].latency)}: {self._reached(of, best)}"
        considered = tuple(sorted((one.considered() for one in tried), key=lambda each: each.usd.value))
        new = round(best.new_environments)
        change = best.usd_of_change
        if serving is None:
            plan: Plan | None = self._prepared(of, best)
            surely = "is the cheapest that surely keeps the promise" if choice.fit else f"has the fewest late; {UNSURE}"
            surely = f"most likely keeps the promise; {_certainty(choice)}" if choice.certainty else surely
            why, saving = f"{best.proposal.name} {surely}", 0.0
            self._changed = now
        else:
            saving_each = best.runs[0].saving(serving.runs[0], SURE_OF_COST)
            saving = saving_each.value * of.rate * 3600
            plan, why = self._change(of, trigger, held, choice, serving, saving_each, change, horizon)
        if plan is not None:
            self._changed, self._awaited = now, plan.digest
        elif serving is not None and (doubted := self._doubt(trigger, held, serving, of.rate * horizon)):
            plan, why = doubted  # which changes little: what comes of it need not wait
            self._awaited = plan.digest
        serves = serving if serving is not None and (plan is None or plan.routes) else best
        unbatched = [one for one in tried if single_route(one.proposal.plan).policy.kind == "no_batching"]
        alone = min(unbatched, key=lambda one: (not one.keeps, one.usd), default=None)
        return Decision(
            now,
            trigger,
            considered,
            plan,
            best.proposal.name,
            "" if serving is None else serving.proposal.name,
            saving,
            change,
            new,
            why,
            alarm,
            of.rate,
            self._bias,
            self._way.seconds,
            of.cost_of(serves),
            serves.considered(),
            "" if self._given is None else self._given.plan.digest,
            "" if alone is None else alone.proposal.plan.digest,
        )

    def _reached(self, of: Trials, best: Tried) -> str:
        """The best percentile that can be reached; of workers alone, for whom too many come, there is none that lasts."""
        from sluice.optimizer.tuning.trials import most_carried

        if best.limited:
            route = single_route(best.proposal.plan)
            carried, n = most_carried(of.deployment(best.proposal.plan)), route.policy.servers or 1
            if carried < of.rate:
                grows = of.rate / carried - 1
                return (
                    f"{of.rate:.4g} requests/s come, and {n} × {without_password(route.function)} answer {carried:.4g}/s at the "
                    f"most, so that it grows by {grows:.2g} s in each second, to {60 * grows:.3g} s in a minute, whatever the "
                    f"plan; {ceil(of.rate / carried * n)} would carry them"
                )
        return f"the best that can be reached is {milliseconds(best.runs[0].percentile.value)}, with {best.proposal.name}"

    @property
    def _base(self) -> Plan:
        """The plan in force, or what it was before another was tried beside it."""
        assert self._plan is not None
        if not self._plan.routes:
            return self._plan
        return plain(self._plan, self._plan.routes[0], self.setup)

    def _change(
        self,
        of: Trials,
        trigger: Trigger,
        held: _Held | None,
        choice: Choice,
        serving: Tried,
        saving: Estimate,
        change: float,
        horizon: float,
    ) -> tuple[Plan | None, str]:
        """The plan to come, if another is to, and why; a ``change`` (USD) is to pay within the ``horizon`` (s)."""
        from sluice.optimizer.tuning.choice import SURE_OF_COST

        assert self._plan is not None
        settings, best, kept = self.settings, choice.best, bool(choice.fit)
        in_trial = bool(self._plan.routes)
        ends = in_trial and (self._canary_told() or (self._tried_from_doubt and trigger.kind == "promise"))
        back = plain(self._plan, self._plan.routes[0], self.setup) if ends else None
        stays = "the plan stays" if back is None else "the plan stays, without what was tried beside it"
        if best is serving:
            likely = f" that most likely keeps the promise; {_certainty(choice)}" if choice.certainty else ""
            return back, "what serves is the best" + (", and what was tried beside it is not" if back else likely)
        broken = serving not in choice.fit
        over_horizon = of.rate * horizon
        surer = serving.price * serving.risk - best.price * best.risk  # USD per request
        if abs(surer) <= settings.premium * serving.price or self.setup.servers is not None:
            surer = 0.0  # a late batch more or less is chance
        saves = (saving.low + surer) * over_horizon > change
        fewer = best.fails_less(serving) or (trigger.kind == "promise" and best.failing.beyond <= 0 < serving.failing.beyond)
        if broken and not kept and trigger.kind != "promise" and serving.failing.beyond <= 0:
            return back, f"{stays}: {UNSURE}, and it has not broken it where it was rehearsed"
        cheaper = saving.value > settings.premium * serving.usd and saving.value * over_horizon > change
        if broken and not kept and not fewer and (not cheaper or serving.fails_less(best)):
            return back, f"{stays}: {UNSURE}, and nothing has fewer late"
        same = self.setup.servers is not None and saving.value == change == 0
        relief = best.runs[0].relief(serving.runs[0], SURE_OF_COST) if same else Estimate(0, 0, 0)
        sturdier = serving.limited and not best.limited  # and dearer by the premium at the most, or it were not the best
        if not broken and not sturdier and not saves and relief.low <= LEAST_RELIEF:
            usd = f"{saving.low * over_horizon:.3g} USD in {horizon:.4g} s" if saving.low > 0 else "nothing"
            return back, f"{stays}: {best.proposal.name} would surely save {usd}, and changing costs {change:.3g} USD"
        by_rate = self._fell and trigger.kind != "way"  # which breaks it, whatever comes
        if not trigger.urgent and (not broken or by_rate) and (early := self._too_early(of.now, trigger, held)):
            return None, f"the plan stays: {early}"
        why = (
            f"{best.proposal.name} most likely keeps the promise; {_certainty(choice)}"
            if broken and choice.certainty
            else f"{best.proposal.name} keeps the promise, which {serving.proposal.name} does not surely"
            if broken
            else f"{best.proposal.name} costs {max(0.0, -100 * saving.value / serving.usd):.2g} % more, and carries whatever comes"
            if sturdier and not saves
            else f"{best.proposal.name} breaks the promise in {_seldom(best.chance_of_breaking)} of windows, and what serves in "
            f"{_seldom(serving.chance_of_breaking)}"
            if surer > 0 and saving.low * over_horizon <= change and relief.low <= 0
            else f"{best.proposal.name} saves {1e6 * saving.value:.3g} USD per million requests"
            if relief.low <= 0
            else f"{best.proposal.name} costs the same and spares {100 * relief.value:.3g} % of the {best.runs[0].burden_of}"
        )
        if broken and not kept:
            failing = "has fewer late" if best.failing.beyond < serving.failing.beyond else "is quicker"
            less = failing if fewer else f"has as few late and saves {1e6 * saving.value:.3g} USD per million requests"
            why = f"{best.proposal.name} {less}; {UNSURE}"
        unmeasured = [name for name in best.functions if name not in serving.functions and self._unmeasured(name)]
        its = set(self._plan.routes[1].functions) if in_trial else set[str]()
        if unmeasured and not broken and set(unmeasured) <= its and back is None:
            return None, f"the plan stays: {unmeasured[0]} is being tried"
        if unmeasured and not broken and not set(unmeasured) <= its:
            return trying(
                self._base, self._prepared(of, best), settings.canary
            ), f"{why}; {unmeasured[0]} is tried with a share first"
        return self._prepared(of, best), why

    def _prepared(self, of: Trials, best: Tried) -> Plan:
        """What is to come, with its environments; it is known by its name when it is in force."""
        from sluice.optimizer.tuning.warmed import prepared

        proposal = prepared(of, best)
        self._keep([proposal])
        return proposal.plan

    def _doubt(self, trigger: Trigger, held: _Held | None, serving: Tried, requests: float) -> tuple[Plan, str] | None:
        """The plan that tries a memory size that was not measured, as the profile is wrong of others, and why; or ``None``."""
        assert self._plan is not None
        setup, now, wrong_by = self.setup, serving.of.now, self.live.wrong_by()
        if wrong_by == 0 or setup.servers is not None or self._plan.routes or trigger.kind in ("promise", "service"):
            return None
        unknown = [
            mb
            for mb in setup.memory_sizes
            if mb in serving.of.profile.memory_sizes
            and self.live.measured(mb) < FEWEST
            and now >= self._doubted.get(mb, -inf) + self.settings.horizon
            and now >= self._shunned.get(setup.function_at(mb), now)
        ]
        if not unknown:
            return None
        from sluice.optimizer.tuning.doubt import doubted

        found = doubted(serving, self._base, wrong_by, unknown, requests)
        if found is None or self._too_early(now, trigger, held):
            return None
        self._doubting, self._doubted[found.memory_mb] = found.plan.digest, now
        wrong = f"what is not measured may be {100 * expm1(wrong_by):.2g} % off what is expected of it"
        may = f"{found.memory_mb} MB then saves {1e6 * found.saving:.3g} USD per million requests"
        return found.plan, f"{serving.proposal.name} serves on; {wrong}, and {may}: it is tried with a share"

    def _too_early(self, now: float, trigger: Trigger, held: _Held | None) -> str:
        """Why a change that only saves waits, or ``""``: it is decided about again when that is over, or after a period at most.

        A rate that was seen for a moment may be a stall's, or that of what comes after it; who keeps the promise at it can wait, so
        can who might break it where fewer come: nobody was surely late yet.
        """
        settings, since = self.settings, now if held is None else held.since
        waits = {
            f"the last change was less than {settings.least_between:g} s ago": self._changed + settings.least_between,
            f"requests have come at this rate for less than {settings.shortest:g} s": now - self._rate.seconds + settings.shortest,
        }
        if self._fell and self._rate.rate * self._rate.seconds < FEWEST_AT_RATE:
            takes = FEWEST_AT_RATE / self._rate.rate if self._rate.rate else inf
            waits[f"fewer than {FEWEST_AT_RATE} requests have come at this rate"] = now + takes
        why, until = max(waits.items(), key=lambda each: each[1])
        until = min(until, since + settings.period)
        if now >= until:
            return ""
        self._held = _Held(since, until, trigger)
        return why

    def _unmeasured(self, name: str) -> bool:
        """Whether the function has a memory size at which fewer batches were measured than a canary has."""
        memory_mb = self.setup.memory_of(name)
        return memory_mb is not None and self._tried.get(name, 0) < min(self.settings.canary_batches, FEWEST)


def _certainty(choice: Choice) -> str:
    """What it would cost to be sure, in words."""
    return f"to keep it surely costs {two_digits(choice.certainty)} % more"


def _other_in_time(now: Sequence[Slo], then: Sequence[Slo]) -> bool:
    """Whether another part of the batches may be late than it was."""
    ratios = (one.error_budget / other.error_budget for one, other in zip(now, then, strict=True))
    return any(not 1 / OTHER_BUDGET < ratio < OTHER_BUDGET for ratio in ratios)


def _seldom(chance: float) -> str:
    """A chance in words, which is no better known than to a thousandth."""
    return f"{two_digits(chance)} %" if chance >= 0.001 else "less than 0.1 %"


def _differ(one: ServiceProfile, other: ServiceProfile) -> bool:
    """Whether the mean times of two profiles are apart anywhere, or one speaks of more."""
    if one is other:
        return False
    if one.memory_sizes != other.memory_sizes or one.max_batch_size != other.max_batch_size:
        return True
    for memory_mb in one.memory_sizes or [1]:
        mine, theirs = (service_times_up_to(profile, memory_mb, LARGEST_BATCH).mean_response for profile in (one, other))
        if len(mine) != len(theirs) or bool((np.abs(mine - theirs) > OTHER_TIMES * theirs).any()):
            return True
    return False
