"""What was recorded: traces and their files, how they vary, and whether their rate drifts (docs/traces.md)."""

from __future__ import annotations

from sluice.optimizer.traces.kind import Kind
from sluice.optimizer.traces.poisson_counts import poisson_p_value
from sluice.optimizer.traces.stationarity import Stationarity, judge_stationarity
from sluice.optimizer.traces.trace import Trace, TraceStatistics, read_trace

__all__ = ["Kind", "Stationarity", "Trace", "TraceStatistics", "judge_stationarity", "poisson_p_value", "read_trace"]
