"""When one server should serve, and how many at a time: the semi-Markov decision process of batching (docs/model.md, section 4).

``SmdpProblem`` is the question, ``solve`` answers it by the method wanted, and every method answers with an ``SmdpSolution``.
``answer_problem`` is what `sluice smdp` says of a problem: the table beside others, its percentiles, the frontier, several workers,
and of arrivals with phases one table for all of them and ``PhaseTables`` with the filter that they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.optimizer.when_asked import names_when_asked

if TYPE_CHECKING:
    from sluice.optimizer.smdp.answer import Answer, answer_problem
    from sluice.optimizer.smdp.class_answer import ClassAnswer, answer_classes, class_document, class_plan, full_class_document
    from sluice.optimizer.smdp.class_policy_iteration import (
        ClassPerformance,
        ClassSolution,
        evaluate_classes,
        solve_classes,
        urgent_first,
    )
    from sluice.optimizer.smdp.class_problem import ClassProblem, WeightedClass
    from sluice.optimizer.smdp.document import PhaseTablesDocument, answer_document, full_document, read_phase_tables
    from sluice.optimizer.smdp.frontier import Corner, choose_weight, solve_frontier
    from sluice.optimizer.smdp.latency_percentiles import exact_seconds
    from sluice.optimizer.smdp.methods import METHODS, solve
    from sluice.optimizer.smdp.one_table import OneTable, solve_one_table
    from sluice.optimizer.smdp.phase_filter import filter_phases
    from sluice.optimizer.smdp.phase_tables import FilteredTables, PhaseTables, simulate_filtered
    from sluice.optimizer.smdp.policy_iteration import evaluate
    from sluice.optimizer.smdp.problem import SmdpProblem, affine
    from sluice.optimizer.smdp.several_workers import WorkersSolution, solve_workers
    from sluice.optimizer.smdp.solution import Performance, SmdpSolution
else:
    __getattr__ = names_when_asked(__name__)

__all__ = [
    "METHODS",
    "Answer",
    "ClassAnswer",
    "ClassPerformance",
    "ClassProblem",
    "ClassSolution",
    "Corner",
    "FilteredTables",
    "OneTable",
    "Performance",
    "PhaseTables",
    "PhaseTablesDocument",
    "SmdpProblem",
    "SmdpSolution",
    "WeightedClass",
    "WorkersSolution",
    "affine",
    "answer_classes",
    "answer_document",
    "answer_problem",
    "choose_weight",
    "class_document",
    "class_plan",
    "evaluate",
    "evaluate_classes",
    "exact_seconds",
    "filter_phases",
    "full_class_document",
    "full_document",
    "read_phase_tables",
    "simulate_filtered",
    "solve",
    "solve_classes",
    "solve_frontier",
    "solve_one_table",
    "solve_workers",
    "urgent_first",
]
