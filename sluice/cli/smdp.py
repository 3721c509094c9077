"""`sluice smdp`: when one server whose service time depends on the batch should serve, and how many."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import click

from sluice.batching.documents import Slo, write
from sluice.batching.durations import LONGEST_HOLD
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.policy import no_batching
from sluice.batching.urls import is_http, without_password
from sluice.cli import output
from sluice.cli.arrival_options import WAY
from sluice.cli.file_kinds import PLAN, POLICY, require_replaceable, written_option
from sluice.cli.given import require_none_given
from sluice.cli.named_files import write_file
from sluice.cli.server_options import ServerOptions, server_options, solver_options
from sluice.cli.slo_options import slo_options
from sluice.cli.smdp_answer import in_tables, in_words
from sluice.cli.smdp_classes import classes_in_tables, classes_in_words
from sluice.cli.values import DURATION, LIMIT, OVERHEAD, integer
from sluice.optimizer.smdp import (
    METHODS,
    answer_classes,
    answer_document,
    answer_problem,
    class_document,
    class_plan,
    exact_seconds,
    full_class_document,
    full_document,
)

MAX_SECONDS = 30.0
SLACK = LONGEST_HOLD
LARGE = 256  # batches from which on it is told what it takes


@click.command("smdp")
@server_options
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME:RATE:WEIGHT",
    help="Twice, for two classes before the server: Poisson arrivals per unit of time, and what the latency of one weighs.",
)
@click.option(
    "--slack",
    type=DURATION,
    help="Of the class of less weight in a plan: how much later one of the other may come and still go first"
    f"  [default: {SLACK:g}]",
)
@solver_options
@slo_options
@click.option(
    "--buffer-overhead",
    type=OVERHEAD,
    help="What the way through buffer and network takes, which is kept free of the SLO  [default: the profile's; in a plan of a"
    f" profile that was measured without it {WAY:g}]",
)
@click.option("--frontier", is_flag=True, help="Show all that the weights can buy, from the least latency to the least power.")
@click.option(
    "--max-seconds",
    type=LIMIT,
    default=MAX_SECONDS,
    show_default=True,
    help="Seconds after which no further step is begun: the best table so far is told, with what none can cost less than.",
)
@click.option("--servers", type=integer, default=1, show_default=True, metavar="K", help="Identical workers behind one queue.")
@written_option(
    "--out",
    kinds=(POLICY, PLAN),
    help="Write the policy, of arrivals with phases the table of each (`sluice simulate --policy FILE` reads both);"
    " or a plan where --model and --function are given.",
)
@click.option("--model", help="Name of the model, for a plan.")
@click.option("--function", help="Address of the worker, for a plan: http://HOST:PORT, several with commas between.")
@output.json_option
def command(
    server: ServerOptions,
    classes: tuple[str, ...],
    slack: float | None,
    solver: dict[str, Any],
    slos: tuple[Slo, ...],
    buffer_overhead: float | None,
    frontier: bool,
    max_seconds: float,
    servers: int,
    out: str | None,
    model: str | None,
    function: str | None,
    as_json: bool,
) -> None:
    """Find the optimal state-dependent batching policy of one server.

    The objective is w1 * mean latency + w2 * mean power. With --slo the largest w2 whose policy keeps the SLO is sought; an SLO is
    in seconds whatever the unit, and of a plan the way through the buffer is kept free of it. Arrivals with phases have a table for
    each phase, and one table for all of them: the plan's, as a buffer is told of no phase. With --class twice it is the table over
    how many of each class wait.
    """
    require(server.w2 is None or not slos, "w2", server.w2, "only without --slo, for which it is sought")
    if out is None:
        require_none_given(("model", "function"), "only with --out")
    if (model is None) != (function is None):
        given, other = ("--function", "--model") if model is None else ("--model", "--function")
        raise InvalidInput(other, NOT_GIVEN, f"one beside {given}, for a plan; a policy has neither")
    for address in () if function is None else function.split(","):
        allowed = "the address of a worker, http://HOST:PORT; several with commas between"
        meant = f"{allowed}; did you mean http://{address}?" if is_http(f"http://{address}") and ":" in address else allowed
        require(is_http(address), "--function", without_password(address), meant)
    if out is not None:
        require_replaceable(out, "--out", PLAN if model is not None else POLICY)
    require(0 < max_seconds < inf, "max_seconds", max_seconds, "a number of seconds > 0")
    require(
        buffer_overhead is None or bool(slos), "--buffer-overhead", buffer_overhead, "only with --slo, of which it is kept free"
    )
    require(slack is None or (bool(classes) and model is not None), "slack", slack, "only for a plan with --class")
    end = time.monotonic() + max_seconds
    if classes:
        asked_for = {"slo_texts": bool(slos), "frontier": frontier, "servers": servers != 1, **_other_methods(solver)}
        beside = "none with --class: two classes have policy iteration, one server and the weights given"
        require_none_given((name for name, given in asked_for.items() if given), beside)
        slack, asked = SLACK if slack is None else slack, server.class_problem(classes)
        if model is not None and function is not None:
            class_plan(asked, no_batching(), slack, model, function)  # what it does not allow, before anything takes time
        answer = answer_classes(asked, lambda: end - time.monotonic())
        if out is not None:
            write_file(out, write(class_document(answer, slack, model, function)))
        if as_json:
            output.print_json(full_class_document(answer))
            return
        for said in (*classes_in_words(answer), *classes_in_tables(answer)):
            output.stdout.print(said, highlight=False)
        return
    problem = server.problem(servers, weighed=bool(slos) or frontier)
    if problem.max_batch_size >= LARGE:
        click.echo(
            f"note: batches of up to {problem.max_batch_size}: tables of {2 * problem.max_batch_size + 1} rows and more, whose "
            f"exact percentiles take some {exact_seconds(problem):.2g} s; no step is begun after {max_seconds:g} s (--max-seconds)",
            err=True,
        )
    ask = {"servers": servers, "frontier": frontier, **solver}
    way = server.way(buffer_overhead, of_plan=model is not None) if slos else 0.0
    shortest = min((slo.latency for slo in slos), default=inf)
    require(0 <= way < shortest, "--buffer-overhead", way, f"seconds, less than the {shortest:g} that are promised")
    found = answer_problem(problem, slos, way=way, **ask, seconds_left=lambda: end - time.monotonic())
    if out is not None:
        write_file(out, write(answer_document(found, model, function)))
    if as_json:
        output.print_json(full_document(found))
        return
    for sentence in in_words(found):
        output.stdout.print(sentence, highlight=False)
    for shown in in_tables(found):
        output.stdout.print(shown, highlight=False)


def _other_methods(solver: dict[str, Any]) -> dict[str, bool]:
    """Which options of the solver ask for something else than policy iteration."""
    return {name: value not in (None, METHODS[0]) for name, value in solver.items()}
