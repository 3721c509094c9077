"""The choice of an arrival process for a trace, by evidence (docs/model.md, section 1.4).

Likelihood ranks models well but does not say whether batching under the model is batching under the trace, which is the purpose. So
each candidate, of increasing size, is put through the gate: the waits it predicts for a grid of (batch size, timeout) against
the waits of batching the trace itself. Timeouts are quantiles of the time the trace takes to fill a batch, so that size and
timeout both matter. The error is the area between the two distribution functions over the timeout (Wasserstein distance, 0 to
1), averaged over the grid. The model of fewest parameters wins among those whose error is close to the least, BIC between equals.
Everything that was tried stays in the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from batching.documents import ArrivalDocument
from batching.errors import InvalidInput
from optimizer.analysis.waiting_time import predict_waiting_time_cdf
from optimizer.arrivals.em_fit import HiddenMarkovFit, fit_erlang_states, fit_mmpp2
from optimizer.arrivals.map import Array, ArrivalProcess
from optimizer.arrivals.moment_fit import fit_mmpp2_to_moments_of
from optimizer.arrivals.poisson import fit_poisson
from optimizer.arrivals.trace import Trace
from optimizer.simulation.size_or_timeout import simulate_size_or_timeout

MODELS = ("auto", "poisson", "mmpp2", "map:N")
GATE_BATCH_SIZES = (4, 8, 16)
GATE_FILL_QUANTILES = (0.3, 0.8)
GATE_ARRIVALS = 20_000
CLOSE = 1.1  # times the least error, and
CLOSE_IN_ALL = 0.001  # of the timeout more, are not told apart


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted process, how it was fitted, and its evidence; ``wait_error`` as the module defines it."""

    name: str
    arrivals: ArrivalProcess
    log_likelihood: float | None
    n_parameters: int
    wait_error: float
    note: str = ""

    def bic(self, n: int) -> float | None:
        """Bayesian information criterion on ``n`` gaps; ``None`` for a fit that is not by likelihood."""
        return None if self.log_likelihood is None else self.n_parameters * float(np.log(n)) - 2 * self.log_likelihood


def fit_arrivals(trace: Trace, model: str = "auto", rng: np.random.Generator | None = None) -> ArrivalDocument:
    """The arrival process of a trace.

    Parameters
    ----------
    model : str
        ``poisson``; ``mmpp2`` (by moments or by likelihood, whichever batches more like the trace); ``map:N``, a hidden Markov
        model of ``N`` states with Erlang gaps; ``auto``, the choice above among Poisson, MMPP(2) and ``map:3`` to ``map:5``.
    rng : numpy.random.Generator, optional
        Spreads stamps over the tick of the clock that quantised them; seeded with 0 by default.
    """
    gaps = trace.dithered(rng or np.random.default_rng(0))
    gate = _Gate(trace)
    candidates: list[Candidate] = []
    for candidate in _candidates(trace, gaps, model, gate):
        candidates.append(candidate)
        if model == "auto" and candidate.wait_error <= gate.noise:
            break
    best = _choose(candidates, len(gaps))
    goodness: dict[str, Any] = {"wait_error": best.wait_error}
    if best.log_likelihood is not None:
        goodness |= {"log_likelihood_per_gap": best.log_likelihood / len(gaps), "bic": best.bic(len(gaps))}
    if best.note:
        goodness["note"] = best.note
    goodness["tried"] = [{"fit": c.name, "wait_error": c.wait_error, "bic": c.bic(len(gaps))} for c in candidates]
    statistics = trace.statistics()
    fitted_from = {
        "source": trace.source,
        "n": len(trace),
        "duration": trace.duration,
        "scv": statistics.scv,
        "skewness": statistics.skewness,
        "fit": best.name,
    }
    return best.arrivals.document(fitted_from, goodness)


def _candidates(trace: Trace, gaps: Array, model: str, gate: _Gate) -> Iterator[Candidate]:
    """The candidates of a model's name, simplest first."""
    if model in ("auto", "poisson"):
        arrivals = fit_poisson(gaps)
        likelihood = -len(gaps) * (float(np.log(gaps.mean())) + 1)
        yield Candidate("poisson", arrivals, likelihood, 1, gate.error(arrivals))
    if model in ("auto", "mmpp2"):
        moments = fit_mmpp2_to_moments_of(trace)
        if moments.arrivals.model != "poisson" or model == "mmpp2":
            yield Candidate("mmpp2 by moments", moments.arrivals, None, 4, gate.error(moments.arrivals), moments.note)
        yield _of_likelihood("mmpp2 by likelihood", fit_mmpp2(gaps), gaps, gate)
    if model == "auto":
        sample = gaps[:GATE_ARRIVALS]
        for n_states in range(3, 6):
            yield _of_likelihood(f"map:{n_states}", fit_erlang_states(sample, n_states), gaps, gate)
    elif model.startswith("map:"):
        count = model.removeprefix("map:")
        if not count.isdigit() or not 1 <= int(count) <= 8:
            raise InvalidInput("model", model, "map:N with N from 1 to 8")
        yield _of_likelihood(model, fit_erlang_states(gaps, int(count)), gaps, gate)
    elif model not in ("poisson", "mmpp2"):
        raise InvalidInput("model", model, "one of " + ", ".join(MODELS))


def _of_likelihood(name: str, fit: HiddenMarkovFit, gaps: Array, gate: _Gate) -> Candidate:
    arrivals = fit.arrivals()
    # the rate decides how fast batches fill: make it that of the trace to the last digit
    arrivals = arrivals.sped_up(1 / float(gaps.mean()) / arrivals.arrival_rate)
    likelihood = fit.log_likelihood * len(gaps) / fit.n_gaps
    note = "" if fit.converged else f"EM stopped after {fit.iterations} iterations, gaining {fit.residual:.2g} per gap"
    shown = name if max(fit.orders) == 1 else f"{name}, Erlang orders {'+'.join(map(str, fit.orders))}"
    return Candidate(shown, arrivals, likelihood, fit.n_parameters, gate.error(arrivals), note)


def _choose(candidates: list[Candidate], n: int) -> Candidate:
    lowest = min(candidate.wait_error for candidate in candidates)
    close = [c for c in candidates if c.wait_error <= CLOSE * lowest + CLOSE_IN_ALL]
    fewest = min(c.n_parameters for c in close)
    simplest = [c for c in close if c.n_parameters == fewest]
    return min(simplest, key=lambda c: (c.wait_error if len(simplest) > 1 else 0.0, c.bic(n) or 0.0))


class _Gate:
    """Waits of batching the trace itself, on the grid."""

    def __init__(self, trace: Trace) -> None:
        times = trace.times[:GATE_ARRIVALS]
        self.noise = 1 / float(np.sqrt(len(times)))  # an error this small is the trace's own; no larger model is tried
        self._cases = []
        for batch_size in GATE_BATCH_SIZES:
            fill = times[batch_size - 1 :] - times[: len(times) - batch_size + 1]
            for timeout in np.quantile(fill, GATE_FILL_QUANTILES):
                if timeout > 0:
                    waits, _ = simulate_size_or_timeout(times, batch_size, float(timeout))
                    grid = np.linspace(0, timeout, 65)[:-1]
                    observed = np.searchsorted(np.sort(waits), grid, side="right") / len(waits)
                    self._cases.append((batch_size, float(timeout), grid, observed))

    def error(self, arrivals: ArrivalProcess) -> float:
        """Mean Wasserstein distance of predicted and observed waits, in timeouts."""
        errors = [
            np.abs(predict_waiting_time_cdf(arrivals, batch_size, timeout, grid) - observed).mean()
            for batch_size, timeout, grid, observed in self._cases
        ]
        return float(np.mean(errors)) if errors else 0.0
