"""The documents the rooms talk by: versioned JSON there and back, in seconds, MB and UTC.

    ArrivalDocument   what the optimizer knows of the arrivals     profiler, optimizer -> optimizer
    ServiceProfile    how long a batch takes and what is billed    profiler -> optimizer
    PolicyDocument    a ``Policy``; ``null`` in hold is inf        inside a Plan
    Plan              what the buffer is to do for one model       optimizer -> buffer

``read`` checks a document completely and names the field that is wrong; ``write`` is its inverse.
"""

from __future__ import annotations

import codecs
import hashlib
import math
import re
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from sluice.batching.durations import LONGEST
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import INF, MAX_BESIDE, MAX_HOLD, MAX_ROWS, MAX_SERVERS, MAX_SLACK, Parameter, Policy
from sluice.batching.urls import refused_url, without_password

VERSION = 1
DIGEST_LENGTH = 16  # hexadecimal digits
WORKER_SCHEMES = ("http://", "https://")
SAGEMAKER_SCHEME = "sagemaker://"
MACHINE_SCHEMES = (*WORKER_SCHEMES, SAGEMAKER_SCHEME)  # of what is paid by the hour, and not by its use
_SAGEMAKER = re.compile(SAGEMAKER_SCHEME + r"{0}(/{0})?".format("[A-Za-z0-9](-*[A-Za-z0-9]){0,62}"))
"""Names of endpoints and of production variants (Amazon SageMaker API reference, CreateEndpoint and ProductionVariant)."""
PLACEHOLDER = "{memory_mb}"
"""Stands in a function's name for its memory size, where there is a function of each."""
_FUNCTION = re.compile(r"[A-Za-z0-9:$_-]+")
"""The characters of a name, ``name:alias`` or ARN (AWS Lambda API reference, Invoke): no dot, so no address that lacks its http://."""
SIZE_SOURCES = ("header", "bytes", "json")
SIZE_HEADER = "sluice-size"
_HEADER = re.compile(r"[a-z0-9-]{1,128}")
MAX_ROUTES = 256
MAX_CLASSES = 256
MIN_PING, MAX_PING = 1.0, 86400.0  # s from one ping of a function to the next
MAX_STARTED = 100  # environments that a buffer starts for a route
MAX_WORKERS = 1024  # of a route


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the records that stand alone as a file."""

    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InvalidInput("version", self.version, f"{VERSION}; what a later Sluice wrote takes a later Sluice to read")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the records that only occur inside a document."""


def percentile_name(percentile: float) -> str:
    """``p95``, ``p99.9``: every digit, since p99.99999 is not p100."""
    return f"p{percentile:.15g}"


def quantile_of(percentile: float) -> float:
    """The quantile, 0 to 1, that a percentile, 0 to 100, is."""
    require(0 < percentile < 100, "percentile", percentile, "a number strictly between 0 and 100")
    return percentile / 100


class Slo(_Part, frozen=True):
    """``percentile`` percent of the requests are answered within ``latency`` seconds."""

    latency: float
    percentile: float = 95.0

    def __post_init__(self) -> None:
        require(0 < self.latency < INF, "slo.latency", self.latency, "a number of seconds > 0")
        require(0 < self.percentile < 100, "slo.percentile", self.percentile, "a number strictly between 0 and 100")
        meant = f"percent of the requests, at least 1; did you mean {100 * self.percentile:g}?"
        require(self.percentile >= 1, "slo.percentile", self.percentile, meant)

    @property
    def name(self) -> str:
        """The name of the percentile."""
        return percentile_name(self.percentile)

    @property
    def quantile(self) -> float:
        """The share of the requests that must be in time, 0 to 1."""
        return quantile_of(self.percentile)

    @property
    def error_budget(self) -> float:
        """The share of the requests that may be late, 0 to 1."""
        return (100 - self.percentile) / 100  # 0.05 of 95, where 1 - 0.95 is not

    def within(self, headroom: float) -> Slo:
        """The same with this part of the latency kept free."""
        require(0 <= headroom < 1, "headroom", headroom, "a fraction of the SLO, 0 <= headroom < 1")
        return Slo(self.latency * (1 - headroom), self.percentile)

    def sooner(self, seconds: float) -> Slo:
        """The same with so many seconds kept free; where none are left, of a latency that no batch has."""
        return Slo(max(self.latency - seconds, 1e-12), self.percentile)


class ArrivalMatrices(_Part, frozen=True):
    """The matrices of a MAP (1/s), as those of an ``ArrivalDocument``."""

    D0: list[list[float]]
    D1: list[list[float]]

    def __post_init__(self) -> None:
        _require_map(self.D0, self.D1)


class ArrivalDocument(Document, frozen=True, kw_only=True):
    """A fitted arrival process: the matrices of a MAP (1/s), what they were fitted from and how well.

    ``D0`` holds the hidden transitions (negative diagonal), ``D1`` those with an arrival; the rows of ``D0 + D1`` sum to zero.
    ``without`` has what the process would be without each block in turn of what it was fitted from: how surely it is known.
    ``recorded_us`` are the times between the arrivals that it was fitted from, in whole microseconds.
    """

    model: str
    arrival_rate: float
    D0: list[list[float]]
    D1: list[list[float]]
    fitted_from: dict[str, Any] = {}
    goodness: dict[str, Any] = {}
    without: list[ArrivalMatrices] = []
    recorded_us: list[int] = []

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model in ("poisson", "mmpp", "map"), "model", self.model, "poisson, mmpp or map")
        require(0 < self.arrival_rate < INF, "arrival_rate", self.arrival_rate, "requests per second > 0")
        _require_map(self.D0, self.D1)
        require(len(self.without) != 1, "without", len(self.without), "at least two blocks, or none")
        least = min(self.recorded_us, default=0)
        require(least >= 0, "recorded_us", least, "whole microseconds >= 0")
        require(not self.recorded_us or any(self.recorded_us), "recorded_us", "all 0", "arrivals at different times")

    def alone(self) -> ArrivalDocument:
        """The same but for how surely it is known and what was recorded, as a plan keeps it."""
        return msgspec.structs.replace(self, without=[], recorded_us=[])


def _require_map(D0: list[list[float]], D1: list[list[float]]) -> None:
    n = len(D0)
    require(n > 0, "D0", D0, "at least one row")
    require(len(D1) == n, "D1", len(D1), f"as many rows as D0 has ({n})")
    for i, (hidden, arrival) in enumerate(zip(D0, D1, strict=True)):
        require(len(hidden) == n, f"D0[{i}]", hidden, f"{n} numbers")
        require(len(arrival) == n, f"D1[{i}]", arrival, f"{n} numbers")
        require(hidden[i] < 0, f"D0[{i}][{i}]", hidden[i], "a negative rate")
        for j in range(n):
            require(j == i or hidden[j] >= 0, f"D0[{i}][{j}]", hidden[j], "a rate >= 0 off the diagonal")
            require(arrival[j] >= 0, f"D1[{i}][{j}]", arrival[j], "a rate >= 0")
        excess = sum(hidden) + sum(arrival)
        require(abs(excess) <= 1e-8 * -hidden[i], f"row {i} of D0 + D1", excess, "a sum of 0")


class ServiceTime(_Part, frozen=True):
    """A measured duration in seconds: its mean over ``n`` runs and points ``(q, seconds)`` of its quantile function."""

    mean: float
    quantiles: list[tuple[float, float]] = []
    n: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.mean < INF, "service_time.mean", self.mean, "a number of seconds >= 0")
        require(self.n >= 1, "service_time.n", self.n, "an integer >= 1")
        previous = (0.0, 0.0)
        for i, (q, seconds) in enumerate(self.quantiles):
            field = f"service_time.quantiles[{i}]"
            require(0 <= q <= 1 and 0 <= seconds < INF, field, (q, seconds), "a quantile in 0..1 and a number of seconds >= 0")
            require(i == 0 or (q > previous[0] and seconds >= previous[1]), field, (q, seconds), f"rising from {previous}")
            previous = (q, seconds)


class ProfilePoint(_Part, frozen=True):
    """One measured setting.

    ``size`` is that of every request of the batch, in the model's own unit (tokens, pixels, bytes), ``None`` where requests are not
    told apart by size. ``service_time`` is spent inside the function, ``billed_duration`` (mean, seconds) is what is paid for it,
    ``overhead`` (mean, seconds) is what an invocation takes beyond ``service_time`` as its client sees it; ``energy`` (mean, J) is
    what a batch takes of the GPUs, where that was measured.
    """

    memory_mb: int
    batch_size: int
    service_time: ServiceTime
    billed_duration: float
    overhead: float = 0.0
    energy: float | None = None
    size: float | None = None

    def __post_init__(self) -> None:
        require(self.memory_mb >= 1, "memory_mb", self.memory_mb, "an integer >= 1")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "an integer >= 1")
        require(0 <= self.billed_duration < INF, "billed_duration", self.billed_duration, "a number of seconds >= 0")
        require(0 <= self.overhead < INF, "overhead", self.overhead, "a number of seconds >= 0")
        require(self.energy is None or 0 <= self.energy < INF, "energy", self.energy, "a number of joules >= 0, or null")
        require(self.size is None or 0 <= self.size < INF, "size", self.size, "a size >= 0, or null")


class LinearServiceTime(_Part, frozen=True):
    """l(b) = intercept + slope * b seconds, as the papers give it."""

    intercept: float
    slope: float

    def __post_init__(self) -> None:
        require(0 <= self.intercept < INF, "service_time.intercept", self.intercept, "a number of seconds >= 0")
        require(0 <= self.slope < INF, "service_time.slope", self.slope, "a number of seconds >= 0")
        require(self.intercept + self.slope > 0, "service_time", self, "an intercept or a slope > 0")


class ServiceProfile(Document, frozen=True, kw_only=True):
    """Service times of a function: measured ``points``, or a linear law in ``service_time`` that holds at every memory size.

    Either all points have a ``size`` or none has. A ``function`` with points of several memory sizes is named with ``{memory_mb}``,
    as there is one of each. ``init`` is the cold start's INIT duration by memory size in MB; ``one_by_one`` says why the function
    computes the requests of a batch one by one, ``None`` where it did not say that it does. ``model`` is the name of the function's
    model; where it is not given it is that of ``model_of``. ``way`` is what a request takes on its way through the buffer and the
    network beyond an invocation, s: all service times are behind it; ``None`` where nobody measured it. ``request_bytes`` and
    ``answer_bytes`` are the sizes of one request's body and of its answer's.
    """

    function: str
    model: str = ""
    points: list[ProfilePoint] = []
    service_time: LinearServiceTime | None = None
    init: dict[int, ServiceTime] = {}
    max_batch_size: int | None = None
    measured_at: str | None = None
    one_by_one: str | None = None
    way: ServiceTime | None = None
    request_bytes: int | None = None
    answer_bytes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "model", self.model or model_of(self.function))
        for name, count in (("request_bytes", self.request_bytes), ("answer_bytes", self.answer_bytes)):
            require(count is None or count >= 0, name, count, "bytes >= 0, or null")
        require(
            bool(self.points) != (self.service_time is not None), "points", self.points, "points, or else a linear service_time"
        )
        require(self.max_batch_size is None or self.max_batch_size >= 1, "max_batch_size", self.max_batch_size, "an integer >= 1")
        seen: set[tuple[int, int, float | None]] = set()
        for point in self.points:
            key = (point.memory_mb, point.batch_size, point.size)
            setting, once = f"memory_mb {key[0]}, batch_size {key[1]}", "each pair once"
            if point.size is not None:
                setting, once = f"{setting}, size {point.size:g}", "each triple once"
            require(key not in seen, "points", setting, once)
            seen.add(key)
        unsized = sum(point.size is None for point in self.points)
        allowed = "a size of every point, or of none"
        require(unsized in (0, len(self.points)), "points", f"{unsized} of {len(self.points)} without a size", allowed)
        n, shown = len(self.memory_sizes), without_password(self.function)
        allowed = f"a name with {PLACEHOLDER} in it, since there are points of {n} memory sizes"
        require(n < 2 or PLACEHOLDER in self.function, "function", shown, allowed)

    @property
    def without_way(self) -> ServiceProfile:
        """What takes the server's time: the way to it and back keeps it busy for none."""
        return msgspec.structs.replace(self, way=None)

    @property
    def memory_sizes(self) -> list[int]:
        """The measured memory sizes in MB, ascending; empty for a linear profile."""
        return sorted({point.memory_mb for point in self.points})

    @property
    def sizes(self) -> list[float]:
        """The measured sizes of requests, ascending; empty where requests were not told apart by size."""
        return sorted({point.size for point in self.points if point.size is not None})

    def of_size(self, size: float) -> ServiceProfile:
        """The points of one measured size, as a profile without sizes; raises ``InvalidInput`` where it was not measured."""
        allowed = "one of the profile's: " + (", ".join(f"{known:g}" for known in self.sizes) or "none, it has no sizes")
        require(size in self.sizes, "size", size, allowed)
        points = [msgspec.structs.replace(point, size=None) for point in self.points if point.size == size]
        return msgspec.structs.replace(self, points=points)

    def behind(self, seconds: float) -> ServiceProfile:
        """The same function behind something on the way that takes so many more seconds, as a buffer does.

        Raises
        ------
        InvalidInput
            No number of seconds >= 0; more than 0 and a linear profile, which has no overhead.
        """
        require(0 <= seconds < INF, "overhead", seconds, "a number of seconds >= 0")
        require(bool(self.points) or not seconds, "overhead", seconds, "0 beside a linear profile: its intercept may have it")
        points = [msgspec.structs.replace(point, overhead=point.overhead + seconds) for point in self.points]
        return msgspec.structs.replace(self, points=points)

    def points_at(self, memory_mb: int) -> list[ProfilePoint]:
        """The points of one memory size, by batch size and size of requests; raises ``InvalidInput`` where it was not measured."""
        found = sorted((p for p in self.points if p.memory_mb == memory_mb), key=lambda p: (p.batch_size, p.size or 0))
        require(bool(found), "memory_mb", memory_mb, "one of the profile's: " + ", ".join(map(str, self.memory_sizes)))
        return found


def model_of(function: str) -> str:
    """The name of a function's model: ``mlp`` of ``mlp-{memory_mb}:live``, ``mlp-512``, or an ARN that ends so; of no address."""
    if "://" in function:
        return ""
    name = re.sub(r"^arn:[^:]*:lambda:[^:]*:[^:]*:function:", "", function).partition(":")[0]
    return re.sub(r"[-_](\{memory_mb\}|\d+)$", "", name).replace(PLACEHOLDER, "") or name


def memory_named(function: str, name: str) -> int | None:
    """The memory size in MB at which ``function``, with ``{memory_mb}`` in it, is called ``name``; ``None`` where at none."""
    before, _, after = function.partition(PLACEHOLDER)
    size = name[len(before) : len(name) - len(after)]
    return int(size) if size.isdecimal() and name == function.replace(PLACEHOLDER, size) else None


class PolicyDocument(_Part, frozen=True):
    """A ``Policy`` as JSON has it: ``null`` in ``hold`` is inf, and ``columns`` are left out where there is one.

    It has ``MAX_ROWS`` rows at most, finite holds of ``MAX_HOLD`` seconds, ``MAX_SERVERS`` servers (``policy.py``).
    """

    hold: list[float | None]
    take: list[int]
    servers: int | None = None
    drop_after: float | None = None
    kind: str = "table"
    parameters: dict[str, Parameter] = {}
    columns: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.columns == 1:
            msgspec.structs.force_setattr(self, "columns", msgspec.UNSET)
        require(len(self.hold) <= MAX_ROWS, "hold", len(self.hold), f"at most {MAX_ROWS} rows")
        longest = max((h for h in self.hold if h is not None), default=0.0)
        if longest > MAX_HOLD:
            raise InvalidInput(f"hold[{self.hold.index(longest)}]", longest, f"at most {MAX_HOLD:g} s, or null for ever")
        require(self.servers is None or self.servers <= MAX_SERVERS, "servers", self.servers, f"at most {MAX_SERVERS}, or null")
        self.policy()

    @classmethod
    def of(cls, policy: Policy) -> PolicyDocument:
        """The document of a policy; raises ``InvalidInput`` for one with tables beside it, each of which is a ``Beside``."""
        require(not policy.beside, "beside", len(policy.beside), "no tables: they are no part of this document")
        hold = [None if h == INF else h for h in policy.hold]
        parameters = dict(policy.parameters)
        return cls(hold, list(policy.take), policy.servers, policy.drop_after, policy.kind, parameters, policy.columns)

    def policy(self) -> Policy:
        """The policy itself."""
        hold = [INF if h is None else h for h in self.hold]
        columns = 1 if self.columns is msgspec.UNSET else self.columns
        return Policy(hold, self.take, self.servers, self.drop_after, self.kind, self.parameters, columns=columns)


class Prediction(_Part, frozen=True):
    """What the optimizer expects of a plan.

    ``latency`` are quantiles in seconds by name (``"p95"``), of all requests: one that more of them miss than it leaves is not
    there. ``cost_per_request`` is in USD, ``null`` for machines that are there and paid for anyway. ``violations`` is the share of
    the requests that are not answered within the plan's SLO, ``null`` where it was not worked out. ``cost_without_batching`` is
    what a request would cost (USD) where each leaves alone, at the memory size that suits that best; not there where nobody asked.
    """

    latency: dict[str, float]
    cost_per_request: float | None
    mean_batch_size: float
    violations: float | None = None
    cost_without_batching: float | msgspec.UnsetType = msgspec.UNSET


class Beside(_Part, frozen=True):
    """A function beside another, and the table by which it gets batches whenever the tables before it release none."""

    function: str
    policy: PolicyDocument


class WarmEnvironments(_Part, frozen=True, omit_defaults=True):
    """Environments of a function that are there whether or not a request comes.

    ``provisioned`` ones, paid by the hour, which are deployed beside the buffer (docs/deploy.md); or as many as are ``pinged`` at
    once by the buffer, when the plan comes into force and every ``pinged_every`` seconds.
    """

    provisioned: int = 0
    pinged_every: float = 0.0
    pinged: int = 1

    def __post_init__(self) -> None:
        allowed = f"an integer from 1 to {MAX_SERVERS}, or 0 beside pinged_every"
        require(0 <= self.provisioned <= MAX_SERVERS, "warm.provisioned", self.provisioned, allowed)
        require(self.provisioned > 0 or self.pinged_every > 0, "warm.provisioned", self.provisioned, allowed)
        allowed = f"seconds from {MIN_PING:g} to {MAX_PING:g}" if not self.provisioned else "none beside provisioned environments"
        pinged = self.pinged_every == 0 if self.provisioned else MIN_PING <= self.pinged_every <= MAX_PING
        require(pinged, "warm.pinged_every", self.pinged_every, allowed)
        allowed = f"an integer from 1 to {MAX_STARTED}" if not self.provisioned else "none beside provisioned environments"
        pinged = self.pinged == 1 if self.provisioned else 1 <= self.pinged <= MAX_STARTED
        require(pinged, "warm.pinged", self.pinged, allowed)

    @property
    def number(self) -> int:
        """How many are kept."""
        return self.provisioned or self.pinged


class Route(_Part, frozen=True):
    """One way to the answers of a model: a variant of it on a group of workers, with a table of its own.

    ``name`` names the queue, so that it should stay the same from plan to plan. ``share`` is the part of the model's requests that
    take this route. ``variant`` is what the function calls the model, where it is not the plan's ``model``; ``accuracy`` is the
    variant's, in percent. ``function``, ``policy``, ``beside``, ``warm`` and ``started`` are as in ``Plan``. ``up_to`` is
    the largest size that takes this route, in a plan that has a ``size``; ``None`` of the last one.
    """

    name: str
    function: str
    policy: PolicyDocument
    share: float
    variant: str = ""
    accuracy: float | None = None
    beside: list[Beside] = []
    up_to: float | None = None
    warm: WarmEnvironments | msgspec.UnsetType = msgspec.UNSET
    started: int | msgspec.UnsetType = msgspec.UNSET

    def rule(self) -> Policy:
        """The rule of the route's queue: its table with those beside it."""
        return replace(self.policy.policy(), beside=[beside.policy.policy() for beside in self.beside])

    @property
    def functions(self) -> list[str]:
        """The function of each table of ``rule``."""
        return [self.function, *(beside.function for beside in self.beside)]

    @property
    def pinged(self) -> WarmEnvironments | None:
        """What the buffer keeps of each function by pings."""
        return self.warm if self.warm and self.warm.pinged_every else None

    @property
    def there_first(self) -> int:
        """How many environments of each function the buffer has there before requests ask for them."""
        return self.pinged.pinged if self.pinged else self.started or 0

    @property
    def alone(self) -> tuple[str, float]:
        """Where a request goes that nobody follows, and after how many seconds; of a table with columns in its first."""
        holds = [table.hold[table.columns] for table in self.rule().tables]
        first = holds.index(min(holds))
        return self.functions[first], holds[first]


class RequestSize(_Part, frozen=True):
    """How the size of a request is read: the number it is told in the model's own unit, or a length.

    ``by`` is ``"header"`` (``name`` is the header's, ``sluice-size`` unless given; a number), ``"bytes"`` (the length of the body;
    no ``name``) or ``"json"`` (``name`` is a path into the JSON body, of keys and of positions in lists with dots between: a number
    there is the size, of a string its characters are, of a list its entries).
    """

    by: str
    name: str = ""

    def __post_init__(self) -> None:
        require(self.by in SIZE_SOURCES, "size.by", self.by, ", ".join(SIZE_SOURCES))
        if self.by == "header":
            name = self.name.lower() or SIZE_HEADER
            require(_HEADER.fullmatch(name) is not None, "size.name", self.name, "the name of a header: 1 to 128 of a-z 0-9 -")
            msgspec.structs.force_setattr(self, "name", name)
        elif self.by == "json":
            allowed = "a path such as inputs.0.shape.1: 1 to 16 keys or positions with dots between, 256 characters at most"
            keys = self.name.split(".")
            readable = self.name.isprintable() and not {'"', "\\"}.intersection(self.name)
            require(readable and len(self.name) <= 256 and len(keys) <= 16 and all(keys), "size.name", self.name, allowed)
        else:
            require(not self.name, "size.name", self.name, "none beside bytes: it is the length of the body")


class RequestClass(_Part, frozen=True, omit_defaults=True):
    """Requests with a promise of their own in the queue of a plan.

    ``slack`` is how many seconds longer one of them may wait than the tables of its queue say, or less, below 0 (``policy.py``).
    Where it is not given it is what ``slo`` has beyond the promise that these tables are made for (``Plan.promised``). ``slo`` is
    what the buffer reports of the class; a class without one has a slack and no promise: it fills batches that leave for others.
    ``route`` is the name of the plan's route that its requests take, ``""`` where classes choose no routes.
    """

    name: str
    slo: Slo | None = None
    slack: float | None = None
    route: str = ""


_UNSAID: dict[str, object] = {"beside": [], "up_to": None}
"""What a route has in its later fields where nothing is said: left out of the digest, so that a plan keeps its identity when the
format grows."""
_CLASS = ("name", "slo", "slack")
"""What a class always has in the digest, in this order."""
_Content = tuple[str, list[Route], Slo | None, list[Slo], int | None, RequestSize | None, list[RequestClass]]


class Plan(Document, frozen=True, kw_only=True):
    """What the buffer is to do for one model.

    A plain plan has a ``function`` and a ``policy``; a routed one has ``routes`` instead, whose shares sum to 1 (within 1e-6).
    ``size`` says how the size of a request is read: a request then takes the first of the routes whose ``up_to`` is at least
    its size, and the last one where it is larger than all or not told; of a plain plan the sizes are recorded. Without
    ``size``, requests are dealt by the shares. Where one of the ``classes`` names a ``route`` all do, and each route is named:
    a request then takes that of its class, and the shares are what is expected. ``function`` is a Lambda function (name,
    ``name:alias`` or ARN), the ``http://`` address of a worker, or those of several identical workers with commas between, or a
    real-time endpoint of SageMaker (``sagemaker://ENDPOINT``). Functions ``beside`` it serve what its table leaves waiting,
    each by a table of its own (``policy.py`` has the rule). ``warm`` are environments that are kept, of Lambda functions by
    tables without servers: of each by pings, or provisioned of one that serves alone. A plan without says nothing of them, nor
    does its digest. So many of each Lambda function are ``started`` by the buffer when the plan comes into force, before requests
    ask for them; before it does so where another plan serves by other functions. ``slo`` is what the buffer reports on,
    ``other_slos`` are kept beside it. Of the ``classes`` of requests one that names none is of the first.
    ``digest`` is the identity of what the buffer is to do: equal for plans that differ in ``predicted``, ``arrivals``, ``made_at``
    and ``started`` alone. It is computed where it is not given, and must agree where it is.
    """

    model: str
    function: str = ""
    policy: PolicyDocument | None = None
    beside: list[Beside] = []
    warm: WarmEnvironments | msgspec.UnsetType = msgspec.UNSET
    started: int | msgspec.UnsetType = msgspec.UNSET
    routes: list[Route] = []
    size: RequestSize | None = None
    slo: Slo | None = None
    other_slos: list[Slo] = []
    classes: list[RequestClass] = []
    memory_mb: int | None = None
    predicted: Prediction | None = None
    arrivals: ArrivalDocument | None = None
    made_at: str | None = None
    digest: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_model("model", self.model)
        if self.routes:
            require(not self.function, "function", without_password(self.function), "none beside routes: each of them has its own")
            require(self.policy is None, "policy", self.policy, "none beside routes: each of them has its own")
            require(not self.beside, "beside", f"{len(self.beside)} functions", "none beside routes: each of them has its own")
            require(not self.warm, "warm", self.warm, "none beside routes: each of them has its own")
            require(not self.started, "started", self.started, "none beside routes: each of them has its own")
            self._check_routes()
        else:
            require(bool(self.function), "function", self.function, "a Lambda function or the address of a worker, or else routes")
            require_function("function", self.function)
            require(self.policy is not None, "policy", self.policy, "a table, or else routes")
            _check_beside("", self.function, self.beside)
            _check_warm("", *self.all_routes)
        for slo in (self.slo, *self.other_slos, *(each.slo for each in self.classes)):
            allowed = f"a number of seconds > 0, at most {LONGEST:g}"  # of what was meant in milliseconds, most is beyond
            require(slo is None or slo.latency <= LONGEST, "slo.latency", slo and slo.latency, allowed)
        self._check_classes()
        msgspec.structs.force_setattr(self, "classes", [self._with_slack(i, each) for i, each in enumerate(self.classes)])
        digest = self._identity()
        require(self.digest in ("", digest), "digest", self.digest, f"{digest}, that of the plan as it stands, or none")
        msgspec.structs.force_setattr(self, "digest", digest)

    def _identity(self) -> str:
        content = (self.model, self.all_routes, self.slo, self.other_slos, self.memory_mb, self.size, self.classes)
        # As it is when it has been read: a number of seconds may be written 1 or 1.0, and so may a parameter, which has no type.
        content = msgspec.json.decode(msgspec.json.encode(content), type=_Content)
        for table in (table for route in content[1] for table in (route.policy, *(beside.policy for beside in route.beside))):
            numbers = {name: float(value) for name, value in table.parameters.items() if not isinstance(value, str)}
            table.parameters.update(numbers)
        model, routes, *rest, size, classes = msgspec.to_builtins(content, order="deterministic")
        routes = [
            {name: value for name, value in route.items() if name != "started" and value != _UNSAID.get(name, ...)}
            for route in routes
        ]
        classes = [dict.fromkeys(_CLASS) | each for each in classes]
        said = (model, routes, *rest, *([] if size is None else [size]), *([{"classes": classes}] if classes else []))
        return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:DIGEST_LENGTH]

    @property
    def all_routes(self) -> list[Route]:
        """The routes; of a plain plan the one route that it is, without a name."""
        if self.policy is None:
            return self.routes
        return [Route("", self.function, self.policy, 1.0, beside=self.beside, warm=self.warm, started=self.started)]

    def _check_routes(self) -> None:
        require(len(self.routes) <= MAX_ROUTES, "routes", len(self.routes), f"at most {MAX_ROUTES}")
        names: set[str] = set()
        for i, route in enumerate(self.routes):
            field = f"routes[{i}]"
            require_model(f"{field}.name", route.name)
            require(route.name not in names, f"{field}.name", route.name, "each name once")
            names.add(route.name)
            require_function(f"{field}.function", route.function)
            require(0 < route.share <= 1, f"{field}.share", route.share, "a part > 0 of the requests; a route of none is left out")
            if route.variant:
                require_model(f"{field}.variant", route.variant)
            allowed = "a percentage from 0 to 100"
            require(route.accuracy is None or 0 <= route.accuracy <= 100, f"{field}.accuracy", route.accuracy, allowed)
            _check_beside(f"{field}.", route.function, route.beside)
            _check_warm(f"{field}.", route)
        self._check_sizes()
        total = math.fsum(route.share for route in self.routes)
        require(abs(total - 1) <= 1e-6, "routes: sum of share", total, "1, within 1e-6")

    @property
    def routed_by_class(self) -> bool:
        """Whether the class of a request chooses its route."""
        return bool(self.classes and self.classes[0].route)

    def promised(self, route: str) -> float | None:
        """Seconds of the promise that a route's tables are made for, ``None`` where there is none.

        The plan's; where classes choose the routes, the strictest that a class of this route has, if one has any.
        """
        own = [each.slo for each in self.classes if each.slo is not None and each.route == route] if self.routed_by_class else []
        promises = own or ([self.slo] if self.slo is not None else [])
        return min((slo.latency for slo in promises), default=None)

    def _check_classes(self) -> None:
        require(len(self.classes) <= MAX_CLASSES, "classes", len(self.classes), f"at most {MAX_CLASSES}")
        names: set[str] = set()
        for i, each in enumerate(self.classes):
            field = f"classes[{i}]"
            require_model(f"{field}.name", each.name)
            require(each.name not in names, f"{field}.name", each.name, "each name once")
            names.add(each.name)
            self._check_route_of(f"{field}.route", each.route)
        if self.routed_by_class:
            require(self.size is None, "size", self.size, "none beside classes that choose their routes")
            chosen = {each.route for each in self.classes}
            for i, route in enumerate(self.routes):
                require(route.name in chosen, f"routes[{i}].name", route.name, "the route of a class, as classes choose the routes")

    def _check_route_of(self, field: str, route: str) -> None:
        """Whether a class may name this route, or none."""
        if not route:
            require(not self.routed_by_class, field, route, "a route of the plan, as other classes name one")
            return
        routes = ", ".join(each.name for each in self.routes) or "none, as the plan has no routes"
        require(any(route == each.name for each in self.routes), field, route, f"a route of the plan: {routes}")
        require(self.routed_by_class, field, route, "none, as other classes name none")

    def _with_slack(self, i: int, each: RequestClass) -> RequestClass:
        """The class with its slack."""
        slack, promised = each.slack, self.promised(each.route)
        if slack is None:
            allowed = "a number of seconds, or else an slo of the class and one of the plan, between which it lies"
            require(each.slo is not None and promised is not None, f"classes[{i}].slack", slack, allowed)
            assert each.slo is not None and promised is not None
            slack = each.slo.latency - promised
        allowed = f"a number of seconds from {-MAX_SLACK:g} to {MAX_SLACK:g}"
        require(abs(slack) <= MAX_SLACK, f"classes[{i}].slack", slack, allowed)
        return msgspec.structs.replace(each, slack=slack)

    def _check_sizes(self) -> None:
        """Whether routes chosen by size are ascending and end without a bound, and the others have none."""
        bounds = [route.up_to for route in self.routes]
        if self.size is None:
            for i, bound in enumerate(bounds):
                require(bound is None, f"routes[{i}].up_to", bound, "none without a size in the plan, which says how it is read")
            return
        *bounded, last = bounds
        require(last is None, f"routes[{len(bounded)}].up_to", last, "none of the last route, which takes whatever is larger")
        previous = None
        for i, bound in enumerate(bounded):
            allowed = "a size >= 0" if previous is None else f"a size > {previous:g}, that of the route before"
            above = bound is not None and 0 <= bound < INF and (previous is None or bound > previous)
            require(above, f"routes[{i}].up_to", bound, allowed)
            previous = bound


def _check_beside(field: str, function: str, beside: list[Beside]) -> None:
    require(len(beside) <= MAX_BESIDE, f"{field}beside", len(beside), f"at most {MAX_BESIDE} functions")
    functions = {function}
    for i, other in enumerate(beside):
        at = f"{field}beside[{i}]"
        require_function(f"{at}.function", other.function)
        require(other.function not in functions, f"{at}.function", without_password(other.function), "each function once")
        functions.add(other.function)
        drop_after = other.policy.drop_after
        require(drop_after is None, f"{at}.policy.drop_after", drop_after, "null: the table that it is beside drops")


def _check_warm(field: str, route: Route) -> None:
    allowed = f"an integer from 0 to {MAX_STARTED}"
    require(0 <= (route.started or 0) <= MAX_STARTED, f"{field}started", route.started, allowed)
    for name, said in (("warm", route.warm), ("started", route.started)):
        if not said:
            continue
        for function in route.functions:
            of = f"none of {without_password(function)}: environments are a Lambda function's"
            require("://" not in function, f"{field}{name}", said, of)
        tables = (route.policy, *(beside.policy for beside in route.beside))
        fixed = any(table.servers is not None for table in tables)
        require(not fixed, f"{field}{name}", said, "none beside a table with servers, which are always there")
    provisioned = route.warm and route.warm.provisioned
    require(not (provisioned and route.beside), f"{field}warm", route.warm, "none where functions are beside one another")
    require(not (route.started and route.warm), f"{field}started", route.started, "none beside environments that are kept warm")


def require_model(field: str, name: str) -> None:
    """Raise ``InvalidInput`` for what no model, class or route may be called."""
    require(re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name) is not None, field, name, "1 to 128 of A-Z a-z 0-9 . _ -")


def require_function(field: str, function: str) -> None:
    """Raise ``InvalidInput`` for what no function is named by; whether one has this name only Lambda knows."""
    allowed = (
        "a Lambda function (name, name:alias or ARN), addresses of workers (http:// or https://) with commas between, "
        "or an endpoint of SageMaker (sagemaker://ENDPOINT or sagemaker://ENDPOINT/VARIANT)"
    )
    if "://" not in function:
        require(_FUNCTION.fullmatch(function) is not None, field, function, allowed)
        return
    shown = refused_url(function)
    require(re.fullmatch(r"[^\s\x00-\x1f\x7f]+", function) is not None, field, shown, allowed)
    if function.startswith(SAGEMAKER_SCHEME):
        require(_SAGEMAKER.fullmatch(function) is not None, field, shown, allowed)
        return
    addresses = function.split(",")
    require(len(addresses) <= MAX_WORKERS, field, f"{len(addresses)} addresses", f"at most {MAX_WORKERS} workers")
    for address in addresses:
        require(_is_reachable(address), field, shown, allowed)


def _is_reachable(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or beyond 65535, brackets that do not close
        return False


Read = TypeVar("Read", bound=Document)


def read(kind: type[Read], data: bytes | str, source: str = "") -> Read:
    """Parse and check a document.

    Raises
    ------
    InvalidInput
        Names the field (behind ``source``, a file name perhaps), its value and what is allowed.
    """
    prefix = f"{source}: " if source else ""
    octets = without_mark(data.encode() if isinstance(data, str) else data)
    try:
        return msgspec.json.decode(octets, type=kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidInput):
            cause = error.__cause__
            path = re.search(r" - at `\$\.?([^`]*)`$", str(error))
            where = f"{path[1]}: " if path else ""
            raise InvalidInput(f"{prefix}{where}{cause.field}", cause.value, cause.allowed) from None
        message, _, path_text = str(error).partition(" - at `$")
        path_text = path_text.rstrip("`").lstrip(".")
        try:
            value = _value_at(msgspec.json.decode(octets), path_text)
        except _UNREADABLE as unreadable:  # what is of another type is also not JSON further on
            raise _not_json(prefix + kind.__name__, octets, unreadable) from None
        unknown = re.fullmatch("Object contains unknown field `(.*)`", message)
        if unknown is not None and isinstance(value, dict) and unknown[1] in value:
            known = _fields_at(msgspec.inspect.type_info(kind), _steps(path_text))
            field = f"{path_text}.{unknown[1]}".lstrip(".")
            raise InvalidInput(f"{prefix}{field}", value[unknown[1]], "no such field, but " + ", ".join(known)) from None
        allowed = (message[0].lower() + message[1:]).replace("object missing", "an object with the")
        raise InvalidInput(f"{prefix}{path_text or kind.__name__}", value, allowed) from None
    except _UNREADABLE as error:
        raise _not_json(prefix + kind.__name__, octets, error) from None


def without_mark(data: bytes) -> bytes:
    """JSON without the byte order mark that some editors put before it."""
    return data.removeprefix(codecs.BOM_UTF8)


def write(document: object) -> bytes:
    """The JSON of a document, or of plain data and records, indented for people."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _not_json(field: str, octets: bytes, error: Exception) -> InvalidInput:
    at = re.search(r"\(byte (\d+)\)$", str(error))
    before = re.search(rb'(?:"(\w+)"\s*:)?\s*(-?)$', octets[: int(at[1])]) if at is not None else None
    found = re.match(rb"(NaN|Infinity)\b", octets[int(at[1]) :]) if at is not None else None
    if at is not None and before is not None and found is not None:
        named = f"{field}: {before[1].decode()}" if before[1] else field
        return InvalidInput(named, (before[2] + found[0]).decode(), f"a number that JSON has (byte {at[1]})")
    return InvalidInput(field, octets.decode("utf-8", "replace"), f"a JSON document ({error})")


def _steps(path: str) -> list[str | int]:
    """The keys and places of a decoder's path such as ``points[1].memory_mb``."""
    return [int(place) if place else key for key, place in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]


def _fields_at(kind: msgspec.inspect.Type, steps: list[str | int]) -> list[str]:
    """The fields of the object to which these steps lead in a document of this kind."""
    match kind:
        case msgspec.inspect.UnionType(types):
            return next((fields for one in types if (fields := _fields_at(one, steps))), [])
        case msgspec.inspect.ListType(each) | msgspec.inspect.VarTupleType(each) if steps:
            return _fields_at(each, steps[1:])
        case msgspec.inspect.StructType(fields=fields) if steps:
            return next((_fields_at(field.type, steps[1:]) for field in fields if field.encode_name == steps[0]), [])
        case msgspec.inspect.StructType(fields=fields):
            return [field.encode_name for field in fields]
    return []


def _value_at(value: Any, path: str) -> Any:
    """The value a decoder's path such as ``points[1].memory_mb`` names; the nearest enclosing one where it is not exact."""
    for step in _steps(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return value
    return value
