from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import INF, Policy, deadline, greedy
from sluice.optimizer.fleet.tables import BATCHINGS, brief_hold, queue_table
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables, FleetQueue, FleetSchedule, simulate_fleet

SECONDS = np.array([0.02, 0.025, 0.03, 0.035])
NEVER = np.empty(0)


def fixed(seconds):
    seconds = np.asarray(seconds, dtype=float)
    return ServiceTimes(1, seconds[:, None], np.zeros(len(seconds)), seconds)


def poisson(rate, n, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def queue(family=0, accuracy=100.0, policy=None, seconds=SECONDS):
    return FleetQueue(0, 0, family, accuracy, policy or greedy(len(seconds)), fixed(seconds))


def run(schedule, arrivals, slo=0.1, seed=0, **keywords):
    return simulate_fleet(schedule, arrivals, np.full(len(arrivals), slo), np.random.default_rng(seed), **keywords)


def constant(queues, shares, servers):
    return FleetSchedule(queues, NEVER, [shares], [servers])


def test_a_fleet_of_one_queue_is_simulate_member_by_member():
    table = deadline(0.1, SECONDS.tolist(), servers=3)
    times = poisson(120.0, 5000, 1)
    alone = simulate(table, times, fixed(SECONDS), np.random.default_rng(0))
    fleet = run(constant([queue(policy=table)], [1.0], [3]), [times])
    assert np.array_equal(fleet.latency, alone.latency)
    assert np.array_equal(fleet.arrival_times, times)
    assert fleet.busy_seconds[0] == pytest.approx(alone.response_times.sum())


def test_queues_of_two_families_run_side_by_side_as_they_would_alone():
    first, second = poisson(60.0, 2000, 2), poisson(30.0, 1000, 3)
    both = run(constant([queue(0), queue(1, 90.0)], [1.0, 1.0], [2, 1]), [first, second])
    assert np.array_equal(both.of_family(0).latency, run(constant([queue(0)], [1.0], [2]), [first]).latency)
    assert np.array_equal(both.of_family(1).latency, run(constant([queue(0)], [1.0], [1]), [second]).latency)


def test_every_request_appears_once_in_order_of_arrival():
    arrivals = [poisson(60.0, 700, 4), poisson(30.0, 300, 5), np.empty(0)]
    result = run(constant([queue(0), queue(0), queue(1)], [2.0, 1.0, 1.0], [1, 1, 1]), arrivals)
    assert np.array_equal(result.arrival_times, np.sort(np.concatenate(arrivals)))
    assert np.bincount(result.family, minlength=3).tolist() == [700, 300, 0]
    assert (result.family == np.array([0, 0, 1])[result.queue]).all()


def test_one_device_with_single_requests_waits_as_the_queue_M_D_1_does():
    """Pollaczek-Khinchine: the mean wait is rho l / (2 (1 - rho))."""
    rho, seconds, runs = 0.6, 0.02, 40
    waits = [
        np.nanmean(
            run(constant([queue(policy=greedy(1), seconds=[seconds])], [1.0], [1]), [poisson(rho / seconds, 5000, s)]).latency
        )
        for s in range(runs)
    ]
    error = np.std(waits, ddof=1) / np.sqrt(runs)
    assert np.mean(waits) - seconds == pytest.approx(rho * seconds / (2 * (1 - rho)), abs=4 * error)


def test_an_answer_at_the_very_deadline_is_in_time_however_it_was_rounded():
    """The table waits until one request would be answered at its deadline; sums of seconds miss it by the last digit."""
    times = np.random.default_rng(11).uniform(0.0, 100.0, 50) + np.arange(50) * 100.0
    waits = Policy([INF, 0.3 - 0.02], [0, 1], 1, None, "last")
    result = run(constant([queue(policy=waits, seconds=[0.02])], [1.0], [1]), [np.sort(times)], slo=0.3)
    assert (result.latency > 0.3).any()
    assert result.latency == pytest.approx(0.3)
    assert result.violation_ratio == 0.0


def test_violations_count_all_that_arrived():
    """One second of two is served by nobody, and nobody is routed there in a third."""
    times = np.arange(0.05, 3.0, 0.1)  # 10 a second, served in 20 ms
    policy = replace(greedy(1), drop_after=0.04)
    schedule = FleetSchedule([queue(policy=policy)], [1.0, 2.0], [[1.0], [1.0], [0.0]], [[1], [0], [1]])
    result = run(schedule, [times])
    assert result.violation_ratio == pytest.approx(2 / 3)
    assert result.throughput == pytest.approx(10 / (times[-1] - times[0]))
    assert result.series(1.0).violation_ratio.tolist() == [0.0, 1.0, 1.0]
    assert result.series(1.0).arrivals.tolist() == [10, 10, 10]
    assert (result.queue[20:] == -1).all()


def test_effective_accuracy_is_that_of_the_variants_that_served_in_time():
    """A variant of 80 % gets every fourth request, one of 40 % that is always late gets as many."""
    times = np.arange(400) / 10
    queues = [queue(accuracy=100.0), queue(accuracy=80.0), queue(accuracy=40.0, seconds=[0.2])]
    result = run(constant(queues, [2.0, 1.0, 1.0], [1, 1, 4]), [times])
    assert result.effective_accuracy == pytest.approx((2 * 100 + 80) / 3)
    assert result.violation_ratio == pytest.approx(0.25)


def test_the_largest_accuracy_drop_is_that_of_the_worst_window():
    times = np.arange(0.5, 30.0)
    schedule = FleetSchedule([queue(accuracy=98.0), queue(accuracy=90.0)], [10.0, 20.0], [[1, 0], [0, 1], [1, 0]], [[1, 1]] * 3)
    assert run(schedule, [times]).max_accuracy_drop(10.0) == pytest.approx(10.0)


def test_batches_in_service_end_when_their_device_goes():
    schedule = FleetSchedule([queue()], [0.01], [[1.0], [0.0]], [[1], [0]])
    assert run(schedule, [np.array([0.0])]).latency == pytest.approx(0.02)


def test_utilisation_is_busy_time_over_the_time_of_the_servers():
    times = np.arange(0.0, 10.0, 0.1)
    schedule = FleetSchedule([queue()], [5.0], [[1.0], [1.0]], [[1], [3]])
    result = run(schedule, [times])
    assert result.server_seconds[0] == pytest.approx(5.0 + 3 * (times[-1] - 5.0))
    assert result.utilisation == pytest.approx(100 * 0.02 / result.server_seconds[0])


@pytest.mark.parametrize("random_routing", [False, True])
def test_the_same_seed_gives_the_same_run(random_routing):
    arrivals = [poisson(90.0, 1000, 6)]
    schedule = constant([queue(), queue()], [1.0, 2.0], [1, 1])
    once, again = (run(schedule, arrivals, random_routing=random_routing) for _ in range(2))
    assert np.array_equal(once.latency, again.latency, equal_nan=True) and np.array_equal(once.queue, again.queue)


def test_adaptive_tables_grow_their_batches_while_these_are_in_time():
    """Ten wait at the start; limits 1, 2, 3, 4 follow each other, as no batch takes half of the SLO."""
    aimd = queue_table("aimd", SECONDS, 0.1, 4)
    assert isinstance(aimd, AdaptiveTables)
    result = run(constant([queue(policy=aimd)], [1.0], [1]), [np.zeros(10)])
    ends = np.cumsum(SECONDS)
    assert result.latency == pytest.approx(np.repeat(ends, [1, 2, 3, 4]))


@pytest.mark.parametrize("batching", [b for b in BATCHINGS if b != "aimd"])
def test_no_table_makes_a_device_late_that_serves_one_alone(batching):
    slo = 0.1
    result = run(constant([queue(policy=queue_table(batching, SECONDS, slo, 4))], [1.0], [1]), [np.arange(20.0)], slo)
    assert (result.latency <= slo + 1e-9).all()


def test_brief_hold_takes_efficient_batches_and_holds_only_for_these():
    """Of 20, 60, 70, 72 ms: one after the other is quicker than two or three at once, four at once are the quickest."""
    table = brief_hold(0.2, np.array([0.02, 0.06, 0.07, 0.072]))
    assert table.take == (0, 1, 1, 1, 4)
    assert table.hold == pytest.approx((INF, 0.014, 0.013, 0.0128, 0.0))
    assert table.drop_after == pytest.approx(0.128)


def test_brief_hold_of_a_device_that_gains_nothing_by_batches_serves_at_once():
    table = brief_hold(0.2, np.array([0.02, 0.04, 0.06]))
    assert table.take == (0, 1, 1, 1) and table.hold == (INF, 0.0, 0.0, 0.0)


def test_a_batching_that_there_is_none_of_is_refused_by_name():
    with pytest.raises(InvalidInput, match="batching: 'eager' is not allowed; allowed: brief_hold, deadline"):
        queue_table("eager", SECONDS, 0.1, 4)


def test_a_batch_beyond_the_profile_is_refused():
    with pytest.raises(InvalidInput, match="batch_size: 5 is not allowed; allowed: 1 to 4"):
        queue_table("greedy", SECONDS, 0.1, 5)


def test_a_queue_of_a_family_without_arrivals_is_refused():
    with pytest.raises(InvalidInput, match=r"queues\[0\].family: 1 is not allowed; allowed: one of the 1 families"):
        run(constant([queue(1)], [1.0], [1]), [np.zeros(1)])


def test_servers_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match=r"servers: \(1, 2\) is not allowed; allowed: \(1, 1\): before the changes"):
        FleetSchedule([queue()], NEVER, [[1.0]], [[1, 1]])


def test_negative_servers_are_refused_by_their_place():
    with pytest.raises(InvalidInput, match=r"servers\[0, 0\]: -1 is not allowed; allowed: a finite number >= 0"):
        FleetSchedule([queue()], NEVER, [[1.0]], [[-1]])


def test_a_policy_that_drops_gives_up_instead_of_being_late():
    table = Policy((INF, 0.0), (0, 1), 1, 0.03)
    latency = run(constant([queue(policy=table, seconds=[0.02])], [1.0], [1]), [np.zeros(5)]).latency
    assert latency[:2] == pytest.approx([0.02, 0.04]) and np.isnan(latency[2:]).all()
