"""Value and policy iteration on a state space that grows as they go: what the papers compare their scheme with.

AVI, Scheme I of Thomas and Stengos: value iteration of the discrete-time problem without an end, (23) and (29) of the journal
version. The values of the states 0 ... n are computed in an iteration, those of the states beyond are still 0, and n grows by one
per iteration. API, their Scheme IV: policy iteration whose i-th evaluation is 20 i such iterations under the table as it is, which
waits in every state not seen before; then every state seen takes its best action. Values are relative to that of state 0 and
carried over from one evaluation to the next.

What the papers leave open is chosen so: both start from the states up to the largest batch, grow by one, and give the state 0 the
relative value 0, like the states not reached yet.
Reference: Thomas, Stengos, Finite state approximation algorithms for average cost denumerable state Markov decision processes, OR
Spektrum 7 (1985); Xu, Zhou, Niu, journal version, appendix F.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled
from sluice.optimizer.smdp import SmdpProblem
from sluice.optimizer.smdp.value_iteration import largest_eta

Actions = NDArray[np.int64]

INNER = 20  # iterations of the first policy evaluation; the i-th has i times as many
_ETA = 0.99  # of its bound
_NEGLIGIBLE = 1e-18


class GrowingQueue:
    """The discrete-time problem on the states 0 ... ``n``, and the table and values found so far."""

    def __init__(self, problem: SmdpProblem, most_states: int) -> None:
        rate, law = problem.arrival_rate, problem.service
        probabilities = law.counts(rate, 2 * most_states)
        self.reach = 2 * most_states - (probabilities[:, ::-1] >= _NEGLIGIBLE).argmax(axis=1)
        self.counts = np.ascontiguousarray(probabilities[:, : self.reach.max()])
        self.speed = _ETA * largest_eta(problem) / np.append(1 / rate, law.mean)
        service = problem.power_weight * problem.energy + problem.latency_weight * law.second_moment / 2
        self.fixed = np.append(0.0, service / law.mean)
        self.holding = problem.latency_weight / rate
        self.smallest = problem.min_batch_size
        self.last = problem.max_batch_size
        self.values = np.zeros(most_states + 1)
        self.actions = np.zeros(most_states + 1, dtype=np.int64)

    @property
    def table(self) -> Actions:
        """The action in each state so far."""
        return self.actions[: self.last + 1].copy()

    def iterate(self, iterations: int, improve: bool) -> None:
        """So many iterations, one state more in each, with the best action in each state or with the table's."""
        _iterate(
            self.counts, self.reach, self.speed, self.fixed, self.holding, self.smallest, improve,
            self.last, iterations, self.values, self.actions,
        )  # fmt: skip
        self.last += iterations

    def improve(self) -> None:
        """The best action in each state so far, by the values as they are; no state more."""
        _iterate(
            self.counts, self.reach, self.speed, self.fixed, self.holding, self.smallest, True,
            self.last - 1, 1, self.values.copy(), self.actions,
        )  # fmt: skip


def approximate_value_iteration(problem: SmdpProblem, every: int, most: int) -> Iterator[tuple[int, GrowingQueue]]:
    """AVI: the iterations done and the queue, after each ``every`` of at most ``most``."""
    queue = GrowingQueue(problem, problem.max_batch_size + most)
    for done in range(every, most + 1, every):
        queue.iterate(every, improve=True)
        yield done, queue


def approximate_policy_iteration(problem: SmdpProblem, most: int) -> Iterator[tuple[int, GrowingQueue]]:
    """API: the evaluations done and the queue, after each of at most ``most`` improvements."""
    queue = GrowingQueue(problem, problem.max_batch_size + INNER * most * (most + 1) // 2)
    for outer in range(1, most + 1):
        queue.iterate(INNER * outer, improve=False)
        queue.improve()
        yield outer, queue


@compiled
def _iterate(
    counts: Array, reach: Actions, speed: Array, fixed: Array, holding: float, smallest: int, improve: bool,
    last: int, iterations: int, values: Array, actions: Actions,
) -> None:  # fmt: skip
    """Iterations in place, the first on the states 0 ... ``last`` + 1, of which the values up to ``last`` are known."""
    most = last + iterations
    expected = np.empty(most + 1)
    best = np.empty(most + 1)
    for _ in range(iterations):
        last += 1
        for s in range(last + 1):
            ahead = values[s + 1] if s < last else 0.0
            wait = speed[0] * (ahead - values[s])
            best[s] = wait if improve or actions[s] == 0 else np.inf
            if improve:
                actions[s] = 0
        for a in range(smallest, len(counts) + 1):
            if improve:
                for x in range(last - a + 1):
                    expected[x] = 0.0
                for k in range(min(reach[a - 1], last + 1)):
                    p = counts[a - 1, k]
                    for x in range(min(last - a, last - k) + 1):
                        expected[x] += p * values[x + k]
                for s in range(a, last + 1):
                    value = fixed[a] + speed[a] * (expected[s - a] - values[s])
                    if value < best[s]:
                        best[s] = value
                        actions[s] = a
            else:
                for s in range(a, last + 1):
                    if actions[s] == a:
                        mean = 0.0
                        for k in range(min(reach[a - 1], last - s + a + 1)):
                            mean += counts[a - 1, k] * values[s - a + k]
                        best[s] = fixed[a] + speed[a] * (mean - values[s])
        at_zero = best[0]
        for s in range(last + 1):
            values[s] += best[s] + holding * s - at_zero
