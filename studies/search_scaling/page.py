"""The page docs/search-scaling.md."""

from __future__ import annotations

from sluice.optimizer.recommend.function_choice import N_RUNNERS_UP

from ..markdown import page_of, table
from .claims import at_base, exponent
from .computation import ARRIVAL_RATE, BASE, GOVERNING, LABELS, LEVELS, LONGEST_TIMEOUT, RUNS, SLO, TASKS
from .results import Study


def page(study: Study) -> str:
    """The page in Markdown."""
    found, whole, answer = (at_base(study.points, task) for task in ("search", "every point of the grid", "recommend"))
    settings = BASE.memory_sizes * BASE.batch_size * BASE.timeouts
    return page_of(
        [
            "# What a search costs",
            f"""
            Made by `python -m studies.search_scaling --compute` from the data that it leaves in
            [search-scaling.json](../studies/data/search-scaling.json). CPU seconds of one core, the least of {RUNS} runs with the
            compiled code warm, on {study.machine}; the powers travel better than the seconds.""",
            f"""
            **{BASE.memory_sizes} memory sizes × {BASE.batch_size} batch sizes × {BASE.timeouts} timeouts, MMPP(2):
            {found.seconds:.2f} s** and {found.megabytes:.0f} MB. The search (docs/model.md, 3.3) visits what may be the
            best setting of one of the {N_RUNNERS_UP + 1} best memory sizes; cost and SLO margin at every one of the
            {settings} points take {whole.seconds:.2f} s,
            {1e6 * whole.seconds / settings:.1f} µs each. `recommend` adds the frontier, the sensitivity and the
            break-even rate: {answer.seconds:.2f} s in all.""",
            f"""
            Setting: an MMPP of {ARRIVAL_RATE:.0f} requests/s whose phases differ in their rates by up to a factor of 16,
            {BASE.timeouts} timeouts to {LONGEST_TIMEOUT:g} s, {SLO.name} within {SLO.latency:g} s,
            service times by {len(LEVELS)} quantile points. From there one number at a time is varied. A power is the slope
            of log time over log number through the last three points; less than 1 means that a part is
            shared. MB are what the first run added to the peak of the process.""",
            growth_table(study),
            "![seconds and megabytes against each number](figures/search-scaling.svg)",
            """
            One batching law per timeout serves every batch size and memory size, so more memory sizes cost only the SLO's
            evaluation. Every phase of an MMPP may follow an arrival, which is the dearest case: a fit by Erlang states has
            as few rows to follow as it has states, however many stages these have. Memory goes to the uniformized chain,
            docs/model.md (1.4), which grows with the batch size, with the square of the phases, and with the largest
            rate times the longest timeout; and to the laws, which are kept for each timeout.""",
        ]
    )


def growth_table(study: Study) -> str:
    """Time, memory and exponent by task and parameter."""
    rows = [
        [task if parameter == GOVERNING[task][0] else "", LABELS[parameter], *growth(study, task, parameter)]
        for task in TASKS
        for parameter in GOVERNING[task]
    ]
    return table(["", "varied", "from, to", "CPU seconds", "MB", "time grows as"], rows)


def growth(study: Study, task: str, parameter: str) -> list[str]:
    """The first and the last point of a curve, and its power."""
    along = study.curve(task, parameter)
    first, last = along[0], along[-1]
    return [
        f"{first.value}, {last.value}",
        f"{first.seconds:.3g}, {last.seconds:.3g}",
        f"{first.megabytes:.0f}, {last.megabytes:.0f}",
        f"power {exponent(along):.1f}",
    ]
