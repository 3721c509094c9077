"""Stages that workers of the tests run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Scale:
    def predict(self, x: float) -> float:
        return x * 2


class Shift:
    def predict(self, x: float) -> float:
        return x + 3


class Warns:
    def predict(self, x: int) -> int:
        logging.getLogger("stage").warning("of %d", x)
        return x


class Sizes:
    """Each item gets the size of its batch."""

    def predict(self, items: list[Any]) -> list[int]:
        return [len(items)] * len(items)


class Picky:
    """Does what an item says; any other passes."""

    def predict(self, item: Any) -> Any:
        match item:
            case "raise":
                raise KeyError("no such word")
            case "return":
                return ValueError("bad, and returned")
            case "exit":
                raise SystemExit(3)
            case "frozen":
                raise FrozenError(7)
            case "mute":
                raise MuteError
            case "no error":
                raise NoError
            case "stop":
                return next(iter(()))
            case "cancel":
                raise asyncio.CancelledError("a task within")
            case "interrupt":
                raise KeyboardInterrupt
            case "return exit":
                return SystemExit(3)
            case "sizeless":
                return Sizeless()
            case "lambda":
                return lambda: 0
            case "unreadable":
                return Unreadable()
            case "odd":
                raise OddError("a", "b")
            case "large":
                return b"x" * 100_000
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case ("held", gate):
                open(gate).close()
            case ("sleep", seconds):
                time.sleep(seconds)
            case "pid":
                return os.getpid()
            case "cpus":
                return sorted(os.sched_getaffinity(0))
        return item


class PickyBatch:
    """The same for a batch, which fails as a whole."""

    def __init__(self) -> None:
        self.one = Picky()

    def predict(self, items: list[Any]) -> list[Any]:
        outputs = [self.one.predict(item) for item in items]
        return outputs[1:] if "short" in items else outputs


class OddError(Exception):
    """Cannot be made again from its args."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a} and {b}")


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nothing be set, also no note and no cause."""

    code: int


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class NoError(Exception):
    """Is something else when it is unpickled."""

    def __reduce__(self) -> Any:
        return object, ()


class Sizeless:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("a sparse tensor has none")


class Holds:
    def __init__(self, weights: bytes) -> None:
        self.weights = len(weights)

    def predict(self, item: Any) -> int:
        return self.weights


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


class Fails:
    """Cannot be started while ``path`` exists."""

    def __init__(self, path: str) -> None:
        if Path(path).exists():
            raise FileNotFoundError("weights.bin is missing")

    def predict(self, item: Any) -> Any:
        return Picky().predict(item)


class Double:
    """Arrays, written over in place."""

    def predict(self, array: Any) -> Any:
        array *= 2
        return array


class DoubleBatch:
    def predict(self, arrays: list[Any]) -> list[Any]:
        return [array * 2 for array in arrays]


class Raises:
    """Adds one, and raises for one item in ``share``."""

    def __init__(self, share: int, salt: int) -> None:
        self.share, self.salt = share, salt

    def wrong(self, item: tuple[int, int]) -> bool:
        return hash((item[0], self.salt)) % self.share == 0

    def predict(self, item: tuple[int, int]) -> tuple[int, int]:
        if self.wrong(item):
            raise ValueError(f"item {item[0]} at {self.salt}")
        return item[0], item[1] + 1


class RaisesInBatch(Raises):
    def predict(self, items: list[tuple[int, int]]) -> list[Any]:  # type: ignore[override]
        return [ValueError(f"item {n} at {self.salt}") if self.wrong((n, m)) else (n, m + 1) for n, m in items]
