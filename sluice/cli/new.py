"""`sluice new`: a project with a model that runs as it is."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.packaging.layout import lay_out

from .named_files import wrote
from .values import FILE


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "directory",
    type=FILE,
    metavar="DIR",
    default=".",
    show_default=True,
    help="Folder in which that of the project is made",
)
def command(name: str, directory: str) -> None:
    """Lay out a model: its class, its test, a sample request, and how it is packaged and deployed.

    NAME is what the model answers to and the new folder: words of a-z and 0-9 with dashes between.
    """
    for path in lay_out(name, Path(directory)):
        wrote(str(path))
