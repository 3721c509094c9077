"""The loop's end of the process that computes."""

from __future__ import annotations

import pytest

from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker.computer import ComputerThread
from sluice.lambda_fn.worker.link import Link, LoadFailed, Source


async def test_a_computer_that_dies_as_soon_as_it_has_said_that_a_model_is_loaded_has_not_loaded_it() -> None:
    """Both are read in one round of the loop, before whoever waits for the model goes on."""
    link = Link(lambda: ComputerThread([lambda: Sleeper("echo")]))
    hear = link._hear

    def hear_and_see_it_end(frame: object) -> None:
        hear(frame)  # type: ignore[arg-type]
        link._end_of_computer()

    link._hear = hear_and_see_it_end  # type: ignore[method-assign,assignment]
    with pytest.raises(LoadFailed, match="the process that computes has ended"):
        await Source(link, 0).load(1)
    link._hear = hear  # type: ignore[method-assign]
    loaded = await Source(link, 0).load(1)
    assert loaded.name == "echo" and not loaded.lost
    link.close()
