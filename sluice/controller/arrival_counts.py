"""How many requests of each model came since the last look, from the numbers that the record of arrivals gives its entries.

The id of the newest entry of a record is the number of arrivals recorded so far (``buffer_service/arrival_stream.py``): one command
a record says how many came, however many they were. Those that a buffer refused, as too many waited, are in no record, and are
counted beside it: who plans by what was accepted alone sees the less of a burst the more of it there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.buffer_service.arrival_stream import refused_key, routes_key, stream_key
from sluice.buffer_service.redis_servers import Servers
from sluice.buffer_service.redis_slot import ask
from sluice.buffer_service.settings import NAMESPACE

LOOKS = 20
"""Looks between two times that a model is asked for routes that have a record of their own."""


class ArrivalCounts:
    """The records of some models in a Redis."""

    def __init__(self, url: str, models: Sequence[str], namespace: str = NAMESPACE) -> None:
        self._servers = Servers(url)
        self._models = list(models)
        self._namespace = namespace
        self._recorded: dict[tuple[str, str], int] = {}  # by model and route
        self._routes: dict[str, list[str]] = {}
        self._looks = 0

    async def since_last_look(self) -> list[int]:
        """Requests of each model; 0 at the first look. What came before a Redis lost its data may be counted short.

        Raises
        ------
        StoreUnavailable
            Redis does not answer; what came meanwhile is in the next answer.
        """
        if self._looks % LOOKS == 0:
            for model in self._models:
                routes = routes_key(model, self._namespace)
                [found] = await ask(self._servers, routes, ("SMEMBERS", routes))
                self._routes[model] = sorted(route.decode() for route in found)
        newest = {
            (model, route): await self._newest(model, route) for model in self._models for route in ["", *self._routes[model]]
        }
        first, self._looks = not self._recorded, self._looks + 1
        came = dict.fromkeys(self._models, 0)
        for (model, route), recorded in newest.items():
            before = self._recorded.get((model, route), recorded if first else 0)
            came[model] += recorded - before if recorded >= before else recorded
            self._recorded[model, route] = recorded
        return list(came.values())

    async def _newest(self, model: str, route: str) -> int:
        """How many came so far, those that were refused among them."""
        recorded, refused = stream_key(model, self._namespace, route), refused_key(model, self._namespace, route)
        entries, more = await ask(self._servers, recorded, ("XREVRANGE", recorded, "+", "-", "COUNT", 1), ("GET", refused))
        return (int(entries[0][0].partition(b"-")[0]) if entries else 0) + (int(more) if more and more.isdigit() else 0)

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()
