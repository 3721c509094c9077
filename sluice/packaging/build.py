"""`sluice package`: the folder that `sam deploy` and `docker build` read.

template.yaml            the template, which takes function/ and layer/ from beside it
function/                `sluice` as far as a function imports it, and the project's files
layer/python/            the libraries, for Lambda's platform
function.Dockerfile      the same two as an image
worker.Dockerfile        function/ as an HTTP worker, with worker.txt and requirements-VARIANT.txt
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sluice
from sluice.batching.errors import Infeasible, InvalidInput

from .libraries import PYTHON, WORKER, compile_libraries, for_variant, install
from .parameters import TEMPLATE
from .project import Project, is_package

SOURCES = Path(__file__).parent
ZIP_LIMIT = 250 * 2**20
"""Bytes of function and layers together, unzipped."""
IMAGE_LIMIT = 10 * 2**30
"""Bytes of an image, uncompressed."""
BASE_IMAGE = 600 * 2**20
"""Bytes that the image of the runtime has, generously."""
VARIANTS = ("cpu", "cuda")
LARGEST = 5
"""Parts that are named where a package is too large."""

_OURS = ("template.yaml", "layer", "function.Dockerfile", "worker.Dockerfile", "worker.txt")
_REQUIREMENTS = tuple(f"requirements-{variant}.txt" for variant in VARIANTS)


@dataclass(frozen=True, slots=True)
class Package:
    """What was packaged.

    Parameters
    ----------
    folder : Path
    parts : mapping of str to int
        Bytes unzipped, by part: an entry of function/ or of layer/python/.
    python : str
        The version that the libraries are for.
    compiled : bool
        Whether they are compiled.
    """

    project: Project
    folder: Path
    parts: Mapping[str, int]
    python: str
    compiled: bool

    @property
    def size(self) -> int:
        """Bytes, unzipped."""
        return sum(self.parts.values())

    @property
    def limit(self) -> int:
        """Bytes that Lambda takes of a package of this kind."""
        return ZIP_LIMIT if self.project.package_type == "Zip" else IMAGE_LIMIT - BASE_IMAGE

    def largest(self) -> list[tuple[str, int]]:
        """The largest parts and their bytes, from the largest on."""
        return sorted(self.parts.items(), key=lambda part: (-part[1], part[0]))[:LARGEST]


def package(project: Project, folder: Path, python: str = PYTHON) -> Package:
    """Write the folder anew; the template comes last, so that a build which failed cannot be deployed.

    Raises
    ------
    InvalidInput
        A requirement cannot be installed, something that an earlier call did not write is in the way, or nothing can be written.
    """
    if folder.resolve() == project.root.resolve():
        raise InvalidInput("--out", str(folder), "a folder of its own, not the project's")
    try:
        _require_ours(folder)
        _clear(folder)
        _copy_sluice(folder / "function" / "sluice")
        for file in project.files(without=folder):
            target = folder / "function" / file
            if file.parts[0] == "sluice":
                raise InvalidInput("file", str(project.root / file), "another name: the function has sluice itself there")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project.root / file, target)
        layer = folder / "layer" / "python"
        install(project, layer, python)
        plain = Package(project, folder, _parts(folder), python, compiled=False)
        compiled = compile_libraries(layer, python, room=plain.limit - plain.size)
        _write_images(project, folder)
        shutil.copyfile(TEMPLATE, folder / TEMPLATE.name)
    except OSError as error:
        raise InvalidInput("--out", str(folder), f"a folder that can be written ({error})") from None
    return Package(project, folder, _parts(folder), python, compiled)


def require_fitting(built: Package) -> None:
    """Raise ``Infeasible`` unless Lambda takes the package, as what the project wants it."""
    if built.size > built.limit:
        kind = built.project.package_type
        zipped = f"PackageType=Image in samconfig.toml takes the image of {built.folder}"
        parts = ", ".join(f"{name} {megabytes(size)}" for name, size in built.largest())
        raise Infeasible(
            f"the function is {built.size} bytes ({megabytes(built.size)}) unzipped; Lambda takes at most {built.limit} "
            f"({megabytes(built.limit)}) as {kind}; the largest parts: {parts}; "
            f"what helps: {zipped if kind == 'Zip' else 'a smaller model, or a worker'}"
        )


def megabytes(size: int) -> str:
    """Bytes as Lambda counts them, in powers of two."""
    return f"{size / 2**20:.1f} MB"


def _require_ours(folder: Path) -> None:
    """Raise unless the folder is new, is empty, or was written by an earlier call."""
    if folder.is_dir() and not is_package(folder) and any(folder.iterdir()):
        raise InvalidInput("--out", str(folder), "a new folder, an empty one, or one of an earlier call; this has other files")


def _clear(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*_OURS, *_REQUIREMENTS, "function"):  # last what says that all is ours
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _copy_sluice(target: Path) -> None:
    """What a function, and a worker, import of it, under the name that it has everywhere."""
    (source,) = sluice.__path__
    target.mkdir(parents=True)
    for name in ("__init__.py", "py.typed"):
        shutil.copyfile(Path(source) / name, target / name)
    for room in ("batching", "http", "lambda_fn"):
        shutil.copytree(Path(source) / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))


def _write_images(project: Project, folder: Path) -> None:
    for name in ("function.Dockerfile", "worker.Dockerfile"):
        text = (SOURCES / name).read_text(encoding="utf-8").replace("@NAME@", project.name).replace("@MODEL@", project.model)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "worker.txt").write_text("".join(f"{line}\n" for line in WORKER), encoding="utf-8")
    for variant, file in zip(VARIANTS, _REQUIREMENTS, strict=True):
        (folder / file).write_text("".join(f"{line}\n" for line in for_variant(project.requirements, variant)), encoding="utf-8")


def _parts(folder: Path) -> dict[str, int]:
    roots = {"function": folder / "function", "layer": folder / "layer" / "python"}
    return {f"{name}/{entry.name}": _bytes(entry) for name, root in roots.items() for entry in sorted(root.iterdir())}


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
