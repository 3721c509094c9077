"""What is shown of a URL."""

from __future__ import annotations

import pytest

from sluice.batching.urls import refused_url, without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a:8500,http://b:secret@b:8500", "http://a:8500,http://***@b:8500"),
        ("redis://cache:6379/0?db=1&password=secret&ssl=1", "redis://cache:6379/0?db=1&password=***&ssl=1"),
        ("http://a:8500/x", "http://a:8500/x"),
    ],
)
def test_what_is_shown_of_a_url_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_what_is_shown_of_what_is_none_has_none_either() -> None:
    assert refused_url("redis://:s/e@cret@cache:6379?password=secret") == "redis://***@cache:6379?password=***"
    assert refused_url("cache:6379") == "cache:6379"
