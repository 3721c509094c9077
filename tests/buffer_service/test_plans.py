"""Plans are followed where they are written; what is wrong with one is said once and costs nothing that is in force."""

import asyncio
import logging
import os
from pathlib import Path

import boto3
import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route, Slo, write
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.plans import FilePlans, PlanFollower, SsmPlans, plan_source
from sluice.buffer_service.settings import Settings

PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine


def plan(model="mlp", function="mlp-512:live", timeout=0.1):
    return Plan(model=model, function=function, policy=PolicyDocument.of(constructors.size_or_timeout(4, timeout)))


class Buffer:
    """Who follows: remembers the plans in force, refuses functions that do not exist."""

    def __init__(self, source, interval=0.01):
        self.in_force, self.applied, self.refusals = {}, 0, 0
        self.missing, self.broken = set(), None
        self.happened = asyncio.Event()
        self.follower = PlanFollower(source, interval, self._changed, self._refused)

    async def _changed(self, plan):
        if self.broken is not None:
            raise self.broken
        if plan.function in self.missing:
            raise FunctionFailed(f"function: {plan.function!r} does not exist")
        self.in_force[plan.model] = plan
        self.applied += 1
        self.happened.set()

    def _refused(self, refusal):
        self.refusals += 1

    async def look(self):
        await self.follower.look()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(write(plan()))
    return path


@pytest.fixture
def errors(caplog):
    caplog.set_level(logging.INFO, "sluice.buffer_service.plans")

    def messages():
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]

    return messages


async def test_a_file_is_one_plan(file):
    buffer = Buffer(plan_source(Settings(plans=f"file:{file}")))
    await buffer.look()
    assert buffer.in_force == {"mlp": plan()}


async def test_a_folder_is_a_plan_for_every_json_file_that_is_not_hidden(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes(write(plan(name)))
    (tmp_path / "notes.txt").write_text("not a plan")
    (tmp_path / ".c.json").write_text("half writ")
    buffer = Buffer(plan_source(Settings(plans=f"file:{tmp_path}")))
    await buffer.look()
    assert (sorted(buffer.in_force), buffer.refusals) == (["a", "b"], 0)


async def test_a_changed_plan_is_followed_and_the_same_document_is_not_applied_again(file):
    buffer = Buffer(FilePlans(str(file)))
    await buffer.look()
    await buffer.look()
    assert buffer.applied == 1
    file.write_bytes(write(plan(timeout=0.2)))
    await buffer.look()
    assert (buffer.in_force["mlp"], buffer.applied) == (plan(timeout=0.2), 2)


async def test_a_folder_without_plans_is_told_of_once_and_a_plan_that_comes_is_followed(tmp_path, caplog):
    caplog.set_level(logging.INFO, "sluice.buffer_service.plans")
    buffer = Buffer(FilePlans(str(tmp_path)))
    await buffer.look()
    await buffer.look()
    assert caplog.messages == ["there is no plan yet where SLUICE_PLANS says, and until one is there nothing is served"]
    (tmp_path / "plan.json").write_bytes(write(plan()))
    await buffer.look()
    assert list(buffer.in_force) == ["mlp"] and len(caplog.messages) == 2 and "in force for mlp" in caplog.messages[1]


async def test_a_plan_that_holds_for_longer_than_it_promises_is_followed_and_that_is_said(tmp_path, caplog):
    path = tmp_path / "plan.json"
    for held, said in ((15.0, ["mlp: who waits for others may be held for 15 s, of 0.5 s that are promised"]), (0.4, [])):
        document = structs.replace(plan(timeout=held), slo=Slo(0.5), digest="")
        path.write_bytes(write(document))
        caplog.clear()
        buffer = Buffer(FilePlans(str(path)))
        await buffer.look()
        assert list(buffer.in_force) == ["mlp"] and caplog.messages == said


async def test_the_log_names_what_is_in_force_route_by_route(file, caplog):
    caplog.set_level(logging.INFO, "sluice.buffer_service.plans")
    policy = PolicyDocument.of(constructors.greedy(8))
    routes = [Route("small", "http://a:1", policy, 0.25), Route("large", "http://b:1", policy, 0.75)]
    document = Plan(model="family", routes=routes)
    file.write_bytes(write(document))
    await Buffer(FilePlans(str(file))).look()
    told = "small with 25 %: greedy on http://a:1, large with 75 %: greedy on http://b:1"
    assert caplog.messages == [f"{file}: plan {document.digest} in force for family: {told}"]
    sized = Plan(model="family", routes=[structs.replace(routes[0], up_to=64), routes[1]], size=RequestSize("bytes"))
    file.write_bytes(write(sized))
    caplog.clear()
    await Buffer(FilePlans(str(file))).look()
    assert f"family: {told.replace('small', 'small up to 64')}" in caplog.messages[0]


async def test_follow_notices_a_change_by_itself(file):
    buffer = Buffer(FilePlans(str(file)))
    following = asyncio.create_task(buffer.follower.follow())
    try:
        async with asyncio.timeout(PATIENCE):
            await buffer.happened.wait()
            buffer.happened.clear()
            file.with_suffix(".new").write_bytes(write(plan(timeout=0.3)))
            os.replace(file.with_suffix(".new"), file)
            await buffer.happened.wait()
        assert buffer.in_force["mlp"] == plan(timeout=0.3)
    finally:
        following.cancel()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"model": "mlp"', 'Plan: \'{"model": "mlp"\' is not allowed; allowed: a JSON document'),
        (b'{"model": 3, "function": "f", "policy": {}}', "model: 3 is not allowed; allowed: expected `str`, got `int`"),
        (
            b'{"model": "mlp", "function": "f", "policy": {"hold": [null, -1], "take": [0, 1]}}',
            "policy: hold[1]: -1.0 is not allowed",
        ),
        (b'"\xff"', "can't decode byte 0xff"),
        (b"[" * 200_000, "allowed: a JSON document (maximum recursion depth exceeded"),
        (b'{"model": "mlp", "policy": {"hold": [null, 1e400]}}', "a JSON document (Number out of range"),
    ],
    ids=["not-json", "wrong-type", "wrong-value", "not-utf-8", "too-deep", "too-large"],
)
async def test_a_wrong_plan_is_refused_naming_file_field_and_value_and_the_one_in_force_goes_on(file, errors, document, message):
    buffer = Buffer(FilePlans(str(file)))
    await buffer.look()
    file.write_bytes(document)
    await buffer.look()
    assert buffer.in_force == {"mlp": plan()}
    [error] = errors()
    assert error.startswith(f"{file}: plan refused: ")
    assert message in error


async def test_a_refused_plan_is_reported_once_and_again_when_it_changes_or_returns(file, errors):
    buffer = Buffer(FilePlans(str(file)))
    wrong, also_wrong = b"wrong", b"also wrong"
    for document, reports in [(wrong, 1), (wrong, 1), (also_wrong, 2), (write(plan()), 2), (also_wrong, 3), (also_wrong, 3)]:
        file.write_bytes(document)
        await buffer.look()
        assert (buffer.refusals, len(errors())) == (reports, reports)
    file.write_bytes(write(plan()))
    await buffer.look()
    assert buffer.applied == 1  # it was in force all the time


async def test_a_plan_whose_function_does_not_exist_is_refused_and_taken_when_it_does(file, errors):
    buffer = Buffer(FilePlans(str(file)))
    buffer.missing = {"mlp-512:live"}
    for _ in range(3):
        await buffer.look()
    assert buffer.in_force == {}
    assert errors() == [f"{file}: plan refused: function: 'mlp-512:live' does not exist"]
    buffer.missing = set()
    await buffer.look()
    assert buffer.in_force == {"mlp": plan()}


async def test_one_wrong_plan_does_not_hinder_the_others(tmp_path, errors):
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "b.json").write_bytes(write(plan("b")))
    buffer = Buffer(FilePlans(str(tmp_path)))
    await buffer.look()
    assert list(buffer.in_force) == ["b"]
    [error] = errors()
    assert "a.json: plan refused: Plan: {} is not allowed; allowed: an object with the required field `model`" in error


async def test_even_an_error_of_the_buffer_itself_does_not_end_the_following(file, errors):
    buffer = Buffer(FilePlans(str(file)))
    buffer.broken = RuntimeError("a defect")
    await buffer.look()
    assert errors() == [f"{file}: plan refused: RuntimeError: a defect"]
    buffer.broken = None
    await buffer.look()
    assert buffer.in_force == {"mlp": plan()}


async def test_of_two_plans_for_one_model_the_second_is_refused_until_the_first_is_gone(tmp_path, errors):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_bytes(write(plan(timeout=0.1)))
    second.write_bytes(write(plan(timeout=0.2)))
    buffer = Buffer(FilePlans(str(tmp_path)))
    await buffer.look()
    assert buffer.in_force == {"mlp": plan(timeout=0.1)}
    assert errors() == [f"{second}: plan refused: model: 'mlp' is not allowed; allowed: one plan a model; {first} has it"]
    first.unlink()
    await buffer.look()
    assert buffer.in_force == {"mlp": plan(timeout=0.2)}


async def test_a_removed_plan_stays_in_force_and_is_applied_when_it_is_written_again(tmp_path, errors):
    path = tmp_path / "a.json"
    path.write_bytes(write(plan()))
    buffer = Buffer(FilePlans(str(tmp_path)))
    await buffer.look()
    path.unlink()
    await buffer.look()
    assert (buffer.in_force, errors()) == ({"mlp": plan()}, [])
    path.write_bytes(write(plan()))
    await buffer.look()
    assert buffer.applied == 2


async def test_a_place_that_is_not_readable_is_reported_once_and_the_plans_go_on(file, errors):
    buffer = Buffer(FilePlans(str(file)))
    await buffer.look()
    document = file.read_bytes()
    file.unlink()
    for _ in range(3):
        await buffer.look()
    assert buffer.in_force == {"mlp": plan()}
    reason = "a readable file or folder (No such file or directory)"
    assert errors() == [f"plans are not readable: SLUICE_PLANS: {str(file)!r} is not allowed; allowed: {reason}"]
    file.write_bytes(document)
    await buffer.look()
    file.unlink()
    await buffer.look()
    assert (buffer.applied, len(errors())) == (1, 2)


def a_link_to_itself(path):
    path.symlink_to(path.name)


def a_link_to_a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (a_link_to_itself, "Too many levels of symbolic links"),
        (a_link_to_a_device, "not a regular file"),
    ],
)
async def test_what_is_no_file_in_a_folder_is_refused_and_the_others_are_followed(tmp_path, errors, make, reason):
    place, other = tmp_path / "a.json", tmp_path / "b.json"
    place.write_bytes(write(plan()))
    other.write_bytes(write(plan("b")))
    buffer = Buffer(FilePlans(str(tmp_path)))
    await buffer.look()
    place.unlink()
    make(place)
    other.write_bytes(write(plan("b", timeout=0.2)))
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            await buffer.look()
    assert buffer.in_force == {"mlp": plan(), "b": plan("b", timeout=0.2)}
    assert errors() == [f"{place}: plan refused: document: {reason!r} is not allowed; allowed: a file that can be read"]
    assert [refusal.place for refusal in buffer.follower.refusals("mlp")] == [str(place)]


async def test_a_pipe_that_nobody_writes_into_holds_up_nobody_who_looks_for_one_plan(tmp_path, errors):
    os.mkfifo(tmp_path / "plan.json")
    async with asyncio.timeout(PATIENCE):
        await Buffer(FilePlans(str(tmp_path / "plan.json"))).look()
    assert len(errors()) == 1
    assert "a readable file or folder (not a regular file)" in errors()[0]


# -- Parameter Store


@pytest.fixture(scope="module")
def moto_url():
    from moto.server import ThreadedMotoServer  # slow to import, and every worker imports this module

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def ssm(moto_url, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-central-1",  # where ECS says it, and boto3 does not look
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return boto3.client("ssm", region_name="eu-central-1")


async def test_every_parameter_below_a_path_is_a_plan_however_many_pages_there_are(ssm):
    models = {f"model-{i:02}" for i in range(25)}  # a page has 10
    for model in models:
        ssm.put_parameter(Name=f"/many/plans/{model}", Value=write(plan(model)).decode(), Type="String")
    ssm.put_parameter(Name="/many/other", Value="not a plan", Type="String")
    buffer = Buffer(plan_source(Settings(plans="ssm:/many/plans/")))
    await buffer.look()
    assert (buffer.in_force.keys(), buffer.refusals) == (models, 0)


async def test_a_parameter_that_changes_is_followed_and_a_wrong_one_named(ssm, errors):
    def put(value):
        ssm.put_parameter(Name="/one/plans/mlp", Value=value, Type="String", Overwrite=True)

    put(write(plan()).decode())
    buffer = Buffer(SsmPlans("/one/plans/"))
    await buffer.look()
    put(write(plan(timeout=0.2)).decode())
    await buffer.look()
    assert (buffer.in_force["mlp"], buffer.applied) == (plan(timeout=0.2), 2)
    put('{"model": 3}')
    await buffer.look()
    [error] = errors()
    assert error.startswith("/one/plans/mlp: plan refused: model: 3 is not allowed")
    assert buffer.in_force["mlp"] == plan(timeout=0.2)


async def test_a_parameter_store_that_is_away_is_reported_and_the_plans_go_on(ssm, errors):
    client = boto3.client(
        "ssm", endpoint_url="http://127.0.0.1:1", region_name="x", config=boto3.session.Config(retries={"total_max_attempts": 1})
    )
    buffer = Buffer(SsmPlans("/one/plans/", client))
    await buffer.look()
    [error] = errors()
    assert error.startswith("plans are not readable: Could not connect to the endpoint URL")
