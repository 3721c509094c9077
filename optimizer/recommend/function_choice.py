"""The best setting of the function: of least cost, or the quickest within a budget (docs/model.md, 3.3).

The problems of BATCH, eqs (2) and (3), over memory size x batch size x timeout; ``search`` does the searching. No other setting
answers sooner than no batching, which is how infeasibility is known.

Beside size-or-timeout, tables that wait to the last moment compete (``last_moment``): they keep the SLOs whatever the arrivals do
and have a hold for every number waiting, but do not use up what an SLO allows to be late. Where both cost the same it is
size-or-timeout; but the table is taken if it costs no more than a ``premium`` beyond, since its promise rests on no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.confidence import ROUNDS, Confidence, Doubt
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.last_moment import cheapest_last_moments
from sluice.optimizer.recommend.recorded import on_record
from sluice.optimizer.recommend.search import SAME, Choice
from sluice.optimizer.recommend.words import two_digits

N_RUNNERS_UP = 5
LATENCY_TOLERANCE = 1e-6  # of the latency asked for
WITHIN = 1e-9  # of a budget, up to which a cost is within it
NEAR = 0.05  # of the predicted cost, within which settings are told apart by what they cost on the arrivals recorded
DISTINCT = 0.01  # of the cost; a runner-up that costs less than this more says nothing new

Report = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class FunctionChoice:
    """The best setting and its runners-up, the best first; ``gap`` is what the search left open, ``n_settings`` were compared."""

    settings: tuple[FunctionSetting, ...]
    gap: float | None
    n_settings: int


def choose_setting(settings: FunctionSettings, on_progress: Report) -> FunctionChoice:
    """The best setting of the function.

    Raises
    ------
    Infeasible
        None keeps the SLOs, or the budget; carries the nearest.
    """
    _refuse_infeasible(settings)
    budget = settings.question.goal.budget
    table, n_tables = _last_moment(settings, settings.question.goal.objective, budget)
    try:
        choice = _size_or_timeout(settings, on_progress)
    except Infeasible:
        if table is None:
            raise
        return FunctionChoice((table,), None, n_tables)
    ranked = choice.settings if table is None else _with(table, choice.settings, settings)
    return FunctionChoice(ranked, choice.gap, choice.n_settings + n_tables)


def ranked_on_record(settings: FunctionSettings, choice: FunctionChoice) -> FunctionChoice:
    """The choice with costs on the arrivals recorded, where there are any; of those ``NEAR`` the best the cheapest there is first.

    Only who keeps the SLOs as surely as the best must, within the budget, takes its place; a table may cost the premium more.
    """
    question = settings.question
    if question.recorded is None:
        return choice
    best, *others = billed = [on_record(question, setting) for setting in choice.settings]
    if question.goal.objective == "cost":
        confidence = Confidence(settings, question.promised)
        limit = (1 + NEAR) * choice.settings[0].cost.per_request

        def preferred(setting: FunctionSetting) -> float:
            return setting.cost.per_request / (1 + (0.0 if setting.rests_on_fit else question.premium))

        for setting in sorted(billed, key=preferred):
            near = setting.fitted is not None and setting.fitted.per_request <= min(limit, question.goal.budget)
            if setting is best or (near and confidence.keeps(setting, confidence.share_in_doubt(setting))):
                best, others = setting, [other for other in billed if other is not setting]
                break
    gap = choice.gap if best is billed[0] else None
    return FunctionChoice((best, *sorted(others, key=lambda setting: setting.cost.per_request)), gap, choice.n_settings)


def cheapest_setting(settings: FunctionSettings, known: FunctionSetting | None = None) -> FunctionSetting | None:
    """The first of ``choose_setting`` at the least cost, to ``SAME``, or ``known``, of other memory sizes, if that came before it.

    ``None`` where nothing keeps the SLOs and nothing is known. A setting with a timeout is not looked for where a table that waits
    to the last moment, or what is known, would be preferred to it.
    """
    question = settings.question
    worth = 1 - SAME + question.premium
    table, _ = _last_moment(settings, "cost", np.inf)
    if table is not None and known is not None and table.cost.per_request >= known.cost.per_request * (1 if known.table else worth):
        table = None
    best = known if table is None else table
    limit = np.inf if best is None else best.cost.per_request / (worth if best.table else 1)
    return cheapest_timeout(settings, question.promised, limit) or best


def cheapest_timeout(settings: FunctionSettings, slos: Sequence[Slo], limit: float = np.inf) -> FunctionSetting | None:
    """The cheapest size-or-timeout for less than ``limit`` (USD per request); ``None`` where nothing keeps these SLOs for that.

    Asked again with other percentiles of the same latencies, it knows the laws.
    """
    question = settings.question
    land, _ = settings.search.landscape(slos, question.timeouts, budget=limit, refine=question.refines)
    for choice in land.ranked(limit):
        setting = settings.size_or_timeout(choice.service, choice.batch_size, choice.timeout)
        if setting.keeps(slos) and setting.cost.per_request < limit:
            return setting
    return None


def first_percentile(settings: FunctionSettings, setting: FunctionSetting) -> float:
    """The percentile of the first SLO, s."""
    return setting.latency.quantile(settings.question.slos[0].quantile)


def _size_or_timeout(settings: FunctionSettings, on_progress: Report) -> FunctionChoice:
    """The best setting with a timeout and its runners-up, the gap that the search left, and how many were compared."""
    if settings.question.goal.objective == "latency":
        return _quickest(settings, on_progress)
    slos = settings.question.promised
    confidence = Confidence(settings, slos)

    def found(doubt: Doubt) -> FunctionChoice:
        choice = _ranked(settings, slos, settings.question.timeouts, doubt, on_progress)
        if choice is None:
            raise _too_dear(settings, doubt)
        return choice

    doubt = confidence.none
    choice = found(doubt)
    for turn in range(1, ROUNDS):
        in_doubt = confidence.share_in_doubt(choice.settings[0])
        if confidence.keeps(choice.settings[0], in_doubt):
            break
        doubt = doubt.of(in_doubt) if turn < ROUNDS - 1 else confidence.whole
        choice = found(doubt)
    return choice


def _quickest(settings: FunctionSettings, on_progress: Report) -> FunctionChoice:
    """The same of least latency, of which nothing is in doubt.

    What the landscape has within the budget at the least latency may be just beyond it by a prediction of its own: then at a
    later one, up to what is promised.
    """
    promised, beyond = settings.question.promised, 10 * LATENCY_TOLERANCE
    first, timeouts = _least_latency(settings)
    while True:
        slos = first, *promised[1:]
        choice = _ranked(settings, slos, timeouts, Confidence(settings, slos).none, on_progress)
        if choice is not None:
            return choice
        if first.latency >= promised[0].latency:
            raise _too_dear(settings, Confidence(settings, promised).none)
        first = Slo(min(promised[0].latency, first.latency * (1 + beyond)), first.percentile)
        beyond *= 4


def _ranked(
    settings: FunctionSettings, slos: Sequence[Slo], timeouts: Array, doubt: Doubt, on_progress: Report
) -> FunctionChoice | None:
    """The settings with a timeout that keep these SLOs within the budget by predictions of their own; ``None`` where none does."""
    question, n_best = settings.question, min(N_RUNNERS_UP + 1, len(settings.services))
    budget = question.goal.budget
    land, gap = settings.search.landscape(
        slos, timeouts, budget=budget, n_best=n_best, refine=question.refines, on_progress=on_progress, kept_free=doubt.at
    )
    verified = _verified(settings, land.ranked(budget), slos)
    return FunctionChoice(tuple(verified), gap, land.n_settings) if verified else None


def _last_moment(
    settings: FunctionSettings, objective: str, budget: float, tightened: float | None = None
) -> tuple[FunctionSetting | None, int]:
    """The best table that waits to the last moment within the budget (looked for in a tighter one), and how many were compared."""
    limit = budget if tightened is None else tightened
    slos = settings.question.promised
    if not settings.question.considers_tables:
        return None, 0
    found, compared = cheapest_last_moments(settings.search, slos)
    if not found or found[0].cost > limit or found[0].policy.max_batch_size == 1:
        return None, compared
    best, first = found[0], slos[0]
    low, high = 0.0, first.latency
    while objective == "latency" and high - low > LATENCY_TOLERANCE * first.latency:
        middle = (low + high) / 2
        found, more = cheapest_last_moments(settings.search, (Slo(middle, first.percentile), *slos[1:]))
        compared += more
        if found and found[0].cost <= limit:
            best, high = found[0], middle
        else:
            low = middle
    held = settings.held(best.service, best.policy)
    if held.cost.per_request > budget * (1 + WITHIN) and tightened is None:  # by a prediction of its own, with its cold starts
        held_too, more = _last_moment(settings, objective, budget, budget**2 / held.cost.per_request)
        return held_too, compared + more
    return held if held.cost.per_request <= budget * (1 + WITHIN) else None, compared


def _with(table: FunctionSetting, others: Sequence[FunctionSetting], settings: FunctionSettings) -> tuple[FunctionSetting, ...]:
    """The best settings with the table among them: first where it is better, or costs no more than the premium beyond."""
    if not others:
        return (table,)
    best, *rest = others
    if settings.question.goal.objective == "latency":
        first = first_percentile(settings, table) < first_percentile(settings, best) * (1 - SAME)
    else:
        first = table.cost.per_request < best.cost.per_request * (1 - SAME + settings.question.premium)
    if first:
        return (table, *others)[: N_RUNNERS_UP + 1]
    if table.cost.per_request <= best.cost.per_request:
        return tuple(others)
    return (best, *sorted([*rest, table], key=lambda setting: setting.cost.per_request))[: N_RUNNERS_UP + 1]


def _verified(settings: FunctionSettings, ranked: Sequence[Choice], slos: Sequence[Slo]) -> list[FunctionSetting]:
    """The best setting and the runners-up, those of other functions first, as predictions of their own, each checked again."""
    budget = settings.question.goal.budget
    found: list[FunctionSetting] = []
    for choice in [*_of_each_function(ranked), *_distinct(ranked)]:
        setting = settings.size_or_timeout(choice.service, choice.batch_size, choice.timeout)
        known = any((s.memory_mb, s.batch_size) == (setting.memory_mb, setting.batch_size) for s in found)
        if not known and setting.keeps(slos) and setting.cost.per_request <= budget * (1 + WITHIN):
            found.append(setting)
        if len(found) > N_RUNNERS_UP:
            break
    return sorted(found, key=lambda setting: setting.cost.per_request)


def _least_latency(settings: FunctionSettings) -> tuple[Slo, Array]:
    """The first SLO at the least latency (s) that the budget allows, and timeouts that tell."""
    question, budget = settings.question, settings.question.goal.budget
    first, *others = question.promised
    land, _ = settings.search.landscape(question.promised, question.timeouts, budget=budget, refine=question.refines)
    if not land.ranked(budget):
        raise _too_dear(settings, Confidence(settings, question.promised).none)
    low, high = 0.0, first.latency
    timeouts = land.timeouts
    while high - low > LATENCY_TOLERANCE * first.latency:
        middle = Slo((low + high) / 2, first.percentile)
        land, _ = settings.search.landscape((middle, *others), timeouts, budget=budget, refine=question.refines)
        if land.ranked(budget):
            high, timeouts = middle.latency, land.timeouts
        else:
            low = middle.latency
    return Slo(high, first.percentile), timeouts


def _refuse_infeasible(settings: FunctionSettings) -> None:
    slos = settings.question.promised
    confidence = Confidence(settings, slos)
    doubt = confidence.none
    alone, _ = settings.search.landscape(slos, np.zeros(1), n_best=len(settings.services) + 1, refine=False, kept_free=doubt.at)
    if alone.ranked():
        return
    # Who waits for a batch is not always later: fewer batches overlap, and start cold.
    if settings.search.starts is not None:
        question = settings.question
        batched, _ = settings.search.landscape(slos, question.timeouts, refine=question.refines, kept_free=doubt.at)
        table, _ = _last_moment(settings, "cost", np.inf)
        if batched.ranked() or (table is not None and confidence.keeps(table, confidence.share_in_doubt(table))):
            return
    unbatched = settings.unbatched()
    for slo in slos:
        quickest = min(unbatched, key=lambda setting: setting.latency.quantile(slo.quantile))
        reached = quickest.latency.quantile(slo.quantile)
        reached = settings.question.promisable(Slo(reached, slo.percentile))
        if not quickest.keeps([slo]):
            many = quickest.with_starts and quickest.cold_starts > slo.error_budget
            cold = f", where {two_digits(quickest.cold_starts)} % of the invocations start cold" if many else ""
            raise Infeasible(
                f"no setting keeps {settings.question.named(slo)}: the best reachable is {reached:.4g} s "
                f"at {quickest.memory_mb} MB without batching{cold}",
                _reachable(settings, quickest) | {"latency": reached},
            )
        confidence = Confidence(settings, [slo])
        if not confidence.keeps(quickest, confidence.of_cold_starts):
            raise Infeasible(
                f"no setting surely keeps {settings.question.named(slo)}: at {quickest.memory_mb} MB without batching "
                f"{two_digits(quickest.cold_starts)} % of the invocations start cold, give or take "
                f"{two_digits(confidence.of_cold_starts[0])} %, as the fit knows",
                _reachable(settings, quickest) | {"latency": reached},
            )
    quickest = min(unbatched, key=lambda setting: first_percentile(settings, setting))
    raise Infeasible("no memory size keeps all the SLOs at once", _reachable(settings, quickest))


def _too_dear(settings: FunctionSettings, doubt: Doubt) -> Infeasible:
    """Why nothing is within the budget, with the cheapest there is."""
    question = settings.question
    ranked = settings.search.landscape(question.promised, question.timeouts, kept_free=doubt.at)[0].ranked()[:1]
    found = [settings.size_or_timeout(choice.service, choice.batch_size, choice.timeout) for choice in ranked]
    table, _ = _last_moment(settings, "cost", np.inf)
    cheapest = min([*found, *([table] if table is not None else [])], key=lambda setting: setting.cost.per_request)
    return Infeasible(
        f"no setting keeps {question.asked} for {question.goal.budget:.4g} USD per request: "
        f"the cheapest costs {cheapest.cost.per_request:.4g} USD",
        _reachable(settings, cheapest) | {"cost_per_request": cheapest.cost.per_request},
    )


def _reachable(settings: FunctionSettings, setting: FunctionSetting) -> dict[str, float]:
    return {
        "latency": first_percentile(settings, setting),
        "memory_mb": setting.memory_mb,
        "batch_size": setting.batch_size,
        "timeout": setting.timeout,
    }


def _of_each_function(ranked: Sequence[Choice]) -> list[Choice]:
    """The cheapest choice of every function."""
    found: dict[int, Choice] = {}
    for choice in ranked:
        found.setdefault(choice.service, choice)
    return list(found.values())


def _distinct(ranked: Sequence[Choice]) -> list[Choice]:
    """The cheapest choice of every step of ``DISTINCT`` in cost, as neighbouring batch sizes may cost the same."""
    found = list(ranked[:1])
    for choice in ranked:
        if choice.cost > found[-1].cost * (1 + DISTINCT):
            found.append(choice)
    return found
