"""Which variants of which models a fixed fleet hosts, where, and who serves what (docs/model.md, section 5; docs/fleet.md).

``read_fleet`` reads a description, ``plan_fleet`` answers it; ``solve_fleet`` is the optimisation alone.
"""

from __future__ import annotations

from optimizer.decision.fleet.milp import solve_fleet
from optimizer.decision.fleet.plan import FleetPlan, plan_fleet
from optimizer.decision.fleet.problem import FleetProblem, FleetSolution, best_flows, solution_of
from optimizer.decision.fleet.specification import DeviceType, Family, Fleet, Variant, read_fleet
from optimizer.decision.fleet.throughput import Profile, deadline_table

__all__ = [
    "DeviceType",
    "Family",
    "Fleet",
    "FleetPlan",
    "FleetProblem",
    "FleetSolution",
    "Profile",
    "Variant",
    "best_flows",
    "deadline_table",
    "plan_fleet",
    "read_fleet",
    "solution_of",
    "solve_fleet",
]
