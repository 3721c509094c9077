"""The sentences and names that the terminal and the page share, so that they say the same."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batching.documents import Slo
from sluice.batching.policy import INF, Policy
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend.answer import FrontierPoint, Recommendation
from sluice.optimizer.recommend.workers import WorkerSetting
from sluice.optimizer.simulation.batch_means import Estimate

TERMS = {
    "compute": "compute (GB-s)",
    "requests": "request fee",
    "init": "cold starts (INIT)",
    "restore": "restored snapshots",
    "machines": "machines by the hour",
    "logs": "logs",
    "cache": "cache, metered",
    "load_balancer": "load balancer, metered",
    "network": "network, metered",
}


def named(term: str) -> str:
    """A term of the cost as people read it."""
    return TERMS.get(term, term.replace("_", " "))


def named_part(part: str) -> str:
    """A part of the fixed cost as people read it."""
    return part.replace("_", " ")


def milliseconds(seconds: float) -> str:
    """Seconds as people read latencies: four significant digits of milliseconds."""
    return f"{1e3 * seconds:.4g} ms"


def per_million(usd: float) -> str:
    """USD per request as USD per million requests."""
    return f"{1e6 * usd:.4f}"


def promise(slos: Sequence[Slo]) -> str:
    """What is promised: ``95 % within 200 ms and 99 % within 400 ms``."""
    return " and ".join(f"{slo.percentile:g} % within {milliseconds(slo.latency)}" for slo in slos)


def leaves(policy: Policy) -> str:
    """With how many requests, or after how long, a batch leaves."""
    if policy.max_batch_size == 1:
        return "one by one"
    timeouts = [hold for hold in policy.hold if 0 < hold < INF]
    if not timeouts:
        return f"up to {policy.max_batch_size}, at once"
    shortest, longest = min(timeouts), max(timeouts)
    after = milliseconds(longest) if shortest == longest else f"{1e3 * longest:.3g} to {1e3 * shortest:.3g} ms"
    return f"{policy.max_batch_size} or {after}"


def headline(answer: Recommendation) -> str:
    """The recommended setting in one sentence."""
    winner = answer.winner
    if isinstance(winner, WorkerSetting):
        workers = f"{winner.workers} worker{'s' if winner.workers > 1 else ''} ({winner.name})"
        held = leaves(winner.policy)
        if winner.max_batch_size == 1:
            return f"Serve with {workers}, {held}."
        if held.endswith("at once"):
            return f"Serve with {workers}; a free one takes all that wait, up to {winner.max_batch_size}."
        waited = held.replace(" or ", " requests, or fewer when the oldest has waited ")
        return f"Serve with {workers}; a free one takes {waited}."
    if winner.batch_size == 1:
        return f"Call the function directly, with {winner.memory_mb} MB and no buffer."
    if winner.table is not None:
        return (
            f"Hold requests until {winner.batch_size} are there or waiting for one more would make the oldest late: "
            f"{_by_number(winner.table)}. Run the function with {winner.memory_mb} MB."
        )
    return (
        f"Hold requests until {winner.batch_size} are there or the oldest has waited {milliseconds(winner.timeout)}, "
        f"and run the function with {winner.memory_mb} MB."
    )


def _by_number(table: Policy) -> str:
    """The holds with one waiting and some others: ``190 ms with one waiting, 180 ms with 8``."""
    numbers = [n for n in (1, table.max_batch_size // 4, table.max_batch_size - 1) if n > 0]
    holds = {milliseconds(table.hold[n]): n for n in sorted(numbers, reverse=True)}
    named = [f"{hold} with {'one waiting' if n == 1 else n}" for hold, n in reversed(holds.items())]
    return ", ".join(named)


def kept(answer: Recommendation) -> str:
    """Whether the SLOs are kept, and by how much."""
    winner, names = answer.winner, [slo.name for slo in answer.slos]
    if isinstance(winner, WorkerSetting):
        reached = [f"{name} {_interval(winner.latency[name])}" for name in names]
        return f"{promise(answer.slos)}: kept, by simulation {' and '.join(reached)}."
    reached = [f"{s.name} {milliseconds(winner.latency.percentile(s.percentile))}" for s in answer.slos]
    keeps = all(winner.latency.probability_within(s.latency) >= s.quantile - 1e-7 for s in answer.slos)
    verdict = "not kept" if not keeps else "kept" if winner.table is None else "kept for any arrivals one by one"
    return f"{promise(answer.slos)}: {verdict}, by prediction {' and '.join(reached)}."


def _interval(estimate: Estimate) -> str:
    value, low, high = estimate
    return f"{milliseconds(value)} ({1e3 * low:.4g} to {1e3 * high:.4g} with 95 % confidence)"


def timeout(point: FrontierPoint) -> str:
    """How long a setting of the frontier holds requests."""
    if point.batch_size == 1:
        return "-"
    return milliseconds(point.timeout) if point.kind == "size_or_timeout" else f"up to {milliseconds(point.timeout)}"


def saving(answer: Recommendation) -> str:
    """The bill, beside that of what it saves upon."""
    winner = answer.winner
    bill, none, function = winner.cost.per_request, answer.no_batching.cost.per_request, answer.best.cost.per_request
    text = f"{per_million(bill)} USD per million requests"
    if isinstance(winner, WorkerSetting):
        if not answer.feasible:
            return f"{text}; no setting of the function does it."
        if not 0 < bill < function:
            return f"{text}, beside {per_million(function)} for the best setting of the function."
        return f"{text}, {function / bill:.2f} times less than the best setting of the function ({per_million(function)})."
    if answer.best.batch_size == 1:
        return f"{text}; no batch size is cheaper."
    if not answer.no_batching_keeps_slo:
        return f"{text}; without batching no memory size keeps the SLO (quickest: {per_million(none)})."
    return f"{text}, {none / bill:.2f} times less than no batching ({per_million(none)})."


def pays(answer: Recommendation, arrival_rate: float) -> bool:
    """Whether a buffer for this alone earns what it costs at ``arrival_rate`` (requests/s)."""
    return answer.break_even_arrival_rate is not None and arrival_rate > answer.break_even_arrival_rate


def break_even(answer: Recommendation, arrival_rate: float) -> str:
    """Whether to deploy a buffer at ``arrival_rate`` (requests/s)."""
    winner = answer.winner
    if isinstance(winner, WorkerSetting):
        here, direct = (
            arrival_rate * SECONDS_PER_MONTH * cost.in_all(arrival_rate) for cost in (winner.cost, answer.no_batching.cost)
        )
        text = f"With their buffer the workers cost {here:.2f} USD per month"
        if not answer.no_batching_keeps_slo:
            return f"{text}."
        return f"{text}; calling the function directly costs {direct:.2f} at {arrival_rate:.4g} requests/s."
    rate, fixed = answer.break_even_arrival_rate, winner.cost.fixed_per_month
    if winner.batch_size == 1:
        return "Batching saves nothing here: call the function directly and deploy no buffer."
    if rate is None:
        return f"The buffer costs {fixed:.2f} USD per month, which no arrival rate earns: do not deploy one to save money."
    verdict = "it pays" if pays(answer, arrival_rate) else "do not deploy one for this alone"
    return f"The buffer costs {fixed:.2f} USD per month, earned from {rate:.4g} requests/s on; here {arrival_rate:.4g}: {verdict}."


def proof(answer: Recommendation) -> list[str]:
    """What the search shows of its own answer."""
    sentences = []
    if answer.feasible:
        between = "" if answer.gap is None else f"; no timeout in between is cheaper by more than {100 * answer.gap:.2g} %"
        sentences.append(f"{answer.n_settings} settings of the function compared{between}.")
    else:
        sentences.append("No setting of the function keeps the SLO and the budget; the quickest is shown.")
    if answer.at_longest_timeout:
        longest = milliseconds(answer.best.timeout)
        sentences.append(f"The timeout is the longest allowed ({longest}): a longer may be cheaper (--max-timeout).")
    if answer.feasible and not answer.no_batching_keeps_slo:
        sentences.append("Without batching no memory size keeps the SLO.")
    sentences += [f"{name} is not in the answer: {reason}." for name, reason in answer.refused_workers.items()]
    return sentences
