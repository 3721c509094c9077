"""A group: devices of one type that host one variant, behind one queue."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.batching.policy import Policy


@dataclass(frozen=True, eq=False)
class Group:
    """What a group serves, and by which table.

    Parameters
    ----------
    device_type, variant, family : str
    devices : tuple of str
    share : float
        Part of what is asked of the family that goes here; over a family that is served these sum to 1.
    rate : float
        Requests/s served of the demand.
    throughput : float
        Requests/s that the devices can serve together.
    policy : Policy
        The table of the queue, with a server for each device.
    """

    device_type: str
    variant: str
    family: str
    accuracy: float
    devices: tuple[str, ...]
    share: float
    rate: float
    throughput: float
    policy: Policy
