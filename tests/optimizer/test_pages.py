"""The examples of docs/simulation.md, docs/recommendation.md and docs/classes.md are run."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.full
@pytest.mark.parametrize(("name", "n_examples"), [("simulation.md", 3), ("recommendation.md", 1), ("classes.md", 1)])
def test_the_page_prints_what_its_examples_print(name: str, n_examples: int) -> None:
    page = (DOCS / name).read_text()
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(examples) == page.count("```python") == n_examples
    names: dict[str, Any] = {}
    for code, printed in examples:  # each goes on with the names of those before
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        assert out.getvalue() == printed
