"""Bodies of requests of any size, made of one: what a plan reads as the size of a request, ``{"by": "json"}``, is written.

At the path of the JSON stands what tells the size: a number becomes the size, a list gets so many entries and a string so many
characters, its own from the first on, again and again. Nothing else is changed: a shape that stands elsewhere is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from sluice.batching.documents import RequestSize
from sluice.batching.errors import InvalidInput, require

KEPT = 1024  # bodies


def bodies_of_sizes(template: bytes, path: str) -> Callable[[float], bytes]:
    """The body of a request from its size, by a JSON document and the path in it that tells the size.

    Raises
    ------
    InvalidInput
        No JSON; nothing at the path that has a size, or an empty list or string; a size that is none, once it is asked for.
    """
    RequestSize("json", path)  # refuses what is no path
    try:
        document = msgspec.json.decode(template)
    except msgspec.DecodeError as error:
        raise InvalidInput("body", template[:80], f"a JSON document ({error})") from None
    *above, last = path.split(".")
    holder = document
    for key in above:
        holder = _inside(holder, key, path)
    model = _inside(holder, last, path)
    sized = isinstance(model, list | str) and len(model) > 0
    is_number = isinstance(model, int | float) and not isinstance(model, bool)
    require(sized or is_number, f"body: {path}", model, "a number, or a list or string that is not empty")

    @lru_cache(maxsize=KEPT)
    def body(size: float) -> bytes:
        require(is_number or size % 1 == 0, "size", size, f"an integer >= 0, as there is a length at {path}")
        n = int(size)
        told = (n if size == n else size) if is_number else (model * (n // len(model) + 1))[:n]
        holder[int(last) if isinstance(holder, list) else last] = told
        return msgspec.json.encode(document)

    return body


def _inside(holder: Any, key: str, path: str) -> Any:
    if isinstance(holder, dict) and key in holder:
        return holder[key]
    if isinstance(holder, list) and key.isdecimal() and int(key) < len(holder):
        return holder[int(key)]
    raise InvalidInput(f"body: {path}", key, "a key of an object, or a position in a list, that is there")
