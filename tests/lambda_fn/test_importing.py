"""What SLUICE_MODEL names is found and made; where it cannot be, the start says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.lambda_fn.contract import Item
from sluice.lambda_fn.loading import LoadingError, load_model
from sluice.lambda_fn.models.base import Model

DOUBLER = """
from __future__ import annotations

from {neighbour} import FACTOR


class TwiceAsMuch:
    def __init__(self, factor: int = FACTOR) -> None:
        self.factor = factor

    def predict(self, inputs: list[float]) -> list[float]:
        return [self.factor * x for x in inputs]


class Named(TwiceAsMuch):
    name = "by_class"


def made() -> TwiceAsMuch:
    return TwiceAsMuch(3)


ready = TwiceAsMuch(4)
"""

Write = Callable[..., dict[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Puts code into a file of a fresh folder; returns the environment whose task root that folder is."""
    before, path = set(sys.modules), list(sys.path)

    def put(code: str, name: str = "served.py") -> dict[str, str]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
        return {"LAMBDA_TASK_ROOT": str(tmp_path)}

    yield put
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def result(model: Model) -> bytes:
    (answer,) = model.answer([Item("a", "application/json", b"10")])
    return answer.body


@pytest.mark.parametrize(
    ("named", "name", "expected"),
    [
        ("served.py:TwiceAsMuch", "twice-as-much", b"20.0"),
        ("served:TwiceAsMuch", "twice-as-much", b"20.0"),
        ("served.py:Named", "by_class", b"20.0"),
        ("served.py:made", "made", b"30.0"),
        ("served.py:ready", "ready", b"40.0"),
        ("within/served.py:TwiceAsMuch", "twice-as-much", b"50.0"),
        ("within.served:TwiceAsMuch", "twice-as-much", b"50.0"),
    ],
)
def test_a_class_a_function_or_an_object_of_a_module_or_a_file_is_served(
    write: Write, named: str, name: str, expected: bytes
) -> None:
    if named.startswith("within"):
        write("FACTOR = 5", "within/factor.py")
        write("", "within/__init__.py")
        environment = write(DOUBLER.format(neighbour="factor" if ".py:" in named else "within.factor"), "within/served.py")
    else:
        write("FACTOR = 2", "factor.py")
        environment = write(DOUBLER.format(neighbour="factor"))
    model = load_model({**environment, "SLUICE_MODEL": named})
    assert (model.name, result(model)) == (name, expected)
    assert load_model({**environment, "SLUICE_MODEL": named, "SLUICE_MODEL_NAME": "other"}).name == "other"


@pytest.mark.parametrize(
    ("class_", "name"),
    [("TextEncoder", "text-encoder"), ("JPEGLabels", "jpeg-labels"), ("mlp_2", "mlp-2"), ("MlpV2", "mlp-v2")],
)
def test_the_name_of_a_class_is_its_model_in_lower_case_with_dashes(write: Write, class_: str, name: str) -> None:
    environment = write(f"class {class_}:\n    def predict(self, inputs): return inputs")
    assert load_model({**environment, "SLUICE_MODEL": f"served.py:{class_}"}).name == name


@pytest.mark.parametrize(
    ("named", "code", "message"),
    [
        ("nobody:M", "", "SLUICE_MODEL: 'nobody:M': there is no module 'nobody', neither in "),
        ("served.nobody:M", "", "there is no module 'served.nobody', neither in "),
        ("nobody.py:M", "", "nobody.py' is not a file"),
        ("served.py:M", "class A:\n    def predict(self, inputs): ...", "served.py has no 'M'; classes with predict there: A"),
        ("served.py:M", "class M: ...", "M has no method predict; allowed: def predict(self, inputs)"),
        ("served.py:M", "class M:\n    predict = 3", "M has no method predict"),
        ("served.py:M", "M = 3", "M is int; allowed: a class, an object with predict, or what makes one"),
        ("served.py:M", "def M(): return 3", "int, which M() returned, has no method predict"),
        (
            "served.py:M",
            "class M:\n    async def predict(self, inputs): ...",
            "predict of M is asynchronous; allowed: a plain",
        ),
        ("served.py:M", "class M:\n    def predict(self, inputs): yield 1", "predict of M is a generator; allowed: a plain method"),
        ("served.py:M", "class M:\n    def predict(self): ...", "predict takes (); allowed: one list of inputs"),
        ("served.py:M", "class M:\n    def predict(self, inputs: str): ...", "the inputs of predict are str; allowed: a list"),
        ("served.py:M", "class M:\n    def __init__(self, path): ...\n    predict = len", "M takes (path); allowed: no arguments"),
        ("served.py:M", "import nowhere", "importing served failed: ModuleNotFoundError: No module named 'nowhere' ("),
        ("served.py:M", "\n1 / 0", "importing served failed: ZeroDivisionError: division by zero ("),
        ("served.py:M", "import sys\nsys.exit(0)", "importing served failed: SystemExit: 0 ("),
        (
            "served.py:M",
            "class M:\n    def __init__(self): exit('no file')\n    predict = len",
            "M() failed: SystemExit: no file (",
        ),
        ("served.py:M", "def (", "importing served failed: SyntaxError: invalid syntax ("),
        ("json.py:M", "", "json.py' has the name of another module, from "),
        ("a.b.py:M", "", "a.b.py' cannot be imported; allowed: a file's name without dots"),
    ],
)
def test_what_cannot_be_served_is_told_with_its_cause(write: Write, named: str, code: str, message: str) -> None:
    for file in ("json.py", "a.b.py"):
        write("class M:\n    def predict(self, inputs): ...", file)
    environment = write(code)
    with pytest.raises(LoadingError) as caught:
        load_model({**environment, "SLUICE_MODEL": named})
    assert str(caught.value).startswith(f"SLUICE_MODEL: '{named}': ")
    assert message in str(caught.value)


def test_what_cannot_be_served_is_not_started(write: Write, tmp_path: Path) -> None:
    started = f"open({str(tmp_path / 'started')!r}, 'w').close()"
    environment = write(f"class M:\n    def predict(self, inputs: list[str]): ...\n    def start(self): {started}")
    with pytest.raises(LoadingError, match="SLUICE_MODEL_NAME"):
        load_model({**environment, "SLUICE_MODEL": "served.py:M", "SLUICE_MODEL_NAME": "no name"})
    assert not (tmp_path / "started").exists()
    load_model({**environment, "SLUICE_MODEL": "served.py:M"})
    assert (tmp_path / "started").exists()


def test_models_of_two_folders_loaded_by_turns_do_not_make_the_path_longer(write: Write, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    code = "class M:\n    def predict(self, inputs): ..."
    environments = [write(code, f"{folder}/{folder}_served.py") for folder in "ab"]
    lengths = []
    for _ in range(3):
        for folder, environment in zip("ab", environments, strict=True):
            load_model({**environment, "SLUICE_MODEL": f"{folder}/{folder}_served.py:M"})
        lengths.append(len(sys.path))
    assert len(set(lengths)) == 1


def test_an_error_of_a_library_is_told_with_the_line_that_called_it(write: Write, tmp_path: Path) -> None:
    code = (
        "import json\nclass M:\n    def __init__(self):\n        self.labels = json.loads('{')\n    def predict(self, inputs): ..."
    )
    environment = write(code)
    with pytest.raises(LoadingError) as caught:
        load_model({**environment, "SLUICE_MODEL": "served.py:M"})
    assert "M() failed: json.decoder.JSONDecodeError: Expecting property name" in str(caught.value)
    assert str(caught.value).endswith(f"({tmp_path}/served.py, line 4, in __init__)")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_sluice_itself_is_told_with_the_line_that_called_it(write: Write, tmp_path: Path) -> None:
    environment = write("from sluice.lambda_fn import TensorSpec\nclass M:\n    takes = (TensorSpec('x', 'float32', (-1, 4)),)")
    with pytest.raises(LoadingError, match="datatype of 'x': 'float32' is not allowed; allowed: BOOL") as caught:
        load_model({**environment, "SLUICE_MODEL": "served.py:M"})
    assert str(caught.value).endswith(f"({tmp_path}/served.py, line 3, in M)")


@pytest.mark.parametrize("takes", ["('x', 'FP32', (-1, 4))", "3", "'x'"])
def test_tensors_that_are_none_are_named(write: Write, takes: str) -> None:
    environment = write(f"class M:\n    gives = {takes}\n    def predict(self, inputs): ...")
    with pytest.raises(
        LoadingError, match="'served.py:M': gives: .* is not allowed; allowed: a list or a tuple of TensorSpec, as in"
    ):
        load_model({**environment, "SLUICE_MODEL": "served.py:M"})


def start(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    return subprocess.run(command, env=inherited | environment, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_worker_whose_model_fails_at_the_start_shows_the_traceback_and_the_cause(write: Write, tmp_path: Path) -> None:
    write("class M:\n    def __init__(self): open('weights.bin')\n    def predict(self, inputs): ...")
    done = start({"SLUICE_MODEL": "served.py:M"}, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback (most recent call last):" in done.stderr
    *_, last = done.stderr.splitlines()
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'weights.bin'"
    where = f"({tmp_path}/served.py, line 2, in __init__)"
    assert last == f"sluice.lambda_fn.worker: SLUICE_MODEL: 'served.py:M': M() failed: {error} {where}"


def test_a_function_whose_model_fails_at_the_start_fails_its_initialisation_with_the_cause(write: Write, tmp_path: Path) -> None:
    write("class M: ...")
    environment = {**os.environ, "SLUICE_MODEL": "served.py:M", "LAMBDA_TASK_ROOT": str(tmp_path)}
    command = [sys.executable, "-c", "import sluice.lambda_fn.handler"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "LoadingError: SLUICE_MODEL: 'served.py:M': M has no method predict" in done.stderr.splitlines()[-1]
