"""A simulator of classes in one queue: request by request, by the rule of docs/classes.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled

from .class_settings import ClassSetting
from .simulator import WARM_UP, next_arrival


class Requests(NamedTuple):
    """Latency (s), class and batch size of each, in the order of the batches: (n_requests,)."""

    latency: Array
    of: Indices
    size: Indices


def simulate_classes(setting: ClassSetting, n_requests: int, rng: np.random.Generator) -> Requests:
    """So many requests after a warm-up."""
    most = max(arrivals.n_phases for arrivals in setting.classes)
    n_phases = np.array([arrivals.n_phases for arrivals in setting.classes])
    jumps, rates = np.ones((len(n_phases), most, 2 * most)), np.ones((len(n_phases), most))
    for c, arrivals in enumerate(setting.classes):
        n = arrivals.n_phases
        rates[c, :n] = -arrivals.D0.diagonal()
        cumulated = np.cumsum(np.hstack([arrivals.D0 + np.diag(rates[c, :n]), arrivals.D1]) / rates[c, :n, None], axis=1)
        cumulated[cumulated >= cumulated[:, -1:]] = 1.0  # whatever the rounding, some jump is drawn
        jumps[c, :n, : 2 * n] = cumulated
    phases = np.array([int(rng.choice(arrivals.n_phases, p=arrivals.stationary)) for arrivals in setting.classes])
    latency, of, size = _batched(
        jumps,
        rates,
        n_phases,
        phases,
        setting.slacks,
        np.append(setting.holds, 0.0),
        np.ascontiguousarray(setting.service.response),
        np.ascontiguousarray(setting.service.quantile_levels),
        WARM_UP + n_requests,
        rng,
    )
    return Requests(latency[WARM_UP:], of[WARM_UP:], size[WARM_UP:])


@compiled
def _batched(
    jumps: Array,
    rates: Array,
    n_phases: Indices,
    phases: Indices,
    slacks: Array,
    holds: Array,
    response: Array,
    levels: Array,
    n_requests: int,
    rng: np.random.Generator,
) -> tuple[Array, Indices, Indices]:
    """The columns of ``Requests``; ``jumps`` and ``rates`` are those of ``simulated_latencies`` for each class, side by side."""
    latency, of, sizes = np.empty(n_requests), np.empty(n_requests, dtype=np.int64), np.empty(n_requests, dtype=np.int64)
    came, whose = np.empty(len(holds)), np.empty(len(holds), dtype=np.int64)
    comes = np.empty(len(slacks))  # s, the next of each class
    for c in range(len(slacks)):
        n = n_phases[c]
        comes[c], phases[c] = next_arrival(jumps[c, :n, : 2 * n], rates[c, :n], phases[c], rng)
    done = 0
    while True:
        size, due, leaves = 0, np.inf, np.inf
        while True:
            c = int(np.argmin(comes))
            if size == len(holds) or comes[c] > leaves:
                break
            came[size], whose[size] = comes[c], c
            due = min(due, comes[c] + slacks[c])
            leaves = max(comes[c], due + holds[size]) if holds[size] > 0 else comes[c]
            n = n_phases[c]
            gap, phases[c] = next_arrival(jumps[c, :n, : 2 * n], rates[c, :n], phases[c], rng)
            comes[c] += gap
            size += 1
        draw = rng.random()
        piece = max(0, min(int(np.searchsorted(levels, draw)), len(levels) - 1) - 1)
        part = (draw - levels[piece]) / (levels[piece + 1] - levels[piece])
        service = response[size - 1, piece] + part * (response[size - 1, piece + 1] - response[size - 1, piece])
        for i in range(size):
            latency[done], of[done], sizes[done] = leaves - came[i] + service, whose[i], size
            done += 1
            if done == n_requests:
                return latency, of, sizes
