"""Service profiles in files. One that a person has changed may have a time in another unit: it agrees with itself, or is refused.

What is asked of it is far from what any measurement comes to, and surely not kept where milliseconds stand for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import click

from sluice.batching.documents import MACHINE_SCHEMES, ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput, require
from sluice.cli.document_files import read_document

ABOVE_QUANTILES = 100.0  # times the largest quantile, up to which a mean may be: one run that took long may be above all of them,
BELOW_QUANTILES = 5.0  # and times less than these alone come to
LONGEST = 900.0  # s: a function is ended then
MEMORY_MB = (128, 10240)  # of a function
BILLED = 100.0  # times the mean service time, either way
BILLED_AT_ONCE = 1.0  # s, of which a platform may bill a multiple
OVERHEAD = 100.0  # times the mean service time, or this many seconds: the time to answer from far away
OVERHEAD_ALWAYS = 60.0
GROWTH = 10.0  # times the square of how much larger a batch is
FALL = 10.0  # times less at a larger batch
WAY_ALWAYS = 0.1  # s, through the buffer
STALL = 1.0  # s; of shorter times a stall of the machine may be the most
THOUSAND = 1000.0


class _Bounds(NamedTuple):
    """Of a field: its value, and between what it may be, s; ``why`` in words."""

    field: str
    value: float
    least: float
    most: float
    why: str


def read_profile(path: str, option: str = "--profile") -> ServiceProfile:
    """The service profile in a file.

    Raises
    ------
    InvalidInput
        As ``read_document``; a time that others of the profile contradict.
    """
    profile = read_document(ServiceProfile, path, option)
    if not profile.function.startswith(MACHINE_SCHEMES):
        _require_function(profile, path)
    for bounds in _bounds(profile):
        if not bounds.least <= bounds.value <= bounds.most:
            raise InvalidInput(f"{path}: {bounds.field}", bounds.value, _allowed(bounds))
    return profile


def warn_of_machine(profile: ServiceProfile, instead: str) -> None:
    """Say where the profile of a machine is taken for that of a function, and what there is ``instead``."""
    if profile.function.startswith(MACHINE_SCHEMES):
        click.echo(
            f"warning: {profile.function} is a machine; as --profile it is taken for a function: paid by use, and any number of "
            f"batches at once. {instead}",
            err=True,
        )


def _require_function(profile: ServiceProfile, path: str) -> None:
    """What AWS Lambda has: sizes of memory, what is billed, and how long it waits."""
    least, most = MEMORY_MB
    for i, point in enumerate(profile.points):
        field, time = f"{path}: points[{i}]", point.service_time
        allowed = f"{least} to {most} MB of a function; a worker is named by http://HOST:PORT"
        require(least <= point.memory_mb <= most, f"{field}.memory_mb", point.memory_mb, allowed)
        longest = max([time.mean, *(seconds for _, seconds in time.quantiles)])
        allowed = f"at most {LONGEST:g} s, when a function is ended; all times are in seconds"
        require(longest <= LONGEST, f"{field}.service_time", longest, allowed)
        allowed = "seconds > 0, as a function bills what it takes"
        require(point.billed_duration > 0 or time.mean == 0, f"{field}.billed_duration", point.billed_duration, allowed)


def _allowed(of: _Bounds) -> str:
    allowed = f"{of.least:.3g} to {of.most:.3g} s, as {of.why}"
    for meant in (of.value / THOUSAND, of.value * THOUSAND):
        if of.least <= meant <= of.most:
            return f"{allowed}; all times are in seconds: did you mean {meant:.6g}?"
    return allowed


def _bounds(profile: ServiceProfile) -> Iterator[_Bounds]:
    places = {id(point): f"points[{i}]" for i, point in enumerate(profile.points)}
    for point in profile.points:
        yield from _of_point(places[id(point)], point)
    yield from _of_sizes(profile.points, places)
    for memory_mb, init in profile.init.items():
        yield from _of_quantiles(f"init.{memory_mb}", init)
    if profile.way is not None:
        for bounds in _of_quantiles("way", profile.way):
            least = bounds.least if profile.way.quantiles[0][1] > 0 else 0.0  # a difference, of which less than 0 is told as 0
            yield bounds._replace(least=least, most=max(bounds.most, WAY_ALWAYS))


def _of_quantiles(field: str, time: ServiceTime) -> Iterator[_Bounds]:
    if not time.quantiles:
        return
    least = sum((after - q) * seconds for (q, seconds), (after, _) in pairwise([*time.quantiles, (1.0, 0.0)]))
    lowest, highest = time.quantiles[0][1], time.quantiles[-1][1]
    why = f"its quantiles are {lowest:g} to {highest:g} s"
    yield _Bounds(f"{field}.mean", time.mean, least / BELOW_QUANTILES, ABOVE_QUANTILES * highest, why)


def _of_point(place: str, point: ProfilePoint) -> Iterator[_Bounds]:
    mean = point.service_time.mean
    yield from _of_quantiles(f"{place}.service_time", point.service_time)
    why = f"the service time is {mean:g} s in the mean"
    if point.billed_duration:  # a worker bills none
        yield _Bounds(f"{place}.billed_duration", point.billed_duration, mean / BILLED, max(BILLED * mean, BILLED_AT_ONCE), why)
    yield _Bounds(f"{place}.overhead", point.overhead, 0.0, max(OVERHEAD * mean, OVERHEAD_ALWAYS), why)


def _of_sizes(points: Iterable[ProfilePoint], places: dict[int, str]) -> Iterator[_Bounds]:
    """Each batch size against the one before it, of the same memory size and size of requests."""

    def setting(point: ProfilePoint) -> tuple[int, float]:
        return point.memory_mb, -1.0 if point.size is None else point.size

    for _, group in groupby(sorted(points, key=lambda point: (setting(point), point.batch_size)), setting):
        for one, next_ in pairwise(group):
            (before, _), (after, told) = _middle(one.service_time), _middle(next_.service_time)
            ratio, field = next_.batch_size / one.batch_size, f"{places[id(next_)]}.service_time.{told}"
            if max(before, after) >= STALL:
                why = f"a batch of {one.batch_size} takes {before:g} s"
                yield _Bounds(field, after, before / FALL, GROWTH * ratio**2 * before, why)


def _middle(time: ServiceTime) -> tuple[float, str]:
    """The median, as of few runs one that took long may be most of the mean; the mean where no median is told. And the field."""
    median = next((seconds for q, seconds in time.quantiles if q == 0.5), None)
    return (time.mean, "mean") if median is None else (median, "quantiles")
