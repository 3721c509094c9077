"""A policy named by a file: a policy, a plan, or tables by phase."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.batching.documents import Plan, read
from sluice.batching.errors import InvalidInput
from sluice.cli.file_kinds import PLAN, POLICY, kind_of
from sluice.cli.named_files import read_json
from sluice.optimizer.smdp import PhaseTables, read_phase_tables


def is_file(text: str) -> bool:
    """Whether a policy is named by a file."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def read_policy(path: str) -> Plan | PhaseTables:
    """The plan in a file, or one of nothing but the policy in it; or the tables by phase.

    Raises
    ------
    InvalidInput
        A file that is neither a policy nor a plan nor tables by phase.
    """
    data = read_json(path, "--policy")
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("policy", path, f"a JSON document, policy or plan ({error})") from None
    if not isinstance(content, dict) or (kind_of(data) is None and "model" not in content):
        raise InvalidInput("--policy", path, "a policy, a plan, or tables by phase; this is another JSON document")
    if "tables" in content:
        return read_phase_tables(data, path)
    found = kind_of(data)
    if found not in (None, PLAN, POLICY):
        raise InvalidInput("--policy", path, f"a policy, a plan, or tables by phase; this is {found}")
    if "hold" in content:  # a policy alone
        data = msgspec.json.encode({"model": "policy", "function": "policy", "policy": content})
    return read(Plan, data, path)
