"""Documents in files that an option names; another kind of document than is meant is named by what it is."""

from __future__ import annotations

from typing import TypeVar

from sluice.batching.documents import ArrivalDocument, Document, Plan, ServiceProfile, read
from sluice.batching.errors import InvalidInput
from sluice.cli.file_kinds import ARRIVALS, PLAN, PROFILE, is_object, kind_of
from sluice.cli.named_files import read_json

Read = TypeVar("Read", bound=Document)

# By the type that is meant: the kind of its files, and how it is told.
_MEANT: dict[type[Document], tuple[str, str]] = {
    ArrivalDocument: (ARRIVALS, "an arrivals document, as `sluice fit --out` writes it"),
    ServiceProfile: (PROFILE, "a service profile, as `sluice profile --out` writes it"),
    Plan: (PLAN, "a plan, as `sluice recommend --out` writes it"),
}


def read_document(kind: type[Read], path: str, option: str) -> Read:
    """The document in a file.

    Raises
    ------
    InvalidInput
        No such file; a file of another kind, by what it is; a field that is wrong.
    """
    data = read_json(path, option)
    found, (meant, told) = kind_of(data), _MEANT[kind]
    if found is not None and found != meant:
        raise InvalidInput(option, path, f"{told}; this is {found}")
    if not data.lstrip().startswith(b"{"):
        raise InvalidInput(option, path, f"{told}; this is {'a JSON list' if data.lstrip()[:1] == b'[' else 'no JSON document'}")
    if found is None and is_object(data):
        raise InvalidInput(option, path, f"{told}; this is another JSON document")
    return read(kind, data, path)
