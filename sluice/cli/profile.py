"""`sluice profile`: measure a function's service times over memory and batch sizes, and sizes of requests."""

from __future__ import annotations

import datetime
import os
import re
import sys
from typing import Any

import click
import msgspec
import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

import sluice.profiler.service_times as service_times
from sluice.batching.documents import PLACEHOLDER, model_of, require_model, write
from sluice.batching.errors import NOT_GIVEN, InvalidInput, SluiceError, require
from sluice.batching.urls import is_http, without_password
from sluice.cli import output
from sluice.cli.cost_options import architecture_option
from sluice.cli.file_kinds import PROFILE, require_replaceable, written_option
from sluice.cli.header_options import CREDENTIALS, header_option, read_headers, require_content_type
from sluice.cli.named_files import write_file
from sluice.cli.sized_files import read_sized_files
from sluice.cli.values import FILE, SWEEP, integer, number, numbers_option
from sluice.lambda_fn import contract
from sluice.optimizer.billing.prices import default_prices
from sluice.profiler.invocations import Invocation, LambdaInvocations
from sluice.profiler.samples import Sample, describe_model, largest_batch, make_sample
from sluice.profiler.way import INVOCATIONS as OF_WAY
from sluice.profiler.way import BufferOfModel, measure_way
from sluice.profiler.worker_invocations import WorkerInvocations, is_worker, payload_limit

BATCH_SIZES = (1, 2, 4, 8, 16, 32)


@click.command(name="profile")
@click.argument("function")
@numbers_option("--memory", "memory_sizes", metavar="MB", help="Memory sizes; of a worker what it has, where it does not say it.")
@numbers_option(
    "--batch-size",
    "batch_sizes",
    metavar="B",
    help=f"Batch sizes  [default: those of {BATCH_SIZES[0]} to {BATCH_SIZES[-1]} in powers of two that fit into a payload]",
)
@click.option(
    "--payload",
    "payloads",
    multiple=True,
    type=FILE,
    metavar="[SIZE=]FILE",
    help="Body of one request; repeated with sizes, one of each size. Without it one is made from what the model says it takes.",
)
@click.option("--content-type", default=contract.JSON, show_default=True, help="Content type of the payload.")
@header_option
@click.option("--model", help="Name of the model  [default: that of the function, without memory size and alias, or the worker's]")
@click.option(
    "--buffer",
    metavar="URL",
    help="Where a buffer takes the model's requests, http://HOST:PORT/models/NAME: the way through it is measured as well, while"
    " nobody else asks it.",
)
@click.option(
    "--precision",
    type=number,
    default=0.03,
    show_default=True,
    help="Half-width of each mean's 95 % confidence interval, relative.",
)
@click.option("--min-runs", type=integer, default=20, show_default=True, help="Runs of a point at the least.")
@click.option("--max-runs", type=integer, default=200, show_default=True, help="Runs of a point at the most.")
@click.option("--max-seconds", type=SWEEP, default=120.0, show_default=True, help="Time for the whole sweep.")
@architecture_option
@click.option("--seed", type=integer, default=0, show_default=True, help="Seed of the order of the runs.")
@written_option("--out", kinds=(PROFILE,), help="File for the profile  [default: profile.json, unless --json]")
@click.option("--yes", is_flag=True, help="Do not ask before the sweep.")
@output.json_option
def command(
    function: str,
    memory_sizes: tuple[int, ...],
    batch_sizes: tuple[int, ...],
    payloads: tuple[str, ...],
    content_type: str,
    headers: tuple[str, ...],
    model: str | None,
    buffer: str | None,
    precision: float,
    min_runs: int,
    max_runs: int,
    max_seconds: float,
    architecture: str,
    seed: int,
    out: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Measure the service times of FUNCTION over memory and batch sizes, and sizes of requests.

    FUNCTION is a Lambda function: a name, name:alias or ARN. Its memory size is selected by name, so where several are measured,
    the name has {memory_mb} in it: 'mlp-{memory_mb}:live'. AWS_ENDPOINT_URL_LAMBDA leads to the local runtime instead of AWS.
    Or it is the address of a worker, http://HOST:PORT, of which nobody else should ask anything meanwhile.

    Where the service time depends on how large the requests are, in tokens or pixels or bytes, each --payload says the size of its
    request: --payload 16=short.json --payload 256=long.json measures batches of each.

    With --buffer the profile knows what the way through the buffer and the network takes, and predictions are of what its clients
    see. The sizes of request and answer are recorded too, for what moving them costs.

    What the sweep costs at the most is printed first. One batch runs at a time. A point is done when its mean is known to the
    precision; cold starts are kept apart.
    """
    require(seed >= 0, "--seed", seed, "an integer >= 0")
    most = service_times.MOST_RUNS
    require(2 <= min_runs <= most, "--min-runs", min_runs, f"an integer >= 2, at most {most}")
    require(min_runs <= max_runs <= most, "--max-runs", max_runs, f"an integer >= {min_runs} (--min-runs), at most {most}")
    require(max_seconds > 0, "--max-seconds", max_seconds, "a number of seconds > 0")
    require_content_type(content_type)
    if model is not None:
        require_model("--model", model)
    rng = np.random.default_rng(seed)
    if out is None and not as_json:
        out = "profile.json"
        require_replaceable(out, "--out", PROFILE)
    default_prices().gb_second(architecture)  # one without a price is refused before anything is asked
    named = read_headers(headers)
    asked_at = None if buffer is None else BufferOfModel(buffer, named)
    if asked_at is not None:
        asked_at.alone()  # better refused now than after a sweep
    of_worker = is_worker(function)
    _check_function(function, of_worker)
    if not memory_sizes and not of_worker:
        raise InvalidInput("--memory", NOT_GIVEN, "memory sizes in MB, separated by commas")
    model = model or model_of(function)
    of_item = {name: value for name, value in named.items() if name not in CREDENTIALS}
    samples = tuple(Sample(body, content_type, of_item, size) for size, body in read_sized_files(payloads, "--payload"))
    # What is wrong with these is told before anybody is asked.
    sweep = service_times.Sweep(
        function=function,
        memory_sizes=memory_sizes or (1,),
        batch_sizes=batch_sizes or (1,),
        samples=samples or (Sample(b"0"),),
        model=model,
        precision=precision,
        n_min=min_runs,
        n_max=max_runs,
        max_seconds=max_seconds,
    )
    invoke = WorkerInvocations(memory_sizes[0] if memory_sizes else None) if of_worker else LambdaInvocations()
    earlier: list[tuple[int, Invocation]] = []
    if not samples or of_worker:
        asked = function.replace(PLACEHOLDER, str(min(memory_sizes, default=0)))
        described, metadata = describe_model(invoke, asked, model)
        earlier.append((described.report.memory_mb, described))
        if of_worker:
            model, memory_sizes = _model_of_worker(model, metadata), (described.report.memory_mb,)
        samples = samples or (make_sample(metadata, rng),)
    if not batch_sizes:
        batch_sizes = _that_fit(BATCH_SIZES, samples, model, payload_limit(function))
    sweep = msgspec.structs.replace(sweep, memory_sizes=memory_sizes, batch_sizes=batch_sizes, samples=samples, model=model)
    if out is not None:
        _refuse_unwritable(out)
    bound = _cost(sweep.cost_bound(len(earlier)), architecture, of_worker)
    of_way = f", and {OF_WAY} single requests for the way through the buffer" if asked_at is not None else ""
    click.echo(f"The sweep costs at most {bound}; to that add the run under way when the time is up{of_way}.", err=True)
    if not yes and sys.stdin.isatty():
        click.confirm("Measure?", default=True, abort=True, err=True)

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    with _progress_bar() as bar:
        task = bar.add_task("", total=1.0)

        def on_progress(done: service_times.Progress) -> None:
            text = f"{done.closed}/{done.points} points, {done.memory_mb} MB × {done.batch_size}"
            text += "" if done.size is None else f" of size {done.size:g}"
            bar.update(task, completed=done.fraction, description=text)

        try:
            measured = service_times.measure_service_times(
                sweep, invoke, rng, measured_at=now, earlier=earlier, on_progress=on_progress
            )
        except InvalidInput as error:
            if error.field == "model":
                raise InvalidInput("--model", error.value, error.allowed) from None
            raise
        bar.update(task, completed=1.0)
    if asked_at is not None:
        try:
            way = measure_way(asked_at, invoke, model, samples[0])
        except SluiceError:
            if out is not None:  # the sweep was paid for
                write_file(out, write(measured.profile))
                click.echo(f"{out} is without the way through the buffer.", err=True)
            raise
        measured = msgspec.structs.replace(measured, profile=msgspec.structs.replace(measured.profile, way=way))

    click.echo(f"It took {_cost(measured.spent, architecture, of_worker)}.", err=True)
    if not measured.converged:
        worst = measured.least_precise
        click.echo(
            f"{measured.n_imprecise} of {len(measured.points)} points are less precise than {precision:.1%}; the least precise is "
            f"{worst.setting}: ±{worst.relative_half_width:.1%}. "
            "More --max-seconds or --max-runs helps.",
            err=True,
        )
    if isinstance(invoke, LambdaInvocations) and invoke.unreported:
        click.echo(
            "note: the function logs no REPORT (FunctionLogLevel=INFO has it): times are those that it measured itself, and what is"
            " billed is they, rounded up.",
            err=True,
        )
    if measured.profile.one_by_one is not None:
        reason = measured.profile.one_by_one
        click.echo(f"warning: {model} computes a batch one by one, so batching saves next to nothing: {reason}.", err=True)
    if out is not None:
        write_file(out, write(measured.profile))
    if as_json:
        output.print_json(measured.profile)
    else:
        output.stdout.print(_table(measured))


def _check_function(function: str, of_worker: bool) -> None:
    """Refuse the address of no worker, and what is no name of Lambda's whatever is deployed."""
    shown = without_password(function)
    if of_worker:
        require(is_http(function), "FUNCTION", shown, "the address of a worker, http://HOST:PORT")
        return
    allowed = (
        f"a function's name, name:alias or ARN, its memory size as {PLACEHOLDER}; or the address of a worker, http://HOST:PORT"
    )
    address = re.fullmatch(r"[\w-]+(\.[\w-]+)+:\d+|localhost:\d+", function) is not None
    known = not address and re.fullmatch(r"[\w:$-]+", function.replace(PLACEHOLDER, "512"), re.ASCII) is not None
    require(known, "FUNCTION", shown, f"{allowed}; did you mean http://{function}?" if address else allowed)


def _model_of_worker(model: str, metadata: dict[str, Any]) -> str:
    """The model to be measured: the one that was named, or else the worker's only one."""
    served = str(metadata.get("name", model))
    if model in ("", served) and "," not in served:
        return served
    raise InvalidInput("--model", model or NOT_GIVEN, f"what the worker serves: {served}")


def _that_fit(batch_sizes: tuple[int, ...], samples: tuple[Sample, ...], model: str, limit: int) -> tuple[int, ...]:
    """The sizes of which the function takes the payload; all of them where none fits, to be refused with the reason."""
    largest = min(largest_batch(sample, model, limit) for sample in samples)
    fitting = tuple(size for size in batch_sizes if size <= largest)
    if 0 < len(fitting) < len(batch_sizes):
        left_out = ", ".join(str(size) for size in batch_sizes if size > largest)
        click.echo(f"left out: batch sizes {left_out}, as a payload holds at most {largest} of these requests", err=True)
    return fitting or batch_sizes


def _refuse_unwritable(path: str) -> None:
    """Better now than after a sweep that was paid for; what is there stays, and nothing new is left if the sweep fails."""
    new = not os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
        if new:
            os.remove(path)
    except OSError as error:
        raise InvalidInput("--out", path, f"a writable path ({error.strerror})") from None


def _cost(cost: service_times.SweepCost, architecture: str, of_worker: bool) -> str:
    if of_worker:  # which is paid for anyway
        return f"{cost.invocations} invocations and {cost.seconds:.0f} s"
    prices = default_prices()
    usd = cost.usd(prices.gb_second(architecture), prices.function.request)
    where = f"AWS {prices.region}, {architecture}, prices of {prices.read_on}"
    return f"{cost.invocations} invocations, {cost.seconds:.0f} s and {cost.gb_seconds:.3g} GB-s: USD {usd:.2g} on {where}"


def _progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # Few refreshes: drawing competes with what is measured.
    return Progress(*columns, console=output.stderr, disable=not output.stderr.is_terminal, transient=True, refresh_per_second=2)


def _table(measured: service_times.MeasuredServiceTimes) -> Table:
    profile = measured.profile
    starts = ", ".join(f"{init.mean * 1e3:.0f} ms at {memory_mb} MB ({init.n})" for memory_mb, init in profile.init.items())
    caption = f"INIT of cold starts (runs): {starts or 'none seen'}"
    if profile.way is not None:
        ninety_fifth = dict(profile.way.quantiles).get(0.95, profile.way.mean)
        caption += f"\nway through the buffer: {profile.way.mean * 1e3:.1f} ms, p95 {ninety_fifth * 1e3:.1f} ms ({profile.way.n})"
    if profile.request_bytes is not None:
        caption += f"\n{profile.request_bytes} bytes a request, {profile.answer_bytes} an answer"
    if profile.one_by_one is not None:
        caption += f"\nbatches are computed one by one: {profile.one_by_one}"
    sized = ("size",) if profile.sizes else ()
    padding = (0, 1, 0, 0) if sized else (0, 1)  # so that 80 columns hold the one column more
    table = Table(title=f"Service times of {profile.function}, ms", caption=caption, padding=padding)
    for name in ("memory MB", "batch size", *sized, "mean", "± %", "p95", "billed", "overhead", "runs"):
        table.add_column(name, justify="right")
    for point, known in zip(profile.points, measured.points, strict=True):
        p95 = dict(point.service_time.quantiles).get(0.95)
        table.add_row(
            str(point.memory_mb),
            str(point.batch_size),
            *(() if point.size is None else (f"{point.size:g}",)),
            f"{point.service_time.mean * 1e3:.2f}",
            f"{known.relative_half_width * 100:.1f}",
            "" if p95 is None else f"{p95 * 1e3:.2f}",
            f"{point.billed_duration * 1e3:.1f}",
            f"{point.overhead * 1e3:.2f}",
            str(known.n),
        )
    return table
