"""The pieces that pages are made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from studies.claims import Claim, claimed
from studies.markdown import WIDTH, bullets, page_of, paragraph, table

WORDS = st.lists(st.text("abcdefghij", min_size=1, max_size=12), min_size=1, max_size=80)


@given(WORDS)
def test_a_paragraph_keeps_its_words_in_lines_that_could_not_hold_one_more(words: list[str]) -> None:
    lines = paragraph("\n   ".join(words)).split("\n")
    assert " ".join(lines).split() == words
    assert all(len(line) <= WIDTH for line in lines)
    following = [line.split()[0] for line in lines[1:]]
    assert all(len(line) + 1 + len(word) > WIDTH for line, word in zip(lines, following, strict=False))


def test_a_link_is_never_broken() -> None:
    link = f"[{'a-' * 60}](../{'b-' * 60})"
    assert link in paragraph(f"See {link} for more.")


@given(WORDS)
def test_a_list_has_a_dash_before_each_of_its_texts_alone(words: list[str]) -> None:
    lines = bullets(" ".join(words), "another").split("\n")
    assert lines[0].startswith("- ") and lines[-1] == "- another"
    assert all(line.startswith("  ") for line in lines[1:-1])


def test_a_page_fills_paragraphs_and_leaves_the_rest_as_it_is() -> None:
    parts = ["# Head", "", "\n    some\n    words\n", "| a |\n|---|\n| 1 |", "- one\n- two", "![what](figures/one.svg)"]
    assert page_of(parts) == "# Head\n\nsome words\n\n| a |\n|---|\n| 1 |\n\n- one\n- two\n\n![what](figures/one.svg)\n"


def test_the_two_ways_of_writing_a_table() -> None:
    assert table(["", "b"], [["1", ""]]) == "| | b |\n|---|---|\n| 1 |  |"
    assert table(["", "b"], [["1", ""]], spaced=True) == "|  | b |\n| --- | --- |\n| 1 |  |"


def test_a_claim_is_found_not_found_or_found_in_part() -> None:
    claims = [Claim("a", True, "1"), Claim("b", False, "2"), Claim("c", None, "3")]
    assert [claim.found for claim in claims] == ["yes", "**no**", "in part"]
    lines = claimed(claims, "they say").splitlines()
    assert lines[0] == "| they say | here | figures |"
    assert lines[2:] == ["| a | yes | 1 |", "| b | **no** | 2 |", "| c | in part | 3 |"]
