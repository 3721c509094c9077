"""Which variants of which models a fixed fleet hosts, where, and who serves what (docs/model.md, section 5; docs/fleet.md).

``read_fleet`` reads a description, ``plan_fleet`` answers it, and the plan's ``predicted`` says what becomes of the requests;
``solve_fleet`` is the optimisation alone, ``queue_table`` the table of a queue.
"""

from __future__ import annotations

from sluice.optimizer.fleet.fleet_file import read_fleet
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.plan import FleetPlan
from sluice.optimizer.fleet.planning import plan_fleet
from sluice.optimizer.fleet.prediction import FamilyPrediction, FleetPrediction, simulate_plan
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, best_flows, solution_of
from sluice.optimizer.fleet.specification import DeviceType, Family, Fleet, Variant
from sluice.optimizer.fleet.tables import DEPLOYABLE, Batching, queue_table
from sluice.optimizer.fleet.throughput import Profile

__all__ = [
    "DEPLOYABLE",
    "Batching",
    "DeviceType",
    "Family",
    "FamilyPrediction",
    "Fleet",
    "FleetPlan",
    "FleetPrediction",
    "FleetProblem",
    "FleetSolution",
    "Group",
    "Profile",
    "Variant",
    "best_flows",
    "plan_fleet",
    "queue_table",
    "read_fleet",
    "simulate_plan",
    "solution_of",
    "solve_fleet",
]
