"""An answer of `sluice smdp` in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

from rich.table import Column, Table

from sluice.batching.policy import Policy
from sluice.optimizer.recommend.words import in_brackets, milliseconds, two_digits
from sluice.optimizer.smdp import Answer, Corner, WorkersSolution


class _Told(Protocol):
    """What every line of a table tells of."""

    @property
    def power(self) -> float: ...
    @property
    def mean_batch_size(self) -> float: ...


def in_words(found: Answer) -> Iterator[str]:
    """The tables and what is said of them, a sentence or a table in words each."""
    for number, policy in enumerate(found.policies, 1):
        name = "waiting requests and what is done" if len(found.policies) == 1 else f"phase {number}"
        yield f"{name} -- {_spoken(policy)}"
    if found.chosen is not None:
        low, high = found.chosen.weights
        yield f"w2 from {low:.6g} to {'any larger' if high is None else f'{high:.6g}'} keeps the SLO with the least power"
    if found.way:
        yield (
            f"{milliseconds(found.way)} of it are kept free for the way through buffer and network (--buffer-overhead); the "
            "percentiles are without them"
        )
    if found.one_table is not None and found.filtered is not None:
        one, filtered = found.one_table, found.filtered
        yield f"one table for all phases -- {_spoken(one.policy)}"
        beyond, guessed = (two_digits(found.beyond_seen(cost)) for cost in (one.cost, filtered.cost))
        yield (
            f"A buffer follows one table and no phase; the cheapest of those tried: {one.origin}. It costs {beyond} % more "
            f"than if the phase were seen; tables per phase under the filter that guesses it cost {guessed} % more (simulated)."
        )


def in_tables(found: Answer) -> Iterator[Table | str]:
    """What the tables come to, and how the method ended."""
    if found.workers:
        yield _workers_table(found.workers, found.arrival_rate)
    else:
        yield _table(found)
        solution = found.solution
        ended = "converged" if solution.converged else "did not converge" if solution.bound is None else "was stopped"
        yield f"{solution.method}: {ended} after {solution.iterations} iterations, residual {solution.residual:.2g}"
        if solution.bound is not None:
            yield f"The best table so far costs {solution.gain:.6g}, and none less than {max(0.0, solution.bound):.6g}."
    if found.corners:
        yield _frontier(found.corners)


def _spoken(policy: Policy) -> str:
    """A table in words: how many waiting requests lead to what."""
    parts = []
    rows = [(q, take) for q, take in enumerate(policy.take)]
    for kind, group in groupby(rows[1:], key=lambda row: "wait" if row[1] == 0 else "all" if row[1] == row[0] else str(row[1])):
        members = [q for q, _ in group]
        first, last = members[0], members[-1]
        span = f"from {first} on" if last == rows[-1][0] else f"{first}" if first == last else f"{first}-{last}"
        parts.append(f"{span}: {'take all' if kind == 'all' else kind if kind == 'wait' else f'take {kind}'}")
    return "; ".join(parts)


def _table(found: Answer) -> Table:
    problem, latency = found.problem, found.latency
    title = (
        f"{problem.arrival_rate:.4g} requests/s, load {problem.load:.3g}, "
        f"w1 {problem.latency_weight:.4g} /s, w2 {problem.power_weight:.4g} /W"
    )
    table = Table(Column("", no_wrap=True), title=title, caption=None if found.latency_is_exact else _caption(found))
    percentiles = list(next(iter(latency.values()), {}))
    for heading in ("mean\nms", *(f"{name}\nms" for name in percentiles), "power\nW", "mean\nbatch", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, seconds, told, cost in _rows(found):
        table.add_row(
            name,
            f"{1e3 * seconds:.4g}",
            *(f"{1e3 * latency[name][percentile]:.4g}" if name in latency else "-" for percentile in percentiles),
            f"{told.power:.4g}",
            f"{told.mean_batch_size:.2f}",
            f"{cost:.6g}",
            style="bold" if name == "optimal" else None,
        )
    return table


def _caption(found: Answer) -> str:
    return "percentiles are simulated" if found.filtered is None else "percentiles and the filtered tables are simulated"


def _rows(found: Answer) -> Iterator[tuple[str, float, _Told, float]]:
    """Name, mean latency (s), power and batches, cost of each line."""
    problem = found.problem
    exact = {"phase seen" if found.filtered else "optimal": found.solution.performance, **found.compared}
    for name, performance in exact.items():
        yield name, performance.mean_latency, performance, problem.cost(performance.mean_latency, performance.power)
    if found.filtered is not None:
        yield "filtered", found.filtered.mean_latency.value, found.filtered, found.filtered.cost
    if found.one_table is not None:
        performance = found.one_table.performance
        yield "one table", performance.mean_latency, performance, found.one_table.cost


def _workers_table(workers: WorkersSolution, arrival_rate: float) -> Table:
    table = Table("", "", title=f"{arrival_rate:.4g} requests/s, {workers.policy.servers} workers", show_header=False)
    latency = workers.mean_latency
    table.add_row("policy", workers.policy.kind)
    interval = in_brackets(*(f"{1e3 * seconds:.4g}" for seconds in latency))
    table.add_row("mean latency, simulated", f"{milliseconds(latency.value)}{interval}")
    table.add_row("power of all", f"{workers.power:.4g} W")
    table.add_row("mean batch", f"{workers.mean_batch_size:.2f}")
    table.add_row("cost", f"{workers.cost:.6g}")
    return table


def _frontier(corners: Sequence[Corner]) -> Table:
    table = Table("w2", title="what the weights can buy")
    for name in ("mean latency ms", "power W", "requests/J", "mean batch"):
        table.add_column(name, justify="right")
    for corner in corners:
        solution = corner.solution
        low, high = corner.weights
        table.add_row(
            f"{low:.4g} - {'' if high is None else f'{high:.4g}'}",
            f"{1e3 * solution.mean_latency:.4g}",
            f"{solution.power:.5g}",
            f"{solution.energy_efficiency:.4g}",
            f"{solution.performance.mean_batch_size:.2f}",
        )
    return table
