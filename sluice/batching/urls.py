"""URLs as they may be shown: a password has no place in a log, an answer, a metric or a journal."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def is_http(url: str) -> bool:
    """Whether this is a URL of HTTP that can be connected to: with a host, and a port that there may be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        return False


def without_password(url: str) -> str:
    """A URL, or some with commas between, without what lets in who has it."""
    return _without_its_password(re.sub("//[^/@]*@", "//***@", url))


def without_query(url: str) -> str:
    """A URL without its query and password, either of which may let in who has it."""
    return without_password(url).partition("?")[0]


def refused_url(url: str) -> str:
    """What is no URL, as it may be shown: all before its last ``@`` may be a password."""
    return _without_its_password(re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL))


def _without_its_password(url: str) -> str:
    """A URL without the password that may stand in its query, as Redis's client takes it."""
    return re.sub("([?&]password=)[^&]*", r"\1***", url)
