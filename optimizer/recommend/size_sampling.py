"""How well few sizes tell a percentile: the bootstrap over the requests whose sizes a mix was made of (docs/model.md, 9.4).

As many sizes as there were are drawn from the mix again and again; under each the settings of the answer are predicted, the
arrivals being what they are. Reference: Efron, Tibshirani, An Introduction to the Bootstrap, chapter 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend.size_classes import SizeClass, SizedAnswer
from sluice.optimizer.roots import find_step
from sluice.optimizer.service.by_size import SizedServices
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.times import ServiceTimes

RESAMPLES = 40
_BEYOND, _POINTS = (0.7, 1.3), 41  # times of the percentile between which it is looked for, and at how many
_NORMAL = 1.96  # standard deviations of 95 %
_Law = Callable[[ServiceTimes, Array], Array]


def size_uncertainty(answer: SizedAnswer, rng: np.random.Generator) -> float | None:
    """Half the width (s) of the 95 % confidence interval of the first SLO's percentile of all requests that the sizes leave.

    ``None`` where it is not known of how many requests the mix is.
    """
    question = answer.question
    mix, slo = question.mix, question.slos[0]
    if mix is None or mix.n_requests is None:
        return None
    times = np.linspace(*_BEYOND, _POINTS) * answer.latency.percentile(slo.percentile)
    measured = SizedServices(question.profile, question.max_batch_size)
    laws = [_law(of) for of in answer.classes]
    ends = [*(of.up_to for of in answer.classes[:-1]), np.inf]
    seen = []
    for _ in range(RESAMPLES):
        counts = rng.multinomial(mix.n_requests, mix.shares)
        again = SizeMix(mix.values[counts > 0], counts[counts > 0] / mix.n_requests)
        drawn = []
        for of, law, above, end in zip(answer.classes, laws, [-1.0, *ends], ends, strict=False):
            share = again.share(above, end)
            if share > 0:
                by_size = measured.at(of.best.memory_mb, mix.between(above, end).largest).up_to(of.best.batch_size)
                drawn.append((share, law, by_size.under(again.between(above, end))))
        seen.append(_reached(partial(_of_all, drawn), slo.quantile, times))
    return _NORMAL * float(np.std(seen, ddof=1))


def _law(of: SizeClass) -> _Law:
    """From service times to the share of a class's requests that are answered within so many seconds each by its setting."""
    arrivals, best = of.question.arrivals, of.best
    if best.table is not None:
        held = FallingHolds(arrivals, np.array(best.table.hold[1:-1]))
        return lambda service, within: held.fraction_within(service.response, service.quantile_levels, within)
    law = SizeOrTimeout(arrivals, best.batch_size, best.timeout)
    return lambda service, within: np.asarray(law.fraction_within(service.response[None], service.quantile_levels, within)[0, -1])


def _of_all(classes: Sequence[tuple[float, _Law, ServiceTimes]], within: Array) -> Array:
    """Share of all requests that are answered within so many seconds each; of each class its share of them is told."""
    return np.asarray(sum(share * law(service, within) for share, law, service in classes))


def _reached(share_within: Callable[[Array], Array], quantile: float, times: Array) -> float:
    """Where a share that rises with the time reaches the quantile, in a line between two of the ``times``, or at an end."""
    last = len(times) - 1

    @cache
    def beyond(k: int) -> float:
        return float(share_within(times[[k]])[0]) - quantile

    if beyond(0) > 0 or beyond(last) <= 0:
        return float(times[0 if beyond(0) > 0 else last])
    k = find_step(beyond, 0, last)
    return float(np.interp(0.0, (beyond(k - 1), beyond(k)), times[k - 1 : k + 1]))
