"""Compiled functions."""

from typing import Any

from sluice.optimizer.compiled import compiled


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", made)  # in no file, so that there is no place beside it
    assert compiled(made["double"])(3) == 6


def test_what_is_compiled_is_machine_code() -> None:
    def double(x: int) -> int:
        return 2 * x

    function: Any = compiled(double)
    assert function(3) == 6 and function.signatures
