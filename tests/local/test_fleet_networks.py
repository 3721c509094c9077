"""The families are the same for the same seed, their variants are cuts of one network, and their accuracy is what it says."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from sluice.lambda_fn.contract import Item
from sluice.lambda_fn.models.onnx import OnnxModel
from sluice.local.fleet_networks import INPUT_SEED, Family, likeliest_class, make_encoder, make_mlp
from sluice.local.fleet_profiles import BATCH_SIZES, MEMORY_SIZES, measure_variant
from sluice.local.stack import AWS_ENVIRONMENT

pytestmark = pytest.mark.full

MLP = Family(
    "mlp",
    "rank",
    (64, 16, 4),
    functools.partial(make_mlp, widths=(16, 64, 64, 8)),
    "x",
    lambda rng, n: rng.standard_normal((n, 16), dtype=np.float32),
)
ENCODER = Family(
    "encoder",
    "layers",
    (4, 2, 1),
    functools.partial(make_encoder, depth=4, width=16, heads=2, tokens=8, vocabulary=50, classes=6),
    "tokens",
    lambda rng, n: rng.integers(0, 50, (n, 8)),
)
SMALL = (MLP, ENCODER)


@pytest.mark.parametrize("family", SMALL, ids=lambda family: family.name)
def test_the_same_seed_makes_the_same_networks(family: Family) -> None:
    for cut in family.cuts:
        assert family.make(cut) == family.make(cut)
        assert family.make(cut) != family.make(cut, seed=1)


@pytest.mark.parametrize("family", SMALL, ids=lambda family: family.name)
def test_a_batch_is_answered_as_its_items_are(family: Family, tmp_path: Path) -> None:
    for name, path in family.write(tmp_path).items():
        model = OnnxModel(name, str(path))
        (takes,), (gives,) = model.takes, model.gives
        assert takes.shape[0] == gives.shape[0] == -1
        inputs = family.inputs(np.random.default_rng(0), 5)
        together = model.compute({takes.name: inputs})[gives.name]
        alone = np.concatenate([model.compute({takes.name: row[None]})[gives.name] for row in inputs])
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_a_perceptron_of_full_rank_is_its_factors_multiplied_and_a_cut_keeps_the_best_of_it(tmp_path: Path) -> None:
    """Two roads to the cut: the factors that the variant has, and the singular value decomposition of what it was cut from."""
    widths = (256, 256)
    whole, cut = make_mlp(256, widths), make_mlp(32, widths)
    (matrix,) = (onnx.numpy_helper.to_array(weight) for weight in whole.graph.initializer)
    left, right = (onnx.numpy_helper.to_array(weight) for weight in cut.graph.initializer)
    assert left.shape == (256, 32) and right.shape == (32, 256)
    best = np.sum(np.linalg.svd(matrix, compute_uv=False)[32:] ** 2)
    lost = np.sum((matrix - left @ right) ** 2)
    assert best <= lost < 1.5 * best  # the columns drawn are nearly orthogonal


def test_a_factorisation_that_would_not_save_weights_is_not_made() -> None:
    sizes = [sum(np.prod(weight.dims) for weight in make_mlp(rank, (16, 64, 64, 8)).graph.initializer) for rank in (64, 33, 32, 16)]
    assert sizes[0] == 16 * 64 + 64 * 64 + 64 * 8
    assert sizes[1] == sizes[0] and sizes[2] == sizes[0]
    assert sizes[3] == 16 * 64 + 2 * 16 * 64 + 64 * 8


def test_an_encoder_that_ends_early_has_the_weights_of_the_whole_one() -> None:
    whole, cut = ([onnx.numpy_helper.to_array(weight) for weight in ENCODER.make(layers).graph.initializer] for layers in (4, 1))
    assert len(cut) < len(whole)
    for one in cut:
        assert any(one.shape == other.shape and np.array_equal(one, other) for other in whole)


@pytest.mark.parametrize("family", SMALL, ids=lambda family: family.name)
def test_accuracy_is_the_share_of_inputs_on_which_a_variant_names_the_class_of_the_whole_network(
    family: Family, tmp_path: Path
) -> None:
    files = family.write(tmp_path)
    accuracies = family.measure_accuracies(files, n=400)
    assert list(accuracies) == list(family.variants)
    inputs = family.inputs(np.random.default_rng(INPUT_SEED), 400)
    classes = [likeliest_class(path, inputs) for path in files.values()]
    agreeing = [sum(int(a == b) for a, b in zip(found, classes[0], strict=True)) for found in classes]
    assert list(accuracies.values()) == [100 * count / 400 for count in agreeing]
    # A cut is worth having only if it is nearer to the whole network than chance.
    assert agreeing[0] == 400 > agreeing[1] > agreeing[2] > 100


@pytest.mark.parametrize("family", SMALL, ids=lambda family: family.name)
def test_a_request_is_what_its_model_takes(family: Family, tmp_path: Path) -> None:
    smallest = list(family.variants)[-1]
    path = tmp_path / "smallest.onnx"
    path.write_bytes(family.make(family.cuts[-1]).SerializeToString())
    model = OnnxModel(smallest, str(path))
    row = family.inputs(np.random.default_rng(0), 1)[0]
    (answer,) = model.answer([Item("a", "application/json", family.request(row))])
    assert answer.status == 200
    (output,) = msgspec.json.decode(answer.body)["outputs"]
    assert int(np.argmax(output["data"])) == likeliest_class(path, row[None])[0]


@pytest.mark.proof
def test_a_sweep_measures_every_batch_size_on_every_type_of_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    profile = measure_variant(MLP, "mlp-rank16", MLP.write(tmp_path)["mlp-rank16"], max_seconds=3).profile
    assert profile.function == "mlp-rank16-{memory_mb}"
    assert profile.memory_sizes == list(profile.init) == list(MEMORY_SIZES)
    for memory_mb in MEMORY_SIZES:
        assert [point.batch_size for point in profile.points_at(memory_mb)] == list(BATCH_SIZES)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "sluice.local.fleet_networks", str(tmp_path / "file" / "networks")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"sluice.local.fleet_networks: {tmp_path / 'file' / 'networks'}: Not a directory\n"


def test_a_variant_that_there_is_not_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sluice.local.fleet_profiles", str(tmp_path), "--variants", "mlp-rank80,mlp-rank7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--variants: 'mlp-rank7' is not allowed; allowed: mlp-rank3072, mlp-rank320" in done.stderr
