"""A process that hears nothing from its store says so once in a while, names the store, and goes on trying."""

import asyncio
import logging

import pytest

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import app
from sluice.buffer_service.settings import Settings

TRIES = 100


class Away:
    """A store that is not there."""

    async def receive(self):
        raise StoreUnavailable("Redis does not answer: Connection refused")


async def test_a_store_that_is_away_is_tried_again_and_again_and_told_of_once(monkeypatch, caplog):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == TRIES:
            raise asyncio.CancelledError

    monkeypatch.setattr(app.asyncio, "sleep", sleep)
    service = app.BufferService(Settings(redis_url="redis://user:secret@127.0.0.1:1/0"), store=Away())
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await service._receive(Away(), None, None)
    assert set(pauses) == {app.RECEIVE_PAUSE}
    assert caplog.messages == [
        "Redis does not answer: Connection refused; at redis://***@127.0.0.1:1/0 "
        "(--redis-url, SLUICE_REDIS_URL; memory:// needs no Redis)"
    ]
