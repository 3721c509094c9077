"""What the caller is answered, as the output of ``predict`` for his input says.

    an exception               the item's error: an ``ItemError`` says which, any other is a 500
    Reply                      as it stands
    bytes                      application/octet-stream
    str                        a string of JSON where the request was JSON, else text
    dict of arrays             tensors, where the request was of the Open Inference Protocol
    anything else              JSON: arrays and scalars of numpy as lists and numbers; NaN and the infinities as null

What may live here: the way from an output to an answer. An output that has none is a 500 of its item which names the type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..contract import BINARY, JSON, Answer, Item, check_json, check_sendable, failed, is_json
from ..halving import message_of, said
from ..interface import ItemError, Reply, TensorSpec
from .base import BadRequest
from .inputs import Input

TEXT = "text/plain; charset=utf-8"


def write_output(item: Item, read: Input, output: Any, model: str, gives: Sequence[TensorSpec] | None) -> Answer:
    """The answer to a request, whatever the output is: it does not raise."""
    if isinstance(output, BaseException):
        return write_error(item.id, output)
    try:
        return _write(item, read, output, model, gives)
    except BadRequest as error:
        return write_error(item.id, error)
    except Exception as error:
        # RecursionError: a list that holds itself; UnicodeEncodeError: half a surrogate pair.
        return failed(item.id, 500, "Model failed", f"output of type {type(output).__name__}: {message_of(error)}")


def write_error(item_id: str, error: BaseException) -> Answer:
    """The answer to a request that has no output, whatever the error is: it does not raise."""
    if isinstance(error, BadRequest):
        return failed(item_id, 400, "Bad request", str(error))
    if isinstance(error, ItemError):
        # A class derived from it need not have called its constructor.
        status, message = getattr(error, "status", None), getattr(error, "message", None)
        if isinstance(status, int) and 400 <= status <= 599 and isinstance(message, str):
            return failed(item_id, status, "Bad request" if status < 500 else "Model failed", message)
    return failed(item_id, 500, "Model failed", said(error))


def _write(item: Item, read: Input, output: Any, model: str, gives: Sequence[TensorSpec] | None) -> Answer:
    if type(output) is dict and read.tensors is None:
        return Answer(item.id, 200, JSON, _encode(output))  # as most are
    if isinstance(output, Reply):
        return _write_reply(item.id, output)
    if isinstance(output, _BYTES):
        return Answer(item.id, 200, BINARY, bytes(output))
    if isinstance(output, str) and not is_json(item.content_type):
        return Answer(item.id, 200, TEXT, output.encode())
    if read.tensors is not None and isinstance(output, Mapping) and output and all(map(_is_array, output.values())):
        import numpy as np

        from .tensors import check_outputs, write_answer

        arrays = {str(name): np.asarray(array) for name, array in output.items()}
        check_outputs(arrays, gives or ())
        return write_answer(item.id, model, read.tensors, arrays)
    return Answer(item.id, 200, JSON, _encode(output))


def _write_reply(item_id: str, reply: Reply) -> Answer:
    body, content_type = (reply.body.encode(), TEXT) if isinstance(reply.body, str) else (bytes(reply.body), BINARY)
    answer = Answer(item_id, reply.status, reply.content_type or content_type, body, dict(reply.headers))
    for name, value in answer.headers.items():
        text = isinstance(name, str) and isinstance(value, str)
        if not text or name.lower() in _OWN_FIELDS:
            allowed = "one that is not content_type's or the server's" if text else "text"
            raise ValueError(f"headers: {name!r}: {value!r} is not allowed; allowed: {allowed}")
    if is_json(answer.content_type):
        check_json(body)
    check_sendable(answer)
    return answer


def _is_array(value: Any) -> bool:
    """Whether numpy makes an array of it; that of another library too."""
    return hasattr(value, "__array__")


def _plain(value: Any) -> Any:
    """Arrays and their scalars, of numpy or another library, as JSON has them."""
    if hasattr(value, "__array__"):
        return value.tolist()
    allowed = "JSON, bytes, a Reply, and tensors where the request has some"
    raise TypeError(f"a value of type {type(value).__name__} is not allowed; allowed: {allowed}")


_OWN_FIELDS = ("content-type", "date")
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder(enc_hook=_plain).encode
