"""The servers of a Redis, a single one with its replicas or a cluster: who has a slot now, and how a command gets there.

One address is enough: of a server, of any node of a cluster, or a name that moves to the new primary when the old one is gone. What
a server says teaches the rest; nobody tells whether it is a cluster.

    MOVED           another server has the slot: it is asked, and from now on first
    ASK             the slot is moving there and the keys have arrived: it is asked this once
    TRYAGAIN        some of the keys have arrived and some not: asked again in ``TRY_AGAIN`` seconds
    not served      nobody has the slot, as far as this server knows: the next call asks another, and the others' slots lose nothing
    READONLY, ...   a replica, or a primary that may not write: as if it were gone
    gone, silent    the next call asks another server that is known, over a new connection to an address that is looked up anew

A server that says one of the first three has executed nothing, so the command is sent again within the same call; after a
connection that broke, or an answer that did not come within ``COMMAND_TIMEOUT``, nobody knows, and nothing is sent twice.

Who is in the cluster is asked beside the calls: with the first of them, when a server was silent or a slot had moved, and after
``LOOK_ANYWAY``; at most once in ``LOOK_INTERVAL``, and until somebody says. ``redis_topology.py`` has what follows from all that.

A replica that takes over may not have seen the last writes. Each connection begins by asking for the replication id, which is
another one then: ``Server.successions`` counts that.

All calls to a server go through one pipe (``redis_connection.py``), so that they share what a connection costs. A call that gets no
answer in time has its server counted as gone: the next call opens another pipe, and those that are in this one wait for their own
answers up to their own time. A call that may wait for long by itself (``blocks``) has a connection of its own meanwhile. Where its
slot has moved while it waited, or its server is no primary any more (UNBLOCKED), it is asked again, with the whole of
its time. A server whose slot is on its way to another lets it wait: who calls has it wait no longer than it may be late.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.utils import str_if_bytes

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_connection import Command, Endpoint, Pipe, TooManyCalls
from sluice.buffer_service.redis_topology import Topology, addresses

COMMAND_TIMEOUT = 1.0  # seconds after which a server counts as gone: a script takes milliseconds
TRY_AGAIN = 0.01  # seconds
AT_ONCE = 4  # redirections of a call that are followed at once, each after that in ``TRY_AGAIN`` seconds
LOOK_INTERVAL = 1.0  # seconds between two times that the servers are asked who is in the cluster
LOOK_ANYWAY = 30.0  # seconds until they are asked though nothing has happened: all may be replaced while nothing is asked of them
MOST_BLOCKED = 100  # calls to a server that wait for what comes, each with a connection of its own
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # options of a URL that name one


class Away(StoreUnavailable):
    """No server that may write answers; what it was asked may have been executed or not.

    Without ``asked`` it was not, as it did not answer before.
    """

    def __init__(self, detail: str, asked: bool = True) -> None:
        super().__init__(detail)
        self.asked = asked


class NotLetIn(Away):
    """A server answers, and refuses the user, the password or the database of the URL; ``said`` is how."""

    def __init__(self, said: str) -> None:
        super().__init__(f"Redis refuses the user, password or database of its URL: {said}")
        self.said = said


class Server:
    """One address, and a pipe to whatever is there now."""

    def __init__(self, url: str, pipes: set[Pipe]) -> None:
        self.url = url
        self.successions = 0  # times that another server was found here
        self.connected = False  # ever
        self._history = ""
        self._endpoint = Endpoint(url)
        self._pipe: Pipe | None = None
        self._idle: list[Pipe] = []  # for calls that wait for long
        self._blocked: set[Pipe] = set()  # with such a call
        self._pipes = pipes

    @property
    def pipe(self) -> Pipe:
        """The one that the next call takes."""
        if self._pipe is None or self._pipe.ended:
            self._pipe = self._open()
        return self._pipe

    async def exchange(self, pipe: Pipe, commands: Sequence[Command], asking: bool, deadline: float) -> list[Any]:
        """The answers, in order; those that are errors as values."""
        if not asking:
            return await pipe.ask(commands, deadline)
        answers = await pipe.ask([each for command in commands for each in (("ASKING",), command)], deadline)
        return answers[1::2]

    async def exchange_apart(self, commands: Sequence[Command], asking: bool, deadline: float) -> list[Any]:
        """As ``exchange``, over a connection that nobody else waits behind; ``drop`` ends it with ``TimeoutError``."""
        self._idle = [pipe for pipe in self._idle if not pipe.ended]
        if len(self._blocked) >= MOST_BLOCKED:
            raise TooManyCalls(f"{MOST_BLOCKED} calls wait for what comes")
        pipe = self._idle.pop() if self._idle else self._open()
        self._blocked.add(pipe)
        try:
            answers = await self.exchange(pipe, commands, asking, deadline)
        except BaseException:  # what it waited for must not be taken by nobody
            pipe.end(TimeoutError())
            raise
        finally:
            self._blocked.discard(pipe)
        self._idle.append(pipe)
        return answers

    def drop(self, pipe: Pipe) -> None:
        """Nothing more goes through ``pipe``, nor through the others here, unless that is so already."""
        if pipe is self._pipe:
            self.leave()

    def leave(self) -> None:
        """Nothing more goes through what is open now; who waits for what comes learns it."""
        for blocked in list(self._blocked):
            blocked.end(TimeoutError())
        for pipe in (*([self._pipe] if self._pipe is not None else []), *self._idle):
            self.connected |= pipe.connected
            pipe.leave(2 * COMMAND_TIMEOUT)
        self._pipe = None
        self._idle.clear()

    def _open(self) -> Pipe:
        pipe = Pipe(self._endpoint, ("INFO", "replication"), self._see, COMMAND_TIMEOUT)
        self._pipes.add(pipe)
        pipe.closed.add_done_callback(lambda _: self._pipes.discard(pipe))
        return pipe

    def _see(self, told: Any) -> None:
        """Whether the server at the other end goes on where the last one was; a user may not be allowed to ask."""
        found = None if isinstance(told, Exception) else re.search(r"master_replid:(\w+)", str_if_bytes(told))
        if found is not None:
            self.successions += self._history not in ("", found[1])
            self._history = found[1]


class Servers:
    """All servers that are known, from one address on, and the pipes to those that are asked."""

    def __init__(self, url: str) -> None:
        self._seed = url
        self._topology = Topology(url)
        self._servers: dict[str, Server] = {}  # of those that are known, who was asked
        self._pipes: set[Pipe] = set()  # that have not closed yet
        self._looking: asyncio.Task[None] | None = None
        self._in_doubt = True  # who is in the cluster
        self._look_at = self._look_anyway_at = -math.inf

    async def call(
        self,
        slot: int,
        *commands: Command,
        blocks: float = 0.0,
        within: float | None = None,
        answers: list[Any] | None = None,
    ) -> list[Any]:
        """Have the server of a slot execute these ``within`` so many seconds, and return the answers.

        ``blocks`` is how long (s) a command itself may wait besides, anew at each server that is asked while there is time. Raises
        ``Away``, and ``ResponseError`` where a command is refused for what it is; commands before it were then executed, and
        ``answers``, where it is given, has theirs.
        """
        answers = [] if answers is None else answers
        now = asyncio.get_running_loop().time
        patience = blocks + (COMMAND_TIMEOUT if within is None else within)
        deadline = now() + patience
        server, asking = self._server(self._topology.owner(slot)), False
        redirected, redirections = None, 0
        pipe = server.pipe
        try:
            while True:
                if blocks:
                    answers += await server.exchange_apart(commands[len(answers) :], asking, now() + patience)
                else:
                    answers += await server.exchange(pipe, commands[len(answers) :], asking, deadline)
                redirected = _cut_at_redirection(answers, blocks > 0)
                if redirected is None:
                    if not asking:
                        self._topology.served(slot, server.url, server.successions)
                    self._look_if_due()
                    return answers
                redirections += 1
                if redirections > AT_ONCE:
                    await asyncio.sleep(TRY_AGAIN)
                server, asking = await self._follow(slot, server, redirected)
                if now() >= deadline:
                    raise TimeoutError
                pipe = server.pipe
        except TooManyCalls as error:
            raise Away(f"Redis does not answer fast enough: {error}", asked=False) from error
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError) and not _cannot_write(error):
                raise
            if _nobody_has_it(error):
                self._topology.turned(slot, server.url)
                raise Away(f"no server of the Redis cluster has slot {slot} (CLUSTERDOWN {error})") from error
            server.drop(pipe)
            self._topology.silent(slot, server.url)
            self._in_doubt = True
            self._look_if_due()
            if _refuses(error.__cause__ or error):
                raise NotLetIn(str(error)) from error
            raise Away(f"Redis does not answer: {_reason(error, redirected, server)}") from error

    def owner(self, slot: int) -> str:
        """The URL of the server that is asked for a slot first."""
        return self._topology.owner(slot)

    def successions(self, slot: int) -> int:
        """How often the server of a slot may have changed to one that has not seen the last writes."""
        return self._topology.successions(slot)

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await asyncio.gather(*(pipe.close() for pipe in list(self._pipes)))

    async def _follow(self, slot: int, server: Server, redirected: ResponseError) -> tuple[Server, bool]:
        """Whom to ask next, and whether as a guest."""
        if not isinstance(redirected, AskError):
            await asyncio.sleep(TRY_AGAIN)
            return server, False
        url, moved = url_at(server.url, redirected.host, redirected.port), isinstance(redirected, MovedError)
        self._close(self._topology.moved(slot, url) if moved else self._topology.named(url))
        self._in_doubt |= moved
        if url == server.url:  # two servers that do not agree yet
            await asyncio.sleep(TRY_AGAIN)
        return self._server(url), not moved

    def _server(self, url: str) -> Server:
        if url not in self._servers:
            self._servers[url] = Server(url, self._pipes)
        return self._servers[url]

    def _close(self, forgotten: Iterable[str]) -> None:
        """The connections of those who are known no more, when the calls that go through them have ended."""
        for server in [self._servers.pop(url) for url in forgotten if url in self._servers]:
            server.leave()

    # -- who is in the cluster

    def _look_if_due(self) -> None:
        due = self._in_doubt or asyncio.get_running_loop().time() >= self._look_anyway_at
        if due and (self._looking is None or self._looking.done()):
            self._in_doubt = True
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Ask until somebody says."""
        now = asyncio.get_running_loop().time
        attempt = 0
        while self._in_doubt:
            await asyncio.sleep(self._look_at - now())
            self._in_doubt, self._look_at = False, now() + LOOK_INTERVAL
            answers = await asyncio.gather(*(self._members(url) for url in self._topology.to_ask(attempt)))
            heard = [members for members in answers if members is not None]
            self._in_doubt |= not heard
            members = set().union(*heard)
            self._close(self._topology.told(members))
            self._look_anyway_at = now() + LOOK_ANYWAY if members else math.inf
            attempt += 1

    async def _members(self, url: str) -> set[str] | None:
        """Who is in the cluster, as one server has it: nobody where it has none, or may not be asked; ``None``: it does not say."""
        server = self._server(url)
        try:
            deadline = asyncio.get_running_loop().time() + COMMAND_TIMEOUT
            [answer] = await server.exchange(server.pipe, [("CLUSTER", "SLOTS")], False, deadline)
        except (RedisError, OSError, TimeoutError):
            return None
        if isinstance(answer, ResponseError):
            return set()
        return {url_at(url, host, port) for host, port in addresses(answer)} or None


def _cut_at_redirection(answers: list[Any], blocked: bool) -> ResponseError | None:
    """Drop what follows the first answer that says to ask again, or who else to ask, and return that; raise the first other error.

    What a server that is no primary any more says to whoever was ``blocked`` there is to ask again: then it says who is.
    """
    for i, answer in enumerate(answers):
        if isinstance(answer, Exception):
            del answers[i:]
            if isinstance(answer, (AskError, TryAgainError)) or (blocked and str(answer).startswith("UNBLOCKED")):
                return cast("ResponseError", answer)
            raise answer
    return None


def _cannot_write(error: ResponseError) -> bool:
    """Whether a server refused because of what it is, as a replica does, and not because of what it was asked."""
    if isinstance(error, (ReadOnlyError, MasterDownError, ClusterDownError)):
        return True
    return str(error).startswith(("UNBLOCKED", "NOREPLICAS"))


def _nobody_has_it(error: Exception) -> bool:
    """Whether a server of a cluster said that nobody has a slot; it is well itself."""
    return isinstance(error, ClusterDownError) and str(error).startswith("Hash slot not served")


def _refuses(error: BaseException) -> bool:
    """Whether this, which a connection ended with, is of what its URL asked for, and comes again until that is another one."""
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return True
    return isinstance(error, ResponseError) and str(error).startswith(("AUTH ", "DB index"))


def _reason(error: Exception, redirected: ResponseError | None, server: Server) -> str:
    if isinstance(error, TimeoutError) and redirected is not None:
        return f"its keys are on their way to another server ({redirected})"
    if isinstance(error, TimeoutError) and server.url.startswith("rediss:") and not server.connected:
        return "no answer in time, and never a TLS connection; does it speak TLS at this port?"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def check_url(url: str) -> None:
    """Raise ``ValueError``, ``TypeError`` or ``OSError`` where a URL has no form, unknown options or files that cannot be read."""
    for option, path in parse_qsl(urlsplit(url).query):
        if option in FILES:
            Path(path).read_bytes()
    if url.startswith("unix:") and (urlsplit(url).hostname or not urlsplit(url).path.strip("/")):
        raise ValueError("after unix:// comes the whole path of a socket, as in unix:///run/redis.sock")
    database = urlsplit(url).path.strip("/") if not url.startswith("unix:") else ""
    if database and not database.isdecimal():
        raise ValueError(f"after the port comes the number of a database, as in /0, and not {database!r}")
    if not url.startswith("unix:") and not urlsplit(url).hostname:
        raise ValueError("after the scheme comes the name of a host, as in redis://127.0.0.1:6379")
    Endpoint(url).check()


def url_at(url: str, host: str, port: int) -> str:
    """The URL of another server of the same cluster: the same user and options; no host is the same host."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = (parts.hostname or "127.0.0.1") if host in ("", "?") else host
    if ":" in host:
        host = f"[{host}]"
    scheme, path = ("redis", "") if parts.scheme == "unix" else (parts.scheme, parts.path)
    return parts._replace(scheme=scheme, netloc=f"{user}{at}{host}:{port}", path=path).geturl()
