"""Arrivals with phases on a server that is told of none: one table for all, tables under the filter, and their documents."""

import csv
from dataclasses import replace
from functools import cache
from math import hypot
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, Slo, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import (
    Answer,
    PhaseTables,
    PhaseTablesDocument,
    SmdpProblem,
    affine,
    answer_document,
    answer_problem,
    filter_phases,
    read_phase_tables,
    simulate_filtered,
    solve,
    solve_one_table,
)
from sluice.optimizer.smdp.modulated import evaluate_modulated
from tests.optimizer.smdp_problems import googlenet

DATA = Path(__file__).parents[2] / "studies" / "data" / "modulated-arrivals.csv"
MU = 8 / affine(1.0524e-3, 0.3051e-3, 8)[-1]  # requests/s of full batches of 8


def server(arrivals: ArrivalProcess, min_batch_size: int = 1) -> SmdpProblem:
    mean, energy = affine(1.0524e-3, 0.3051e-3, 8), affine(19.603e-3, 19.899e-3, 8)
    return SmdpProblem(arrivals, deterministic(mean), energy, min_batch_size, 1e3, 1.0)


@cache
def answered() -> Answer:
    return answer_problem(server(mmpp2(0.8 * MU, 0.2 * MU, 20, 20)))


def studied(process: str, policy: str) -> dict[str, float]:
    """What the study of modulated arrivals measured of a policy in its example."""
    with DATA.open() as file:
        rows = [
            row for row in csv.DictReader(file) if (row["group"], row["process"], row["policy"]) == ("example", process, policy)
        ]
    (row,) = rows
    return {name: float(row[name]) for name in ("exact", "excess", "excess_error")}


# --- one table for all phases


@pytest.mark.parametrize(("busy", "process"), [(0.8, "0.8 μ, 0.2 μ"), (1.3, "1.3 μ, 0.2 μ")])
def test_one_table_costs_no_more_than_the_best_of_the_study_and_no_less_than_the_bound(busy: float, process: str) -> None:
    problem = server(mmpp2(busy * MU, 0.2 * MU, 20, 20))
    solution = solve(problem)
    one = solve_one_table(solution)
    performance = evaluate_modulated(problem, one.policy.take)
    assert one.cost == pytest.approx(problem.cost(performance.mean_latency, performance.power))
    cheapest = min(studied(process, policy)["exact"] for policy in ("Poisson", "control limit", "greedy"))
    assert solution.gain <= one.cost <= cheapest * (1 + 1e-6)


def test_of_phases_of_one_rate_one_table_is_optimal() -> None:
    solution = solve(server(mmpp2(0.5 * MU, 0.5 * MU, 30, 5)))
    one = solve_one_table(solution)
    assert one.cost == pytest.approx(solution.gain, rel=1e-9)
    assert "Poisson" in one.origin


def test_one_table_keeps_the_smallest_batch() -> None:
    one = solve_one_table(solve(server(mmpp2(0.3 * MU, 0.1 * MU, 20, 20), min_batch_size=3)))
    assert min(take for take in one.policy.take if take) >= 3 and one.policy.servers == 1


# --- tables by the likeliest phase


def test_the_table_in_force_is_that_of_the_likeliest_phase() -> None:
    tables = PhaseTables(mmpp2(100, 10, 1, 0.5), (policies.greedy(4, 1), policies.static(4, 1)))
    times = np.cumsum(tables.arrivals.sample(2000, np.random.default_rng(1)))
    followed, schedule = filter_phases(tables.arrivals, times), tables.schedule(times)
    at = np.linspace(times[0], times[-1], 500)
    in_force = np.append(schedule.first, schedule.swap_to)[np.searchsorted(schedule.swap_times, at, side="right")]
    assert in_force.tolist() == followed.likeliest(at).tolist() and schedule.tables == tables.tables
    assert len(set(in_force.tolist())) == 2


def test_a_filter_of_phases_of_one_rate_costs_exactly_what_one_table_does() -> None:
    problem = server(mmpp2(0.5 * MU, 0.5 * MU, 30, 5))
    solution = solve(problem)
    one = solve_one_table(solution)
    filtered = simulate_filtered(problem, PhaseTables.of(solution), one)
    assert filtered.cost == pytest.approx(one.cost) and filtered.mean_latency.high == pytest.approx(filtered.mean_latency.low)


def test_the_filtered_cost_is_that_of_the_study() -> None:
    found = answered()
    assert found.filtered is not None
    known = studied("0.8 μ, 0.2 μ", "filtered")
    latency = found.filtered.mean_latency
    error = hypot(known["excess_error"], 1e3 * (latency.high - latency.low) / 4)  # the power hardly varies beside the latency
    assert abs(found.filtered.cost - found.solution.gain - known["excess"]) < 4 * error
    assert found.one_table is not None and found.solution.gain < found.filtered.cost < found.one_table.cost


def test_the_answer_says_what_both_come_to() -> None:
    found = answered()
    assert set(found.latency) == {"filtered", "one table"} and not found.latency_is_exact and len(found.policies) == 2
    for percentiles in found.latency.values():
        assert 0 < percentiles["p50"] < percentiles["p95"] < percentiles["p99"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([policies.greedy(4, 1)], "tables: 1 is not allowed; allowed: 2, one for each phase of the arrivals"),
        ([policies.greedy(4, 1), policies.greedy(4, 2)], r"tables\[1\].servers: 2 is not allowed; allowed: 1, as tables\[0\]"),
        ([policies.no_batching()] * 2, r"tables\[0\].servers: none was given"),
    ],
)
def test_tables_that_do_not_fit_the_phases_are_refused(tables: list[policies.Policy], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PhaseTables(mmpp2(100, 10, 1, 0.5), tuple(tables))


def test_what_needs_one_phase_is_refused_of_several() -> None:
    problem = server(mmpp2(0.8 * MU, 0.2 * MU, 20, 20))
    for asked in ({"slos": [Slo(0.1)]}, {"frontier": True}, {"servers": 2}, {"method": "value-iteration"}):
        with pytest.raises(InvalidInput, match="arrivals.n_phases: 2 is not allowed; allowed: 1, Poisson arrivals, with"):
            answer_problem(problem, **asked)  # type: ignore[arg-type]


def test_phases_that_shift_too_often_for_a_simulation_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="arrivals: '1e[+]09 shifts of the phase for each arrival' is not allowed; allowed: at most"
    ):
        answer_problem(server(mmpp2(1e-9, 1e-9, 1, 1)))


# --- documents


def test_tables_survive_their_document() -> None:
    document = answer_document(answered())
    assert isinstance(document, PhaseTablesDocument)
    again = read_phase_tables(write(document), "tables.json")
    assert again.tables == answered().policies
    assert np.array_equal(again.arrivals.D0, answered().problem.arrivals.D0)
    assert np.array_equal(again.arrivals.D1, answered().problem.arrivals.D1)
    assert PhaseTablesDocument.of(again) == document


def test_a_plan_of_arrivals_with_phases_holds_the_one_table() -> None:
    plan = answer_document(answered(), "googlenet", "http://127.0.0.1:8500")
    one = answered().one_table
    assert isinstance(plan, Plan) and plan.policy is not None and one is not None
    assert plan.policy.policy() == one.policy
    assert plan.arrivals == answered().problem.arrivals.document()


def test_a_plan_of_poisson_arrivals_holds_its_table() -> None:
    found = answer_problem(googlenet(0.5, max_batch_size=4))
    plan, policy = answer_document(found, "googlenet", "http://127.0.0.1:8500"), answer_document(found)
    assert isinstance(plan, Plan) and isinstance(policy, PolicyDocument) and plan.policy == policy and plan.arrivals is None
    with pytest.raises(InvalidInput, match="model, function: .* both, for a plan, or neither, for a policy"):
        answer_document(found, model="googlenet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "tables.json: version: 2 is not allowed; allowed: 1"),
        ({"tables": []}, "tables.json: tables: 0 is not allowed; allowed: 2, one for each phase"),
        ({"phases": 2}, "tables.json: phases: 2 is not allowed; allowed: no such field, but version, "),
        ({"arrivals": msgspec.to_builtins(poisson(3.0).document())}, "tables.json: tables: 2 is not allowed; allowed: 1, one for"),
        (
            {"arrivals": msgspec.to_builtins(mmpp2(100, 10, 1, 0.5).document()) | {"arrival_rate": 3.0}},
            "tables.json: arrival_rate: 3.0 is not allowed; allowed: the rate of D0 and D1, 40",
        ),
    ],
)
def test_a_document_that_is_none_is_refused_with_its_field(change: dict[str, object], message: str) -> None:
    tables = PhaseTables(mmpp2(100, 10, 1, 0.5), (policies.greedy(4, 1), policies.static(4, 1)))
    content = msgspec.to_builtins(PhaseTablesDocument.of(tables)) | change
    with pytest.raises(InvalidInput, match=message):
        read_phase_tables(msgspec.json.encode(content), "tables.json")


def test_an_arrival_that_the_phases_cannot_have_is_refused() -> None:
    # gaps of two stages: no two arrivals at one time
    stages = ArrivalProcess(np.array([[-3.0, 3.0], [0.0, -3.0]]), np.array([[0.0, 0.0], [3.0, 0.0]]))
    tables = PhaseTables(stages, (policies.greedy(4, 1),) * 2)
    with pytest.raises(InvalidInput, match=r"times\[2\]: 1.0 .* a time at which the process can have an arrival"):
        tables.schedule(np.array([0.0, 1.0, 1.0]))


def test_other_weights_are_another_table() -> None:
    problem = server(mmpp2(0.8 * MU, 0.2 * MU, 20, 20))
    hasty = solve_one_table(solve(replace(problem, power_weight=0.0)))
    assert hasty.policy.take[:9] == tuple(range(9))  # nothing but the latency counts: take all
