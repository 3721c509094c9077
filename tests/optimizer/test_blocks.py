"""How surely a process is known: the fits without each block of the trace."""

import numpy as np
import pytest

from sluice.batching.documents import ArrivalDocument, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.fits import arrival_document, fit_arrivals
from sluice.optimizer.fits.blocks import BLOCKS
from sluice.optimizer.traces import Trace


def jackknife_error(values: list[float]) -> float:
    return float(np.sqrt((len(values) - 1) / len(values) * ((np.array(values) - np.mean(values)) ** 2).sum()))


def test_without_a_block_a_poisson_process_has_the_rate_of_the_other_gaps() -> None:
    gaps = np.random.default_rng(1).exponential(0.1, 800)
    without = fit_arrivals(Trace(gaps), "poisson").without
    parts = gaps.reshape(BLOCKS, -1)
    expected = [700 / (gaps.sum() - part.sum()) for part in parts]
    assert [process.arrival_rate for process in without] == pytest.approx(expected)


@pytest.mark.parametrize("model", ["mmpp2", "map:2"])
def test_of_a_bursty_trace_the_rates_without_blocks_are_those_of_the_trace_and_the_bursts_differ(model: str) -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(4000, np.random.default_rng(2))
    fit = fit_arrivals(Trace(gaps), model)
    expected = [3500 / (gaps.sum() - part.sum()) for part in gaps.reshape(BLOCKS, -1)]
    assert [process.arrival_rate for process in fit.without] == pytest.approx(expected, rel=1e-6)
    scv = [process.scv for process in fit.without]
    assert fit.arrivals.scv == pytest.approx(np.mean(scv), rel=0.03) and len(set(scv)) == BLOCKS


@pytest.mark.full
def test_the_error_of_a_decay_is_about_that_of_many_samples() -> None:
    process = mmpp2(50, 5, 1, 2)
    found, errors = [], []
    for seed in range(12):
        fit = fit_arrivals(Trace(process.sample(4000, np.random.default_rng(seed))), "mmpp2")
        found.append(fit.arrivals.scv)
        errors.append(jackknife_error([other.scv for other in fit.without]))
    assert 0.5 < np.mean(errors) / np.std(found, ddof=1) < 2


def test_the_document_carries_them_and_a_plan_does_not() -> None:
    fit = fit_arrivals(Trace(np.random.default_rng(1).exponential(0.1, 800)), "poisson")
    document = read(ArrivalDocument, write(arrival_document(fit)))
    again = ArrivalProcess.without_each_block(document)
    assert [a.D0.tolist() for a in again] == [a.D0.tolist() for a in fit.without] and len(again) == BLOCKS
    assert document.alone().without == [] and document.alone().D0 == document.D0
    assert ArrivalProcess.without_each_block(poisson(1.0).document()) == ()


def test_one_block_alone_tells_nothing_and_matrices_that_are_none_are_refused() -> None:
    document = poisson(1.0).document(without=[poisson(1.1), poisson(0.9)])
    text = write(document)
    with pytest.raises(InvalidInput, match="without: 1 is not allowed; allowed: at least two blocks, or none"):
        poisson(1.0).document(without=[poisson(1.1)])
    with pytest.raises(InvalidInput, match=r"D0\[0\]\[0\]"):
        read(ArrivalDocument, text.replace(b"-1.1", b"1.1") if isinstance(text, bytes) else text.replace("-1.1", "1.1"))
