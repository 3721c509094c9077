"""The ways to a function: AWS Lambda, SageMaker, an HTTP worker, a Python callable. Batches in, answers out.

Which one serves is written in a plan's ``function``: an ``http://`` or ``https://`` address is a worker, several of them with a
comma between are identical workers, ``sagemaker://`` an endpoint of SageMaker, anything else a Lambda function. What an invoker
raises says what helps (``port.py``); what is done about it is decided in ``route_state.py``, which knows who still waits.
"""

from sluice.buffer_service.invokers.by_syntax import InvokerBySyntax, named_functions
from sluice.buffer_service.invokers.http_workers import HttpInvoker
from sluice.buffer_service.invokers.in_process import LocalInvoker
from sluice.buffer_service.invokers.port import (
    BatchTooLarge,
    FunctionBusy,
    FunctionCrashed,
    FunctionUnavailable,
    Invoker,
    UnknownFunction,
)
from sluice.buffer_service.invokers.worker_health import Health

__all__ = [
    "BatchTooLarge",
    "FunctionBusy",
    "FunctionCrashed",
    "FunctionUnavailable",
    "Health",
    "HttpInvoker",
    "Invoker",
    "InvokerBySyntax",
    "LocalInvoker",
    "UnknownFunction",
    "named_functions",
]
