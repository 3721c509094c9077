"""What a question was answered with, ready to be given out: a plan, a page, a document, tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.batching.documents import Plan, write
from sluice.cli import output
from sluice.cli.named_files import write_file


@dataclass(frozen=True, eq=False)
class Answered:
    """An answer; what takes time to make is made where it is asked for."""

    plan: Plan
    page: Callable[[], str]
    document: Callable[[], dict[str, object]]
    show: Callable[[], None]

    def give(self, out: str | None, report: str | None, as_json: bool) -> None:
        """Write the plan and the page, where a path is told, and print the document or the tables."""
        if out is not None:
            write_file(out, write(self.plan))
        if report is not None:
            with output.stderr.status("drawing ..."):
                page = self.page()
            write_file(report, page.encode())
        if as_json:
            output.print_json(self.document())
        else:
            self.show()
