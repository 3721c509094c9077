"""What the README says of how well all works is what the pages say that it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How well")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("latency-models", ["320 of 320"]),
        ("control", ["3624 of 3624", "1.021"]),
        ("proteus", ["99.78"]),
        ("benchmarks", ["94 of 94 windows of 100 requests kept", "320 of 320", "5 to 17 %"]),
    ],
)
def test_the_figures_of_the_readme_are_those_of_the_page(page, figures):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert f"(docs/{page}.md" in ROWS
    for figure in figures:
        assert figure in ROWS and figure in text, figure


def test_no_more_of_a_fleet_is_late_than_the_page_has():
    page = (ROOT / "docs" / "proteus.md").read_text(encoding="utf-8").partition("**40 devices.**")[2]
    of = {name: re.findall(rf"^\| {name} \| ([\d.]+) \|", page, re.MULTILINE)[0] for name in ("ours", "Proteus, as published")}
    assert f"{float(of['ours']):.2f} % late" in ROWS and f"{float(of['Proteus, as published']):.0f} % late" in ROWS
