"""What all rooms stand on: the policy table, the rule that reads it, the documents the rooms exchange. No clock, no I/O, no numpy.

``policy`` makes tables (``policy.greedy``, ``policy.size_or_timeout``, ...), ``documents`` has what is read and written, ``errors``
what is raised. They are modules: ``from sluice.batching import documents, errors, policy``.
"""

from __future__ import annotations

from sluice.batching import errors, policy
from sluice.batching.batcher import Batcher, Step
from sluice.batching.policy import Decision, Policy, decide

__all__ = ["Batcher", "Decision", "Policy", "Step", "decide", "documents", "errors", "policy"]  # documents: when it is asked for
