"""What one decision tries: proposals, run over the latest arrivals by the simulator, and how they compare (docs/control.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sluice.batching.documents import MAX_STARTED, Plan, Prediction, ServiceProfile, percentile_name
from sluice.batching.environments import PREPARED_WITHIN
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.tuning.beginning import Beginning, begin
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.cost_curve import CostCurve, cost_curve
from sluice.optimizer.tuning.decision import Considered
from sluice.optimizer.tuning.deployments import can_be_started, deployment_of, usd_of_pings, way_to_servers
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.rehearsal import Rehearsed, rehearse
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup

LEAST_QUICKER = 1.1  # ratio of percentiles, for which a plan is changed where nothing keeps the promise
BROKEN = 5.0  # windows: what a window costs in which a promise is broken, beside what its requests do
MOST = 0.5  # of the requests late, from which on plans compare by their time as well


class Trials:
    """One decision's arrivals and service times; what was rehearsed on them."""

    def __init__(
        self,
        setup: TuningSetup,
        settings: TuningSettings,
        profile: ServiceProfile,
        now: float,
        bias: float,
        times: Array,
        to_come: float = 1.0,
        busier: float = 1.0,
    ) -> None:
        """``times`` (s) as they came; ``to_come`` and ``busier`` are other rates over theirs at which plans are to be run as well.

        The first is expected next; the second, of a rate that was seen for a moment, is the most that it may be.
        """
        self.setup, self.settings, self.profile, self.now = setup, settings, profile, now
        self.bias, self.times, self.busier = bias, times, busier
        self.way = way_to_servers(setup, profile)
        self.rate = (len(times) - 1) / float(times[-1] - times[0])
        self.warm: set[str] = set()
        self.kept: dict[str, int] = {}
        self._deployments: dict[tuple[str, int], Deployment] = {}  # by the digest of the plan, and what it has started
        self.hopeless: list[NDArray[np.bool_]] = []
        self.waiting = 0
        self.all_times = [times, times[0] + (times - times[0]) / to_come] if to_come != 1 else [times]

    def begin_with(self, waiting: int) -> None:
        """So many requests wait at the beginning: a plan that carries what comes and no more would be late for long."""
        self.waiting = waiting
        self.all_times = [np.concatenate([np.full(waiting, times[0]), times]) for times in self.all_times]

    def supposing(self, profile: ServiceProfile) -> Trials:
        """The same decision, were these the service times."""
        other = copy(self)
        other.profile, other._deployments = profile, {}
        return other

    def compare(self, tried: Sequence[Tried], serving: Plan | None) -> None:
        """Judge plans by the windows that some of those tried kept, and as the functions that serve have environments."""
        if serving is not None:
            of = single_route(serving)
            self.warm = set(of.functions)
            self.kept = dict.fromkeys(of.functions, of.pinged.pinged) if of.pinged else {}
        self.hopeless = [
            np.logical_and.reduce(runs) for runs in zip(*([run.broken for run in one.runs] for one in tried), strict=False)
        ]

    def deployment(self, plan: Plan) -> Deployment:
        """What a plan runs on; raises ``InvalidInput`` where its batches are larger than any whose time is known."""
        route = single_route(plan)
        key = plan.digest, route.started or 0
        if key not in self._deployments:
            self._deployments[key] = deployment_of(route, self.setup, self.profile)
        return self._deployments[key]

    def init(self, plan: Plan) -> float:
        """Seconds that a cold start takes of its functions, the longest; 0 where none was measured."""
        sides = self.deployment(plan).serving
        return max((side.environments.init_duration for side in sides if side.environments is not None), default=0.0)

    def may_be_started(self, plan: Plan) -> bool:
        """Whether a buffer has all of it there before it comes into force: for as many batches as requests came in their time."""
        if not can_be_started(single_route(plan), self.setup) or self.init(plan) > PREPARED_WITHIN:
            return False
        deployment = self.deployment(plan)
        longest = max(float(side.service.mean_response[: deployment.max_batch_size].max()) for side in deployment.serving)
        first = np.searchsorted(self.times, self.times - longest)
        return bool((np.arange(len(self.times)) - first < MAX_STARTED).all())

    def tried(self, proposal: Proposal) -> Tried | None:
        """What the plan would have done; ``None`` where its batches are larger than any whose time is known."""
        try:
            deployment = self.deployment(proposal.plan)
        except InvalidInput:
            return None
        settings = self.settings
        half_life = settings.half_life * settings.stretched(float(self.times[-1] - self.times[0]))
        runs = [
            rehearse(
                deployment,
                times,
                self.setup.slos,
                settings.kept_in * (len(times) - 1) / float(times[-1] - times[0]),
                window=settings.kept_in,
                confidence=settings.confidence,
                half_life=half_life,
                bias=self.bias + self.way,
            )
            for times in self._times_of(proposal)
        ]
        return Tried(self, proposal, runs)

    def _times_of(self, proposal: Proposal) -> list[Array]:
        """Of servers that only carry so much also those of the rate that it may be, where it was seen for a moment only."""
        times = self.all_times[0]
        if self.busier == 1 or not bounded(proposal.plan):
            return self.all_times
        return [*self.all_times, times[0] + (times - times[0]) / self.busier]

    def cost_of(self, tried: Tried) -> CostCurve:
        """What a request costs under a plan, by rate."""
        return cost_curve(self.deployment(tried.proposal.plan), self.times, self.rate, self.settings.kept_in)


class Failing(NamedTuple):
    """So plans compare that keep no promise.

    Of the promise of whose allowance most is surely used up: what is late ``beyond`` that, over it, and what ``chance`` has in it.
    ``seconds`` is the first percentile, or its promise where that is longer; ``late`` the largest share that is, of any promise.
    """

    beyond: float
    seconds: float
    chance: float
    late: float


@dataclass(frozen=True, eq=False)
class Tried:
    """A proposal and how it went: at the rate of now, and at that to come where it is another."""

    of: Trials
    proposal: Proposal
    runs: list[Rehearsed]

    @property
    def functions(self) -> list[str]:
        return single_route(self.proposal.plan).functions

    @property
    def limited(self) -> bool:
        """Whether workers alone serve, who carry so many requests and no more."""
        return bounded(self.proposal.plan)

    @property
    def usd(self) -> float:
        return self.runs[0].cost_per_request.value

    @property
    def price(self) -> float:
        """USD per request as plans compare, of which those that rest on a fit must be cheaper than others.

        Pings count for what they cost beyond as much: of what no recent burst has asked for nobody knows that none will.
        """
        premium = self.of.settings.premium
        return (self.usd - min(self._usd_of_pings, premium * self.usd)) * (1 + premium * self.proposal.rests_on_fit)

    @property
    def _usd_of_pings(self) -> float:
        """USD per request of the pings that keep environments."""
        return usd_of_pings(single_route(self.proposal.plan), self.of.setup) / self.of.rate

    def expected_usd(self, requests: float = np.inf) -> float:
        """USD per request of so many, with what it costs to change to it, and with promises that it breaks."""
        return (self.price + self.usd_of_change / requests) * (1 + self.risk)

    @property
    def risk(self) -> float:
        """What the windows cost in which it breaks a promise, as part of what all do.

        Each costs ``BROKEN`` windows more; what is left by the confidence with which a plan surely keeps its promises counts for
        nothing.
        """
        return BROKEN * max(0.0, self.chance_of_breaking - (1 - self.of.settings.confidence))

    @property
    def failing(self) -> Failing:
        """How far it is from keeping its promises."""
        each = [(late, slo) for run in self.runs for late, slo in zip(run.late, self.of.setup.slos, strict=True)]
        late, slo = max(each, key=lambda one: one[0].low / one[1].error_budget)
        seconds = max(self.runs[0].percentile.value, self.of.setup.slos[0].latency)
        beyond, chance = (part / slo.error_budget for part in (late.value - slo.error_budget, late.high - late.value))
        return Failing(beyond, seconds, chance, max(late.value for late, _ in each))

    @property
    def most_used(self) -> float:
        """What was late, of what each promise allows."""
        slos = enumerate(self.of.setup.slos)
        return max(run.late[k].value / slo.error_budget for k, slo in slos for run in self.runs)

    @property
    def most_late(self) -> float:
        """What is late in the next window at the most, of what each promise allows."""
        slos = enumerate(self.of.setup.slos)
        return max(run.next_late[k] / slo.error_budget for k, slo in slos for run in self.runs)

    def fails_less(self, other: Tried, part: float = 1.0) -> bool:
        """Whether another plan, which keeps no promise either, is worse by more than chance, or as late and slower where most are.

        With a ``part`` whether no more than that of its lateness, or of its time, is left.
        """
        mine, theirs = self.failing, other.failing
        if abs(mine.beyond - theirs.beyond) > max(mine.chance, theirs.chance):
            return mine.beyond < theirs.beyond and mine.beyond <= part * theirs.beyond
        quicker = mine.seconds < theirs.seconds * min(part, 1 / LEAST_QUICKER)
        return theirs.late > MOST and mine.beyond <= theirs.beyond and quicker

    @property
    def keeps(self) -> bool:
        """Whether it surely keeps every promise, those that are late while environments start included."""
        slos = self.of.setup.slos
        if self.broke > 0 or not all(run.keeps(slos) for run in self.runs):
            return False
        late = self._late_at_start
        return late == 0 or all(run.keeps(slos, late) for run in self.runs)

    @property
    def new_environments(self) -> float:
        """How many start of functions that have none, in the mean."""
        return self._of_new(lambda beginning: beginning.environments)

    @cached_property
    def beginning(self) -> Beginning:
        """What is late and is paid while environments start of functions that have none."""
        of = self.of
        deployment, bias = of.deployment(self.proposal.plan), of.bias + of.way
        return begin(deployment, of.all_times[0], of.setup.slos, of.settings.kept_in, bias=bias)

    @property
    def chance_of_breaking(self) -> float:
        """With which chance the next window breaks a promise."""
        late = self._late_at_start
        return max(self.broke, *(run.chance_of_breaking(self.of.setup.slos, late) for run in self.runs))

    @property
    def broke(self) -> float:
        """The share of the windows that broke a promise, of those that some plan kept."""
        shares = ((run.broken & ~all_broke).mean() for run, all_broke in zip(self.runs, self.of.hopeless, strict=False))
        return float(max(shares, default=0.0))

    def _of_new(self, part: Callable[[Beginning], dict[str, float]]) -> float:
        """That part of the beginning, of functions that have no environments yet."""
        warm = self.of.warm
        return 0.0 if warm.issuperset(self.functions) else sum(n for name, n in part(self.beginning).items() if name not in warm)

    @cached_property
    def _may_be_started(self) -> bool:
        return self.of.may_be_started(self.proposal.plan)

    @property
    def _late_at_start(self) -> float:
        """The share of the next window that is late while environments start of functions that have none.

        Nobody, where the buffer starts them before the plan comes into force (``warmed.prepared``), which waits for so long and
        starts so many.
        """
        if not self.of.warm or self.of.warm.issuperset(self.functions) or self._may_be_started:
            return 0.0
        return self._of_new(lambda beginning: beginning.late)

    @property
    def usd_of_change(self) -> float:
        """USD for environments that start, and workers while they load."""
        setup, warm = self.of.setup, self.of.warm
        usd = max(self._of_new(lambda beginning: beginning.usd), self._usd_of_kept)
        for offer in setup.offers:
            if offer.function in self.functions and offer.function not in warm and setup.servers is None:
                servers = single_route(self.proposal.plan).policy.servers or 0
                usd += servers * offer.price_per_hour / 3600 * setup.worker_start
        return usd

    @property
    def _usd_of_kept(self) -> float:
        """USD for those that its pings start, more than are kept now; or less, as who keeps fewer may have to start them again."""
        of = single_route(self.proposal.plan)
        number = of.pinged.pinged if of.pinged else 0
        others = [abs(number - self.of.kept.get(function, 0)) for function in of.functions]
        return float(Bill.of(self.of.deployment(self.proposal.plan)).cold @ others) if any(others) else 0.0

    def considered(self) -> Considered:
        run, proposal = self.runs[0], self.proposal
        return Considered(
            proposal.name,
            proposal.plan.digest,
            proposal.usd,
            proposal.percentile,
            run.cost_per_request,
            run.percentile,
            run.late[0],
            max(run.next_late[0] for run in self.runs),
            self.keeps,
        )

    def plan(self) -> Plan:
        """The plan with what was rehearsed as its prediction."""
        run, slo = self.runs[0], self.of.setup.slos[0]
        latency = {percentile_name(slo.percentile): run.percentile.value} if isfinite(run.percentile.value) else {}
        prediction = Prediction(latency, run.cost_per_request.value, run.mean_batch_size, run.late[0].value)
        return replace(self.proposal.plan, predicted=prediction)


def most_carried(deployment: Deployment) -> float:
    """Requests/s that its own servers answer at the most."""
    seconds = deployment.service.up_to(deployment.schedule.max_batch_size).mean_response
    return float((deployment.schedule.tables[0].servers or 0) * (np.arange(1, len(seconds) + 1) / seconds).max())


def bounded(plan: Plan) -> bool:
    """Whether so many batches at most are served at once, whatever comes."""
    return all(table.servers is not None for table in single_route(plan).rule().tables)
