"""The examples of docs/simulation.md are run."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def test_the_page_prints_what_its_examples_print() -> None:
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```python") == 2
    names: dict[str, Any] = {}
    for code, printed in examples:  # each goes on with the names of those before
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        assert out.getvalue() == printed
