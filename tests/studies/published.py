"""What every page of a study must be."""

from __future__ import annotations

import re
from collections.abc import Iterable

from studies.publishing import DOCS


def shown_in(page: str) -> list[str]:
    """The figures that a page shows."""
    return re.findall(r"\]\(figures/([^)]+)\)", page)


def assert_published(name: str, page: str, drawn: Iterable[str], largest: int) -> None:
    """docs/``name``.md is ``page``, which shows what is drawn and nothing else; each figure is in docs, below ``largest`` bytes."""
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == page
    shown = shown_in(page)
    assert shown
    assert sorted(shown) == sorted(drawn)
    for figure in shown:
        assert 0 < (DOCS / "figures" / figure).stat().st_size < largest
