"""What the buffer measured of a batch: the record by which live batches are learned from. No clock and no I/O."""

from __future__ import annotations

from typing import NamedTuple


class MeasuredBatch(NamedTuple):
    """A batch that has ended, as the process saw it that sent it.

    Of a batch that was halved or asked for again, ``seconds``, ``service`` and ``billed`` are the sums over its invocations.

    Parameters
    ----------
    ended_at : float
        When its end was reported, s since 1970 by the store's clock.
    route : str
        ``""`` in a plan without routes.
    table : int
        The place of the table that released it, in ``Policy.tables``.
    function : str
        That answered, as the plan names it.
    digest : str
        Of the plan in force at the process.
    size : int
        Requests that left in it.
    seconds : float
        From the invocation to its answer, s.
    service : float
        The function's own time for it, s; ``nan`` where it did not tell.
    billed : float
        s; ``nan`` where that is not known.
    cold : bool
        Whether the function told that its environment was new.
    failed : int
        Requests of it that were not answered with a 2xx.
    latencies : tuple of float
        From arrival to answer, s, of each request answered to a caller of this process.
    """

    ended_at: float
    route: str
    table: int
    function: str
    digest: str
    size: int
    seconds: float
    service: float = float("nan")
    billed: float = float("nan")
    cold: bool = False
    failed: int = 0
    latencies: tuple[float, ...] = ()
