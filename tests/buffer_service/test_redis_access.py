"""Who may talk to the Redis, and how: TLS, and a user with the least rights, as docs/reliability.md has him."""

import asyncio
import datetime
import ipaddress
import re
import socket
import ssl
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis.crc import key_slot

from sluice.batching import policy as constructors
from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service import redis_servers
from sluice.buffer_service.arrival_stream import read_arrivals, stream_key
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.members import encode_member
from sluice.buffer_service.presence import TELL, Presence, Presences
from sluice.buffer_service.redis_access import refusal
from sluice.buffer_service.redis_mailbox import LENGTH, MORE, TAKE_OUT
from sluice.buffer_service.redis_plans import LEASE, WRITE, RedisPlans
from sluice.buffer_service.redis_store import ADVANCE, SET_ASIDE, RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.stream_reader import News, RecordReader
from sluice.buffer_service.told import Told
from sluice.cli.redis_options import require_redis
from sluice.lambda_fn.contract import Item
from sluice.local.redis_server import RedisServer, RedisServerError
from tests.buffer_service.conftest import Plans, plan, serving
from tests.buffer_service.moving_address import moving_address
from tests.buffer_service.redis_cluster import cluster

ROOT = Path(__file__).parents[2]
POLICY = constructors.size_or_timeout(8, 0.01)
A, B = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate of 127.0.0.1 that is its own authority: paths."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a cache")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(here, False).add_extension(x509.BasicConstraints(True, 0), True)
    folder = tmp_path_factory.mktemp("tls")
    words = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(*words))
    (folder / "cert.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return folder / "key.pem", folder / "cert.pem"


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    return context


def documented_rights(namespace, password):
    """The words of the one ACL line in the docs, for this namespace and password."""
    [line] = re.findall(r"^ACL SETUSER sluice (.*)$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    return line.replace("~sluice:*", f"~{namespace}:*").replace(">PASSWORD", f">{password}").split()


def make_user(admin, *words, namespace="sluice"):
    """The documented user, with the password ``secret``; what a server older than 7.2 does not know it cannot grant."""
    version = tuple(int(part) for part in admin.execute_command("INFO", "server")["redis_version"].split(".")[:2])
    granted = [word for word in documented_rights(namespace, "secret") if version >= (7, 2) or word != "+client|setinfo"]
    admin.execute_command("ACL", "SETUSER", "sluice", *granted, *words)
    return version


async def serves(url, function, model="m", namespace="sluice"):
    """Everything that two processes do with a Redis: batches of both, mail, a lost batch, a dead one, the record of arrivals."""
    names = new_process_name(), new_process_name()
    stores = [RedisStore(url, name, namespace) for name in names]
    plans = Plans(plan(POLICY, model))
    async with AsyncExitStack() as stack:
        buffers = [await stack.enter_async_context(serving(function, POLICY, store, plans)) for store in stores]
        bodies = [b"%d" % i for i in range(32)]
        answers = await asyncio.gather(*(buffers[i % 2].post(f"/models/{model}", body) for i, body in enumerate(bodies)))
        assert [(status, body) for status, _, body in answers] == [(200, body) for body in bodies]
        assert (await buffers[0].get("/v2/health/ready"))[0] == 200
        _, headers, _ = await buffers[0].post(f"/models/{model}", b"1", prefer="respond-async")
        while (await buffers[1].get(headers["location"]))[0] == 202:
            await asyncio.sleep(0.001)
        async with buffers[1].http.delete(buffers[1].url + headers["location"]) as response:
            assert response.status == 204
    store = RedisStore(url, A, namespace)
    queue = store.queue(f"{model}2", Limits(max_attempts=2))
    await queue.install(constructors.Policy((float("inf"), 0.0), (0, 1), 1, drop_after=5.0))
    member, late = A.encode() + b"00000000", A.encode() + b"00000001"
    await queue.advance(Events([member, late], serving=[]), now=1.0)
    [again] = (await queue.advance(Events(serving=[]), now=2.0)).batches
    assert (await queue.advance(Events(serving=[]), now=3.0)).dead == [member]
    assert (await queue.advance(Events(completed=[again.batch_id], leaving=True, serving=[]), now=20.0)).batches == []
    await queue.advance(Events(serving=[]), now=20.0)
    await store.close()
    spread = RedisStore(url, A, namespace, spread_routes=True)
    await spread.queue(model, Limits(), "a").install(POLICY)
    await spread.close()
    assert len(read_arrivals(url, model, namespace)) == 33


async def test_the_documented_user_may_do_all_that_the_buffer_does_and_touch_nothing_else(function):
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        version = make_user(admin, namespace="blue")
        url = f"redis://sluice:secret@127.0.0.1:{server.port}/0"
        await serves(url, function, namespace="blue")
        assert admin.acl_log() == [] or version < (7, 2)  # nothing was tried in vain
        with redis.Redis.from_url(url) as user:
            for command in (
                ("GET", "green:x"),
                ("SET", "sluice:{m}:policy", "x"),
                ("FLUSHALL",),
                ("KEYS", "*"),
                ("CONFIG", "GET", "*"),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    user.execute_command(*command)


async def test_the_documented_user_may_also_control_and_look_at_what_was_recorded(function):
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        version = make_user(admin, namespace="blue")
        url = f"redis://sluice:secret@127.0.0.1:{server.port}/0"
        await serves(url, function, namespace="blue")
        readers = {"m": RecordReader(url, "m", "blue"), "n": RecordReader(url, "n", "blue")}
        readers["m"].look_for_routes()
        arrivals, batches = readers["m"].look()
        assert len(arrivals.arrivals.times) == 33 and batches.batches
        news = News(url)
        assert news.of(readers) == set()
        plans = RedisPlans(url, "blue")
        assert await plans.lead("here", 5.0)
        declared = plan(POLICY, "m")
        await plans.write(declared, "here", "why", leader="here")
        await plans.note_declared(declared)
        await plans.note_decision(b"{}")
        await plans.changed(0.01)
        told = await plans.plans(), await plans.history(), await plans.reasons(1), await plans.decisions(1), await plans.declared()
        assert all(told) and await plans.leader() == "here"
        await plans.resign("here")
        await plans.look()
        await plans.close()
        presences = Presences(url, "blue")
        await presences.tell(A, Presence(host="", release="", plans=""))
        assert [each.process for each in await presences.heard()] == [A]
        await presences.leave(A)
        await presences.close()
        for each in (*readers.values(), news):
            each.close()
        assert admin.acl_log() == [] or version < (7, 2)


async def test_a_user_whose_rights_do_not_suffice_is_told_which(function):
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        make_user(admin, "-evalsha", "-eval")
        async with serving(function, POLICY, RedisStore(f"redis://sluice:secret@127.0.0.1:{server.port}/0", A)) as buffer:
            for path in ("/v2/health/ready", "/v2/models/m/ready"):
                status, _, body = await buffer.get(path)
                assert (status, b"eval" in body) == (503, True)
            assert (await buffer.post("/models/m", b"1"))[0] == 503


async def test_a_user_who_may_not_do_what_a_slack_needs_has_such_requests_refused_and_the_others_served():
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        make_user(admin, "-zcard", "-zcount", "-zrange", "-zremrangebyrank", "-lrange")  # as before there were classes
        store = RedisStore(f"redis://sluice:secret@127.0.0.1:{server.port}/0", A)
        queue = store.queue("m", Limits())
        await queue.install(constructors.greedy(1))
        plain, hurried = (encode_member(Item(f"{A}{i:08x}", "", b""), Told(slack=slack)) for i, slack in enumerate((0.0, -1.0)))
        with pytest.raises(StoreUnavailable, match="zcard"):
            await queue.advance(Events([hurried], serving=[]))
        [batch] = (await queue.advance(Events([plain], serving=[]))).batches
        assert batch.members == [plain]
        make_user(admin)
        [batch] = (await queue.advance(Events([hurried], [batch.batch_id]))).batches
        assert batch.members == [hurried]
        await store.close()


def test_the_documented_user_has_the_commands_that_are_used_and_no_more():
    files = "redis_store.py", "redis_mailbox.py", "redis_servers.py", "redis_slot.py", "redis_plans.py", "presence.py"
    sources = [(ROOT / "buffer_service" / name).read_text() for name in files]
    used = {name for source in sources for name in re.findall(r'\("([A-Z]{3,})"[,)]', source)}
    used |= set(
        re.findall(
            r"(?:call|push)\('([A-Z]+)'", ADVANCE + SET_ASIDE + MORE + LENGTH + TAKE_OUT + WRITE.text + LEASE.text + TELL.text
        )
    ) | {*("CLIENT|SETINFO", "SMEMBERS", "XRANGE", "MULTI", "EXEC")}  # the latter read the records
    used = {"CLUSTER|SLOTS" if name == "CLUSTER" else name for name in used - {"NOPOLICY", "UNBLOCKED", "WRONGTYPE"}}
    granted = {word[1:].upper() for word in documented_rights("sluice", "x") if word.startswith("+")}
    assert granted == used


@pytest.fixture
def patient(monkeypatch):
    """A busy machine stands still for a second, in which a command is given up."""
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 10.0)


async def test_tls_is_spoken_and_a_certificate_of_somebody_else_is_not_believed(function, certificate, tls, patient):
    with RedisServer(port=0) as server:
        async with moving_address(server.port, tls) as address:
            url = f"rediss://127.0.0.1:{address.port}/0"
            await asyncio.wait_for(_serves_a_request(f"{url}?ssl_ca_certs={certificate[1]}", function), 20)
            assert "certificate verify failed" in await _refused(url)


async def test_a_certificate_of_another_host_is_not_believed(certificate, tls):
    with RedisServer(port=0) as server:
        async with moving_address(server.port, tls) as address:
            said = await _refused(f"rediss://localhost:{address.port}/0?ssl_ca_certs={certificate[1]}")
    assert "certificate is not valid for 'localhost'" in said


async def test_who_is_asked_for_a_certificate_shows_the_one_that_the_url_names(function, certificate, tls, patient):
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(certificate[1])
    key, cert = certificate
    with RedisServer(port=0) as server:
        async with moving_address(server.port, tls) as address:
            url = f"rediss://127.0.0.1:{address.port}/0?ssl_ca_certs={cert}"
            assert "Redis does not answer" in await _refused(url)
            await asyncio.wait_for(_serves_a_request(f"{url}&ssl_certfile={cert}&ssl_keyfile={key}", function), 20)


async def test_a_server_that_speaks_no_tls_is_told_from_one_that_is_silent(monkeypatch):
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 0.1)
    with RedisServer(port=0) as server:
        assert "does it speak TLS at this port?" in await _refused(f"rediss://127.0.0.1:{server.port}/0")


async def test_who_is_refused_by_redis_hears_why_and_whoever_only_finds_it_away_does_not(monkeypatch):
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 0.2)
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin, socket.create_server(("127.0.0.1", 0)) as mute:
        make_user(admin, namespace="blue")
        at = f"127.0.0.1:{server.port}"
        assert await refusal(f"redis://sluice:secret@{at}/0", "blue") == await refusal(f"redis://sluice:secret@{at}/0") == ""
        assert "invalid username-password pair" in await refusal(f"redis://sluice:guess@{at}/0")
        assert "invalid username-password pair" in await refusal(f"redis://nobody:secret@{at}/0", "blue")
        assert "DB index is out of range" in await refusal(f"redis://{at}/99")
        assert "called without any password configured" in await refusal(f"redis://:guess@{at}/0?protocol=2")
        assert "No permissions to access a key" in await refusal(f"redis://sluice:secret@{at}/0", "green")
        admin.execute_command("CONFIG", "SET", "requirepass", "secret")
        assert "it asks for a password, and its URL has none" in await refusal(f"redis://{at}/0")
        assert await refusal(f"redis://:secret@{at}/0") == ""
        for away in ("redis://127.0.0.1:1/0", f"redis://127.0.0.1:{mute.getsockname()[1]}/0", "redis://no.such.host/0"):
            assert await refusal(away, "blue") == ""


async def test_a_password_that_is_changed_while_it_runs_is_told_as_such_and_tried_again(monkeypatch):
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("CONFIG", "SET", "requirepass", "new")
        store = RedisStore(f"redis://:old@127.0.0.1:{server.port}/0", B)
        with pytest.raises(StoreUnavailable, match="Redis refuses the user, password or database of its URL: invalid user"):
            await store.receive()
        admin.execute_command("CONFIG", "SET", "requirepass", "old")
        assert await store.receive() == []
        await store.close()


def test_a_command_names_its_option_and_shows_no_password():
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("CONFIG", "SET", "requirepass", "secret")
        with pytest.raises(InvalidInput) as caught:
            require_redis(f"redis://:guess@127.0.0.1:{server.port}/0", "blue")
        said = str(caught.value)
        assert said.startswith(
            f"--redis-url (SLUICE_REDIS_URL): 'redis://***@127.0.0.1:{server.port}/0' is not allowed; allowed: user,"
        )
        assert "invalid username-password pair" in said and "guess" not in said
        with pytest.raises(
            InvalidInput, match="url: 'redis://.*@127.* is not allowed; allowed: user and password as this Redis has them"
        ):
            read_arrivals(f"redis://:guess@127.0.0.1:{server.port}/0", "m")


async def _refused(url):
    """Why a script cannot be run there."""
    store = RedisStore(url, B)
    queue = store.queue("m", Limits())
    with pytest.raises(StoreUnavailable) as caught:
        await queue.check()
    await queue._gate.close()
    await store._servers.close()
    return str(caught.value)


async def _serves_a_request(url, function):
    async with serving(function, POLICY, RedisStore(url, new_process_name())) as buffer:
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        assert (await buffer.get("/v2/health/ready"))[0] == 200


@pytest.mark.full
async def test_a_cluster_behind_tls_and_a_user_is_followed_from_server_to_server(certificate, tls, function, patient):
    """As ElastiCache Serverless: cluster mode, TLS, a user; here each server is behind a proxy that it announces as itself."""
    with cluster() as running:
        async with AsyncExitStack() as stack:
            for master in running.masters:
                address = await stack.enter_async_context(moving_address(master.server.port, tls))
                master.ask("CONFIG", "SET", "cluster-announce-port", address.port)
                make_user(master.client)
                master.address_told = address.port
            told = {master.address_told for master in running.masters}
            while any({entry[2][1] for entry in master.ask("CLUSTER", "SLOTS")} != told for master in running.masters):
                await asyncio.sleep(0.01)
            url = f"rediss://sluice:secret@127.0.0.1:{running.masters[0].address_told}/0?ssl_ca_certs={certificate[1]}"
            models = [uuid.uuid4().hex for _ in range(500)]
            by_owner = {running.owner[key_slot(stream_key(model).encode())]: model for model in models}
            assert by_owner.keys() == set(running.masters)
            for model in by_owner.values():
                async with serving(function, POLICY, RedisStore(url, new_process_name()), Plans(plan(POLICY, model))) as buffer:
                    assert (await buffer.post(f"/models/{model}", b"1"))[0] == 200
                assert len(await asyncio.to_thread(read_arrivals, url, model)) == 1


@pytest.mark.full
async def test_a_server_that_speaks_tls_itself_is_served(certificate, function, patient):
    """With a server that has TLS, as Debian's, named by ``SLUICE_REDIS_SERVER``; the embedded one has none."""
    key, cert = map(str, certificate)
    with RedisServer(port=0) as plain:
        port = plain.port
    words = ("--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    try:
        server = RedisServer(options=words).start()
    except RedisServerError as error:
        if "TLS support" not in str(error):
            raise
        pytest.skip("the embedded server has no TLS")
    try:
        with redis.Redis.from_url(server.url) as admin:
            make_user(admin)
        await serves(f"rediss://sluice:secret@127.0.0.1:{port}/0?ssl_ca_certs={cert}", function)
    finally:
        server.stop()
