"""What a project says of itself: the template's parameters in its samconfig.toml, its files, its requirements.

The model is looked for without running any of it, so that the libraries which it imports need not be on this machine.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.batching.documents import ArrivalDocument, Plan, ServiceProfile, read
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require

from .parameters import TEMPLATE, require_known, require_taken

SETTINGS = "samconfig.toml"
BUILT = "build"
"""The folder of a project that ``sluice package`` writes unless told otherwise."""
REQUIREMENTS = "requirements.txt"
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
"""What Lambda and the template call a processor, and what wheels do."""
WANTED = ("VpcId", "SubnetIds", "BufferImage")
"""Parameters that a stack with a buffer of its own must be given."""
OTHER_BUFFER = "BufferStack"
"""The parameter of a stack whose buffer is another's."""
DEFAULT = "default"
"""The environment that ``sam`` reads unless told otherwise (``--config-env``)."""
LARGEST_DOCUMENT = 2**24
"""Bytes beyond which a file is not looked at for what it says."""

_NOT_SHIPPED = re.compile(r"\.|__pycache__$|test_.*\.py$|conftest\.py$|tests$|README\.md$|samconfig\.toml$|requirements.*\.txt$")


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a model.

    Parameters
    ----------
    name, model, architecture, package_type : str
        ``ModelName``, ``Model``, ``Architecture`` and ``PackageType`` of template.yaml.
    requirements : tuple of str
        The lines of requirements.txt that are not blank or comments.
    given : set of str
        The parameters to which the settings give a value.
    stack : str
        ``stack_name`` of the settings, by which the functions are named; ``""`` where they have none.
    environment : str
        Of the settings, in which all this stands.
    """

    root: Path
    name: str
    model: str
    architecture: str = "arm64"
    package_type: str = "Zip"
    requirements: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    stack: str = ""
    environment: str = DEFAULT

    def __post_init__(self) -> None:
        told = {"ModelName": self.name, "Architecture": self.architecture, "PackageType": self.package_type}
        require_taken(told, SETTINGS)
        named = "1 to 58 of A-Z a-z 0-9 -, the first a letter, as the functions' names begin with it"
        known = not self.stack or re.fullmatch("[A-Za-z][A-Za-z0-9-]{0,57}", self.stack) is not None
        require(known, f"stack_name in {SETTINGS}", self.stack, named)
        # Quoted nowhere where it is written into a Dockerfile.
        shape = r"[\w./-]+:[A-Za-z_][\w.]*|[\w./-]+\.onnx"
        allowed_model = "package.module:Class, file.py:Class or network.onnx, with files relative to the project"
        within = not self.model.startswith("/") and ".." not in self.model
        require(within and re.fullmatch(shape, self.model) is not None, f"Model in {SETTINGS}", self.model, allowed_model)

    def files(self, without: Path) -> list[Path]:
        """What is shipped, relative to the project.

        All but tests, settings, hidden files, virtual environments, what an earlier call packaged, ``without``, and plans, profiles
        and fits of arrivals, known by what they say.

        Raises ``InvalidInput`` where something is neither a file nor a folder, or a link to a folder, which may have no end.
        """
        found = (path for path in _walk(self.root, without.resolve()) if not _is_document(path))
        return sorted(path.relative_to(self.root) for path in found)

    @property
    def missing(self) -> tuple[str, ...]:
        """Parameters without which the template cannot be deployed, and which the settings do not give."""
        return tuple(name for name in WANTED if name not in self.given and OTHER_BUFFER not in self.given)


def read_project(root: Path, environment: str = "") -> Project:
    """The project in a folder, its model found; raises ``InvalidInput``.

    ``environment`` is that of the settings, as ``sam deploy --config-env`` has it; ``""`` is ``default`` where there is one, or
    else the first, of those with parameters if any has some.
    """
    settings = _settings(root)
    known = [name for name, of in settings.items() if isinstance(of, dict)]
    allowed = f"one of those in {root / SETTINGS}: {', '.join(known) or 'none'}"
    require(not environment or environment in known, "--config-env", environment, allowed)
    environment = environment or _first(settings, known)
    parameters = _parameters(root, settings, environment)
    for name in ("ModelName", "Model"):
        if name not in parameters:
            place = f"{name} in {environment}.deploy.parameters.parameter_overrides of {root / SETTINGS}"
            raise InvalidInput(place, NOT_GIVEN, f'"{name}=..."')
    if _below(settings, environment, "deploy", "parameters", "template_file") in (None, f"{BUILT}/{TEMPLATE.name}"):
        require_known(parameters, SETTINGS)  # another template may have more
    require_taken(parameters, SETTINGS)
    stack = _below(settings, environment, "deploy", "parameters", "stack_name")
    project = Project(
        root,
        parameters["ModelName"],
        parameters["Model"],
        parameters.get("Architecture", "arm64"),
        parameters.get("PackageType", "Zip"),
        _requirements(root),
        frozenset(name for name, value in parameters.items() if value),
        stack if isinstance(stack, str) else "",
        environment,
    )
    _require_model(project)
    return project


def _settings(root: Path) -> dict[str, object]:
    path = root / SETTINGS
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput("PROJECT", str(root), f"a folder with {SETTINGS}, as `sluice new` lays one out") from None
    except (OSError, ValueError) as error:
        raise InvalidInput("file", str(path), f"TOML that can be read ({error})") from None


def _first(settings: dict[str, object], known: list[str]) -> str:
    """The environment that is meant where none is named."""
    deployed = [name for name in known if _below(settings, name, "deploy", "parameters", "parameter_overrides") is not None]
    meant = deployed or known or [DEFAULT]
    return DEFAULT if DEFAULT in meant else meant[0]


def _below(settings: object, *keys: str) -> object:
    for key in keys:
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def _parameters(root: Path, settings: dict[str, object], environment: str) -> dict[str, str]:
    """``parameter_overrides`` of ``sam deploy``, which are a list or one text."""
    keys = (environment, "deploy", "parameters", "parameter_overrides")
    given = _below(settings, *keys)
    words = [word for text in (given if isinstance(given, list) else [given]) for word in _words(text)]
    if not all("=" in word for word in words):
        place = f"{'.'.join(keys)} of {root / SETTINGS}"
        raise InvalidInput(place, NOT_GIVEN if given is None else given, 'a list of "Name=value"')
    found: dict[str, str] = {}
    for name, value in (word.split("=", 1) for word in words):
        require(
            found.setdefault(name, value) == value, f"{name} in {SETTINGS}", value, f"given once, and it is {found[name]!r} before"
        )
    return found


def _words(text: object) -> list[str]:
    """Of a text of parameters, as sam reads it; one that is no parameter where it is no text, or has a quote that does not end."""
    try:
        return shlex.split(text) if isinstance(text, str) else [""]
    except ValueError:
        return [""]


def _requirements(root: Path) -> tuple[str, ...]:
    path = root / REQUIREMENTS
    if not path.exists():
        return ()
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except (OSError, ValueError) as error:
        raise InvalidInput("file", str(path), f"text that can be read ({error})") from None
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    found = tuple(line for line in lines if line)
    for line in found:
        elsewhere = re.match(r"-[rce]\b|--(requirement|constraint|editable)\b|\.{0,2}/", line)
        require(elsewhere is None, f"line of {path}", line, "requirements and options of an index: the file is read by itself")
    return found


def named_libraries(requirements: Iterable[str]) -> set[str]:
    """The libraries that lines of requirements name, in lower case with dashes."""
    names = (re.match(r"[A-Za-z0-9][\w.-]*", line) for line in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def is_package(folder: Path) -> bool:
    """Whether a call of ``package`` wrote it: its function has ``sluice`` in it."""
    return (folder / "function" / "sluice").is_dir()


def _walk(folder: Path, without: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if _NOT_SHIPPED.match(entry.name) or path.resolve() == without:
            continue
        if entry.is_file():
            yield path
        elif not entry.is_dir(follow_symlinks=False):
            raise InvalidInput("file", str(path), "a file, a folder, or a link to a file")
        elif not (path / "pyvenv.cfg").exists() and not is_package(path):
            yield from _walk(path, without)


def _is_document(path: Path) -> bool:
    """Whether it is a plan, a profile or a fit of arrivals."""
    if path.suffix != ".json" or path.stat().st_size > LARGEST_DOCUMENT:
        return False
    text = path.read_bytes()
    for kind in (Plan, ServiceProfile, ArrivalDocument):
        with suppress(InvalidInput):
            read(kind, text)
            return True
    return False


def _require_model(project: Project) -> None:
    """Raise unless what ``Model`` names is there; a module that is not of the project is of a library, and not looked for."""
    field = f"Model in {SETTINGS}"
    place, _, attribute = project.model.rpartition(":")
    if not attribute.isidentifier() and not place:  # a network
        require((project.root / project.model).is_file(), field, project.model, f"a file of {project.root}")
        return
    file = project.root / place
    if not place.endswith(".py"):
        top, module = project.root / place.partition(".")[0], project.root.joinpath(*place.split("."))
        if not top.is_dir() and not top.with_suffix(".py").exists():
            return
        file = module / "__init__.py" if (module / "__init__.py").exists() else module.with_suffix(".py")
    require(file.is_file(), field, project.model, f"a module of {project.root}: there is no {file.relative_to(project.root)}")
    try:
        body = ast.parse(file.read_bytes(), str(file)).body
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidInput(field, project.model, f"a module that Python can read ({file}, line {line}: {error})") from None
    first = attribute.partition(".")[0]
    bound = dict(_bound(body))
    if "*" in bound:
        return
    classes = [name for name, node in bound.items() if isinstance(node, ast.ClassDef) and _may_predict(node)]
    allowed = f"a class with predict, or what makes one; {place} has {', '.join(classes) or 'none'}"
    require(first in bound, field, project.model, allowed)
    served = bound[first]
    if isinstance(served, ast.ClassDef) and first == attribute:
        require(_may_predict(served), field, project.model, f"{allowed}: {first} has no method predict")


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that statements bind, and by what."""
    for statement in body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef():
                yield statement.name, statement
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.partition(".")[0], statement) for alias in statement.names)
            case ast.Assign() | ast.AnnAssign():
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id, statement
            case _:
                for _, inner in ast.iter_fields(statement):
                    if isinstance(inner, list) and all(isinstance(one, ast.stmt) for one in inner):
                        yield from _bound(inner)


def _may_predict(node: ast.ClassDef) -> bool:
    """Whether it has a method ``predict``, or may have one from a class above it."""
    return bool(node.bases) or "predict" in dict(_bound(node.body))
