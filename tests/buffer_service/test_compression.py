import asyncio
import gzip
import json

import pytest

from sluice.batching.errors import InvalidInput, PayloadTooLarge
from sluice.buffer_service.compression import AT_ONCE, MOST_MEMBERS, ZIPPED_AT_ONCE, accepts_gzip, unzipped, zipped
from sluice.lambda_fn.contract import Answer
from tests.buffer_service.conftest import NO_BATCHING, serving

MIXED = bytes(range(256)) * 40 + bytes(AT_ONCE)  # does not become as short as AT_ONCE


def test_what_is_zipped_is_unzipped_within_a_limit_and_nothing_else_is():
    for body in (b"", b"1", MIXED):
        assert unzipped(zipped(body), len(body)) == body == gzip.decompress(zipped(body))
        in_pieces = zipped(body[:7]) + zipped(b"") + zipped(body[7:])
        assert unzipped(in_pieces, len(body)) == unzipped(in_pieces + b"\0" * 512, len(body)) == body == gzip.decompress(in_pieces)
    assert unzipped(zipped(b"1") * MOST_MEMBERS, MOST_MEMBERS) == b"1" * MOST_MEMBERS
    with pytest.raises(PayloadTooLarge, match="at most 9 bytes"):
        unzipped(zipped(bytes(10)), 9)
    with pytest.raises(PayloadTooLarge, match="at most 9 bytes"):
        unzipped(zipped(bytes(5)) * 2, 9)
    for bad, why in (
        (b"1", "gzip"),
        (zipped(b"1")[:-4], "whole streams"),
        (zipped(b"1") + zipped(b"2")[:-4], "whole streams"),
        (zipped(b"1") + b"2", "gzip"),
        (b"\0" * 8, "gzip"),
        (zipped(b"") * (MOST_MEMBERS + 1), f"at most {MOST_MEMBERS} streams"),
        (b"", "whole streams"),
    ):
        with pytest.raises(InvalidInput, match=why):
            unzipped(bad, 100)


@pytest.mark.parametrize(
    ("accepted", "gzip_too"),
    [
        (b"gzip", True),
        (b"br, GZIP;q=0.5", True),
        (b"*", True),
        (b"", False),
        (b"br", False),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
    ],
)
def test_who_accepts_gzip(accepted, gzip_too):
    assert accepts_gzip(accepted) is gzip_too


@pytest.mark.parametrize("body", [b"[1]", json.dumps(list(range(3000))).encode()], ids=["on the loop", "in a thread"])
async def test_a_function_sees_a_body_as_it_was_before_it_was_zipped(function, body):
    async with serving(function, NO_BATCHING) as buffer:
        answers = [
            await buffer.post("/models/m", zipped(body), **{"content-encoding": encoding}) for encoding in ("gzip", "X-Gzip")
        ]
    assert [(status, answer) for status, _, answer in answers] == [(200, body)] * 2
    assert [batch.items[0].body for batch in function.batches] == [body] * 2


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (zipped(bytes(50_001)), 413, "at most 50000 bytes"),
        (zipped(bytes(3_000_000)), 413, "at most 50000 bytes"),
        (b"[1]", 400, "what content-encoding says it is, gzip"),
        (b"x" * 2 * AT_ONCE, 400, "what content-encoding says it is, gzip"),
        (zipped(b"[1]")[:-1], 400, "whole streams of gzip"),
        (zipped(b"{"), 400, "not one JSON document"),
    ],
    ids=["a little too large", "a bomb", "not zipped", "long and not zipped", "cut off", "no JSON"],
)
async def test_a_body_that_is_too_large_or_not_zipped_is_refused_and_its_room_is_free_again(function, body, status, detail):
    async with serving(function, NO_BATCHING, max_body_bytes=50_000) as buffer:
        answered, _, problem = await buffer.post("/models/m", body, **{"content-encoding": "gzip"})
        assert (answered, detail in json.loads(problem)["detail"]) == (status, True)
        assert buffer.service.waiting.taken == 0
    assert function.batches == []


async def test_what_a_body_is_without_its_encoding_takes_room_too(function):
    async with serving(function, NO_BATCHING, max_waiting_bytes=20_000) as buffer:
        assert (await buffer.post("/models/m", zipped(MIXED), "text/plain", **{"content-encoding": "gzip"}))[0] == 200
        status, _, problem = await buffer.post("/models/m", zipped(bytes(30_000)), "text/plain", **{"content-encoding": "gzip"})
        assert (status, b"no room for another request" in problem) == (503, True)
        assert buffer.service.waiting.taken == 0


async def test_who_goes_while_a_thread_has_his_body_leaves_nothing_behind(function):
    async with serving(function, NO_BATCHING) as buffer:
        going = [
            asyncio.create_task(buffer.post("/models/m", zipped(MIXED * 50), "text/plain", **{"content-encoding": "gzip"}))
            for _ in range(8)
        ]
        await asyncio.sleep(0)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        assert (await buffer.post("/models/m", b"1"))[0] == 200
    assert buffer.service.waiting.taken == 0


async def raw(buffer, body, accepted):
    buffer.http._auto_decompress = False
    async with buffer.http.post(buffer.url + "/models/m", data=body, headers=accepted) as response:
        return response.headers, await response.read()


@pytest.mark.parametrize("size", [2000, 4 * ZIPPED_AT_ONCE], ids=["on the loop", "in a thread"])
async def test_answers_from_a_size_on_are_zipped_for_who_accepts_that(function, size):
    body = b"1" * size
    async with serving(function, NO_BATCHING, gzip_from=2000) as buffer:
        headers, answer = await raw(buffer, body, {"accept-encoding": "gzip"})
        assert (headers["content-encoding"], headers["vary"], gzip.decompress(answer)) == ("gzip", "accept-encoding", body)
        assert len(answer) < len(body) and int(headers["content-length"]) == len(answer)
        for other, accepted, vary in ((body, "br", "accept-encoding"), (b"1" * 1999, "gzip", None)):
            headers, answer = await raw(buffer, other, {"accept-encoding": accepted})
            assert "content-encoding" not in headers and headers.get("vary") == vary and answer == other


async def test_none_is_zipped_unless_told_nor_one_that_its_function_encoded(function):
    async def encoded(batch):
        return [Answer(item.id, 200, "text/plain", item.body, {"content-encoding": "br"}) for item in batch.items]

    async with serving(function, NO_BATCHING) as buffer:
        headers, answer = await raw(buffer, MIXED, {"accept-encoding": "gzip"})
        assert "content-encoding" not in headers and answer == MIXED
    function.answer = encoded
    async with serving(function, NO_BATCHING, gzip_from=1) as buffer:
        headers, answer = await raw(buffer, MIXED, {"accept-encoding": "gzip"})
        assert headers.getall("content-encoding") == ["br"] and answer == MIXED
