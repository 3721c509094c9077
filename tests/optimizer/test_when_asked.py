"""Rooms that import what they name when it is asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from sluice.optimizer import recommend


def test_every_name_of_a_room_that_waits_to_be_asked_is_found_and_none_is_that_of_a_module() -> None:
    room: Any = recommend
    for name in recommend.__all__:
        assert getattr(room, name) is not None
        assert importlib.util.find_spec(f"{room.__name__}.{name}") is None
    with pytest.raises(AttributeError, match="nothing_of_it"):
        _ = room.nothing_of_it


def test_who_needs_a_small_module_of_such_a_room_loads_no_other() -> None:
    script = "import sys, sluice.optimizer.recommend.words; print(sum('optimizer.recommend.' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == ["1"]
