"""`sluice profile` says what the sweep costs, runs it against the local Lambda runtime and writes the profile."""

from __future__ import annotations

import asyncio
import json

import pytest

from sluice.batching.documents import LinearServiceTime, ServiceProfile, read, write
from sluice.batching.errors import InvalidInput
from sluice.http.machine import memory_mb
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.local.functions import Function
from sluice.local.lambda_runtime import LambdaRuntime
from sluice.local.networks import make_mlp
from tests.lambda_fn.worker_sockets import running, served
from tests.profiler.test_way import Buffer, buffer  # noqa: F401


@pytest.fixture
def sluice(exit_of, monkeypatch, tmp_path):
    """Run `sluice` with a line of arguments in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)

    return lambda line: exit_of(*line.split())


@pytest.fixture
async def runtime(monkeypatch):
    ruler = {"SLUICE_MODEL_NAME": "ruler", "SLUICE_SLEEPER_INTERCEPT": "0.005", "SLUICE_SLEEPER_SLOPE": "0.001"}
    functions = [Function(name=f"ruler-{memory_mb}", memory_mb=memory_mb, environment=ruler) for memory_mb in (1769, 3008)]
    async with LambdaRuntime(functions) as runtime:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", runtime.url)
        yield runtime


async def test_a_sweep_prints_its_cost_first_then_a_table_and_writes_the_profile(runtime, sluice, tmp_path):
    line = "profile ruler-{memory_mb}:live --memory 1769,3008 --batch-size 1,8 --min-runs 5 --max-runs 10"
    code, out, err = await asyncio.to_thread(sluice, line)
    assert code == 0, err
    assert err.startswith(
        "The sweep costs at most 46 invocations, 120 s and 353 GB-s: USD 0.0047 on AWS us-east-1, arm64, prices of "
    )
    assert err.index("costs at most") < err.index("It took") < err.index("wrote profile.json")
    assert "Service times of ruler-{memory_mb}:live, ms" in out and "INIT of cold starts (runs): " in out
    assert "ms at 1769 MB (1)" in out and "ms at 3008 MB (1)" in out
    profile = read(ServiceProfile, (tmp_path / "profile.json").read_bytes())
    assert [(p.memory_mb, p.batch_size) for p in profile.points] == [(1769, 1), (1769, 8), (3008, 1), (3008, 8)]
    assert all(p.service_time.mean >= 0.005 + 0.001 * p.batch_size for p in profile.points)
    assert profile.function == "ruler-{memory_mb}:live" and profile.measured_at.endswith("Z")


async def test_a_sweep_is_kept_where_the_way_through_the_buffer_cannot_be_measured(runtime, sluice, tmp_path, buffer: Buffer):  # noqa: F811
    buffer.model = (200, {"plan": {"alone": {"function": "ruler-1769:live", "hold": 0.0}}})
    buffer.status = 429  # as of a key that may ask seldom
    line = f"profile ruler-{{memory_mb}}:live --memory 1769 --batch-size 1,8 --min-runs 5 --max-runs 10 --buffer {buffer.url}"
    code, out, err = await asyncio.to_thread(sluice, line)
    assert (code, out) == (1, "")
    assert err.endswith(f"profile.json is without the way through the buffer. sluice: {buffer.url} answered with status 429: said")
    profile = read(ServiceProfile, (tmp_path / "profile.json").read_bytes())
    assert profile.way is None and [p.batch_size for p in profile.points] == [1, 8]


async def test_a_network_of_a_fixed_batch_is_told_with_a_warning(monkeypatch, sluice, tmp_path):
    network = make_mlp(widths=(4, 3))
    network.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    (tmp_path / "fixed.onnx").write_bytes(network.SerializeToString())
    environment = {"SLUICE_MODEL": str(tmp_path / "fixed.onnx")}
    async with LambdaRuntime([Function(name="fixed-1769", environment=environment)]) as runtime:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", runtime.url)
        code, out, err = await asyncio.to_thread(sluice, "profile fixed-1769 --memory 1769 --batch-size 1,2 --max-runs 20")
    assert code == 0, err
    said = "the batch dimension of input 'x' is fixed: 1"
    assert f"warning: fixed computes a batch one by one, so batching saves next to nothing: {said}." in " ".join(err.split())
    assert f"batches are computed one by one: {said}" in " ".join(out.split())
    assert read(ServiceProfile, (tmp_path / "profile.json").read_bytes()).one_by_one == said


async def test_a_class_of_the_user_is_measured_with_a_request_of_his(monkeypatch, sluice, tmp_path):
    (tmp_path / "model.py").write_text(
        "class Doubler:\n    def predict(self, inputs: list[float]): return [2 * x for x in inputs]\n"
    )
    (tmp_path / "request.json").write_text("21")
    function = Function(name="doubler-1769", environment={"SLUICE_MODEL": "model.py:Doubler"}, working_directory=str(tmp_path))
    async with LambdaRuntime([function]) as runtime:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", runtime.url)
        line = "profile doubler-1769 --memory 1769 --batch-size 1,4 --min-runs 2 --max-runs 2 --json"
        code, _, err = await asyncio.to_thread(sluice, line)
        assert code == 2 and "a sample request: the model takes list[float], which cannot be made up" in " ".join(err.split())
        code, out, err = await asyncio.to_thread(sluice, f"{line} --payload request.json")
    assert code == 0, err
    assert [point["batch_size"] for point in json.loads(out)["points"]] == [1, 4]
    assert "one by one" not in err and json.loads(out)["one_by_one"] is None


async def test_json_is_the_one_document_on_stdout_and_no_file_is_written(runtime, sluice, tmp_path):
    (tmp_path / "body.json").write_text('{"x": 1}')
    line = "profile ruler-1769 --memory 1769 --batch-size 1 --min-runs 3 --max-runs 3 --payload body.json --json"
    code, out, _ = await asyncio.to_thread(sluice, line)
    assert code == 0
    assert json.loads(out)["points"][0]["service_time"]["n"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["body.json"]


async def test_a_sweep_less_precise_than_asked_says_so(runtime, sluice):
    line = "profile ruler-1769 --memory 1769 --batch-size 1 --min-runs 16 --max-runs 16 --precision 1e-9"
    code, _, err = await asyncio.to_thread(sluice, line)
    assert code == 0
    assert "1 of 1 points are less precise than 0.0%; the least precise is 1769 MB, batch size 1: ±" in err


async def test_of_the_default_batch_sizes_those_that_fit_into_a_payload_are_measured(runtime, sluice, tmp_path):
    (tmp_path / "large").write_text('"' + "x" * 2_500_000 + '"')
    line = "profile ruler-1769 --memory 1769 --payload large --min-runs 2 --max-runs 2 --json"
    code, out, err = await asyncio.to_thread(sluice, line)
    assert code == 0, err
    assert [point["batch_size"] for point in json.loads(out)["points"]] == [1, 2]
    assert "left out: batch sizes 4, 8, 16, 32, as a payload holds at most 2 of these requests" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("nobody --memory 512", 2, "function: 'nobody' is not allowed; allowed: a function of this account and region"),
        ("ruler-1769 --memory 512 --payload good", 2, "memory: 512 is not allowed; allowed: 1769, which is what ruler-1769 has"),
        (
            "ruler-1769 --memory 1769 --model other --payload good",
            2,
            "--model: 'other' is not allowed; allowed: the name by which ruler-1769 knows its model",
        ),
        ("ruler-1769 --memory 64 --payload good", 2, "memory: 64 is not allowed; allowed: memory sizes from 128 to 10240 MB"),
        ("ruler --memory 512,x --payload good", 2, "'512,x' is not allowed; allowed: whole numbers with commas between"),
        ("ruler --memory 512,1024 --payload good", 2, "function: 'ruler' is not allowed; allowed: a name with {memory_mb} in it"),
        ("ruler --memory 512 --payload absent", 2, "--payload: 'absent' is not allowed; allowed: a file that exists"),
        ("ruler --memory 512 --payload bad", 2, "payload: b'{oops' is not allowed; allowed: a JSON document"),
        (
            "ruler --memory 512 --payload large --batch-size 1,32",
            2,
            "batch_size: 32 is not allowed; allowed: at most 6, the largest batch of this payload",
        ),
        ("ruler --memory 512 --payload huge", 2, "batch_size: 1 is not allowed; allowed: none: a single request is too large"),
        (
            "ruler --memory 512 --payload 1=good --payload good",
            2,
            "--payload: '1=good good' is not allowed; allowed: SIZE=FILE of each, every size once, where there are several",
        ),
        ("ruler --memory 512 --payload 1=good --payload 1.0=good", 2, "SIZE=FILE of each, every size once"),
        ("ruler --memory 512 --payload -1=good", 2, "--payload: '-1' is not allowed; allowed: a size >= 0 before the file"),
        ("ruler --memory 512 --payload a=b", 2, "--payload: 'a=b' is not allowed; allowed: a file that exists"),
        ("ruler --memory 512 --payload good --header x", 2, "--header: 'x' is not allowed; allowed: NAME:VALUE"),
        (
            "ruler --memory 512 --payload good --out absent/p.json",
            2,
            "--out: 'absent/p.json' is not allowed; allowed: a writable path",
        ),
    ],
)
async def test_what_cannot_be_measured_names_field_and_value(runtime, sluice, tmp_path, arguments, code, message):
    (tmp_path / "good").write_text("{}")
    (tmp_path / "bad").write_text("{oops")
    (tmp_path / "large").write_text('"' + "x" * 1_000_000 + '"')
    (tmp_path / "huge").write_text('"' + "x" * 7_000_000 + '"')
    found, out, err = await asyncio.to_thread(sluice, f"profile {arguments}")
    assert message in err
    assert (found, out) == (code, "")
    assert not (tmp_path / "profile.json").exists()


async def test_a_sweep_that_fails_leaves_an_earlier_profile_as_it_was(runtime, sluice, tmp_path):
    earlier = write(ServiceProfile(function="ruler-512", service_time=LinearServiceTime(0.005, 0.001)))
    (tmp_path / "profile.json").write_bytes(earlier)
    (tmp_path / "body.json").write_text("{}")
    code, _, err = await asyncio.to_thread(sluice, "profile ruler-1769 --memory 512 --payload body.json")
    assert code == 2 and "memory: 512 is not allowed; allowed: 1769" in err
    assert (tmp_path / "profile.json").read_bytes() == earlier


async def test_a_worker_is_measured_by_its_address_and_says_itself_how_long_it_computed(sluice, tmp_path):
    async with running(served(Sleeper("ruler", 0.004, 0.001))) as (_, url):
        code, out, err = await asyncio.to_thread(sluice, f"profile {url} --batch-size 1,4 --min-runs 5 --max-runs 10")
    assert code == 0, err
    assert err.startswith("The sweep costs at most 24 invocations and 120 s; to that add")
    assert f"Service times of {url}, ms" in out
    profile = read(ServiceProfile, (tmp_path / "profile.json").read_bytes())
    assert [(p.memory_mb, p.batch_size) for p in profile.points] == [(memory_mb(), 1), (memory_mb(), 4)]
    assert all(0.004 + 0.001 * p.batch_size <= p.service_time.mean == p.billed_duration for p in profile.points)
    assert all(p.overhead > 0 for p in profile.points)


async def test_every_size_is_measured_where_the_payloads_have_sizes(runtime, sluice, tmp_path):
    for size in (10, 100):
        (tmp_path / f"of-{size}.json").write_text(f'{{"size": {size}}}')
    payloads = "--payload 100=of-100.json --payload 10=of-10.json"
    line = f"profile ruler-{{memory_mb}}:live --memory 1769,3008 --batch-size 1,4 {payloads} --min-runs 3 --max-runs 3"
    code, out, err = await asyncio.to_thread(sluice, line)
    assert code == 0, err
    assert err.startswith("The sweep costs at most 33 invocations")
    assert " size " in " ".join(out.split()) and "│ 100 │" in " ".join(out.split())
    profile = read(ServiceProfile, (tmp_path / "profile.json").read_bytes())
    settings = [(p.memory_mb, p.batch_size, p.size) for p in profile.points]
    assert settings == [(m, b, s) for m in (1769, 3008) for b in (1, 4) for s in (10.0, 100.0)]


async def test_the_sizes_of_a_worker_that_pads_are_measured(sluice, tmp_path):
    (tmp_path / "short").write_text("5")
    (tmp_path / "long").write_text("20")
    async with running(served(Sleeper("ruler", 0.002, 0.001, 0.0005))) as (_, url):
        line = f"profile {url} --batch-size 1,4 --payload 5=short --payload 20=long --min-runs 5 --max-runs 10"
        code, _, err = await asyncio.to_thread(sluice, line)
    assert code == 0, err
    profile = read(ServiceProfile, (tmp_path / "profile.json").read_bytes())
    assert profile.sizes == [5.0, 20.0]
    assert all(p.service_time.mean >= 0.002 + (0.001 + 0.0005 * p.size) * p.batch_size for p in profile.points)


async def test_of_a_worker_with_several_models_one_must_be_named(sluice):
    async with running(served(Sleeper("one")), served(Sleeper("two"))) as (_, url):
        code, _, err = await asyncio.to_thread(sluice, f"profile {url} --batch-size 1")
        assert (code, err) == (2, "sluice: --model: none was given; needed: what the worker serves: one, two")
        code, _, err = await asyncio.to_thread(sluice, f"profile {url} --batch-size 1 --model two --max-runs 3 --min-runs 2")
        assert code == 0, err
        code, _, err = await asyncio.to_thread(sluice, f"profile {url}/nowhere --batch-size 1")
        assert code == 2
        assert "nowhere' is not allowed; allowed: the address of a worker (it answers 404" in err


def test_a_worker_that_is_not_there_is_told(sluice):
    code, _, err = sluice("profile http://127.0.0.1:9 --batch-size 1")
    assert code == 1
    assert err.startswith("sluice: the worker http://127.0.0.1:9 does not answer: ")
    code, _, err = sluice("profile mlp --batch-size 1")
    assert (code, err) == (2, "sluice: --memory: none was given; needed: memory sizes in MB, separated by commas")


def test_what_is_shown_to_the_buffer_is_not_shown_to_the_function(sluice, tmp_path, monkeypatch):
    asked = []

    def sweep(**said):
        asked.extend(sample.headers for sample in said["samples"])
        raise InvalidInput("this", "far", "what is looked at")

    monkeypatch.setattr("sluice.profiler.service_times.Sweep", sweep)
    (tmp_path / "request.json").write_text("21")
    headers = "--header X-API-Key:s3cret --header authorization:Bearer --header accept-language:de"
    assert "this" in sluice(f"profile doubler --memory 512 --payload request.json {headers}")[2]
    assert asked == [{"accept-language": "de"}]
