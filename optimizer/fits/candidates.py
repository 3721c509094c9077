"""The candidates for a trace's arrival process: what each method fits, with its likelihood on the same gaps (docs/model.md, 1.3).

The rate decides how fast batches fill: every candidate's is made that of the trace to the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.arrival_fit import Candidate
from sluice.optimizer.fits.erlang_orders import MAX_STATES, search_erlang_orders
from sluice.optimizer.fits.hidden_markov import HiddenMarkovFit, fit_hidden_markov, fit_mmpp2, log_likelihood
from sluice.optimizer.fits.mmpp2_moments import fit_mmpp2_to_moments_of
from sluice.optimizer.fits.squarem import Convergence
from sluice.optimizer.traces.trace import Trace

SAME = 10.0  # two fits with the same orders and no more between their BIC are one


def poisson_candidate(gaps: Array, rate: float) -> Candidate:
    """The Poisson process of ``rate`` requests/s, its likelihood that of ``gaps`` (s) at their own mean."""
    mean = float(gaps.mean())
    likelihood = -len(gaps) * (float(np.log(mean)) + 1)
    hidden = _known((1,), np.array([mean]), np.ones((1, 1)), likelihood, len(gaps))
    return Candidate("poisson", poisson(rate), likelihood, 1, len(gaps), hidden=hidden)


def mmpp2_by_moments(trace: Trace, gaps: Array) -> list[Candidate]:
    """The MMPP(2) by moments of the trace, where these ask for one, its likelihood that of ``gaps`` (s)."""
    moments = fit_mmpp2_to_moments_of(trace)
    if moments.hidden is None:
        return []
    likelihood = log_likelihood(gaps, (1, 1), *moments.hidden)
    hidden = _known((1, 1), *moments.hidden, likelihood, len(gaps))
    return [Candidate("mmpp2 by moments", moments.arrivals, likelihood, 4, len(gaps), None, moments.note, None, hidden)]


def _known(orders: tuple[int, ...], means: Array, transitions: Array, likelihood: float, n_gaps: int) -> HiddenMarkovFit:
    """A law that no ascent was needed for."""
    return HiddenMarkovFit(orders, means, transitions, n_gaps, Convergence(likelihood, True, 0, 0.0))


def mmpp2_by_likelihood(gaps: Array, rate: float) -> Candidate:
    """The MMPP(2) by likelihood of ``gaps`` (s)."""
    return hidden_markov_candidate(fit_mmpp2(gaps), rate, "mmpp2 by likelihood")


def hidden_markov_candidate(fit: HiddenMarkovFit, rate: float, name: str | None = None) -> Candidate:
    """A hidden Markov model as a process of ``rate`` requests/s."""
    arrivals = fit.arrivals()
    arrivals = arrivals.sped_up(rate / arrivals.arrival_rate)
    ended = fit.convergence
    note = "" if ended.converged else f"EM stopped after {ended.iterations} iterations with {ended.residual:.2g} nats left to gain"
    name = name or f"map:{len(fit.orders)}, Erlang orders {'+'.join(map(str, fit.orders))}"
    return Candidate(name, arrivals, fit.log_likelihood, fit.n_parameters, fit.n_gaps, ended, note, None, fit)


def finished_candidate(candidate: Candidate, gaps: Array, rate: float) -> Candidate:
    """A hidden Markov model that was fitted to some of the gaps carried on with ``gaps`` (s)."""
    fit = candidate.hidden
    assert fit is not None  # as all that are searched for
    on = fit_hidden_markov(gaps, fit.orders, fit.means, fit.transitions, 10, 2.0)
    return hidden_markov_candidate(on, rate, candidate.name)


def search_structures(gaps: Array, first: int, patience: int, smaller: HiddenMarkovFit | None = None) -> list[HiddenMarkovFit]:
    """Models of ``first``, ``first + 1``, ... states until BIC has risen ``patience`` times in a row."""
    found: list[HiddenMarkovFit] = []
    lowest, rises = np.inf, 0
    for n_states in range(first, MAX_STATES + 1):
        fits = search_erlang_orders(gaps, n_states, smaller=smaller)
        smaller = fits[0]
        found += fits
        rises = rises + 1 if fits[0].bic > lowest else 0
        lowest = min(lowest, fits[0].bic)
        if rises == patience:
            break
    return found


def distinct(found: Sequence[HiddenMarkovFit]) -> list[HiddenMarkovFit]:
    """The least BIC first, each but once, without Poisson and MMPP(2), which stand for themselves."""
    kept: list[HiddenMarkovFit] = []
    for fit in sorted(found, key=lambda fit: fit.bic):
        markovian = max(fit.orders) == 1 and len(fit.orders) <= 2
        known = any(sorted(fit.orders) == sorted(other.orders) and fit.bic - other.bic < SAME for other in kept)
        if not (markovian or known):
            kept.append(fit)
    return kept
