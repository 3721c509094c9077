"""Which of the plans that a decision tried is to serve (docs/control.md).

Of those that surely keep every promise the cheapest; or one that most likely does, where to be sure costs more than it is worth.
Where none surely does, that with the fewest late, which is not worth any price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.optimizer.tuning.trials import LEAST_QUICKER, MOST, Tried

SAME_COST = 0.001  # of it, up to which plans cost the same: the one in force stays, or the one with the fewest late comes
ROOM = 0.5  # of what a promise allows to be late: what uses more comes neither to be quicker in the mean nor where it is unsure
DEAR, HALF = 2.0, 0.5  # so many times the cost buys no certainty, and is paid where no more than this part fails
SURE_OF_COST = 0.9  # two-sided, of what a change saves: who errs pays a little more for a while, and breaks nothing


class Choice(NamedTuple):
    """What is to serve, and the plans that may: none where nothing surely keeps the promise.

    ``certainty`` is by which part of its cost the best is cheaper than what surely keeps the promise; 0 where it does so itself.
    """

    best: Tried
    fit: Sequence[Tried]
    certainty: float = 0.0


def choose(tried: Sequence[Tried], serving: Tried | None, requests: float) -> Choice:
    """What is best of those tried, for the next ``requests``, over which a change of plan must pay."""
    sure = [one for one in tried if one.keeps]
    if not sure:
        return Choice(least_failing(tried), ())
    best = cheapest(sure, serving)
    likely = [one for one in tried if one not in sure and most_likely_keeps(one, best.price)]
    if not likely or best.of.setup.servers is not None:
        return Choice(best, sure)
    at_least = min(one.expected_usd(requests) for one in sure if one in (best, serving))
    likely = [one for one in likely if one.expected_usd(requests) < at_least]
    if not likely:
        return Choice(best, sure)
    least = min(likely, key=lambda one: one.expected_usd(requests))
    if serving in likely and serving.expected_usd(requests) <= (1 + SAME_COST) * least.expected_usd(requests):
        least = serving
    return Choice(least, [*sure, *likely], best.price / least.price - 1)


def most_likely_keeps(one: Tried, sure_price: float) -> bool:
    """Whether a plan is worth comparing with one that surely keeps the promise for this price (USD per request).

    Where that is more than ``DEAR`` times its own, it is enough that no more were late than is allowed.
    """
    if DEAR * one.price < sure_price:
        return one.most_used <= 1
    return one.price < sure_price and one.most_used <= ROOM


def cheapest(sure: Sequence[Tried], serving: Tried | None) -> Tried:
    """Of plans that keep the promise: what serves, where another costs no less, or of those that cost the same the calmest."""
    fixed = sure[0].of.setup.servers is not None  # what costs the same then, whatever the table
    usd = {one: one.price if fixed else one.expected_usd() for one in sure}
    alike = [one for one in sure if usd[one] <= (1 + SAME_COST) * min(usd.values())]
    if not fixed:
        return serving if serving in alike else min(alike, key=lambda one: one.most_late)
    if alike[0].runs[0].burden_of == "latency":  # which is not worth the promise's room
        alike = [one for one in alike if one.most_late <= ROOM] or alike
    return min(alike, key=lambda one: one.runs[0].burden.sum())


def least_failing(tried: Sequence[Tried]) -> Tried:
    """Where none keeps the promise: the cheapest of those with the fewest late, and where most are late nearly the quickest.

    But none that costs twice as much as another without failing half as much: where bursts meet cold starts, many plans are late
    alike, whatever they cost.
    """
    least = min(one.failing for one in tried)
    alike = [
        one
        for one in tried
        if one.failing.beyond <= least.beyond and (least.late <= MOST or one.failing.seconds <= LEAST_QUICKER * least.seconds)
    ]
    best = min(alike, key=lambda one: one.price)
    while cheaper := [one for one in tried if DEAR * one.price < best.price and not best.fails_less(one, HALF)]:
        best = min(cheaper, key=lambda one: one.failing)
    return best
