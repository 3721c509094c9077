"""Many queues whose server went: how often it is tried, and that all are back when it is."""

import asyncio

import pytest

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_servers import Away
from sluice.buffer_service.redis_store import Gate
from sluice.buffer_service.trials import AT_ONCE, Trials


class Gone:
    """Servers that are away until ``back``; who tried, by slot, in order."""

    def __init__(self):
        self.back = False
        self.asked = 0
        self.tried = []
        self.under_way = self.most = 0

    def owner(self, slot):
        return "even" if slot % 2 == 0 else "odd"

    async def call(self, slot, *commands, within=None):
        self.asked += 1
        if within is not None:
            self.tried.append(slot)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if not self.back:
            raise Away("gone")
        return [b"OK"]


async def shut(count):
    servers, trials = Gone(), Trials()
    gates = [Gate(servers, slot, "probe", "hereeeee", trials, {}) for slot in range(count)]
    for gate in gates:
        with pytest.raises(Away):
            await gate.call(("PING",))
    return servers, gates


async def tried(servers, times):
    async with asyncio.timeout(60):
        while len(servers.tried) < times:
            await asyncio.sleep(0.001)


async def all_open(gates):
    async with asyncio.timeout(60):
        for gate in gates:
            while gate._breaker.away is not None:
                await asyncio.sleep(0.001)


async def test_many_that_are_cut_off_try_in_turn_and_all_are_back_when_one_was_let_in():
    servers, gates = await shut(500)
    before = len(servers.tried)
    assert before <= 3 * AT_ONCE  # the first few have tried as if they were alone
    await tried(servers, before + 20)
    servers.back, known = True, len(servers.tried)
    await all_open(gates)
    assert len(servers.tried) <= known + len(gates)  # nobody tries twice
    assert servers.most <= 2 * len(gates) // 3
    for gate in gates:
        assert await gate.call(("PING",)) == [b"OK"]
        await gate.close()


async def test_few_try_each_at_once_and_again():
    servers, gates = await shut(3)
    await tried(servers, 6)
    assert set(servers.tried[:3]) == {0, 1, 2}
    servers.back = True
    await all_open(gates)
    for gate in gates:
        await gate.close()


async def test_who_is_closed_while_it_waits_takes_nobodys_turn():
    servers, gates = await shut(40)
    for gate in gates[:20]:
        await gate.close()
    servers.back = True
    await all_open(gates[20:])
    for gate in gates[20:]:
        await gate.close()
    with pytest.raises(StoreUnavailable):
        await gates[0].call(("PING",))  # it tries no more


async def test_whether_a_script_can_be_run_is_asked_once_of_each_server_by_all_who_ask_at_once():
    servers, checks = Gone(), {}
    servers.back = True
    gates = [Gate(servers, slot, "probe", "hereeeee", Trials(), checks) for slot in range(1000)]
    await asyncio.gather(*(gate.check() for gate in gates))
    assert servers.asked == 2
    servers.back = False
    answers = await asyncio.gather(*(gate.check() for gate in gates), return_exceptions=True)
    assert servers.asked >= 4
    assert all(isinstance(answer, Away) for answer in answers)
    assert checks == {}
    for gate in gates:
        await gate.close()
