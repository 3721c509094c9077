"""Fixtures that several rooms use."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from sluice.batching.heap import keep_freed_memory
from sluice.local.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One real server for the whole run; a test that kills or restarts starts its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def what_has_been_imported_stays_frozen() -> Iterator[None]:
    """A worker that unloads a model has its collector look at all that its process has: here at what all tests have imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


# How long an example takes is the machine's matter.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_configure() -> None:
    """What makes a run cheaper and changes nothing that is tested.

    One thread for linear algebra: on busy cores its threads spin for each other, a hundred times as long as they compute. And the
    arrays of simulations get memory that others have left, not new pages each time.
    """
    keep_freed_memory(1 << 28)  # bytes
    gc.disable()  # until all is collected, of which nothing is garbage
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported, in the workers too


def pytest_collection_finish() -> None:
    """What has been imported and collected lives until the end: the collector of garbage need not look at it for every test.

    Nor that often at all else: with so little left that it goes by, it would look at everything for an eighth of the time of some.
    """
    gc.freeze()
    gc.set_threshold(2_000, 10, 100)
    gc.enable()
