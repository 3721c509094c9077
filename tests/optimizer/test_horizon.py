"""Runs long enough to speak of equilibrium, also where the phases of the arrivals outlast them."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, ServiceProfile, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.recommend import Limits, Question, WorkerOffer, choose_overflow, choose_workers, simulate_overflow
from sluice.optimizer.recommend import overflow_choice as overflow_choice_module
from sluice.optimizer.recommend.horizon import MOST_REQUESTS, Horizon
from sluice.optimizer.recommend.last_moment import last_moment_beside
from sluice.optimizer.recommend.overflow_setting import OverflowSetting
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import Beside

SLO = Slo(0.2, 95)
PROFILE = ServiceProfile(function="net-{memory_mb}", service_time=LinearServiceTime(0.0, 0.0467), max_batch_size=16)
SECONDS = 0.0467 * np.arange(1, 17)
CORES = WorkerOffer("core", ServiceTimes(1769, SECONDS[:, None], np.zeros(16), SECONDS), 0.1, function="http://core:8500")
ONE = policies.greedy(4, 1)


def asked(arrivals: ArrivalProcess) -> Question:
    return Question(arrivals, PROFILE, SLO, offers=(CORES,), limits=Limits((1769,)))


def simulated(arrivals: ArrivalProcess, seed: int = 0) -> OverflowSetting:
    question = asked(arrivals)
    service = question.services[0]
    table = last_moment_beside(service, CORES.service, question.promised, 4, 4)
    return simulate_overflow(question, CORES, ONE, Beside(table, service, question.environments_at(1769)), seed=seed)


def long_phases(seconds: float, rates: tuple[float, float] = (40.0, 4.0)) -> ArrivalProcess:
    return mmpp2(*rates, 1 / seconds, 1 / seconds)


@pytest.mark.full
def test_phases_that_outlast_a_run_are_met_in_it_as_often_as_in_equilibrium() -> None:
    """In phases that never end within a run the queue is that of Poisson arrivals, each with the part of the requests it brings."""
    slow = long_phases(1e6)
    apart = [simulated(poisson(rate)).by_function.value for rate in (40.0, 4.0)]
    mixed = (40 * apart[0] + 4 * apart[1]) / 44
    for seed in range(2):
        setting = simulated(slow, seed)
        low, high = setting.by_function.low, setting.by_function.high
        assert setting.settled and setting.n_requests <= MOST_REQUESTS
        assert setting.by_function.value == pytest.approx(mixed, abs=0.006) and high - low < 0.01


def test_phases_that_a_run_sees_by_itself_are_not_dealt() -> None:
    def horizon(arrivals: ArrivalProcess) -> Horizon:
        return Horizon.of(arrivals, CORES, policies.greedy(4, 4))

    assert not horizon(poisson(20)).dealt and not horizon(long_phases(100)).dealt
    dealt = horizon(long_phases(1e4))
    assert dealt.dealt and dealt.settled <= MOST_REQUESTS and dealt.blocks(1 << 20) == 32
    assert dealt.pieces(1 << 20) >= 33 * 4 and horizon(long_phases(100)).pieces(1 << 20) == 1
    one, other = (dealt.arrival_times(1 << 16, np.random.default_rng(seed)) for seed in (1, 2))
    assert len(one) == 1 << 16 and one[-1] == pytest.approx(other[-1], rel=0.05)


def test_pieces_have_the_law_of_the_process() -> None:
    of = mmpp2(400, 20, 3, 2)
    gaps = of.sample_dealt(200_000, 5000, np.random.default_rng(3))
    assert gaps.mean() == pytest.approx(1 / of.arrival_rate, rel=0.02)
    assert (gaps**2).mean() == pytest.approx(of.moment(2), rel=0.05)
    begun = gaps.reshape(5000, 40)[:, :1].mean()  # just after an arrival in equilibrium too
    assert begun == pytest.approx(1 / of.arrival_rate, rel=0.1)
    assert len(poisson(5).sample_dealt(10, 3, np.random.default_rng(0))) == 10
    with pytest.raises(InvalidInput, match="pieces: 11 .* an integer from 1 to 10"):
        of.sample_dealt(10, 11, np.random.default_rng(0))


RARE = (10.0, 40.0), (1e-9, 4e-6)  # one request in a thousand comes in the second phase, which lasts for some days


def test_a_phase_too_rare_and_too_long_to_be_met_leaves_it_open() -> None:
    rare = mmpp(*RARE)
    assert rare.embedded[1] == pytest.approx(1e-3, rel=0.01)
    setting = simulated(rare)
    assert not setting.settled and not setting.keeps_slos and not setting.keeps((SLO,))


def test_it_is_said_where_no_run_shows_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Infeasible, match=r"no run of \d+ requests shows what 1000 workers \(core\) do: the phases"):
        choose_workers(mmpp(*RARE), CORES, SLO)
    monkeypatch.setattr(overflow_choice_module, "MOST_SIMULATED", 1 << 21)
    with pytest.raises(Infeasible, match=r"no run of \d+ requests shows what they do: the phases of the arrivals last too long"):
        choose_overflow(asked(mmpp(*RARE)), {"core": 3})


def mmpp(rates: tuple[float, float], leave: tuple[float, float]) -> ArrivalProcess:
    D1 = np.diag(rates)
    between = np.array([[0.0, leave[0]], [leave[1], 0.0]])
    return ArrivalProcess(between - np.diag(between.sum(axis=1)) - D1, D1, "mmpp")
