"""What a fit finds: the arrival process of a trace, what it was chosen from, and how far it batches from the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fits.gate import WaitError
from sluice.optimizer.fits.hidden_markov import HiddenMarkovFit
from sluice.optimizer.fits.squarem import Convergence
from sluice.optimizer.traces.trace import Trace

FAR = 0.05  # area beyond which a fit is noted not to batch like its trace


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted process, how it was fitted, and its evidence on ``n_gaps`` gaps; ``error`` is ``None`` before the gate or where
    it fails. ``hidden`` is the same law as a hidden Markov model, at the rate of its gaps.
    """

    name: str
    arrivals: ArrivalProcess
    log_likelihood: float
    n_parameters: int
    n_gaps: int
    convergence: Convergence | None = None
    note: str = ""
    error: WaitError | None = None
    hidden: HiddenMarkovFit | None = None

    @property
    def bic(self) -> float:
        """Bayesian information criterion."""
        return self.n_parameters * float(np.log(self.n_gaps)) - 2 * self.log_likelihood

    @property
    def score(self) -> float:
        """The error that candidates are compared by; infinite where there is none."""
        return np.inf if self.error is None else self.error.score


@dataclass(frozen=True, eq=False)
class ArrivalFit:
    """The arrival process fitted to a trace, and the evidence for it.

    Parameters
    ----------
    trace : Trace
    model : str
        What was asked for, as ``fit_arrivals`` names it.
    best : Candidate
        The one chosen, with its convergence.
    why : str
        Why it was chosen, in a sentence.
    tried : tuple of Candidate
        All there were, ``best`` among them.
    error : WaitError or None
        How far the waits that ``best`` predicts are from the trace's, on ``wait_grid``; ``None`` where they cannot be predicted.
    wait_grid : tuple of (int, float)
        Batch sizes and timeouts (s), other than those of the choice.
    n_gaps : int
        Gaps that the fits were finished on; all of them, unless the trace is long.
    without : tuple of ArrivalProcess
        ``best`` as it would be without each of the blocks of the trace: how surely it is known.
    """

    trace: Trace
    model: str
    best: Candidate
    why: str
    tried: tuple[Candidate, ...]
    error: WaitError | None
    wait_grid: tuple[tuple[int, float], ...]
    n_gaps: int
    without: tuple[ArrivalProcess, ...] = ()

    @property
    def arrivals(self) -> ArrivalProcess:
        """The process itself."""
        return self.best.arrivals

    @property
    def note(self) -> str:
        """What is to be known of the fit beside its evidence; empty where there is nothing."""
        notes = [self.best.note] if self.best.note else []
        if self.error and self.error.area > FAR:
            notes.append(f"no candidate batches like the trace: its waits are off by {100 * self.error.area:.2g} % of the timeout")
        return "; ".join(notes)
