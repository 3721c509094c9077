import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.routing import Router
from sluice.optimizer.simulation.routing import NOWHERE, route

NEVER = np.empty(0)


def received(queue, n_queues):
    """Requests that each queue has received after every request, (n_requests, n_queues)."""
    return np.cumsum(queue[:, None] == np.arange(n_queues), axis=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40).filter(lambda shares: sum(shares) > 0.01))
def test_after_every_request_each_queue_has_its_share_within_less_than_one(shares):
    share = np.array(shares) / sum(shares)
    n = 1000
    counts = received(route(np.arange(float(n)), NEVER, shares), len(shares))
    assert np.abs(counts - np.arange(1, n + 1)[:, None] * share).max() < 1


def test_a_queue_without_a_share_gets_nothing():
    assert (route(np.arange(50.0), NEVER, [0.0, 1.0, 0.0]) == 1).all()


def test_equal_shares_take_turns():
    queue = route(np.arange(30.0), NEVER, [1.0, 1.0, 1.0]).reshape(10, 3)
    assert (np.sort(queue, axis=1) == [0, 1, 2]).all()


def test_where_no_queue_has_a_share_requests_go_nowhere():
    queue = route(np.arange(30.0), np.array([10.0, 20.0]), [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    assert (queue[10:20] == NOWHERE).all()
    assert (queue[:10] != NOWHERE).all() and (queue[20:] == 1).all()


def test_new_shares_hold_from_the_very_moment_of_the_change():
    queue = route(np.array([1.0, 2.0, 3.0]), np.array([2.0]), [[1.0, 0.0], [0.0, 1.0]])
    assert queue.tolist() == [0, 1, 1]


def test_random_routing_follows_the_shares_within_chance():
    n, share = 40_000, np.array([0.5, 0.3, 0.2, 0.0])
    queue = route(np.arange(float(n)), NEVER, 10 * share, np.random.default_rng(3))
    deviation = np.bincount(queue, minlength=4) - n * share
    assert (np.abs(deviation) <= 4 * np.sqrt(n * share * (1 - share))).all()


def test_random_routing_goes_nowhere_as_well():
    queue = route(np.arange(4.0), np.array([2.0]), [[0.0, 0.0], [0.0, 1.0]], np.random.default_rng(0))
    assert queue.tolist() == [NOWHERE, NOWHERE, 1, 1]


def test_a_negative_share_is_refused_by_its_place():
    with pytest.raises(InvalidInput, match=r"shares\[1, 0\]: -0.5 is not allowed; allowed: a finite number >= 0"):
        route(np.arange(3.0), np.array([1.0]), [[1.0, 1.0], [-0.5, 1.0]])


def test_shares_need_a_row_for_every_change_and_one_before():
    with pytest.raises(InvalidInput, match="2 rows: before the changes and after each"):
        route(np.arange(3.0), np.array([1.0]), [1.0, 1.0])


def test_changes_must_ascend():
    with pytest.raises(InvalidInput, match="change_times: '2 times' is not allowed; allowed: ascending"):
        route(np.arange(3.0), np.array([2.0, 1.0]), [[1.0]] * 3)


def test_the_simulator_deals_as_the_buffer_does() -> None:
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(5), 4)
    shares[2, 1] = 0.0  # another route is gone, and comes back: counting starts anew
    router, dealt = Router({"0": 1.0}), []
    for row in shares:
        router.follow({str(i): share for i, share in enumerate(row) if share > 0})
        dealt += [int(router.next()) for _ in range(250)]
    assert route(np.arange(1000.0), np.array([250.0, 500.0, 750.0]), shares).tolist() == dealt
