"""`sluice plans`: into force, shown, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Slo, write
from sluice.local.redis_server import RedisServer
from tests.cli.conftest import Run


def written(folder: Path, batch: int, model: str = "m") -> tuple[str, str]:
    """A plan's file, and its digest."""
    plan = Plan(model=model, function="f", policy=PolicyDocument.of(constructors.greedy(batch)))
    path = folder / f"{model}-{batch}.json"
    path.write_bytes(write(plan))
    return str(path), plan.digest


@pytest.fixture
def where(redis_server: RedisServer, request: pytest.FixtureRequest) -> list[str]:
    return ["--redis-url", redis_server.url, "--namespace", request.node.name[-64:]]


def test_plans_are_pushed_shown_and_put_back(exit_of: Run, tmp_path: Path, where: list[str]) -> None:
    (first, a), (second, b), (third, c) = (written(tmp_path, batch) for batch in (1, 2, 3))
    for file, digest in ((first, a), (second, b), (third, c)):
        told = f"m: {digest} is pushed\n`sluice status` says which buffers follow, and why others do not.\n"
        assert exit_of("plans", "push", file, "--why", "trying", *where) == (0, told, "")
    _, shown, _ = exit_of("plans", "show", "m", "--json", *where)
    assert json.loads(shown)["digest"] == c
    code, said, _ = exit_of("plans", "back", "m", *where)
    assert (code, b in said) == (0, True)
    assert exit_of("plans", "back", "m", "--to", a, *where)[0] == 0
    _, told, _ = exit_of("plans", "history", "m", "--json", *where)
    history = json.loads(told)
    assert [each["plan"]["digest"] for each in history] == [a, b, c, b, a]
    assert [each["why"] for each in history] == [f"back from {b}", f"back from {c}", "trying", "trying", "trying"]
    _, table, _ = exit_of("plans", "show", *where)
    assert a in table
    _, table, _ = exit_of("plans", "history", *where)
    assert "back from" in table


def test_two_plans_of_a_model_and_a_reason_of_several_lines_are_refused(exit_of: Run, tmp_path: Path, where: list[str]) -> None:
    (first, _), (second, _) = (written(tmp_path, batch) for batch in (1, 2))
    code, _, said = exit_of("plans", "push", first, second, *where)
    assert code == 2 and "PLAN.json: 'm' is not allowed; allowed: one plan a model" in said
    for why in ("two\nlines", "\x1b[31mred", "x" * 501):
        code, _, said = exit_of("plans", "push", first, "--why", why, *where)
        assert code == 2 and "--why: " in said and "allowed: one line of at most 500 characters" in said
    assert exit_of("plans", "show", "m", *where)[0] == 2  # nothing was pushed


def test_a_plan_that_may_hold_requests_for_longer_than_it_promises_is_pushed_with_a_warning(
    exit_of: Run, tmp_path: Path, where: list[str]
) -> None:
    table = PolicyDocument.of(constructors.size_or_timeout(4, 50.0))
    (tmp_path / "plan.json").write_bytes(write(Plan(model="m", function="f", policy=table, slo=Slo(0.2))))
    code, told, said = exit_of("plans", "push", str(tmp_path / "plan.json"), *where)
    assert (code, "is pushed" in told) == (0, True)
    assert said == "warning: m: who waits for others may be held for 50 s, of 0.2 s that are promised"
    (tmp_path / "plan.json").write_bytes(write(Plan(model="m", function="f", policy=table, slo=Slo(200.0))))
    _, _, said = exit_of("plans", "push", str(tmp_path / "plan.json"), *where)
    wanted = "warning: m: a promise of 200 s is longer than callers wait by default, 60 s: 0.2 if it is of milliseconds"
    assert said == wanted


def test_there_is_no_going_back_from_the_first_plan(exit_of: Run, tmp_path: Path, where: list[str]) -> None:
    path, _ = written(tmp_path, 1)
    assert exit_of("plans", "push", path, *where)[0] == 0
    code, _, said = exit_of("plans", "back", "m", *where)
    assert (code, "none is kept" in said) == (2, True)
    code, _, said = exit_of("plans", "back", "m", "--to", "0123456789abcdef", *where)
    assert (code, "0123456789abcdef" in said) == (2, True)


def test_a_model_without_a_plan_a_file_that_is_none_and_a_redis_that_is_away_are_named(
    exit_of: Run, tmp_path: Path, where: list[str]
) -> None:
    for command in ("show", "history"):
        code, _, said = exit_of("plans", command, "nobody", *where)
        assert (code, "'nobody'" in said) == (2, True)
    (tmp_path / "no.json").write_text("{}")
    assert exit_of("plans", "push", str(tmp_path / "no.json"), *where)[0] == 2
    code, _, said = exit_of("plans", "show", "--redis-url", "redis://127.0.0.1:1/0")
    assert (code, "does not answer" in said and "at redis://127.0.0.1:1/0 (--redis-url)" in said) == (1, True)
    code, _, said = exit_of("plans", "show", "--redis-url", "http://x")
    assert (code, "--redis-url" in said) == (2, True)


def test_what_others_put_among_the_plans_is_left_out(
    exit_of: Run, tmp_path: Path, where: list[str], redis_server: RedisServer
) -> None:
    path, digest = written(tmp_path, 1)
    assert exit_of("plans", "push", path, *where)[0] == 0
    redis.Redis.from_url(redis_server.url).hset(f"{where[3]}:{{plans}}:documents", "x", b"\xff")
    redis.Redis.from_url(redis_server.url).xadd(f"{where[3]}:{{plans}}:history", {"other": "x"})
    _, shown, _ = exit_of("plans", "show", "--json", *where)
    assert [plan["digest"] for plan in json.loads(shown)] == [digest]
