"""What a plan costs whose environments are all new: those that start, and who is late until they serve (docs/control.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.batch_means import BLOCKS
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import Deployment, Environments, Serving
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment


@dataclass(frozen=True)
class Beginning:
    """What a window has more that begins without an environment than one that goes on, by function.

    Parameters
    ----------
    late : mapping
        Share of its requests that are late behind these, of the window and the SLO of which it is the most.
    environments, usd : mapping
        How many start more, in the mean, and what their INITs cost.
    """

    late: dict[str, float]
    environments: dict[str, float]
    usd: dict[str, float]


def begin(deployment: Deployment, times: Array, slos: Sequence[Slo], window: float, *, bias: float = 0.0) -> Beginning:
    """Run every window of the arrivals (s) as if the plan came into force before it, and beside it all behind a run of the same.

    All windows are run as one, so far from each other that no environment lasts from one to the next. ``bias`` is that of
    ``rehearse``.
    """
    which = ((times - times[0]) // window).astype(np.int64)
    apart = replace(
        deployment,
        environments=_within(deployment, window),
        beside=[replace(side, environments=_within(side, window)) for side in deployment.beside],
    )
    new = simulate_deployment(apart, times + 2 * window * which, np.random.default_rng(0))
    went_on = simulate_deployment(deployment, _twice(times), np.random.default_rng(0))
    n, cold_usd = np.maximum(np.bincount(which), len(times) * window / (times[-1] - times[0])), Bill.of(deployment).cold
    names = np.array([side.function for side in deployment.serving])
    late, environments, usd = {}, {}, {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        more = [_late(new, mine, which, slo, bias) - _late(went_on, mine, which, slo, bias) for slo in slos]
        late[name] = max(0.0, *(float((each / n).max()) for each in more))
        environments[name] = max(0.0, float((_started(new, mine, which) - _started(went_on, mine, which)).mean()))
        usd[name] = environments[name] * float(cold_usd[mine].max())
    return Beginning(late, environments, usd)


def with_beginning(deployment: Deployment, times: Array) -> tuple[Array, int, int]:
    """The arrivals with those before them in which environments start, how many these are, and the length of a block.

    Of arrivals in a shorter time than environments are kept it is the same arrivals once more, for what one burst has started is
    still there at the next; of others the first of ``BLOCKS`` + 1 equal parts, which counts but for those that wait for that.
    """
    kept = max((side.environments.keep_alive for side in deployment.serving if side.environments is not None), default=0.0)
    n = len(times)
    if times[-1] - times[0] >= kept or n < 2 * (BLOCKS + 1):
        return times, 0, n // (BLOCKS + 1)
    return _twice(times), n, n // BLOCKS


def _twice(times: Array) -> Array:
    """The arrivals behind the same ones."""
    return np.concatenate([times - (times[-1] - times[0]) * len(times) / (len(times) - 1), times])


def _within(side: Serving, window: float) -> Environments | None:
    """Environments that are gone two windows later, and until the end of one are there as long as they would be."""
    kept = side.environments
    if kept is None:
        return None
    return replace(kept, keep_alive=min(kept.keep_alive, window) if np.isinf(kept.pinged_every) else window, pinged_every=inf)


def _late(run: SimulationResult, tables: NDArray[np.bool_], which: Indices, slo: Slo, bias: float) -> Array:
    """Requests by window (windows,) that were late of those in batches that waited for an environment."""
    of_batch, latency = run.batch_of[-len(which) :], run.latency[-len(which) :] + bias
    behind = (of_batch >= 0) & (run.cold & tables[run.tables])[of_batch] & ~(latency <= slo.latency)
    return np.bincount(which, weights=behind, minlength=int(which[-1]) + 1).astype(np.float64)


def _started(run: SimulationResult, tables: NDArray[np.bool_], which: Indices) -> Indices:
    """Environments that started by window (windows,)."""
    first = len(run.arrival_times) - len(which)
    started = run.cold & tables[run.tables] & (run.first_of_batch >= first)
    return np.bincount(which[run.first_of_batch[started] - first], minlength=int(which[-1]) + 1)
