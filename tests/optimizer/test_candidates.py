"""A setting of the function, workers under a table, and both are asked the same things, and answer in the same terms."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, Plan, ServiceProfile, Slo, percentile_name, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.recommend import Answer, Candidate, Limits, Question, choose_overflow, machine_offer, mmpp2, recommend
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.simulation import Function, SampledArrivals, simulate_deployments

ARRIVALS = mmpp2(100, 20, 4, 2)
SLOS = (Slo(0.1, 95), Slo(0.15, 99))
FUNCTION = ServiceProfile(function="mlp-{memory_mb}", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=8)
MACHINE = ServiceProfile(function="http://gpu:8500", service_time=LinearServiceTime(0.004, 0.0005), max_batch_size=16)
SLOW = ServiceProfile(function="http://core:8500", service_time=LinearServiceTime(0.0, 0.02), max_batch_size=4)


@pytest.fixture(scope="module")
def answer() -> Answer:
    offers = (machine_offer("gpu", MACHINE, 0.5, 16),)
    return recommend(Question(ARRIVALS, FUNCTION, SLOS, offers=offers, limits=Limits((1769,))))


@pytest.fixture(scope="module")
def both() -> Candidate:
    offers = (machine_offer("core", SLOW, 0.01, 4),)
    return choose_overflow(Question(ARRIVALS, FUNCTION, SLOS, offers=offers, limits=Limits((1769,))), {"core": 2})


@pytest.fixture(params=["function", "workers", "both"])
def candidate(request: pytest.FixtureRequest, answer: Answer, both: Candidate) -> Candidate:
    return {"function": answer.best, "workers": answer.workers[0], "both": both}[request.param]


def test_a_percentile_is_an_estimate_of_which_a_prediction_is_a_point(candidate: Candidate) -> None:
    value, low, high = candidate.percentile(95)
    assert 0 < low <= value <= high
    assert (low == high) is (candidate.confidence is None)


def test_an_slo_that_is_kept_keeps_all_that_ask_for_less(candidate: Candidate) -> None:
    assert candidate.keeps(SLOS) and candidate.keeps([Slo(0.11, 95), Slo(0.1, 90)])
    assert not candidate.keeps([SLOS[0], Slo(candidate.percentile(95).low / 2, 95)])


def test_the_plan_names_where_batches_go_and_what_is_expected(candidate: Candidate) -> None:
    plan = read(Plan, write(plan_of(candidate, SLOS, "mlp")))
    assert plan.policy is not None and plan.policy.policy() == candidate.policy
    assert plan.function == candidate.function in ("mlp-1769", "http://gpu:8500", "http://core:8500")
    assert [(beside.function, beside.policy.policy()) for beside in plan.beside] == list(candidate.beside)
    assert [function for function, _ in candidate.beside] == (["mlp-1769"] if "core" in candidate.name else [])
    assert plan.memory_mb == candidate.memory_mb and (plan.slo, *plan.other_slos) == SLOS
    assert plan.predicted is not None and plan.predicted.cost_per_request == candidate.cost.per_request
    assert plan.predicted.latency == {percentile_name(p): candidate.percentile(p).value for p in (50, 90, 95, 99)}


def test_the_deployment_does_what_is_said_of_the_candidate(candidate: Candidate) -> None:
    function = Function(FUNCTION, 512)  # at whatever memory size
    run = simulate_deployments({"": candidate.deployment(function)}, SampledArrivals(ARRIVALS, 200_000, 3), [0.1])[""]
    assert run.mean_batch_size == pytest.approx(candidate.mean_batch_size, rel=0.05)
    assert run.percentile(95).value == pytest.approx(candidate.percentile(95).value, rel=0.05)
    assert run.cost.per_request == pytest.approx(candidate.cost.per_request, rel=0.05)


def test_words_say_on_what_it_runs_and_what_to_do(candidate: Candidate, answer: Answer) -> None:
    said = {
        "function": ("1769 MB", "with 1769 MB"),
        "gpu": (f"{answer.workers[0].workers} × gpu", "Serve with 1 worker (gpu)"),
        "core and function": ("1 × core, 1769 MB", "at the last moment the function with 1769 MB takes the oldest, "),
    }
    runs_on, part = said[candidate.name]
    assert candidate.runs_on == runs_on and part in candidate.instruction


def test_workers_know_the_percentiles_that_were_estimated(answer: Answer) -> None:
    with pytest.raises(InvalidInput, match="percentile: 42 is not allowed; allowed: one of those estimated: p50, p90, p95, p99"):
        answer.workers[0].percentile(42)


def test_the_rate_of_poisson_arrivals_is_a_question_too() -> None:
    question = Question(20.0, FUNCTION, SLOS[0], limits=Limits((1769,)))
    assert question.arrivals.arrival_rate == pytest.approx(20.0) and question.slos == SLOS[:1]
    assert np.all(np.diff(question.timeouts) > 0) and question.longest_timeout == pytest.approx(0.2)
