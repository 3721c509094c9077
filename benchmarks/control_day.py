"""A day's load live, compressed: the same requests before a plan that stays and before live control, window by window.

Redis, buffers, controller and requests are real; the function sleeps for as long as its profile says (``local.live_demo``). The day
is that of a load balancer or of tweets, counts of five minutes (``studies/data``): each becomes a window of ``--window`` seconds,
at ``--rate`` requests/s in the mean, with the gaps of a recorded trace between them, and one request at the least. Control is to
keep the promise in every such window. Plans know the
day's first hour. Printed are, for each way to serve, the windows whose percentile was within the promise, what a million requests
cost, and in how many windows percentile and cost were near to what a simulation of the same arrivals says, under the plans that
were in force at the same moments. ``simulated`` is in how many windows the same tuner would have kept the promise.

``python -m benchmarks control_day [--load "load balancer"] [--rate 15] [--window 4] [--windows 276] [--slo 0.1]``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.batching.documents import ServiceProfile, Slo, read
from sluice.local.demo import EXCERPT
from sluice.local.live_demo import STATIC, LiveDemo, LiveRow
from sluice.optimizer.arrays import Array
from sluice.optimizer.traces.trace import read_trace

ROOT = Path(__file__).parents[1]
COUNTS = ROOT / "studies" / "data" / "control-loads.csv"
PROFILE = ROOT / "examples" / "fleet" / "profiles" / "mlp-rank3072.json"
KNOWN = 12  # windows that plans are made from
FEW = 20  # requests, of fewer than which a window has no percentile
NEAR = {"p95": 0.05, "cost": 0.03}
SEED = 3


def main() -> None:
    """Run, and print a line for each way to serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", default="load balancer", choices=["load balancer", "tweets"])
    parser.add_argument("--rate", type=positive, default=15.0, help="requests/s in the mean")
    parser.add_argument("--window", type=positive, default=usually(4.0, smoke=0.5), help="seconds that stand for five minutes")
    parser.add_argument("--windows", type=count, default=usually(276, smoke=2), help="of the day, beside those that plans know")
    parser.add_argument("--slo", type=positive, default=0.1, help="seconds, of the 95th percentile")
    parser.add_argument("--front", type=float, default=0.0016, help="seconds that the buffer adds, as control measured here")
    options = parser.parse_args()
    slo = Slo(options.slo)
    counts = counts_of(options.load)[: KNOWN + options.windows]
    times = laid_out(counts * options.rate / counts.mean() * options.window, options.window)
    cut = KNOWN * options.window
    seen, ahead = times[times < cut], times[times >= cut] - cut
    windows = len(counts) - KNOWN
    demo = LiveDemo(
        slo=slo, rates=(options.rate,) * windows, seconds=options.window, slower=1.0, beside=(STATIC,), kept_in=options.window
    )
    rows = demo.serve(read(ServiceProfile, PROFILE.read_bytes()), options.front, seen, ahead)
    print(f"{options.load}: {len(ahead)} requests in {windows} windows of {options.window:g} s, {options.rate:g}/s in the mean")
    for row in rows:
        print(told(row, slo))
    static, controlled = (row.cost for row in rows)
    print(f"cost, controlled over static: {controlled / static:.3f}")


def told(row: LiveRow, slo: Slo) -> str:
    """What a way to serve came to."""
    phases = [phase for phase in row.phases if phase.requests >= FEW]
    kept = sum(phase.measured_latency <= slo.latency for phase in phases)
    could = sum(phase.predicted_latency <= slo.latency for phase in phases)
    latency = np.array([phase.measured_latency / phase.modelled_latency for phase in phases])
    cost = np.array([phase.billed_cost / phase.modelled_cost for phase in phases])
    near = {name: np.mean(np.abs(of - 1) <= NEAR[name]) for name, of in (("p95", latency), ("cost", cost))}
    return (
        f"{row.name:11s} {kept} of {len(phases)} windows of {FEW} requests and more kept (simulated: {could}), "
        f"{1e6 * row.cost:.4f} USD per million, {row.plans} plans, {row.failures} failed; measured over simulated, median: "
        f"p95 {np.median(latency):.3f}, cost {np.median(cost):.3f}; "
        f"within 5 % {100 * near['p95']:.0f} %, within 3 % {100 * near['cost']:.0f} % of the windows"
    )


def counts_of(load: str) -> Array:
    """Requests in each five minutes of its day."""
    lines = [line.split(",") for line in COUNTS.read_text().splitlines()[1:]]
    return np.array([float(requests) for name, _, requests in lines if name == load])


def laid_out(means: Array, window: float) -> Array:
    """Arrivals (s): so many in each window in the mean, by chance, with the gaps of the recorded trace, stretched to the window."""
    rng, gaps = np.random.default_rng(SEED), read_trace(str(EXCERPT)).interarrivals
    found, at = [], 0
    for k, n in enumerate(np.maximum(1, rng.poisson(means))):
        ends = np.cumsum(gaps[(at + np.arange(n + 1)) % len(gaps)])
        at += n + 1
        found.append(window * k + ends[:n] * (window / ends[-1]))
    return np.concatenate(found)


if __name__ == "__main__":
    main()
