"""The dated price list: what a unit of everything that is paid for costs, in USD (docs/model.md, section 3.2).

``prices.json`` beside this module holds the list prices of one region, read on the day and from the sources it names; free tiers,
savings plans and taxes are left out. A file of one's own is laid over it: objects merge, any other value takes the place of the one
it overlays, so that ``{"lambda": {"granularity": 0.1}}`` is a price list that differs in one value. The section ``buffer`` holds no
prices but how much of each thing ``template.yaml`` deploys, and the NAT gateway that its subnets need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from sluice.batching.environments import held_by_ping
from sluice.batching.errors import InvalidInput, require

SECONDS_PER_MONTH = 86400 * 365.25 / 12
HOURS_PER_MONTH = SECONDS_PER_MONTH / 3600
GB = 1024**3  # bytes
PING_SECONDS = 0.005  # billed for a ping: a handler that computes nothing takes 1 to 2 ms on Lambda
DEARER, CHEAPER = 1e3, 1e5  # times the dated price, or one part in; what differs more has another unit
_NAMES = {"x86_64": ("86", "x64", "amd"), "arm64": ("arm", "aarch")}  # parts of what else the architectures are called
_UNPRICED = {"read_on", "region", "currency", "sources", "buffer", "stacks"}  # sections without prices, and numbers that are none:
_UNPRICED |= {"granularity", "payload_limit_bytes", "bytes_per_invocation", "lcu_gb_per_hour", "serverless_least_gb"}


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the price list."""


class Tier(_Record, frozen=True):
    """USD per unit as long as a month's units are at most ``up_to``; ``None`` for all beyond the tier before."""

    usd: float
    up_to: float | None = None


class Provisioned(_Record, frozen=True):
    """USD per GB-second of provisioned concurrency, as it stands and beside that while it runs."""

    reserved_gb_second: float
    gb_second: float


class SnapStart(_Record, frozen=True):
    """USD per GB-second that a snapshot is kept, and per GB restored at a cold start."""

    cache_gb_second: float
    restore_gb: float


class LambdaPrices(_Record, frozen=True):
    """USD per GB-second by architecture, in tiers or as one number, and per request.

    ``granularity`` in seconds is what a duration is rounded up to; ``payload_limit_bytes`` is what a synchronous invocation takes.
    """

    gb_second: dict[str, float | list[Tier]]
    request: float
    granularity: float
    payload_limit_bytes: int
    provisioned: dict[str, Provisioned]
    snap_start: SnapStart


class SchedulerPrices(_Record, frozen=True):
    """USD per invocation that a schedule makes."""

    invocation: float


class LogPrices(_Record, frozen=True):
    """USD per GB of log, and the bytes of log of one invocation, the 26 that are added to each event among them."""

    gb: float
    bytes_per_invocation: float


class FargatePrices(_Record, frozen=True):
    """USD per hour of a vCPU and of a GB of memory, by architecture."""

    vcpu_hour: dict[str, float]
    gb_hour: dict[str, float]


class LoadBalancerPrices(_Record, frozen=True):
    """USD per hour, USD per hour of a capacity unit (LCU), and the GB that one carries in it."""

    hour: float
    lcu_hour: float
    lcu_gb_per_hour: float


class CachePrices(_Record, frozen=True):
    """USD per hour of a node by type; of a serverless cache per GB-hour, of which it bills a least number, and per ECPU (1 KB)."""

    node_hour: dict[str, float]
    serverless_gb_hour: float
    serverless_least_gb: float
    ecpu: float


class NetworkPrices(_Record, frozen=True):
    """USD per hour of a NAT gateway, an endpoint in one zone and a public address, and per GB through the first two."""

    nat_gateway_hour: float
    nat_gateway_gb: float
    endpoint_hour: float
    endpoint_gb: float
    public_address_hour: float


class MonitoringPrices(_Record, frozen=True):
    """USD per month of a metric of one's own, of a metric that an alarm watches, and of a dashboard."""

    metric_month: float
    alarm_metric_month: float
    dashboard_month: float


class Buffer(_Record, frozen=True):
    """What the buffer is made of.

    Its way to the function is an endpoint where there are any, else a NAT gateway, else its own address. ``per_month``,
    where given, is what it is known to cost and replaces the sum of its parts.
    """

    architecture: str
    tasks: int
    vcpu: float
    memory_gb: float
    cache_mode: Literal["node", "serverless", "none"]
    cache_node_type: str
    cache_nodes: int
    nat_gateways: int
    endpoints: int
    public_addresses: int
    metrics: int
    alarm_metrics: int
    dashboards: int
    per_month: float | None = None


@dataclass(frozen=True)
class ProvisionedPrice:
    """One environment of provisioned concurrency: USD per hour that it is held, and beside that USD per second that it runs."""

    reserved_per_hour: float
    per_second: float


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"function": "lambda"}):
    """A dated price list."""

    read_on: str
    region: str
    function: LambdaPrices
    scheduler: SchedulerPrices
    logs: LogPrices
    fargate: FargatePrices
    load_balancer: LoadBalancerPrices
    cache: CachePrices
    network: NetworkPrices
    monitoring: MonitoringPrices
    machines: dict[str, float]
    buffer: Buffer
    stacks: dict[str, dict[str, Any]]
    sources: dict[str, str]
    currency: Literal["USD"] = "USD"

    def gb_second(self, architecture: str, gb_seconds_per_month: float = 0.0) -> float:
        """USD per GB-second: the first tier's, or with a month's volume the mean price of that volume over the tiers."""
        _known("architecture", architecture, self.function.gb_second)
        price = self.function.gb_second[architecture]
        if isinstance(price, float):
            return price
        if gb_seconds_per_month <= 0:
            return price[0].usd
        total, below = 0.0, 0.0
        for tier in price:
            end = np.inf if tier.up_to is None else tier.up_to
            total += tier.usd * (min(gb_seconds_per_month, end) - below)
            below = min(gb_seconds_per_month, end)
        return total / gb_seconds_per_month

    def provisioned(self, memory_mb: int, architecture: str) -> ProvisionedPrice:
        """The price of one environment of provisioned concurrency of ``memory_mb``; requests cost their fee beside it."""
        _known("architecture", architecture, self.function.provisioned)
        price = self.function.provisioned[architecture]
        gb = memory_mb / 1024
        return ProvisionedPrice(3600 * gb * price.reserved_gb_second, gb * price.gb_second)

    def pings(self, number: int, memory_mb: int, architecture: str, by_buffer: bool = True) -> float:
        """USD of so many pings at once of a function of ``memory_mb``, but for the INIT of what they start: fees, logs and time.

        Made by a buffer, or by a schedule, which is paid for it.
        """
        compute = max(PING_SECONDS, held_by_ping(number)) * memory_mb / 1024 * self.gb_second(architecture)
        scheduled = 0.0 if by_buffer else self.scheduler.invocation
        return number * (scheduled + self.function.request + self.logs_per_invocation + compute)

    def machine(self, name: str) -> float:
        """USD per hour of a machine."""
        _known("machine", name, self.machines)
        return self.machines[name]

    @property
    def as_dated(self) -> list[str]:
        """Which prices are those of the dated list, where the region is another than its."""
        dated = _dated()
        return [] if self.region == dated["region"] else _alike(msgspec.to_builtins(self), dated)

    @property
    def told(self) -> str:
        """Where and when they were read, and of another region which are as in the dated list's."""
        alike = f"; as in {_dated()['region']}: {', '.join(self.as_dated)}" if self.as_dated else ""
        return f"{self.region}, read {self.read_on}{alike}"

    @property
    def logs_per_invocation(self) -> float:
        """USD per invocation for its lines of log."""
        return self.logs.bytes_per_invocation / GB * self.logs.gb

    def on(self, stack: str) -> Prices:
        """The same with the buffer deployed in another way, by name; the other ways are what they were.

        Raises
        ------
        InvalidInput
            No such way is in the list.
        """
        _known("stack", stack, self.stacks)
        changes = self.stacks[stack]
        undone = {part: getattr(self.buffer, part) for part in changes}
        stacks = {name: undone | parts for name, parts in self.stacks.items()}
        return msgspec.structs.replace(self, buffer=msgspec.structs.replace(self.buffer, **changes), stacks=stacks)

    def fixed_terms(self) -> dict[str, float]:
        """USD per month that the buffer costs whether it is used or not, by part."""
        buffer = self.buffer
        if buffer.per_month is not None:
            return {"buffer": buffer.per_month}
        vcpu, gb = self.fargate.vcpu_hour[buffer.architecture], self.fargate.gb_hour[buffer.architecture]
        cache = {
            "node": buffer.cache_nodes * self.cache.node_hour.get(buffer.cache_node_type, 0.0),
            "serverless": self.cache.serverless_least_gb * self.cache.serverless_gb_hour,
            "none": 0.0,
        }[buffer.cache_mode]
        return {
            "buffer_tasks": HOURS_PER_MONTH * buffer.tasks * (buffer.vcpu * vcpu + buffer.memory_gb * gb),
            "load_balancer": HOURS_PER_MONTH * self.load_balancer.hour,
            "cache": HOURS_PER_MONTH * cache,
            "network": HOURS_PER_MONTH
            * (
                buffer.nat_gateways * self.network.nat_gateway_hour
                + buffer.endpoints * self.network.endpoint_hour
                + buffer.public_addresses * self.network.public_address_hour
            ),
            "monitoring": buffer.metrics * self.monitoring.metric_month
            + buffer.alarm_metrics * self.monitoring.alarm_metric_month
            + buffer.dashboards * self.monitoring.dashboard_month,
        }

    def cache_per_request(self, payload_bytes: int, answer_bytes: int) -> float:
        """USD of a metered cache: a payload goes in and out, and so do the answers that another task's caller waits for."""
        if self.buffer.cache_mode != "serverless":
            return 0.0
        elsewhere = 1 - 1 / max(self.buffer.tasks, 1)
        return 2 * (payload_bytes + elsewhere * answer_bytes) / 1024 * self.cache.ecpu

    def load_balancer_per_request(self, payload_bytes: int, answer_bytes: int) -> float:
        """USD of capacity units for the bytes of a request; connections are taken to be kept open."""
        return (payload_bytes + answer_bytes) / GB / self.load_balancer.lcu_gb_per_hour * self.load_balancer.lcu_hour

    def network_per_request(self, payload_bytes: int, answer_bytes: int) -> float:
        """USD of what a request goes through to the function, and its answer on its way back."""
        if self.buffer.endpoints:
            price = self.network.endpoint_gb
        else:
            price = self.network.nat_gateway_gb if self.buffer.nat_gateways else 0.0
        return (payload_bytes + answer_bytes) / GB * price


def read_prices(data: bytes, source: str = "prices") -> Prices:
    """The price list in ``data`` (JSON), laid over the dated one.

    Raises
    ------
    InvalidInput
        No JSON object; an unknown field or one of the wrong type; a price below zero, or of another unit; a granularity of zero;
        tiers out of order; a buffer made of what has no price; another region than the dated list's without a price.
    """
    given = _decoded(data, source)
    try:
        prices = msgspec.convert(_overlaid(_dated(), given), Prices)
    except msgspec.ValidationError as error:
        raise InvalidInput(source, given, f"a price list as in prices.json ({error})") from None
    _refuse_negative(given, source, [])
    _refuse_senseless(prices, source)
    _refuse_other_units(given, source)
    dated = _dated()["region"]
    if prices.region != dated and not any(_priced(given)):
        raise InvalidInput(f"{source}: region", prices.region, f"{dated}, that of the dated prices, or another with its prices")
    for name, parts in prices.stacks.items():
        try:
            msgspec.convert(msgspec.to_builtins(prices.buffer) | parts, Buffer)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{source}: stacks.{name}", parts, f"parts of the buffer ({error})") from None
    return prices


@cache
def default_prices() -> Prices:
    """The dated prices that come with this package."""
    return read_prices(b"{}", "prices.json")


@cache
def _dated() -> dict[str, Any]:
    return _decoded(resources.files(__package__).joinpath("prices.json").read_bytes(), "prices.json")


def _decoded(data: bytes, source: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidInput(source, data.decode("utf-8", "replace"), f"a price list as in prices.json ({error})") from None


def _overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = _overlaid(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def _alike(own: dict[str, Any], dated: dict[str, Any], above: str = "") -> list[str]:
    """Where two price lists have the same prices: the names of tables, or of what is in them."""
    names = []
    for name, value in dated.items():
        if name in _UNPRICED or name not in own:
            continue
        if own[name] == value:
            names.append(above + name)
        elif isinstance(value, dict) and isinstance(own[name], dict):
            names += _alike(own[name], value, f"{above}{name}.")
    return names


def _priced(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """The prices of a list by path; those of tiers have that of their table."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _UNPRICED:
                yield from _priced(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for tier in value:
            yield from _priced(tier["usd"], path)
    elif isinstance(value, int | float):
        yield path, value


def _refuse_other_units(given: dict[str, Any], source: str) -> None:
    dated = dict(_priced(_dated()))
    for path, usd in _priced(given):
        usual = dated.get(path, usd)
        if not usd or usual / CHEAPER <= usd <= usual * DEARER:
            continue
        allowed = f"0, or {usual / CHEAPER:g} to {usual * DEARER:g}, as the dated one is {usual:g}"
        each = usd / 1e6
        asked = f"; did you mean {each:g}, if {usd:g} per million is meant?" if usual / 10 <= each <= usual * 10 else ""
        raise InvalidInput(f"{source}: {path}", usd, allowed + asked)


def _refuse_negative(value: object, source: str, path: list[str]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_negative(inner, source, [*path, key])
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _refuse_negative(inner, source, [*path, str(at)])
    elif isinstance(value, int | float):
        require(value >= 0, f"{source}: {'.'.join(path)}", value, "a number >= 0")


def _refuse_senseless(prices: Prices, source: str) -> None:
    function, buffer = prices.function, prices.buffer
    by_architecture: dict[str, dict[str, Any]] = {
        "lambda.gb_second": function.gb_second,
        "lambda.provisioned": function.provisioned,
        "fargate.vcpu_hour": prices.fargate.vcpu_hour,
        "fargate.gb_hour": prices.fargate.gb_hour,
    }
    for table, architectures in by_architecture.items():
        for name in architectures:
            _refuse_unknown_architecture(name, f"{source}: {table}")
    require(function.granularity > 0, f"{source}: lambda.granularity", function.granularity, "a number of seconds > 0")
    limit = function.payload_limit_bytes
    require(limit >= 1, f"{source}: lambda.payload_limit_bytes", limit, "an integer >= 1")
    unit = prices.load_balancer.lcu_gb_per_hour
    require(unit > 0, f"{source}: load_balancer.lcu_gb_per_hour", unit, "GB > 0")
    for architecture, price in function.gb_second.items():
        if isinstance(price, list):
            _refuse_disordered(price, f"{source}: lambda.gb_second.{architecture}")
    for per_hour in (prices.fargate.vcpu_hour, prices.fargate.gb_hour):
        _known(f"{source}: buffer.architecture", buffer.architecture, per_hour)
    if buffer.cache_mode == "node":
        _known(f"{source}: buffer.cache_node_type", buffer.cache_node_type, prices.cache.node_hour)


def _refuse_unknown_architecture(name: str, table: str) -> None:
    meant = [known for known, parts in _NAMES.items() if any(part in name.lower() for part in parts)]
    asked = f"; did you mean {meant[0]}?" if len(meant) == 1 else ""
    require(name in _NAMES, table, name, f"one of {', '.join(_NAMES)}{asked}")


def _refuse_disordered(tiers: list[Tier], name: str) -> None:
    ends = [np.inf if tier.up_to is None else tier.up_to for tier in tiers]
    rising = all(a < b for a, b in pairwise([0.0, *ends]))
    if not tiers or not rising or ends[-1] != np.inf:
        raise InvalidInput(name, [tier.up_to for tier in tiers], "up_to rising from tier to tier, and null in the last")


def _known(field: str, name: str, prices: dict[str, Any]) -> None:
    require(name in prices, field, name, "one of " + ", ".join(prices))
