"""What a pipeline raises beside what its stages raise.

    PipelineError
    ├── PipelineFull       as many items or bytes are in it as may be; try again later
    ├── PipelineStopped    it is not running, or was stopped before this item was answered
    ├── ItemTooLarge       an input or an output is larger than a payload may be
    ├── DeadlinePassed     the item was not answered within its time
    ├── ProcessDied        two processes died under this item
    ├── StageTimeout       a stage worked on this item for longer than it may
    ├── StageDown          no worker of a stage can be started
    ├── StartupFailed      a stage could not be started at all; raised by ``start``
    └── StageError         a stage failed on this item with what cannot be handed on as it is

What a stage raises for an item reaches its caller as it was raised, with a ``StageTraceback`` as its cause where it was raised in
another process. All are ``ItemError``s: served, they answer with their ``status``.
"""

from __future__ import annotations

from ..interface import ItemError


class PipelineError(ItemError):
    """Every error that a pipeline raises on its own."""

    status = 500

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.message = message


class PipelineFull(PipelineError):
    """As many items or bytes are in the pipeline as may be."""

    status = 503


class PipelineStopped(PipelineError):
    """The pipeline is not running, or was stopped before this item was answered."""

    status = 503


class ItemTooLarge(PipelineError):
    """An input or an output is larger than a payload may be."""

    status = 413


class DeadlinePassed(PipelineError):
    """The item was not answered within its time."""

    status = 504


class ProcessDied(PipelineError):
    """Two processes died under this item."""

    status = 502


class StageTimeout(PipelineError):
    """A stage worked on this item for longer than it may."""

    status = 504


class StageDown(PipelineError):
    """No worker of a stage can be started; says why."""

    status = 503


class StartupFailed(PipelineError):
    """A stage could not be started; says which one and why."""


class StageError(PipelineError):
    """A stage failed on this item with what cannot be handed on as it is: the message says what it was."""


class StageTraceback(Exception):
    """The traceback of what a stage raised in another process, as text."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def not_started(kind: type[PipelineError], what: str, why: str) -> PipelineError:
    """That a worker cannot be started: a line for callers, and as its cause the traceback, which is the rest of ``why``."""
    line, _, text = why.partition("\n")
    error = kind(f"{what} be started: {line}")
    if text:
        error.__cause__ = StageTraceback(text)
    return error
