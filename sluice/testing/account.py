"""AWS on this machine for a test: functions in a local Lambda, and an account with what the template would make in it.

    local_lambda    the Invoke API in front of real ``awslambdaric`` processes (``sluice.local``): what answers is the model itself
    aws_account     moto's server: the parameter with the plan where the template has it, the functions by the template's names,
                    which answer nothing, and whatever else the tested code asks an empty account for

Clients that are made in the block go there, with nobody's credentials: nothing of it reaches AWS, a network or docker.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from importlib.resources import files
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest

from sluice.batching.documents import Plan, write
from sluice.batching.errors import require
from sluice.local.functions import MB_PER_VCPU, Function
from sluice.local.stack import AWS_ENVIRONMENT, LambdaProcess, lambda_process
from sluice.packaging.parameters import require_taken

STACK = "sluice"
_PLAN = re.compile(r'Name: !Sub \["(/sluice/[^"]*\$\{ModelName\})"')
_FUNCTION = re.compile(r'FunctionName: !Sub "([^"]+)"')
_DEFAULT = re.compile(r'^  (\w+): \{Type: [^,]+, Default: "?([^",}]*)', re.MULTILINE)
_HANDLER = "def handler(event, context): return event"
_TRUST = {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}}]}

_STACKS: dict[str, set[str]] = {}  # of the account that is there, if one is, by its URL
_LAMBDAS: set[str] = set()  # the URLs of the local ones that are there


@contextlib.contextmanager
def local_lambda(
    models: Mapping[str, str], memory_mb: int = MB_PER_VCPU, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[LambdaProcess]:
    """A Lambda on this machine, until the block ends, where clients and buffers that are made in it find their functions.

    Parameters
    ----------
    models
        By the name of its function, what each serves, as ``SLUICE_MODEL`` says it: ``model.py:Doubler``, ``package.module:Class``
        or ``network.onnx``; files from the folder that the tests run in, or ``working_directory``.
    memory_mb
        Of each function; sets its share of a core too.
    environment
        Further variables of the functions, such as ``SLUICE_MODEL_NAME``.
    settings
        Others of ``sluice.local.functions.Function``, such as ``timeout`` (s) and ``concurrency_limit``.

    Raises
    ------
    InvalidInput
        Where a setting is not allowed.
    """
    functions = [
        Function(name=name, memory_mb=memory_mb, environment={**(environment or {}), "SLUICE_MODEL": model}, **settings)
        for name, model in models.items()
    ]
    fields = [{name: getattr(function, name) for name in Function.__struct_fields__} for function in functions]
    with lambda_process(fields) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL_LAMBDA": running.url}.items():
            patch.setenv(name, value)
        patch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials that it found first
        _LAMBDAS.add(running.url)
        try:
            yield running
        finally:
            _LAMBDAS.discard(running.url)


class Account:
    """An account at ``url`` in which a stack of one model was deployed, with these parameters of the template.

    Attributes
    ----------
    plan_parameter : str
        The name of the parameter that has the plan.
    plans : str
        Where the buffer of the stack reads its plans, as ``SLUICE_PLANS`` says it.
    functions : tuple of str
        The names of the model's functions; their alias is ``live``.
    """

    def __init__(self, url: str, model: str, stack: str, parameters: Mapping[str, object] | None = None) -> None:
        template = files("sluice.packaging").joinpath("template.yaml").read_text()
        defaults = dict(_DEFAULT.findall(template))
        for name in parameters or {}:
            allowed = "one of the template's that has a default; the model is told by `model`"
            require(name in defaults and name != "ModelName", "parameter", name, allowed)
        given = {name: str(value) for name, value in (parameters or {}).items()}
        require_taken({**given, "ModelName": model}, "the account")
        values = {**defaults, **given, "ModelName": model, "AWS::StackName": stack, "Scope": stack}
        named = _PLAN.search(template)
        assert named is not None, "the template has a parameter with the plan"
        self.url = url
        self.plan_parameter = _filled_in(named[1], values)
        self.plans = f"ssm:{self.plan_parameter.removesuffix(model)}"
        functions = {_filled_in(name, values) for name in _FUNCTION.findall(template)}
        self.functions = tuple(sorted(name for name in functions if not name.endswith("-none")))

    def put_plan(self, plan: Plan) -> None:
        """Write a plan where the stack's buffer reads it, as `aws ssm put-parameter --overwrite` does."""
        boto3.client("ssm").put_parameter(
            Name=self.plan_parameter, Value=write(plan).decode(), Type="String", Tier="Intelligent-Tiering", Overwrite=True
        )


@contextlib.contextmanager
def aws_account(model: str, plan: Plan | None = None, stack: str = STACK, **parameters: object) -> Iterator[Account]:
    """An account of moto, until the block ends, with what the template's stack of this model has in it.

    A ``plan`` is put where the buffer reads it; ``parameters`` are those of the template, such as ``MemorySize1="885"``. Functions
    answer where ``local_lambda`` runs them. A block within a block has another stack of the same account, which stays for as long
    as the account does. Raises ``InvalidInput`` for a parameter that there is not, or a value that it has not, and for a stack that
    the account has already.
    """
    with _served() as url, pytest.MonkeyPatch.context() as patch:
        _enter(patch, url)
        there = _STACKS[url]
        require(stack not in there, "stack", stack, f"a stack that the account has not yet; it has {', '.join(sorted(there))}")
        account = Account(url, model, stack, parameters)
        there.add(stack)
        _make(stack, account.functions, url)
        if plan is not None:
            account.put_plan(plan)
        yield account


@contextlib.contextmanager
def _served() -> Iterator[str]:
    """The URL of an empty account; of that of the block around this one, where there is one."""
    if _STACKS:
        yield next(iter(_STACKS))
        return
    from moto.server import ThreadedMotoServer  # slow to import

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()  # its state is that of the process
        _STACKS[url] = set()
        yield url
    finally:
        _STACKS.clear()
        server.stop()


def _enter(patch: pytest.MonkeyPatch, url: str) -> None:
    """Have clients find the account at ``url``; a local Lambda that a test has made stays, and nothing else of the environment."""
    kept = {"AWS_ENDPOINT_URL_LAMBDA"} if os.environ.get("AWS_ENDPOINT_URL_LAMBDA") in _LAMBDAS else set()
    for name in [name for name in os.environ if name.startswith("AWS_") and name not in kept]:
        patch.delenv(name)
    for name, value in {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        patch.setenv(name, value)
    patch.setattr(boto3, "DEFAULT_SESSION", None)


def _make(stack: str, functions: Collection[str], url: str) -> None:
    """The functions of a stack, each with the alias that plans name."""
    made = boto3.client("iam").create_role(RoleName=f"{stack}-functions", AssumeRolePolicyDocument=json.dumps(_TRUST))
    role = made["Role"]["Arn"]
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("handler.py", _HANDLER)
    client = boto3.client("lambda", endpoint_url=url)
    for name in functions:
        client.create_function(
            FunctionName=name,
            Runtime="python3.13",
            Handler="handler.handler",
            Role=role,
            MemorySize=int(memory[0]) if (memory := re.findall(r"-(\d+)$", name)) else MB_PER_VCPU,
            Code={"ZipFile": package.getvalue()},
            Publish=True,
        )
        client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    """What ``!Sub`` makes of a text; raises ``KeyError`` for what the template has no value of."""
    return re.sub(r"\$\{([^}]+)\}", lambda found: values[found[1]], text)
