"""The queues in Redis: one script call for everything that happened, whatever the number of requests.

Keys begin with the namespace of the deployment, so that several share one Redis. Those of a queue carry the hash tag ``{model}``,
so that they share a slot of a Redis Cluster, as all queues of a model do, for they share the record of arrivals; those of different
models lie on different servers. Where routes are spread, each has a tag ``{model:route}`` and a record of its own. The list of
messages to a process is a key of its own. ``redis_servers.py`` knows who has a slot.

While the server of a slot is away (``breaker.py``), calls are refused at once, and ``PROBE`` is tried in the background.

A value under one of these keys that the buffer did not write, of another type or without its form, is set aside by
``lua/set_aside.lua`` when a call stumbles over it: renamed to the key with ``:aside`` behind it (of a mailbox
``NAMESPACE:aside:{KEY}``, in its slot), where the last one is kept for ``ASIDE_LIFE``. The queue then begins a new life, in which
all processes submit again what waits.

A replica that took over may not have seen the last writes: the queue counts as another one then, and what waits is submitted again
by the process it waits at. What the replica had seen all the same is computed twice, and answered once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from math import ceil
from typing import Any, cast

from redis.crc import key_slot
from redis.exceptions import NoScriptError, ResponseError

from sluice.batching import Policy
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.arrival_stream import pack_floats, refused_key, routes_key, stream_key
from sluice.buffer_service.batch_stream import batch_stream_key, pack_batches
from sluice.buffer_service.breaker import TRIAL_INTERVAL, Breaker
from sluice.buffer_service.redis_connection import Command
from sluice.buffer_service.redis_mailbox import RedisMailbox, mailbox_key
from sluice.buffer_service.redis_results import RedisResults, results_keys
from sluice.buffer_service.redis_servers import Away, Servers
from sluice.buffer_service.results import Bounds, Results
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.store import (
    STARTS_WITHIN,
    THERE_FOR,
    Events,
    Limits,
    Outcome,
    Queue,
    QueueLost,
    Released,
    Turn,
    queue_name,
)
from sluice.buffer_service.trials import Trials

ADVANCE = files("sluice.buffer_service").joinpath("lua/advance.lua").read_text()
ADVANCE_SHA = hashlib.sha1(ADVANCE.encode(), usedforsecurity=False).hexdigest()
SET_ASIDE = files("sluice.buffer_service").joinpath("lua/set_aside.lua").read_text()
PROBE = "return redis.call('SET', KEYS[1], ARGV[1], 'EX', 10)"
"""A script that writes: a replica answers PING, and runs scripts that only read."""
SHAPES = {
    "policy": "table",
    "arrived": "list",
    "members": "list",
    "in_flight": "hash",
    "processes": "zset",
    "attempts": "integers",
    "dead": "list",
    "epoch": "string",
}
"""The keys of a queue in the order of the script, and what the value of each must be, in the words of ``lua/set_aside.lua``."""
TRIAL_TIMEOUT = 0.5  # seconds; shorter than a call's, so that a network that is back is noticed within one
ASIDE_LIFE = 86_400  # seconds that a value of somebody else is kept
ASK_AGAIN = 0.05  # seconds after which it is asked again, at the least, whose turn it is to ping

_log = logging.getLogger(__name__)


def pack_policy(policy: Policy) -> bytes:
    """The tables as ``lua/advance.lua`` reads them: of each a header, then rows of fixed size; of several columns these first."""
    return b"".join(map(_pack_table, policy.tables))


def _pack_table(policy: Policy) -> bytes:
    servers = -1 if policy.servers is None else policy.servers
    drop_after = -1.0 if policy.drop_after is None else policy.drop_after
    header = struct.pack("<i12x", -policy.columns) if policy.columns > 1 else b""
    header += struct.pack("<iid", len(policy.hold), servers, drop_after)
    return header + b"".join(struct.pack("<di", hold, take) for hold, take in zip(policy.hold, policy.take, strict=True))


class RedisStore:
    """The store on a Redis (or Valkey), 7.0 or later: a server, a primary with its replicas, or a cluster."""

    def __init__(self, url: str, process: str, namespace: str = NAMESPACE, spread_routes: bool = False) -> None:
        self.process = process
        self._namespace = namespace
        self._spread_routes = spread_routes
        self._servers = Servers(url)
        self._gates: dict[int, Gate] = {}  # by slot
        self._trials = Trials()
        self._checks: dict[str, asyncio.Task[Any]] = {}  # by server
        self._own = self._mailbox(process)

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        spread = route if self._spread_routes else ""
        tag = queue_name(model, spread)
        prefix = f"{self._namespace}:{{{tag}}}:" + (f"{route}:" if route and not spread else "")
        shapes = {prefix + name: shape for name, shape in SHAPES.items()}
        shapes |= {stream_key(model, self._namespace, spread): "stream", prefix + "taken": "integer", prefix + "beside": "integers"}
        shapes |= {prefix + "with_slack": "zset", prefix + "hurried": "integer"}
        shapes |= {
            batch_stream_key(model, self._namespace, spread): "stream",
            refused_key(model, self._namespace, spread): "integer",
        }
        announce = None
        if spread:
            routes = routes_key(model, self._namespace)
            announce = partial(_ask, self._gate(model).call, _set_aside({routes: "set"}), ("SADD", routes, route))
        return RedisQueue(self._gate(tag), self.process, shapes, limits, announce)

    def _gate(self, tag: str) -> Gate:
        probe = f"{self._namespace}:{{{tag}}}:probe"
        slot = key_slot(probe.encode())
        return self._gates.setdefault(slot, Gate(self._servers, slot, probe, self.process, self._trials, self._checks))

    def results(self, model: str, bounds: Bounds) -> Results:
        keys = results_keys(model, self._namespace)
        return RedisResults(partial(_ask, self._gate(model).call, _set_aside(keys, begins_anew=tuple(keys))), list(keys), bounds)

    async def send(self, process: str, message: bytes) -> None:
        await self._mailbox(process).send(message)

    async def receive(self) -> list[bytes]:
        return await self._own.receive()

    async def close(self) -> None:
        try:
            await self._own.close()
        finally:
            for gate in self._gates.values():
                await gate.close()
            await self._servers.close()

    def _mailbox(self, process: str) -> RedisMailbox:
        key = mailbox_key(process, self._namespace)
        call = partial(self._servers.call, key_slot(key.encode()))
        return RedisMailbox(partial(_ask, call, _set_aside_mailbox(key, self._namespace)), key)


class Gate:
    """The way to the keys of one slot; it is shut while their server is away, and opens by itself."""

    def __init__(
        self, servers: Servers, slot: int, probe_key: str, process: str, trials: Trials, checks: dict[str, asyncio.Task[Any]]
    ) -> None:
        self._servers = servers
        self._slot = slot
        self._probe: Command = ("EVAL", PROBE, 1, probe_key, process)
        self._breaker = Breaker()
        self._trials = trials
        self._checks = checks
        self._trying: asyncio.Task[None] | None = None

    async def call(self, *commands: Command) -> list[Any]:
        """``Servers.call`` while the server is there, and ``Away`` at once while it is not."""
        if self._breaker.away is not None:
            raise Away(str(self._breaker.away), asked=False)
        try:
            return await self._servers.call(self._slot, *commands)
        except Away as error:
            if self._breaker.failed(error):
                _log.warning("%s; it is tried until it does", error)
                self._trying = asyncio.create_task(self._try())
            raise

    @property
    def successions(self) -> int:
        """``Servers.successions`` of this slot."""
        return self._servers.successions(self._slot)

    async def check(self) -> None:
        """Raise ``StoreUnavailable`` unless a script that writes can be run; who asks the same server meanwhile asks once."""
        if self._breaker.away is not None:
            raise Away(str(self._breaker.away), asked=False)
        server = self._servers.owner(self._slot)
        if server not in self._checks:
            self._checks[server] = check = asyncio.create_task(_ask(self.call, None, self._probe))
            check.add_done_callback(lambda _: self._checks.pop(server))
        await asyncio.shield(self._checks[server])

    async def close(self) -> None:
        """Try no more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])

    async def _try(self) -> None:
        with self._trials.shut():
            await self._try_until_it_works()
        self._trials.worked()
        _log.info("Redis answers again")

    async def _try_until_it_works(self) -> None:
        while self._breaker.away is not None:
            await self._trials.turn(self._breaker.next_trial_in(), TRIAL_INTERVAL)
            try:
                await self._servers.call(self._slot, self._probe, within=TRIAL_TIMEOUT)
            except Away as error:
                self._breaker.failed(error)
                continue
            except ResponseError:
                pass  # it answers; what it refuses each call learns for itself
            except Exception:  # a defect; without trials no call would ever be let through again
                _log.exception("a trial failed")
                continue
            self._breaker.worked()


class RedisQueue:
    """The queue of one route in Redis; ``announce`` tells the readers of its record that it has one of its own."""

    def __init__(
        self,
        gate: Gate,
        process: str,
        shapes: Mapping[str, str],
        limits: Limits,
        announce: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self._gate = gate
        self._process = process
        self._serial = 0
        self.keys = list(shapes)
        self._set_aside = _set_aside(shapes, begins_anew=(self.keys[1], self.keys[2], self.keys[7], *self.keys[11:13]))
        self._announce = announce
        self._refused: StoreUnavailable | None = None
        self._head = (limits.max_queue_length, repr(limits.lease), limits.max_attempts)
        self._arrivals_kept, self._batches_kept = limits.arrivals_kept, limits.batches_kept

    async def install(self, policy: Policy) -> None:
        if self._announce is not None:
            await self._announce()
        begin = ("SET", self.keys[7], secrets.token_hex(8), "NX")
        await self._call(begin, ("SET", self.keys[0], pack_policy(policy)), ("DEL", self.keys[12]))

    async def check(self) -> None:
        await self._gate.check()
        if self._refused is not None:
            raise self._refused

    async def turn(self, edition: str) -> Turn:
        key, call = self._beside("started", edition)
        [first, held] = await call(("SET", key, Turn.STARTING.name, "EX", STARTS_WITHIN, "NX"), ("GET", key))
        return Turn.FIRST if first is not None else Turn.THERE if held == Turn.THERE.name.encode() else Turn.STARTING

    async def there(self, edition: str) -> None:
        key, call = self._beside("started", edition)
        await call(("SET", key, Turn.THERE.name, "EX", THERE_FOR))

    async def pings_in(self, edition: str, within: float) -> float:
        key, call = self._beside("pinged", edition)
        [(seconds, micros), until] = await call(("TIME",), ("GET", key))
        now = int(seconds) + int(micros) / 1e6
        if until is None:
            until = repr(now + within).encode()
            [mine] = await call(("SET", key, until, "PX", ceil(1000 * within), "NX"))
            if mine is not None:
                return 0.0  # and another who asked as soon waits as long
        try:
            return max(float(until) - now, ASK_AGAIN)
        except ValueError:
            held = cast("bytes", until).decode(errors="replace")
            raise StoreUnavailable(f"Redis holds {held!r} under {key}, where a time is") from None

    async def pinged(self, edition: str, every: float) -> None:
        key, call = self._beside("pinged", edition)
        [(seconds, micros)] = await call(("TIME",))
        await call(("SET", key, repr(int(seconds) + int(micros) / 1e6 + every), "PX", ceil(1000 * every)))

    def _beside(self, what: str, edition: str) -> tuple[str, Callable[..., Awaitable[list[Any]]]]:
        """The key of something that is known of an edition of a plan, beside the queue, and what asks for it."""
        key = f"{self.keys[0].removesuffix('policy')}{what}:{edition}"
        return key, partial(_ask, self._gate.call, _set_aside({key: "string"}))

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        self._serial += 1
        serving = events.serving
        arguments: list[Any] = [self._process, self._serial, "" if now is None else repr(now), *self._head]
        arguments += (int(events.leaving), len(events.completed), -1 if serving is None else len(serving))
        arguments += (
            0 if events.recorded else self._arrivals_kept,
            pack_floats(events.ages or (0.0,) * len(events.arrivals), events.sizes),
        )
        arguments += (len(events.gone), _by_place(events.at_most))
        if events.measured and self._batches_kept:
            arguments += (self._batches_kept, len(events.measured), pack_batches(events.measured))
        else:
            arguments += (0, 0, "")
        arguments += (events.refused, pack_floats(events.direct), _by_place(events.ejected), events.early)
        arguments += events.completed
        arguments += serving or ()
        arguments += events.gone
        arguments += events.arrivals
        epoch, accepted, waiting, wake_in, batches, dropped, dead, *counted = await self._run(arguments)
        taken, busy, behind, all_lend, alone = counted
        return Outcome(
            accepted,
            [Released(batch[0].decode(), batch[1:]) for batch in batches],
            dropped,
            dead,
            float(wake_in) if wake_in else None,
            waiting,
            behind,
            taken,
            busy,
            f"{epoch.decode(errors='replace')}.{self._gate.successions}",
            None if all_lend < 0 else bool(all_lend),
            None if alone < 0 else bool(alone),
        )

    async def _run(self, arguments: list[Any]) -> Any:
        called = (len(self.keys), *self.keys, *arguments)
        try:
            [answer] = await self._call(("EVALSHA", ADVANCE_SHA, *called))
        except NoScriptError:  # a server that has not seen it; nothing was executed
            [answer] = await self._call(("EVAL", ADVANCE, *called))
        return answer

    async def _call(self, *commands: Command) -> list[Any]:
        try:
            answers = await _ask(self._gate.call, self._set_aside, *commands)
        except StoreUnavailable as error:
            self._refused = error if not isinstance(error, Away) else None  # whether it is away the gate knows
            raise
        self._refused = None
        return answers


def _by_place(numbers: Sequence[tuple[int, int]]) -> str:
    """A number for each of some tables."""
    return "".join(f"{place}:{number}," for place, number in numbers)


def _set_aside(shapes: Mapping[str, str], aside: str | None = None, begins_anew: tuple[str, ...] = ()) -> Command:
    """What sets aside those of these keys, of one slot, whose values have not the shapes that they must have."""
    keys = [*shapes, *([aside] if aside is not None else [key + ":aside" for key in shapes]), *begins_anew]
    return ("EVAL", SET_ASIDE, len(keys), *keys, len(shapes), ASIDE_LIFE, *shapes.values())


def _set_aside_mailbox(key: str, namespace: str) -> Command:
    """The same of the mailbox under this key."""
    return _set_aside({key: "list"}, f"{namespace}:aside:{{{key}}}")


async def _ask(
    call: Callable[..., Awaitable[list[Any]]], set_aside: Command | None, *commands: Command, **options: Any
) -> list[Any]:
    """What Redis answers, in the vocabulary of the port; where it fails, what is none of the buffer's is ``set_aside``."""
    try:
        return await call(*commands, **options)
    except NoScriptError:
        raise
    except ResponseError as error:
        if str(error).startswith("NOPOLICY"):
            raise QueueLost(str(error)) from None
        said = f"Redis refused: {error}"
        if set_aside is not None and _is_of_a_value(error):
            try:
                [found] = await call(set_aside)
            except ResponseError as refused:
                said += f"; nothing could be set aside: {refused}"
            else:
                said = "; ".join(_words(*entry) for entry in found) or said
        raise StoreUnavailable(said) from error


def _is_of_a_value(error: ResponseError) -> bool:
    """Whether an error may come from what a key holds: of all that Redis gives a word of its own only WRONGTYPE does."""
    return type(error) is ResponseError and (str(error).startswith("WRONGTYPE") or re.match("[A-Z]+ ", str(error)) is None)


def _words(key: bytes, kind: bytes, aside: bytes, stays: bytes) -> str:
    """What was found under a key, and what became of it."""
    said = f"Redis holds a {kind.decode()} under the key {key.decode()}, which is not what the buffer puts there"
    if stays:
        return f"{said}; it could not be renamed to {aside.decode()}: {stays.decode()}"
    said += f"; it is set aside as {aside.decode()} for {ASIDE_LIFE // 3600} hours"
    _log.error("%s", said)
    return said
