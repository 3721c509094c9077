"""The live buffer: HTTP in, batches out, answers back, each to its caller (docs/architecture.md, "The life of a request").

``sluice serve`` runs it. What decides has no clock and no I/O, and can be driven from Python: ``RouteState`` says what a route
does, ``QueueState`` what the queue of all processes does, ``Router`` which route is next. ``Store`` and ``Queue`` are the ports
behind which Redis stands, and ``MemoryStore`` for a process alone. ``arrival_stream.read_arrivals`` reads what was recorded, and
needs the client of Redis, which is why it is imported from its module.
"""

from __future__ import annotations

from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.queue_state import QueueState
from sluice.buffer_service.route_instructions import Instructions
from sluice.buffer_service.route_state import RouteState
from sluice.buffer_service.routing import Router
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.store import Events, Limits, Outcome, Queue, Store

__all__ = [
    "Events",
    "Instructions",
    "Limits",
    "MemoryBackend",
    "MemoryStore",
    "Outcome",
    "Queue",
    "QueueState",
    "RouteState",
    "Router",
    "Settings",
    "Store",
]
