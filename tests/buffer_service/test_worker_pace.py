"""How slow a worker is beside the others, and that others are asked before him; times are numbers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from sluice.buffer_service.invokers.worker_health import EJECT_AFTER, End, Health, Workers
from sluice.buffer_service.invokers.worker_pace import FEWEST, PASSED_OVER, QUICK, ROUNDS_LATER, TOLD_AGAIN, Paces

ABCD = ("a", "b", "c", "d")
ALL_ALIKE = dict.fromkeys(ABCD, 1.0)
A_IS_SLOW = {**ALL_ALIKE, "a": 3.0}


class Line:
    """Workers and what is known of them, with so many batches at work at once."""

    def __init__(self, names: Sequence[str] = ABCD, at_once: int = 1, spread: float = 0.1, seed: int = 1) -> None:
        self.names, self.workers, self.paces = names, Workers(), Paces(names)
        self.rng, self.spread, self.at_once = random.Random(seed), spread, at_once
        self.told: list[str] = []
        self.under_way: list[tuple[float, str, int, float, bool]] = []
        self.now = 0.0

    def serve(self, times: dict[str, float], batches: int, size: Callable[[random.Random], int] = lambda rng: 8) -> list[str]:
        """Each worker takes so many times as long as is usual; who was asked."""
        asked = []
        for _ in range(batches):
            if len(self.under_way) == self.at_once:
                self.end(min(self.under_way))
            worker, n = self.workers.choose(self.now, self.names, paces=self.paces), size(self.rng)
            took = times[worker] * (0.002 + 0.001 * n) * self.rng.lognormvariate(0.0, self.spread)
            self.under_way.append((self.now + took, worker, n, took, self.workers.is_alone(worker)))
            asked.append(worker)
        return asked

    def end(self, batch: tuple[float, str, int, float, bool]) -> None:
        self.under_way.remove(batch)
        self.now, worker, n, took, alone = batch
        self.workers.ended(self.now, worker, End.PASSED)
        if alone:
            self.told += self.paces.took(worker, n, took)


def any_size(rng: random.Random) -> int:
    return rng.randrange(1, 33)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.proof)], ids=["", "more"])
@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_workers_that_are_equal_are_asked_in_turn_and_taken_as_equal(spread: float, at_once: int, seeds: range) -> None:
    for seed in seeds:
        line = Line(at_once=at_once, spread=spread, seed=seed)
        asked = Counter(line.serve(ALL_ALIKE, 4000, any_size))
        assert line.told == [] and line.paces.slow == {} and min(asked.values()) > 900


@pytest.mark.parametrize("times", [2.0, 3.0, 10.0])
@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.proof), 3])
def test_one_that_is_slow_is_found_and_left_to_those_who_try_him(times: float, at_once: int) -> None:
    line = Line(at_once=at_once)
    first = line.serve({**ALL_ALIKE, "b": times}, 1000, any_size)
    then = line.serve({**ALL_ALIKE, "b": times}, 20 * PASSED_OVER, any_size)
    assert line.told == ["b"] and set(line.paces.slow) == {"b"} and line.paces.pace("b") > 1.5
    assert first.count("b") < 60 and 10 <= then.count("b") <= 21
    line.serve({**ALL_ALIKE, "b": times}, 100 * PASSED_OVER, any_size)
    assert line.paces.pace("b") == pytest.approx(times, rel=0.3)


@pytest.mark.parametrize("times", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("size", [lambda rng: 8, any_size])
def test_a_time_in_which_all_are_slower_says_nothing_of_one(times: float, size: Callable[[random.Random], int]) -> None:
    line = Line()
    line.serve(ALL_ALIKE, 500, size)
    line.serve(dict.fromkeys(ABCD, times), 1000, size)
    line.serve(ALL_ALIKE, 1000, size)
    assert line.told == []


def test_one_that_turns_slow_after_all_became_quicker_is_found() -> None:
    line = Line()
    line.serve(ALL_ALIKE, 500)
    line.serve(dict.fromkeys(ABCD, 0.25), 500)
    line.serve({**dict.fromkeys(ABCD, 0.25), "a": 0.75}, 500)
    assert line.told == ["a"]


def test_large_batches_do_not_make_slow_who_has_them() -> None:
    rng, paces = random.Random(2), Paces(ABCD)
    for i in range(4000):
        worker = ABCD[i % 4]
        size = rng.randrange(*((24, 32) if worker == "d" else (16, 27)))
        paces.took(worker, size, (0.002 + 0.001 * size) * rng.lognormvariate(0.0, 0.1))
        assert paces.slow == {}


def test_one_batch_that_takes_a_hundred_times_as_long_is_forgiven_and_the_first_of_all_does_not_hide_who_is_slow() -> None:
    line = Line()
    line.serve({**ALL_ALIKE, "a": 100.0}, 1)
    line.serve(A_IS_SLOW, 400)
    assert line.told == ["a"]
    assert line.paces.took("b", 8, 1.0) == [] and set(line.paces.slow) == {"a"}


def test_of_two_nobody_can_tell_which_is_not_as_he_should_be_and_nobody_is_preferred_for_being_quick() -> None:
    two = Line(("a", "b"))
    asked = two.serve({"a": 1.0, "b": 0.01}, 400)
    assert two.paces.slow == {} and asked.count("a") == asked.count("b")
    three = Line(("a", "b", "c"))
    assert max(Counter(three.serve({"a": 1.0, "b": 1.0, "c": 0.01}, 900)).values()) <= 301


def test_a_slow_one_is_asked_where_the_others_are_busy_and_before_one_that_fails() -> None:
    line = Line()
    line.serve(A_IS_SLOW, 400)
    line.end(*line.under_way)
    asked = [line.workers.choose(line.now, ABCD, paces=line.paces) for _ in range(5)]
    assert set(asked[:3]) == {"b", "c", "d"} and asked[3] == "a"
    for worker in asked:
        line.workers.ended(line.now, worker, End.FAILED if worker != "a" else End.PASSED)
    assert line.workers.choose(line.now, ABCD, paces=line.paces) == "a"


@pytest.mark.parametrize("failures", [0, 1, EJECT_AFTER - 1])
def test_who_is_slow_is_as_the_others_again_when_he_is_quick(failures: int) -> None:
    line = Line()
    line.serve(A_IS_SLOW, 400)
    for _ in range(failures):
        line.workers.choose(line.now, ["a"])
        line.workers.ended(line.now, "a", End.FAILED)
    line.serve(ALL_ALIKE, 60 * PASSED_OVER)
    assert line.paces.pace("a") < QUICK
    assert line.serve(ALL_ALIKE, 400).count("a") == 100


def test_who_refuses_has_his_next_turn_some_rounds_later() -> None:
    workers, paces, asked = Workers(), Paces(ABCD), []
    for i in range(1000):
        asked.append(workers.choose(float(i), ABCD, paces=paces))
        workers.ended(float(i), asked[-1], End.OPEN if asked[-1] == "d" else End.PASSED)
        if asked[-1] == "d":
            paces.refused("d")
    assert 1000 / (4 * ROUNDS_LATER + 4) - 1 <= asked.count("d") <= 1000 / (4 * ROUNDS_LATER) + 1


def test_who_turns_slow_again_and_again_is_told_seldom() -> None:
    line = Line()
    for _ in range(10):
        line.serve(A_IS_SLOW, 400)
        line.serve(ALL_ALIKE, 30 * PASSED_OVER)
    assert 1 <= len(line.told) <= 1 + 10 * (400 + 30 * PASSED_OVER) // TOLD_AGAIN


def test_nothing_is_said_before_enough_was_seen_of_each() -> None:
    line = Line()
    line.serve(A_IS_SLOW, 4 * FEWEST)
    assert line.paces.slow == {}


def test_the_health_of_a_slow_worker_says_so() -> None:
    line = Line()
    line.serve(A_IS_SLOW, 400)
    line.end(*line.under_way)
    assert line.workers.health(line.now, "b", line.paces) == Health()
    assert line.workers.health(line.now, "a", line.paces) == Health(pace=line.paces.pace("a"))
