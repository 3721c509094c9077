"""The exact latency under a table: closed forms, Little's law, simulation, atoms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from batching.errors import InvalidInput
from batching.policy import smdp
from optimizer.analysis.server_epochs import decision_epochs
from optimizer.analysis.server_latency import server_latency
from optimizer.analysis.service_law import ServiceLaw, deterministic, erlang, exponential, gamma, hyperexponential
from optimizer.decision.smdp import SmdpProblem, evaluate
from optimizer.simulation.batch_means import estimate_share
from optimizer.simulation.event_loop import simulate

MEAN = np.array([1.3, 1.6, 1.9, 2.0, 2.4, 2.8]) * 1e-3
LAWS: dict[str, ServiceLaw] = {
    "deterministic": deterministic(MEAN),
    "exponential": exponential(MEAN),
    "erlang": erlang(MEAN, 3),
    "hyperexponential": hyperexponential(MEAN),
}
TABLES = {
    "greedy": [0, 1, 2, 3, 4, 5, 6],
    "static": [0, 0, 0, 0, 4],
    "control limit": [0, 0, 0, 3, 4, 5, 6],
    "two thresholds, partial batches": [0, 1, 0, 0, 3, 3, 4, 4, 5, 6],
    "smallest batch 2": [0, 0, 2, 2, 4, 5, 6],
}


def test_one_exponential_server_has_exponential_latency() -> None:
    law = server_latency(300.0, exponential([2e-3]), [0, 1])
    times = np.linspace(0, 0.05, 51)
    np.testing.assert_allclose(law.cdf(times), 1 - np.exp(-200 * times), atol=1e-10)
    assert law.percentile(95) == pytest.approx(np.log(20) / 200, rel=1e-8)


def test_one_fixed_server_is_the_queue_of_erlang() -> None:
    """M/D/1 within one service time after an arrival: P(W <= w) = (1 - rho) e^(lambda w) for w below the service time."""
    law = server_latency(300.0, deterministic([2e-3]), [0, 1])
    waits = np.linspace(0, 1.99e-3, 20)
    np.testing.assert_allclose(law.cdf(2e-3 + waits), 0.4 * np.exp(300 * waits), atol=1e-10)
    assert law.percentile(30) == 2e-3  # four in ten find the server idle: an atom


@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.parametrize("name", list(LAWS))
@pytest.mark.parametrize("load", [0.15, 0.8])
def test_the_mean_is_that_of_littles_law(name: str, table: str, load: float) -> None:
    actions = TABLES[table]
    rate = load * actions[-1] / MEAN[actions[-1] - 1]
    problem = SmdpProblem(rate, LAWS[name], np.ones(6))
    law = server_latency(rate, LAWS[name], actions)
    assert law.mean == pytest.approx(evaluate(problem, np.array(actions)).mean_latency, rel=1e-8)
    times = np.linspace(0, law.percentile(99.9999), 20_001)
    assert np.trapezoid(1 - law.cdf(times), times) == pytest.approx(law.mean, rel=2e-3)  # the law itself, by another road


@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.parametrize("name", list(LAWS))
def test_the_law_is_that_of_simulation(name: str, table: str) -> None:
    actions, rng = TABLES[table], np.random.default_rng(11)
    rate = 0.7 * actions[-1] / MEAN[actions[-1] - 1]
    run = simulate(smdp(actions), np.cumsum(rng.exponential(1 / rate, 400_000)), LAWS[name].service_times(), rng)
    law = server_latency(rate, LAWS[name], actions)
    for percentile in (10, 50, 90, 99):
        at = law.percentile(percentile) * (1 + 1e-9)
        share = estimate_share(run.latency <= at, 0.9999)
        assert share.low < law.cdf(np.array([at]))[0] < share.high


def test_percentiles_grow_and_rescaling_time_rescales_them() -> None:
    actions = TABLES["two thresholds, partial batches"]
    law, slow = server_latency(1200.0, LAWS["deterministic"], actions), server_latency(1.2, deterministic(1000 * MEAN), actions)
    percentiles = [law.percentile(p) for p in (1, 5, 25, 50, 75, 95, 99, 99.9)]
    assert percentiles == sorted(percentiles)
    np.testing.assert_allclose(
        [1000 * p for p in percentiles], [slow.percentile(p) for p in (1, 5, 25, 50, 75, 95, 99, 99.9)], rtol=1e-9
    )


@pytest.mark.parametrize("load", [1e-6, 1e-3, 0.5, 0.99, 0.999])
def test_decisions_per_second_are_those_of_the_queue_at_every_load(load: float) -> None:
    mean = 1e-3 + 0.2e-3 * np.arange(1.0, 33.0)
    rate = load * 32 / mean[-1]
    for table in ([*range(33)], [0] * 32 + [32]):
        epochs = decision_epochs(rate, deterministic(mean), table)
        served = sum(b * epochs.begun(b).sum() for b in range(1, 33))
        assert served == pytest.approx(rate, rel=1e-9)
        busy = sum(mean[b - 1] * epochs.begun(b).sum() for b in range(1, 33))
        assert busy + epochs.idle.sum() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    ("law", "actions", "message"),
    [
        (gamma(MEAN, 0.7), [0, 1], "service"),
        (deterministic(MEAN), [0, 2], r"actions\[1\]: 2 is not allowed; allowed: an integer from 0 to 1"),
        (deterministic(MEAN), [0, 1, 2, 3, 4, 5, 6, 7], r"actions\[7\]: 7 is not allowed; allowed: an integer from 0 to 6"),
        (deterministic(MEAN), [0, 1, 0], r"actions\[2\]: 0 is not allowed; allowed: at least 1"),
        (deterministic(MEAN), [0, 1], r"actions\[1\]: 1 is not allowed; allowed: a table whose last row keeps up"),
        (deterministic(MEAN), [0], "actions: 1 is not allowed; allowed: at least 2 rows"),
    ],
)
def test_what_has_no_law_is_refused(law: ServiceLaw, actions: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        server_latency(1000.0, law, actions)


def test_a_percentile_lies_between_0_and_100() -> None:
    for p in (0, 100, -1):
        with pytest.raises(InvalidInput, match="percentile"):
            server_latency(100.0, deterministic(MEAN), [0, 1]).percentile(p)
