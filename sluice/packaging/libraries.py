"""The libraries of a function: wheels for Lambda's platform, whatever this machine is, without what answering does not need."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sluice.batching.errors import InvalidInput, require

from .project import MACHINES, REQUIREMENTS, Project, named_libraries

PYTHON = "3.13"
"""Of the template's runtime and of the images."""
GLIBC = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux2014")
"""The runtime has glibc 2.34 and every older wheel runs there; pip wants each tag by name."""
FUNCTION = ("aws-lambda-powertools>=3,<4", "msgspec>=0.19,<0.23")
"""What the handler imports, beside what the project names."""
WORKER = ("httptools>=0.6.2,<1", "msgspec>=0.19,<0.23", "prometheus-client>=0.21,<1", "uvloop>=0.21,<1")
"""What the worker imports, beside what the project names."""

_UNUSED = (
    "bin",
    *(
        "numpy/distutils",
        "numpy/f2py",
        "numpy/random/lib",
        "numpy/**/tests",
        "numpy/**/*.pyi",
        "scipy/**/tests",
        "sklearn/**/tests",
    ),
    *("pandas/tests", "onnxruntime/capi/libonnxruntime.so.*", "onnxruntime/datasets", "onnxruntime/quantization"),
    *("onnxruntime/tools", "onnxruntime/transformers", "aws_lambda_powertools/event_handler/openapi/swagger_ui", "**/__pycache__"),
)
"""Parts of the wheels: tests, tools, and ONNX Runtime a second time for callers in C."""


def install(project: Project, target: Path, python: str = PYTHON) -> None:
    """Put the project's libraries for a version of Python into a folder.

    Raises
    ------
    InvalidInput
        pip cannot install a requirement there: no wheel for the platform, no such version, two that contradict each other.
    """
    require(re.fullmatch(r"3\.\d+", python) is not None, "--python", python, "3.11, 3.12, 3.13, ...")
    named = named_libraries(project.requirements)
    own = [library for library in FUNCTION if not named_libraries([library]) <= named]
    target.mkdir(parents=True)
    listed = [*own, *project.requirements]
    file = target.with_name(REQUIREMENTS)
    file.write_text("".join(f"{line}\n" for line in listed), encoding="utf-8")
    machine = MACHINES[project.architecture]
    done = _pip(
        *("install", "--quiet", "--no-compile", "--target", target, "--requirement", file, "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", python),
        *(option for tag in GLIBC for option in ("--platform", f"{tag}_{machine}")),
    )
    file.unlink()
    if done.returncode != 0:
        raise _refused(done.stderr, f"CPython {python} on {GLIBC[0]}_{machine} or older")
    for pattern in _UNUSED:
        for path in sorted(target.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def compile_libraries(target: Path, version: str, room: int) -> bool:
    """Compile them, where that version of Python is here and it takes no more than ``room`` bytes; whether it was done.

    Importing what is not compiled takes 0.2 CPU seconds more of a cold start. By hash, because a zip does not keep times;
    unchecked, because /opt is read-only.
    """
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        return False
    places = ("-s", target.parent, "-p", "/opt", target)
    command = [python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *map(str, places)]
    subprocess.run(command, capture_output=True)  # a file that is no Python of this version, as some test has it, is left out
    caches = list(target.rglob("__pycache__"))
    if sum(file.stat().st_size for cache in caches for file in cache.iterdir()) <= room:
        return True
    for cache in caches:
        shutil.rmtree(cache)
    return False


def for_variant(requirements: Sequence[str], variant: str) -> tuple[str, ...]:
    """The project's requirements for a worker: on a GPU ONNX Runtime is another distribution, with NVIDIA's libraries beside it."""
    gpu = ("onnxruntime" in named_libraries(requirements)) and variant == "cuda"
    replaced = (re.sub(r"^onnxruntime\b(\[[^\]]*\])?(?!-)", "onnxruntime-gpu[cuda,cudnn]", line) for line in requirements)
    return tuple(replaced) if gpu else tuple(requirements)


def _pip(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _refused(said: str, platform: str) -> InvalidInput:
    """pip's words, with the requirement and what was looked for."""
    if "No module named pip" in said:
        python = shlex.quote(sys.executable)
        told = f"a Python with pip ({python} -m ensurepip, or another's: pip --python {python} install pip)"
        return InvalidInput("pip", sys.executable, told)
    missing = re.search(r"No matching distribution found for (.+)", said)
    if missing:
        known = re.search(r"from versions: (.*?)\)", said)
        found = "" if known is None or known[1] == "none" else f", of the versions {known[1]}"
        return InvalidInput(REQUIREMENTS, missing[1].strip(), f"what has a wheel for {platform}{found}")
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines()[-3:]
    return InvalidInput(REQUIREMENTS, " ".join(errors)[:1000], f"requirements that pip can install for {platform}")
