"""`sluice fleet`: which variants of which models a fixed fleet hosts, where, and who serves what."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Column, Table

from sluice.batching.documents import write
from sluice.batching.errors import InvalidInput, require
from sluice.cli import output
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT
from sluice.optimizer.fleet.plan import FleetPlan, plan_fleet
from sluice.optimizer.fleet.problem import FleetSolution
from sluice.optimizer.fleet.specification import Fleet, read_demand, read_fleet, read_running
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable
from sluice.optimizer.fleet.throughput import RULES, Rule

BY_NAME: dict[str, Deployable] = {name.replace("_", "-"): name for name in DEPLOYABLE}
BATCHINGS = tuple(BY_NAME)


@click.command("fleet")
@click.argument("fleet_path", metavar="FLEET.yaml")
@click.option(
    "--demand",
    "demand_texts",
    multiple=True,
    metavar="FILE|FAMILY=RATE",
    help="Requests/s by family instead of the file's: a file, or one family's rate; may be repeated.",
)
@click.option("--running", metavar="FILE", help="What runs instead of the file's: of the same form, or a plan of --out.")
@click.option("--headroom", type=float, default=1.0, show_default=True, help="Plan for the demand times this, if it can be.")
@click.option("--batch-rule", type=click.Choice(RULES), default=RULES[0], show_default=True, help="Largest is Proteus's.")
@click.option("--batching", type=click.Choice(BATCHINGS), default=BATCHINGS[0], show_default=True, help="The table of each queue.")
@click.option("--time-limit", type=float, default=TIME_LIMIT, show_default=True, metavar="SECONDS", help="Of the search.")
@click.option("--gap", type=float, default=GAP, show_default=True, help="Percentage points of accuracy that count as equal.")
@click.option("--out", metavar="FILE", help="Write the answer here, as --json shows it.")
@click.option("--plans", metavar="DIR", help="Write a plan for the buffer here for each family: DIR/FAMILY.json.")
@output.json_option
def command(
    fleet_path: str,
    demand_texts: tuple[str, ...],
    running: str | None,
    headroom: float,
    batch_rule: Rule,
    batching: str,
    time_limit: float,
    gap: float,
    out: str | None,
    plans: str | None,
    as_json: bool,
) -> None:
    """Choose variants, place them on devices and share the demand, so that the most is served, as accurately as can be.

    Of placements as accurate, the one with the fewest devices that load another variant is taken. Exits with 1 if not all the
    demand can be served; the answer is then the best there is, and says what is missing.
    """
    fleet = read_fleet(fleet_path)
    if demand_texts:
        fleet = fleet.with_demand(_demand(demand_texts, fleet))
    if running is not None:
        fleet = fleet.with_running(read_running(running, fleet))
    with output.stderr.status("searching ..."), _stdout_kept_clean():
        plan = plan_fleet(fleet, headroom=headroom, rule=batch_rule, batching=BY_NAME[batching], time_limit=time_limit, gap=gap)
    documents = plan.plans() if plans is not None else []
    if out is not None:
        output.write_file(out, output.to_json(plan.document()))
        output.stderr.print(f"wrote {out}")
    for document in documents:
        path = str(Path(str(plans)) / f"{document.model}.json")
        output.write_file(path, write(document))
        output.stderr.print(f"wrote {path}")
    if as_json:
        output.print_json(plan.document())
    else:
        _show(plan)
    if not plan.feasible:
        raise SystemExit(1)


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """What the compiled solver prints by itself, as it does at times, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _demand(texts: tuple[str, ...], fleet: Fleet) -> dict[str, float]:
    """The fleet's demand with what is given in its place: a file replaces it all, FAMILY=RATE one rate."""
    demand = dict(fleet.demand)
    for text in texts:
        family, equals, rate = text.partition("=")
        if not equals or Path(text).exists():
            demand = read_demand(text, fleet)
            continue
        require(family in fleet.family_names, "demand", text, "a rate for one of the families: " + ", ".join(fleet.family_names))
        try:
            demand[family] = float(rate)
        except ValueError:
            raise InvalidInput("demand", text, "a file, or FAMILY=RATE with requests/s >= 0") from None
    return demand


def _show(plan: FleetPlan) -> None:
    output.stdout.print(_variants(plan))
    output.stdout.print(_families(plan))
    for sentence in _sentences(plan):
        output.stdout.print(sentence, highlight=False)


def _variants(plan: FleetPlan) -> Table:
    """Variants by device types: how many devices, and which part of the family's requests these get."""
    table = Table(Column("", overflow="fold"), title="devices, and their part of the family's requests")
    table.add_column("accuracy", justify="right")
    types = plan.fleet.devices
    for device in types:
        table.add_column(escape(f"{device.name} ({device.count})"), justify="right")
    table.add_column("req/s", justify="right")
    for family in plan.fleet.families:
        table.add_row(escape(family.name), style="bold")
        for variant in family.variants:
            hosts = {group.device_type: group for group in plan.groups if group.variant == variant.name}
            if hosts:
                cells = [_cell(hosts.get(device.name)) for device in types]
                rate = _rate(sum(group.rate for group in hosts.values()))
                table.add_row(f"  {escape(variant.name)}", f"{variant.accuracy:.4g} %", *cells, rate)
        table.add_section()
    idle = [sum(plan.placement[name] is None for name in device.device_names) for device in types]
    if any(idle):
        table.add_row("idle", "", *(str(n) if n else "" for n in idle), "")
    return table


def _cell(group: Group | None) -> str:
    return f"{len(group.devices)}: {100 * group.share:.3g} %" if group else ""


def _rate(rate: float) -> str:
    return f"{rate:.4g}" if rate < 1e4 else f"{rate:.0f}"


def _down(factor: float) -> str:
    """A headroom in two decimals that are not above it."""
    return f"{math.floor(100 * factor) / 100:.2f}"


def _families(plan: FleetPlan) -> Table:
    table = Table("family", title="what is served")
    for name in ("within", "asked, requests/s", "served", "missing", "accuracy"):
        table.add_column(name, justify="right")
    for family in plan.fleet.families:
        service = plan.families[family.name]
        table.add_row(
            escape(family.name),
            f"{1e3 * family.slo.latency:.4g} ms",
            _rate(service.asked),
            _rate(service.served),
            _rate(service.missing) if service.missing else "-",
            f"{service.accuracy:.4f} %" if service.served else "-",
        )
    return table


def _sentences(plan: FleetPlan) -> list[str]:
    solution = plan.solution
    sentences = [f"mean accuracy {plan.accuracy:.4f} %, {_proof(solution)}"] if solution.flows.any() else []
    if plan.full and plan.feasible:
        queues = f"{len(plan.full)} of {sum(group.share > 0 for group in plan.groups)} queues"
        advice = "" if plan.devices_wanted else f"; try --headroom {1.1 * plan.headroom:.2g}"
        sentences.append(f"no slack: {queues} would hardly ever empty{advice}")
    if plan.fleet.running is not None:
        loads = {device: pair for device, pair in plan.changes.items() if pair[1] is not None}
        sentences.append(f"{len(loads)} of {len(plan.placement)} devices load another variant{':' if loads else ''}")
        sentences += [f"  {escape(device)}: {before or 'nothing'} -> {after}" for device, (before, after) in loads.items()]
    if plan.devices_wanted:
        missing = {name: of.missing for name, of in plan.families.items() if of.missing}
        what = ", ".join(f"{_rate(rate)} requests/s of {escape(name)}" for name, rate in missing.items())
        room = f"all is served, with room for a headroom of {_down(plan.headroom)} only"
        sentences.append(f"missing: {what}" if missing else room)
        of_it = f", with a headroom of {plan.headroom_asked:g}," if plan.headroom_asked != 1 else ""
        wanted = [f"{n} more {escape(device)}" for device, n in plan.devices_wanted.items() if n]
        sentences.append(
            f"all{of_it} would be served with " + ", or ".join(wanted)
            if wanted
            else "no number of more devices of one type alone was found that would serve it all"
        )
    return sentences


def _proof(solution: FleetSolution) -> str:
    gap = "the best there is" if solution.gap < 1e-4 else f"within {solution.gap:.2g} percentage points of the best there is"
    return gap if solution.converged else f"{gap}; not all was proven in {solution.seconds:.3g} s"
