"""The choice of an arrival process: by evidence, for traces of every kind, and window by window."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sluice.batching.documents import ArrivalDocument, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, dispersion_of_counts, mmpp2, poisson
from sluice.optimizer.fits import ArrivalFit, Candidate, Gate, WaitError, arrival_document, fit_arrivals, fit_windows
from sluice.optimizer.fits.choice import LONGLIST, SHORTLIST, choose
from sluice.optimizer.fits.gaps import stretches
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout
from sluice.optimizer.traces import Trace, judge_stationarity, poisson_p_value, read_trace

ROOT = Path(__file__).parents[2]
EXCERPT = ROOT / "examples/traces/azure_llm_code_excerpt.csv.gz"


@pytest.mark.proof
def test_auto_beats_poisson_and_predicts_the_waits_of_a_real_trace() -> None:
    trace = read_trace(EXCERPT).sped_up(10)
    fit = fit_arrivals(trace, "auto")
    arrivals = fit.arrivals
    errors, by_poisson = [], []
    for batch_size, timeout in ((4, 0.1), (8, 0.15), (8, 0.2), (16, 0.1), (32, 0.15)):
        waits, _ = simulate_size_or_timeout(trace.times, batch_size, timeout)
        seen = np.quantile(waits, 0.95)
        nothing = ServiceTimes(1, np.zeros((batch_size, 1)), np.zeros(batch_size), np.zeros(batch_size))
        errors.append(abs(predict_latency(arrivals, nothing, batch_size, timeout).percentile(95) / seen - 1))
        predicted = predict_latency(poisson(trace.arrival_rate), nothing, batch_size, timeout).percentile(95)
        by_poisson.append(abs(predicted / seen - 1))
    assert max(errors) < 0.08
    assert np.mean(errors) < np.mean(by_poisson) / 5
    assert len(fit.tried) >= 4


@pytest.mark.parametrize("n", [100, 5000, 400_000])
def test_auto_takes_poisson_for_a_poisson_trace(n: int) -> None:
    fit = fit_arrivals(Trace(poisson(30).sample(n, np.random.default_rng(1))))
    assert fit.arrivals.model == "poisson"
    assert fit.why == "its waits are those of the trace within chance"


@pytest.fixture(scope="module")
def of_two_phases() -> ArrivalFit:
    """The choice for more gaps of an MMPP2 than candidates are compared on."""
    return fit_arrivals(Trace(mmpp2(50, 5, 1, 2).sample(20_000, np.random.default_rng(1))))


def test_auto_takes_an_mmpp2_for_the_trace_of_one(of_two_phases: ArrivalFit) -> None:
    fit = of_two_phases
    assert fit.arrivals.model == "mmpp" and fit.arrivals.n_phases == 2


def gaps_of_every_kind() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    bursty = mmpp2(50, 5, 1, 2).sample(3000, rng)
    return {
        "a hundred arrivals": rng.exponential(1, 99),
        "stamps on a clock": np.diff(np.floor(np.cumsum(bursty) / 0.01) * 0.01),
        "many at one time": np.repeat(rng.exponential(1, 300), 5) * np.tile([1, 0, 0, 0, 0], 300),
        "all gaps equal": np.full(300, 0.1),
        "very long silences": np.concatenate([np.append(rng.exponential(0.001, 99), 3600) for _ in range(20)]),
        "one silence of all the time": np.append(rng.exponential(0.1, 150), 1e6),
        "heavy tail": rng.pareto(1.3, 3000) * 0.01 + 1e-4,
    }


@cache
def fit_of(kind: str) -> ArrivalFit:
    return fit_arrivals(Trace(gaps_of_every_kind()[kind]))


SLOW = ("many at one time", "very long silences")  # a second or two each: their rates differ by a million
KINDS = [pytest.param(kind, marks=pytest.mark.proof) if kind in SLOW else kind for kind in gaps_of_every_kind()]


@pytest.mark.parametrize("kind", KINDS)
def test_auto_fits_any_trace_and_keeps_its_rate(kind: str) -> None:
    trace, fit = Trace(gaps_of_every_kind()[kind]), fit_of(kind)
    assert fit.arrivals.arrival_rate == pytest.approx(trace.arrival_rate)
    assert fit.error is not None and 0 <= fit.error.area < 1
    assert any(candidate is fit.best for candidate in fit.tried) and fit.best.error is not None
    document = arrival_document(fit)
    assert read(ArrivalDocument, write(document)).goodness.keys() == document.goodness.keys()
    again = ArrivalProcess.of(read(ArrivalDocument, write(document)))
    assert np.array_equal(again.D0, fit.arrivals.D0) and np.array_equal(again.D1, fit.arrivals.D1)


def test_the_document_tells_what_was_tried_and_why_one_was_chosen() -> None:
    trace = Trace(np.random.default_rng(3).gamma(20, 0.01, 2000))
    document = arrival_document(fit_arrivals(trace))
    goodness = document.goodness
    assert goodness["chosen"] == document.fitted_from["fit"] == "map:1, Erlang orders 20"
    assert "error" in goodness["why"]
    by_name = {line["fit"]: line for line in goodness["tried"]}
    assert by_name["map:1, Erlang orders 20"]["bic"] == min(line["bic"] for line in goodness["tried"])
    assert by_name["poisson"]["wait_error"] > 5 * by_name["map:1, Erlang orders 20"]["wait_error"]
    for line in goodness["tried"]:
        likelihood = (line["n_parameters"] * np.log(len(trace) - 1) - line["bic"]) / 2
        assert likelihood == pytest.approx(line["log_likelihood"])
        assert line["fit"].startswith(("poisson", "mmpp2 by moments")) or line["converged"]
    assert [size for size, _ in goodness["wait_grid"]] == [4, 4, 8, 8, 16, 16]


def test_a_fit_that_batches_otherwise_than_the_trace_is_noted() -> None:
    fit = fit_arrivals(Trace(gaps_of_every_kind()["many at one time"]), "poisson")
    assert "no candidate batches like the trace: its waits are off by" in fit.note
    assert arrival_document(fit).goodness["note"] == fit.note


@pytest.mark.full
def test_the_document_tells_of_the_trace_where_it_was_judged() -> None:
    trace = Trace(np.random.default_rng(3).exponential(0.01, 2000), "here", "gaps")
    fit = fit_arrivals(trace, "poisson")
    short = arrival_document(fit).fitted_from
    assert list(short) == ["source", "n", "duration", "scv", "skewness", "fit", "gaps_used"] and short["gaps_used"] == fit.n_gaps
    long = arrival_document(fit, judge_stationarity(trace)).fitted_from
    assert long["reading"] == "gaps" and long["stationarity"]["stationary"] is True
    assert {name: long[name] for name in short} == short


def candidate(name: str, bic: float, n_phases: int = 1, n_gaps: int = 1000, score: float | None = None) -> Candidate:
    """One whose likelihood makes its BIC what it is."""
    arrivals = poisson(1.0) if n_phases == 1 else mmpp2(2, 1, 1, 1)
    likelihood = (n_phases * np.log(n_gaps) - bic) / 2
    return Candidate(name, arrivals, likelihood, n_phases, n_gaps, error=None if score is None else WaitError(score, 0.0, 0.0))


def test_of_candidates_that_are_about_as_near_the_one_of_fewest_phases_wins() -> None:
    near, small, far = candidate("near", 1, 2, score=0.1), candidate("small", 2, 1, score=0.104), candidate("far", 0, 1, score=0.2)
    assert choose([near, small, far], 0.0) == (
        small,
        "fewest phases among 2 whose waits are about as near: error 0.1040, least 0.1000",
    )
    assert choose([near, far], 0.0)[0] is near


def test_within_chance_fewer_phases_win_but_not_against_decisive_evidence() -> None:
    near = candidate("near", 100.0, 2, score=0.021)
    likely, unlikely = (candidate(name, bic, 1, score=0.03) for name, bic in (("likely", 105.0), ("unlikely", 115.0)))
    assert choose([near, likely], 0.05)[0] is likely
    assert choose([near, unlikely], 0.05)[0] is near
    assert choose([near, likely], 0.0)[0] is near


def test_a_slow_swing_of_the_rate_is_not_taken_for_poisson_though_its_waits_are() -> None:
    rng = np.random.default_rng(3)
    trace = Trace(np.diff(np.sort(np.concatenate([rng.uniform(0, 300, 6000), rng.uniform(150, 300, 750)]))))
    fit = fit_arrivals(trace)
    (by_poisson,) = (candidate for candidate in fit.tried if candidate.name == "poisson")
    assert by_poisson.score < Gate(trace.interarrivals, (3,), 0.5, (), 1.0).noise < 2 * by_poisson.score + 0.03
    assert poisson_p_value(trace) < 1e-3 and trace.dispersion(10.0) > 3
    assert dispersion_of_counts(fit.arrivals, [10.0])[0] > 2


def test_what_is_chosen_was_finished_with_all_the_gaps(of_two_phases: ArrivalFit) -> None:
    fit = of_two_phases
    assert fit.best.n_gaps == fit.n_gaps == 20_000
    assert {one.n_gaps for one in fit.tried} == {12_000, 20_000}


@pytest.mark.full
def test_one_silence_of_all_the_time_costs_no_more_candidates_than_any_trace() -> None:
    fit = fit_of("one silence of all the time")
    assert sum(one.error is not None for one in fit.tried) <= 3 + SHORTLIST + LONGLIST


def test_where_no_waits_can_be_predicted_only_fits_to_as_many_gaps_are_compared() -> None:
    some, every = candidate("some", -900.0, n_gaps=100), candidate("every", -500.0)
    best, why = choose([some, every, candidate("worse", -400.0)], 0.0)
    assert best is every and why == "the waits of no candidate could be predicted; it has the least BIC"


def test_the_gate_is_open_to_the_process_itself_and_measures_how_far_another_is() -> None:
    process = mmpp2(50, 5, 1, 2)
    gaps = process.sample(200_000, np.random.default_rng(4))
    gate = Gate(gaps, (3, 6), 0.5, (2.0,), 10.0)
    own, other = gate.error(process), gate.error(poisson(process.arrival_rate))
    assert own is not None and other is not None
    assert own.area < 0.005 and own.p95 < 0.02
    assert other.score > 10 * own.score and other.worst_p95 >= other.p95


def test_what_cannot_be_predicted_does_not_pass_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Array:
        raise InvalidInput("timeout", 1.0, "less")

    gate = Gate(np.random.default_rng(4).exponential(1, 1000), (6,), None, (2.0,), 100.0)
    monkeypatch.setattr("sluice.optimizer.fits.gate.counting_from_arrivals", refuse)
    assert gate.error(poisson(1.0)) is None


def test_stretches_are_spread_over_the_trace_and_keep_what_follows_what() -> None:
    taken = stretches(np.arange(100_000.0), 2000, 40)
    assert len(taken) == 2000 and taken[0] == 0 and taken[-1] == 99_999
    assert (np.diff(taken) == 1).sum() == 2000 - 40
    assert np.array_equal(stretches(np.arange(50.0), 2000), np.arange(50.0))


@pytest.mark.parametrize("model", ["gamma", "map:0", "map:9", "map:x", "map:", "map:-1", "map:²", ""])
def test_an_unknown_model_is_refused(model: str) -> None:
    with pytest.raises(InvalidInput, match=f"model: '{model}'"):
        fit_arrivals(Trace(np.full(200, 0.1) + np.arange(200) * 1e-4), model)


@pytest.mark.parametrize(("model", "phases"), [("poisson", 1), ("mmpp2", 2), ("map:3", None)])
def test_a_model_that_is_named_is_fitted(model: str, phases: int | None) -> None:
    fit = fit_arrivals(Trace(mmpp2(50, 5, 1, 2).sample(2000, np.random.default_rng(2))), model)
    assert phases is None or fit.arrivals.n_phases == phases
    assert fit.best.name.startswith(model) and fit.model == model


def test_the_page_on_traces_fits_one_in_a_few_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/traces.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(block, names)
    assert isinstance(names["document"], ArrivalDocument) and "mmpp2 by likelihood" in capsys.readouterr().out


def test_windows_follow_a_load_that_drifts() -> None:
    rng = np.random.default_rng(11)
    trace = Trace(np.concatenate([rng.exponential(1 / rate, int(rate * 100)) for rate in (10, 40)]))
    fits = fit_windows(trace, 50.0, "poisson", step=25.0)
    assert [fit.start for fit in fits[:3]] == [0, 25, 50]
    assert fits[-1].end == pytest.approx(trace.duration) and all(fit.end - fit.start == pytest.approx(50) for fit in fits)
    rates = [fit.fit.arrivals.arrival_rate for fit in fits]
    assert rates[0] == pytest.approx(10, rel=0.2) and rates[-1] == pytest.approx(40, rel=0.1)
    assert fit_windows(trace, trace.duration)[0].fit.arrivals.arrival_rate == pytest.approx(trace.arrival_rate)


def test_a_window_too_quiet_for_a_fit_is_left_out() -> None:
    rng = np.random.default_rng(11)
    trace = Trace(np.concatenate([rng.exponential(0.1, 500), [1000.0], rng.exponential(0.1, 500)]))
    assert len(fit_windows(trace, 40.0, "poisson")) < 5


@pytest.mark.parametrize(
    ("window", "step", "message"),
    [
        (0.0, None, "window: 0.0 is not allowed; allowed: seconds > 0, at most the duration"),
        (1e9, None, "window"),
        (20.0, 0.0, "step: 0.0 is not allowed"),
        (1.0, None, "window: 1.0 is not allowed; allowed: seconds that hold at least 100 arrivals"),
    ],
)
def test_windows_that_cannot_be_are_refused(window: float, step: float | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_windows(Trace(np.random.default_rng(0).exponential(0.1, 500)), window, "poisson", step)
