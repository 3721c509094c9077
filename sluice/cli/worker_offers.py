"""The workers that compete with the function: machines by the hour, and provisioned concurrency of the function itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.batching.documents import ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.cli.arrival_options import read_profile
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.billing.prices import Prices
from sluice.optimizer.recommend.workers import WorkerOffer
from sluice.optimizer.service.times import service_times_up_to


def read_worker(text: str, prices: Prices, max_batch_size: int) -> WorkerOffer:
    """The offer of ``PROFILE.json:MACHINE`` or ``PROFILE.json:USD_PER_HOUR``.

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
    profile = read_profile(path)
    sizes = profile.memory_sizes or [1]  # a linear law holds for all
    if len(sizes) > 1:
        raise InvalidInput("worker", text, f"a profile of one memory size, not of {', '.join(map(str, sizes))} MB")
    service = service_times_up_to(profile, sizes[0], max_batch_size)
    function = profile.function.replace("{memory_mb}", str(sizes[0]))
    return WorkerOffer(f"{Path(path).stem}:{price}", service, per_hour, function=function)


def provisioned_offers(
    profile: ServiceProfile, memory_sizes: Sequence[int], billing: Billing, max_batch_size: int
) -> list[WorkerOffer]:
    """Provisioned concurrency of the function, by memory size (by default all the profile's): a pool of its environments."""
    prices = billing.prices
    granularity = prices.function.granularity if billing.granularity is None else billing.granularity
    offers = []
    for memory_mb in sorted(set(memory_sizes)) or profile.memory_sizes:
        price = prices.provisioned(memory_mb, billing.architecture)
        offers.append(
            WorkerOffer(
                name=f"provisioned, {memory_mb} MB",
                service=service_times_up_to(profile, memory_mb, max_batch_size),
                price_per_hour=price.reserved_per_hour,
                price_per_second=price.per_second,
                price_per_request=prices.function.request,
                granularity=granularity,
                function=profile.function.replace("{memory_mb}", str(memory_mb)),
                provisioned=True,
            )
        )
    return offers
