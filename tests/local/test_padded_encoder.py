"""The encoder that pads: alone as in a batch; measured over batch x size; served with classes of sizes by a real worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route, ServiceProfile, read, write
from sluice.buffer_service.invokers import InvokerBySyntax
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.lambda_fn import ItemError
from sluice.local.padded_encoder import LONGEST, PaddedEncoder, Tokens
from sluice.profiler.samples import Sample, describe_model
from sluice.profiler.service_times import Sweep, measure_service_times
from sluice.profiler.worker_invocations import WorkerInvocations
from tests.buffer_service.conftest import NO_BATCHING, Plans, serving
from tests.lambda_fn.test_example_models import inherited, worker

MODEL = """
import json
from pathlib import Path

from sluice.local.padded_encoder import PaddedEncoder, Tokens


class Small(PaddedEncoder):
    name = "small"

    def __init__(self) -> None:
        super().__init__(layers=1, width=32, heads=2)

    def predict(self, inputs: list[Tokens]) -> list[object]:
        with Path("batches").open("a") as log:
            print(json.dumps([len(one.tokens) for one in inputs]), file=log)
        return super().predict(inputs)
"""


@pytest.fixture(scope="module")
def encoder() -> PaddedEncoder:
    return PaddedEncoder(layers=2, width=32, heads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def texts(lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, 1000, length).tolist() for length in lengths]


def test_a_request_has_the_same_vector_alone_and_padded_to_the_longest_of_a_batch(encoder: PaddedEncoder) -> None:
    rows = [Tokens(row) for row in texts([3, 40, 1, 8, LONGEST])]
    together = np.array(encoder.predict(rows))
    alone = np.concatenate([encoder.predict([row]) for row in rows])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    turned = np.array(encoder.predict([Tokens(rows[1].tokens[::-1])]))
    assert np.abs(turned[0] - together[1]).max() > 0.1  # places count
    assert np.abs(together[0] - together[3]).max() > 0.1


def test_a_request_that_is_no_list_of_ids_fails_alone(encoder: PaddedEncoder) -> None:
    good, *bad = encoder.predict([Tokens(row) for row in ([5], [], [1] * (LONGEST + 1), [0], [1000], [-1])])
    assert not isinstance(good, ItemError) and all(isinstance(one, ItemError) and one.status == 422 for one in bad)


async def test_it_is_measured_at_two_batch_sizes_and_two_lengths_on_a_worker(folder: Path) -> None:
    samples = tuple(Sample(json.dumps({"tokens": row}).encode(), size=len(row)) for row in texts([4, 100]))
    async with worker({**inherited(), "SLUICE_MODEL": "model.py:Small"}, folder) as url:
        invoke = WorkerInvocations()
        described, _ = await asyncio.to_thread(describe_model, invoke, url, "small")
        asked = {"memory_sizes": (described.report.memory_mb,), "batch_sizes": (1, 4), "samples": samples, "model": "small"}
        sweep = Sweep(function=url, n_min=3, n_max=3, **asked)
        measured = await asyncio.to_thread(measure_service_times, sweep, invoke, np.random.default_rng(0))
    profile = read(ServiceProfile, write(measured.profile))
    assert [(p.batch_size, p.size) for p in profile.points] == [(1, 4.0), (1, 100.0), (4, 4.0), (4, 100.0)]
    assert profile.one_by_one is None and all(p.service_time.mean > 0 for p in profile.points)
    batches = {tuple(json.loads(line)) for line in (folder / "batches").read_text().splitlines()}
    assert batches == {(4,), (100,), (4, 4, 4, 4), (100, 100, 100, 100)}


async def test_mixed_lengths_are_served_in_batches_of_one_class_and_every_answer_is_right(folder: Path) -> None:
    lengths = [3, 120, 16, 17, 1, 64, 5, 200, 16, 90, 2, 33]
    rows = texts(lengths)
    async with worker({**inherited(), "SLUICE_MODEL": "model.py:Small"}, folder) as url:
        table = PolicyDocument.of(constructors.size_or_timeout(4, 0.1))
        routes = [Route("short", url, table, 0.5, up_to=16.0), Route("long", url, table, 0.5)]
        plan = Plan(model="small", routes=routes, size=RequestSize("json", "tokens"))
        backend = MemoryBackend()
        store = MemoryStore(backend, "aaaaaaaa")
        async with serving(None, NO_BATCHING, store, Plans(plan), InvokerBySyntax(30.0)) as buffer:  # type: ignore[arg-type]
            answers = await asyncio.gather(
                *(buffer.post("/models/small", json.dumps({"tokens": row}).encode()) for row in rows),
                buffer.post("/models/small", b'{"tokens": {}}'),
            )
    assert answers.pop()[0] == 400
    routes_taken = [headers["sluice-route"] for _, headers, _ in answers]
    assert routes_taken == ["short" if length <= 16 else "long" for length in lengths]
    reference = PaddedEncoder(layers=1, width=32, heads=2)
    for row, (status, _, body) in zip(rows, answers, strict=True):
        assert status == 200
        np.testing.assert_allclose(msgspec.json.decode(body), reference.predict([Tokens(row)])[0], rtol=1e-4, atol=1e-5)
    batches = [json.loads(line) for line in (folder / "batches").read_text().splitlines()]
    assert sorted(length for batch in batches for length in batch) == sorted(lengths)
    assert all(max(batch) <= 16 or min(batch) > 16 for batch in batches) and max(map(len, batches)) > 1
    assert sorted(backend.arrivals("small").sizes) == sorted(lengths)
