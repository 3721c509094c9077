"""What `make release` leaves, and the workflows that call it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-release" / "bin"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
WHEEL, SOURCE, LIST = f"sluice_batching-{VERSION}-py3-none-any.whl", f"sluice_batching-{VERSION}.tar.gz", "buffer.cdx.json"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a clone, as who makes one has it."""
    clone = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, capture_output=True)
    return make(clone)


def make(clone: Path) -> Path:
    """The folder that it leaves; the tools are those of this checkout."""
    command = ["make", "--old-file", ".venv-release/installed", "release", f"RELEASE={TOOLS}"]
    subprocess.run(command, cwd=clone, check=True, capture_output=True, timeout=120)
    return clone / "dist"


@pytest.mark.deploy
def test_a_release_is_the_source_a_wheel_and_a_list(release: Path) -> None:
    assert {path.name for path in release.iterdir()} == {WHEEL, SOURCE, LIST}


@pytest.mark.deploy
def test_the_wheel_has_every_module_of_the_source_and_each_once(release: Path) -> None:
    with tarfile.open(release / SOURCE) as source:
        held = {name.partition("/")[2] for name in source.getnames() if "/sluice/" in name and Path(name).suffix}
    names = zipfile.ZipFile(release / WHEEL).namelist()
    assert len(names) == len(set(names))
    assert {name for name in names if ".dist-info/" not in name} == held
    assert {"sluice/packaging/template.yaml", "sluice/buffer_service/lua/advance.lua"} <= held


@pytest.mark.deploy
def test_the_list_has_what_the_image_installs_and_its_hashes(release: Path) -> None:
    told = json.loads((release / LIST).read_text())
    assert told["bomFormat"] == "CycloneDX"
    assert told["metadata"]["component"]["version"] == VERSION
    locked = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "buffer.txt").read_text(), re.M)
    assert {(part["name"], part["version"]) for part in told["components"]} == set(locked)
    assert all(part["externalReferences"][0]["hashes"] for part in told["components"])


@pytest.mark.deploy
def test_the_wheel_and_the_list_are_the_same_again(release: Path) -> None:
    def digests() -> list[str]:
        return [hashlib.sha256((release / name).read_bytes()).hexdigest() for name in (WHEEL, LIST)]

    first = digests()
    make(release.parent)
    assert digests() == first


@pytest.mark.deploy
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one(path: Path) -> None:
    command = [str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_call_what_there_is() -> None:
    called = {name for path in WORKFLOWS for line in re.findall(r"run: make (.*)", path.read_text()) for name in line.split()}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert called and called <= targets
    files = {name for path in WORKFLOWS for name in re.findall(r"(?:run: |--file )([\w.]+/\w+)", path.read_text())}
    assert files == {".ci/run", "buffer_service/Dockerfile"} and all((ROOT / name).exists() for name in files)


def test_an_audit_that_was_told_nothing_is_none() -> None:
    recipe = subprocess.run(["make", "--dry-run", "audit"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "pip-audit --strict " in recipe
    assert "- run: make audit\n" in (ROOT / ".github" / "workflows" / "check.yml").read_text()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_hashes_and_names_no_index(path: Path) -> None:
    text = path.read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    pinned = [line for line in lines if re.match(r"[a-z]", line)]
    assert pinned and all(re.match(r"[\w.-]+==\S+ \\$", line) for line in pinned)
    assert "://" not in "\n".join(lines) and text.count("--hash=sha256:") >= len(pinned)
