"""The template as CloudFormation reads it, and AWS's control planes in this process: moto's server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest

from tests import sam_template

ROOT = Path(__file__).parents[2]
STACK_ID = "arn:aws:cloudformation:us-east-1:123456789012:stack/mlp-prod/0b5d5b10-c85e-11f0-9c1d-0affe4b1c2d3"

load = cache(sam_template.load)  # nobody writes into it


class Template:
    """``template.yaml`` with its parameters filled in: what `Ref`, `Sub`, `Join`, `Split`, `Select`, `FindInMap` and `If` come to.

    Other functions are left alone.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self.body: dict[str, Any] = load(ROOT / "template.yaml")
        defaults = {name: str(p["Default"]) for name, p in self.body["Parameters"].items() if "Default" in p}
        self.values: dict[str, Any] = {"AWS::StackName": "mlp-prod", "AWS::StackId": STACK_ID, **defaults, **parameters}
        for name in (name for name, p in self.body["Parameters"].items() if p["Type"] == "CommaDelimitedList"):
            self.values[name] = self.values[name].split(",")

    def resource(self, name: str) -> dict[str, Any]:
        """The properties of a resource."""
        properties: dict[str, Any] = self.resolve(self.body["Resources"][name].get("Properties", {}))
        return properties

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """The resources of a type that are created, by logical name."""
        created = {
            name: resource
            for name, resource in self.body["Resources"].items()
            if "Condition" not in resource or self.condition({"Condition": resource["Condition"]})
        }
        return {name: self.resource(name) for name, resource in created.items() if resource["Type"] == kind}

    def globals(self) -> dict[str, Any]:
        """What every function has."""
        properties: dict[str, Any] = self.resolve(self.body["Globals"]["Function"])
        return properties

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.resolve(v) for v in value if not self._absent(v)]
        if not isinstance(value, dict):
            return value
        if set(value) == {"Fn::If"}:
            condition, yes, no = value["Fn::If"]
            return self.resolve(yes if self.condition({"Condition": condition}) else no)
        if set(value) == {"Ref"}:
            return self.values.get(value["Ref"], f"<{value['Ref']}>")
        if set(value) == {"Fn::Join"}:
            separator, parts = value["Fn::Join"]
            return separator.join(self.resolve(parts))
        if set(value) == {"Fn::Split"}:
            separator, text = value["Fn::Split"]
            return self.resolve(text).split(separator)
        if set(value) == {"Fn::Select"}:
            place, parts = value["Fn::Select"]
            return self.resolve(parts)[int(place)]
        if set(value) == {"Fn::FindInMap"}:
            name, first, second = (self.resolve(key) for key in value["Fn::FindInMap"])
            return self.body["Mappings"][name][first][second]
        if set(value) == {"Fn::Sub"}:
            text, variables = value["Fn::Sub"] if isinstance(value["Fn::Sub"], list) else (value["Fn::Sub"], {})
            known = {**self.values, **{name: self._text(variable) for name, variable in variables.items()}}
            return re.sub(r"\$\{([^}!]+)\}", lambda m: known.get(m[1], f"<{m[1]}>"), text)
        return {k: self.resolve(v) for k, v in value.items() if not self._absent(v)}

    def condition(self, value: Any) -> bool:
        (function, operand), *_ = value.items()
        if function == "Condition":
            return self.condition(self.body["Conditions"][operand])
        if function == "Fn::Not":
            return not self.condition(operand[0])
        if function in ("Fn::And", "Fn::Or"):
            return (all if function == "Fn::And" else any)(self.condition(part) for part in operand)
        assert function == "Fn::Equals", function
        left, right = self.resolve(operand)
        return bool(left == right)

    def _text(self, value: Any) -> Any:
        """What a variable of `Fn::Sub` comes to, an attribute in the way of a `Ref`."""
        resolved = self.resolve(value)
        if isinstance(resolved, dict):
            (function, operand), *_ = resolved.items()
            return f"<{'.'.join(operand) if function == 'Fn::GetAtt' else self.resolve(operand)}>"
        return resolved

    def _absent(self, value: Any) -> bool:
        return isinstance(value, dict) and set(value) <= {"Fn::If", "Ref"} and self.resolve(value) == "<AWS::NoValue>"


@pytest.fixture
def template() -> Callable[..., Template]:
    """``template(ModelName="x")``: the template with these parameters, the others at their defaults."""
    return lambda **parameters: Template(parameters)


@pytest.fixture
def moto_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty AWS without data planes; clients made in the test go there, with nobody's credentials."""
    from moto.server import ThreadedMotoServer  # slow to import, and every worker imports this module

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials that it found first
    try:
        urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()  # its state is that of the process
        yield url
    finally:
        server.stop()
