"""Policies as `sluice simulate --policy` names them: NAME, NAME:NUMBER,..., or a file with a policy, a plan or tables by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from sluice.batching.documents import Plan, Slo, read
from sluice.batching.errors import Infeasible, InvalidInput, require
from sluice.cli.output import read_file
from sluice.cli.worker_offers import provisioned_offers
from sluice.optimizer import baselines
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.baselines import Function, TargetTracking
from sluice.optimizer.baselines.autoscaling import SAFETY
from sluice.optimizer.recommend.answer import Recommendation
from sluice.optimizer.recommend.recommend import recommend
from sluice.optimizer.recommend.workers import WorkerOffer
from sluice.optimizer.simulation.chunks import Arrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.smdp import read_phase_tables

FIXED = (8, 0.05)  # size-or-timeout that nobody chose: batch size, and seconds
STATIC = 8
WINDOWS = 5  # of the arrivals, that reoptimised learns from


@dataclass(frozen=True, eq=False)
class Situation:
    """What policies are made for.

    Parameters
    ----------
    process : ArrivalProcess
        The arrivals that are planned for.
    past : array
        Arrivals that were seen before the run, s.
    arrivals : Arrivals
        Those of the run.
    memory_mb : int or None
        Of the function; ``None``: what the SLOs make cheapest.
    worker : WorkerOffer or None
        What servers are; ``None``: provisioned concurrency of the function.
    workers : int or None
        How many there are; ``None``: the fewest that keep the SLOs in ``past``.
    """

    process: ArrivalProcess
    past: Array
    arrivals: Arrivals
    any_function: Function
    memory_mb: int | None
    worker: WorkerOffer | None
    workers: int | None
    slos: tuple[Slo, ...]
    _answers: dict[tuple[float, str], Recommendation] = field(default_factory=dict)

    @property
    def slo(self) -> Slo:
        """The SLO of least latency: what policies go by that know one deadline."""
        return min(self.slos, key=lambda slo: slo.latency)

    @property
    def memory_sizes(self) -> list[int]:
        """Memory sizes considered."""
        return [self.memory_mb] if self.memory_mb else self.any_function.profile.memory_sizes

    @cached_property
    def times(self) -> Array:
        """All arrival times of the run, s."""
        return np.concatenate(list(self.arrivals.chunks()))

    def answer(self, headroom: float = 0.0, policies: str = "all") -> Recommendation:
        """What `sluice recommend` answers, for the function alone where only size-or-timeout is asked for."""
        if (headroom, policies) not in self._answers:
            function, billing = self.any_function, self.any_function.billing
            self._answers[headroom, policies] = recommend(
                self.process,
                function.profile,
                self.slos,
                memory_sizes=self.memory_sizes,
                max_batch_size=function.max_batch_size,
                headroom=headroom,
                prices=billing.prices,
                architecture=billing.architecture,
                granularity=billing.granularity,
                workers=(self.worker,) if self.worker is not None and policies == "all" else (),
                policies=policies,
            )
        return self._answers[headroom, policies]

    def function(self, memory_of: Callable[[Recommendation], int] = lambda answer: answer.best.memory_mb) -> Function:
        """The function at the memory size given, or at one of the recommendation's where none is."""
        sizes = self.memory_sizes
        if len(sizes) == 1:
            return self.any_function.at(sizes[0])
        require(bool(self.slos), "memory", None, "one of the profile's where no SLO chooses it: " + ", ".join(map(str, sizes)))
        try:
            return self.any_function.at(memory_of(self.answer()))
        except Infeasible:
            return self.any_function.at(sizes[-1])

    @cached_property
    def offer(self) -> WorkerOffer:
        """The workers of the policies that need some."""
        if self.worker is not None:
            return self.worker
        function = self.function()
        return provisioned_offers(function.profile, [function.memory_mb], function.billing, function.max_batch_size)[0]

    def with_workers(self, make: Callable[[int], Deployment]) -> Deployment:
        """A policy for workers, with as many as there are or as it needs."""
        if self.workers is not None:
            return make(self.workers)
        require(bool(self.slos), "servers", None, "their number, as no SLO says what is enough")
        throughput = np.arange(1, self.offer.service.max_batch_size + 1) / self.offer.service.mean_response
        least = int(self.process.arrival_rate / throughput.max()) + 1
        return make(baselines.fewest_workers(make, self.past, self.slos, least=least, most=max(baselines.MOST_WORKERS, 2 * least)))


Make = Callable[..., Deployment]


@dataclass(frozen=True)
class Named:
    """A policy by name: its ``parameters`` in their order, how many of them must be given, whether it goes by an SLO."""

    make: Make
    parameters: tuple[str, ...] = ()
    needed: int = 0
    needs_slo: bool = True
    in_all: tuple[float, ...] = ()  # the numbers it has where all policies are asked for

    def usage(self, name: str) -> str:
        """How it is written."""
        given = ",".join(parameter.upper() for parameter in self.parameters)
        return f"{name}:{given}" if self.needed else f"{name}[:{given}]" if given else name


def _reoptimised(of: Situation, window: float | None = None) -> Deployment:
    times, past = of.times, of.past
    start = float(times[0])
    seconds = float(times[-1] - start) / WINDOWS if window is None else window
    history = np.minimum(past - max(float(past[-1]) - start, 0.0), start)  # what was sampled comes before the run as well
    windows = baselines.past_windows(np.concatenate([history, times]), seconds, start=start)
    answer = of.answer(policies="size-or-timeout")
    return baselines.reoptimised(of.any_function.at(answer.best.memory_mb), of.slos, windows, answer.best.policy())


def _autoscaled(of: Situation, lag: float = 180.0) -> Deployment:
    tracking = TargetTracking(SAFETY * baselines.largest_throughput(of.offer.service, of.slo), lag=lag)
    first = of.workers or tracking.wanted(of.process.arrival_rate)
    return baselines.autoscaled(of.offer, of.slo, of.times, tracking, first)


def _hybrid(of: Situation, lag: float = 180.0) -> Deployment:
    forecasting = baselines.Forecasting(lag=lag)
    return baselines.hybrid(of.offer, of.function(), of.slo, of.times, forecasting, of.process.arrival_rate)


def _whole(name: str, value: float) -> int:
    require(value == int(value), name, value, "an integer >= 1")
    return int(value)


NAMES: dict[str, Named] = {
    "no-batching": Named(
        lambda of: baselines.no_batching(of.function(lambda answer: answer.no_batching.memory_mb)), needs_slo=False
    ),
    "size-or-timeout": Named(
        lambda of, size, timeout: baselines.size_or_timeout(of.function(), _whole("batch_size", size), timeout),
        ("b", "seconds"),
        2,
        False,
        FIXED,
    ),
    "recommended": Named(
        lambda of, headroom=0.0: baselines.recommended(of.answer(headroom), of.any_function, [of.offer]), ("headroom",)
    ),
    "batch": Named(
        lambda of, headroom=0.0: baselines.recommended(of.answer(headroom, "size-or-timeout"), of.any_function), ("headroom",)
    ),
    "headroom": Named(lambda of: baselines.with_headroom(of.any_function, of.slos, of.process, of.past, of.memory_sizes)),
    "reoptimised": Named(_reoptimised, ("window",)),
    "last-moment": Named(lambda of: baselines.last_moment(of.function(), of.slos)),
    "greedy": Named(
        lambda of, size=None: of.with_workers(
            lambda k: baselines.greedy(of.offer, k, of.slo if of.slos else None, None if size is None else _whole("b", size))
        ),
        ("b",),
        needs_slo=False,
    ),
    "static": Named(
        lambda of, size: of.with_workers(lambda k: baselines.static(of.offer, k, _whole("b", size))), ("b",), 1, False, (STATIC,)
    ),
    "smdp": Named(
        lambda of: of.with_workers(lambda k: baselines.smdp(of.offer, k, of.process.arrival_rate, of.slos)),
    ),
    "deadline": Named(lambda of: of.with_workers(lambda k: baselines.deadline(of.offer, k, of.slo))),
    "aimd": Named(lambda of: of.with_workers(lambda k: baselines.aimd(of.offer, k, of.slo))),
    "early-drop": Named(lambda of: of.with_workers(lambda k: baselines.early_drop(of.offer, k, of.slo))),
    "workers": Named(lambda of: baselines.fixed_workers(of.offer, of.process, of.slos)),
    "autoscaling": Named(_autoscaled, ("lag",)),
    "hybrid": Named(_hybrid, ("lag",)),
}
USAGE = ", ".join(named.usage(name) for name, named in NAMES.items())


def is_file(text: str) -> bool:
    """Whether a policy is named by a file."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def named_policy(text: str, of: Situation) -> Deployment:
    """The policy that ``text`` names, for a situation.

    Raises
    ------
    InvalidInput
        No policy of that name; numbers missing, too many or none; an SLO that the policy goes by and that was not given; a file
        that is neither a policy nor a plan nor tables by phase.
    Infeasible
        From a policy that finds nothing.
    """
    if is_file(text):
        return _of_file(text, of)
    name, _, rest = text.partition(":")
    require(name in NAMES, "policy", text, f"all, a file, or one of {USAGE}")
    named = NAMES[name]
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        raise InvalidInput("policy", text, named.usage(name)) from None
    require(named.needed <= len(numbers) <= len(named.parameters), "policy", text, named.usage(name))
    require(all(np.isfinite(numbers)), "policy", text, f"{named.usage(name)} with finite numbers")
    require(bool(of.slos) or not named.needs_slo, "slo", None, f"an SLO, by which policy {name} goes")
    return named.make(of, *numbers)


def all_policies() -> list[str]:
    """Every policy by name, those that need numbers with the usual ones."""
    given = {name: ",".join(f"{number:g}" for number in named.in_all) for name, named in NAMES.items()}
    return [f"{name}:{numbers}" if numbers else name for name, numbers in given.items()]


def _of_file(path: str, of: Situation) -> Deployment:
    data = read_file(path)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("policy", path, f"a JSON document, policy or plan ({error})") from None
    if isinstance(content, dict) and "tables" in content:  # a table for each phase of the arrivals
        return baselines.on_workers(of.offer, read_phase_tables(data, path).schedule(of.times))
    if isinstance(content, dict) and "hold" in content:  # a policy alone
        data = msgspec.json.encode({"model": "policy", "function": "policy", "policy": content})
    plan = read(Plan, data, path)
    if plan.policy is None:
        raise InvalidInput(f"{path}: routes", len(plan.routes), "none: a plan of one queue; fleets are `sluice fleet`'s")
    policy = plan.policy.policy()
    if policy.servers is not None:
        return baselines.on_workers(of.offer, policy)
    function = of.function() if plan.memory_mb is None else of.any_function.at(plan.memory_mb)
    return function.under(policy)
