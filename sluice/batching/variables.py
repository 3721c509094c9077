"""Environment variables that look like a setting of this program and are none."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

PREFIX = "SLUICE_"
NEAR = 0.9  # how much alike two names are of which one is meant by the other


def misspelt(environment: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Variables of Sluice that this program does not know but that look like one it does, and like which.

    Others are of other programs of Sluice, which an environment may be shared with.
    """
    others = [name for name in environment if name.startswith(PREFIX) and name not in known]
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=NEAR) for name in others}
    return {name: found[0] for name, found in near.items() if found}
