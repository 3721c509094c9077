"""Classes with slacks in one queue: their law held against that of one class and against batches put together one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.batching_law import PREDICTION, Effort
from sluice.optimizer.function.class_holds import shared_holds_law
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.function.latency import SIMULATED
from sluice.optimizer.function.phased_classes import PhasedClasses
from sluice.optimizer.function.poisson_classes import PoissonClasses
from sluice.optimizer.function.sampled_batches import Draw
from sluice.optimizer.function.sampled_classes import ClassSample, SampledClasses
from sluice.optimizer.service.times import ServiceTimes

FALLING = np.array([0.1, 0.09, 0.07, 0.05, 0.04, 0.02, 0.01])


def service(batch_size: int, levels: int = 4) -> ServiceTimes:
    mean = 0.006 + 0.001 * np.arange(1, batch_size + 1)
    spread = np.linspace(0.8, 1.4, levels) if levels > 1 else np.ones(1)
    return ServiceTimes(1024, mean[:, None] * spread, np.full(batch_size, 0.001), mean)


def batches(times: list[float], slacks: list[float], holds: list[float]) -> tuple[Array, Array]:
    """When each request leaves (s), and with how many: request by request, as docs/classes.md says it."""
    leaves, sizes, first = np.empty(len(times)), np.empty(len(times), dtype=np.int64), 0
    while first < len(times):
        due, end, moment = np.inf, first, np.inf
        while end < len(times) and times[end] < moment:
            due = min(due, times[end] + slacks[end])
            end += 1
            hold = holds[end - first - 1] if end - first <= len(holds) else 0.0
            moment = max(times[end - 1], due + hold) if hold > 0 else times[end - 1]
        leaves[first:end], sizes[first:end] = moment, end - first
        first = end
    return leaves, sizes


def drawn(classes: list[ArrivalProcess], slacks: list[float], holds: Array, requests: int, seed: int) -> tuple[Array, Array, Array]:
    """Class, wait (s) and batch size of so many requests, and some hundreds fewer."""
    rng = np.random.default_rng(seed)
    rates = np.array([arrivals.arrival_rate for arrivals in classes])
    of_class = [np.cumsum(of.sample(int(requests * of.arrival_rate / rates.sum()), rng)) for of in classes]
    end = min(times[-1] for times in of_class)
    times = np.concatenate(of_class)
    which = np.repeat(np.arange(len(classes)), [len(one) for one in of_class])
    order = np.argsort(times)
    times, which = times[order], which[order]
    leaves, sizes = batches(times.tolist(), np.asarray(slacks)[which].tolist(), holds.tolist())
    counted = (times < end) & (leaves < times[-1])
    return which[counted], (leaves - times)[counted], sizes[counted]


@pytest.mark.parametrize("rate", [5.0, 60.0, 2000.0])
@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize(
    "holds", [FALLING, np.full(7, 0.05), np.append(FALLING[:4], [0, 0]), np.zeros(3), np.zeros(0), np.linspace(0.5, 0.05, 40)]
)
@pytest.mark.parametrize("shares", [(1.0,), (0.3, 0.7)])
def test_without_slack_classes_are_one(rate: float, levels: int, holds: Array, shares: tuple[float, ...]) -> None:
    known = FallingHolds(poisson(rate), holds)
    law = shared_holds_law([poisson(rate * share) for share in shares], [0.0] * len(shares), holds)
    assert law.batch_size_pmf == pytest.approx(known.batch_size_pmf, abs=1e-12)
    assert law.mean_batch_size == pytest.approx(known.mean_batch_size, rel=1e-12)
    of, times = service(len(holds) + 1, levels), np.linspace(0, holds.max(initial=0) + 0.1, 60)
    exact = known.fraction_within(of.response, of.quantile_levels, times)
    for c in range(len(shares)):
        assert law.latency(c, of).cdf(times) == pytest.approx(exact, abs=1e-11)


def test_equal_slacks_are_longer_holds() -> None:
    law = shared_holds_law([poisson(20), poisson(50)], [0.2, 0.2], FALLING)
    known = FallingHolds(poisson(70), FALLING + 0.2)
    assert law.batch_size_pmf == pytest.approx(known.batch_size_pmf, abs=1e-12)
    of, times = service(8), np.linspace(0, 0.4, 60)
    exact = known.fraction_within(of.response, of.quantile_levels, times)
    assert law.latency(1, of).cdf(times) == pytest.approx(exact, abs=1e-11)


CASES = [
    ([40.0, 30.0, 20.0], [0.0, 0.03, 0.4], FALLING),
    ([4.0, 30.0, 6.0], [0.2, 0.0, 0.01], np.append(FALLING[:4], [0.0, 0.0])),
    ([1.0, 200.0], [0.0, 2.0], np.linspace(0.05, 0.01, 31)),
    ([1.0, 3.0, 2.0, 1.0], [0.0, 0.3, 0.3, 5.0], np.full(9, 0.2)),
]


PROVEN = [pytest.param(*case, marks=pytest.mark.proof) for case in CASES[1:3]]


@pytest.mark.parametrize(("rates", "slacks", "holds"), [CASES[0], *PROVEN, CASES[3]])
def test_requests_batched_one_by_one_have_the_law_of_their_class(rates: list[float], slacks: list[float], holds: Array) -> None:
    assert_batched_one_by_one([poisson(rate) for rate in rates], slacks, holds)


def assert_batched_one_by_one(classes: list[ArrivalProcess], slacks: list[float], holds: Array) -> None:
    law = shared_holds_law(classes, slacks, holds)
    which, waits, sizes = drawn(classes, slacks, holds, 200_000, 3)
    seconds = service(len(holds) + 1, 1).response[:, 0]
    blocks = np.array_split(np.arange(len(which)), 40)
    seen = [np.bincount(sizes[of], weights=1 / sizes[of], minlength=len(holds) + 2)[1:] for of in blocks]
    assert_met([of / of.sum() for of in seen], law.batch_size_pmf[-1])
    for c, slack in enumerate(slacks):
        prediction = law.latency(c, service(len(holds) + 1, 1))
        assert prediction.method == "exact"
        times = np.linspace(0.005, slack + holds[0] + 0.02, 12)
        latencies = [waits[of][which[of] == c] + seconds[sizes[of][which[of] == c] - 1] for of in blocks]
        assert_met([(of[:, None] <= times + 1e-9).mean(axis=0) for of in latencies], prediction.cdf(times))


def assert_met(blocks: list[Array], expected: Array) -> None:
    error = np.std(blocks, axis=0, ddof=1) / len(blocks) ** 0.5
    assert (np.abs(np.mean(blocks, axis=0) - expected) <= 4.5 * error + 2e-4).all()


@pytest.mark.parametrize("arrivals", [poisson(40), mmpp2(120, 10, 12, 8)])
def test_the_law_under_fewer_is_that_of_the_table_with_fewer_rows(arrivals: ArrivalProcess) -> None:
    classes, slacks = [arrivals, poisson(20)], [0.0, 0.3]
    whole = shared_holds_law(classes, slacks, FALLING)
    for largest in (1, 2, 5):
        fewer = shared_holds_law(classes, slacks, FALLING[: largest - 1])
        assert fewer.batch_size_pmf[-1] == pytest.approx(whole.batch_size_pmf[largest - 1, :largest], abs=1e-12)
        assert fewer.mean_batch_size[-1] == pytest.approx(whole.mean_batch_size[largest - 1], rel=1e-12)


positive = st.floats(1e-3, 1e3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(positive, st.floats(0, 10)), min_size=1, max_size=6),
    st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 2)), max_size=12),
    st.floats(0.01, 100),
)
def test_sizes_and_waits_are_laws_whatever_the_unit_of_time(
    of: list[tuple[float, float]], holds: list[float], factor: float
) -> None:
    rates, slacks, falling = np.array([r for r, _ in of]), np.array([s for _, s in of]), np.sort(holds)[::-1]
    law = shared_holds_law([poisson(rate) for rate in rates], slacks.tolist(), falling)
    pmf = law.batch_size_pmf
    assert (pmf >= 0).all() and pmf.sum(axis=1) == pytest.approx(1)
    stretched = shared_holds_law([poisson(rate / factor) for rate in rates], (slacks * factor).tolist(), falling * factor)
    assert stretched.batch_size_pmf == pytest.approx(pmf, abs=1e-10)
    at_once = ServiceTimes(128, np.zeros((len(pmf), 1)), np.zeros(len(pmf)), np.zeros(len(pmf)))
    for c, slack in enumerate(slacks):
        latency = law.latency(c, at_once)
        shares = latency.cdf(np.linspace(-1e-3, slack + falling.max(initial=0) + 1e-6, 50))
        assert shares[0] == 0 and shares[-1] == pytest.approx(1, abs=1e-9) and (np.diff(shares) >= -1e-11).all()


@pytest.mark.parametrize("others", [poisson(0.5), mmpp2(1, 0.1, 1, 1)])
def test_the_shortest_of_holds_is_one(others: ArrivalProcess) -> None:
    law = shared_holds_law([poisson(1.0), others], [0.0, 1.0], np.full(4, 5e-324))
    hurried, patient = (law.latency(c, service(5, 1)) for c in (0, 1))
    assert law.batch_size_pmf.sum(axis=1) == pytest.approx(1) and 1 < law.mean_batch_size[-1] < 2
    assert hurried.percentile(99) < 0.02 and patient.percentile(1) < 1 < patient.percentile(99)


def test_who_has_a_slack_waits_longer_for_all_others_the_batches_are_the_same() -> None:
    law = shared_holds_law([poisson(40), poisson(20)], [0.0, 0.3], FALLING)
    hurried, patient = (law.latency(c, service(8)) for c in (0, 1))
    assert hurried.percentile(95) < patient.percentile(95) <= patient.longest
    assert hurried.batch_size_pmf is patient.batch_size_pmf or (hurried.batch_size_pmf == patient.batch_size_pmf).all()
    alone = FallingHolds(poisson(40), FALLING)
    assert law.mean_batch_size[-1] > alone.mean_batch_size[-1]


@pytest.mark.parametrize("effort", [PREDICTION, Effort(1, Draw(4, 256))])
@pytest.mark.parametrize("arrivals", [poisson(5), mmpp2(9, 1, 1, 1)])
def test_where_the_table_holds_nobody_a_slack_is_no_wait(arrivals: ArrivalProcess, effort: Effort) -> None:
    law = shared_holds_law([arrivals, poisson(3)], [0.0, 5.0], np.zeros(3), effort)
    patient = law.latency(1, service(4, 1))
    assert law.mean_batch_size == pytest.approx(np.ones(4)) and patient.timeout == 0
    assert patient.percentile(50) == pytest.approx(service(1, 1).response[0, 0]) and patient.longest < 0.02


@pytest.mark.parametrize(
    ("n_classes", "slacks", "holds", "message"),
    [
        (0, [], [0.1], "classes: 0 .* at least one class"),
        (2, [0.0], [0.1], "slacks: 1 .* one for each of the 2 classes"),
        (1, [-0.1], [0.1], "slacks: .* seconds >= 0"),
        (1, [np.inf], [0.1], "slacks: .* seconds >= 0"),
        (1, [0.0], [np.inf], "holds: .* seconds >= 0"),
        (1, [0.0], [-0.1], "holds: .* seconds >= 0"),
    ],
)
def test_what_is_no_table_or_no_classes_is_refused(n_classes: int, slacks: list[float], holds: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        shared_holds_law([poisson(1)] * n_classes, slacks, np.array(holds))


def test_a_class_has_no_latency_in_batches_beyond_those_measured() -> None:
    with pytest.raises(InvalidInput, match="batch_size: 8 .* 1 to 4"):
        shared_holds_law([poisson(1)], [0.0], FALLING).latency(0, service(4))


BURSTY = mmpp2(300, 20, 2, 0.2)
QUICK = mmpp2(120, 10, 12, 8)
ERLANG = ArrivalProcess(np.array([[-60.0, 60.0], [0.0, -60.0]]), np.array([[0.0, 0.0], [60.0, 0.0]]))


@pytest.mark.parametrize(("rates", "slacks", "holds"), CASES)
@pytest.mark.parametrize("levels", [1, 4])
def test_counting_arrivals_span_by_span_meets_the_law_of_poisson_classes(
    rates: list[float], slacks: list[float], holds: Array, levels: int
) -> None:
    known = PoissonClasses(np.array(rates), np.array(slacks), holds)
    law = PhasedClasses([poisson(rate) for rate in rates], np.array(slacks), holds, 1e7)
    assert law.batch_size_pmf == pytest.approx(known.batch_size_pmf, abs=1e-12)
    of, times = service(len(holds) + 1, levels), np.linspace(0, max(slacks) + 0.3, 80)
    for c in range(len(rates)):
        assert law.latency(c, of).cdf(times) == pytest.approx(known.latency(c, of).cdf(times), abs=1e-11)


@pytest.mark.parametrize("holds", [FALLING, np.append(FALLING[:4], [0, 0]), np.zeros(2), np.zeros(0)])
@pytest.mark.parametrize("slack", [0.0, 0.2])
def test_equal_slacks_of_any_processes_are_longer_holds_for_them_together(holds: Array, slack: float) -> None:
    D0 = np.kron(BURSTY.D0, np.eye(2)) + np.kron(np.eye(2), ERLANG.D0)
    D1 = np.kron(BURSTY.D1, np.eye(2)) + np.kron(np.eye(2), ERLANG.D1)
    known = FallingHolds(ArrivalProcess(D0, D1), np.where(holds > 0, holds + slack, 0.0))
    law = shared_holds_law([BURSTY, ERLANG], [slack, slack], holds)
    assert law.batch_size_pmf == pytest.approx(known.batch_size_pmf, abs=1e-12)
    of, times = service(len(holds) + 1), np.linspace(0, 0.4, 60)
    rates = np.array([BURSTY.arrival_rate, ERLANG.arrival_rate])
    both = rates / rates.sum() @ [law.latency(c, of).cdf(times) for c in range(2)]
    assert both == pytest.approx(known.fraction_within(of.response, of.quantile_levels, times), abs=1e-9)


MARKOVIAN = [
    ([QUICK, poisson(20), ERLANG], [0.0, 0.2, 0.05], FALLING),
    ([ERLANG, QUICK], [0.02, 0.6], np.append(FALLING[:4], [0.0, 0.0])),
]


@pytest.mark.parametrize(("classes", "slacks", "holds"), MARKOVIAN)
def test_requests_of_any_processes_have_the_law_of_their_class(
    classes: list[ArrivalProcess], slacks: list[float], holds: Array
) -> None:
    assert_batched_one_by_one(classes, slacks, holds)


def test_drawn_classes_meet_the_exact_law_within_their_interval() -> None:
    rates, slacks, holds = CASES[0]
    classes = [poisson(rate) for rate in rates]
    exact = shared_holds_law(classes, slacks, holds)
    sampled = SampledClasses(ClassSample(classes, len(holds) + 1, Draw(64, 4096)), np.array(slacks), holds)
    assert np.abs(sampled.batch_size_pmf - exact.batch_size_pmf).max() < 0.01
    assert sampled.mean_batch_size == pytest.approx(exact.mean_batch_size, rel=0.01)
    for c, slack in enumerate(slacks):
        times = np.linspace(0.012, slack + 0.1, 12)
        seen, there = sampled.latency(c, service(8)), exact.latency(c, service(8))
        assert seen.method == SIMULATED and there.method == "exact" and seen.half is not None
        assert (np.abs(seen.cdf(times) - there.cdf(times)) <= 1.5 * seen.half(times) + 1e-3).all()
        low, high = seen.quantile_interval(0.9)
        assert low - 1e-3 <= there.quantile(0.9) <= high + 1e-3


def test_where_there_is_no_room_bursty_classes_are_drawn_and_meet_the_exact_law() -> None:
    classes, slacks = [BURSTY, poisson(40), mmpp2(50, 2, 1, 1)], [0.0, 0.2, 1.0]
    seen = shared_holds_law(classes, slacks, FALLING, Effort(1, Draw(64, 4096)))
    exact = shared_holds_law(classes, slacks, FALLING)
    assert seen.mean_batch_size == pytest.approx(exact.mean_batch_size, rel=0.03)
    for c, slack in enumerate(slacks):
        times = np.linspace(0.012, slack + 0.1, 12)
        found, known = seen.latency(c, service(8)), exact.latency(c, service(8))
        assert found.method == SIMULATED and known.method == "exact" and found.half is not None
        assert (np.abs(found.cdf(times) - known.cdf(times)) <= 1.5 * found.half(times) + 1e-3).all()


def test_drawn_batches_are_those_put_together_one_by_one() -> None:
    classes, slacks = [BURSTY, mmpp2(50, 2, 1, 1)], np.array([0.0, 0.15])
    holds = np.append(FALLING[:5], 0.0)
    sample = ClassSample(classes, 8, Draw(4, 400))
    once = ServiceTimes(128, np.zeros((7, 1)), np.zeros(7), np.zeros(7))
    latency = SampledClasses(sample, slacks, holds).latency(1, once)
    waits = []
    for times, of in zip(sample.times, sample.of, strict=True):
        leaves, _ = batches(times.tolist(), slacks[of].tolist(), holds.tolist())
        opens = np.flatnonzero(np.diff(leaves, prepend=-1.0) > 0)
        first = opens[np.searchsorted(opens, sample.first)]
        last = opens[np.searchsorted(opens, sample.end)]
        waits.append((leaves - times)[first:last][of[first:last] == 1])
    for time in (0.0, 0.01, 0.05, 0.1, 0.2):
        assert latency.probability_within(time) == pytest.approx(np.mean(np.concatenate(waits) <= time + 1e-9), abs=1e-12)


def test_of_a_class_that_was_not_met_nothing_is_said() -> None:
    classes, slacks = [BURSTY, poisson(1e-9)], [0.0, 0.1]
    law = shared_holds_law(classes, slacks, FALLING, Effort(1, Draw(8, 400)))
    latency = law.latency(1, service(8))
    assert latency.half is not None and latency.quantile_interval(0.5) == pytest.approx((0.0, latency.longest), abs=1e-6)


def test_of_classes_that_burst_no_more_are_drawn_than_a_part_has() -> None:
    silent_then_wild = mmpp2(1e7, 1e-3, 1e3, 1e-3)  # once in a thousand seconds some 10^4 requests within a millisecond
    sample = ClassSample([silent_then_wild, poisson(10.0)], 8, Draw(16, 512))
    assert sample.times.shape == (16, 512) and (np.diff(sample.times, axis=1) >= 0).all()
    assert 0.2 < sample.of.mean() < 0.8
    assert sample.of[:, 0].mean() == pytest.approx(0.5, abs=0.07)  # parts begin with each as often as it comes
