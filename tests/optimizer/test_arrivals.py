"""Arrival processes: what is one, its moments, its samples, its documents."""

import numpy as np
import pytest

from sluice.batching.documents import ArrivalDocument, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2, mmpp2_of_hidden_markov
from sluice.optimizer.arrivals.poisson import poisson

ERLANG_AND_HIDDEN = ArrivalProcess(
    np.array([[-6.0, 6.0, 0.0], [0.0, -6.0, 0.0], [0.0, 0.5, -1.0]]), np.array([[0.0, 0, 0], [5.0, 0, 1.0], [0.1, 0, 0.4]])
)


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


@pytest.mark.parametrize(
    ("D0", "D1", "message"),
    [
        ([[-1.0, 0.5], [0.5, -2.0]], [[0.5, 0], [0, 1.0]], r"row 1 of D0 \+ D1: -0.5 is not allowed; allowed: a sum of 0"),
        ([[-1.0, -0.5], [0.5, -2.0]], [[1.5, 0], [0, 1.5]], "row 0 of D0"),
        ([[1.0]], [[-1.0]], r"D0\[0\]\[0\]: 1.0"),
        ([[-1.0, 1.0], [1.0, -1.0]], [[0.0, 0], [0, 0]], "no arrival ever happens"),
        ([[-3.0, 1.0], [0.0, -2.0]], [[1.0, 1.0], [3.0, -1.0]], r"row 1 of D1: \[3.0, -1.0\] is not allowed; allowed: rates >= 0"),
        ([[-1.0, 1.0]], [[0.0, 0.0]], r"D0: \(1, 2\) is not allowed; allowed: the shape \(1, 1\)"),
        ([[-1.0]], [[0.5, 0.5]], r"D1: \(1, 2\)"),
        ([[-1.0, float("nan")], [0, -1.0]], [[1.0, 0], [0, 1.0]], "D0: .* allowed: finite rates"),
        ([[-1.0]], [[float("inf")]], "D1: .* allowed: finite rates"),
        (
            [[-1.0, 0], [0, -2.0]],
            [[1.0, 0], [0, 2.0]],
            r"phases \[0\] and \[1\] never meet' .* an irreducible",
        ),
        ([[-2.0, 0.5, 0.5], [0, -1.0, 0], [0, 0, -2.0]], [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 2.0]], r"phases \[1\] and \[2\] never"),
        (
            [[-2.0, 1.0, 0], [0, -1.0, 1.0], [0, 1.0, -1.0]],
            [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]],
            r"phases \[1, 2\], which are never left",
        ),
    ],
)
def test_a_map_that_is_not_one_names_the_row(D0: list[list[float]], D1: list[list[float]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ArrivalProcess(np.array(D0), np.array(D1))


def test_a_document_whose_rate_is_not_its_matrices_is_refused() -> None:
    document = ArrivalDocument(model="poisson", arrival_rate=3.0, D0=[[-2.0]], D1=[[2.0]])
    with pytest.raises(InvalidInput, match="arrival_rate: 3.0 is not allowed; allowed: the rate of D0 and D1, 2"):
        ArrivalProcess.of(document)


def test_phases_that_are_left_for_good_do_no_harm() -> None:
    transient = ArrivalProcess(np.array([[-2.0, 1.0], [0.0, -3.0]]), np.array([[1.0, 0.0], [0.0, 3.0]]))
    assert transient.arrival_rate == pytest.approx(3)


@pytest.mark.parametrize("process", [poisson(3.0), mmpp2(50, 5, 1, 2), ERLANG_AND_HIDDEN], ids=["poisson", "mmpp2", "map"])
def test_samples_have_the_moments_and_the_autocorrelation_of_the_process(process: ArrivalProcess) -> None:
    gaps = process.sample(1_000_000, np.random.default_rng(2))
    blocks = gaps.reshape(200, -1)  # long against the memory of the process, so that their means are all but independent
    mean = process.moment(1)
    seen = {
        **{process.moment(k): (blocks**k).mean(axis=1) for k in (1, 2, 3)},
        **{
            float(process.autocorrelation([lag])[0]) * (process.moment(2) - mean**2): (
                (blocks[:, :-lag] - mean) * (blocks[:, lag:] - mean)
            ).mean(axis=1)
            for lag in (1, 2, 5)
            if process.n_phases > 1
        },
    }
    for expected, values in seen.items():
        assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / np.sqrt(len(values))


def test_one_seed_gives_one_sample_and_none_is_no_sample() -> None:
    process = mmpp2(50, 5, 1, 2)
    assert np.array_equal(process.sample(100, np.random.default_rng(7)), process.sample(100, np.random.default_rng(7)))
    assert len(process.sample(0, np.random.default_rng(7))) == 0
    with pytest.raises(InvalidInput, match="n: -1 is not allowed; allowed: an integer >= 0"):
        process.sample(-1, np.random.default_rng(7))


@pytest.mark.parametrize("stages", [1, 4, 9])
def test_skewness_is_that_of_the_erlang_law(stages: int) -> None:
    D0 = 3.0 * (np.eye(stages, k=1) - np.eye(stages))
    D1 = np.zeros((stages, stages))
    D1[-1, 0] = 3.0
    assert ArrivalProcess(D0, D1).skewness == pytest.approx(2 / np.sqrt(stages))
