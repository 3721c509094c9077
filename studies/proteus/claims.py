"""What the paper says, each sentence asked of the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..claims import Claim
from .results import Run, Study
from .systems import OURS, PROTEUS

SCALING = ("Sommelier", "INFaaS-accuracy")
EARLY_DROP = "early drop (Nexus), batch for the mean rate"
ANY_BATCH = "early drop, any batch"
DEADLINE, AIMD = "deadline (Proteus)", "AIMD (Clipper)"
SAME = 0.001  # violations that differ by less count as equal
LEAST = 0.001  # violations below which a ratio says nothing


def percent(*values: float) -> str:
    """Shares of 1 in words."""
    return ", ".join(f"{100 * value:.3g}" if abs(value) >= 0.0001 else "0" for value in values) + " %"


def all_or_part(cases: Iterable[bool]) -> bool | None:
    """True where all hold, False where none does, None between."""
    found = list(cases)
    return True if all(found) else None if any(found) else False


def ratio(more: float, less: float) -> str:
    """How many times as much."""
    return "∞" if less <= 0 else f"{more / less:.1f}"


def system_claims(study: Study) -> list[Claim]:
    """The end-to-end comparison, on the last fleet, which is short of devices."""
    case = study.cases("systems")[-1]
    runs = {run.system: run for run in study.of("systems", case)}
    proteus, high, low = runs[PROTEUS], runs["Clipper-HA"], runs["Clipper-HT"]
    others = [runs[name] for name in SCALING]
    claims = [
        Claim(
            "Proteus has fewer violations than the others that scale accuracy, Sommelier and INFaaS (by 2.8 and 4.3 times)",
            all_or_part(proteus.violations < other.violations for other in others),
            f"{percent(proteus.violations, *map(_violations, others))}; ours {percent(runs[OURS].violations)}",
        ),
        Claim(
            "and a smaller drop of accuracy (4.85 points; by 3.2 and 2.8 times)",
            all_or_part(proteus.drop < other.drop for other in others),
            f"{proteus.drop:.1f}, {', '.join(f'{other.drop:.1f}' for other in others)} points; ours {runs[OURS].drop:.1f}",
        ),
        Claim(
            "Clipper-HA has the highest accuracy and the most violations",
            all_or_part([high.accuracy >= max(_real(runs, _accuracy)) - 0.1, high.violations >= max(_real(runs, _violations))]),
            f"{high.accuracy:.2f} %, {percent(high.violations)}",
        ),
        Claim(
            "Clipper-HT the reverse",
            all_or_part([low.accuracy <= min(_real(runs, _accuracy)), low.violations <= min(_real(runs, _violations)) + SAME]),
            f"{low.accuracy:.2f} %, {percent(low.violations)}",
        ),
        Claim(
            "beside Clipper-HA Proteus answers 60 % more in time",
            all_or_part([proteus.throughput > high.throughput, proteus.throughput >= 1.6 * high.throughput]),
            f"{percent(*(run.throughput / high.throughput - 1 for run in (proteus, runs[OURS])))} more (of Proteus, ours)",
        ),
        Claim(
            "with more than ten times fewer violations",
            all_or_part([proteus.violations < high.violations, 10 * proteus.violations < high.violations]),
            f"{ratio(high.violations, proteus.violations)} times, ours {ratio(high.violations, runs[OURS].violations)}",
        ),
    ]
    return claims


def burst_claims(study: Study) -> list[Claim]:
    """The reaction to a burst of demand."""
    found = {name: _around_burst(study, name) for name in (OURS, PROTEUS, "INFaaS-accuracy")}
    first = {name: windows[0] for name, windows in found.items()}
    later = {name: sum(windows[2:]) / max(1, len(windows[2:])) for name, windows in found.items()}
    names = ", ".join(found)
    return [
        Claim(
            "a burst: INFaaS, which plans in the path of the requests, has the fewest violations in the first seconds",
            first["INFaaS-accuracy"] <= first[PROTEUS],
            f"first 10 s: {percent(*first.values())} ({names})",
        ),
        Claim(
            "Proteus's violations fall again once its plan is in force, below those of INFaaS",
            all_or_part([later[PROTEUS] < first[PROTEUS], later[PROTEUS] <= later["INFaaS-accuracy"]]),
            f"from 20 s on: {percent(*later.values())}",
        ),
    ]


def ablation_claims(study: Study) -> list[Claim]:
    """What each part of Proteus is for, on the last fleet."""
    case = study.cases("ablations")[-1]
    runs = {run.system: run for run in study.of("ablations", case)}
    whole = runs.pop(PROTEUS)
    selection, placement = runs["without model selection"], runs["without model placement"]
    batching, assignment = runs["without adaptive batching"], runs["without query assignment"]
    most = max(runs.values(), key=_violations).system
    sommelier = study.run("systems", case, "Sommelier")
    claims = [
        Claim(
            "without model selection there are the most violations (18 %)",
            most == selection.system,
            f"{percent(selection.violations)}, of the whole {percent(whole.violations)}",
        ),
        Claim(
            "without model placement the drop of accuracy is the largest (16 points)",
            max(runs.values(), key=_drop).system == placement.system,
            ", ".join(f"{name.removeprefix('without ')} {run.drop:.1f}" for name, run in runs.items()),
        ),
        Claim(
            "without adaptive batching violations soar",
            batching.violations > whole.violations,
            f"{percent(batching.violations)} at {batching.accuracy:.2f} %, of the whole {whole.accuracy:.2f} %",
        ),
        Claim(
            "without query assignment they are more as well (10 %)",
            assignment.violations > whole.violations,
            percent(assignment.violations),
        ),
    ]
    if sommelier is not None:
        note = f"violations {percent(placement.violations, sommelier.violations)}, drops {placement.drop:.1f}, {sommelier.drop:.1f}"
        near = abs(placement.violations - sommelier.violations) < 0.01 and abs(placement.drop - sommelier.drop) < 1
        claims.append(Claim("without model placement Proteus does as Sommelier", near, note))
    return claims


def deadline_claims(study: Study) -> list[Claim]:
    """The sensitivity to deadlines, over the multiples (1x, 1.5x, ...)."""
    cases = [case for case in study.cases("deadlines") if case.endswith("x")]
    systems = [name for name in study.systems("deadlines") if all(study.run("deadlines", case, name) for case in cases)]
    if len(cases) < 2 or PROTEUS not in systems:
        return []
    table = {name: [study.run("deadlines", case, name) for case in cases] for name in systems}
    fallen = [runs[0].violations >= runs[-1].violations - SAME for runs in table.values() if runs[0] and runs[-1]]
    fewest, smallest, ours = [], [], []
    for i, _ in enumerate(cases):
        at = {name: run for name, runs in table.items() if (run := runs[i]) is not None}
        scaling = {name: run for name, run in at.items() if name in (PROTEUS, *SCALING)}
        fewest.append(min(scaling.values(), key=_violations).system == PROTEUS)
        smallest.append(min(scaling.values(), key=_drop).system == PROTEUS)
        if OURS in at:
            ours.append(at[OURS].violations <= min(run.violations for run in scaling.values()) + SAME)
    return [
        Claim("with longer deadlines there are fewer violations", all_or_part(fallen), f"{sum(fallen)} of {len(fallen)} systems"),
        Claim(
            "at each Proteus has the fewest violations of those that scale accuracy",
            all_or_part(fewest),
            f"{sum(fewest)} of {len(cases)}; ours {sum(ours)} of {len(ours)}",
        ),
        Claim("and the smallest drop of accuracy", all_or_part(smallest), f"{sum(smallest)} of {len(cases)}"),
    ]


def batching_claims(study: Study) -> list[Claim]:
    """Batching on one queue."""
    cells = {(cell.load, cell.arrivals, cell.policy): cell.violations for cell in study.cells}
    loads = sorted({cell.load for cell in study.cells})
    kinds = list(dict.fromkeys(cell.arrivals for cell in study.cells))
    bursty = [kind for kind in kinds if kind != "uniform"]

    def fewer(other: str, among: Sequence[str]) -> list[bool]:
        return [
            cells[load, kind, DEADLINE] <= cells[load, kind, other] + 1e-9
            for load in loads
            for kind in among
            if max(cells[load, kind, DEADLINE], cells[load, kind, other]) >= LEAST
        ]

    def counted(found: Sequence[bool]) -> str:
        return f"{sum(found)} of {len(found)} loads and kinds of arrivals with any to speak of"

    def times(other: str) -> str:
        at = [(load, kind) for load in loads for kind in bursty if cells[load, kind, DEADLINE] >= LEAST]
        ratios = [cells[load, kind, other] / cells[load, kind, DEADLINE] for load, kind in at]
        return f"; {min(ratios):.1f} to {max(ratios):.1f} times as many" if ratios else ""

    uniform = [cells[load, "uniform", policy] for load in loads for policy in (DEADLINE, AIMD, EARLY_DROP)]
    low = [load for load in loads if all(cells[load, kind, DEADLINE] <= cells[load, kind, EARLY_DROP] + 1e-9 for kind in bursty)]
    nexus = fewer(EARLY_DROP, bursty)
    return [
        Claim("on uniform arrivals all batch equally well", max(uniform) < 0.005, f"at most {percent(max(uniform))}"),
        Claim(
            "on bursty ones deadline batching has fewer violations than AIMD (3.8 to 4 times)",
            all_or_part(fewer(AIMD, bursty)),
            counted(fewer(AIMD, bursty)) + times(AIMD),
        ),
        Claim(
            "and than early drop (2 to 3 times), its batch planned for the mean rate",
            all_or_part(nexus),
            f"{counted(nexus)}: all up to load {max(low):g}" if low else counted(nexus),
        ),
        Claim(
            "and than early drop with batches of any size",
            all_or_part(fewer(ANY_BATCH, bursty)),
            counted(fewer(ANY_BATCH, bursty)),
        ),
    ]


def family_claims(study: Study) -> list[Claim]:
    """The breakdown by family, on the last fleet, of Proteus."""
    part = f"families, {PROTEUS}"
    case = study.cases(part)[-1]
    runs = study.of(part, case)
    lost = {run.system: study.facts.best[case][run.system] - run.accuracy for run in runs}
    most = max(lost, key=lambda family: lost[family])
    rare = sorted(runs, key=lambda run: run.requests)[:2]
    spread = [run.violations for run in runs]
    return [
        Claim(
            "a family with few requests, T5, loses the most accuracy",
            most in {run.system for run in rare},
            f"most {most}: {lost[most]:.1f} points; {', '.join(f'{run.system} {lost[run.system]:.1f}' for run in rare)}",
        ),
        Claim(
            "violations are alike over the families",
            max(spread) <= 2 * min(spread),
            f"{percent(min(spread))} to {percent(max(spread))}",
        ),
    ]


def _around_burst(study: Study, system: str) -> list[float]:
    """Violations by window in the burst."""
    windows = study.series("burst", system)
    calm = windows[0].demand
    return [window.violations for window in windows if window.demand > 2 * calm]


def _real(runs: dict[str, Run], measure: Callable[[Run], float]) -> list[float]:
    """A measure of all but the bound."""
    return [measure(run) for name, run in runs.items() if name != "bound"]


def _violations(run: Run) -> float:
    return run.violations


def _drop(run: Run) -> float:
    return run.drop


def _accuracy(run: Run) -> float:
    return run.accuracy
