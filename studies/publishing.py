"""Where pages, figures, data and traces are, and how a page and its figures are written."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DATA = Path(__file__).parent / "data"
TRACES = ROOT / "examples" / "traces"
EXCERPT = TRACES / "azure_llm_code_excerpt.csv.gz"

Figures = dict[str, Figure]
"""Figures by file name."""

Look: TypeAlias = "dict[RcKeyType, Any]"
"""Settings of matplotlib."""


def look(salt: str, *, grid: bool = True) -> Look:
    """How a study's figures look: small text, kept as text; ids that hang on ``salt``, so that one drawing gives one file."""
    return {"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 8, "axes.grid": grid, "grid.alpha": 0.3}


def publish(name: str, page: str, draw: Callable[[], Mapping[str, Figure]], look: Look, folder: Path = DOCS) -> None:
    """Write ``folder``/``name``.md, and what ``draw`` gives into ``folder``/figures without the date."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(look):
        figures = draw()
        for file_name, figure in figures.items():
            figure.savefig(folder / "figures" / file_name, metadata={"Date": None})
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print("wrote", ", ".join([f"{name}.md", *figures]))


def study_parser(package: str | None, description: str | None) -> ArgumentParser:
    """The command line of a study."""
    return ArgumentParser(f"python -m {package}", description=description, formatter_class=RawDescriptionHelpFormatter)
