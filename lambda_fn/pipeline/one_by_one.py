"""How a worker goes through single items that it was given together.

It begins none that it is to begin no more (``marks.py``), keeps what it has made to return several at once, and returns
it within a time all the same: also while it is at an item that takes long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .marks import BEGUN, STOPPED, Marks

RETURN_WITHIN = 0.001  # s of work whose results are kept to be returned together
LOOK_EVERY = 0.005  # s after which results are returned from beside an item that takes long

Given = TypeVar("Given")
Made = TypeVar("Made")


class OneByOne(Generic[Given, Made]):
    """``make`` is called with each item; ``give_back`` gets what was made of some, and the seconds that took; ``skip`` the places
    of those that were not begun. A thread of the name looks after what is kept while several items are gone through."""

    def __init__(
        self,
        marks: Marks,
        make: Callable[[Given], Made],
        give_back: Callable[[list[Made], float], None],
        skip: Callable[[Sequence[int]], None],
        name: str,
    ) -> None:
        self._marks = marks
        self._make = make
        self._give_back = give_back
        self._skip = skip
        self._name = name
        self._place = 0
        self._kept: deque[Made] = deque()
        self._from = self._to = 0.0  # s: the time that was worked on what is kept
        self._lock = threading.Lock()  # held by who returns it
        self._several = False  # items are gone through, behind which results may wait
        self._watched = False  # by the thread, which waits for that otherwise
        self._to_watch = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, items: Sequence[Given]) -> None:
        """Go through them."""
        place, self._place = self._place, self._place + len(items)
        marks, make, keep, clock = self._marks.places, self._make, self._kept.append, time.perf_counter
        with self._lock:
            self._from = self._to = clock()
        if len(items) > 1:
            self._several = True
            if not self._watched:
                self._watch()
        for item in items:
            marks[BEGUN] = place + 1
            if place < marks[STOPPED]:
                self._return()
                with self._lock:
                    self._skip(range(place, self._place))
                break
            keep(make(item))
            self._to = now = clock()
            if now - self._from > RETURN_WITHIN:
                self._return()
            place += 1
        if self._kept:
            self._return()
        self._several = False

    def close(self) -> None:
        """Nothing is kept, and its thread ends."""
        self._closed = True
        self._to_watch.set()

    def _return(self) -> None:
        with self._lock:
            made: list[Made] = []
            while self._kept:
                made.append(self._kept.popleft())
            if made:
                seconds, self._from = self._to - self._from, self._to
                self._give_back(made, seconds)

    def _watch(self) -> None:
        self._watched = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
            self._thread.start()
        self._to_watch.set()

    def _look(self) -> None:
        while self._to_watch.wait() and not self._closed:
            time.sleep(LOOK_EVERY)
            if self._kept and time.perf_counter() - self._to > RETURN_WITHIN:
                self._return()
            if not self._several:
                self._to_watch.clear()
                self._watched = False
                if self._several or self._closed:  # it went on meanwhile, and may have seen that it is watched; or has ended
                    self._watched = True
                    self._to_watch.set()
