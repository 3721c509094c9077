"""Which process a trace is from: the fits, and the choice between them (docs/model.md, sections 1.3 and 1.4).

``fit_arrivals`` answers with an ``ArrivalFit``; ``arrival_document`` is what it is to others. Below it stand the methods, each with
an answer of its own: by moments, by likelihood, and the search for the orders of Erlang gaps.
"""

from __future__ import annotations

from sluice.optimizer.fits.arrival_fit import ArrivalFit, Candidate
from sluice.optimizer.fits.choice import MODELS, fit_arrivals, require_model
from sluice.optimizer.fits.document import arrival_document
from sluice.optimizer.fits.erlang_orders import fit_erlang_orders
from sluice.optimizer.fits.gate import Gate, WaitError
from sluice.optimizer.fits.hidden_markov import HiddenMarkovFit, fit_hidden_markov, fit_mmpp2
from sluice.optimizer.fits.mmpp2_moments import MomentFit, fit_mmpp2_moments
from sluice.optimizer.fits.squarem import Convergence
from sluice.optimizer.fits.windows import WindowFit, fit_windows

__all__ = [
    "MODELS",
    "ArrivalFit",
    "Candidate",
    "Convergence",
    "Gate",
    "HiddenMarkovFit",
    "MomentFit",
    "WaitError",
    "WindowFit",
    "arrival_document",
    "fit_arrivals",
    "fit_erlang_orders",
    "fit_hidden_markov",
    "fit_mmpp2",
    "fit_mmpp2_moments",
    "fit_windows",
    "require_model",
]
