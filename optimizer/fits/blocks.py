"""How surely a process is known: what the fit would be without each block of the trace in turn (docs/model.md, section 1.5).

The trace is cut into ``BLOCKS`` stretches of as many gaps. Without block ``k`` the process is the fit after one step of
expectation-maximization on the others, from where the fit ended: mean gap per state and transitions change by the ratio of that
step's to the same step's on all blocks, so that a fit that was not finished, or was made by moments, is moved only by what differs
between the blocks; and the rate is that of the other gaps. Whatever is computed from the process, computed for each of these, has
the variance ``(K - 1) / K sum (x_k - mean)^2`` (the block jackknife of Künsch, Annals of Statistics 17, 1989): blocks that are long
against the memory of the arrivals are nearly independent, and what drifts from block to block counts as well.
"""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fits.forward_backward import ExpectedStatistics, expect
from sluice.optimizer.fits.gaps import stretches
from sluice.optimizer.fits.hidden_markov import HiddenMarkovFit
from sluice.optimizer.fits.squarem import RAREST

BLOCKS = 8
BLOCK_GAPS = 10_000  # of each block that are gone through
_SEEN = 1e-9  # gaps in a state, in expectation, that tell something of it


def without_each_block(hidden: HiddenMarkovFit, gaps: Array, arrival_rate: float) -> tuple[ArrivalProcess, ...]:
    """The processes without each block of ``gaps`` (s, > 0), around a fit to them whose rate is ``arrival_rate`` (1/s)."""
    blocks = np.array_split(gaps, BLOCKS)
    shapes, rates = np.array(hidden.orders, dtype=float), []
    seen = [_seen(stretches(block, BLOCK_GAPS, 4), shapes, hidden) for block in blocks]
    for k in range(BLOCKS):
        left = sum(float(block.sum()) for i, block in enumerate(blocks) if i != k)
        rates.append((len(gaps) - len(blocks[k])) / left * float(gaps.sum()) / len(gaps))
    whole = _step(seen, hidden)
    found = []
    for k in range(BLOCKS):
        means, transitions = _step(seen[:k] + seen[k + 1 :], hidden)
        moved = hidden.transitions * transitions / whole[1]
        law = HiddenMarkovFit(
            hidden.orders,
            hidden.means * means / whole[0],
            moved / moved.sum(axis=1, keepdims=True),
            len(gaps) - len(blocks[k]),
            hidden.convergence,
        ).arrivals()
        found.append(law.sped_up(rates[k] * arrival_rate / law.arrival_rate))
    return tuple(found)


def _seen(gaps: Array, shapes: Array, hidden: HiddenMarkovFit) -> ExpectedStatistics:
    return expect(gaps, np.log(gaps), shapes, hidden.means, np.maximum(hidden.transitions, RAREST))


def _step(seen: list[ExpectedStatistics], hidden: HiddenMarkovFit) -> tuple[Array, Array]:
    """Mean gaps and transitions that maximise the likelihood expected over the hidden states; the fit's where none was seen."""
    weights = np.sum([of.weights for of in seen], axis=0)
    means = np.sum([of.sums for of in seen], axis=0) / np.maximum(weights, _SEEN)
    counts = np.maximum(np.sum([of.transitions for of in seen], axis=0), 1e-300)
    unseen = weights < _SEEN
    transitions = np.where(unseen[:, None], hidden.transitions, counts / counts.sum(axis=1, keepdims=True))
    return np.where(unseen, hidden.means, means), np.maximum(transitions, RAREST)
