"""Which plan serves of those that a decision tried: what certainty is worth, and what it costs to begin without an environment."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import Policy, size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.batch_means import NextShare, share_of_next
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.tuning.beginning import begin
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.candidates import every_load, unbatched
from sluice.optimizer.tuning.choice import choose
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.rehearsal import broken_windows
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control, simulate_plans
from sluice.optimizer.tuning.trials import Trials, Tried

SLO = Slo(0.6, 95)
SIZES = 1, 2, 4, 8, 16, 32


def setup_of(init: float = 0.5, slo: Slo = SLO) -> TuningSetup:
    """Of a function whose cold starts alone take longer than is promised; twice the memory is a third dearer and quicker."""
    times = {1769: (0.15, 0.03), 3538: (0.1, 0.02)}
    points = [ProfilePoint(mb, b, ServiceTime(z + e * b), z + e * b) for mb, (z, e) in times.items() for b in SIZES]
    inits = {mb: ServiceTime(init) for mb in times}
    profile = ServiceProfile(function="f-{memory_mb}", model="m", points=points, init=inits, max_batch_size=32)
    return TuningSetup("m", (slo,), profile, max_batch_size=32)


def bursts(every: float, n: int, *, base: float = 2.0, peak: float = 60.0, length: float = 20.0, seed: int = 0) -> Array:
    """Poisson arrivals (s) with ``n`` bursts, the first after 0.4 of the time from one to the next."""
    rng, times = np.random.default_rng(seed), []
    for k in range(n):
        times.append(every * k + rng.uniform(0, every, rng.poisson(base * every)))
        times.append(every * (k + 0.4) + rng.uniform(0, length, rng.poisson(peak * length)))
    return 1.7e9 + np.sort(np.concatenate(times))


def tried_with_no_batching(setup: TuningSetup, times: Array, policy: Policy) -> tuple[Trials, Tried, Tried]:
    """A decision after these arrivals, with a plan of this policy and one that does not batch."""
    assert setup.profile is not None
    plan = Plan(model="m", function="f-1769", policy=PolicyDocument.of(policy), slo=setup.slos[0], memory_mb=1769)
    trials = Trials(setup, TuningSettings(), setup.profile, float(times[-1]), 0.0, times)
    batches, alone = (trials.tried(each) for each in (Proposal("batches", plan), unbatched(setup)[0]))
    assert batches is not None and alone is not None
    return trials, batches, alone


def late_by_window(run: ControlledRun, within: float, window: float = 300.0) -> Array:
    which = ((run.arrival_times - run.arrival_times[0]) // window).astype(int)
    return np.bincount(which, weights=~(run.latency <= within)) / np.maximum(1, np.bincount(which))


@pytest.mark.parametrize("happened", [np.arange(4000) % 50 == 0, np.arange(4000) % 1000 < 40, np.zeros(4000, dtype=bool)])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_chance_that_more_happens_than_is_foretold_is_what_the_confidence_leaves(happened: Array, confidence: float) -> None:
    of_next = share_of_next(happened, 500)
    assert of_next.chance_beyond(of_next.most(confidence)) == pytest.approx(1 - confidence, rel=1e-6)
    assert of_next.chance_beyond(0.0) >= 0.5 and of_next.chance_beyond(1.0) < 1e-6


def test_of_what_always_happens_as_often_nothing_is_left_to_chance_but_what_few_requests_leave_open() -> None:
    steady = NextShare(0.02, 0.0, 31, 3200)
    assert steady.chance_beyond(0.01) == 1.0
    assert steady.chance_beyond(0.03) == pytest.approx(np.exp(-32))


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.proof)])
def test_a_little_more_certainty_is_not_bought_at_a_multiple_of_the_cost(seed: int) -> None:
    """Each burst starts environments and has some late, of any plan as many: no batching had fewer, at twice the cost."""
    setup, times = setup_of(), bursts(900, 6, seed=seed)
    run = simulate_control(setup, times)
    assert run.plans and setup.profile is not None
    first = every_load(setup, setup.profile, 5.0, setup.slos)
    assert first is not None
    stays = simulate_plans(setup, times, [(float(times[0]) - 1, first.plan)])
    assert run.cost_per_request <= 1.02 * stays.cost_per_request
    kept, kept_by_it = (late_by_window(each, 0.6) <= 0.05 for each in (run, stays))
    assert kept_by_it.all() and kept.all()
    unsure = [decision.why for decision in run.decisions if "most likely keeps the promise" in decision.why]
    assert all("to keep it surely costs" in why for why in unsure)


def test_nor_where_most_of_what_is_allowed_was_late_and_certainty_costs_more_than_the_windows_that_would_break() -> None:
    setup, times = setup_of(slo=Slo(0.6, 97)), bursts(300, 6, base=3.0)
    trials, batches, alone = tried_with_no_batching(setup, times, size_or_timeout(16, 0.1))
    trials.compare([batches, alone], alone.proposal.plan)
    assert alone.keeps and not batches.keeps and 0.5 < batches.most_used < 1
    assert alone.price > 2.5 * batches.price
    choice = choose([batches, alone], alone, trials.rate * 300)
    assert choice.best is batches and choice.certainty > 1.5


@pytest.mark.full
def test_where_many_are_late_what_surely_keeps_the_promise_is_bought_whatever_it_costs() -> None:
    """The function takes twice as long from the middle on, and answers in time with twice the memory alone."""
    setup, rng = setup_of(init=0.1, slo=Slo(0.3, 95)), np.random.default_rng(3)
    times = 1.7e9 + np.cumsum(rng.exponential(1 / 5, 9000))
    run = simulate_control(setup, times, changes=[ServiceChange(float(times[4500]), 1.6)])
    assert run.plans[-1][1].memory_mb == 3538
    assert (late_by_window(run, 0.3)[-3:] <= 0.05).all()


def test_a_plan_whose_batches_fill_in_bursts_alone_is_not_sure_of_a_median_that_quiet_minutes_break() -> None:
    """Of all requests a tenth is late, as many as come in the quiet minutes: there no batch fills in time."""
    setup, rng = setup_of(slo=Slo(0.6, 50)), np.random.default_rng(5)
    bursty = np.concatenate([100 * k + rng.uniform(0, 20, 500) for k in range(12)])
    quiet = rng.uniform(1200, 1800, 600)
    times = 1.7e9 + np.sort(np.concatenate([bursty, quiet]))
    trials, waits, calm = tried_with_no_batching(setup, times, size_or_timeout(4, 1.2))
    assert waits.keeps and waits.runs[0].late[0].value < 0.2  # by the mean over requests
    trials.compare([waits, calm], None)
    assert not waits.keeps and waits.chance_of_breaking > 0.15
    assert calm.keeps
    trials.compare([waits, waits], None)  # of windows that nothing keeps it is not told apart
    assert waits.keeps


@pytest.mark.parametrize(("percentile", "rate", "n"), [(99, 0.04, 922), (95, 0.02, 600), (95, 0.1, 400), (50, 0.5, 900)])
def test_few_requests_that_are_late_by_chance_break_no_window(percentile: float, rate: float, n: int) -> None:
    """Each is late by itself, half as often as is allowed: of a hundred records about one has a window that looks broken."""
    setup, looked_broken = setup_of(slo=Slo(0.6, percentile)), 0
    assert setup.profile is not None
    for seed in range(100):
        rng = np.random.default_rng(seed)
        times = np.cumsum(rng.exponential(1 / rate, n))
        late = rng.random(n) < setup.slos[0].error_budget / 2
        looked_broken += bool(broken_windows(times, [late], setup.slos, 300.0, 0.99).any())
    assert looked_broken <= 4


# --- what begins without an environment


def test_what_starts_at_the_beginning_is_part_of_the_change() -> None:
    setup, times = setup_of(init=0.5), 1.7e9 + np.cumsum(np.random.default_rng(0).exponential(1 / 40, 6000))
    assert setup.profile is not None
    deployment = deployment_of(single_route(unbatched(setup)[-1].plan), setup, setup.profile)
    name = deployment.function
    beginning = begin(deployment, times, [SLO], 60.0)
    cold = simulate_deployment(deployment, times, np.random.default_rng(0)).cold
    assert beginning.environments[name] == pytest.approx(cold.sum(), rel=0.4)
    assert 0 < beginning.late[name] < 0.05 and beginning.usd[name] > 0
    assert begin(deployment, times, [Slo(2.0)], 60.0).late == {name: 0}


@pytest.mark.parametrize("seconds", [290, 310, 450, 600, 1500])
def test_what_begins_costs_the_same_however_much_was_seen(seconds: float) -> None:
    setup, rng = setup_of(init=8.0), np.random.default_rng(1)
    times = 1.7e9 + np.sort(rng.uniform(0, seconds, 40 * seconds))
    assert setup.profile is not None
    deployment = deployment_of(single_route(unbatched(setup)[-1].plan), setup, setup.profile)
    beginning = begin(deployment, times, [SLO], 300.0)
    assert beginning.environments[deployment.function] == pytest.approx(320, rel=0.1)
    assert beginning.late[deployment.function] == pytest.approx(0.027, rel=0.2)


def test_as_many_are_foretold_late_as_in_the_window_in_which_it_is_worst_to_begin() -> None:
    """A window that goes on has the environments of the burst before; one that begins has none, whenever the plan comes."""
    setup, times = setup_of(init=5.0), bursts(150, 12, peak=100.0)
    assert setup.profile is not None
    first = every_load(setup, setup.profile, 5.0, setup.slos)
    assert first is not None
    deployment = deployment_of(single_route(first.plan), setup, setup.profile)
    which = ((times - times[0]) // 300).astype(int)
    waited = []
    for k in range(which[-1] + 1):
        run = simulate_deployment(deployment, times[which == k], np.random.default_rng(0))
        waited.append(float((run.cold[run.batch_of] & ~(run.latency <= 0.6)).mean()))
    assert begin(deployment, times, [SLO], 300.0).late[deployment.function] == pytest.approx(max(waited), abs=0.005)
    assert max(waited) > 0.04
