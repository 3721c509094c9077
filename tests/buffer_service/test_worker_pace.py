"""How slow a worker is beside the others, and that others are asked before him; times are numbers."""

from __future__ import annotations

import random

import pytest

from sluice.buffer_service.invokers.worker_health import End, Health, Workers
from sluice.buffer_service.invokers.worker_pace import ALIKE, FEWEST, PASSED_OVER, Paces

ABCD = ("a", "b", "c", "d")


def seconds(size: int, rng: random.Random, spread: float = 0.1) -> float:
    return (0.002 + 0.001 * size) * rng.lognormvariate(0.0, spread)


def learned(times: dict[str, float], batches: int = 400, seed: int = 1, spread: float = 0.1) -> Paces:
    """Each worker takes so many times as long, in turn, whatever the size of the batch."""
    rng, paces = random.Random(seed), Paces(tuple(times))
    for i in range(batches):
        worker, size = list(times)[i % len(times)], rng.choice((1, 3, 8, 32))
        paces.took(worker, size, times[worker] * seconds(size, rng, spread))
    return paces


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_are_equal_are_taken_as_equal(seed: int) -> None:
    paces = learned(dict.fromkeys(ABCD, 1.0), 2000, seed)
    assert paces.unlike == {} and paces.one_as_another
    assert all(paces.pace(worker) == 1.0 for worker in ABCD)


@pytest.mark.parametrize("times", [2.0, 3.0, 10.0])
def test_one_that_is_slow_is_found_with_how_slow(times: float) -> None:
    paces = learned({"a": 1.0, "b": times, "c": 1.0, "d": 1.0})
    assert set(paces.unlike) == {"b"} and paces.pace("b") == pytest.approx(times, rel=0.15)


def test_of_two_the_slow_one_is_slow_and_the_quick_one_is_not_unlike() -> None:
    assert set(learned({"a": 3.0, "b": 1.0}).unlike) == {"a"}


def test_large_batches_and_a_time_in_which_all_are_slow_say_nothing() -> None:
    rng, paces = random.Random(2), Paces(ABCD)
    for i in range(2000):
        worker = ABCD[i % 4]
        size = 32 if worker == "a" and i % 8 else rng.choice((1, 32))
        paces.took(worker, size, (4.0 if 600 <= i < 1200 else 1.0) * seconds(size, rng))
        assert paces.unlike == {}


def test_one_batch_that_takes_a_hundred_times_as_long_is_forgiven() -> None:
    paces = learned(dict.fromkeys(ABCD, 1.0))
    assert paces.took("b", 8, 1.0) == []
    assert paces.unlike == {}


def test_who_turns_slow_is_told_once() -> None:
    rng, paces = random.Random(3), learned(dict.fromkeys(ABCD, 1.0))
    told = [slow for i in range(400) for slow in paces.took(ABCD[i % 4], 8, (3.0 if i % 4 == 2 else 1.0) * seconds(8, rng))]
    assert told == ["c"]


def test_of_whom_little_is_known_is_asked_first_and_then_the_earliest_named() -> None:
    workers, paces, asked = Workers(), Paces(ABCD), []
    for i in range(6 * FEWEST):
        asked.append(workers.choose(float(i), ABCD, paces=paces))
        workers.ended(float(i), asked[-1], End.PASSED)
        paces.took(asked[-1], 1, 0.01)
    assert {worker: asked.count(worker) for worker in "bcd"} == dict.fromkeys("bcd", FEWEST)
    assert set(asked[-FEWEST:]) == {"a"}


def test_the_slow_one_is_asked_where_the_others_are_busy_and_before_one_that_fails() -> None:
    paces = learned({"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0})
    workers = Workers()
    assert [workers.choose(0.0, ABCD, paces=paces) for _ in range(5)] == ["b", "c", "d", "a", "b"]
    for worker in "abcdb":
        workers.ended(0.0, worker, End.PASSED)
    for worker in "bcd":
        workers.choose(0.0, [worker])
        workers.ended(0.0, worker, End.GONE)
    assert workers.choose(0.0, ABCD, paces=paces) == "a"


def one_at_a_time(workers: Workers, paces: Paces, times: dict[str, float], batches: int) -> list[str]:
    """A batch whenever the last has ended; who was asked."""
    rng, now, asked = random.Random(4), 0.0, []
    for _ in range(batches):
        worker = workers.choose(now, ABCD, paces=paces)
        asked.append(worker)
        took = times[worker] * seconds(8, rng)
        now += took
        workers.ended(now, worker, End.PASSED)
        paces.took(worker, 8, took)
    return asked


def test_one_that_turns_slow_is_left_though_the_others_were_not_asked_for_long() -> None:
    workers, paces = Workers(), Paces(ABCD)
    one_at_a_time(workers, paces, dict.fromkeys(ABCD, 1.0), 500)
    asked = one_at_a_time(workers, paces, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0}, 3 * PASSED_OVER)
    assert asked.count("a") < 20 and asked[-PASSED_OVER // 2 :].count("a") <= 1


def test_who_is_slow_is_tried_seldom_and_is_as_the_others_again_when_he_is_quick() -> None:
    workers, paces = Workers(), learned({"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0})
    asked = one_at_a_time(workers, paces, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0}, 10 * PASSED_OVER)
    assert 8 <= asked.count("a") <= 10
    one_at_a_time(workers, paces, dict.fromkeys(ABCD, 1.0), 40 * PASSED_OVER)
    assert paces.pace("a") < ALIKE


def test_the_health_of_a_slow_worker_says_so() -> None:
    paces = learned({"a": 3.0, "b": 1.0, "c": 1.0})
    assert Workers().health(0.0, "b", paces) == Health()
    assert Workers().health(0.0, "a", paces) == Health(pace=paces.pace("a"))
