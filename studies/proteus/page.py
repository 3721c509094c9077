"""The page docs/proteus.md: every system on the published demand, beside what was published."""

from __future__ import annotations

from sluice.optimizer.control import VIOLATIONS, ControlSettings

from ..markdown import page_of, table
from .claims import percent, system_claims
from .details import details
from .drawings import KINDS
from .results import Study
from .systems import FIRST_GUESS, OURS, PROTEUS, PUBLISHED_HEADROOM
from .tables import runs_table, said

PUBLISHED = {  # violations and accuracy of the published simulator, counted as here, nine families on 40 devices
    "Clipper-HA": ("60", "99.9"),
    "Clipper-HT": ("36", "80.2"),
    "INFaaS": ("59", "96.1"),
    "Sommelier": ("21", "98.3"),
    "Proteus": ("25 to 30", "99.1 to 99.6"),
}
PUBLISHED_FAMILIES = 9


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
    if facts.unprofiled:
        parts.append("Left out, as no device was profiled with them: " + ", ".join(facts.unprofiled) + ".")
    return page_of(parts)


def described(study: Study) -> str:
    """Demand and fleets in words."""
    facts = study.facts
    families = facts.families
    kinds = {name: ", ".join(f"{n} {kind}" for kind, n in devices.items()) for name, devices in facts.fleets.items()}
    fleets = "; ".join(f"{name} ({listed})" for name, listed in kinds.items())
    deadlines = set(facts.deadlines_ms.values())
    deadline = f"{deadlines.pop():g} ms" if len(deadlines) == 1 else "by family"
    few = ""
    if len(families) < PUBLISHED_FAMILIES:
        few = f"""
        The published runs have nine families; {len(families)} of them were at hand, and these alone are no strain for 40 devices:
        the most accurate variants could serve nearly all of their demand. So there is a second fleet, of the same types, so short
        of devices that accuracy has to give way."""
    return f"""
    Demand {facts.experiment}: {facts.requests:,} requests in {facts.duration:g} s, of {len(families)} families
    ({", ".join(f"{name} {n:,}" for name, n in families.items())}); deadline {deadline}. Fleets: {fleets}. {few}"""


def systems_text() -> str:
    """Who is compared, in words."""
    return f"""
    **Ours** plans by the same integer program as Proteus, with headrooms of each family that are chosen by rehearsing plans
    on what the demand did of late: the most accurate with at most {100 * VIOLATIONS:g} % of each family late. Shares follow
    the demand {1 / ControlSettings.look:g} times a second, where the others look every second and keep the shares of the
    plan; devices that a plan leaves over are used; devices of one type that host one variant share a queue; a batch may
    have any size, waits a tenth of its slack to fill, and who could not be in time is given up. **{PROTEUS}**: a queue for
    every device, batches of 1, 2, 4 or 8 that wait as long as the oldest can, headroom {PUBLISHED_HEADROOM:g}; who could
    not be in time even alone is given up. **Sommelier**: the devices of a family are fixed by the optimum for the busiest
    ten seconds, each takes the variant that bears its part of the requests. **INFaaS-accuracy**: greedy changes every
    second, at once. **Clipper-HA** and **-HT**: the most and the least accurate variants, placed once for the mix of the
    demand; batches by AIMD, nobody given up. Before the first second all expect {FIRST_GUESS:g} request/s of each family,
    and what moves learns the rest (what that costs, and Proteus the most, is said under *What it hangs on*). What is placed
    once is told more than it could know: Sommelier, Clipper, and the ablation without placement are designed for the
    busiest ten seconds of the very trace. A second passes between asking for a plan and having loaded it: half for the plan
    (none for INFaaS), half for the variant; sooner than any published.
    """


def highest(study: Study, case: str) -> str:
    """The best accuracy, in words."""
    best, requests = study.facts.best[case], study.facts.families
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
    n = len(study.facts.families)
    which = "the same" if n == PUBLISHED_FAMILIES else f"all nine families, of which {n} are here"
    return f"""
    The published simulator, run on {which} ({study.facts.experiment.partition("/")[0]}, 40 devices, 300 ms) and counted in the
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


def times(study: Study) -> list[str]:
    """What took how long, in words."""
    measured = study.facts.measured
    decisions = []
    for case in study.cases("systems"):
        for name in (OURS, PROTEUS):
            run, seconds = study.run("systems", case, name), measured.decisions.get(f"{name}, {case}")
            if run is not None and seconds is not None:
                asked = f"{run.asked / run.plans:.1f} plans each"
                decisions.append([f"{name}, {case}", str(run.plans), asked, *(f"{value:.2f}" for value in seconds)])
    found = measured.instances
    instances = ""
    if found:
        instances = f"""
        The {found.number} instances of 40 devices with proven optima are solved to these within {max(found.off, 1e-6):.0e}
        percentage points, in {found.mean_seconds:.3f} s in the mean, at most {found.longest_seconds:.3f}."""
    rows = measured.real_time.items()
    found_at_once = ", ".join(f"{percent(missed)} at {accuracy:.2f} % on {case}" for case, (missed, accuracy) in rows)
    real = ""
    if found_at_once:
        real = f"""
        In real time, where a plan of ours comes into force once all of its decision's plans have been found, violations are
        {found_at_once}: that hangs on the machine, and is other the next time."""
    return [
        f"""
        {instances} The paper's program took 4.2 s in the mean, by Gurobi. In the runs a decision is one plan of Proteus, and of
        ours one for each set of headrooms that it tries; seconds of wall-clock time for all of a decision's plans, without the
        rehearsals, on a machine of two cores that did other things as well:
        """,
        table(["", "decisions", "asked for", "mean, s", "longest, s"], decisions, spaced=True),
        f"""
        Everywhere else on this page a plan comes into force half a second after it was asked for, whatever it took, so that no run
        depends on the machine. Decisions of ours may take longer than that. {real} All of this page took
        {measured.seconds:.0f} s of one core.
        """,
    ]
