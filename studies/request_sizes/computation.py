"""Plans for the first half of the sizes, and what they come to with the second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, poisson
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.recommend import FunctionSetting, Question, SizedAnswer, recommend_classes
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.service import SizeMix
from sluice.optimizer.simulation import Function, SizedDeployment, SizedQueue, SizedRun, simulate_sizes
from sluice.optimizer.traces.trace import Trace, read_sizes, read_trace

from ..publishing import TRACES
from .class_table import ClassRun, simulate_class_table
from .results import ALONE, BATCHED, CLASSES, ONE_QUEUE, PERCENTILE, SEEING, SHUFFLED, Row, profile

TOKENS = TRACES / "azure_llm_code_tokens.csv.gz"  # of an hour
TRACE = TRACES / "azure_llm_code_tokens_excerpt.csv.gz"  # of a quarter of it, with the times
LONGEST = 512  # tokens that the encoder takes
MIXES = {f"cut at {LONGEST}": 1, "a sixteenth": 16}  # tokens of the trace to a token of the encoder
RATES = (2.0, 20.0, 200.0)  # requests/s
LATENCIES = (0.3, 1.0)  # s
N_REQUESTS = 100_000  # of a run with Poisson arrivals
POISSON, OWN = "Poisson", "the trace's"
SPEED = 5.0  # times as fast as it was


@cache
def trace() -> Trace:
    """The arrivals and tokens of the excerpt."""
    return read_trace(TRACE, size_column="ContextTokens")


@cache
def hour() -> Array:
    """Tokens of the requests of the hour, in order of arrival."""
    return read_sizes(TOKENS)


def lengths(mix: str, arrivals: str = POISSON) -> Array:
    """Tokens of the requests as the encoder takes them, in order of arrival: of the hour, or of those whose times are run."""
    tokens = trace().sizes if arrivals == OWN else hour()
    assert tokens is not None
    return np.minimum(np.ceil(tokens / MIXES[mix]), LONGEST)


def halves(values: Array) -> tuple[Array, Array]:
    """The first half of the requests, and the second."""
    return values[: len(values) // 2], values[len(values) // 2 :]


def compute() -> list[Row]:
    """Every cell."""
    return [row for cell in cells() for row in rows_of(*cell)]


def cells() -> Iterator[tuple[str, str, float, float]]:
    """Mix, arrivals, rate and SLO of each cell."""
    for mix, rate, latency in product(MIXES, RATES, LATENCIES):
        yield mix, POISSON, rate, latency
    for mix, latency in product(MIXES, LATENCIES):
        yield mix, OWN, own_rate(), latency


def own_rate() -> float:
    """Requests/s of the trace as it is run."""
    return float(f"{trace().sped_up(SPEED).arrival_rate:.3g}")


@cache
def fitted() -> ArrivalProcess:
    """To the first half of the arrivals, as fast as they are run."""
    times = trace().sped_up(SPEED).times
    return fit_arrivals(Trace(np.diff(halves(times)[0]))).arrivals


def requests(mix: str, arrivals: str, rate: float) -> tuple[Array, Array]:
    """Times (s) and sizes of those that a plan is run with: the sizes of the second half in their order, again and again."""
    _, ahead = halves(lengths(mix, arrivals))
    if arrivals == OWN:
        times = halves(trace().sped_up(SPEED).times)[1]
        return times - times[0], ahead
    times = np.cumsum(np.random.default_rng(1).exponential(1 / rate, N_REQUESTS))
    return times, np.resize(ahead, N_REQUESTS)


def rows_of(mix: str, arrivals: str, rate: float, latency: float) -> Iterable[Row]:
    """All ways in a cell; none where nothing keeps the SLO."""
    process = fitted() if arrivals == OWN else poisson(rate)
    planned = SizeMix.of(halves(lengths(mix, arrivals))[0])
    question = Question(process, profile(), (Slo(latency, PERCENTILE),), mix=planned)
    try:
        answer = recommend_classes(question)
    except Infeasible:
        return
    times, sizes = requests(mix, arrivals, rate)
    cell = (mix, arrivals, rate, latency)
    for way, setting in ((ALONE, answer.no_batching), (ONE_QUEUE, answer.one_queue), (BATCHED, batched(question))):
        if setting is not None:
            yield _row_of_one(cell, way, question, setting, times, sizes)
    law = answer.latency.percentile(PERCENTILE)
    deployment = answer.deployment(SizeMix.of(sizes))
    run = simulate_sizes(deployment, times, sizes, np.random.default_rng(2))
    ends = " ".join(f"{of.up_to:g}" for of in answer.classes)
    yield _row(cell, CLASSES, ends, (1e6 * answer.cost.per_request, law), run)
    if arrivals == OWN:
        shuffled = np.random.default_rng(3).permutation(sizes)
        run = simulate_sizes(deployment, times, shuffled, np.random.default_rng(2))
        yield _row(cell, SHUFFLED, ends, (1e6 * answer.cost.per_request, law), run)
    seen = simulate_class_table(answer, times, sizes, np.random.default_rng(2))
    yield _row(cell, SEEING, ends, (np.nan, np.nan), seen)


def batched(question: Question) -> FunctionSetting | None:
    """All batches that are in time, without regard to size: the table that waits to the last moment."""
    settings = FunctionSettings(question)
    service = settings.services[0].up_to(settings.search.max_batch_size)
    table = last_moment(service, question.promised, question.longest_timeout)
    return None if table is None or table.max_batch_size == 1 else settings.held(0, table)


def _row_of_one(
    cell: tuple[str, str, float, float], way: str, question: Question, setting: FunctionSetting, times: Array, sizes: Array
) -> Row:
    """A setting without regard to size."""
    function = Function(question.profile, setting.memory_mb, question.billing, mix=SizeMix.of(sizes))
    one = SizedDeployment([SizedQueue(np.inf, setting.deployment(function))])
    run = simulate_sizes(one, times, sizes, np.random.default_rng(2))
    return _row(cell, way, "all", (1e6 * setting.cost.per_request, setting.latency.percentile(PERCENTILE)), run)


def _row(cell: tuple[str, str, float, float], way: str, ends: str, predicted: tuple[float, float], run: SizedRun | ClassRun) -> Row:
    late = run.latency > cell[3]
    by_class = [float(late[run.class_of == k].mean()) for k in np.unique(run.class_of)]
    p95 = float(np.percentile(run.latency, PERCENTILE, method="inverted_cdf"))
    batches = run.n_batches if isinstance(run, ClassRun) else run.statistics.n_batches
    figures = (predicted[0], 1e6 * run.cost_per_request, predicted[1], p95, float(late.mean()), max(by_class))
    return Row(*cell, way, ends, *figures, len(late) / batches)


def answer_of(mix: str, rate: float, latency: float) -> SizedAnswer:
    """The classes of a cell of Poisson arrivals."""
    planned = SizeMix.of(halves(lengths(mix))[0])
    return recommend_classes(Question(poisson(rate), profile(), (Slo(latency, PERCENTILE),), mix=planned))
