import base64
import codecs
import hashlib
import hmac
import json
import logging
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial

import pytest
from joserfc import jws
from joserfc.jwk import RSAKey

from sluice.batching.documents import Plan, PolicyDocument, RequestClass, Slo
from sluice.batching.errors import InvalidInput, ModelNotAllowed, TokenRefused
from sluice.buffer_service import bearer_tokens
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.bearer_tokens import (
    MAX_KEPT,
    MAX_TOKEN,
    SKEW,
    BearerTokens,
    JwksFollower,
    _document,
    _OnlyTls,
    read_jwks,
)
from sluice.buffer_service.settings import Settings
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving

KEY = RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)
OTHER = RSAKey.generate_key(2048, {"kid": "two"}, auto_kid=False)
NOW = 1_800_000_000.0
CLAIMS = {"iss": "https://issuer", "aud": "sluice", "exp": NOW + 100}


def jwks(*keys, **more):
    return json.dumps({"keys": [key.as_dict(private=False) | more for key in keys]}).encode()


def base64url(number):
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).decode().rstrip("=")


def signed(claims=CLAIMS, key=KEY, header=None):
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jws.serialize_compact({"alg": "RS256", "kid": "one"} | (header or {}), payload, key).encode()


def tokens(*keys):
    known = BearerTokens("https://issuer", "sluice")
    known.follow(jwks(*(keys or (KEY,))))
    return known


def test_a_token_of_the_issuer_opens_what_it_names_and_has_the_class_that_it_names():
    known = tokens()
    nobody = signed()
    assert known.opens(NOW, "m", nobody) == (None, "", 0.0, NOW + 100, hashlib.sha256(nobody).hexdigest())
    assert known.opens(NOW, "m", signed(CLAIMS | {"sub": "web"})).subject == "web"
    one = signed(CLAIMS | {"sluice_models": ["m"], "sluice_class": "gold", "aud": ["other", "sluice"]})
    assert known.opens(NOW, "m", one).of_class == "gold"
    with pytest.raises(ModelNotAllowed, match="the token does not open the model 'n'"):
        known.opens(NOW, "n", one)


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def by_public_key():
    """A token by HMAC, whose secret is what everybody knows of the issuer."""
    content = encoded({"alg": "HS256", "kid": "one"}) + b"." + encoded(CLAIMS)
    mac = hmac.digest(KEY.as_pem(private=False), content, "sha256")
    return content + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


TOKENS = [
    (b"a.b.c", "it is no signed token"),
    (b"..", "it is no signed token"),
    (b"x" * (MAX_TOKEN + 1), "it has 8193 bytes; at most 8192 are read"),
    (encoded({"alg": "none", "kid": "one"}) + b"." + encoded(CLAIMS) + b".", "it is not signed by RS256"),
    (by_public_key(), "it is not signed by RS256"),
    (signed(key=OTHER), "its signature is not that of the issuer"),
    (signed()[:-8] + b"AAAAAAAA", "its signature is not that of the issuer"),
    (signed(header={"kid": "three"}), "the issuer has no key of its kid"),
    (signed(header={"crit": []}), "it needs extensions"),
    (signed(header={"crit": ["kid"]}), "extensions .crit., of which none is known here"),
    (signed(CLAIMS | {"iss": "https://else"}), "it is of another issuer"),
    (signed(CLAIMS | {"aud": ["else"]}), "for another audience"),
    (signed({name: CLAIMS[name] for name in ("iss", "aud")}), "claims: Object missing required field `exp`"),
    (signed(CLAIMS | {"exp": "soon"}), r"claims: Expected `float`, got `str` - at `\$.exp`"),
    (signed(CLAIMS | {"sub": 5}), r"claims: Expected `str`, got `int` - at `\$.sub`"),
    (signed(CLAIMS | {"sluice_models": "m"}), r"claims: Expected `array \| null`, got `str` - at `\$.sluice_models`"),
    (signed(b"[]"), "claims: Expected `object`, got `array`"),
    (signed(b"{"), "its signature is not that of the issuer"),
    (signed(CLAIMS | {"exp": NOW - SKEW}), "it has expired"),
    (signed(CLAIMS | {"nbf": NOW + SKEW + 1}), "its time has not come yet"),
]


@pytest.mark.parametrize(("token", "why"), TOKENS, ids=[why for _, why in TOKENS])
def test_any_other_token_is_refused_with_why_and_without_any_of_it(token, why):
    with pytest.raises(TokenRefused, match=why) as refused:
        tokens().opens(NOW, "m", token)
    assert not any(part in str(refused.value) for part in token.decode("latin-1").split(".") if len(part) > 4)


def test_another_clock_is_allowed_for_and_a_token_that_is_known_expires_all_the_same():
    known, token = tokens(), signed(CLAIMS | {"nbf": NOW})
    known.opens(NOW - SKEW, "m", token)
    known.opens(NOW + 100 + SKEW - 1, "m", token)
    with pytest.raises(TokenRefused, match="expired"):
        known.opens(NOW + 100 + SKEW, "m", token)


def test_a_token_is_verified_once_until_the_keys_change(monkeypatch):
    known, token, verified = tokens(), signed(), []
    monkeypatch.setattr(known, "_verified", lambda token, verify=known._verified: verified.append(token) or verify(token))
    for _ in range(3):
        known.opens(NOW, "m", token)
    known.follow(jwks(KEY))
    known.opens(NOW, "m", token)
    assert len(verified) == 1
    known.follow(jwks(OTHER))
    with pytest.raises(TokenRefused, match="no key of its kid"):
        known.opens(NOW, "m", token)


def test_what_is_known_again_is_bounded(monkeypatch):
    monkeypatch.setattr(bearer_tokens, "MAX_KEPT", 2)
    known = tokens()
    for i in range(5):
        known.opens(NOW, "m", signed(CLAIMS | {"exp": NOW + 100 + i}))
        assert len(known._kept) <= 2
    assert MAX_KEPT == 10_000


SETS = {
    "half": (b"{", "a JSON object with keys"),
    "list": (b"[]", "a JSON object with keys"),
    "empty": (b"{}", "with an RSA key of 2048 bits"),
    "short": (jwks(KEY, n=base64url(2**1023 + 1)), "with an RSA key of 2048 bits"),
    "nearly": (jwks(KEY, n=base64url(2**2046 + 1)), "with an RSA key of 2048 bits"),
    "for encryption": (jwks(KEY, use="enc"), "with an RSA key of 2048 bits"),
    "other algorithm": (jwks(KEY, alg="RS512"), "with an RSA key of 2048 bits"),
    "garbage": (b'{"keys": [{"kty": "RSA", "kid": "one", "n": "?", "e": 1}, 3]}', "with an RSA key of 2048 bits"),
    "long": (b" " * (1024 * 1024 + 1), "at most 1048576 bytes"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SETS)
def test_a_set_without_a_key_that_can_be_used_is_refused(name):
    document, why = SETS[name]
    with pytest.raises(InvalidInput, match=why):
        read_jwks(document)


def test_a_set_is_read_whatever_mark_an_editor_put_before_it():
    assert set(read_jwks(codecs.BOM_UTF8 + jwks(KEY))) == {"one"}


async def test_keys_are_read_again_and_what_cannot_be_read_changes_nothing(tmp_path, caplog):
    place, known = tmp_path / "jwks.json", BearerTokens("https://issuer", "sluice")
    follower = JwksFollower(f"file:{place}", known)
    with caplog.at_level(logging.ERROR):
        await follower.look()
        await follower.look()
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "are not readable" in caplog.text
    place.write_bytes(jwks(KEY))
    await follower.look()
    place.write_bytes(b"{")
    await follower.look()
    assert len(known) == 1
    with pytest.raises(TokenRefused):
        known.opens(NOW, "m", signed(header={"kid": "two"}, key=OTHER))
    assert follower._wanted.is_set()


def test_a_bearer_that_has_not_the_shape_of_a_token_is_an_api_key():
    assert BearerTokens.given(((b"authorization", b"Bearer a.b.c"),)) == b"a.b.c"
    assert BearerTokens.given(((b"authorization", b"Bearer key"), (b"x-api-key", b"a.b.c"))) == b""


def test_settings_that_are_none_or_do_not_go_together_are_refused():
    with pytest.raises(InvalidInput, match="SLUICE_JWT_JWKS: 'http://issuer' is not allowed; allowed: https://... or file:PATH"):
        Settings(jwt_jwks="http://issuer")
    for field, given in (("ISSUER", ("", "a")), ("AUDIENCE", ("i", ""))):
        with pytest.raises(
            InvalidInput, match=f"SLUICE_JWT_{field}: '' is not allowed; allowed: what tokens have, as SLUICE_JWT_JWKS"
        ):
            BearerTokens(*given)
    for field in ("ISSUER", "AUDIENCE"):
        allowed = "allowed: empty where SLUICE_JWT_JWKS is, as nobody is asked for a token then"
        with pytest.raises(InvalidInput, match=f"SLUICE_JWT_{field}: 'x' is not allowed; {allowed}"):
            BufferService(Settings.from_environment({f"SLUICE_JWT_{field}": "x", "SLUICE_REDIS_URL": "memory://"}))


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch):
    monkeypatch.setattr(bearer_tokens, "RSAKey", None)
    with pytest.raises(InvalidInput, match=r"pip install 'sluice-batching\[jwt\]'"):
        BearerTokens("i", "a")


async def test_the_buffer_lets_in_who_has_a_token_and_no_token_is_in_its_log(function, tmp_path, caplog):
    place = tmp_path / "jwks.json"
    place.write_bytes(jwks(KEY))
    issuer = {"jwt_jwks": f"file:{place}", "jwt_issuer": "https://issuer", "jwt_audience": "sluice"}
    classes = [RequestClass("gold", slo=Slo(0.5)), RequestClass("lead", slo=Slo(0.5))]
    policy = PolicyDocument.of(NO_BATCHING)
    classed = Plan(model="m", function="f", policy=policy, classes=classes, slo=Slo(0.5))
    with caplog.at_level(logging.DEBUG):
        async with serving(function, NO_BATCHING, plans=Plans(classed, plan(NO_BATCHING, "n")), **issuer) as buffer:
            good = signed(CLAIMS | {"exp": time.time() + 100, "sluice_models": ["m"], "sluice_class": "lead"}).decode()
            bad = signed(CLAIMS | {"exp": 1.0}).decode()
            for token, path, expected in ((good, "/models/m", 200), (good, "/models/n", 403), (bad, "/models/m", 401)):
                status, headers, body = await buffer.post(path, b"1", authorization=f"Bearer {token}")
                assert status == expected
                assert token.encode() not in body
            assert headers["www-authenticate"] == 'Bearer error="invalid_token"'
            status, _, body = await buffer.post("/models/m", b"1")
            assert status == 401 and b"a token is needed, as authorization: Bearer; none was given" in body
            async with buffer.http.get(buffer.url + "/v2/models", headers={"authorization": f"Bearer {good}"}) as response:
                assert await response.json() == {"models": ["m"]}
            assert (await buffer.get("/v2/models"))[0] == 401
            metrics = (await buffer.get("/metrics"))[2].decode()
    assert 'sluice_class_requests_total{class="lead",model="m"} 1.0' in metrics
    assert 'sluice_api_key_refusals_total{reason="token"} 1.0' in metrics
    assert good not in caplog.text and bad not in caplog.text


async def test_who_shows_nothing_is_told_that_a_key_or_a_token_is_needed(function, tmp_path):
    keys, jwk_set = tmp_path / "keys.json", tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [{"name": "web", "sha256": hashlib.sha256(b"secret").hexdigest()}]}))
    jwk_set.write_bytes(jwks(KEY))
    issuer = {"jwt_jwks": f"file:{jwk_set}", "jwt_issuer": "https://issuer", "jwt_audience": "sluice"}
    async with serving(function, NO_BATCHING, api_keys=f"file:{keys}", **issuer) as buffer:
        status, _, body = await buffer.post("/models/m", b"1")
        assert status == 401
        assert b"an API key or a token is needed, as x-api-key or as authorization: Bearer; none was given" in body


async def test_without_a_key_of_the_issuer_nobody_is_let_in_and_the_process_says_so(function, tmp_path):
    issuer = {"jwt_jwks": f"file:{tmp_path / 'none'}", "jwt_issuer": "https://issuer", "jwt_audience": "sluice"}
    async with serving(function, NO_BATCHING, **issuer) as buffer:
        status, _, body = await buffer.get("/v2/health/ready")
        assert (status, json.loads(body)["reason"]) == (503, "no key of the issuer of tokens is known")
        assert (await buffer.post("/models/m", b"1", authorization=f"Bearer {signed().decode()}"))[0] == 401


async def test_a_result_is_that_of_the_subject_of_a_token_whichever_token_it_shows(function, tmp_path):
    place = tmp_path / "jwks.json"
    place.write_bytes(jwks(KEY))
    issuer = {"jwt_jwks": f"file:{place}", "jwt_issuer": "https://issuer", "jwt_audience": "sluice"}
    claims = [CLAIMS | {"exp": time.time() + seconds, "sub": name} for seconds, name in ((100, "web"), (200, "web"), (100, "job"))]
    first, renewed, other = ({"authorization": f"Bearer {signed(each).decode()}"} for each in claims)
    async with serving(function, NO_BATCHING, **issuer) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"1", prefer="respond-async", **first)
        for token, expected in ((renewed, {200, 202}), (other, {410}), ({}, {401})):
            async with buffer.http.get(buffer.url + headers["location"], headers=token) as response:
                assert response.status in expected


async def test_no_log_has_what_an_address_of_keys_lets_in_by(caplog, monkeypatch):
    known = BearerTokens("https://issuer", "sluice")
    request = urllib.request.Request("https://issuer/keys")

    def led_away(where):
        return _OnlyTls().redirect_request(request, None, 302, "Found", {}, "http://elsewhere/keys?sig=SECRET")

    monkeypatch.setattr(bearer_tokens, "_document", led_away)
    with caplog.at_level(logging.DEBUG):
        await JwksFollower("https://issuer/keys?sig=SECRET", known).look()
        await JwksFollower("https://user:SECRET@issuer/keys", known).look()
    assert "the keys at https://issuer/keys are not readable: SLUICE_JWT_JWKS: 'http://elsewhere/keys' is not" in caplog.text
    assert "SECRET" not in caplog.text


def test_an_address_that_leads_away_from_tls_is_not_followed():
    request = urllib.request.Request("https://issuer/keys")
    led_to = partial(_OnlyTls().redirect_request, request, None, 302, "Found", {})
    assert led_to("https://elsewhere/keys").full_url == "https://elsewhere/keys"
    with pytest.raises(InvalidInput, match="SLUICE_JWT_JWKS: 'http://issuer/keys' is not allowed; allowed: an address that leads"):
        led_to("http://issuer/keys")


def test_keys_that_trickle_are_given_up(monkeypatch):
    monkeypatch.setattr(bearer_tokens, "FETCH_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.01)

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises(TimeoutError, match=r"not all of it came within 0.1 s"):
            _document(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_keys_are_read_to_their_end_and_no_further_than_is_allowed(monkeypatch):
    monkeypatch.setattr(bearer_tokens, "MAX_JWKS", 1000)
    for length in (0, 1, 1000, 1001, 5000):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer(server=server, length=length):
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * length)

            threading.Thread(target=answer, daemon=True).start()
            read = _document(f"http://127.0.0.1:{server.getsockname()[1]}")
            assert read == b"x" * min(length, 1001)
