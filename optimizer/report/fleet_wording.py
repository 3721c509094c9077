"""What is said of a fleet's plan: what becomes of the requests, and what was found beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sluice.optimizer.fleet.plan import FleetPlan
from sluice.optimizer.fleet.prediction import FleetPrediction
from sluice.optimizer.fleet.problem import FleetSolution
from sluice.optimizer.fleet.specification import Unservable
from sluice.optimizer.fleet.throughput import HALF
from sluice.optimizer.recommend.words import in_brackets
from sluice.optimizer.simulation.batch_means import Estimate


def per_second(rate: float) -> str:
    """Requests per second in four digits."""
    return f"{rate:.4g}" if rate < 1e4 else f"{rate:.0f}"


def _down(factor: float) -> str:
    """A headroom in two decimals that are not above it."""
    return f"{math.floor(100 * factor + 1e-9) / 100:.2f}"


def outcome(plan: FleetPlan) -> str:
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
    return f"all demand is served, {_too_late(predicted)}: of all {share} {under}, {accuracy}"


def _too_late(predicted: FleetPrediction) -> str:
    """Of which families more is late than their SLOs allow, surely or perhaps."""
    above = {name: of for name, of in predicted.families.items() if not of.kept}
    surely = any(of.violations.value > of.allowed for of in above.values())
    which = [f"{_share(of.violations)} of {name} where {percent(of.allowed)} % may be" for name, of in above.items()]
    but = "but too much of it late or given up" if surely else "but more of it may be late or given up than should"
    return f"{but}, {', '.join(which)}"


def _list_missing(missing: Mapping[str, float]) -> str:
    return "missing: " + ", ".join(f"{per_second(rate)} requests/s of {name}" for name, rate in missing.items())


def _share(estimate: Estimate) -> str:
    value, low, high = map(percent, estimate)
    return f"{value} %{in_brackets(value, low, high)}"


def percent(share: float) -> str:
    """A share in percent, in two digits or three."""
    percents = 100 * share
    return f"{percents:.2g}" if percents < 10 else f"{percents:.1f}"


def sentences(plan: FleetPlan) -> Iterator[str]:
    """What is said below the tables: how good the plan is, who serves nowhere, what was planned for, what moves and is missing."""
    if plan.solution.flows.any():
        yield f"mean accuracy {plan.accuracy:.4f} %, {_proof(plan.solution)}"
    for of in plan.fleet.unservable:
        yield f"{of.variant} serves on no device: {_why_not(of)}"
    if plan.headroom_asked is None and plan.predicted is not None and plan.feasible:
        yield _chosen_headroom(plan)
    if plan.full and plan.feasible and not plan.kept:
        queues = f"{len(plan.full)} of {sum(group.share > 0 for group in plan.groups)} queues"
        yield f"no slack: {queues} would hardly ever empty"
    if plan.fleet.running is not None:
        yield from _loads(plan)
    if plan.devices_wanted:
        yield from _wanted(plan)


def _why_not(of: Unservable) -> str:
    if of.seconds is None:
        return f"it needs {of.memory_mb:.10g} MB of the {of.largest_mb:.10g} that the largest device with a profile of it has"
    takes = f"one request takes {of.seconds:.4g} s"
    if of.seconds > of.promised:
        return f"{takes} where {of.promised:.4g} s is promised"
    most = "half" if of.part == HALF else f"{100 * of.part:g} %"
    return f"{takes}, more than {most} of the {of.promised:.4g} s that is promised"


def _loads(plan: FleetPlan) -> Iterator[str]:
    """Which devices load another variant than they run."""
    loads = {device: pair for device, pair in plan.changes.items() if pair[1] is not None}
    yield f"{len(loads)} of {len(plan.placement)} devices load another variant{':' if loads else ''}"
    for device, (before, after) in loads.items():
        yield f"  {device}: {before or 'nothing'} -> {after}"


def _wanted(plan: FleetPlan) -> Iterator[str]:
    """How many more devices would serve it all."""
    if plan.feasible:
        yield f"all is served, with room for a headroom of {_down(plan.headroom)} only"
    wanted = [f"{n} more {device}" for device, n in plan.devices_wanted.items() if n]
    if not wanted:
        yield "no number of more devices of one type alone was found that would serve it all"
        return
    of_it = f", with a headroom of {plan.headroom_asked:g}," if plan.headroom_asked not in (None, 1) else ""
    yield f"all{of_it} would be served with " + ", or ".join(wanted)


def _chosen_headroom(plan: FleetPlan) -> str:
    planned_for = "planned for the demand itself" if plan.headroom == 1 else f"planned for {_down(plan.headroom)} times the demand"
    if not plan.kept:
        return f"{planned_for}, which comes nearest; no headroom that the devices allow was found to do"
    return f"{planned_for}: " + ("no headroom is needed" if plan.headroom == 1 else "with less, too many would be late or given up")


def _proof(solution: FleetSolution) -> str:
    gap = "the best there is" if solution.gap < 1e-4 else f"within {solution.gap:.2g} percentage points of the best there is"
    return gap if solution.converged else f"{gap}; not all was proven in {solution.seconds:.3g} s"
