"""Whether a function is asked, fact by fact."""

from __future__ import annotations

import pytest

from sluice.buffer_service.circuit import FIRST_OPEN, LONGEST_OPEN, RESERVE, STRIKES, UNAVAILABLE_LIMIT, Circuit
from sluice.buffer_service.suspects import MOST_SUSPECTS, SUSPECTED_FOR, Suspects
from sluice.lambda_fn.contract import Item


def item(body: bytes) -> Item:
    return Item("0123456789abcdef", "application/json", body)


def opened(max_batch_size: int = 1) -> Circuit:
    """A circuit that opened at time 0."""
    circuit = Circuit(max_batch_size)
    for _ in range(UNAVAILABLE_LIMIT):
        circuit.failed(0.0, unavailable=True)
    assert circuit.openings == 1
    return circuit


@pytest.mark.parametrize(("max_batch_size", "halvings"), [(1, 0), (2, 1), (5, 3), (32, 5), (33, 6)])
def test_it_opens_after_more_failures_in_a_row_than_finding_one_item_takes(max_batch_size, halvings):
    circuit = Circuit(max_batch_size)
    for _ in range(halvings + STRIKES - 1):
        circuit.failed(0.0, unavailable=False)
    assert circuit.refuses(0.0) is None
    circuit.failed(0.0, unavailable=False)
    assert circuit.refuses(0.25) == FIRST_OPEN - 0.25


def test_an_answer_in_between_keeps_it_closed():
    circuit = Circuit(1)
    for _ in range(100):
        for _ in range(STRIKES - 1):
            circuit.failed(0.0, unavailable=True)
        circuit.passed(1)
    assert circuit.openings == 0


def test_one_trial_at_a_time_and_each_that_fails_opens_it_for_twice_as_long():
    circuit, now = opened(), 0.0
    for i in range(8):
        span = min(LONGEST_OPEN, FIRST_OPEN * 2**i)
        assert circuit.refuses(now + 0.99 * span) == pytest.approx(0.01 * span)
        now += span
        assert circuit.open and circuit.refuses(now) is None
        circuit.try_one()
        assert circuit.refuses(now) is not None
        circuit.failed(now, unavailable=False, trial=True)
    circuit.passed(1)
    assert circuit.refuses(now) is None and not circuit.open


def test_a_trial_that_says_nothing_is_followed_by_another():
    circuit = opened()
    circuit.try_one()
    circuit.undecided()
    assert circuit.refuses(FIRST_OPEN) is None


def test_a_late_failure_does_not_keep_it_open_and_a_late_answer_closes_it():
    circuit = opened()
    circuit.failed(0.9, unavailable=True)
    assert circuit.refuses(FIRST_OPEN) is None and circuit.openings == 1
    circuit.passed(1)
    circuit.failed(1.0, unavailable=True, trial=True)  # a trial that an answer has overtaken
    assert circuit.refuses(1.0) is None


def test_asking_again_is_paid_for_by_answers_beyond_a_reserve():
    circuit = Circuit(8)
    for _ in range(RESERVE):
        assert circuit.may_ask_again()
        circuit.ask_again()
    assert not circuit.may_ask_again()
    circuit.passed(3)
    for _ in range(3):
        circuit.ask_again()
    assert not circuit.may_ask_again()
    circuit.passed(1000)
    for _ in range(RESERVE):
        circuit.ask_again()
    assert not circuit.may_ask_again()


def test_a_payload_is_suspected_for_a_while_or_until_it_is_answered_and_the_oldest_of_many_is_forgotten():
    suspects = Suspects()
    assert not suspects
    suspects.note(0.0, item(b"1"))
    assert suspects and suspects.has(0.9 * SUSPECTED_FOR, item(b"1")) and not suspects.has(0.0, item(b"2"))
    assert not suspects.has(SUSPECTED_FOR, item(b"1"))
    suspects.forget(item(b"1"))
    assert not suspects
    for i in range(MOST_SUSPECTS + 1):
        suspects.note(0.0, item(b"%d" % i))
    assert not suspects.has(0.0, item(b"0")) and suspects.has(0.0, item(b"1"))
