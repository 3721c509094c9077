"""A table in words says what the rule does with it."""

import pytest
from hypothesis import given

from sluice.batching import policy as constructors
from sluice.batching.policy import INF, Policy
from sluice.buffer_service.page.table_words import Span, sentences, spans
from tests.batching.strategies import any_tables

SERVICE_TIMES = [0.05, 0.06, 0.07]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (constructors.no_batching(), ["Every request leaves at once, alone."]),
        (
            constructors.size_or_timeout(8, 0.05),
            ["A batch of 8 at most leaves as soon as 8 wait, or its oldest request has waited for 50 ms."],
        ),
        (
            constructors.greedy(8),
            ["All that wait leave at once while a server is free, 8 at most.", "At most 1 batch is at work at a time."],
        ),
        (
            constructors.control_limit(3, 8, 2),
            ["A batch of 8 at most leaves while a server is free as soon as 3 wait.", "At most 2 batches are at work at a time."],
        ),
        (
            constructors.deadline(0.2, SERVICE_TIMES, None),
            [
                "A batch of 3 at most leaves as soon as 3 wait, or its oldest request has waited for 130 ms to 140 ms, "
                "by how many there are."
            ],
        ),
        (
            Policy([INF, INF, 1.5, 1.5], [0, 0, 2, 2]),
            ["A batch of 2 at most leaves as soon as its oldest request has waited for 1.5 s, or for ever, by how many there are."],
        ),
        (
            Policy([INF, 0.0, 1.5], [0, 1, 2]),
            ["A batch of 2 at most leaves, after a wait that goes up and down with how many there are."],
        ),
        (
            Policy([INF, 0.0], [0, 1], drop_after=0.25),
            ["Every request leaves at once, alone.", "Who has waited for 250 ms is given up."],
        ),
        (
            constructors.smdp([0, 1, 1, 2], columns=2),
            [
                "How many leave, and when, hangs on how many wait in a hurry and how many are patient; "
                "2 at most while a server is free.",
                "At most 1 batch is at work at a time.",
            ],
        ),
    ],
)
def test_a_table_is_said_in_a_sentence_or_two(policy, said):
    assert sentences(policy) == said


def test_rows_that_say_the_same_are_told_together():
    assert spans(constructors.size_or_timeout(8, 0.05)) == [Span("1 to 7", 0.05, "all"), Span("8 or more", 0.0, "8")]
    assert spans(constructors.greedy(8)) == [Span("1 or more", 0.0, "all, 8 at most")]
    assert spans(constructors.smdp([0, 0, 2, 2, 4])) == [
        Span("1", None, ""),
        Span("2", 0.0, "2"),
        Span("3", 0.0, "2"),
        Span("4 or more", 0.0, "4"),
    ]


@given(any_tables)
def test_the_spans_of_any_table_say_what_its_rows_do(policy):
    assert all(isinstance(sentence, str) and sentence.endswith(".") for sentence in sentences(policy))
    if policy.columns > 1:
        return
    rows = {}
    for waiting, hold, leave in spans(policy):
        first, *rest = (int(word) for word in waiting.split() if word.isdigit())
        last = rest[0] if rest else len(policy.hold) - 1 if waiting.endswith("more") else first
        for q in range(first, last + 1):
            rows[q] = INF if hold is None else hold, 0 if not leave else q if leave.startswith("all") else int(leave)
    assert rows == {
        q: (hold, 0 if hold == INF else take) for q, (hold, take) in enumerate(zip(policy.hold, policy.take, strict=True)) if q
    }
