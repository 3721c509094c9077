"""Recommendations with and without the record of a trace, and what their plans cost on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.batching.documents import Slo
from sluice.optimizer.fits import fit_arrivals
from sluice.optimizer.recommend import Answer, Goal, Question, recommend
from sluice.optimizer.recommend.question import LOADS
from sluice.optimizer.recommend.recorded import function_of, recorded
from sluice.optimizer.simulation import RunStatistics, TraceArrivals, simulate_deployments
from sluice.optimizer.traces.trace import Trace, read_trace

from ..perceptron import profile
from ..publishing import TRACES
from .results import Row

LATENCIES = (0.1, 0.2, 0.5, 1.0)  # s
PERCENTILE = 95.0
SEED = 1  # of the runs that bill, other than that of what is said


@dataclass(frozen=True)
class Case:
    """A trace: its name on the page, its file, whether the project ships it, and what its counts cover where it has counts (s)."""

    name: str
    file: str
    shipped: bool = False
    counts: float | None = None

    def read(self, folder: Path | None) -> Trace:
        """The trace itself."""
        where = TRACES if self.shipped or folder is None else folder
        if self.counts is None:
            return read_trace(str(where / self.file))
        return read_trace(str(where / self.file), "value", "counts", bin_width=self.counts)


CASES = (
    Case("LLM, 20 min", "azure_llm_code_excerpt.csv.gz", shipped=True),
    Case("LLM, 1 h", "azure_llm_code.csv.gz"),
    Case("Ethernet", "bc_aug89_first200k.csv.gz"),
    Case("maps", "livemaps_1030.csv.gz"),
    Case("load balancer, 2 weeks", "nab_elb_request_count_5min.csv.gz", counts=300.0),
    Case("tweets, 8 weeks", "nab_tweets_amzn_5min.csv.gz", counts=300.0),
)


def remade(rows: Sequence[Row], case: Case, folder: Path | None) -> list[Row]:
    """The rows, with those of one trace made anew."""
    fresh = {row.trace: [other for other in rows if other.trace == row.trace] for row in rows}
    fresh[case.name] = list(of_trace(case.name, case.read(folder)))
    return [row for each in CASES for row in fresh.get(each.name, [])]


def of_trace(name: str, trace: Trace) -> Iterator[Row]:
    """Its rows, by SLO."""
    middle = trace.duration / 2
    first, second = trace.between(0, middle), trace.between(middle, trace.duration)
    asked, asked_first = questions(trace), questions(first)
    for latency in LATENCIES:
        fit, record = (recommend(question.under(latency)) for question in asked)
        half_fit, half_record = (recommend(question.under(latency)) for question in asked_first)
        run, half_run = billed(record, trace), billed(half_record, second)
        half_fit_run = billed(half_fit, second)
        yield Row(
            name,
            len(trace),
            trace.arrival_rate,
            second.arrival_rate,
            latency,
            said(fit),
            billed(fit, trace).cost.per_request,
            said(record),
            run.cost.per_request,
            run.violation_ratio(0),
            said(half_fit),
            half_fit_run.cost.per_request,
            said(half_record),
            half_run.cost.per_request,
            half_fit_run.violation_ratio(0),
            half_run.violation_ratio(0),
            *again(half_record),
        )


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of a trace, with its record or without."""

    question: Question

    def under(self, latency: float) -> Question:
        """The same under an SLO."""
        of = self.question
        slos = (Slo(latency, PERCENTILE),)
        return Question(of.arrivals, of.profile, slos, goal=Goal(loads=LOADS), without=of.without, recorded=of.recorded)


def questions(trace: Trace) -> tuple[Asked, Asked]:
    """Without the record, and with it, of one fit."""
    fitted, slos = fit_arrivals(trace), (Slo(LATENCIES[0], PERCENTILE),)
    records = (None, recorded(trace.times))
    without, with_it = (Question(fitted.arrivals, profile(), slos, without=fitted.without, recorded=of) for of in records)
    return Asked(without), Asked(with_it)


def said(answer: Answer) -> float:
    """USD per request of what is recommended, as it is told first."""
    return answer.winner.cost.per_request


def again(answer: Answer) -> tuple[float, float]:
    """Between which ends as many arrivals are said to cost that come next, USD per request."""
    assert answer.cost_again is not None
    return answer.cost_again.low, answer.cost_again.high


def billed(answer: Answer, trace: Trace) -> RunStatistics:
    """What is recommended in a run over a trace."""
    deployment = answer.winner.deployment(function_of(answer.question).starting(answer.started))
    return simulate_deployments({"": deployment}, TraceArrivals(trace.times), [answer.slo.latency], SEED)[""]
