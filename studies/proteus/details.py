"""The parts of the page beside the comparison: what was run of them is shown."""

from __future__ import annotations

from ..markdown import table
from .claims import ablation_claims, batching_claims, burst_claims, deadline_claims, family_claims, percent
from .drawn import BURST, CALM, TIMES, WANDERING
from .results import Study
from .systems import OURS, PROTEUS
from .tables import FEW, by_case, runs_table, said, share


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
            What ours has on {last_fleet(study)} if it keeps to one headroom for all families, with no rehearsal:
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
        *held_out(study),
    ]


def held_out(study: Study) -> list[str]:
    """Other kinds of it, on every fleet."""
    if not study.of("held out"):
        return []
    return [
        f"""
        And on every fleet. *Bursts*: {TIMES:g} times the rate between them, for {BURST:g} s in the mean, {CALM:g} s apart, each
        family's at other times. *A flash crowd*: half the rate, and for a quarter of the time twice the rate, of all families at
        once, from one moment to the next.
        """,
        by_case(study, "held out", "demand"),
        """
        How much what came counts beside what would come now ([model](model.md), 5.5) was settled on other seeds of the same kinds,
        four of each: late were 1.05 % in the mean without it and 1.07 with it, as accurate within 0.03 points, so that the demand
        that goes up and down by turns, for which it is there, gains alone. (There the mean was that of the same minutes; that it is
        of the minutes before came of the [live fleet](fleet-live.md), after these seeds had been run once: late were 1.18 % in
        the mean of the fifteen, now 1.14.) Much of what is late comes within the first ten seconds,
        as the first plan is for 1 request/s of each family. To begin with what can serve the most instead was tried on other
        seeds: 1.04 % in place of 1.55 on 12 devices, as accurate within 0.1 points; but 40 devices, which lack nothing, then keep
        quick variants for long, and have 98.8 % in place of 99.6 under bursts and in a flash crowd. So it is not done.
        """,
    ]


def burst(study: Study) -> list[str]:
    """A minute of much more demand."""
    if not study.of("burst"):
        return []
    begins, ends, _, factor = study.facts.burst
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
    {percent(pooled.violations)}, and all else of ours {percent(ours.violations)}, for {pooled.accuracy - ours.accuracy:.2f} points
    of accuracy.
    """


def stress_text(study: Study) -> str:
    """More demand, in words."""
    return f"""
    Where demand is higher the choice is a cautious one, since a family's violations are to stay within the target: it has the
    fewest, but less accuracy than a small headroom kept to, and may have less over all requests too. With
    {study.facts.stress:g} times the demand, every second's arrivals so many times over and drawn again at random within it,
    on {study.cases("stress")[0]}:
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
