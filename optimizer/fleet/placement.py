"""From counts to concrete devices, so that the fewest load another variant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def place(
    devices: Sequence[str], counts: Mapping[str, int], running: Mapping[str, str | None] | None = None
) -> dict[str, str | None]:
    """What each of some devices of one type hosts; ``None``: nothing.

    A device keeps its variant as long as the counts have one left of it, in the order of ``devices``: as many as there can be, so
    that no placement with these counts changes fewer. What is new goes first to devices that run nothing.

    Parameters
    ----------
    devices : sequence of str
    counts : mapping
        Devices by variant; in sum at most as many as there are.
    running : mapping, optional
        The variant that each device runs.
    """
    before = {device: (running or {}).get(device) for device in devices}
    left = Counter(counts)
    placement: dict[str, str | None] = {}
    for device, variant in before.items():
        if variant is not None and left[variant] > 0:
            placement[device] = variant
            left[variant] -= 1
    free = sorted((device for device in devices if device not in placement), key=lambda device: before[device] is not None)
    arriving = [variant for variant, count in left.items() for _ in range(count)]
    placement |= dict(zip(free, [*arriving, *[None] * (len(free) - len(arriving))], strict=True))
    return {device: placement[device] for device in devices}
