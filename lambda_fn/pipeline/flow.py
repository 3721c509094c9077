"""What a user writes down: stages, and how they are put together. Nothing here runs.

``Stage`` is one class and its workers; ``Sequential``, ``Ensemble`` and ``Switch`` are made of stages and of each other.
``lay_out`` turns them into the list of stages and places that ``pipeline_state`` routes by.
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import INF, Policy, size_or_timeout

from .pipeline_state import END, Fork, Meet, Place, StageRule

MAX_WORKERS = 256  # of a stage
NEAR = 0.75  # how much alike two names are of which one is meant by the other
Cpus = Sequence["int | Collection[int]"]


class Stage:
    """An ordinary class with ``predict``, and who runs it.

    Parameters
    ----------
    made_by : class, or another callable
        Called once in each worker with ``args`` and ``kwargs``; what it returns has ``predict``. Where workers are processes, it
        must be one that can be imported, and its arguments ones that can be pickled.
    workers : int
        Each with an object of its own, which it calls for one batch, or one item, at a time.
    processes : bool
        Whether workers are processes, or threads of this one.
    batch_size : int or None
        ``predict`` gets a list of so many items at most and returns a list; ``None``: it gets one item and returns its output.
    wait : float
        Seconds that the oldest item of a batch waits at most for others, counted from when it came to this stage; while all
        workers are busy it waits for them.
    policy : Policy or None
        Any table instead of the two above; the workers are its servers.
    cpus : sequence or None
        One entry for each worker: the CPU, or the CPUs, that it may run on.
    name : str or None
        What errors and metrics call it; by default the name of the class.
    timeout : float or None
        Seconds one call may take. A process that takes longer is killed, and its items fail.

    Raises
    ------
    InvalidInput
        Also for one of ``kwargs`` that ``made_by`` does not name, and that is nearly called as an option above.
    """

    def __init__(
        self,
        made_by: Callable[..., Any],
        *args: Any,
        workers: int | None = None,
        processes: bool = True,
        batch_size: int | None = None,
        wait: float = 0.0,
        policy: Policy | None = None,
        cpus: Cpus | None = None,
        name: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        require(callable(made_by), "made_by", made_by, "a class, or another callable that returns an object with predict")
        if isinstance(made_by, type):
            require(callable(getattr(made_by, "predict", None)), "made_by", made_by.__qualname__, "a class with a method predict")
        _refuse_misspelt(made_by, kwargs)
        if name is None:
            name = getattr(made_by, "__name__", type(made_by).__name__)
        require(isinstance(name, str) and bool(name), "name", name, "a text that is not empty")
        require(isinstance(processes, bool), "processes", processes, "True or False; how many there are is said by workers")
        self.made_by, self.args, self.kwargs = made_by, args, kwargs
        self.name = name
        self.processes = processes
        self.cpus = None if cpus is None else _checked_cpus(cpus)
        if workers is None:
            workers = 1 if self.cpus is None else len(self.cpus)
        require(_whole(workers) and 1 <= workers <= MAX_WORKERS, "workers", workers, f"an integer from 1 to {MAX_WORKERS}")
        require(self.cpus is None or len(self.cpus) == workers, "cpus", cpus, f"one entry for each of the {workers} workers")
        require(
            batch_size is None or (_whole(batch_size) and batch_size >= 1), "batch_size", batch_size, "an integer >= 1, or None"
        )
        require(isinstance(wait, (int, float)) and 0 <= wait < INF, "wait", wait, "a number of seconds >= 0")
        require(wait == 0 or batch_size is not None, "wait", wait, "0 without batch_size: an item alone waits for no other")
        require(policy is None or isinstance(policy, Policy), "policy", policy, "a table of sluice.batching.policy, or None")
        require(policy is None or batch_size is None, "policy", policy, "one of policy and batch_size, with or without wait")
        require(
            policy is None or not policy.beside, "policy", policy, "a table without others beside it: its workers serve it alone"
        )
        require(policy is None or policy.columns == 1, "policy", policy, "a table of one column: no item of a stage has a slack")
        require(timeout is None or (is_duration(timeout) and timeout < INF), "timeout", timeout, "a number of seconds > 0, or None")
        require(timeout is None or processes, "timeout", timeout, "None where workers are threads, which cannot be killed")
        self.workers = workers
        self.timeout = timeout
        self.policy = size_or_timeout(batch_size, wait) if batch_size is not None else policy


class Sequential:
    """One part after the other: what one returns is the input of the next."""

    def __init__(self, *parts: Flow) -> None:
        _check_parts("Sequential", parts)
        self.parts = parts


class Ensemble:
    """Every part gets the input; ``combine`` makes one output of the list of theirs, which it is without.

    An item of which one part fails fails at once. ``combine`` runs in a thread.
    """

    def __init__(self, *parts: Flow, combine: Callable[[list[Any]], Any] | None = None) -> None:
        _check_parts("Ensemble", parts)
        require(combine is None or callable(combine), "combine", combine, "a function of the list of outputs, or None")
        self.parts = parts
        self.combine = combine


class Switch:
    """One part gets the input: that of the number, from 0, which ``choose`` returns for it. ``choose`` runs in a thread."""

    def __init__(self, choose: Callable[[Any], int], *parts: Flow) -> None:
        _check_parts("Switch", parts)
        require(callable(choose), "choose", choose, "a function of an item that returns the number of a part")
        self.choose = choose
        self.parts = parts


Flow = Stage | Sequential | Ensemble | Switch


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a flow by their numbers, what each does, and where an item goes first.

    ``encoded[i]``: whether what stage ``i`` puts out must be bytes, as a process gets it; ``entry_encoded``: whether inputs must.
    """

    stages: list[Stage] = field(default_factory=list)
    rules: list[StageRule] = field(default_factory=list)
    encoded: list[bool] = field(default_factory=list)
    entry: Place = END
    entry_encoded: bool = False


def lay_out(flow: Flow, max_items: int) -> Layout:
    """The layout of ``flow``, of which at most ``max_items`` items are under way; raises ``InvalidInput``."""
    require(isinstance(flow, Flow), "flow", flow, "a Stage, Sequential, Ensemble or Switch")
    layout = Layout()
    entry = _place(flow, END, layout)
    seen: Counter[str] = Counter()
    for number, (stage, rule) in enumerate(zip(layout.stages, layout.rules, strict=True)):
        seen[stage.name] += 1
        name = stage.name if seen[stage.name] == 1 else f"{stage.name}-{seen[stage.name]}"
        layout.rules[number] = replace(rule, name=name)
        if rule.policy is not None:
            rows = rule.policy.hold
            full = next(q for q in range(len(rows)) if all(hold < INF for hold in rows[q:]))
            require(full <= max_items, "max_items", max_items, f"at least {full}: the table of {name} waits for so many")
        layout.encoded.append(_bytes_for(rule.then, layout))
    return replace(layout, entry=entry, entry_encoded=_bytes_for(entry, layout))


def _place(flow: Flow, then: Place, layout: Layout) -> Place:
    """Lay out ``flow``, which is followed by ``then``; where its items enter."""
    match flow:
        case Stage():
            return _add(flow, then, layout)
        case Sequential():
            # From the first on, so that numbers grow along the way; what follows a part is known when it is laid out.
            entries: list[Place] = []
            first = len(layout.rules)
            for part in flow.parts:
                start = len(layout.rules)
                entries.append(_place(part, _Next, layout))
                if len(entries) > 1:
                    _patch(layout, first, start, entries[-1])
                first = start
            _patch(layout, first, len(layout.rules), then)
            return entries[0]
        case Ensemble():
            branches = tuple(_place(part, Meet(), layout) for part in flow.parts)
            combiner = Stage(_Combiner, flow.combine, processes=False, name="ensemble")
            return Fork(branches, _add(combiner, then, layout))
        case Switch():
            chooser = Stage(_Chooser, flow.choose, len(flow.parts), processes=False, name="switch")
            number = _add(chooser, END, layout)
            branches = tuple(_place(part, then, layout) for part in flow.parts)
            layout.rules[number] = replace(layout.rules[number], branches=branches)
            return number


_Next = Meet()  # stands for what follows until that is laid out


def _patch(layout: Layout, start: int, end: int, then: Place) -> None:
    for number in range(start, end):
        if layout.rules[number].then is _Next:
            layout.rules[number] = replace(layout.rules[number], then=then)


def _add(stage: Stage, then: Place, layout: Layout) -> int:
    policy = None if stage.policy is None else replace(stage.policy, servers=stage.workers)
    layout.stages.append(stage)
    layout.rules.append(StageRule(stage.name, stage.workers, policy, then, timeout=stage.timeout))
    return len(layout.rules) - 1


def _bytes_for(place: Place, layout: Layout) -> bool:
    """Whether what comes to ``place`` goes to a process."""
    if isinstance(place, Fork):
        return any(_bytes_for(branch, layout) for branch in place.branches)
    if not isinstance(place, int):
        return False
    branches = layout.rules[place].branches
    return any(_bytes_for(branch, layout) for branch in branches) if branches else layout.stages[place].processes


class _Combiner:
    def __init__(self, combine: Callable[[list[Any]], Any] | None) -> None:
        self._combine = combine

    def predict(self, outputs: list[Any]) -> Any:
        return outputs if self._combine is None else self._combine(outputs)


class _Chooser:
    def __init__(self, choose: Callable[[Any], int], parts: int) -> None:
        self._choose, self._parts = choose, parts

    def predict(self, item: Any) -> int:
        chosen = self._choose(item)
        try:  # an integer of numpy, as argmax gives it, is one too
            number = -1 if isinstance(chosen, bool) else operator.index(chosen)
        except TypeError:
            number = -1
        require(0 <= number < self._parts, "choose", chosen, f"the number of a part, from 0 to {self._parts - 1}")
        return number


def _refuse_misspelt(made_by: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse an argument by name that what makes the stage's objects does not name, and that is nearly called as an option is."""
    options = [each.name for each in inspect.signature(Stage).parameters.values() if each.kind is each.KEYWORD_ONLY]
    try:
        own = list(inspect.signature(made_by).parameters)
    except (TypeError, ValueError):  # it is of C
        own = []
    for name in (name for name in kwargs if name not in own):
        meant = difflib.get_close_matches(name.lower(), options, n=1, cutoff=NEAR)
        require(not meant, name, kwargs[name], f"an option of Stage, or one of what it calls; did you mean {''.join(meant)}?")


def _check_parts(name: str, parts: tuple[Any, ...]) -> None:
    require(len(parts) > 0, name, parts, "at least one part")
    for part in parts:
        require(isinstance(part, Flow), name, part, "parts that are a Stage, Sequential, Ensemble or Switch")


def _checked_cpus(cpus: Cpus) -> list[list[int]]:
    if not hasattr(os, "sched_setaffinity"):
        raise InvalidInput("cpus", cpus, "None: this system does not let a process choose its CPUs")
    allowed = os.sched_getaffinity(0)
    require(not isinstance(cpus, (int, str)) and len(cpus) > 0, "cpus", cpus, "a list with one entry for each worker")
    for entry in cpus:
        require(isinstance(entry, int | Collection), "cpus", entry, "a CPU, or a list of them, for each worker")
    entries = [[entry] if isinstance(entry, int) else list(entry) for entry in cpus]
    for entry in entries:
        require(len(entry) > 0, "cpus", entry, "at least one CPU for each worker")
        for cpu in entry:
            require(_whole(cpu) and cpu in allowed, "cpus", cpu, "one of " + ", ".join(map(str, sorted(allowed))))
    return entries


def is_duration(value: object) -> bool:
    """Whether this is a number of seconds > 0, perhaps one of numpy."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and math.isfinite(value)
