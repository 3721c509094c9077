"""Lengths whose Fourier transform is quick. `scipy.fft`, which knows them as well, takes longer to import than most transforms."""

from __future__ import annotations

from math import ceil, inf, log2


def fast_length(n: int) -> int:
    """The least product of twos, threes and fives that is ``n`` at least, >= 1."""
    best, fives = inf, 1
    while fives < best:
        threes = fives
        while threes < best:
            best = min(best, threes << max(ceil(log2(n / threes)), 0))
            threes *= 3
        fives *= 5
    return int(best)
