"""Systems Manager and Lambda's control plane, as docs/deploy.md uses them, against moto's server."""

from __future__ import annotations

import io
import json
import zipfile

import boto3
import pytest
from botocore.exceptions import ClientError

from sluice.batching.documents import Plan, PolicyDocument, Slo, read, write
from sluice.batching.policy import size_or_timeout
from sluice.buffer_service.plans import PlanFollower, SsmPlans

PLAN = Plan(model="mlp", function="mlp-1769:live", policy=PolicyDocument.of(size_or_timeout(8, 0.05)), slo=Slo(0.2), memory_mb=1769)


def put(plan: Plan, value: str | None = None) -> None:
    boto3.client("ssm").put_parameter(
        Name=f"/sluice/plans/{plan.model}",
        Value=value or write(plan).decode(),
        Type="String",
        Tier="Intelligent-Tiering",
        Overwrite=True,
    )


def package() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sluice/lambda_fn/handler.py", "def handler(event, context): return event")
    return file.getvalue()


@pytest.fixture
def function(moto_server: str) -> str:
    """A function of one memory size, created as the template would."""
    trust = {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}}]}
    role = boto3.client("iam").create_role(RoleName="function", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    boto3.client("lambda").create_function(
        FunctionName="mlp-1769",
        Runtime="python3.13",
        Handler="sluice.lambda_fn.handler.handler",
        Role=role,
        MemorySize=1769,
        Code={"ZipFile": package()},
    )
    return "mlp-1769"


def test_a_plan_put_as_a_parameter_is_found_by_its_path(moto_server: str) -> None:
    put(PLAN)
    boto3.client("ssm").put_parameter(Name="/elsewhere/mlp", Value="not a plan", Type="String")
    documents = SsmPlans("/sluice/plans/").documents()
    assert list(documents) == ["/sluice/plans/mlp"]
    assert read(Plan, documents["/sluice/plans/mlp"]) == PLAN


def test_plans_beyond_one_page_are_all_found(moto_server: str) -> None:
    models = [f"model-{i:02}" for i in range(12)]  # GetParametersByPath answers at most 10 at a time
    for model in models:
        put(Plan(model=model, function=f"{model}-512:live", policy=PLAN.policy))
    assert sorted(SsmPlans("/sluice/plans/").documents()) == [f"/sluice/plans/{model}" for model in models]


async def test_the_buffer_follows_a_parameter_that_is_put_again(moto_server: str) -> None:
    followed: list[Plan] = []

    async def changed(plan: Plan) -> None:
        followed.append(plan)

    follower = PlanFollower(SsmPlans("/sluice/plans/"), 1.0, changed)
    put(PLAN)
    await follower.look()
    await follower.look()
    other = Plan(model="mlp", function="mlp-3538:live", policy=PLAN.policy)
    put(other)
    await follower.look()
    assert followed == [PLAN, other]


async def test_a_parameter_that_is_not_a_plan_changes_nothing(moto_server: str, caplog: pytest.LogCaptureFixture) -> None:
    refusals: list[None] = []

    async def changed(plan: Plan) -> None:
        raise AssertionError(plan)

    put(PLAN, '{"model": "mlp", "function": "mlp-1769:live", "policy": {"hold": [null], "take": [0]}}')
    await PlanFollower(SsmPlans("/sluice/plans/"), 1.0, changed, refusals.append).look()
    assert len(refusals) == 1
    assert "/sluice/plans/mlp" in caplog.text and "hold" in caplog.text


def test_an_alias_moves_to_the_version_that_is_published(function: str) -> None:
    client = boto3.client("lambda")
    first = client.publish_version(FunctionName=function)["Version"]
    arn = client.create_alias(FunctionName=function, Name="live", FunctionVersion=first)["AliasArn"]
    assert arn.endswith(":function:mlp-1769:live")
    assert client.get_function_configuration(FunctionName=function, Qualifier="live")["MemorySize"] == 1769

    client.update_function_configuration(FunctionName=function, MemorySize=2048)
    second = client.publish_version(FunctionName=function)["Version"]
    client.update_alias(FunctionName=function, Name="live", FunctionVersion=second)
    assert (first, client.get_alias(FunctionName=function, Name="live")["FunctionVersion"]) == ("1", second)


def test_a_function_that_does_not_exist_says_so(moto_server: str) -> None:
    with pytest.raises(ClientError) as caught:
        boto3.client("lambda").get_function_configuration(FunctionName="mlp-9999", Qualifier="live")
    assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
