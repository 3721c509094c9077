"""Which functions of a plan have environments, and how long a ping holds one."""

from __future__ import annotations

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import MAX_STARTED, Beside, Plan, PolicyDocument, Route
from sluice.batching.environments import held_by_ping, not_serving
from sluice.lambda_fn.contract import MAX_HOLD


def test_functions_have_the_environments_of_a_plan_before_where_they_had_half_of_their_share():
    table = PolicyDocument.of(constructors.greedy(4))

    def of(**shares):
        routes = [Route(name, name, table, share) for name, share in shares.items()]
        return Plan(model="m", routes=routes) if len(routes) > 1 else Plan(model="m", function=routes[0].function, policy=table)

    assert not_serving(of(f=1.0), of(f=0.95, g=0.05)) == {"g"}
    assert not_serving(of(f=0.95, g=0.05), of(g=1.0)) == {"g"}
    assert not_serving(of(f=0.5, g=0.5), of(g=1.0)) == set()
    beside = Plan(model="m", function="f", policy=table, beside=[Beside("g", table)])
    assert not_serving(beside, of(g=1.0)) == set() and not_serving(of(g=1.0), beside) == {"f"}


@pytest.mark.parametrize(("number", "seconds"), [(1, 0.0), (2, 0.07), (10, 0.15), (100, 1.0)])
def test_pings_hold_their_environments_until_the_last_has_come(number, seconds):
    assert held_by_ping(number) == pytest.approx(seconds)


def test_no_ping_asks_to_be_held_for_longer_than_a_function_takes():
    assert max(map(held_by_ping, range(1, MAX_STARTED + 1))) <= MAX_HOLD
