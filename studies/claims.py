"""What a paper says, each sentence asked of the results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .markdown import table

VERDICTS: dict[bool | np.bool | None, str] = {True: "yes", False: "**no**", None: "in part"}


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, whether it is found here (``None``: in part), and the figures."""

    sentence: str
    holds: bool | np.bool | None
    figures: str

    @property
    def found(self) -> str:
        """The verdict in words."""
        return VERDICTS[self.holds]


def claimed(claims: Iterable[Claim], said_by: str = "the paper says", *, spaced: bool = False) -> str:
    """Claims as a table."""
    return table([said_by, "here", "figures"], ([c.sentence, c.found, c.figures] for c in claims), spaced=spaced)
