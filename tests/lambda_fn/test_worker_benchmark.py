"""What ``benchmarks/worker.py`` tells of its runs is what they were."""

from __future__ import annotations

import os
import subprocess
import sys

from rich.table import Table

from benchmarks.buffer_throughput import cpu
from benchmarks.worker import LITSERVE, OURS, PARTS, Runs, cpu_of_tree, medians, rates_of, ratio, ratios


def result(requests_per_second: float, p50: float, **more: float) -> dict[str, float]:
    return {
        "requests_per_second": requests_per_second,
        "p50_ms": p50,
        "p95_ms": 2 * p50,
        "late_p95_ms": 0.5,
        "failures": 0,
        "cpu_us": 1e6 / requests_per_second,
        "kept_up": True,
    } | more


def runs(ours: list[float], theirs: list[float]) -> Runs:
    """A worker and a peer, by their requests/s in each round."""
    closed = {OURS: [result(rate, 1.0) for rate in ours], "mosec": [result(rate, 1.0) for rate in theirs]}
    alone = {OURS: [result(1.0, 1.0, failures=2) for _ in ours], "mosec": [result(1.0, 4.0) for _ in theirs]}
    opened = {
        OURS: [result(10.0, 3.0, kept_up=number > 0) for number in range(len(ours))],
        "mosec": [result(10.0, 1.0) for _ in theirs],
    }
    return Runs(closed, alone, dict.fromkeys(PARTS, opened))


def cells(table: Table) -> list[list[str]]:
    return [list(map(str, column.cells)) for column in table.columns]


def test_a_ratio_is_the_median_of_those_in_the_same_round_not_the_ratio_of_medians() -> None:
    told = runs(ours=[100.0, 10.0, 30.0], theirs=[50.0, 10.0, 60.0])  # 2, 1, 0.5; the medians are 30 and 50
    assert ratio(told.closed, "mosec", "requests_per_second") == "1.00 [0.50, 2.00]"


def test_the_tables_tell_medians_ratios_failures_and_rounds_that_a_server_did_not_keep_up() -> None:
    told = runs(ours=[200.0, 100.0, 300.0], theirs=[100.0, 100.0, 100.0])
    columns = cells(medians("small", told))
    assert columns[0] == [OURS, "mosec"]
    assert columns[1] == ["200", "100"]
    assert columns[2] == ["5000", "10000"]
    assert columns[-2:] == [["1", "0"], ["6", "0"]]
    compared = ratios("small", told, "mosec")
    assert [column.header for column in compared.columns] == [
        "requests/s",
        "CPU",
        "closed 1: p50",
        "30 %: p50",
        "30 %: p95",
        "80 %: p50",
        "80 %: p95",
    ]
    assert [cell[0].split()[0] for cell in cells(compared)] == ["2.00", "0.50", "0.25", "3.00", "3.00", "3.00", "3.00"]


def test_all_get_the_same_share_of_the_slower_of_worker_and_mosec_but_who_cannot_serve_that_his_own() -> None:
    assert rates_of({OURS: 1000.0, "mosec": 800.0, LITSERVE: 10.0}) == {
        part: {OURS: part * 800.0, "mosec": part * 800.0, LITSERVE: part * 10.0} for part in PARTS
    }


def test_the_cpu_of_a_server_is_that_of_all_its_processes() -> None:
    child = [sys.executable, "-c", "x = sum(range(3_000_000)); print(flush=True); input()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        own, of_child = cpu(os.getpid()), cpu(process.pid)
        assert of_child > 0
        assert cpu_of_tree(os.getpid()) >= own + of_child
        process.communicate(b"\n")
