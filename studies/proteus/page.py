"""The page docs/proteus.md: every system on the published demand, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..claims import Claim, claimed
from ..markdown import page_of, table
from .claims import (
    ablation_claims,
    batching_claims,
    burst_claims,
    deadline_claims,
    family_claims,
    percent,
    system_claims,
)
from .computation import WANDERING
from .drawings import KINDS
from .results import Run, Study
from .systems import FIRST_GUESS, OURS, PROTEUS, PUBLISHED_HEADROOM

PUBLISHED = {  # violations and accuracy of the published simulator, counted as here, nine families on 40 devices
    "Clipper-HA": ("60", "99.9"),
    "Clipper-HT": ("36", "80.2"),
    "INFaaS": ("59", "96.1"),
    "Sommelier": ("21", "98.3"),
    "Proteus": ("25 to 30", "99.1 to 99.6"),
}
PUBLISHED_FAMILIES = 9


def said(claims: Iterable[Claim]) -> str:
    """Claims as a table."""
    return claimed(claims, spaced=True)


def share(value: float) -> str:
    """A share of 1 as a percentage with as many digits as tell it from none."""
    return "0" if value < 5e-6 else f"{100 * value:.3f}" if value < 0.001 else f"{100 * value:.2f}"


COLUMNS: dict[str, Callable[[Run], str]] = {
    "violations, %": lambda run: share(run.violations),
    "effective accuracy, %": lambda run: f"{run.accuracy:.2f}",
    "over all requests, %": lambda run: f"{run.accuracy * (1 - run.violations):.2f}",
    "largest drop, points": lambda run: f"{run.drop:.2f}",
    "in time, 1/s": lambda run: f"{run.throughput:.1f}",
    "never answered, %": lambda run: share(run.unanswered),
    "devices busy, %": lambda run: "" if math.isnan(run.utilisation) else f"{100 * run.utilisation:.0f}",
    "plans": lambda run: str(run.plans or ""),
    "loads": lambda run: str(run.swaps or "") if run.plans else "",
}
FEW = ("violations, %", "effective accuracy, %", "over all requests, %", "largest drop, points")


def runs_table(runs: Iterable[Run], columns: Iterable[str] = COLUMNS, first: str = "") -> str:
    """Runs, one a row."""
    columns = list(columns)
    rows = ([run.system, *(COLUMNS[column](run) for column in columns)] for run in runs)
    return table([first, *columns], rows, spaced=True)


def by_case(study: Study, part: str, first: str, measures: Sequence[str] = FEW[:2]) -> str:
    """A part's cases by its systems, the measures in one cell."""
    systems = study.systems(part)
    rows = []
    for case in study.cases(part):
        found = [study.run(part, case, system) for system in systems]
        rows.append([case, *("" if run is None else ", ".join(COLUMNS[m](run) for m in measures) for run in found)])
    return table([first, *systems], rows, spaced=True)


def summary(study: Study) -> str:
    """The comparison of the systems, for the terminal."""
    parts = []
    for case in study.cases("systems"):
        parts.append(f"{case}\n\n{runs_table(study.of('systems', case))}")
    return "\n\n".join(parts)


def page(study: Study) -> str:
    """The page in Markdown."""
    facts = study.facts
    cases = study.cases("systems")
    parts = [
        "# Proteus, reproduced",
        """
        Made by `python -m studies.proteus DATA_FOLDER` from the profiles, variants and traces of Proteus's published artefact;
        without the folder, from what the runs left in `studies/data/proteus-*`. The artefact's licence allows comparison only: none
        of its files is kept here, and no number of it is in the code. The fleet that the project's tests and examples plan is its
        own.
        """,
        """
        Proteus (Ahmad et al., ASPLOS'24) serves families of model variants on a fixed fleet. As demand rises it takes quicker and
        less accurate variants; an integer program chooses the variants, their devices and the shares of the requests. Here this
        runs by this project's planner (`optimizer/fleet`), its control loop and its simulator, beside the systems that the paper
        compares with.
        """,
        "## What was run",
        described(study),
        """
        **Counted** are all that arrive: the violation ratio is 1 - answered within the deadline / all that arrived, whether the
        rest was late, given up or never routed. Effective accuracy is the mean accuracy of what was answered in time, each
        variant's in percent of the best of its family; *over all requests* a request that was not in time has accuracy 0. The drop
        is 100 less the lowest effective accuracy of ten seconds. *Loads*: devices that loaded another variant.
        """,
        systems_text(),
        "## The comparison",
    ]
    for case in cases:
        parts += [f"**{case}.** {highest(study, case)}", runs_table(study.of("systems", case))]
    parts += [milder_text(study), published(study)]
    parts += [f"![{what} over time](figures/proteus-{kind}.svg)" for kind, what in KINDS.items()]
    parts += [
        """
        Clipper-HT is below what the second of these shows.
        """,
        """
        *Bound*: what no system can exceed. Who arrives in ten seconds has to be served in these or within the deadline after them;
        a device then serves at most the best b / l(b) of all batches that alone keep the deadline; it divides its time among
        variants as it likes, at no cost, and demand is known: a linear program. It is lexicographic: first the most served, then
        the greatest accuracy at that; a system that serves fewer may have a higher effective accuracy. It leaves out that arrivals
        are uneven within ten seconds and that variants take time to load.
        """,
        said(system_claims(study)),
        ours_text(study),
    ]
    parts += details(study)
    parts += ["## Time", *times(study)]
    if facts["unprofiled"]:
        parts.append("Left out, as no device was profiled with them: " + ", ".join(facts["unprofiled"]) + ".")
    return page_of(parts)


def described(study: Study) -> str:
    """Demand and fleets in words."""
    facts = study.facts
    families = facts["families"]
    kinds = {name: ", ".join(f"{n} {kind}" for kind, n in devices.items()) for name, devices in facts["fleets"].items()}
    fleets = "; ".join(f"{name} ({listed})" for name, listed in kinds.items())
    deadlines = set(facts["deadlines_ms"].values())
    deadline = f"{deadlines.pop():g} ms" if len(deadlines) == 1 else "by family"
    few = ""
    if len(families) < PUBLISHED_FAMILIES:
        few = f"""
        The published runs have nine families; {len(families)} of them were at hand, and these alone are no strain for 40 devices:
        the most accurate variants could serve nearly all of their demand. So there is a second fleet, of the same types, so short
        of devices that accuracy has to give way."""
    return f"""
    Demand {facts["experiment"]}: {facts["requests"]:,} requests in {facts["duration"]:g} s, of {len(families)} families
    ({", ".join(f"{name} {n:,}" for name, n in families.items())}); deadline {deadline}. Fleets: {fleets}. {few}"""


def systems_text() -> str:
    """Who is compared, in words."""
    return f"""
    **Ours** plans by the same integer program as Proteus, with a headroom that is chosen each time by what it is expected to earn;
    devices of one type that host one variant share a queue; a batch may have any size, waits a tenth of its slack to fill, and who
    could not be in time is given up. **{PROTEUS}**: a queue for every device, batches of 1, 2, 4 or 8 that wait as long as the
    oldest can, headroom {PUBLISHED_HEADROOM:g}; who could not be in time even alone is given up. **Sommelier**: the devices of a
    family are fixed by the optimum for the busiest ten seconds, each takes the variant that bears its part of the requests.
    **INFaaS-accuracy**: greedy changes every second, at once. **Clipper-HA** and **-HT**: the most and the least accurate variants,
    placed once for the mix of the demand; batches by AIMD, nobody given up. Before the first second all expect {FIRST_GUESS:g}
    request/s of each family, and what moves learns the rest (what that costs, and Proteus the most, is said under *What it hangs
    on*). What is placed once is told more than it could know: Sommelier,
    Clipper, and the ablation without placement are designed for the busiest ten seconds of the very trace. A second passes between
    asking for a plan and having loaded it: half for the plan (none for INFaaS), half for the variant; sooner than any published.
    """


def highest(study: Study, case: str) -> str:
    """The best accuracy, in words."""
    best, requests = study.facts["best"][case], study.facts["families"]
    mean = sum(best[family] * n for family, n in requests.items()) / sum(requests.values())
    return f"With the most accurate variant of each family that a device serves alone the mean accuracy is {mean:.2f} %."


def milder_text(study: Study) -> str:
    """What became of Clipper's batches, in words."""
    runs = ", ".join(f"{percent(run.violations)} on {run.case}" for run in study.of("milder"))
    return f"""
    Clipper's AIMD finds the deadline by passing it again and again. If it were told to keep half of the deadline, and no larger
    batch than does, Clipper-HA would have {runs}.
    """


def published(study: Study) -> str:
    """What was published, in words."""
    listed = ", ".join(f"{name} {violations} % at {accuracy} %" for name, (violations, accuracy) in PUBLISHED.items())
    n = len(study.facts["families"])
    which = "the same" if n == PUBLISHED_FAMILIES else f"all nine families, of which {n} are here"
    return f"""
    The published simulator, run on {which} ({study.facts["experiment"].partition("/")[0]}, 40 devices, 300 ms) and counted in the
    same way, had violations of: {listed} effective accuracy. Its routing does not follow the shares of the plan, its full batches
    wait, its batches are of 1, 2, 4 and 8 alone, and its demand is averaged over seconds; what is called {PROTEUS} here follows
    the shares and does not let full batches wait.
    """


def ours_text(study: Study) -> str:
    """Ours beside the bound, in words."""
    sentences = []
    for case in study.cases("systems"):
        ours, bound = study.run("systems", case, OURS), study.run("systems", case, "bound")
        if ours and bound:
            sentences.append(
                f"On {case} ours has {percent(ours.violations)} violations at {ours.accuracy:.2f} %, the bound"
                f" {percent(bound.violations)} at {bound.accuracy:.2f} %."
            )
    return " ".join(sentences)


def details(study: Study) -> list[str]:
    """What beside the comparison was run, as far as it was."""
    parts = (steps, headrooms, fresh_demand, burst, deadlines, batching, families, what_it_hangs_on)
    return [text for part in parts for text in part(study)]


def steps(study: Study) -> list[str]:
    """From Proteus to ours, one change after the other, and Proteus without each of its parts."""
    if not study.of("steps"):
        return []
    return [
        "## From Proteus to ours",
        "One change after the other.",
        *fleet_by_fleet(study, "steps"),
        steps_text(study),
        "## Ablations",
        *fleet_by_fleet(study, "ablations"),
        said(ablation_claims(study)),
        ablations_text(study),
    ]


def fleet_by_fleet(study: Study, part: str) -> list[str]:
    """A part of the page, a table for each fleet."""
    return [text for case in study.cases(part) for text in (f"**{case}**", runs_table(study.of(part, case), FEW))]


def headrooms(study: Study) -> list[str]:
    """Ours with each headroom kept to, and under several times the demand."""
    parts = []
    if study.of("headrooms"):
        parts += [
            "## Headroom",
            f"""
            What ours has on {last_fleet(study)} if it keeps to one headroom, instead of the one that is expected to earn the most:
            violations, effective accuracy, and accuracy over all requests, %. Who would rather have accuracy than answers in time,
            or the other way round, sets one.
            """,
            by_case(study, "headrooms", "headroom", FEW[:3]),
            "![violations against accuracy](figures/proteus-headrooms.svg)",
        ]
    if study.of("stress"):
        parts += [stress_text(study), runs_table(study.of("stress"), FEW)]
    return parts


def fresh_demand(study: Study) -> list[str]:
    """Demand drawn after all settings had been fixed."""
    if not study.of("fresh"):
        return []
    return [
        "## On demand that nobody tuned for",
        f"""
        Drawn with seeds that were used for nothing else, after all settings had been fixed, on {last_fleet(study)}: two minutes, in
        the mean as much of each family as in the trace, or twice that. *Wandering*: the logarithm of each family's rate is a random
        walk of its own, with steps of standard deviation {WANDERING:g} a second. Violations and effective accuracy, %.
        """,
        by_case(study, "fresh", "demand"),
    ]


def burst(study: Study) -> list[str]:
    """A minute of much more demand."""
    if not study.of("burst"):
        return []
    begins, ends, _, factor = study.facts["burst"]
    return [
        "## A burst",
        f"""
        Poisson arrivals in the mix of the trace at a third of its mean rate, {factor:g} times as many from {begins:g} to
        {ends:g} s; drawn by us. On {last_fleet(study)}.
        """,
        runs_table(study.of("burst"), FEW),
        said(burst_claims(study)),
    ]


def deadlines(study: Study) -> list[str]:
    """Every published deadline."""
    if not study.of("deadlines"):
        return []
    return [
        "## Deadlines",
        f"""
        Violations and effective accuracy, %, on {last_fleet(study)}, under the published deadlines: multiples of each family's own,
        and one for all families but those that need longer, in ms.
        """,
        by_case(study, "deadlines", "deadlines"),
        "![violations and accuracy by deadline](figures/proteus-deadlines.svg)",
        said(deadline_claims(study)),
        """
        A longer deadline lets devices serve more, and a planner that keeps to a headroom turns that into accuracy, not into
        fewer violations: it loads them as much as before.
        """,
    ]


def batching(study: Study) -> list[str]:
    """Tables on one queue, and on whole fleets."""
    parts = []
    if study.cells:
        parts += ["## Batching", batching_text(study), cells_table(study)]
        parts += ["![violations on one queue](figures/proteus-batching.svg)", said(batching_claims(study)), why_text(study)]
    if study.of("batching"):
        parts += [
            """
            On whole fleets, with the planner of Proteus and a queue for every device: violations and effective accuracy, %. The
            published traces, and Poisson and gamma arrivals at the rates of the first.
            """,
            by_case(study, "batching", "arrivals"),
        ]
    return parts


def families(study: Study) -> list[str]:
    """Each family by itself, under Proteus and ours."""
    last, few = last_fleet(study), ("violations, %", "effective accuracy, %", "in time, 1/s")
    return [
        "## By family",
        f"On {last}; first {PROTEUS}, then ours.",
        runs_table(study.of(f"families, {PROTEUS}", last), few),
        runs_table(study.of(f"families, {OURS}", last), few),
        said(family_claims(study)),
    ]


def what_it_hangs_on(study: Study) -> list[str]:
    """The time to load a variant, the arrivals within a second, and what is expected at first."""
    parts = []
    if study.of("loading"):
        parts += [
            "## What it hangs on",
            f"""
            Violations and effective accuracy, %, on {last_fleet(study)}, by the time that a device takes to load a variant:
            """,
            by_case(study, "loading", "loading"),
        ]
    if study.of("seeds"):
        parts += [
            "And with the arrivals of every second drawn again at random within it, by seed:",
            by_case(study, "seeds", "seed"),
        ]
    if study.of("guesses"):
        parts += [
            """
            And by what is expected of each family before the first second. A plan keeps of the placement what it can, so that the
            beginning is felt for longer than it lasts.
            """,
            by_case(study, "guesses", "expected"),
        ]
    return parts


def last_fleet(study: Study) -> str:
    """The fleet that is short of devices, in words."""
    return study.cases("systems")[-1]


def steps_text(study: Study) -> str:
    """What the steps show, in words."""
    late = [run.violations for run in study.of("steps") if run.system == "the same, nobody given up"]
    table, pooled, ours = (study.of("steps", study.cases("steps")[-1])[i] for i in (-3, -2, -1))
    return f"""
    Where nobody is given up ({percent(*late)}) violations come near those of the published simulator, if on other fleets and
    families. On the last fleet our table leaves {percent(table.violations)} of them, one queue for like devices
    {percent(pooled.violations)}, and headroom {percent(ours.violations)}, for {pooled.accuracy - ours.accuracy:.2f} points of
    accuracy.
    """


def stress_text(study: Study) -> str:
    """More demand, in words."""
    return f"""
    Where demand is higher the choice is a cautious one: the fewest violations and the most over all requests, but less accuracy
    than a small headroom kept to. With {study.facts["stress"]:g} times the demand, every second's arrivals so
    many times over and drawn again at random within it, on {study.cases("stress")[0]}:
    """


def ablations_text(study: Study) -> str:
    """Why some of it is otherwise than in the paper, in words; nothing where it is not."""
    runs = {run.system: run for run in study.of("ablations", study.cases("ablations")[-1])}
    alone, sommelier = runs["without adaptive batching"], study.run("systems", study.cases("ablations")[-1], "Sommelier")
    sentences = []
    if alone.violations < runs[PROTEUS].violations:
        sentences.append(
            "Without batching the planner knows here that a device serves one request after the other, and takes quicker variants:"
            f" that costs accuracy, {alone.drop:.1f} points at the worst, and no violations; not to wait even saves some."
        )
    if sommelier is not None and sommelier.violations < runs["without model placement"].violations:
        sentences.append(
            "Without placement a plan takes of its devices what the demand needs and 5 % more, where Sommelier uses them all."
        )
    return " ".join(sentences)


def batching_text(study: Study) -> str:
    """How batching is compared, in words."""
    return f"""
    One device and one variant, at a load that is a part of the capacity which Proteus reckons with: the mean of the violations over
    the {study.cells[0].profiles} pairs of a device type and a variant that serve within the deadline. AIMD is Clipper's as it
    moves, one more after each batch that took no longer than the deadline, or half of it, and a tenth less after each that did;
    nobody is given up. Nexus
    plans its batch for the mean rate, such that gathering and serving it fit into the deadline; what it cannot serve in time it
    drops.
    """


def why_text(study: Study) -> str:
    """What the comparison of batching comes to, in words, where it comes to that."""
    _, aimd, planned, any_batch = (claim.holds for claim in batching_claims(study))
    if aimd is not True or planned is not None or any_batch is not False:
        return ""
    return """
    So waiting for more is worth what the paper says beside AIMD, which finds out too late, and beside a Nexus whose batches are
    those of the mean rate, as long as devices are not loaded much. It is not worth it by itself: early drop with the same largest
    batch, which never waits, has fewer violations wherever there are any to speak of, and at high load Nexus has. What then decides
    is who is given up: deadline batching gives up who cannot be in time alone, takes a full batch all the same, and is late with
    the oldest of it; early drop reckons with the full batch. Where nobody is given up, the same deadline batching is no better than
    AIMD.
    """


def cells_table(study: Study) -> str:
    """Violations on one queue, %."""
    policies = list(dict.fromkeys(cell.policy for cell in study.cells))
    rows: dict[tuple[str, float], dict[str, float]] = {}
    for cell in study.cells:
        rows.setdefault((cell.arrivals, cell.load), {})[cell.policy] = cell.violations
    listed = sorted(rows.items(), key=lambda row: [c.arrivals for c in study.cells].index(row[0][0]))
    header = ["arrivals", "load", *policies]
    lines = ([kind, f"{load:g}", *(share(found[policy]) for policy in policies)] for (kind, load), found in listed)
    return table(header, lines, spaced=True)


def times(study: Study) -> list[str]:
    """What took how long, in words."""
    measured = study.facts["measured"]
    decisions = []
    for case in study.cases("systems"):
        for name in (OURS, PROTEUS):
            run, seconds = study.run("systems", case, name), measured["decisions"].get(f"{name}, {case}")
            if run is not None and seconds is not None:
                asked = f"{run.asked / run.plans:.1f} plans each"
                decisions.append([f"{name}, {case}", str(run.plans), asked, *(f"{value:.2f}" for value in seconds)])
    found = measured["instances"]
    instances = ""
    if found:
        instances = f"""
        The {found["number"]} instances of 40 devices with proven optima are solved to these within {max(found["off"], 1e-6):.0e}
        percentage points, in {found["mean_seconds"]:.3f} s in the mean, at most {found["longest_seconds"]:.3f}."""
    rows = measured["real time"].items()
    found_at_once = ", ".join(f"{percent(missed)} at {accuracy:.2f} % on {case}" for case, (missed, accuracy) in rows)
    real = ""
    if found_at_once:
        real = f"""
        In real time, where a plan of ours comes into force once all of its decision's plans have been found, violations are
        {found_at_once}: that hangs on the machine, and is other the next time."""
    return [
        f"""
        {instances} The paper's program took 4.2 s in the mean, by Gurobi. In the runs a decision is one plan of Proteus, and of
        ours one for each headroom that it tries; seconds of wall-clock time for all of a decision's plans, on a machine of two
        cores that did other things as well:
        """,
        table(["", "decisions", "asked for", "mean, s", "longest, s"], decisions, spaced=True),
        f"""
        Everywhere else on this page a plan comes into force half a second after it was asked for, whatever it took, so that no run
        depends on the machine. Decisions of ours may take longer than that. {real} All of this page took
        {measured["seconds"]:.0f} s of one core.
        """,
    ]
