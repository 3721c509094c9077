"""How a command is told what is billed: the price list, and what the function is billed by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import click
from msgspec import structs

from sluice.batching.errors import require
from sluice.cli.file_kinds import kind_of
from sluice.cli.groups import Command
from sluice.cli.named_files import read_json
from sluice.cli.values import FILE, PERIOD, WAIT, integer, number, offered
from sluice.optimizer.billing import Billing, Prices, default_prices, read_prices
from sluice.optimizer.billing.cold_starts import KEEP_ALIVE

ARCHITECTURES = ("arm64", "x86_64")
MOST_LOG, MOST_PER_MONTH = 10**9, 1e9
"""Bytes of an invocation, and USD."""
"""Of functions; the first is what the template deploys, unless told otherwise."""

LONGEST_KEPT = 86_400.0  # s that an environment which nobody uses may be said to be kept

architecture_option: Callable[[Command], Command] = click.option(
    "--architecture",
    default=ARCHITECTURES[0],
    show_default=True,
    metavar="NAME",
    shell_complete=offered(lambda: ARCHITECTURES),
    help=f"Processors of the function, by which it is priced: {' or '.join(ARCHITECTURES)}.",
)


def price_options(command: Command) -> Command:
    """Price list, architecture, granularity; the command gets ``billing: Billing``."""

    @click.option("--prices", type=FILE, metavar="FILE", help="Prices laid over the dated ones that come along; any part of them.")
    @architecture_option
    @click.option(
        "--granularity",
        type=WAIT,
        help="Billing granularity, 0.1 in BATCH's year  [default: the price list's]",
    )
    @click.option(
        "--log-bytes",
        type=integer,
        metavar="N",
        help="Bytes that an invocation writes to its log, 750 at the log level INFO  [default: the price list's, 0: WARN]",
    )
    @click.option(
        "--stack",
        metavar="NAME",
        shell_complete=offered(lambda: default_prices().stacks),
        help="How the buffer is deployed: behind a NAT gateway (nat), with an endpoint for Lambda beside it (lambda-endpoint), with"
        " endpoints alone (endpoints), in public subnets (public), or one task there without a cache (small)  [default: nat]",
    )
    @click.option(
        "--buffer-per-month",
        type=number,
        metavar="USD",
        help="What the buffer costs whether used or not; 0 of one that is there already for other models"
        "  [default: by the price list, that of template.yaml]",
    )
    @wraps(command)
    def with_billing(
        *,
        prices: str | None,
        architecture: str,
        granularity: float | None,
        log_bytes: int | None,
        stack: str | None,
        buffer_per_month: float | None,
        **others: Any,
    ) -> Any:
        listed = price_list(prices)
        if stack is not None:
            listed = listed.on(stack)
        if log_bytes is not None:
            require(0 <= log_bytes <= MOST_LOG, "--log-bytes", log_bytes, f"bytes >= 0, at most {MOST_LOG}")
            listed = structs.replace(listed, logs=structs.replace(listed.logs, bytes_per_invocation=log_bytes))
        if buffer_per_month is not None:
            allowed = f"USD >= 0, at most {MOST_PER_MONTH:.0f}"
            require(0 <= buffer_per_month <= MOST_PER_MONTH, "--buffer-per-month", buffer_per_month, allowed)
            listed = structs.replace(listed, buffer=structs.replace(listed.buffer, per_month=buffer_per_month))
        return command(billing=Billing(listed, architecture, granularity), **others)

    return with_billing


def cost_options(command: Command) -> Command:
    """The same with cold starts and the bytes that are moved; the command gets ``keep_alive`` (s) too."""

    @price_options
    @click.option(
        "--cold-start-probability",
        type=number,
        help="Share of the invocations that start cold, and take and are billed the profile's INIT  [default: estimated]",
    )
    @click.option(
        "--keep-alive",
        type=PERIOD,
        default=KEEP_ALIVE,
        show_default=True,
        help="That an idle environment is kept (s), for that estimate.",
    )
    @click.option("--snap-start", is_flag=True, help="A cold start restores a snapshot, which is kept and restored for a price.")
    @click.option(
        "--payload-bytes",
        type=integer,
        help="Size of one request: a batch must fit into one invocation, and moving it costs.  [default: the profile's]",
    )
    @click.option("--answer-bytes", type=integer, help="Size of the answer to one request.  [default: the profile's]")
    @wraps(command)
    def with_cold_starts(
        *,
        billing: Billing,
        cold_start_probability: float | None,
        keep_alive: float,
        snap_start: bool,
        payload_bytes: int | None,
        answer_bytes: int | None,
        **others: Any,
    ) -> Any:
        least = (
            f"a number of seconds > 0, at most {LONGEST_KEPT:g}, a day; --cold-start-probability 1 has every invocation start cold"
        )
        require(0 < keep_alive <= LONGEST_KEPT, "--keep-alive", keep_alive, least)
        require(payload_bytes is None or payload_bytes >= 1, "--payload-bytes", payload_bytes, "an integer >= 1")
        told = replace(
            billing,
            cold_start_probability=cold_start_probability,
            payload_bytes=payload_bytes,
            answer_bytes=answer_bytes,
            snap_start=snap_start,
        )
        return command(billing=told, keep_alive=keep_alive, **others)

    return with_cold_starts


def price_list(path: str | None) -> Prices:
    """That of ``--prices``."""
    if path is None:
        return default_prices()
    data = read_json(path, "--prices")
    found = kind_of(data)
    found = found or (None if data.lstrip().startswith(b"{") else "no JSON document")
    require(found is None, "--prices", path, f"a price list, as optimizer/billing/prices.json is one; this is {found}")
    return read_prices(data, path)
