"""What the demo does where a busy machine makes larger batches seem quicker, or is too slow for what is to be measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput, NotConverged
from sluice.local.demo import MEASURED, usable_profile


def measured(*seconds: float, init: float) -> ServiceProfile:
    points = [ProfilePoint(1769, n, ServiceTime(of), of) for n, of in zip((1, 2, 4), seconds, strict=True)]
    return ServiceProfile(function="f-{memory_mb}", points=points, init={1769: ServiceTime(init)})


NOISY, QUIET = measured(0.010, 0.050, 0.020, init=0.4), measured(0.010, 0.012, 0.016, init=0.0)


SLOW = NotConverged("2 of 3 points have fewer than two warm runs", None, math.inf)


def one_after_another(*found: ServiceProfile | NotConverged, given: list[float] | None = None) -> Callable[[float], ServiceProfile]:
    left = iter(found)

    def measure(seconds: float) -> ServiceProfile:
        if given is not None:
            given.append(seconds)
        profile = next(left)
        if isinstance(profile, NotConverged):
            raise profile
        return profile

    return measure


def test_a_quiet_machine_is_measured_once() -> None:
    said: list[str] = []
    assert usable_profile(one_after_another(QUIET), 2.0, said.append) == QUIET and said == []


def test_a_noisy_machine_is_measured_again_and_that_is_said() -> None:
    said: list[str] = []
    given: list[float] = []
    found = usable_profile(one_after_another(NOISY, NOISY, NOISY, NOISY, QUIET, given=given), 20.0, said.append)
    assert found.points == QUIET.points and found.init == NOISY.init  # who started cold did so the first time
    assert given == [20.0, 30.0, 45.0, 60.0, 60.0]
    assert said[0].endswith("measuring again for 30 s, and 3 more at most.") and "too noisy to measure on just now" in said[0]
    assert said[3].endswith("measuring again for 60 s, for the last time.") and len(said) == 4


def test_a_machine_that_stays_noisy_is_given_up_with_what_is_out_of_order() -> None:
    with pytest.raises(InvalidInput, match="batch_size 4: 0.02 is not allowed"):
        usable_profile(one_after_another(*[NOISY] * MEASURED), 2.0, lambda line: None)


def test_a_slow_machine_is_given_twice_the_time_and_that_is_said() -> None:
    said: list[str] = []
    given: list[float] = []
    assert usable_profile(one_after_another(SLOW, NOISY, QUIET, given=given), 2.0, said.append).points == QUIET.points
    assert given == [2.0, 4.0, 6.0] and "too slow to measure on just now" in said[0]
    assert said[0].endswith("measuring again for 4 s, and 3 more at most.")
    slow = NotConverged("1 of 3 points has fewer than two warm runs", NOISY, math.inf)
    assert usable_profile(one_after_another(slow, QUIET), 2.0, said.append).init == NOISY.init  # the cold starts were then


def test_a_machine_that_stays_slow_is_given_up_with_what_was_not_measured() -> None:
    with pytest.raises(NotConverged, match="fewer than two warm runs"):
        usable_profile(one_after_another(*[SLOW] * MEASURED), 2.0, lambda line: None)
