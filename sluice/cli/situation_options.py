"""How a command is told what policies are made for: arrivals, a function and its platform, workers, SLOs."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import click
import numpy as np
from msgspec.structs import replace as replace_in_document

from sluice.batching.documents import ArrivalDocument, ServiceProfile, Slo
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.policy import MAX_SERVERS
from sluice.cli.arrival_options import ARRIVALS, perhaps_arrivals, profiles_option
from sluice.cli.class_arrivals import OPTION, read_classes
from sluice.cli.cost_options import price_options
from sluice.cli.given import require_none_given
from sluice.cli.groups import Command
from sluice.cli.policy_files import is_file
from sluice.cli.size_options import mix_options
from sluice.cli.slo_options import slo_options
from sluice.cli.trace_options import read_recorded
from sluice.cli.values import FILE, PERIOD, WAIT, integer, number, require_speed
from sluice.cli.worker_options import read_worker
from sluice.optimizer.arrivals import ArrivalProcess
from sluice.optimizer.baselines import Situation, Workload
from sluice.optimizer.baselines.names import ALL, CONTROL, SERVED, counts_servers, policy_named
from sluice.optimizer.billing import Billing
from sluice.optimizer.fits import fit_arrivals
from sluice.optimizer.recommend.queues_on_record import merged
from sluice.optimizer.service import SizeMix, require_sizes_of
from sluice.optimizer.simulation import Environments, Function
from sluice.optimizer.simulation.batch_means import FEWEST_REQUESTS
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.function import LARGEST_BATCH
from sluice.optimizer.traces.record import recorded_times
from sluice.optimizer.traces.trace import MIN_ARRIVALS, Trace

N_REQUESTS = 200_000
MOST_REQUESTS = 10**8
"""What takes minutes a policy."""
PAST = 0.5


def situation_options(command: Command) -> Command:
    """All of a situation; the command gets ``situation: Situation``, and ``seed``."""

    @mix_options
    @workload_options
    @function_options
    @click.option(
        "--worker",
        "worker_texts",
        multiple=True,
        type=FILE,
        metavar="PROFILE:PRICE",
        help="What serves the policies of workers: a profile, and a machine of the price list or USD per hour; repeated, those"
        " of a plan, by their address  [default: provisioned concurrency]",
    )
    @click.option(
        "--servers",
        type=integer,
        metavar="K",
        help="Number of these workers; of policy control all there is, where their profile is --profile too"
        "  [default: the fewest that keep the SLOs in the past]",
    )
    @slo_options
    @wraps(command)
    def with_situation(
        *,
        workload: Workload,
        any_function: Function,
        other_functions: list[Function],
        memory_mb: int | None,
        worker_texts: tuple[str, ...],
        servers: int | None,
        slos: tuple[Slo, ...],
        past: float | None,
        names: tuple[str, ...],
        **others: Any,
    ) -> Any:
        prices, largest = any_function.billing.prices, any_function.max_batch_size
        require(servers is None or 1 <= servers <= MAX_SERVERS, "servers", servers, f"an integer from 1 to {MAX_SERVERS}")
        heard = servers is None or any(is_file(name) or name in (ALL, CONTROL) or counts_servers(name) for name in names)
        require(heard, "--servers", servers, f"only with a file, {CONTROL}, or a policy of so many workers: {SERVED}")
        offers = [read_worker(text, prices, largest, any_function.mix) for text in worker_texts]
        worker = offers[0] if offers else None
        situation = Situation(workload, any_function, slos, memory_mb, worker, servers, other_functions, offers[1:])
        if past == 0:
            _require_no_past(past, names, situation)
        return command(situation=situation, names=names, **others)

    return with_situation


def _require_no_past(past: float, names: tuple[str, ...], of: Situation) -> None:
    """Raise where some of the policies is made from what came before the run, of which there is nothing."""
    policies = {name: policy_named(name) for name in names if not is_file(name) and name not in (ALL, CONTROL)}
    on_servers = [name for name, policy in policies.items() if policy.fixed_on_servers]
    learns = [name for name in names if name == ALL or (name in policies and not policies[name].fixed)]
    learns = [name for name in learns if of.workers is None or name not in on_servers]
    told = f"; not {', '.join(on_servers)} with --servers K" if of.workers is None and on_servers else ""
    require(not learns, "past", past, f"more than 0, as {', '.join(learns)} is made from the past{told}")
    fixed = [name for name, policy in policies.items() if policy.fixed or (of.worker is None and policy.fixed_on_servers)]
    fixed = fixed if len(of.memory_sizes) > 1 else []
    chosen = f"more than 0 without --memory MB, as the memory size of {', '.join(fixed)} is chosen by the past"
    require(not fixed, "past", past, chosen)


def workload_options(command: Command) -> Command:
    """A model of the arrivals, a trace, or both; the command gets ``workload: Workload``, and ``past`` and ``seed``.

    Of ``mix_options`` it takes the column that has the sizes of the trace's requests, and the ``mix``, which the function gets too;
    by the ``names`` of the policies it knows whether one of them learns from the past.
    """

    @perhaps_arrivals
    @click.option("--trace", type=FILE, metavar="FILE", help="A trace to run on; beside a model, policies are made for the model.")
    @click.option(
        "--past",
        type=number,
        metavar="PART",
        help="Part of a trace, given without a model, that policies learn from; they run on the rest. Files and control alone need"
        " none, nor does a fixed setting of --memory MB, or a policy of --servers K that needs no rate: 0 runs all"
        f"  [default: {PAST:g}; of files alone 0]",
    )
    @click.option(
        "--speed", type=number, default=1.0, show_default=True, metavar="FACTOR", help="Run the trace so many times as fast."
    )
    @click.option(
        "--class",
        "class_texts",
        multiple=True,
        metavar="NAME:ARRIVALS",
        help="Arrivals of a class of the plan, without another model: a rate, an arrivals document, or a trace;"
        " repeated, one each.",
    )
    @click.option("--class-column", metavar="NAME", help="Column of the trace with the classes of the requests.")
    @click.option(
        "--requests",
        "n_requests",
        type=integer,
        metavar="N",
        help="Requests to draw from a model and run, where one is given  [default: those that it was fitted to are run,"
        f" and {N_REQUESTS} drawn where it carries none]",
    )
    @click.option("--seed", type=integer, default=0, show_default=True, help="The same seed gives the same answer.")
    @wraps(command)
    def with_workload(
        *,
        arrivals: ArrivalDocument | None,
        trace: str | None,
        past: float | None,
        speed: float,
        class_texts: tuple[str, ...],
        class_column: str | None,
        n_requests: int | None,
        seed: int,
        mix: SizeMix | None,
        size_column: str | None,
        names: tuple[str, ...],
        **others: Any,
    ) -> Any:
        require(seed >= 0, "seed", seed, "an integer >= 0")
        classes = read_classes(class_texts)
        if classes:
            beside = f"none beside {OPTION}"
            require_none_given((*ARRIVALS, "trace"), f"{beside}, which has the arrivals of each")
            require_none_given(("sizes", "size_column"), f"{beside}, whose requests have one size")
        if trace is None:
            require(class_column is None, "--class-column", class_column, "only with --trace")
            if arrivals is None and not classes:
                raise InvalidInput("arrivals", NOT_GIVEN, "one of --arrivals, --poisson, --mmpp2, --trace and --class")
            require(speed == 1, "speed", speed, "only with --trace")
        else:
            require(n_requests is None, "requests", n_requests, "only without --trace")
        cut = trace is not None and arrivals is None
        require(past is None or cut, "past", past, "only with --trace and no model beside it")
        part = "a part of the trace, from 0 to less than 1, as 0.5 is half of it"
        require(past is None or 0 <= past < 1, "past", past, part)
        few = n_requests is None or FEWEST_REQUESTS <= n_requests <= MOST_REQUESTS
        require(few, "requests", n_requests, f"an integer from {FEWEST_REQUESTS} to {MOST_REQUESTS}")
        whole = None
        if trace is not None:
            recorded = read_recorded(trace, size_column, class_column)
            require_speed(speed, recorded.arrival_rate)
            whole = recorded.sped_up(speed)
        if classes:
            recorded_of_all = None if n_requests else merged([of.recorded for of in classes.values()])
            processes = {name: of.process for name, of in classes.items()}
            workload = Workload.of_classes(processes, recorded_of_all or n_requests or N_REQUESTS, seed)
        elif arrivals is not None:
            if whole is None and n_requests is None:
                whole = _fitted_to(arrivals)
            run = n_requests or N_REQUESTS if whole is None else whole
            workload = Workload.of_process(ArrivalProcess.of(arrivals), run, seed, mix)
        else:
            assert whole is not None
            told = all(map(is_file, names))  # and learns nothing
            if past == 0 or (told and past is None):
                workload = Workload.of_process(fit_arrivals(whole).arrivals, whole, seed, mix)
            else:
                past = PAST if past is None else past
                workload = Workload.of_trace(whole, past, mix, seed)
                n_run = workload.run.n_requests
                enough = f"what leaves at least {FEWEST_REQUESTS} requests to run, for confidence intervals; it leaves {n_run}"
                require(n_run >= FEWEST_REQUESTS, "past", past, enough)
        return command(workload=workload, past=past, seed=seed, mix=mix, names=names, **others)

    return with_workload


def _fitted_to(arrivals: ArrivalDocument) -> Trace | None:
    """The arrivals that a document carries; ``None`` where it has a model alone."""
    times = recorded_times(arrivals)
    return None if times is None or len(times) < MIN_ARRIVALS else Trace(np.diff(times), "what --arrivals was fitted to")


def function_options(command: Command) -> Command:
    """A function and how its platform runs and bills it; the command gets ``any_function: Function``, and ``memory_mb``.

    The ``mix`` of ``mix_options`` is the function's. And ``other_functions``, where there are more profiles.
    """

    @profiles_option
    @click.option(
        "--memory", "memory_mb", type=integer, metavar="MB", help="Memory size of the function  [default: what the SLOs choose]"
    )
    @click.option("--max-batch-size", type=integer, default=LARGEST_BATCH, show_default=True, help="Largest batch considered.")
    @platform_options
    @price_options
    @wraps(command)
    def with_function(
        *,
        profile: ServiceProfile,
        other_profiles: list[ServiceProfile],
        mix: SizeMix | None,
        memory_mb: int | None,
        max_batch_size: int,
        environments: Environments,
        init_duration: float | None,
        billing: Billing,
        **others: Any,
    ) -> Any:
        require(max_batch_size >= 1, "max_batch_size", max_batch_size, "an integer >= 1")
        require_sizes_of(profile, mix)
        profiles = [profile, *other_profiles]
        if init_duration is not None:
            profiles = [replace_in_document(measured, init={}) for measured in profiles]
            environments = replace(environments, init_duration=init_duration)
        sizes = profile.memory_sizes if memory_mb is None else [memory_mb]
        require(bool(sizes), "memory", None, "a memory size (MB), as a linear profile names none")
        any_function, *other_functions = (
            Function(measured, memory, billing, environments, max_batch_size, mix if i == 0 or measured.sizes else None)
            for i, (measured, memory) in enumerate(zip(profiles, [sizes[-1], *map(_some_memory, other_profiles)], strict=True))
        )
        return command(any_function=any_function, other_functions=other_functions, memory_mb=memory_mb, **others)

    return with_function


def _some_memory(profile: ServiceProfile) -> int:
    """A memory size (MB) of a profile; that of a linear law, which holds for all, is told where a plan names the function."""
    return (profile.memory_sizes or [1])[-1]


def platform_options(command: Command) -> Command:
    """How environments run; the command gets ``environments: Environments``, and ``init_duration`` where it was told."""

    @click.option(
        "--keep-alive", type=PERIOD, default=LAMBDA.keep_alive, show_default=True, help="That an idle environment is kept (s)."
    )
    @click.option("--init", "init_duration", type=WAIT, help="That a cold start takes  [default: the profile's INIT]")
    @click.option("--concurrency", type=integer, help="Invocations at once at most  [default: any number]")
    @click.option(
        "--scaling-rate",
        type=number,
        default=LAMBDA.scaling_rate,
        show_default=True,
        help="New environments per second, in the long run.",
    )
    @click.option("--burst", type=integer, default=LAMBDA.burst, show_default=True, help="New environments at once.")
    @wraps(command)
    def with_platform(
        *,
        keep_alive: float,
        init_duration: float | None,
        concurrency: int | None,
        scaling_rate: float,
        burst: int,
        **others: Any,
    ) -> Any:
        told = init_duration is None or 0 <= init_duration < np.inf
        require(told, "init", init_duration, "a number of seconds >= 0")
        environments = Environments(0.0, keep_alive, concurrency, scaling_rate, burst)
        return command(environments=environments, init_duration=init_duration, **others)

    return with_platform
