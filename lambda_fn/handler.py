"""The Lambda entry: a batch in, an answer for each of its requests out.

One line of metrics an invocation (EMF on stdout, about 300 bytes, as much as Lambda's own REPORT line; the environment variable
``POWERTOOLS_METRICS_DISABLED=true`` turns it off), and one of log when items failed.
"""

from __future__ import annotations

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from . import clock, contract
from .loading import load_model
from .models.base import answer
from .models.memory import WithinMemory

model = WithinMemory(load_model())
logger = Logger(service=model.name)
metrics = Metrics(namespace="Sluice", service=model.name)
is_new = True


def handler(event: object, context: object) -> object:
    """Answer one batch or a ping, or describe the model; an event that is neither raises ``WireError`` and so fails the invocation.

    A model that cannot serve any more, and says so, is not described: that fails too, with its reason.
    """
    global is_new
    started = clock.now()
    cold, is_new = is_new, False
    batch = contract.decode_event(event)
    if batch.ping:
        clock.sleep(batch.hold)  # so that others which come meanwhile get environments of their own
        return contract.for_runtime(contract.encode_answers([]))
    if batch.describe:
        if model.broken:
            raise RuntimeError(model.broken)
        return contract.for_runtime(contract.encode_metadata(model.metadata()))
    answers = answer(model, batch)
    failures = [a for a in answers if a.status >= 400]
    if failures:
        logger.warning("items failed", extra={"failures": len(failures), "first": failures[0].body.decode(errors="replace")})
    metrics.add_metric("BatchSize", MetricUnit.Count, len(answers))
    metrics.add_metric("ItemFailures", MetricUnit.Count, len(failures))
    metrics.flush_metrics()
    measured = contract.Measured(service=clock.now() - started, cold=cold)
    return contract.for_runtime(contract.encode_answers(answers, measured))
