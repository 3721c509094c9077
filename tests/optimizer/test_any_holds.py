"""The law of batch sizes under holds that may rise: held against the law of falling holds and against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.any_holds import AnyHolds
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate

PROCESSES = [poisson(40), mmpp2(100, 10, 10, 2), mmpp2(500, 0.5, 20, 0.5)]


@pytest.mark.parametrize("arrivals", PROCESSES)
@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_where_holds_fall_it_is_the_law_of_falling_holds_for_every_largest_batch(arrivals: ArrivalProcess, factor: float) -> None:
    holds = np.sort(np.random.default_rng(1).uniform(0, 0.3, 15))[::-1]
    known = FallingHolds(arrivals.sped_up(factor), holds).batch_size_pmf
    law = AnyHolds(arrivals)
    assert law.by_largest(holds, factor) == pytest.approx(known, abs=1e-12)
    assert law.batch_size_pmf(holds, factor) == pytest.approx(known[-1], abs=1e-12)


@pytest.mark.parametrize("arrivals", PROCESSES)
def test_where_holds_rise_batches_in_simulation_have_these_sizes(arrivals: ArrivalProcess) -> None:
    rng = np.random.default_rng(2)
    holds = rng.uniform(0.02, 0.3, 12)
    assert (np.diff(holds) > 0).any()
    sizes = np.arange(1, 14)
    predicted = AnyHolds(arrivals).batch_size_pmf(holds)
    service = ServiceTimes(128, np.full((13, 1), 0.01), np.zeros(13), np.full(13, 0.01))
    means = []
    for _ in range(16):
        times = np.cumsum(arrivals.sample(10_000, rng))
        run = simulate(Policy([np.inf, *holds, 0.0], range(14)), times, service, rng)
        means.append([run.mean_batch_size, (run.batch_sizes >= 7).mean()])
    error = np.std(means, axis=0, ddof=1) / 4
    expected = [predicted @ sizes, predicted[6:].sum()]
    assert (np.abs(np.mean(means, axis=0) - expected) <= 4 * error + 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 2), max_size=8), st.floats(0.01, 100))
def test_the_sizes_sum_to_one_and_rescaling_time_rescales_the_answer(holds: list[float], factor: float) -> None:
    arrivals = mmpp2(10, 1, 2, 1)
    pmf = AnyHolds(arrivals).batch_size_pmf(np.array(holds), factor)
    assert pmf.sum() == pytest.approx(1) and (pmf >= 0).all()
    assert AnyHolds(arrivals.sped_up(factor)).batch_size_pmf(np.array(holds)) == pytest.approx(pmf, abs=1e-9)


@pytest.mark.parametrize("holds", [[0.1, -0.1], [np.inf], [np.nan]])
def test_a_hold_that_is_none_is_refused(holds: list[float]) -> None:
    with pytest.raises(InvalidInput, match="holds: .* allowed: seconds >= 0"):
        AnyHolds(poisson(1)).batch_size_pmf(np.array(holds))
