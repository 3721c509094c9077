"""Two classes before one server: special cases that are known, a brute force over everything a batch may take, the simulator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf

import numpy as np
import pytest

from sluice.batching.documents import RequestClass
from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.law import ServiceLaw, deterministic
from sluice.optimizer.simulation.batch_means import estimate_mean
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.smdp import affine, class_queue, solve
from sluice.optimizer.smdp.class_answer import IN_ORDER, URGENT_FIRST, answer_classes
from sluice.optimizer.smdp.class_policy_iteration import evaluate_classes, solve_classes, urgent_first
from sluice.optimizer.smdp.class_problem import ClassProblem, WeightedClass
from tests.optimizer.smdp_problems import LAWS


def two_classes(
    weights: tuple[float, float] = (5.0, 1.0),
    load: float = 0.6,
    share: float = 0.3,
    largest: int = 6,
    law: Callable[[Array], ServiceLaw] = deterministic,
    power_weight: float = 1.0,
) -> ClassProblem:
    """GoogLeNet on a Tesla P4; ``share`` is that of the first class."""
    mean, energy = affine(1.0524e-3, 0.3051e-3, largest), affine(19.603e-3, 19.899e-3, largest)
    rate = load * largest / mean[-1]
    classes = [WeightedClass("quick", share * rate, weights[0]), WeightedClass("slow", (1 - share) * rate, weights[1])]
    return ClassProblem.of(classes, law(mean), energy, 1, 1e3, power_weight)


@pytest.mark.parametrize("law", ["deterministic", "erlang", pytest.param("hyperexponential", marks=pytest.mark.proof)])
def test_classes_of_one_weight_are_one_class_and_the_table_reads_their_sum(law: str) -> None:
    problem = two_classes((2.0, 2.0), law=LAWS[law])
    found, one = solve_classes(problem), solve(problem.without_classes)
    assert found.converged and found.gain == pytest.approx(one.gain, rel=1e-6)
    for waiting in range(2 * 6):
        assert {int(found.actions[q1, waiting - q1]) for q1 in range(waiting + 1)} == {int(one.actions[0][waiting])}


def test_a_gain_that_is_not_what_the_latencies_come_to_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a linear system was solved wrongly, and says that it was not."""
    evaluate = class_queue.ClassQueue.evaluate

    def wrong(
        queue: class_queue.ClassQueue, actions: Array, weights: class_queue.ClassWeights, *start: Array
    ) -> tuple[float, Array]:
        gain, values = evaluate(queue, actions, weights, *start)
        return gain * (0.1 if weights.urgent and weights.patient else 1.0), values

    monkeypatch.setattr(class_queue.ClassQueue, "evaluate", wrong)
    with pytest.raises(NotConverged, match="the gain of a table over two classes"):
        solve_classes(two_classes(largest=2))


def test_an_urgent_class_that_hardly_comes_leaves_the_table_of_the_other() -> None:
    problem = two_classes((5.0, 1.0), share=1e-4)
    found, one = solve_classes(problem), solve(problem.without_classes)
    assert found.gain == pytest.approx(one.gain, rel=1e-4)
    assert found.actions[0, :12].tolist() == one.actions[0][:12].tolist()


def test_a_patient_class_that_hardly_comes_leaves_the_table_of_the_other() -> None:
    problem = two_classes((5.0, 1.0), share=1 - 1e-4)
    found, one = solve_classes(problem), solve(problem.without_classes)
    assert found.gain == pytest.approx(one.gain, rel=1e-4)
    assert found.actions[:12, 0].tolist() == one.actions[0][:12].tolist()


def test_the_order_in_which_classes_are_named_does_not_matter() -> None:
    problem = two_classes()
    again = ClassProblem.of(problem.classes[::-1], problem.together.service, problem.together.energy, 1, 1e3, 1.0)
    assert again.classes == problem.classes


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
def test_the_performance_of_the_table_makes_its_gain(law: str) -> None:
    problem = two_classes(law=LAWS[law], load=0.5)
    found = solve_classes(problem)
    assert problem.cost(found.performance.mean_latency, found.performance.power) == pytest.approx(found.gain, rel=1e-9)


def test_the_urgent_first_under_the_table_of_one_queue_costs_less_than_in_order_and_more_than_the_best() -> None:
    problem = two_classes((10.0, 1.0), load=0.7)
    one = solve(problem.without_classes)
    reordered = evaluate_classes(problem, urgent_first(problem, one.actions[0]))
    urgent, patient = reordered.mean_latency
    assert urgent < one.mean_latency < patient
    assert np.dot(problem.shares, reordered.mean_latency) == pytest.approx(one.mean_latency, rel=1e-6)
    assert reordered.power == pytest.approx(one.power, rel=1e-6)
    assert reordered.mean_batch_size == pytest.approx(one.performance.mean_batch_size, rel=1e-6)
    assert solve_classes(problem).gain < problem.cost(reordered.mean_latency, reordered.power) < one.gain


@pytest.mark.proof
def test_with_long_tails_the_urgent_first_wait_all_together_as_long_as_in_order_and_cost_more_than_the_best() -> None:
    answer = answer_classes(two_classes(load=0.9, share=0.5, largest=4, law=LAWS["hyperexponential"]))
    in_order, reordered = answer.compared[IN_ORDER], answer.compared[URGENT_FIRST]
    assert np.dot(answer.solution.problem.shares, reordered.mean_latency) == pytest.approx(in_order.mean_latency[0], rel=1e-6)
    assert (reordered.power, reordered.mean_batch_size) == (in_order.power, in_order.mean_batch_size)
    assert answer.saved(URGENT_FIRST) > 0


def test_values_that_take_more_than_one_round_of_restarts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    best = solve_classes(two_classes())
    monkeypatch.setattr(class_queue, "_RESTART", 18)
    monkeypatch.setattr(class_queue, "_RESTARTS", 1)
    assert solve_classes(two_classes()).gain == pytest.approx(best.gain, rel=1e-6)


def test_what_no_grid_was_large_enough_for_is_not_compared() -> None:
    answer = answer_classes(two_classes(load=0.95, share=0.5, law=LAWS["hyperexponential"]), lambda: 0.0)
    assert set(answer.compared) == {IN_ORDER}


def test_services_with_tails_too_long_for_two_classes_are_refused_before_they_take_memory() -> None:
    with pytest.raises(InvalidInput, match="arrivals during a service: 'up to .* shorter tails"):
        solve_classes(two_classes(load=0.9, largest=128, law=LAWS["hyperexponential"]))


@pytest.mark.parametrize("weights", [(4.0, 1.0), (20.0, 1.0)])
def test_no_choice_of_whom_to_take_is_better_than_the_urgent_first(weights: tuple[float, float]) -> None:
    problem = two_classes(weights, load=0.35, share=0.5, largest=3, power_weight=2.0)
    assert solve_classes(problem).gain == pytest.approx(least_cost_of_any_batch(problem, 13), rel=1e-6)


def least_cost_of_any_batch(problem: ClassProblem, states: int) -> float:
    """By value iteration over every (b1, b2), the queues cut at ``states`` of each class; dense, and of fixed service times."""
    one = problem.together
    largest, rate = one.max_batch_size, one.arrival_rate
    weights = np.array([each.weight for each in problem.classes]) * one.latency_weight / rate
    rates = np.array([each.arrival_rate for each in problem.classes])
    counts = [[deterministic(one.service.mean).counts(float(r), 4 * states)[b] for r in rates] for b in range(largest)]
    moved = np.zeros((2, largest, states, states))  # by class, size of the batch, left behind
    for c, b, x in product(range(2), range(largest), range(states)):
        for k, p in enumerate(counts[b][c]):
            moved[c, b, x, min(x + k, states - 1)] += p
    values, step = np.zeros((states, states)), 0.9 / rate
    q1, q2 = np.indices(values.shape)
    holding = weights[0] * q1 + weights[1] * q2
    for _ in range(20_000):
        ahead = [np.vstack([values[1:], values[-1:]]), np.hstack([values[:, 1:], values[:, -1:]])]
        best = holding + step * (rates[0] * (ahead[0] - values) + rates[1] * (ahead[1] - values))
        for b in range(1, largest + 1):
            seconds = float(one.service.mean[b - 1])
            behind = moved[0, b - 1] @ values @ moved[1, b - 1].T
            fixed = one.power_weight * float(one.energy[b - 1]) + float(weights @ rates) * seconds**2 / 2
            for b1 in range(b + 1):
                b2 = b - b1
                slowed = holding[b1:, b2:] + fixed / seconds
                slowed = slowed + step / seconds * (behind[: states - b1, : states - b2] - values[b1:, b2:])
                best[b1:, b2:] = np.minimum(best[b1:, b2:], slowed)
        least, most = best.min(), best.max()
        values = values + best - best[0, 0]
        if most - least < 1e-8 * most:
            return float((least + most) / 2)
    raise AssertionError("value iteration did not end")


def test_when_time_is_up_the_best_table_so_far_comes_with_what_none_costs_less_than() -> None:
    problem = two_classes()
    best, stopped = solve_classes(problem), solve_classes(problem, lambda: 0.0)
    assert not stopped.converged and stopped.iterations == 1 and stopped.truncation == inf
    assert stopped.bound is not None and stopped.bound < best.gain < stopped.gain


def test_a_grid_that_may_not_grow_is_told() -> None:
    found = solve_classes(two_classes(), most_states=8)
    assert found.actions.shape == (8, 8) and not found.converged and found.bound is None


def test_the_table_is_a_policy_with_a_column_for_each_number_of_patient_requests() -> None:
    found = solve_classes(two_classes((5.0, 1.0), load=0.7, largest=8))
    policy = found.policy()
    assert policy.columns > 2 and policy.servers == 1 and policy.kind == "smdp"
    for q1, q2 in product(range(20), range(20)):
        row = policy.row(q1, q2)
        assert policy.take[row] == found.actions[q1, q2] and policy.hold[row] == (0.0 if found.actions[q1, q2] else inf)
    curve = found.switching_curve
    assert found.monotone and curve[0] is not None and curve[:4] == sorted(curve[:4], key=lambda q1: -(q1 or 0))
    assert not found.larger_with_more  # with an urgent batch to hand, the patient wait: it is done sooner


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([WeightedClass("a", 1.0, 1.0)], "two: of more"),
        ([WeightedClass(name, 1.0, 1.0) for name in "abc"], "weights are nearest"),
        ([WeightedClass("a", 1.0, 1.0), WeightedClass("a", 2.0, 1.0)], "two names"),
    ],
)
def test_what_is_not_two_classes_is_refused(classes: list[WeightedClass], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ClassProblem.of(classes, deterministic([0.1, 0.1]), [1.0, 1.0])


def test_numbers_that_are_none_are_refused_by_the_name_of_the_class() -> None:
    with pytest.raises(InvalidInput, match="arrival rate of class a: 0"):
        WeightedClass("a", 0.0, 1.0)
    with pytest.raises(InvalidInput, match="weight of class a: -1"):
        WeightedClass("a", 1.0, -1.0)
    with pytest.raises(InvalidInput, match="largest batch: 200 is not allowed; allowed: at most 128"):
        ClassProblem.of([WeightedClass("a", 1.0, 1.0), WeightedClass("b", 1.0, 1.0)], deterministic(np.ones(200)), np.ones(200))


def test_a_table_that_takes_more_than_wait_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"actions\[0\]\[0\]"):
        evaluate_classes(two_classes(), np.full((8, 8), 6))


def test_in_the_simulator_both_classes_wait_as_long_as_is_solved_and_as_much_energy_is_spent() -> None:
    problem = two_classes((10.0, 1.0), load=0.6)
    found = solve_classes(problem)
    rng, n = np.random.default_rng(11), 150_000
    times = np.cumsum(rng.exponential(1 / problem.together.arrival_rate, n))
    class_of = (rng.random(n) < problem.shares[1]).astype(np.int64)
    classes = [RequestClass("quick", slack=0.0), RequestClass("slow", slack=50.0)]
    deployment = Deployment(found.policy(), problem.together.service.service_times(), classes=classes)
    run = simulate_deployment(deployment, times, rng, classes=class_of)
    for k in range(2):
        estimate = estimate_mean(run.of_class(k).latency)
        assert estimate.low <= found.performance.mean_latency[k] <= estimate.high
    joules = problem.together.energy[run.batch_sizes - 1].sum()
    assert joules / times[-1] == pytest.approx(found.performance.power, rel=5e-3)


class Asked:
    """Seconds that pass one each time somebody asks how many are left."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def __call__(self) -> float:
        self.left -= 1
        return self.left


@pytest.mark.parametrize("seconds", [3, 40, 90, 200])
def test_a_step_is_given_up_in_time_to_tell_what_the_best_table_so_far_comes_to(seconds: int) -> None:
    problem, clock = two_classes(), Asked(seconds)
    found = solve_classes(problem, clock)
    assert not found.converged and clock.left > -3  # each of the steps under way is left when it asks next
    assert problem.cost(found.performance.mean_latency, found.performance.power) == pytest.approx(found.gain, rel=1e-6)
    best = solve_classes(problem)
    assert found.gain >= best.gain * (1 - 1e-6) and (found.bound is None or found.bound <= best.gain)
    assert answer_classes(problem, Asked(seconds)).compared.keys() == {IN_ORDER}


def test_a_larger_grid_whose_values_are_not_found_leaves_the_table_of_the_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_classes()
    small = solve_classes(problem, most_states=8)
    evaluate = class_queue.ClassQueue.evaluate

    def fails_on_the_larger(queue: class_queue.ClassQueue, *given: object) -> tuple[float, Array]:
        if queue.shape[0] > 8:
            raise NotConverged("the values of a table over two classes", None, 1.0)
        return evaluate(queue, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(class_queue.ClassQueue, "evaluate", fails_on_the_larger)
    found = solve_classes(problem)
    assert found.actions.tolist() == small.actions.tolist() and found.gain == small.gain and not found.converged


def test_a_larger_grid_whose_table_cannot_be_told_leaves_the_table_of_the_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_classes()
    small = solve_classes(problem, most_states=8)
    evaluate = class_queue.ClassQueue.evaluate

    def wrong_beyond(
        queue: class_queue.ClassQueue, actions: Array, weights: class_queue.ClassWeights, *given: object
    ) -> tuple[float, Array]:
        gain, values = evaluate(queue, actions, weights, *given)  # type: ignore[arg-type]
        told = queue.shape[0] > 8 and not (weights.urgent and weights.patient)
        return gain * (0.1 if told else 1.0), values

    monkeypatch.setattr(class_queue.ClassQueue, "evaluate", wrong_beyond)
    assert solve_classes(problem, most_states=15).actions.tolist() == small.actions.tolist()
