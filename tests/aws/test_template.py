"""What template.yaml promises, without deploying it."""

from __future__ import annotations

import dataclasses
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from sluice.batching.documents import Plan, Slo, read
from sluice.batching.policy import no_batching
from sluice.batching.variables import PREFIX
from sluice.buffer_service.redis_servers import COMMAND_TIMEOUT
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.store import Limits
from sluice.buffer_service.telemetry import Telemetry
from sluice.cli.control import command as control
from sluice.cli.main import sluice
from sluice.cli.profile import command as profile
from sluice.cli.recommend import command as recommend
from sluice.lambda_fn.contract import Batch, decode_batch
from sluice.optimizer.billing.prices import default_prices

ROOT = Path(__file__).parents[2]
SIZES = (1769, 512, 1024, 3538, 5307)

AnyTemplate = Callable[..., Any]


def environment(task: dict[str, Any]) -> dict[str, str]:
    (container,) = task["ContainerDefinitions"]
    return {variable["Name"]: variable["Value"] for variable in container["Environment"]}


def attribute(of: dict[str, Any], key: str) -> float:
    """An attribute of the load balancer or of its targets, in seconds."""
    (attributes,) = (value for name, value in of.items() if name.endswith("Attributes"))
    return float({a["Key"]: a["Value"] for a in attributes}[f"{key}.timeout_seconds"])


def setting_names() -> set[str]:
    kind: Any = Settings
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
    return {PREFIX + field.name.upper() for field in fields}


def test_every_variable_of_the_buffer_is_a_setting(template: AnyTemplate) -> None:
    assert environment(template().resource("BufferTask")).keys() <= setting_names()


@pytest.mark.parametrize("mode", ["node", "serverless"])
def test_the_settings_accept_what_the_template_says(template: AnyTemplate, mode: str) -> None:
    settings = Settings.from_environment(environment(template(CacheMode=mode).resource("BufferTask")))
    assert settings.redis_url.startswith("rediss://<Cache" + ("Nodes" if mode == "node" else "Metered"))
    assert (settings.plans, settings.namespace) == ("ssm:/sluice/mlp-prod/plans/", "mlp-prod")
    assert settings.host == "0.0.0.0"


def test_without_a_cache_there_is_one_task_with_its_queues_in_memory(template: AnyTemplate) -> None:
    for growing in ("true", "false"):
        filled = template(CacheMode="none", EnableAutoscaling=growing)
        settings = Settings.from_environment(environment(filled.resource("BufferTask")))
        assert settings.redis_url == "memory://" and settings.plans == "ssm:/sluice/mlp-prod/plans/"
        assert filled.resource("Buffer")["DesiredCount"] == 1 and not filled.of_type("AWS::ApplicationAutoScaling::ScalableTarget")
        assert not [
            kind for kind in ("ReplicationGroup", "ServerlessCache", "SubnetGroup") if filled.of_type(f"AWS::ElastiCache::{kind}")
        ]
        assert "CacheAccess" not in filled.of_type("AWS::EC2::SecurityGroup")
    assert template(EnableAutoscaling="false").resource("Buffer")["DesiredCount"] == 2


@pytest.mark.parametrize(
    ("told", "services"),
    [
        ({}, []),
        ({"InterfaceEndpoints": "lambda"}, ["lambda"]),
        ({"InterfaceEndpoints": "all"}, ["ecr.api", "ecr.dkr", "lambda", "logs", "ssm"]),
        ({"InterfaceEndpoints": "all", "RouteTableIds": "rtb-1"}, ["ecr.api", "ecr.dkr", "lambda", "logs", "s3", "ssm"]),
        ({"RouteTableIds": "rtb-1"}, []),
    ],
)
def test_the_buffer_reaches_aws_by_the_endpoints_that_are_asked_for(template: AnyTemplate, told: Any, services: list[str]) -> None:
    filled = template(**told)
    made = filled.of_type("AWS::EC2::VPCEndpoint").values()
    assert sorted(of["ServiceName"].partition("<AWS::Region>.")[2] for of in made) == services
    inside = [of for of in made if of["VpcEndpointType"] == "Interface"]
    assert all(of["PrivateDnsEnabled"] and of["SecurityGroupIds"] == ["<EndpointAccess>"] for of in inside)
    assert ("EndpointAccess" in filled.of_type("AWS::EC2::SecurityGroup")) == bool(services)
    if services:
        (rule,) = filled.resource("EndpointAccess")["SecurityGroupIngress"]
        assert (rule["FromPort"], rule["SourceSecurityGroupId"]) == (443, "<BufferAccess>")


def test_the_page_has_the_price_of_every_stack(template: AnyTemplate) -> None:
    page, prices = (ROOT / "docs" / "deploy.md").read_text(), default_prices()
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]* \| ([0-9.]+) \| ([0-9.]+) \|$", page, re.M)
    assert [name for name, *_ in rows] == list(prices.stacks)
    for name, month, gigabyte in rows:
        on = prices.on(name)
        assert float(month) == pytest.approx(sum(on.fixed_terms().values()), abs=0.005)
        assert float(gigabyte) == pytest.approx(on.network_per_request(2**30, 0))


def test_time_limits_contain_each_other(template: AnyTemplate) -> None:
    """The function gives up before the buffer's invocation, the buffer before the load balancer."""
    filled = template()
    settings = Settings.from_environment(environment(filled.resource("BufferTask")))
    assert filled.globals()["Timeout"] < settings.invoke_timeout
    assert settings.request_timeout < attribute(filled.resource("LoadBalancer"), "idle_timeout")


def test_the_buffer_keeps_an_idle_connection_longer_than_the_load_balancer(template: AnyTemplate) -> None:
    """Otherwise the load balancer now and then sends a request into a connection that is being closed: 502."""
    filled = template()
    idle = attribute(filled.resource("LoadBalancer"), "idle_timeout")
    assert Settings().keep_alive > idle
    assert Settings.from_environment(environment(filled.resource("BufferTask"))).keep_alive > idle


def test_a_task_has_drained_before_it_is_killed(template: AnyTemplate) -> None:
    """The drain has one deadline; beyond it, a cache that is away holds up its last command, and the interpreter ends."""
    task = template().resource("BufferTask")
    drained = Settings.from_environment(environment(task)).drain_timeout + COMMAND_TIMEOUT
    assert drained + 2 <= task["ContainerDefinitions"][0]["StopTimeout"] <= 120  # Fargate allows no more


def test_a_task_leaves_the_load_balancer_after_its_last_answer(template: AnyTemplate) -> None:
    """Whether ECS waits for the deregistration before SIGTERM, or the task is stopped at once."""
    filled = template()
    settings = Settings.from_environment(environment(filled.resource("BufferTask")))
    delay = attribute(filled.resource("Targets"), "deregistration_delay")
    assert max(settings.request_timeout, settings.drain_timeout) < delay


def test_a_cache_that_is_away_gets_no_task_replaced(template: AnyTemplate) -> None:
    """ECS replaces what fails this check; `ready` asks the cache, `live` nobody (tests/buffer_service/test_routes.py)."""
    assert template().resource("Targets")["HealthCheckPath"] == "/v2/health/live"


def test_the_first_plan_is_a_plan(template: AnyTemplate) -> None:
    parameter = template(ModelName="encoder", SloLatency="0.5", SloPercentile="99").resource("Plan")
    assert parameter["Name"] == "/sluice/mlp-prod/plans/encoder"
    plan = read(Plan, parameter["Value"])
    assert (plan.model, plan.function, plan.memory_mb, plan.slo) == ("encoder", "mlp-prod-1769:live", 1769, Slo(0.5, 99))
    assert plan.policy.policy() == no_batching()


def test_the_first_plan_points_at_the_gpu_worker_where_there_is_one(template: AnyTemplate) -> None:
    filled = template(GpuBackend="http", GpuUrl="http://gpu.internal:8000")
    plan = read(Plan, filled.resource("Plan")["Value"])
    assert (plan.function, plan.memory_mb) == ("http://gpu.internal:8000", None)


def functions_of(filled: Any) -> dict[str, dict[str, Any]]:
    """The functions that are created with these parameters."""
    return {name: f for name, f in filled.of_type("AWS::Serverless::Function").items() if created(filled, name)}


def created(filled: Any, name: str) -> bool:
    return bool(filled.condition({"Condition": filled.body["Resources"][name]["Condition"]}))


@pytest.mark.parametrize("kind", ["Zip", "Image"])
def test_one_function_per_memory_size_behind_the_same_alias(template: AnyTemplate, kind: str) -> None:
    filled = template(PackageType=kind)
    functions = functions_of(filled).values()
    assert [(f["FunctionName"], int(f["MemorySize"])) for f in functions] == [(f"mlp-prod-{size}", size) for size in SIZES]
    assert filled.globals()["AutoPublishAlias"] == "live"
    assert {f["AutoPublishAliasAllProperties"] for f in functions} == {True}


@pytest.mark.parametrize("kind", ["Zip", "Image"])
def test_environments_of_one_function_are_kept_warm_where_asked_for(template: AnyTemplate, kind: str) -> None:
    cold, warm = (template(PackageType=kind, ProvisionedConcurrency="3", **told) for told in ({}, {"ProvisionedMemory": "1769"}))
    assert all(not isinstance(f.get("ProvisionedConcurrencyConfig"), dict) for f in functions_of(cold).values())
    kept = {int(f["MemorySize"]): f.get("ProvisionedConcurrencyConfig") for f in functions_of(warm).values()}
    assert [size for size, config in kept.items() if isinstance(config, dict)] == [1769]
    assert int(kept[1769]["ProvisionedConcurrentExecutions"]) == 3


def test_functions_are_deployed_at_once_unless_it_is_to_be_gradual(template: AnyTemplate) -> None:
    """SAM reads ``Enabled`` and ``Type`` (tests/aws/test_deploy.py has what it makes of them)."""
    ways = template().body["Parameters"]["Deployment"]["AllowedValues"]
    assert ways[0] == template().values["Deployment"] == "AllAtOnce" and ways == list(template().body["Mappings"]["Deployments"])
    for way in ways:
        filled = template(Deployment=way)
        gradual = way != "AllAtOnce"
        preference = filled.globals()["DeploymentPreference"]
        assert (preference["Enabled"], preference["Type"]) == ("true" if gradual else "false", way)
        assert preference["PassthroughCondition"] is True and "Hooks" not in preference
        assert ("DeploymentRole" in filled.of_type("AWS::IAM::Role")) == gradual
        assert ("DeploymentAlarm" in filled.of_type("AWS::CloudWatch::Alarm")) == gradual
    assert (preference["Role"], preference["Alarms"]) == ({"Fn::GetAtt": ["DeploymentRole", "Arn"]}, ["<DeploymentAlarm>"])


@pytest.mark.parametrize("sizes", [["885"], ["1769", "512", "1024", "3538", "5307", "885"]])
@pytest.mark.parametrize("kind", ["Zip", "Image"])
def test_a_new_version_of_any_function_is_taken_back_when_it_fails(template: AnyTemplate, kind: str, sizes: list[str]) -> None:
    told = {f"MemorySize{place}": size for place, size in enumerate((sizes + ["none"] * 5)[:6], 1)}
    filled = template(PackageType=kind, Deployment="Canary10Percent5Minutes", **told)
    names = [f["FunctionName"] for f in functions_of(filled).values()]
    alias = filled.globals()["AutoPublishAlias"]
    of_functions, of_aliases, of_alarms = (
        (actions, resources) for name, actions, resources in statements(filled) if name == "DeploymentRole"
    )
    arn = "arn:<AWS::Partition>:lambda:<AWS::Region>:<AWS::AccountId>:function:"
    assert of_functions == (["lambda:GetAlias", "lambda:UpdateAlias"], [arn + name for name in names])
    assert of_aliases == (["lambda:GetProvisionedConcurrencyConfig"], [f"{arn}{name}:{alias}" for name in names])
    assert of_alarms[0] == ["cloudwatch:DescribeAlarms"]

    alarm = filled.resource("DeploymentAlarm")
    total, *metrics = alarm["Metrics"]
    assert total["Expression"] == "SUM(METRICS())" and len({metric["Id"] for metric in metrics}) == len(names) <= 10
    watched = [metric["MetricStat"]["Metric"] for metric in metrics]
    assert {(each["Namespace"], each["MetricName"]) for each in watched} == {("AWS/Lambda", "Errors")}
    version = "ImageInference" if kind == "Image" else "Inference"
    assert [{d["Name"]: d["Value"] for d in each["Dimensions"]} for each in watched] == [
        {
            "FunctionName": name,
            "Resource": f"{name}:{alias}",
            "ExecutedVersion": {"Fn::GetAtt": [f"{version}{place}", "Version.Version"]},
        }
        for place, name in enumerate(names, 1)
    ]
    least = min(
        int(minutes) for minutes in re.findall(r"Canary10Percent(\d+)Minutes", " ".join(filled.body["Mappings"]["Deployments"]))
    )
    assert (
        alarm["DatapointsToAlarm"] * metrics[0]["MetricStat"]["Period"] < 60 * least
    )  # it rings while there is something to take back
    assert "AlarmActions" not in alarm


def test_a_function_is_pinged_by_a_schedule_only_where_asked_for(template: AnyTemplate) -> None:
    told = {"ModelName": "encoder", "PingMemory": "1769", "PingMinutes": "4"}
    assert template().of_type("AWS::Scheduler::Schedule") == {}
    (ping,) = template(**told).of_type("AWS::Scheduler::Schedule").values()
    assert ping["ScheduleExpression"] == "rate(4 minutes)"
    assert ping["Target"]["Arn"].endswith(":function:mlp-prod-1769:live")
    asked = decode_batch(ping["Target"]["Input"].encode())
    assert asked == Batch("encoder", [], ping=True)
    (policy,) = template(**told).resource("PingRole")["Policies"]
    (allowed,) = policy["PolicyDocument"]["Statement"]
    assert allowed["Action"] == "lambda:InvokeFunction" and allowed["Resource"] == ping["Target"]["Arn"]


def test_functions_log_no_line_of_an_invocation_unless_asked_to_and_the_price_list_knows(template: AnyTemplate) -> None:
    for level, disabled in (("WARN", "true"), ("INFO", "false")):
        of_all = template(FunctionLogLevel=level).globals()
        logging = {"LogFormat": "JSON", "ApplicationLogLevel": level, "SystemLogLevel": level}
        assert {name: of_all["LoggingConfig"][name] for name in logging} == logging
        assert of_all["Environment"]["Variables"]["POWERTOOLS_METRICS_DISABLED"] == disabled
    assert template().values["FunctionLogLevel"] == "WARN" and default_prices().logs_per_invocation == 0


def test_a_function_from_an_image_has_the_image_and_nothing_of_an_archive(template: AnyTemplate) -> None:
    filled = template(PackageType="Image", FunctionImage="1.dkr.ecr.eu-west-1.amazonaws.com/mlp:1")
    assert not created(filled, "InferenceLayer")
    for name, function in functions_of(filled).items():
        assert (function["PackageType"], function["ImageUri"]) == ("Image", filled.values["FunctionImage"])
        left = filled.globals().keys() - set(filled.body["Resources"][name]["IgnoreGlobals"])
        assert left == {"Architectures", "Timeout", "AutoPublishAlias", "DeploymentPreference", "LoggingConfig", "Environment"}


def test_an_archive_is_below_the_template_where_the_package_is_written(template: AnyTemplate) -> None:
    filled = template()
    assert created(filled, "InferenceLayer") and filled.globals()["Layers"] == ["<InferenceLayer>"]
    assert (filled.globals()["CodeUri"], filled.resource("InferenceLayer")["ContentUri"]) == ("function/", "layer/")
    assert not any("PackageType" in function for function in functions_of(filled).values())


@pytest.mark.parametrize("served", ["", "network.onnx", "model.py:Iris"])
def test_the_function_finds_one_model_in_its_environment(template: AnyTemplate, served: str) -> None:
    variables = template(Model=served).globals()["Environment"]["Variables"]
    documented = re.findall(r"SLUICE_[A-Z_]+", (ROOT / "lambda_fn" / "loading.py").read_text())
    assert {name for name in variables if name.startswith("SLUICE_")} <= set(documented)
    assert variables["SLUICE_MODEL_NAME"] == "mlp"
    assert variables.get("SLUICE_MODEL", "") == served
    assert ("SLUICE_SLEEPER_SLOPE" in variables) == (not served)


@pytest.mark.parametrize("sizes", [["885"], ["1769", "512", "1024", "3538", "5307", "885"]])
@pytest.mark.parametrize("kind", ["Zip", "Image"])
def test_the_memory_sizes_are_those_that_are_asked_for(template: AnyTemplate, kind: str, sizes: list[str]) -> None:
    told = {f"MemorySize{place}": size for place, size in enumerate((sizes + ["none"] * 5)[:6], 1)}
    filled = template(PackageType=kind, ProvisionedMemory="885", **told)
    functions = functions_of(filled).values()
    assert [f["FunctionName"] for f in functions] == [f"mlp-prod-{size}" for size in sizes]
    assert read(Plan, filled.resource("Plan")["Value"]).function == f"mlp-prod-{sizes[0]}:live"
    assert len(filled.of_type("AWS::Lambda::Permission")) == len(sizes)
    warm = [f["MemorySize"] for f in functions if isinstance(f.get("ProvisionedConcurrencyConfig"), dict)]
    assert warm == ["885"]


def test_a_memory_size_is_one_of_lambdas_and_the_first_is_given(template: AnyTemplate) -> None:
    patterns = [p["AllowedPattern"] for name, p in template().body["Parameters"].items() if name.startswith("MemorySize")]
    assert len(patterns) == 6
    for i, pattern in enumerate(patterns):
        assert all(re.fullmatch(pattern, size) for size in ("128", "885", "10240"))
        assert not any(re.fullmatch(pattern, size) for size in ("1,2", "64", "0885", "102400", ""))
        assert (re.fullmatch(pattern, "none") is None) == (i == 0)


def test_the_buffer_reads_its_plans_and_keys_and_each_alias_lets_it_in(template: AnyTemplate) -> None:
    filled = template(EnableApiKeys="true")
    (policy,) = filled.resource("BufferRole")["Policies"]
    (follow,) = policy["PolicyDocument"]["Statement"]
    assert follow["Action"] == "ssm:GetParametersByPath"
    below = "arn:<AWS::Partition>:ssm:<AWS::Region>:<AWS::AccountId>:parameter/sluice/mlp-prod"
    assert follow["Resource"] == [f"{below}/plans", f"{below}/plans/*", f"{below}/keys", f"{below}/keys/*"]
    for kind, of in (("Zip", ""), ("Image", "Image")):
        permissions = template(PackageType=kind).of_type("AWS::Lambda::Permission").values()
        assert [each["FunctionName"] for each in permissions] == [f"<{of}Inference{place}.Alias>" for place in range(1, 6)]
        assert {each["Action"] for each in permissions} == {"lambda:InvokeFunction"}
        assert {each["Principal"] for each in permissions} == {"arn:<AWS::Partition>:iam::<AWS::AccountId>:role/<BufferRole>"}


def test_a_model_of_another_stack_has_functions_and_a_plan_for_the_buffer_of_that_one(template: AnyTemplate) -> None:
    """What it has of its own is made without a network, an image or a word to the other stack."""
    filled = template(ModelName="resnet", BufferStack="mlp-prod", **{"AWS::StackName": "resnet-prod"})
    assert filled.of_type("AWS::SSM::Parameter")["Plan"]["Name"] == "/sluice/mlp-prod/plans/resnet"
    assert read(Plan, filled.resource("Plan")["Value"]).function == "resnet-prod-1769:live"
    made = {kind for kind in {resource["Type"] for resource in filled.body["Resources"].values()} if filled.of_type(kind)}
    assert made == {
        "AWS::Serverless::Function",
        "AWS::Serverless::LayerVersion",
        "AWS::Lambda::Permission",
        "AWS::Logs::LogGroup",
        "AWS::IAM::Role",
        "AWS::SSM::Parameter",
        "AWS::CloudWatch::Alarm",
        "AWS::CloudWatch::Dashboard",
    }
    assert filled.of_type("AWS::IAM::Role").keys() == {"FunctionRole"} and "OutageAlarm" not in filled.of_type(
        "AWS::CloudWatch::Alarm"
    )
    for permission in filled.of_type("AWS::Lambda::Permission").values():
        assert permission["Principal"] == "arn:<AWS::Partition>:iam::<AWS::AccountId>:role/<mlp-prod-BufferRole>"
    exported = filled.body["Outputs"]["BufferRole"]["Export"]["Name"]
    assert template().resolve(exported) == "mlp-prod-BufferRole"
    for metric in filled.resource("SloAlarm")["Metrics"][1:]:
        assert metric["MetricStat"]["Metric"]["Dimensions"][0] == {"Name": "Deployment", "Value": "mlp-prod"}


def test_what_one_stack_is_named_by_another_has_not(template: AnyTemplate) -> None:
    """Two environments of one model in an account and region: no two resources of one name, path or export."""
    names = ("FunctionName", "LayerName", "LogGroupName", "Name", "Family", "ServerlessCacheName", "DashboardName", "PolicyName")

    def named(stack: str, mode: str) -> dict[tuple[str, str], str]:
        told = {"AWS::StackName": stack, "CacheMode": mode, "GpuBackend": "sagemaker", "GpuEndpoint": "gpu"}
        filled = template(**told)
        kinds = {resource["Type"] for resource in filled.body["Resources"].values()}
        return {
            (logical, name): properties[name]
            for kind in kinds
            for logical, properties in filled.of_type(kind).items()
            for name in names
            if isinstance(properties.get(name), str)
            and kind not in ("AWS::ApplicationAutoScaling::ScalingPolicy", "AWS::Lambda::Permission")
        }

    for mode in ("node", "serverless"):
        dev, prod = named("mlp-dev", mode), named("mlp-prod", mode)
        assert dev.keys() == prod.keys() and {"Plan", "Inference1", "FunctionLogs", "BufferTask"} <= {logical for logical, _ in dev}
        assert not set(dev.values()) & set(prod.values())


def test_a_stack_without_a_buffer_of_its_own_needs_no_network_and_one_with_does(template: AnyTemplate) -> None:
    body = template().body
    assert all("Default" in parameter for parameter in body["Parameters"].values())
    rule = body["Rules"]["BufferGiven"]
    assert rule["RuleCondition"] == {"Fn::Equals": [{"Ref": "BufferStack"}, ""]}
    (assertion,) = rule["Assertions"]
    for told, kept in (
        ({}, False),
        ({"VpcId": "vpc-1"}, False),
        ({"VpcId": "vpc-1", "BufferImage": "b", "SubnetIds": "subnet-1"}, True),
    ):
        assert template(**told).condition(assertion["Assert"]) == kept


@pytest.mark.parametrize(("rule", "parameter"), [("ProvisionedGiven", "ProvisionedMemory"), ("PingedGiven", "PingMemory")])
def test_what_is_kept_warm_is_a_function_of_the_stack(template: AnyTemplate, rule: str, parameter: str) -> None:
    body = template().body["Rules"][rule]
    (assertion,) = body["Assertions"]
    assert not template().condition(body["RuleCondition"])
    for memory_mb, kept in (("1769", True), ("5307", True), ("885", False)):
        filled = template(**{parameter: memory_mb})
        assert filled.condition(body["RuleCondition"]) and filled.condition(assertion["Assert"]) == kept
    assert template(**{parameter: "885", "MemorySize6": "885"}).condition(assertion["Assert"])


def test_a_function_that_a_plan_names_beside_those_of_the_template_is_invoked_where_its_arn_is_given(template: AnyTemplate) -> None:
    arns = [f"arn:aws:lambda:us-east-1:000000000000:function:resnet-{memory}:live" for memory in (1769, 3538)]
    assert not template().of_type("AWS::IAM::Policy")
    policy = template(FunctionArns=",".join(arns)).of_type("AWS::IAM::Policy")["MoreInvocations"]
    (added,) = policy["PolicyDocument"]["Statement"]
    assert (added["Action"], added["Resource"], policy["Roles"]) == ("lambda:InvokeFunction", arns, ["<BufferRole>"])
    pattern = template().body["Parameters"]["FunctionArns"]["AllowedPattern"]
    assert all(re.fullmatch(pattern, text) for text in ("", *arns)) and re.fullmatch(pattern, "resnet-1769:live") is None


@pytest.mark.parametrize(
    ("given", "endpoint", "arn"),
    [
        (
            {"GpuEndpoint": "encoder-gpu"},
            "encoder-gpu",
            "arn:<AWS::Partition>:sagemaker:<AWS::Region>:<AWS::AccountId>:endpoint/encoder-gpu",
        ),
        # An ARN is in lower case, and the name that CloudFormation chooses is not: it would not be found in the permission.
        ({"GpuImage": "worker"}, "<GpuDeployedEndpoint.EndpointName>", "<GpuDeployedEndpoint>"),
    ],
)
def test_a_sagemaker_backend_adds_one_permission_and_is_where_the_first_plan_points(
    template: AnyTemplate, given: dict[str, str], endpoint: str, arn: str
) -> None:
    filled = template(GpuBackend="sagemaker", **given)
    (policy,) = filled.of_type("AWS::IAM::Policy").values()
    (added,) = policy["PolicyDocument"]["Statement"]
    assert (added["Action"], added["Resource"], policy["Roles"]) == ("sagemaker:InvokeEndpoint", arn, ["<BufferRole>"])
    value = filled.resource("Plan")["Value"].replace(endpoint, "encoder-gpu")
    assert read(Plan, value).function == "sagemaker://encoder-gpu"


def test_an_endpoint_is_deployed_where_none_is_named(template: AnyTemplate) -> None:
    kinds = [f"AWS::SageMaker::{kind}" for kind in ("Model", "EndpointConfig", "Endpoint")]
    for parameters in ({}, {"GpuBackend": "sagemaker", "GpuEndpoint": "encoder-gpu"}):
        assert not any(template(**parameters).of_type(kind) for kind in kinds)
    filled = template(
        GpuBackend="sagemaker", GpuImage="worker:1", GpuInstanceType="ml.g5.xlarge", GpuInstances="2", ModelName="encoder"
    )
    model, configuration, _ = (next(iter(filled.of_type(kind).values())) for kind in kinds)
    assert model["PrimaryContainer"] == {"Image": "worker:1", "Environment": {"SLUICE_MODEL_NAME": "encoder"}}
    assert model["EnableNetworkIsolation"] is True
    (variant,) = configuration["ProductionVariants"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.g5.xlarge", "2")
    (policy,) = filled.resource("GpuRole")["Policies"]
    actions = {
        action
        for statement in policy["PolicyDocument"]["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    assert {action.partition(":")[0] for action in actions} == {"ecr", "logs"}


WILDCARDS = {
    ("ecr:GetAuthorizationToken", "*"): "has no resource to name",
    ("ssm:GetParametersByPath", "plans/*"): "a parameter a model, and models are added",
    ("ssm:GetParametersByPath", "keys/*"): "a parameter for each document of keys",
    ("logs:", "log-group:/aws/sagemaker/*"): "SageMaker names the group of an endpoint as it makes it",
    ("cloudwatch:DescribeAlarms", "alarm:*"): "lists, of which CloudWatch knows none but that of all alarms",
}
"""Where a permission has a star: the beginning of the action, the end of the resource, and why."""


def statements(filled: Any) -> list[tuple[str, list[str], list[str]]]:
    """What every role and policy allows: by its logical name, actions and resources."""
    found = []
    for kind in ("Role", "Policy"):
        for name, properties in filled.of_type(f"AWS::IAM::{kind}").items():
            assert "ManagedPolicyArns" not in properties
            for policy in properties.get("Policies", [properties]):
                for statement in policy["PolicyDocument"]["Statement"]:
                    assert statement.keys() == {"Effect", "Action", "Resource"} and statement["Effect"] == "Allow"
                    actions, resources = (
                        told if isinstance(told, list) else [told] for told in (statement["Action"], statement["Resource"])
                    )
                    found.append((name, actions, [each if isinstance(each, str) else str(each) for each in resources]))
    return found


def policy_documents(document: Any) -> Iterator[tuple[str, Any]]:
    """Every document of a policy below ``document``, with the key that it stands under."""
    of_this = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in of_this:
        if str(key).endswith("PolicyDocument"):
            yield str(key), value
        yield from policy_documents(value)


def test_every_policy_is_of_the_version_that_knows_variables(template: AnyTemplate) -> None:
    told = {"EnableControl": "true", "ControlImage": "1.dkr.ecr.us-east-1.amazonaws.com/c:1", "PingMemory": "512"}
    functions = "arn:aws:lambda:r:a:function:f:live"
    filled = template(GpuBackend="sagemaker", Deployment="Canary10Percent5Minutes", FunctionArns=functions, **told)
    found = [each for kind in ("Role", "Policy") for each in policy_documents(filled.of_type(f"AWS::IAM::{kind}"))]
    assert len(found) == (ROOT / "template.yaml").read_text().count("PolicyDocument:")
    assert {document["Version"] for _, document in found} == {"2012-10-17"}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {
            "EnableApiKeys": "true",
            "CacheMode": "serverless",
            "PingMemory": "1769",
            "FunctionArns": "arn:aws:lambda:r:a:function:f:live",
        },
        {
            "EnableControl": "true",
            "ControlImage": "1.dkr.ecr.eu-west-1.amazonaws.com/team/control@sha256:ab",
            "GpuBackend": "sagemaker",
        },
        {"BufferStack": "mlp-prod", "GpuBackend": "sagemaker", "GpuEndpoint": "gpu", "Deployment": "Linear10PercentEvery1Minute"},
    ],
)
def test_no_permission_has_a_star_without_a_reason(template: AnyTemplate, told: dict[str, str]) -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/sluice/buffer:1"
    allowed = statements(template(BufferImage=image, GpuImage=image, **told))
    assert allowed
    for name, actions, resources in allowed:
        assert not [action for action in actions if "*" in action], name
        for resource in (each for each in resources if "*" in each):
            reasons = [(begins, ends) for begins, ends in WILDCARDS if resource.endswith(ends) and (ends != "*" or resource == "*")]
            assert any(all(action.startswith(begins) for action in actions) for begins, _ in reasons), (name, actions, resource)


def test_who_may_take_on_a_role_is_the_service_that_runs_it(template: AnyTemplate) -> None:
    control = {"EnableControl": "true", "ControlImage": "1.dkr.ecr.us-east-1.amazonaws.com/c:1"}
    filled = template(PingMemory="512", GpuBackend="sagemaker", Deployment="Canary10Percent5Minutes", **control)
    trusted: dict[str, str] = {}
    of_this_account = set()
    for name, role in filled.of_type("AWS::IAM::Role").items():
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Action"] == "sts:AssumeRole"
        trusted[name] = statement["Principal"]["Service"].removesuffix(".amazonaws.com")
        if statement.get("Condition") == {"StringEquals": {"aws:SourceAccount": "<AWS::AccountId>"}}:
            of_this_account.add(name)
    tasks = dict.fromkeys(("BufferRole", "BufferStartRole", "ControlRole"), "ecs-tasks")
    services = {"FunctionRole": "lambda", "PingRole": "scheduler", "GpuRole": "sagemaker", "DeploymentRole": "codedeploy"}
    assert trusted == {**services, **tasks}
    assert of_this_account == {"PingRole", *tasks}  # the others pass on nothing by which they could be told whose errand it is


@pytest.mark.parametrize(
    ("image", "arn"),
    [
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/buffer:1", "ecr:us-east-1:123456789012:repository/buffer"),
        (
            "123456789012.dkr.ecr.eu-west-3.amazonaws.com/team/a/buffer@sha256:0f",
            "ecr:eu-west-3:123456789012:repository/team/a/buffer",
        ),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/buffer", "ecr:us-east-1:123456789012:repository/buffer"),
    ],
)
def test_a_task_may_pull_its_own_image_and_no_other(template: AnyTemplate, image: str, arn: str) -> None:
    assert re.fullmatch(template().body["Parameters"]["BufferImage"]["AllowedPattern"], image)
    pulled = {
        name: resources for name, actions, resources in statements(template(BufferImage=image)) if "ecr:BatchGetImage" in actions
    }
    assert pulled == {"BufferStartRole": [f"arn:<AWS::Partition>:{arn}"]}
    other = "123456789012.dkr.ecr.us-east-1.amazonaws.com/control:2"
    both = {"BufferImage": image, "EnableControl": "true", "ControlImage": other}
    (two,) = [resources for _, actions, resources in statements(template(**both)) if "ecr:BatchGetImage" in actions]
    assert two == [f"arn:<AWS::Partition>:{arn}", "arn:<AWS::Partition>:ecr:us-east-1:123456789012:repository/control"]


@pytest.mark.parametrize("image", ["buffer:1", "ghcr.io/team/buffer:1", "12.dkr.ecr.us-east-1.amazonaws.com/buffer"])
def test_an_image_that_no_permission_can_name_is_refused(template: AnyTemplate, image: str) -> None:
    for name in ("BufferImage", "ControlImage", "GpuImage"):
        assert re.fullmatch(template().body["Parameters"][name]["AllowedPattern"], image) is None


def test_a_certificate_has_the_load_balancer_speak_tls_alone(template: AnyTemplate) -> None:
    """Without one it is HTTP, as the page says."""
    arn = "arn:aws:acm:us-east-1:123456789012:certificate/1"
    for told, port, scheme in (({}, 80, "http"), ({"CertificateArn": arn}, 443, "https")):
        filled = template(**told)
        listeners = filled.of_type("AWS::ElasticLoadBalancingV2::Listener")
        assert [(of["Port"], of["Protocol"]) for of in listeners.values()] == [(port, scheme.upper())]
        (rule,) = filled.resource("ClientAccess")["SecurityGroupIngress"]
        assert (rule["FromPort"], rule["ToPort"], rule["CidrIp"]) == (port, port, "10.0.0.0/8")
        assert filled.resolve(filled.body["Outputs"]["Url"]["Value"]).startswith(f"{scheme}://")
        if told:
            assert filled.resource("Listener")["Certificates"] == [{"CertificateArn": arn}]
            assert filled.resource("Listener")["SslPolicy"].startswith("ELBSecurityPolicy-TLS13-1-2")


def test_only_the_load_balancer_can_be_called_from_elsewhere(template: AnyTemplate) -> None:
    told = {"EnableControl": "true", "ControlImage": "1.dkr.ecr.us-east-1.amazonaws.com/c:1", "InterfaceEndpoints": "all"}
    callers = {
        name: {rule.get("SourceSecurityGroupId") or rule["CidrIp"] for rule in group.get("SecurityGroupIngress", [])}
        for name, group in template(**told).of_type("AWS::EC2::SecurityGroup").items()
    }
    inside = {"<BufferAccess>", "<ControlAccess>"}
    assert callers == {
        **{"ClientAccess": {"10.0.0.0/8"}, "BufferAccess": {"<ClientAccess>"}, "ControlAccess": set()},
        **{"CacheAccess": inside, "EndpointAccess": inside},
    }


def test_metrics_and_page_are_answered_beside_the_load_balancer_to_whom_the_parameters_name(template: AnyTemplate) -> None:
    for told, port in (({}, 0), ({"AdminPort": "8081"}, 8081), ({"AdminPort": "8081", "AdminCidr": "10.1.0.0/16"}, 8081)):
        filled = template(**told)
        first, *more = filled.resource("BufferAccess")["SecurityGroupIngress"]
        assert (first["FromPort"], first["SourceSecurityGroupId"]) == (8080, "<ClientAccess>")
        admin = {"IpProtocol": "tcp", "FromPort": "8081", "ToPort": "8081", "CidrIp": "10.1.0.0/16"}
        assert more == ([admin] if "AdminCidr" in told else [])
        assert Settings.from_environment(environment(filled.resource("BufferTask"))).admin_port == port
        assert filled.resource("Targets")["Port"] == 8080
    (assertion,) = template().body["Rules"]["AdminGiven"]["Assertions"]
    assert not template(AdminCidr="10.1.0.0/16").condition(assertion["Assert"])
    for name in ("AdminCidr", "ClientCidr"):
        pattern = template().body["Parameters"][name]["AllowedPattern"]
        assert re.fullmatch(pattern, "10.1.0.0/16") and re.fullmatch(pattern, "10.1.0.0") is None


@pytest.mark.parametrize("told", [{"EnableApiKeys": "true"}, {"JwtJwks": "https://id.example/jwks.json"}])
def test_keys_and_tokens_go_over_tls_or_not_at_all(template: AnyTemplate, told: dict[str, str]) -> None:
    rule = template().body["Rules"]["KeysEncrypted"]
    (assertion,) = rule["Assertions"]
    assert not template().condition(rule["RuleCondition"])
    for given, kept in (({}, False), ({"CertificateArn": "arn:aws:acm:r:a:certificate/1"}, True), ({"BufferStack": "other"}, True)):
        filled = template(**told, **given)
        assert filled.condition(rule["RuleCondition"]) and filled.condition(assertion["Assert"]) == kept


def test_the_buffer_reckons_by_the_price_list(template: AnyTemplate) -> None:
    for architecture in ("arm64", "x86_64"):
        settings = Settings.from_environment(environment(template(Architecture=architecture).resource("BufferTask")))
        assert settings.gb_second_usd == pytest.approx(default_prices().gb_second(architecture))
        assert settings.invocation_usd == default_prices().function.request


def test_a_request_with_headers_that_two_may_read_differently_does_not_get_in(template: AnyTemplate) -> None:
    attributes = {each["Key"]: each["Value"] for each in template().resource("LoadBalancer")["LoadBalancerAttributes"]}
    assert attributes["routing.http.drop_invalid_header_fields.enabled"] == "true"


def test_tokens_are_asked_for_as_the_parameters_say(template: AnyTemplate) -> None:
    told = {"JwtJwks": "https://id.example/jwks.json", "JwtIssuer": "https://id.example", "JwtAudience": "sluice"}
    settings = Settings.from_environment(environment(template(**told).resource("BufferTask")))
    assert (settings.jwt_jwks, settings.jwt_issuer, settings.jwt_audience) == tuple(told.values())
    assert Settings.from_environment(environment(template().resource("BufferTask"))).jwt_jwks == ""
    rule = template().body["Rules"]["IssuerGiven"]
    (assertion,) = rule["Assertions"]
    assert not template().condition(rule["RuleCondition"])
    for name in told:
        filled = template(**{**told, name: ""})
        assert filled.condition(rule["RuleCondition"]) and not filled.condition(assertion["Assert"])
    assert template(**told).condition(assertion["Assert"])


@pytest.mark.parametrize("mode", ["node", "serverless"])
def test_the_cache_is_encrypted_and_its_one_user_may_do_what_is_documented_and_no_more(template: AnyTemplate, mode: str) -> None:
    filled = template(CacheMode=mode)
    (user,) = filled.of_type("AWS::ElastiCache::User").values()
    (line,) = re.findall(r"^ACL SETUSER sluice (.*)$", (ROOT / "docs" / "reliability.md").read_text(), re.M)
    documented = {
        word for word in line.replace("~sluice:*", "~mlp-prod:*").split() if word not in (">PASSWORD", "resetkeys", "resetchannels")
    }  # a new user has none
    assert set(user["AccessString"].split()) == documented
    assert (user["UserName"], user["Engine"]) == ("default", "redis")  # who connects without a name; no other engine has none
    (group,) = filled.of_type("AWS::ElastiCache::UserGroup").values()
    assert group["UserIds"] == ["<CacheUser>"]
    if mode == "node":
        nodes = filled.resource("CacheNodes")
        assert nodes["AtRestEncryptionEnabled"] is nodes["TransitEncryptionEnabled"] is True
        assert nodes["UserGroupIds"] == ["<CacheUsers>"]
    else:  # which is encrypted always
        assert filled.resource("CacheMetered")["UserGroupId"] == "<CacheUsers>"
    assert environment(filled.resource("BufferTask"))["SLUICE_REDIS_URL"].startswith("rediss://")
    assert not template(CacheMode="none").of_type("AWS::ElastiCache::User")


USABLE_MEMORY = {"cache.t4g.micro": 0.75 * 2**29}
"""Bytes of a node, less the quarter that ElastiCache reserves."""
ARRIVAL_BYTES, BATCH_BYTES = 23, 256
"""Of what is kept of each, at most (docs/architecture.md)."""


def test_what_the_buffer_may_keep_of_four_models_and_a_full_queue_fits_into_the_cache(template: AnyTemplate) -> None:
    filled = template()
    settings = Settings.from_environment(environment(filled.resource("BufferTask")))
    kept = settings.arrivals_kept * ARRIVAL_BYTES + settings.batches_kept * BATCH_BYTES + settings.results_bytes
    queue = settings.max_queue_length * (Limits().carried + 512)
    usable = USABLE_MEMORY[filled.resource("CacheNodes")["CacheNodeType"]]
    assert 4 * kept + queue < usable < 4 * (kept - settings.results_bytes + Settings().results_bytes) + queue
    told = environment(template(ResultsBytes="1048576").resource("BufferTask"))
    assert Settings.from_environment(told).results_bytes == 2**20


CONTROL = {"EnableControl": "true", "ControlImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/control:1"}


def test_control_runs_beside_the_buffer_and_both_follow_the_plans_in_the_cache(template: AnyTemplate) -> None:
    for mode in ("node", "serverless"):
        filled = template(CacheMode=mode, **CONTROL)
        task = filled.of_type("AWS::ECS::TaskDefinition")["ControlTask"]
        buffer, beside = environment(filled.resource("BufferTask")), environment(task)
        assert buffer["SLUICE_PLANS"] == "redis:"
        assert beside.items() <= buffer.items() and beside.keys() == {"SLUICE_REDIS_URL", "SLUICE_NAMESPACE", "SLUICE_LOG_FORMAT"}
        (container,) = task["ContainerDefinitions"]
        program, name, *arguments = container["Command"]
        assert (program, name) == ("sluice", "control")
        given = control.make_context(
            name, [*arguments[:2], *arguments[4:]], click.Context(sluice, **sluice.context_settings)
        ).params
        assert (given["declared"], given["architecture"]) == ("ssm:/sluice/mlp-prod/plans/", "arm64")
        assert arguments[2:4] == ["--profile", "/app/profiles"]
        assert f"mkdir {arguments[3]} " in (ROOT / "buffer_service" / "Dockerfile").read_text()
        (tag,) = filled.resource("Buffer")["Tags"]
        assert tag["Value"] == {"Fn::GetAtt": ["ControlService", "Name"]}  # it waits for it, or requests would find no plan
        (allowed,) = [(actions, resources) for name, actions, resources in statements(filled) if name == "ControlRole"]
        plans = "arn:<AWS::Partition>:ssm:<AWS::Region>:<AWS::AccountId>:parameter/sluice/mlp-prod/plans"
        assert allowed == (["ssm:GetParametersByPath"], [plans, f"{plans}/*"])


@pytest.mark.parametrize("told", [{}, {"CacheMode": "none", **CONTROL}, {"BufferStack": "other", **CONTROL}])
def test_where_nothing_is_to_be_controlled_the_plans_stay_parameters(template: AnyTemplate, told: dict[str, str]) -> None:
    filled = template(**told)
    assert "ControlTask" not in filled.of_type("AWS::ECS::TaskDefinition")
    assert environment(filled.resource("BufferTask"))["SLUICE_PLANS"] == "ssm:/sluice/mlp-prod/plans/"
    assert filled.of_type("AWS::ECS::Service").keys() <= {"Buffer"}
    if told:
        assertions = template().body["Rules"]["ControlGiven"]["Assertions"]
        assert [filled.condition(assertion["Assert"]) for assertion in assertions] == [True, False]


def test_the_alarm_compares_late_requests_with_what_the_slo_allows(template: AnyTemplate) -> None:
    alarm = template(ModelName="encoder", SloPercentile="99").resource("SloAlarm")
    excess, *series = alarm["Metrics"]
    assert excess["Expression"] == "100 * violations / requests - (100 - 99)"
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0)
    for metric, name in zip(series, ("SloViolations", "Requests"), strict=True):
        assert metric["MetricStat"]["Metric"] == {
            "Namespace": "Sluice",
            "MetricName": name,
            "Dimensions": [{"Name": "Deployment", "Value": "mlp-prod"}, {"Name": "Model", "Value": "encoder"}],
        }


@pytest.mark.parametrize("slo_alarm", ["true", "false"])
def test_an_outage_is_told_by_the_load_balancer(template: AnyTemplate, slo_alarm: str) -> None:
    """A buffer of which nothing is left writes no metrics: the alarm on the SLO is silent then."""
    filled = template(EnableAlarm=slo_alarm, AlarmTopicArn="arn:aws:sns:us-east-1:000000000000:pager")
    assert filled.resource("SloAlarm")["TreatMissingData"] == "notBreaching"
    assert "OutageAlarm" in filled.of_type("AWS::CloudWatch::Alarm")  # whatever is asked of the alarm on the SLO
    alarm = filled.resource("OutageAlarm")
    assert (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]) == ("AWS/ApplicationELB", "HealthyHostCount", "Maximum")
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("LessThanThreshold", 1)
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["AlarmActions"] == filled.resource("SloAlarm")["AlarmActions"] == [filled.values["AlarmTopicArn"]]
    assert {d["Name"]: d["Value"]["Fn::GetAtt"] for d in alarm["Dimensions"]} == {
        "LoadBalancer": ["LoadBalancer", "LoadBalancerFullName"],
        "TargetGroup": ["Targets", "TargetGroupFullName"],
    }


TOPIC = "arn:aws:sns:us-east-1:000000000000:pager"


def alarms(filled: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = filled.of_type("AWS::CloudWatch::Alarm")
    return found


@pytest.mark.parametrize(
    ("told", "made"),
    [
        ({}, {"FunctionAlarm", "RefusalAlarm", "CacheAlarm"}),
        (CONTROL, {"FunctionAlarm", "RefusalAlarm", "CacheAlarm", "ControlAlarm"}),
        ({"CacheMode": "serverless"}, {"FunctionAlarm", "RefusalAlarm"}),  # which has no end of memory
        ({"CacheMode": "none"}, {"FunctionAlarm", "RefusalAlarm"}),
        ({"BufferStack": "other", **CONTROL}, {"FunctionAlarm"}),
    ],
)
def test_who_is_called_is_told_more_and_where_nobody_is_no_alarm_costs_anything(
    template: AnyTemplate, told: dict[str, str], made: set[str]
) -> None:
    silent, heard = alarms(template(**told)), alarms(template(AlarmTopicArn=TOPIC, **told))
    assert heard.keys() - silent.keys() == made and silent.keys() <= {"SloAlarm", "OutageAlarm"}
    assert not [name for name, alarm in silent.items() if "AlarmActions" in alarm]
    for name, alarm in heard.items():
        assert alarm["AlarmActions"] == [TOPIC], name
        assert alarm["AlarmDescription"].startswith("mlp-prod"), name
        metrics = alarm.get("Metrics", [])
        assert sum(metric.get("ReturnData", True) for metric in metrics) == bool(metrics), name  # the one that is compared
        assert len(metrics) <= 10, name  # CloudWatch's limit
    pattern = template().body["Parameters"]["AlarmTopicArn"]["AllowedPattern"]
    assert all(re.fullmatch(pattern, text) for text in ("", TOPIC)) and re.fullmatch(pattern, "pager") is None


@pytest.mark.parametrize("sizes", [["885"], ["1769", "512", "1024", "3538", "5307", "885"]])
def test_a_function_that_fails_is_told_of_whatever_its_memory(template: AnyTemplate, sizes: list[str]) -> None:
    told = {f"MemorySize{place}": size for place, size in enumerate((sizes + ["none"] * 5)[:6], 1)}
    total, *metrics = template(AlarmTopicArn=TOPIC, **told).resource("FunctionAlarm")["Metrics"]
    watched = [metric["MetricStat"]["Metric"] for metric in metrics]
    assert total["Expression"] == "SUM(METRICS())"
    assert [each["Dimensions"] for each in watched] == [[{"Name": "FunctionName", "Value": f"mlp-prod-{size}"}] for size in sizes]
    assert {(each["Namespace"], each["MetricName"]) for each in watched} == {("AWS/Lambda", "Errors")}


def test_a_buffer_that_is_deployed_and_does_not_do_is_taken_back(template: AnyTemplate) -> None:
    """Tasks that do not get healthy always; those that are healthy and refuse where an alarm is there that says so."""
    for told, watching in (
        ({}, None),
        ({"AlarmTopicArn": TOPIC}, {"AlarmNames": ["<RefusalAlarm>"], "Enable": True, "Rollback": True}),
    ):
        deployed = template(**told).resource("Buffer")["DeploymentConfiguration"]
        assert deployed["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}
        assert deployed.get("Alarms") == watching


def test_refusals_a_full_cache_and_a_missing_control_are_told_of_by_who_sees_them(template: AnyTemplate) -> None:
    """The load balancer sees what the buffer refused and what it could not refuse any more; the two nodes are the fuller one's."""
    heard = alarms(template(AlarmTopicArn=TOPIC, **CONTROL))
    share, *counts = heard["RefusalAlarm"]["Metrics"]
    assert share["Expression"] == "100 * SUM([refused, unserved]) / SUM([served, unserved])"
    assert {metric["Id"]: metric["MetricStat"]["Metric"]["MetricName"] for metric in counts} == {
        **{"refused": "HTTPCode_Target_5XX_Count", "unserved": "HTTPCode_ELB_5XX_Count", "served": "RequestCount"}
    }
    fullest, *nodes = heard["CacheAlarm"]["Metrics"]
    assert fullest["Expression"] == "MAX(METRICS())"
    values = [dimension["Value"] for node in nodes for dimension in node["MetricStat"]["Metric"]["Dimensions"]]
    assert values == ["<CacheNodes>-001", "<CacheNodes>-002"]
    assert template().resource("CacheNodes")["NumCacheClusters"] == len(nodes)
    missing = heard["ControlAlarm"]
    assert (missing["Namespace"], missing["MetricName"], missing["Statistic"]) == ("AWS/ECS", "CPUUtilization", "SampleCount")
    assert (missing["ComparisonOperator"], missing["Threshold"], missing["TreatMissingData"]) == (
        "LessThanThreshold",
        1,
        "breaching",
    )
    for name in ("RefusalAlarm", "CacheAlarm", "FunctionAlarm"):
        assert (heard[name]["ComparisonOperator"], heard[name]["TreatMissingData"]) == ("GreaterThanThreshold", "notBreaching")


def dashboard_of(filled: Any) -> list[dict[str, Any]]:
    widgets: list[dict[str, Any]] = msgspec.json.decode(filled.resource("Dashboard")["DashboardBody"])["widgets"]
    return widgets


def metrics_of(widgets: list[dict[str, Any]]) -> list[list[str]]:
    """Namespace, name, and dimensions with their values of each metric that is no expression, in full."""
    found: list[list[str]] = []
    for widget in widgets:
        above: list[str] = []  # whose place "." takes, and "..." those of all
        for metric in widget["properties"]["metrics"]:
            named = [part for part in metric if isinstance(part, str)]
            if named:
                above = above if named == ["..."] else [above[i] if part == "." else part for i, part in enumerate(named)]
                found.append(above)
    return found


def test_the_dashboard_shows_the_metrics_that_the_buffer_writes(template: AnyTemplate) -> None:
    filled = template(ModelName="encoder")
    assert Settings.from_environment(environment(filled.resource("BufferTask"))).cloudwatch == "on"
    out = io.StringIO()
    telemetry = Telemetry(out, deployment="mlp-prod").model(read(Plan, filled.resource("Plan")["Value"]))
    telemetry.sent(1, "sleeper")
    telemetry.answered(200, 0.1)
    telemetry.emit()
    line = msgspec.json.decode(out.getvalue())
    (written,) = line["_aws"]["CloudWatchMetrics"]
    assert (written["Namespace"], written["Dimensions"]) == ("Sluice", [["Deployment", "Model"]])
    assert (line["Deployment"], line["Model"]) == ("mlp-prod", "encoder")
    shown = [place for place in metrics_of(dashboard_of(filled)) if place[0] == "Sluice"]
    assert {tuple(dimensions) for _, _, *dimensions in shown} == {("Deployment", "mlp-prod", "Model", "encoder")}
    assert {name for _, name, *_ in shown} == {metric["Name"] for metric in written["Metrics"]}


def test_the_dashboard_shows_of_a_buffer_of_its_own_what_it_answers_with_and_its_tasks(template: AnyTemplate) -> None:
    filled = template()
    widgets = dashboard_of(filled)
    balancer, tasks = "<LoadBalancer.LoadBalancerFullName>", ["ClusterName", "<Cluster>", "ServiceName", "<Buffer.Name>"]
    assert [place for place in metrics_of(widgets) if place[0] != "Sluice"] == [
        *(
            ["AWS/ApplicationELB", f"HTTPCode_{name}_Count", "LoadBalancer", balancer]
            for name in ("Target_4XX", "Target_5XX", "ELB_5XX")
        ),
        *(["AWS/ECS", name, *tasks] for name in ("CPUUtilization", "CPUUtilization", "MemoryUtilization")),
    ]
    assert {name for name, resource in filled.body["Resources"].items() if resource.get("Condition") == "OwnBuffer"} >= {
        *("LoadBalancer", "Cluster", "Buffer")
    }
    assert dashboard_of(template(BufferStack="mlp-prod")) == widgets[:4]  # the other stack's dashboard has them


def test_the_dashboard_has_its_widgets_side_by_side(template: AnyTemplate) -> None:
    for widgets in (dashboard_of(template()), dashboard_of(template(BufferStack="mlp-prod"))):
        cells = [
            (x, y)
            for widget in widgets
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        ]
        assert len(set(cells)) == len(cells) == 24 * (1 + max(y for _, y in cells))
        assert all(0 <= x < 24 for x, _ in cells)


def test_few_errors_are_not_drawn_on_the_axis_of_many_invocations(template: AnyTemplate) -> None:
    (widget,) = [widget for widget in dashboard_of(template()) if "Invocations" in widget["properties"]["title"]]
    axes = {metric[0]["label"]: metric[0].get("yAxis", "left") for metric in widget["properties"]["metrics"]}
    assert axes == {"invocations": "left", "errors": "right", "throttles": "right"}


def test_the_dashboard_tells_its_lines_apart_and_what_is_late_from_what_may_be(template: AnyTemplate) -> None:
    widgets = dashboard_of(template(SloPercentile="99"))
    for properties in (widget["properties"] for widget in widgets):
        options = [metric[-1] for metric in properties["metrics"] if metric[-1].get("visible", True)]
        labels = [option["label"] for option in options]
        assert len(set(labels)) == len(labels) > 1
        assert {axis["min"] for axis in properties["yAxis"].values()} == {
            0
        }  # what is small beside what there was is not drawn as if it were large
        assert ("(right)" in properties["title"]) == any(option.get("yAxis") == "right" for option in options)
    late, allowed = (metric[0]["expression"] for metric in widgets[1]["properties"]["metrics"][:2])
    counted = {"violations": 3, "requests": 200}
    assert (eval(late, {}, counted), eval(allowed, {}, counted)) == (1.5, 1)
    named = {metric[-1]["id"]: metric[1] for metric in widgets[1]["properties"]["metrics"] if "id" in metric[-1]}
    assert named == {"violations": "SloViolations", "requests": "Requests"}


def test_the_dashboard_finds_every_function_by_its_whole_name(template: AnyTemplate) -> None:
    filled = template(MemorySize1="885", MemorySize2="1769", **{f"MemorySize{place}": "none" for place in (3, 4, 5)})
    names = {f["FunctionName"] for f in functions_of(filled).values()}
    assert names == {"mlp-prod-885", "mlp-prod-1769"}
    metrics = [metric[0] for widget in dashboard_of(filled) for metric in widget["properties"]["metrics"]]
    searches = [metric["expression"] for metric in metrics if isinstance(metric, dict) and "SEARCH" in metric["expression"]]
    assert [re.findall(r'MetricName="(\w+)"', search) for search in searches] == [["Invocations"], ["Errors"], ["Throttles"]]
    for search in searches:
        (alternatives,) = re.findall(r' \(("[^()]*")\)\', ', search)
        assert {name.strip('"') for name in alternatives.split(" OR ")} == names


def test_the_layer_is_for_the_runtime_of_the_functions(template: AnyTemplate) -> None:
    filled = template()
    assert filled.resource("InferenceLayer")["CompatibleRuntimes"] == [filled.globals()["Runtime"]]
    assert filled.resource("InferenceLayer")["CompatibleArchitectures"] == filled.globals()["Architectures"]


def test_samconfig_names_parameters_of_the_template(template: AnyTemplate) -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    overrides = dict(pair.split("=", 1) for pair in config["loopback"]["deploy"]["parameters"]["parameter_overrides"])
    parameters = template().body["Parameters"]
    assert overrides.keys() <= parameters.keys()
    assert {"VpcId", "SubnetIds", "BufferImage"} <= overrides.keys()


def test_the_page_recommends_for_what_the_template_deploys(template: AnyTemplate) -> None:
    """The buffer refuses a plan for another model than its function serves, and a GB-second has a price by architecture."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    values = template().values
    for name, options in (("profile", profile), ("recommend", recommend)):
        (line,) = re.findall(rf"^\$ sluice {name} (.*)$", page, re.M)
        above = click.Context(sluice, **sluice.context_settings)
        given = options.make_context(
            name, shlex.split(re.sub(r"(--profile|--arrivals) \S+", rf"\1 {shlex.quote(__file__)}", line)), above
        )
        assert given.params["architecture"] == values["Architecture"]
        assert given.params["model"] == values["ModelName"]


def test_every_parameter_is_documented(template: AnyTemplate) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    table = page.partition("| parameter |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}  # the first column
    assert named == template().body["Parameters"].keys()
