"""How to serve the requests at the least cost with the SLOs kept (docs/model.md, 3.3 and 7).

``Question`` is what is asked, ``recommend`` answers it, and an ``Answer`` holds the best setting of the function, the best
workers, and the best of both, each a ``Candidate``, beside what they are to be compared with.

    question        what is asked, and within which limits         candidate, words   what all that can serve have in common
    search          memory size x batch size x timeout             offers             workers that can be had, and their price
    last_moment     tables that wait to the last moment            worker_trials      the tables that are tried for them
    function_*      a setting's prediction; the best one           worker_setting     workers as simulated, for as long as
    comparisons     frontier, sensitivity, break-even              horizon            ... equilibrium takes to show
    recommendation  from the question to the answer                worker_number      the fewest
    answer          all of it together                             overflow_*         workers with the function beside them
    size_classes    whether requests are batched by size class     every_load         one plan for every arrival rate
    functions_by_size   which function for a batch of which size   confidence         what a timeout keeps free for the fit's errors
    shared_queues   which applications share a queue               sharing            what it costs, and what each may expect
    shared_workers  which workers they share                       demand             what workers meet in a run
    queues_kept_warm   what is kept warm for them                  waits              how long requests of several wait
    recorded        what is billed on arrivals that were recorded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.optimizer.when_asked import names_when_asked

if TYPE_CHECKING:
    from sluice.batching.documents import ServiceProfile, Slo
    from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
    from sluice.optimizer.billing import Billing
    from sluice.optimizer.recommend.answer import Answer
    from sluice.optimizer.recommend.application import Application
    from sluice.optimizer.recommend.candidate import PERCENTILES, Candidate
    from sluice.optimizer.recommend.comparisons import FrontierPoint, Sensitivity
    from sluice.optimizer.recommend.every_load import AtLoad, EveryLoad, choose_every_load
    from sluice.optimizer.recommend.function_setting import FunctionSetting
    from sluice.optimizer.recommend.kept_warm import KeptWarm
    from sluice.optimizer.recommend.offers import WorkerOffer, machine_offer, provisioned_offers
    from sluice.optimizer.recommend.overflow_choice import choose_overflow
    from sluice.optimizer.recommend.overflow_setting import OverflowSetting, simulate_overflow
    from sluice.optimizer.recommend.question import Goal, Limits, Question
    from sluice.optimizer.recommend.recommendation import recommend
    from sluice.optimizer.recommend.served_queue import ServedQueue
    from sluice.optimizer.recommend.sharing import SharingAnswer, recommend_sharing
    from sluice.optimizer.recommend.size_classes import SizeClass, SizedAnswer, recommend_classes
    from sluice.optimizer.recommend.worker_number import choose_workers
    from sluice.optimizer.recommend.worker_queue import WorkerQueue
    from sluice.optimizer.recommend.worker_setting import WorkerSetting, simulate_workers
else:
    __getattr__ = names_when_asked(__name__)

__all__ = [
    "PERCENTILES",
    "Answer",
    "Application",
    "ArrivalProcess",
    "AtLoad",
    "Billing",
    "Candidate",
    "EveryLoad",
    "FrontierPoint",
    "FunctionSetting",
    "Goal",
    "KeptWarm",
    "Limits",
    "OverflowSetting",
    "Question",
    "Sensitivity",
    "ServedQueue",
    "ServiceProfile",
    "SharingAnswer",
    "SizeClass",
    "SizedAnswer",
    "Slo",
    "WorkerOffer",
    "WorkerQueue",
    "WorkerSetting",
    "choose_every_load",
    "choose_overflow",
    "choose_workers",
    "machine_offer",
    "mmpp2",
    "poisson",
    "provisioned_offers",
    "recommend",
    "recommend_classes",
    "recommend_sharing",
    "simulate_overflow",
    "simulate_workers",
]
