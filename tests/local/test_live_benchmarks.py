"""What the live benchmarks of sizes and of a function beside workers say without running anything."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sizes_live import BOUND, plans, simulated
from benchmarks.verdict import verdict


def test_the_last_line_has_what_was_predicted_what_was_measured_and_the_ratio_of_this_to_that() -> None:
    assert verdict("p95", 0.2, 0.21) == "p95: predicted 200.0 ms, measured 210.0 ms, ratio 1.050"


def test_the_simulated_worker_takes_who_is_there_by_the_law_of_the_largest_and_classes_keep_the_long_from_the_short() -> None:
    times, sizes = np.array([0.0, 0.0, 0.0, 1.0]), np.array([10.0, 20.0, 200.0, 30.0])
    assert sizes[1] <= BOUND < sizes[2]
    together, apart = plans().values()
    of_three = 0.04 + 3 * (0.01 + 0.001 * 200)
    assert simulated(together, times, sizes) == pytest.approx([of_three] * 3 + [0.08])
    of_two = 0.04 + 2 * (0.01 + 0.001 * 20)
    assert simulated(apart, times, sizes) == pytest.approx([of_two, of_two, 0.25, 0.08])
