"""The hearth: the policy table, the rule that reads it, and the documents the rooms exchange. No clock, no I/O, no numpy."""

from sluice.batching.batcher import Batcher, Step
from sluice.batching.policy import Decision, Policy, decide

__all__ = ["Batcher", "Decision", "Policy", "Step", "decide"]
