"""The filter of the phase: against the matrix exponential, against the phases that a sample hides, and at its edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp, mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.smdp.phase_filter import filter_phases
from tests.optimizer.phases_sampled import sample_with_phases

THREE = mmpp(np.array([300.0, 60.0, 5.0]), np.array([[-1.0, 0.7, 0.3], [0.5, -1.5, 1.0], [0.1, 0.4, -0.5]]))


def random_map(n_phases: int, rng: np.random.Generator) -> ArrivalProcess:
    D0 = rng.exponential(1, (n_phases, n_phases)) * rng.choice([0, 0.1, 1], (n_phases, n_phases))
    D1 = rng.exponential(1, (n_phases, n_phases)) * rng.choice([0, 1, 10], (n_phases, n_phases))
    D1[0], D1[:, 0] = D1[0] + 1, D1[:, 0] + 0.1
    np.fill_diagonal(D0, 0)
    np.fill_diagonal(D0, -(D0.sum(axis=1) + D1.sum(axis=1)))
    return ArrivalProcess(D0, D1)


def by_expm(arrivals: ArrivalProcess, times: Array) -> Array:
    beliefs = [arrivals.embedded]
    for gap in np.diff(times):
        belief = beliefs[-1] @ expm(arrivals.D0 * gap) @ arrivals.D1
        beliefs.append(belief / belief.sum())
    return np.array(beliefs)


# --- against the matrix exponential


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_beliefs_are_those_of_the_matrix_exponential(seed: int, n_phases: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = random_map(n_phases, rng)
    times = np.cumsum(arrivals.sample(60, rng))
    found = filter_phases(arrivals, times)
    assert found.beliefs == pytest.approx(by_expm(arrivals, times), abs=1e-10)
    at = rng.uniform(times[0], times[-1], 10)
    for moment, belief in zip(at, found.belief(at), strict=True):
        last = np.searchsorted(times, moment, side="right") - 1
        expected = found.beliefs[last] @ expm(arrivals.D0 * (moment - times[last]))
        assert belief == pytest.approx(expected / expected.sum(), abs=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_the_schedule_is_the_likeliest_phase_at_every_moment(seed: int, n_phases: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = random_map(n_phases, rng)
    times = np.cumsum(arrivals.sample(40, rng))
    found = filter_phases(arrivals, times)
    at = np.sort(rng.uniform(times[0] - 0.1, times[-1] + 10, 300))
    beliefs = found.belief(at)
    followed = np.take_along_axis(beliefs, found.likeliest(at)[:, None], axis=1)[:, 0]
    assert (followed > beliefs.max(axis=1) - 1e-5).all()  # a moment next to a change may be on its other side


def test_changes_ascend_and_each_is_one() -> None:
    arrivals = THREE
    times = np.cumsum(arrivals.sample(20_000, np.random.default_rng(1)))
    found = filter_phases(arrivals, times)
    assert len(found.change_times) > 100
    assert (np.diff(found.change_times) >= 0).all()
    assert (np.diff(np.append(found.first, found.change_to)) != 0).all()


# --- against the phases that were hidden


@pytest.mark.parametrize(("arrivals", "seconds"), [(mmpp2(100, 10, 1, 0.5), 4000), (mmpp2(40, 0, 2, 1), 6000), (THREE, 4000)])
def test_a_belief_of_80_percent_is_right_80_percent_of_the_time(arrivals: ArrivalProcess, seconds: float) -> None:
    rng = np.random.default_rng(3)
    sampled = sample_with_phases(arrivals, seconds, rng)
    found = filter_phases(arrivals, sampled.times)
    # moments far enough apart that the truth about them hardly hangs together, in silences as well as at arrivals
    at = np.arange(10.0, sampled.times[-1], 2 / arrivals.n_phases)
    truth = sampled.phase_at(at)
    beliefs = found.belief(at)
    for phase in range(arrivals.n_phases):
        for low in (0.05, 0.2, 0.4, 0.6, 0.8):
            within = (beliefs[:, phase] >= low) & (beliefs[:, phase] < low + 0.15)
            n = int(within.sum())
            if n > 50:
                error = np.sqrt(0.25 / n)
                assert abs((truth[within] == phase).mean() - beliefs[within, phase].mean()) < 4 * error


def test_the_likeliest_phase_is_mostly_the_true_one_where_rates_differ() -> None:
    arrivals = mmpp2(1000, 100, 2, 2)
    sampled = sample_with_phases(arrivals, 500, np.random.default_rng(5))
    found = filter_phases(arrivals, sampled.times)
    at = np.linspace(1, 499, 50_000)
    assert (found.likeliest(at) == sampled.phase_at(at)).mean() > 0.98


def test_it_is_right_more_often_than_the_last_gap_alone() -> None:
    arrivals = mmpp2(100, 30, 1, 1)
    sampled = sample_with_phases(arrivals, 2000, np.random.default_rng(6))
    found = filter_phases(arrivals, sampled.times)
    at, truth = sampled.times[1:], sampled.phase_at(sampled.times[1:])
    gaps = np.diff(sampled.times)
    best_by_gap = max((np.where(gaps < limit, 0, 1) == truth).mean() for limit in np.quantile(gaps, np.linspace(0.01, 0.99, 99)))
    assert (found.likeliest(at) == truth).mean() > best_by_gap + 0.05


# --- silences


def test_the_likeliest_phase_changes_in_a_long_silence() -> None:
    arrivals = mmpp2(100, 1, 0.5, 0.5)
    times = np.append(np.arange(50) * 0.01, 10.0)
    found = filter_phases(arrivals, times)
    assert found.first == 0
    within = (found.change_times > times[49]) & (found.change_times < 10.0)
    assert found.change_to[within].tolist() == [1]
    assert found.belief(found.change_times[within])[0] == pytest.approx([0.5, 0.5], abs=1e-4)


def test_after_the_last_arrival_the_silence_lasts() -> None:
    arrivals = mmpp2(100, 1, 0.5, 0.5)
    found = filter_phases(arrivals, np.arange(50) * 0.01)
    assert found.likeliest(np.array([0.495, 1e6])).tolist() == [0, 1]


def test_no_silence_is_too_long() -> None:
    found = filter_phases(mmpp2(1000, 1, 1e-3, 1e-3), np.array([0.0, 1e-3, 1e9, 1e9 + 1e-3]))
    assert np.isfinite(found.beliefs).all()
    assert found.beliefs[2] == pytest.approx(by_ratio(mmpp2(1000, 1, 1e-3, 1e-3)), rel=1e-6)


def by_ratio(arrivals: ArrivalProcess) -> Array:
    """The belief after an arrival that ended an endless silence: the left eigenvector of D0, times D1."""
    values, vectors = np.linalg.eig(arrivals.D0.T)
    limit = np.abs(vectors[:, values.real.argmax()].real) @ arrivals.D1
    return np.asarray(limit / limit.sum())


def test_a_phase_that_cannot_be_left_in_silence_stays_likely_in_a_long_one() -> None:
    # gaps are exponential, of rates 50 or 1, and nothing shifts within a gap
    arrivals = ArrivalProcess(np.diag([-50.0, -1.0]), np.array([[50.0, 0.0], [0.0, 1.0]]) @ np.array([[0.9, 0.1], [0.9, 0.1]]))
    found = filter_phases(arrivals, np.array([0.0, 100.0, 100.01]))
    assert found.beliefs[1] == pytest.approx([0.9, 0.1])
    sure = ArrivalProcess(np.array([[-50.0, 0.0], [0.5, -1.0]]), np.array([[49.9, 0.1], [0.0, 0.5]]))
    belief = filter_phases(sure, np.array([0.0, 1e5])).beliefs[1]
    assert np.isfinite(belief).all() and belief.sum() == pytest.approx(1)


def test_phases_that_cannot_be_told_apart_do_not_change_places() -> None:
    # twins of 30/s, and a phase of 1/s that both lead to
    generator = np.array([[-3.0, 2.0, 1.0], [2.0, -3.0, 1.0], [0.5, 0.5, -1.0]])
    found = filter_phases(mmpp(np.array([30.0, 30.0, 1.0]), generator), np.cumsum(np.random.default_rng(2).exponential(0.1, 3000)))
    assert found.beliefs[:, 0] == pytest.approx(found.beliefs[:, 1])
    assert set(found.change_to.tolist()) == {0, 2}


# --- edges


def test_a_poisson_process_has_one_phase() -> None:
    found = filter_phases(poisson(5), np.array([1.0, 2.0, 50.0]))
    assert (
        found.beliefs.tolist() == [[1.0]] * 3 and len(found.change_times) == 0 and found.likeliest(np.array([0.0, 9.0])).sum() == 0
    )


def test_one_arrival_tells_nothing() -> None:
    arrivals = mmpp2(100, 10, 1, 0.5)
    found = filter_phases(arrivals, np.array([3.0]))
    assert found.beliefs[0] == pytest.approx(arrivals.embedded)
    assert found.belief(np.array([2.0]))[0] == pytest.approx(arrivals.embedded)


def test_arrivals_together_are_taken_one_after_the_other() -> None:
    arrivals = mmpp2(100, 10, 1, 0.5)
    found = filter_phases(arrivals, np.array([0.0, 0.0, 0.0]))
    expected = arrivals.embedded @ arrivals.D1 @ arrivals.D1
    assert found.beliefs[2] == pytest.approx(expected / expected.sum())


@pytest.mark.parametrize("times", [[], [1.0, 0.5], [0.0, np.nan], [0.0, np.inf]])
def test_times_that_are_none_are_refused(times: list[float]) -> None:
    with pytest.raises(InvalidInput, match="times: .* finite times in ascending order, at least one"):
        filter_phases(mmpp2(100, 10, 1, 0.5), np.array(times))


def test_an_arrival_that_cannot_be_is_refused() -> None:
    # gaps of two stages: no two arrivals at one time
    arrivals = ArrivalProcess(np.array([[-3.0, 3.0], [0.0, -3.0]]), np.array([[0.0, 0.0], [3.0, 0.0]]))
    with pytest.raises(InvalidInput, match=r"times\[2\]: 1.0 .* a time at which the process can have an arrival"):
        filter_phases(arrivals, np.array([0.0, 1.0, 1.0]))
