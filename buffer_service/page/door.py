"""How the live page is answered: the page as one document that needs nothing from elsewhere, and what it reads, made once a second.

Nothing is made while nobody asks. The page is the same for everybody and is named by its hash (``ETag``); its style and its script
are the only ones that its policy lets run, so that no name or reason that it shows can become either.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec

from sluice.buffer_service.page.history import SAMPLE_EVERY
from sluice.buffer_service.page.status import Watch

KEEP = 1.0  # s that a document is given out again
HTML = "text/html; charset=utf-8"
STYLE, SCRIPT = "/* style */", "/* script */"
"""Where in the page they stand."""
_HARDENED = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Door:
    """The answers to ``GET /`` and ``GET /status``; ``clock`` is monotonic (s)."""

    status_headers = (*_HARDENED, (b"cache-control", b"no-store"))

    def __init__(self, watch: Watch, clock: Callable[[], float]) -> None:
        self._watch = watch
        self._clock = clock
        self._making = asyncio.Lock()
        self._status, self._fresh_until = b"", -math.inf
        folder = files("sluice.buffer_service.page")
        page, style, script = ((folder / name).read_text() for name in ("page.html", "page.css", "page.js"))
        self.page = page.replace(STYLE, style).replace(SCRIPT, script).encode()
        self.tag = b'"%s"' % hashlib.sha256(self.page).hexdigest()[:16].encode()
        policy = (
            f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.page_headers = (
            *_HARDENED,
            (b"content-security-policy", policy.encode()),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", b"no-cache"),
            (b"etag", self.tag),
        )

    async def status(self) -> bytes:
        """The document as JSON, ``KEEP`` seconds old at most; who asks while it is made waits for it."""
        async with self._making:
            if self._clock() >= self._fresh_until:
                self._status = msgspec.json.encode(await self._watch.tell())
                self._fresh_until = self._clock() + KEEP
        return self._status

    def has(self, headers: Any) -> bool:
        """Whether a client that sent these headers has the page as it is."""
        sent = b",".join(value for name, value in headers if name == b"if-none-match")
        return any(tag.strip().removeprefix(b"W/") in (self.tag, b"*") for tag in sent.split(b","))

    async def close(self) -> None:
        """Release connections."""
        await self._watch.close()

    async def keep_samples(self) -> None:
        """Take a sample of every model again and again."""
        while True:
            await self._watch.sample()
            await asyncio.sleep(SAMPLE_EVERY)


def _source(text: str) -> str:
    """An inline style or script as a content security policy names it (W3C, Content Security Policy Level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
