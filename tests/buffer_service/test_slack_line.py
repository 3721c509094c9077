"""How a request with a slack stands at a queue: who is behind it, and what others leave it of the service."""

import pytest

from sluice.buffer_service.slack_line import LATELY, NOBODY, SlackLine


def test_behind_a_request_stand_those_whose_holds_begin_later_in_the_part_that_those_here_have():
    line = SlackLine(100)
    for came, slack in ((0.0, 1.0), (0.0, 9.0), (0.5, 9.0), (0.5, 2.0)):
        line.came(came, slack)
    assert [line.behind(0.6, slack, of=8) for slack in (0.1, 0.5, 1.0, 8.0, 9.0)] == [8, 6, 6, 4, 0]
    assert line.behind(2.0, 0.1, of=8) == 8  # of those who wait beyond their slack none is among the eight
    assert SlackLine(100).behind(0.0, 1.0, of=8) == 0


def test_whose_hold_began_before_that_of_one_who_was_answered_waits_no_more():
    line = SlackLine(100)
    for came in (0.0, 0.1, 0.2):
        line.came(came, 5.0)
    line.answered(0.3, 0.0, 5.1)
    assert (line.behind(0.3, 1.0, of=6), line.behind(0.3, 4.85, of=6)) == (6, 6)
    line.answered(0.3, 0.2, 0.0)
    assert len(line._begins) == 1


def answered(line, *slacks, took=0.1):
    for slack in slacks:
        line.answered(took, 0.0, slack)


def test_of_the_service_is_left_what_those_with_less_slack_did_not_take_lately():
    line = SlackLine(100)
    assert line.part(5.0) == 1.0
    answered(line, 0.0, 0.0, -0.1, 1.0, 5.0, 5.0, 5.0, 5.0)
    assert (line.part(0.5), line.part(1.0), line.part(5.0)) == (5 / 8, 5 / 8, 4 / 8)
    answered(line, *[0.0] * LATELY)
    assert line.part(5.0) == NOBODY
    answered(line, 9.0)
    assert line.part(9.0) == pytest.approx(1 / LATELY)


def test_who_is_answered_beyond_his_slack_had_nothing_that_was_left_to_those_like_him():
    line = SlackLine(100)
    answered(line, 5.0, 5.0, took=5.0)
    answered(line, 5.0, 5.0, took=5.1)
    assert line.part(5.0) == 1 / 2


def test_no_more_are_kept_than_may_wait_and_none_whose_hold_has_begun():
    line = SlackLine(3)
    for i in range(10):
        line.came(0.0, 1.0 + i)
    assert len(line._begins) == 3
    line.came(20.0, 1.0)
    assert line._begins == [21.0]
