"""`sluice fleet`: which variants of which models a fixed fleet hosts, where, and who serves what."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Column, Table

from sluice.batching.documents import ArrivalDocument, write
from sluice.batching.errors import InvalidInput, require
from sluice.cli import output
from sluice.cli.arrival_options import fleet_way_option
from sluice.cli.document_files import read_document
from sluice.cli.file_kinds import FLEET, PLAN, require_replaceable, written_option
from sluice.cli.named_files import write_file
from sluice.cli.values import FILE, LIMIT, number
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fleet.fleet_file import read_demand, read_fleet, read_running
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT
from sluice.optimizer.fleet.plan import FleetPlan
from sluice.optimizer.fleet.planning import plan_fleet
from sluice.optimizer.fleet.solver_output import solver_on_stderr
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable
from sluice.optimizer.fleet.throughput import RULES, Rule
from sluice.optimizer.report.fleet_wording import outcome, per_second, percent, sentences

BY_NAME: dict[str, Deployable] = {name.replace("_", "-"): name for name in DEPLOYABLE}
BATCHINGS = tuple(BY_NAME)
CHOSEN = "auto"


@click.command("fleet")
@click.argument("fleet_path", type=FILE, metavar="FLEET.yaml")
@click.option(
    "--demand",
    "demand_texts",
    multiple=True,
    type=FILE,
    metavar="FILE|FAMILY=RATE",
    help="Requests/s by family instead of the file's: a file, or one family's rate; may be repeated.",
)
@click.option("--running", type=FILE, metavar="FILE", help="What runs instead of the file's: of the same form, or a plan of --out.")
@click.option(
    "--headroom",
    "headroom_text",
    default=CHOSEN,
    show_default=True,
    metavar="FACTOR|auto",
    help="Plan for the demand times this, if it can be; auto: the least with which few enough are late.",
)
@click.option(
    "--violations",
    type=number,
    metavar="SHARE",
    help="Share of the requests that may be late or given up, 0 to 1  [default: what each SLO's percentile leaves]",
)
@click.option(
    "--arrivals",
    "arrival_texts",
    multiple=True,
    metavar="FAMILY=FILE",
    help="How a family's requests come, as `sluice fit` wrote it; by default Poisson. May be repeated.",
)
@fleet_way_option
@click.option(
    "--batch-rule",
    type=click.Choice(RULES),
    default=RULES[0],
    show_default=True,
    help="How large the batches are that a device's throughput is worked out with; largest is Proteus's rule.",
)
@click.option(
    "--batching",
    type=click.Choice(BATCHINGS),
    default=BATCHINGS[0],
    show_default=True,
    help="By which policy the queues' tables are made.",
)
@click.option("--time-limit", type=LIMIT, default=TIME_LIMIT, show_default=True, help="Seconds that the search may take.")
@click.option("--gap", type=number, default=GAP, show_default=True, help="Percentage points of accuracy that count as equal.")
@written_option("--out", kinds=(FLEET,), help="Write the answer here, as --json shows it.")
@click.option("--plans", type=FILE, metavar="DIR", help="Write a plan for the buffer here for each family: DIR/FAMILY.json.")
@output.json_option
def command(
    fleet_path: str,
    demand_texts: tuple[str, ...],
    running: str | None,
    headroom_text: str,
    violations: float | None,
    arrival_texts: tuple[str, ...],
    buffer_overhead: float,
    batch_rule: Rule,
    batching: str,
    time_limit: float,
    gap: float,
    out: str | None,
    plans: str | None,
    as_json: bool,
) -> None:
    """Choose variants, place them on devices and share the demand, so that the most is served, as accurately as can be.

    Of placements as accurate, the one with the fewest devices that load another variant is taken. The first line of the answer is
    what becomes of the requests, found by simulating the queues of the plan. Exits with 1 if not all the demand can be served
    within the SLOs; the answer is then the best there is, and says what is missing.
    """
    fleet = read_fleet(fleet_path).behind(buffer_overhead)
    if demand_texts:
        fleet = fleet.with_demand(_demand(demand_texts, fleet))
    if running is not None:
        fleet = fleet.with_running(read_running(running, fleet))
    for name in fleet.family_names if plans is not None else ():
        require_replaceable(str(Path(str(plans)) / f"{name}.json"), "--plans", PLAN)
    with output.stderr.status("searching ...") as status, solver_on_stderr():
        plan = plan_fleet(
            fleet,
            headroom=_headroom(headroom_text),
            violations=violations,
            rule=batch_rule,
            batching=BY_NAME[batching],
            arrivals=_arrivals(arrival_texts),
            time_limit=time_limit,
            gap=gap,
            tell=status.update,
        )
        status.update("simulating ...")
        document = plan.document()
    buffer_plans = plan.plans() if plans is not None else []
    if out is not None:
        write_file(out, write(document))
    for buffer_plan in buffer_plans:
        path = str(Path(str(plans)) / f"{buffer_plan.model}.json")
        write_file(path, write(buffer_plan))
    if as_json:
        output.print_json(document)
    else:
        _show(plan)
    if not plan.kept:
        raise SystemExit(1)


def _demand(texts: tuple[str, ...], fleet: Fleet) -> dict[str, float]:
    """The fleet's demand with what is given in its place: a file replaces it all, FAMILY=RATE one rate."""
    demand, named = dict(fleet.demand), set[str]()
    for text in texts:
        family, equals, rate = text.partition("=")
        if not equals or Path(text).exists():
            demand = read_demand(text, fleet)
            continue
        require(family in fleet.family_names, "demand", text, "a rate for one of the families: " + ", ".join(fleet.family_names))
        require(family not in named, "demand", text, "each family once")
        named.add(family)
        try:
            demand[family] = float(rate)
        except ValueError:
            raise InvalidInput("demand", text, "a file, or FAMILY=RATE with requests/s >= 0") from None
    return demand


def _headroom(text: str) -> float | None:
    if text == CHOSEN:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidInput("headroom", text, f"a factor of the demand, at least 1, or {CHOSEN}") from None


def _arrivals(texts: tuple[str, ...]) -> dict[str, ArrivalProcess]:
    """The processes of FAMILY=FILE."""
    arrivals = {}
    for text in texts:
        family, equals, file = text.partition("=")
        require(bool(equals), "arrivals", text, "FAMILY=FILE, an arrivals document of a family")
        require(family not in arrivals, "arrivals", text, "each family once")
        arrivals[family] = ArrivalProcess.of(read_document(ArrivalDocument, file, "--arrivals"))
    return arrivals


def _show(plan: FleetPlan) -> None:
    output.stdout.print(outcome(plan), highlight=False, markup=False)
    output.stdout.print(_variants(plan))
    output.stdout.print(_families(plan))
    for sentence in sentences(plan):
        output.stdout.print(sentence, highlight=False, markup=False)


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
                rate = per_second(sum(group.rate for group in hosts.values()))
                table.add_row(f"  {escape(variant.name)}", f"{variant.accuracy:.4g} %", *cells, rate)
        table.add_section()
    idle = [sum(plan.placement[name] is None for name in device.device_names) for device in types]
    if any(idle):
        table.add_row("idle", "", *(str(n) if n else "" for n in idle), "")
    return table


def _cell(group: Group | None) -> str:
    return f"{len(group.devices)}: {100 * group.share:.3g} %" if group else ""


def _families(plan: FleetPlan) -> Table:
    table = Table("family", title="what is served")
    for name in ("within", "asked, req/s", "served", "missing", "accuracy", "late"):
        table.add_column(name, justify="right")
    for family in plan.fleet.families:
        service = plan.families[family.name]
        predicted = plan.predicted.families.get(family.name) if plan.predicted else None
        table.add_row(
            escape(family.name),
            f"{1e3 * family.slo.latency:.4g} ms",
            per_second(service.asked),
            per_second(service.served),
            per_second(service.missing) if service.missing else "-",
            f"{service.accuracy:.4f} %" if service.served else "-",
            f"{percent(predicted.violations.value)} %" if predicted else "-",
        )
    return table
