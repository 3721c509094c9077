"""Which variants a fixed fleet hosts, and what they then serve (docs/model.md, section 5).

Devices of one type are alike, so a placement is a count n[d, m] of devices of type d that host variant m, one variant a device.
Given the counts, who serves what is no search: each family's demand goes to the most accurate of its variants first, as far as
these reach (``best_flows``). It serves the most that the counts can, and with the greatest accuracy, and it needs no solver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array, Counts

NEGLIGIBLE = 1e-6  # part of a demand; the solver's tolerance


@dataclass(frozen=True, eq=False)
class FleetProblem:
    """A fleet, what it can host, and what is asked of it.

    Parameters
    ----------
    devices : array of int, shape (n_types,)
        Devices of each type, N_d.
    throughput : array, shape (n_types, n_variants)
        P[d, m]: requests/s of the variant that one device of the type serves; 0 where it cannot.
    accuracy : array, shape (n_variants,)
        A_m, percent.
    family : array of int, shape (n_variants,)
        The family of each variant, by its place in ``demand``.
    demand : array, shape (n_families,)
        s_q, requests/s; not all 0.
    running : array of int, shape (n_types, n_variants), optional
        The counts of the placement that runs.

    Raises
    ------
    InvalidInput
        Names the entry.
    """

    devices: Counts
    throughput: Array
    accuracy: Array
    family: Counts
    demand: Array
    running: Counts | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "family", "running"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("throughput", "accuracy", "demand"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        n_types, n_variants, n_families = len(self.devices), len(self.accuracy), len(self.demand)
        require(self.devices.ndim == 1 and n_types > 0, "devices", self.devices.shape, "a count for at least one device type")
        require(self.accuracy.ndim == 1 and n_variants > 0, "accuracy", self.accuracy.shape, "a number for at least one variant")
        require(self.demand.ndim == 1 and n_families > 0, "demand", self.demand.shape, "a rate for at least one family")
        _refuse("devices", self.devices, self.devices < 0, "an integer >= 0")
        shape = f"{(n_types, n_variants)}, one row a device type and one column a variant"
        require(self.throughput.shape == (n_types, n_variants), "throughput", self.throughput.shape, shape)
        _refuse("throughput", self.throughput, ~((self.throughput >= 0) & np.isfinite(self.throughput)), "requests/s >= 0")
        _refuse("accuracy", self.accuracy, ~((self.accuracy >= 0) & (self.accuracy <= 100)), "percent, 0 to 100")
        require(self.family.shape == (n_variants,), "family", self.family.shape, f"a family for each of the {n_variants} variants")
        _refuse("family", self.family, (self.family < 0) | (self.family >= n_families), f"an integer from 0 to {n_families - 1}")
        _refuse("demand", self.demand, ~((self.demand >= 0) & np.isfinite(self.demand)), "requests/s >= 0")
        require(bool(self.demand.any()), "demand", self.demand.tolist(), "a rate > 0 for at least one family")
        if self.running is not None:
            require(self.running.shape == (n_types, n_variants), "running", self.running.shape, shape)
            _refuse("running", self.running, self.running < 0, "an integer >= 0")
            for d in np.flatnonzero(self.running.sum(axis=1) > self.devices)[:1]:
                hosts = int(self.running[d].sum())
                raise InvalidInput(f"running[{d}]", hosts, f"at most the {self.devices[d]} devices of the type")

    @property
    def n_families(self) -> int:
        """Families of variants."""
        return len(self.demand)

    @property
    def demand_of_variant(self) -> Array:
        """The demand of each variant's family, requests/s, (n_variants,)."""
        return self.demand[self.family]

    def with_demand(self, demand: ArrayLike) -> FleetProblem:
        """The same fleet under another demand, requests/s, (n_families,)."""
        return replace(self, demand=np.asarray(demand, dtype=np.float64))

    def with_running(self, running: ArrayLike | None) -> FleetProblem:
        """The same problem from another placement that runs, counts (n_types, n_variants)."""
        return replace(self, running=None if running is None else np.asarray(running))


@dataclass(frozen=True, eq=False)
class FleetSolution:
    """A placement by counts, what it serves, and how it was found.

    Parameters
    ----------
    problem : FleetProblem
    counts : array of int, shape (n_types, n_variants)
        Devices that host each variant. Devices left over are idle; with ``running`` they keep their variant, and are counted.
    flows : array, shape (n_types, n_variants)
        Requests/s served by each.
    bound : float
        No placement that serves as much is more accurate than this, percent; nan where nothing was proven.
    converged : bool
        Whether all was proven: the most served, the accuracy within the gap, the fewest swaps.
    seconds : float
        Wall-clock time of the search.
    """

    problem: FleetProblem
    counts: Counts
    flows: Array
    bound: float
    converged: bool
    seconds: float

    @property
    def served(self) -> Array:
        """Requests/s served of each family, (n_families,)."""
        served = np.zeros(self.problem.n_families)
        np.add.at(served, self.problem.family, self.flows.sum(axis=0))
        return served

    @property
    def missing(self) -> Array:
        """Requests/s of each family that are not served, (n_families,); less than a millionth of its demand is none."""
        short = self.problem.demand - self.served
        return np.asarray(np.where(short > NEGLIGIBLE * self.problem.demand, short, 0.0))

    @property
    def accuracy(self) -> float:
        """Mean accuracy of what is served, percent; nan where nothing is."""
        served = self.flows.sum()
        return float((self.flows @ self.problem.accuracy).sum() / served) if served else np.nan

    @property
    def accuracy_by_family(self) -> Array:
        """The same family by family, (n_families,)."""
        problem, served = self.problem, self.served
        earned = np.zeros(problem.n_families)
        np.add.at(earned, problem.family, self.flows.sum(axis=0) * problem.accuracy)
        return np.asarray(np.divide(earned, served, out=np.full(len(served), np.nan), where=served > 0))

    @property
    def gap(self) -> float:
        """How much more accurate a placement could be at most, percentage points."""
        return max(0.0, self.bound - self.accuracy) if self.bound == self.bound else np.nan

    @property
    def shares(self) -> Array:
        """Part of its family's demand that each (type, variant) serves, (n_types, n_variants)."""
        asked = self.problem.demand_of_variant
        return np.asarray(np.divide(self.flows, asked, out=np.zeros_like(self.flows), where=asked > 0))

    @property
    def swaps(self) -> int:
        """Devices that load another variant than the one they run; all that host one where nothing runs."""
        running = self.problem.running
        return int(self.counts.sum() if running is None else np.maximum(self.counts - running, 0).sum())


def fill(accuracy: Array, reach: Array, demand: Array) -> Array:
    """Requests/s that each of several groups of one family serves: the most, then with the greatest accuracy.

    The demand goes to the most accurate groups first; of equally accurate ones each gets its part by what it could serve.

    Parameters
    ----------
    accuracy, reach : array, shape (n_groups,)
        Percent; requests/s that a group can serve.
    demand : array, shape (n,)
        Requests/s of the family.

    Returns
    -------
    flows : array, shape (n, n_groups)
        At most ``reach``, and in sum at most ``demand``.
    """
    levels, level = np.unique(-accuracy, return_inverse=True)
    together = np.bincount(level, reach, len(levels))
    before = np.concatenate([[0.0], np.cumsum(together)[:-1]])
    taken = np.clip(demand[:, None] - before, 0.0, together)
    part = np.divide(taken, together, out=np.zeros_like(taken), where=together > 0)
    return np.asarray(part[:, level] * reach)


def best_flows(problem: FleetProblem, counts: Counts) -> Array:
    """Requests/s that each (type, variant) serves under given counts: the most, then with the greatest accuracy (``fill``).

    Returns
    -------
    flows : array, shape (n_types, n_variants)
        At most ``throughput * counts``, and in sum over a family at most its demand.
    """
    reach = problem.throughput * counts
    flows = np.zeros_like(reach)
    for q in range(problem.n_families):
        types, members = np.nonzero((problem.family == q) & (reach > 0))
        if len(types):
            flows[types, members] = fill(problem.accuracy[members], reach[types, members], problem.demand[q : q + 1])[0]
    return flows


def capacity_of(problem: FleetProblem, counts: Counts) -> Array:
    """Requests/s of each family that a placement can serve, (n_families,)."""
    return np.asarray(np.bincount(problem.family, (problem.throughput * counts).sum(axis=0), problem.n_families), dtype=np.float64)


def filled(solution: FleetSolution) -> FleetSolution:
    """The same with every idle device given to the family with the least capacity for its demand, of those that it can serve.

    It hosts the most accurate variant that it can. The bound holds still: it is on all placements.
    """
    problem, counts = solution.problem, solution.counts.copy()
    for d in range(len(problem.devices)):
        able = (problem.throughput[d] > 0) & (problem.demand_of_variant > 0)
        for _ in range(int(problem.devices[d] - counts[d].sum()) if able.any() else 0):
            reserve = capacity_of(problem, counts) / np.maximum(problem.demand, 1e-300)
            hosted = min(np.flatnonzero(able), key=lambda m: (reserve[problem.family[m]], -problem.accuracy[m], m))
            counts[d, hosted] += 1
    return replace(solution, counts=counts, flows=best_flows(problem, counts))


def solution_of(problem: FleetProblem, counts: ArrayLike, seconds: float = 0.0) -> FleetSolution:
    """What a placement comes to that was not found by search: its best flows; no bound, and nothing to converge.

    Raises
    ------
    InvalidInput
        Counts of another shape, negative, or of more devices than a type has.
    """
    whole = _whole("counts", counts)
    require(whole.shape == problem.throughput.shape, "counts", whole.shape, str(problem.throughput.shape))
    _refuse("counts", whole, whole < 0, "an integer >= 0")
    for d in np.flatnonzero(whole.sum(axis=1) > problem.devices)[:1]:
        raise InvalidInput(f"counts[{d}]", int(whole[d].sum()), f"at most the {problem.devices[d]} devices of the type")
    return FleetSolution(problem, whole, best_flows(problem, whole), np.nan, True, seconds)


def keep_running(problem: FleetProblem, counts: Counts) -> Counts:
    """Counts in which the devices left over keep the variants that they run, as far as these are not replaced."""
    if problem.running is None:
        return counts
    kept = counts.copy()
    for d, left in enumerate(problem.devices - counts.sum(axis=1)):
        surplus = np.maximum(problem.running[d] - counts[d], 0)
        for m in np.argsort(-problem.throughput[d], kind="stable"):  # what is replaced first is what serves least
            stays = min(int(surplus[m]), int(left))
            kept[d, m] += stays
            left -= stays
    return kept


def _whole(name: str, values: ArrayLike) -> Counts:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        numbers = np.asarray(values, dtype=np.float64)
        _refuse(name, numbers, numbers != np.round(numbers), "an integer")
    return np.array(array, dtype=np.int64)


def _refuse(name: str, values: NDArray[np.generic], wrong: NDArray[np.bool_], allowed: str) -> None:
    """Refuse the first entry that is wrong."""
    for where in np.argwhere(wrong)[:1]:
        place = "".join(f"[{i}]" for i in where)
        raise InvalidInput(f"{name}{place}", values[tuple(where)].item(), allowed)
