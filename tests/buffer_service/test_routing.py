"""Requests are dealt to routes by their shares, exactly and without chance."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.buffer_service.routing import Router

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


@given(shares, st.data(), st.integers(0, 20))
def test_after_a_change_of_shares_nobody_is_further_off_than_by_what_was_owed_before(before, data, n):
    after = {name: data.draw(st.floats(0.01, 1)) for name in before}
    router, counts = Router(before), Counter()
    deal(router, n)
    router.follow(after)
    for m in range(1, 50):
        counts[router.next()] += 1
        assert all(abs(counts[name] - m * share / sum(after.values())) < 2 for name, share in after.items())


def test_a_small_share_is_not_forgotten_however_often_shares_change():
    router, counts = Router({"a": 0.9, "b": 0.1}), Counter()
    for i in range(500):
        router.follow({"a": 0.9, "b": 0.1} if i % 2 else {"a": 0.88, "b": 0.12})
        counts.update(deal(router, 4))
    assert abs(counts["b"] - 2000 * 0.11) <= 2


def test_other_routes_count_from_when_they_were_given():
    router = Router({"a": 0.75, "b": 0.25})
    deal(router, 3)
    router.follow({"a": 0.75, "c": 0.25})
    assert deal(router, 8) == deal(Router({"a": 0.75, "c": 0.25}), 8)


def test_the_same_shares_again_do_not_begin_the_deal_anew():
    router = Router({"a": 0.75, "b": 0.25})
    first = deal(router, 2)
    router.follow({"a": 0.75, "b": 0.25})
    assert first + deal(router, 6) == deal(Router({"a": 0.75, "b": 0.25}), 8)


@pytest.mark.parametrize("total", [1 - 1e-6, 1 + 1e-6])
def test_shares_that_sum_to_almost_one_do_not_drift(total):
    router = Router({"a": 0.3 * total, "b": 0.7 * total})
    assert Counter(deal(router, 1000)) == {"a": 300, "b": 700}


def test_what_a_route_does_not_take_is_dealt_to_the_others_by_their_shares():
    away = {"b"}
    router = Router({"a": 0.3, "b": 0.6, "c": 0.1}, lambda name: name not in away)
    assert Counter(deal(router, 400)) == {"a": 300, "c": 100}
    away.clear()
    assert Counter(deal(router, 100)) == {"a": 30, "b": 60, "c": 10}


def test_where_no_route_takes_anything_the_shares_are_as_ever():
    assert Counter(deal(Router({"a": 0.75, "b": 0.25}, lambda name: False), 40)) == {"a": 30, "b": 10}
