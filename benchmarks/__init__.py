"""Benchmarks: each prints a ratio to a named alternative measured in the same run. Nothing here is asserted."""
