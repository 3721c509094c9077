"""Arrival processes, their fits, and traces with everything that can be wrong in them."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.documents import ArrivalDocument, read, write
from batching.errors import InvalidInput
from optimizer.analysis.latency import predict_latency
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.choice import fit_arrivals
from optimizer.arrivals.em_fit import fit_erlang_states, fit_hidden_markov, fit_mmpp2
from optimizer.arrivals.map import ArrivalProcess
from optimizer.arrivals.mmpp import mmpp2, mmpp2_of_hidden_markov, mmpp2_rates
from optimizer.arrivals.moment_fit import fit_mmpp2_moments
from optimizer.arrivals.poisson import fit_poisson, poisson
from optimizer.arrivals.trace import Trace, read_trace
from optimizer.simulation.size_or_timeout import simulate_size_or_timeout

EXCERPT = Path(__file__).parents[2] / "examples/traces/azure_llm_code_excerpt.csv.gz"


@settings(max_examples=40, deadline=None)
@given(st.floats(20, 500), st.floats(0.1, 15), st.floats(0.05, 10), st.floats(0.05, 10))
def test_a_moment_fit_recovers_the_process_it_was_given_the_moments_of(l1: float, l2: float, w1: float, w2: float) -> None:
    known = mmpp2(l1, l2, w1, w2)
    decay = float(known.autocorrelation([2])[0] / known.autocorrelation([1])[0])
    fit = fit_mmpp2_moments(known.moment(1), known.scv, known.moment(3), decay)
    assert fit.distance == 0 and fit.note == ""
    assert mmpp2_rates(fit.arrivals) == pytest.approx(mmpp2_rates(known), rel=1e-3)


def test_two_states_with_exponential_gaps_and_their_mmpp_have_one_law() -> None:
    rates, transitions = np.array([100.0, 5.0]), np.array([[0.9, 0.1], [0.3, 0.7]])
    hidden = ArrivalProcess(-np.diag(rates), rates[:, None] * transitions)
    modulated = mmpp2_of_hidden_markov(rates, transitions)
    assert modulated is not None and modulated.model == "mmpp"
    assert [modulated.moment(k) for k in (1, 2, 3)] == pytest.approx([hidden.moment(k) for k in (1, 2, 3)])
    assert modulated.autocorrelation(range(1, 6)) == pytest.approx(hidden.autocorrelation(range(1, 6)))


def test_alternating_gaps_have_no_mmpp() -> None:
    assert mmpp2_of_hidden_markov(np.array([100.0, 5.0]), np.array([[0.1, 0.9], [0.9, 0.1]])) is None


def test_a_document_survives_the_round_trip() -> None:
    known = mmpp2(50, 5, 1, 2)
    again = ArrivalProcess.of(read(ArrivalDocument, write(known.document({"source": "here"}))))
    assert np.array_equal(again.D0, known.D0) and np.array_equal(again.D1, known.D1) and again.model == "mmpp"


def test_moments_of_the_process_are_those_of_its_samples() -> None:
    known = mmpp2(50, 5, 1, 2)
    gaps = known.sample(200_000, np.random.default_rng(2)).reshape(100, -1)
    error = gaps.mean(axis=1).std(ddof=1) / 10
    assert abs(gaps.mean() - known.moment(1)) < 4 * error
    assert known.arrival_rate == pytest.approx(1 / known.moment(1))
    assert Trace(gaps.ravel()).autocorrelation([1])[0] == pytest.approx(known.autocorrelation([1])[0], abs=0.02)


def test_em_finds_the_rates_of_a_known_mmpp() -> None:
    known = (400.0, 20.0, 2.0, 0.2)
    fit = fit_mmpp2(mmpp2(*known).sample(30_000, np.random.default_rng(7)))
    assert fit.converged
    found = mmpp2_rates(fit.arrivals())
    assert found[:2] == pytest.approx(known[:2], rel=0.03)
    assert found[2:] == pytest.approx(known[2:], rel=0.4)  # some fifty switches were seen


def test_em_keeps_the_mean_gap_and_never_loses_likelihood() -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(3000, np.random.default_rng(3))
    likelihoods = [fit_hidden_markov(gaps, (1, 1), max_iterations=k, tolerance=0.0).log_likelihood for k in (1, 2, 4, 8, 16)]
    assert np.diff(likelihoods).min() > -1e-6
    assert fit_mmpp2(gaps).arrivals().arrival_rate == pytest.approx(1 / gaps.mean(), rel=1e-6)


def test_erlang_states_are_smoother_than_poisson_where_the_trace_is() -> None:
    gaps = np.random.default_rng(4).gamma(4, 0.01, 3000)
    fit = fit_erlang_states(gaps, 2)
    assert max(fit.orders) > 1
    assert fit.arrivals().scv == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize(
    ("scv", "third", "note"),
    [(0.5, 2.0, "no MMPP(2) has an SCV of 0.5 <= 1: the nearest is Poisson"), (4.0, 10.0, "third moment raised")],
)
def test_infeasible_moments_give_the_nearest_fit_and_say_how_far(scv: float, third: float, note: str) -> None:
    fit = fit_mmpp2_moments(1.0, scv, third, 0.5)
    assert fit.distance > 0
    assert note in fit.note
    assert fit.arrivals.arrival_rate == pytest.approx(1)


def test_a_decay_outside_is_moved_and_said() -> None:
    assert "decay -0.2 moved to 0" in fit_mmpp2_moments(1.0, 4.0, 100.0, -0.2).note


def test_auto_takes_poisson_for_a_poisson_trace() -> None:
    gaps = poisson(30).sample(5000, np.random.default_rng(1))
    assert fit_arrivals(Trace(gaps)).model == "poisson"


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
        predicted = predict_latency(fit_poisson(trace.interarrivals), nothing, batch_size, timeout).percentile(95)
        by_poisson.append(abs(predicted / seen - 1))
    assert max(errors) < 0.08
    assert np.mean(errors) < np.mean(by_poisson) / 5
    assert len(document.goodness["tried"]) >= 4


def test_the_excerpt_is_read_to_its_last_digit() -> None:
    trace = read_trace(EXCERPT)
    assert len(trace) == 3240
    assert trace.arrival_rate == pytest.approx(3.61, abs=0.01)
    first = gzip.decompress(EXCERPT.read_bytes()).decode().split()[1:5]
    assert first[0] == "2023-11-16"
    assert trace.interarrivals[0] == pytest.approx(float(first[3][6:]) - float(first[1][6:]), abs=1e-9)


def write_trace(folder: Path, lines: list[str], name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_timestamps_gaps_units_and_columns_are_one_trace(tmp_path: Path) -> None:
    gaps = np.random.default_rng(0).integers(1, 500, 150)
    times = np.concatenate([[0], np.cumsum(gaps)])
    by_time = read_trace(write_trace(tmp_path, ["id,arrival_ms", *(f"x,{t}" for t in times)]), column="arrival_ms", unit="ms")
    by_gap = read_trace(write_trace(tmp_path, ["interarrival_s", *(f"{g / 1000}" for g in gaps)]))
    assert by_time.interarrivals == pytest.approx(by_gap.interarrivals)
    statistics = by_time.statistics()
    assert statistics.arrival_rate == pytest.approx(1000 / gaps.mean())
    assert statistics.scv == pytest.approx(gaps.var() / gaps.mean() ** 2)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["t", *map(str, range(150)), "soon"], {}, "trace.csv, line 152: 'soon' is not allowed; allowed: a number"),
        (["gap", *["1.5"] * 150, "-2.0"], {}, "trace.csv, line 152: '-2.0' is not allowed; allowed: an inter-arrival time >= 0"),
        (
            ["t", *map(str, range(150)), "7"],
            {},
            r"line 152: '7' is not allowed; allowed: a time not before the one above it \(149\)",
        ),
        (["t", *map(str, range(50))], {}, "arrivals: 50 is not allowed; allowed: at least 100"),
        (["t", *["3"] * 150], {}, "times: 'all equal' is not allowed"),
        (["t", *map(str, range(150))], {"column": "when"}, "column: 'when' is not allowed; allowed: one of the columns of .*: t"),
        (["t", *map(str, range(150))], {"unit": "h"}, "unit: 'h' is not allowed"),
        ([], {}, "arrivals: 0 is not allowed"),
        (["2023-11-16 18:17:03.5"] * 120 + ["yesterday"], {}, "line 121: 'yesterday' is not allowed; allowed: an ISO 8601 time"),
        (["t", *["nan"] * 120], {}, "line 2: 'nan' is not allowed; allowed: a finite number"),
        (["t", *map(str, range(-5, 150))], {}, "line 2: '-5' is not allowed; allowed: a time >= 0"),
        ([*map(str, range(150)), "-7"], {"kind": "timestamps"}, "line 151: '-7' is not allowed; allowed: a time >= 0"),
        ([*map(str, range(-5, 150))], {}, "line 1: '-5' is not allowed; allowed: a time >= 0"),
        (["t", *map(str, range(150)), "7"], {}, "if these are gaps, say --kind interarrivals"),
        (
            ["3.5"] * 150,
            {},
            "trace.csv: kind: 'auto' is not allowed; allowed: timestamps or interarrivals .--kind.: with 0 rises and 0",
        ),
    ],
)
def test_a_bad_trace_names_line_and_value(tmp_path: Path, lines: list[str], options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_trace(write_trace(tmp_path, lines), **options)


DISORDER = {
    "shuffled": lambda times, rng: rng.permutation(times),
    "backwards": lambda times, rng: times[::-1],
    "two logs one after the other": lambda times, rng: np.concatenate([times[::2], times[1::2]]),
    "a few late": lambda times, rng: times[np.argsort(np.arange(len(times)) + rng.uniform(0, 3, len(times)))],
    "two logs by turns": lambda times, rng: times.reshape(2, -1).T.ravel(),
}


@pytest.mark.parametrize("start", [0.0, 1.7e9])
@pytest.mark.parametrize("disorder", DISORDER)
@pytest.mark.parametrize(
    ("header", "message"), [(["time_s"], "a time not before the one above it"), (["x"], "--kind"), ([], "--kind")]
)
def test_timestamps_in_disorder_are_never_taken_for_gaps(
    tmp_path: Path, disorder: str, start: float, header: list[str], message: str
) -> None:
    rng = np.random.default_rng(8)
    times = start + np.cumsum(mmpp2(50, 5, 1, 2).sample(300, rng))
    path = write_trace(tmp_path, [*header, *(f"{t:.6f}" for t in DISORDER[disorder](times, rng))])
    with pytest.raises(InvalidInput, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("header", "rising", "reading"),
    [
        (["interarrival_s"], True, "inter-arrival times in s (by the column's name, interarrival_s)"),
        (["Inter-arrival time"], False, "inter-arrival times in s (by the column's name, Inter-arrival time)"),
        (["time_delta"], False, "inter-arrival times in s (by the column's name, time_delta)"),
        (["arrival_time"], True, "timestamps in s (by the column's name, arrival_time)"),
        (["initiated_at"], True, "timestamps in s (by the column's name, initiated_at)"),
        (["seconds"], True, "timestamps in s (as they never fall)"),
        ([], True, "timestamps in s (as they never fall)"),
        ([], False, "inter-arrival times in s (as they rise and fall, and few are large)"),
    ],
)
def test_a_trace_says_how_it_was_read(tmp_path: Path, header: list[str], rising: bool, reading: str) -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(300, np.random.default_rng(8))
    values = np.cumsum(gaps) if rising else gaps
    trace = read_trace(write_trace(tmp_path, [*header, *map(str, values)]))
    assert trace.reading == trace.sped_up(2).reading == reading


def test_what_the_caller_says_goes_before_name_and_numbers(tmp_path: Path) -> None:
    path = write_trace(tmp_path, ["time", *map(str, range(1, 201))])
    asked = read_trace(path, kind="interarrivals", unit="ms")
    assert asked.interarrivals[-1] == 0.2 and asked.reading == "inter-arrival times in ms (as asked)"
    assert read_trace(EXCERPT).reading == "timestamps (ISO 8601)"


def test_a_missing_or_torn_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trace: .*none.csv' is not allowed; allowed: a readable CSV file"):
        read_trace(tmp_path / "none.csv")
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b"1\n" * 500)[:20])
    with pytest.raises(InvalidInput, match="a readable CSV file, plain or gzip"):
        read_trace(torn)


@pytest.mark.parametrize(
    ("D0", "D1", "message"),
    [
        ([[-1.0, 0.5], [0.5, -2.0]], [[0.5, 0], [0, 1.0]], r"row 1 of D0 \+ D1: -0.5 is not allowed; allowed: a sum of 0"),
        ([[-1.0, -0.5], [0.5, -2.0]], [[1.5, 0], [0, 1.5]], "row 0 of D0"),
        ([[1.0]], [[-1.0]], r"D0\[0\]\[0\]: 1.0"),
        ([[-1.0, 1.0], [1.0, -1.0]], [[0.0, 0], [0, 0]], "no arrival ever happens"),
    ],
)
def test_a_map_that_is_not_one_names_the_row(D0: list[list[float]], D1: list[list[float]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ArrivalProcess(np.array(D0), np.array(D1))


def test_a_document_whose_rate_is_not_its_matrices_is_refused() -> None:
    document = ArrivalDocument(model="poisson", arrival_rate=3.0, D0=[[-2.0]], D1=[[2.0]])
    with pytest.raises(InvalidInput, match="arrival_rate: 3.0 is not allowed; allowed: the rate of D0 and D1, 2"):
        ArrivalProcess.of(document)


@pytest.mark.parametrize("model", ["gamma", "map:0", "map:x"])
def test_an_unknown_model_is_refused(model: str) -> None:
    with pytest.raises(InvalidInput, match=f"model: '{model}'"):
        fit_arrivals(Trace(np.full(200, 0.1) + np.arange(200) * 1e-4), model)


def test_quantised_stamps_are_spread_over_their_tick() -> None:
    ticks = np.random.default_rng(0).integers(0, 4, 500) * 0.01
    spread = Trace(ticks).dithered(np.random.default_rng(1))
    assert spread.min() > 0 and len(np.unique(spread)) == 500
    assert spread.sum() == pytest.approx(ticks.sum(), abs=0.02)
