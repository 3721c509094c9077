"""The functions of one route, one for each table of its rule: whose a part of a batch is, and who is asked in its place.

What may live here: a state for each function (``function_state.py``), and in which order they stand in. What may not: a clock, I/O,
a batch.

    a part of a batch                       is for
    -----------------                       ------
    of a table                              the function of that table; of a table that the plan has no more, the first
    of a function that is not asked         the first other function that is; where none is, it is refused
    that a function left without answer     the first other that was not asked for it and is; where none is, the function's remedy,
                                            or later one of which a worker crashed and is not back

A function whose circuit is open, and which would be tried, comes after those that are well. From the table of an elastic function
that takes nothing, nothing is taken while another function is asked and its table ends the wait, for nothing would bound what that
one gets in its place; but one batch where it is to be tried. Where no other table ends the wait at the length that the queue has,
the queue reads this one all the same (``policy.decide``), and its batch goes to a function that is asked.

Of a function with several workers the servers of those that are ejected count as busy, so that the others have no more at once than
with them; each that is due for a trial has its server back.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from sluice.batching import Policy
from sluice.buffer_service.batch_state import Part
from sluice.buffer_service.function_state import FunctionState


class Suspension(NamedTuple):
    """None of the functions is asked; the first that will be, and in how many seconds."""

    function: str
    wait: float


class Standing(NamedTuple):
    """How a function stands: calls under way, and in how many seconds it is asked again where it is not asked."""

    function: str
    under_way: int
    asked_in: float | None


class RouteFunctions:
    """Of a route whose ``rule`` has a table for each of ``functions``, in this order."""

    # What is asked at every request takes a list where there is one for ``any``: of one or two, a generator costs more.

    def __init__(self, functions: Sequence[str], rule: Policy) -> None:
        self._states: dict[str, FunctionState] = {}
        self.follow(functions, rule)

    def follow(self, functions: Sequence[str], rule: Policy) -> bool:
        """Another rule or other functions are in force; whether one is new. What is known of one that stays is true still."""
        known, self._states = self._states, {}
        for function, table in zip(functions, rule.tables, strict=True):
            state = known.get(function) or FunctionState(function, table.max_batch_size)
            state.servers = table.servers
            state.circuit.max_batch_size = table.max_batch_size
            self._states[function] = state
        self._of_table = list(self._states.values())
        return bool(self._states.keys() - known.keys())

    def __contains__(self, function: str) -> bool:
        return function in self._states

    def have_workers_of(self, function: str) -> bool:
        """Whether each worker of a function is one of theirs, as where others stand beside it now."""
        here = {worker for each in self._states for worker in each.split(",")}
        return here.issuperset(function.split(","))

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._of_table) > 1

    @property
    def openings(self) -> int:
        """Times that one of them was not asked any more, as it did nothing but fail."""
        return sum(state.circuit.openings for state in self._of_table)

    def place(self, function: FunctionState) -> int:
        """Its table's place in the rule."""
        return self._of_table.index(function)

    def of_table(self, table: int) -> FunctionState:
        """Who serves the batches of a table."""
        return self._of_table[table] if table < len(self._of_table) else self._of_table[0]

    def of(self, part: Part, table: int) -> FunctionState:
        """Who is asked for a part of a batch of ``table``: who was already, or was given it."""
        return self._states.get(part.function) or self.of_table(table)

    def asked(self, now: float, part: Part, table: int) -> FunctionState:
        """Who is asked for a part now: whose it is, or another while that is not asked, where there is one."""
        function = self.of(part, table)
        if not function.circuit.open or function.circuit.refuses(now) is None:
            return function
        return self.in_place_of(now, function, part) or function

    def standings(self, now: float) -> list[Standing]:
        """How each stands, in their order."""
        return [Standing(state.function, state.under_way, state.circuit.refuses(now)) for state in self._of_table]

    def suspension(self, now: float) -> Suspension | None:
        """Why no request can be served now; ``None``: one of them is asked."""
        if not self._of_table[0].circuit.open:
            return None
        waits = [Suspension(state.function, wait) for state in self._of_table if (wait := state.circuit.refuses(now)) is not None]
        return min(waits, key=lambda suspension: suspension.wait) if len(waits) == len(self._of_table) else None

    def takes_more(self, now: float, at_most: Sequence[tuple[int, int]]) -> bool:
        """Whether an elastic function takes whatever its table releases."""
        limited = [place for place, _ in at_most]
        free = [state for place, state in enumerate(self._of_table) if state.elastic and place not in limited]
        return any([state.circuit.refuses(now) is None for state in free])

    def asks_servers(self, now: float) -> bool:
        """Whether a function with servers of its own is asked."""
        return any([not state.elastic and state.circuit.refuses(now) is None for state in self._of_table])

    def at_most(self, now: float, waited_for: Container[str]) -> Sequence[tuple[int, int]]:
        """How many batches are taken from tables now, where another function serves what waits, by the places of these tables.

        None for an elastic function that is not asked, is ``waited_for``, or refused a call and is asked again; one for a function
        that is to be tried: it has no servers that would bound what is taken for others to serve.
        """
        if not any([state.circuit.open or state.refused or state.function in waited_for for state in self._of_table]):
            return ()
        asked = [state.circuit.refuses(now) is None for state in self._of_table]
        most: dict[int, int] = {}
        for place, state in enumerate(self._of_table):
            if state.elastic and (not asked[place] or state.function in waited_for or (state.refused and state.under_way)):
                most[place] = 0
            elif state.elastic and (state.circuit.open or state.refused):
                most[place] = 1
        return list(most.items()) if any(well and place not in most for place, well in enumerate(asked)) else ()

    def pool(self, now: float, function: str, workers: int, tried_in: Sequence[float], held: int) -> None:
        """A function, if it is one of these, has such workers (``FunctionState.pool``)."""
        if (state := self._states.get(function)) is not None:
            state.pool(now, workers, tried_in, held)

    def next_trial(self, now: float) -> float:
        """When the first ejected worker of one of them is due."""
        return min([state.next_trial(now) for state in self._of_table])

    def ejected(self, now: float) -> Sequence[tuple[int, int]]:
        """How many servers of tables are ejected, by the places of these tables, where any are."""
        of_table = [(place, state.ejected(now)) for place, state in enumerate(self._of_table)]
        return [(place, servers) for place, servers in of_table if servers]

    @property
    def all_open(self) -> bool:
        """Whether none is asked but for trials."""
        return all([state.circuit.open for state in self._of_table])

    @staticmethod
    def given(part: Part, other: FunctionState) -> Part:
        """A part as it is asked of another function, which knows nothing of what came of it before."""
        return Part(part.items, function=other.function, tried=part.tried)

    def about_to_be_back(self, now: float, part: Part) -> FunctionState | None:
        """Of the functions that left a part without an answer, the first of which a worker crashed lately, if any did."""
        tried = (state for state in self._of_table if state.function in part.tried)
        return next((state for state in tried if state.restarts(now)), None)

    def in_place_of(self, now: float, function: FunctionState, part: Part) -> FunctionState | None:
        """Who is asked for a part that ``function`` cannot serve now, if anybody is."""
        others = (state for state in self._of_table if state is not function and state.function not in part.tried)
        asked = [state for state in others if state.circuit.refuses(now) is None]
        return min(asked, key=lambda state: state.circuit.open, default=None)
