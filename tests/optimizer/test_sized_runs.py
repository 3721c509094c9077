"""Queues of size classes, run: streamed or kept request by request, their cost with cold starts, and the memory that they take."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import ServiceProfile, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.report.documents import run_document
from sluice.optimizer.service import SizeMix, service_by_size
from sluice.optimizer.simulation import (
    Deployment,
    Environments,
    Function,
    RunStatistics,
    SampledArrivals,
    SizedDeployment,
    SizedQueue,
    TraceArrivals,
    chunks,
    simulate_deployments,
    simulate_sizes,
)
from tests.optimizer.sized_profiles import MIXES, sized_profile

MIX = MIXES["long-tailed"]
TABLE = policies.size_or_timeout(8, 0.1)
SLO = Slo(0.2)


def requests(n: int = 3000, rate: float = 60.0, mix: SizeMix = MIX) -> tuple[Array, Array]:
    rng = np.random.default_rng(4)
    return np.cumsum(rng.exponential(1 / rate, n)), mix.draw(n, rng)


def classes(bound: float = 48.0, spread: bool = False, **others: object) -> SizedDeployment:
    function = Function(sized_profile(spread), 1769, mix=MIX, **others)  # type: ignore[arg-type]
    ranges = ((-1.0, bound), (bound, np.inf))
    return SizedDeployment([SizedQueue(up_to, function.between(above, up_to).under(TABLE)) for above, up_to in ranges])


def ran(deployment: Deployment | SizedDeployment, times: Array, sizes: Array) -> RunStatistics:
    return simulate_deployments({"": deployment}, TraceArrivals(times, sizes), [SLO.latency])[""]


def test_a_run_in_chunks_is_that_of_all_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two roads: one counts chunk by chunk and keeps nobody, one keeps the latency of every request."""
    times, sizes = requests()
    kept = simulate_sizes(classes(), times, sizes, np.random.default_rng(0))
    monkeypatch.setattr(chunks, "CHUNK", 37)
    run = ran(classes(), times, sizes)
    assert run.answered == np.isfinite(kept.latency).sum() == len(times)
    assert run.cost.per_request == pytest.approx(kept.cost_per_request, rel=1e-12)
    assert run.violation_ratio() == (kept.latency > SLO.latency).mean()
    for percentile in (50, 95):
        assert run.percentile(percentile) == pytest.approx(kept.percentile(percentile), rel=2e-3)
    for k, of in enumerate(run.queues):
        here = kept.latency[kept.class_of == k]
        assert (of.n_requests, of.violation_ratio()) == (len(here), (here > SLO.latency).mean())
    assert run.share_within(np.array([0.0, 0.1, 9.0])) == pytest.approx([0, (kept.latency <= 0.1).mean(), 1], abs=2e-3)


def test_what_a_class_costs_is_what_its_batches_do_by_their_largest_member() -> None:
    times, sizes = requests(500)
    deployment, billing = classes(), Billing()
    run, dollars = ran(deployment, times, sizes), 0.0
    for k in range(len(deployment.queues)):
        here = deployment.queue_of(sizes) == k
        by_size = service_by_size(sized_profile(), 1769, 8)
        left, member = times[here], sizes[here]
        while len(left):
            n = min(8, int(np.searchsorted(left, left[0] + 0.1, side="right")))
            seconds = by_size.mean_billed(member[:n].max(keepdims=True), np.array([n]), billing.step)[0]
            dollars += seconds * 1769 / 1024 * billing.prices.gb_second("x86_64") + billing.prices.function.request
            left, member = left[n:], member[n:]
    assert run.cost.per_request == pytest.approx(dollars / len(times), rel=1e-9)


def test_cold_starts_are_counted_and_billed_as_in_the_run_without_sizes() -> None:
    """All of one size: the queue that tells sizes apart costs and answers what the one that does not does."""
    environments = Environments(init_duration=1.5, keep_alive=2.0)
    one = SizeMix.of([64])
    function = Function(sized_profile(), 1769, environments=environments, mix=one)
    times, _ = requests(800, 2.0)
    plain = simulate_deployments({"": function.under(TABLE)}, TraceArrivals(times), [SLO.latency])[""]
    sized = ran(SizedDeployment([SizedQueue(np.inf, function.under(TABLE))]), times, np.full(len(times), 64.0))
    assert sized.cold_starts == plain.cold_starts > 20
    assert sized.cost.terms() == pytest.approx(plain.cost.terms()) and sized.cost.init > 0
    assert sized.percentile(95) == plain.percentile(95)


def test_one_queue_takes_the_sizes_that_requests_have_and_not_the_mix() -> None:
    """Runs of one size pad nothing, which a mix of independent sizes cannot know."""
    times, _ = requests(2000)
    in_runs = np.repeat([8.0, 500.0], 1000)
    by_size = service_by_size(sized_profile(), 1769, 8).under(SizeMix.of(in_runs))
    own, mixed = (
        simulate_deployments({"": Deployment(TABLE, by_size)}, TraceArrivals(times, sizes))[""] for sizes in (in_runs, None)
    )
    assert own.cost.per_request < 0.7 * mixed.cost.per_request


def test_drawn_sizes_are_those_of_the_mix_and_the_same_at_every_pass() -> None:
    arrivals = SampledArrivals(poisson(50.0), 5000, 3, MIX)
    first, second = (np.concatenate(list(arrivals.size_chunks() or [])) for _ in range(2))
    assert (first == second).all() and first.mean() == pytest.approx(MIX.mean, rel=0.1)
    assert SampledArrivals(poisson(50.0), 5000, 3).size_chunks() is None
    runs = simulate_deployments({"a": classes(), "b": classes()}, arrivals)
    assert runs["a"].cost.per_request == runs["b"].cost.per_request
    assert sum(of.n_requests for of in runs["a"].queues) == 5000


def test_workers_of_a_class_are_paid_for_the_whole_run() -> None:
    times, sizes = requests(500)
    by_size = service_by_size(sized_profile(), 1769, 8).under(MIX)
    workers = Deployment(policies.greedy(8, servers=2), by_size, price_per_worker_hour=3.6)
    run = ran(SizedDeployment([SizedQueue(256.0, workers), SizedQueue(np.inf, workers)]), times, sizes)
    assert run.worker_seconds == pytest.approx(4 * run.span)
    assert run.cost.machines * run.answered == pytest.approx(4 * run.span * 1e-3)
    assert run.utilisation is not None and 0 < run.utilisation < 1


def test_the_bill_of_batches_of_any_size_takes_bounded_memory() -> None:
    """A batch of each of many sizes: all sizes by all batches at all levels would be half a gigabyte."""
    by_size = service_by_size(sized_profile(spread=True), 1769, 16)
    n = 100_000
    largest, members = np.linspace(8, 512, n), np.resize(np.arange(1, 17), n)
    by_size.mean_billed(largest[:10], members[:10], 0.1)
    tracemalloc.start()
    whole = by_size.mean_billed(largest, members, 0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6
    few = slice(None, None, 10_007)
    assert whole[few] == pytest.approx(by_size.mean_billed(largest[few], members[few], 0.1))


def test_a_class_of_too_few_requests_is_counted_and_nothing_is_estimated_of_it() -> None:
    times, sizes = requests(500)
    sizes = np.where(np.arange(500) % 100 == 50, 400.0, np.minimum(sizes, 256.0))
    run = ran(classes(bound=256.0), times, sizes)
    _, few = run.queues
    assert few.n_requests == 5 and not few.estimates and run.estimates
    assert run_document(run, [SLO])["classes"][1] == {"up_to": None, "n_requests": 5}
    nobody = ran(classes(bound=512.0), times, sizes)
    assert nobody.queues[1].n_requests == 0 and nobody.cost.per_request > 0


def test_a_class_is_run_with_batches_that_only_its_own_sizes_were_measured_in() -> None:
    """The largest sizes were measured one by one, and only the class of the small ones batches."""
    points = [point for point in sized_profile().points if point.size != 512 or point.batch_size == 1]
    profile = ServiceProfile(function="f", points=points)
    function = Function(profile, 1769, mix=MIX)
    large = function.between(128.0, np.inf).under(policies.no_batching())
    deployment = SizedDeployment([SizedQueue(128.0, function.between(-1.0, 128.0).under(TABLE)), SizedQueue(np.inf, large)])
    assert ran(deployment, *requests(500)).queues[1].mean_batch_size == 1
    with pytest.raises(InvalidInput, match="batch_size"):
        function.under(TABLE)


def test_queues_and_sizes_that_do_not_go_together_are_refused() -> None:
    times, sizes = requests(100)
    one = classes().queues[0]
    for queues in ([], [one], [replace(one, up_to=np.inf), one], [replace(one, up_to=np.inf)] * 2):
        with pytest.raises(InvalidInput, match="queues: .* is not allowed; allowed: sizes, ascending, the last inf"):
            SizedDeployment(queues)
    with pytest.raises(InvalidInput, match="sizes: none was given; needed: those of the requests"):
        simulate_deployments({"": classes()}, TraceArrivals(times))
    with pytest.raises(InvalidInput, match="sizes: 99 is not allowed; allowed: one for each of 100"):
        TraceArrivals(times, sizes[1:])
    with pytest.raises(InvalidInput, match="sizes: none was given; needed: those of the requests"):
        Function(sized_profile().of_size(8), 1769).between(0, 1)
