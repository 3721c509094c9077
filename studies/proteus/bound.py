"""The bound that none can pass: more than any system can serve in a window, and then at what accuracy at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from sluice.optimizer.fleet.problem import FleetProblem
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.simulation.fleet_run import ROUNDING

from .readers import Demand
from .results import Window

BOUND = "bound"


def bound(fleet: Fleet, demand: Demand, window: float) -> Iterator[Window]:
    """By windows, more than any system can serve, and then at what accuracy at most.

    Whoever arrives in a window has to be served in it or within the longest deadline after it. So a device serves at most the best
    b / l(b) of all batches that alone keep the deadline, for that long; it changes variants freely and at no cost, at any time, and
    the demand of each window is known. A device's time is so divided among variants, a linear program.
    """
    problem = fleet.problem()
    longer = 1 + max(family.slo.latency for family in fleet.families) / window
    throughput = np.zeros_like(problem.throughput)
    for d, m in np.ndindex(*throughput.shape):
        profile = fleet.profiles.get((fleet.devices[d].name, fleet.variants[m].name))
        if profile is not None:
            deadline = fleet.families[int(problem.family[m])].slo.latency
            seconds = profile.service.mean_response
            within = np.flatnonzero(seconds <= deadline * ROUNDING)
            if len(within):
                throughput[d, m] = ((within + 1) / seconds[within]).max() * longer
    free = replace(problem, throughput=throughput)
    edges = np.arange(0.0, demand.duration + window, window)
    counts = np.array([np.histogram(times, edges)[0] for times in demand.arrivals.values()])
    for start, arrived in zip(edges[:-1], counts.T, strict=True):
        if arrived.any():
            served, accuracy = time_shared(free.with_demand(arrived / window))
            asked = float(arrived.sum()) / window
            yield Window("", BOUND, float(start), asked, served, accuracy, max(0.0, round(1 - served / asked, 9)))


def time_shared(problem: FleetProblem) -> tuple[float, float]:
    """The most requests/s that devices serve which divide their time among variants, and then the greatest mean accuracy."""
    types, variants = np.nonzero(problem.throughput)
    rate = problem.throughput[types, variants]
    used = (types == np.arange(len(problem.devices))[:, None]) / rate  # devices of each type, by request/s of each pair
    asked = problem.family[variants] == np.arange(problem.n_families)[:, None]
    limits, most = np.vstack([used, asked]), np.concatenate([problem.devices, problem.demand])
    served = -float(linprog(-np.ones(len(rate)), limits, most).fun)
    if served <= 0:
        return 0.0, np.nan
    least = np.vstack([limits, -np.ones(len(rate))])
    accurate = linprog(-problem.accuracy[variants], least, np.append(most, -served * (1 - 1e-9)))
    return served, -float(accurate.fun) / float(accurate.x.sum())
