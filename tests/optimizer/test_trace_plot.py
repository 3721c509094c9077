"""The figure of a trace: what it shows, and the files it is written to."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.report.trace_plot import plot_trace, write_figure
from sluice.optimizer.traces.trace import Trace

PROCESS = mmpp2(50, 5, 1, 2)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace(PROCESS.sample(3000, np.random.default_rng(0)))


def curves(figure: Figure, label: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    return [
        (axes.get_title(), np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for axes in figure.axes
        for line in axes.lines
        if line.get_label() == label
    ]


def test_the_figure_shows_rate_memory_dispersion_and_gaps(trace: Trace) -> None:
    figure = plot_trace(trace)
    assert [axes.get_title() for axes in figure.axes] == [
        *("Rate over time", "Autocorrelation of the gaps", "Index of dispersion for counts", "Gaps")
    ]
    assert "3,001 arrivals" in figure.get_suptitle() and "SCV" in figure.get_suptitle()
    assert not curves(figure, "fit")
    (_, lags, values), (_, windows, dispersion), (_, gaps, share) = curves(figure, "trace")
    assert values == pytest.approx(trace.autocorrelation(lags))
    assert dispersion == pytest.approx([trace.dispersion(window) for window in windows])
    assert share == pytest.approx([(trace.interarrivals >= gap).mean() for gap in gaps])


def test_the_curves_of_a_fit_are_its_closed_forms(trace: Trace) -> None:
    (_, lags, values), (_, windows, dispersion), (_, gaps, share) = curves(plot_trace(trace, PROCESS), "fit")
    assert values == pytest.approx(PROCESS.autocorrelation(lags.astype(int)))
    assert dispersion == pytest.approx(dispersion_of_counts(PROCESS, windows))
    sample = PROCESS.sample(100_000, np.random.default_rng(1))
    assert share == pytest.approx([(sample > gap).mean() for gap in gaps], abs=0.015)


@pytest.mark.proof
@pytest.mark.parametrize("gaps", [np.full(120, 0.5), np.tile([0.0, 1.0], 60), np.random.default_rng(2).pareto(1.1, 150)])
def test_traces_of_every_shape_can_be_drawn(gaps: np.ndarray, tmp_path: Path) -> None:
    fitted: ArrivalProcess = poisson(1 / gaps.mean())
    write_figure(plot_trace(Trace(gaps), fitted), tmp_path / "trace.svg")
    assert (tmp_path / "trace.svg").stat().st_size > 10_000


@pytest.mark.full
def test_a_figure_is_written_as_its_suffix_says_and_twice_the_same(trace: Trace, tmp_path: Path) -> None:
    figure = plot_trace(trace)
    for suffix, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        path = tmp_path / "new" / f"trace{suffix}"
        write_figure(figure, path)
        assert path.read_bytes().startswith(begins)
    write_figure(plot_trace(trace), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "new" / "trace.svg").read_bytes()


def test_another_suffix_and_a_path_that_cannot_be_written_are_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="plot: .*trace.gif' is not allowed; allowed: a file name that ends in .svg, .png, .pdf"):
        write_figure(Figure(), tmp_path / "trace.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="plot: .* is not allowed; allowed: a writable path"):
        write_figure(Figure(), tmp_path / "file" / "trace.svg")
