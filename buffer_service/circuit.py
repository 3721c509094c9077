"""Whether a function is asked, and asked again: the state of one function as this process finds it. No clock, no I/O.

    passed          some items were answered: it works
    failed          a call was in vain
    refuses         how long the function will not be asked; None: it is asked
    may_ask_again   whether what failed is asked for again, in parts or elsewhere

A function that does nothing but fail is found out by calls in a row in vain: ``UNAVAILABLE_LIMIT`` without an answer, or as many
failures as finding one item among the largest batch takes, and ``STRIKES`` more. The circuit is open then, for ``FIRST_OPEN``
seconds, and who comes is refused at once. After that one item is the trial: passed, the circuit is closed; failed, it is open for
twice as long as before. A call that is answered closes it whenever it began.

A function that fails often is not asked ever more for it: asking again is paid for by items that were answered, one each, beyond
a reserve of ``RESERVE``. The idea is gRPC's retry throttling, and Envoy's retry budget.
"""

from __future__ import annotations

import math

STRIKES = 4
UNAVAILABLE_LIMIT = 5
FIRST_OPEN, LONGEST_OPEN = 1.0, 30.0  # seconds
RESERVE = 64  # calls


class Circuit:
    """Of a function that takes batches of at most ``max_batch_size``."""

    def __init__(self, max_batch_size: int) -> None:
        self.max_batch_size = max_batch_size
        self.openings = 0
        self._failed = 0  # calls in a row
        self._unavailable = 0  # of these, those without an answer
        self._reserve = RESERVE
        self._in_a_row = 0  # openings
        self.open = False  # whether what is asked, if anything, is a trial
        self._open_until = -math.inf
        self._trying = False

    def refuses(self, now: float) -> float | None:
        """Seconds until the function is asked again; ``None``: it is asked."""
        if not self.open:
            return None
        if now < self._open_until:
            return self._open_until - now
        return FIRST_OPEN if self._trying else None

    def try_one(self) -> None:
        """A trial begins; it ends with ``passed``, ``failed`` or ``undecided``."""
        self._trying = True

    def undecided(self) -> None:
        """The trial said nothing."""
        self._trying = False

    def passed(self, items: int) -> None:
        """So many items were answered."""
        self._failed = self._unavailable = 0
        self._reserve = min(RESERVE, self._reserve + items)
        if self.open:
            self.open = self._trying = False
            self._in_a_row = 0

    def failed(self, now: float, unavailable: bool, trial: bool = False) -> None:
        """A call was in vain."""
        self._failed += 1
        self._unavailable += unavailable
        too_often = self._failed >= math.ceil(math.log2(self.max_batch_size)) + STRIKES or self._unavailable >= UNAVAILABLE_LIMIT
        if trial if self.open else too_often:
            self._open_until = now + min(LONGEST_OPEN, FIRST_OPEN * 2**self._in_a_row)
            self.open = True
            self._in_a_row += 1
            self.openings += 1
            self._trying = False

    def may_ask_again(self) -> bool:
        """Whether there is something left to pay with."""
        return self._reserve > 0

    def ask_again(self) -> None:
        """One more call is made because one failed."""
        self._reserve -= 1
