"""The SMDP papers' tables and figures, as the study has them: beside the print, and again from the solvers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, evaluate, solve
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.value_iteration import smallest_max_state, solve_by_value_iteration
from studies.smdp_figures.claims import (
    approximation_claims,
    by_proposition_4,
    cost_claims,
    curve_claims,
    latency_claims,
    other_claims,
    table_claims,
)
from studies.smdp_figures.coefficients import PAPER_LENGTHS, allowed, corners, refined
from studies.smdp_figures.computation import (
    FEW_LOADS,
    OVERFLOW_COSTS,
    RUNS,
    WEIGHTS,
    costs,
    of_table_1,
    percentiles,
    shares,
    solve_long,
    standard_errors,
    table,
)
from studies.smdp_figures.drawings import SHOWN, draw
from studies.smdp_figures.page import (
    MEASURES,
    PAPER_AVI,
    PAPER_NEVER_SERVED,
    PAPER_TABLE_1,
    PAPER_TABLE_2,
    page,
)
from studies.smdp_figures.results import Study, Table, read
from studies.smdp_figures.servers import PRINTED, cases, logarithmic, problem, settings, static
from tests.studies.published import assert_published, shown_in

pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@pytest.fixture(scope="module")
def study() -> Study:
    return read()


def assert_same(row: DataclassInstance, again: DataclassInstance) -> None:
    """Two rows agree, numbers to what the files hold."""
    for name, value in asdict(row).items():
        assert getattr(again, name) == (pytest.approx(value, rel=2e-6, abs=1e-6) if isinstance(value, float) else value)


# --- the page and its data


def test_the_page_is_made_of_the_data_and_every_figure_of_it_is_drawn(study: Study) -> None:
    assert_published("smdp-figures", page(study), draw(study), 100_000)
    assert len(shown_in(page(study))) == 9


def server_of(row: Table) -> SmdpProblem:
    """The problem of a row of the tables."""
    if row.case == "ICC":
        return PRINTED.problem(row.load, row.power_weight)
    case = next(case for case in cases() if case.name == row.case)
    return problem(case.law, case.energy, row.load, row.power_weight, case.smallest)


def test_the_tables_of_actions_are_those_of_the_solver(study: Study) -> None:
    for row in study.tables[::9]:
        assert table(row.case, row.load, solve_long(server_of(row))) == row


def test_the_tables_of_actions_are_those_of_value_iteration_however_seldom_the_queue_is_so_long(study: Study) -> None:
    for row in [row for row in study.tables if row.case != "ICC" and row.load <= 0.3 and row.power_weight <= 1][::3]:
        found = solve_by_value_iteration(server_of(row), max_state=80, overflow_cost=1000, epsilon=1e-7)
        assert found.converged
        assert found.actions[0][:SHOWN].tolist() == (row.takes + [row.takes[-1]] * SHOWN)[:SHOWN]


def test_the_costs_are_those_of_the_solver(study: Study) -> None:
    for row, again in zip(study.costs, costs(), strict=True):
        assert_same(row, again)


def test_the_points_of_the_curves_are_those_of_the_solver(study: Study) -> None:
    servers = {(setting, round(server.load, 6)): server for setting, server in settings()}
    for row in [p for p in study.points if p.policy == "smdp"][::60]:
        server = servers[row.setting, row.load]
        solution = solve(server.weighted(server.latency_weight, 1.0001 * row.power_weight))  # beyond the edge of a corner
        assert 1000 * solution.mean_latency == pytest.approx(row.latency, rel=1e-3)
        assert solution.power == pytest.approx(row.power, rel=1e-3)
        of_row = server.latency_weight * row.latency / 1000 + solution.problem.power_weight * row.power
        assert solution.gain == pytest.approx(of_row, rel=1e-5)


def test_the_benchmarks_are_those_of_the_solver(study: Study) -> None:
    servers = {(setting, round(server.load, 6)): server for setting, server in settings()}
    rows = [p for p in study.points if p.policy != "smdp"]
    assert len(rows) == 34 + 31 + 27 + 6 * 4
    for row in rows:
        server = servers[row.setting, row.load]
        actions = greedy(server) if row.policy == "greedy" else np.array(static(int(row.policy.split()[1])))
        performance = evaluate(server, actions)
        assert 1000 * performance.mean_latency == pytest.approx(row.latency, rel=1e-6)
        assert performance.power == pytest.approx(row.power, rel=1e-6)


@pytest.mark.proof
def test_the_percentiles_are_those_of_the_exact_law(study: Study) -> None:
    for row, again in zip(study.percentiles, percentiles(), strict=True):
        assert_same(row, again)
    for row, again in zip(study.shares, shares(), strict=True):
        assert_same(row, again)


def test_the_approximations_are_those_of_value_iteration(study: Study) -> None:
    server = PRINTED.problem(0.9, 1)
    for row in [row for row in study.approximations if row.overflow_cost >= 100 and row.max_state < 120][::9]:
        again = solve_by_value_iteration(server, max_state=row.max_state, overflow_cost=row.overflow_cost)
        assert again.iterations == row.iterations
        assert again.gain == pytest.approx(row.gain, rel=1e-6)
        assert again.overflow_cost == pytest.approx(row.overflow, rel=1e-6)


def test_what_of_the_papers_is_not_found_is_known(study: Study) -> None:
    asked = (table_claims, cost_claims, curve_claims, latency_claims, other_claims, approximation_claims)
    claims = [claim for ask in asked for claim in ask(study)]
    assert len(claims) == 54
    assert [claim.sentence for claim in claims if claim.found == "**no**"] == [
        "8: it grows super-linearly",
        "9: the coefficients of variation are 0, 0.5, 1, 2",
    ]
    assert [claim.sentence for claim in claims if claim.found == "in part"] == [
        "ICC: a control limit generally exists",
        "the SMDP points lie to the lower left of all benchmarks",
        "7: from load 0.6 on static 32 is very close to greedy",
        "it does so around s_max = 35, 50, 70",
        "c_o = 10, 0: g rises to its limit, around 170 and 200",
    ]


# --- the coefficients behind the printed ones


def test_the_printed_numbers_fix_the_coefficients_behind_them() -> None:
    assert len(corners()) >= 3
    for server in [*allowed(), refined()]:
        for stated in PAPER_LENGTHS:
            assert abs(stated.by(server.slope, server.intercept) - stated.value) <= 0.5 * 10**-stated.digits + 1e-9


def test_the_printed_coefficients_are_not_those_of_the_papers_runs() -> None:
    by_printed = {stated: stated.by(PRINTED.slope, PRINTED.intercept) for stated in PAPER_LENGTHS}
    missed = [stated.what for stated, value in by_printed.items() if round(value, stated.digits) != stated.value]
    assert len(missed) == 4


def test_the_papers_gains_are_among_those_of_the_coefficients_behind(study: Study) -> None:
    (high, middle), (highs, middles) = study.gains, study.allowed_gains
    assert (round(high, 4), round(middle, 4)) == (66.1307, 38.8599)
    assert highs.min() < 66.1374 < highs.max() < 66.1374 + 0.002
    assert middles.min() > 38.86 - 0.005 and middles.max() < 38.86 + 0.005


# --- Table I


def test_table_1_is_exact_where_the_paper_simulates(study: Study) -> None:
    data = study.published.table_1
    again = of_table_1(PRINTED)
    assert list(again) == list(data.printed) == list(PAPER_TABLE_1)
    for name, numbers in again.items():
        assert numbers == pytest.approx(data.printed[name], rel=1e-8)


def test_table_1_is_met_within_its_rounding_or_the_error_of_its_simulations(study: Study) -> None:
    data = study.published.table_1
    beyond = {}
    for name, numbers in PAPER_TABLE_1.items():
        for i, theirs in enumerate(numbers):
            values = [one[name][i] for one in data.allowed]
            if not min(values) - 0.005 <= theirs <= max(values) + 0.005:
                error = data.simulated[name][1][i]
                beyond[name, MEASURES[i]] = min(abs(theirs - value) for value in values) / error
    assert set(beyond) == {
        ("static 8", "power, W"), ("static 8", "p90, ms"), ("static 8", "p95, ms"), ("SMDP, w2 = 2.2", "power, W"),
    }  # fmt: skip
    assert max(beyond.values()) < 1


def test_the_simulations_meet_the_exact_numbers(study: Study) -> None:
    data = study.published.table_1
    for name, (means, errors) in data.simulated.items():
        scores = (np.array(means) - data.refined[name]) / (np.array(errors) / np.sqrt(RUNS))
        assert np.abs(scores).max() < 4


def test_the_error_of_a_simulation_falls_with_the_root_of_its_length() -> None:
    short, long = (standard_errors(PRINTED, n, 12) for n in (4_000, 100_000))
    for name in PAPER_TABLE_1:
        assert 1.5 < short[name][1][0] / long[name][1][0] < 15  # 5, the energies of 12 runs each
        assert long[name][0] == pytest.approx(of_table_1(PRINTED)[name], rel=0.05)


# --- Tables II and III


def test_table_2_has_the_papers_states_and_one_iteration_less(study: Study) -> None:
    paper = PAPER_TABLE_2
    for rows in (study.published.table_2.printed, study.published.table_2.refined):
        assert tuple(row.max_state for row in rows) == paper["min s_max"]
        assert [theirs - row.iterations for theirs, row in zip(paper["iterations"], rows, strict=True)] == [1, 1, 1, 0, 0]
    for theirs, row in list(zip(paper["Δ"], study.published.table_2.refined, strict=True))[:4]:
        assert row.overflow == pytest.approx(theirs, abs=0.5 * 10 ** (np.floor(np.log10(theirs)) - 2))
    for theirs, row in zip(paper["g"], study.published.table_2.refined, strict=True):
        assert row.gain == pytest.approx(theirs, abs=0.002)  # the coefficients behind are known no better


@pytest.mark.proof
def test_table_2_comes_again_from_value_iteration(study: Study) -> None:
    server = PRINTED.problem(0.9, 1)
    for overflow_cost, row in list(zip(OVERFLOW_COSTS, study.published.table_2.printed, strict=True))[:3]:
        assert smallest_max_state(server, overflow_cost) == row.max_state
        again = solve_by_value_iteration(server, max_state=row.max_state, overflow_cost=overflow_cost)
        assert again.iterations == row.iterations
        assert again.gain == pytest.approx(row.gain, rel=1e-8)


def test_a_step_nearer_to_its_bound_takes_one_percent_fewer_iterations() -> None:
    server = PRINTED.problem(0.9, 1)
    bound = 1 / server.arrival_rate  # the least of (25) here
    counts = [
        solve_by_value_iteration(server, max_state=70, overflow_cost=100, eta=share * bound).iterations for share in (0.99, 0.999)
    ]
    assert counts[0] == 1482
    assert counts[1] / counts[0] == pytest.approx(0.99, abs=0.002)


@pytest.mark.proof
def test_the_least_states_without_an_overflow_cost_are_those_of_the_limit_on_the_iterations(study: Study) -> None:
    max_state, iterations = study.published.patience
    assert max_state < 192 and iterations > 10_000
    server = PRINTED.problem(0.9, 1)
    patient = solve_by_value_iteration(server, max_state=185, overflow_cost=0, max_iterations=30_000)
    hasty = solve_by_value_iteration(server, max_state=185, overflow_cost=0)
    assert patient.converged and patient.overflow_cost < 1e-3
    assert not hasty.converged and hasty.overflow_cost == pytest.approx(hasty.gain)


def test_the_iterations_of_table_3_pass_through_the_papers_costs(study: Study) -> None:
    behind = study.published.table_3.refined
    found = {c: dict((round(gain, 2), n) for n, gain in reversed(behind[c])) for c in ("0", "100")}
    assert [found["0"][g] for g in (108.14, 38.86)] == [1, 156]
    assert [found["100"][g] for g in (114.46, 44.47, 38.86)] == [40, 50, 53]
    server = refined().problem(0.5, 1)
    again = solve_by_value_iteration(server, max_state=160, overflow_cost=100, epsilon=1e-9, max_iterations=50)
    assert round(again.gain, 2) == 44.47


def test_the_other_columns_of_table_3_are_queues_never_served_and_the_greedy_table() -> None:
    server = refined().problem(0.5, 1)
    states = (np.array(PAPER_NEVER_SERVED) - 100) * server.arrival_rate / 1000
    assert np.abs(states - np.round(states)).max() < 0.015
    performance = evaluate(server, greedy(server))
    assert round(server.cost(performance.mean_latency, performance.power), 2) == PAPER_AVI
    assert round(solve(server).gain, 2) == 38.86


# --- what the papers do not print


def test_only_the_natural_logarithm_has_two_thresholds_and_a_falling_power() -> None:
    sizes = {8: np.arange(1, 9), 32: np.arange(1, 33)}
    fixed, sized = deterministic(np.full(8, 2.4252e-3)), deterministic(PRINTED.service_time())
    found = {}
    for name, logarithm in (("natural", np.log), ("2", np.log2), ("10", np.log10)):
        energy = {n: (105 * logarithm(b) + 60) / 1000 for n, b in sizes.items()}
        thresholds = [
            table("5", load, solve(problem(fixed, energy[8], load, weight))).thresholds for load in FEW_LOADS for weight in WEIGHTS
        ]
        servers = [problem(sized, energy[32], load) for load in (0.6, 0.7, 0.8)]
        power = [evaluate(server, greedy(server)).power for server in servers]
        found[name] = (max(thresholds) > 1, power[0] > power[1] > power[2])
    assert found["natural"] == (True, True)
    assert not found["10"][0]
    assert not found["2"][1]
    assert logarithmic(8)[-1] == pytest.approx(0.001 * (105 * np.log(8) + 60))


def test_the_limits_of_cases_2_and_3_are_those_of_proposition_4(study: Study) -> None:
    rows = [row for row in study.tables if row.case in ("2", "3")]
    assert len(rows) == 40
    assert [row.control_limit for row in rows] == [by_proposition_4(row) for row in rows]


def test_the_largest_weight_for_5_ms_at_load_0_3_is_the_papers() -> None:
    latencies = [solve(PRINTED.problem(0.3, weight)).mean_latency for weight in (1.3, 1.5, 1.6)]
    assert latencies[0] == pytest.approx(latencies[1], rel=1e-8)
    assert latencies[1] < 0.005 < latencies[2]
