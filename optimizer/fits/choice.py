"""The choice of an arrival process for a trace, by evidence (docs/model.md, section 1.4).

Likelihood ranks models well but does not say whether batching under the model is batching under the trace, which is the purpose. So
``auto`` goes in three steps.

1. Poisson, if its waits are those of the trace within chance (the gate's noise) and the counts in windows of every length vary as
   Poisson counts do (``poisson_p_value``): a slow swing of the rate is not felt within a batch, but by what serves it.
2. Otherwise MMPP(2) by moments and by likelihood, and hidden Markov models with Erlang gaps of 1, 2, ... states as long as the
   Bayesian information criterion (BIC) falls, or rose once only, three to a size. Of these the six of least BIC go on, but none
   that is another one over again. If none of them batches well, up to six more go on, of up to eight states: where few long
   silences decide about the waits, likelihood sees them late. All of them are put through the gate.
3. The three of the least error are finished, and the simple ones stay beside them. Of those whose error is the least but for a
   little the one of fewest phases wins, as predictions pay for phases; of as many, the one of least BIC. A larger error that is
   within chance is told apart by BIC: fewer phases do not win against decisive evidence.

What is long is fitted in part: structures are searched on ``SEARCH_GAPS`` gaps, and finished on ``ALL_GAPS``;
where the trace has more, forty stretches of successive ones are taken, spread evenly over it. A stretch is long against a batch
and against the memory that batching can feel, and forty of them sample the drift of the load. So likelihoods and BIC of all
that are chosen from are of the same gaps. The gate takes the whole trace, and the rate of every candidate is that of the whole
trace. Everything that was put through the gate stays in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.fits.arrival_fit import ArrivalFit, Candidate
from sluice.optimizer.fits.blocks import without_each_block
from sluice.optimizer.fits.candidates import (
    distinct,
    finished_candidate,
    hidden_markov_candidate,
    mmpp2_by_likelihood,
    mmpp2_by_moments,
    poisson_candidate,
    search_structures,
)
from sluice.optimizer.fits.erlang_orders import MAX_STATES, fit_erlang_orders
from sluice.optimizer.fits.gaps import positive_gaps, shortest_stage, stretches
from sluice.optimizer.fits.gate import Gate
from sluice.optimizer.traces.poisson_counts import poisson_p_value
from sluice.optimizer.traces.trace import Trace

MODELS = ("auto", "poisson", "mmpp2", "map:N")
SEARCH_GAPS = 12_000
ALL_GAPS = 100_000
SHORTLIST, LONGLIST = 6, 6
FINALISTS = 3
UNLIKELY = 1e-3  # p-value of counts that are not Poisson's
DECISIVE = 10.0  # of BIC: evidence that is no matter of chance
GOOD = 0.02  # error that is good enough not to look further
GATE_BATCH_SIZES, GATE_MEAN_FILLS = (3, 6, 12), (2.0,)
GATE_FILL_QUANTILE = 0.5
REPORT_BATCH_SIZES, REPORT_MEAN_FILLS = (4, 8, 16), (0.5, 2.0)
LONGEST_TIMEOUT = 4000.0  # shortest stages: a prediction takes some tenths of a second
CLOSE = 1.05  # times the least error, and
CLOSE_IN_ALL = 0.0005  # more are not told apart; nor, but by BIC, is a quarter of what chance makes of an error

Judge = Callable[[Iterable[Candidate]], list[Candidate]]


def fit_arrivals(trace: Trace, model: str = "auto", rng: np.random.Generator | None = None) -> ArrivalFit:
    """The arrival process of a trace.

    Parameters
    ----------
    model : str
        ``poisson``; ``mmpp2`` (by moments or by likelihood, whichever batches more like the trace); ``map:N``, a hidden Markov
        model of ``N`` states with Erlang gaps; ``auto``, the choice above.
    rng : numpy.random.Generator, optional
        Spreads stamps over the tick of the clock that quantised them; seeded with 0 by default.

    Raises
    ------
    InvalidInput
        A model that there is not.
    """
    states = _states(model)
    gaps = positive_gaps(trace, rng or np.random.default_rng(0))
    sample = stretches(gaps, ALL_GAPS)
    longest = LONGEST_TIMEOUT * shortest_stage(sample)
    gate = Gate(gaps, GATE_BATCH_SIZES, GATE_FILL_QUANTILE, GATE_MEAN_FILLS, longest)

    def judged(candidates: Iterable[Candidate]) -> list[Candidate]:
        return [replace(candidate, error=gate.error(candidate.arrivals)) for candidate in candidates]

    if states:
        tried = judged([hidden_markov_candidate(fit_erlang_orders(sample, states), trace.arrival_rate)])
    elif model == "mmpp2":
        tried = judged([*mmpp2_by_moments(trace, sample), mmpp2_by_likelihood(sample, trace.arrival_rate)])
    else:
        tried = judged([poisson_candidate(sample, trace.arrival_rate)])
    left_out: list[Candidate] = []
    if model == "auto" and not (tried[0].score <= gate.noise and poisson_p_value(trace) >= UNLIKELY):
        left_out = tried
        tried, others = _contest(trace, gaps, sample, judged, gate.noise)
        left_out += others
    best, why = choose(tried, gate.noise)
    reported = Gate(gaps, REPORT_BATCH_SIZES, None, REPORT_MEAN_FILLS, longest)
    error = reported.error(best.arrivals)
    without = () if best.hidden is None else without_each_block(best.hidden, gaps, trace.arrival_rate)
    return ArrivalFit(trace, model, best, why, (*left_out, *tried), error, tuple(reported.grid), len(sample), without)


def require_model(model: str) -> None:
    """Raise ``InvalidInput`` unless it is a model that ``fit_arrivals`` has."""
    _states(model)


def choose(tried: Sequence[Candidate], noise: float) -> tuple[Candidate, str]:
    """The candidate that wins, and why; ``noise`` is the score that chance makes (``Gate.noise``)."""
    passed = [candidate for candidate in tried if candidate.error is not None]
    if not passed:
        most = max(candidate.n_gaps for candidate in tried)  # a BIC is of its gaps: only those of as many compare
        best = min((candidate for candidate in tried if candidate.n_gaps == most), key=lambda c: c.bic)
        return best, "the waits of no candidate could be predicted; it has the least BIC"
    if len(tried) == 1:
        return tried[0], "its waits are those of the trace within chance" if tried[0].score <= noise else "the only candidate"
    nearest = min(passed, key=lambda candidate: candidate.score)
    same = CLOSE * nearest.score + CLOSE_IN_ALL
    close = [
        candidate
        for candidate in passed
        if candidate.score <= same or (candidate.score <= same + noise / 4 and candidate.bic < nearest.bic + DECISIVE)
    ]
    best = min(close, key=lambda candidate: (candidate.arrivals.n_phases, candidate.bic))
    if best.score == nearest.score:
        return best, f"its waits are nearest to the trace's: error {best.score:.4f} (area and p95)"
    return (
        best,
        f"fewest phases among {len(close)} whose waits are about as near: error {best.score:.4f}, least {nearest.score:.4f}",
    )


def _contest(trace: Trace, gaps: Array, sample: Array, judged: Judge, noise: float) -> tuple[list[Candidate], list[Candidate]]:
    """Steps 2 and 3: what is chosen from, finished with the gaps of ``sample``, and what was left on the way."""
    rate, some = trace.arrival_rate, stretches(gaps, SEARCH_GAPS)
    searched = judged([mmpp2_by_likelihood(some, rate)])
    searched += _structures(some, rate, judged, searched[0].score)
    passed = [candidate for candidate in searched if candidate.error is not None] or searched
    last = [searched[0], choose(passed, noise)[0], *sorted(passed, key=lambda candidate: candidate.score)[:FINALISTS]]
    finished = judged(finished_candidate(candidate, sample, rate) for candidate in passed if candidate in last)
    others = [candidate for candidate in searched if candidate not in last]
    finished += judged(mmpp2_by_moments(trace, sample))
    return (finished, others) if len(some) < len(sample) else (finished + others, [])


def _structures(some: Array, rate: float, judged: Judge, least: float) -> list[Candidate]:
    """The hidden Markov models of step 2; ``least`` is the least error of the candidates before them."""
    found = search_structures(some, 1, 2)
    left = distinct(found)
    tried = judged(hidden_markov_candidate(fit, rate) for fit in left[:SHORTLIST])
    left = left[SHORTLIST:]
    if min([least, *(candidate.score for candidate in tried)]) > GOOD:
        last = max(found, key=lambda fit: (len(fit.orders), fit.log_likelihood))
        left = distinct(left + search_structures(some, len(last.orders) + 1, MAX_STATES, last))
        tried += judged(hidden_markov_candidate(fit, rate) for fit in left[:LONGLIST])
        left = left[LONGLIST:]
    return tried + [hidden_markov_candidate(fit, rate) for fit in left]


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
