"""Fits of arrival processes: by moments, and by likelihood with everything that EM promises."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.mmpp import mmpp2, mmpp2_rates
from sluice.optimizer.fits import fit_erlang_orders, fit_hidden_markov, fit_mmpp2, fit_mmpp2_moments
from sluice.optimizer.fits.erlang_orders import rounded_orders
from sluice.optimizer.fits.forward_backward import expect
from sluice.optimizer.fits.hidden_markov import log_likelihood
from sluice.optimizer.fits.squarem import GammaStates, climb
from sluice.optimizer.fits.starting_points import spread_means, sticky
from tests.optimizer.phases_seen import seen_with_phases

KNOWN = {"A": (100.0, 10.0, 0.1, 0.05), "B": (50.0, 5.0, 1.0, 2.0), "C": (400.0, 20.0, 2.0, 0.2)}


@settings(max_examples=40, deadline=None)
@given(st.floats(20, 500), st.floats(0.1, 15), st.floats(0.05, 10), st.floats(0.05, 10))
def test_a_moment_fit_recovers_the_process_it_was_given_the_moments_of(l1: float, l2: float, w1: float, w2: float) -> None:
    known = mmpp2(l1, l2, w1, w2)
    decay = float(known.autocorrelation([2])[0] / known.autocorrelation([1])[0])
    fit = fit_mmpp2_moments(known.moment(1), known.scv, known.moment(3), decay)
    assert fit.distance == 0 and fit.note == ""
    assert mmpp2_rates(fit.arrivals) == pytest.approx(mmpp2_rates(known), rel=1e-3)


@settings(max_examples=40, deadline=None)
@example(1.01, 13.0, 0.96875, 1.0)  # switches so seldom that rounding hides them
@given(st.floats(1.01, 50), st.floats(1.002, 20), st.floats(0, 0.999), st.floats(1e-3, 1e3))
def test_a_moment_fit_has_exactly_the_moments_asked_for(scv: float, above: float, decay: float, mean: float) -> None:
    third = 6 * mean**3 * ((scv + 1) / 2) ** 2 * above
    fit = fit_mmpp2_moments(mean, scv, third, decay)
    assert fit.distance == 0 and fit.note == ""
    assert [fit.arrivals.moment(1), fit.arrivals.scv, fit.arrivals.moment(3)] == pytest.approx([mean, scv, third], rel=1e-5)
    level = (1 - 1 / scv) / 2
    assert fit.arrivals.autocorrelation([1, 2]) == pytest.approx([level * decay, level * decay**2], abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.floats(1.2, 30), st.floats(0.7, 0.99))
def test_no_feasible_moments_are_nearer_than_those_of_the_fit(scv: float, below: float) -> None:
    third = 6 * ((scv + 1) / 2) ** 2 * below
    fit = fit_mmpp2_moments(1.0, scv, third, 0.3)
    at = fit.arrivals.scv, fit.arrivals.moment(3)
    assert "no MMPP(2) has so low a third moment at this SCV" in fit.note

    def distance(other_scv: Array | float, other_third: Array | float) -> Array:
        changes = [np.abs(b - a) / np.maximum(a, b) for a, b in ((scv, other_scv), (third, other_third))]
        return np.asarray(np.hypot(*changes))

    assert fit.distance == pytest.approx(float(distance(*at)), rel=1e-4)
    scvs, thirds = np.meshgrid(np.linspace(1.0001, 1.5 * scv, 400), np.linspace(0.5 * third, 3 * third, 400))
    r2, r3 = (scvs + 1) / 2, thirds / 6
    feasible = r3 - r2**2 >= 1e-3 * (r3 - r2)  # the faster state is no faster than a thousandth of the mean gap
    assert fit.hidden is not None and fit.hidden[0].min() == pytest.approx(1e-3, rel=1e-2)
    assert fit.distance <= distance(scvs, thirds)[feasible].min() * (1 + 1e-9)
    assert fit.arrivals.moment(1) == pytest.approx(1)


@pytest.mark.parametrize("scv", [0.0, 0.5, 1.0])
def test_moments_smoother_than_poisson_give_poisson_and_say_how_far(scv: float) -> None:
    fit = fit_mmpp2_moments(2.0, scv, 8.0 * max((1 + scv) ** 2, 6 * (scv == 1.0)), 0.0)
    assert fit.arrivals.model == "poisson" and fit.arrivals.arrival_rate == 0.5
    assert (fit.distance > 0) == (scv < 1)
    assert f"no MMPP(2) has an SCV of {scv:.4g} <= 1: the nearest is Poisson" in fit.note


def test_a_negative_decay_is_moved_to_none_and_said() -> None:
    fit = fit_mmpp2_moments(1.0, 4.0, 100.0, -0.2)
    assert "decay -0.2 moved to 0" in fit.note and fit.distance == pytest.approx(0.2)
    assert fit.arrivals.autocorrelation([1]) == pytest.approx([0], abs=1e-9)


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        (
            (1.0, 4.0, 10.0, 0.5),
            r"third_moment: 10.0 is not allowed; allowed: at least E\[X\^2\]\^2 / E\[X\] = 25 s\^3, as any law",
        ),
        ((1.0, 4.0, float("nan"), 0.5), "third_moment: nan"),
        ((0.0, 4.0, 100.0, 0.5), "mean: 0.0 is not allowed; allowed: a number of seconds > 0"),
        ((1.0, -0.1, 100.0, 0.5), "scv: -0.1 is not allowed; allowed: a number >= 0"),
        ((1.0, 4.0, 100.0, 1.0), r"decay: 1.0 is not allowed; allowed: a ratio of autocorrelations in \(-1, 1\)"),
    ],
)
def test_moments_that_no_gap_has_are_refused(moments: tuple[float, float, float, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_mmpp2_moments(*moments)


def perron_log_likelihood(gaps: Array, shapes: Array, means: Array, transitions: Array) -> float:
    """Log of the largest eigenvalue of the product of all one-step matrices: the circle, by its definition."""
    rates = shapes / means
    density = np.exp(shapes * np.log(rates) - gammaln(shapes) + (shapes - 1) * np.log(gaps[:, None]) - gaps[:, None] * rates)
    turn, scale = np.eye(len(means)), 0.0
    for row in density:
        turn = turn @ (transitions * row)
        scale += np.log(turn.max())
        turn /= turn.max()
    return float(np.log(np.abs(np.linalg.eigvals(turn)).max()) + scale)


@pytest.mark.parametrize("n", [3, 300])
def test_expected_statistics_are_the_slopes_of_the_log_likelihood(n: int) -> None:
    rng = np.random.default_rng(5)
    gaps = mmpp2(50, 5, 1, 2).sample(n, rng)
    shapes, means = np.array([1.0, 2.5, 4.0]), np.array([0.02, 0.1, 0.3])
    transitions = rng.dirichlet(np.ones(3), 3)
    seen = expect(gaps, np.log(gaps), shapes, means, transitions)
    assert seen.log_likelihood == pytest.approx(perron_log_likelihood(gaps, shapes, means, transitions), abs=1e-8)
    assert seen.weights.sum() == pytest.approx(n) and seen.sums.sum() == pytest.approx(gaps.sum())
    assert seen.log_sums.sum() == pytest.approx(np.log(gaps).sum())
    assert seen.transitions.sum(axis=0) == pytest.approx(seen.weights) and seen.transitions.sum(axis=1) == pytest.approx(
        seen.weights
    )

    def slope(at: Array, index: tuple[int, ...], *, of_means: bool) -> float:
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] *= np.exp(sign * 1e-5)
            ends.append(perron_log_likelihood(gaps, shapes, *((moved, transitions) if of_means else (means, moved))))
        return (ends[0] - ends[1]) / 2e-5

    for i in range(3):
        by_mean = shapes[i] * (seen.sums[i] / means[i] - seen.weights[i])
        assert slope(means, (i,), of_means=True) == pytest.approx(by_mean, abs=1e-4 * n)
        for j in range(3):
            assert slope(transitions, (i, j), of_means=False) == pytest.approx(seen.transitions[i, j], abs=1e-5 * n)


@pytest.mark.proof
@pytest.mark.parametrize("name", KNOWN)
def test_em_is_within_two_percent_of_the_estimate_that_sees_the_phases(name: str) -> None:
    errors = []
    for seed in range(10):
        gaps, complete = seen_with_phases(KNOWN[name], 100_000, np.random.default_rng(seed))
        fit = fit_mmpp2(gaps)
        assert fit.convergence.converged
        errors.append(np.abs(np.array(mmpp2_rates(fit.arrivals())) / complete - 1))
    assert np.mean(errors, axis=0).max() < 0.02


def plain_em(gaps: Array, means: Array, transitions: Array, iterations: int) -> tuple[Array, Array, float]:
    """Baum and Welch as the textbook has it, start law stationary, in Python: the reference."""
    for last in [False] * iterations + [True]:
        density = np.exp(-gaps[:, None] / means) / means
        law = np.linalg.matrix_power(transitions, 10_000)[0]
        forward, norms = np.empty_like(density), np.empty(len(gaps))
        for t, row in enumerate(density):
            law = law * row if t == 0 else law @ transitions * row
            norms[t] = law.sum()
            forward[t] = law = law / norms[t]
        if last:
            break
        follow, posterior, counts = np.ones(len(means)), np.empty_like(density), np.zeros_like(transitions)
        for t in range(len(gaps) - 1, -1, -1):
            posterior[t] = forward[t] * follow
            if t:
                ahead = density[t] * follow / norms[t]
                counts += forward[t - 1][:, None] * transitions * ahead
                follow = transitions @ ahead
        means, transitions = gaps @ posterior / posterior.sum(axis=0), counts / counts.sum(axis=1, keepdims=True)
    return means, transitions, float(np.log(norms).sum())


@pytest.mark.proof
def test_the_likelihood_is_that_of_a_long_plain_em_from_many_starts_at_least() -> None:
    rng = np.random.default_rng(9)
    gaps = mmpp2(50, 5, 1, 2).sample(600, rng)
    reference = max(plain_em(gaps, gaps.mean() * np.exp(rng.normal(size=2)), rng.dirichlet(np.ones(2), 2), 60)[2] for _ in range(4))
    fit = fit_mmpp2(gaps)
    ours = plain_em(gaps, fit.means, fit.transitions, 0)[2]
    assert ours > reference - 0.1  # nats: the reference climbs the likelihood of the open sequence, ours that of the circle
    assert fit.log_likelihood == pytest.approx(log_likelihood(gaps, (1, 1), fit.means, fit.transitions), abs=2e-3)


def test_em_never_loses_likelihood_where_leaps_go_too_far() -> None:
    gaps = np.exp(np.random.default_rng(6).normal(0, 1.5, 1500))
    reached = [fit_hidden_markov(gaps, (1, 1, 1, 1), max_iterations=k, tolerance=0.0).convergence for k in range(2, 60, 2)]
    assert np.diff([c.value for c in reached]).min() > -1e-6
    assert not reached[0].converged and reached[0].residual > reached[-1].residual >= 0
    assert [c.iterations for c in reached] == pytest.approx(list(range(2, 60, 2)), abs=1)


def test_em_keeps_the_mean_gap() -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(3000, np.random.default_rng(3))
    fit = fit_mmpp2(gaps)
    assert fit.convergence.converged and fit.convergence.residual < 1e-3
    assert fit.arrivals().arrival_rate == pytest.approx(1 / gaps.mean(), rel=1e-6)


@pytest.mark.proof
def test_a_converged_fit_has_nothing_left_to_gain() -> None:
    gaps = np.random.default_rng(6).gamma(0.6, 1.0, 4000)
    fit = fit_hidden_markov(gaps, (1, 1, 2))
    more = fit_hidden_markov(gaps, (1, 1, 2), fit.means, fit.transitions, max_iterations=3000, tolerance=0.0)
    assert fit.convergence.converged
    assert more.log_likelihood - fit.log_likelihood < 0.05


def test_rescaled_time_rescales_the_fit() -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(2000, np.random.default_rng(3))
    one, other = fit_erlang_orders(gaps, 3), fit_erlang_orders(1000 * gaps, 3)
    assert one.orders == other.orders
    assert 1000 * one.means == pytest.approx(other.means, rel=1e-6)
    assert one.log_likelihood - other.log_likelihood == pytest.approx(len(gaps) * np.log(1000))


def test_erlang_states_are_smoother_than_poisson_where_the_trace_is() -> None:
    gaps = np.random.default_rng(4).gamma(9, 0.01, 5000)
    fit = fit_erlang_orders(gaps, 1)
    assert fit.orders == (9,)
    assert fit.arrivals().scv == pytest.approx(1 / 9)


def test_erlang_states_find_the_process_they_were_drawn_from() -> None:
    rng = np.random.default_rng(12)
    stay = np.array([[0.9, 0.1], [0.3, 0.7]])
    uniform, states = rng.random(30_000), [0]
    for u in uniform[1:]:
        states.append(int(u < stay[states[-1], 1]))
    orders, means = np.array([6, 1]), np.array([0.02, 0.5])
    gaps = rng.gamma(orders[states], (means / orders)[states])
    fit = fit_erlang_orders(gaps, 2)
    order = np.argsort(fit.means)
    assert np.array(fit.orders)[order].tolist() == [6, 1]
    assert fit.means[order] == pytest.approx(means, rel=0.05)
    assert fit.transitions[np.ix_(order, order)] == pytest.approx(stay, abs=0.03)


def test_free_shapes_are_those_of_the_gamma_law() -> None:
    gaps = np.random.default_rng(8).gamma(3.7, 1.0, 50_000)
    found, ended = climb(gaps, GammaStates(np.ones(1), spread_means(gaps, 1), sticky(1, 1.0)), 100, 1e-3, True)
    assert ended.converged
    assert found.shapes == pytest.approx([3.7], rel=0.03)


def test_rounded_orders_keep_within_the_phases_allowed() -> None:
    assert rounded_orders(np.array([1.2, 3.6, 64.0]), 1000) == (1, 4, 64)
    assert rounded_orders(np.array([1.2, 3.6, 64.0]), 16) == (1, 4, 11)


@pytest.mark.parametrize(
    ("orders", "gaps", "message"),
    [
        ((1, 0), [1.0, 2.0], r"orders: \(1, 0\) is not allowed; allowed: integers >= 1, one per state"),
        ((), [1.0, 2.0], "orders"),
        ((1, 1), [1.0, 0.0, 2.0], "inter-arrival time 2: 0.0 is not allowed; allowed: a number of seconds > 0"),
        ((1, 1), [1.0], "inter-arrival times: 1 is not allowed; allowed: at least 2"),
    ],
)
def test_em_refuses_what_it_cannot_fit(orders: tuple[int, ...], gaps: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_hidden_markov(np.array(gaps), orders)


@pytest.mark.parametrize(
    ("n_states", "max_phases", "message"),
    [(0, None, "n_states: 0"), (9, None, "n_states: 9 is not allowed; allowed: an integer from 1 to 8"), (4, 3, "max_phases: 3")],
)
def test_erlang_states_are_one_to_eight(n_states: int, max_phases: int | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_erlang_orders(np.arange(1.0, 200), n_states, max_phases)
