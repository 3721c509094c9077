"""What came of a decision, from what batches measured since then."""

from __future__ import annotations

from math import inf, isnan, nan

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import no_batching
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.tuning.cost_curve import CostCurve
from sluice.optimizer.tuning.outcome import TOGETHER, Expected, OutcomeWatch
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.tuner import Tuner
from tests.optimizer.live_batches import profile

SETUP = TuningSetup("model", (Slo(0.1, 95),), profile())
EXPECTED = Expected(0.01, 0.09, CostCurve((1.0, 8.0), (Estimate(4e-7, 3e-7, 5e-7), Estimate(2e-7, 1e-7, 3e-7))))


def batch(at: float, *latencies: float, size: int = 0, failed: int = 0, billed: float = 0.02) -> MeasuredBatch:
    return MeasuredBatch(at, "", 0, "model-512", "", size or len(latencies) + failed, 0.02, nan, billed, False, failed, latencies)


def test_it_tells_how_many_came_how_long_they_took_and_what_they_cost_beside_what_was_expected() -> None:
    rng = np.random.default_rng(1)
    latencies = rng.gamma(4.0, 0.015, 4000)
    watch = OutcomeWatch(SETUP)
    watch.restart(1000.0, EXPECTED)
    watch.see([batch(1000.0 + k, *latencies[4 * k : 4 * k + 4]) for k in range(1000)])
    told = watch.told()
    assert told is not None
    assert (told.requests, told.mean_batch_size, told.seconds) == (4000, 4, 999)
    assert told.late == pytest.approx(float(np.mean(latencies > 0.1)))
    assert told.percentile == pytest.approx(float(np.quantile(latencies, 0.95)), rel=0.011)
    prices = SETUP.billing.prices
    assert told.usd == pytest.approx((0.02 * 0.5 * prices.gb_second("x86_64") + prices.function.request) / 4)
    assert told.expected_usd == EXPECTED.cost.at(told.arrival_rate)
    document = msgspec.json.decode(msgspec.json.encode(told.document()))
    assert (document["requests"], document["expected"]["late"]) == (4000, 0.01)


def test_it_tells_the_same_however_often_it_sees_and_is_asked_and_keeps_few_latencies() -> None:
    batches = [batch(1000.0 + k, *row) for k, row in enumerate(np.random.default_rng(1).gamma(4.0, 0.015, (1000, 4)).tolist())]
    at_once, one_by_one = OutcomeWatch(SETUP), OutcomeWatch(SETUP)
    at_once.see(batches)
    for k, each in enumerate(batches):
        one_by_one.see([each])
        assert len(one_by_one._not_counted) < TOGETHER
        if k % 400 == 0:
            one_by_one.told()
    assert one_by_one.told() == at_once.told()


def test_requests_that_failed_are_late_and_those_of_whom_others_have_the_callers_count_like_those_that_are_told() -> None:
    watch = OutcomeWatch(SETUP)
    watch.see([batch(10.0, 0.05, 0.2, size=8), batch(11.0, failed=2)])
    told = watch.told()
    assert told is not None
    assert told.late == pytest.approx((4 + 2) / 10)
    assert told.percentile == inf and told.document()["percentile"] is None


def test_it_begins_anew_at_a_decision_and_what_ended_before_is_not_of_it() -> None:
    watch = OutcomeWatch(SETUP)
    assert watch.told() is None
    watch.see([batch(10.0, 0.05)])
    watch.restart(20.0, None)
    watch.see([batch(19.9, 0.05)])
    assert watch.told() is None
    watch.see([batch(20.1, 0.3)])
    told = watch.told()
    assert told is not None and (told.requests, told.late, told.expected) == (1, 1, None)


def test_no_cost_is_told_where_a_batch_told_no_time_and_none_expected_beyond_the_rates_that_were_rehearsed() -> None:
    watch = OutcomeWatch(SETUP)
    watch.restart(0.0, EXPECTED)
    watch.see([batch(0.0, 0.05), batch(0.5, *[0.05] * 9, billed=nan)])
    told = watch.told()
    assert told is not None
    assert isnan(told.usd) and told.document()["usd_per_million"] is None
    assert told.arrival_rate == 20 and isnan(told.expected_usd.value)


def test_a_decision_tells_what_came_of_the_one_before_and_somebody_elses_plan_was_not_expected() -> None:
    tuner = Tuner(SETUP)
    plans = [
        Plan(model="model", function=f"model-{mb}", policy=PolicyDocument.of(no_batching()), slo=SETUP.slos[0], memory_mb=mb)
        for mb in (1024, 512)
    ]
    times = 1.7e9 + np.arange(1, 4001) / 20
    tuner.in_force(plans[0], 1.7e9)

    def goes_on(since: float, until: float, digest: str) -> None:
        came = times[(times > since) & (times <= until)]
        tuner.arrived(came)
        tuner.batches([batch(at + 0.03, 0.03)._replace(digest=digest) for at in came])

    goes_on(1.7e9, 1.7e9 + 70, plans[0].digest)
    first = tuner.decide(1.7e9 + 70, tuner.due(1.7e9 + 70))  # type: ignore[arg-type]
    assert first.since_last is not None and first.since_last.requests == 1400 and first.since_last.expected is None
    assert first.corrections and first.promise == "p95"
    assert first.plan is not None and first.expected is not None
    names = {one.digest: one.name for one in first.considered}
    assert names[first.unbatched].startswith(("no batching", "in force")) and first.given == plans[0].digest
    tuner.in_force(first.plan, 1.7e9 + 71)
    goes_on(1.7e9 + 75, 1.7e9 + 140, first.plan.digest)
    second = tuner.decide(1.7e9 + 140, tuner.due(1.7e9 + 400))  # type: ignore[arg-type]
    assert second.since_last is not None and second.since_last.expected is not None
    assert second.since_last.expected.late == first.expected.late.value
    assert second.since_last.expected_usd == first.cost.at(second.since_last.arrival_rate)
    tuner.in_force(plans[1], 1.7e9 + 141)
    goes_on(1.7e9 + 145, 1.7e9 + 200, plans[1].digest)
    third = tuner.decide(1.7e9 + 200, tuner.due(1.7e9 + 500))  # type: ignore[arg-type]
    assert third.since_last is not None and third.since_last.expected is None
    assert third.given == plans[1].digest
