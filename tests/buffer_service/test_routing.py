"""Requests are dealt to routes by their shares, exactly and without chance."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer_service.routing import Router

shares = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12).map(lambda weights: {str(i): w for i, w in enumerate(weights)})


def deal(router, n):
    return [router.next() for _ in range(n)]


@given(shares)
def test_no_route_ever_has_a_whole_request_more_or_less_than_its_share(shares):
    router, total, counts = Router(shares), sum(shares.values()), Counter()
    for n in range(1, 300):
        counts[router.next()] += 1
        assert all(abs(counts[name] - n * share / total) < 1 for name, share in shares.items())


def test_one_of_four_stands_among_the_three_others():
    assert deal(Router({"a": 0.75, "b": 0.25}), 8) == ["a", "a", "b", "a", "a", "a", "b", "a"]


def test_equal_shares_take_turns_in_the_order_of_the_plan():
    assert deal(Router(dict.fromkeys("abc", 1 / 3)), 6) == list("abcabc")


@given(shares)
def test_two_routers_of_the_same_shares_deal_alike(shares):
    assert deal(Router(shares), 50) == deal(Router(shares), 50)


@given(shares, shares, st.integers(0, 20))
def test_other_shares_count_from_when_they_were_given(before, after, n):
    router, counts = Router(before), Counter()
    deal(router, n)
    router.follow(after)
    if before == after:
        return
    for m in range(1, 50):
        counts[router.next()] += 1
        assert all(abs(counts[name] - m * share / sum(after.values())) < 1 for name, share in after.items())


def test_the_same_shares_again_do_not_begin_the_deal_anew():
    router = Router({"a": 0.75, "b": 0.25})
    first = deal(router, 2)
    router.follow({"a": 0.75, "b": 0.25})
    assert first + deal(router, 6) == deal(Router({"a": 0.75, "b": 0.25}), 8)


@pytest.mark.parametrize("total", [1 - 1e-6, 1 + 1e-6])
def test_shares_that_sum_to_almost_one_do_not_drift(total):
    router = Router({"a": 0.3 * total, "b": 0.7 * total})
    assert Counter(deal(router, 1000)) == {"a": 300, "b": 700}
