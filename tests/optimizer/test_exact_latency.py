"""The exact batching law: properties, closed forms, two roads, and theory against simulation in standard errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import erlang
from scipy.stats import poisson as poisson_law

from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.counting import CountingProcess, counting_matrices_by_expm
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.function.waiting_time import SizeOrTimeout, predict_batch_size_pmf, predict_waiting_time_cdf
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout

THREE_PHASES = ArrivalProcess(
    np.array([[-3.0, 1, 0.5], [0.2, -20, 5], [1, 0, -100]]), np.array([[1, 0.5, 0], [10, 4, 0.8], [9, 50, 40]])
)
ERLANG_GAPS = ArrivalProcess(np.array([[-80.0, 80], [0, -80]]), np.array([[0.0, 0], [80, 0]]))  # smoother than Poisson
CASES = [
    pytest.param(poisson(50), 8, 0.1, id="poisson"),
    pytest.param(mmpp2(50, 5, 1, 2), 5, 0.3, id="mmpp2"),
    pytest.param(mmpp2(400, 20, 2, 0.2), 16, 0.05, id="mmpp2-bursty"),
    pytest.param(THREE_PHASES, 4, 0.2, id="map3"),
    pytest.param(ERLANG_GAPS, 6, 0.12, id="erlang"),
]


def service(batch_size: int, random: bool = True) -> ServiceTimes:
    sizes = np.arange(1, batch_size + 1)
    mean = 0.004 + 0.002 * sizes
    seconds = mean[:, None] * (np.array([0.8, 0.9, 1.0, 1.3]) if random else np.ones(1))
    return ServiceTimes(1024, seconds, np.full(batch_size, 0.001), mean)


rates = st.floats(0.5, 200)


@settings(max_examples=25, deadline=None)
@given(rates, rates, st.floats(0.05, 20), st.floats(0.05, 20), st.integers(1, 12), st.floats(0, 0.5))
def test_the_latency_cdf_rises_from_zero_to_one(
    l1: float, l2: float, w1: float, w2: float, batch_size: int, timeout: float
) -> None:
    prediction = predict_latency(mmpp2(l1, l2, w1, w2), service(batch_size), batch_size, timeout)
    values = prediction.cdf(np.linspace(-0.01, prediction.longest * 1.01, 200))
    assert values[0] == 0 and values[-1] == pytest.approx(1, abs=1e-9)
    assert np.diff(values).min() > -1e-9
    assert prediction.batch_size_pmf.sum() == pytest.approx(1)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100), st.integers(1, 10), st.floats(0.001, 0.3), st.floats(0, 1))
def test_rescaling_time_rescales_the_wait(factor: float, batch_size: int, timeout: float, part: float) -> None:
    slow, fast = THREE_PHASES, THREE_PHASES.sped_up(factor)
    wait = np.array([part * timeout])
    there = predict_waiting_time_cdf(fast, batch_size, timeout / factor, wait / factor)
    assert predict_waiting_time_cdf(slow, batch_size, timeout, wait) == pytest.approx(there, abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.floats(0.001, 0.1), st.lists(st.floats(0.001, 0.2), min_size=2, max_size=4), st.floats(5, 200))
def test_a_probability_does_not_depend_on_what_else_is_asked(
    batch_size: int, timeout: float, steps: list[float], rate: float
) -> None:
    seconds = np.cumsum(steps) * (1 + 0.1 * np.arange(batch_size))[:, None]  # pieces narrower and wider than the timeout
    law = ServiceTimes(1024, seconds, np.zeros(batch_size), seconds.mean(axis=1))
    prediction = predict_latency(poisson(rate), law, batch_size, timeout)
    times = np.linspace(0, prediction.longest * 1.01, 60)
    together = prediction.cdf(times)
    assert np.diff(together).min() > -1e-9 and together[-1] == pytest.approx(1, abs=1e-9)
    assert [prediction.probability_within(t) for t in times] == pytest.approx(together, abs=1e-9)


def test_a_batch_of_one_does_not_wait() -> None:
    prediction = predict_latency(THREE_PHASES, service(1), 1, 0.3)
    assert prediction.batch_size_pmf == pytest.approx([1.0])
    assert prediction.percentile(99) == pytest.approx(np.interp(0.99, [0, 1 / 3, 2 / 3, 1], [0.8, 0.9, 1, 1.3]) * 0.006 + 0.001)


@pytest.mark.parametrize(("batch_size", "timeout"), [(1, 0.0), (1, 0.2), (3, 0.0)])
def test_an_atom_of_the_response_counts_at_its_own_moment(batch_size: int, timeout: float) -> None:
    seconds = np.tile([0.125, 0.125, 0.25, 0.25], (batch_size, 1))
    law = ServiceTimes(1024, seconds, np.zeros(batch_size), seconds.mean(axis=1), np.array([0.0, 0.95, 0.99, 1.0]))
    prediction = predict_latency(poisson(1e-3), law, batch_size, timeout)
    assert prediction.probability_within(0.125) == pytest.approx(0.95)
    assert prediction.percentile(95) == pytest.approx(0.125)


def test_poisson_batch_sizes_are_those_of_batch_eq_7() -> None:
    rate, timeout, largest = 40.0, 0.1, 6
    expected = poisson_law(rate * timeout).pmf(np.arange(largest))
    expected[-1] = 1 - expected[:-1].sum()
    assert predict_batch_size_pmf(poisson(rate), largest, timeout) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("arrivals", [poisson(50), THREE_PHASES, ERLANG_GAPS])
def test_a_timeout_of_zero_is_no_batching(arrivals: ArrivalProcess) -> None:
    assert predict_batch_size_pmf(arrivals, 8, 0.0) == pytest.approx([1] + [0] * 7, abs=1e-12)
    assert predict_waiting_time_cdf(arrivals, 8, 0.0, np.zeros(1)) == pytest.approx([1.0])


def test_an_endless_timeout_makes_poisson_waits_erlang() -> None:
    rate, batch_size = 50.0, 6
    waits = np.linspace(0.001, 0.3, 7)
    later = [erlang(batch_size - j, scale=1 / rate).cdf(waits) for j in range(1, batch_size)]  # the last does not wait
    expected = (1 + np.sum(later, axis=0)) / batch_size
    assert predict_waiting_time_cdf(poisson(rate), batch_size, 20.0, waits) == pytest.approx(expected, abs=1e-9)


def waits_without_a_series(arrivals: ArrivalProcess, batch_size: int, timeout: float, wait: float) -> float:
    """(2.4) and (2.5) of docs/model.md as they are written, at one wait."""
    counting, law = CountingProcess(arrivals, batch_size, timeout), SizeOrTimeout(arrivals, batch_size, timeout)
    before = counting.matrices(np.array([timeout - wait]))
    v, passed = law.opening_phases[-1] @ before[0], law.opening_phases[-1] @ counting.integrals(before)[0]
    c = counting.probabilities(np.array([wait]))[0]
    at_least = 1 - np.cumsum(c, axis=0) + c
    B = batch_size
    within = law.batch_size_pmf[-1][-1] + law.opening_phases[-1] @ at_least[B - 1]
    within += sum(passed[k] @ arrivals.D1 @ at_least[B - 2 - k] for k in range(B - 2))
    within += sum((B - 1 - i) * v[i - 1] @ at_least[B - i] for i in range(1, B))
    within += sum((n - i) * v[i - 1] @ c[n - i] for n in range(1, B) for i in range(1, n))
    return float(within / law.mean_batch_size[-1])


@pytest.mark.parametrize(
    ("arrivals", "batch_size", "timeout"),
    [
        pytest.param(mmpp2(400, 20, 2, 0.2), 16, 0.05, id="ordinary"),
        pytest.param(mmpp2(20_000, 2, 1, 1), 32, 1.0, id="20000 per second, a timeout of 1 s"),
        pytest.param(poisson(10_000), 200, 0.03, id="a batch of 200"),
    ],
)
@pytest.mark.full
def test_waits_are_exact_and_rise_however_many_arrivals_a_timeout_holds(
    arrivals: ArrivalProcess, batch_size: int, timeout: float
) -> None:
    part = np.concatenate([np.geomspace(1e-5, 0.5, 100), 1 - np.geomspace(0.5, 1e-5, 100)[1:]])
    values = predict_waiting_time_cdf(arrivals, batch_size, timeout, part * timeout)
    assert np.diff(values).min() > -1e-12
    at = [3, 40, 60, 100, 160]
    written_out = [waits_without_a_series(arrivals, batch_size, timeout, wait) for wait in part[at] * timeout]
    assert values[at] == pytest.approx(written_out, abs=1e-9)


@pytest.mark.parametrize("arrivals", [poisson(30), mmpp2(50, 5, 1, 2), THREE_PHASES])
@pytest.mark.parametrize("time", [0.0, 0.01, 0.4])
def test_uniformization_meets_the_matrix_exponential(arrivals: ArrivalProcess, time: float) -> None:
    counting = CountingProcess(arrivals, 6, 0.5)
    expected = counting_matrices_by_expm(arrivals, 6, time)
    assert np.abs(counting.matrices(np.array([time]))[0] - expected).max() < 1e-12
    assert np.abs(counting.probabilities(np.array([time]))[0] - expected.sum(axis=-1)).max() < 1e-12


def test_integrals_of_counts_are_those_of_quadrature() -> None:
    counting = CountingProcess(THREE_PHASES, 5, 0.5)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    by_quadrature = np.tensordot(0.15 * weights, counting.matrices(0.15 * (nodes + 1)), axes=1)
    exact = counting.integrals(counting.matrices(np.array([0.3])))[0]
    assert np.abs(exact - by_quadrature).max() < 1e-12


@pytest.mark.parametrize(("arrivals", "batch_size", "timeout"), CASES)
@pytest.mark.full
def test_the_exact_waits_are_those_of_simulation(arrivals: ArrivalProcess, batch_size: int, timeout: float) -> None:
    rng = np.random.default_rng(11)
    n_runs, n = 40, 15_000
    grid = np.concatenate([[0.0], np.linspace(0.05, 0.999, 9) * timeout, [timeout]])
    cdfs, sizes = np.empty((n_runs, len(grid))), np.empty(n_runs)
    for run in range(n_runs):
        waits, batches = simulate_size_or_timeout(np.cumsum(arrivals.sample(n, rng)), batch_size, timeout)
        cdfs[run] = (waits[:, None] <= grid + 1e-9).mean(axis=0)
        sizes[run] = batches.mean()
    law = SizeOrTimeout(arrivals, batch_size, timeout)
    error = cdfs.std(axis=0, ddof=1) / np.sqrt(n_runs) + 1e-6
    exact = predict_waiting_time_cdf(arrivals, batch_size, timeout, grid)
    assert (np.abs(cdfs.mean(axis=0) - exact) / error).max() < 4
    assert abs(sizes.mean() - law.mean_batch_size[-1]) < 4 * sizes.std(ddof=1) / np.sqrt(n_runs)


@pytest.mark.parametrize(("arrivals", "batch_size", "timeout"), CASES[:4])
@pytest.mark.full
def test_exact_quantiles_with_random_service_are_those_of_the_event_loop(
    arrivals: ArrivalProcess, batch_size: int, timeout: float
) -> None:
    rng = np.random.default_rng(5)
    prediction = predict_latency(arrivals, service(batch_size), batch_size, timeout)
    levels = np.array([0.1, 0.5, 0.9, 0.95, 0.99])
    quantiles = np.array([prediction.quantile(q) for q in levels]) + 1e-9
    runs = []
    for _ in range(16):
        run = simulate(
            policies.size_or_timeout(batch_size, timeout), np.cumsum(arrivals.sample(3000, rng)), service(batch_size), rng
        )
        runs.append((run.latency[:, None] <= quantiles).mean(axis=0))
    error = np.std(runs, axis=0, ddof=1) / 4 + 1e-6
    assert (np.abs(np.mean(runs, axis=0) - prediction.cdf(quantiles)) / error).max() < 4
    assert (prediction.cdf(quantiles) >= levels - 1e-9).all()


def test_one_law_speaks_for_every_smaller_batch_size() -> None:
    law = SizeOrTimeout(mmpp2(400, 20, 2, 0.2), 12, 0.05)
    together = law.fraction_within(np.zeros((1, 12, 1)), np.zeros(1), np.array([0.02]))[0, :, 0]
    for batch_size in (1, 2, 3, 7, 12):
        alone = predict_waiting_time_cdf(law.arrivals, batch_size, 0.05, np.array([0.02]))
        assert together[batch_size - 1] == pytest.approx(alone[0], abs=1e-10)


def test_opening_phases_are_stationary_between_openings() -> None:
    arrivals = mmpp2(50, 5, 1, 2)
    law = SizeOrTimeout(arrivals, 1, 0.2)
    assert law.opening_phases[0] == pytest.approx(arrivals.embedded)  # a batch of one opens at every arrival


@pytest.mark.full
def test_a_timeout_beyond_memory_is_refused_with_the_largest() -> None:
    with pytest.raises(InvalidInput, match="at most about .* s for an arrival process with rates up to"):
        predict_batch_size_pmf(mmpp2(1e6, 1e-3, 1, 1), 64, 3600.0)


@pytest.mark.parametrize(
    ("batch_size", "timeout", "message"),
    [(0, 0.1, "batch_size: 0"), (4, -1.0, "timeout: -1.0"), (9, 0.1, "1 to 8, as the profile")],
)
def test_a_setting_that_is_none_names_its_field(batch_size: int, timeout: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        predict_latency(poisson(10), service(8), batch_size, timeout)


@pytest.mark.parametrize("percentile", [0, 100, -3])
def test_a_percentile_outside_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 100"):
        predict_latency(poisson(10), service(8), 4, 0.1).percentile(percentile)


@pytest.mark.parametrize("arrivals", [poisson(30), mmpp2(50, 5, 1, 2)])
def test_waits_at_even_points_are_those_of_the_series_between_them(arrivals: ArrivalProcess) -> None:
    law = SizeOrTimeout(arrivals, 6, 0.3)
    even = law.waits_within(10)
    for size in (1, 2, 6):
        assert even[size - 1] == pytest.approx(predict_waiting_time_cdf(arrivals, size, 0.3, 0.03 * np.arange(10)), abs=1e-9)
