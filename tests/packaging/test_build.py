"""`sluice package`: the folder that it writes. The wheels are made here, and pip installs them from a folder."""

import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import sluice.packaging.build as building
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.cli.main import sluice as group
from sluice.packaging.build import BASE_IMAGE, IMAGE_LIMIT, ZIP_LIMIT, Package, package, require_fitting
from sluice.packaging.libraries import FUNCTION, PYTHON, WORKER, compile_libraries, for_variant, named_libraries
from sluice.packaging.project import WANTED, Project, read_project
from tests import sam_template

ROOT = Path(__file__).parents[2]
GLOBALS = sam_template.load(ROOT / "template.yaml")["Globals"]["Function"]
MODEL = """
from sluice.batching import policy
from sluice.lambda_fn import ItemError

class Shout:
    def predict(self, inputs: list[str]) -> list[object]:
        return [text.upper() if text else ItemError(422, "nothing to say") for text in inputs]
"""


def wheel(folder, name, version, tag="py3-none-any", files=()):
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        for file in files:
            archive.writestr(f"{name}/{file}", "x" * 1000)
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """An index of these alone."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "aws_lambda_powertools", "3.1", files=["event_handler/openapi/swagger_ui/big.js"])
    wheel(folder, "msgspec", "0.20", "cp313-cp313-manylinux2014_aarch64")
    wheel(folder, "msgspec", "0.19", "cp313-cp313-manylinux2014_aarch64")
    wheel(folder, "numpy", "2.0", "cp313-cp313-manylinux_2_28_aarch64", ["tests/test_a.py", "core/tests/test_b.py", "testing/c.py"])
    wheel(folder, "mac_only", "1.0", "cp313-cp313-macosx_11_0_arm64")
    wheel(folder, "tests_matter", "1.0", files=["tests/needed.py"])
    return folder


@pytest.fixture(autouse=True)
def _offline(wheels, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


@pytest.fixture(scope="module")
def shout(tmp_path_factory):
    """A project, not yet packaged."""
    root = tmp_path_factory.mktemp("shout")
    (root / "model.py").write_text(MODEL)
    (root / "weights.bin").write_bytes(bytes(5000))
    (root / "test_model.py").write_text("")
    (root / "requirements.txt").write_text("numpy>=2\nmsgspec==0.19\ntests_matter\nonnxruntime; sys_platform == 'win32'\n")
    overrides = ["ModelName=shout", "Model=model.py:Shout"]
    (root / "samconfig.toml").write_text(f"[default.deploy.parameters]\nparameter_overrides = {overrides}\n")
    return root


@pytest.fixture(scope="module")
def built(shout, wheels):
    """By the command, over what an earlier one left."""
    for name in ("old", "sluice"):
        (shout / "build" / "function" / name).mkdir(parents=True)
    (shout / "build" / "mine.txt").write_text("")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = CliRunner(env=environment).invoke(group, ["package", str(shout), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert f"to deploy it: give VpcId, SubnetIds, BufferImage in {shout / 'samconfig.toml'}; sam deploy" in done.stderr
    return json.loads(done.stdout)


ASK = """
import importlib.util, json, sys
from sluice.lambda_fn.handler import handler
requests = [{"id": "a", "body": "hello"}, {"id": "b", "body": ""}]
answer = handler({"version": 1, "model": "shout", "requests": requests}, None)
answers = json.loads(answer)["responses"] if isinstance(answer, bytes) else answer["responses"]
print([(a["status"], a["body"]) for a in answers[:1]], answers[1]["status"])
import sluice
print(sluice.__file__, importlib.util.find_spec("sluice.optimizer"), sorted({"numpy", "PIL", "onnxruntime"} & sys.modules.keys()))
"""


def test_a_function_holds_what_its_handler_and_a_worker_import_and_no_more(shout, built):
    """Under the name that it has on a developer's machine, so that a class is the same file in both places."""
    function = shout / "build" / "function"
    assert {path.name for path in function.iterdir()} == {"model.py", "weights.bin", "sluice"}
    assert {path.name for path in (function / "sluice").iterdir()} == {"__init__.py", "py.typed", "lambda_fn", "http", "batching"}
    assert not list(function.rglob("__pycache__"))
    assert (function / (GLOBALS["Handler"].rpartition(".")[0].replace(".", "/") + ".py")).exists()
    environment = {"SLUICE_MODEL": "model.py:Shout", "LAMBDA_TASK_ROOT": str(function), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {
        "PYTHONPATH": f"{function}:{sysconfig.get_path('purelib')}",
        "POWERTOOLS_METRICS_DISABLED": "true",
        "PATH": os.environ["PATH"],
    }
    ask = [sys.executable, "-S", "-c", ASK]
    done = subprocess.run(ask, cwd=function, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *_, answered, where = done.stdout.splitlines()
    assert answered == "[(200, 'HELLO')] 422"
    assert where == f"{function}/sluice/__init__.py None []"


def test_a_layer_holds_the_wheels_of_the_platform_and_not_their_tests(shout, built):
    layer = shout / "build" / "layer" / "python"
    assert {"aws_lambda_powertools", "msgspec", "numpy", "tests_matter"} <= {path.name for path in layer.iterdir()}
    assert "onnxruntime" not in {path.name for path in layer.iterdir()}
    assert "0.19" in (layer / "msgspec" / "__init__.py").read_text()  # the project's own, not the newest
    assert not (layer / "numpy" / "tests").exists() and not (layer / "numpy" / "core" / "tests").exists()
    assert (layer / "numpy" / "testing" / "c.py").exists() and (layer / "tests_matter" / "tests" / "needed.py").exists()
    assert not (layer / "aws_lambda_powertools" / "event_handler" / "openapi" / "swagger_ui").exists()


def test_what_was_built_before_is_replaced_and_nothing_else(shout, built):
    assert not (shout / "build" / "function" / "old").exists()
    assert (shout / "build" / "mine.txt").exists()
    assert (shout / "build" / "template.yaml").read_bytes() == (ROOT / "template.yaml").read_bytes()
    assert {GLOBALS["CodeUri"], "layer/"} == {f"{path.name}/" for path in (shout / "build").iterdir() if path.is_dir()}


def test_the_document_accounts_for_every_byte(shout, built):
    folders = [shout / "build" / "function", shout / "build" / "layer"]
    held = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    assert built["bytes"] == sum(built["parts"].values()) == held
    assert built["parts"]["function/weights.bin"] == 5000
    assert (built["package_type"], built["limit_bytes"]) == ("Zip", 262_144_000)


def test_the_libraries_are_for_the_runtime_of_the_template(shout, built):
    assert GLOBALS["Runtime"] == f"python{PYTHON}"
    for file in ("function.Dockerfile", "worker.Dockerfile"):
        (base,) = re.findall(r"^FROM (\S+)$", (shout / "build" / file).read_text(), re.M)
        assert re.split("[:-]", base)[1] == PYTHON


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
@pytest.mark.parametrize("file", ["function.Dockerfile", "worker.Dockerfile"])
def test_an_image_copies_what_is_there_and_starts_what_can_be_imported(shout, built, file, variant):
    """There is no docker here: that the sources exist and the entry point imports is what can be known."""
    text = (shout / "build" / file).read_text().replace("${VARIANT}", variant)
    assert not re.findall(r"@\w+@", text)
    copied = [source for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for source in line.split()]
    assert len(copied) == 2 + (file == "worker.Dockerfile")
    assert [source for source in copied if not (shout / "build" / source).exists()] == []
    assert set(re.findall(r"-r (\S+\.txt)", text)) <= set(copied)
    entry, *arguments = [json.loads(line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.M)]
    started = sum(arguments, entry)
    if file == "function.Dockerfile":
        assert started == [GLOBALS["Handler"]]
    else:
        module = entry[entry.index("-m") + 1]  # an entry point, as SageMaker puts its argument where CMD is
        assert "SLUICE_MODEL=model.py:Shout SLUICE_MODEL_NAME=shout" in text
        environment = {"PYTHONPATH": str(shout / "build" / "function"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=shout / "build" / "function",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert all(option in done.stdout for option in started if option.startswith("--"))


def imports(paths):
    """The libraries that modules import on top."""
    names = set()
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            names |= {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module.partition(".")[0]} if isinstance(node, ast.ImportFrom) and not node.level else set()
    return {name.replace("_", "-") for name in names - set(sys.stdlib_module_names) - {"sluice"}}


def test_what_is_always_installed_is_what_is_imported_without_a_model():
    folder = ROOT / "lambda_fn"
    worker = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0].startswith("worker")]
    worker += [folder / "batch_frames.py", *(ROOT / "sluice" / "http").glob("*.py")]
    shared = [folder / f"{name}.py" for name in ("contract", "importing", "interface", "loading")]
    assert imports([*shared, *worker]) == named_libraries(WORKER) - {"uvloop"}  # taken where it is there
    assert imports([*shared, folder / "handler.py"]) == named_libraries(FUNCTION)


def test_a_worker_on_a_gpu_has_the_other_onnx_runtime():
    lines = ("onnxruntime>=1.20", "onnxruntime-extensions", "numpy")
    assert for_variant(lines, "cuda") == ("onnxruntime-gpu[cuda,cudnn]>=1.20", "onnxruntime-extensions", "numpy")
    assert for_variant(lines, "cpu") == lines
    assert for_variant(("onnxruntime-gpu", "numpy"), "cuda") == ("onnxruntime-gpu", "numpy")


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "mac_only",
            r"'mac.only' is not allowed; allowed: what has a wheel for CPython 3.13 on manylinux_2_34_aarch64 or older",
        ),
        ("numpy==9", r"requirements.txt: 'numpy==9' .* of the versions 2.0"),
        ("msgspec==0.19\nmsgspec==0.20", "requirements.txt: .*requirements that pip can install"),
    ],
)
def test_a_requirement_that_cannot_be_installed_is_named_and_nothing_can_be_deployed(line, said, shout, tmp_path):
    project = read_project(shout)
    (tmp_path / "build" / "function" / "sluice").mkdir(parents=True)
    (tmp_path / "build" / "template.yaml").write_text("of an earlier build")
    with pytest.raises(InvalidInput, match=said):
        package(Project(shout, "shout", project.model, requirements=tuple(line.split("\n"))), tmp_path / "build")
    assert not (tmp_path / "build" / "template.yaml").exists()


@pytest.mark.parametrize(
    ("kind", "limit", "helps"), [("Zip", ZIP_LIMIT, "PackageType=Image"), ("Image", IMAGE_LIMIT - BASE_IMAGE, "a smaller model")]
)
def test_a_package_that_is_too_large_names_its_largest_parts(kind, limit, helps, shout):
    project = Project(shout, "shout", "model.py:Shout", package_type=kind)
    parts = {f"layer/l{i}": i * 2**20 for i in range(1, 9)} | {"function/weights.bin": limit}
    with pytest.raises(Infeasible) as caught:
        require_fitting(Package(project, shout / "build", parts, PYTHON, compiled=True))
    assert f"Lambda takes at most {limit} ({limit / 2**20:.1f} MB) as {kind}" in str(caught.value)
    largest = f"function/weights.bin {limit / 2**20:.1f} MB, layer/l8 8.0 MB, layer/l7 7.0 MB, layer/l6 6.0 MB, layer/l5 5.0 MB"
    assert f"the largest parts: {largest}; what helps: {helps}" in str(caught.value)


def test_a_lock_with_hashes_is_installed_as_it_is(wheels, tmp_path):
    """pip takes no requirement without a hash beside it, not even one of ours."""
    locked = [wheels / "aws_lambda_powertools-3.1-py3-none-any.whl", wheels / "msgspec-0.20-cp313-cp313-manylinux2014_aarch64.whl"]
    pins = [f"{file.name.split('-')[0]}=={file.name.split('-')[1]}" for file in locked]
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in locked]
    (tmp_path / "requirements.txt").write_text(
        "".join(f"{pin} \\\n    --hash=sha256:{digest}\n    # via something\n" for pin, digest in zip(pins, hashes, strict=True))
    )
    (tmp_path / "model.py").write_text(MODEL)
    overrides = ["ModelName=shout", "Model=model.py:Shout"]
    (tmp_path / "samconfig.toml").write_text(f"[default.deploy.parameters]\nparameter_overrides = {overrides}\n")
    package(read_project(tmp_path), tmp_path / "build")
    assert {"aws_lambda_powertools", "msgspec"} <= {path.name for path in (tmp_path / "build" / "layer" / "python").iterdir()}


def test_a_package_at_the_limit_fits(shout):
    project = Project(shout, "shout", "model.py:Shout")
    require_fitting(Package(project, shout, {"a": ZIP_LIMIT}, PYTHON, compiled=True))
    with pytest.raises(Infeasible):
        require_fitting(Package(project, shout, {"a": ZIP_LIMIT, "b": 1}, PYTHON, compiled=True))


def test_a_package_that_is_too_large_is_there_for_its_image(shout, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "ZIP_LIMIT", 1000)
    monkeypatch.setattr(building, "install", lambda project, target, python: target.mkdir(parents=True))
    with pytest.raises(Infeasible, match="takes at most 1000 .* takes the image of"):
        CliRunner().invoke(group, ["package", str(shout), "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert (tmp_path / "out" / "function.Dockerfile").exists() and (tmp_path / "out" / "template.yaml").exists()


def test_what_the_settings_must_give_the_template_asks_for():
    template = sam_template.load(ROOT / "template.yaml")
    (assertion,) = template["Rules"]["BufferGiven"]["Assertions"]
    assert all(name in assertion["AssertDescription"] and template["Parameters"][name]["Default"] == "" for name in WANTED)


def test_the_environment_that_is_packaged_is_named_where_it_is_deployed(tmp_path, shout, monkeypatch):
    folder = tmp_path / "shout"
    shutil.copytree(shout, folder, ignore=shutil.ignore_patterns("build"))
    (folder / "requirements.txt").unlink()
    overrides = ["ModelName=shout", "Model=model.py:Shout", "BufferStack=mlp-prod"]
    (folder / "samconfig.toml").write_text(f"[prod.deploy.parameters]\nparameter_overrides = {overrides}\n")
    monkeypatch.setattr(building, "install", lambda project, target, python: target.mkdir(parents=True))
    done = CliRunner().invoke(group, ["package", str(folder), "--config-env", "prod"], catch_exceptions=False)
    assert done.exit_code == 0 and "to deploy it: sam deploy --config-env prod\n" in done.stderr


def test_the_project_itself_is_no_place_to_build(shout):
    with pytest.raises(InvalidInput, match="--out: .* a folder of its own"):
        package(read_project(shout), shout)


def test_what_an_earlier_call_did_not_write_is_not_replaced(shout, tmp_path):
    (tmp_path / "function").mkdir()
    (tmp_path / "function" / "app.py").write_text("")
    (tmp_path / "template.yaml").write_text("Resources: {}")
    with pytest.raises(InvalidInput, match="a new folder, an empty one, or one of an earlier call; this has other files"):
        package(read_project(shout), tmp_path)
    assert (tmp_path / "function" / "app.py").exists() and (tmp_path / "template.yaml").read_text() == "Resources: {}"


def test_nothing_is_written_among_files_of_somebody_else(shout, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="--out: .* a new folder, an empty one, or one of an earlier call"):
        package(read_project(shout), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_what_was_packaged_into_another_folder_is_not_shipped(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "build" / "function" / "sluice").mkdir(parents=True)
    (tmp_path / "build" / "function" / "weights.bin").write_bytes(b"old")
    (tmp_path / "built" / "function").mkdir(parents=True)
    (tmp_path / "built" / "function" / "weights.bin").write_bytes(b"the model's own")
    files = Project(tmp_path, "shout", "model.py:Shout").files(without=tmp_path / "elsewhere")
    assert files == [Path("built/function/weights.bin"), Path("model.py")]


def test_a_python_without_pip_is_told_how_it_gets_one(shout, tmp_path, monkeypatch):
    python = tmp_path / "a python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InvalidInput) as caught:
        package(read_project(shout), tmp_path / "build")
    quoted = f"'{python}'"
    told = f"a Python with pip ({quoted} -m ensurepip, or another's: pip --python {quoted} install pip)"
    assert str(caught.value) == f"pip: {quoted} is not allowed; allowed: {told}"


def test_a_file_in_the_place_of_the_folder_is_refused(shout, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="--out: .* a folder that can be written"):
        package(read_project(shout), tmp_path / "file")


def test_a_project_with_a_package_of_our_name_is_refused(shout, tmp_path):
    (tmp_path / "sluice").mkdir()
    (tmp_path / "sluice" / "a.py").write_text("")
    with pytest.raises(InvalidInput, match="another name: the function has sluice itself there"):
        package(Project(tmp_path, "shout", "model.py:Shout"), tmp_path / "build")


@pytest.mark.parametrize(("spare", "compiled"), [(1_000_000, True), (10, False)])
def test_the_libraries_are_compiled_where_there_is_room_for_it(spare, compiled, shout, tmp_path, monkeypatch):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / f"python{version}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (layer := tmp_path / "layer" / "python").mkdir(parents=True)
    (layer / "library.py").write_text("def f(): ...\n")
    assert compile_libraries(layer, version, room=spare) is compiled
    assert [path.suffix for path in layer.rglob("*.pyc")] == [".pyc"] * compiled
    assert compile_libraries(layer, "3.99", room=spare) is False


@pytest.mark.parametrize("version", ["3", "2.7", "3.13.1", "newest"])
def test_a_version_of_python_that_is_none_is_refused(version, shout, tmp_path):
    with pytest.raises(InvalidInput, match="--python: "):
        package(read_project(shout), tmp_path / "build", version)
