"""JSON Web Tokens: who may ask for which model, and of which class his requests are, by the signature of an issuer.

What may live here: what is decided of a token, and the keys of the issuer. What may not: a clock, a token that was refused. A token
is of one algorithm, RS256 (RFC 7518, 3.3), whatever it says itself; it is signed by an RSA key of 2048 bits or more that the issuer
publishes in a JWK set (RFC 7517), is for this audience, and within its time, ``SKEW`` seconds of another clock allowed. joserfc
verifies it, which stands on cryptography.

    sluice_models      a claim: the names of the models that it opens; without it, all
    sluice_class       a claim: the class of its requests; without it, what they say

A token that was verified is known again by its digest until it expires or the issuer's keys change: verifying takes 130 us.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sluice.batching.documents import without_mark
from sluice.batching.errors import InvalidInput, ModelNotAllowed, TokenRefused, require
from sluice.batching.urls import without_query

try:
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import RSAKey
except ImportError:  # without the extra `jwt`
    RSAKey = None  # type: ignore[assignment, misc]

ALGORITHM = "RS256"
SKEW = 60.0  # s
MAX_TOKEN = 8192  # bytes
MAX_KEPT = 10_000  # tokens that are known again
MAX_JWKS = 1024 * 1024  # bytes
MAX_KEYS = 100
LEAST_BITS = 2048
LOOK_EVERY, LOOK_AGAIN = 300.0, 10.0
"""Seconds between two looks at the issuer's keys; and between two where a token names one that is not known."""
FETCH_TIMEOUT = 5.0  # s

_log = logging.getLogger(__name__)


class _Claims(msgspec.Struct):
    """Those that are read."""

    iss: str
    aud: str | list[str]
    exp: float
    sub: str = ""
    nbf: float = 0.0
    sluice_models: list[str] | None = None
    sluice_class: str = ""


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    crit: list[str] | None = None


class Bearer(NamedTuple):
    """What a token that was verified says; ``models`` of ``None`` are all, ``subject`` is its ``sub``, or else its digest."""

    models: frozenset[str] | None
    of_class: str
    begins: float
    expires: float
    subject: str = ""


_read_claims = msgspec.json.Decoder(_Claims).decode


class BearerTokens:
    """Decides about tokens of one ``issuer`` for one ``audience``."""

    def __init__(self, issuer: str, audience: str) -> None:
        if RSAKey is None:
            raise InvalidInput("SLUICE_JWT_JWKS", "set", "empty where joserfc is not installed: pip install 'sluice-batching[jwt]'")
        for field, value in (("SLUICE_JWT_ISSUER", issuer), ("SLUICE_JWT_AUDIENCE", audience)):
            require(bool(value), field, value, "what tokens have, as SLUICE_JWT_JWKS is set")
        self._issuer, self._audience = issuer, audience
        self._keys: dict[str, Any] = {}  # by their ids
        self._kept: dict[bytes, Bearer] = {}  # by digest
        self.unknown_key: Callable[[], None] = lambda: None
        """Called where a token names a key that is not known."""

    def __len__(self) -> int:
        return len(self._keys)

    @staticmethod
    def given(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """What came as ``authorization: Bearer`` if it has the shape of a token, else nothing."""
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == b"bearer " and value.count(b".") == 2:
                return value[7:].strip()
        return b""

    def follow(self, document: bytes) -> None:
        """The keys of this JWK set are those of the issuer from now on; raises ``InvalidInput`` where none can be used."""
        keys = read_jwks(document)
        if {kid: key.thumbprint() for kid, key in keys.items()} != {kid: key.thumbprint() for kid, key in self._keys.items()}:
            self._keys = keys
            self._kept.clear()

    def opens(self, now: float, model: str, token: bytes) -> Bearer:
        """What a token for a model says ``now`` (s, of the Unix epoch); raises ``TokenRefused`` or ``ModelNotAllowed``."""
        bearer = self.known(now, token)
        if bearer.models is not None and model not in bearer.models:
            raise ModelNotAllowed("", model)
        return bearer

    def known(self, now: float, token: bytes) -> Bearer:
        """The same, whatever it opens; raises ``TokenRefused``."""
        digest = hashlib.sha256(token).digest()
        bearer = self._kept.get(digest)
        if bearer is None:
            bearer = self._verified(token)
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[digest] = bearer
        if now >= bearer.expires + SKEW:
            raise TokenRefused("it has expired")
        if now < bearer.begins - SKEW:
            raise TokenRefused("its time has not come yet (nbf)")
        return bearer

    def _verified(self, token: bytes) -> Bearer:
        if len(token) > MAX_TOKEN:
            raise TokenRefused(f"it has {len(token)} bytes; at most {MAX_TOKEN} are read")
        try:
            header = msgspec.convert(jws.extract_compact(token).headers(), _Header)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise TokenRefused("it is no signed token") from None
        if header.alg != ALGORITHM:
            raise TokenRefused(f"it is not signed by {ALGORITHM}")
        if header.crit is not None:  # whatever it names, and where it names nothing (RFC 7515, 4.1.11)
            raise TokenRefused("it needs extensions (crit), of which none is known here")
        key = self._keys.get(header.kid)
        if key is None:
            self.unknown_key()
            raise TokenRefused("the issuer has no key of its kid that is known here")
        try:
            signed = jws.deserialize_compact(token, key, algorithms=[ALGORITHM])
            claims = _read_claims(signed.payload)
        except msgspec.ValidationError as error:  # which names the claim and types, and nothing that a token holds
            raise TokenRefused(f"claims: {error}") from None
        except (JoseError, ValueError, TypeError, RecursionError):
            raise TokenRefused("its signature is not that of the issuer") from None
        audiences = claims.aud if isinstance(claims.aud, list) else [claims.aud]
        if claims.iss != self._issuer or self._audience not in audiences:
            raise TokenRefused("it is of another issuer (iss), or for another audience (aud)")
        models = frozenset(claims.sluice_models) if claims.sluice_models is not None else None
        subject = claims.sub or hashlib.sha256(token).hexdigest()
        return Bearer(models, claims.sluice_class, claims.nbf, claims.exp, subject)


def read_jwks(document: bytes) -> dict[str, Any]:
    """The keys of a JWK set that can be used, by ``kid``; others are passed over. Raises ``InvalidInput`` where there are none."""
    require(len(document) <= MAX_JWKS, "JWK set", f"{len(document)} bytes", f"at most {MAX_JWKS} bytes")
    try:
        found = msgspec.json.decode(without_mark(document), type=dict[str, Any]).get("keys")
    except msgspec.DecodeError as error:
        raise InvalidInput("JWK set", f"{len(document)} bytes", f"a JSON object with keys ({error})") from None
    keys: dict[str, Any] = {}
    for each in found if isinstance(found, list) else []:
        if not isinstance(each, dict) or each.get("kty") != "RSA" or each.get("use", "sig") != "sig":
            continue
        if each.get("alg", ALGORITHM) != ALGORITHM or not isinstance(each.get("kid"), str) or len(keys) == MAX_KEYS:
            continue
        try:
            if _bits(each["n"]) >= LEAST_BITS:  # of a shorter one the library warns
                key = RSAKey.import_key({name: each[name] for name in ("kty", "n", "e")})  # never what is private
                keys.setdefault(each["kid"], key)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    require(
        bool(keys), "JWK set", f"{len(document)} bytes", f"with an RSA key of {LEAST_BITS} bits or more for {ALGORITHM}, with a kid"
    )
    return keys


def _bits(modulus: str) -> int:
    """The length of a number in base64url; raises ``ValueError`` or ``TypeError`` for what is none."""
    return int.from_bytes(base64.urlsafe_b64decode(f"{modulus}==")).bit_length()


class JwksFollower:
    """Has ``tokens`` verify by what ``where`` publishes, an ``https:`` URL or ``file:PATH``; what is unreadable changes nothing."""

    def __init__(self, where: str, tokens: BearerTokens) -> None:
        self._where = where
        self._shown = without_query(where)
        self._tokens = tokens
        self._wanted = asyncio.Event()
        self._said = ""
        tokens.unknown_key = self._wanted.set

    async def follow(self) -> None:
        """Look for ever: now and then, and soon where a key is not known."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                async with asyncio.timeout(LOOK_EVERY - LOOK_AGAIN):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            await self.look()

    async def look(self) -> None:
        """One look; raises nothing but cancellation."""
        self._wanted.clear()
        try:
            self._tokens.follow(await asyncio.to_thread(_document, self._where))
        except Exception as error:  # a network, a file system, a document: whatever it is, the keys that are known go on
            line = f"SLUICE_JWT_JWKS: the keys at {self._shown} are not readable: {error}"
            if line != self._said:
                _log.error("%s", line)
            self._said = line
        else:
            self._said = ""


def _document(where: str) -> bytes:
    if where.startswith("file:"):
        with Path(where.removeprefix("file:")).open("rb") as file:
            return file.read(MAX_JWKS + 1)
    until = time.monotonic() + FETCH_TIMEOUT
    with urllib.request.build_opener(_OnlyTls).open(where, timeout=FETCH_TIMEOUT) as response:
        document = b""
        while (piece := response.read1(MAX_JWKS + 1 - len(document))) and len(document) <= MAX_JWKS:
            document += piece
            if time.monotonic() > until:  # each byte alone is in time where they trickle
                raise TimeoutError(f"not all of it came within {FETCH_TIMEOUT:g} s")
        return document


class _OnlyTls(urllib.request.HTTPRedirectHandler):
    """Follows to no address at which somebody else might answer."""

    def redirect_request(self, request: Any, response: Any, code: int, message: str, headers: Any, to: str) -> Any:
        if not to.startswith("https:"):
            raise InvalidInput("SLUICE_JWT_JWKS", without_query(to), "an address that leads nowhere but to https:")
        return super().redirect_request(request, response, code, message, headers, to)
