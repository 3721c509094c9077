"""A function whose service times are known, on a clock of its own: what a sweep can be tried on without a function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from sluice.lambda_fn import contract
from sluice.profiler.invocations import Invocation
from sluice.profiler.reports import Report


class SimulatedFunction:
    """An ``Invoke`` with a given law of service times; ``clock`` is its virtual time.

    Parameters
    ----------
    service_time:
        From memory size in MB and batch size to seconds; called once an invocation, so it may draw at random.
    overhead:
        Seconds that an invocation takes beyond the service time.
    init_duration:
        Seconds of a cold start, once for each function name.
    one_by_one:
        Why it computes a batch one by one, as its description has it; describing itself takes no time.

    The memory size is the number at the end of the function's name, the alias apart.
    """

    def __init__(
        self, service_time: Callable[[int, int], float], overhead: float = 0.002, init_duration: float = 0.25, one_by_one: str = ""
    ) -> None:
        self.service_time = service_time
        self.overhead = overhead
        self.init_duration = init_duration
        self.one_by_one = one_by_one
        self.now = 0.0
        self.warm: set[str] = set()
        self.calls: list[tuple[int, int]] = []

    def clock(self) -> float:
        """Seconds of virtual time."""
        return self.now

    def __call__(self, function: str, payload: bytes) -> Invocation:
        """Answer every item with its own body, after the service time."""
        name = function.partition(":")[0]
        found = re.search(r"\d+$", name)
        memory_mb = int(found[0]) if found else 128
        batch = contract.decode_batch(payload)
        if batch.describe:
            metadata = {"name": batch.model, "inputs": [], "parameters": {contract.ONE_BY_ONE: self.one_by_one}}
            return Invocation(contract.encode_metadata(metadata), Report(0.0, 0.0, memory_mb, memory_mb, None), 0.0)
        duration = self.service_time(memory_mb, len(batch.items))
        init_duration = None if name in self.warm else self.init_duration
        self.warm.add(name)
        self.calls.append((memory_mb, len(batch.items)))
        wall_time = duration + self.overhead + (init_duration or 0.0)
        self.now += wall_time
        billed = math.ceil(round((duration + (init_duration or 0.0)) * 1e3, 6)) / 1e3
        answers = [contract.Answer(item.id, 200, item.content_type, item.body) for item in batch.items]
        return Invocation(
            contract.encode_answers(answers), Report(duration, billed, memory_mb, memory_mb, init_duration), wall_time
        )
