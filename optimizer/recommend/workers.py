"""The fewest workers paid by the hour that keep the SLOs (docs/model.md, section 7).

A pool of ``k`` identical workers serves one queue: a policy table with ``servers = k``. What such a table does is found by
simulation. The candidates are greedy tables, for several largest batches, and tables that hold a free worker back until a batch is
full or a timeout is over. Those can do with fewer workers, as a greedy pool bunches: the worker that ends first takes all that came
meanwhile, so the others start almost empty and end almost together.

A table keeps an SLO when the upper end of the confidence interval of the share of requests beyond it is at most what the percentile
leaves. A run in which this is open either way is repeated with more requests; what stays open counts as not kept. The search
goes up in doubling steps until some candidate keeps the SLOs, then halves the gap. What is reported comes from a run of its
own that the search did not see, and must keep the SLOs there as well. A pool so close to saturation that no run of
``MOST_REQUESTS`` would show its equilibrium is not trusted and keeps nothing.

The pool is all there is: where it is provisioned concurrency, nothing spills over to environments on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2, sqrt

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import Infeasible, InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS, Estimate
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate

STAGES = (1 << 16, 1 << 18, 1 << 20)  # requests simulated, until the answer is clear
MOST_REQUESTS = 1 << 21
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
HOLDS = 9  # timeouts tried
RELAXATIONS = 5  # that a block of the batch means must hold
FEWEST_BLOCKS = 4


@dataclass(frozen=True, eq=False)
class WorkerOffer:
    """Identical workers that can be had, and their price.

    Parameters
    ----------
    name : str
        A machine type, or what provisions the concurrency.
    service : ServiceTimes
        Of one worker; its ``max_batch_size`` bounds the batches.
    price_per_hour : float
        USD per hour of one worker, used or not.
    max_workers : int
        How many can be had.
    price_per_second : float
        USD per second that a worker runs, as provisioned concurrency costs beside its hourly price; on the mean billed duration.
    price_per_request : float
        USD per request to a worker, that is per batch.
    granularity : float
        Seconds that a billed duration is rounded up to.
    function : str
        Where the workers are reached: a function or an ``http://`` address, as a plan names it.
    provisioned : bool
        Whether they are the provisioned environments of a function and not machines.
    """

    name: str
    service: ServiceTimes
    price_per_hour: float
    max_workers: int = 1000
    price_per_second: float = 0.0
    price_per_request: float = 0.0
    granularity: float = 0.001
    function: str = ""
    provisioned: bool = False

    def __post_init__(self) -> None:
        require(bool(self.name), "name", self.name, "the name of a machine or a provisioned function")
        for name in ("price_per_hour", "price_per_second", "price_per_request"):
            price = getattr(self, name)
            require(0 <= price < np.inf, name, price, "USD >= 0")
        require(self.max_workers >= 1, "max_workers", self.max_workers, "an integer >= 1")
        require(0 < self.granularity < np.inf, "granularity", self.granularity, "a number of seconds > 0")

    @property
    def billed_duration(self) -> Array:
        """Mean billed seconds by batch size, (max_batch_size,)."""
        return self.service.mean_billed(self.granularity)


@dataclass(frozen=True, eq=False)
class WorkerSetting:
    """A pool of workers under a policy, as simulated.

    Parameters
    ----------
    policy : Policy
        Its ``servers`` are the workers.
    slos : tuple of Slo
    latency : mapping of str to Estimate
        Percentiles by name (``"p95"``), s: those of the SLOs and 50, 90, 95, 99.
    violations : tuple of Estimate
        Share of the requests beyond each SLO.
    utilisation : float
        Share of the workers that are busy in the mean; near 1 for a greedy pool whatever it could still take.
    load : float
        The arrival rate over what the workers serve at most, with batches of the best size; from 1 on the queue grows.
    arrival_rate : float
        Requests per second.
    settled : bool
        Whether the run was long enough to show the equilibrium; not so where the load is 1 or all but 1.
    n_requests, confidence, seed
        What the estimates rest on: requests simulated; confidence of the two-sided intervals.
    function : str
        Where the workers are reached.
    """

    name: str
    policy: Policy
    slos: tuple[Slo, ...]
    latency: Mapping[str, Estimate]
    violations: tuple[Estimate, ...]
    utilisation: float
    load: float
    settled: bool
    mean_batch_size: float
    cost: BatchCost
    arrival_rate: float
    n_requests: int
    confidence: float
    seed: int
    function: str = ""

    @property
    def workers(self) -> int:
        """How many."""
        return self.policy.servers or 0

    @property
    def max_batch_size(self) -> int:
        """The largest batch the policy releases."""
        return self.policy.max_batch_size

    @property
    def keeps_slos(self) -> bool:
        """Whether the run was long enough and the upper end of every share of violations is at most what its percentile leaves."""
        return self.settled and all(_verdict(v, slo) is True for v, slo in zip(self.violations, self.slos, strict=True))

    @property
    def cost_per_request(self) -> float:
        """USD: the workers' hours, and usage where it is paid."""
        return self.cost.per_request

    @property
    def usd_per_month(self) -> float:
        """USD per month of the workers and their usage."""
        return self.cost_per_request * self.arrival_rate * SECONDS_PER_MONTH


def simulate_workers(
    arrivals: ArrivalProcess,
    offer: WorkerOffer,
    policy: Policy,
    slos: Slo | Sequence[Slo],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    fixed_terms: Mapping[str, float] | None = None,
) -> WorkerSetting:
    """Latency and cost of the workers that ``policy`` names as its servers.

    A pool that cannot keep up is simulated too: its queue grows for as long as the run lasts.

    Parameters
    ----------
    fixed_terms : mapping of str to float, optional
        USD per month that what stands before the workers costs, by part; enters ``cost`` alone.

    Raises
    ------
    InvalidInput
        No SLO; a policy without servers or with larger batches than the worker takes.
    """
    kept = _checked(slos)
    if policy.servers is None:
        raise InvalidInput("policy.servers", None, "the number of workers")
    horizon = _Horizon.of(arrivals, offer.service, policy)
    n = horizon.stages[-1]
    rng = np.random.default_rng(seed)
    run = simulate(policy, np.cumsum(arrivals.sample(n, rng)), offer.service, rng)
    blocks = horizon.blocks(n)
    names = sorted({*PERCENTILES, *(slo.percentile for slo in kept)})
    return WorkerSetting(
        name=offer.name,
        policy=policy,
        slos=kept,
        latency={percentile_name(p): run.percentile(p, confidence, blocks) for p in names},
        violations=tuple(run.estimate_violations(slo.latency, confidence, blocks) for slo in kept),
        utilisation=run.utilisation or 0.0,
        load=_load(arrivals, offer.service, policy),
        settled=n >= horizon.settled,
        mean_batch_size=run.mean_batch_size,
        cost=_cost(offer, policy.servers, arrivals.arrival_rate, run, fixed_terms or {}),
        arrival_rate=arrivals.arrival_rate,
        n_requests=n,
        confidence=confidence,
        seed=seed,
        function=offer.function,
    )


def choose_workers(
    arrivals: ArrivalProcess,
    offer: WorkerOffer,
    slos: Slo | Sequence[Slo],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    fixed_terms: Mapping[str, float] | None = None,
) -> WorkerSetting:
    """The cheapest pool that keeps every SLO: the fewest workers, unless usage is paid as well and more workers use less.

    Of the candidates that keep the SLOs it is the cheapest, and of equals the one of least latency at the first SLO's percentile.

    Parameters
    ----------
    confidence : float
        Of the two-sided intervals; the SLOs must hold at the upper end.
    seed : int
        The same seed gives the same answer.
    fixed_terms : mapping of str to float, optional
        As in ``simulate_workers``.

    Raises
    ------
    Infeasible
        When a single request takes too long by itself, or the workers that can be had are too few; carries the best.
    InvalidInput
        No SLO; a confidence that is none.
    """
    pool = _Pool(arrivals, offer, _checked(slos), confidence, seed)
    workers = pool.fewest_workers()
    best: WorkerSetting | None = None
    while workers <= offer.max_workers and (best is None or pool.least_cost(workers) < best.cost_per_request):
        setting = None
        for policy in pool.ranked(workers):
            setting = simulate_workers(
                arrivals, offer, policy, pool.slos, confidence=confidence, seed=seed, fixed_terms=fixed_terms
            )
            if setting.keeps_slos:
                break
            setting = None
        if best is not None and (setting is None or setting.cost_per_request >= best.cost_per_request):
            break
        best = setting
        workers += 1
    if best is None:
        raise pool.infeasible()
    return best


@dataclass(frozen=True)
class _Horizon:
    """How long a run must be to speak of equilibrium, in requests (docs/model.md, section 7)."""

    phases: float  # that arrive in the longest relaxation time of the arrivals' phases
    queue: float  # that arrive in the relaxation time of the queue; inf where it grows for ever

    @classmethod
    def of(cls, arrivals: ArrivalProcess, service: ServiceTimes, policy: Policy) -> _Horizon:
        phases, dispersion = _phases(arrivals)
        load, size = _load(arrivals, service, policy), policy.max_batch_size
        peak = load * float(arrivals.D1.sum(axis=1).max()) / arrivals.arrival_rate  # the load of the busiest phase
        variance = size * _squared_variation(service, size)
        # A queue that can keep up in every phase forgets before the phase changes, however much the phases vary.
        return cls(phases, min(_relaxation(load, dispersion + variance), _relaxation(peak, 1 + variance)))

    @property
    def shortest(self) -> int:
        """The shortest run that sees the phases often enough, or ``MOST_REQUESTS``."""
        return int(min(_power_of_two(max(STAGES[0], (BLOCKS + 1) * RELAXATIONS * self.phases)), MOST_REQUESTS))

    @property
    def settled(self) -> float:
        """The shortest run from which on what is seen of the queue is its equilibrium."""
        return max(self.shortest, _power_of_two((FEWEST_BLOCKS + 1) * RELAXATIONS * self.queue))

    @property
    def stages(self) -> list[int]:
        """Runs to try in turn."""
        later = [n for n in STAGES if n >= 2 * self.shortest]
        return sorted({self.shortest, *later, int(min(self.settled, MOST_REQUESTS))})

    def blocks(self, n: int) -> int:
        """Blocks that ``n`` requests are good for."""
        longest = RELAXATIONS * max(self.phases, self.queue, 1.0)
        return max(FEWEST_BLOCKS, min(BLOCKS, int(n / longest) - 1))


@dataclass(frozen=True)
class _Trial:
    """What a candidate came to in the search."""

    policy: Policy
    keeps_slos: bool
    excess: float  # share of violations over what is allowed, of the SLO where it is largest
    latency: float  # s, at the first SLO's percentile; inf where the SLOs are not kept
    cost_per_request: float


class _Pool:
    """The question, and what has been simulated for it."""

    def __init__(self, arrivals: ArrivalProcess, offer: WorkerOffer, slos: tuple[Slo, ...], confidence: float, seed: int) -> None:
        self.arrivals, self.offer, self.slos, self.confidence, self.seed = arrivals, offer, slos, confidence, seed
        self._times: dict[int, Array] = {}
        self._tables: dict[int, list[Policy]] = {}
        self._trials: dict[int, list[_Trial]] = {}
        service = offer.service
        for slo in slos:
            alone = float(service.quantile(slo.quantile)[0])
            if alone > slo.latency:
                raise Infeasible(
                    f"no number of workers ({offer.name}) keeps {slo.name} within {slo.latency:g} s: "
                    f"a request alone takes {alone:.4g} s",
                    {"name": offer.name, "latency": alone, "max_batch_size": 1},
                )
        # Seconds of each SLO that are left when a batch of each size takes what it does at the SLO's own percentile.
        slack = np.min([slo.latency - service.quantile(slo.quantile) for slo in slos], axis=0)
        self._largest = int(np.flatnonzero(slack >= 0)[-1]) + 1
        self._slack = slack[: self._largest]
        self._throughput = _throughput(service)[: self._largest]
        sizes = np.arange(1, self._largest + 1)
        usage = offer.price_per_second * offer.billed_duration[: self._largest] + offer.price_per_request
        self._usage = float((usage / sizes).min())

    def fewest_workers(self) -> int:
        """The fewest under which some candidate keeps the SLOs."""
        limit = self.offer.max_workers
        low = floor(self.arrivals.arrival_rate / float(self._throughput[-1]))  # so few cannot keep up
        if low >= limit:
            raise self.infeasible()
        high, step = low + 1, 1
        while not self._some_candidate_keeps(high):
            if high == limit:
                raise self.infeasible()
            low, high, step = high, min(high + step, limit), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            if self._some_candidate_keeps(middle):
                high = middle
            else:
                low = middle
        return high

    def ranked(self, workers: int) -> list[Policy]:
        """The candidates that keep the SLOs, the cheapest first."""
        kept = [trial for trial in self._tried(workers, len(self._candidates(workers))) if trial.keeps_slos]
        return [trial.policy for trial in sorted(kept, key=lambda trial: (trial.cost_per_request, trial.latency))]

    def least_cost(self, workers: int) -> float:
        """USD per request that this many workers cost at least, whatever the batches."""
        return _hourly(self.offer, workers, self.arrivals.arrival_rate) + self._usage

    def infeasible(self) -> Infeasible:
        """Why all the workers that can be had do not do, with the best they reach."""
        limit = self.offer.max_workers
        trials = self._tried(limit, len(self._candidates(limit)))
        if not trials:
            return Infeasible(
                f"{limit} workers ({self.offer.name}) cannot keep up with {self.arrivals.arrival_rate:g} requests/s: "
                f"{limit * float(self._throughput[-1]):.4g} is the most that they serve, with nothing left for chance",
                {"name": self.offer.name, "workers": limit, "max_batch_size": self._largest},
            )
        policy = min(trials, key=lambda trial: trial.excess).policy
        best = simulate_workers(self.arrivals, self.offer, policy, self.slos, confidence=self.confidence, seed=self.seed)
        reached = " and ".join(f"{slo.name} {best.latency[slo.name].value:.4g} s" for slo in self.slos)
        return Infeasible(
            f"{limit} workers ({self.offer.name}) do not keep the SLOs: the best reached is {reached}",
            {
                "name": self.offer.name,
                "workers": limit,
                "max_batch_size": best.max_batch_size,
                "latency": best.latency[f"p{self.slos[0].percentile:g}"].value,
                "cost_per_request": best.cost_per_request,
            },
        )

    def _candidates(self, workers: int) -> list[Policy]:
        """Tables that keep up with room enough to be simulated, the likeliest to keep the SLOs first.

        A batch so large that its service alone would break an SLO is never taken. A timeout goes with the largest batch that can
        still be served in time after it.
        """
        if workers not in self._tables:
            self._tables[workers] = [t for t in self._all_tables(workers) if self._horizon(t).settled <= MOST_REQUESTS]
        return self._tables[workers]

    def _all_tables(self, workers: int) -> list[Policy]:
        caps = {min(1 << power, self._largest) for power in range(self._largest.bit_length() + 1)}
        tables = [policies.greedy(cap, workers) for cap in sorted(caps, reverse=True)]
        if self._largest > 1:
            for timeout in self._slack[1] * np.arange(1, HOLDS + 1) / (HOLDS + 1):
                cap = int(np.flatnonzero(self._slack >= timeout)[-1]) + 1
                tables.append(replace(policies.size_or_timeout(cap, float(timeout)), servers=workers))
        return tables

    def _horizon(self, policy: Policy) -> _Horizon:
        return _Horizon.of(self.arrivals, self.offer.service, policy)

    def _some_candidate_keeps(self, workers: int) -> bool:
        return any(self._tried(workers, i + 1)[-1].keeps_slos for i in range(len(self._candidates(workers))))

    def _tried(self, workers: int, count: int) -> list[_Trial]:
        """The first ``count`` candidates, each tried once."""
        trials = self._trials.setdefault(workers, [])
        for policy in self._candidates(workers)[len(trials) : count]:
            trials.append(self._try(policy, workers))
        return trials[:count]

    def _try(self, policy: Policy, workers: int) -> _Trial:
        horizon = self._horizon(policy)
        for n in horizon.stages:
            if n not in self._times:
                self._times[n] = np.cumsum(self.arrivals.sample(n, np.random.default_rng([self.seed, n])))
            run = simulate(policy, self._times[n], self.offer.service, np.random.default_rng([self.seed, n, 1]))
            violations = [run.estimate_violations(slo.latency, self.confidence, horizon.blocks(n)) for slo in self.slos]
            verdicts = [_verdict(*judged) for judged in zip(violations, self.slos, strict=True)]
            # a queue that starts empty may prove too long before it has settled, but not short enough
            if False in verdicts or (None not in verdicts and n >= horizon.settled):
                break
        kept = all(verdict is True for verdict in verdicts)
        excess = max(v.value / (slo.error_budget) for v, slo in zip(violations, self.slos, strict=True))
        latency = run.percentile_of_answered(self.slos[0].percentile) if kept else np.inf
        cost = _cost(self.offer, workers, self.arrivals.arrival_rate, run, {}).per_request
        return _Trial(policy, kept, excess, latency, cost)


def _verdict(violations: Estimate, slo: Slo) -> bool | None:
    """Whether the share of violations is surely within what the percentile leaves, surely beyond (``False``), or neither."""
    left = slo.error_budget
    if violations.high <= left:
        return True
    return False if violations.low > left else None


def _checked(slos: Slo | Sequence[Slo]) -> tuple[Slo, ...]:
    kept = (slos,) if isinstance(slos, Slo) else tuple(slos)
    require(bool(kept), "slos", slos, "at least one SLO")
    return kept


def _phases(arrivals: ArrivalProcess) -> tuple[float, float]:
    """Requests in the longest relaxation time of the phases, and the index of dispersion for counts in the long run."""
    if arrivals.n_phases == 1:
        return 0.0, 1.0
    decay = float(np.sort(-np.linalg.eigvals(arrivals.D0 + arrivals.D1).real)[1])
    # A chain that all but falls apart has a decay of rounding errors; it is beyond MOST_REQUESTS in any case.
    relaxation = 1 / max(decay, 1e-9 * arrivals.arrival_rate)
    return relaxation * arrivals.arrival_rate, float(dispersion_of_counts(arrivals, [100 * relaxation])[0])


def _relaxation(load: float, variance: float) -> float:
    """Requests that arrive in the relaxation time of a queue: exact for M/M/1 (``variance`` 2), else by its diffusion."""
    return load * variance / (2 * (1 - sqrt(load)) ** 2) if load < 1 else np.inf


def _load(arrivals: ArrivalProcess, service: ServiceTimes, policy: Policy) -> float:
    """The arrival rate over what the workers serve at most."""
    return arrivals.arrival_rate / ((policy.servers or 1) * float(_throughput(service)[policy.max_batch_size - 1]))


def _squared_variation(service: ServiceTimes, batch_size: int) -> float:
    """Squared coefficient of variation of the time that a batch takes."""
    if service.deterministic:
        return 0.0
    low, high = service.response[batch_size - 1, :-1], service.response[batch_size - 1, 1:]
    second = float((low * low + low * high + high * high) @ np.diff(service.quantile_levels)) / 3
    return second / float(service.mean_response[batch_size - 1]) ** 2 - 1


def _power_of_two(n: float) -> float:
    """The next one."""
    return float(2 ** ceil(log2(n))) if n < np.inf else np.inf


def _throughput(service: ServiceTimes) -> Array:
    """Requests/s that one worker serves at most, with batches up to each size, (max_batch_size,)."""
    return np.asarray(np.maximum.accumulate(np.arange(1, service.max_batch_size + 1) / service.mean_response))


def _hourly(offer: WorkerOffer, workers: int, arrival_rate: float) -> float:
    """USD per request of the workers' hours."""
    return workers * offer.price_per_hour / 3600 / arrival_rate


def _cost(
    offer: WorkerOffer, workers: int, arrival_rate: float, run: SimulationResult, fixed_terms: Mapping[str, float]
) -> BatchCost:
    n_answered = int(run.batch_sizes.sum())
    billed = offer.billed_duration[run.batch_sizes - 1].sum()
    return BatchCost(
        machines=_hourly(offer, workers, arrival_rate),
        compute=float(offer.price_per_second * billed / n_answered),
        requests=offer.price_per_request * run.n_batches / n_answered,
        fixed_terms=dict(fixed_terms),
    )
