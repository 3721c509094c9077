"""Who follows the plan in force of a model, by what processes told of themselves."""

from __future__ import annotations

from sluice.buffer_service.followers import MOST_NAMED, MOST_REASONS, Astray, Followers, followers
from sluice.buffer_service.presence import Heard, OtherPlan, Presence

PUT_AT = 1_700_000_000.0
SEEN = "1700000000000-0"


def heard(process: str, plans: str = "redis:", read: str = SEEN, left_out: int = 0, **others: OtherPlan) -> Heard:
    return Heard(process, 0.0, Presence(host="h", release="1", plans=plans, read=read, others=others, left_out=left_out))


def test_a_process_that_names_no_other_plan_follows_what_it_has_seen() -> None:
    assert followers("m", "d", PUT_AT, [heard("a"), heard("b", n=OtherPlan("x"))]) == Followers("d", 2, 2, 0, 0, [])


def test_a_process_that_has_not_seen_the_plan_followed_what_was_before_or_nothing_is_known_of_it() -> None:
    read = "1699999999999-0"
    late, later = heard("a", read=read), heard("b", read=read, m=OtherPlan("c", "b", "b was wrong"))
    assert followers("m", "d", PUT_AT, [late, heard("c", read=""), later]) == Followers("d", 3, 0, 2, 1, [])


def test_of_models_that_a_process_does_not_name_nothing_is_known() -> None:
    assert followers("m", "d", PUT_AT, [heard("c", left_out=1)]) == Followers("d", 1, 0, 0, 1, [])
    named = heard("c", left_out=1, m=OtherPlan("c", "d", "wrong"))
    assert followers("m", "d", PUT_AT, [named]).astray == [Astray("c", "h", "c", "wrong")]


def test_a_process_that_refuses_a_plan_which_is_not_in_force_follows_the_one_that_is() -> None:
    assert followers("m", "d", PUT_AT, [heard("a", read="", m=OtherPlan("d", "e", "wrong"))]).follow == 1


def test_why_a_process_does_not_follow_is_its_refusal_of_this_very_plan_or_its_source() -> None:
    told = [
        heard("a", m=OtherPlan("c", "d", "wrong")),
        heard("b", m=OtherPlan("c", "earlier", "wrong")),
        heard("c", "file:plans", m=OtherPlan("c")),
        heard("d", "file:plans", m=OtherPlan("c", "x", "wrong")),
    ]
    assert [each.reason for each in followers("m", "d", PUT_AT, told).astray] == [
        *("wrong", "", "its plans come from file:plans", "its plans come from file:plans, where it refuses one: wrong")
    ]


def test_it_is_said_in_words_and_those_that_do_the_same_together() -> None:
    gone = [Astray(f"p{i}", "h", "c", "wrong") for i in range(3)]
    elsewhere = Astray("q", "h", "", "its plans come from file:plans")
    for told, words in (
        (Followers("d", 0, 0, 0, 0, []), "no buffer tells of itself"),
        (Followers("d", 1, 1, 0, 0, []), "1 buffer follows"),
        (Followers("d", 3, 3, 0, 0, []), "3 buffers follow"),
        (
            Followers("d", 1, 0, 1, 0, []),
            "0 of 1 buffers follow; 1 followed what was in force before, and has not told of this one",
        ),
        (
            Followers("d", 3, 1, 2, 0, []),
            "1 of 3 buffers follows; 2 followed what was in force before, and have not told of this one",
        ),
        (Followers("d", 2, 1, 0, 0, gone[:1]), "1 of 2 buffers follows; p0 on h follows plan c: wrong"),
        (Followers("d", 2, 1, 0, 0, [Astray("p", "h", "c", "")]), "1 of 2 buffers follows; p on h follows plan c"),
        (
            Followers("d", 7, 2, 0, 1, [*gone, elsewhere]),
            "2 of 7 buffers follow; p0 on h and 2 more follow plan c: wrong; "
            "q on h does not serve it: its plans come from file:plans; of 1 it is not known",
        ),
    ):
        assert told.words() == words


def test_what_is_told_of_many_that_do_not_follow_is_bounded_and_what_is_left_out_counted() -> None:
    many = Followers("d", 100, 0, 0, 0, [Astray(f"p{i}", "h", f"plan {i}", "") for i in range(100)])
    assert many.words().endswith(f"; p3 on h follows plan plan 3; {100 - MOST_REASONS} more do not")
    document = many.document()
    assert (len(document["astray"]), document["astray_left_out"]) == (MOST_NAMED, 100 - MOST_NAMED)
