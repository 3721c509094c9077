"""Every study has the same rooms, its page says how it was made, and a figure drawn again is the same file."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from studies.__main__ import STUDIES
from studies.__main__ import main as make
from studies.publishing import DATA, DOCS, EXCERPT, ROOT, Figures, look, publish

ROOMS = {"__init__", "__main__", "claims", "computation", "drawings", "page", "results"}
PAGES = {name: (DOCS / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8") for name in STUDIES}


def test_every_folder_of_the_studies_is_one_of_them_or_holds_the_data() -> None:
    folders = {path.name for path in (ROOT / "studies").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders == {*STUDIES, DATA.name}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_the_same_rooms(name: str) -> None:
    assert {path.stem for path in (ROOT / "studies" / name).glob("*.py")} >= ROOMS


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_names_the_command_that_makes_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"Made by `python -m ([^` ]+)", PAGES[name])
    assert command == f"studies.{name}"
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"{command}.__main__").main(["--help"])
    assert ended.value.code == 0
    assert f"usage: python -m {command} " in capsys.readouterr().out


@pytest.mark.parametrize("name", STUDIES)
def test_the_options_that_the_page_names_are_those_of_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (named,) = re.findall(r"Made by `python -m \S+?((?: --\w+)?)(?: \S+)?`", PAGES[name])
    with pytest.raises(SystemExit):
        importlib.import_module(f"studies.{name}.__main__").main(["--help"])
    assert named.strip() in capsys.readouterr().out


def test_the_data_are_where_the_pages_say() -> None:
    for link in re.findall(r"\]\(\.\./(studies/[^)]+)\)", "".join(PAGES.values())):
        assert (ROOT / link).is_file(), link
    assert EXCERPT.is_file()


def test_a_study_that_there_is_none_of_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match="'policy' is not allowed; allowed: batch_figures, .*, smdp_figures"):
        make(["policy"])


def page(title: str) -> str:
    """A page of a line."""
    return f"# {title}\n"


def drawn(title: str) -> Figures:
    """A small figure."""
    figure = Figure((2, 1))
    figure.subplots().plot([0, 1], [1, 0], label=title)
    return {"small.svg": figure}


def test_a_page_published_again_is_the_same_to_the_byte_and_has_no_date(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        publish("studies.a_small_one", "Small", page, drawn, look("small"), tmp_path / folder)
    one, two = ((tmp_path / folder / "figures" / "small.svg").read_bytes() for folder in ("one", "two"))
    assert one == two
    assert b"<dc:date>" not in one
    assert (tmp_path / "one" / "a-small-one.md").read_text(encoding="utf-8") == "# Small\n"


def test_a_study_leaves_the_settings_of_matplotlib_as_they_were(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    publish("studies.small", "Small", page, drawn, look("small", grid=False), tmp_path)
    assert dict(matplotlib.rcParams) == before
