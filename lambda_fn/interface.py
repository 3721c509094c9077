"""What a class that is served may name: an error of one item, an answer decided to the last byte, a tensor.

What may live here: records without numpy, since every cold start imports them. What may not: what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES"),
)
"""Those of the Open Inference Protocol that numpy has too; the elements of BYTES are bytes, in an array of objects."""


class ItemError(Exception):
    """The error of one item: raise it, or return it in the item's place.

    Parameters
    ----------
    status : int
        HTTP, 400 to 599: 400 where the caller is to blame, 500 and above where he is not.
    message : str
        What the caller is told.
    """

    def __init__(self, status: int, message: str) -> None:
        if not (isinstance(status, int) and 400 <= status <= 599):
            raise ValueError(f"status: {status!r} is not allowed; allowed: an integer from 400 to 599")
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that its model decides itself: text is sent in UTF-8, and a JSON type needs JSON in the body.

    Without a content type it is ``application/octet-stream``, of a ``str`` ``text/plain``.
    """

    body: bytes | str
    content_type: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives. In ``shape``, -1 is any length; the first dimension is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            raise ValueError(f"datatype of {self.name!r}: {self.datatype!r} is not allowed; allowed: {', '.join(DATATYPES)}")
        if not self.shape or any(size < 1 and size != -1 for size in self.shape):
            raise ValueError(
                f"shape of {self.name!r}: {self.shape} is not allowed; allowed: lengths >= 1, or -1 for any, at least one"
            )

    def metadata(self) -> dict[str, object]:
        """As the model metadata has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
