"""Hidden Markov model with Erlang gaps, fitted by likelihood (docs/model.md, section 1.3).

Each gap is an Erlang law's that depends on a hidden state, and the states are a Markov chain from gap to gap. Expanded into its
stages the model is a MAP; orders of one make ``D0`` diagonal, and of two such states an MMPP(2), where one exists.

References: Okamura, Dohi, Trivedi (2009) on EM for MAPs; Horváth and Okamura, A fast EM algorithm for fitting marked Markovian
arrival processes with a new special structure (2013), whose structure (ErCHMM) this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2_of_hidden_markov
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.forward_backward import expect
from sluice.optimizer.fits.gaps import checked_gaps, stretches
from sluice.optimizer.fits.squarem import RAREST, Convergence, GammaStates, climb
from sluice.optimizer.fits.starting_points import FIRST_LOOK, spells, spread_means, sticky


@dataclass(frozen=True)
class HiddenMarkovFit:
    """A hidden Markov model with Erlang gaps, and how its fit to ``n_gaps`` gaps ended (likelihood on the circle, gaps in s)."""

    orders: tuple[int, ...]
    means: Array
    transitions: Array
    n_gaps: int
    convergence: Convergence

    @property
    def log_likelihood(self) -> float:
        """Nats."""
        return self.convergence.value

    @property
    def n_parameters(self) -> int:
        """Free parameters: a mean per state, the transition rows and the integer orders above one."""
        n = len(self.orders)
        return n + n * (n - 1) + sum(order > 1 for order in self.orders)

    @property
    def bic(self) -> float:
        """Bayesian information criterion."""
        return self.n_parameters * float(np.log(self.n_gaps)) - 2 * self.log_likelihood

    def arrivals(self) -> ArrivalProcess:
        """The same law as a MAP of ``sum(orders)`` phases, or as an MMPP(2) where there is one."""
        if self.orders == (1,):
            return poisson(1 / float(self.means[0]))
        rates = np.array(self.orders) / self.means
        modulated = mmpp2_of_hidden_markov(rates, self.transitions) if self.orders == (1, 1) else None
        return modulated or _stages_as_phases(self.orders, rates, self.transitions)


def _stages_as_phases(orders: Sequence[int], rates: Array, transitions: Array) -> ArrivalProcess:
    """The MAP whose phases are the stages of each state in turn; the last stage of a gap ends with an arrival."""
    size = sum(orders)
    starts = np.concatenate([[0], np.cumsum(orders)[:-1]])
    D0, D1 = np.zeros((size, size)), np.zeros((size, size))
    for i, (start, order) in enumerate(zip(starts, orders, strict=True)):
        stages = np.arange(start, start + order)
        D0[stages, stages] = -rates[i]
        D0[stages[:-1], stages[1:]] = rates[i]
        D1[start + order - 1, starts] = rates[i] * transitions[i]
    return ArrivalProcess(D0, D1, "map")


def fit_hidden_markov(
    interarrivals: Array,
    orders: Sequence[int],
    means: Array | None = None,
    transitions: Array | None = None,
    max_iterations: int = 600,
    tolerance: float = 1e-3,
) -> HiddenMarkovFit:
    """Hidden Markov model with Erlang gaps of (locally) greatest likelihood.

    Parameters
    ----------
    interarrivals : array, shape (n,)
        Seconds, > 0 (``Trace.dithered``).
    orders : sequence of int
        Stages of the Erlang law of each state.
    means, transitions : array, shape (n_states,) and (n_states, n_states), optional
        Where to start; by default the sorted gaps are cut into ``n_states`` groups that hold equal shares of their logarithm's
        range, and states are sticky.
    max_iterations : int
        Times the gaps may be gone through.
    tolerance : float
        Nats left to gain, in all, at which to stop.

    Raises
    ------
    InvalidInput
        A gap that is not > 0, or an order below one.
    """
    gaps = checked_gaps(interarrivals)
    if not len(orders) or min(orders) < 1:
        raise InvalidInput("orders", tuple(orders), "integers >= 1, one per state")
    n_states = len(orders)
    if means is None:
        means = spread_means(gaps, n_states)
    if transitions is None:
        transitions = np.full((n_states, n_states), 0.3 / n_states) + 0.7 * np.eye(n_states)
    start = GammaStates(np.asarray(orders, dtype=float), np.asarray(means, dtype=float), np.asarray(transitions, dtype=float))
    found, convergence = climb(gaps, start, max_iterations, tolerance)
    return HiddenMarkovFit(tuple(int(r) for r in orders), found.means, found.transitions, len(gaps), convergence)


def fit_mmpp2(interarrivals: Array) -> HiddenMarkovFit:
    """MMPP(2) of greatest likelihood; a MAP(2) where its gaps alternate and no MMPP(2) has that law.

    Starts differ in how far the states are apart and how long they last, one looks for long spells; they are compared on at most
    10 000 gaps, in stretches spread over the trace, and the best is carried on with all.
    """
    gaps = checked_gaps(interarrivals)
    sample = stretches(gaps, FIRST_LOOK)
    one = np.ones(2)
    starts = [
        GammaStates(one, spread_means(sample, 2), sticky(2, 0.6)),
        GammaStates(one, float(sample.mean()) * np.array([0.5, 2.0]), sticky(2, 0.98)),
        spells(sample, 2),
    ]
    found = [climb(sample, start, 30, 0.1) for start in starts]
    best = max(found, key=lambda pair: pair[1].value)[0]
    return fit_hidden_markov(gaps, (1, 1), best.means, best.transitions)


def log_likelihood(interarrivals: Array, orders: Sequence[int], means: Array, transitions: Array) -> float:
    """Nats of a hidden Markov model with Erlang gaps, on the circle."""
    gaps = checked_gaps(interarrivals)
    return expect(gaps, np.log(gaps), np.asarray(orders, dtype=float), means, np.maximum(transitions, RAREST)).log_likelihood
