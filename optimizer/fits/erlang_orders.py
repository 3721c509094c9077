"""Structured MAP(n): hidden states with Erlang gaps, their orders found by search (docs/model.md, section 1.3).

The orders are integers, so the likelihood has no slope in them. Search: a gamma law is an Erlang law of any real shape >= 1,
and EM finds shapes as it finds means; the shapes reached are rounded, within ``max_phases`` in all, and EM goes on with these.
Several starts: means spread over the range of log(gap); spells of busy and quiet times; a smaller model found before, with each
of its states in turn split into two. They are compared on at most ``FIRST_LOOK`` gaps, the best two are carried on and rounded,
and the better of them goes on with all the gaps.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.fits.gaps import checked_gaps, stretches
from sluice.optimizer.fits.hidden_markov import HiddenMarkovFit, fit_hidden_markov
from sluice.optimizer.fits.squarem import GammaStates, climb
from sluice.optimizer.fits.starting_points import FIRST_LOOK, spells, spread_means, sticky

MAX_STATES = 8
_COST = 96  # states times phases: predictions cost about as much
_FEWEST, _MOST = 16, 64  # phases that are allowed whatever the states
_COMPARED = 3000  # gaps that starts are compared on
_CARRIED_ON = 2  # starts that are carried on


def fit_erlang_orders(
    interarrivals: Array, n_states: int, max_phases: int | None = None, smaller: HiddenMarkovFit | None = None
) -> HiddenMarkovFit:
    """Hidden Markov model of ``n_states`` with Erlang gaps, means, transitions and orders by likelihood.

    Parameters
    ----------
    interarrivals : array, shape (n,)
        Seconds, > 0 (``Trace.dithered``).
    n_states : int
        1 to 8.
    max_phases : int, optional
        Bound on the sum of the orders, at least ``n_states``; by default 96 over the number of states (the cost of a
        prediction grows with states times phases), but 16 to 64.
    smaller : HiddenMarkovFit, optional
        A fit with one state less to the same gaps, to start from as well.

    Raises
    ------
    InvalidInput
        A number of states or phases out of bounds, a gap that is not > 0.
    """
    gaps = checked_gaps(interarrivals)
    sample = stretches(gaps, FIRST_LOOK)
    best = search_erlang_orders(sample, n_states, max_phases, smaller)[0]
    return best if sample is gaps else fit_hidden_markov(gaps, best.orders, best.means, best.transitions, 60, 0.1)


def search_erlang_orders(
    gaps: Array, n_states: int, max_phases: int | None = None, smaller: HiddenMarkovFit | None = None
) -> list[HiddenMarkovFit]:
    """What the search ends with, of greatest likelihood first: two fits by likelihood, and one that has two states for the
    longest gaps.

    The longest gaps are few, so that likelihood spends its states elsewhere; but they decide about the longest waits. Parameters as
    above; all the gaps are used.
    """
    if not 1 <= n_states <= MAX_STATES:
        raise InvalidInput("n_states", n_states, f"an integer from 1 to {MAX_STATES}")
    if max_phases is None:
        max_phases = min(_MOST, max(_FEWEST, _COST // n_states))
    if max_phases < n_states:
        raise InvalidInput("max_phases", max_phases, f"at least the number of states ({n_states})")
    some = stretches(gaps, _COMPARED, 10)
    found = [climb(some, start, 16, 2.0, free_shapes=True) for start in _starts(gaps, n_states, smaller)]
    ranked = sorted(range(len(found)), key=lambda k: -found[k][1].value)
    fits = []
    for k in ranked[:_CARRIED_ON] + [k for k in ranked[_CARRIED_ON:] if k == 0 and n_states > 1]:
        point, _ = climb(gaps, found[k][0], 40, 0.5, free_shapes=True)
        orders = rounded_orders(point.shapes, max_phases)
        fits.append(fit_hidden_markov(gaps, orders, point.means, point.transitions, 40, 0.1))
    return sorted(fits, key=lambda fit: -fit.log_likelihood)


def rounded_orders(shapes: Array, max_phases: int) -> tuple[int, ...]:
    """Integers >= 1 nearest to ``shapes`` in ratio, the largest brought down until their sum is at most ``max_phases``."""
    low = np.floor(shapes)
    orders = np.maximum(1, np.where(shapes > np.sqrt(low * (low + 1)), low + 1, low)).astype(int)
    while orders.sum() > max_phases:
        orders[np.argmax(orders)] -= 1
    return tuple(int(order) for order in orders)


def _starts(gaps: Array, n_states: int, smaller: HiddenMarkovFit | None) -> list[GammaStates]:
    """Points to start from; the first has several states for the longest gaps."""
    ones = np.ones(n_states)
    starts = [GammaStates(ones, spread_means(gaps, n_states, 4 / len(gaps)), sticky(n_states, 0.5))]
    if smaller is not None and len(smaller.orders) == n_states - 1:
        starts.insert(0, _split(smaller, int(np.argmax(smaller.means)), 0.1, 2.0))
    if n_states > 1:
        spread = spread_means(gaps, n_states)
        starts += [
            GammaStates(ones, spread, sticky(n_states, 0.7)),
            GammaStates(2 * ones, spread, np.full((n_states, n_states), 1 / n_states)),
            spells(gaps, n_states),
        ]
    if smaller is not None and len(smaller.orders) == n_states - 1:
        starts += [_split(smaller, state) for state in range(n_states - 1)]
    return starts


def _split(fit: HiddenMarkovFit, state: int, shorter: float = 0.6, longer: float = 1.5) -> GammaStates:
    """The fit with one of its states doubled, the means of the twins ``shorter`` and ``longer`` times its own."""
    index = np.append(np.arange(len(fit.orders)), state)
    means = fit.means[index]
    means[state] *= shorter
    means[-1] *= longer
    transitions = fit.transitions[np.ix_(index, index)]
    transitions[:, [state, -1]] /= 2
    transitions[[state, -1], [state, -1]] *= 1.5
    return GammaStates(np.array(fit.orders, dtype=float)[index], means, transitions / transitions.sum(axis=1, keepdims=True))
