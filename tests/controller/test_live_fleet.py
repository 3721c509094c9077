"""A live fleet without clock or I/O: who has a place, what becomes of it, and which plans and orders follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
import pytest

from sluice.batching.documents import Plan, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.worker_registry import Registered, Registration, Variant
from sluice.controller.live_fleet import LOAD_WITHIN, REST, LiveFleet, Load, Orders
from sluice.optimizer.control import ControlledFleet, ControlSettings, FleetController
from sluice.optimizer.fleet import solve_fleet
from sluice.optimizer.fleet.specification import DeviceType, Family, Fleet
from sluice.optimizer.fleet.specification import Variant as FleetVariant
from sluice.optimizer.fleet.throughput import Profile


def small(count: int = 3, demand: float = 50.0) -> Fleet:
    """One family of an accurate, slow variant and a quick one."""
    variants = (FleetVariant("slow", 90.0), FleetVariant("quick", 70.0))
    seconds = {"slow": 0.02, "quick": 0.005}
    profiles = {("gpu", name): Profile.of_points({b: each * (3 + b) / 4 for b in (1, 8)}) for name, each in seconds.items()}
    family = Family("family", Slo(0.5), variants)
    return Fleet((DeviceType("gpu", count),), (family,), profiles, {"family": demand})


class Live:
    """A live fleet, and workers that do what they are ordered."""

    def __init__(self, of: Fleet | None = None) -> None:
        self.fleet = of or small()
        self.controller = FleetController(
            ControlledFleet.of(self.fleet), solve_fleet, ControlSettings(look=1.0, period=5, load_time=0.5)
        )
        self.live = LiveFleet(self.fleet, self.controller, 0.0)
        self.workers: dict[str, Registered] = {}
        self.plans: dict[str, Plan] = {}
        self.loads: list[Load] = []
        self.said: list[str] = []
        self.since_last: Mapping[str, Any] | None = None
        self.in_no_batch: dict[str, int] = {}
        self.now = 0.0

    def joins(self, name: str, ready: str = "", device: str = "gpu") -> None:
        variants = {each: Variant("READY" if each == ready else "UNAVAILABLE") for each in ("slow", "quick")}
        told = Registration(address=f"http://{name}:1", device=device, heartbeat=1.0, variants=variants)
        self.workers[told.address] = Registered(told, 0.1)

    def state(self, name: str, **states: str) -> None:
        told = self.workers[f"http://{name}:1"].registration
        variants = {each: Variant(state) for each, state in states.items()}
        self.workers[told.address] = Registered(
            Registration(address=told.address, device=told.device, heartbeat=1.0, variants=dict(told.variants) | variants), 0.1
        )

    def silent(self, name: str, seconds: float) -> None:
        address = f"http://{name}:1"
        self.workers[address] = Registered(self.workers[address].registration, seconds)

    def do(self, orders: Orders) -> Orders:
        self.plans |= {plan.model: plan for plan in orders.plans}
        self.loads += orders.loads
        self.said += orders.said
        self.since_last = orders.since_last or self.since_last
        return orders

    def look(self, seconds: float = 0.25) -> Orders:
        """A little later the registry is read; a plan that is asked for is there at once."""
        self.now += seconds
        orders = self.do(self.live.registered(self.now, self.workers))
        if orders.plan_wanted:
            self.do(self.live.planned(self.now, self.controller.decide(), self.in_no_batch))
        if self.live.wake_at <= self.now:
            self.do(self.live.wake(self.now))
        return orders

    def obey(self) -> None:
        """Every worker has loaded what it was ordered to."""
        while self.loads:
            load = self.loads.pop(0)
            name = load.address[len("http://") : -2]
            self.state(name, **({load.variant: "READY"} | dict.fromkeys(load.unload, "UNAVAILABLE")))
        self.look()

    def second(self, requests: float) -> None:
        self.now += 1.0
        orders = self.do(self.live.seen(self.now, np.array([[requests / 2], [requests / 2]])))
        if orders.plan_wanted:
            self.do(self.live.planned(self.now, self.controller.decide(), self.in_no_batch))
        self.look(0.0)

    def routes(self) -> Mapping[str, tuple[str, ...]]:
        return {route.name: tuple(route.function.split(",")) for route in self.plans["family"].routes}


def test_workers_that_join_load_what_serves_the_demand_most_accurately_and_get_a_plan_when_they_have() -> None:
    fleet = Live()
    fleet.look()
    assert not fleet.plans
    for name in "abc":
        fleet.joins(name)
    fleet.look()
    assert "slow" in {load.variant for load in fleet.loads}
    assert not fleet.plans, "nobody has loaded anything"
    fleet.obey()
    assert "slow.gpu" in fleet.routes()
    assert sum(route.share for route in fleet.plans["family"].routes) == pytest.approx(1)


def test_what_a_plan_expects_is_said_once_for_each_placement() -> None:
    fleet = settled(demand=30.0)
    for _ in range(60):
        fleet.second(30.0)
    planned = [words for words in fleet.said if words.startswith("planned for")]
    rates, placed = r"[\d.]+ requests/s of family with room for [\d.]+", r"(slow|quick) on \d"
    accurate = r"[\d.]+ % accurate where so many come"
    assert re.fullmatch(f"planned for {rates}: {placed}(, {placed})?; {accurate}", planned[-1])
    assert all(before != after for before, after in pairwise(planned))
    assert len(planned) < 10


def test_a_worker_that_hosts_a_variant_already_serves_at_once() -> None:
    fleet = Live()
    fleet.joins("a", ready="slow")
    fleet.look()
    assert fleet.routes() == {"slow.gpu": ("http://a:1",)}


def settled(names: str = "abc", demand: float = 50.0) -> Live:
    fleet = Live(small(len(names), demand))
    for name in names:
        fleet.joins(name, ready="slow")
    fleet.look()
    fleet.obey()
    return fleet


def test_the_password_of_a_worker_is_in_its_plan_and_in_nothing_that_is_said() -> None:
    fleet = Live()
    fleet.joins("buffer:secret@a", ready="slow")
    fleet.look()
    fleet.workers.clear()
    fleet.look()
    assert fleet.routes() == {"slow.gpu": ("http://buffer:secret@a:1",)}
    assert {"http://***@a:1 joins with slow", "http://***@a:1 is gone"} <= set(fleet.said) and "secret" not in str(fleet.said)


def test_a_silent_worker_is_planned_around_at_once_and_comes_back() -> None:
    fleet = settled()
    assert any("http://b:1" in workers for workers in fleet.routes().values())
    fleet.silent("b", 2.1)
    fleet.look()
    assert not any("http://b:1" in workers for workers in fleet.routes().values())
    assert any("http://b:1 is silent for 2.1 s" in words for words in fleet.said)
    fleet.silent("b", 0.0)
    fleet.look()
    fleet.obey()
    assert any("http://b:1" in workers for workers in fleet.routes().values())


def test_a_worker_that_lost_its_variant_gets_no_requests_until_it_has_loaded_again() -> None:
    fleet = settled()
    fleet.state("a", slow="LOADING")
    fleet.look()
    assert not any("http://a:1" in workers for workers in fleet.routes().values())
    fleet.look()
    assert not fleet.loads, "it loads by itself"
    fleet.state("a", slow="READY")
    fleet.look()
    assert any("http://a:1" in workers for workers in fleet.routes().values())


def test_more_requests_have_workers_load_the_quick_variant_and_unload_the_slow_one() -> None:
    fleet = settled(demand=30.0)
    for _ in range(40):
        fleet.second(1200.0)
        if fleet.loads:
            break
    assert fleet.loads[0].variant == "quick"
    assert fleet.loads[0].unload == ("slow",)
    assert fleet.loads[0].address not in {worker for workers in fleet.routes().values() for worker in workers}


def test_a_worker_that_does_not_load_rests_and_is_tried_again_later() -> None:
    fleet = Live(small(1))
    fleet.joins("a")
    fleet.look()
    [load] = fleet.loads
    fleet.loads.clear()
    fleet.do(fleet.live.load_failed(fleet.now, load.address, "out of memory"))
    assert fleet.said[-1] == "http://a:1 did not load slow: out of memory"
    fleet.look()
    assert not fleet.loads
    fleet.look(REST)
    assert fleet.loads


def test_loading_that_takes_too_long_counts_as_failed() -> None:
    fleet = Live(small(1))
    fleet.joins("a")
    fleet.look()
    fleet.loads.clear()
    fleet.state("a", slow="LOADING")
    fleet.look(LOAD_WITHIN)
    assert any(f"not within {LOAD_WITHIN:g} s" in words for words in fleet.said)


def test_a_worker_beyond_the_places_or_of_another_type_is_told_of_once_and_left_alone() -> None:
    fleet = settled("ab")
    fleet.joins("c", ready="slow")
    fleet.joins("d", device="tpu")
    fleet.look()
    fleet.look()
    assert [words for words in fleet.said if "no place" in words] == ["no place in the fleet file for http://c:1, http://d:1"]
    assert fleet.live.workers == 2
    assert "http://c:1" not in str(fleet.plans)


def test_a_family_that_nobody_serves_keeps_its_last_plan_and_that_is_said() -> None:
    fleet = settled("a")
    before = fleet.plans["family"]
    del fleet.workers["http://a:1"]
    fleet.look()
    assert fleet.plans["family"] is before
    assert "nobody serves family: its last plan stays in force" in fleet.said


def test_what_batches_take_beyond_their_profiles_is_in_the_tables_of_a_new_plan() -> None:
    fleet = settled()
    (before,) = fleet.plans["family"].routes
    orders = fleet.do(fleet.live.beyond(fleet.now, fleet.fleet.behind(0.1), "batches take longer"))
    assert orders.plan_wanted and "batches take longer" in orders.said
    (after,) = fleet.plans["family"].routes
    assert after.policy.policy().drop_after == pytest.approx(before.policy.policy().drop_after - 0.1)


def test_another_placement_tells_what_came_of_the_one_before() -> None:
    fleet = settled(demand=30.0)
    fleet.second(30.0)
    route = fleet.plans["family"].routes[0].name
    latencies = [0.1] * 9 + [0.6]
    told = [batch_of(route, (latency,) * 2) for latency in latencies]
    fleet.live.measured("family", [*told, batch_of("quick.gpu", (), failed=2)])
    fleet.in_no_batch["family"] = 11
    for _ in range(40):
        fleet.second(800.0)
        if fleet.since_last is not None:
            break
    since = fleet.since_last
    assert since is not None
    family = since["families"]["family"]
    assert family["requests"] == pytest.approx(family["arrival_rate"] * since["seconds"], abs=1)
    assert family["late"] == pytest.approx(15 / 33)  # of 22, one batch of two, the two that failed, and 11 that were in none
    assert family["accuracy"] == (90.0 if route == "slow.gpu" else 70.0)
    assert family["expected"]["late"] == pytest.approx(0.05)
    assert family["expected"]["room_for"] >= family["expected"]["arrival_rate"] > 0
    assert 70.0 <= family["expected"]["accuracy"] <= 90.0


def batch_of(route: str, latencies: tuple[float, ...], failed: int = 0) -> MeasuredBatch:
    return MeasuredBatch(0.0, route, 0, "http://a:1", "", len(latencies) + failed, 0.01, nan, nan, False, failed, latencies)


def test_seconds_that_change_nothing_write_no_plan() -> None:
    fleet = settled()
    fleet.second(50.0)
    fleet.plans.clear()
    for _ in range(4):
        fleet.second(50.0)
    assert not fleet.plans
