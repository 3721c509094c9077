"""Where pages, figures, data and traces are, and how a page and its figures are written."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

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

Found = TypeVar("Found")
"""What a study found, as its page and its figures are made of it."""

Look: TypeAlias = "dict[RcKeyType, Any]"
"""Settings of matplotlib."""


def look(salt: str, *, grid: bool = True) -> Look:
    """How a study's figures look: small text, kept as text; ids that hang on ``salt``, so that one drawing gives one file."""
    return {"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 8, "axes.grid": grid, "grid.alpha": 0.3}


def publish(
    package: str | None,
    found: Found,
    page: Callable[[Found], str],
    draw: Callable[[Found], Mapping[str, Figure]],
    look: Look,
    folder: Path = DOCS,
) -> None:
    """Write the page of the study that is this ``package``, named as it is, and its figures, without the date, beside it."""
    name = (package or "").rpartition(".")[2].replace("_", "-")
    text = page(found)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(look):
        figures = draw(found)
        for file_name, figure in figures.items():
            figure.savefig(folder / "figures" / file_name, metadata={"Date": None})
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    print("wrote", ", ".join([f"{name}.md", *figures]))


def study_parser(package: str | None, description: str | None, anew: str | None = None) -> ArgumentParser:
    """The command line of a study; of one whose results are kept, what ``--compute`` does ``anew``."""
    parser = ArgumentParser(f"python -m {package}", description=description, formatter_class=RawDescriptionHelpFormatter)
    if anew is not None:
        parser.add_argument("--compute", action="store_true", help=anew)
    return parser
