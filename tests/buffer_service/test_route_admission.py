"""Which bound on the wait holds for a route: of servers, of elastic functions, of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.batching import Policy
from sluice.buffer_service.batch_state import Cause, Failure, Part
from sluice.buffer_service.route_admission import RouteAdmission
from sluice.buffer_service.route_functions import RouteFunctions
from sluice.buffer_service.store import Outcome
from sluice.lambda_fn.contract import Item

INF = float("inf")
PATIENCE = 1.0
SERVERS = Policy((INF, 0.0, 0.0), (0, 1, 2), 1)
ELASTIC = Policy((INF, 0.1, 0.0), (0, 1, 2))
BOTH = replace(SERVERS, beside=[ELASTIC])
BUSY = Failure(Cause.BUSY, "throttled")


class Route:
    """An admission, and the functions that it looks at: ``w`` with servers before ``f``, as far as the rule has them."""

    def __init__(self, rule: Policy) -> None:
        names = [("w" if table.servers else "f") for table in rule.tables]
        self.functions = RouteFunctions(names, rule)
        self.admission = RouteAdmission("m", self.functions, rule, PATIENCE, None)
        self.limited: list[tuple[int, int]] = []

    def suspends(self, place: int, now: float = 0.0) -> None:
        """A function is not asked for a second."""
        for _ in range(5):
            self.functions.of_table(place).circuit.failed(now, unavailable=True)

    def has_slow_servers(self) -> None:
        """A batch took as long as a caller waits; the queue says so many wait."""
        self.admission.served(PATIENCE, 0.0)
        self.admission.heard(0.0, Outcome(queue_length=100, busy=1))

    def is_throttled(self) -> None:
        """An elastic function refuses a batch for 3 s on end: what is put off would wait for as long."""
        self.admission.asked(2)
        self.admission.ended(2)
        self.admission.put_off(2)
        for now in (0.0, 3.0):
            self.admission.heard_of_elastic(now, Part([Item("r", "", b"")] * 2), BUSY)

    def refuses(self, now: float, waiting: int = 100, coming: int = 0) -> bool:
        return self.admission.refuses(now, waiting, coming, lambda now: self.limited) is not None


def test_who_would_wait_for_servers_for_too_long_is_refused_whoever_waits_before_him():
    route = Route(SERVERS)
    route.has_slow_servers()
    assert route.refuses(0.0) and route.refuses(0.0, waiting=0, coming=100)
    assert not route.refuses(0.0, waiting=0)


def test_before_an_elastic_function_it_is_what_it_refused_that_bounds_the_wait_and_not_who_waits_to_be_batched():
    route = Route(ELASTIC)
    route.admission.heard(0.0, Outcome(queue_length=1000))
    assert not route.refuses(0.0, waiting=1000)
    route.is_throttled()
    assert route.refuses(3.0, waiting=0)
    route.admission.put_off_no_more(2)
    route.admission.looked_at(3.1)
    assert not route.refuses(3.1, waiting=0)


def test_where_there_are_both_nobody_is_refused_while_an_elastic_function_takes_what_its_table_releases():
    route = Route(BOTH)
    route.has_slow_servers()
    assert not route.refuses(0.0)
    route.limited = [(1, 1)]
    assert route.refuses(0.0)
    route.limited = []
    route.suspends(1)
    assert route.refuses(0.0)


def test_where_there_are_both_and_no_server_is_asked_it_is_as_if_there_were_elastic_functions_alone():
    route = Route(BOTH)
    route.has_slow_servers()
    route.suspends(0, now=2.5)
    route.limited = [(1, 0)]
    assert not route.refuses(2.5)
    route.is_throttled()
    assert route.refuses(3.0, waiting=0)


@pytest.mark.parametrize("rule", [SERVERS, BOTH])
def test_the_queue_is_asked_again_before_more_are_refused_for_servers(rule):
    route = Route(rule)
    route.has_slow_servers()
    assert not route.admission.stale(0.0) and route.admission.stale(0.5)
    route.suspends(0)
    assert route.admission.stale(0.5) is (rule is SERVERS)  # else it is not the servers that are waited for


def test_what_a_call_has_at_work_is_given_back_when_it_ends():
    admission = Route(ELASTIC).admission
    admission.asked(2)
    admission.asked(1)
    admission.ended(2)
    assert (admission._calls, admission._at_work) == (1, 1)


def test_another_rule_has_the_bounds_that_it_asks_for():
    route = Route(SERVERS)
    route.has_slow_servers()
    route.functions.follow(["w", "f"], BOTH)
    route.admission.follow(BOTH, None)
    assert not route.refuses(0.0)
    route.functions.follow(["f"], ELASTIC)
    route.admission.follow(ELASTIC, None)
    assert not route.refuses(0.0, waiting=1000) and not route.admission.stale(9.0)
