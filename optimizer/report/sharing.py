"""What is told of an answer to several applications: sentences, rows of tables, the JSON document."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.batching.documents import Plan, PolicyDocument, WarmEnvironments
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend import ServedQueue, SharingAnswer
from sluice.optimizer.recommend.kept_warm import how_kept
from sluice.optimizer.recommend.served_queue import Served, cost_of_queues
from sluice.optimizer.recommend.sharing import WORTH, pinged_by_function
from sluice.optimizer.recommend.words import less, milliseconds
from sluice.optimizer.recommend.worker_queue import WorkerQueue
from sluice.optimizer.report.documents import Document, cost_document, prices_document
from sluice.optimizer.report.wording import costs_of, decided_by_queues, no_buffer, per_million, small
from sluice.optimizer.simulation.batch_means import Estimate


@dataclass(frozen=True)
class ApplicationRow:
    """An application: requests/s, what it is promised and may expect (s), with whom it shares, and its slack (s)."""

    name: str
    arrival_rate: float
    promised: str
    reached: Estimate
    exact: bool
    kept: bool
    shares_with: str
    slack: float


def headline(answer: SharingAnswer) -> str:
    """Who shares a queue and what it saves, in one sentence."""
    usd, saved = per_million(answer.cost.by_request), 100 * answer.saving
    apart = per_million(cost_of_queues(answer.separate).by_request)
    (first, *others) = answer.queues
    if not others:
        text = (
            f"One queue for {first.named} ({_setting(first)})"
            if len(answer.applications) > 1
            else f"{first.named}: {_setting(first)}"
        )
    elif len(answer.queues) == len(answer.applications):
        text = "A queue for each application: " + ", ".join(f"{of.named} ({_setting(of)})" for of in answer.queues)
    else:
        text = f"{len(answer.queues)} queues: " + "; ".join(f"{of.named} ({_setting(of)})" for of in answer.queues)
    text = f"{text}: {usd} USD per million requests"
    if len(answer.queues) == len(answer.applications):
        return f"{text}{'; sharing a queue is worth nothing here' if others else ''}."
    if answer.saving < 0 and any(of.missed for of in answer.separate):
        return f"{text}, {-saved:.3g} % more than a queue for each ({apart}), in which cold starts would break a promise."
    if answer.saving < WORTH:
        return f"{text}, as much as a queue for each ({apart})."
    return f"{text}, {saved:.3g} % less than a queue for each ({apart})."


def verdict(answer: SharingAnswer) -> str:
    """Whether to deploy a buffer, and what a month costs with it and without."""
    rate, every = answer.arrival_rate, len(answer.unbatched) == len(answer.applications)
    direct = cost_of_queues(answer.unbatched) if every else None
    if direct is not None and all(table.max_batch_size == 1 for of in answer.queues for _, table in of.tables):
        return no_buffer(direct.in_all(rate), rate, answer.question)
    since = answer.break_even_arrival_rate
    pays = "; it pays at no rate" if since is None else f"; it pays from {since:.4g} requests/s on"
    return decided_by_queues(len(answer.queues), answer.cost, direct, rate, pays)


def sentences(answer: SharingAnswer) -> list[str]:
    """Whether the promises are kept, and what sharing is worth."""
    rows = application_rows(answer)
    how = "exact" if all(of.exact for of in rows) else "some from drawn arrivals or a run, with their intervals below"
    reached = ", ".join(f"{of.name} {of.promised}: {milliseconds(of.reached.value)}" for of in rows)
    missed = [of.name for of in rows if not of.kept]
    told = f"Predicted ({how}): {reached}."
    if missed:
        estimated = answer.question.billing.cold_start_probability is None
        however = ", however many environments that there is an estimate for are kept warm" if estimated else ""
        found = [f"Cold starts make more requests of {', '.join(missed)} late than promised{however}. {told}"]
    elif in_run := [of for of in answer.queues if isinstance(of, WorkerQueue) and not of.setting.for_any_arrivals]:
        confidence = f"{100 * in_run[0].setting.confidence:g} %"
        before = " and ".join(of.named for of in in_run)
        found = [f"Every promise is kept: of {before} in a run of these arrivals, with {confidence} confidence. {told}"]
    elif any(of.warm for of in answer.queues):
        found = [f"Every promise is kept, by the tables and by the environments that are kept warm. {told}"]
    else:
        found = [f"Every promise is kept by the table, whatever the arrivals do. {told}"]
    found += [f"{of.named}: {of.setting.instruction}" for of in answer.queues if isinstance(of, WorkerQueue)]
    if answer.cut_short:
        found.append("Not every group for which workers may be cheaper was simulated: there are too many.")
    found += [*_by_size(answer), *_cold_starts(answer), *_kept_warm(answer), *_costs(answer)]
    if len(answer.queues) < len(answer.applications) and -WORTH < answer.saving < WORTH and not missed:
        found.append(f"Sharing saves less than {100 * WORTH:g} %: a queue for each application is as good.")
    found += _strict(answer)
    if len(answer.queues) < len(answer.applications):
        apart = SECONDS_PER_MONTH * answer.arrival_rate * cost_of_queues(answer.separate).in_all(answer.arrival_rate)
        found.append(f"With a queue for each application a month costs {apart:.2f} USD.")
    return found


def _costs(answer: SharingAnswer) -> list[str]:
    """Which arrivals its costs are those of."""
    recorded = answer.question.recorded
    if recorded is None or answer.fitted is None:
        why = "not every class has arrivals that were recorded, or queues share what is kept warm"
        return [f"Costs are predicted from the arrival processes alone: {why}."]
    told = costs_of(answer.question, answer.cost, answer.fitted)
    return [f"{told} They are those of the latest {recorded.span:.4g} s of each class, which all have."]


def _by_size(answer: SharingAnswer) -> list[str]:
    """Where the size of a batch chooses its function, and what that is worth at other rates."""
    sentences = []
    for of in answer.queues:
        if isinstance(of, ServedQueue) and of.one_function:
            sentences.append(of.one_function)
        if not isinstance(of, ServedQueue) or not of.loads:
            continue
        low, high = of.loads[0], of.loads[-1]
        worth = " and ".join(f"{less(1 - at.usd / at.usd_of_one_function)} at {at.factor:g}" for at in (low, high))
        several = len(of.functions) > 1
        which = f"The size of a batch of {of.named} chooses the function: {of.by_size}" if several else f"{of.named}: {of.by_size}"
        sentences.append(f"{which}; beside the cheapest table at these rates that {worth} times the rates.")
    return sentences


def _cold_starts(answer: SharingAnswer) -> list[str]:
    cold = [of for of in answer.queues if small(of.cold_starts) != "-"]
    if not cold:
        return []
    told = ", ".join(f"{small(of.cold_starts)} % of the batches of {of.named} ({milliseconds(of.init)} of INIT)" for of in cold)
    return [f"Cold, by estimate: {told}."]


def _kept_warm(answer: SharingAnswer) -> list[str]:
    """What to deploy beside the plan."""
    wanted: dict[tuple[str, int, bool], WarmEnvironments] = {}
    for of in answer.queues:
        if isinstance(of, ServedQueue) and of.warm:
            at = of.function, of.memory_mb, bool(of.provisioned)
            before = wanted[at].provisioned if at in wanted and of.warm_queues == 1 else 0
            pinged = pinged_by_function(answer.queues).get(of.function) or of.warm
            wanted[at] = WarmEnvironments(before + of.provisioned) if of.provisioned else pinged
    sentences = [
        f"Keep {n} of {function} provisioned (ProvisionedMemory={memory_mb}, ProvisionedConcurrency={n})."
        if (n := warm.provisioned)
        else f"The buffer keeps, of {function}, {how_kept(warm)}."
        for (function, memory_mb, _), warm in wanted.items()
    ]
    if sum(provisioned for *_, provisioned in wanted) > 1:
        sentences.append("The template keeps those of one memory size: set the others on the alias of their function.")
    return sentences


def _strict(answer: SharingAnswer) -> list[str]:
    if answer.at_the_strictest is None or len(answer.applications) == 1:
        return []
    usd = answer.at_the_strictest.cost.by_request
    more = 100 * (usd / answer.cost.by_request - 1)
    return [f"One queue in which all are promised what the strictest is costs {per_million(usd)}, {max(more, 0.0):.3g} % more."]


def application_rows(answer: SharingAnswer) -> list[ApplicationRow]:
    """The applications, the strictest promise first."""
    found = []
    for queue in answer.queues:
        for k, of in enumerate(queue.applications):
            others = ", ".join(other.name for other in queue.applications if other is not of)
            promised = f"{of.slo.name} {milliseconds(of.slo.latency)}"
            reached, exact = queue.reached(k), queue.exact(k)
            slack = queue.slacks[k]
            row = (of.name, of.arrivals.arrival_rate, promised, reached, exact, queue.keeps(k), others, slack)
            found.append(ApplicationRow(*row))
    return found


def sharing_document(answer: SharingAnswer, plan: Plan) -> Document:
    """An answer, with the plan made of it."""

    def queue(of: Served) -> Document:
        return {
            "function": of.function,
            "memory_mb": of.memory_mb,
            "policy": PolicyDocument.of(of.tables[0][1]),
            "beside": [{"function": function, "policy": PolicyDocument.of(table)} for function, table in of.tables[1:]],
            "loads": [at._asdict() for at in of.loads] if isinstance(of, ServedQueue) else [],
            "arrival_rate": of.arrival_rate,
            "mean_batch_size": of.mean_batch_size,
            "cost": cost_document(of.cost, of.arrival_rate),
            "cold_starts": of.cold_starts,
            "warm": of.warm,
            "classes": [
                {
                    "name": each.name,
                    "arrival_rate": each.arrivals.arrival_rate,
                    "slo": each.slo,
                    "slack": slack,
                    "latency": {each.slo.name: reached.value},
                    "interval": None if of.exact(k) else [reached.low, reached.high],
                    "method": of.method,
                    "kept": of.keeps(k),
                }
                for k, (each, slack) in enumerate(zip(of.applications, of.slacks, strict=True))
                for reached in [of.reached(k)]
            ],
        }

    rate = answer.arrival_rate
    return {
        "version": 1,
        "plan": plan,
        "arrival_rate": rate,
        "queues": [queue(of) for of in answer.queues],
        "separate": [queue(of) for of in answer.separate],
        "cost": {name: cost_document(cost, rate) for name, cost in answer.compared.items()},
        **({} if answer.fitted is None else {"fitted_cost": cost_document(answer.fitted, rate)}),
        "saving": answer.saving,
        "break_even_arrival_rate": answer.break_even_arrival_rate,
        "prices": prices_document(answer.question.billing.prices),
    }


def _setting(queue: Served) -> str:
    return f"{queue.leaves}, {queue.runs_on}"
