"""From counts to devices."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.optimizer.fleet.placement import place

VARIANTS = ("a", "b", "c")


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], dict[str, int], dict[str, str | None]]:
    """Devices, counts that fit, and what runs on some of them."""
    devices = [f"d{i}" for i in range(draw(st.integers(1, 5)))]
    hosted = draw(st.lists(st.sampled_from([*VARIANTS, None]), min_size=len(devices), max_size=len(devices)))
    running = draw(st.dictionaries(st.sampled_from(devices), st.sampled_from([*VARIANTS, None])))
    return devices, dict(Counter(v for v in hosted if v is not None)), running


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_placement_has_the_counts_and_no_other_with_them_loads_fewer_variants(
    case: tuple[list[str], dict[str, int], dict[str, str | None]],
) -> None:
    devices, counts, running = case
    placement = place(devices, counts, running)
    assert list(placement) == devices
    assert Counter(v for v in placement.values() if v is not None) == counts

    def loads(hosted: tuple[str | None, ...]) -> int:
        return sum(v is not None and v != running.get(d) for d, v in zip(devices, hosted, strict=True))

    listed = [v for v, n in counts.items() for _ in range(n)]
    every = set(permutations([*listed, *[None] * (len(devices) - len(listed))]))
    assert loads(tuple(placement.values())) == min(map(loads, every))


def test_what_is_new_goes_to_devices_that_run_nothing() -> None:
    assert place(["x", "y", "z"], {"new": 1}, {"x": "old", "z": "old"}) == {"x": None, "y": "new", "z": None}


def test_without_a_running_placement_devices_are_filled_in_their_order() -> None:
    assert place(["x", "y", "z"], {"a": 1, "b": 1}) == {"x": "a", "y": "b", "z": None}
