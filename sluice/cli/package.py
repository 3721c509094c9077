"""`sluice package`: a project as Lambda and Docker take it."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.packaging.build import VARIANTS, Package, megabytes, package, require_fitting
from sluice.packaging.libraries import PYTHON
from sluice.packaging.project import BUILT, DEFAULT, SETTINGS, read_project

from .output import json_option, print_json
from .values import FILE

PLATFORMS = {"arm64": "linux/arm64", "x86_64": "linux/amd64"}


@click.command()
@click.argument("project", type=FILE, default=".")
@click.option(
    "--config-env",
    "environment",
    metavar="NAME",
    default="",
    help="Of samconfig.toml, as `sam deploy` is told  [default: default, or the first]",
)
@click.option(
    "--out",
    type=FILE,
    metavar="DIR",
    help="Folder to write; what an earlier call wrote there is replaced  [default: build in the project]",
)
@click.option(
    "--python",
    default=PYTHON,
    show_default=True,
    help="Version that the libraries are for; another than the template's runtime is for a loopback",
)
@json_option
def command(project: str, environment: str, out: str | None, python: str, as_json: bool) -> None:
    """Package a project for Lambda, as a Zip function with its layer, and as images of the function and of a worker.

    PROJECT is a folder as `sluice new` lays it out; its samconfig.toml says what is served, for which architecture, and whether
    Lambda is to get a Zip or an image. Requirements are installed for Lambda's platform, as wheels. A package that is larger than
    Lambda takes is written too, for its images, but exits with 1 and names the largest parts.
    """
    found = read_project(Path(project), environment)
    built = package(found, Path(out) if out is not None else found.root / BUILT, python)
    if as_json:
        print_json(_document(built))
    _tell(built)
    require_fitting(built)


def _document(built: Package) -> dict[str, object]:
    return {
        "version": 1,
        "model": built.project.name,
        "folder": str(built.folder),
        "package_type": built.project.package_type,
        "architecture": built.project.architecture,
        "bytes": built.size,
        "limit_bytes": built.limit,
        "parts": dict(built.parts),
    }


def _tell(built: Package) -> None:
    project, folder = built.project, built.folder
    parts = ", ".join(f"{name} {megabytes(size)}" for name, size in built.largest())
    image = f"docker build --platform {PLATFORMS[project.architecture]} -f {folder / 'function.Dockerfile'} -t {project.name}"
    worker = f"docker build --build-arg VARIANT={'|'.join(VARIANTS)} -f {folder / 'worker.Dockerfile'} -t {project.name}-worker"
    as_zip = project.package_type == "Zip" and built.size <= built.limit
    lines = [f"wrote {folder}: {megabytes(built.size)} unzipped, of at most {megabytes(built.limit)} ({parts})"]
    if not built.compiled:
        lines.append(f"the libraries are not compiled (no Python {built.python} here, or no room), and importing them takes longer")
    steps = [] if as_zip else [f"{image} {folder}", "push it as FunctionImage"]
    if project.missing:
        steps.append(f"give {', '.join(project.missing)} in {project.root / SETTINGS}")
    of = f" --config-env {project.environment}" if project.environment != DEFAULT else ""
    lines.append(f"to deploy it: {'; '.join([*steps, f'sam deploy{of}'])}")
    lines.append(f"as a worker: {worker} {folder}")
    for line in lines:
        click.echo(line, err=True)
