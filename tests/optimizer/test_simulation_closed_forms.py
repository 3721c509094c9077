"""Simulated deployments against closed forms: every figure within 4 standard errors, estimated from independent replications.

With lambda the arrival rate, mu the service rate, rho the load: the formula tested stands in each test, with its source.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import poisson as poisson_law

from sluice.batching import Policy
from sluice.batching import policy as policies
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cold_starts import cold_start_probability
from sluice.optimizer.server.latency import server_latency
from sluice.optimizer.service import law as service_law
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.chunks import SampledArrivals
from sluice.optimizer.simulation.deployment import Beside, Deployment, Environments
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments

REPLICATIONS = 16
BIN = 2**-10  # of a latency: how far above the true one a streamed percentile may be


def constant(*seconds: float) -> ServiceTimes:
    return ServiceTimes(1024, np.array(seconds)[:, None], np.zeros(len(seconds)), np.array(seconds))


def exponential(mean: float, batch_size: int = 1) -> ServiceTimes:
    """The same law for every size; the quantile function is linear over steps of 0.01 means, which moves the mean by 1e-5."""
    steps = np.arange(0, 25, 0.01)
    seconds = np.tile(mean * np.append(steps, 25.0), (batch_size, 1))
    return ServiceTimes(1024, seconds, np.zeros(batch_size), np.full(batch_size, mean), np.append(-np.expm1(-steps), 1.0))


def replications(
    deployment: Deployment, arrivals: ArrivalProcess, latencies: Sequence[float] = (), n: int = 20_000
) -> list[RunStatistics]:
    return [
        simulate_deployments({"it": deployment}, SampledArrivals(arrivals, n, seed), latencies, seed)["it"]
        for seed in range(REPLICATIONS)
    ]


def assert_near(estimates: Sequence[float], exact: float, slack: float = 0.0) -> None:
    mean, error = float(np.mean(estimates)), float(np.std(estimates, ddof=1)) / math.sqrt(len(estimates))
    assert abs(mean - exact) < 4 * error + slack, f"{mean:.6g} +- {error:.2g}, and not {exact:.6g}"


def assert_percentile(runs: Sequence[RunStatistics], percentile: float, exact: float) -> None:
    assert_near([run.percentile(percentile).value for run in runs], exact, BIN * exact)


# --- one server


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_latency_of_a_markovian_server_is_exponential(load: float) -> None:
    """M/M/1: P(R > t) = exp(-(mu - lambda) t)."""
    slack = (1 - load) / 0.01
    within = [-math.log(1 - share) / slack for share in (0.2, 0.5, 0.95, 0.99)]
    runs = replications(Deployment(policies.greedy(1), exponential(0.01)), poisson(load / 0.01), within)
    assert_near([run.mean_latency.value for run in runs], 1 / slack)
    assert_near([run.utilisation or 0.0 for run in runs], load)
    assert_percentile(runs, 95, within[2])
    for k, share in enumerate((0.2, 0.5, 0.95, 0.99)):
        assert_near([run.violations(k).value for run in runs], 1 - share)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_latency_of_a_constant_server_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    """M/D/1: mean D + rho D / (2 (1 - rho)); percentiles by the exact analysis (docs/model.md, 4.6)."""
    runs = replications(Deployment(policies.greedy(1), constant(0.01)), poisson(load / 0.01))
    assert_near([run.mean_latency.value for run in runs], 0.01 + load * 0.01 / (2 * (1 - load)))
    exact = server_latency(load / 0.01, service_law.deterministic([0.01]), [0, 1])
    assert_percentile(runs, 95, exact.percentile(95))


ERLANG = ArrivalProcess(np.array([[-160.0, 160.0], [0.0, -160.0]]), np.array([[0.0, 0.0], [160.0, 0.0]]))
HYPEREXPONENTIAL = ArrivalProcess(np.diag([-400.0, -40.0]), np.outer([400.0, 40.0], [0.8, 0.2]))


@pytest.mark.parametrize(
    ("arrivals", "transform"),
    [
        (ERLANG, lambda s: (160 / (160 + s)) ** 2),
        (HYPEREXPONENTIAL, lambda s: 0.8 * 400 / (400 + s) + 0.2 * 40 / (40 + s)),
    ],
    ids=["E2/M/1", "H2/M/1"],
)
def test_arrivals_that_renew_leave_the_latency_exponential(arrivals: ArrivalProcess, transform: Callable[[float], float]) -> None:
    """GI/M/1: P(R > t) = exp(-mu (1 - s) t) with s = E exp(-mu (1 - s) gap)."""
    mu = arrivals.arrival_rate / 0.7
    s = 0.5
    for _ in range(200):
        s = transform(mu * (1 - s))
    median = math.log(2) / (mu * (1 - s))
    runs = replications(Deployment(policies.greedy(1), exponential(1 / mu)), arrivals, [median])
    assert_near([run.mean_latency.value for run in runs], 1 / (mu * (1 - s)))
    assert_near([run.violations().value for run in runs], 0.5)


@pytest.mark.parametrize("load", [0.8, 1.25])
def test_requests_that_grow_too_old_are_lost_as_barrer_says(load: float) -> None:
    """M/M/1 + D: the work found has an atom P0 at 0, density lambda P0 exp(-(mu - lambda) x) up to the age, falling by mu beyond.

    Barrer, Queuing with impatient customers and ordered service, Operations Research 5 (1957).
    """
    mu, age, within = 100.0, 0.02, 0.03
    arrival_rate = load * mu
    away = mu - arrival_rate
    idle = 1 / (1 - arrival_rate * math.expm1(-away * age) / away + load * math.exp(-away * age))
    lost = idle * load * math.exp(-away * age)
    at_once = -idle * math.expm1(-mu * within)
    later = -arrival_rate * idle * math.expm1(-away * age) / away - idle * math.exp(-mu * within) * math.expm1(arrival_rate * age)
    deployment = Deployment(Policy((math.inf, 0.0), (0, 1), servers=1, drop_after=age), exponential(1 / mu))
    runs = replications(deployment, poisson(arrival_rate), [within])
    assert_near([run.dropped / run.n_requests for run in runs], lost)
    assert_near([run.violations().value for run in runs], 1 - at_once - later)
    assert_near([run.utilisation or 0.0 for run in runs], 1 - idle)


# --- one server, batches


def test_a_greedy_markovian_server_has_geometric_queues() -> None:
    """M/M^(1,B)/1: n wait before a busy server with probability C r^n, mu r^(B+1) - (lambda + mu) r + lambda = 0, 0 < r < 1.

    A wait is 0, or exponential of rate mu (1 - r^B). Gross, Harris, Fundamentals of Queueing Theory, 3.2.
    """
    batch_size, mu, arrival_rate = 4, 100.0, 300.0
    roots = np.roots([mu, *[0.0] * (batch_size - 1), -(arrival_rate + mu), arrival_rate])
    r = float(next(root.real for root in roots if abs(root.imag) < 1e-9 and 0 < root.real < 1 - 1e-9))
    busy = 1 / (1 + (1 - r) * mu / arrival_rate)
    rate = mu * (1 - r**batch_size)

    def beyond(t: float) -> float:
        """P(R > t): a service alone, or the sum of a wait of that rate and a service."""
        waited = (mu * math.exp(-rate * t) - rate * math.exp(-mu * t)) / (mu - rate)
        return (1 - busy) * math.exp(-mu * t) + busy * waited

    latencies = [0.005, 0.02, 0.06]
    runs = replications(Deployment(policies.greedy(batch_size), exponential(1 / mu, batch_size)), poisson(arrival_rate), latencies)
    assert_near([run.mean_latency.value for run in runs], busy / rate + 1 / mu)
    for k, latency in enumerate(latencies):
        assert_near([run.violations(k).value for run in runs], beyond(latency))
    pmf = [(1 - r) * r**b + (1 - r) * (b == 1) for b in range(1, batch_size)] + [r**batch_size]
    for size, probability in enumerate(pmf, 1):
        assert_near([run.batch_size_pmf[size - 1] for run in runs], probability)


@pytest.mark.parametrize(("batch_size", "arrived"), [(2, 1.6), (8, 6.0)])
def test_a_greedy_constant_server_waits_as_baileys_roots_say(batch_size: int, arrived: float) -> None:
    """M/D^(1,B)/1 with m arrivals per service: the queue Q at completions has B - 1 zeros z_i of z^B = exp(m (z - 1)) in it.

    Bailey, On queueing processes with bulk service, J. Royal Statistical Society B 16 (1954).
    """
    seconds = 0.01
    zeros = np.exp(2j * np.pi * np.arange(1, batch_size) / batch_size)
    turns = zeros.copy()
    for _ in range(500):
        zeros = turns * np.exp(arrived * (zeros - 1) / batch_size)
    left_behind = (1 / (1 - zeros)).sum().real - (batch_size * (batch_size - 1) - arrived**2) / (2 * (batch_size - arrived))
    empty = (batch_size - arrived) * np.prod(zeros / (zeros - 1)).real
    waiting = (left_behind * seconds + arrived * seconds / 2) / (seconds + empty * seconds / arrived)
    service = constant(*[seconds] * batch_size)
    runs = replications(Deployment(policies.greedy(batch_size), service), poisson(arrived / seconds))
    assert_near([run.mean_latency.value for run in runs], seconds + waiting * seconds / arrived)
    assert_near([run.mean_batch_size for run in runs], arrived + empty)


@pytest.mark.parametrize(
    "table", [policies.greedy(8), policies.control_limit(5, 8), policies.static(6)], ids=lambda table: table.kind
)
def test_tables_before_a_server_have_the_latency_of_the_exact_analysis(table: Policy) -> None:
    """Two roads: docs/model.md 4.6, for constant service times that grow with the batch."""
    mean = 0.001 + 0.001 * np.arange(1, 9)
    rate = 0.7 * 6 / mean[5]
    actions = [0 if hold else take for hold, take in zip(table.hold, table.take, strict=True)]
    exact = server_latency(rate, service_law.deterministic(mean), actions)
    latencies = [0.008, 0.012, 0.02]
    runs = replications(Deployment(table, constant(*mean)), poisson(rate), latencies)
    assert_near([run.mean_latency.value for run in runs], exact.mean)
    for k, latency in enumerate(latencies):
        assert_near([run.violations(k).value for run in runs], 1 - exact.probability_within(latency))
    assert_percentile(runs, 95, exact.percentile(95))


# --- a function, or many servers


def erlang_b(offered: float, servers: int) -> float:
    """Probability that all are busy where nobody waits."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked


@pytest.mark.parametrize("by_function", [False, True], ids=["servers", "a function of limited concurrency"])
@pytest.mark.parametrize(("servers", "load"), [(2, 0.8), (10, 0.85)])
def test_so_many_at_once_wait_as_erlangs_delay_formula_says(by_function: bool, servers: int, load: float) -> None:
    """M/M/c: P(R > t) = exp(-mu t) (1 + C (1 - exp(-mu t x)) / x), x = c - 1 - a, a = lambda / mu, C by Erlang."""
    mu, offered = 100.0, servers * load
    blocked = erlang_b(offered, servers)
    waits = blocked / (1 - load * (1 - blocked))
    x = servers - 1 - offered
    latencies = [0.005, 0.03]
    deployment = Deployment(policies.greedy(1, servers), exponential(1 / mu))
    if by_function:
        deployment = Deployment(policies.no_batching(), exponential(1 / mu), Environments(concurrency=servers))
    runs = replications(deployment, poisson(offered * mu), latencies)
    assert_near([run.mean_latency.value for run in runs], 1 / mu + waits / (mu * (servers - offered)))
    for k, t in enumerate(latencies):
        assert_near([run.violations(k).value for run in runs], math.exp(-mu * t) * (1 - waits * math.expm1(-mu * t * x) / x))


def test_batches_that_a_timeout_alone_closes_hold_a_poisson_number_more_than_one() -> None:
    """M/G/infinity in batches, B endless: sizes 1 + Poisson(lambda T); the first waits T, the others uniformly on (0, T)."""
    arrival_rate, timeout, mu = 300.0, 0.02, 100.0
    mean_size = 1 + arrival_rate * timeout

    def within(t: float) -> float:
        """P(R <= t), t >= T, with an exponential service that is independent of the size."""
        others = timeout - (math.exp(-mu * (t - timeout)) - math.exp(-mu * t)) / mu
        return (arrival_rate * others - math.expm1(-mu * (t - timeout))) / mean_size

    latencies = [0.02, 0.03, 0.05]
    deployment = Deployment(policies.size_or_timeout(64, timeout), exponential(1 / mu, 64))
    runs = replications(deployment, poisson(arrival_rate), latencies)
    assert_near([run.mean_latency.value for run in runs], (timeout + arrival_rate * timeout**2 / 2) / mean_size + 1 / mu)
    for k, t in enumerate(latencies):
        assert_near([run.violations(k).value for run in runs], 1 - within(t))
    assert_near([run.mean_batch_size for run in runs], mean_size)
    for size in (1, 4, 7, 12):
        assert_near([run.batch_size_pmf[size - 1] for run in runs], float(poisson_law(mean_size - 1).pmf(size - 1)))


def test_what_overflows_to_the_function_is_what_erlangs_loss_formula_loses() -> None:
    """M/G/c/c loses the same whatever the law of the service; what is lost goes to the function."""
    servers, offered, at_server, at_function = 5, 4.0, 0.01, 0.05
    blocked = erlang_b(offered, servers)
    function = Beside(policies.no_batching(), constant(at_function))
    deployment = Deployment(policies.greedy(1, servers), constant(at_server), beside=[function])
    runs = replications(deployment, poisson(offered / at_server))
    assert_near([run.by_function for run in runs], blocked)
    assert_near([run.mean_latency.value for run in runs], at_server + blocked * (at_function - at_server))
    assert_near([run.utilisation or 0.0 for run in runs], offered * (1 - blocked) / servers)


# --- environments that start, are kept, are granted


def test_one_environment_starts_cold_after_a_pause_longer_than_it_is_kept() -> None:
    """M/G/1 whose first service of a busy period is longer: by I with probability p = exp(-lambda keep_alive).

    Cold: p (1 - rho) / (1 + lambda p I). Waits: Welch, On a generalized M/G/1 queuing process in which the first customer of each
    busy period receives exceptional service, Operations Research 12 (1964).
    """
    arrival_rate, seconds, init_duration, keep_alive = 20.0, 0.02, 0.1, 0.05
    load, pause = arrival_rate * seconds, math.exp(-arrival_rate * keep_alive)
    cold = pause * (1 - load) / (1 + arrival_rate * pause * init_duration)
    longer = pause * (2 * init_duration * seconds + init_duration**2)
    wait = arrival_rate * seconds**2 / (2 * (1 - load))
    wait += arrival_rate * longer / (2 * (1 + arrival_rate * pause * init_duration))
    deployment = Deployment(policies.no_batching(), constant(seconds), Environments(init_duration, keep_alive, concurrency=1))
    runs = replications(deployment, poisson(arrival_rate))
    assert_near([run.cold_starts / run.n_batches for run in runs], cold)
    assert_near([run.mean_latency.value for run in runs], wait + seconds + cold * init_duration)


def passages_longer(load: float, busy_duration: float, keep_alive: float) -> float:
    """P(all through ``keep_alive`` before an arrival to M/M/infinity no more were busy than it finds)."""
    total = 0.0
    for k in range(25):
        up, down = np.full(k + 1, load / busy_duration), np.arange(k + 1) / busy_duration
        killed = np.diag(up[:-1], 1) + np.diag(down[1:], -1) - np.diag(up + down)
        total += poisson_law(load).pmf(k) * expm(killed * keep_alive)[k].sum()
    return total


@pytest.mark.parametrize("keep_alive", [0.02, 0.2, 1.0])
def test_environments_start_cold_when_more_are_needed_than_while_they_are_kept(keep_alive: float) -> None:
    """M/M/infinity is reversible: cold is who finds k busy from where the passage to k + 1 takes longer than ``keep_alive``."""
    load, busy_duration = 3.0, 0.1
    exact = passages_longer(load, busy_duration, keep_alive)
    deployment = Deployment(policies.no_batching(), exponential(busy_duration), Environments(keep_alive=keep_alive))
    runs = replications(deployment, poisson(load / busy_duration))
    assert_near([run.cold_starts / run.n_batches for run in runs], exact)
    estimate = cold_start_probability(poisson(load / busy_duration), busy_duration, keep_alive)
    assert estimate == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("burst", [1, 4])
def test_starts_beyond_the_burst_wait_as_before_a_constant_server(burst: int) -> None:
    """While none ends every batch needs a token: a wait is that of M/D/1 with D = 1 / scaling_rate, less (burst - 1) D."""
    granted, seconds, arrival_rate = 100.0, 1000.0, 80.0
    environments = Environments(scaling_rate=granted, burst=burst)
    latencies = [seconds + wait for wait in (1e-9, 0.011, 0.03)]
    runs = replications(Deployment(policies.no_batching(), constant(seconds), environments), poisson(arrival_rate), latencies)
    server = server_latency(arrival_rate, service_law.deterministic([1 / granted]), [0, 1])
    for k, latency in enumerate(latencies):
        beyond = 1 - server.probability_within(latency - seconds + burst / granted)
        assert_near([run.violations(k).value for run in runs], beyond)
