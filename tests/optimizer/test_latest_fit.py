"""When arrivals are fitted anew, which takes most of a decision."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from sluice.batching.documents import LinearServiceTime, ServiceProfile, Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.tuning import candidates
from sluice.optimizer.tuning.decision import Kind, Trigger
from sluice.optimizer.tuning.latest_fit import FITTED, LatestFit
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import simulate_control
from sluice.optimizer.tuning.trials import Trials

PROFILE = ServiceProfile(function="f", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=8)
SETUP = TuningSetup("m", (Slo(0.1, 95),), PROFILE, memory_sizes=(1769,))


def trials(rate: float = 50.0, n: int = 4000, now: float = 1000.0) -> Trials:
    return Trials(SETUP, TuningSettings(), PROFILE, now, 0.0, np.arange(n) / rate)


FIT = LatestFit.to(trials())


@pytest.mark.parametrize(
    ("of", "kind", "old"),
    [
        (trials(), "periodic", False),
        (trials(now=4599.0), "periodic", False),
        (trials(now=4601.0), "periodic", True),  # an hour ago
        (trials(n=7990), "periodic", False),
        (trials(n=8000), "periodic", True),  # twice as many are known
        (trials(rate=59.0), "promise", False),
        (trials(rate=61.0), "promise", True),
        (trials(rate=41.0), "service", True),
        (trials(), "rate", True),
        (trials(), "burstiness", True),
    ],
)
def test_a_fit_is_old_where_arrivals_are_others_or_twice_as_many_or_an_hour_has_passed(of: Trials, kind: Kind, old: bool) -> None:
    assert FIT.is_old(of, Trigger(kind, of.now, "")) is old


def test_more_than_are_fitted_make_no_fit_old() -> None:
    assert not LatestFit.to(trials(n=FITTED)).is_old(trials(n=4 * FITTED), Trigger("periodic", 1000.0, ""))


@pytest.mark.full
def test_of_steady_arrivals_one_fit_an_hour_is_made_however_often_plans_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[float] = []
    fit = candidates.fitted

    def counted(times: Array) -> ArrivalProcess:
        fits.append(float(times[-1]))
        return fit(times)

    monkeypatch.setattr(candidates, "fitted", counted)
    times = np.cumsum(np.random.default_rng(1).exponential(1 / 5, 30_000))  # 100 minutes
    small = TuningSetup("m", (Slo(0.1, 95),), structs.replace(PROFILE, max_batch_size=4), memory_sizes=(1769,))
    run = simulate_control(small, times, settings=TuningSettings(period=300.0), step=30.0)
    assert len(run.decisions) > 20
    late = [at for at in fits if at > 1800.0]  # when as many are known as are fitted
    assert 1 <= len(late) <= 2 and len(fits) <= 8
