import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching import Policy, decide
from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput

INF = math.inf


@pytest.mark.parametrize(
    ("policy", "hold", "take", "servers"),
    [
        (policies.no_batching(), (INF, 0), (0, 1), None),
        (policies.size_or_timeout(3, 0.5), (INF, 0.5, 0.5, 0), (0, 1, 2, 3), None),
        (policies.greedy(3), (INF, 0, 0, 0), (0, 1, 2, 3), 1),
        (policies.static(3), (INF, INF, INF, 0), (0, 0, 0, 3), 1),
        (policies.control_limit(2, 4), (INF, INF, 0, 0, 0), (0, 0, 2, 3, 4), 1),
        (policies.control_limit(4, 2), (INF, INF, INF, INF, 0), (0, 0, 0, 0, 2), 1),
        (policies.smdp([0, 0, 2, 3, 3]), (INF, INF, 0, 0, 0), (0, 0, 2, 3, 3), 1),
        (policies.deadline(1.0, [0.2, 0.3, 1.1]), (INF, 0.7, 0.0, 0), (0, 1, 2, 3), 1),
        (policies.aimd(2), (INF, 0, 0), (0, 1, 2), 1),
        (policies.early_drop(1.0, [0.3, 0.4, 0.6]), (INF, 0, 0), (0, 1, 2), 1),
    ],
    ids=lambda value: value.kind if isinstance(value, Policy) else "",
)
def test_each_policy_of_the_literature_is_its_row_of_the_table(policy, hold, take, servers):
    assert policy.hold == pytest.approx(hold)
    assert policy.take == take
    assert policy.servers == servers


def test_early_drop_gives_up_what_a_full_batch_could_not_serve_in_time():
    assert policies.early_drop(1.0, [0.3, 0.4, 0.6]).drop_after == pytest.approx(0.6)


def test_aimd_adds_one_within_the_slo_and_backs_off_beyond_it_but_not_below_one():
    assert policies.next_aimd_limit(10, latency=0.1, slo=0.2) == 11
    assert policies.next_aimd_limit(10, latency=0.3, slo=0.2) == 9
    assert policies.next_aimd_limit(1, latency=0.3, slo=0.2) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(hold=[INF, -0.1], take=[0, 1]), r"hold\[1\]: -0.1 .* already past"),
        (dict(hold=[INF, math.nan], take=[0, 1]), r"hold\[1\]: nan"),
        (dict(hold=[INF, 0.1], take=[0, 0]), r"take\[1\]: 0 .* a moment already past"),
        (dict(hold=[INF, INF], take=[0, 0]), r"hold\[1\]: inf .* every longer queue"),
        (dict(hold=[INF, 0], take=[0, 2]), r"take\[1\]: 2 .* from 0 to 1"),
        (dict(hold=[INF, 0], take=[0, 1.0]), r"take\[1\]: 1.0"),
        (dict(hold=[INF, 0], take=[0, True]), r"take\[1\]: True"),
        (dict(hold=[0, 0], take=[0, 1]), r"hold\[0\], take\[0\]: \(0.0, 0\) .* an empty queue holds"),
        (dict(hold=[INF], take=[0]), "hold: 1 .* at least 2 rows"),
        (dict(hold=[INF, 0], take=[0]), "take: 1 .* as many rows"),
        (dict(hold=[INF, 0], take=[0, 1], servers=0), "servers: 0"),
        (dict(hold=[INF, 0], take=[0, 1], drop_after=-1.0), "drop_after: -1.0"),
        (dict(hold=[INF, 0], take=[0, 1], beside=[policies.greedy(1)] * 8), "beside: 8 .* at most 7 tables"),
        (
            dict(hold=[INF, 0], take=[0, 1], beside=[policies.greedy(1), policies.early_drop(1.0, [0.3])]),
            r"beside\[1\].drop_after: 0.7 .* null: the policy that it is beside drops",
        ),
        (
            dict(hold=[INF, 0], take=[0, 1], beside=[Policy([INF, 0], [0, 1], beside=[policies.greedy(1)])]),
            r"beside\[0\].beside: 1 .* no tables",
        ),
        (dict(hold=[INF, 0], take=[0, 1], columns=0), "columns: 0 .* an integer >= 1"),
        (dict(hold=[INF, 0], take=[0, 1], columns=True), "columns: True"),
        (dict(hold=[INF, 0], take=[0, 1], columns=2.0), "columns: 2.0"),
        (dict(hold=[INF, 0], take=[0, 1], columns=2), "hold: 2 .* a multiple of the 2 columns, at least 4"),
        (dict(hold=[INF, *[0] * 8], take=[0, *[1] * 8], columns=4), "hold: 9 .* a multiple of the 4 columns"),
        (dict(hold=[INF, 0, 0, 0], take=[0, 1, 2, 1], columns=2), r"take\[2\]: 2 .* from 0 to 1"),
        (dict(hold=[INF, INF, 0, 0], take=[0, 0, 1, 1], columns=2), r"hold\[1\]: inf .* every longer queue"),
        (dict(hold=[INF, 0, INF, 0], take=[0, 1, 0, 1], columns=2), r"hold\[2\]: inf .* every longer queue"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused_by_field_and_value(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Policy(**arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: policies.size_or_timeout(0, 1.0), "batch_size: 0"),
        (lambda: policies.size_or_timeout(2, -1.0), "timeout: -1.0"),
        (lambda: policies.size_or_timeout(2, INF), "timeout: inf"),
        (lambda: policies.greedy(0), "max_batch_size: 0"),
        (lambda: policies.control_limit(0, 1), "limit: 0"),
        (lambda: policies.deadline(0, [0.1]), "slo: 0"),
        (lambda: policies.deadline(1, []), "service_times"),
        (lambda: policies.deadline(1, [0.1, -1]), r"service_times\[1\]: -1"),
        (lambda: policies.early_drop(0.1, [0.2]), "slo: 0.1 .* at least twice the service time"),
        (lambda: policies.smdp([0, 0]), "every longer queue"),
    ],
)
def test_a_constructor_names_the_parameter_that_is_wrong(build, message):
    with pytest.raises(InvalidInput, match=message):
        build()


def test_a_hold_that_ends_now_is_served_now_and_its_wake_time_satisfies_the_rule_in_floating_point():
    policy = policies.size_or_timeout(8, 0.1)
    for arrived in (0.1, 0.7, 1e9 + 0.3, 1.7e9 + 0.123456):
        wake_at = decide(policy, 1, arrived, arrived, 0).wake_at
        assert wake_at is not None
        assert decide(policy, 1, arrived, wake_at, 0).take == 1
        assert decide(policy, 1, arrived, math.nextafter(wake_at, -INF), 0).take == 0


@given(q=st.integers(0, 50), in_flight=st.integers(0, 3), age=st.floats(0, 2))
def test_no_batch_leaves_while_every_server_is_busy(q, in_flight, age):
    decision = decide(policies.greedy(8, servers=2), q, 5.0, 5.0 + age, in_flight)
    assert decision.take == (min(q, 8) if in_flight < 2 else 0)
    assert decision.wake_at is None


def test_a_queue_longer_than_the_table_is_ruled_by_its_last_row():
    assert decide(policies.static(3), 100, 0.0, 0.0, 0).take == 3


GRID = Policy((INF, INF, 0.5, INF, 0.25, 0.0, 0.125, 0.0, 0.0), (0, 0, 2, 0, 2, 3, 2, 3, 4), columns=3)


@pytest.mark.parametrize(
    ("urgent", "patient", "row"),
    [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 9, 2), (1, 0, 3), (1, 1, 4), (1, 9, 5), (2, 0, 6), (9, 0, 6), (9, 1, 7), (9, 9, 8)],
)
def test_the_row_of_a_grid_is_that_of_those_in_a_hurry_and_of_the_patient_each_up_to_its_last(urgent, patient, row):
    assert GRID.row(urgent, patient) == row
    decision = decide(GRID, urgent + patient, 1.0, 1.0, 0, patient=patient)
    ends = 1.0 + GRID.hold[row]
    assert decision == (False, GRID.take[row] if ends == 1.0 else 0, ends if 1.0 < ends < INF else None, 0)


def test_a_table_of_one_column_counts_all_who_wait():
    table = policies.size_or_timeout(3, 0.5)
    assert [table.row(*waiting) for waiting in ((0, 0), (2, 0), (1, 1), (0, 2), (9, 0), (0, 9))] == [0, 2, 2, 2, 3, 3]
    assert decide(table, 3, 1.0, 1.0, 0, patient=3).take == 3


def test_a_table_beside_has_columns_of_its_own_or_none():
    policy = replace(GRID, servers=1, beside=[policies.size_or_timeout(4, 0.3)])
    assert decide(policy, 2, 1.0, 1.25, 0, 0, patient=1) == (False, 2, None, 0)
    assert decide(policy, 2, 1.0, 1.25, 1, 0, patient=1) == (False, 0, 1.3, 0)
    assert decide(policy, 1, 1.0, 1.0, 0, 0, patient=1, ended={1}) == (False, 0, 1.3, 0)  # where only it ends the wait


def test_of_two_tables_that_may_release_the_first_does_and_the_first_hold_to_end_wakes():
    policy = Policy((INF, 0.5), (0, 1), 1, beside=[Policy((INF, 0.5, 0.2), (0, 1, 2))])
    assert decide(policy, 1, 1.0, 1.5, 0, 0) == (False, 1, None, 0)
    assert decide(policy, 1, 1.0, 1.5, 1, 0) == (False, 1, None, 1)
    assert decide(policy, 2, 1.0, 1.2, 0, 9) == (False, 2, None, 1)
    assert decide(policy, 2, 1.0, 1.1, 0, 0) == (False, 0, 1.2, 0)
    assert decide(policy, 1, 1.0, 1.1, 1, 0) == (False, 0, 1.5, 0)
    assert decide(policy, 2, 1.0, 1.2, 0, 0, ended={1}) == (False, 0, 1.5, 0)
    assert decide(policy, 2, 1.0, 1.2, 9, 0, ended={1}) == (False, 0, None, 0)  # as soon as a server of the first is free


def test_a_table_that_has_ended_is_read_at_a_length_at_which_no_other_ends_the_wait():
    policy = replace(policies.static(2), beside=[policies.size_or_timeout(2, 0.3)])
    assert decide(policy, 1, 1.0, 1.2, 0, 0, ended={1}) == (False, 0, 1.3, 0)
    assert decide(policy, 1, 1.0, 1.3, 0, 0, ended={1}) == (False, 1, None, 1)
    assert decide(policy, 2, 1.0, 1.0, 0, 0, ended={1}) == (False, 2, None, 0)
    assert decide(policy, 2, 1.0, 9.0, 1, 0, ended={1}) == (False, 0, None, 0)


def test_dropping_starts_strictly_after_its_age():
    policy = Policy((INF, 0), (0, 1), 1, drop_after=0.5)
    assert not decide(policy, 1, 1.0, 1.5, 1).drop
    assert decide(policy, 1, 1.0, math.nextafter(1.5, 2), 1).drop
