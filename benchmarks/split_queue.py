"""What it costs to split one queue into k: the size of batches and the wait, as the sub-queues of a model's routes have them.

Requests are dealt to the sub-queues in turn, as ``buffer_service/routing.py`` deals equal shares; each has the table of the whole,
size-or-timeout, in front of a function that takes every batch at once. Batches are compared by their mean size: invocations per
request are its inverse. Simulated, 400 000 requests a row; Poisson arrivals, and the same rate in bursts (MMPP, three times the
mean rate a quarter of the time, in stretches of a tenth of a second).
"""

from __future__ import annotations

import numpy as np

from benchmarks.smoke import usually
from sluice.batching.policy import size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import simulate

REQUESTS = usually(400_000, smoke=8_000)
BATCH_SIZE, TIMEOUT = 32, 0.02  # s
RATES = (500.0, 5_000.0, 50_000.0)  # requests/s of the whole
PARTS = (1, 2, 4, 8)
SECONDS: Array = np.zeros(BATCH_SIZE)
SERVICE = ServiceTimes(1024, SECONDS[:, None], np.zeros(BATCH_SIZE), SECONDS)


def bursts(rate: float) -> ArrivalProcess:
    """Three times the rate a quarter of the time, a third of it else."""
    return mmpp2(3 * rate, rate / 3, 10.0, 10.0 / 3)


def split(arrival_times: Array, parts: int, rng: np.random.Generator) -> tuple[float, float]:
    """Mean size of a batch, and 95 % of the waits (s), where each part gets every ``parts``-th request."""
    runs = [simulate(size_or_timeout(BATCH_SIZE, TIMEOUT), arrival_times[i::parts], SERVICE, rng) for i in range(parts)]
    sizes = np.concatenate([run.batch_sizes for run in runs])
    waits = np.concatenate([run.waiting_time for run in runs])
    return float(sizes.mean()), float(np.nanpercentile(waits, 95))


def main() -> None:
    """Print the table of docs/reliability.md."""
    print("| arrivals | requests/s | " + " | ".join(f"k = {parts}" for parts in PARTS) + " |")
    print("|---|---|" + "---|" * len(PARTS))
    for name, process in (("Poisson", poisson), ("in bursts", bursts)):
        for rate in RATES:
            rng = np.random.default_rng(1)
            times = np.cumsum(process(rate).sample(REQUESTS, rng))
            cells = [f"{size:.1f}, {1000 * wait:.1f} ms" for size, wait in (split(times, parts, rng) for parts in PARTS)]
            print(f"| {name} | {rate:.0f} | " + " | ".join(cells) + " |")
