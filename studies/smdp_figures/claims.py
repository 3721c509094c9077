"""What the papers say of their figures, each sentence asked of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq

from ..claims import Claim
from .computation import OVERFLOW_COSTS, WEIGHTS
from .results import Cost, Point, Study, Table
from .servers import LARGEST, LAWS, LOADS, PRINTED, STATIC, cases, logarithmic

ROUNDED = 2e-6  # relative, of numbers that were written with seven digits


def counted(sentence: str, cases: Iterable[bool | np.bool], ending: str = "") -> Claim:
    """A sentence that is to hold in each case."""
    found = [bool(case) for case in cases]
    return Claim(sentence, all(found), f"{sum(found)} of {len(found)}{ending}")


def listed(values: Iterable[float], form: str = ".2f") -> str:
    """Numbers in words."""
    return ", ".join(format(value, form) for value in values)


def percent(*values: float) -> str:
    """Shares of 1 in words, to two digits."""
    return listed((float(f"{100 * value:.2g}") if value > ROUNDED else 0 for value in values), "g") + " %"


def rising(values: Sequence[float]) -> bool:
    """Whether each is more than the one before."""
    return all(a < b for a, b in pairwise(values))


def by_proposition_4(row: Table) -> int:
    """Optimal control limit, (32), of exponential service that no batch size changes, with linear energy: Cases 2 and 3."""
    server = next(case for case in cases() if case.name == row.case).problem(row.load, row.power_weight)
    penalty = row.power_weight * PRINTED.energy_intercept / 1000 * server.arrival_rate**2 / server.latency_weight
    chi = server.arrival_rate * server.service.mean[0]
    psi = chi / (1 + chi)
    sizes = np.arange(1, server.max_batch_size + 1)
    # (1 - psi) x^(B + 1) - x + psi without its root at 1
    root = brentq(lambda x: (1 - psi) * (x**sizes).sum() - psi, 0, 1, xtol=1e-15)
    r = root / (1 - root)
    d = sizes * ((sizes + 1) / 2 + chi - r) - r**2 * root**sizes + r * (r - chi) - penalty
    return int(sizes[d >= 0][0]) if (d >= 0).any() else server.max_batch_size


def table_claims(study: Study) -> list[Claim]:
    """Figures 3 and 11, ICC's figure 4."""
    limits = np.array([[study.limits(case, w) for w in WEIGHTS] for case in "123"], dtype=float)  # nan: none
    _, second, third = limits
    n = len(WEIGHTS) * len(second[0])
    counts = {name: len(study.without_limit(name)) for name in ("4", "5a", "6", "7a", "7b", "ICC")}
    several = {name: sum(row.thresholds > 1 for row in study.tables if row.case == name) for name in ("5a", "5b")}
    partial = [row for row in study.without_limit("6") if any(0 < a < min(s, 8) for s, a in enumerate(row.takes))]
    smaller = [row for row in study.without_limit("4") if any(s >= 8 for s in row.deviations(40))]
    first = {(row.load, row.power_weight): row.control_limit or 0 for row in study.tables if row.case == "1"}
    others = [row for row in study.tables if row.case == "4" and row.control_limit]
    moved = all(row.control_limit == max(5, first[row.load, row.power_weight]) for row in others)
    closed = [row.control_limit == by_proposition_4(row) for row in study.tables if row.case in "23"]
    icc = [row for row in study.tables if row.case == "ICC"]
    soonest = [row.first_served for row in icc if row.power_weight == 0]
    return [
        Claim("Cases 1–3: all are control limits (Proposition 3)", not np.isnan(limits).any(), str(limits.size)),
        Claim("their limits grow with w2", (np.diff(limits, axis=1) >= 0).all(), "never fall at any load"),
        counted("at w2 = 100 all are B_max", limits[:, -1].ravel() == 8),
        counted("Cases 2 and 3: the limits are those of Proposition 4", closed, "; at random problems in the tests"),
        Claim("at w2 = 0 Case 3 is Case 2 (Corollary 1)", (second[0] == third[0]).all(), str(study.limits("2", 0.0))),
        Claim(
            "else the limits of Case 3 are no less than those of Case 2",
            (third[1:] >= second[1:]).all(),
            f"more in {(third[1:] > second[1:]).sum()} of {third[1:].size}",
        ),
        Claim(
            "Case 4: at load 0.1 and w2 = 0, 0.5, 1 a queue above B_max has a batch below B_max",
            [(row.load, row.power_weight) for row in smaller] == [(0.1, 0.0), (0.1, 0.5), (0.1, 1.0)],
            f"these three and no other; {smaller[0].actions} at w2 = 0" + ("; the others are max(Q, 5) of Case 1" if moved else ""),
        ),
        Claim(
            "Case 5: some have more than one threshold between wait and serve",
            several["5a"] > 0,
            f"5a in {several['5a']} of {n}: {study.without_limit('5a')[0].actions}; 5b in {several['5b']}",
        ),
        Claim(
            "Case 6: some serve fewer than they could, as a larger batch can form meanwhile",
            len(partial) > 0,
            f"{len(partial)} of {n}: {partial[0].actions} at load {partial[0].load}, w2 = {partial[0].power_weight:g}",
        ),
        Claim(
            "Case 7: even more that are no control limits",
            counts["7b"] > max(counts["4"], counts["5a"], counts["6"]),
            ", ".join(f"{name}: {count}" for name, count in counts.items() if name != "ICC") + f" of {n}",
        ),
        counted("ICC: the server waits up to a threshold, then serves", [row.thresholds <= 1 for row in icc]),
        Claim(
            "ICC: a control limit generally exists",
            None,
            f"{len(icc) - counts['ICC']} of {len(icc)}; the others have the threshold, but take fewer than they could in some "
            "states, as the journal has it in Case 6",
        ),
        counted("ICC: at w2 = 500 all are B_max", [row.control_limit == LARGEST for row in icc if row.power_weight == 500]),
        Claim("ICC: at w2 = 0 the limits are close to 1", max(soonest) <= 2, f"first served at {listed(soonest, 'd')}"),
    ]


def cost_claims(study: Study) -> list[Claim]:
    """Figure 4 and ICC's figure 5."""

    def others(row: Cost) -> list[float]:
        return [value for value in (row.greedy, row.static_8, row.static_16, row.static_32) if value is not None]

    def excess(name: str, weight: float) -> list[float]:
        return [getattr(row, name) / row.smdp - 1 for row in study.costs if row.power_weight == weight]

    def nearest(name: str) -> list[float]:
        weights = {row.power_weight for row in study.costs if row.power_weight <= 15}
        return [min(values) for values in zip(*(excess(name, weight) for weight in weights), strict=True)]

    at_zero = [row for row in study.costs if row.power_weight == 0]
    return [
        Claim(
            "the SMDP policy has the least cost everywhere",
            all(min(others(row)) >= row.smdp * (1 - 1e-6) for row in study.costs),
            f"at all {len(study.costs)} settings",
        ),
        Claim(
            "w2 near 0: greedy costs about the same",
            max(excess("greedy", 0)) < 0.01,
            f"at most {percent(max(excess('greedy', 0)))} more",
        ),
        Claim(
            "there static batching costs more, the more the larger",
            all(len(others(row)) == 4 and rising(others(row)) for row in at_zero),
            f"static 8, 16, 32 at load 0.7: {listed(others(at_zero[-1])[1:], '.1f')} ms",
        ),
        Claim(
            "w2 large: static 32 is nearly the best, except at load 0.1",
            max(excess("static_32", 15)[1:]) < 0.05 < excess("static_32", 15)[0],
            f"at w2 = 15 above the least by {percent(*excess('static_32', 15))} (loads 0.1, 0.3, 0.7)",
        ),
        Claim("there greedy costs much more", min(excess("greedy", 15)) > 0.1, f"by {percent(*excess('greedy', 15))}"),
        Claim(
            "between, static 8 and 16 come close at some weights",
            max(min(nearest("static_8")), min(nearest("static_16"))) < 0.01,
            f"within {percent(*nearest('static_8'))} and {percent(*nearest('static_16'))}",
        ),
        Claim(
            "ICC: greedy is far off for w2 > 5, static 32 bad at load 0.1",
            min(excess("greedy", 5)) > 0.05 and excess("static_32", 5)[0] > 0.5,
            f"at w2 = 5 by {percent(*excess('greedy', 5))}; static 32 by {percent(excess('static_32', 5)[0])}",
        ),
    ]


def unbettered(study: Study, setting: str) -> list[Point]:
    """Benchmarks that no table of the curve equals or betters in both latency and power."""

    def bettered(p: Point) -> bool:
        latency, power = p.latency * (1 + ROUNDED), p.power * (1 + ROUNDED)
        return any(c.latency <= latency and c.power <= power for c in study.curve(setting, p.load))

    return [p for p in study.benchmarks(setting) if not bettered(p)]


def below(study: Study, setting: str) -> list[Point]:
    """Benchmarks below the curve."""

    def lower(p: Point) -> bool:
        least = study.curve(setting, p.load)[0].latency
        return p.power < study.power_at(setting, p.load, p.latency) * (1 - ROUNDED) or p.latency < least * (1 - ROUNDED)

    return [p for p in study.benchmarks(setting) if lower(p)]


def curve_claims(study: Study) -> list[Claim]:
    """Figure 5, ICC's figures 6 and 7."""
    curves = {load: study.curve("basic", load) for load in LOADS}
    greedy, eight, sixteen, largest = (study.by_load("basic", name) for name in ("greedy", *(f"static {b}" for b in STATIC)))
    falls = all(a.latency < b.latency and a.power > b.power for curve in curves.values() for a, b in pairwise(curve))
    fifth, beyond = next((a, b) for a, b in pairwise(curves[0.3]) if a.latency <= 5 < b.latency)
    n, missed = len(study.benchmarks("basic")), unbettered(study, "basic")
    mixed = ", ".join(f"{p.policy} at {p.load}" for p in missed)
    n_below = len(below(study, "basic"))
    slower = max(greedy[load].latency / curves[load][0].latency - 1 for load in LOADS)
    left, at_left, above = curves[0.7][0], greedy[0.7], eight[0.7]
    under = study.power_at("basic", 0.7, above.latency)
    throughput = np.arange(1, LARGEST + 1) / PRINTED.service_time() / 1000
    return [
        Claim("as w2 grows the power falls and the latency grows", falls, "at every load"),
        Claim(
            "load 0.3, mean latency at most 5 ms: w2 = 1.3",
            fifth.power_weight <= 1.3 < beyond.power_weight,
            f"{fifth.latency:.3f} ms, the same table from {fifth.power_weight:.3f} to {beyond.power_weight:.3f}; the next has "
            f"{beyond.latency:.3f} ms. In steps of 0.3, which the paper's 1.6 and 2.2 fit as well, 1.3 is the last",
        ),
        Claim(
            "the SMDP points lie to the lower left of all benchmarks",
            False if n_below else None if missed else True,
            f"{n_below} of {n} benchmarks below the curve; {n - len(missed)} are bettered or met by one table "
            f"of it, the others ({mixed}) only by a mixture of two neighbours",
        ),
        Claim(
            "the right ends are static 32",
            all(abs(curves[load][-1].latency / largest[load].latency - 1) < ROUNDED for load in LOADS),
            "at every load, also in power",
        ),
        Claim("greedy is near the left ends", slower < 0.01, f"at most {percent(slower)} slower"),
        Claim(
            "load 0.7: greedy is to the upper right of an SMDP solution",
            left.latency < at_left.latency and left.power < at_left.power,
            f"{at_left.latency:.4f} ms, {at_left.power:.2f} W; w2 = 0 has {left.latency:.4f} ms and {left.power:.2f} W",
        ),
        Claim(
            "load 0.7: static 8 is above the curve",
            above.power > 1.01 * under,
            f"{above.power:.2f} W against {under:.2f} W at {above.latency:.2f} ms",
        ),
        Claim(
            "static 8 is not stable from load 0.8 on",
            all((load in eight) == (load < 0.8) for load in LOADS),
            f"stable below {throughput[7] / throughput[-1]:.3f}",
        ),
        Claim(
            "load 0.9: static 16 is much slower",
            sixteen[0.9].latency > 1.25 * curves[0.9][-1].latency,
            f"{sixteen[0.9].latency:.1f} ms; the whole curve lies within {curves[0.9][-1].latency:.1f} ms",
        ),
        Claim("the largest throughput is 2.96 per ms (ICC)", round(float(throughput[-1]), 2) == 2.96, f"{throughput[-1]:.3f}"),
    ]


def crossing(study: Study, name: str) -> list[str]:
    """Where the distribution function of an SMDP policy rises above that of static 8, ms."""
    gaps = [getattr(row, name) - row.static_8 for row in study.shares]
    steps = zip(pairwise(study.shares), pairwise(gaps), strict=True)
    return [f"{a.ms:g}–{b.ms:g}" for (a, b), (before, after) in steps if before * after < 0]


def latency_claims(study: Study) -> list[Claim]:
    """Figure 6."""
    order = [row for row in study.percentiles if row.policy != "smdp"]
    corners = [row for row in study.percentiles if row.policy == "smdp"]
    ranked = all(rising([getattr(row, measure) for row in order]) for measure in ("mean", "p50", "p90", "p95"))
    late = next(row for row in study.shares if row.static_16 > row.static_8)
    one, two = crossing(study, "smdp_1_6"), crossing(study, "smdp_2_2")
    kept = [i for i, row in enumerate(corners) if row.p95 < 10]
    last = corners[kept[-1]]
    return [
        Claim(
            "best to worst: greedy, static 8, static 16, static 32",
            ranked,
            f"in mean, p50, p90, p95; above {late.ms:.2f} ms, for the last {100 - late.static_16:.1f} % of the requests, static 8 "
            "is behind static 16",
        ),
        Claim(
            "the SMDP distributions at w2 = 1.6 and 2.2 cross that of static 8 upwards",
            len(one) == len(two) == 1,
            f"once, at {one[0]} and {two[0]} ms",
        ),
        Claim(
            "p95 within 10 ms: a largest weight keeps it",
            kept == list(range(len(kept))),
            f"w2 up to {corners[kept[-1] + 1].power_weight:.3f}: p95 {last.p95:.3f} ms, {last.within_10:.2f} % within 10 ms, "
            f"{last.power:.2f} W; the paper's w2 = 1.6 is this table",
        ),
        Claim(
            "p95 against power and the share within 10 ms against power are tradeoffs as well",
            all(a.p95 < b.p95 and a.within_10 >= b.within_10 for a, b in pairwise(corners)),
            f"{len(corners)} tables, without an exception",
        ),
    ]


def other_claims(study: Study) -> list[Claim]:
    """Figures 7, 8 and 9."""
    n = len(study.benchmarks("constant")) + len(study.benchmarks("logarithmic"))
    bettered = below(study, "constant") + below(study, "logarithmic")
    first = Claim("7, 8: no benchmark is below the curve", not bettered, f"{n} points")
    return [first, *constant_service_claims(study), *logarithmic_energy_claims(study), *variation_claims(study)]


def constant_service_claims(study: Study) -> list[Claim]:
    """Figure 7."""
    greedy = {setting: study.by_load(setting, "greedy") for setting in ("constant", "basic")}
    basic, constant = ([study.by_load(setting, "static 32")[load].latency for load in LOADS] for setting in ("basic", "constant"))
    growth = [greedy[setting][0.9].latency / greedy[setting][0.1].latency for setting in ("constant", "basic")]
    speedup = PRINTED.service_time()[0] * LARGEST / PRINTED.service_time()[-1]
    behind = [constant[LOADS.index(load)] / greedy["constant"][load].latency - 1 for load in (0.6, 0.7, 0.8, 0.9)]
    return [
        Claim(
            "7: a full batch is 32 times as fast as requests alone, 4 times in the default",
            round(speedup) == 4,
            f"32; {speedup:.2f}",
        ),
        Claim(
            "7: greedy's latency hardly grows with the load",
            growth[0] < 1.1,
            f"times {growth[0]:.2f} from 0.1 to 0.9; default {growth[1]:.2f}",
        ),
        Claim(
            "7: static 32 is much quicker than in the default, and quicker the higher the load",
            all(a < b for a, b in zip(constant, basic, strict=True)) and rising(constant[::-1]),
            f"{constant[0]:.1f} to {constant[-1]:.1f} ms",
        ),
        Claim("7: from load 0.6 on static 32 is very close to greedy", None, f"{percent(*behind)} slower at 0.6, 0.7, 0.8, 0.9"),
    ]


def logarithmic_energy_claims(study: Study) -> list[Claim]:
    """Figure 8."""
    greedy = {setting: study.by_load(setting, "greedy") for setting in ("logarithmic", "basic")}
    per_joule, linear = (np.arange(1, LARGEST + 1) / energy for energy in (logarithmic(LARGEST), PRINTED.energy()))
    steep, flat = ((study.curve(setting, 0.5)[0], study.curve(setting, 0.5)[-1]) for setting in ("logarithmic", "basic"))
    drop, default = (start.power - end.power for start, end in (steep, flat))
    logarithm = [greedy["logarithmic"][load].power for load in (0.6, 0.7, 0.8)]
    return [
        Claim(
            "8: greedy's power falls from load 0.6 to 0.8, unlike the default",
            rising(logarithm[::-1]) and greedy["basic"][0.6].power < greedy["basic"][0.8].power,
            f"{listed(logarithm, '.1f')} W",
        ),
        Claim(
            "8: the curve is much steeper",
            drop > 3 * default,
            f"load 0.5: {drop:.0f} W over the {flat[1].latency - flat[0].latency:.0f} ms that are {default:.0f} W in the default",
        ),
        Claim(
            "8: the energy efficiency goes on growing beyond b = 8",
            per_joule[-1] > 2 * per_joule[7] and linear[-1] < 1.2 * linear[7],
            f"{per_joule[7]:.1f} to {per_joule[-1]:.1f} per J; default {linear[7]:.1f} to {linear[-1]:.1f}",
        ),
        Claim(
            "8: it grows super-linearly",
            (np.diff(per_joule, 2) > 0).all(),
            f"falls from {per_joule[0]:.2f} to {per_joule[1]:.2f} at b = 2, against the paper's own section III; from 4 on its "
            "steps grow smaller",
        ),
    ]


def variation_claims(study: Study) -> list[Claim]:
    """Figure 9."""
    greedy = {law: study.by_load(law, "greedy") for law in LAWS}
    low, high = ([study.latency_at(law, load, power) for law in LAWS] for load, power in ((0.3, 20), (0.7, 45)))
    powers = [[greedy[law][load].power for law in LAWS] for load in (0.3, 0.7)]
    variation = [np.sqrt(law([1.0]).shape.scv) for law in LAWS.values()]
    return [
        Claim(
            "9: at equal power the latency grows with the variation",
            rising(low) and rising(high),
            f"{listed(low)} ms at load 0.3, 20 W; {listed(high)} at 0.7, 45 W",
        ),
        Claim(
            "9: the more so at load 0.7",
            high[-1] / high[0] > low[-1] / low[0],
            f"times {high[-1] / high[0]:.1f} against {low[-1] / low[0]:.1f}",
        ),
        Claim(
            "9: greedy's power falls with the variation",
            all(rising(values[::-1]) for values in powers),
            f"{listed(powers[0])} W at load 0.3, {listed(powers[1])} at 0.7",
        ),
        Claim(
            "9: the coefficients of variation are 0, 0.5, 1, 2",
            np.allclose(variation, (0, 0.5, 1, 2)),
            f"those are their squares, E G²/(E G)² − 1; the roots are {listed((round(c, 2) for c in variation), 'g')}",
        ),
    ]


def approximation_claims(study: Study) -> list[Claim]:
    """Figure 10."""
    best = study.gains[0]
    rows = {c: [row for row in study.approximations if row.overflow_cost == c] for c in OVERFLOW_COSTS}
    dear, cheap = OVERFLOW_COSTS[:3], OVERFLOW_COSTS[3:]
    far = [max(i for i, row in enumerate(rows[c]) if abs(row.gain / best - 1) >= 0.01) for c in dear]
    near = [rows[c][i + 1].max_state for c, i in zip(dear, far, strict=True)]
    tops = [max(row.gain for row in rows[c]) for c in cheap]
    waits = [next(a.max_state for a in rows[c] if a.overflow < 1) for c in cheap]
    end = max(row.overflow for row in study.approximations if row.max_state > 200)
    rate = PRINTED.problem(0.9).arrival_rate / 1000
    worth = [int((best - c) * rate) + 1 for c in cheap]
    patient, steps = study.published.patience
    by_cost = dict(zip(OVERFLOW_COSTS, study.published.table_2.printed, strict=True))
    space = by_cost[100].max_state / by_cost[0].max_state
    time = by_cost[100].iterations / by_cost[0].iterations * space**2
    return [
        Claim(
            "c_o = 10000, 1000, 100: g falls to its limit",
            all(a.gain > b.gain - 1e-6 for c in dear for a, b in pairwise(rows[c])),
            f"{listed((rows[c][0].gain for c in dear), '.1f')} at s_max = 32",
        ),
        Claim("it does so around s_max = 35, 50, 70", None, f"the other way round: within 1 % from {listed(near, 'd')} on"),
        Claim(
            "c_o = 10, 0: g rises to its limit, around 170 and 200",
            None,
            f"it rises to {tops[0]:.1f} and {tops[1]:.1f}, beyond the limit, and then drops to it",
        ),
        Claim(
            "Δ drops sharply when the table stops waiting for ever",
            waits == [161, 192],
            f"at {waits[0]} and {waits[1]}. Waiting for ever costs c_o + s_max / λ, which is more than serving from {worth[0]} "
            f"and {worth[1]} on; the iteration needs more than 10000 steps to see it so early ({steps} at {patient} with c_o = 0), "
            "so the two numbers are those of the limit on its steps",
        ),
        Claim("beyond 200 Δ is no more than 10⁻¹³", end <= 1e-13, f"at most {end:.1e}"),
        Claim(
            "c_o = 100 saves 63.5 % of the space and 98 % of the time",
            round(100 * (1 - space), 1) == 63.5 and round(100 * (1 - time)) == 98,
            f"{100 * (1 - space):.1f} %, {100 * (1 - time):.1f} % by B_max s_max and iterations · B_max s_max²",
        ),
    ]
