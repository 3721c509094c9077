"""What a batching problem may be; each refusal names the field, the value and what is allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.service.law import ScaledLaw, deterministic
from sluice.optimizer.smdp import SmdpProblem, affine
from tests.optimizer.smdp_problems import googlenet


class Pareto:
    """A shape without a second moment."""

    scv = np.inf


def test_the_load_is_over_the_largest_throughput() -> None:
    assert googlenet(0.7).load == pytest.approx(0.7)
    assert googlenet(0.5).throughput[-1] == pytest.approx(32 / 10.8156e-3)


def test_a_load_of_one_or_more_says_by_how_much_and_what_would_be_stable() -> None:
    mean, energy = affine(1.0524e-3, 0.3051e-3, 32), np.ones(32)
    with pytest.raises(InvalidInput) as raised:
        SmdpProblem(3000.0, deterministic(mean), energy)
    assert str(raised.value) == (
        "load: '1.01396' is not allowed; allowed: below 1: 3000 requests/s are 41.31 more than the 2958.69 that batches of 32 "
        "serve; a largest batch of 38 would, if the service time grows on as it does there"
    )
    assert SmdpProblem(3000.0, deterministic(affine(1.0524e-3, 0.3051e-3, 38)), np.ones(38)).load < 1
    with pytest.raises(InvalidInput, match="below 1"):
        SmdpProblem(3000.0, deterministic(affine(1.0524e-3, 0.3051e-3, 37)), np.ones(37))
    with pytest.raises(InvalidInput, match="no largest batch would bear it"):
        SmdpProblem(3300.0, deterministic(mean), energy)
    with pytest.raises(InvalidInput, match="no largest batch would bear it"):
        SmdpProblem(1000.0, deterministic([1e-3]), np.ones(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"service": deterministic([2e-3, 1e-3, 3e-3])},
            "service.mean at batch size 2: 0.001 is not allowed; allowed: at least that of",
        ),
        (
            {"service": deterministic([1e-3, 1.9e-3, 4e-3])},
            r"service.mean at batch size 3: 0.004 .* at most 0.00285 s.*a largest batch of 2",
        ),
        (
            {"service": ScaledLaw(np.full(3, 1e-3), Pareto())},
            "service.second_moment at batch size 1: inf is not allowed; allowed: finite",
        ),
        ({"energy": np.array([1.0, 2.5, 4.0])}, "energy per request: .*from 1.25.* at most 1, .* batching never pays"),
        ({"energy": np.array([1.0, 2.0])}, r"energy: \(2,\) is not allowed; allowed: a number for each batch size from 1 to 3"),
        ({"energy": np.array([1.0, np.nan, 1.0])}, "energy at batch size 2: nan is not allowed"),
        ({"energy": np.array([-1.0, 1.0, 1.0])}, "energy at batch size 1: -1.0 is not allowed; allowed: a number >= 0"),
        ({"min_batch_size": 4}, "min_batch_size: 4 is not allowed; allowed: an integer from 1 to 3"),
        ({"min_batch_size": 0}, "min_batch_size: 0 is not allowed"),
        ({"latency_weight": 0.0}, "latency_weight: 0.0 is not allowed; allowed: a number > 0"),
        ({"power_weight": -1.0}, "power_weight: -1.0 is not allowed; allowed: a number >= 0"),
        ({"arrivals": 0.0}, "rate"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    fine = SmdpProblem(300.0, deterministic([1e-3, 1.5e-3, 2e-3]), np.array([1.0, 1.5, 2.0]))
    with pytest.raises(InvalidInput, match=message):
        replace(fine, **changed)


def test_proportional_service_and_energy_are_allowed() -> None:
    SmdpProblem(300.0, deterministic([1e-3, 2e-3, 3e-3]), np.array([1.0, 2.0, 3.0]))


def test_a_size_whose_energy_is_worse_is_allowed_where_another_is_better() -> None:
    SmdpProblem(300.0, deterministic([1e-3, 1e-3, 1e-3]), np.array([1.0, 2.5, 2.9]))
