"""The life of a route on one process: the states it is in, and the facts that move it from one to another.

A fact that is not in the row of the state is an error, all others than these facts leave the state as it is.

    state       retire      nobody waits    follow      leave       said goodbye    meanwhile
    --------    --------    ------------    --------    --------    ------------    --------------------------------------------
    SERVING     RETIRING    -               SERVING     LEAVING     -               batches are served
    RETIRING    -           DRAINED         SERVING     CLEARING    -               the queue holds nobody, batches are moved
    DRAINED     -           -               -           CLEARING    -               nobody waits at it; it only has to leave
    LEAVING     -           -               -           -           CLOSED          as before while callers wait, then no new ones
    CLEARING    -           -               -           -           CLOSED          who came is called; batches are moved
    CLOSED      -           -               -           -           -               the lease is given up

``nobody waits`` and ``said goodbye`` are found by the route's state itself (``route_state.py``), the others are told.
"""

from __future__ import annotations

from enum import Enum, auto


class Life(Enum):
    """The states of a route; the table is in this module's opening."""

    SERVING = auto()
    RETIRING = auto()
    DRAINED = auto()
    LEAVING = auto()
    CLEARING = auto()
    CLOSED = auto()

    __hash__ = object.__hash__  # Enum's own is a function of Python, and which life it is is asked for every request


class Fact(Enum):
    """What moves a route from one state of its life to another."""

    RETIRE = auto()
    NOBODY_WAITS = auto()
    FOLLOW = auto()
    LEAVE = auto()
    SAID_GOODBYE = auto()


LIVES: dict[Life, dict[Fact, Life]] = {
    Life.SERVING: {Fact.RETIRE: Life.RETIRING, Fact.FOLLOW: Life.SERVING, Fact.LEAVE: Life.LEAVING},
    Life.RETIRING: {Fact.NOBODY_WAITS: Life.DRAINED, Fact.FOLLOW: Life.SERVING, Fact.LEAVE: Life.CLEARING},
    Life.DRAINED: {Fact.LEAVE: Life.CLEARING},
    Life.LEAVING: {Fact.SAID_GOODBYE: Life.CLOSED},
    Life.CLEARING: {Fact.SAID_GOODBYE: Life.CLOSED},
    Life.CLOSED: {},
}
RETIRED = (Life.RETIRING, Life.DRAINED, Life.CLEARING)
ENDING = (Life.LEAVING, Life.CLEARING)
