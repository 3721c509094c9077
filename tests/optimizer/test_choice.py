"""The choice of an arrival process: by evidence, for traces of every kind, and window by window."""

from pathlib import Path

import numpy as np
import pytest

from sluice.batching.documents import ArrivalDocument, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.fits.em_fit import stretches
from sluice.optimizer.fits.gate import Gate
from sluice.optimizer.fits.windows import fit_windows
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout
from sluice.optimizer.traces.trace import Trace, read_trace

EXCERPT = Path(__file__).parents[2] / "examples/traces/azure_llm_code_excerpt.csv.gz"


def test_auto_beats_poisson_and_predicts_the_waits_of_a_real_trace() -> None:
    trace = read_trace(EXCERPT).sped_up(10)
    document = fit_arrivals(trace, "auto")
    arrivals = ArrivalProcess.of(document)
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
    assert len(document.goodness["tried"]) >= 4


@pytest.mark.parametrize("n", [100, 5000, 400_000])
def test_auto_takes_poisson_for_a_poisson_trace(n: int) -> None:
    document = fit_arrivals(Trace(poisson(30).sample(n, np.random.default_rng(1))))
    assert document.model == "poisson"
    assert document.goodness["why"] == "its waits are those of the trace within chance"


def test_auto_takes_an_mmpp2_for_the_trace_of_one() -> None:
    document = fit_arrivals(Trace(mmpp2(50, 5, 1, 2).sample(30_000, np.random.default_rng(1))))
    assert document.model == "mmpp" and len(document.D0) == 2


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


@pytest.mark.parametrize("kind", gaps_of_every_kind())
def test_auto_fits_any_trace_and_keeps_its_rate(kind: str) -> None:
    trace = Trace(gaps_of_every_kind()[kind])
    document = read(ArrivalDocument, write(fit_arrivals(trace)))
    assert document.arrival_rate == pytest.approx(trace.arrival_rate)
    assert 0 <= document.goodness["wait_error"] < 1
    chosen = [line for line in document.goodness["tried"] if line["fit"] == document.goodness["chosen"]]
    assert chosen and chosen[0]["wait_error"] is not None


def test_the_document_tells_what_was_tried_and_why_one_was_chosen() -> None:
    trace = Trace(np.random.default_rng(3).gamma(20, 0.01, 2000))
    document = fit_arrivals(trace)
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
    document = fit_arrivals(Trace(gaps_of_every_kind()["many at one time"]), "poisson")
    assert "no candidate batches like the trace: its waits are off by" in document.goodness["note"]


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
    monkeypatch.setattr("sluice.optimizer.fits.gate.predict_waiting_time_cdf", refuse)
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
    document = fit_arrivals(Trace(mmpp2(50, 5, 1, 2).sample(2000, np.random.default_rng(2))), model)
    assert phases is None or len(document.D0) == phases
    assert document.fitted_from["fit"].startswith(model)


def test_windows_follow_a_load_that_drifts() -> None:
    rng = np.random.default_rng(11)
    trace = Trace(np.concatenate([rng.exponential(1 / rate, int(rate * 100)) for rate in (10, 40)]))
    fits = fit_windows(trace, 50.0, "poisson", step=25.0)
    assert [fit.start for fit in fits[:3]] == [0, 25, 50]
    assert fits[-1].end == pytest.approx(trace.duration) and all(fit.end - fit.start == pytest.approx(50) for fit in fits)
    rates = [fit.document.arrival_rate for fit in fits]
    assert rates[0] == pytest.approx(10, rel=0.2) and rates[-1] == pytest.approx(40, rel=0.1)
    assert fit_windows(trace, trace.duration)[0].document.arrival_rate == pytest.approx(trace.arrival_rate)


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
