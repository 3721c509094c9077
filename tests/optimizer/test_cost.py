"""The price list and its overlays, bills by hand, cold starts against environments one by one, and where a buffer pays."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput
from sluice.optimizer.billing.break_even import solve_break_even
from sluice.optimizer.billing.cost import BatchCost, Billing, invocation_costs, predict_cost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, Prices, default_prices, read_prices
from sluice.optimizer.service.times import ServiceTimes, service_times
from tests import sam_template

ROOT = Path(__file__).parents[2]
MILLION = 1e6


def overlaid(**sections: object) -> Prices:
    return read_prices(json.dumps(sections).encode())


def service(durations: Sequence[float], memory_mb: int = 1024) -> ServiceTimes:
    """Deterministic service times of batches of 1, 2, ..."""
    points = [ProfilePoint(memory_mb, n, ServiceTime(s), s) for n, s in enumerate(durations, start=1)]
    return service_times(ServiceProfile(function="f", points=points), memory_mb)


def always(size: int, largest: int | None = None) -> np.ndarray:
    return np.array([float(n == size) for n in range(1, (largest or size) + 1)])


# --- bills by hand


def test_cost_is_eq_1_of_batch_with_its_constants() -> None:
    prices = overlaid(**{"lambda": {"gb_second": {"x86_64": 1.66667e-5}, "request": 2e-7, "granularity": 0.1}})
    cost = predict_cost(always(2), service([0.05, 0.25], 3008), Billing(prices))
    assert cost.compute == pytest.approx(0.3 * 3008 / 1024 * 1.66667e-5 / 2)
    assert cost.requests == pytest.approx(2e-7 / 2)
    assert cost.per_request == pytest.approx(cost.compute + cost.requests)


def test_a_bill_of_whole_numbers() -> None:
    prices = overlaid(
        **{"lambda": {"gb_second": {"arm64": 1e-5}, "request": 1e-6}, "logs": {"gb": 1.0, "bytes_per_invocation": 1024}}
    )
    pmf = np.array([0.5, 0.0, 0.5])  # mean batch size 2
    cost = predict_cost(pmf, service([0.1, 0.2, 0.3], 2048), Billing(prices, "arm64"))
    assert cost.compute == pytest.approx((0.5 * 0.1 + 0.5 * 0.3) * 2 * 1e-5 / 2)
    assert cost.requests == pytest.approx(0.5e-6)
    assert cost.logs == pytest.approx(1024 / 1024**3 / 2)
    assert cost.moving == 0 and cost.by_request == cost.per_request


def test_a_coarse_granularity_makes_batching_save_more() -> None:
    saving = {}
    for granularity in (0.001, 0.1):
        durations = service(np.linspace(0.012, 0.045, 8).tolist(), 1769)
        one, eight = (predict_cost(always(n, 8), durations, Billing(granularity=granularity)).per_request for n in (1, 8))
        saving[granularity] = one / eight
    assert saving[0.1] == pytest.approx(8.0)  # both are billed 100 ms, and the fee is an eighth
    gb, price = 1769 / 1024, default_prices().gb_second("x86_64")
    assert saving[0.001] == pytest.approx((0.012 * gb * price + 2e-7) / ((0.045 * gb * price + 2e-7) / 8))


def test_a_whole_number_of_milliseconds_is_not_rounded_up() -> None:
    assert predict_cost(always(1), service([0.1])).compute == pytest.approx(0.1 * default_prices().gb_second("x86_64"))
    assert predict_cost(always(1), service([0.1001])).compute == pytest.approx(0.101 * default_prices().gb_second("x86_64"))


def test_what_the_search_minimises_is_the_bill_that_is_predicted() -> None:
    pmf, times = np.array([0.2, 0.3, 0.5]), service([0.1, 0.17, 0.21], 512)
    billing = Billing(architecture="arm64", granularity=0.01)
    compute, fee = invocation_costs(times, billing)
    cost = predict_cost(pmf, times, billing)
    assert cost.per_request == pytest.approx((pmf @ compute + fee) / 2.3)


def test_the_terms_sum_to_what_a_request_costs() -> None:
    cost = predict_cost(
        np.array([0.5, 0.5]),
        service([0.1, 0.2]),
        Billing(
            overlaid(buffer={"cache_mode": "serverless"}, logs={"bytes_per_invocation": 750}),
            cold_start_probability=0.1,
            payload_bytes=10_000,
            answer_bytes=1000,
            snap_start=True,
        ),
        init_duration=1.0,
    )
    assert sum(cost.terms().values()) == pytest.approx(cost.by_request)
    assert [name for name, usd in cost.terms().items() if usd == 0] == ["machines", "pings"]
    assert sum(cost.fixed_terms.values()) == cost.fixed_per_month
    spread = cost.fixed_per_month / SECONDS_PER_MONTH / 50
    assert cost.in_all(50) == pytest.approx(cost.by_request + spread)


def test_cold_starts_are_billed_for_init_or_for_the_snapshot_restored() -> None:
    prices, times = default_prices(), service([0.1], 2048)
    plain = predict_cost(always(1), times, Billing(cold_start_probability=0.01), init_duration=2.0, buffered=False)
    assert plain.init == pytest.approx(0.01 * 2.0 * 2 * prices.gb_second("x86_64"))
    assert plain.restore == 0 and plain.fixed_per_month == 0
    twos = service([0.1, 0.1], 2048)
    restored = Billing(cold_start_probability=0.01, snap_start=True)
    snapped = predict_cost(always(2), twos, restored, init_duration=0.2, buffered=False)
    assert snapped.init == pytest.approx(0.01 * 0.2 * 2 * prices.gb_second("x86_64") / 2)  # one cold start for two requests
    assert snapped.restore == pytest.approx(0.01 * 2 * prices.function.snap_start.restore_gb / 2)
    assert snapped.fixed_terms == {"snapshot": pytest.approx(2 * prices.function.snap_start.cache_gb_second * SECONDS_PER_MONTH)}
    assert snapped.per_request == pytest.approx(snapped.compute + snapped.requests + snapped.init + snapped.restore)


def test_the_duration_price_falls_with_the_volume_of_a_month() -> None:
    prices = default_prices()
    assert prices.gb_second("x86_64") == 1.66667e-5
    assert prices.gb_second("x86_64", 6e9) == pytest.approx(1.66667e-5)
    assert prices.gb_second("x86_64", 20e9) == pytest.approx((6 * 1.66667e-5 + 9 * 1.5e-5 + 5 * 1.33334e-5) / 20)
    assert prices.gb_second("arm64", 15e9) == pytest.approx((1.33334e-5 + 1.20001e-5) / 2)
    rate = 15e9 / 0.1 / SECONDS_PER_MONTH
    cost = predict_cost(always(1), service([0.1]), Billing(architecture="arm64"), arrival_rate=rate)
    assert cost.compute == pytest.approx(0.1 * (1.33334e-5 + 1.20001e-5) / 2)


def test_the_bytes_of_a_request_are_priced_where_they_pass() -> None:
    metered = overlaid(buffer={"cache_mode": "serverless"})
    size = 600 * 1024
    cost = predict_cost(always(1), service([0.1]), Billing(metered, payload_bytes=size))
    assert MILLION * cost.cache == pytest.approx(2 * 600 * 0.0023)  # in and out, an ECPU for a KB
    assert MILLION * cost.load_balancer == pytest.approx(MILLION * size / 1024**3 * 0.008)
    assert MILLION * cost.network == pytest.approx(MILLION * size / 1024**3 * 0.045)
    assert predict_cost(always(1), service([0.1]), Billing(payload_bytes=size)).cache == 0  # nodes are paid by the hour
    answered = predict_cost(always(1), service([0.1]), Billing(metered, payload_bytes=size, answer_bytes=1024))
    assert MILLION * (answered.cache - cost.cache) == pytest.approx(
        0.0023
    )  # half of it: two tasks, so every other caller is elsewhere
    assert answered.network > cost.network and answered.load_balancer > cost.load_balancer


def test_the_way_to_the_function_is_an_endpoint_or_a_nat_gateway_or_free() -> None:
    gigabyte = 1024**3
    ways = {"endpoints": 10, "nat_gateways": 0, "public_addresses": 0}, {"nat_gateways": 0, "public_addresses": 2}
    endpoints, addresses = (overlaid(buffer=way) for way in ways)
    assert default_prices().network_per_request(gigabyte, 0) == pytest.approx(0.045)
    assert endpoints.network_per_request(gigabyte // 2, gigabyte // 2) == pytest.approx(0.01)
    assert addresses.network_per_request(gigabyte, 0) == 0
    hours = SECONDS_PER_MONTH / 3600
    assert endpoints.fixed_terms()["network"] == pytest.approx(hours * 10 * 0.01)
    assert addresses.fixed_terms()["network"] == pytest.approx(hours * 2 * 0.005)


def test_without_a_buffer_nothing_of_it_is_paid() -> None:
    cost = predict_cost(always(1), service([0.1]), Billing(payload_bytes=10_000), buffered=False)
    assert cost.moving == 0 and cost.fixed_per_month == 0


# --- the price list


def test_the_fixed_cost_is_the_sum_of_what_is_deployed() -> None:
    parts = default_prices().fixed_terms()
    hours = SECONDS_PER_MONTH / 3600
    assert parts == {
        "buffer_tasks": pytest.approx(hours * 2 * (0.5 * 0.03238 + 1.0 * 0.00356)),
        "load_balancer": pytest.approx(hours * 0.0225),
        "cache": pytest.approx(hours * 2 * 0.0128),
        "network": pytest.approx(hours * (0.045 + 0.005)),
        "monitoring": pytest.approx(4 * 0.3 + 3 * 0.1 + 3.0),
    }
    metered = overlaid(buffer={"cache_mode": "serverless"}).fixed_terms()["cache"]
    assert metered == pytest.approx(hours * 0.1 * 0.084) and 6 < metered < 6.2
    assert overlaid(buffer={"per_month": 40.0}).fixed_terms() == {"buffer": 40.0}


def test_the_buffer_that_is_priced_is_the_one_of_the_template() -> None:
    template = sam_template.load(ROOT / "template.yaml")
    resources, defaults = template["Resources"], {name: p.get("Default") for name, p in template["Parameters"].items()}
    buffer = default_prices().buffer
    task, nodes = resources["BufferTask"]["Properties"], resources["CacheNodes"]["Properties"]
    assert (buffer.vcpu, buffer.memory_gb) == (int(task["Cpu"]) / 1024, int(task["Memory"]) / 1024)
    assert buffer.tasks == resources["BufferGrowth"]["Properties"]["MinCapacity"]
    assert buffer.cache_nodes == nodes["NumCacheClusters"]
    assert buffer.cache_mode == defaults["CacheMode"] and buffer.cache_node_type == defaults["CacheNodeType"]
    assert buffer.architecture == defaults["Architecture"]
    kinds = [resource["Type"] for resource in resources.values()]
    assert kinds.count("AWS::ElasticLoadBalancingV2::LoadBalancer") == 1
    assert kinds.count("AWS::CloudWatch::Dashboard") == buffer.dashboards
    assert (
        len(resources["SloAlarm"]["Properties"]["Metrics"]) - 1 + 1 == buffer.alarm_metrics
    )  # less the expression, and the outage


def test_every_section_of_the_dated_list_names_its_source() -> None:
    prices = default_prices()
    sections = set(msgspec.to_builtins(prices)) - {"read_on", "region", "currency", "sources"}
    assert sections <= set(prices.sources)


def test_a_file_overlays_the_dated_list_value_by_value() -> None:
    prices = overlaid(**{"lambda": {"granularity": 0.1, "gb_second": {"arm64": 1e-5}}, "machines": {"attic": 0.01}})
    assert prices.function.granularity == 0.1
    assert prices.gb_second("arm64", 1e11) == 1e-5  # the tiers give way to the number
    assert prices.gb_second("x86_64") == default_prices().gb_second("x86_64")
    assert prices.machine("attic") == 0.01 and prices.machine("g4dn.xlarge") == 0.526
    assert read_prices(b"{}") == default_prices()


def test_prices_of_another_region_say_which_are_as_in_the_dated_one() -> None:
    own = overlaid(**{"region": "eu-central-1", "lambda": {"request": 2.4e-7}, "logs": {"gb": 0.6}, "scheduler": {"invocation": 0}})
    assert own.as_dated[:3] == ["lambda.gb_second", "lambda.provisioned", "lambda.snap_start"]
    assert own.as_dated[3:] == ["fargate", "load_balancer", "cache", "network", "monitoring", "machines"]
    assert own.told.startswith("eu-central-1, read 2026-11-21; as in us-east-1: lambda.gb_second, lambda.provisioned, ")
    assert default_prices().as_dated == [] and default_prices().told == "us-east-1, read 2026-11-21"


def test_a_document_that_the_list_itself_makes_is_a_price_list() -> None:
    assert read_prices(msgspec.json.encode(default_prices())) == default_prices()


def test_provisioned_concurrency_is_paid_by_the_hour_and_by_the_second_it_runs() -> None:
    price = default_prices().provisioned(2048, "x86_64")
    assert price.reserved_per_hour == pytest.approx(2 * 3600 * 4.1667e-6)
    assert price.per_second == pytest.approx(2 * 9.7222e-6)
    assert default_prices().provisioned(2048, "arm64").reserved_per_hour < price.reserved_per_hour


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a price list as in prices.json"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"lambda": {"gb_second": {"arm64": 1e999}}}', "Number out of range"),
        ('{"lamda": {}}', "prices: .*lamda.* is not allowed; .*unknown field `lamda`"),
        ('{"lambda": {"granularty": 0.1}}', r"unknown field `granularty` - at `\$.lambda`"),
        ('{"lambda": 3}', r"Expected `object`, got `int` - at `\$.lambda`"),
        ('{"lambda": {"granularity": null}}', "Expected `float`, got `null`"),
        (
            '{"lambda": {"gb_second": {"arm64": -1.0}}}',
            r"prices: lambda.gb_second.arm64: -1.0 is not allowed; allowed: a number >= 0",
        ),
        ('{"lambda": {"gb_second": {"arm64": [{"usd": -1.0}]}}}', r"prices: lambda.gb_second.arm64.0.usd: -1.0"),
        ('{"lambda": {"gb_second": {"arm64": []}}}', r"prices: lambda.gb_second.arm64: \[\] is not allowed"),
        ('{"lambda": {"gb_second": {"arm64": [{"usd": 1, "up_to": 5}]}}}', r"\[5.0\] .*null in the last"),
        (
            '{"lambda": {"gb_second": {"arm64": [{"usd": 1, "up_to": 5}, {"usd": 1, "up_to": 4}, {"usd": 1}]}}}',
            r"\[5.0, 4.0, None\] .*rising from tier to tier",
        ),
        ('{"lambda": {"granularity": 0}}', "prices: lambda.granularity: 0.0 is not allowed; allowed: a number of seconds > 0"),
        (
            '{"lambda": {"payload_limit_bytes": 0}}',
            "prices: lambda.payload_limit_bytes: 0 is not allowed; allowed: an integer >= 1",
        ),
        ('{"load_balancer": {"lcu_gb_per_hour": 0}}', "prices: load_balancer.lcu_gb_per_hour: 0.0"),
        ('{"buffer": {"tasks": -1}}', "prices: buffer.tasks: -1 is not allowed"),
        ('{"buffer": {"cache_mode": "disk"}}', "Invalid enum value 'disk'"),
        ('{"buffer": {"cache_node_type": "huge"}}', "prices: buffer.cache_node_type: 'huge' .* one of cache.t4g.micro"),
        ('{"buffer": {"architecture": "vax"}}', "prices: buffer.architecture: 'vax' .* one of x86_64, arm64"),
        ('{"currency": "EUR"}', "Invalid enum value 'EUR'"),
        (
            '{"lambda": {"gb_second": {"x86": [{"up_to": null, "usd": 1.0}]}}}',
            "prices: lambda.gb_second: 'x86' is not allowed; allowed: one of x86_64, arm64; did you mean x86_64",
        ),
        ('{"lambda": {"provisioned": {"vax": {"reserved_gb_second": 1, "gb_second": 1}}}}', "'vax' .* one of x86_64, arm64$"),
        ('{"fargate": {"gb_hour": {"aarch64": 0.01}}}', "prices: fargate.gb_hour: 'aarch64' .* did you mean arm64"),
        ('{"lambda": {"gb_second": {"arm64": [{"usd": 1e-5, "upto": 1}]}}}', "unknown field `upto`"),
        ('{"lambda": {"snap_start": {"restore": 1}}}', "unknown field `restore`"),
        ('{"stacks": {"nat": {"gateways": 1}}}', "prices: stacks.nat: .*unknown field `gateways`"),
        (
            '{"lambda": {"request": 0.2}}',
            "prices: lambda.request: 0.2 is not allowed; allowed: 0, or 2e-12 to 0.0002, as the dated one is 2e-07; "
            "did you mean 2e-07, if 0.2 per million is meant",
        ),
        ('{"lambda": {"gb_second": {"arm64": 0.06}}}', "lambda.gb_second.arm64: 0.06 .* dated one is 1.*e-05$"),
        ('{"lambda": {"gb_second": {"arm64": [{"usd": 13.3}]}}}', "lambda.gb_second.arm64: 13.3 .* did you mean 1.33e-05"),
        ('{"machines": {"g5.xlarge": 1e-6}}', "prices: machines.g5.xlarge: 1e-06 .* dated one is 1.006"),
        ('{"region": "eu-central-1"}', "prices: region: 'eu-central-1' is not allowed; allowed: us-east-1, .* with its prices"),
        ('{"region": "eu-central-1", "buffer": {"tasks": 1}}', "prices: region: 'eu-central-1'"),
    ],
)
def test_a_bad_price_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_prices(text.encode())


def test_a_machine_of_ones_own_may_cost_next_to_nothing() -> None:
    text = '{"machines": {"g5.xlarge": 0.0005}, "fargate": {"gb_hour": {"arm64": 1e-5}}}'
    assert read_prices(text.encode()).machine("g5.xlarge") == 0.0005


def test_what_has_no_price_is_refused() -> None:
    prices = default_prices()
    with pytest.raises(InvalidInput, match="machine: 'abacus' is not allowed; allowed: one of g4dn.xlarge"):
        prices.machine("abacus")
    with pytest.raises(InvalidInput, match="architecture: 'vax' is not allowed; allowed: one of x86_64, arm64"):
        prices.gb_second("vax")
    with pytest.raises(InvalidInput, match="architecture: 'vax'"):
        prices.provisioned(1024, "vax")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cold_start_probability": 1.1}, "cold_start_probability: 1.1 is not allowed; allowed: 0 to 1"),
        ({"init_duration": -1.0}, "init_duration: -1.0 is not allowed; allowed: seconds >= 0"),
        ({"payload_bytes": -1}, "payload_bytes: -1 is not allowed; allowed: bytes >= 0"),
        ({"answer_bytes": -2}, "answer_bytes: -2"),
        ({"arrival_rate": 0.0}, "arrival_rate: 0.0 is not allowed; allowed: requests/s > 0"),
        ({"granularity": 0.0}, "granularity: 0.0"),
    ],
)
def test_a_cost_that_makes_no_sense_names_its_field(options: dict[str, float], message: str) -> None:
    asked = {name: value for name, value in options.items() if name in ("init_duration", "arrival_rate")}
    billed = {name: value for name, value in options.items() if name not in asked}
    with pytest.raises(InvalidInput, match=message):
        predict_cost(always(1), service([0.1]), Billing(**billed), **asked)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="arrival_rate: 0"):
        BatchCost().in_all(0.0)


# --- where the buffer pays


def test_a_saving_that_does_not_change_has_its_closed_form() -> None:
    closed = 100 / SECONDS_PER_MONTH / 2e-7
    for start in (1e-3, 1.0, 5e3):
        assert solve_break_even(lambda rate: 2e-7, 100, start=start) == pytest.approx(closed, rel=1e-3)


def test_a_saving_that_grows_with_the_rate_pays_later_than_its_value_now_says() -> None:
    def saving(rate: float) -> float:
        return 1e-6 * rate / (rate + 50)

    rate = solve_break_even(saving, 100, start=500, tolerance=1e-6) or 0.0
    s = 100 / SECONDS_PER_MONTH / 1e-6  # r^2 = s (r + 50)
    assert rate == pytest.approx(s / 2 + math.sqrt(s * s / 4 + 50 * s), rel=1e-5)
    now = 100 / SECONDS_PER_MONTH / saving(500)
    assert rate > now


def test_the_buffer_pays_at_the_rate_that_is_returned_and_not_much_below() -> None:
    def saving(rate: float) -> float:
        return 1e-6 * math.tanh(rate / 30) - 2e-8

    rate = solve_break_even(saving, 105)
    assert rate is not None
    assert rate * SECONDS_PER_MONTH * saving(rate) >= 105 > 0.998 * rate * SECONDS_PER_MONTH * saving(0.998 * rate)


def test_a_saving_that_never_pays_has_no_break_even() -> None:
    assert solve_break_even(lambda rate: -1e-7, 100) is None
    assert solve_break_even(lambda rate: 1e-12, 100, highest=1e4) is None


def test_no_saving_is_asked_for_where_the_largest_would_not_pay() -> None:
    asked: list[float] = []

    def saving(rate: float) -> float:
        asked.append(rate)
        return 1e-6 * math.tanh(rate / 30)

    told = solve_break_even(saving, 105, start=2.5, largest=1e-6)
    least, n = 105 / SECONDS_PER_MONTH / 1e-6, len(asked)
    assert n <= 8 and min(asked) >= least
    assert told == solve_break_even(saving, 105, start=2.5) and len(asked) > 2 * n + 3


def test_what_costs_nothing_pays_at_once() -> None:
    assert solve_break_even(lambda rate: 1e-7, 0.0, lowest=0.01) == 0.01
    assert solve_break_even(lambda rate: 0.0, 0.0) is None  # but there is nothing to gain either


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed_per_month": -1.0}, "fixed_per_month: -1.0 is not allowed; allowed: USD >= 0"),
        ({"lowest": 10.0, "highest": 1.0}, r"lowest: 10.0 is not allowed; allowed: requests/s > 0 and below highest \(1\)"),
        ({"start": 1e9}, r"start: 1000000000.0 is not allowed; allowed: 1e-06 to 100000 requests/s"),
        ({"tolerance": 0.0}, "tolerance: 0.0"),
    ],
)
def test_a_break_even_that_makes_no_sense_names_its_field(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        solve_break_even(lambda rate: 1e-7, **({"fixed_per_month": 100.0} | options))


def test_a_stack_is_named_and_made_of_parts_of_the_buffer() -> None:
    prices = default_prices()
    assert prices.on("nat") == prices
    for first, then in itertools.product(prices.stacks, repeat=2):
        assert prices.on(first).on(then).buffer == prices.on(then).buffer
    small = prices.on("small")
    assert small.fixed_terms()["cache"] == 0 and small.cache_per_request(1000, 1000) == 0 == small.network_per_request(1000, 0)
    assert sum(small.fixed_terms().values()) < sum(prices.on("public").fixed_terms().values()) < sum(prices.fixed_terms().values())
    with pytest.raises(
        InvalidInput, match="stack: 'tiny' is not allowed; allowed: one of nat, lambda-endpoint, endpoints, public, small"
    ):
        prices.on("tiny")
    with pytest.raises(InvalidInput, match=r"stacks.mine: .* allowed: parts of the buffer \(.*`taks`"):
        overlaid(stacks={"mine": {"taks": 1}})
