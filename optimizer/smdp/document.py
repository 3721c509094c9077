"""The door of the room: an answer as a document that a buffer, a simulation or a program of one's own can act on.

    PolicyDocument        the table of one server, or of several
    Plan                  the same for a buffer, with a model's name and the address of its workers
    PhaseTablesDocument   a table for each phase, and the arrivals, which the filter needs to tell the phase

A buffer follows one table a queue and no phase: the plan for arrivals with phases has the one table for all of them.
``full_document`` is all of an answer, for people and programs that only read it.
"""

from __future__ import annotations

from sluice.batching.documents import ArrivalDocument, Document, Plan, PolicyDocument, read
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.smdp.answer import Answer
from sluice.optimizer.smdp.frontier import Corner
from sluice.optimizer.smdp.phase_tables import FilteredTables, PhaseTables
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.several_workers import WorkersSolution
from sluice.optimizer.smdp.solution import Performance


class PhaseTablesDocument(Document, frozen=True, kw_only=True):
    """A table for each phase of the arrivals; ``tables[i]`` is in force while phase ``i`` of ``arrivals`` is the likeliest."""

    arrivals: ArrivalDocument
    tables: list[PolicyDocument]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phase_tables()

    @classmethod
    def of(cls, tables: PhaseTables) -> PhaseTablesDocument:
        """The document of tables."""
        return cls(arrivals=tables.arrivals.document(), tables=[PolicyDocument.of(table) for table in tables.tables])

    def phase_tables(self) -> PhaseTables:
        """The tables themselves."""
        return PhaseTables(ArrivalProcess.of(self.arrivals), tuple(table.policy() for table in self.tables))


def read_phase_tables(data: bytes | str, source: str = "") -> PhaseTables:
    """The tables in a document.

    Raises
    ------
    InvalidInput
        Names the field (behind ``source``, a file name perhaps), its value and what is allowed.
    """
    return read(PhaseTablesDocument, data, source).phase_tables()


def answer_document(
    found: Answer, model: str | None = None, function: str | None = None
) -> PolicyDocument | Plan | PhaseTablesDocument:
    """The plan for the workers at ``function`` (http://HOST:PORT, several with commas between) where they and ``model`` are given;
    else the table, or of arrivals with phases the table of each.

    Raises
    ------
    InvalidInput
        A model without a function, or the reverse; names that a plan does not allow.
    """
    if (model is None) != (function is None):
        raise InvalidInput("model, function", (model, function), "both, for a plan, or neither, for a policy")
    one = found.policies[0] if found.one_table is None else found.one_table.policy
    if model is not None and function is not None:
        return Plan(
            model=model,
            function=function,
            policy=PolicyDocument.of(one),
            slo=found.slos[0] if found.slos else None,
            other_slos=list(found.slos[1:]),
            arrivals=None if found.one_table is None else found.problem.arrivals.document(),
        )
    return PolicyDocument.of(one) if found.filtered is None else PhaseTablesDocument.of(found.filtered.tables)


def full_document(found: Answer) -> dict[str, object]:
    """All of an answer, as ``--json`` prints it."""
    problem, solution, workers = found.problem, found.solution, found.workers
    return {
        "version": 1,
        "method": solution.method,
        "arrival_rate": found.arrival_rate,
        "load": problem.load,
        "latency_weight": problem.latency_weight,
        "power_weight": problem.power_weight,
        "slos": list(found.slos),
        "way": found.way,
        "power_weights": None if found.chosen is None else found.chosen.weights,
        "policies": [PolicyDocument.of(policy) for policy in found.policies],
        "converged": solution.converged,
        "bound": solution.bound,
        "iterations": solution.iterations,
        "residual": solution.residual,
        "overflow_cost": solution.overflow_cost,
        "gain": workers.cost if workers else solution.gain,
        "optimal": _of_simulation(workers) if workers else _of_performance(problem, solution.performance),
        "one_table": _of_one_table(found),
        "filtered": None if found.filtered is None else _of_simulation(found.filtered),
        "latency": found.latency,
        "latency_is_exact": found.latency_is_exact,
        "compared": {name: _of_performance(problem, performance) for name, performance in found.compared.items()},
        "frontier": [_of_corner(corner) for corner in found.corners],
    }


def _of_performance(problem: SmdpProblem, performance: Performance) -> dict[str, float]:
    return {
        "mean_latency": performance.mean_latency,
        "power": performance.power,
        "energy_efficiency": problem.energy_efficiency(performance.power),
        "batch_rate": performance.batch_rate,
        "mean_batch_size": performance.mean_batch_size,
        "cost": problem.cost(performance.mean_latency, performance.power),
    }


def _of_one_table(found: Answer) -> dict[str, object] | None:
    if found.one_table is None:
        return None
    one = found.one_table
    figures = _of_performance(found.problem, one.performance)
    return {"origin": one.origin, "policy": PolicyDocument.of(one.policy), **figures}


def _of_simulation(simulated: WorkersSolution | FilteredTables) -> dict[str, object]:
    latency = simulated.mean_latency
    return {
        "mean_latency": latency.value,
        "mean_latency_interval": [latency.low, latency.high],
        "power": simulated.power,
        "mean_batch_size": simulated.mean_batch_size,
        "cost": simulated.cost,
    }


def _of_corner(corner: Corner) -> dict[str, object]:
    solution = corner.solution
    return {
        "power_weights": list(corner.weights),
        "mean_latency": solution.mean_latency,
        "power": solution.power,
        "energy_efficiency": solution.energy_efficiency,
        "mean_batch_size": solution.performance.mean_batch_size,
        "policy": PolicyDocument.of(solution.policy()),
    }
