"""`sluice replay` sends a trace to a server and judges the SLO."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time

import pytest

from sluice.lambda_fn.contract import problem

ANSWERS = {b"fail": (500, b"model exploded"), b"unknown": (404, problem(404, "Not Found", "model: 'x' is not \"allowed\""))}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers 200 after the ``delay`` of its server, an error to a body that says so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        self.server.sizes.append(self.headers["sluice-size"])
        self.server.keys.append(self.headers["x-api-key"])
        time.sleep(self.server.delay)
        status, text = ANSWERS.get(body, (200, b"{}"))
        self.send_response(status)
        if self.headers["sluice-size"] is not None:
            self.send_header("sluice-route", "short" if float(self.headers["sluice-size"]) <= 3 else "long")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 200
    daemon_threads = True

    def __init__(self, address=("127.0.0.1", 0)):
        super().__init__(address, Handler)
        self.delay = 0.0
        self.bodies = []
        self.sizes = []
        self.keys = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/models/mlp"


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def sluice(exit_of, monkeypatch, tmp_path):
    """Run `sluice` with arguments beside a trace of 120 arrivals in 12 s; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("time\n" + "".join(f"{1000 + i / 10}\n" for i in range(120)))

    return exit_of


def test_a_replay_in_fast_motion_keeps_a_loose_slo_and_writes_every_request(server, sluice, tmp_path):
    code, out, err = sluice("replay", "trace.csv", "--url", server.url, "--scale", "50", "--slo", "2", "--out", "result.json")
    assert code == 0, err
    assert "read 120 arrivals as timestamps in s (by the column's name, time)" in err
    assert "120 requests in 0.2 s, 50 times as fast as the trace." in err
    assert "Kept: 95 % of the requests within 2 s; measured 0.0" in err
    assert "latency ms" in out and "lateness ms" in out
    document = json.loads((tmp_path / "result.json").read_text())
    assert len(document["requests"]["latency"]) == 120 == len(server.bodies)
    assert document["summary"]["scale"] == 50


def test_every_request_has_the_headers_that_are_told(server, sluice):
    code, _, err = sluice(
        "replay", "trace.csv", "--url", server.url, "--limit", "3", "--speed", "100", "--header", "X-API-Key: s3: a"
    )
    assert code == 0, err
    assert server.keys == ["s3: a"] * 3


@pytest.fixture
def sized(tmp_path):
    """A trace of 120 arrivals of sizes 0 to 9."""
    (tmp_path / "sized.csv").write_text("time,tokens\n" + "".join(f"{1000 + i / 10},{i % 10}\n" for i in range(120)))
    return ("replay", "sized.csv", "--size-column", "tokens", "--scale", "50")


def test_requests_of_a_trace_with_sizes_tell_theirs_and_each_route_is_shown(server, sluice, sized):
    code, out, err = sluice(*sized, "--url", server.url)
    assert code == 0, err
    assert sorted(server.sizes) == sorted(f"{i % 10}" for i in range(120))
    assert all(json.loads(body) == {"size": float(size)} for body, size in zip(server.bodies, server.sizes, strict=True))
    assert "long, 72" in out and "short, 48" in out and out.index("latency ms") < out.index("long, 72") < out.index("lateness ms")


def test_a_request_has_the_body_of_the_least_size_that_is_as_large(server, sluice, sized, tmp_path):
    for size in (3, 8):
        (tmp_path / f"{size}.json").write_text(f"{size}")
    code, out, err = sluice(*sized, "--url", server.url, "--body", "8=8.json", "--body", "3=3.json", "--json")
    assert code == 0, err
    assert {(int(size), body) for size, body in zip(server.sizes, server.bodies, strict=True)} == {
        (size, b"3" if size <= 3 else b"8") for size in range(10)
    }
    assert json.loads(out)["routes"]["short"]["requests"] == 48
    assert "warning: 10 % of the sizes are above 8, the largest of --body" in err
    server.bodies.clear()
    code, _, err = sluice(*sized, "--url", server.url, "--body", "8.json")
    assert code == 0 and set(server.bodies) == {b"8"}, err


def test_each_request_has_a_body_of_its_own_size_made_of_one(server, sluice, sized, tmp_path):
    (tmp_path / "b.json").write_text('{"user": 1, "tokens": [7, 8]}')
    code, _, err = sluice(*sized, "--url", server.url, "--body", "b.json", "--body-size", "tokens")
    assert code == 0, err
    for size, body in zip(server.sizes, server.bodies, strict=True):
        assert json.loads(body) == {"user": 1, "tokens": ([7, 8] * 5)[: int(size)]}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            ("trace.csv", "--body", "b.json", "--body-size", "tokens"),
            "--body-size: 'tokens' is not allowed; allowed: none, as the trace",
        ),
        (("SIZED", "--body-size", "tokens"), "--body: none was given; needed: one file, of which --body-size makes"),
        (("SIZED", "--body", "b.json", "--body-size", "text"), "body: text: 'text' is not allowed; allowed: a key of an object"),
        (
            ("SIZED", "--body", "b.json", "--body-size", "none"),
            "body: none: [] is not allowed; allowed: a number, or a list or string",
        ),
        (("SIZED", "--body", "trace.csv", "--body-size", "tokens"), "is not allowed; allowed: a JSON document"),
    ],
)
def test_what_no_body_of_a_size_is_made_of_is_named(server, sluice, sized, tmp_path, told, message):
    (tmp_path / "b.json").write_text('{"tokens": [7], "none": []}')
    first, *rest = told
    code, _, err = sluice(*(sized if first == "SIZED" else ("replay", first)), "--url", server.url, *rest)
    assert code == 2 and message in " ".join(err.split()) and not server.bodies


def test_bodies_by_size_need_sizes(server, sluice, tmp_path):
    (tmp_path / "b").write_text("1")
    code, _, err = sluice("replay", "trace.csv", "--url", server.url, "--body", "3=b")
    assert code == 2 and "--body: '3=b' is not allowed; allowed: a file without a size before it" in err


def test_a_part_of_a_trace_of_any_form_is_replayed(server, sluice, tmp_path):
    (tmp_path / "counts.csv").write_text("second,requests\n" + "".join(f"{i},{20 + i}\n" for i in range(10)))
    arguments = ("--column", "requests", "--kind", "counts", "--from", "1", "--to", "9", "--window", "5")
    code, _, err = sluice("replay", "counts.csv", "--url", server.url, "--scale", "50", *arguments)
    assert code == 0, err
    assert "arrivals as counts per 1 s, placed in their bins at random" in err
    assert 110 < len(server.bodies) < 150


def test_an_slo_that_is_not_kept_exits_1_and_says_what_was_measured(server, sluice):
    server.delay = 0.1
    arguments = ("--scale", "50", "--limit", "20", "--slo", "0.05", "--percentile", "90", "--json")
    code, out, err = sluice("replay", "trace.csv", "--url", server.url, *arguments)
    assert code == 1
    assert re.search(r"Not kept: 90 % of the requests within 0\.05 s; measured 0\.[1-9]\d* s", err)  # the delay and more
    assert json.loads(out)["latency"]["p90"] > 0.1


def test_of_several_slos_each_is_judged_and_one_that_is_not_kept_exits_1(server, sluice):
    server.delay = 0.1
    arguments = ("--scale", "50", "--limit", "20", "--slo", "p50=0.05", "--slo", "p90=2")
    code, _, err = sluice("replay", "trace.csv", "--url", server.url, *arguments)
    assert code == 1
    assert re.search(r"Not kept: 50 % of the requests within 0\.05 s; measured 0\.[1-9]\d* s", err)  # the delay and more
    assert re.search(r" Kept: 90 % of the requests within 2 s; measured \d\.\d+ s", err)


def test_failed_requests_do_not_keep_an_slo_and_nothing_answered_is_a_failure(server, sluice, tmp_path):
    (tmp_path / "body").write_text("fail")
    arguments = ("--scale", "50", "--seconds", "0.1", "--body", "body", "--content-type", "text/plain", "--slo", "1")
    code, out, err = sluice("replay", "trace.csv", "--url", server.url, *arguments)
    assert (code, out) == (1, "")  # no table of what was not answered
    assert err.endswith(f"sluice: none of 50 requests was answered with 2xx by {server.url}: 500: model exploded")
    assert err.count("model exploded") == 1


def test_nobody_there_is_a_failure_with_its_reason(sluice):
    code, out, err = sluice("replay", "trace.csv", "--url", "http://127.0.0.1:1/", "--scale", "100", "--wait", "0")
    assert (code, out) == (1, "")
    assert "none of 120 requests was answered with 2xx by http://127.0.0.1:1/: cannot connect: " in err
    assert "refused" in err.lower()
    code, out, err = sluice("replay", "trace.csv", "--url", "http://me:secret@127.0.0.1:1/", "--scale", "0.1", "--wait", "100ms")
    assert (code, out) == (1, "") and ", in 0.1 s (--wait): " in err and "nobody listens at http://" in err and "secret" not in err


def test_the_error_of_a_buffer_is_said_without_its_json(server, sluice, tmp_path):
    (tmp_path / "body").write_text("unknown")
    code, _, err = sluice("replay", "trace.csv", "--url", server.url, "--scale", "100", "--body", "body")
    assert code == 1 and "404: model: 'x' is not \"allowed\"" in err and "{" not in err


def test_a_buffer_that_was_just_started_is_waited_for(sluice):
    with Server() as closed:
        address = closed.server_address
    late: list[Server] = []

    def start():
        time.sleep(0.5)
        late.append(Server(address))
        late[0].serve_forever(poll_interval=0.05)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        url = f"http://127.0.0.1:{address[1]}/models/mlp"
        code, _, err = sluice("replay", "trace.csv", "--url", url, "--scale", "100", "--slo", "5")
    finally:
        late[0].shutdown()
        thread.join()
        late[0].server_close()
    assert code == 0, err
    assert len(late[0].bodies) == 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("absent.csv --url http://127.0.0.1:1/", "trace: 'absent.csv' is not allowed"),
        ("trace.csv --url http://127.0.0.1:1/ --header key", "--header: 'key' is not allowed; allowed: NAME:VALUE"),
        ("trace.csv --url nowhere", "url: 'nowhere' is not allowed; allowed: http://host"),
        ("trace.csv --url http://127.0.0.1:1/ --scale 0", "speed: 0.0 is not allowed; allowed: a number > 0"),
        ("trace.csv --url http://127.0.0.1:1/ --limit 0", "limit: 0 is not allowed"),
        ("trace.csv --url http://127.0.0.1:1/ --slo 0", "slo.latency: 0.0 is not allowed"),
        ("trace.csv --url http://127.0.0.1:1/ --slo 1 --percentile 100", "slo.percentile: 100.0 is not allowed"),
        ("trace.csv --url http://127.0.0.1:1/ --timeout 0", "timeout: 0.0 is not allowed"),
        ("trace.csv --url http://127.0.0.1:1/ --wait -1", "wait: -1.0 is not allowed; allowed: a number of seconds >= 0"),
        ("trace.csv --url http://127.0.0.1:1/ --body absent", "--body: 'absent' is not allowed; allowed: a file that exists"),
        ("trace.csv", "Missing option '--url'"),
    ],
)
def test_what_cannot_be_replayed_names_field_and_value(sluice, arguments, message):
    code, out, err = sluice("replay", *arguments.split(), *([] if "--wait" in arguments else ["--wait", "0"]))
    assert message in err
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    "header",
    [
        *("x-api-key SECRET", "x-api-key: SECRET\r", "content-length: SECRET", "x-api-key=a:SECRET"),
        *("x-api-key=SECRET", "x-api-key\tSECRET", "x-api-key=SECRET: a", " x-api-key SECRET: a"),
    ],
)
def test_a_header_that_is_refused_is_shown_without_its_value(header, tmp_path, exit_of):
    (tmp_path / "trace.csv").write_text("time\n0.1\n0.2\n")
    code, _, err = exit_of("replay", str(tmp_path / "trace.csv"), "--url", "http://127.0.0.1:1/", "--header", header)
    assert code == 2 and "--header: " in err and "SECRET" not in err
