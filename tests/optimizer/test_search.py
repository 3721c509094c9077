"""The search against brute force over a much finer grid, by the exact law and by simulation."""

from typing import Any

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend.search import Choice, Search
from sluice.optimizer.service.times import ServiceTimes

THREE_PHASES = ArrivalProcess(
    np.array([[-3.0, 1, 0.5], [0.2, -20, 5], [1, 0, -100]]), np.array([[1, 0.5, 0], [10, 4, 0.8], [9, 50, 40]])
)
ERLANG_GAPS = ArrivalProcess(np.array([[-80.0, 80], [0, -80]]), np.array([[0.0, 0], [80, 0]]))


def functions(random: bool, granularity: float) -> tuple[list[ServiceTimes], np.ndarray]:
    sizes = np.arange(1, 13)
    services, compute = [], []
    for memory_mb, slower in ((512, 3.0), (1024, 1.5), (1769, 1.0)):
        mean = slower * (0.004 + 0.0015 * sizes)
        spread = np.array([0.8, 0.95, 1.1, 1.3]) if random else np.ones(1)
        service = ServiceTimes(memory_mb, mean[:, None] * spread, np.full(12, 0.001), mean)
        services.append(service)
        compute.append(service.mean_billed(granularity) * memory_mb / 1024 * 1.6e-5)
    return services, np.array(compute)


CASES = [
    pytest.param(poisson(120), True, 0.001, (Slo(0.06, 95),), id="poisson"),
    pytest.param(mmpp2(400, 20, 2, 0.2), False, 0.001, (Slo(0.08, 95),), id="bursty, fixed service"),
    pytest.param(mmpp2(300, 3, 1, 0.5), True, 0.1, (Slo(0.05, 90), Slo(0.09, 99)), id="two promises, 100 ms"),
    pytest.param(THREE_PHASES, True, 0.001, (Slo(0.1, 50),), id="three phases, median"),
    pytest.param(ERLANG_GAPS, False, 0.1, (Slo(0.07, 99),), id="smooth, 100 ms"),
]


@pytest.mark.parametrize(("arrivals", "random", "granularity", "slos"), CASES)
@pytest.mark.proof
def test_no_timeout_of_a_much_finer_grid_is_cheaper(
    arrivals: ArrivalProcess, random: bool, granularity: float, slos: tuple[Slo, ...]
) -> None:
    services, compute = functions(random, granularity)
    longest = 2 * max(slo.latency for slo in slos)
    search = Search(arrivals, services, compute, np.full(3, 2e-7), longest)
    land, gap = search.landscape(slos, np.linspace(0, longest, 65))
    best = land.ranked()[0]
    latencies, quantiles = np.array([slo.latency for slo in slos]), np.array([slo.quantile for slo in slos])
    cheapest = np.inf
    for timeout in np.linspace(0, longest, 1201):
        law = SizeOrTimeout(arrivals, 12, timeout)
        cost = (compute @ law.batch_size_pmf.T + 2e-7) / law.mean_batch_size
        for j, service in enumerate(services):
            within = law.fraction_within(service.response[None], service.quantile_levels, latencies)[0]
            kept = (within >= quantiles).all(axis=1)
            cheapest = min(cheapest, cost[j][kept].min(initial=np.inf))
    assert best.cost <= cheapest * (1 + 1e-4)
    assert gap <= 1e-3
    setting = services[best.service].up_to(best.batch_size)
    law = SizeOrTimeout(arrivals, best.batch_size, best.timeout)
    assert (law.fraction_within(setting.response[None], setting.quantile_levels, latencies)[0, -1] >= quantiles - 1e-9).all()


def test_what_the_search_passes_over_is_not_among_the_best_asked_for() -> None:
    services, compute = functions(True, 0.001)
    search = Search(mmpp2(400, 20, 2, 0.2), services, compute, np.full(3, 2e-7), 0.16)
    slos, timeouts = (Slo(0.08, 95),), np.linspace(0, 0.16, 33)
    few, _ = search.landscape(slos, timeouts, n_best=2, refine=False)
    every, _ = search.landscape(slos, timeouts, n_best=4, refine=False)
    cheapest = {choice.service: choice for choice in reversed(every.ranked())}
    first, second = sorted(cheapest.values(), key=lambda choice: choice.cost)[:2]
    assert few.ranked()[0] == first and second in few.ranked()
    assert np.isnan(few.margin[~few.ruled_out]).any() and not np.isnan(every.margin[~every.ruled_out]).any()


def test_of_timeouts_that_cost_the_same_the_shortest_is_taken() -> None:
    services, compute = functions(False, 0.001)
    search = Search(poisson(5000), services, compute, np.full(3, 2e-7), 1.0)  # twelve come in 2.4 ms
    best = search.landscape((Slo(0.5, 95),), np.linspace(0, 1.0, 65))[0].ranked()[0]
    assert best.batch_size == 12 and best.timeout <= 1 / 64


def test_batches_that_no_timeout_can_fill_are_one() -> None:
    services, compute = functions(False, 0.001)
    search = Search(ERLANG_GAPS, services, compute, np.zeros(3), 0.02)  # 0.8 arrivals in the longest timeout
    assert 3 <= search.max_batch_size < 12
    assert SizeOrTimeout(ERLANG_GAPS, 12, 0.02).batch_size_pmf[-1, search.max_batch_size :].sum() < 1e-8


def test_a_search_that_is_asked_for_another_percentile_answers_as_a_new_one_and_knows_most_laws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, compute = functions(True, 0.001)
    timeouts, asked = np.linspace(0, 0.2, 65), [0]
    found = Search._fraction_within

    def counted(self: Search, *args: Any) -> np.ndarray:
        asked[0] += 1
        return found(self, *args)

    monkeypatch.setattr(Search, "_fraction_within", counted)

    def best(search: Search, percentile: float) -> tuple[list[Choice], int]:
        before = asked[0]
        land, _ = search.landscape((Slo(0.1, percentile),), timeouts)
        return land.ranked()[:3], asked[0] - before

    search = Search(mmpp2(400, 20, 2, 0.2), services, compute, np.full(3, 2e-7), 0.2)
    for percentile in (95, 95.15, 95.3):
        here, known = best(search, percentile)
        new, computed = best(Search(mmpp2(400, 20, 2, 0.2), services, compute, np.full(3, 2e-7), 0.2), percentile)
        assert here == new
        assert known == computed if percentile == 95 else known < computed / 2


def test_a_search_that_is_asked_once_answers_the_same_and_keeps_no_series() -> None:
    services, compute = functions(True, 0.001)
    slos, timeouts, kept, found = (Slo(0.08, 95),), np.linspace(0, 0.16, 33), [], []
    for asked_once in (False, True):
        search = Search(mmpp2(400, 20, 2, 0.2), services, compute, np.full(3, 2e-7), 0.16, asked_once=asked_once)
        land, _ = search.landscape(slos, timeouts, n_best=4)  # every function is asked of what may keep the promise
        kept.append(sum("_series" in vars(law) for law in search._laws.values()))
        found.append(land.ranked())
    assert found[0] == found[1] and kept[1] < kept[0] / 3
