"""The template deployed for real, to a loopback AWS: `sluice package`, `sam deploy`, invocations, a buffer in front.

The loopback is `ministack`: it runs the functions' own packages in processes of its Python and needs neither docker nor root. What
it does not have (a container for the buffer, a cache behind the address, metric math in an alarm) is said in docs/deploy.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sluice.batching.documents import Plan, PolicyDocument, Slo, read, write
from sluice.batching.policy import no_batching, size_or_timeout
from sluice.lambda_fn.contract import JSON, Batch, Item, decode_answers, decode_metadata, encode_batch
from sluice.local.parent_death import die_with_parent
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from tests import sam_template

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
SAM = ROOT / ".venv-sam" / "bin" / "sam"
MINISTACK = ROOT / ".venv-ministack" / "bin" / "ministack"
STARTS_WITHIN = 30  # seconds
STEP_WITHIN = 180  # seconds, for one call of the SAM command line
WEIGHTS = np.array([[1, 10], [2, 20], [3, 30]], np.float32)


@dataclass(frozen=True)
class Loopback:
    """A running loopback AWS: its address, and the environment in which everything goes there."""

    url: str
    environment: dict[str, str]

    def client(self, service: str) -> Any:
        session = boto3.Session("test", "test", region_name="us-east-1")
        return session.client(service, endpoint_url=self.url)


def clean_environment() -> dict[str, str]:
    """This environment without AWS's, ours and make's variables, so that nobody's account is ever reached."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SLUICE_", "SAM_", "MAKE")) and k != "MFLAGS"}
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAM_CLI_TELEMETRY": "0",
    }


@contextlib.contextmanager
def child(command: list[str | Path], environment: dict[str, str], ready: str, log: Path) -> Iterator[None]:
    """A process in a group of its own that answers at ``ready``; the whole group is gone at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    try:
        address = re.fullmatch(r"http://([\d.]+):(\d+)(/.*)", ready)
        assert address is not None
        deadline = time.monotonic() + STARTS_WITHIN
        while not answers(address[1], int(address[2]), address[3]):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(
                    f"{Path(command[0]).name} did not answer at {ready} within {STARTS_WITHIN} s:\n{log.read_text()[-2000:]}"
                )
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(host: str, port: int, path: str) -> bool:
    """Whether a GET there is answered with 200."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(64).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False


def sam(*arguments: str | Path, environment: dict[str, str], cwd: Path = ROOT) -> str:
    """What the SAM command line prints; a failure fails the test with its last words."""
    done = subprocess.run(
        [SAM, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=STEP_WITHIN, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        pytest.fail(f"sam {arguments[0]} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


@pytest.fixture(scope="module")
def tools() -> None:
    missing = [str(tool.relative_to(ROOT)) for tool in (SAM, MINISTACK) if not tool.exists()]
    if missing:
        pytest.fail(
            f"{' and '.join(missing)} missing: run `make deploy-tools` once, or `make test` for the tests without deployment"
        )


@pytest.fixture(scope="module")
def loopback(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("ministack")
    port = chosen_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**clean_environment(), "AWS_ENDPOINT_URL": url, "__SAM_CLI_APP_DIR": str(folder / "sam")}
    settings = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "MINISTACK_HOST": "127.0.0.1", "LAMBDA_EXECUTOR": "local"}
    with child(
        [MINISTACK],
        {**environment, **settings, "TMPDIR": str(folder)},
        ready=f"{url}/_ministack/health",
        log=folder / "ministack.log",
    ):
        yield Loopback(url, environment)
    for unpacked in folder.glob("ministack-lambda-*"):  # 120 MB for every process of a function
        shutil.rmtree(unpacked)


def sluice(*arguments: str | Path, cwd: Path) -> None:
    command = [sys.executable, "-m", "sluice.cli.main", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=STEP_WITHIN, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        pytest.fail(f"sluice {arguments[0]} exited with {done.returncode}:\n{done.stderr[-4000:]}")


def package(project: Path) -> None:
    """For the loopback, which runs functions on this machine with its own Python, whatever runtime the template names."""
    python = re.search(r"^version = (\d+\.\d+)", (ROOT / ".venv-ministack" / "pyvenv.cfg").read_text(), re.M)
    assert python is not None
    sluice("package", "--python", python[1], cwd=project)


ARCHITECTURE = platform.machine().replace("aarch64", "arm64")
LOOPBACK = tomllib.loads((ROOT / "samconfig.toml").read_text())["loopback"]["deploy"]["parameters"]["parameter_overrides"]

NO_MORE_SIZES = [f"MemorySize{place}=none" for place in range(2, 6)]


def network_project(folder: Path) -> Path:
    """A project that serves the network y = x W."""
    n, m = WEIGHTS.shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", n])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", m])
    product = helper.make_node("MatMul", ["x", "W"], ["y"])
    graph = helper.make_graph([product], "product", [x], [y], [numpy_helper.from_array(WEIGHTS, "W")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "product.onnx")
    (folder / "requirements.txt").write_text("numpy\nonnxruntime\n")
    parameters = ["ModelName=mlp", "Model=product.onnx", f"Architecture={ARCHITECTURE}"]
    (folder / "samconfig.toml").write_text(f"[default.deploy.parameters]\nparameter_overrides = {parameters}\n")
    return folder


def question(*x: float) -> dict[str, Any]:
    """A request of the Open Inference Protocol v2 for one row."""
    return {"inputs": [{"name": "x", "shape": [1, len(x)], "datatype": "FP32", "data": list(x)}]}


def check_answer(body: bytes, *x: float) -> None:
    (output,) = msgspec.json.decode(body)["outputs"]
    assert (output["name"], output["shape"]) == ("y", [1, 2])
    np.testing.assert_allclose(output["data"], np.array(x, np.float32) @ WEIGHTS, rtol=1e-6)


@pytest.fixture(scope="module")
def stack(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """The loopback with the template deployed as samconfig.toml's environment `loopback` says."""
    project = network_project(tmp_path_factory.mktemp("network"))
    package(project)
    config = ("--config-file", ROOT / "samconfig.toml", "--config-env", "loopback")
    parameters = [
        *LOOPBACK,
        "ModelName=mlp",
        "Model=product.onnx",
        f"Architecture={ARCHITECTURE}",
        "MemorySize3=885",
        "MemorySize4=none",
        "MemorySize5=none",
    ]
    template = project / "build" / "template.yaml"
    sam("deploy", *config, "--template-file", template, "--parameter-overrides", *parameters, environment=loopback.environment)
    yield loopback
    shutil.rmtree(project / "build")


def test_sam_finds_the_template_valid(tools: None, tmp_path: Path) -> None:
    """With ``--lint`` all that it does is to ask cfn-lint."""
    environment = {**clean_environment(), "__SAM_CLI_APP_DIR": str(tmp_path)}
    assert "is a valid SAM Template" in sam("validate", "--lint", environment=environment)


SHIFTED = """
import json, sys
from samtranslator.translator.transform import transform
template, parameters = json.load(sys.stdin)
print(json.dumps(transform(template, parameters, None)))
"""
"""What CloudFormation gets of SAM."""


def transformed(environment: dict[str, str], **parameters: str) -> dict[str, Any]:
    """The resources of the template with these parameters, as CloudFormation has them to create."""
    template = sam_template.load(ROOT / "template.yaml")
    template["Globals"]["Function"]["CodeUri"] = "s3://bucket/function"
    template["Resources"]["InferenceLayer"]["Properties"]["ContentUri"] = "s3://bucket/layer"
    done = subprocess.run(
        [SAM.parent / "python", "-c", SHIFTED],
        input=msgspec.json.encode([template, parameters]),
        env=environment,
        capture_output=True,
        timeout=STEP_WITHIN,
    )
    assert done.returncode == 0, done.stderr.decode()
    resources: dict[str, Any] = msgspec.json.decode(done.stdout)["Resources"]
    return resources


def test_a_gradual_deployment_shifts_the_alias_of_each_function_and_one_at_once_has_no_codedeploy(tools: None) -> None:
    """The loopback has no CodeDeploy; this is what AWS makes of the template before it creates anything."""
    at_once = transformed(clean_environment())
    assert not [name for name, resource in at_once.items() if resource["Type"].startswith("AWS::CodeDeploy")]
    way = "Canary10Percent10Minutes"
    resources = transformed(clean_environment(), Deployment=way)
    versions = {name for name, resource in at_once.items() if resource["Type"] == "AWS::Lambda::Alias"}
    assert len(versions) == 12 and resources.keys() - at_once.keys() == {
        "ServerlessDeploymentApplication",
        *(f"{name.removesuffix('Aliaslive')}DeploymentGroup" for name in versions),
    }  # and no role of SAM's, which would be one for all functions of the account
    for name in versions:
        function = name.removesuffix("Aliaslive")
        alias, group = resources[name], resources[f"{function}DeploymentGroup"]
        assert alias["Condition"] == group["Condition"] == resources[function]["Condition"]
        assert alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"] == {
            "ApplicationName": {"Ref": "ServerlessDeploymentApplication"},
            "DeploymentGroupName": {"Ref": f"{function}DeploymentGroup"},
        }
        told = group["Properties"]
        assert told["ServiceRoleArn"]["Fn::If"][:2] == ["Gradual", {"Fn::GetAtt": ["DeploymentRole", "Arn"]}]
        (alarm,) = told["AlarmConfiguration"]["Alarms"]
        assert told["AlarmConfiguration"]["Enabled"] and alarm["Name"]["Fn::If"][:2] == ["Gradual", {"Ref": "DeploymentAlarm"}]
        assert (
            told["AutoRollbackConfiguration"]["Enabled"]
            and "DEPLOYMENT_STOP_ON_ALARM" in told["AutoRollbackConfiguration"]["Events"]
        )
        assert told["DeploymentConfigName"] == {"Fn::Sub": ["CodeDeployDefault.Lambda${ConfigName}", {"ConfigName": way}]}
    watched = resources["DeploymentAlarm"]["Properties"]["Metrics"]
    of_one = watched[1]["MetricStat"]["Metric"]["Dimensions"][-1]["Value"]
    made = {name for name, resource in resources.items() if resource["Type"] == "AWS::Lambda::Version"}
    assert {told["Fn::GetAtt"][0] for told in of_one["Fn::If"][1:]} <= made  # its name has a digest of what is deployed


def test_the_stack_is_created_completely(stack: Loopback) -> None:
    (deployed,) = stack.client("cloudformation").describe_stacks(StackName="sluice")["Stacks"]
    assert deployed["StackStatus"] == "CREATE_COMPLETE"
    assert {output["OutputKey"] for output in deployed["Outputs"]} == {
        *("Url", "Functions", "PlanParameter", "BufferLogGroup", "BufferRole")
    }


def test_the_outage_alarm_watches_the_deployed_load_balancer(stack: Loopback) -> None:
    (alarm,) = stack.client("cloudwatch").describe_alarms()["MetricAlarms"]
    (balancer,) = stack.client("elbv2").describe_load_balancers()["LoadBalancers"]
    (targets,) = stack.client("elbv2").describe_target_groups()["TargetGroups"]
    watched = {d["Name"]: d["Value"].removeprefix("targetgroup/") for d in alarm["Dimensions"]}  # the loopback has no prefix
    assert watched == {
        "LoadBalancer": balancer["LoadBalancerArn"].partition(":loadbalancer/")[2],
        "TargetGroup": targets["TargetGroupArn"].partition(":targetgroup/")[2],
    }


@pytest.mark.parametrize("memory_mb", [512, 885, 1769])
def test_a_deployed_function_answers_each_request_of_a_batch(stack: Loopback, memory_mb: int) -> None:
    bodies = [msgspec.json.encode(q) for q in (question(1, 2, 3), question(4, 5, 6), question(7))]
    batch = Batch("mlp", [Item(f"r{i}", JSON, body) for i, body in enumerate(bodies)])
    answer = stack.client("lambda").invoke(FunctionName=f"sluice-{memory_mb}:live", Payload=encode_batch(batch))
    payload = answer["Payload"].read()
    assert "FunctionError" not in answer, payload
    first, second, bad = decode_answers(payload, batch)
    assert (first.status, second.status, bad.status) == (200, 200, 400)
    check_answer(first.body, 1, 2, 3)
    check_answer(second.body, 4, 5, 6)


def test_a_deployed_function_describes_its_model(stack: Loopback) -> None:
    answer = stack.client("lambda").invoke(FunctionName="sluice-1769:live", Payload=encode_batch(Batch("mlp", [], describe=True)))
    metadata = decode_metadata(answer["Payload"].read())
    assert (metadata["name"], metadata["inputs"][0]["shape"]) == ("mlp", [-1, 3])


def test_the_deployed_parameter_is_a_plan_for_a_deployed_function(stack: Loopback) -> None:
    (parameter,) = stack.client("ssm").get_parameters_by_path(Path="/sluice/sluice/plans/")["Parameters"]
    plan = read(Plan, parameter["Value"])
    name, _, alias = plan.function.partition(":")
    assert stack.client("lambda").get_alias(FunctionName=name, Name=alias)["FunctionVersion"] == "1"


async def test_a_buffer_on_the_deployed_plan_answers_and_follows_the_next_one(stack: Loopback, tmp_path: Path) -> None:
    """The loopback has no container for the buffer, so it runs beside: parameter in, batches to the deployed function out."""
    port = chosen_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"SLUICE_REDIS_URL": "memory://", "SLUICE_PLANS": "ssm:/sluice/sluice/plans/", "SLUICE_PLAN_INTERVAL": "0.2"}
    command: list[str | Path] = [Path(sys.executable).parent / "sluice", "serve", "--port", str(port)]
    with child(command, {**stack.environment, **settings}, ready=f"{url}/v2/health/ready", log=tmp_path / "buffer.log"):
        async with aiohttp.ClientSession(url) as client:

            async def ask(i: int) -> None:
                async with client.post("/v2/models/mlp/infer", json=question(i, 2, 3)) as response:
                    assert response.status == 200, await response.text()
                    check_answer(await response.read(), i, 2, 3)

            async def metric(pattern: str) -> float:
                async with client.get("/metrics") as response:
                    found = re.search(rf"^{pattern} (\S+)$", await response.text(), re.M)
                    return float(found[1]) if found else 0.0

            await asyncio.gather(*map(ask, range(4)))
            assert (
                await metric(r'sluice_batch_size_sum\{model="mlp"\}')
                == await metric(r'sluice_batch_size_count\{model="mlp"\}')
                == 4
            )

            plan = Plan(model="mlp", function="sluice-512:live", policy=PolicyDocument.of(size_or_timeout(4, 30.0)))
            stack.client("ssm").put_parameter(Name="/sluice/sluice/plans/mlp", Value=write(plan).decode(), Overwrite=True)
            async with asyncio.timeout(60):
                while not await metric(rf'sluice_plan_info\{{digest="{plan.digest}",.*\}}'):
                    await asyncio.sleep(0.05)
            await asyncio.gather(*map(ask, range(4)))
            assert await metric(r'sluice_batch_size_count\{model="mlp"\}') == 5


async def test_control_puts_the_declared_plan_into_force_and_the_status_of_the_model_is_told(
    stack: Loopback, tmp_path: Path
) -> None:
    """As tasks with EnableControl=true run, on a Redis in the place of the cache: the buffer has its plan from control alone."""
    port = chosen_port()
    url = f"http://127.0.0.1:{port}"
    program = Path(sys.executable).parent / "sluice"
    alone = PolicyDocument.of(no_batching())
    plan = Plan(model="mlp", function="sluice-1769:live", policy=alone, slo=Slo(0.5), memory_mb=1769)
    stack.client("ssm").put_parameter(Name="/sluice/sluice/plans/mlp", Value=write(plan).decode(), Overwrite=True)
    with RedisServer(port=0) as server:
        settings = {"SLUICE_REDIS_URL": server.url, "SLUICE_NAMESPACE": "sluice"}
        environment = {**stack.environment, **settings}
        declared = ["control", "--declared", "ssm:/sluice/sluice/plans/", "--architecture", "arm64"]
        with (tmp_path / "control.log").open("wb") as out:
            control = subprocess.Popen([program, *declared], env=environment, stderr=out, preexec_fn=die_with_parent())
        try:
            command: list[str | Path] = [program, "serve", "--port", str(port), "--plans", "redis:"]
            with child(command, environment, ready=f"{url}/v2/health/ready", log=tmp_path / "buffer.log"):
                async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(STEP_WITHIN)) as client:
                    for _ in range(20):
                        async with client.post("/v2/models/mlp/infer", json=question(1, 2, 3)) as response:
                            check_answer(await response.read(), 1, 2, 3)

                def told(*arguments: str) -> Any:
                    done = subprocess.run(
                        [program, *arguments, "--json"], env=environment, capture_output=True, timeout=STEP_WITHIN
                    )
                    assert done.returncode == 0, done.stderr
                    return msgspec.json.decode(done.stdout)

                (status,) = [each for each in told("status", "--architecture", "arm64")["models"] if each["model"] == "mlp"]
                assert (status["digest"], status["requests"], status["put"]["why"]) == (plan.digest, 20, "declared")
                assert status["kept"] is not None and status["spent"]["usd_per_million"] > 0
                assert "/sluice/sluice/plans/mlp" in {each["by"] for each in told("plans", "history", "mlp")}
                async with asyncio.timeout(STARTS_WITHIN):
                    while f"mlp: controlled from plan {plan.digest} on" not in (tmp_path / "control.log").read_text():
                        await asyncio.sleep(0.05)
        finally:
            control.terminate()
            assert control.wait(30) == 0, (tmp_path / "control.log").read_text()


@pytest.fixture(scope="module")
def text_tone(stack: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as it is laid out, deployed as its README says once its settings name a network: dev, and prod beside it.

    Both are beside the other stack, and in its region.
    """
    folder = tmp_path_factory.mktemp("project")
    sluice("new", "text-tone", cwd=folder)
    project = folder / "text-tone"
    settings = (project / "samconfig.toml").read_text()
    filled = settings.replace("Architecture=arm64", f"Architecture={ARCHITECTURE}").replace("confirm_changeset = true", "")
    filled = re.sub(r'(?<=SloPercentile=95",\n)([^]]*\n)*?(?=\])', "".join(f'"{pair}",\n' for pair in LOOPBACK), filled)
    (project / "samconfig.toml").write_text(
        filled.replace('"PackageType=Zip",', "".join(f'"{pair}",' for pair in ("MemorySize1=512", *NO_MORE_SIZES)))
    )
    package(project)
    for environment in ("dev", "prod"):
        sam("deploy", "--config-env", environment, environment=stack.environment, cwd=project)
    return project


@pytest.mark.parametrize("environment", ["dev", "prod"])
def test_a_project_as_it_is_laid_out_answers_in_each_of_its_environments(
    stack: Loopback, text_tone: Path, environment: str
) -> None:
    batch = Batch("text-tone", [Item("a", JSON, (text_tone / "request.json").read_bytes()), Item("b", JSON, b'"xyzzy"')])
    function = f"text-tone-{environment}-512"
    answer = stack.client("lambda").invoke(FunctionName=f"{function}:live", Payload=encode_batch(batch))
    payload = answer["Payload"].read()
    assert "FunctionError" not in answer, payload
    first, second = decode_answers(payload, batch)
    assert (first.status, msgspec.json.decode(first.body)) == (200, {"score": 0.75})
    assert (second.status, b"no word" in second.body) == (422, True)
    (parameter,) = stack.client("ssm").get_parameters_by_path(Path=f"/sluice/text-tone-{environment}/plans/")["Parameters"]
    assert read(Plan, parameter["Value"]).function == f"{function}:live"


def test_a_new_version_takes_over_behind_the_alias_and_the_plan_stays(stack: Loopback, text_tone: Path) -> None:
    """At once, as in `dev`: the loopback has no CodeDeploy, which moves the same alias by and by."""
    name = "/sluice/text-tone-dev/plans/text-tone"
    plan = Plan(model="text-tone", function="text-tone-dev-512:live", policy=PolicyDocument.of(size_or_timeout(4, 0.02)))
    stack.client("ssm").put_parameter(Name=name, Value=write(plan).decode(), Overwrite=True)
    functions = stack.client("lambda")

    def live() -> tuple[str, dict[str, float]]:
        """The version of the alias, and what it answers."""
        batch = Batch("text-tone", [Item("a", JSON, (text_tone / "request.json").read_bytes())])
        payload = functions.invoke(FunctionName="text-tone-dev-512:live", Payload=encode_batch(batch))["Payload"].read()
        version = functions.get_alias(FunctionName="text-tone-dev-512", Name="live")["FunctionVersion"]
        return version, msgspec.json.decode(decode_answers(payload, batch)[0].body)

    assert live() == ("1", {"score": 0.75})
    model = text_tone / "model.py"
    model.write_text(model.read_text().replace('"fine": 0.5', '"fine": -0.5'))
    package(text_tone)
    sam("deploy", "--config-env", "dev", environment=stack.environment, cwd=text_tone)
    assert live() == ("2", {"score": 0.25})
    assert functions.get_alias(FunctionName="text-tone-prod-512", Name="live")["FunctionVersion"] == "1"
    assert read(Plan, stack.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]) == plan


def test_a_model_is_added_to_a_buffer_that_is_there_and_its_stack_is_left_alone(stack: Loopback, text_tone: Path) -> None:
    """Functions and a plan alone, without a network or an image; the aliases let in the role of the other stack's buffer."""
    (before,) = stack.client("cloudformation").describe_stacks(StackName="sluice")["Stacks"]
    (role,) = [output["OutputValue"] for output in before["Outputs"] if output["OutputKey"] == "BufferRole"]
    parameters = [
        "ModelName=text-tone",
        "Model=model.py:TextTone",
        f"Architecture={ARCHITECTURE}",
        "MemorySize1=640",
        *NO_MORE_SIZES,
    ]
    sam(
        *("deploy", "--config-env", "dev", "--stack-name", "tone-beside"),
        *("--parameter-overrides", *parameters, "BufferStack=sluice", "EnableAlarm=false"),
        environment=stack.environment,
        cwd=text_tone,
    )
    found = stack.client("ssm").get_parameters_by_path(Path="/sluice/sluice/plans/")["Parameters"]
    assert {each["Name"] for each in found} == {"/sluice/sluice/plans/mlp", "/sluice/sluice/plans/text-tone"}
    policy = msgspec.json.decode(stack.client("lambda").get_policy(FunctionName="tone-beside-640", Qualifier="live")["Policy"])
    (statement,) = policy["Statement"]
    assert statement["Principal"] == {"AWS": f"arn:aws:iam::000000000000:role/{role}"}
    (after,) = stack.client("cloudformation").describe_stacks(StackName="sluice")["Stacks"]
    assert after.get("LastUpdatedTime") == before.get("LastUpdatedTime")
    made = stack.client("cloudformation").describe_stack_resources(StackName="tone-beside")["StackResources"]
    assert not {"AWS::ECS::Service", "AWS::ElasticLoadBalancingV2::LoadBalancer", "AWS::ElastiCache::ReplicationGroup"} & {
        each["ResourceType"] for each in made
    }
