"""What a table does on one server, on paper: the queue at its decision epochs, and the exact latency (docs/model.md, 4.6)."""

from __future__ import annotations

from sluice.optimizer.server.epochs import DecisionEpochs, decision_epochs
from sluice.optimizer.server.fixed_outcomes import BeyondTheExactLaw
from sluice.optimizer.server.latency import ServerLatency, server_latency

__all__ = ["BeyondTheExactLaw", "DecisionEpochs", "ServerLatency", "decision_epochs", "server_latency"]
