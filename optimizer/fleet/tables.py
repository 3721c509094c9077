"""The table of a queue of a fleet: what a group of devices does with the requests that wait for it (docs/model.md, section 5).

    brief_hold   waits a tenth of the slack for a larger batch that would be more efficient, gives up early (below)
    deadline     Proteus's: waits as long as the batch with one more would be in time for the oldest; gives up who cannot be in time
    published    the same without giving up: who is late is served late, as in Proteus's paper
    greedy       never waits; gives up who cannot be in time
    early_drop   never waits; gives up whom a full batch could not serve in time (Nexus, Shen et al., SOSP'19)
    aimd         never waits nor gives up, under a limit that grows by one after a batch that took at most half the SLO and shrinks
                 by a tenth after a longer one (Clipper, Crankshaw et al., NSDI'17)

The plan of a fleet, its control loop and the study of Proteus all take their tables from here, so that what is simulated is what is
deployed. ``aimd`` follows the batches as they complete; a plan cannot say that, so it is simulated only.

``brief_hold`` had the fewest violations, or nearly, of a dozen such tables on single queues, of one device and of several, whose
batches gain much, little or nothing, under Poisson arrivals and under gaps of ten times their variance, from half the load to all
of it; docs/fleet.md counts them on whole fleets. Three things make it up. A batch has the most efficient size that the queue can
fill: where two requests take longer together than one after the other, they leave one after the other. A request that a full
batch started now could not serve in time is dropped: it would take the time of those who can still be. And a device waits briefly,
so that of a burst's first requests it does not take one alone; the whole slack, which ``deadline`` waits, costs more in the queue
behind than the fuller batch gains, unless a batch takes half of the SLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args, overload

import numpy as np

from sluice.batching.errors import require
from sluice.batching.policy import INF, Policy, aimd, deadline, greedy
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.deployment import Adaptation
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables

Deployable = Literal["brief_hold", "deadline", "published", "greedy", "early_drop"]
Batching = Literal[Deployable, "aimd"]
DEPLOYABLE: tuple[Deployable, ...] = get_args(Deployable)
BATCHINGS: tuple[Batching, ...] = get_args(Batching)

HELD = 0.1  # part of the slack that brief_hold waits
_GAIN = 1.02  # a larger batch is more efficient if it serves that much more a second; less is noise of the profile


@overload
def queue_table(batching: Deployable, service_times: Array, slo: float, batch_size: int, servers: int = 1) -> Policy: ...


@overload
def queue_table(
    batching: Batching, service_times: Array, slo: float, batch_size: int, servers: int = 1
) -> Policy | AdaptiveTables: ...


def queue_table(batching: Batching, service_times: Array, slo: float, batch_size: int, servers: int = 1) -> Policy | AdaptiveTables:
    """The table of a queue.

    Parameters
    ----------
    batching : str
        One of ``BATCHINGS``; of ``DEPLOYABLE``, the table is one policy.
    service_times : array, shape (at least batch_size,)
        Seconds for a batch of 1, 2, ...; where they fall, the larger batch is given the time of the smaller one, since it is the
        smaller one that is served when nobody else comes.
    slo : float
        Seconds.
    batch_size : int
        The largest batch.
    servers : int
        Devices of the group that serves the queue.

    Raises
    ------
    InvalidInput
        A batching that there is none of; a batch size beyond the service times.
    """
    require(batching in BATCHINGS, "batching", batching, ", ".join(BATCHINGS))
    require(1 <= batch_size <= len(service_times), "batch_size", batch_size, f"1 to {len(service_times)}, as the profile measured")
    seconds = np.maximum.accumulate(np.asarray(service_times, dtype=np.float64)[:batch_size])
    if batching == "brief_hold":
        return brief_hold(slo, seconds, servers)
    if batching == "aimd":
        return aimd_tables(slo / 2, batch_size, servers)
    table = deadline(slo, seconds.tolist(), servers) if batching in ("deadline", "published") else greedy(batch_size, servers)
    if batching == "published":
        return table
    longest = seconds[-1] if batching == "early_drop" else seconds[0]
    return replace(table, drop_after=max(0.0, slo - float(longest)), kind=batching)


def brief_hold(slo: float, service_times: Array, servers: int = 1) -> Policy:
    """Efficient batches, a tenth of the slack to fill them, early drop; ``service_times`` of 1, 2, ... requests, ascending, s."""
    largest = len(service_times)
    take = [0]
    for q in range(1, largest + 1):
        grows = q == 1 or q / service_times[q - 1] > _GAIN * take[-1] / service_times[take[-1] - 1]
        take.append(q if grows else take[-1])
    slack = np.maximum(0.0, slo - np.asarray(service_times))
    held = np.minimum(HELD * slack, slack[-1])  # nobody waits for a batch until he is given up
    hold = [INF] + [float(held[q]) if take[q] < take[-1] else 0.0 for q in range(1, largest)] + [0.0]
    return Policy(
        hold,
        take,
        servers,
        float(slack[-1]),
        kind="brief_hold",
        parameters={"slo": slo, "max_batch_size": largest},
    )


def deadline_in_sizes(slo: float, service_times: Array, batch_size: int, sizes: Sequence[int]) -> Policy:
    """Proteus's published rule, whose batches have some ``sizes`` alone, 1 among them; ``service_times`` as they were measured.

    Waits as long as the next larger batch would be in time for the oldest, then takes the largest size that is there. Whoever
    could not be in time alone and at once is given up.
    """
    allowed = [size for size in sizes if size <= batch_size]
    hold, take = [INF], [0]
    for q in range(1, batch_size + 1):
        larger = next((size for size in allowed if size > q), None)
        hold.append(0.0 if larger is None else max(0.0, slo - float(service_times[larger - 1])))
        take.append(max(size for size in allowed if size <= q))
    return Policy(hold, take, 1, max(0.0, slo - float(service_times[0])), "deadline")


def aimd_tables(longest: float, largest: int, servers: int = 1) -> AdaptiveTables:
    """Clipper's: a limit from 1 to ``largest`` that grows after a batch of at most ``longest`` seconds, and else shrinks."""
    return AdaptiveTables([aimd(limit, servers) for limit in range(1, largest + 1)], Adaptation.aimd(longest, largest))
