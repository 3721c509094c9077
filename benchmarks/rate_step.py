"""How soon a controlled model keeps its promise again when its rate triples at once, in virtual time: the same of the same seed.

Of each load the requests come at its rate for ``BEFORE`` seconds, from then on three times as many; a controller looks once a
second, and a plan is in force ``--decision`` seconds after it was decided. Printed are, in the mean of the seeds: the rate that
the controller planned with at its first alarm over the true one, with the least and the most; the seconds until then; the seconds
until the percentile of the last two seconds was within the promise for good, and until that of the next ten was, at the most of
the seeds each; and who was late in the minute after. A plan that keeps its promise has single windows of two seconds that do not.
The function starts cold; the workers are there as soon as a plan has them.

``python -m benchmarks rate_step [--runs 5] [--decision 2]``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.smoke import usually
from benchmarks.told import count
from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.recommend.offers import machine_offer
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, simulate_control

MORE = 3.0
BEFORE, AFTER = 360.0, 120.0  # s
WINDOW, LONGER = 2.0, 10.0  # s, of which the percentile is looked at
MEMORY_SIZES, LARGEST = (885, 1769), 32
INTERCEPT, SLOPE, INIT = 0.03, 0.002, 0.5  # s of a batch on one core, and of a start
WORKER_USD = 0.02  # an hour
POOLS = (1, 2, 3)  # workers, of which one answers 340 requests/s at the most
SLOS = (Slo(0.15), Slo(0.1))
LOADS: dict[str, ArrivalProcess] = {
    "Poisson, 5/s": poisson(5.0),
    "Poisson, 40/s": poisson(40.0),
    "Poisson, 200/s": poisson(200.0),
    "80 and 20/s, 1 s each": mmpp2(80.0, 20.0, 1.0, 1.0),
}


def profile_of(name: str, memory_sizes: tuple[int, ...]) -> ServiceProfile:
    """Service times in proportion to the share of a core."""
    points = []
    for memory_mb in memory_sizes:
        for size in (1, 2, 4, 8, 16, 32):
            seconds = (INTERCEPT + SLOPE * size) * 1769 / memory_mb
            points.append(ProfilePoint(memory_mb, size, ServiceTime(seconds), seconds))
    return ServiceProfile(function=name, points=points, init={mb: ServiceTime(INIT) for mb in memory_sizes}, max_batch_size=LARGEST)


def setups() -> Iterator[tuple[str, TuningSetup]]:
    """The function alone, with two promises; workers that may serve in its place; so many workers, and nothing else."""
    function = profile_of("f-{memory_mb}", MEMORY_SIZES)
    for slo in SLOS:
        yield f"within {1000 * slo.latency:g} ms", TuningSetup("m", (slo,), function)
    own = profile_of("http://workers", MEMORY_SIZES[-1:])
    worker = machine_offer("http://workers", own, WORKER_USD, LARGEST)
    yield "with workers", TuningSetup("m", SLOS[:1], function, offers=(replace(worker, max_workers=16),))
    for servers in POOLS:
        yield f"{servers} workers alone", TuningSetup("m", SLOS[:1], own, offers=(worker,), servers=servers)


def arrivals(process: ArrivalProcess, more: ArrivalProcess, seed: int) -> Array:
    """When requests come, s; from ``BEFORE`` on those of the other process."""
    rng, found = np.random.default_rng(seed), []
    for begin, seconds, each in ((0.0, BEFORE, process), (BEFORE, AFTER, more)):
        times = np.cumsum(each.sample(int(1.5 * each.arrival_rate * seconds) + 200, rng))
        found.append(begin + times[times < seconds])
    return np.concatenate(found)


def times_as_many(process: ArrivalProcess) -> ArrivalProcess:
    """The same with each phase's rate times ``MORE``."""
    return ArrivalProcess(process.D0 - np.diag((MORE - 1) * process.D1.sum(axis=1)), process.D1 * MORE, process.model)


def within_again(run: ControlledRun, slo: Slo) -> tuple[float, float]:
    """Seconds until the percentile of the last ``WINDOW`` is within the promise for good, and that of the next ``LONGER``."""
    return broken(run, slo, WINDOW).max(initial=0.0), broken(run, slo, LONGER).max(initial=LONGER) - LONGER


def broken(run: ControlledRun, slo: Slo, window: float) -> Array:
    """When windows of so many seconds end whose percentile is beyond the promise, s after the step, before which none begins."""
    late = np.concatenate([[0], np.cumsum(~(run.latency <= slo.latency))])
    ends = np.arange(window, AFTER, WINDOW / 4)
    first, last = np.searchsorted(run.arrival_times, BEFORE + np.array([ends - window, ends]))
    return np.asarray(ends[late[last] - late[first] > slo.error_budget * (last - first)])


def main() -> None:
    """Read the options and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=count, default=usually(5, smoke=1))
    parser.add_argument("--decision", type=float, default=2.0, help="seconds until a plan that was decided is in force")
    options = parser.parse_args()
    for words, setup in list(setups())[: usually(None, smoke=1)]:
        for name, process in list(LOADS.items())[: usually(None, smoke=1)]:
            more, told, found = times_as_many(process), [], []
            for seed in range(options.runs):
                run = simulate_control(setup, arrivals(process, more, seed), decision=options.decision)
                alarms = [each for each in run.decisions if each.at >= BEFORE and each.trigger.kind == "rate"]
                if alarms:
                    told.append((alarms[0].arrival_rate / more.arrival_rate, alarms[0].at - BEFORE))
                minute = (run.arrival_times >= BEFORE) & (run.arrival_times < BEFORE + 60)
                found.append((*within_again(run, setup.slos[0]), 100 * float((run.latency[minute] > setup.slos[0].latency).mean())))
            ratios, delays = np.array(told).reshape(-1, 2).T
            back, longer, late = np.array(found).T
            print(f"{words}, {name}: ", end="")
            if len(ratios):
                print(f"planned with {ratios.mean():.2f} of the rate ({ratios.min():.2f} to {ratios.max():.2f}), ", end="")
                print(f"after {delays.mean():.1f} s; ", end="")
            print(f"within for good after {back.mean():.1f} s (at most {back.max():.1f}), ", end="")
            print(f"by {LONGER:g} s after {longer.mean():.1f} (at most {longer.max():.1f}); {late.mean():.2g} % late", flush=True)


if __name__ == "__main__":
    main()
