"""The last line of a benchmark that holds a prediction against what was measured."""

from __future__ import annotations


def verdict(what: str, predicted: float, measured: float) -> str:
    """Both, in seconds, and measured over predicted."""
    return f"{what}: predicted {1e3 * predicted:.1f} ms, measured {1e3 * measured:.1f} ms, ratio {measured / predicted:.3f}"
