"""What policies are made for: the arrivals as far as they are known, the function, the workers that can be had, the SLOs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sluice.batching.documents import PLACEHOLDER, Slo
from sluice.batching.errors import Infeasible, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.superposition import superposed
from sluice.optimizer.baselines.sizing import MOST_WORKERS, fewest_workers
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.recommend import Answer, Goal, Limits, Question, WorkerOffer, recommend
from sluice.optimizer.recommend.offers import function_as_workers
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.simulation.chunks import Arrivals, MergedArrivals, SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.traces.trace import Trace

N_PAST = 1 << 16  # requests sampled for policies that learn from the past


class Workload(NamedTuple):
    """Arrivals that are planned for, those that were seen before the run (s), and those of the run.

    ``classes`` are the names of those that the requests of the run are of, in their order; empty where they have none. Where the
    arrivals were told ``by_class`` a plan may have no other.
    """

    process: ArrivalProcess
    past: Array
    run: Arrivals
    classes: tuple[str, ...] = ()
    by_class: bool = False

    @classmethod
    def of_trace(cls, trace: Trace, past: float, mix: SizeMix | None = None, seed: int = 0) -> Workload:
        """A trace cut in two: the part ``past`` at its beginning is fitted and seen, the rest is run; ``mix`` as ``of_process``."""
        require(0 < past < 1, "past", past, "a part of the trace, strictly between 0 and 1")
        cut = past * trace.duration
        process = fit_arrivals(trace.between(0, cut)).arrivals
        return cls(process, trace.times[trace.times <= cut], *_recorded(trace, cut, mix, seed))

    @classmethod
    def of_process(cls, process: ArrivalProcess, run: Trace | int, seed: int, mix: SizeMix | None = None) -> Workload:
        """A process that is known, a sample of which was seen; and a trace that is run, or so many more requests of the process.

        The requests that are run have their own sizes where the trace tells them, and else those drawn from the ``mix``.
        """
        seen = np.cumsum(process.sample(N_PAST, np.random.default_rng([seed, 1])))
        if isinstance(run, Trace):
            return cls(process, seen, *_recorded(run, -np.inf, mix, seed))
        return cls(process, seen, SampledArrivals(process, run, seed, mix))

    @classmethod
    def of_classes(cls, processes: Mapping[str, ArrivalProcess], run: TraceArrivals | int, seed: int) -> Workload:
        """Processes that are known, one of each class by its name; and arrivals with their classes that are run, or so many."""
        process = superposed(list(processes.values()))
        seen = np.cumsum(process.sample(N_PAST, np.random.default_rng([seed, 1])))
        arrivals = MergedArrivals(list(processes.values()), run, seed) if isinstance(run, int) else run
        return cls(process, seen, arrivals, tuple(processes), by_class=True)


def _recorded(trace: Trace, after: float, mix: SizeMix | None, seed: int) -> tuple[TraceArrivals, tuple[str, ...]]:
    """The requests of a trace after some time (s), with sizes if there are a mix or their own; and the names of their classes."""
    here = trace.times > after
    sizes, classes = None, None
    names: tuple[str, ...] = ()
    if trace.sizes is not None:
        sizes = trace.sizes[here]
    elif mix is not None:
        sizes = mix.drawn_for(int(here.sum()), seed)
    if trace.classes is not None:
        found, classes = np.unique(trace.classes[here], return_inverse=True)
        names = tuple(map(str, found))
    return TraceArrivals(trace.times[here], sizes, classes), names


@dataclass(frozen=True, eq=False)
class Situation:
    """What policies are made for.

    Parameters
    ----------
    workload : Workload
    any_function : Function
        At whatever memory size.
    slos : tuple of Slo
    memory_mb : int or None
        Of the function; ``None``: what the SLOs make cheapest.
    worker : WorkerOffer or None
        What workers are; ``None``: provisioned concurrency of the function.
    workers : int or None
        How many there are; ``None``: the fewest that keep the SLOs in the past.
    other_functions, other_workers : sequence
        What else the functions of a plan may be.

    Raises
    ------
    InvalidInput
        Also for functions of which two have one name.
    """

    workload: Workload
    any_function: Function
    slos: tuple[Slo, ...] = ()
    memory_mb: int | None = None
    worker: WorkerOffer | None = None
    workers: int | None = None
    other_functions: Sequence[Function] = ()
    other_workers: Sequence[WorkerOffer] = ()
    _answers: dict[tuple[float, str], Answer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        require(self.workers is None or self.workers >= 1, "servers", self.workers, "an integer >= 1")
        for field_name, called in (
            ("profile", [function.profile.function for function in self.functions]),
            ("worker", [offer.function for offer in self.offers]),
        ):
            twice = next((name for name in called if called.count(name) > 1), None)
            require(twice is None, field_name, twice, "each function once")

    @property
    def functions(self) -> list[Function]:
        """All that are given."""
        return [self.any_function, *self.other_functions]

    @property
    def offers(self) -> list[WorkerOffer]:
        """All workers that are given."""
        return [*([] if self.worker is None else [self.worker]), *self.other_workers]

    @property
    def process(self) -> ArrivalProcess:
        """The arrivals that are planned for."""
        return self.workload.process

    @property
    def past(self) -> Array:
        """Arrivals that were seen before the run, s."""
        return self.workload.past

    @property
    def slo(self) -> Slo:
        """The SLO of least latency: what policies go by that know one deadline."""
        return min(self.slos, key=lambda slo: slo.latency)

    @property
    def memory_sizes(self) -> tuple[int, ...]:
        """Memory sizes considered."""
        return (self.memory_mb,) if self.memory_mb else tuple(self.any_function.profile.memory_sizes)

    @cached_property
    def times(self) -> Array:
        """All arrival times of the run, s."""
        return np.concatenate(list(self.workload.run.chunks()))

    def answer(self, headroom: float = 0.0, policies: str = "all") -> Answer:
        """What `sluice recommend` answers, for the function alone where only size-or-timeout is asked for."""
        if (headroom, policies) not in self._answers:
            function = self.any_function
            offers = (self.worker,) if self.worker is not None and policies == "all" else ()
            limits = Limits(self.memory_sizes, function.max_batch_size, policies=policies)
            goal = Goal(headroom=headroom)
            environments = function.environments or Environments()
            of_function = function.profile, self.slos, function.billing
            question = Question(self.process, *of_function, offers, limits, goal, environments, function.mix)
            self._answers[headroom, policies] = recommend(question)
        return self._answers[headroom, policies]

    def function(self, memory_of: Callable[[Answer], int] = lambda answer: answer.best.memory_mb) -> Function:
        """The function at the memory size given, or at one of the recommendation's where none is."""
        sizes = self.memory_sizes
        if len(sizes) == 1:
            return self.any_function.at(sizes[0])
        require(bool(self.slos), "memory", None, "one of the profile's where no SLO chooses it: " + ", ".join(map(str, sizes)))
        try:
            return self.any_function.at(memory_of(self.answer()))
        except Infeasible:
            return self.any_function.at(sizes[-1])

    def function_named(self, name: str, memory_mb: int | None = None) -> Function | None:
        """The one of the functions that a plan calls so, at the memory size that its name tells, else that of the plan.

        ``None`` where none is called so.
        """
        for function in self.functions:
            called = function.called(name)
            if called is not None and PLACEHOLDER not in function.profile.function:
                sizes = function.profile.memory_sizes
                if memory_mb is not None:
                    called = function.at(memory_mb)
                elif function is self.any_function:
                    called = self.function()
                else:
                    require(len(sizes) == 1, f"memory size of {name}", None, "told by the plan, as the profile has none")
            if called is not None:
                return called
        return None

    def offered(self, name: str) -> WorkerOffer | None:
        """Those of the workers given that a plan calls so, by one of their addresses."""
        return next((offer for offer in self.offers if offer.function in (name, *name.split(","))), None)

    def workers_named(self, name: str) -> WorkerOffer | None:
        """The workers that a plan calls so; or so many environments of the function of that name."""
        if (offer := self.offered(name)) is not None:
            return offer
        function = self.function_named(name)
        return None if function is None else function_as_workers(function)

    @cached_property
    def offer(self) -> WorkerOffer:
        """The workers of the policies that need some."""
        if self.worker is not None:
            return self.worker
        return function_as_workers(self.function())

    def with_workers(self, make: Callable[[int], Deployment]) -> Deployment:
        """A policy for workers, with as many as there are or as it needs."""
        if self.workers is not None:
            return make(self.workers)
        require(bool(self.slos), "servers", None, "their number, as no SLO says what is enough")
        least = int(self.process.arrival_rate / float(self.offer.throughput[-1])) + 1
        return make(fewest_workers(make, self.past, self.slos, least=least, most=max(MOST_WORKERS, 2 * least)))
