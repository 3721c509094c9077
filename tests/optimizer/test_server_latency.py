"""The exact latency in front of one server: closed forms, other roads, simulation, and a table of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, factorial, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.linalg import expm_multiply
from scipy.special import gammainc
from scipy.stats import expon
from scipy.stats import gamma as gamma_law

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.batching.policy import smdp
from sluice.optimizer.arrays import Array
from sluice.optimizer.server import fixed_outcomes
from sluice.optimizer.server.epochs import decision_epochs
from sluice.optimizer.server.latency import server_latency
from sluice.optimizer.service.law import (
    EmpiricalLaw,
    ServiceLaw,
    deterministic,
    erlang,
    exponential,
    gamma,
    hyperexponential,
)
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate

MEANS = np.array([1.0, 1.25, 1.7, 1.8, 2.3, 2.35, 2.9, 3.0])
GOOGLENET = (0.3051 * np.arange(1, 33) + 1.0524) * 1e-3  # s, on a P4: Xu et al., section VII
LAWS = {
    "fixed": deterministic(MEANS),
    "exponential": exponential(MEANS),
    "Erlang-3": erlang(MEANS, 3),
    "hyperexponential": hyperexponential(MEANS),
}
TABLES = {
    "one at a time": [0, 1],
    "greedy": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "static": [0, 0, 0, 0, 4],
    "control limit": [0, 0, 0, 3, 4, 5, 6, 7, 8],
    "a limit beyond the largest batch": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6],
    "thresholds and partial batches": [0, 0, 2, 2, 0, 4, 3, 4, 0, 6, 6, 5, 8],
    "a least batch of 3": [0, 0, 0, 3, 4, 3, 6, 6, 6, 8],
    "waits that leave requests behind": [0, 0, 0, 2, 0, 0, 3, 0, 0, 4, 8],
}


def loaded(load: float, service: ServiceLaw, actions: Sequence[int]) -> float:
    """The arrival rate at which the last row has this load."""
    return load * actions[-1] / float(service.mean[actions[-1] - 1])


def action(actions: Sequence[int], waiting: int) -> int:
    return actions[min(waiting, len(actions) - 1)]


def decisions_of_a_cut_chain(rate: float, service: ServiceLaw, actions: Sequence[int], n_states: int) -> Array:
    """Decisions per second with 0, 1, ... waiting, the queue being cut and the chain solved as it stands."""
    counts = service.counts(rate, n_states)
    to, seconds = np.zeros((n_states, n_states)), np.empty(n_states)
    for q in range(n_states):
        a = action(actions, q)
        if a == 0:
            to[q, q + 1] = 1
        else:
            to[q, q - a :] = counts[a - 1, : n_states - q + a]
            to[q, -1] += 1 - to[q].sum()
        seconds[q] = service.mean[a - 1] if a else 1 / rate
    system = to.T - np.eye(n_states)
    system[-1] = 1
    law = np.linalg.solve(system, np.eye(n_states)[-1])
    return np.asarray(law / (law @ seconds))


def mean_by_little(rate: float, service: ServiceLaw, actions: Sequence[int], decisions: Array) -> float:
    """The mean number in the system over the arrival rate."""
    q = np.arange(len(decisions))
    a = np.array([action(actions, int(n)) for n in q])
    area = np.where(a == 0, q / rate, q * service.mean[a - 1] + rate * service.second_moment[a - 1] / 2)
    return float(decisions @ area) / rate


# --- closed forms


@pytest.mark.full
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.99])
def test_one_exponential_server_has_exponential_latency(load: float) -> None:
    law = server_latency(3 * load, exponential([1 / 3]), [0, 1])
    expected = expon(scale=1 / (3 * (1 - load)))
    times = expected.ppf(np.linspace(0.001, 0.9999, 50))
    assert law.cdf(times) == pytest.approx(expected.cdf(times), abs=1e-11)
    assert law.percentile(99) == pytest.approx(expected.ppf(0.99), rel=1e-9)
    assert law.mean == pytest.approx(expected.mean(), rel=1e-9)


def wait_for_a_fixed_service(load: float, services: float) -> float:
    """Erlang's waiting time of M/D/1 in units of the service time; exact to about e^services rounding errors."""
    terms = [(load * (j - services)) ** j / factorial(j) * exp(-load * (j - services)) for j in range(floor(services) + 1)]
    return (1 - load) * sum(terms)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.97])
def test_one_fixed_server_has_erlangs_wait(load: float) -> None:
    law = server_latency(2 * load, deterministic([0.5]), [0, 1])
    services = np.array([0, 0.3, 0.99, 1, 1.5, 2.2, 4, 5.7])
    expected = [wait_for_a_fixed_service(load, t) for t in services]
    assert law.cdf(0.5 + 0.5 * services) == pytest.approx(expected, abs=1e-12)
    assert law.mean == pytest.approx(0.5 + 0.5 * load / (2 * (1 - load)), rel=1e-10)  # Pollaczek and Khinchin


def test_a_batch_waits_for_its_last_where_service_takes_no_time_to_speak_of() -> None:
    rate, size = 10.0, 5
    law = server_latency(rate, deterministic(np.full(size, 1e-9)), [0] * size + [size])
    times = np.array([0.05, 0.1, 0.3, 0.6, 1.2])
    expected = (1 + sum(gamma_law(k, scale=1 / rate).cdf(times) for k in range(1, size))) / size
    assert law.cdf(times) == pytest.approx(expected, abs=1e-7)


# --- other roads


@pytest.mark.parametrize("actions", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("law", LAWS)
def test_the_mean_is_that_of_littles_law(law: str, actions: list[int]) -> None:
    service = LAWS[law]
    for load in (0.1, 0.45):
        rate = loaded(load, service, actions)
        decisions = decisions_of_a_cut_chain(rate, service, actions, 320)
        assert server_latency(rate, service, actions).mean == pytest.approx(
            mean_by_little(rate, service, actions, decisions), rel=1e-8
        )


@pytest.mark.parametrize("service", [*LAWS.values(), gamma(MEANS, 1.7)], ids=[*LAWS, "gamma"])
def test_the_decisions_are_those_of_a_long_cut_chain(service: ServiceLaw) -> None:
    for actions in (TABLES["greedy"], TABLES["thresholds and partial batches"]):
        rate = loaded(0.7, service, actions)
        epochs = decision_epochs(rate, service, actions)
        cut = decisions_of_a_cut_chain(rate, service, actions, 800)
        n = min(len(cut), len(epochs.rates))
        assert epochs.rates[:n] == pytest.approx(cut[:n], abs=1e-13 * cut.sum())
        assert epochs.rates @ epochs.taken == pytest.approx(rate, rel=1e-11)  # what is taken is what comes


@pytest.mark.parametrize("load", [0.95, 0.99, 0.999])
@pytest.mark.parametrize("law", ["fixed", "exponential"])
def test_the_mean_is_that_of_littles_law_however_high_the_load(law: str, load: float) -> None:
    service, actions = LAWS[law], TABLES["control limit"]
    rate = loaded(load, service, actions)
    decisions = decision_epochs(rate, service, actions).rates
    assert server_latency(rate, service, actions).mean == pytest.approx(mean_by_little(rate, service, actions, decisions), rel=1e-8)


def latency_by_a_matrix_exponential(rate: float, actions: Sequence[int], times: Array) -> Array:
    """Two exponential phases of unequal chance and rate: the chain of (i, n, service, phase) as it stands, cut far out."""
    service, chance = hyperexponential(MEANS), (2 / 3, 1 / 3)
    decisions = decisions_of_a_cut_chain(rate, service, actions, 150)
    last_row = len(actions) - 1
    numbers: dict[tuple[int, ...], int] = {}
    jumps: list[tuple[int, int, float]] = []
    pending: list[tuple[int, ...]] = []

    def number(state: tuple[int, ...]) -> int:
        if state not in numbers:
            numbers[state] = len(numbers)
            pending.append(state)
        return numbers[state]

    def decided(i: int, n: int) -> list[tuple[int, float]]:
        """What (i, n) becomes: idle (i, n), or in service of a, with i left, -1 where the request is in the batch."""
        a = action(actions, i + 1 + n)
        if a == 0:
            return [(number((i, n, 0, 0)), 1.0)]
        return [(number((max(i - a, -1), n if i >= a else 0, a, f)), chance[f]) for f in (0, 1)]

    start: dict[int, float] = {}

    def begin(state: int, p: float) -> None:
        start[state] = start.get(state, 0.0) + p

    answered = number((-2, 0, 0, 0))
    pending.clear()
    for f in (0, 1):
        for a in range(1, max(actions) + 1):
            # y(x) (rate + speed) = rate y(x - 1) + chance * what begins and leaves x
            speed, before = 1 / (MEANS[a - 1] * (0.5, 2.0)[f]), 0.0
            for x in range(len(decisions) - a):
                began = decisions[x + a] if action(actions, x + a) == a else 0.0
                before = (rate * before + chance[f] * began) / (rate + speed)
                if before > 1e-13:
                    begin(number((x, 0, a, f)), before)
    for q, d in enumerate(decisions):
        if action(actions, q) == 0:
            for state, p in decided(q, 0):
                begin(state, p * d / rate)
    while pending:
        i, n, a, f = state = pending.pop()
        here = number(state)
        if a == 0:
            jumps += [(here, there, rate * p) for there, p in decided(i, n + 1)]
            continue
        speed = 1 / (MEANS[a - 1] * (0.5, 2.0)[f])
        if i < 0:
            jumps.append((here, answered, speed))
            continue
        if n < last_row:  # beyond, no row is told from another
            jumps.append((here, number((i, n + 1, a, f)), rate))
        jumps += [(here, there, speed * p) for there, p in decided(i, n)]
    rows, columns, rates = (np.array(part) for part in zip(*jumps, strict=True))
    n_states = len(numbers)
    generator = coo_array((rates, (rows, columns)), shape=(n_states, n_states)).tocsr()
    generator -= coo_array((generator.sum(axis=1), (np.arange(n_states), np.arange(n_states))))
    vector = np.zeros(n_states)
    vector[list(start)] = list(start.values())
    result, now = [], 0.0
    for t in times:
        vector, now = expm_multiply(generator.T.tocsr() * (t - now), vector, traceA=0.0), t
        result.append(vector[answered])
    return np.array(result)


@pytest.mark.parametrize("actions", [[0, 1, 0, 0, 2, 3, 2, 4], [0, 0, 0, 2, 0, 0, 3]], ids=["partial", "waits behind"])
def test_phase_type_latency_is_that_of_a_matrix_exponential(actions: list[int]) -> None:
    service = hyperexponential(MEANS)
    rate = loaded(0.35, service, actions)
    times = np.array([0.1, 0.7, 2.0, 5.0, 9.0, 20.0])
    expected = latency_by_a_matrix_exponential(rate, actions, times)
    assert server_latency(rate, service, actions).cdf(times) == pytest.approx(expected, abs=1e-9)


def latency_by_quadrature(rate: float, means: Array, actions: Sequence[int], time: float) -> float:
    """Fixed service, written out; in the tables for which it is used, whoever waits is in the next batch."""
    decisions = decisions_of_a_cut_chain(rate, deterministic(means), actions, 40)
    most = 15

    def poisson(expected: float) -> Array:
        return np.asarray(np.exp(-expected) * expected ** np.arange(most) / factorials)

    factorials = np.array([float(factorial(k)) for k in range(most)])
    arriving = {a: poisson(rate * means[a - 1]) for a in set(actions) - {0}}

    def within(i: int, n: int, left: float, known: dict[tuple[int, int, float], float]) -> float:
        """P(answered in the time left), with i ahead and n behind at a decision."""
        key = (i, n, round(left, 12))
        if left < 0:
            return 0.0
        if key not in known:
            q = i + 1 + n
            waits = next(k for k in range(len(actions)) if action(actions, q + k) > 0)
            a = action(actions, q + waits)
            if a > i:
                passed = left - means[a - 1]
                known[key] = float(passed >= 0 if waits == 0 else gammainc(waits, rate * max(passed, 0.0)))
            else:
                assert waits == 0
                rest = left - means[a - 1]
                known[key] = sum(arriving[a][k] * within(i - a, n + k, rest, known) for k in range(most) if rest >= 0)
        return known[key]

    total = sum(d / rate * within(q, 0, time, {}) for q, d in enumerate(decisions) if action(actions, q) == 0)
    sums = {0.0}
    for _ in range(int(time / means.min())):
        sums |= {c + means[a - 1] for c in sums for a in arriving if c + means[a - 1] <= time}
    ends = [*means, *(time - c for c in sums)]
    edges = sorted({0.0, *(e for e in ends if 0 < e < min(time, means.max())), min(time, means.max())})
    x, w = np.polynomial.legendre.leggauss(12)
    for low, high in pairwise(edges):
        if high - low < 1e-12:
            continue
        for r, weight in zip((low + high) / 2 + (high - low) / 2 * x, (high - low) / 2 * w, strict=True):
            known: dict[tuple[int, int, float], float] = {}
            behind = poisson(rate * r)
            found = np.zeros(most)
            for q, d in enumerate(decisions[:most]):
                a = action(actions, q)
                if a > 0 and means[a - 1] > r:
                    found[q - a :] += d * poisson(rate * (means[a - 1] - r))[: most - q + a]
            total += weight * sum(
                found[i] * behind[n] * within(i, n, time - r, known) for i in range(most) for n in range(most - i)
            )
    return float(total)


@pytest.mark.proof
@pytest.mark.parametrize("actions", [[0, 1, 2, 3], [0, 0, 0, 3, 2, 4]], ids=["greedy", "a limit and a partial batch"])
def test_latency_of_fixed_service_is_that_of_quadrature(actions: list[int]) -> None:
    means = MEANS[:4]
    rate = loaded(0.2, deterministic(means), actions)
    law = server_latency(rate, deterministic(means), actions)
    for time in (1.9, 3.4):
        assert law.probability_within(time) == pytest.approx(latency_by_quadrature(rate, means, actions, time), abs=1e-8)


# --- simulation and what was printed


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("one at a time", "static", "greedy")])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.proof
def test_the_quantiles_are_those_of_simulation(law: str, table: str) -> None:
    service, actions, rng = LAWS[law], TABLES[table], np.random.default_rng(1)
    rate = loaded(0.5, service, actions)
    exact = server_latency(rate, service, actions)
    levels = np.array([1, 10, 50, 90, 95, 99, 99.9])
    quantiles = np.array([exact.percentile(p) for p in levels]) * (1 + 1e-9)
    shares = []
    for _ in range(40):
        times = np.cumsum(rng.exponential(1 / rate, 12_000))
        latency = simulate(smdp(actions), times, service.service_times(), rng).latency[1000:-100]
        shares.append((latency[:, None] <= quantiles).mean(axis=0))
    error = np.std(shares, axis=0, ddof=1) / np.sqrt(len(shares)) + 1e-9
    assert (np.abs(np.mean(shares, axis=0) - exact.cdf(quantiles)) / error).max() < 4


def test_the_percentiles_of_static_batching_are_those_the_paper_simulated() -> None:
    # Table I of the journal version, one run of 1.66e6 requests each: its percentiles scatter by up to 0.8 %.
    law = server_latency(0.7 * 32 / GOOGLENET[-1], deterministic(GOOGLENET), [0] * 8 + [8])
    assert law.mean * 1e3 == pytest.approx(6.85, abs=0.005)
    percentiles = [law.percentile(p) * 1e3 for p in (50, 90, 95)]
    assert percentiles == pytest.approx([6.51, 9.85, 11.34], rel=0.01)


# --- properties


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_table_has_a_law_with_littles_mean(data: st.DataObject) -> None:
    largest = data.draw(st.integers(1, 5))
    steps = data.draw(st.lists(st.floats(0.01, 1), min_size=largest, max_size=largest))
    means = np.cumsum(steps)
    rows = data.draw(st.integers(1, 8))
    actions = [0] + [data.draw(st.integers(0, min(q, largest))) for q in range(1, rows)] + [min(rows, largest)]
    service = data.draw(st.sampled_from([deterministic(means), exponential(means), erlang(means, 2), hyperexponential(means)]))
    rate = loaded(data.draw(st.floats(0.05, 0.9)), service, actions)
    law = server_latency(rate, service, actions)
    decisions = decision_epochs(rate, service, actions).rates
    assert law.mean == pytest.approx(mean_by_little(rate, service, actions, decisions), rel=1e-8)
    values = law.cdf(np.linspace(-1, 10 * law.mean, 200))
    assert values[0] == 0 and np.diff(values).min() > -1e-12
    assert law.probability_within(1e4 * law.mean) == pytest.approx(1, abs=1e-11)


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from(list(LAWS)), st.sampled_from(list(TABLES)), st.floats(1, 99.9))
def test_rescaling_time_rescales_the_latency(factor: float, law: str, table: str, percentile: float) -> None:
    laws = {
        "fixed": deterministic,
        "exponential": exponential,
        "Erlang-3": lambda means: erlang(means, 3),
        "hyperexponential": hyperexponential,
    }
    rate = loaded(0.5, LAWS[law], TABLES[table])
    before = server_latency(rate, LAWS[law], TABLES[table])
    after = server_latency(rate / factor, laws[law](MEANS * factor), TABLES[table])
    assert after.mean == pytest.approx(before.mean * factor, rel=1e-9)
    assert after.percentile(percentile) == pytest.approx(before.percentile(percentile) * factor, rel=1e-7)


@pytest.mark.parametrize("law", LAWS)
def test_percentiles_rise_and_are_the_first_to_reach_their_level(law: str) -> None:
    exact = server_latency(loaded(0.7, LAWS[law], TABLES["control limit"]), LAWS[law], TABLES["control limit"])
    levels = np.linspace(1, 99.9, 23)
    percentiles = np.array([exact.percentile(p) for p in levels])
    assert (np.diff(percentiles) >= 0).all()
    assert exact.cdf(percentiles) * 100 == pytest.approx(np.maximum(levels, exact.cdf(percentiles) * 100), abs=1e-8)
    assert (exact.cdf(percentiles * (1 - 1e-9)) < levels / 100).all()


def test_whoever_is_served_at_once_has_exactly_the_service_time() -> None:
    law = server_latency(0.3, deterministic(MEANS), TABLES["greedy"])
    idle = decision_epochs(0.3, deterministic(MEANS), TABLES["greedy"]).idle[0]
    jump = law.probability_within(MEANS[0]) - law.probability_within(np.nextafter(MEANS[0], 0))
    assert jump == pytest.approx(idle) and law.atom_weights == pytest.approx([idle])
    assert law.percentile(100 * idle * 0.2) == MEANS[0] == law.percentile(100 * idle * 0.9)
    assert law.percentile(100 * idle + 0.1) > MEANS[0]


def test_an_atom_may_be_a_sum_of_services() -> None:
    # Found idle with one waiting: that one goes first, and a request that comes meanwhile lets this one follow at once.
    rate, mean = 0.5, 0.7
    law = server_latency(rate, deterministic([mean]), [0, 0, 1])
    idle = decision_epochs(rate, deterministic([mean]), [0, 0, 1]).idle[1]
    assert law.atoms == pytest.approx([2 * mean])
    assert law.atom_weights == pytest.approx([idle * (1 - exp(-rate * mean))])


def test_rows_that_repeat_the_last_change_nothing() -> None:
    for service in LAWS.values():
        short, long = TABLES["greedy"], [*TABLES["greedy"], 8, 8, 8]
        times = np.linspace(0, 20, 30)
        expected = server_latency(2.0, service, short).cdf(times)
        assert server_latency(2.0, service, long).cdf(times) == pytest.approx(expected, abs=1e-15)


def test_measured_times_that_do_not_vary_are_fixed_ones() -> None:
    overhead = np.full(8, 0.25)
    measured = ServiceTimes(1024, MEANS[:, None] - 0.25, overhead, MEANS)
    times = np.linspace(0, 10, 20)
    law = server_latency(1.0, EmpiricalLaw(measured), TABLES["control limit"])
    assert law.cdf(times) == pytest.approx(server_latency(1.0, deterministic(MEANS), TABLES["control limit"]).cdf(times), abs=1e-12)


# --- what is refused


@pytest.mark.parametrize(
    ("rate", "actions", "message"),
    [
        (3.0, TABLES["greedy"], r"actions\[8\]: 8 .* batches of 8 at 3 requests/s are a load of 1.125"),
        (1.0, [0, 2], r"actions\[1\]: 2 is not allowed; allowed: an integer from 0 to 1"),
        (1.0, [*TABLES["greedy"], 9], r"actions\[9\]: 9 is not allowed; allowed: an integer from 0 to 8"),
        (1.0, [1, 1], r"actions\[0\]: 1 .* from 0 to 0"),
        (1.0, [0, 0, 0], r"actions\[2\]: 0 .* the last row speaks for every longer queue"),
        (1.0, [0], "actions: 1 .* at least 2 rows"),
        (0.0, [0, 1], r"arrival_rate: 0.0 .* > 0"),
    ],
)
def test_a_table_that_cannot_be_names_its_row(rate: float, actions: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        server_latency(rate, deterministic(MEANS), actions)


@pytest.mark.parametrize(
    "service",
    [
        gamma(MEANS, 1.7),
        gamma(MEANS, 1e7),
        EmpiricalLaw(ServiceTimes(1024, np.array([[0.1, 0.3]]), np.zeros(1), np.array([0.2]))),
    ],
    ids=["gamma", "ten million phases", "measured"],
)
def test_another_service_law_is_refused_with_what_is_allowed(service: ServiceLaw) -> None:
    with pytest.raises(InvalidInput, match="service: .*fixed service times, or of phase type .* others can be simulated"):
        server_latency(0.1, service, [0, 1])


@pytest.mark.parametrize("percentile", [0, 100, -3])
def test_a_percentile_outside_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 100"):
        server_latency(0.5, deterministic([1.0]), [0, 1]).percentile(percentile)


def test_partial_batches_that_add_up_in_too_many_ways_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_outcomes, "_MOST_OUTCOMES", 1000)
    means = np.arange(1, 33) ** 0.6
    actions = [0] + [1 + q * 7 % min(q, 5) for q in range(1, 60)] + [32]
    with pytest.raises(InvalidInput, match="fewer ways in which batches that leave requests behind add up"):
        server_latency(loaded(0.6, deterministic(means), actions), deterministic(means), actions)


@pytest.mark.full
def test_time_scales_too_far_apart_are_not_waited_for() -> None:
    with pytest.raises(NotConverged, match="the latency under the table"):
        server_latency(1e-7, exponential([1.0, 1.0]), [0, 0, 2])
