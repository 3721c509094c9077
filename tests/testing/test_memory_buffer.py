"""What a buffer in the memory of a test does beside what docs/testing.md shows of it, and what it says of what is not allowed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sluice.batching.documents import Plan, PolicyDocument, Route, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import no_batching, size_or_timeout, static
from sluice.testing import Sent, memory_buffer
from sluice.testing.account import Account
from sluice.testing.functions import name_of
from sluice.testing.virtual_time import Deadlock, VirtualLoop
from tests.aws.conftest import Template

PAIRS = size_or_timeout(2, 0.02)


def doubled(inputs: list[int]) -> list[int]:
    return [2 * x for x in inputs]


class Named:
    name = "own-name"

    def predict(self, inputs: list[int]) -> list[int]:
        return inputs


def plan(function: str = "f", **more) -> Plan:
    return Plan(model="m", function=function, policy=PolicyDocument.of(PAIRS), **more)


def test_requests_of_one_time_come_in_the_order_in_which_they_were_sent():
    with memory_buffer(doubled, size_or_timeout(3, 0.02)) as buffer:
        sent = [buffer.send(i, after=0.5) for i in range(7)]
        assert [each.answer.batch_size for each in sent] == [3, 3, 3, 3, 3, 3, 1]
        assert [(round(each.at, 2), each.size) for each in buffer.invocations] == [(0.5, 3), (0.5, 3), (0.52, 1)]


def test_nothing_happens_until_the_test_waits():
    with memory_buffer(doubled, PAIRS) as buffer:
        sent = buffer.send(1)
        assert (sent.is_answered, buffer.now, buffer.invocations) == (False, 0.0, [])
        buffer.sleep(0.019)
        assert not sent.is_answered
        buffer.sleep(0.002)
        assert sent.is_answered


def test_who_gives_up_is_in_no_batch():
    with memory_buffer(doubled, PAIRS) as buffer:
        gone = buffer.send(1)
        buffer.sleep(0.01)
        gone.give_up()
        assert buffer.ask(2).batch_size == 1
        assert not gone.is_answered


def test_models_answer_for_the_functions_that_a_mapping_has_them_by():
    routes = [Route(name, name, PolicyDocument.of(no_batching()), 0.5) for name in ("small", "large")]
    models = {"small": lambda inputs: ["small"] * len(inputs), "large": lambda inputs: ["large"] * len(inputs)}
    with memory_buffer(models, Plan(model="m", routes=routes)) as buffer:
        answers = buffer.ask_all([0] * 4)
        assert sorted(answer.json for answer in answers) == ["large", "large", "small", "small"]
        assert all(answer.headers["sluice-route"] == answer.json for answer in answers)


def test_a_plan_may_come_from_its_file_and_metadata_name_the_model_that_it_is_for(tmp_path):
    (tmp_path / "plan.json").write_bytes(write(plan()))
    with memory_buffer(doubled, tmp_path / "plan.json") as buffer:
        assert buffer.models == ["m"]
        assert buffer.get("/v2/models/m").json["name"] == "m"
    with memory_buffer(doubled, f"file:{tmp_path}") as buffer, pytest.raises(InvalidInput, match="^follow: 'a buffer whose plans"):
        buffer.follow(PAIRS)


def test_another_plan_is_followed_from_its_file_and_what_is_no_plan_is_refused(tmp_path):
    of_three = Plan(model="m", function="f", policy=PolicyDocument.of(size_or_timeout(3, 0.02)))
    (tmp_path / "plan.json").write_bytes(write(of_three))
    with memory_buffer(doubled, plan()) as buffer:
        buffer.follow(tmp_path / "plan.json")
        with pytest.raises(InvalidInput, match="^plan: 'nowhere.json' .* allowed: a plan, the path of its file, a policy$"):
            buffer.follow("nowhere.json")
        assert [answer.batch_size for answer in buffer.ask_all([1, 2, 3])] == [3, 3, 3]


def test_a_setting_may_have_its_unit():
    with memory_buffer(doubled, static(2, None), request_timeout="200ms") as buffer:
        answer = buffer.ask(1)
    assert (answer.status, round(answer.at, 3)) == (504, 0.2)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), None, "1"])
def test_a_batch_that_takes_no_time_that_there_is_fails_and_says_so(seconds):
    with memory_buffer(doubled, PAIRS, takes=lambda requests: seconds) as buffer:
        answer = buffer.ask(1)
    told = f"takes: {seconds!r} is not allowed; allowed:" if seconds is not None else "takes: none was given; needed:"
    assert answer.status == 500 and f"{told} a function to seconds >= 0" in answer.json["detail"]


def test_a_model_is_named_by_itself_its_class_or_its_function():
    assert [name_of(of) for of in (Named, Named(), VirtualLoop, doubled)] == ["own-name", "own-name", "virtual-loop", "doubled"]


def test_a_plan_that_is_refused_is_said_and_the_one_in_force_stays():
    with memory_buffer({"f": doubled}, plan()) as buffer:
        with pytest.raises(InvalidInput, match="one that can be followed: function: 'g' does not exist"):
            buffer.follow(plan("g"))
        assert buffer.ask(1).json == 2
    with pytest.raises(InvalidInput, match="function: 'g' does not exist"), memory_buffer({"f": doubled}, plan("g")):
        pass


def test_two_real_buffers_may_share_a_redis(redis_server):
    shared = {"time": "real", "redis_url": redis_server.url, "namespace": "tests-of-users"}
    with memory_buffer(doubled, PAIRS, **shared) as one, memory_buffer(doubled, PAIRS, **shared) as other:
        sent = [each.send(1) for each in (one, other)]
        assert [each.answer.json for each in sent] == [2, 2]
        place = one.ask(21, headers={"prefer": "respond-async"}).headers["location"]
        while (found := other.get(place)).status == 202:
            other.sleep(0.01)
        assert found.json == 42


def test_a_real_buffer_ends_with_who_still_waits_and_leaves_no_thread():
    before = threading.active_count()
    with memory_buffer(doubled, static(2, None), time="real") as buffer:
        waits = buffer.send(1)
        buffer.sleep(0.01)
    assert not waits.is_answered
    assert threading.active_count() <= before + 1  # of the executor that the loop had, which idles


def test_virtual_time_is_refused_in_a_test_that_is_asynchronous():
    said = "^time: 'virtual' is not allowed; allowed: real in a test that is itself asynchronous"

    async def make() -> None:
        with pytest.raises(InvalidInput, match=said), memory_buffer(doubled, PAIRS):
            pass

    async def wait_for(sent: Sent) -> None:
        with pytest.raises(InvalidInput, match=said):
            sent.answer  # noqa: B018

    asyncio.run(make())
    with memory_buffer(doubled, PAIRS) as buffer:
        asyncio.run(wait_for(buffer.send(1)))


def test_what_is_not_allowed_is_named():
    for arguments, options, said in (
        ((doubled, PAIRS), {"time": "quick"}, "^time: 'quick' is not allowed; allowed: virtual or real$"),
        ((doubled, "nowhere.json"), {}, "^plan: 'nowhere.json' is not allowed; allowed: a plan, the path of its file, a policy"),
        ((None, PAIRS), {}, "^plan: 'a policy' is not allowed; allowed: a plan, where there is not one model"),
        ((None, plan()), {}, "^time: 'virtual' is not allowed; .*: real, where functions are asked where the plan says they are"),
        ((doubled, PAIRS), {"redis_url": "redis://x"}, "^time: 'virtual' is not allowed; allowed: real, where Redis is asked"),
        ((int, PAIRS), {}, "^model: 0 is not allowed; allowed: a class or an object with predict"),
        ((doubled, None), {}, "^plan: none was given; needed: a plan, the path of its file, a policy"),
        ((doubled, PAIRS), {"takes": 0.05}, "^takes: 0.05 is not allowed; allowed: a function of how many requests"),
        ((doubled, PAIRS), {"max_queue_length": 0}, "MAX_QUEUE_LENGTH: 0 is not allowed"),
        ((doubled, PAIRS), {"max_queue_length": "ten"}, "MAX_QUEUE_LENGTH: 'ten' is not allowed; allowed: an integer"),
        ((doubled, PAIRS), {"max_queue": 10}, "^max_queue: 10 is not allowed; .*; did you mean max_queue_length[?]$"),
        (
            (doubled, PAIRS),
            {"colour": "red"},
            "^colour: .red. is not allowed; allowed: a setting of the buffer .[^;]*$",
        ),
    ):
        with pytest.raises(InvalidInput, match=said), memory_buffer(*arguments, **options):
            pass
    with memory_buffer(doubled, PAIRS) as buffer, pytest.raises(InvalidInput, match="^time: 'virtual' is not allowed; .*: real, "):
        buffer.url  # noqa: B018
    routed = Plan(model="n", function="f", policy=PolicyDocument.of(PAIRS))
    with memory_buffer(doubled, plan()) as buffer:
        buffer.follow(routed)
        with pytest.raises(InvalidInput, match="^path: '' is not allowed; allowed: one that names a model, .*: m, n$"):
            buffer.ask(1)
        assert buffer.ask(1, "/models/n").json == 2


def test_everybody_who_waits_for_nothing_is_told():
    loop = VirtualLoop()
    with pytest.raises(Deadlock, match="everybody waits at 0 s"):
        loop.run_until_complete(loop.create_future())
    loop.close()


@pytest.mark.parametrize("parameters", [{}, {"MemorySize1": "885", "MemorySize3": "none"}])
def test_an_account_has_the_names_of_the_template(parameters):
    account = Account("http://x", "net", "net-prod", parameters)
    template = Template({"ModelName": "net", "AWS::StackName": "net-prod", **parameters})
    assert account.plan_parameter == template.resource("Plan")["Name"]
    made = template.of_type("AWS::Serverless::Function").values()
    assert set(account.functions) == {function["FunctionName"] for function in made if "FunctionName" in function}
    container = template.resource("BufferTask")["ContainerDefinitions"][0]
    environment = {each["Name"]: each["Value"] for each in container["Environment"]}
    assert account.plans == environment["SLUICE_PLANS"]


def test_a_parameter_that_the_template_has_not_is_refused():
    for name in ("Memory", "ModelName"):
        with pytest.raises(
            InvalidInput, match=f"^parameter: '{name}' is not allowed; allowed: one of the template's that has a default; the model"
        ):
            Account("http://x", "net", "net-prod", {name: "885"})


def test_an_account_takes_the_values_that_the_template_takes():
    assert "net-prod-885" in Account("http://x", "net", "net-prod", {"MemorySize1": 885}).functions
    for model, parameters, said in (
        ("net", {"MemorySize1": 64}, "^MemorySize1 in the account: '64' is not allowed; allowed: what is of the form"),
        ("my net", {}, "^ModelName in the account: 'my net' is not allowed; allowed: what is of the form"),
    ):
        with pytest.raises(InvalidInput, match=said):
            Account("http://x", model, "net-prod", parameters)
