"""What the live page tells of the buffers that follow the plans in Redis."""

from __future__ import annotations

import uuid

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.followers import MOST_NAMED, Astray, Followers, told_followers
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.page.buffers import LOOK_EVERY, Buffers
from sluice.buffer_service.presence import Heard, OtherPlan, Presence
from sluice.buffer_service.redis_plans import Reason, RedisPlans
from sluice.buffer_service.settings import Settings
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan


class Known:
    """Where these processes are."""

    def __init__(self, *processes: Heard) -> None:
        self.processes, self.away, self.asked = list(processes), False, 0

    async def heard(self) -> list[Heard]:
        self.asked += 1
        if self.away:
            raise StoreUnavailable("Redis does not answer")
        return self.processes


def heard(process: str, read: str = "5000-0", **others: OtherPlan) -> Heard:
    return Heard(process, 0.0, Presence(host="h", release="1", plans="redis:", read=read, others=others))


def written(at: float, digest: str) -> dict[tuple[str, str], Reason]:
    return {("m", digest): Reason(at, "m", digest, "ana", "")}


async def test_redis_is_asked_seldom_and_what_it_does_not_answer_is_not_known() -> None:
    now, known = [0.0], Known(heard("a"))
    buffers = Buffers(known, lambda: {"m": "d"}, lambda: now[0])
    assert buffers.tell("m", {}) is None  # nobody looked
    for _ in range(3):
        await buffers.look()
    told = buffers.tell("m", {})
    assert known.asked == 1 and told is not None and (told["digest"], told["words"]) == ("d", "1 buffer follows")
    assert buffers.tell("another", {}) is None  # which has no plan in Redis
    now[0], known.away = LOOK_EVERY, True
    await buffers.look()
    assert known.asked == 2 and buffers.tell("m", {}) is None


async def test_without_a_redis_there_is_nothing_to_tell() -> None:
    buffers = Buffers(None, dict, lambda: 0.0)
    await buffers.look()
    assert buffers.tell("m", {}) is None


async def test_who_told_of_himself_before_the_plan_was_written_is_told_apart() -> None:
    buffers = Buffers(Known(heard("a"), heard("b", "7000-0")), lambda: {"m": "d"}, lambda: 0.0)
    await buffers.look()
    for reasons, before in ((written(5.0, "d"), 0), (written(5.001, "d"), 1), (written(8.0, "of another"), 2), ({}, 0)):
        told = buffers.tell("m", reasons)
        assert told is not None and (told["follow"], told["before"]) == (2 - before, before)


def test_what_is_told_is_read_again_and_what_it_leaves_out_is_still_counted() -> None:
    many = Followers("d", 20, 1, 0, 1, [Astray(f"p{i}", "h", "c", "") for i in range(MOST_NAMED + 2)])
    again = told_followers(many.document())
    assert again == many._replace(astray=many.astray[:MOST_NAMED])
    named = f"p0 on h and {MOST_NAMED - 1} more follow plan c"
    assert again.words() == f"1 of 20 buffers follows; {named}; 2 more do not; of 1 it is not known"
    assert again.document() == many.document()


async def test_a_buffer_with_plans_from_elsewhere_tells_who_follows_the_plan_in_redis(
    redis_server: RedisServer,
) -> None:
    settings = Settings(port=0, log_level="error", redis_url=redis_server.url, namespace=uuid.uuid4().hex)
    here, there = plan(NO_BATCHING), plan(NO_BATCHING, function="there")
    board = RedisPlans(settings.redis_url, settings.namespace)
    await board.write(there, "ana")
    await board.close()
    service = BufferService(settings, None, LocalInvoker({"f": Function()}), Plans(here))
    await service.start()
    assert service._presence is not None and service.page is not None
    await service._presence.look()
    [told] = (await service.page._watch.tell())["models"]
    await service.stop()
    found = told["plan"]["followers"]
    assert (told["plan"]["digest"], found["digest"], found["buffers"], found["follow"]) == (here.digest, there.digest, 1, 0)
    assert found["words"].endswith(f" follows plan {here.digest}: its plans come from file:plans")
