"""How a command is asked a question: the arrivals, the function, the SLOs, the bill, and what competes within which limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from math import inf
from typing import Any

import click

from sluice.batching.documents import ArrivalDocument, ServiceProfile, Slo
from sluice.batching.durations import LONGEST_HOLD
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.cli.arrival_options import ONE, perhaps_arrivals, profile_option
from sluice.cli.class_options import class_option
from sluice.cli.cost_options import cost_options
from sluice.cli.groups import Command
from sluice.cli.size_options import mix_options
from sluice.cli.slo_options import slo_options
from sluice.cli.values import FILE, HOLD, integer, number, numbers_option
from sluice.cli.worker_options import read_worker
from sluice.optimizer.arrivals import ArrivalProcess, poisson
from sluice.optimizer.billing import Billing
from sluice.optimizer.function import MOST_BATCH
from sluice.optimizer.recommend import Application, Goal, Limits, Question, provisioned_offers
from sluice.optimizer.recommend.question import CONFIDENCE, LOADS, MAX_BATCH_SIZE, OBJECTIVES, POLICIES, PREMIUM
from sluice.optimizer.recommend.recorded import recorded
from sluice.optimizer.recommend.sharing import ONE_SIZE
from sluice.optimizer.recommend.size_classes import WORKERS_BY_HAND
from sluice.optimizer.service import SizeMix, require_sizes_of
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.traces.record import recorded_times

DEAR = 0.01
"""USD per request from which on USD per million were probably meant; the largest function costs as much in a minute."""


def question_options(command: Command) -> Command:
    """All of a question; the command gets ``question: Question``, and ``arrivals: ArrivalDocument`` as it was told.

    It gets ``applications: tuple[Application, ...]`` too, none where the requests are of one class; else arrivals and SLOs of the
    question stand for theirs. Of ``mix_options`` it gets ``size_column``, which is the trace's.
    """

    @perhaps_arrivals
    @class_option
    @profile_option
    @mix_options
    @slo_options
    @goal_options
    @limit_options
    @click.option(
        "--worker",
        "worker_texts",
        multiple=True,
        type=FILE,
        metavar="PROFILE:PRICE",
        help="Workers that compete, alone and with the function beside them: their profile, and a machine of the price list"
        " or USD per hour; may be repeated.",
    )
    @click.option("--provisioned", is_flag=True, help="Provisioned concurrency competes, at every memory size considered.")
    @cost_options
    @wraps(command)
    def with_question(
        *,
        arrivals: ArrivalDocument | None,
        applications: tuple[Application, ...],
        profile: ServiceProfile,
        mix: SizeMix | None,
        slos: tuple[Slo, ...],
        goal: Goal,
        every_load: bool,
        limits: Limits,
        worker_texts: tuple[str, ...],
        provisioned: bool,
        billing: Billing,
        keep_alive: float,
        **others: Any,
    ) -> Any:
        require_sizes_of(profile, mix)
        if applications:
            arrivals, slos = _for_applications(applications, profile)
        if arrivals is None:
            raise InvalidInput("arrivals", NOT_GIVEN, f"{ONE}, or --class for each of several applications")
        if not slos:
            raise InvalidInput("--slo", NOT_GIVEN, "a latency such as 200ms, or pP=LATENCY")
        if mix is not None:
            needless = f"none beside sizes: {WORKERS_BY_HAND}"
            require(not worker_texts, "--worker", " ".join(worker_texts), needless)
            require(not provisioned, "--provisioned", provisioned, needless)
            require(goal.loads is None, "--loads", goal.loads, "1 beside sizes: a class has one table")
        elif every_load and goal.objective == "cost" and limits.considers_tables:
            goal = replace(goal, loads=LOADS)
        offers = [read_worker(text, billing.prices, limits.max_batch_size) for text in worker_texts]
        if provisioned:
            require(
                not billing.snap_start, "--snap-start", billing.snap_start, "none beside --provisioned: Lambda has not both at once"
            )
            offers += provisioned_offers(profile, limits.memory_sizes, billing, limits.max_batch_size)
        without = ArrivalProcess.without_each_block(arrivals)
        environments = replace(LAMBDA, keep_alive=keep_alive)
        process = ArrivalProcess.of(arrivals)
        seen = recorded(recorded_times(arrivals), mix=mix)
        question = Question(process, profile, slos, billing, tuple(offers), limits, goal, environments, mix, without, seen)
        return command(question=question, applications=applications, arrivals=arrivals, **others)

    return with_question


def _for_applications(applications: Sequence[Application], profile: ServiceProfile) -> tuple[ArrivalDocument, tuple[Slo, ...]]:
    """What stands for their arrivals and SLOs, and nothing that does not go together with them."""
    require(not profile.sizes, "--profile", profile.function, ONE_SIZE)
    rate = sum(of.arrivals.arrival_rate for of in applications)
    return poisson(rate).document(), (min((of.slo for of in applications), key=lambda slo: slo.latency),)


def goal_options(command: Command) -> Command:
    """What is wanted; the command gets ``goal: Goal``."""

    @click.option("--objective", type=click.Choice(OBJECTIVES), default="cost", show_default=True, help="What to minimise.")
    @click.option(
        "--max-cost",
        type=number,
        metavar="USD",
        help="Most USD per request for what serves it; moving its bytes is beside that (1e-6: 1 USD per million).",
    )
    @click.option("--headroom", type=number, default=0.0, show_default=True, help="Part of the SLOs' latencies kept free.")
    @click.option(
        "--premium",
        type=number,
        default=PREMIUM,
        show_default=True,
        metavar="PART",
        help="Part of the cost that a table which waits to the last moment may cost more and still be taken.",
    )
    @click.option(
        "--confidence",
        type=number,
        default=CONFIDENCE,
        show_default=True,
        metavar="P",
        help="With which a timeout keeps the SLOs, given how surely the arrivals are known; 0.5 keeps nothing free for that.",
    )
    @click.option(
        "--loads",
        metavar="LOW:HIGH",
        help="Multiples of the arrival rate at which one plan is to be cheap: the size of a batch then chooses the function; 1:"
        f" that rate alone  [default: {LOADS[0]:g}:{LOADS[1]:g}]",
    )
    @wraps(command)
    def with_goal(
        *,
        objective: str,
        max_cost: float | None,
        headroom: float,
        premium: float,
        confidence: float,
        loads: str | None,
        **others: Any,
    ) -> Any:
        asked = None if loads is None else _loads(loads)
        if max_cost is not None and DEAR <= max_cost < inf:
            raise InvalidInput("--max-cost", max_cost, f"USD per request: {max_cost / 1e6:g} if USD per million are meant")
        goal = Goal(objective, max_cost, headroom, premium, asked, confidence)
        return command(goal=goal, every_load=loads is None, **others)

    return with_goal


def _loads(text: str) -> tuple[float, float] | None:
    """Both ends; none where the rate alone is meant."""
    try:
        ends = [float(end) for end in text.split(":")]
    except ValueError:
        ends = []
    require(len(ends) == 2 or ends == [1], "--loads", text, "LOW:HIGH, two multiples of the arrival rate, as in 0.1:1000; or 1")
    return (ends[0], ends[1]) if len(ends) == 2 else None


def limit_options(command: Command) -> Command:
    """What is considered; the command gets ``limits: Limits``."""

    @numbers_option("--memory", "memory_sizes", metavar="MB", help="Consider only these memory sizes; may be repeated.")
    @click.option("--max-batch-size", type=integer, default=MAX_BATCH_SIZE, show_default=True, help="Largest batch considered.")
    @click.option(
        "--max-timeout",
        type=HOLD,
        help=f"Longest timeout considered  [default: twice the longest latency promised, at most {LONGEST_HOLD:g} s]",
    )
    @click.option("--timeout", "timeouts", type=HOLD, multiple=True, help="Consider only this timeout; may be repeated.")
    @click.option(
        "--policies",
        type=click.Choice(POLICIES),
        default="all",
        show_default=True,
        help="Whether tables compete that wait to the last moment, which keeps the SLOs whatever the arrivals do.",
    )
    @wraps(command)
    def with_limits(
        *,
        memory_sizes: tuple[int, ...],
        max_batch_size: int,
        max_timeout: float | None,
        timeouts: tuple[float, ...],
        policies: str,
        **others: Any,
    ) -> Any:
        allowed = f"an integer from 1 to {MOST_BATCH}"
        require(1 <= max_batch_size <= MOST_BATCH, "--max-batch-size", max_batch_size, allowed)
        return command(limits=Limits(memory_sizes, max_batch_size, timeouts, max_timeout, policies), **others)

    return with_limits
