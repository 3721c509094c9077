"""How carefully a plan is tuned, as `sluice control` and `sluice simulate --policy control` are told."""

from __future__ import annotations

import click

from sluice.batching.errors import require
from sluice.cli.values import DURATION
from sluice.optimizer.tuning.setup import TuningSettings

KEPT_IN = "--kept-in"
LEAST, MOST = 1.0, 3600.0  # s: no decision comes sooner, and of more the past that is rehearsed tells too little
USUALLY_IN = TuningSettings().kept_in


def _checked(context: click.Context, option: click.Parameter, seconds: float | None) -> float | None:
    require(seconds is None or LEAST <= seconds <= MOST, KEPT_IN, seconds, f"from {LEAST:g}s to {MOST / 3600:g}h")
    return seconds


kept_in_option = click.option(
    KEPT_IN,
    type=DURATION,
    callback=_checked,
    help=f"A promise is to be kept in every so long, from {LEAST:g}s to {MOST / 3600:g}h  [default: {USUALLY_IN / 60:g}min]",
)
