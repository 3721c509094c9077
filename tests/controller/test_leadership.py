"""One controller leads; another when it is gone; and what was decided can be read back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.controller import journal as journal_module
from sluice.controller.journal import Journal, read_journal
from sluice.controller.leadership import controller_name, lead
from sluice.local.redis_server import RedisServer


class Candidate:
    """A controller that does nothing but lead."""

    def __init__(self, server: RedisServer, namespace: str, name: str, lease: float = 0.3) -> None:
        self.plans = RedisPlans(server.url, namespace)
        self.name, self.lease = name, lease
        self.leads = asyncio.Event()
        self.gave_up = asyncio.Event()
        self.task = asyncio.create_task(lead(self.plans, name, self.work, lease))

    async def work(self) -> None:
        self.leads.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.leads.clear()
            self.gave_up.set()

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.plans.close()


@contextlib.asynccontextmanager
async def candidate(server: RedisServer, namespace: str, name: str, lease: float = 0.3) -> AsyncIterator[Candidate]:
    one = Candidate(server, namespace, name, lease)
    try:
        yield one
    finally:
        await one.stop()


async def within(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()


async def test_of_two_controllers_one_leads_and_the_other_once_it_has_ended(redis_server: RedisServer) -> None:
    async with candidate(redis_server, "two", "a", lease=30) as a:
        await within(a.leads)
        async with candidate(redis_server, "two", "b") as b:
            await asyncio.sleep(0.3)
            assert not b.leads.is_set()
            await a.stop()
            await within(b.leads)


async def test_who_cannot_renew_the_lease_gives_up_before_another_leads() -> None:
    with RedisServer() as server:
        async with candidate(server, "away", "a") as a:
            await within(a.leads)
            server.kill()
            await within(a.gave_up)
            server.start()
            await within(a.leads)


async def test_a_lease_that_was_taken_away_ends_the_work(redis_server: RedisServer) -> None:
    async with candidate(redis_server, "taken", "a") as a:
        await within(a.leads)
        redis.Redis.from_url(redis_server.url).set("taken:{plans}:lease", "b", px=600)
        await within(a.gave_up)
        await within(a.leads)


async def test_work_that_fails_ends_the_controller(redis_server: RedisServer) -> None:
    plans = RedisPlans(redis_server.url, "fails")

    async def work() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await lead(plans, "a", work)
    assert await plans.leader() == ""
    await plans.close()


def test_no_two_controllers_have_one_name() -> None:
    assert controller_name() != controller_name()


# -- the journal


async def test_what_was_decided_is_read_back_from_the_file_and_from_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    plans = RedisPlans(redis_server.url, "journal")
    journal = Journal(tmp_path / "new" / "journal.jsonl", plans)
    await journal.note("m", "more come", rate=3.5)
    await journal.note("", "a worker is gone")
    first, second = read_journal(tmp_path / "new" / "journal.jsonl")
    assert (first["model"], first["words"], first["rate"]) == ("m", "more come", 3.5)
    assert [json.loads(entry) for entry in await plans.decisions(10)] == [second, first]
    await plans.close()


async def test_on_a_full_disk_redis_has_the_entry_and_the_next_one_stands_on_a_line_of_its_own(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans, path = RedisPlans(redis_server.url, "full-disk"), tmp_path / "journal.jsonl"
    journal = Journal(path, plans)
    await journal.note("m", "there is room")
    room, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, most))  # 20 bytes of the next entry are written
    try:
        await journal.note("m", "there is none")
        await journal.note("m", "still none")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    await journal.note("m", "again")
    assert [entry["words"] for entry in read_journal(path)] == ["there is room", "again"]
    kept = [json.loads(entry)["words"] for entry in await plans.decisions(10)]
    assert kept == ["again", "still none", "there is none", "there is room"]
    [said] = [record.getMessage() for record in caplog.records if "not in the journal" in record.getMessage()]
    assert "No space left on device" in said
    await plans.close()


async def test_a_full_file_is_moved_aside_and_the_one_before_it_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_FILE_BYTES", 1000)
    journal = Journal(tmp_path / "journal.jsonl", None)
    for i in range(50):
        await journal.note("m", f"decision {i}")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
    words = [entry["words"] for entry in read_journal(tmp_path / "journal.jsonl")]
    assert words == [f"decision {i}" for i in range(50 - len(words), 50)]
    assert len(words) > 10


async def test_figures_beyond_the_bound_are_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", None)
    await journal.note("m", "words", figures="x" * journal_module.MAX_ENTRY_BYTES)
    [entry] = read_journal(tmp_path / "journal.jsonl")
    assert entry.keys() == {"at", "model", "words"}


async def test_a_redis_that_is_away_is_said_once_with_how_to_name_another(caplog: pytest.LogCaptureFixture) -> None:
    plans = RedisPlans("redis://127.0.0.1:1/0")
    leading = asyncio.ensure_future(lead(plans, "a", asyncio.Event().wait, lease=0.05))
    await asyncio.sleep(0.2)  # several tries
    leading.cancel()
    await asyncio.wait([leading])
    await plans.close()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "sluice.controller.leadership"]
    assert said.startswith("Redis does not answer") and said.endswith(
        "(--redis-url, SLUICE_REDIS_URL); until it does, nothing is decided"
    )


async def test_a_redis_that_is_away_keeps_nobody_from_deciding(tmp_path: Path) -> None:
    plans = RedisPlans("redis://127.0.0.1:1/0")
    await Journal(tmp_path / "journal.jsonl", plans).note("m", "words")
    assert len(list(read_journal(tmp_path / "journal.jsonl"))) == 1
    await plans.close()


def test_a_journal_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="journal"):
        Journal(tmp_path / "file" / "journal.jsonl", None)
