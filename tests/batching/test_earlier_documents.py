"""Documents as version 1 wrote them, which every later Sluice reads as they were meant: a file here is never edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.batching.documents import ArrivalDocument, Document, Plan, ServiceProfile, read, write
from sluice.batching.errors import InvalidInput

KINDS: dict[str, type[Document]] = {"arrivals": ArrivalDocument, "plan": Plan, "profile": ServiceProfile}
FILES = sorted((Path(__file__).parent / "version_1").glob("*.json"))


def of(path: Path) -> type[Document]:
    return KINDS[path.stem.partition("-")[0]]


def said_again(earlier: Any, now: Any) -> bool:
    """Whether every field of the one is in the other with its value; the other may have more of them."""
    if isinstance(earlier, dict):
        return all(name in now and said_again(value, now[name]) for name, value in earlier.items())
    if isinstance(earlier, list):
        return len(earlier) == len(now) and all(map(said_again, earlier, now))
    return bool(earlier == now)


def test_there_are_some_of_every_kind() -> None:
    assert {of(path) for path in FILES} == set(KINDS.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_written_is_read_and_says_the_same_when_it_is_written_again(path: Path) -> None:
    text = path.read_bytes()
    assert json.loads(text)["version"] == 1
    assert said_again(json.loads(text), json.loads(write(read(of(path), text))))


def test_every_plan_has_the_digest_under_which_records_and_journal_know_it() -> None:
    """So that the test above finds it changed."""
    assert all(json.loads(path.read_bytes())["digest"] for path in FILES if of(path) is Plan)


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_a_later_sluice_wrote_is_refused(kind: type[Document]) -> None:
    document = json.loads(next(path for path in FILES if of(path) is kind).read_bytes()) | {"version": 2}
    with pytest.raises(InvalidInput, match="version: 2 .* 1; what a later Sluice wrote takes a later Sluice to read"):
        read(kind, json.dumps(document))
