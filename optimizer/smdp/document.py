"""The door of the room: an answer as a document that a buffer, a simulation or a program of one's own can act on.

    PolicyDocument        the table of one server, or of several
    Plan                  the same for a buffer, with a model's name and the address of its workers
    PhaseTablesDocument   a table for each phase, and the arrivals, which the filter needs to tell the phase

A buffer follows one table a queue and no phase: the plan for arrivals with phases has the one table for all of them.
"""

from __future__ import annotations

from sluice.batching.documents import ArrivalDocument, Document, Plan, PolicyDocument, read
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.smdp.answer import Answer
from sluice.optimizer.smdp.phase_tables import PhaseTables


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
