"""Which servers of a Redis are known, by URL, and which of them is asked for a slot: facts in, and what follows; no clock, no I/O.

    served      a server executed what it was asked for a slot: it has the slot
    moved       a server said who has it (MOVED): that one is asked from now on
    named       a server said who is to be asked this once (ASK): that one is known
    turned      one knows of nobody who has it: the next that is known is asked for this slot
    silent      one is gone, or may not write: the next is asked for this slot, and none of its slots may have all writes any more
    told        those that were asked said who is in the cluster: the others are forgotten

The seed is the address that was told. It is never forgotten, as it may be a name behind which the servers change. Of the others at
most ``MOST_KNOWN`` are known, those last heard of. For a slot whose server is forgotten the seed is asked, which says who has it.

``successions`` are counted by slot: how often its server may have changed to one that has not seen the last writes. That is so when
the address is the same and the server behind it another one, and when another server serves the slot after its own was silent, or
was forgotten. A slot that is moved in good order, and what happens to other shards, does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from redis.utils import str_if_bytes

MOST_KNOWN = 1000  # servers besides the seed; a cluster of Redis is made for as many nodes
ASKED_AT_ONCE = 3  # servers that are asked besides the seed who is in the cluster

Address = tuple[str, int]


@dataclass(slots=True)
class _Slot:
    """Who is asked, and who served it last; ``seen`` is what that server had counted then."""

    owner: str
    last: str = ""
    seen: int = 0
    orphaned: bool = False
    successions: int = 0


class Topology:
    """All servers that are known, from the seed on."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._known = {seed: None}  # in the order in which they are asked
        self._slots: dict[int, _Slot] = {}

    @property
    def known(self) -> Collection[str]:
        """The URLs of all."""
        return self._known.keys()

    def owner(self, slot: int) -> str:
        """Who is asked first."""
        return self._slots[slot].owner if slot in self._slots else self._seed

    def successions(self, slot: int) -> int:
        """How often the server of a slot may have changed to one that has not seen the last writes."""
        return self._slots[slot].successions if slot in self._slots else 0

    def served(self, slot: int, url: str, successions: int) -> None:
        """``successions`` is how often another server was found behind this address so far."""
        state = self._slot(slot)
        state.successions += successions != state.seen if state.last == url else state.orphaned
        state.last, state.seen, state.orphaned = url, successions, False

    def moved(self, slot: int, url: str) -> list[str]:
        """Who is forgotten for it."""
        self._slot(slot).owner = url
        return self.named(url)

    def named(self, url: str) -> list[str]:
        """Who is forgotten for it."""
        if url != self._seed:
            self._known.pop(url, None)
            self._known[url] = None
        return self._forget_the_first()

    def turned(self, slot: int, url: str) -> None:
        """Each time the next, so that all are asked in the end."""
        known = list(self._known)
        self._slot(slot).owner = known[(known.index(url) + 1) % len(known)] if url in self._known else self._seed

    def silent(self, slot: int, url: str) -> None:
        """As ``turned``; whether it was away, or has lost anything, the next answers show."""
        for state in self._slots.values():
            state.orphaned |= state.last == url
        self.turned(slot, url)

    def to_ask(self, attempt: int) -> list[str]:
        """Whom to ask who is in the cluster: the seed and those in use, at the next attempts others."""
        in_use = (state.owner for state in self._slots.values())
        others = [url for url in dict.fromkeys(chain(in_use, self._known)) if url != self._seed and url in self._known]
        first = attempt * ASKED_AT_ONCE % len(others) if others else 0
        return [self._seed, *others[first : first + ASKED_AT_ONCE]]

    def told(self, members: Collection[str]) -> list[str]:
        """Who is forgotten: all who are not among the members; where nobody is, nothing was said."""
        if not members:
            return []
        new = dict.fromkeys(list(members)[:MOST_KNOWN])
        forgotten = self._forget([url for url in self._known if url not in new and url != self._seed])
        self._known |= new
        return forgotten + self._forget_the_first()

    def _slot(self, slot: int) -> _Slot:
        return self._slots.setdefault(slot, _Slot(self._seed))

    def _forget_the_first(self) -> list[str]:
        """Those who are too many."""
        return self._forget(list(self._known)[1 : max(1, len(self._known) - MOST_KNOWN)])

    def _forget(self, urls: Sequence[str]) -> list[str]:
        forgotten = set(urls)
        for url in forgotten:
            del self._known[url]
        for state in self._slots.values() if forgotten else ():
            if state.owner in forgotten:
                state.owner = self._seed
            if state.last in forgotten:
                state.last, state.orphaned = "", True
        return list(urls)


def addresses(answer: Any) -> Iterator[Address]:
    """Host and port of all servers that an answer to CLUSTER SLOTS names; no host is the host that was asked.

    A host may be an address, a name, nil or empty (the one that was asked), or ``?``: a name that the server was not told; then
    the metadata has its address. What cannot be read is left out.
    """
    for entry in answer if isinstance(answer, list) else ():
        for node in entry[2:] if isinstance(entry, list) else ():
            match node:
                case [host, int(port), *rest] if 0 < port < 65536:
                    host = str_if_bytes(host or "")
                    yield (_address(rest) if host == "?" else host), port


def _address(rest: list[Any]) -> str:
    """The address among what stands behind a node's port: its id, and names with values."""
    match rest:
        case [_, dict(values), *_]:
            pass
        case [_, list(words), *_]:
            values = dict(zip(words[::2], words[1::2], strict=False))
        case _:
            values = {}
    return str_if_bytes(values.get(b"ip", ""))
