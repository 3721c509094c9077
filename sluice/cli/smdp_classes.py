"""An answer of `sluice smdp` for two classes in words and tables, and how it is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from rich.table import Column, Table

from sluice.batching.errors import InvalidInput
from sluice.optimizer.smdp import ClassAnswer, WeightedClass

WORTH = 1e-6  # of the cost: what is called a saving
_SHOWN = 24  # rows and columns of a table that a terminal has room for


def read_classes(texts: Sequence[str], scale: float) -> list[WeightedClass]:
    """The classes of NAME:RATE:WEIGHT each; ``scale`` is the unit of time in seconds."""
    return [_read_class(text, scale) for text in texts]


def _read_class(text: str, scale: float) -> WeightedClass:
    try:
        name, *numbers = text.split(":")
        rate, weight = map(float, numbers)
    except ValueError:
        allowed = "NAME:RATE:WEIGHT, requests per unit of time and what a second of one weighs, as in interactive:0.5:5"
        raise InvalidInput("--class", text, allowed) from None
    return WeightedClass(name, rate / scale, weight)


def classes_in_words(found: ClassAnswer) -> Iterator[str]:
    """What the table does, a sentence each."""
    solution = found.solution
    urgent, patient = (each.name for each in solution.problem.classes)
    curve = solution.switching_curve
    ends = next((q2 for q2, q1 in enumerate(curve) if q1 == 0), len(curve))
    told = ", ".join("none" if q1 is None else str(q1) for q1 in curve[:ends])
    yield f"a batch leaves from so many of {urgent} on, with 0, 1, … of {patient}: {told}; with {ends} of {patient} alone"
    yield (
        "one more waiting never turns serving into waiting"
        if solution.monotone
        else "one more waiting may turn serving into waiting"
    )
    if not solution.larger_with_more:
        yield f"one more waiting may make a batch smaller: {patient} stay behind so that {urgent} are done sooner"
    for name in found.compared:
        saved = found.saved(name)
        # Less is what the cut of the grid and the arithmetic leave.
        yield f"it saves {100 * saved:.3g} % of the cost of {name}" if abs(saved) >= WORTH else f"it saves nothing beside {name}"


def classes_in_tables(found: ClassAnswer) -> Iterator[Table | str]:
    """The table as a grid, what it comes to beside others, and how the method ended."""
    solution = found.solution
    yield _grid(found)
    yield _beside(found)
    ended = "converged" if solution.converged else "was stopped"
    states = len(solution.actions)
    doubled = f"the last doubling changed the cost by a part of {solution.truncation:.2g}"
    if not isfinite(solution.truncation):
        doubled = "the grid was never doubled, and what it misses is not known"
    yield f"policy-iteration: {ended} after {solution.iterations} iterations on {states} x {states} states; {doubled}"
    if solution.bound is not None:
        yield f"The best table so far costs {solution.gain:.6g}, and none less than {max(0.0, solution.bound):.6g}."


def _grid(found: ClassAnswer) -> Table:
    policy, (urgent, patient) = found.solution.policy(), found.solution.problem.classes
    rows, columns = len(policy.take) // policy.columns, policy.columns
    shown = range(min(rows, _SHOWN)), range(min(columns, _SHOWN))
    cut = max(rows, columns) > _SHOWN
    caption = f"the first of {rows} x {columns}; --out and --json have all" if cut else None
    table = Table(Column(urgent.name), title=f"how many leave; columns: {patient.name} waiting", caption=caption, padding=0)
    for q2 in shown[1]:
        table.add_column(str(q2), justify="right", no_wrap=True)
    for q1 in shown[0]:
        table.add_row(str(q1), *(str(policy.take[policy.row(q1, q2)] or "·") for q2 in shown[1]))
    return table


def _beside(found: ClassAnswer) -> Table:
    problem = found.solution.problem
    one = problem.together
    told_weights = f"w1 {one.latency_weight:.4g} /s, w2 {one.power_weight:.4g} /W"
    table = Table("", title=f"{one.arrival_rate:.4g} requests/s, load {one.load:.3g}, {told_weights}")
    for heading in (*(f"{each.name}\nmean ms" for each in problem.classes), "power\nW", "mean\nbatch", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, told in {"optimal": found.solution.performance, **found.compared}.items():
        latency = (f"{1e3 * seconds:.4g}" for seconds in told.mean_latency)
        style = "bold" if name == "optimal" else None
        table.add_row(name, *latency, f"{told.power:.4g}", f"{told.mean_batch_size:.2f}", f"{found.cost(told):.6g}", style=style)
    return table
