"""What is put in front of an elastic function: nothing, fixed settings, settings recommended once or window by window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fits.windows import WindowFit, fit_windows
from sluice.optimizer.recommend import Answer
from sluice.optimizer.recommend.last_moment import last_moment as last_moment_table
from sluice.optimizer.recommend.question import LONGEST_TIMEOUT, N_TIMEOUTS
from sluice.optimizer.recommend.search import Search
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.trace import MIN_ARRIVALS, Trace

HEADROOMS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)


def no_batching(function: Function) -> Deployment:
    """The function as its platform serves it: every request invokes it alone and at once.

    Vanilla AWS Lambda. Kept: an environment for every request under way, its cold starts and limits where ``environments`` has
    them, and the bill. Left out: the network before the function.
    """
    return function.under(policies.no_batching())


def size_or_timeout(function: Function, batch_size: int, timeout: float) -> Deployment:
    """Batches of ``batch_size`` or after ``timeout`` seconds, settings that nobody chose for this load.

    As TensorFlow Serving (Olston et al., 2017), Triton or TorchServe are set by hand. Kept: the rule. Left out: these hold batches
    in front of a server of their own; here an elastic function takes every batch at once.
    """
    return function.under(policies.size_or_timeout(batch_size, timeout))


def last_moment(function: Function, slos: Sequence[Slo]) -> Deployment:
    """All that wait leave when a batch of one more would just be in time for the oldest.

    The rule of Proteus (``workers.deadline``) in front of an elastic function: nobody is late but for cold starts and random
    service times, whatever the arrivals do, and no fit is needed. Kept: the rule. Left out: workers and their number.
    """
    table = last_moment_table(function.service, slos)
    return function.under(table or policies.no_batching())


def recommended(answer: Answer, function: Function) -> Deployment:
    """What `sluice recommend` answers, once and for all: its setting of the function, or workers where they are cheaper.

    BATCH (Ali et al., SC'20) with the exact latency law, where only size-or-timeout was asked for. Kept: one choice of memory size,
    batch size and timeout, made beforehand from a fitted process. Left out: the new choice when the load changes
    (``reoptimised``). Added: tables that wait to the last moment, and offers of workers, compete where they were asked for.
    """
    return answer.winner.deployment(function)


def past_windows(
    arrival_times: Array, window: float, *, start: float | None = None, step: float | None = None, model: str = "mmpp2"
) -> tuple[WindowFit, ...]:
    """Fits to a window that slides over arrivals, with the times (s, as ``arrival_times`` has them) at which each is known.

    Parameters
    ----------
    arrival_times : array
        s, ascending; those before ``start`` are history.
    window : float
        Seconds that are fitted.
    start : float, optional
        When the run begins, s; by default with the first arrival.
    step : float, optional
        Seconds from one fit to the next, by default half a window.
    model : str
        As ``fit_arrivals`` names it; two phases are what BATCH fits.

    Raises
    ------
    InvalidInput
        A window that is not > 0 or longer than the arrivals, or without the 100 arrivals that a fit needs anywhere.
    """
    times = np.asarray(arrival_times, dtype=float)
    seen = times if start is None else times[times >= start - window]
    require(len(seen) >= MIN_ARRIVALS, "arrival_times", len(seen), f"at least {MIN_ARRIVALS} from a window before start on")
    fits = fit_windows(Trace(np.diff(seen), "the arrivals"), window, model, window / 2 if step is None else step)
    return tuple(WindowFit(seen[0] + fit.start, seen[0] + fit.end, fit.fit) for fit in fits)


def reoptimised(
    function: Function, slos: Sequence[Slo], windows: Sequence[WindowFit], first: Policy | None = None, headroom: float = 0.0
) -> Deployment:
    """BATCH again and again: fitted to a sliding window of the past, its setting in force until the next one.

    After BATCH (Ali et al., SC'20, section IV), which fits a MAP of two phases to a window of the last arrivals and optimises again
    as the load drifts. Kept: that. Left out: a new memory size, which is another function with environments of its own, so that
    it stays that of ``function``; the seconds that fitting and searching take. Other than in BATCH the fit is by likelihood and
    the latency law exact.

    Parameters
    ----------
    windows : sequence of WindowFit
        As ``past_windows`` gives them; a setting comes into force when its window ends.
    first : Policy, optional
        In force until the first window has ended; by default no batching.
    headroom : float
        Part of the SLOs' latencies kept free.
    """
    tables = [first or policies.no_batching()]
    for window in windows:
        found = _Search([function], slos, window.fit.arrivals).cheapest(headroom)
        tables.append(policies.no_batching() if found is None else found.schedule.tables[0])
    ends = np.array([window.end for window in windows])
    return function.under(Schedule(tables, ends, np.arange(1, len(tables))))


def with_headroom(
    function: Function,
    slos: Sequence[Slo],
    arrivals: ArrivalProcess,
    arrival_times: Array,
    memory_sizes: Sequence[int] = (),
    headrooms: Sequence[float] = HEADROOMS,
) -> Deployment:
    """BATCH with the least headroom under which its setting keeps the SLOs on arrivals already seen.

    Not of the literature: a setting is exact for the process, but a process fitted to a trace is not the trace. So each
    headroom's setting is run on ``arrival_times`` (s), the least first; where none keeps the SLOs, no batching is left.
    """
    candidates = [function.at(memory_mb) for memory_mb in memory_sizes] or [function]
    search = _Search(candidates, slos, arrivals)
    past, latencies = TraceArrivals(arrival_times), [slo.latency for slo in slos]
    for headroom in headrooms:
        deployment = search.cheapest(headroom)
        if deployment is None:
            break
        run = simulate_deployments({"": deployment}, past, latencies)[""]
        if run.keeps(slos):
            return deployment
    return no_batching(candidates[-1])


class _Search:
    """The cheapest settings of some functions, as `sluice recommend` finds them (docs/model.md, 3.3), and nothing beside them."""

    def __init__(self, functions: Sequence[Function], slos: Sequence[Slo], arrivals: ArrivalProcess) -> None:
        self._functions, self._slos = functions, slos
        longest = LONGEST_TIMEOUT * max(slo.latency for slo in slos)
        self._grid = np.linspace(0, longest, N_TIMEOUTS + 1)
        largest = max(function.service.max_batch_size for function in functions)
        usd = np.zeros((len(functions), largest))
        for row, function in zip(usd, functions, strict=True):
            row[: function.service.max_batch_size] = function.cost_by_batch
        self._search = Search(arrivals, [f.service for f in functions], usd, np.zeros(len(functions)), longest)

    def cheapest(self, headroom: float = 0.0) -> Deployment | None:
        """With this part of the SLOs' latencies kept free; ``None`` where no setting keeps the SLOs."""
        ranked = self._search.landscape([slo.within(headroom) for slo in self._slos], self._grid)[0].ranked()
        if not ranked:
            return None
        best = ranked[0]
        table = policies.size_or_timeout(best.batch_size, best.timeout) if best.batch_size > 1 else policies.no_batching()
        return self._functions[best.service].under(table)
