"""For tests of who builds on Sluice: a buffer in memory around a model, a local Lambda, an account with the stack's parameters.

    pytest_plugins = ["sluice.testing"]    in the ``conftest.py`` at the root of the tests: the fixtures below
    sluice_buffer                          ``memory_buffer``, closed with the test
    sluice_lambda                          ``local_lambda``
    sluice_account                         ``aws_account``

It is no plugin that pytest finds by itself: whoever installed Sluice would import the buffer in every run of his tests, and have
fixtures that nobody asked for. Needs pytest, and ``sluice-batching[serve,local]``; nothing of it reaches a network or docker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from sluice.local.stack import LambdaProcess
from sluice.testing.account import Account, aws_account, local_lambda
from sluice.testing.buffer import Answered, MemoryBuffer, Sent, memory_buffer
from sluice.testing.functions import Invocation

__all__ = [
    "Account",
    "Answered",
    "Invocation",
    "LambdaProcess",
    "MemoryBuffer",
    "Sent",
    "aws_account",
    "local_lambda",
    "memory_buffer",
]


@pytest.fixture
def sluice_buffer() -> Iterator[Callable[..., MemoryBuffer]]:
    """``sluice.testing.memory_buffer``, which runs until the test has ended."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(memory_buffer(*arguments, **options))


@pytest.fixture
def sluice_lambda() -> Iterator[Callable[..., LambdaProcess]]:
    """``sluice.testing.local_lambda``, which runs until the test has ended."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(local_lambda(*arguments, **options))


@pytest.fixture
def sluice_account() -> Iterator[Callable[..., Account]]:
    """``sluice.testing.aws_account``, which is there until the test has ended."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(aws_account(*arguments, **options))
