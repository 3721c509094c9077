"""From a question to its answer: the best setting of the function, the best workers, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from sluice.batching.errors import Infeasible
from sluice.optimizer.recommend.answer import Answer
from sluice.optimizer.recommend.candidate import predicted_cost
from sluice.optimizer.recommend.comparisons import break_even, break_even_of, sensitivity
from sluice.optimizer.recommend.confidence import Confidence
from sluice.optimizer.recommend.every_load import choose_every_load
from sluice.optimizer.recommend.function_choice import FunctionChoice, choose_setting, first_percentile, ranked_on_record
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.kept_warm import cheapest_kept_warm
from sluice.optimizer.recommend.overflow_choice import choose_overflow
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.recorded import on_record
from sluice.optimizer.recommend.worker_number import choose_workers
from sluice.optimizer.recommend.worker_setting import WorkerSetting

ROUNDS = 3
SURELY_MORE = 1.05  # cold starts over those estimated, that are worth another search
MOST_MORE = 1000.0  # times as many as estimated that are believed


def recommend(question: Question, on_progress: Callable[[float], None] = lambda fraction: None) -> Answer:
    """The best memory size and table of the function, and the best workers.

    Where it breaks a promise in a run over the arrivals recorded, or drawn from the fit, and more start cold there than is
    estimated, it is sought again with as many, ``ROUNDS`` times at most. Where none keeps it there, it is the first, which says so
    (``Answer.broken``).

    Parameters
    ----------
    on_progress : callable
        Told the fraction done.

    Raises
    ------
    Infeasible
        No setting and no workers keep the SLOs, or the budget; carries the nearest setting.
    InvalidInput
    """
    first = answer = _answer(question, on_progress)
    for _ in range(ROUNDS):
        before = answer.question.cold_understated
        more = min(before * answer.cold_understated, MOST_MORE)
        if more <= before * SURELY_MORE:
            break
        try:
            answer = _answer(replace(question, cold_understated=more), on_progress)
        except Infeasible:
            break
    return first if answer.broken else answer


def _answer(question: Question, on_progress: Callable[[float], None]) -> Answer:
    settings = FunctionSettings(question)
    workers, refused = _offered(question)
    try:
        choice = ranked_on_record(settings, choose_setting(settings, lambda done: on_progress(0.7 * done)))
    except Infeasible:
        answer = _kept_warm(settings, replace(_quickest(settings), workers=workers, refused_workers=refused))
        answer = _with_overflow(answer)
        if not answer.kinds:
            raise
        return answer
    on_progress(0.7)
    answer = _for_every_load(settings, _compared(settings, choice))
    answer = replace(answer, break_even_arrival_rate=_earned_from(settings, answer))
    return _with_overflow(_kept_warm(settings, replace(answer, workers=workers, refused_workers=refused)))


def _kept_warm(settings: FunctionSettings, answer: Answer) -> Answer:
    """The answer with environments that are kept warm, where cold starts are known to matter and are estimated.

    The setting is the best as if nothing started cold, where cold starts harm, and else the one that is best with them. Where
    nothing else keeps the SLOs, calling the function directly is a setting as well, as it needs no buffer.
    """
    question = answer.question
    if question.goal.objective != "cost" or not settings.starts.matter or settings.starts.told is not None:
        return answer
    as_if = replace(question, billing=replace(question.billing, cold_start_probability=0.0), offers=())
    of_warm = FunctionSettings(as_if)
    try:
        harm = answer.cold_starts_harm
        warm = [choose_setting(of_warm, lambda done: None).settings[0] if harm else of_warm.under(answer.best, question.arrivals)]
    except Infeasible:
        return answer
    if not answer.feasible:
        warm += [setting for setting in of_warm.unbatched() if setting.keeps(question.promised)]
    kept = [cheapest_kept_warm(settings, setting) for setting in warm]
    found = [on_record(question, candidate) for candidate in kept if candidate is not None]
    within = [kept for kept in found if kept.cost.per_request <= question.goal.budget]
    return replace(answer, kept_warm=min(within, key=lambda kept: kept.cost.in_all(answer.arrival_rate), default=None))


def _for_every_load(settings: FunctionSettings, answer: Answer) -> Answer:
    """The answer with a plan for every load, where that was asked for."""
    loads = settings.question.goal.loads
    plan = None if loads is None else choose_every_load(settings, loads)
    return answer if plan is None else replace(answer, every_load=on_record(settings.question, plan))


def _earned_from(settings: FunctionSettings, answer: Answer) -> float | None:
    """The break-even rate of what the function alone would do."""
    taken = answer.by_function
    if isinstance(taken, FunctionSetting):
        return break_even(settings, taken, answer.no_batching)
    return break_even_of(taken, settings, answer.no_batching)


def _offered(question: Question) -> tuple[tuple[WorkerSetting, ...], dict[str, str]]:
    """The cheapest workers of every offer that keep SLOs and budget, cheapest first; and why the others do not."""
    found: list[WorkerSetting] = []
    refused = {}
    doubted = question if question.without else None
    for offer in question.offers:
        try:
            setting = choose_workers(
                question.arrivals, offer, question.promised_by(offer), billing=question.billing, question=doubted
            )
        except Infeasible as error:
            refused[offer.name] = str(error)
            continue
        setting = on_record(question, setting)
        if setting.cost.per_request <= question.goal.budget:
            found.append(setting)
        else:
            refused[offer.name] = f"the cheapest that keep the SLOs cost {setting.cost.per_request:.4g} USD per request"
    return tuple(sorted(found, key=lambda setting: setting.cost.in_all(question.arrival_rate))), refused


def _with_overflow(answer: Answer) -> Answer:
    """The answer with the cheapest workers and the function beside them, where they cost less than either alone.

    Or no more than the premium beyond, where that rests on a fit.
    """
    question, rate = answer.question, answer.question.arrivals.arrival_rate
    if not question.offers or not question.considers_tables:
        return answer
    bounded = question.goal.objective == "cost" and answer.kinds
    premium = question.premium if answer.winner.rests_on_fit else 0.0
    limit = (1 + premium) * predicted_cost(answer.winner).in_all(rate) if bounded else inf
    try:
        setting = choose_overflow(question, {w.name: w.workers for w in answer.workers}, cheaper_than=limit)
    except Infeasible as error:
        return replace(answer, refused_overflow=str(error))
    setting = on_record(question, setting)
    if setting.cost.per_request > question.goal.budget:
        return replace(answer, refused_overflow=f"the cheapest cost {setting.cost.per_request:.4g} USD per request")
    return replace(answer, overflow=setting)


def _compared(settings: FunctionSettings, choice: FunctionChoice) -> Answer:
    """The choice beside what it is to be compared with."""
    question, (best, *runners_up) = settings.question, choice.settings
    unbatched = settings.unbatched()
    kept = [setting for setting in unbatched if setting.keeps(question.promised)]
    none = on_record(question, min(kept, key=lambda s: s.cost.per_request) if kept else _quickest_of(settings, unbatched))
    longest, confidence = question.longest_timeout * (1 - 1e-9), Confidence(settings, question.promised)
    return Answer(
        settings=settings,
        best=best,
        no_batching=none,
        no_batching_keeps_slo=bool(kept),
        runners_up=tuple(runners_up),
        sensitivity=sensitivity(settings, best),
        break_even_arrival_rate=None,
        gap=choice.gap,
        at_longest_timeout=best.table is None and best.batch_size > 1 and best.timeout >= longest,
        n_settings=choice.n_settings,
        in_doubt=tuple(confidence.share_in_doubt(best).tolist()),
        cold_in_doubt=tuple(confidence.of_cold_starts.tolist()),
    )


def _quickest(settings: FunctionSettings) -> Answer:
    """The answer where no setting of the function keeps the SLOs: no batching at the memory size that is quickest."""
    best = on_record(settings.question, _quickest_of(settings, settings.unbatched()))
    return Answer(
        settings=settings,
        best=best,
        no_batching=best,
        no_batching_keeps_slo=False,
        runners_up=(),
        sensitivity=sensitivity(settings, best),
        break_even_arrival_rate=None,
        gap=None,
        at_longest_timeout=False,
        n_settings=0,
        feasible=False,
    )


def _quickest_of(settings: FunctionSettings, unbatched: list[FunctionSetting]) -> FunctionSetting:
    return min(unbatched, key=lambda setting: first_percentile(settings, setting))
