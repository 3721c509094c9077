"""What a recommendation says: the best setting of a function, the best workers, and what they are to be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from msgspec import UNSET, structs

from sluice.batching.documents import ArrivalDocument, Plan, Slo
from sluice.optimizer.recommend.beforehand import environments_at_once
from sluice.optimizer.recommend.candidate import Candidate, plan_of
from sluice.optimizer.recommend.comparisons import FrontierPoint, Sensitivity, frontier
from sluice.optimizer.recommend.every_load import EveryLoad
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.kept_warm import HARM, KeptWarm
from sluice.optimizer.recommend.overflow_setting import OverflowSetting
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.recorded import SeenOnFit, SeenOnRecord, function_of, seen_on_fit, seen_on_record
from sluice.optimizer.recommend.worker_setting import WorkerSetting
from sluice.optimizer.simulation.batch_means import Estimate


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a question, beside what it is to be compared with.

    Parameters
    ----------
    settings : FunctionSettings
        Of the question.
    best : FunctionSetting
        The best setting of the function; where none keeps SLOs and budget ``feasible`` is false and it is the quickest.
    no_batching : FunctionSetting
        At its own cheapest memory size that keeps the SLOs; or the quickest one where none does, then ``no_batching_keeps_slo`` is
        false.
    runners_up : tuple of FunctionSetting
        The best of other kinds, memory sizes and batch sizes.
    break_even_arrival_rate : float or None
        Requests/s, where the buffer's fixed cost is earned; ``None`` where it never is.
    gap : float or None
        The part of the cost by which a timeout between those visited might be cheaper; ``None`` where timeouts were given.
    at_longest_timeout : bool
        Whether the bound on the timeout binds.
    n_settings : int
        How many were compared.
    in_doubt : tuple of float
        Probability that ``best`` keeps free of each SLO's percentile for what the fit may be wrong by (``confidence``).
    cold_in_doubt : tuple of float
        What of these any setting keeps free, for how many start cold.
    workers : tuple of WorkerSetting
        Those that keep SLOs and budget, one for each offer, cheapest first; ``refused_workers`` says why others do not.
    overflow : OverflowSetting or None
        The cheapest workers with the function beside them, where these cost less than either alone, or no more than the premium;
        ``refused_overflow`` says why there are none.
    kept_warm : KeptWarm or None
        The function with environments that are kept warm, the cheapest number that keeps SLOs and budget; it competes where
        ``warm_competes``.
    every_load : EveryLoad or None
        The function's plan for every load, where one was asked for; ``by_function`` says whether it is taken.
    """

    settings: FunctionSettings
    best: FunctionSetting
    no_batching: FunctionSetting
    no_batching_keeps_slo: bool
    runners_up: tuple[FunctionSetting, ...]
    sensitivity: tuple[Sensitivity, ...]
    break_even_arrival_rate: float | None
    gap: float | None
    at_longest_timeout: bool
    n_settings: int
    feasible: bool = True
    workers: tuple[WorkerSetting, ...] = ()
    refused_workers: Mapping[str, str] = field(default_factory=dict)
    in_doubt: tuple[float, ...] = ()
    cold_in_doubt: tuple[float, ...] = ()
    overflow: OverflowSetting | None = None
    refused_overflow: str = ""
    every_load: EveryLoad | None = None
    kept_warm: KeptWarm | None = None

    @property
    def question(self) -> Question:
        return self.settings.question

    @cached_property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """The least cost by latency; a search of its own, made when it is asked for."""
        return frontier(self.settings, self.best, self.no_batching) if self.feasible else ()

    @cached_property
    def on_record(self) -> SeenOnRecord | None:
        """What the winner does on the arrivals recorded, where they are known."""
        return seen_on_record(self.question, self.winner)

    @property
    def cost_again(self) -> Estimate | None:
        """USD per request of the winner on the arrivals recorded, and between which ends on as many that come next."""
        return None if self.on_record is None else self.on_record.cost

    @cached_property
    def on_fit(self) -> SeenOnFit | None:
        """What the winner does on arrivals drawn from the fit, where none are recorded and some start cold."""
        return seen_on_fit(self.question, self.winner)

    @property
    def seen(self) -> SeenOnRecord | SeenOnFit | None:
        """What the winner does in the one run or the other."""
        return self.on_record or self.on_fit

    @property
    def broken(self) -> tuple[tuple[Slo, Estimate], ...]:
        """The promises that the winner surely breaks on the arrivals recorded or drawn, each with the share that is late there."""
        late = () if self.seen is None else zip(self.slos, self.seen.late, strict=True)
        return tuple((slo, share) for slo, share in late if share.low > slo.error_budget)

    @cached_property
    def started(self) -> int:
        """How many environments the plan has the buffer start, where one function serves alone and none of it are kept warm."""
        return environments_at_once(self.question, self.winner, function_of(self.question))

    @property
    def cold_understated(self) -> float:
        """By how much more requests start cold in that run than is estimated, where it breaks a promise; else 1.

        1 as well where others are late, too, and of what is called for each request by itself, as there the estimate is near.
        """
        winner = self.winner
        if self.seen is None or not self.broken or not isinstance(winner, FunctionSetting | KeptWarm | EveryLoad):
            return 1.0
        enough = all(share.value - self.seen.cold <= slo.error_budget for slo, share in self.broken)
        if winner.policy.max_batch_size == 1 or not enough:
            return 1.0
        return max(1.0, self.seen.cold / max(winner.cold.requests, 1e-9))

    @property
    def slos(self) -> tuple[Slo, ...]:
        """Those asked for."""
        return self.question.slos

    @property
    def slo(self) -> Slo:
        """The first SLO asked for."""
        return self.slos[0]

    @property
    def arrival_rate(self) -> float:
        """Requests/s, of those recorded where there are any."""
        return self.question.arrival_rate

    @property
    def by_function(self) -> FunctionSetting | EveryLoad:
        """What the function alone would do: its best setting, or the plan for every load.

        The plan is taken where it keeps the SLOs with its cold starts, is within the budget, costs no more than the premium beyond
        the cheapest setting, and batching saves anything at all.
        """
        plan, goal = self.every_load, self.question.goal
        if plan is None or self.best.batch_size == 1 or plan.cost.per_request > goal.budget:
            return self.best
        if self.beyond_cheapest(plan) > self.question.premium or not plan.keeps(self.question.promised, self.cold_in_doubt):
            return self.best
        return plan

    def beyond_cheapest(self, plan: EveryLoad) -> float:
        """The part by which it costs more than the cheapest setting."""
        return plan.cost.per_request / min(setting.cost.per_request for setting in (self.best, *self.runners_up)) - 1

    @property
    def cold_starts_harm(self) -> bool:
        """Whether so many batches of the best setting start cold that what is kept warm competes, or no setting keeps the SLOs."""
        return not self.feasible or self.best.cold_starts >= HARM

    @property
    def warm_competes(self) -> bool:
        """Whether cold starts harm, or what is kept warm saves more than the premium: at work, what is provisioned costs less."""
        if self.kept_warm is None or self.cold_starts_harm:
            return self.kept_warm is not None
        warm, alone = (candidate.cost.in_all(self.arrival_rate) for candidate in (self.kept_warm, self.by_function))
        return warm * (1 + self.question.premium) < alone

    @property
    def kinds(self) -> dict[str, Candidate]:
        """The best that keeps SLOs and budget of the function alone, kept warm, workers alone, and both; the preferred first."""
        found: dict[str, Candidate] = {"the function alone": self.by_function} if self.feasible else {}
        if self.kept_warm is not None and self.warm_competes:
            found["the function kept warm"] = self.kept_warm
        if self.workers:
            found["workers alone"] = min(self.workers, key=self._goal)
        if self.overflow is not None:
            found["workers and function"] = self.overflow
        return dict(sorted(found.items(), key=lambda kind: self._goal(kind[1])))

    @property
    def winner(self) -> Candidate:
        """What costs least with all that is beside it, or what is quickest; the function's quickest setting where nothing keeps."""
        return next(iter(self.kinds.values()), self.best)

    @property
    def simulated(self) -> WorkerSetting | OverflowSetting | None:
        """Both where they are recommended, else the cheapest workers, if any."""
        return self.overflow if self.winner is self.overflow else next(iter(self.workers), None)

    def plan(self, model: str, arrivals: ArrivalDocument | None = None, made_at: datetime | None = None) -> Plan:
        """The plan for the buffer: what ``winner`` says; ``{memory_mb}`` in the profile's function name is filled in."""
        warm = UNSET if self.kept_warm is None or self.winner is not self.kept_warm else self.kept_warm.warm
        plan = plan_of(self.winner, self.slos, model, arrivals, made_at, warm, self.started)
        assert plan.predicted is not None
        predicted = structs.replace(plan.predicted, cost_without_batching=self.no_batching.cost.per_request)
        return structs.replace(plan, predicted=predicted)

    def _goal(self, candidate: Candidate) -> float:
        """What the goal minimises: USD per request in all, or the first SLO's percentile (s), surely.

        What rests on no fit may cost a premium more.
        """
        if self.question.goal.objective == "cost":
            premium = 0.0 if candidate.rests_on_fit else self.question.premium
            return candidate.cost.in_all(self.arrival_rate) / (1 + premium)
        return candidate.percentile(self.slo.percentile).high
