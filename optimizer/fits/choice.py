"""The choice of an arrival process for a trace, by evidence (docs/model.md, section 1.4).

Likelihood ranks models well but does not say whether batching under the model is batching under the trace, which is the purpose. So
``auto`` goes in three steps.

1. Poisson, if its waits are those of the trace within chance (the gate's noise).
2. Otherwise MMPP(2) by moments and by likelihood, and hidden Markov models with Erlang gaps of 1, 2, ... states as long as the
   Bayesian information criterion (BIC) falls, or rose once only, three to a size. Of these the six of least BIC go on, but none
   that is another one over again. If none of them batches well, up to ten more go on, of up to eight states: where few long
   silences decide about the waits, likelihood sees them late.
3. All of them are put through the gate. Of those whose error is the least but for a little, and for chance, the one of fewest
   phases wins, as predictions pay for phases; of as many, the one of least BIC.

What is long is fitted in part: structures are searched on ``SEARCH_GAPS`` gaps, and all fits are finished on ``ALL_GAPS``;
where the trace has more, forty stretches of successive ones are taken, spread evenly over it. A stretch is long against a batch
and against the memory that batching can feel, and forty of them sample the drift of the load. So likelihoods and BIC of all
that reach the gate are of the same gaps. The gate takes the whole trace, and the rate of every candidate is that of the whole
trace. Everything that was tried stays in the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sluice.batching.documents import ArrivalDocument
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.em_fit import (
    Convergence,
    HiddenMarkovFit,
    fit_hidden_markov,
    fit_mmpp2,
    log_likelihood,
    shortest_stage,
    stretches,
)
from sluice.optimizer.fits.erlang_states import MAX_STATES, fit_erlang_states, search_erlang_states
from sluice.optimizer.fits.gate import Gate, WaitError
from sluice.optimizer.fits.moment_fit import fit_mmpp2_to_moments_of
from sluice.optimizer.traces.trace import Trace

MODELS = ("auto", "poisson", "mmpp2", "map:N")
SEARCH_GAPS = 12_000
ALL_GAPS = 100_000
SHORTLIST, LONGLIST = 6, 10
GOOD = 0.03  # error that is good enough not to look further
SAME = 10.0  # two fits with the same orders and no more between their BIC are one
GATE_BATCH_SIZES, GATE_MEAN_FILLS = (3, 6, 12), (2.0,)
GATE_FILL_QUANTILE = 0.5
REPORT_BATCH_SIZES, REPORT_MEAN_FILLS = (4, 8, 16), (0.5, 2.0)
LONGEST_TIMEOUT = 4000.0  # shortest stages: a prediction takes some tenths of a second
FAR = 0.05  # area beyond which the document warns
CLOSE = 1.05  # times the least error, and
CLOSE_IN_ALL = 0.0005  # more, and a quarter of what chance makes of an error, are not told apart


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted process, how it was fitted, and its evidence on ``n_gaps`` gaps; ``error`` is ``None`` before the gate or where
    it fails.
    """

    name: str
    arrivals: ArrivalProcess
    log_likelihood: float
    n_parameters: int
    n_gaps: int
    convergence: Convergence | None = None
    note: str = ""
    error: WaitError | None = None

    @property
    def bic(self) -> float:
        """Bayesian information criterion."""
        return self.n_parameters * float(np.log(self.n_gaps)) - 2 * self.log_likelihood

    def line(self) -> dict[str, Any]:
        """The candidate as the document tells of it."""
        line: dict[str, Any] = {
            "fit": self.name,
            "phases": self.arrivals.n_phases,
            "n_parameters": self.n_parameters,
            "log_likelihood": self.log_likelihood,
            "bic": self.bic,
            "wait_error": self.error.area if self.error else None,
            "wait_p95_error": self.error.p95 if self.error else None,
        }
        if self.convergence:
            line |= {
                "converged": self.convergence.converged,
                "iterations": self.convergence.iterations,
                "residual": self.convergence.residual,
            }
        if self.note:
            line["note"] = self.note
        return line


def fit_arrivals(trace: Trace, model: str = "auto", rng: np.random.Generator | None = None) -> ArrivalDocument:
    """The arrival process of a trace.

    Parameters
    ----------
    model : str
        ``poisson``; ``mmpp2`` (by moments or by likelihood, whichever batches more like the trace); ``map:N``, a hidden Markov
        model of ``N`` states with Erlang gaps; ``auto``, the choice above.
    rng : numpy.random.Generator, optional
        Spreads stamps over the tick of the clock that quantised them; seeded with 0 by default.

    Returns
    -------
    ArrivalDocument
        ``goodness`` holds ``wait_error`` and ``wait_p95_error`` (area and p95 of ``gate``, on a grid other than that of the
        choice), ``chosen``, ``why``, and a line for each candidate under ``tried``.

    Raises
    ------
    InvalidInput
        A model that there is not.
    """
    states = _states(model)
    gaps = _positive_gaps(trace, rng or np.random.default_rng(0))
    sample = stretches(gaps, ALL_GAPS)
    longest = LONGEST_TIMEOUT * shortest_stage(sample)
    gate = Gate(gaps, GATE_BATCH_SIZES, GATE_FILL_QUANTILE, GATE_MEAN_FILLS, longest)

    def through(candidate: Candidate) -> Candidate:
        return replace(candidate, error=gate.error(candidate.arrivals))

    tried: list[Candidate] = []
    if model in ("auto", "poisson"):
        tried.append(through(_poisson(sample, trace.arrival_rate)))
    if model == "mmpp2" or (model == "auto" and not _within_chance(tried[0], gate)):
        tried += [through(candidate) for candidate in _mmpp2s(trace, sample)]
    if states:
        tried.append(through(_erlang(fit_erlang_states(sample, states), trace.arrival_rate)))
    elif len(tried) > 1 and model == "auto":
        found = _searched(stretches(gaps, SEARCH_GAPS), 1, 2)
        left = _distinct(found)
        tried += [through(_finished(fit, sample, trace.arrival_rate)) for fit in left[:SHORTLIST]]
        left = left[SHORTLIST:]
        if min(_score(candidate.error) for candidate in tried) > GOOD:
            last = max(found, key=lambda fit: (len(fit.orders), fit.log_likelihood))
            left = _distinct(left + _searched(stretches(gaps, SEARCH_GAPS), len(last.orders) + 1, MAX_STATES, last))
            tried += [through(_finished(fit, sample, trace.arrival_rate)) for fit in left[:LONGLIST]]
            left = left[LONGLIST:]
        tried += [_erlang(fit, trace.arrival_rate) for fit in left]
    best, why = _choose(tried, gate.noise)
    reported = Gate(gaps, REPORT_BATCH_SIZES, None, REPORT_MEAN_FILLS, longest)
    return best.arrivals.document(_origin(trace, best, len(sample)), _goodness(best, why, tried, reported))


def _states(model: str) -> int | None:
    """The number of states of ``map:N``; ``None`` for the other models."""
    if not model.startswith("map:"):
        if model not in MODELS:
            raise InvalidInput("model", model, "one of " + ", ".join(MODELS))
        return None
    count = model.removeprefix("map:")
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_STATES):
        raise InvalidInput("model", model, f"map:N with N from 1 to {MAX_STATES}")
    return int(count)


def _positive_gaps(trace: Trace, rng: np.random.Generator) -> Array:
    """Gaps > 0. A trace that ticks itself, no two arrivals at once and none much sooner than the mean gap, is no clock's grid."""
    gaps = trace.interarrivals
    return gaps if 5 * float(gaps.min()) > float(gaps.mean()) else trace.dithered(rng)


def _poisson(gaps: Array, rate: float) -> Candidate:
    return Candidate("poisson", poisson(rate), -len(gaps) * (float(np.log(gaps.mean())) + 1), 1, len(gaps))


def _mmpp2s(trace: Trace, gaps: Array) -> Iterator[Candidate]:
    moments = fit_mmpp2_to_moments_of(trace)
    if moments.hidden is not None:
        likelihood = log_likelihood(gaps, (1, 1), *moments.hidden)
        yield Candidate("mmpp2 by moments", moments.arrivals, likelihood, 4, len(gaps), None, moments.note)
    yield _erlang(fit_mmpp2(gaps), trace.arrival_rate, "mmpp2 by likelihood")


def _searched(gaps: Array, first: int, patience: int, smaller: HiddenMarkovFit | None = None) -> list[HiddenMarkovFit]:
    """Models of ``first``, ``first + 1``, ... states until BIC has risen ``patience`` times in a row."""
    found: list[HiddenMarkovFit] = []
    lowest, rises = np.inf, 0
    for n_states in range(first, MAX_STATES + 1):
        fits = search_erlang_states(gaps, n_states, smaller=smaller)
        smaller = fits[0]
        found += fits
        rises = rises + 1 if fits[0].bic > lowest else 0
        lowest = min(lowest, fits[0].bic)
        if rises == patience:
            break
    return found


def _distinct(found: list[HiddenMarkovFit]) -> list[HiddenMarkovFit]:
    """The least BIC first, each but once, without Poisson and MMPP(2), which stand for themselves."""
    kept: list[HiddenMarkovFit] = []
    for fit in sorted(found, key=lambda fit: fit.bic):
        markovian = max(fit.orders) == 1 and len(fit.orders) <= 2
        known = any(sorted(fit.orders) == sorted(other.orders) and fit.bic - other.bic < SAME for other in kept)
        if not (markovian or known):
            kept.append(fit)
    return kept


def _finished(fit: HiddenMarkovFit, gaps: Array, rate: float) -> Candidate:
    """The fit carried on with all the gaps."""
    return _erlang(fit_hidden_markov(gaps, fit.orders, fit.means, fit.transitions, 10, 2.0), rate)


def _erlang(fit: HiddenMarkovFit, rate: float, name: str | None = None) -> Candidate:
    arrivals = fit.arrivals()
    # the rate decides how fast batches fill: make it that of the trace to the last digit
    arrivals = arrivals.sped_up(rate / arrivals.arrival_rate)
    ended = fit.convergence
    note = "" if ended.converged else f"EM stopped after {ended.iterations} iterations with {ended.residual:.2g} nats left to gain"
    name = name or f"map:{len(fit.orders)}, Erlang orders {'+'.join(map(str, fit.orders))}"
    return Candidate(name, arrivals, fit.log_likelihood, fit.n_parameters, fit.n_gaps, ended, note)


def _score(error: WaitError | None) -> float:
    return np.inf if error is None else error.score


def _within_chance(candidate: Candidate, gate: Gate) -> bool:
    return _score(candidate.error) <= gate.noise


def _choose(tried: list[Candidate], noise: float) -> tuple[Candidate, str]:
    """The candidate that wins, and why."""
    passed = [(c, c.error.score) for c in tried if c.error is not None]
    if not passed:
        best = min(tried, key=lambda c: c.bic)
        return best, "the waits of no candidate could be predicted; it has the least BIC"
    if len(tried) == 1:
        return tried[0], "its waits are those of the trace within chance" if passed[0][1] <= noise else "the only candidate"
    least = min(score for _, score in passed)
    close = [(c, score) for c, score in passed if score <= CLOSE * least + CLOSE_IN_ALL + noise / 4]
    best, score = min(close, key=lambda pair: (pair[0].arrivals.n_phases, pair[0].bic))
    if score == least:
        return best, f"its waits are nearest to the trace's: error {score:.4f} (area and p95)"
    return best, f"fewest phases among {len(close)} whose waits are about as near: error {score:.4f}, least {least:.4f}"


def _origin(trace: Trace, best: Candidate, n_used: int) -> dict[str, Any]:
    statistics = trace.statistics()
    return {
        "source": trace.source,
        "n": len(trace),
        "duration": trace.duration,
        "scv": statistics.scv,
        "skewness": statistics.skewness,
        "fit": best.name,
        "gaps_used": n_used,
    }


def _goodness(best: Candidate, why: str, tried: list[Candidate], reported: Gate) -> dict[str, Any]:
    error = reported.error(best.arrivals)
    goodness: dict[str, Any] = {
        "wait_error": error.area if error else None,
        "wait_p95_error": error.p95 if error else None,
        "wait_p95_worst": error.worst_p95 if error else None,
        "wait_grid": reported.grid,
        "log_likelihood_per_gap": best.log_likelihood / best.n_gaps,
        "bic": best.bic,
        "chosen": best.name,
        "why": why,
    }
    notes = [best.note] if best.note else []
    if error and error.area > FAR:
        notes.append(f"no candidate batches like the trace: its waits are off by {100 * error.area:.2g} % of the timeout")
    if notes:
        goodness["note"] = "; ".join(notes)
    return goodness | {"tried": [candidate.line() for candidate in tried]}
