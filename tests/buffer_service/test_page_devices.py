"""What the live page tells of the workers that wrote themselves down."""

import json
import uuid

from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.page.devices import LOOK_EVERY, MOST_DEVICES, MOST_LETTERS, MOST_VARIANTS, Devices
from sluice.buffer_service.worker_registry import Registered, Registration, Variant, WorkerRegistry
from tests.buffer_service.conftest import serving


def worker(name="a", device="gpu", silent=0.5, leaving=False, **states):
    variants = {variant: Variant(state, 2.0 if state == "READY" else None) for variant, state in states.items()}
    return Registered(
        Registration(address=f"http://{name}:8500", device=device, heartbeat=1.0, variants=variants, leaving=leaving), silent
    )


class Known:
    """A registry that has these workers."""

    def __init__(self, *workers):
        self.found, self.away, self.asked, self.closed = list(workers), False, 0, False

    async def workers(self):
        self.asked += 1
        if self.away:
            raise StoreUnavailable("Redis does not answer")
        return {each.registration.address: each for each in self.found}

    async def close(self):
        self.closed = True


async def told_of(*workers):
    devices = Devices(Known(*workers), lambda: 0.0)
    await devices.look()
    return devices.tell()


async def test_types_tell_what_the_workers_that_are_heard_of_have_loaded():
    told = await told_of(
        worker("a", large="READY", small="UNAVAILABLE"),
        worker("b", large="READY", small="READY"),
        worker("c", silent=2.1, large="READY"),
        worker("d", device="cpu", small="LOADING"),
    )
    assert told["types"] == [
        {"device": "cpu", "workers": 1, "alive": 1, "loaded": {}, "loaded_left_out": 0},
        {"device": "gpu", "workers": 3, "alive": 2, "loaded": {"large": 2, "small": 1}, "loaded_left_out": 0},
    ]
    assert [each["address"] for each in told["workers"]] == [f"http://{name}:8500" for name in "cabd"]  # who is silent comes first
    silent, *_, loading = told["workers"]
    assert (silent["alive"], silent["silent"], silent["loaded"], silent["slowest_load"]) == (False, 2.1, ["large"], 2.0)
    assert (loading["alive"], loading["loading"], loading["variants"], loading["slowest_load"]) == (True, ["small"], 1, None)


async def test_who_leaves_is_told_of_and_counts_no_more():
    told = await told_of(worker(leaving=True, large="READY"))
    assert (told["types"][0]["alive"], told["types"][0]["loaded"], told["workers"][0]["leaving"]) == (0, {}, True)


async def test_of_many_the_first_are_told_and_the_others_counted():
    names = {f"v{n}": "READY" for n in range(MOST_VARIANTS + 3)}
    told = await told_of(*(worker(f"h{n}", device=f"type {n}", **names) for n in range(MOST_DEVICES + 2)))
    assert (len(told["types"]), told["types_left_out"]) == (len(told["workers"]), told["workers_left_out"]) == (MOST_DEVICES, 2)
    assert (len(told["types"][0]["loaded"]), told["types"][0]["loaded_left_out"]) == (MOST_VARIANTS, 3)
    assert (len(told["workers"][0]["loaded"]), told["workers"][0]["variants"]) == (MOST_VARIANTS, MOST_VARIANTS + 3)


async def test_long_names_are_cut_and_no_password_is_shown():
    told = await told_of(worker("me:secret@host", device="d" * 999, **{"v" * 999: "READY"}))
    (each,) = told["workers"]
    assert (each["address"], len(each["device"]), len(each["loaded"][0])) == ("http://***@host:8500", MOST_LETTERS, MOST_LETTERS)
    assert "secret" not in json.dumps(told)


async def test_who_is_there_is_looked_for_seldom_and_stays_while_redis_is_away():
    now, known = [0.0], Known(worker())
    devices = Devices(known, lambda: now[0])
    for _ in range(3):
        await devices.look()
    assert (known.asked, devices.trouble) == (1, "")
    known.away, now[0] = True, LOOK_EVERY
    await devices.look()
    assert (known.asked, devices.tell()["trouble"], len(devices.tell()["workers"])) == (2, "Redis does not answer", 1)
    known.away, now[0] = False, 2 * LOOK_EVERY
    known.found.clear()
    await devices.look()
    assert devices.tell() is None
    await devices.close()
    assert known.closed


async def test_without_a_redis_there_is_no_fleet(function):
    async with serving(function, constructors.no_batching()) as buffer:
        _, _, body = await buffer.get("/status")
        assert json.loads(body)["fleet"] is None


async def test_the_page_tells_of_a_worker_that_wrote_itself_down_in_redis(function, redis_server):
    namespace = uuid.uuid4().hex
    registry = WorkerRegistry(redis_server.url, namespace)
    await registry.beat(worker(large="READY").registration)
    async with serving(function, constructors.no_batching()) as buffer:
        buffer.service.page._watch._devices = Devices(registry, lambda: 0.0)
        _, _, body = await buffer.get("/status")
    assert json.loads(body)["fleet"]["types"] == [
        {"device": "gpu", "workers": 1, "alive": 1, "loaded": {"large": 1}, "loaded_left_out": 0}
    ]
