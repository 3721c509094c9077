"""What batches of a fleet take beyond their profiles, as buffers measured it."""

from math import nan

import pytest

from sluice.batching.documents import Slo
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.control import OverheadWatch
from sluice.optimizer.control.overhead import FEWEST, KEPT, LEAST, MOST
from sluice.optimizer.fleet.specification import DeviceType, Family, Fleet, Variant
from sluice.optimizer.fleet.throughput import Profile

SLO = 0.4
FLEET = Fleet(
    (DeviceType("gpu", 2),),
    (Family("a", Slo(SLO, 90), (Variant("one", 90.0),)), Family("b", Slo(SLO), (Variant("two", 90.0),))),
    {("gpu", name): Profile.of_line(0.01, 0.01, 4) for name in ("one", "two")},
    {"a": 1.0},
)


def batch(beyond: float, size: int = 2, route: str = "one.gpu", failed: int = 0) -> MeasuredBatch:
    return MeasuredBatch(0.0, route, 0, "http://w:1", "", size, 0.01 + 0.01 * size + beyond, nan, nan, False, failed, ())


def watched(*beyond: float) -> OverheadWatch:
    watch = OverheadWatch(FLEET)
    watch.see("a", [batch(each) for each in beyond])
    watch.settle()
    return watch


def test_the_quantile_of_what_batches_took_beyond_their_profile_is_planned_with() -> None:
    """Of 40, 36 took 5 ms more and 4 took 50: nine of ten are promised, and kept with 5."""
    assert watched(*[0.005] * 36, *[0.05] * 4).seconds == pytest.approx({"a": 0.005, "b": 0.0})
    assert watched(*[0.005] * 35, *[0.05] * 5).seconds == pytest.approx({"a": 0.05, "b": 0.0})


def test_few_batches_tell_nothing() -> None:
    assert watched(*[0.01] * (FEWEST - 1)).seconds["a"] == 0
    assert watched(*[0.01] * FEWEST).seconds["a"] == pytest.approx(0.01)


def test_batches_that_are_quicker_than_their_profile_change_nothing() -> None:
    assert watched(*[-0.01] * FEWEST).seconds["a"] == 0


def test_no_more_than_a_part_of_the_slo_is_planned_with() -> None:
    assert watched(*[5.0] * FEWEST).seconds["a"] == pytest.approx(MOST * SLO)


def test_what_failed_and_what_is_of_no_profile_tells_nothing() -> None:
    watch = OverheadWatch(FLEET)
    for strange in (batch(0.1, failed=1), batch(0.1, route="three.gpu"), batch(0.1, route=""), batch(0.1, size=0)):
        watch.see("a", [strange] * FEWEST)
    watch.see("a", [batch(0.1)._replace(size=5)] * FEWEST)
    assert not watch.settle() and watch.seconds["a"] == 0


def test_only_another_overhead_is_another() -> None:
    watch = watched(*[0.02] * FEWEST)
    watch.see("a", [batch(0.02 + LEAST / 2)] * KEPT)
    assert not watch.settle()
    watch.see("a", [batch(0.03)] * KEPT)
    assert watch.settle() and watch.seconds["a"] == pytest.approx(0.03)
    watch.see("a", [batch(0.0)] * KEPT)
    assert watch.settle() and watch.seconds["a"] == pytest.approx(0.0)


def test_the_last_batches_count_however_many_there_were() -> None:
    watch = watched(*[0.05] * 10 * KEPT)
    watch.see("a", [batch(0.01)] * KEPT)
    assert watch.settle() and watch.seconds["a"] == pytest.approx(0.01)
