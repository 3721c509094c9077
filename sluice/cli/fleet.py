"""`sluice fleet`: which variants of which models a fixed fleet hosts, where, and who serves what."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Column, Table

from sluice.batching.documents import ArrivalDocument, write
from sluice.batching.errors import InvalidInput, require
from sluice.cli import output
from sluice.cli.document_files import read_document
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT
from sluice.optimizer.fleet.plan import FleetPlan
from sluice.optimizer.fleet.planning import plan_fleet
from sluice.optimizer.fleet.problem import FleetSolution
from sluice.optimizer.fleet.specification import Fleet, read_demand, read_fleet, read_running
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable
from sluice.optimizer.fleet.throughput import RULES, Rule
from sluice.optimizer.simulation.batch_means import Estimate

BY_NAME: dict[str, Deployable] = {name.replace("_", "-"): name for name in DEPLOYABLE}
BATCHINGS = tuple(BY_NAME)
CHOSEN = "auto"


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
    type=float,
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
@click.option(
    "--time-limit", type=float, default=TIME_LIMIT, show_default=True, metavar="SECONDS", help="Seconds that the search may take."
)
@click.option("--gap", type=float, default=GAP, show_default=True, help="Percentage points of accuracy that count as equal.")
@click.option("--out", metavar="FILE", help="Write the answer here, as --json shows it.")
@click.option("--plans", metavar="DIR", help="Write a plan for the buffer here for each family: DIR/FAMILY.json.")
@output.json_option
def command(
    fleet_path: str,
    demand_texts: tuple[str, ...],
    running: str | None,
    headroom_text: str,
    violations: float | None,
    arrival_texts: tuple[str, ...],
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
    fleet = read_fleet(fleet_path)
    if demand_texts:
        fleet = fleet.with_demand(_demand(demand_texts, fleet))
    if running is not None:
        fleet = fleet.with_running(read_running(running, fleet))
    with output.stderr.status("searching ...") as status, _stdout_kept_clean():
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
        output.write_file(out, write(document))
    for buffer_plan in buffer_plans:
        path = str(Path(str(plans)) / f"{buffer_plan.model}.json")
        output.write_file(path, write(buffer_plan))
    if as_json:
        output.print_json(document)
    else:
        _show(plan)
    if not plan.kept:
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


def _headroom(text: str) -> float | None:
    if text == CHOSEN:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidInput("headroom", text, f"a factor > 0, or {CHOSEN}") from None


def _arrivals(texts: tuple[str, ...]) -> dict[str, ArrivalProcess]:
    """The processes of FAMILY=FILE."""
    arrivals = {}
    for text in texts:
        family, equals, file = text.partition("=")
        require(bool(equals), "arrivals", text, "FAMILY=FILE, an arrivals document of a family")
        arrivals[family] = ArrivalProcess.of(read_document(ArrivalDocument, file, "--arrivals"))
    return arrivals


def _show(plan: FleetPlan) -> None:
    output.stdout.print(_outcome(plan), highlight=False)
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
    return f"{math.floor(100 * factor + 1e-9) / 100:.2f}"


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
            _rate(service.asked),
            _rate(service.served),
            _rate(service.missing) if service.missing else "-",
            f"{service.accuracy:.4f} %" if service.served else "-",
            f"{_percent(predicted.violations.value)} %" if predicted else "-",
        )
    return table


def _outcome(plan: FleetPlan) -> str:
    """What becomes of the requests, in a sentence."""
    predicted = plan.predicted
    missing = {name: of.missing for name, of in plan.families.items() if of.missing}
    if predicted is None:
        served = _list_missing(missing) if missing else "all demand is served"
        return f"{served}; it is too large to be simulated, so that nothing is said of how many are late"
    under = "under the arrivals given" if plan.arrivals else "under Poisson arrivals"
    share, accuracy = _share(predicted.violations), f"effective accuracy {predicted.effective_accuracy:.2f} %"
    if missing:
        return f"{_list_missing(missing)}; of all requests {share} late or given up {under}, {accuracy}"
    if predicted.kept:
        return f"all demand is served within the SLOs: {share} late or given up {under}, {accuracy}"
    above = {name: of for name, of in predicted.families.items() if not of.kept}
    surely = any(of.violations.value > of.allowed for of in above.values())
    which = [f"{_share(of.violations)} of {escape(name)} where {_percent(of.allowed)} % may be" for name, of in above.items()]
    but = "but too much of it late or given up" if surely else "but more of it may be late or given up than should"
    return f"all demand is served, {but}, {', '.join(which)}: of all {share} {under}, {accuracy}"


def _list_missing(missing: Mapping[str, float]) -> str:
    return "missing: " + ", ".join(f"{_rate(rate)} requests/s of {escape(name)}" for name, rate in missing.items())


def _share(estimate: Estimate) -> str:
    return f"{_percent(estimate.value)} % ({_percent(estimate.low)} to {_percent(estimate.high)})"


def _percent(share: float) -> str:
    """A share in percent, in two digits or three."""
    percent = 100 * share
    return f"{percent:.2g}" if percent < 10 else f"{percent:.1f}"


def _sentences(plan: FleetPlan) -> list[str]:
    solution = plan.solution
    sentences = [f"mean accuracy {plan.accuracy:.4f} %, {_proof(solution)}"] if solution.flows.any() else []
    if plan.headroom_asked is None and plan.predicted is not None and plan.feasible:
        sentences.append(_chosen_headroom(plan))
    if plan.full and plan.feasible and not plan.kept:
        queues = f"{len(plan.full)} of {sum(group.share > 0 for group in plan.groups)} queues"
        sentences.append(f"no slack: {queues} would hardly ever empty")
    if plan.fleet.running is not None:
        loads = {device: pair for device, pair in plan.changes.items() if pair[1] is not None}
        sentences.append(f"{len(loads)} of {len(plan.placement)} devices load another variant{':' if loads else ''}")
        sentences += [f"  {escape(device)}: {before or 'nothing'} -> {after}" for device, (before, after) in loads.items()]
    if plan.devices_wanted:
        if plan.feasible:
            sentences.append(f"all is served, with room for a headroom of {_down(plan.headroom)} only")
        of_it = f", with a headroom of {plan.headroom_asked:g}," if plan.headroom_asked not in (None, 1) else ""
        wanted = [f"{n} more {escape(device)}" for device, n in plan.devices_wanted.items() if n]
        sentences.append(
            f"all{of_it} would be served with " + ", or ".join(wanted)
            if wanted
            else "no number of more devices of one type alone was found that would serve it all"
        )
    return sentences


def _chosen_headroom(plan: FleetPlan) -> str:
    planned_for = "planned for the demand itself" if plan.headroom == 1 else f"planned for {_down(plan.headroom)} times the demand"
    if not plan.kept:
        return f"{planned_for}, which comes nearest; no headroom that the devices allow was found to do"
    return f"{planned_for}: " + ("no headroom is needed" if plan.headroom == 1 else "with less, too many would be late or given up")


def _proof(solution: FleetSolution) -> str:
    gap = "the best there is" if solution.gap < 1e-4 else f"within {solution.gap:.2g} percentage points of the best there is"
    return gap if solution.converged else f"{gap}; not all was proven in {solution.seconds:.3g} s"
