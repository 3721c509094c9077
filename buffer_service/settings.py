"""The environment of the buffer, read once at the entry into one record; the only place where settings enter.

Every field is the environment variable ``SLUICE_`` + its name in capitals; ``AWS_*`` variables are read by botocore itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from sluice.batching.durations import LONGEST, seconds
from sluice.batching.errors import InvalidInput
from sluice.batching.log_lines import LogLines
from sluice.batching.urls import refused_url, without_password
from sluice.batching.variables import PREFIX
from sluice.http.machine import memory

LEASE, REQUEST_TIMEOUT = 0.6, 60.0  # s, unless told
LONGEST_LIFE = 7 * 86_400.0  # s, that an answer is kept
PRICES = ("gb_second_usd", "invocation_usd")
NAMESPACE = "sluice"
"""What the keys in Redis begin with unless told otherwise."""


def require_namespace(field: str, namespace: str) -> None:
    """Raise ``InvalidInput`` for what keys may not begin with."""
    if re.fullmatch("[A-Za-z0-9._-]{1,64}", namespace) is None:
        raise InvalidInput(field, namespace, "1 to 64 of the letters A to Z and a to z, digits, . _ -")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this process of the buffer runs. Durations in seconds or with their unit (``200ms``), an hour at most; sizes in bytes.

    Parameters
    ----------
    redis_url
        ``redis://``, ``rediss://`` (TLS) or ``unix://``: of a server, a name that follows the primary, or any node of a cluster;
        ``memory://`` keeps the queues in this process alone.
    namespace
        What the keys in Redis begin with, and ``Deployment`` of the metrics in CloudWatch: deployments that share a Redis, or an
        account, have one each, all processes of a deployment the same.
    spread_routes
        ``yes`` has each route of a model in a slot of its own, so that they lie on different servers of a cluster: for a model with
        more requests than one server takes. ``no`` keeps them together. All processes of a deployment the same.
    plans
        Where the plans are: ``file:PATH`` (a plan, or a folder of them), ``ssm:/path/`` (a parameter a model), or ``redis:``:
        in the Redis of the queues, whence each change is pushed to all processes at once (``sluice plans``).
    plan_interval
        Seconds between two looks at the plans, and at the API keys.
    api_keys
        Where the documents of API keys are, ``file:PATH`` (one, or a folder of them) or ``ssm:/path/``: who asks for a model then
        needs a key. Empty lets everybody in.
    jwt_jwks, jwt_issuer, jwt_audience
        Where the issuer of JSON Web Tokens publishes its keys, an ``https:`` URL or ``file:PATH``, and what its tokens have as
        ``iss`` and ``aud``: who asks for a model then needs a token, or an API key where there are some. Empty knows none.
    host, port
        Where it listens; port 0 chooses one that is free.
    admin_port
        Where ``/metrics``, ``/`` and ``/status`` are then answered, and not at ``port``: for operators of the buffer, not for who
        asks it. 0 answers them at ``port``.
    max_body_bytes, max_queue_length
        Beyond these a request is refused with 413, 429.
    gzip_from
        Answers of so many bytes or more are sent in gzip to who accepts that, as most clients say they do: it takes some 20 us of
        CPU a kilobyte. 0 sends none so. Bodies of requests may be in gzip in any case.
    max_waiting_bytes
        What the requests that wait at this process may take of its memory, what answers of functions may, and what the answers may
        that clients have not taken; beyond it a request is refused with 503, an answer is asked for later, and the client that has
        not taken its answer for the longest is cut off. The default is an eighth of the memory that this process may use.
    header_timeout, body_timeout
        A client that has not sent its headers, its body, by then is cut off; 408.
    keep_alive
        An idle connection of a client is kept so long: longer than a load balancer in front keeps it, or that would send a request
        into a connection that is being closed.
    request_timeout
        A request that is not answered by then gets 504.
    invoke_timeout
        An invocation is given up after it; longer than the function's own timeout.
    lease
        A process that has not been heard of for so long has lost its batches: they go back to the queue. It is heard of three times
        in it. A batch that its process served all the same is answered by whoever is first.
    max_attempts
        Times a request may be lost with its process before it is put aside as dead.
    arrivals_kept
        As many arrival times of each model are kept in Redis, from which ``sluice fit`` learns the traffic; 0 keeps none, nor does
        ``memory://``, where nobody could read them.
    batches_kept
        What was measured of as many batches of each model is kept in Redis, from which ``sluice control`` learns; likewise.
    results_kept, results_bytes, results_life
        Of each model as many answers are kept at the most, of so many bytes together, each for so many seconds, for who prefers to
        fetch his (``Prefer: respond-async``) or asks again with the same ``Idempotency-Key``; 0 keeps none. All processes the same.
    drain_timeout
        What is left unanswered so long after SIGTERM is given up.
    leave_delay
        Between SIGTERM and the end of the listener requests are still taken, for so long, while ``/v2/health/ready`` says 503:
        the time in which who asks it notices. Part of ``drain_timeout``, half of it at the most; 0 closes at once.
    page
        ``on`` answers ``/`` with the live page, for everybody who may send requests; ``off`` does not.
    cloudwatch
        ``on`` writes what happened to each model as lines of CloudWatch's embedded metric format on stdout, every ten seconds, as
        the stack's template has it; ``off`` writes none.
    traces
        ``on`` makes spans of OpenTelemetry, and exports them to where its own variables say (OTEL_EXPORTER_OTLP_ENDPOINT); it needs
        the extra ``otel``. ``off`` makes none, and costs nothing.
    gb_second_usd, invocation_usd
        What a GB-second of a function and an invocation cost (USD), by which the live page reckons what was billed; 0 is not told.
    log_level, log_format
        From which level on lines are logged (``debug``, ``info``, ``warning``, ``error``), as ``text`` or as ``json``.
    """

    redis_url: str = "redis://127.0.0.1:6379/0"
    namespace: str = NAMESPACE
    spread_routes: str = "no"
    plans: str = "file:plans"
    plan_interval: float = 5.0
    api_keys: str = ""
    jwt_jwks: str = ""
    jwt_issuer: str = ""
    jwt_audience: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    admin_port: int = 0
    max_body_bytes: int = 5 * 1024 * 1024
    gzip_from: int = 0
    max_queue_length: int = 10_000
    max_waiting_bytes: int = field(default_factory=lambda: memory() // 8)
    header_timeout: float = 10.0
    body_timeout: float = 10.0
    keep_alive: float = 75.0
    request_timeout: float = REQUEST_TIMEOUT
    invoke_timeout: float = 60.0
    lease: float = LEASE
    max_attempts: int = 3
    arrivals_kept: int = 1_000_000
    batches_kept: int = 100_000
    results_kept: int = 10_000
    results_bytes: int = 64 * 1024 * 1024
    results_life: float = 3600.0
    drain_timeout: float = 30.0
    leave_delay: float = 1.0
    page: str = "on"
    cloudwatch: str = "off"
    traces: str = "off"
    gb_second_usd: float = 0.0
    invocation_usd: float = 0.0
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        if not 0 <= self.leave_delay <= LONGEST:
            raise InvalidInput(PREFIX + "LEAVE_DELAY", self.leave_delay, f"a number of seconds >= 0, at most {LONGEST:g}")
        for name in (f.name for f in fields(self) if isinstance(f.default, float) and f.name not in ("leave_delay", *PRICES)):
            most = LONGEST_LIFE if name == "results_life" else LONGEST  # of what was meant in milliseconds, most is beyond
            if not 0 < getattr(self, name) <= most:
                raise InvalidInput(PREFIX + name.upper(), getattr(self, name), f"a number of seconds > 0, at most {most:g}")
        if self.lease > max(self.request_timeout, LEASE):
            allowed = f"at most {self.request_timeout:g} s ({PREFIX}REQUEST_TIMEOUT), after which nobody waits for what was lost"
            raise InvalidInput(PREFIX + "LEASE", self.lease, allowed)
        for name in ("max_body_bytes", "max_queue_length", "max_waiting_bytes", "max_attempts", "results_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInput(PREFIX + name.upper(), getattr(self, name), "an integer >= 1")
        if self.gzip_from < 0:
            raise InvalidInput(PREFIX + "GZIP_FROM", self.gzip_from, "an integer >= 0; 0 sends no answer in gzip")
        for name in ("arrivals_kept", "batches_kept", "results_kept"):
            if getattr(self, name) < 0:
                raise InvalidInput(PREFIX + name.upper(), getattr(self, name), "an integer >= 0; 0 keeps none")
        if not 0 <= self.port <= 65535:
            raise InvalidInput(PREFIX + "PORT", self.port, "0 to 65535")
        if not 0 <= self.admin_port <= 65535 or 0 < self.admin_port == self.port:
            allowed = f"0 to 65535, and another than {PREFIX}PORT; 0 has no port of its own"
            raise InvalidInput(PREFIX + "ADMIN_PORT", self.admin_port, allowed)
        if not self.host:
            raise InvalidInput(PREFIX + "HOST", self.host, "an address of this machine; 0.0.0.0 is all of them")
        if not self.redis_url.startswith(("redis://", "rediss://", "unix://", "memory://")):
            raise InvalidInput(PREFIX + "REDIS_URL", refused_url(self.redis_url), "redis://, rediss://, unix:// or memory://")
        require_namespace(PREFIX + "NAMESPACE", self.namespace)
        if self.spread_routes not in ("no", "yes"):
            raise InvalidInput(PREFIX + "SPREAD_ROUTES", self.spread_routes, "no or yes")
        for name in PRICES:
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidInput(PREFIX + name.upper(), getattr(self, name), "USD >= 0; 0 is not told")
        if self.page not in ("on", "off"):
            raise InvalidInput(PREFIX + "PAGE", self.page, "on or off")
        for name in ("cloudwatch", "traces"):
            if getattr(self, name) not in ("off", "on"):
                raise InvalidInput(PREFIX + name.upper(), getattr(self, name), "off or on")
        if re.match("file:.|ssm:/|redis:$", self.plans) is None:
            raise InvalidInput(PREFIX + "PLANS", self.plans, "file:PATH, ssm:/path/ or redis:")
        if self.plans == "redis:" and self.redis_url.startswith("memory://"):
            raise InvalidInput(PREFIX + "PLANS", self.plans, f"file:PATH or ssm:/path/ with {PREFIX}REDIS_URL={self.redis_url}")
        if self.api_keys and re.match("file:.|ssm:/", self.api_keys) is None:
            raise InvalidInput(PREFIX + "API_KEYS", self.api_keys, "file:PATH or ssm:/path/; empty lets everybody in")
        if self.jwt_jwks and re.match("file:.|https://.", self.jwt_jwks) is None:
            raise InvalidInput(
                PREFIX + "JWT_JWKS", without_password(self.jwt_jwks), "https://... or file:PATH; empty knows no tokens"
            )
        LogLines(self.log_format, self.log_level).checked()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``SLUICE_*``; an unknown name of that prefix belongs to another room and is left alone."""
        environment = os.environ if environment is None else environment
        kinds = get_type_hints(cls)
        values: dict[str, Any] = {}
        for setting in fields(cls):
            name = PREFIX + setting.name.upper()
            text = environment.get(name)
            if text is None:
                continue
            kind = kinds[setting.name]
            is_duration = kind is float and setting.name not in PRICES
            try:
                values[setting.name] = seconds(text) if is_duration else kind(text)
            except ValueError as error:
                allowed = str(error) if is_duration else "an integer" if kind is int else "a number"
                raise InvalidInput(name, text, allowed) from None
        return cls(**values)


VARIABLES = tuple(PREFIX + setting.name.upper() for setting in fields(Settings))
