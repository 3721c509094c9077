"""The models that the worker was started with: which are loaded, and what the process says of them.

Only these can be named over HTTP: to load, to unload, to ask. Nobody brings code or a path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from .served_model import Life, ServedModel

LOOK = 0.25
"""Seconds between two looks at who has waited for too long."""
STATES = {
    Life.UNLOADED: "UNAVAILABLE",
    Life.FAILED: "UNAVAILABLE",
    Life.LOADING: "LOADING",
    Life.READY: "READY",
    Life.UNLOADING: "UNLOADING",
}
"""As the model repository extension calls them."""

_log = logging.getLogger(__name__)


class Repository:
    """Models by name; ``draining`` from when the process is told to end."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.models = {model.name: model for model in models}
        self.draining = False
        self._look: asyncio.Task[None] | None = None

    async def start(self, unloaded: Sequence[str] = ()) -> None:
        """Load all but those; raises what the first of them that fails raises."""
        self._look = asyncio.create_task(self._look_around())
        for model in self.models.values():
            model.wanted = model.name not in unloaded
        await asyncio.gather(*(model.load() for model in self.models.values() if model.wanted))

    def find(self, name: str) -> ServedModel | None:
        return self.models.get(name)

    @property
    def names(self) -> str:
        """As an error tells what is allowed."""
        return ", ".join(repr(name) for name in self.models)

    def unready(self) -> str:
        """Why new requests should be sent elsewhere; empty: they are welcome."""
        if self.draining:
            return "this process is being shut down"
        for model in self.models.values():
            if model.wanted and model.life is not Life.READY:
                return f"model {model.name!r}: {model.reason}"
        return self.dead()

    def dead(self) -> str:
        """Why this process should be started anew; empty: it need not."""
        return next((f"model {model.name!r}: {reason}" for model in self.models.values() if (reason := model.dead)), "")

    def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """The index of the model repository extension."""
        return [
            {"name": model.name, "version": "1", "state": STATES[model.life], "reason": model.reason}
            for model in self.models.values()
            if model.life is Life.READY or not only_ready
        ]

    async def describe(self, name: str) -> dict[str, Any]:
        """Metadata for a batch document that asks for them.

        A worker of one model describes that, whatever it was called; one of several that is asked for another tells their names:
        so who asks sees that it is not what it wants.
        """
        model = self.models.get(name)
        if model is None and len(self.models) == 1:
            model = next(iter(self.models.values()))
        if model is not None:
            return await model.metadata()
        return {"name": ", ".join(self.models), "versions": [], "platform": "", "inputs": [], "outputs": []}

    async def drain(self, grace: float) -> None:
        """Returns when all that was accepted is answered, or told after ``grace`` s that it will not be; then models are closed."""
        self.draining = True
        try:
            async with asyncio.timeout(grace):
                await asyncio.gather(*(model.drained() for model in self.models.values()))
                loaded = [model for model in self.models.values() if model.life is not Life.LOADING]  # which may take minutes
                await asyncio.gather(*(model.unload() for model in loaded))
        except TimeoutError:
            for model in self.models.values():
                model.give_up_all(f"this process is being shut down, and the batch did not end within {grace:g} s")
        if self._look is not None:
            self._look.cancel()

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for model in self.models.values():
                model.look()
