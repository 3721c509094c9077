"""Stacks of one test are in one account, as the environments and models of a team are."""

from __future__ import annotations

import boto3
import pytest

from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import size_or_timeout
from sluice.testing import aws_account, memory_buffer


def plan(stack: str, batch_size: int, model: str = "echo") -> Plan:
    return Plan(model=model, function=f"{stack}-512:live", policy=PolicyDocument.of(size_or_timeout(batch_size, 0.02)))


def echo(inputs: list[str]) -> list[str]:
    return inputs


def test_two_environments_follow_a_plan_each_and_a_buffer_a_model_that_is_added() -> None:
    with (
        aws_account("echo", plan("echo-dev", 2), stack="echo-dev", MemorySize6="885") as dev,
        aws_account("echo", plan("echo-prod", 4), stack="echo-prod") as prod,
        memory_buffer(echo, dev.plans, plan_interval=5.0) as one,
        memory_buffer(echo, prod.plans, plan_interval=5.0) as other,
    ):
        names = {each["FunctionName"] for each in boto3.client("lambda").list_functions()["Functions"]}
        assert names == {*dev.functions, *prod.functions} and not set(dev.functions) & set(prod.functions)
        assert [{answer.batch_size for answer in buffer.ask_all("abcd")} for buffer in (one, other)] == [{2}, {4}]
        dev.put_plan(plan("echo-dev", 1))
        for buffer in (one, other):
            buffer.sleep(6.0)
        assert [{answer.batch_size for answer in buffer.ask_all("abcd")} for buffer in (one, other)] == [{1}, {4}]
        added = write(plan("more", 3, "more")).decode()
        boto3.client("ssm").put_parameter(Name="/sluice/echo-dev/plans/more", Type="String", Value=added)
        one.sleep(6.0)
        assert one.send("x", "/models/more").answer.status == 200 and sorted(one.models) == ["echo", "more"]


def test_a_name_of_a_stack_is_there_once_and_an_account_begins_empty() -> None:
    for _ in range(2):
        with aws_account("echo", stack="echo-dev"):
            with pytest.raises(InvalidInput, match="stack: 'echo-dev' is not allowed; allowed: .* it has echo-dev"):
                aws_account("other", stack="echo-dev").__enter__()
            assert boto3.client("ssm").describe_parameters()["Parameters"] == []
