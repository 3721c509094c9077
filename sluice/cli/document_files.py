"""Documents in files that an option names; another kind of document than is meant is named by what it is."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sluice.batching.documents import ArrivalDocument, Document, Plan, ServiceProfile, read
from sluice.batching.errors import InvalidInput
from sluice.cli.output import read_file

Read = TypeVar("Read", bound=Document)

_MEANT: dict[type[Document], str] = {
    ArrivalDocument: "an arrivals document, as `sluice fit --out` writes it",
    ServiceProfile: "a service profile, as `sluice profile --out` writes it",
}
# What a file of each kind has, and which option it is for.
_FOUND: list[tuple[type[Document], str, str]] = [
    (ArrivalDocument, "D0", "an arrivals document (--arrivals)"),
    (Plan, "policy", "a plan"),
    (Plan, "routes", "a plan"),
    (ServiceProfile, "points", "a service profile (--profile)"),
    (ServiceProfile, "service_time", "a service profile (--profile)"),
]


def read_document(kind: type[Read], path: str, option: str) -> Read:
    """The document in a file.

    Raises
    ------
    InvalidInput
        No such file; a file of another kind, by what it is; a field that is wrong.
    """
    data = read_file(path, option)
    found = _kind_of(data)
    if found is not None and not issubclass(found[0], kind):
        raise InvalidInput(option, path, f"{_MEANT[kind]}; this is {found[1]}")
    return read(kind, data, path)


def _kind_of(data: bytes) -> tuple[type[Document], str] | None:
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return next(((kind, name) for kind, field, name in _FOUND if field in content), None)
