"""The table of a queue of a fleet: what a device does with the requests that wait for it (docs/model.md, section 5).

    brief_hold   waits a tenth of the slack for a larger batch that would be more efficient, gives up early (below)
    deadline     Proteus's: waits as long as the batch with one more would be in time for the oldest; gives up who cannot be in time
    published    the same without giving up: who is late is served late, as in Proteus's paper
    greedy       never waits; gives up who cannot be in time
    early_drop   never waits; gives up whom a full batch could not serve in time (Nexus, Shen et al., SOSP'19)
    aimd         never waits nor gives up, under a limit that grows by one after a batch that took at most half the SLO and shrinks
                 by a tenth after a longer one (Clipper, Crankshaw et al., NSDI'17)

``brief_hold`` had the fewest violations, or nearly, of a dozen such tables on single queues, of one device and of four, whose
batches gain much, little or nothing, under Poisson arrivals and under gaps of ten times their variance, at half and at four fifths
of the load. Three things make it up. A batch has the most efficient size that the queue can fill: where two requests take longer
together than one after the other, they leave one after the other. A request that a full batch started now could not serve in time
is dropped: it would take the time of those who can still be. And a device waits briefly, so that of a burst's first requests it
does not take one alone; the whole slack, which ``deadline`` waits, costs more in the queue behind than the fuller batch gains,
unless a batch takes half of the SLO.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from sluice.batching.errors import require
from sluice.batching.policy import INF, Policy, aimd, greedy
from sluice.optimizer.arrays import Array
from sluice.optimizer.fleet.throughput import deadline_table
from sluice.optimizer.simulation.deployment import Adaptation
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables

Batching = Literal["brief_hold", "deadline", "published", "greedy", "early_drop", "aimd"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)

HELD = 0.1  # part of the slack that brief_hold waits
_GAIN = 1.02  # a larger batch is more efficient if it serves that much more a second; less is noise of the profile


def queue_table(batching: Batching, service_times: Array, slo: float, batch_size: int) -> Policy | AdaptiveTables:
    """The table of one device.

    Parameters
    ----------
    batching : str
        One of ``BATCHINGS``.
    service_times : array, shape (at least batch_size,)
        Seconds for a batch of 1, 2, ...; where they fall, the larger batch is given the time of the smaller one.
    slo : float
        Seconds.
    batch_size : int
        The largest batch.

    Raises
    ------
    InvalidInput
        A batching that there is none of; a batch size beyond the service times.
    """
    require(batching in BATCHINGS, "batching", batching, ", ".join(BATCHINGS))
    require(1 <= batch_size <= len(service_times), "batch_size", batch_size, f"1 to {len(service_times)}, as the profile measured")
    seconds = np.maximum.accumulate(np.asarray(service_times, dtype=np.float64)[:batch_size])
    if batching == "brief_hold":
        return brief_hold(slo, seconds)
    if batching == "aimd":
        return aimd_tables(slo / 2, batch_size)
    if batching in ("deadline", "published"):
        return deadline_table(seconds, slo, batch_size, drop=batching == "deadline")
    longest = seconds[0] if batching == "greedy" else seconds[-1]
    return replace(greedy(batch_size), drop_after=max(0.0, slo - float(longest)), kind=batching)


def brief_hold(slo: float, service_times: Array) -> Policy:
    """Efficient batches, a tenth of the slack to fill them, early drop; ``service_times`` of 1, 2, ... requests, ascending, s."""
    largest = len(service_times)
    take = [0]
    for q in range(1, largest + 1):
        grows = q == 1 or q / service_times[q - 1] > _GAIN * take[-1] / service_times[take[-1] - 1]
        take.append(q if grows else take[-1])
    slack = np.maximum(0.0, slo - np.asarray(service_times))
    hold = [INF] + [HELD * float(slack[q]) if take[q] < take[-1] else 0.0 for q in range(1, largest)] + [0.0]
    return Policy(
        hold,
        take,
        1,
        float(slack[-1]),
        kind="brief_hold",
        parameters={"slo": slo, "max_batch_size": largest},
    )


def aimd_tables(longest: float, largest: int) -> AdaptiveTables:
    """Clipper's: a limit from 1 to ``largest`` that grows after a batch of at most ``longest`` seconds, and else shrinks."""
    return AdaptiveTables([aimd(limit) for limit in range(1, largest + 1)], Adaptation.aimd(longest, largest))
