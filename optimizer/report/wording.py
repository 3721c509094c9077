"""The sentences and names that the terminal and the page share, so that they say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.batching.documents import Slo, percentile_name
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, Prices
from sluice.optimizer.recommend import Answer, Candidate, FrontierPoint, OverflowSetting, Question, WorkerSetting
from sluice.optimizer.recommend.kept_warm import how_kept
from sluice.optimizer.recommend.simulated_setting import SimulatedSetting
from sluice.optimizer.recommend.words import between, is_other_rate, milliseconds, promised, two_digits
from sluice.optimizer.service.doubt import highest_quantile
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.statistics import RunStatistics

FAR = 0.01  # of the cost on record, from which on what the fitted process has is told beside it
TERMS = {
    "compute": "compute (GB-s)",
    "requests": "request fee",
    "init": "cold starts (INIT)",
    "restore": "restored snapshots",
    "machines": "machines by the hour",
    "pings": "pings",
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


def per_million(usd: float) -> str:
    """USD per request as USD per million requests."""
    return f"{1e6 * usd:.4f}"


def priced(prices: Prices) -> str:
    """Which prices, and of when."""
    return f"prices: {prices.told}"


def promise(slos: Sequence[Slo]) -> str:
    """What is promised: ``95 % within 200 ms and 99 % within 400 ms``."""
    return " and ".join(f"{slo.percentile:g} % within {promised(slo.latency)}" for slo in slos)


def at_rate(question: Question) -> str:
    """The rate that latencies are at, and that of the costs where it is another."""
    rate, recorded_rate = question.arrivals.arrival_rate, question.arrival_rate
    costs = f", costs at {recorded_rate:.4g}{_as_recorded(question)}" if is_other_rate(rate, recorded_rate) else ""
    return f"at {rate:.4g} requests/s{costs}"


def headline(answer: Answer) -> str:
    """The recommended setting in one sentence, with what it saves against the cheapest of another kind, where there is one."""
    instruction, others = answer.winner.instruction, list(answer.kinds.items())[1:]
    if not others or answer.question.goal.objective != "cost":
        return instruction
    here = answer.winner.cost.in_all(answer.arrival_rate)
    there, other = min((candidate.cost.in_all(answer.arrival_rate), kind) for kind, candidate in others)
    if here > there:
        return f"{instruction.removesuffix('.')}: for {two_digits(here / there - 1)} % more in all than {other} it rests on no fit."
    return f"{instruction.removesuffix('.')}: {two_digits(1 - here / there)} % less in all than {other}."


def kept(answer: Answer) -> str:
    """Whether the SLOs are kept, and by how much."""
    winner, slos = answer.winner, answer.slos
    reached = " and ".join(f"{slo.name} {_reached(winner, slo)}" for slo in slos)
    by = "prediction" if winner.confidence is None else "simulation"
    verdict = "not kept" if not winner.keeps(slos) else "kept for any arrivals one by one" if winner.for_any_arrivals else "kept"
    verdict += " but for cold starts" if winner.for_any_arrivals and winner is answer.best and winner.with_starts else ""
    return f"{promise(slos)}: {verdict}, by {by} {reached}{_surely(answer)}."


def cold_starts(answer: Answer) -> list[str]:
    """How many batches of the function start cold, what that takes and costs; nothing where it does not serve alone."""
    setting, question = answer.by_function, answer.question
    if answer.winner is not setting:
        return []
    told = question.billing.cold_start_probability is not None
    why = "as told" if told else f"as an environment is kept for {question.environments.keep_alive:g} s"
    if setting.cold_starts < 1e-6:
        return [f"Next to no batch starts cold, {why}."]
    share = f"{small(setting.cold_starts)} % of the batches start cold, {why}"
    environments = question.environments_at(setting.memory_mb)
    seconds = 0.0 if environments is None else environments.init_duration
    if seconds == 0:
        return [f"{share}; how long that takes the profile does not know, and neither latency nor bill have it."]
    usd = per_million(setting.cost.init + setting.cost.restore)
    return [f"{share}: {milliseconds(seconds)} more each, and {usd} USD per million requests."]


def started(answer: Answer) -> list[str]:
    """How many environments of the function the buffer starts with the plan, if any."""
    if not (n := answer.started):
        return _starts_unknown(answer)
    environments = "an environment" if n == 1 else f"{n} environments"
    environments += " of each function" if answer.winner.beside else ""
    return [f"The plan has the buffer start {environments} when it comes into force, before requests ask for them."]


def _starts_unknown(answer: Answer) -> list[str]:
    winner, question = answer.winner, answer.question
    unknown = question.billing.cold_start_probability is None and winner.memory_mb is not None
    if not unknown or winner is not answer.by_function or winner.policy.max_batch_size == 1 or "://" in winner.function:
        return []
    if (init := question.profile.init.get(winner.memory_mb)) is not None and init.mean:
        return []
    return [
        f"The profile saw no cold start at {winner.memory_mb} MB: no figure has any, and the plan has nothing started before"
        " the first requests. `sluice profile` sees them of a function that nobody has used for some minutes."
    ]


def kept_warm(answer: Answer) -> list[str]:
    """What environments that are kept warm would cost beyond the function alone, or what would be without them."""
    warm = answer.kept_warm
    if warm is None:
        return []
    more = (warm.cost.per_request - answer.by_function.cost.per_request) * answer.arrival_rate * SECONDS_PER_MONTH
    if answer.winner is warm:
        cold = f"{small(answer.best.cold_starts)} % of the batches would start cold"
        without = f"Without them {cold}." if answer.feasible else "Without them cold starts break the promise."
        one, pinged = warm.warm.number == 1, not warm.warm.provisioned
        all_of, others = ("it", "another") if one else ("all of them", "others")
        promise = " Lambda promises nothing of what a ping keeps; what it promises is provisioned concurrency." if pinged else ""
        without = without.replace("them", "it") if one else without
        if not answer.cold_starts_harm:
            without = f"It costs {-more:.2f} USD per month less than without them, as what is provisioned is paid by the hour."
        if warm.on_demand < 1e-6:
            return [f"{without} Next to no batch finds {all_of} busy.{promise}"]
        late = "next to none" if warm.cold_starts < 1e-6 else f"{small(warm.cold_starts)} %"
        return [f"{without} {small(warm.on_demand)} % find {all_of} busy and go to {others}; {late} start cold.{promise}"]
    with_them = f"with {how_kept(warm.warm)} the function"
    if not answer.feasible:
        return [
            f"{with_them[0].upper()}{with_them[1:]} would do it for {per_million(warm.cost.by_request)} USD per million requests."
        ]
    if more < 0:  # within the premium of all that is paid
        less = f"{with_them} would cost {-more:.2f} USD per month less all the same"
        return [f"No promise asks for environments that are kept warm; {less}."]
    return [f"Nothing need be kept warm: {with_them} would cost {more:.2f} USD per month more."]


def _surely(answer: Answer) -> str:
    """How surely, where the promise of a timeout rests on a fit whose uncertainty is known."""
    winner = answer.winner
    in_doubt = winner.in_doubt if isinstance(winner, SimulatedSetting) else answer.in_doubt if winner is answer.best else ()
    if not any(in_doubt):
        return ""
    free = " and ".join(f"{two_digits(share)} %" for share in in_doubt)
    confidence = f"{100 * answer.question.goal.confidence:g} % confidence"
    return f"; with {confidence}, as {free} of the requests may be late that the fit has in time"


def _reached(candidate: Candidate, slo: Slo) -> str:
    """The percentile, and its interval where it was simulated."""
    value, low, high = candidate.percentile(slo.percentile)
    if candidate.confidence is None:
        return milliseconds(value)
    span = between(f"{1e3 * low:.4g}", f"{1e3 * high:.4g}")
    return f"{milliseconds(value)} ({span} with {100 * candidate.confidence:g} % confidence)"


def timeout(point: FrontierPoint) -> str:
    """How long a setting of the frontier holds requests."""
    if point.batch_size == 1:
        return "-"
    return milliseconds(point.timeout) if point.kind == "size_or_timeout" else f"up to {milliseconds(point.timeout)}"


def saving(answer: Answer) -> str:
    """The bill, beside that of what it saves upon."""
    winner, by_function = answer.winner, answer.by_function
    bill, none, function = winner.cost.by_request, answer.no_batching.cost.by_request, by_function.cost.by_request
    text = f"{per_million(bill)} USD per million requests"
    if winner is not by_function:
        if not answer.feasible:
            return f"{text}; no setting of the function does it{' cold' if winner is answer.kept_warm else ''}."
        if not 0 < bill < function:
            return f"{text}, beside {per_million(function)} for the best setting of the function."
        return f"{text}, {_times_less(bill, function)} the best setting of the function ({per_million(function)})."
    if by_function.batch_size == 1:
        return f"{text}; {'batches were not compared' if none_compared(answer.question) else 'no batch size is cheaper'}."
    if not answer.no_batching_keeps_slo:
        return f"{text}; without batching no memory size keeps the SLO (quickest: {per_million(none)})."
    if bill > none and (times := f"{bill / none:.2f}") != "1.00":
        there = f"without batching ({per_million(none)}), where nothing moves through a buffer"
        return f"{text}, {times} times what it is {there}."
    return f"{text}, {_times_less(bill, none)} no batching ({per_million(none)})."


def _times_less(usd: float, other: float) -> str:
    times = f"{other / usd:.2f}"
    return "as much as" if times == "1.00" else f"{times} times less than"


def billed_on(answer: Answer) -> list[str]:
    """Which arrivals its costs are those of."""
    return [costs_of(answer.question, answer.winner.cost, answer.winner.fitted) + _again(answer.cost_again)]


def _again(cost: Estimate | None) -> str:
    """What as many arrivals may cost that come next."""
    if cost is None:
        return ""
    ends = between(per_million(cost.low), per_million(cost.high))
    return f" As many that come next would cost {ends}, by how much the record varies (95 %)."


def costs_of(question: Question, cost: BatchCost, fitted: BatchCost | None) -> str:
    """Whether costs are those on arrivals that were recorded, and what the process has where that is far from it."""
    arrivals = question.recorded
    if arrivals is None or fitted is None:
        return "Costs are predicted from the arrival process alone; no arrivals that were recorded are known (--trace)."
    text = f"Costs are those of a run over the {arrivals.n_requests} arrivals recorded, cold starts in them"
    off = fitted.by_request / cost.by_request - 1
    if abs(off) > FAR:
        text += (
            f"; the fitted process has {per_million(fitted.by_request)}, {two_digits(abs(off))} % {'more' if off > 0 else 'less'}"
        )
    if cost.per_request > question.goal.budget:
        text += "; that is beyond the budget, which the process is within"
    return f"{text}."


def _as_recorded(question: Question) -> str:
    return "" if question.recorded is None else " as recorded"


def contained(answer: Answer) -> str:
    """What a number of USD per million requests has in it, and what it has not."""
    billing, winner = answer.question.billing, answer.winner
    logs = billing.prices.logs.bytes_per_invocation
    parts = [named(term) for term in ("compute", "requests", "init") if winner.cost.terms()[term]]
    parts += [named(term) for term in ("machines", "pings") if winner.cost.terms()[term]]
    parts.append(f"{logs:g} bytes of log an invocation" if logs else "no log (functions log at WARN)")
    request, reply = billing.moved
    if billing.payload_bytes is None:
        parts.append("nothing for moving requests, whose size the profile does not know (--payload-bytes)")
    else:
        parts.append(f"moving {request} bytes there and {reply} back")
    fixed = winner.cost.fixed_per_month
    beside = f"; not the {fixed:.2f} USD per month of the buffer" if fixed else ""
    return f"USD per million have in them {', '.join(parts)}{beside}."


def stacks(answer: Answer) -> list[str]:
    """What the month would cost with the buffer deployed in other ways."""
    found = ", ".join(f"{name} {month:.2f}" for name, month in months_by_stack(answer).items())
    return [f"The same in USD per month by how the buffer is deployed (--stack, docs/deploy.md): {found}."] if found else []


def months_by_stack(answer: Answer) -> dict[str, float]:
    """USD per month by how the buffer is deployed; nothing where its cost was told, or none is deployed."""
    winner, billing = answer.winner, answer.question.billing
    if billing.prices.buffer.per_month is not None or not winner.cost.fixed_terms or winner.policy.max_batch_size == 1:
        return {}
    requests, invoked, found = answer.arrival_rate * SECONDS_PER_MONTH, _invoked(winner), {}

    def moving(prices: Prices) -> float:
        terms = replace(billing, prices=prices).moving
        return terms["cache"] + terms["load_balancer"] + invoked * terms["network"]

    here = requests * (winner.cost.by_request - moving(billing.prices)) + winner.cost.fixed_per_month
    others = here - sum(billing.prices.fixed_terms().values())  # all but the buffer
    for name in billing.prices.stacks:
        on = billing.prices.on(name)
        found[name] = others + requests * moving(on) + sum(on.fixed_terms().values())
    return found


def _invoked(candidate: Candidate) -> float:
    """Share of the requests that go through the network to a function, as those before workers do not."""
    if isinstance(candidate, OverflowSetting) and not candidate.offer.provisioned:
        return candidate.by_function.value
    return 0.0 if isinstance(candidate, WorkerSetting) and not candidate.offer.provisioned else 1.0


def kept_free(answer: Answer) -> list[str]:
    """What the way through the buffer is taken to be, and what is kept free of the promise as profile and way are samples."""
    question, sentences = answer.question, []
    way = question.profile.way
    if way is not None:
        how = f"as measured {way.n} times" if way.n > 1 else "which nobody measured (sluice profile --buffer)"
        of_workers = isinstance(answer.winner, WorkerSetting) and not answer.winner.offer.provisioned and way.mean > 0
        free_of_it = " It is kept free of the promise; the latencies of workers are without it." if of_workers else ""
        sentences.append(f"The way through buffer and network is taken as {milliseconds(way.mean)}, {how}.{free_of_it}")
    free = {slo.name: question.in_doubt(slo) for slo in answer.slos}
    if any(free.values()):
        of_each = " and ".join(f"{milliseconds(seconds)} of the {name}" for name, seconds in free.items())
        confidence = f"{100 * question.goal.confidence:g} % confidence"
        sentences.append(f"{of_each} are kept free, as the profile is a sample ({confidence}).")
    if beyond := [slo.name for slo in answer.slos if slo.quantile > highest_quantile(question.profile)]:
        known = percentile_name(100 * highest_quantile(question.profile))
        estimated = "estimated from their tail" if free[beyond[-1]] else "taken to be no longer"
        sentences.append(
            f"The profile knows service times up to their {known}; what is beyond, for the {' and '.join(beyond)}, is {estimated}."
        )
    return sentences


def every_load(answer: Answer) -> list[str]:
    """What a plan for every load costs beyond who knew the rate, here and at the worst of the loads; or why it is not taken."""
    plan = answer.every_load
    if plan is None or answer.best.batch_size == 1:
        return []
    if answer.by_function is not plan:
        if plan.cost.per_request > answer.question.goal.budget:
            return [f"A plan for every load costs {per_million(plan.cost.by_request)} USD per million requests, beyond the budget."]
        if not plan.keeps(answer.question.promised):
            return ["A plan for every load, as simulated, has more requests late at this rate than is promised: its cold starts."]
        beyond = percent(answer.beyond_cheapest(plan))
        return [
            f"A plan for every load costs {beyond} % more at this rate than the cheapest setting; --premium says how much it may."
        ]
    ends, worst = f"{plan.loads[0].arrival_rate:.4g} to {plan.loads[-1].arrival_rate:.4g}", plan.worst
    here = next(at for at in plan.loads if at.factor == 1)
    subject = "the plan" if answer.winner is plan else "the function alone, by a plan for every load that is not the one written,"
    sentences = [
        f"From {ends} requests/s {subject} costs at most {percent(worst.regret)} % more than the cheapest table of that rate "
        f"(at {worst.arrival_rate:.4g}; here {percent(here.regret)} %)."
    ]
    warm = [at.arrival_rate for at in plan.loads if at.warm]
    if warm:
        sentences.append(
            f"Runs at {warm[0]:.4g} requests/s and more are over before environments have started: all are there from the first on."
        )
    return sentences


def small(part: float) -> str:
    """A part that is next to nothing in percent: two digits, none below a millionth."""
    return "-" if part < 1e-6 else two_digits(part)


def percent(part: float) -> str:
    """A part in percent, without a sign where it is nothing."""
    return f"{round(100 * part, 2) + 0.0:.2f}"


def seen_on_trace(answer: Answer, run: RunStatistics) -> str:
    """What the recommended workers did with a trace, whether or not the SLOs were kept."""
    late = " and ".join(
        f"{two_digits(run.violation_ratio(k))} % beyond {promised(slo.latency)}" for k, slo in enumerate(answer.slos)
    )
    verdict = "kept" if run.keeps(answer.slos) else "not kept"
    both = isinstance(run.deployment, Deployment) and bool(run.deployment.beside)
    beside = f", {two_digits(run.by_function)} % of the requests by the function" if both else ""
    return f"On the trace itself: {verdict}, {late}{beside}, at {per_million(run.cost.by_request)} USD per million requests."


def months(answer: Answer) -> tuple[float, float]:
    """USD per month with all that is fixed: of what is recommended, and of calling the function directly."""
    rate = answer.arrival_rate
    with_it, direct = (rate * SECONDS_PER_MONTH * cost.in_all(rate) for cost in (answer.winner.cost, answer.no_batching.cost))
    return with_it, direct


def pays(answer: Answer) -> bool:
    """Whether what is recommended costs less in a month than calling the function directly, or that does not keep the SLOs."""
    with_it, direct = months(answer)
    return with_it < direct or not answer.no_batching_keeps_slo


def verdict(answer: Answer) -> str:
    """Whether to deploy a buffer, what a month costs with it and without, and from which rate on it pays."""
    winner, fixed, (with_it, direct) = answer.winner, answer.winner.cost.fixed_per_month, months(answer)
    here = f"at {answer.arrival_rate:.4g} requests/s{_as_recorded(answer.question)}"
    if winner is answer.by_function and answer.by_function.batch_size == 1:
        usd = answer.no_batching.cost.in_all(answer.arrival_rate)
        return no_buffer(usd, answer.arrival_rate, answer.question, _as_recorded(answer.question))
    what = (
        "the function" if winner is answer.by_function else "workers and function" if winner is answer.overflow else "the workers"
    )
    what = "the environments kept warm" if winner is answer.kept_warm else what
    who = f"{what} with a buffer ({fixed:.2f} of it fixed)" if fixed else f"{what} with a buffer"
    if not winner.policy.max_batch_size > 1 and not fixed:
        who = what
    bill = f"{who} costs" if what == "the function" else f"{who} cost"
    bill = f"{bill} {with_it:.2f} USD per month {here}"
    if not answer.no_batching_keeps_slo:
        return decision(bill, with_it, None)
    rate = answer.break_even_arrival_rate
    since = (
        ""
        if winner is not answer.by_function
        else "; it pays at no rate"
        if rate is None
        else f"; it pays from {rate:.4g} requests/s on"
    )
    least, stack = min(((usd, name) for name, usd in months_by_stack(answer).items()), default=(with_it, ""))
    if with_it >= direct > least:
        since += f"; with --stack {stack} it would be {least:.2f}"
    return decision(bill, with_it, direct, since)


def decision(bill: str, with_it: float, direct: float | None, since: str = "") -> str:
    """Whether to deploy, by USD per month with a buffer and of calling the function directly, which may not keep the promise."""
    if direct is None:
        return f"Deploy: {bill}; calling the function directly does not keep the promise."
    if f"{abs(direct - with_it):.2f}" == "0.00":
        deploy = "Deploy" if with_it < direct else "Do not deploy for this alone"
        return f"{deploy}: {bill}, as much as calling the function directly{since}."
    if with_it < direct:
        return f"Deploy: {bill}, {direct - with_it:.2f} less than calling the function directly ({direct:.2f}){since}."
    more = f"{with_it - direct:.2f} more than calling the function directly ({direct:.2f})"
    return f"Do not deploy for this alone: {bill}, {more}{since}."


def no_buffer(usd_per_request: float, rate: float, question: Question, recorded: str = "") -> str:
    """That nothing is gained, or that nobody can know, and what a month costs without."""
    none, usd = none_compared(question), SECONDS_PER_MONTH * rate * usd_per_request
    verdict = f"What a buffer would save is not known: {none}" if none else "Deploy no buffer: batching saves nothing here"
    return f"{verdict}. Calling the function directly costs {usd:.2f} USD per month at {rate:.4g} requests/s{recorded}."


def none_compared(question: Question) -> str:
    """Why no batch of several requests could be compared, and what to write; empty where some are, or no invocation takes one."""
    if question.limits.max_batch_size == 1:
        return "--max-batch-size 1 allows no batch of several requests"
    if question.max_batch_size > 1 and max(times.max_batch_size for times in question.services) == 1:
        return "the profile knows no batch of several requests (sluice profile --batch-size 1,2,4,8)"
    return ""


def decided_by_queues(number: int, cost: BatchCost, direct: BatchCost | None, rate: float, pays: str) -> str:
    """The same of queues; ``pays`` says from which rate on they do."""
    who, costs = ("the queues", "cost") if number > 1 else ("the queue", "costs")
    with_it = SECONDS_PER_MONTH * rate * cost.in_all(rate)
    fixed = f" ({cost.fixed_per_month:.2f} of it fixed)" if cost.fixed_per_month else ""
    bill = f"{who} with a buffer{fixed} {costs} {with_it:.2f} USD per month at {rate:.4g} requests/s"
    if direct is None:
        return decision(bill, with_it, None)
    saved, more = direct.by_request - cost.by_request, cost.fixed_per_month - direct.fixed_per_month
    since = pays if more > 0 else ""
    if saved <= 0:
        since = "; by the request nothing is saved here"
    return decision(bill, with_it, SECONDS_PER_MONTH * rate * direct.in_all(rate), since)


def measured_late(slos: Sequence[Slo], reached: Mapping[str, float | None]) -> str:
    """What was measured of the promise, where it was not kept; else nothing. ``reached``: seconds by percentile, none beyond."""
    seen = []
    for slo in slos:
        seconds = reached[slo.name]
        if seconds is None or seconds > slo.latency:
            seen.append(f"{slo.name} {'never' if seconds is None else milliseconds(seconds)}, promised {promised(slo.latency)}")
    return f"Measured: the promise is not kept ({' and '.join(seen)})." if seen else ""


def late_in_run(answer: Answer) -> str:
    """What the winner does to the promise on the arrivals recorded, or drawn, where it surely breaks it there; else nothing."""
    seen = [
        f"{100 * share.value:.3g} % are later than {promised(slo.latency)}, {100 * slo.error_budget:.3g} allowed"
        for slo, share in answer.broken
    ]
    if not seen:
        return ""
    on, why = "arrivals drawn from the fit", "more start cold than is estimated (`--keep-alive` says how long they are kept)"
    if answer.on_record is not None:
        on, why = "the arrivals that were recorded", "many came at once, or started cold"
        if answer.winner.rests_on_fit:
            fitted = "the fit is not what came (`sluice fit`)"
            why = fitted if answer.question.without else "the arrivals that it is made for are not what came"
    return f"Not kept on {on}, by simulation: {' and '.join(seen)}; {why}. What follows is predicted."


def proof(answer: Answer) -> list[str]:
    """What the search shows of its own answer."""
    sentences = []
    if answer.feasible:
        between = "" if answer.gap is None else f"; no timeout in between is cheaper by more than {100 * answer.gap:.2g} %"
        sentences.append(f"{answer.n_settings} settings of the function compared{between}.")
    else:
        within = "" if answer.question.goal.max_cost is None else " within the budget"
        sentences.append(f"No setting of the function keeps the SLO{within}; the quickest is shown.")
    if answer.at_longest_timeout:
        longest = milliseconds(answer.best.timeout)
        sentences.append(f"The timeout is the longest allowed ({longest}): a longer may be cheaper (--max-timeout).")
    if answer.feasible and not answer.no_batching_keeps_slo:
        sentences.append("Without batching no memory size keeps the SLO.")
    sentences += [f"{name} is not in the answer: {reason}." for name, reason in answer.refused_workers.items()]
    if answer.refused_overflow:
        sentences.append(f"Workers with the function beside them are not in the answer: {answer.refused_overflow}.")
    return sentences
