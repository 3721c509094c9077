"""Decisions per second in front of one server, at loads where the queue next to never grows and where it next to never ends."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.optimizer.server.epochs import decision_epochs
from sluice.optimizer.service.law import deterministic


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
