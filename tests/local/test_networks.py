"""The networks are the same for the same seed, take any batch, and answer a batch as its items."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.local.networks import make_googlenet, make_mlp, write_network

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("name", "shape"), [("mlp", (512,)), ("googlenet", (3, 224, 224))])
def test_a_batch_of_four_equals_four_singles(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = OnnxModel(name, str(write_network(name, tmp_path / f"{name}.onnx")))
    (takes,), (gives,) = model.takes, model.gives
    assert takes.shape == (-1, *shape)
    rng = np.random.default_rng(0)
    x = np.concatenate([scale * rng.standard_normal((1, *shape), dtype=np.float32) for scale in (1, 2, 4, 8)])
    together = model.compute({takes.name: x})[gives.name]
    alone = np.concatenate([model.compute({takes.name: row[None]})[gives.name] for row in x])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-7)
    # The output depends on the input: with the constant weights of the shipped graph it would not.
    assert np.abs(together[0] - together[3]).max() > 0.1 * np.abs(together).max()


def test_the_same_seed_makes_the_same_network() -> None:
    small = (4, 8, 3)
    assert make_mlp(1, small).SerializeToString(deterministic=True) == make_mlp(1, small).SerializeToString(deterministic=True)
    assert make_mlp(1, small) != make_mlp(2, small)
    assert make_googlenet(1) == make_googlenet(1)


def test_the_program_writes_a_network_that_onnx_accepts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "googlenet.onnx"
    done = subprocess.run([sys.executable, "-m", "sluice.local.networks", "googlenet", str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == f"{path}: {path.stat().st_size / 1e6:.1f} MB\n"
    onnx.checker.check_model(str(path))


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "sluice.local.networks", "googlenet", str(tmp_path / "file" / "x.onnx")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("sluice.local.networks: ") and "file" in done.stderr
