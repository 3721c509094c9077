"""HarmonyBatch: groups of applications by two stages of merging, and the function of each (Chen et al., IWQoS 2024).

A group has one buffer; it is sent with ``batch_size`` requests, or when the timeout of one of them is over: each application's own,
what its promise leaves beside the longest time of a full batch. Timeouts T1 <= T2 at rates r1, r2 fold into one (eq. 5),

    T = T1 + r2 / (r1 + r2) (1 - exp(-r1 (T2 - T1))) / r1,

and so on with the next; batches are taken for full where ``floor(R T) + 1 >= batch_size`` (eq. 9) at the rate R of all. The first
stage merges neighbours by promise on CPU functions as soon as their rates together pass that at which a GPU function is cheaper,
the second merges GPU functions with their neighbours (Algorithm 1).

The published code differs from the paper, and both can be had. It weighs a merged group by its share of the requests and one more,
so that hardly a merge of the second stage seems to pay; it does not ask in the first stage whether a merge pays; it goes through
the second stage twice, first for neighbours with similar knees alone; and it bounds the longest time by the longest promise of a
group, not by the shortest.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.batching.errors import require

from .functions import STEP, WHOLE, Function, cpu_function, gpu_function, memory_needed, model

KNEE_RATES = 0.01, 40.0  # requests/s between which the knee is sought, to the first of them
NEAR_END = 0.04, 0.05  # requests/s: knees so near an end count as of the same kind
TIMEOUT_ERROR = 1e-3  # s


class Application(NamedTuple):
    """Seconds within which all of its requests are to be answered, and requests/s."""

    slo: float
    rate: float


@dataclass(frozen=True, eq=False)
class Group:
    """Applications by promise with one buffer and one function.

    ``cost`` is CNY per request as HarmonyBatch predicts it; ``vcpu`` is none of a GPU function. ``share`` of all requests is what
    it weighs the group by.
    """

    applications: tuple[Application, ...]
    function: Function
    vcpu: float | None
    batch_size: int
    timeouts: tuple[float, ...]
    cost: float
    share: float = 0.0


def folded(timeouts: Sequence[float], rates: Sequence[float]) -> float:
    """The one timeout that those of several applications, the shortest first, come to."""
    together, rate = timeouts[0], rates[0]
    for timeout, of_next in zip(timeouts[1:], rates[1:], strict=True):
        together += of_next / (rate + of_next) * (1 - math.exp(-rate * (timeout - together))) / rate
        rate += of_next
    return together


class HarmonyBatch:
    """The planner, of the paper or as published, for GPU seconds that are billed whole or exactly."""

    def __init__(self, bill: str = WHOLE, published: bool = False) -> None:
        self.bill, self.published = bill, published
        first, last = max(model().gpu.memory_gb[0], model().gpu.smallest_gb), model().gpu.memory_gb[1]
        gpus = [gpu_function(memory_gb, bill) for memory_gb in range(first, last + 1)]
        self._gpus: list[tuple[Function, list[float]]] = [(gpu, gpu.service.seconds[:, 0].tolist()) for gpu in gpus]
        self._knees: dict[float, float] = {}

    def plan(self, applications: Sequence[Application]) -> list[Group]:
        """The groups, by promise."""
        total = sum(of.rate for of in applications)
        ordered = sorted(applications)
        groups = [self._grouped([of], of.rate / total) for of in ordered]
        groups = self._by_rates(groups, self._knee(ordered[0].slo))
        if self.published:
            groups = self._neighbours(groups, alike=True)
        return self._neighbours(groups, alike=False)

    def _by_rates(self, groups: list[Group], knee: float) -> list[Group]:
        """The first stage: CPU functions side by side whose rates together pass the knee."""
        i = first = 0
        rate = 0.0
        while i < len(groups):
            if groups[i].function.gpu:
                first, rate = i + 1, 0.0
            else:
                rate += sum(of.rate for of in groups[i].applications)
                if rate > knee:
                    groups = self._merged(groups, first, i + 1, asked=not self.published)
                    i, first, rate = first, first + 1, 0.0
            i += 1
        return groups

    def _neighbours(self, groups: list[Group], alike: bool) -> list[Group]:
        """The second stage: neighbours of which one is a GPU function at least."""
        i = 0
        while i < len(groups) - 1:
            here, there = groups[i], groups[i + 1]
            kinds = [self._kind(of.slo) for of in (here.applications[-1], there.applications[0])]
            if (here.function.gpu or there.function.gpu) and (not alike or kinds[0] == kinds[1]):
                before, groups = len(groups), self._merged(groups, i, i + 2, asked=True)
                if len(groups) < before:
                    continue
            i += 1
        return groups

    def _merged(self, groups: list[Group], low: int, high: int, asked: bool) -> list[Group]:
        """Those from ``low`` to before ``high`` as one; where it is ``asked``, only if that seems to pay."""
        parts = groups[low:high]
        share = sum(of.share for of in parts) + (1.0 if self.published else 0.0)
        merged = self._grouped([application for of in parts for application in of.applications], share)
        if asked and merged.cost * share > sum(of.cost * of.share for of in parts):
            return groups
        return [*groups[:low], merged, *groups[high:]]

    def _grouped(self, applications: Sequence[Application], share: float) -> Group:
        """One group, with the cheaper of a CPU and a GPU function."""
        found = self.provision(tuple(sorted(applications)))
        return Group(found.applications, found.function, found.vcpu, found.batch_size, found.timeouts, found.cost, share)

    def provision(self, applications: tuple[Application, ...]) -> Group:
        """The cheapest function of a group by promise; the CPU function of equal ones.

        Raises
        ------
        InvalidInput
            No function is quick enough.
        """
        options = [*self._on_cpu(applications), *self._on_gpu(applications)]
        require(bool(options), "slo", applications[0].slo, "seconds that some function takes at most")
        return min(options, key=lambda of: of.cost)

    def _on_cpu(self, applications: tuple[Application, ...]) -> list[Group]:
        cpu, found = model().cpu, []
        rates, tightest = [of.rate for of in applications], applications[0].slo
        for b in range(cpu.batch_size[0], cpu.batch_size[1] + 1):
            timeouts = _needed_timeouts((b - 1) / sum(rates), applications, rates)
            alpha, beta, gamma = cpu.longest[b - 1]
            if tightest - timeouts[0] <= gamma:
                continue
            least = -beta * math.log((tightest - timeouts[0] - gamma) / alpha)
            least = max(least, cpu.vcpu[0], memory_needed(b) / 4 / 1024)
            for vcpu in (least, _cheapest_vcpu(b, least), cpu.vcpu[1]):
                function = cpu_function(vcpu, b)
                found.append(Group(applications, function, vcpu, b, timeouts, float(function.invocation[b - 1]) / b))
        return found

    def _on_gpu(self, applications: tuple[Application, ...]) -> list[Group]:
        found, bound = [], applications[-1 if self.published else 0].slo
        for function, seconds in self._gpus:
            if b := _largest_filled(applications, seconds, bound):
                timeouts = tuple(of.slo - seconds[b - 1] for of in applications)
                found.append(Group(applications, function, None, b, timeouts, float(function.invocation[b - 1]) / b))
        return found

    def _knee(self, slo: float) -> float:
        """The rate (requests/s) from which on a GPU function is cheaper for one application."""
        if slo not in self._knees:
            self._knees[slo] = self._sought_knee(slo)
        return self._knees[slo]

    def _sought_knee(self, slo: float) -> float:
        low, high = KNEE_RATES
        while high - low > KNEE_RATES[0]:
            rate = (low + high) / 2
            found = self.provision((Application(slo, rate),))
            low, high = (low, rate) if found.function.gpu else (rate, high)
        return high

    def _kind(self, slo: float) -> int:
        """Whether a GPU function is cheaper at all rates, at high ones, or at none."""
        low, high = KNEE_RATES
        knee = self._knee(slo)
        return 1 if knee < low + NEAR_END[0] else 3 if knee > high - NEAR_END[1] else 2


def _needed_timeouts(wanted: float, applications: Sequence[Application], rates: Sequence[float]) -> tuple[float, ...]:
    """The shortest timeouts, as far apart as the promises, that fold into the wanted one."""
    if wanted == 0:
        return (0.0,) * len(applications)
    low, high = 0.0, wanted
    while True:
        first = (low + high) / 2
        timeouts = tuple(first + of.slo - applications[0].slo for of in applications)
        low, high = (low, first) if folded(timeouts, rates) > wanted else (first, high)
        if high - low < TIMEOUT_ERROR:
            return timeouts


def _largest_filled(applications: Sequence[Application], seconds: Sequence[float], bound: float) -> int:
    """The largest batch within ``bound`` (s) that the timeouts it leaves let fill; 0 where none is."""
    rates = [of.rate for of in applications]

    def falls_short(b: int) -> bool:
        timeouts = [of.slo - seconds[b - 1] for of in applications]
        return b > 1 and math.floor(sum(rates) * folded(timeouts, rates) + 1) < b

    return bisect_left(range(1, bisect(seconds, bound) + 1), True, key=falls_short)


def _cheapest_vcpu(batch_size: int, least: float) -> float:
    """Where vCPU-seconds of a batch are fewest, in steps from there on where they cross a minimum; ``least`` where they do not."""
    alpha, beta, gamma = model().cpu.mean[batch_size - 1]
    first = max(2 * beta, least)

    def slope(vcpu: float) -> float:
        return alpha * (1 - vcpu / beta) * math.exp(-vcpu / beta) + gamma

    if slope(first) > 0:
        return least
    vcpu = STEP * math.ceil(first / STEP)
    while slope(vcpu) < 0:
        vcpu += STEP
    return vcpu
