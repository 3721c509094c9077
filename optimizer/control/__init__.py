"""The control loop of a fleet: statistics, forecast, headroom, plan, rollout (docs/model.md, section 5; docs/proteus.md).

``FleetController`` is the loop, without a clock or I/O. ``run_control`` runs it over a day of recorded arrivals, with a ``Planner``
(``solve_fleet``, or one of ``planners`` and ``infaas``); its schedule is run by ``optimizer.simulation``.
"""

from __future__ import annotations

from sluice.optimizer.control.control import Decision, Fault, Operation, Truth, run_control
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.controller import ControlSettings, FleetController, Instructions, Queue
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings
from sluice.optimizer.control.headroom import HEADROOMS, VIOLATIONS, HeadroomChoice, Planner
from sluice.optimizer.control.outcome import FleetOutcomeWatch
from sluice.optimizer.control.overhead import OverheadWatch
from sluice.optimizer.control.rehearsal import Rehearsal
from sluice.optimizer.control.rollout import Rollout

__all__ = [
    "HEADROOMS",
    "VIOLATIONS",
    "ControlSettings",
    "ControlledFleet",
    "Decision",
    "DemandForecast",
    "Fault",
    "FleetController",
    "FleetOutcomeWatch",
    "ForecastSettings",
    "HeadroomChoice",
    "Instructions",
    "Operation",
    "OverheadWatch",
    "Planner",
    "Queue",
    "Rehearsal",
    "Rollout",
    "Truth",
    "run_control",
]
