"""Workers paid by the hour: the fewest that keep the SLOs, against closed forms and runs that the search did not see."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing import SECONDS_PER_MONTH, Billing, default_prices
from sluice.optimizer.recommend import WorkerOffer, WorkerSetting, choose_workers, simulate_workers
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate


def linear(intercept: float, slope: float, largest: int = 32, spread: tuple[float, ...] = (1.0,)) -> ServiceTimes:
    mean = intercept + slope * np.arange(1, largest + 1)
    return ServiceTimes(1024, mean[:, None] * np.array(spread), np.zeros(largest), mean)


def exponential(mean: float) -> ServiceTimes:
    steps = np.arange(0, 25, 0.01)
    levels = np.append(-np.expm1(-steps), 1.0)
    return ServiceTimes(1024, mean * np.append(steps, 25.0)[None, :], np.zeros(1), np.full(1, mean), levels)


BURSTY = mmpp2(400, 20, 2, 0.2)
BUNCHING = WorkerOffer("g4dn", linear(0.03, 0.0001), 0.5)  # almost all of its time does not depend on the batch
CASES = [
    pytest.param(poisson(500), BUNCHING, Slo(0.045, 95), id="poisson"),
    pytest.param(BURSTY, WorkerOffer("g4dn", linear(0.02, 0.002, 16, (0.8, 1, 1.4)), 0.5), Slo(0.09, 99), id="bursty"),
    pytest.param(poisson(300), WorkerOffer("g4dn", linear(0.01, 0.001), 0.5), Slo(0.0115, 99), id="hardly any wait"),
]


def violations(arrivals: ArrivalProcess, offer: WorkerOffer, policy: policies.Policy, slo: Slo, n: int = 300_000) -> float:
    rng = np.random.default_rng(321)
    run = simulate(policy, np.cumsum(arrivals.sample(n, rng)), offer.service, rng)
    return 1 - float((run.latency[5000:] <= slo.latency).mean())


@pytest.mark.full
@pytest.mark.parametrize(("arrivals", "offer", "slo"), CASES)
def test_the_workers_keep_the_slo_and_one_fewer_does_not(arrivals: ArrivalProcess, offer: WorkerOffer, slo: Slo) -> None:
    setting = choose_workers(arrivals, offer, slo)
    left = slo.error_budget
    assert setting.keeps_slos and setting.violations[0].high <= left
    assert violations(arrivals, offer, setting.policy, slo) <= left
    fewer = setting.workers - 1
    assert fewer >= 1
    tables = [policies.greedy(b, fewer) for b in range(1, offer.service.max_batch_size + 1)]
    for timeout in np.linspace(0.001, slo.latency, 12):
        tables += [replace(policies.size_or_timeout(b, float(timeout)), servers=fewer) for b in (4, 8, 12, 16)]
    assert min(violations(arrivals, offer, table, slo, 60_000) for table in tables) > left


def test_workers_that_hold_back_are_fewer_than_greedy_ones() -> None:
    arrivals, slo = poisson(500), Slo(0.045, 95)
    setting = choose_workers(arrivals, BUNCHING, slo)
    assert setting.policy.kind == "size_or_timeout"
    for batch_size in (8, 16, 32):
        assert violations(arrivals, BUNCHING, policies.greedy(batch_size, setting.workers), slo) > 0.05


def test_without_batches_it_is_the_staffing_of_erlang() -> None:
    rate, mean, slo = 985.0, 0.01, Slo(0.035, 95)

    def beyond(servers: int) -> float:
        """M/M/k: P(latency > t), from the probability to wait and the two exponential stages."""
        offered, blocking = rate * mean, 1.0
        for k in range(1, servers + 1):
            blocking = offered * blocking / (k + offered * blocking)
        waits = blocking / (1 - offered / servers * (1 - blocking))
        service, drain = 1 / mean, servers / mean - rate
        both = (service * math.exp(-drain * slo.latency) - drain * math.exp(-service * slo.latency)) / (service - drain)
        return (1 - waits) * math.exp(-service * slo.latency) + waits * both

    fewest = next(k for k in range(11, 40) if beyond(k) <= 0.05)
    assert beyond(fewest) < 0.045 and beyond(fewest - 1) > 0.055  # neither is a matter of noise
    setting = choose_workers(poisson(rate), WorkerOffer("cpu", exponential(mean), 0.1), slo)
    assert setting.workers == fewest
    assert setting.violations[0].low <= beyond(fewest) <= setting.violations[0].high
    assert setting.load == pytest.approx(rate * mean / fewest, rel=1e-4)
    assert setting.utilisation == pytest.approx(setting.load, rel=0.01)


def test_workers_cost_their_hours_and_nothing_else() -> None:
    setting = choose_workers(poisson(2000), WorkerOffer("g4dn", linear(0.001, 0.0003), 0.72), Slo(0.02, 95), billing=Billing())
    assert setting.cost.per_request == pytest.approx(setting.workers * 0.72 / 3600 / 2000)
    assert setting.usd_per_month == pytest.approx(setting.workers * 0.72 * SECONDS_PER_MONTH / 3600)
    assert setting.cost.compute == setting.cost.requests == 0 and setting.cost.fixed_terms == default_prices().fixed_terms()


def test_usage_is_paid_by_the_batch() -> None:
    offer = WorkerOffer("provisioned", linear(0.0101, 0.0), 0.05, price_per_second=3e-5, price_per_request=2e-7, granularity=0.1)
    setting = choose_workers(poisson(50), offer, Slo(0.1, 95))
    assert setting.cost.compute == pytest.approx(3e-5 * 0.1 / setting.mean_batch_size)
    assert setting.cost.requests == pytest.approx(2e-7 / setting.mean_batch_size)
    assert setting.cost.per_request == pytest.approx(setting.cost.machines + setting.cost.compute + setting.cost.requests)


def test_where_usage_is_paid_batches_are_held_for_longer() -> None:
    by_the_hour = WorkerOffer("held", linear(0.01, 0.001), 0.05)
    by_use_too = replace(by_the_hour, price_per_second=3e-5)
    idle, used = (choose_workers(poisson(50), offer, Slo(0.1, 95)) for offer in (by_the_hour, by_use_too))
    assert idle.workers == used.workers == 1
    assert used.mean_batch_size > 1.5 * idle.mean_batch_size and used.latency["p95"].value > idle.latency["p95"].value


@pytest.mark.full
def test_a_second_worker_is_bought_where_its_longer_holds_save_more_than_it_costs() -> None:
    # A single worker has to keep batches small, to be ready for the next burst.
    arrivals, slo = mmpp2(180, 20, 1, 0.33), Slo(0.15, 95)
    offer = WorkerOffer("provisioned", linear(0.03, 0.003, spread=(0.8, 1.2)), 0.01, price_per_second=1e-4)
    one = choose_workers(arrivals, replace(offer, max_workers=1), slo)
    two = choose_workers(arrivals, offer, slo)
    assert (one.workers, two.workers) == (1, 2)
    assert two.cost.per_request < one.cost.per_request and two.mean_batch_size > one.mean_batch_size
    assert choose_workers(arrivals, replace(offer, price_per_hour=1.0), slo).workers == 1


def test_a_request_that_does_not_wait_is_in_time_to_the_last_digit_however_late_on_the_clock() -> None:
    setting = choose_workers(poisson(0.01), WorkerOffer("cpu", linear(0.012, 0.0), 0.1), Slo(0.012, 99))  # 3 years of requests
    assert setting.workers == 1 and setting.violations[0].value < 0.001


@pytest.mark.full
def test_every_slo_is_kept() -> None:
    arrivals, offer = BURSTY, WorkerOffer("g4dn", linear(0.02, 0.002, 16), 0.5)
    loose, tight = Slo(0.15, 80), Slo(0.06, 99)
    both = choose_workers(arrivals, offer, [loose, tight])
    assert both.keeps_slos and len(both.violations) == 2
    assert both.latency["p99"].high <= 0.06
    assert both.workers == choose_workers(arrivals, offer, tight).workers > choose_workers(arrivals, offer, loose).workers


@pytest.mark.full
def test_one_seed_has_one_answer_and_the_policy_gives_it_again() -> None:
    arrivals, offer, slo = poisson(500), BUNCHING, Slo(0.045, 95)
    first, second = (choose_workers(arrivals, offer, slo, seed=3) for _ in range(2))
    again = simulate_workers(arrivals, offer, first.policy, slo, seed=3)
    assert first.latency == second.latency == again.latency and first.policy == second.policy
    assert first.latency != simulate_workers(arrivals, offer, first.policy, slo, seed=4).latency


def test_latencies_are_named_by_percentile_and_lie_within_their_intervals() -> None:
    setting = choose_workers(poisson(2000), WorkerOffer("g4dn", linear(0.001, 0.0003), 0.7), Slo(0.02, 97.5))
    assert list(setting.latency) == ["p50", "p90", "p95", "p97.5", "p99"]
    assert all(e.low <= e.value <= e.high for e in setting.latency.values())
    assert setting.max_batch_size == setting.policy.max_batch_size and setting.arrival_rate == 2000


@pytest.mark.proof
def test_a_burst_that_comes_seldom_is_waited_for() -> None:
    seldom = mmpp2(2000, 100, 0.03, 0.003)
    offer, slo = WorkerOffer("g4dn", linear(0.005, 0.001, 8), 0.5), Slo(0.05, 99)
    setting = choose_workers(seldom, offer, slo)
    assert setting.n_requests > choose_workers(poisson(270), offer, slo).n_requests
    assert setting.workers >= choose_workers(poisson(2000), offer, slo).workers  # a tenth of the time it is like that


def test_workers_that_cannot_keep_up_are_simulated_and_keep_nothing() -> None:
    offer, slo = WorkerOffer("g4dn", linear(0.01, 0.001, 8), 0.5), Slo(0.05, 95)
    setting = choose_workers(poisson(1000), offer, slo)
    overloaded = simulate_workers(poisson(3000), offer, setting.policy, slo)
    assert overloaded.load > 1 and not overloaded.keeps_slos and overloaded.latency["p95"].value > 1


@pytest.mark.full
def test_workers_all_but_saturated_are_not_trusted_whatever_a_run_shows() -> None:
    offer, slo = WorkerOffer("cpu", exponential(0.01), 0.1), Slo(1000.0, 50)
    setting = simulate_workers(poisson(99.8), offer, policies.greedy(1), slo)
    assert setting.violations[0].high < 0.5 and setting.load < 1
    assert not setting.settled and not setting.keeps_slos
    assert choose_workers(poisson(99.8), offer, slo).workers == 2
    assert choose_workers(poisson(95.0), offer, slo).workers == 1


def test_a_worker_too_slow_for_one_request_is_infeasible_however_many_there_are() -> None:
    offer = WorkerOffer("old", linear(0.03, 0.001, 8, (0.9, 1.0, 2.0)), 0.5)
    with pytest.raises(
        Infeasible, match=r"no number of workers \(old\) keeps p99 within 0.04 s: a request alone takes 0.06138 s"
    ) as caught:
        choose_workers(poisson(10), offer, [Slo(0.5, 50), Slo(0.04, 99)])
    assert caught.value.best == {"name": "old", "latency": pytest.approx(0.06138), "max_batch_size": 1}


def test_workers_too_few_to_keep_up_are_infeasible_and_what_they_serve_is_named() -> None:
    offer = WorkerOffer("small", linear(0.01, 0.001, 8), 0.5, max_workers=2)  # 444 requests/s each
    with pytest.raises(Infeasible, match=r"2 workers \(small\) cannot keep up with 1000 requests/s: 888.9 is the most"):
        choose_workers(poisson(1000), offer, Slo(0.1, 95))


def test_workers_too_few_for_the_slo_are_infeasible_and_carry_the_best() -> None:
    arrivals, slo = poisson(500), Slo(0.045, 95)
    with pytest.raises(Infeasible, match=r"2 workers \(g4dn\) do not keep the SLOs: the best reached is p95 0.0\d+ s") as caught:
        choose_workers(arrivals, replace(BUNCHING, max_workers=2), slo)
    best = caught.value.best
    assert best is not None and best["workers"] == 2 and 0.045 < best["latency"] < 0.06
    assert best["cost_per_request"] == pytest.approx(2 * 0.5 / 3600 / 500)


def test_a_percentile_of_many_nines_keeps_its_name_where_the_workers_are_too_few() -> None:
    slo = Slo(0.045, 99.99999)  # six digits would make it p100
    with pytest.raises(Infeasible, match=r"the best reached is p99.99999 0\.\d+ s") as caught:
        choose_workers(poisson(500), replace(BUNCHING, max_workers=2), slo)
    assert caught.value.best is not None and caught.value.best["latency"] > 0.045


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: '' .* the name of a machine"),
        ({"price_per_hour": -1.0}, "price_per_hour: -1.0 .* USD >= 0"),
        ({"price_per_second": math.inf}, "price_per_second: inf .* USD >= 0"),
        ({"price_per_request": math.nan}, "price_per_request: nan .* USD >= 0"),
        ({"max_workers": 0}, "max_workers: 0 .* an integer >= 1"),
        ({"granularity": 0.0}, "granularity: 0.0 .* a number of seconds > 0"),
    ],
)
def test_an_offer_that_is_none_names_its_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(BUNCHING, **change)


def test_a_question_without_slo_or_workers_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"slos: \[\] .* at least one SLO"):
        choose_workers(poisson(10), BUNCHING, [])
    with pytest.raises(InvalidInput, match=r"policy.servers: none was given; needed: the number of workers"):
        simulate_workers(poisson(10), BUNCHING, policies.no_batching(), Slo(0.1))
    with pytest.raises(InvalidInput, match="confidence: 2"):
        choose_workers(poisson(10), BUNCHING, Slo(0.1), confidence=2)


def test_the_answer_is_one_record(recwarn: pytest.WarningsRecorder) -> None:
    setting = choose_workers(poisson(20), WorkerOffer("cpu", linear(0.01, 0.0, 1), 0.1), Slo(0.5, 95))
    assert isinstance(setting, WorkerSetting) and setting.workers == 1 and setting.max_batch_size == 1
    assert not recwarn.list
