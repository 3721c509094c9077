"""API keys: whom a key belongs to, which models it opens, how often, and of which class its requests are.

What may live here: the document, and what is decided by it. What may not: a clock, I/O, a key. A document has the SHA-256 of each
key alone, and no value of it is ever shown, as somebody might have put the key itself where its hash belongs.

    no key that is known                                            401
    a model that the key does not open                              403
    more than ``requests_per_second`` (s^-1), and one second's      429, with the time after which there is room
    worth of them at once, at each process

A key comes as ``x-api-key``, or else as ``authorization: Bearer``. It is looked up by its digest: the time that takes tells of the
digest at most, which nobody can choose without the key, so that no comparison in constant time is needed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sluice.batching.documents import Document, read
from sluice.batching.errors import InvalidInput, ModelNotAllowed, RateExceeded, UnknownKey, require

KEY_HEADER, AUTHORIZATION = b"x-api-key", b"authorization"
MAX_KEYS = 10_000  # of a deployment
MAX_RATE = 1e6  # requests/s
MAX_BYTES = 4 * 1024 * 1024  # of a document
_NAME = re.compile("[A-Za-z0-9._-]{1,128}")
_DIGEST = re.compile("[0-9a-f]{64}")


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one key: whose it is, its hash, and what it opens; ``models`` of ``None`` are all, a ``class`` of ``""`` is any."""

    name: str
    sha256: str
    of_class: str = msgspec.field(default="", name="class")
    models: list[str] | None = None
    requests_per_second: float | None = None


class ApiKeyDocument(Document, frozen=True, kw_only=True):
    """The keys of a deployment, or some of them."""

    keys: list[ApiKey]

    def __post_init__(self) -> None:
        super().__post_init__()
        named = "1 to 128 of A-Z a-z 0-9 . _ -"
        for i, key in enumerate(self.keys):
            field, rate = f"keys[{i}]", key.requests_per_second
            require(_NAME.fullmatch(key.name) is not None, f"{field}.name", key.name, named)
            require(_DIGEST.fullmatch(key.sha256) is not None, f"{field}.sha256", "", "the SHA-256 of the key, 64 of 0-9 a-f")
            require(not key.of_class or _NAME.fullmatch(key.of_class) is not None, f"{field}.class", key.of_class, named)
            known = key.models is None or all(map(_NAME.fullmatch, key.models))
            require(known, f"{field}.models", key.models, f"null for all, or names: {named}")
            allowed = f"a number above 0, at most {MAX_RATE:g}, or null for no limit"
            require(rate is None or 0 < rate <= MAX_RATE, f"{field}.requests_per_second", rate, allowed)


class _NotShown:
    def __repr__(self) -> str:
        return "what it says"


def read_keys(document: bytes) -> list[ApiKey]:
    """The keys of a document; raises ``InvalidInput``, which names the field, and shows nothing of what it holds."""
    require(len(document) <= MAX_BYTES, "document", f"{len(document)} bytes", f"at most {MAX_BYTES} bytes")
    try:
        return read(ApiKeyDocument, document).keys
    except InvalidInput as error:
        raise InvalidInput(error.field, _NotShown(), error.allowed) from None


def joined(documents: Mapping[str, list[ApiKey]]) -> list[ApiKey]:
    """The keys of several documents, by place; raises ``InvalidInput`` where two have one name or hash, or there are too many."""
    keys = [key for place in documents.values() for key in place]
    require(len(keys) <= MAX_KEYS, "keys", len(keys), f"at most {MAX_KEYS}")
    names: set[str] = set()
    digests: set[str] = set()
    for place, theirs in documents.items():
        for i, key in enumerate(theirs):
            require(key.name not in names, f"{place}: keys[{i}].name", key.name, "each name once")
            require(key.sha256 not in digests, f"{place}: keys[{i}].sha256", _NotShown(), "each key once")
            names.add(key.name)
            digests.add(key.sha256)
    return keys


@dataclass(slots=True)
class _Known:
    """A key, and of what it may ask for at once how much is ``left``, as of then (s)."""

    key: ApiKey
    left: float
    as_of: float = 0.0


class Keyring:
    """The keys that are in force at this process; ``beside_tokens`` are those that open models as well."""

    def __init__(self, beside_tokens: bool = False) -> None:
        self._beside_tokens = beside_tokens
        self._known: dict[str, _Known] = {}  # by the hash of the key

    def __len__(self) -> int:
        return len(self._known)

    def follow(self, keys: Iterable[ApiKey]) -> None:
        """These are in force from now on; of one whose rate is the same, what it has asked for still counts."""
        before, self._known = self._known, {}
        for key in keys:
            was = before.get(key.sha256)
            same = was is not None and was.key.requests_per_second == key.requests_per_second
            left, as_of = (was.left, was.as_of) if was is not None and same else (_at_once(key), 0.0)
            self._known[key.sha256] = _Known(key, left, as_of)

    def known(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """The key of who came with these headers, whatever it opens; raises ``UnknownKey``."""
        return self._given(headers).key

    def opens(self, model: str, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """The key of who came with these headers; raises ``UnknownKey`` or ``ModelNotAllowed``."""
        return self._of(model, headers).key

    def admit(self, now: float, model: str, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """The same of a request that comes now (s), which counts; raises ``RateExceeded`` too."""
        known = self._of(model, headers)
        rate = known.key.requests_per_second
        if rate is not None:
            known.left = min(_at_once(known.key), known.left + rate * max(0.0, now - known.as_of))
            known.as_of = now
            if known.left < 1:
                raise RateExceeded(known.key.name, rate, (1 - known.left) / rate)
            known.left -= 1
        return known.key

    def _of(self, model: str, headers: Iterable[tuple[bytes, bytes]]) -> _Known:
        known = self._given(headers)
        if known.key.models is not None and model not in known.key.models:
            raise ModelNotAllowed(known.key.name, model)
        return known

    def _given(self, headers: Iterable[tuple[bytes, bytes]]) -> _Known:
        given = _given(headers)
        known = self._known.get(hashlib.sha256(given).hexdigest()) if given else None
        if known is None:
            raise UnknownKey(bool(given), token=self._beside_tokens)
        return known


def _at_once(key: ApiKey) -> float:
    """Requests that a key may ask for at once: a second's worth, and one at least."""
    return max(1.0, key.requests_per_second or 0.0)


def _given(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that came with a request, or nothing."""
    bearer = b""
    for name, value in headers:
        if name == KEY_HEADER:
            return value
        if name == AUTHORIZATION and value[:7].lower() == b"bearer ":
            bearer = value[7:].strip()
    return bearer
