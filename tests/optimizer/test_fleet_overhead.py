"""What batches of a fleet take beyond their profiles, as buffers measured it."""

from math import nan

import pytest

from sluice.batching.documents import Slo
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.control import OverheadWatch
from sluice.optimizer.control.overhead import FEWEST, FORGOTTEN, KEPT, LEAST, MOST
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
    watch.settle(0.0)
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
    rejected = batch(0.1)._replace(rejected=True)
    for strange in (rejected, batch(0.1, failed=1), batch(0.1, route="three.gpu"), batch(0.1, route=""), batch(0.1, size=0)):
        watch.see("a", [strange] * FEWEST)
    watch.see("a", [batch(0.1)._replace(size=5)] * FEWEST)
    assert not watch.settle(0.0) and watch.seconds["a"] == 0


def test_only_another_overhead_is_another() -> None:
    watch = watched(*[0.02] * FEWEST)
    watch.see("a", [batch(0.02 + LEAST / 2)] * KEPT)
    assert not watch.settle(0.0)
    watch.see("a", [batch(0.03)] * KEPT)
    assert watch.settle(0.0) and watch.seconds["a"] == pytest.approx(0.03)
    watch.see("a", [batch(0.0)] * KEPT)
    assert watch.settle(0.0) and watch.seconds["a"] == pytest.approx(0.0)


def test_the_last_batches_count_however_many_there_were() -> None:
    watch = watched(*[0.05] * 10 * KEPT)
    watch.see("a", [batch(0.01)] * KEPT)
    assert watch.settle(0.0) and watch.seconds["a"] == pytest.approx(0.01)


def sizes(factor: float, way: float = 0.0, n: int = FEWEST) -> list[MeasuredBatch]:
    """Of all sizes, so many times as long on a device, and seconds more on the way."""
    profile = [0.01 + 0.01 * size for size in (1, 2, 3, 4)]
    return [batch((factor - 1) * profile[i % 4] + way, i % 4 + 1) for i in range(n)]


def mean_of(watch: OverheadWatch) -> list[float]:
    return list(watch.fleet.profiles["gpu", "one"].service.mean_response)


def test_a_slower_worker_is_planned_with_what_it_takes_whatever_the_size_of_the_batch() -> None:
    watch = OverheadWatch(FLEET)
    watch.see("a", sizes(1.5, way=0.002))
    assert watch.settle(0.0)
    assert watch.factors == {("gpu", "one"): pytest.approx(1.5)} and watch.seconds["a"] == pytest.approx(0.002)
    assert mean_of(watch) == pytest.approx([1.5 * (0.01 + 0.01 * size) + 0.002 for size in (1, 2, 3, 4)])
    told = "batches take 1.5 times as long for one on gpu"
    assert watch.words == f"{told}; and longer than their profiles say: 2 ms of a"
    assert list(watch.fleet.profiles["gpu", "two"].service.mean_response) == pytest.approx([0.02, 0.03, 0.04, 0.05])


def test_what_all_batches_take_longer_alike_is_on_the_way() -> None:
    watch = OverheadWatch(FLEET)
    watch.see("a", sizes(1.0, way=0.02))
    assert watch.settle(0.0) and watch.factors == {} and watch.seconds["a"] == pytest.approx(0.02)


def test_batches_of_one_size_that_take_far_longer_are_of_a_slower_worker() -> None:
    watch = watched(*[0.12] * FEWEST)
    assert watch.factors == {("gpu", "one"): pytest.approx(5.0)} and watch.seconds["a"] == pytest.approx(0.0)


def test_a_worker_that_is_as_quick_again_is_planned_with_as_quick() -> None:
    watch = OverheadWatch(FLEET)
    watch.see("a", sizes(1.5))
    watch.settle(0.0)
    watch.see("a", sizes(1.0, n=KEPT))
    assert watch.settle(30.0) and watch.factors == {} and watch.words == "batches take what their profiles say"


def test_who_is_asked_no_more_is_taken_to_be_as_its_profile_says_after_an_hour() -> None:
    watch = OverheadWatch(FLEET)
    watch.see("a", sizes(1.5))
    watch.settle(0.0)
    assert not watch.settle(FORGOTTEN - 1)
    assert watch.settle(FORGOTTEN) and watch.factors == {}
