"""`sluice predict`: latency, batch sizes and cost of one setting."""

from __future__ import annotations

from dataclasses import replace

import click
import numpy as np
from rich.table import Table

from sluice.batching import policy as policies
from sluice.batching.documents import MAX_STARTED, ArrivalDocument, ServiceProfile, WarmEnvironments, percentile_name, quantile_of
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.cli import output
from sluice.cli.arrival_options import arrival_options, profile_option
from sluice.cli.cost_options import cost_options
from sluice.cli.cost_table import cost_table
from sluice.cli.given import require_none_given
from sluice.cli.profile_files import warn_of_machine
from sluice.cli.size_options import mix_options
from sluice.cli.slo_options import check_percentile, percent
from sluice.cli.trace_options import read_recorded, warn_of_other_rate
from sluice.cli.values import FILE, PERIOD, WAIT, integer
from sluice.optimizer.arrivals import ArrivalProcess
from sluice.optimizer.billing import Billing, ColdStarts
from sluice.optimizer.billing.cold_starts import MOST_PROVISIONED, Share
from sluice.optimizer.function import METHODS, MOST_BATCH, predict_latency, with_cold_starts
from sluice.optimizer.recommend import PERCENTILES, provisioned_offers
from sluice.optimizer.recommend.kept_warm import Provisioning
from sluice.optimizer.recommend.offers import kept_warm
from sluice.optimizer.recommend.recorded import cost_on, recorded
from sluice.optimizer.recommend.words import in_brackets, milliseconds, two_digits
from sluice.optimizer.report.documents import cost_document, prediction_document, prices_document, recorded_document
from sluice.optimizer.report.wording import priced
from sluice.optimizer.service import SizeMix, require_sizes_of, service_times_under
from sluice.optimizer.simulation import Deployment, Environments, Function, TraceArrivals
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.traces.record import recorded_times


@click.command("predict")
@arrival_options
@profile_option
@mix_options
@click.option("--trace", type=FILE, metavar="FILE", help="Recorded arrivals that the cost is of  [default: those of the fit]")
@click.option("--memory", "memory_mb", type=integer, required=True, metavar="MB", help="Memory size.")
@click.option("-b", "--batch-size", type=integer, required=True, help="Largest batch; 1 is no batching.")
@click.option("-t", "--timeout", type=WAIT, required=True, help="Longest wait for a batch to fill.")
@click.option(
    "--provisioned",
    type=integer,
    metavar="N",
    help="So many environments are provisioned, as a plan says under warm; who finds all of them busy goes to one on demand.",
)
@click.option(
    "--pinged-every",
    type=PERIOD,
    help="The buffer pings environments so often, as a plan says under warm; who finds them busy goes to another.",
)
@click.option("--pinged", type=integer, metavar="N", help="How many at once, beside --pinged-every  [default: 1]")
@click.option(
    "--percentile",
    "percentiles",
    type=percent,
    multiple=True,
    help="Percentile of the latency to show; may be repeated  [default: 50, 90, 95, 99]",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="exact",
    show_default=True,
    help="The exact law, or the approximation of the paper BATCH (its eqs 7 to 10).",
)
@cost_options
@output.json_option
def command(
    arrivals: ArrivalDocument,
    profile: ServiceProfile,
    mix: SizeMix | None,
    size_column: str | None,
    trace: str | None,
    memory_mb: int,
    batch_size: int,
    timeout: float,
    provisioned: int | None,
    pinged_every: float | None,
    pinged: int | None,
    percentiles: tuple[float, ...],
    method: str,
    billing: Billing,
    keep_alive: float,
    as_json: bool,
) -> None:
    """Predict latency, batch sizes and cost of size-or-timeout batching in front of an elastic function."""
    require(1 <= batch_size <= MOST_BATCH, "batch_size", batch_size, f"an integer from 1 to {MOST_BATCH}")
    warn_of_machine(profile, "Of workers: sluice smdp, or sluice simulate --worker.")
    process, billing = ArrivalProcess.of(arrivals), billing.of_profile(profile)
    limit, largest = billing.prices.function.payload_limit_bytes, max(1, *billing.moved)
    larger = "a request" if largest == billing.moved[0] else "an answer"
    require(largest <= limit, f"bytes of {larger}", largest, f"at most {limit}, the bytes that an invocation takes")
    fitting = f"at most {limit // largest}, as an invocation takes {limit} bytes and {larger} has {largest}"
    require(batch_size * largest <= limit, "batch_size", batch_size, fitting)
    require_sizes_of(profile, mix)
    service = service_times_under(profile, memory_mb, batch_size, mix)
    prediction = predict_latency(process, service, batch_size, timeout, method)
    init = profile.init.get(memory_mb)
    told, pmf = billing.cold_start_probability, prediction.batch_size_pmf
    seconds = init.mean if init else 0.0
    starts, holds = ColdStarts(process, keep_alive), np.full(batch_size - 1, timeout)
    both = "none beside --provisioned: Lambda has not both at once"
    require(provisioned is None or not billing.snap_start, "--snap-start", billing.snap_start, both)
    warm = _warm(provisioned, pinged_every, pinged, keep_alive, seconds)
    if warm is None:
        busy = service.mean_response[:batch_size]
        cold = starts.of_table(pmf, holds, busy, seconds) if told is None else Share(told, told)
        cost = replace(billing, cold_start_probability=cold.batches).cost(pmf, service, profile)
    else:
        require(told is None, "cold_start_probability", told, "none beside what is kept warm, with which it is estimated")
        (offer,) = provisioned_offers(profile, [memory_mb], billing, batch_size, mix)
        of = Provisioning.of(offer, starts, pmf, holds, seconds)
        most = f"none, as more than {MOST_PROVISIONED} batches may be under way, of which too little is known here: sluice simulate"
        if not of.most:
            require_none_given(("provisioned", "pinged_every", "pinged"), most)
        _, cold = of.beyond(warm)
        bill = replace(billing, cold_start_probability=cold.batches).cost(pmf, service, profile)
        cost = of.cost(warm, bill, billing, process.arrival_rate)
    observed, fitted, rate = _recorded(arrivals, trace, size_column, mix), None, process.arrival_rate
    if observed is not None:
        policy = policies.size_or_timeout(batch_size, timeout) if batch_size > 1 else policies.no_batching()
        platform = None if told is not None else replace(LAMBDA, keep_alive=keep_alive)
        of_sizes = None if observed.sizes is None else SizeMix.of(observed.sizes)
        function = Function(profile, memory_mb, billing, platform, batch_size, of_sizes)
        mean = None if told is None else prediction.mean_batch_size
        warn_of_other_rate(rate, observed.arrival_rate)
        fitted, cost, rate = cost, cost_on(observed, _deployment(warm, function, policy), cost, mean), observed.arrival_rate
    prediction = with_cold_starts(prediction, cold.requests, seconds)
    shown = sorted({check_percentile(p) for p in percentiles or PERCENTILES})
    latency = {percentile_name(p): prediction.percentile(p) for p in shown}
    simulated = prediction.confidence is not None
    intervals = {percentile_name(p): prediction.quantile_interval(quantile_of(p)) for p in shown} if simulated else {}
    if as_json:
        output.print_json(
            {
                "version": 1,
                "memory_mb": memory_mb,
                "arrival_rate": process.arrival_rate,
                **prediction_document(prediction, latency),
                **({"intervals": intervals, "confidence": prediction.confidence} if simulated else {}),
                "cold_starts": cold.batches,
                "cold_requests": cold.requests,
                "recorded": recorded_document(observed),
                "cost": cost_document(cost, rate),
                **({} if fitted is None else {"fitted_cost": cost_document(fitted, rate)}),
                "prices": prices_document(billing.prices),
            }
        )
        return
    title = f"{memory_mb} MB, batch size {batch_size}, timeout {milliseconds(timeout)} ({prediction.method})"
    table = Table("", "", title=title, show_header=False)
    for name, value in latency.items():
        interval = in_brackets(*(f"{1e3 * end:.4g}" for end in (value, *intervals[name]))) if intervals else ""
        table.add_row(f"latency {name}", milliseconds(value) + interval)
    table.add_row("mean batch size", f"{prediction.mean_batch_size:.2f}")
    table.add_row("invocations/s", f"{process.arrival_rate / prediction.mean_batch_size:.4g}")
    of_requests = f", with {two_digits(cold.requests)} % of the requests" if cold.requests > 1.1 * cold.batches else ""
    table.add_row("cold starts", f"{two_digits(cold.batches)} % of the invocations{of_requests}")
    output.stdout.print(table)
    if simulated:
        output.stdout.print(
            f"Simulated, with {100 * (prediction.confidence or 0):g} % intervals: the exact law would take too long, as the phases "
            "of these arrivals jump too often within the timeout."
        )
    if observed is None or fitted is None:
        output.stdout.print(cost_table({f"at {rate:.4g} requests/s": cost}))
    else:
        output.stdout.print(cost_table({f"{observed.n_requests} arrivals recorded": cost, "as fitted": fitted}))
    output.stdout.print(priced(billing.prices))


def _recorded(arrivals: ArrivalDocument, trace: str | None, size_column: str | None, mix: SizeMix | None) -> TraceArrivals | None:
    """The arrivals that the cost is of; ``None`` where only their process is known. Sizes that they do not tell are the mix's."""
    if trace is None:
        return recorded(recorded_times(arrivals), mix=mix)
    observed = read_recorded(trace, size_column)
    return recorded(observed.times, observed.sizes, mix)


def _deployment(warm: WarmEnvironments | None, function: Function, table: Policy) -> Deployment:
    """The function behind its table, with what is kept warm."""
    return function.under(table) if warm is None else kept_warm(function, table, warm)


def _warm(
    provisioned: int | None, pinged_every: float | None, pinged: int | None, keep_alive: float, init: float
) -> WarmEnvironments | None:
    """What is kept warm, checked as a plan and a run have it; ``None`` where nothing is."""
    if provisioned is not None:
        require_none_given(("pinged_every", "pinged"), "none beside --provisioned")
        require(provisioned >= 1, "provisioned", provisioned, "an integer >= 1")
        return WarmEnvironments(provisioned)
    if pinged_every is None:
        require(pinged is None, "pinged", pinged, "none without --pinged-every")
        return None
    require(pinged is None or 1 <= pinged <= MAX_STARTED, "--pinged", pinged, f"an integer from 1 to {MAX_STARTED}")
    Environments(init, keep_alive, pinged_every=pinged_every)
    return WarmEnvironments(pinged_every=pinged_every, pinged=1 if pinged is None else pinged)
