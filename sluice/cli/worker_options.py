"""How a command is told of workers: ``PROFILE.json:MACHINE`` or ``PROFILE.json:USD_PER_HOUR``."""

from __future__ import annotations

from pathlib import Path

from sluice.batching.errors import InvalidInput
from sluice.cli.profile_files import read_profile
from sluice.optimizer.billing import Prices
from sluice.optimizer.recommend import WorkerOffer, machine_offer
from sluice.optimizer.recommend.size_classes import WORKERS_BY_HAND
from sluice.optimizer.service import SizeMix


def read_worker(text: str, prices: Prices, max_batch_size: int, mix: SizeMix | None = None) -> WorkerOffer:
    """The offer that is meant; of a profile that tells sizes apart, for requests of a mix of sizes.

    Raises
    ------
    InvalidInput
        Another form; a machine without a price; a profile of more than one memory size, as a machine has one.
    """
    path, separator, price = text.rpartition(":")
    if not separator or not path or not price:
        raise InvalidInput("worker", text, "PROFILE.json:MACHINE or PROFILE.json:USD_PER_HOUR")
    try:
        per_hour = float(price)
    except ValueError:
        per_hour = prices.machine(price)
    profile = read_profile(path, "--worker")
    if profile.sizes and mix is None:
        raise InvalidInput("--worker", path, f"a profile of requests of one size: {WORKERS_BY_HAND}")
    return machine_offer(f"{Path(path).stem}:{price}", profile, per_hour, max_batch_size, mix if profile.sizes else None)
