"""Demand that is drawn: that of a trace again, bursts, and what nobody tuned for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrays import Array

from .readers import Demand

WINDOW = 10.0  # s, of the figures, and of the drop of accuracy
GAMMA_SCV = 10.0  # squared coefficient of variation of the gamma gaps of ours
WANDERING = 0.12  # standard deviation of the step of a walk's logarithm, a second


@dataclass(frozen=True)
class Fresh:
    """Demand that nobody tuned for, drawn: how it comes, times the mean rate of the trace, under a deadline (s)."""

    kind: str  # of ``KINDS``
    factor: float
    deadline: float
    seed: int


FRESH = (
    Fresh("walk", 1.0, 0.3, 9201),
    Fresh("walk", 2.0, 0.3, 9202),
    Fresh("gamma", 1.0, 0.3, 9203),
    Fresh("walk", 1.0, 0.2, 9204),
    Fresh("walk", 1.0, 1.0, 9205),
)

HELD_OUT = (
    Fresh("steady", 1.0, 0.3, 9301),
    Fresh("bursty", 1.0, 0.3, 9302),
    Fresh("steady", 2.0, 0.3, 9303),
    Fresh("gamma", 1.0, 0.3, 9304),
    Fresh("flash", 1.0, 0.3, 9305),
)
KINDS = {
    "walk": "Poisson, wandering",
    "gamma": f"gamma, SCV {GAMMA_SCV:g}",
    "steady": "Poisson, steady",
    "bursty": "Poisson, bursts",
    "flash": "Poisson, a flash crowd",
}
BURST, CALM, TIMES = 5.0, 15.0, 4.0  # mean seconds of a burst and between two, and how many times the rate between


def rates(demand: Demand) -> tuple[Array, Array]:
    """Requests/s of each family, (n_families,): in its busiest window, and in the mean."""
    edges = np.arange(0.0, demand.duration + WINDOW, WINDOW)
    counts = np.array([np.histogram(times, edges)[0] for times in demand.arrivals.values()])
    busiest = counts[:, counts.sum(axis=0).argmax()] / WINDOW
    return busiest, counts.sum(axis=1) / demand.duration


def drawn_again(demand: Demand, seed: int, factor: float = 1.0) -> Demand:
    """Of each family ``factor`` times as many requests in every second, up to rounding at random, arriving at random within it."""
    rng = np.random.default_rng(seed)
    again = {}
    for name, times in demand.arrivals.items():
        counts = np.bincount(times.astype(np.int64))
        counts = np.floor(factor * counts + rng.random(len(counts))).astype(np.int64)
        again[name] = np.sort(np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum()))
    return Demand(again, demand.deadlines)


def fresh_demand(demand: Demand, fresh: Fresh, seconds: float) -> Demand:
    """Demand of that kind for so long, each family's in proportion to its mean rate."""
    rng = np.random.default_rng(fresh.seed)
    of_kind = {"walk": walk, "gamma": gamma, "steady": steady, "bursty": bursty, "flash": flash}[fresh.kind]
    drawn = [of_kind(mean, seconds, rng) for mean in (fresh.factor * rates(demand)[1]).tolist()]
    return Demand(dict(zip(demand.arrivals, drawn, strict=True)), dict.fromkeys(demand.arrivals, fresh.deadline))


def burst(demand: Demand, shape: tuple[float, float, float, float], seed: int) -> Demand:
    """Poisson arrivals in the mix of a demand, at a third of its mean rate; ``shape``: from, to, end (s), times as many between."""
    begins, ends, last, factor = shape
    rng = np.random.default_rng(seed)
    arrivals = {}
    for name, rate in zip(demand.arrivals, rates(demand)[1] / 3, strict=True):
        parts = [(0.0, last, rate), (begins, ends, (factor - 1) * rate)]
        arrivals[name] = np.sort(np.concatenate([rng.uniform(a, b, rng.poisson(r * (b - a))) for a, b, r in parts]))
    return Demand(arrivals, demand.deadlines)


def at_mean_rates(demand: Demand, seed: int) -> dict[str, Demand]:
    """Poisson and gamma arrivals at the mean rates of a demand, by name."""
    rng = np.random.default_rng(seed)
    drawn = {}
    for name, scv in (("Poisson", 1.0), (f"gamma, SCV {GAMMA_SCV:g}", GAMMA_SCV)):
        arrivals = {}
        for family, times in demand.arrivals.items():
            moments = np.cumsum(rng.gamma(1 / scv, scv * demand.duration / len(times), 2 * len(times)))
            arrivals[family] = np.asarray(moments[moments < demand.duration])
        drawn[name] = Demand(arrivals, demand.deadlines)
    return drawn


def walk(mean: float, seconds: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals at a rate whose logarithm is a random walk by seconds, with this mean rate (1/s)."""
    shape = np.exp(np.cumsum(rng.normal(0.0, WANDERING, round(seconds))))
    counts = rng.poisson(mean * shape / shape.mean())
    return np.sort(np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum()))


def gamma(mean: float, seconds: float, rng: np.random.Generator) -> Array:
    """Arrivals with gamma gaps at this rate (1/s)."""
    gaps = rng.gamma(1 / GAMMA_SCV, GAMMA_SCV / mean, 100 + round(3 * mean * seconds))
    moments = np.cumsum(gaps)
    return np.asarray(moments[moments < seconds])


def steady(mean: float, seconds: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals at this rate (1/s)."""
    return np.sort(rng.uniform(0.0, seconds, rng.poisson(mean * seconds)))


def bursty(mean: float, seconds: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals with bursts of random length at random times, about this rate (1/s) in the mean."""
    between = mean * (BURST + CALM) / (TIMES * BURST + CALM)
    parts, at = [np.empty(0)], 0.0
    while at < seconds:
        for length, rate in ((rng.exponential(CALM), between), (rng.exponential(BURST), TIMES * between)):
            parts.append(rng.uniform(at, at + length, rng.poisson(rate * length)))
            at += length
    arrivals = np.sort(np.concatenate(parts))
    return np.asarray(arrivals[arrivals < seconds])


def flash(mean: float, seconds: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals at half this rate (1/s), and at twice it for a quarter of the time in the middle."""
    begins = 3 * seconds / 8
    crowd = rng.uniform(begins, begins + seconds / 4, rng.poisson(1.5 * mean * seconds / 4))
    return np.sort(np.concatenate([steady(mean / 2, seconds, rng), crowd]))
