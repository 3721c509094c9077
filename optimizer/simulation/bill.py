"""What each batch of a run is billed, where that is asked of single batches and not of a run as a whole (``statistics``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import invocation_costs, predict_cost
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult


@dataclass(frozen=True, eq=False)
class Bill:
    """What the batches of a deployment cost, by table.

    Parameters
    ----------
    by_size : array, shape (n_tables, max_batch_size)
        USD of a warm batch of 1, 2, ...
    cold : array, shape (n_tables,)
        USD more where the environment had to start.
    per_second, pings_per_second : float
        USD for the workers that are there, whether or not they serve, and for the pings that keep environments.
    """

    by_size: Array
    cold: Array
    per_second: float
    pings_per_second: float

    @classmethod
    def of(cls, deployment: Deployment) -> Bill:
        """Of the function's GB-seconds and fees, or of workers."""
        by_size = np.zeros((deployment.n_tables, deployment.max_batch_size))
        cold, per_second, pings_per_second = np.zeros(deployment.n_tables), 0.0, 0.0
        for place, side in enumerate(deployment.serving):
            if side.elastic:
                init = 0.0 if side.environments is None else side.environments.init_duration
                compute, fee = invocation_costs(side.service.up_to(side.schedule.max_batch_size), deployment.billing)
                by_size[place, : len(compute)] = compute + fee
                shares = (replace(deployment.billing, cold_start_probability=share) for share in (0.0, 1.0))
                warm, new = (predict_cost(np.ones(1), side.service, billing, init_duration=init) for billing in shares)
                cold[place] = new.per_request - warm.per_request
                if side.environments is not None and np.isfinite(side.environments.pinged_every):
                    at, of = side.service.memory_mb, deployment.billing
                    pings = of.prices.pings(side.environments.pinged, at, of.architecture)
                    pings_per_second += pings / side.environments.pinged_every
            else:
                paid = side.service.up_to(side.schedule.max_batch_size).mean_billed(deployment.billing.step)
                by_size[place, : len(paid)] = side.price_per_worker_second * paid + side.price_per_batch
                per_second += side.price_per_worker_hour / 3600 * float(side.schedule.tables[0].servers or 0)
        return cls(by_size, cold, per_second, pings_per_second)

    def usd(self, sizes: Indices, tables: Indices, cold: Indices) -> Array:
        """Of batches, (n_batches,)."""
        return np.asarray(self.by_size[tables, sizes - 1] + cold * self.cold[tables])

    def by_block(self, run: SimulationResult, first: int, length: int) -> Array:
        """USD of successive blocks of ``length`` arrivals, from the ``first`` of a run on, with what is paid by the second then."""
        times, usd = run.arrival_times, self.usd(run.batch_sizes, run.tables.astype(np.int64), run.cold.astype(np.int64))
        block, seconds = block_of(run, first, length), np.diff(np.append(times[first::length], times[-1]))
        return np.asarray(
            np.bincount(block, weights=usd, minlength=len(seconds) + 1)[1:] + (self.per_second + self.pings_per_second) * seconds
        )


def block_of(run: SimulationResult, first: int, length: int) -> Indices:
    """The block of each batch, (n_batches,): 1, 2, ... of ``length`` arrivals each, 0 before the ``first`` arrival."""
    return np.asarray(np.maximum((run.first_of_batch - first) // length, -1) + 1)
