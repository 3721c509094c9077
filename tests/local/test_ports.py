"""A port that was chosen is nobody else's until it is bound."""

from __future__ import annotations

import os
import socket

import pytest

from sluice.local import ports
from sluice.local.ports import FIRST, chosen_port


def test_the_kernel_gives_a_chosen_port_to_nobody_who_asks_for_any() -> None:
    port = chosen_port()
    assert FIRST <= port < ports._given_from()
    with socket.create_server(("127.0.0.1", port)):
        assert chosen_port() != port


def test_one_process_chooses_each_port_in_turn_and_two_never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [chosen_port() for _ in range(8)]
    assert len(set(mine)) == len(mine)
    next_process = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: next_process)
    assert not {chosen_port() for _ in range(8)} & set(mine)


def test_where_all_of_them_are_taken_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(ports, "_given_from", lambda: taken.getsockname()[1] + 1)
        monkeypatch.setattr(ports, "FIRST", taken.getsockname()[1] + 1)
        assert chosen_port() != taken.getsockname()[1]
