"""The tables of every setting, solved."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import affine
from sluice.optimizer.smdp.class_answer import IN_ORDER, URGENT_FIRST, ClassAnswer, answer_classes
from sluice.optimizer.smdp.class_problem import ClassProblem, WeightedClass

from .results import Cell, Row, Study

LARGEST = 8
SECONDS = (1.0524e-3, 0.3051e-3)  # of a batch: a part for all, a part for each
JOULES = (19.603e-3, 19.899e-3)
URGENT = 1 / 3  # of the requests
PATIENT_WEIGHT = 1.0  # of a ms
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
RATIO, LOAD = 5.0, 0.6  # where the other is varied
ENERGIES = (0.0, 1.0)  # weight of a watt
SHOWN = 16  # rows and columns of the table that is drawn


def problem(load: float, ratio: float, energy: float) -> ClassProblem:
    """GoogLeNet on a Tesla P4, an urgent class and a patient one."""
    mean = affine(*SECONDS, LARGEST)
    rate = load * LARGEST / mean[-1]
    classes = [
        WeightedClass("urgent", URGENT * rate, ratio * PATIENT_WEIGHT),
        WeightedClass("patient", (1 - URGENT) * rate, PATIENT_WEIGHT),
    ]
    return ClassProblem.of(classes, deterministic(mean), affine(*JOULES, LARGEST), 1, 1e3, energy)


def settings() -> list[tuple[float, float, float]]:
    """Load, ratio of weights and weight of energy, each once."""
    found = [(load, RATIO, energy) for energy in ENERGIES for load in LOADS]
    found += [(LOAD, ratio, energy) for energy in ENERGIES for ratio in RATIOS]
    return list(dict.fromkeys(found))


def compute() -> Study:
    """Everything."""
    answers = {setting: answer_classes(problem(*setting)) for setting in settings()}
    rows = [_row(setting, answer) for setting, answer in answers.items()]
    actions = answers[LOAD, RATIO, 1.0].solution.actions
    return Study(rows, [Cell(q1, q2, int(taken)) for (q1, q2), taken in np.ndenumerate(actions[:SHOWN, :SHOWN])])


def _row(setting: tuple[float, float, float], answer: ClassAnswer) -> Row:
    in_order, urgent_first = (answer.cost(answer.compared[name]) for name in (IN_ORDER, URGENT_FIRST))
    together, _ = answer.compared[IN_ORDER].mean_latency
    solution = answer.solution
    latencies = solution.performance.mean_latency
    return Row(*setting, solution.gain, in_order, urgent_first, *latencies, together, len(solution.actions))
