"""One table per phase: against Poisson's solver, a Markov chain of the whole system, value iteration, and simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve

from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import ServiceLaw, deterministic, erlang, exponential, gamma
from sluice.optimizer.simulation.event_loop import simulate, simulate_schedule
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve
from sluice.optimizer.smdp.ladder import first_descents as scalar_descents
from sluice.optimizer.smdp.modulated import evaluate_modulated, solve_modulated
from sluice.optimizer.smdp.modulated_ladder import first_descents
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.solution import Performance
from tests.optimizer.phases_sampled import sample_with_phases
from tests.optimizer.smdp_problems import LAWS, googlenet

MU = 8 / affine(1.0524e-3, 0.3051e-3, 8)[-1]  # requests/s of full batches of 8
ALTERNATING = ArrivalProcess(np.diag([-900.0, -400.0]), np.array([[0.0, 900.0], [400.0, 0.0]]))


def server(
    arrivals: ArrivalProcess | float,
    batch_size: int = 8,
    law: Callable[[Array], ServiceLaw] = deterministic,
    power_weight: float = 1.0,
    min_batch_size: int = 1,
) -> SmdpProblem:
    mean, energy = affine(1.0524e-3, 0.3051e-3, batch_size), affine(19.603e-3, 19.899e-3, batch_size)
    return SmdpProblem(arrivals, law(mean), energy, min_batch_size, 1e3, power_weight)


def random_map(n_phases: int, rng: np.random.Generator, rate: float) -> ArrivalProcess:
    D0 = rng.exponential(1, (n_phases, n_phases)) * rng.choice([0.1, 1, 10], (n_phases, n_phases))
    D1 = rng.exponential(1, (n_phases, n_phases)) * rng.choice([0, 0, 1, 10], (n_phases, n_phases))
    D1[0, 0] += 5
    np.fill_diagonal(D0, 0)
    np.fill_diagonal(D0, -(D0.sum(axis=1) + D1.sum(axis=1)))
    process = ArrivalProcess(D0, D1)
    return process.sped_up(rate / process.arrival_rate)


def random_tables(problem: SmdpProblem, n_states: int, rng: np.random.Generator) -> np.ndarray:
    tables = np.zeros((problem.arrivals.n_phases, n_states), dtype=int)
    for i in range(len(tables)):
        limit = rng.integers(1, problem.max_batch_size + 1)
        for s in range(limit, n_states):
            tables[i, s] = rng.integers(1, min(s, problem.max_batch_size) + 1) if rng.random() < 0.7 else 0
    tables[:, -1] = problem.max_batch_size
    return tables


def cost(problem: SmdpProblem, performance: Performance) -> float:
    return problem.cost(performance.mean_latency, performance.power)


# --- with one phase it is Poisson's


@pytest.mark.full
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize(("rho", "power_weight"), [(0.3, 0.0), (0.7, 1.0), (0.9, 5.0)])
def test_one_phase_is_solved_as_poisson_arrivals_are(law, rho: float, power_weight: float) -> None:
    problem = googlenet(rho, power_weight, 12, law)
    ours, theirs = solve_modulated(problem), solve(problem)
    assert ours.gain == pytest.approx(theirs.gain, rel=1e-9)
    assert ours.mean_latency == pytest.approx(theirs.mean_latency, rel=1e-9)
    assert ours.power == pytest.approx(theirs.power, rel=1e-9)
    assert ours.performance.batch_rates == pytest.approx(theirs.performance.batch_rates, abs=1e-9 * problem.arrival_rate)
    shown = min(ours.bias.shape[1], theirs.bias.shape[1])
    assert ours.bias[:, :shown] == pytest.approx(theirs.bias[:, :shown], rel=1e-8, abs=1e-8 * abs(theirs.bias).max())


def test_phases_of_one_rate_are_none() -> None:
    mean_rate = 0.7 * MU
    solution = solve_modulated(server(mmpp2(mean_rate, mean_rate, 30, 5)))
    expected = solve(server(mean_rate))
    assert solution.gain == pytest.approx(expected.gain, rel=1e-12)
    assert np.array_equal(solution.actions[0], solution.actions[1])
    assert np.array_equal(solution.actions[0], expected.actions[0][: solution.actions.shape[1]])


def test_any_table_of_one_phase_is_evaluated_as_under_poisson_arrivals() -> None:
    problem = googlenet(0.6, max_batch_size=6)
    table = [0, 0, 1, 0, 4, 2, 6, 0, 3, 5]
    ours, theirs = evaluate_modulated(problem, table), evaluate(problem, np.array(table))
    assert (ours.mean_latency, ours.power) == pytest.approx((theirs.mean_latency, theirs.power), rel=1e-10)
    assert ours.batch_rates == pytest.approx(theirs.batch_rates, abs=1e-9 * problem.arrival_rate)


# --- against the Markov chain of the whole system, exponential service


def by_markov_chain(problem: SmdpProblem, tables: np.ndarray, longest: int) -> tuple[float, float]:
    """Mean latency (s) and batches per second from the stationary law of (waiting, phase, batch in service), cut at ``longest``."""
    D0, D1, n = problem.arrivals.D0, problem.arrivals.D1, problem.arrivals.n_phases
    sizes = problem.max_batch_size + 1  # 0: idle

    def index(s: int, i: int, a: int) -> int:
        return (s * n + i) * sizes + a

    rows, columns, rates = [], [], []

    def jump(origin: int, s: int, j: int, rate: float, busy_with: int) -> None:
        a = busy_with or int(tables[j, min(s, tables.shape[1] - 1)])
        left = s if busy_with else s - a
        rows.append(origin)
        columns.append(index(min(left, longest), j, a))
        rates.append(rate)

    for s in range(longest + 1):
        for i in range(n):
            for a in range(sizes):
                here = index(s, i, a)
                for j in range(n):
                    if j != i and D0[i, j] > 0:
                        jump(here, s, j, D0[i, j], a)
                    if D1[i, j] > 0:
                        jump(here, s + 1, j, D1[i, j], a)
                if a:
                    jump(here, s, i, 1 / problem.service.mean[a - 1], 0)
    size = (longest + 1) * n * sizes
    generator = csc_matrix((rates, (rows, columns)), (size, size))
    generator = generator - csc_matrix((np.asarray(generator.sum(axis=1)).ravel(), (range(size), range(size))), (size, size))
    system = generator.T.tolil()
    system[0] = 1.0
    right = np.zeros(size)
    right[0] = 1.0
    stationary = spsolve(system.tocsc(), right).reshape(longest + 1, n, sizes)
    present = np.arange(longest + 1)[:, None, None] + np.arange(sizes)
    batches = float((stationary[:, :, 1:].sum(axis=(0, 1)) / problem.service.mean).sum())
    return float((stationary * present).sum()) / problem.arrival_rate, batches


@pytest.mark.parametrize("seed", range(4))
def test_any_tables_under_exponential_service_are_those_of_the_markov_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = random_map(int(rng.integers(2, 4)), rng, 0.4 * 4 / affine(1.0524e-3, 0.3051e-3, 4)[-1])
    problem = server(arrivals, 4, exponential)
    tables = random_tables(problem, 11, rng)
    performance = evaluate_modulated(problem, tables)
    latency, batches = by_markov_chain(problem, tables, 160)
    assert performance.mean_latency == pytest.approx(latency, rel=1e-8)
    assert performance.batch_rate == pytest.approx(batches, rel=1e-8)


def test_tables_that_end_in_different_batch_sizes_are_those_of_the_markov_chain() -> None:
    problem = server(mmpp2(600, 100, 50, 40), 4, exponential)
    tables = np.array([[0, 0, 2, 3, 4, 4], [0, 1, 1, 2, 0, 2]])
    performance = evaluate_modulated(problem, tables)
    assert (performance.mean_latency, performance.batch_rate) == pytest.approx(by_markov_chain(problem, tables, 300), rel=1e-8)


@pytest.mark.proof
def test_a_phase_that_overloads_the_server_is_no_trouble() -> None:
    full = 4 / affine(1.0524e-3, 0.3051e-3, 4)[-1]
    problem = server(mmpp2(1.3 * full, 0.1 * full, 40, 40), 4, exponential)
    performance = evaluate_modulated(problem, greedy(problem))
    assert performance.mean_latency == pytest.approx(by_markov_chain(problem, np.tile(greedy(problem), (2, 1)), 900)[0], rel=1e-8)


# --- against value iteration, exponential service


def by_value_iteration(problem: SmdpProblem, longest: int, iterations: int) -> tuple[float, float]:
    """Bounds of the optimal gain of the uniformized chain of the whole system, cut at ``longest``."""
    D0, D1 = problem.arrivals.D0, problem.arrivals.D1
    leave = -D0.diagonal()
    service_rate = 1 / problem.service.mean
    uniform = float(leave.max() + service_rate.max())
    w1, w2, rate = problem.latency_weight, problem.power_weight, problem.arrival_rate
    s = np.arange(longest + 1)
    sizes = np.arange(1, problem.max_batch_size + 1)
    n = problem.arrivals.n_phases
    silent = D0 + np.diag(leave)
    chosen = np.zeros((longest + 1, n))  # value of a decision with s waiting
    serving = np.zeros((len(sizes), longest + 1, n))
    for _ in range(iterations):
        decided = chosen
        more, more_serving = np.append(decided[1:], decided[-1:], axis=0), np.append(serving[:, 1:], serving[:, -1:], axis=1)
        wait = w1 * s[:, None] / rate + decided @ silent.T + more @ D1.T
        wait = (wait + (uniform - leave) * decided) / uniform
        follow = w1 * (s[None, :, None] + sizes[:, None, None]) / rate + serving @ silent.T + more_serving @ D1.T
        follow += service_rate[:, None, None] * decided
        follow = (follow + (uniform - leave - service_rate[:, None, None]) * serving) / uniform
        best = wait
        for a in sizes:
            if a >= problem.min_batch_size:
                begin = np.full_like(best, np.inf)
                begin[a:] = w2 * problem.energy[a - 1] + follow[a - 1, : longest + 1 - a]
                best = np.minimum(best, begin)
        change = (best - chosen) * uniform
        offset = best[0, 0]
        chosen, serving = best - offset, follow - offset
    return float(change[: longest // 3].min()), float(change[: longest // 3].max())


@pytest.mark.proof
@pytest.mark.parametrize("arrivals", [mmpp2(900, 100, 200, 150), ALTERNATING, random_map(3, np.random.default_rng(5), 500)])
def test_the_gain_is_that_of_value_iteration(arrivals: ArrivalProcess) -> None:
    problem = server(arrivals, 3, exponential)
    low, high = by_value_iteration(problem, 120, 6000)
    assert high - low < 1e-7 * high
    assert solve_modulated(problem).gain == pytest.approx((low + high) / 2, rel=1e-8)


# --- against simulation, in standard errors


def estimate(costs: list[float]) -> tuple[float, float]:
    return float(np.mean(costs)), float(np.std(costs, ddof=1) / math.sqrt(len(costs)))


@pytest.mark.parametrize(("busy", "quiet", "switch"), [(0.8, 0.2, 20.0), (1.3, 0.2, 20.0)])
@pytest.mark.proof
def test_the_predicted_costs_are_those_of_simulations_that_see_the_phase(busy: float, quiet: float, switch: float) -> None:
    problem = server(mmpp2(busy * MU, quiet * MU, switch, switch))
    solution = solve_modulated(problem)
    poisson = solve(server(problem.arrival_rate)).actions[0]
    tables = {"optimal": solution.actions, "poisson": np.tile(poisson, (2, 1)), "greedy": np.tile(greedy(problem), (2, 1))}
    costs: dict[str, list[float]] = {name: [] for name in tables}
    rng = np.random.default_rng(7)
    for _ in range(16):
        sampled = sample_with_phases(problem.arrivals, 100.0, rng)
        for name, table in tables.items():
            by_phase = [policies.smdp(row.tolist()) for row in table]
            schedule = Schedule(by_phase, sampled.shift_times, sampled.shift_to, sampled.first)
            run = simulate_schedule(schedule, sampled.times, problem.service.service_times(), rng)
            energy = problem.energy[run.batch_sizes - 1].sum() / 100.0
            costs[name].append(problem.cost(float(np.nanmean(run.latency)), float(energy)))
    for name, table in tables.items():
        mean, error = estimate(costs[name])
        assert abs(mean - cost(problem, evaluate_modulated(problem, table))) < 4 * error


@pytest.mark.proof
def test_random_service_times_cost_what_is_predicted() -> None:
    problem = server(mmpp2(0.9 * MU, 0.1 * MU, 50, 20), law=lambda mean: gamma(mean, 2.5))
    performance = evaluate_modulated(problem, greedy(problem))
    rng, latencies, batches = np.random.default_rng(3), [], []
    for _ in range(16):
        sampled = sample_with_phases(problem.arrivals, 100.0, rng)
        run = simulate(policies.greedy(8), sampled.times, problem.service.service_times(), rng)
        latencies.append(float(run.latency.mean()))
        batches.append(run.n_batches / 100.0)
    for values, predicted in ((latencies, performance.mean_latency), (batches, performance.batch_rate)):
        mean, error = estimate(values)
        assert abs(mean - predicted) < 4 * error


# --- what must hold whatever the numbers


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_no_other_table_costs_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    law = [deterministic, exponential, lambda mean: erlang(mean, 2)][rng.integers(3)]
    full = 5 / affine(1.0524e-3, 0.3051e-3, 5)[-1]
    problem = server(random_map(int(rng.integers(1, 4)), rng, full * rng.uniform(0.1, 0.9)), 5, law, float(rng.uniform(0, 10)))
    try:
        queue = ModulatedQueue(problem)
    except InvalidInput:  # phases that shift too often within a service are refused
        reject()
    solution = solve_modulated(problem, queue=queue)
    slightest = solution.gain * (1 - 1e-10)
    assert problem.cost(solution.mean_latency, solution.power) == pytest.approx(solution.gain, rel=1e-9)
    others = [random_tables(problem, 14, rng) for _ in range(4)]
    others += [policies.control_limit(limit, 5).take for limit in range(1, 9)]
    others += [solve(server(problem.arrival_rate, 5, law, problem.power_weight)).actions[0]]
    for _ in range(10):
        changed = solution.actions.copy()
        s = int(rng.integers(1, changed.shape[1] - 1))
        changed[rng.integers(len(changed)), s] = rng.integers(0, min(s, 5) + 1)
        others.append(changed)
    assert min(cost(problem, evaluate_modulated(problem, table, queue)) for table in others) >= slightest


def test_all_that_arrive_are_served() -> None:
    problem = server(random_map(3, np.random.default_rng(1), 0.8 * MU), law=lambda mean: gamma(mean, 0.7))
    performance = evaluate_modulated(problem, random_tables(problem, 20, np.random.default_rng(2)))
    assert performance.batch_rates @ np.arange(1, 9) == pytest.approx(problem.arrival_rate, rel=1e-10)
    assert performance.power == pytest.approx(performance.batch_rates @ problem.energy, rel=1e-12)


@pytest.mark.parametrize("arrivals", [mmpp2(1.3 * MU, 0.2 * MU, 20, 20), ALTERNATING, mmpp2(1.2 * MU, 0.0, 0.5, 0.5)])
def test_more_rows_that_say_the_same_change_nothing(arrivals: ArrivalProcess) -> None:
    problem = server(arrivals)
    tables = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 3, 4, 5, 6, 7, 8]])
    longer = np.append(tables, np.full((2, 300), 8), axis=1)
    short, long = evaluate_modulated(problem, tables), evaluate_modulated(problem, longer)
    assert (short.mean_latency, short.power) == pytest.approx((long.mean_latency, long.power), rel=1e-9)


def test_time_that_runs_faster_changes_rates_alone() -> None:
    slow = server(mmpp2(0.9 * MU, 0.1 * MU, 30, 30))
    mean, energy = slow.service.mean, slow.energy
    fast = SmdpProblem(slow.arrivals.sped_up(10), deterministic(mean / 10), energy / 10, 1, 1e4, 1.0)
    a, b = solve_modulated(slow), solve_modulated(fast)
    assert np.array_equal(a.actions, b.actions)
    assert (a.mean_latency, a.power, a.gain) == pytest.approx((10 * b.mean_latency, b.power, b.gain), rel=1e-10)


def test_the_preparations_serve_other_weights() -> None:
    problem = server(mmpp2(0.9 * MU, 0.1 * MU, 30, 30))
    queue = ModulatedQueue(problem)
    for weight in (0.0, 1.0, 7.0):
        other = problem.weighted(1e3, weight)
        assert solve_modulated(other, queue=queue).gain == pytest.approx(solve_modulated(other).gain, rel=1e-12)


def test_it_does_not_matter_where_the_iteration_begins() -> None:
    problem = server(mmpp2(0.9 * MU, 0.1 * MU, 30, 30), power_weight=5.0)
    first = solve_modulated(problem)
    again = solve_modulated(problem, start=first.actions)
    assert again.iterations == 1 and again.gain == pytest.approx(first.gain, rel=1e-12)
    from_afar = solve_modulated(problem, start=[0, 1, 0, 0, 2, 0, 0, 0, 8])
    assert from_afar.gain == pytest.approx(first.gain, rel=1e-12)


def test_a_smallest_batch_is_kept() -> None:
    solution = solve_modulated(server(mmpp2(0.9 * MU, 0.1 * MU, 30, 30), power_weight=0.1, min_batch_size=3))
    assert set(np.unique(solution.actions)) <= {0, 3, 4, 5, 6, 7, 8}


def test_a_table_is_grown_as_long_as_that_is_worth_something() -> None:
    problem = server(mmpp2(1.2 * MU, 0.3 * MU, 100, 100), 16, exponential)
    solution = solve_modulated(problem)
    assert solution.actions.shape[1] > 33  # twice the largest batch, and one
    assert solution.converged and solution.residual < 1e-9


# --- its parts


@pytest.mark.parametrize("arrivals", [mmpp2(900, 50, 40, 10), random_map(4, np.random.default_rng(8), 700)])
def test_counts_over_a_fixed_service_are_those_of_the_counting_process(arrivals: ArrivalProcess) -> None:
    queue = ModulatedQueue(server(arrivals, 4))
    expected = CountingProcess(arrivals, queue.counts.shape[1], 0.01).matrices(queue.problem.service.mean)
    assert np.abs(queue.counts[1:] - expected).max() < 1e-14


@pytest.mark.parametrize("arrivals", [mmpp2(900, 50, 40, 10), random_map(4, np.random.default_rng(8), 700)])
def test_moments_over_a_random_service_are_those_of_matrix_identities(arrivals: ArrivalProcess) -> None:
    problem = server(arrivals, 4, exponential)
    queue = ModulatedQueue(problem)
    Q, D1 = arrivals.D0 + arrivals.D1, arrivals.D1
    deviation = np.linalg.inv(np.outer(np.ones(len(Q)), arrivals.stationary) - Q) - np.outer(np.ones(len(Q)), arrivals.stationary)
    for b, mean in enumerate(problem.service.mean, 1):
        end = np.linalg.inv(np.eye(len(Q)) - mean * Q)  # E exp(Q G)
        assert queue.transitions[b] == pytest.approx(end, abs=1e-13)
        assert queue.arrived[b] == pytest.approx(mean * end @ D1 @ end, abs=1e-11)
        # E int N = lambda E G^2 / 2 + D (E G - D (I - E exp(Q G))) D1 1
        held = deviation @ (mean * np.eye(len(Q)) - deviation @ (np.eye(len(Q)) - end)) @ D1.sum(axis=1)
        held += arrivals.arrival_rate * mean**2
        assert queue.costs[b, :, 0] * problem.arrival_rate == pytest.approx(held, rel=1e-9)


def test_waiting_ends_in_a_shift_or_an_arrival() -> None:
    queue = ModulatedQueue(server(mmpp2(900, 100, 25, 75), 4))
    assert queue.duration[0] == pytest.approx([1 / 925, 1 / 175])
    assert queue.counts[0, 0] == pytest.approx(np.array([[0, 25 / 925], [75 / 175, 0]]))
    assert queue.counts[0, 1] == pytest.approx(np.diag([900 / 925, 100 / 175]))


@pytest.mark.parametrize(
    ("arrivals", "batch_sizes"),
    [
        (mmpp2(0.9 * MU, 0.1 * MU, 20, 20), (8, 8)),
        (mmpp2(1.6 * MU, 0.3 * MU, 2, 2), (8, 8)),
        (mmpp2(1.1 * MU, 0.05 * MU, 50, 50), (8, 3)),
        (ALTERNATING, (8, 8)),  # requests come in phases 0 1 0 1: parity of the number waiting and phase hang together
        (ALTERNATING, (7, 7)),
        (random_map(4, np.random.default_rng(2), 0.9 * MU), (8, 8, 8, 8)),
    ],
)
def test_first_descents_are_those_of_the_next_step_and_what_follows(arrivals: ArrivalProcess, batch_sizes: tuple[int, ...]) -> None:
    queue = ModulatedQueue(server(arrivals))
    sizes = np.array(batch_sizes)
    descents = queue.tail(sizes).descents
    counts = queue.counts[sizes, :, np.arange(len(sizes))].transpose(1, 0, 2)
    b, n = descents.shape[:2]
    assert b == sizes.max() and (descents >= 0).all()
    assert descents.sum(axis=(0, 2)) == pytest.approx(np.ones(n), abs=1e-12)
    # where the queue first falls below a length, by where it stands above it: (above, by, phase, phase)
    below = np.zeros((counts.shape[0], b, n, n))
    for above in range(len(below)):
        for i in range(b):
            if i >= above:
                below[above, i - above] += descents[i]
            else:
                below[above] += np.einsum("ij,djk->dik", descents[i], below[above - i - 1])
    expected = np.zeros_like(descents)
    for phase, size in enumerate(sizes):
        for k in range(len(counts)):
            if k < size:
                expected[size - k - 1, phase] += counts[k, phase]
            else:
                expected[:, phase] += np.einsum("j,djk->dk", counts[k, phase], below[k - size])
    assert np.abs(descents - expected).max() < 1e-11


def test_without_phases_first_descents_are_those_of_the_scalar_factor() -> None:
    problem = googlenet(0.9, max_batch_size=12, law=exponential)
    counts = problem.service.counts(problem.arrival_rate, 500)[-1]
    mean = problem.arrival_rate * problem.service.mean[-1]
    expected = scalar_descents(counts, 12, mean, mean + mean**2)
    ours = first_descents(counts[:, None, None], np.array([12]), np.ones(1))
    assert ours.ravel() == pytest.approx(expected, abs=1e-11)


def test_the_storage_is_counts_by_batch_size_and_phases() -> None:
    queue = ModulatedQueue(server(mmpp2(0.9 * MU, 0.1 * MU, 20, 20)))
    n_counts = queue.counts.shape[1]
    assert queue.counts.shape == (9, n_counts, 2, 2) and n_counts < 120


# --- errors


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([[0, 1], [0, 1], [0, 1]], r"actions: \(3, 2\) .* the shape \(n_states,\) or \(2, n_states\)"),
        ([0, 1, 9, 8], r"actions\[0\]\[2\]: 9 .* batch size from 1 to 8, and at most the number waiting"),
        ([[0, 1, 2], [0, 2, 2]], r"actions\[1\]\[1\]: 2 .* at most the number waiting"),
        ([[0, 1, 2], [0, 1, 0]], r"actions\[1\]\[2\]: 0 .* the last column speaks for every longer queue"),
        ([[0, 1], [0, 1]], r"actions, last column: \[1, 1\] .* serve more than 1145.* requests/s \(not 736"),
    ],
)
def test_tables_that_are_none_are_refused(actions: list, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        evaluate_modulated(server(mmpp2(0.9 * MU, 0.1 * MU, 20, 20)), actions)


def test_phases_that_never_rest_are_refused() -> None:
    with pytest.raises(InvalidInput, match="arrivals and service: '3.493e.06 shifts .* at most 524288 in all services"):
        ModulatedQueue(server(mmpp2(0.9 * MU, 0.1 * MU, 1e9, 1e9)))


def test_an_overload_is_refused_by_the_problem() -> None:
    with pytest.raises(InvalidInput, match="load: "):
        solve_modulated(server(mmpp2(1.9 * MU, 0.2 * MU, 20, 20)))


def test_the_fixed_service_of_expm_is_the_chain_of_phases() -> None:
    arrivals = random_map(3, np.random.default_rng(4), 600)
    queue = ModulatedQueue(server(arrivals, 2))
    for b, seconds in enumerate(queue.problem.service.mean, 1):
        assert queue.transitions[b] == pytest.approx(expm((arrivals.D0 + arrivals.D1) * seconds), abs=1e-13)
