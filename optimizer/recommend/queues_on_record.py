"""What is billed of the queues of several applications on arrivals that were recorded (docs/recommendation.md).

Each record has a clock of its own. They are laid over one another so that all end together, and are run from where the last of them
begins: as long as the shortest is, so that every application comes at all times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sluice.batching.documents import RequestClass
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.application import Application
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.recorded import MOST_RUN, cost_of_run, function_of
from sluice.optimizer.recommend.served_queue import Served
from sluice.optimizer.simulation.batch_means import FEWEST_REQUESTS
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.several_queues import RoutedDeployment
from sluice.optimizer.simulation.streaming import simulate_deployments


def merged(records: Sequence[Array | None]) -> TraceArrivals | None:
    """The arrivals (s) of several records, each with its place as its class; ``None`` where there is no record, or all are too few.

    Of more than ``MOST_RUN`` the latest are taken.
    """
    known = [times - times[-1] for times in records if times is not None and len(times)]
    if not known or len(known) < len(records):
        return None
    begins = max(float(times[0]) for times in known)
    known = [times[times >= begins] for times in known]
    times, classes = np.concatenate(known), np.repeat(np.arange(len(known)), list(map(len, known)))
    latest = np.argsort(times, kind="stable")[-MOST_RUN:]
    if len(latest) < FEWEST_REQUESTS or len(np.unique(classes[latest])) < len(known):
        return None
    return TraceArrivals(times[latest] - times[latest[0]], None, classes[latest])


def billed(
    question: Question, recorded: TraceArrivals, applications: Sequence[Application], queues: Sequence[Served]
) -> tuple[Served, ...]:
    """The queues with their cost in a run over what was ``recorded``, in which the classes are those of the ``applications``."""
    told = question.billing.cold_start_probability is not None
    function = replace(function_of(question), environments=None) if told else function_of(question)
    route = {of.name: (queue, slack) for queue in queues for of, slack in zip(queue.applications, queue.slacks, strict=True)}
    classes = [RequestClass(of.name, of.slo, route[of.name][1], route[of.name][0].named) for of in applications]
    deployment = RoutedDeployment(classes, {queue.named: queue.deployment(function) for queue in queues})
    run = simulate_deployments({"": deployment}, recorded)[""]
    rates = [of.n_requests / recorded.n_requests * recorded.arrival_rate for of in run.queues]
    return tuple(
        queue.billed(cost_of_run(seen, queue.cost, queue.mean_batch_size if told else None), rate)
        for queue, seen, rate in zip(queues, run.queues, rates, strict=True)
    )
