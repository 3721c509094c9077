"""A policy named by a file: a policy, or a plan."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.batching.documents import Plan, read
from sluice.batching.errors import InvalidInput
from sluice.cli.output import read_file


def is_file(text: str) -> bool:
    """Whether a policy is named by a file."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def read_plan(path: str) -> Plan:
    """The plan in a file, or one of nothing but the policy in it.

    Raises
    ------
    InvalidInput
        A file that is neither a policy nor a plan.
    """
    data = read_file(path)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("policy", path, f"a JSON document, policy or plan ({error})") from None
    if isinstance(content, dict) and "hold" in content:  # a policy alone
        data = msgspec.json.encode({"model": "policy", "function": "policy", "policy": content})
    return read(Plan, data, path)
