"""Who is let in by an API key, to which models, how often, and of which class; and how the documents of keys are followed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path

import pytest

from sluice.batching.documents import Plan, PolicyDocument, RequestClass, Slo
from sluice.batching.errors import InvalidInput, ModelNotAllowed, RateExceeded, UnknownKey
from sluice.buffer_service import api_keys
from sluice.buffer_service.api_keys import MAX_BYTES, MAX_KEYS, Keyring, joined, read_keys
from sluice.buffer_service.followed_keys import KeyFollower
from sluice.buffer_service.settings import Settings
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

PAGE = Path(__file__).parents[2] / "docs/deploy.md"
SECRET = "the key of the web"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def entry(name="web", key=SECRET, **more):
    return {"name": name, "sha256": digest(key), **more}


def document(*entries, **more) -> bytes:
    return json.dumps({"keys": entries, **more}).encode()


def ring(*entries) -> Keyring:
    keyring = Keyring()
    keyring.follow(read_keys(document(*entries)))
    return keyring


def by(key=SECRET, header=b"x-api-key"):
    return [(b"host", b"here"), (header, key.encode() if header == b"x-api-key" else b"Bearer " + key.encode())]


# --- the document


@pytest.mark.parametrize(
    ("said", "field", "allowed"),
    [
        (document(entry(name="a b")), r"keys\[0\].name", "1 to 128 of"),
        (
            document(entry(), entry("job", SECRET.upper()) | {"sha256": SECRET}),
            r"keys\[1\].sha256",
            "the SHA-256 of the key, 64 of",
        ),
        (document(entry() | {"sha256": digest(SECRET).upper()}), r"keys\[0\].sha256", "64 of 0-9 a-f"),
        (document(entry(**{"class": "a b"})), r"keys\[0\].class", "1 to 128 of"),
        (document(entry(models=["m", ""])), r"keys\[0\].models", "null for all, or names"),
        (document(entry(requests_per_second=0)), r"keys\[0\].requests_per_second", "a number above 0, at most 1e"),
        (document(entry(requests_per_second=1e7)), r"keys\[0\].requests_per_second", "a number above 0, at most 1e"),
        (document(entry(), entry("job", "x") | {"key": SECRET}), r"keys\[1\].key", "no such field, but name, sha256, class"),
        (document({"name": "web"}), r"keys\[0\]", "an object with the required field `sha256`"),
        (document(version=9), "version", "1"),
        (b'{"keys": ["' + SECRET.encode(), "ApiKeyDocument", "JSON"),
        (b" " * (MAX_BYTES + 1), "document", f"at most {MAX_BYTES} bytes"),
    ],
)
def test_a_document_that_is_none_is_refused_with_its_field_and_shows_nothing_that_might_be_a_key(said, field, allowed):
    with pytest.raises(InvalidInput, match=f"{field}: .* is not allowed; allowed: .*{allowed}") as refused:
        read_keys(said)
    assert SECRET not in str(refused.value) and digest(SECRET) not in str(refused.value)


def test_the_document_of_the_page_on_deploying_is_one():
    [shown] = [text for text in re.findall("```json\n(.*?)```", PAGE.read_text(), re.DOTALL) if '"keys"' in text]
    assert [key.sha256 for key in read_keys(shown.encode())] == [digest("secret"), digest("another")]


def test_of_several_documents_each_name_and_each_key_is_there_once_and_no_more_than_so_many(monkeypatch):
    web, job = read_keys(document(entry())), read_keys(document(entry("job", "another")))
    assert joined({"a": web, "b": job}) == web + job
    with pytest.raises(InvalidInput, match=r"b: keys\[0\].name: 'web' .* each name once"):
        joined({"a": web, "b": read_keys(document(entry(key="another")))})
    with pytest.raises(InvalidInput, match=r"b: keys\[0\].sha256: .* each key once") as refused:
        joined({"a": web, "b": read_keys(document(entry("job")))})
    assert digest(SECRET) not in str(refused.value)
    monkeypatch.setattr(api_keys, "MAX_KEYS", 1)
    with pytest.raises(InvalidInput, match="keys: 2 is not allowed; allowed: at most 1"):
        joined({"a": web, "b": job})
    assert MAX_KEYS == 10_000


# --- who is let in


@pytest.mark.parametrize("header", [b"x-api-key", b"authorization"])
def test_a_key_opens_what_it_says_by_either_header(header):
    keyring = ring(entry(models=["m"], **{"class": "fast"}))
    assert keyring.admit(0.0, "m", by(header=header)).of_class == "fast"
    with pytest.raises(ModelNotAllowed, match="the API key of 'web' does not open the model 'other'"):
        keyring.admit(0.0, "other", by(header=header))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "none was given"),
        ([(b"authorization", b"Basic " + SECRET.encode())], "none was given"),
        ([(b"x-api-key", b"")], "none was given"),
        (by("another"), "the one that was given is none of this deployment"),
        (by(digest(SECRET)), "the one that was given is none of this deployment"),
        (by("another") + by(header=b"authorization"), "the one that was given is none"),
    ],
)
def test_who_gives_no_key_that_is_known_is_let_in_nowhere(headers, said):
    with pytest.raises(UnknownKey, match=f"as x-api-key or as authorization: Bearer; {said}"):
        ring(entry()).admit(0.0, "m", headers)


def test_a_key_may_ask_for_a_second_of_its_rate_at_once_and_is_told_when_there_is_room_again():
    keyring = ring(entry(requests_per_second=4))
    for _ in range(4):
        keyring.admit(10.0, "m", by())
    with pytest.raises(RateExceeded, match="the API key of 'web' may ask for 4 requests a second") as refused:
        keyring.admit(10.1, "m", by())
    assert refused.value.retry_after == pytest.approx(0.15)
    keyring.admit(10.26, "m", by())
    with pytest.raises(RateExceeded):
        keyring.admit(10.26, "m", by())
    assert keyring.opens("m", by()).name == "web"  # asking what a model is counts not
    for _ in range(4):
        keyring.admit(99.0, "m", by())
    with pytest.raises(RateExceeded):
        keyring.admit(99.0, "m", by())


def test_a_rate_below_one_lets_one_in_at_a_time():
    keyring = ring(entry(requests_per_second=0.1))
    keyring.admit(0.0, "m", by())
    with pytest.raises(RateExceeded) as refused:
        keyring.admit(1.0, "m", by())
    assert refused.value.retry_after == pytest.approx(9.0)
    keyring.admit(10.0, "m", by())


@pytest.mark.parametrize(("rate", "lets_in"), [(2, False), (3, True)])
def test_other_keys_make_no_room_for_one_that_has_asked_unless_its_rate_is_another(rate, lets_in):
    keyring = ring(entry(requests_per_second=2))
    for _ in range(2):
        keyring.admit(0.0, "m", by())
    keyring.follow(read_keys(document(entry("job", "another"), entry(requests_per_second=rate))))
    if lets_in:
        keyring.admit(0.0, "m", by())
    else:
        with pytest.raises(RateExceeded):
            keyring.admit(0.0, "m", by())


# --- following


class Documents:
    """A source that a test may change."""

    def __init__(self, **found):
        self.found = found

    def documents(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def followed(caplog):
    caplog.set_level("INFO", "sluice.buffer_service.followed_keys")
    source, keyring = Documents(a=document(entry())), Keyring()
    return source, keyring, KeyFollower("file:unused", 1.0, keyring, source)


def names(keyring):
    return sorted(known.key.name for known in keyring._known.values())


@in_virtual_time
async def test_what_is_wrong_leaves_what_is_in_force_and_is_said_once(followed, caplog):
    source, keyring, follower = followed
    await follower.look()
    source.found = {"a": document(entry() | {"key": SECRET}), "b": document(entry("job", "another"))}
    for _ in range(3):
        await follower.look()
    assert names(keyring) == ["job", "web"]
    source.found = {"a": InvalidInput("document", "Permission denied", "a file that can be read"), "b": source.found["b"]}
    for _ in range(3):
        source.found = dict(source.found, a=InvalidInput(*source.found["a"].args))  # another look, another error
        await follower.look()
    source.found = InvalidInput("SLUICE_PLANS", "keys.json", "a readable file or folder (No such file or directory)")
    for _ in range(3):
        await follower.look()
    assert names(keyring) == ["job", "web"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error.partition(": ")[0] for error in errors] == ["a", "a", "API keys are not readable"]
    assert "SLUICE_API_KEYS: 'keys.json' is not allowed" in errors[2] and SECRET not in caplog.text


@in_virtual_time
async def test_a_document_that_is_removed_takes_its_keys_with_it_and_one_that_has_anothers_waits_until_it_has_not(followed):
    source, keyring, follower = followed
    await follower.look()
    source.found = {"a": document(entry()), "b": document(entry("other"))}
    await follower.look()
    assert names(keyring) == ["web"]
    source.found = {"b": document(entry("other"))}
    await follower.look()
    assert names(keyring) == ["other"]
    source.found = {}
    await follower.look()
    assert names(keyring) == []


# --- over HTTP


def sample(buffer, name, **labels):
    return buffer.service.telemetry.registry.get_sample_value(name, labels)


@pytest.fixture
def keys_at(tmp_path):
    """Writes the keys, and says where they are."""

    def write(*entries):
        path = tmp_path / "keys.json"
        path.write_bytes(document(*entries))
        return f"file:{path}"

    return write


@in_virtual_time
async def test_who_is_not_let_in_is_told_with_a_problem_and_what_is_no_request_stays_open(keys_at, caplog):
    where = keys_at(entry(requests_per_second=1), entry("job", "another", models=["m"]))
    plans = Plans(plan(NO_BATCHING, "m"), plan(NO_BATCHING, "other"))
    async with serving(Function(), NO_BATCHING, plans=plans, api_keys=where) as buffer:
        told = {}
        for name, path, headers in (
            ("none", "/models/m", {}),
            ("wrong", "/v2/models/m/infer", {"authorization": "Bearer wrong"}),
            ("no model", "/models/nothing", {}),
            ("another model", "/models/other", {"x-api-key": "another"}),
            ("right", "/models/other", {"x-api-key": SECRET}),
            ("too often", "/models/m", {"authorization": f"Bearer {SECRET}"}),
        ):
            status, came_with, body = await buffer.post(path, b"1", **headers)
            told[name] = status, came_with.get("www-authenticate"), came_with.get("retry-after")
            if status != 200:
                assert came_with["content-type"] == "application/problem+json" and json.loads(body)["status"] == status
            assert SECRET.encode() not in body
        assert told == {
            "none": (401, "Bearer", None),
            "wrong": (401, "Bearer", None),
            "no model": (401, "Bearer", None),
            "another model": (403, None, None),
            "right": (200, None, None),
            "too often": (429, None, "1"),
        }
        assert (await buffer.get("/v2/models/m"))[0] == 401
        for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/metrics"):
            status, _, body = await buffer.get(path)
            assert status == 200 and SECRET.encode() not in body and b"web" not in body
        counted = {
            reason: sample(buffer, "sluice_api_key_refusals_total", reason=reason) for reason in ("unknown", "model", "rate")
        }
        assert counted == {"unknown": 4, "model": 1, "rate": 1}
    assert SECRET not in caplog.text


@in_virtual_time
async def test_the_class_of_a_key_counts_before_the_one_that_is_told_and_a_key_without_one_may_tell_it(keys_at):
    where = keys_at(entry(**{"class": "slow"}), entry("job", "another"), entry("old", "third", **{"class": "gone"}))
    classes = [RequestClass("fast", Slo(0.2)), RequestClass("slow", Slo(1.5))]
    served = Plan(model="m", function="f", policy=PolicyDocument.of(NO_BATCHING), slo=Slo(0.2), classes=classes)
    parameters = b'{"parameters": {"sluice_class": "fast"}}'
    async with serving(Function(), NO_BATCHING, plans=Plans(served), api_keys=where) as buffer:
        assert (await buffer.post("/models/m", b"1", **{"x-api-key": SECRET, "sluice-class": "fast"}))[0] == 200
        assert (await buffer.post("/models/m", parameters, **{"x-api-key": SECRET}))[0] == 200
        assert (await buffer.post("/models/m", b"1", **{"x-api-key": "another", "sluice-class": "fast"}))[0] == 200
        status, _, body = await buffer.post("/models/m", b"1", **{"x-api-key": "third"})
        assert (status, json.loads(body)["detail"]) == (
            400,
            "sluice-class: 'gone' is not allowed; allowed: a class of the plan: fast, slow",
        )
        of = [sample(buffer, "sluice_class_requests_total", model="m", **{"class": name}) for name in ("fast", "slow")]
        assert of == [1, 2]


@in_virtual_time
async def test_keys_are_followed_while_running_and_until_there_are_any_nobody_is_let_in(keys_at):
    where = keys_at()
    async with serving(Function(), NO_BATCHING, api_keys=where, plan_interval=1.0) as buffer:

        async def post():
            return (await buffer.post("/models/m", b"1", **{"x-api-key": SECRET}))[0]

        assert await post() == 401
        status, _, body = await buffer.get("/v2/health/ready")
        assert status == 503 and b"no API key is in force" in body
        keys_at(entry())
        await asyncio.sleep(1.1)
        assert await post() == 200 and (await buffer.get("/v2/health/ready"))[0] == 200
        keys_at(entry() | {"sha256": "no hash"})
        await asyncio.sleep(1.1)
        assert await post() == 200
        keys_at(entry("job", "another"))
        await asyncio.sleep(1.1)
        assert await post() == 401


@pytest.mark.parametrize("value", ["keys.json", "file:", "redis:", "ssm:keys"])
def test_a_place_of_keys_that_is_none_is_refused_with_its_setting(value):
    with pytest.raises(InvalidInput, match="SLUICE_API_KEYS: .* allowed: file:PATH or ssm:/path/; empty lets everybody in"):
        Settings(api_keys=value)
