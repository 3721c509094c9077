"""The allocation instances with proven optima that were made from Proteus's profiles, solved again.

Their rule: P is the floor of b / p50 with the largest b of 1, 2, 4, 8 whose p50 is below half the SLO; a device is planned for
1 / beta of P; flows meet the demand exactly; the devices of each type are those of the instance. Accuracies are normalised.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sluice.optimizer.fleet import FleetProblem, solve_fleet

GAP = 1e-5  # percentage points


class InstanceRow(NamedTuple):
    """An instance, its proven optimum, and what was found here: mean accuracies in percent."""

    trace: str
    second: int
    scale: float
    demand: float  # requests/s
    published: float
    found: float
    bound: float
    converged: bool
    seconds: float

    @property
    def difference(self) -> float:
        """Percentage points."""
        return self.found - self.published


def check_instances(folder: str | Path) -> list[InstanceRow]:
    """Each instance of ``milp_instances.json`` in a folder, solved by ``solve_fleet``; accuracies are those of ``profile.csv``."""
    folder = Path(folder)
    data = json.loads((folder / "milp_instances.json").read_text())
    with (folder / "profile.csv").open(newline="") as lines:
        accuracy = {row["Model"]: float(row["Normalized_Accuracy"]) for row in csv.DictReader(lines)}
    variants = list(dict.fromkeys((row["family"], row["variant"]) for row in data["peak"]))
    types = list(dict.fromkeys(row["device"] for row in data["peak"]))
    families = list(dict.fromkeys(family for family, _ in variants))
    peak = np.zeros((len(types), len(variants)))
    for row in data["peak"]:
        peak[types.index(row["device"]), variants.index((row["family"], row["variant"]))] = row["peak_qps"]
    rows = []
    for instance in data["instances"]:
        problem = FleetProblem(
            devices=np.array([instance["devices"][name] for name in types]),
            throughput=peak / instance["beta"],
            accuracy=np.array([accuracy[variant] for _, variant in variants]),
            family=np.array([families.index(family) for family, _ in variants]),
            demand=np.array([instance["demand_qps"][name] for name in families]),
        )
        solution = solve_fleet(problem, time_limit=60.0, gap=GAP)
        met = solution.missing.sum() <= 1e-9 * problem.demand.sum()
        rows.append(
            InstanceRow(
                instance["trace"],
                instance["second"],
                instance["scale"],
                float(problem.demand.sum()),
                instance["effective_accuracy"],
                solution.accuracy if met else np.nan,
                solution.bound,
                solution.converged,
                solution.seconds,
            )
        )
    return rows
