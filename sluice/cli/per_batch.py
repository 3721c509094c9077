"""Values by batch size as an option has them: a line, or a file with a list."""

from __future__ import annotations

import msgspec
import numpy as np

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.cli.named_files import read_json
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp import affine


def read_per_batch(text: str, largest: int | None, field: str) -> Array:
    """Values for batches of 1, 2, ...: of an intercept and a slope, or of a file (``@FILE``), which may say how many there are.

    Raises
    ------
    InvalidInput
        Another form; a list that ends before ``largest``; a line without a ``largest``.
    """
    if text.startswith("@"):
        content = read_json(text[1:], f"--{field}")
        try:
            values = np.array(msgspec.json.decode(content, type=list[float]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(field, text, f"a file with a JSON list of numbers for batches of 1, 2, ... ({error})") from None
        require(len(values) >= (largest or 1), field, text, f"a list of at least {largest or 1} numbers")
        return values[:largest]
    try:
        intercept, slope = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(field, text, "two numbers, intercept and slope, or @FILE") from None
    if largest is None:
        raise InvalidInput("--max-batch-size", NOT_GIVEN, "the largest batch, as a line has no end")
    return affine(intercept, slope, largest)
