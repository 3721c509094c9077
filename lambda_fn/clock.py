"""What the function's own time is measured by."""

from __future__ import annotations

import time

now = time.perf_counter
"""Seconds; the local Lambda puts one in its place that goes as long as the CPU share of the function would have it."""

sleep = time.sleep
"""For so many real seconds."""
