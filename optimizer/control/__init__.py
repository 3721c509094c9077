"""The control loop of a fleet: statistics, forecast, headroom, plan, rollout (docs/model.md, section 5; docs/proteus.md).

``run_control`` decides over a day of arrivals, with a ``Planner`` (``solve_fleet``, or one of ``planners`` and ``infaas``); its
schedule is run by ``optimizer.simulation``. It plans on recorded arrivals: nothing here follows a live buffer.
"""

from __future__ import annotations

from sluice.optimizer.control.control import ControlledFleet, ControlSettings, Decision, Operation, run_control
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings
from sluice.optimizer.control.headroom import HEADROOMS, HeadroomChoice, Planner, expected_accuracy
from sluice.optimizer.control.rollout import Rollout

__all__ = [
    "HEADROOMS",
    "ControlSettings",
    "ControlledFleet",
    "Decision",
    "DemandForecast",
    "ForecastSettings",
    "HeadroomChoice",
    "Operation",
    "Planner",
    "Rollout",
    "expected_accuracy",
    "run_control",
]
