"""What the live benchmark of a function beside workers says without running anything."""

from __future__ import annotations

from benchmarks.verdict import verdict


def test_the_last_line_has_what_was_predicted_what_was_measured_and_the_ratio_of_this_to_that() -> None:
    assert verdict("p95", 0.2, 0.21) == "p95: predicted 200.0 ms, measured 210.0 ms, ratio 1.050"
