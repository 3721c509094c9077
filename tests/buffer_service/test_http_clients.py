"""Clients that send what they like, in pieces, and take or leave what they get: each is answered or cut off.

In virtual time, over a stand-in for the transport that buffers, pauses and closes as those of event loops do.
"""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from sluice.http.connection import MAX_HEADER_BYTES, MAX_KNOWN, Patience
from sluice.http.room import Connections, Room
from sluice.http.server import PORTION, Connection, HttpServer
from tests.buffer_service.virtual_time import run

PATIENCE = Patience(header=1.0, body=2.0, keep_alive=3.0)
HIGH, LOW = 65536, 16384  # bytes between which a transport says that it is full, and that it is not any more
LARGE = 300_000  # bytes of an answer that a transport does not take at once
CLIENTS = 150
UNPARSED, UNTAKEN = 400_000, 2_000_000
READ = 256 * 1024  # bytes that a loop reads at once


class Wire:
    """The transport of one connection, and what lies in the system's buffers at both of its ends."""

    def __init__(self, server):
        self.loop = asyncio.get_running_loop()
        self.sent, self.written, self.taken = b"", b"", 0
        self.reads, self.full, self.closing, self.eof, self.lost = True, False, False, False, False
        self.aborted = False
        self.connection = Connection(server)
        self.connection.connection_made(self)

    # what a client does

    def send(self, data):
        self.sent += data
        self.deliver()

    def take(self, size):
        if self.lost:
            return
        self.taken = min(len(self.written), self.taken + size)
        if self.full and self.get_write_buffer_size() <= LOW:
            self.full = False
            self.connection.resume_writing()
        self.end_if_written()

    def go(self):
        self.lose()

    def deliver(self):
        if self.reads and self.sent and not self.closing and not self.lost:
            data, self.sent = self.sent[:READ], self.sent[READ:]
            self.connection.data_received(data)
            self.loop.call_soon(self.deliver)

    # what a connection asks of its transport

    def write(self, data):
        assert not self.eof and data
        if self.lost:
            return
        self.written += data
        if not self.full and self.get_write_buffer_size() > HIGH:
            self.full = True
            self.connection.pause_writing()

    def writelines(self, parts):
        self.write(b"".join(parts))

    def get_write_buffer_size(self):
        return 0 if self.lost else len(self.written) - self.taken

    def pause_reading(self):
        assert self.reads
        self.reads = False

    def resume_reading(self):
        assert not self.reads
        self.reads = True
        self.loop.call_soon(self.deliver)

    def is_closing(self):
        return self.closing

    def write_eof(self):
        self.eof = True

    def close(self):
        self.closing = True
        self.loop.call_soon(self.end_if_written)

    def abort(self):
        self.closing = self.aborted = True
        self.loop.call_soon(self.lose)

    def end_if_written(self):
        if self.closing and not self.get_write_buffer_size():
            self.lose()

    def lose(self):
        if not self.lost:
            self.lost = self.closing = True
            self.connection.connection_lost(None)


class Application:
    """Answers now or later with the path and the size of the body: ``large`` at length, ``early`` before the body has come."""

    def __init__(self, rng):
        self.rng = rng
        self.loop = asyncio.get_running_loop()
        self.under_way = 0

    def begin(self, head, client):
        if b"early" in head.path.encode():
            client.reply(200, "text/plain", b"%s early" % head.path.encode())
            return None
        client.go_ahead()
        self.under_way += 1
        return Asked(self, head.path, client)


class Asked:
    def __init__(self, app, path, client):
        self.app, self.path, self.client, self.size, self.over = app, path, client, 0, False

    def piece(self, body):
        assert not self.over
        self.size += len(body)

    def end(self, last=b""):
        assert not self.over
        self.size += len(last)
        if self.app.rng.random() < 0.3:
            self.answer()
        else:
            self.app.loop.call_later(self.app.rng.choice((0.0, 0.01, 1.5, 4.0)), self.answer)

    def gone(self):
        assert not self.over
        self.over = True
        self.app.under_way -= 1

    def answer(self):
        if not self.over:
            self.over = True
            self.app.under_way -= 1
            text = b"%s %d" % (self.path.encode(), self.size)
            self.client.reply(200, "text/plain", text.ljust(LARGE) if "large" in self.path else text)


def request_of(rng, number):
    """A request, and what it is answered."""
    path = b"/%d%s" % (number, rng.choice((b"", b"", b"", b"/large", b"/early")))
    body = bytes(rng.choices(b"ab\r\n01", k=rng.choice((0, 3, 2000, 90_000))))
    expect = b"expect: 100-continue\r\n" * (rng.random() < 0.1)
    answer = path + (b" early" if path.endswith(b"early") else b" %d" % len(body))
    if rng.random() < 0.5:
        return b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n%s" % (path, expect, len(body), body), answer
    cut = rng.randrange(len(body) + 1)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
    return b"POST %s HTTP/1.1\r\nhost: x\r\n%stransfer-encoding: chunked\r\n\r\n%s0\r\n\r\n" % (path, expect, chunks), answer


def answers_in(written, ended):
    """Status and body of every answer; the last may be cut where the connection ``ended``."""
    answers = []
    while written:
        head, found, rest = written.partition(b"\r\n\r\n")
        if not found:
            assert ended
            break
        status = int(re.match(rb"HTTP/1\.1 (\d{3}) ", head)[1])
        if status == 100:
            written = rest
            continue
        length = int(re.search(rb"\r\ncontent-length: (\d+)", head)[1])
        if len(rest) < length:
            assert ended
            break
        answers.append((status, rest[:length].rstrip()))
        assert status == 200 or (b"\r\nconnection: close" in head and not rest[length:])  # nothing behind a refusal
        written = rest[length:]
    return answers


async def client(server, rng, manner):
    """One client: what it sent in vain or not, and whether it was answered as it must be."""
    wire = Wire(server)
    asked = [request_of(rng, number) for number in range(rng.randint(1, 6))]
    data = b"".join(sent for sent, _ in asked)
    if manner == "garbles":
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(rng.randint(0, 3)) + data[at + rng.randint(0, 3) :]
    while data and not wire.closing:
        size = rng.choice((1, 7, 100, 5000, 70_000, len(data)))
        wire.send(data[:size])
        data = data[size:]
        if manner != "leaves its answers":
            wire.take(len(wire.written))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.1)))
        if manner == "stops" and rng.random() < 0.3:
            data = b""
        if manner == "goes" and rng.random() < 0.3:
            wire.go()
    for _ in range(600):
        if manner != "leaves its answers":
            wire.take(20_000 if manner == "takes slowly" else len(wire.written))
        if wire.eof and wire.taken == len(wire.written):
            wire.go()
        if wire.lost:
            break
        await asyncio.sleep(0.1)
    assert wire.lost, (manner, wire.connection._http.stage)
    answers = answers_in(wire.written, ended=True)
    served = [text for status, text in answers if status == 200]
    if manner == "garbles":
        return served
    expected = [answer for _, answer in asked]
    assert served == expected[: len(served)]
    statuses = {status for status, _ in answers}
    assert statuses <= {200, 408, 503}
    if manner == "is patient" and statuses == {200} and not wire.aborted:  # else others had no room for its answers
        assert served == expected or wire.written.count(b"\r\nconnection: close\r\n") == 1  # as is said where it has none
    return served


MANNERS = ("is patient", "takes slowly", "leaves its answers", "stops", "goes", "garbles")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2))])
def test_each_client_is_answered_or_cut_off_and_nothing_is_left_of_any(seed):
    async def main():
        rng = random.Random(seed)
        app = Application(rng)
        rooms = Room(UNPARSED), Room(UNTAKEN)
        server = HttpServer(app.begin, PATIENCE, *rooms, Connections(CLIENTS - 20))
        server.loop = asyncio.get_running_loop()
        server.look_around()
        bounds = asyncio.create_task(stays_within(server))
        clients = [asyncio.create_task(client(server, rng, rng.choice(MANNERS))) for _ in range(CLIENTS)]
        served = await asyncio.gather(*clients)
        bounds.cancel()
        server.close()
        assert sum(map(len, served)) > CLIENTS / 2
        assert (server.count.open, app.under_way, len(server.connections), len(server.slow_readers)) == (0, 0, 0, 0)
        assert [room.taken for room in rooms] == [0, 0]
        assert server.count.refused <= 20

    run(lambda loop: main())


async def stays_within(server):
    """What the connections hold is bounded, each and in sum."""
    while True:
        assert 0 <= server.unparsed.taken <= server.unparsed.limit and len(server.known) <= MAX_KNOWN
        assert server.untaken.taken <= server.untaken.limit + LARGE + HIGH
        for connection in server.connections:
            assert connection._http.held <= 2 * READ + MAX_HEADER_BYTES
        await asyncio.sleep(0.05)


def test_thousands_of_connections_are_looked_at_in_portions_and_then_again():
    class Idle:
        looks = 0

        def look(self, now):
            Idle.looks += 1

    async def main():
        server = HttpServer(None, PATIENCE, Room(0), Room(0), Connections(0))
        server.loop = asyncio.get_running_loop()
        server.connections = {Idle() for _ in range(2 * PORTION + 1)}
        server.look_around()
        for looks in (PORTION, 2 * PORTION, 2 * PORTION + 1, 2 * PORTION + 1):
            assert Idle.looks == looks
            await asyncio.sleep(0)
        await asyncio.sleep(PATIENCE.header / 4)
        assert Idle.looks > 2 * PORTION + 1

    run(lambda loop: main())
