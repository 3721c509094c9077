"""What one device serves, its table, and the plan of a whole fleet."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.fleet import DeviceType, Family, Fleet, Profile, Variant, plan_fleet, queue_table
from sluice.optimizer.fleet.throughput import capacity

SLO = Slo(0.3)


def fleet(demand: dict[str, float], running: dict[str, str | None] | None = None, workers: bool = True) -> Fleet:
    """Two types, two families: `small` and `large` on both, `only` on cpu."""
    gpus = ("http://10.0.0.5:80", "http://10.0.0.6:80") if workers else ()
    return Fleet(
        devices=(DeviceType("gpu", 2, workers=gpus), DeviceType("cpu", 3, workers=("http://c:1", "http://c:2", "http://c:3"))),
        families=(
            Family("seen", SLO, (Variant("small", 70.0), Variant("large", 80.0))),
            Family("read", Slo(1.0, 99), (Variant("only", 60.0),)),
        ),
        profiles={
            ("gpu", "small"): Profile.of_line(0.01, 0.001, 32),
            ("gpu", "large"): Profile.of_line(0.02, 0.01, 32),
            ("cpu", "small"): Profile.of_points({1: 0.02, 8: 0.16}),
            ("cpu", "large"): Profile.of_points({1: 0.2}),
            ("cpu", "only"): Profile.of_points({1: 0.1, 4: 0.2}),
        },
        demand=demand,
        running=running,
    )  # fmt: skip


@pytest.mark.full
def test_devices_that_a_plan_needs_not_make_slack_and_load_nothing_that_gets_no_requests() -> None:
    """One of each type would do. What is accurate enough for `seen` runs on gpu alone."""
    plan = plan_fleet(fleet({"seen": 5.0, "read": 1.0}))
    assert plan.accuracy == pytest.approx((5 * 80 + 60) / 6)
    assert {(group.variant, len(group.devices)) for group in plan.groups} >= {("large", 2)}
    assert all(group.share > 0 for group in plan.groups)


def test_a_batch_may_take_half_the_slo_and_the_largest_measured_one_is_the_papers() -> None:
    profile = Profile.of_points({1: 0.05, 2: 0.09, 4: 0.15, 8: 0.31})
    assert capacity(profile, SLO, rule="largest") == (4, pytest.approx(4 / 0.15))
    assert capacity(profile, Slo(0.2), rule="largest") == (2, pytest.approx(2 / 0.09))
    assert capacity(profile, Slo(0.099), rule="largest") is None


def test_the_best_batch_may_lie_between_measured_ones_and_before_a_jump() -> None:
    steep = Profile.of_points({1: 0.01, 2: 0.06, 4: 0.1})
    between = Profile.of_points({1: 0.1, 8: 0.17})
    assert capacity(steep, SLO) == (1, pytest.approx(100)) and capacity(steep, SLO, rule="largest") == (4, pytest.approx(40))
    assert capacity(between, SLO) == (6, pytest.approx(6 / 0.15)) and capacity(between, SLO, rule="largest") == (
        1,
        pytest.approx(10),
    )


def test_a_family_that_no_device_serves_in_half_its_slo_is_served_one_by_one() -> None:
    fits = fleet({"seen": 1.0, "read": 1.0})
    assert fits.capacity(1, 2) == capacity(fits.profiles["cpu", "only"], Slo(1.0, 99))
    tight = replace(fits, families=(fits.families[0], Family("read", Slo(0.12, 99), (Variant("only", 60.0),))))
    assert tight.capacity(1, 2) == (1, pytest.approx(5.0)) and tight.capacity(1, 2, "largest") is None
    assert tight.capacity(1, 1) is None  # large takes 0.2 s of 0.3, but others of its family serve in half
    assert (
        replace(tight, families=(fits.families[0], Family("read", Slo(0.104, 99), (Variant("only", 60.0),)))).capacity(1, 2) is None
    )


def test_a_plan_without_slack_names_its_full_queues() -> None:
    assert [group.variant for group in plan_fleet(fleet({"seen": 100.0, "read": 59.0}), headroom=1.0).full] == [
        "only"
    ]  # 3 times 20/s
    assert not plan_fleet(fleet({"seen": 100.0, "read": 50.0})).full


def test_memory_bounds_the_batch() -> None:
    profile = Profile.of_line(0.01, 0.001, 32)
    variant = Variant("v", 90, memory_mb=500, memory_mb_per_request=100)
    assert capacity(profile, SLO, variant.max_batch(1250)) == (7, pytest.approx(7 / 0.017))
    assert capacity(profile, SLO, variant.max_batch(550)) is None and variant.max_batch(400) == 0
    assert Variant("v", 90, memory_mb=500).max_batch(500) == math.inf == variant.max_batch(math.inf)


def test_promises_are_of_the_percentile_and_rates_of_the_mean() -> None:
    times = [ServiceTime(0.01 * b, [(0.0, 0.005 * b), (1.0, 0.015 * b)], 100) for b in (1, 16)]
    document = ServiceProfile(function="f", points=[ProfilePoint(512, b, t, t.mean) for b, t in zip((1, 16), times, strict=True)])
    profile = Profile.of_document(document, 512)
    found = capacity(profile, Slo(0.28, 90.0))  # 14 ms a request at p90
    assert (
        found is not None and found.throughput == pytest.approx(100) and profile.promised(Slo(0.28, 90.0))[9] == pytest.approx(0.14)
    )
    assert capacity(profile, Slo(0.28, 90.0), max_batch=10) is not None and capacity(profile, Slo(0.027, 90.0)) is None
    assert profile.measured == (1, 16)


def test_the_table_waits_as_long_as_the_next_request_would_still_be_in_time() -> None:
    table = queue_table("published", np.array([0.1, 0.12, 0.15, 9.0]), 0.3, 3, servers=2)
    assert table.hold == (math.inf, pytest.approx(0.18), pytest.approx(0.15), 0.0)
    assert table.take == (0, 1, 2, 3) and table.servers == 2 and table.drop_after is None
    assert queue_table("deadline", np.array([0.1, 0.12]), 0.3, 2).drop_after == pytest.approx(0.2)


def test_where_a_larger_batch_is_quicker_the_smaller_one_is_still_in_time() -> None:
    table = queue_table("deadline", np.array([0.1, 0.05, 0.2]), 0.3, 3)
    for waiting, seconds in ((1, 0.1), (2, 0.05)):
        assert table.hold[waiting] + seconds <= 0.3 + 1e-12


def test_a_plan_places_shares_and_gives_tables() -> None:
    plan = plan_fleet(fleet({"seen": 100, "read": 30}))
    assert plan.feasible and not plan.devices_wanted and set(plan.placement) == set(plan.fleet.types_by_device)
    for name, service in plan.families.items():
        groups = [group for group in plan.groups if group.family == name]
        assert sum(group.share for group in groups) == pytest.approx(1) and service.served == service.asked
    for group in plan.groups:
        assert [plan.placement[device] for device in group.devices] == [group.variant] * len(group.devices)
        assert group.policy.servers == len(group.devices) and group.rate <= group.throughput * (1 + 1e-9)
        assert group.policy.kind == "brief_hold"
    mean = (plan.families["seen"].accuracy * 100 + 60 * 30) / 130
    assert plan.accuracy == pytest.approx(mean) and plan.accuracy == pytest.approx(plan.solution.accuracy)


def test_headroom_plans_for_more_than_is_asked_and_says_what_is_served_of_what_is_asked() -> None:
    plain, spare = (plan_fleet(fleet({"seen": 100, "read": 30}), headroom=h) for h in (1.0, 1.5))
    load = {group.variant + group.device_type: group.rate / group.throughput for group in spare.groups}
    assert max(load.values()) <= 1 / 1.5 + 1e-9 and spare.accuracy <= plain.accuracy
    assert spare.families["seen"].asked == 100 == spare.families["seen"].served
    short = plan_fleet(fleet({"seen": 100, "read": 40}), headroom=3.0)
    assert short.feasible and short.devices_wanted["gpu"] is None and (short.devices_wanted["cpu"] or 0) > 0
    assert (
        short.headroom == pytest.approx(1.5) and short.headroom_asked == 3 and short.solution.problem.demand[1] == pytest.approx(60)
    )


def test_a_headroom_takes_nothing_from_a_family_whose_own_demand_fits() -> None:
    demand = {"seen": 1510.0, "read": 2.0}  # two gpus and two cpus serve 1524 and 100, which is worth more than `only` with 1.2
    for headroom in (1.0, 1.005, 1.1, 1.2, 5.0, 1000.0):
        plan = plan_fleet(fleet(demand), headroom=headroom)
        assert plan.feasible and 1 <= plan.headroom <= headroom
    missed = fleet({"seen": 1510.0, "read": 100.0})
    plain, spare = plan_fleet(missed), plan_fleet(missed, headroom=1.3)
    assert spare.headroom == 1 and {n: f.served for n, f in spare.families.items()} == {
        n: f.served for n, f in plain.families.items()
    }


def test_what_is_missing_is_told_by_family_with_the_devices_that_would_serve_it() -> None:
    plan = plan_fleet(fleet({"seen": 10, "read": 100}))
    assert not plan.feasible and plan.families["seen"].missing == 0
    assert plan.families["read"].missing == pytest.approx(100 - 3 * 20)
    assert plan.devices_wanted == {"gpu": None, "cpu": 2}
    assert plan.families["read"].accuracy == 60


def test_changes_are_from_the_placement_that_runs() -> None:
    running = {"http://c:1": "only", "http://c:2": "small", "http://10.0.0.6:80": "large"}
    plan = plan_fleet(fleet({"seen": 100, "read": 30}, running))
    assert plan.placement["http://c:1"] == "only" and plan.placement["http://10.0.0.6:80"] == "large"
    assert plan.changes == {d: (running.get(d), v) for d, v in plan.placement.items() if running.get(d) != v}
    assert sum(after is not None for _, after in plan.changes.values()) == plan.solution.swaps
    assert not plan_fleet(plan.fleet.with_running(plan.placement)).changes


def test_plans_are_documents_with_a_route_for_each_group() -> None:
    plan = plan_fleet(fleet({"seen": 200, "read": 30}, {"http://c:3": "small"}))
    documents = {document.model: document for document in plan.plans()}
    assert list(documents) == ["seen", "read"] and documents["read"].slo == Slo(1.0, 99)
    for name, document in documents.items():
        groups = [group for group in plan.groups if group.family == name and group.share]
        assert [route.name for route in document.routes] == [f"{group.variant}.{group.device_type}" for group in groups]
        assert [route.function for route in document.routes] == [",".join(group.devices) for group in groups]
        assert [route.policy.policy() for route in document.routes] == [group.policy for group in groups]
        assert math.fsum(route.share for route in document.routes) == pytest.approx(1, abs=1e-9)
        assert read(Plan, write(document)) == document


def test_plans_need_the_addresses_of_the_workers() -> None:
    with pytest.raises(InvalidInput, match=r"devices.gpu.workers: none was given; needed: the addresses of its devices"):
        plan_fleet(fleet({"seen": 100}, workers=False)).plans()


def test_the_document_of_a_plan_is_json() -> None:
    for demand in ({"seen": 100.0, "read": 30.0}, {"read": 1000.0}):
        plan = plan_fleet(fleet(demand))
        document = msgspec.json.decode(msgspec.json.encode(plan.document()))
        assert document["placement"] == plan.placement and document["families"]["seen"]["asked"] == demand.get("seen", 0)
        assert len(document["groups"]) == len(plan.groups) and document["feasible"] is plan.feasible
    assert document["families"]["seen"]["accuracy"] is None


def test_a_variant_that_runs_where_it_is_of_no_use_is_replaced_or_left_out() -> None:
    plan = plan_fleet(fleet({"read": 10}, {"http://c:1": "large"}))  # 0.2 s alone on cpu, more than half of 0.3 s
    assert "large" not in {group.variant for group in plan.groups} and plan.placement["http://c:1"] == "large"


def test_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="headroom: 0 .* a factor of the demand, at least 1"):
        plan_fleet(fleet({"seen": 1}), headroom=0)
    with pytest.raises(InvalidInput, match=r"headroom: 1e\+300 .* at most 1e\+09, which makes a demand of 1e\+09 requests/s"):
        plan_fleet(fleet({"seen": 1}), headroom=1e300)
    for build in (lambda: Profile.of_line(0.1, 0.1, 100_001), lambda: Profile.of_points({1: 0.1, 10**9: 0.2})):
        with pytest.raises(InvalidInput, match="1 to 100000"):
            build()
    with pytest.raises(InvalidInput, match="demand: {} .* a rate > 0 for at least one family"):
        plan_fleet(fleet({}))
    with pytest.raises(InvalidInput, match=r"demand.unseen: 1 .* one of the families: seen, read"):
        fleet({"unseen": 1})
    with pytest.raises(InvalidInput, match="rule: 'least' .* best, largest"):
        capacity(Profile.of_line(0.01, 0.01, 4), SLO, rule="least")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"batch sizes: \[2\] .* batch size 1 among them"):
        Profile.of_points({2: 0.1})
    assert np.isfinite(plan_fleet(fleet({"seen": 1})).accuracy)
