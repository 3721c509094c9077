"""What a plan costs per request by rate: the model of the system at the rate of a window, whatever the rates that were seen."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy.signal import lfilter

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.simulation.batch_means import LEAST_UNSURE, Estimate, mean_of_another, mean_of_next
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.tuning.cost_curve import CostCurve, cost_curve, evened
from sluice.optimizer.tuning.rehearsal import rehearse, usd_by_block

SLOS = (Slo(0.1, 95),)
WINDOW = 300.0


def deployment() -> Deployment:
    points = [ProfilePoint(1769, n, ServiceTime(0.006 + 0.001 * n), 0.006 + 0.001 * n) for n in (1, 2, 4, 8, 16)]
    return Function(ServiceProfile(function="f", points=points), 1769).under(size_or_timeout(16, 0.1))


def usd_at(rate: float, n: int = 20_000) -> float:
    times = np.cumsum(np.random.default_rng(7).exponential(1 / rate, n))
    return rehearse(deployment(), times, SLOS, 1.0).cost_per_request.value


def at_changing_rates(rates: list[float], seed: int = 1) -> Array:
    """Poisson arrivals, a window at each of the rates."""
    rng = np.random.default_rng(seed)
    return np.concatenate([WINDOW * (k + np.sort(rng.random(rng.poisson(rate * WINDOW)))) for k, rate in enumerate(rates)])


def test_a_window_costs_what_the_curve_has_at_its_rate_whatever_the_rates_that_were_seen() -> None:
    times = at_changing_rates([2, 30, 5, 20, 3, 12])
    mean = (len(times) - 1) / float(times[-1] - times[0])
    curve = cost_curve(deployment(), times, mean, WINDOW)
    for rate in (mean / 6, mean, 2.7 * mean):
        assert curve.at(rate).value == pytest.approx(usd_at(rate), rel=0.015)
    plainly = rehearse(deployment(), times, SLOS, 1.0).cost_per_request.value
    assert plainly < 0.97 * usd_at(mean)  # most came in the busy windows, which are the cheapest


@pytest.mark.parametrize("gap", [0.05, 1.0])  # s in the mean: run behind the same ones once more, and as they are
def test_what_blocks_cost_is_what_their_rehearsal_has(gap: float) -> None:
    times = np.cumsum(np.random.default_rng(3).exponential(gap, 5000))
    whole, (usd, requests) = rehearse(deployment(), times, SLOS, 1.0), usd_by_block(deployment(), times)
    assert (usd.tolist(), requests.tolist()) == (whole.usd.tolist(), whole.requests.tolist())


def test_windows_get_one_rate_and_keep_their_bursts() -> None:
    times = at_changing_rates([2, 30, 5])
    counted = evened(times, WINDOW)
    assert counted[0] == 0 and counted[-1] == len(times)
    assert (np.diff(counted) >= 0).all()
    ends = times[-1] - WINDOW * np.arange(3, -1, -1)
    for first, last in pairwise(np.searchsorted(times, ends[1:], side="right").tolist()):
        assert counted[last - 1] - counted[first] == pytest.approx(last - first, rel=0.05)
        gaps = np.diff(times[first:last])
        assert np.diff(counted[first:last]) == pytest.approx(gaps * (last - first) / WINDOW, rel=1e-6, abs=1e-9)


def test_arrivals_of_less_than_a_window_are_one_window() -> None:
    times = np.array([10.0, 11.0, 14.0])
    assert evened(times, WINDOW) == pytest.approx([0.0, 0.75, 3.0])


@pytest.mark.proof
def test_most_windows_of_bursty_arrivals_cost_what_the_interval_says() -> None:
    bursty = mmpp2(20.0, 1.0, 0.2, 0.05)
    rng, inside = np.random.default_rng(3), []
    for _ in range(60):
        times = np.cumsum(bursty.sample(3000, rng))
        cut = len(times) * 6 // 7
        seen, next_ = times[:cut], times[cut:]
        rate = (len(seen) - 1) / float(seen[-1] - seen[0])
        seconds = float(next_[-1] - seen[-1])
        told = cost_curve(deployment(), seen, rate, seconds).at(len(next_) / seconds)
        usd = rehearse(deployment(), next_, SLOS, 1.0)
        inside.append(told.low <= float(usd.usd.sum() / usd.requests.sum()) <= told.high)
    assert np.mean(inside) >= 0.85  # 95 % less three standard errors


def test_beyond_its_ends_a_curve_is_what_it_is_there_and_an_empty_one_knows_nothing() -> None:
    curve = CostCurve((1.0, 4.0), (Estimate(4e-7, 2e-7, 8e-7), Estimate(1e-7, 1e-7, 1e-7)))
    assert curve.at(0.1) == curve.at(1.0) == pytest.approx((4e-7, 2e-7, 8e-7))
    assert curve.at(100.0) == pytest.approx((1e-7, 1e-7, 1e-7))
    assert curve.at(2.0) == pytest.approx((2e-7, 1.5e-7, 3e-7))
    assert np.isnan(CostCurve().at(1.0)).all()


def test_what_costs_nothing_is_told_as_that() -> None:
    curve = CostCurve((1.0, 4.0), (Estimate(0.0, 0.0, 0.0), Estimate(0.0, 0.0, 0.0)))
    assert curve.at(2.0) == pytest.approx((0.0, 0.0, 0.0), abs=1e-20)


def test_the_mean_of_so_many_is_inside_its_interval_as_often_as_is_said() -> None:
    rng, inside = np.random.default_rng(5), []
    for _ in range(400):
        values = rng.exponential(1.0, 32 * 50 + 200)
        told = mean_of_next(values[:1600].reshape(32, 50).sum(axis=1), np.full(32, 50.0), 200)
        inside.append(told.low <= values[1600:].mean() <= told.high)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.035)
    with pytest.raises(InvalidInput, match="n_next"):
        mean_of_next(np.ones(32), np.ones(32), 0)
    with pytest.raises(InvalidInput, match="confidence"):
        mean_of_next(np.ones(32), np.ones(32), 1, confidence=1.0)


def test_another_run_as_long_has_its_mean_between_the_ends_where_traffic_remembers_too() -> None:
    """White noise, and levels that stay for a while on every scale: the sum of autoregressions with times of 1 to 1000 values."""
    rng, n, runs = np.random.default_rng(3), 3200, 300
    inside = {"white": 0, "remembers": 0, "as if it did not": 0}
    for _ in range(runs):
        white = 1 + 0.5 * rng.standard_normal(2 * n)
        noise = rng.standard_normal((4, 4 * n))
        levels = [lfilter([np.sqrt(2 / t)], [1, 1 / t - 1], of)[2 * n :] for t, of in zip((1, 10, 100, 1000), noise, strict=True)]
        stays = 1 + 0.02 * np.sum(levels, axis=0)
        for name, values, of in (
            ("white", white, mean_of_another),
            ("remembers", stays, mean_of_another),
            ("as if it did not", stays, partial(mean_of_next, n_next=n)),
        ):
            told = of(values[:n].reshape(32, -1).sum(axis=1), np.full(32, n / 32))
            inside[name] += told.low <= values[n:].mean() <= told.high
    assert inside["white"] >= 0.94 * runs and inside["remembers"] >= 0.85 * runs
    assert inside["as if it did not"] < inside["remembers"] - 0.1 * runs


def test_the_ends_for_another_run_are_never_next_to_each_other_nor_below_nothing_and_need_blocks() -> None:
    assert mean_of_another(np.full(32, 5.0), np.ones(32)) == pytest.approx(
        (5.0, 5.0 * (1 - LEAST_UNSURE), 5.0 * (1 + LEAST_UNSURE))
    )
    assert mean_of_another(np.r_[np.zeros(31), 1.0], np.ones(32)).low == 0.0
    for blocks in (12, 18):
        with pytest.raises(InvalidInput, match=f"blocks: {blocks} is not allowed; allowed: a multiple of 4 from 16 on"):
            mean_of_another(np.ones(blocks), np.ones(blocks))
