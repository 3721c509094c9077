"""Promises of what is simulated kept surely: workers, and workers with the function beside them (docs/model.md, 3.5).

What the fit may be wrong by is (3.3), of the shares in time of runs over the arrivals as they are fitted without each block of
their trace. It is added to both ends of the interval of the share of violations, so that the setting keeps an SLO where the upper
end is within it all the same. The chance of those runs is in it too, which is on the safe side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.recommend.confidence import jackknife_doubt
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.simulated_setting import SimulatedSetting
from sluice.optimizer.simulation.batch_means import Estimate

Setting = TypeVar("Setting", bound=SimulatedSetting)


def with_doubt(setting: Setting, question: Question, run: Callable[[ArrivalProcess], Setting]) -> Setting:
    """The setting with what the fit of a question may be wrong by in its violations; ``run`` is the same under other arrivals.

    It is as it was where nothing is known of the fit, or it does not keep the SLOs anyway.
    """
    if not question.without or question.goal.objective == "latency" or not setting.keeps_slos:
        return setting
    late = np.array([[share.value for share in run(arrivals).violations] for arrivals in question.without])
    doubt = jackknife_doubt(1 - late, question.goal.confidence).tolist()
    wider = [
        Estimate(share.value, max(0.0, share.low - d), min(1.0, share.high + d))
        for share, d in zip(setting.violations, doubt, strict=True)
    ]
    return replace(setting, violations=tuple(wider), in_doubt=tuple(doubt))
