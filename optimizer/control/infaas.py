"""INFaaS-accuracy: greedy changes of the running placement, one device at a time (Romero et al., INFaaS, USENIX ATC'21).

INFaaS chooses a variant for each application by rules and scales it at once, in the path of the requests; it takes accuracy as a
bound and minimises cost. Proteus's authors turned this round, to the least loss of accuracy on devices that are there anyway, and
so does this. Kept: that only what runs is changed, greedily and family by family, and at once. Left out: sharing a device among
variants, and the costs of its own cluster.

A family that has more than it needs gives up devices, the least accurate first. One that has too little takes, one step after the
other, the most accurate variant that an idle device can host, or else puts on one of its own devices the quicker variant that
loses the least accuracy per request/s gained. Last, what is left over goes to accuracy: a device takes a more accurate variant of
its family as long as the family still serves its demand. No device goes from one family to another but by becoming idle, which is
where this ends in local optima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, capacity_of, solution_of


def infaas_accuracy(problem: FleetProblem) -> FleetSolution:
    """What the greedy rules make of the running placement; of an empty fleet where none runs."""
    counts = np.zeros(problem.throughput.shape, dtype=np.int64) if problem.running is None else problem.running.copy()
    for move in (_release, _relieve, _upgrade):
        for q in range(problem.n_families):
            _repeat(move, problem, counts, q)
    return solution_of(problem, counts)


class _Step(NamedTuple):
    """One device of a type changes its variant; ``None`` is idle."""

    device_type: int
    before: int | None
    after: int | None
    accuracy: float  # percentage points gained
    throughput: float  # requests/s gained

    def take(self, counts: Counts) -> None:
        for variant, change in ((self.before, -1), (self.after, 1)):
            if variant is not None:
                counts[self.device_type, variant] += change


def _repeat(choose: Callable[[FleetProblem, Counts, int], _Step | None], problem: FleetProblem, counts: Counts, q: int) -> None:
    """Take the steps that the rule chooses for the family until it has none."""
    while (step := choose(problem, counts, q)) is not None:
        step.take(counts)


def _surplus(problem: FleetProblem, counts: Counts, q: int) -> float:
    return float(capacity_of(problem, counts)[q] - problem.demand[q])


def _release(problem: FleetProblem, counts: Counts, q: int) -> _Step | None:
    """Of the devices that the family can spare, the least accurate, then the slowest."""
    spare = _surplus(problem, counts, q)
    hosts = [(int(d), int(m)) for d, m in np.argwhere(counts) if problem.family[m] == q and problem.throughput[d, m] <= spare]
    if not hosts:
        return None
    d, m = min(hosts, key=lambda host: (problem.accuracy[host[1]], problem.throughput[host]))
    return _Step(d, m, None, 0.0, -float(problem.throughput[d, m]))


def _relieve(problem: FleetProblem, counts: Counts, q: int) -> _Step | None:
    """While the demand is not served: the most accurate on an idle device, else the gentlest downgrade of an own one."""
    if _surplus(problem, counts, q) >= 0:
        return None
    idle = problem.devices > counts.sum(axis=1)
    able = [(int(d), int(m)) for d, m in np.argwhere(idle[:, None] & (problem.throughput > 0)) if problem.family[m] == q]
    if able:
        d, m = max(able, key=lambda host: (problem.accuracy[host[1]], problem.throughput[host]))
        return _Step(d, None, m, 0.0, float(problem.throughput[d, m]))
    quicker = [step for step in _replacements(problem, counts, q) if step.throughput > 0]
    return max(quicker, key=lambda step: (step.accuracy / step.throughput, step.throughput)) if quicker else None


def _upgrade(problem: FleetProblem, counts: Counts, q: int) -> _Step | None:
    """The replacement that gains the most accuracy while the family still serves its demand."""
    spare = _surplus(problem, counts, q)
    better = [step for step in _replacements(problem, counts, q) if step.accuracy > 0 and spare + step.throughput >= 0]
    return max(better, key=lambda step: (step.accuracy, step.throughput)) if better else None


def _replacements(problem: FleetProblem, counts: Counts, q: int) -> Iterator[_Step]:
    """Every other variant of the family on each device that it has."""
    members = np.flatnonzero(problem.family == q)
    rates: Array = problem.throughput
    for d, m in np.argwhere(counts[:, members]):
        before = int(members[m])
        for after in members[(rates[d, members] > 0) & (members != before)]:
            gained = float(problem.accuracy[after] - problem.accuracy[before])
            yield _Step(int(d), before, int(after), gained, float(rates[d, after] - rates[d, before]))
