"""What an input of ``predict`` is, as its annotation says: the reader of a request for each kind.

    list[Any], or nothing     by content type: a value of JSON, text, tensors of the Open Inference Protocol, else bytes
    list[str]                 text, or a string of JSON
    list[bytes]               the body as it is
    list[PIL.Image.Image]     a decoded image
    list[dict[str, ndarray]]  tensors of the Open Inference Protocol, in JSON or binary
    list[anything else]       JSON, converted and checked by msgspec

What may live here: the way from a request to an input. numpy and Pillow are imported when a reader needs them.
"""

from __future__ import annotations

import inspect
import io
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..contract import INFERENCE_HEADER, UNREADABLE, Item, is_json
from ..interface import TensorSpec
from .base import BadRequest

if TYPE_CHECKING:
    from .tensors import TensorRequest

_SEQUENCES = (list, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)


class Input(NamedTuple):
    """An input, and the request for tensors that it came from, if it was one."""

    value: Any
    tensors: TensorRequest | None = None


Reader = Callable[[Item], Input]
"""From a request to an input; raises ``BadRequest``."""


class UnreadableKind(TypeError):
    """An annotation of the inputs that no reader is for, or tensors that are none; the message says what is allowed."""


def kind_of_inputs(predict: Callable[..., Any]) -> Any:
    """What one input is by the annotation of ``predict``'s only parameter; ``Any`` without one. Raises ``UnreadableKind``."""
    try:
        parameters = list(inspect.signature(predict).parameters.values())
    except (TypeError, ValueError):  # a method written in C need not have one
        return Any
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not parameters or len(required) > 1 or any(p.kind is p.KEYWORD_ONLY and p.name in required for p in parameters):
        raise UnreadableKind(f"predict takes ({', '.join(required)}); allowed: one list of inputs")
    if parameters[0].annotation is inspect.Parameter.empty:
        return Any
    function = inspect.unwrap(getattr(predict, "__func__", predict))
    alone = SimpleNamespace(__annotations__={"inputs": parameters[0].annotation})  # that of the outputs may name what is not there
    try:
        annotation = typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)["inputs"]
    except Exception as error:
        raise UnreadableKind(f"the annotation of predict's inputs cannot be read: {type(error).__name__}: {error}") from error
    if annotation is Any or annotation in _SEQUENCES:
        return Any
    if typing.get_origin(annotation) not in _SEQUENCES:
        raise UnreadableKind(f"the inputs of predict are {shown(annotation)}; allowed: a list, such as list[str]")
    (kind,) = typing.get_args(annotation) or (Any,)
    return Any if kind is object else kind


def reader_of(kind: Any, takes: Sequence[TensorSpec] | None, gives: Sequence[TensorSpec] | None) -> Reader:
    """The reader for a kind of inputs, and for the tensors that a model takes and gives; raises ``UnreadableKind``."""
    if _is_tensors(kind) or (kind is Any and takes is not None):
        return _tensor_reader(takes, gives)
    if takes is not None:
        raise UnreadableKind(f"the inputs of predict are list[{shown(kind)}], and takes names tensors; allowed: one of the two")
    if kind is Any:
        return _any_reader(gives)
    if kind is str:
        return lambda item: Input(_read_text(item))
    if kind is bytes:
        return lambda item: Input(item.body)
    if _is_named(kind, "PIL.Image", "Image"):
        return _image_reader()
    return _json_reader(kind)


def shown(kind: Any) -> str:
    """A kind as its author wrote it, nearly."""
    text = kind.__qualname__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return text.replace("typing.", "").replace("collections.abc.", "")


def is_tensor_request(item: Item) -> bool:
    """Whether a request is of the Open Inference Protocol: it has the header, or its JSON the fields of one."""
    if any(name.lower() == INFERENCE_HEADER for name in item.headers):
        return True
    if not is_json(item.content_type):
        return False
    try:
        return bool(_decode_fields(item.body).inputs)
    except UNREADABLE:
        return False


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str


class _Fields(msgspec.Struct):
    inputs: list[_Tensor]


_decode_fields = msgspec.json.Decoder(_Fields).decode


def _is_named(kind: Any, module: str, name: str) -> bool:
    """Whether a kind is this class, which need not have been imported here."""
    return (getattr(kind, "__module__", None), getattr(kind, "__name__", None)) == (module, name)


def _is_tensors(kind: Any) -> bool:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) not in _MAPPINGS or len(arguments) != 2 or arguments[0] is not str:
        return False
    return _is_named(typing.get_origin(arguments[1]) or arguments[1], "numpy", "ndarray")


def _tensor_reader(takes: Sequence[TensorSpec] | None, gives: Sequence[TensorSpec] | None) -> Reader:
    from .tensors import TensorReader

    read_request = TensorReader(takes, gives)

    def read(item: Item) -> Input:
        request = read_request(item)
        return Input(request.inputs, request)

    return read


def _any_reader(gives: Sequence[TensorSpec] | None) -> Reader:
    read_json = _json_reader(Any)

    def read(item: Item) -> Input:
        if is_tensor_request(item):
            return _tensor_reader(None, gives)(item)
        if is_json(item.content_type):
            return read_json(item)
        return Input(_read_text(item) if item.content_type.lower().startswith("text/") else item.body)

    return read


def _json_reader(kind: Any) -> Reader:
    """For whatever content type: it is JSON that is wanted."""
    try:
        foreign = _foreign_class(msgspec.inspect.type_info(kind), set())
        decode = msgspec.json.Decoder(kind).decode
    except Exception as error:
        raise UnreadableKind(f"the inputs of predict are list[{shown(kind)}], which JSON cannot be read as: {error}") from error
    if foreign is not None:
        allowed = "str, bytes, PIL.Image.Image, dict[str, numpy.ndarray], or what msgspec makes of JSON"
        raise UnreadableKind(f"the inputs of predict are list[{shown(kind)}], and JSON has no {foreign}; allowed: {allowed}")

    def read(item: Item) -> Input:
        try:
            return Input(decode(item.body))
        except UNREADABLE as error:
            raise BadRequest(f"body: {error}") from None

    return read


def _foreign_class(info: Any, seen: set[int]) -> str | None:
    """The name of a class within a kind that msgspec would not know how to make."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return str(info.cls.__qualname__)
    if isinstance(info, tuple):
        parts: list[Any] = list(info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(info, name) for name in info.__struct_fields__]
    else:
        return None
    return next((name for part in parts if (name := _foreign_class(part, seen)) is not None), None)


def _read_text(item: Item) -> str:
    if is_json(item.content_type):
        return str(_read_string(item).value)
    charset = _charset(item.content_type)
    try:
        return item.body.decode(charset)
    except LookupError:
        raise BadRequest(f"content-type: charset {charset!r} is not known; allowed: utf-8, latin-1, ...") from None
    except UnicodeError as error:
        raise BadRequest(f"body: not text in {charset}: {error}") from None


_read_string = _json_reader(str)


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip(' "')
    return "utf-8"


def _image_reader() -> Reader:
    from PIL import Image, UnidentifiedImageError

    def read(item: Item) -> Input:
        try:
            image = Image.open(io.BytesIO(item.body))
            # Before its pixels are decoded: a small body may hold a huge image. Pillow itself refuses at twice as many.
            pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
            if most is not None and pixels > most:
                raise BadRequest(f"body: an image of {pixels} pixels is not allowed; allowed: {most} (PIL.Image.MAX_IMAGE_PIXELS)")
            image.load()
        except BadRequest:
            raise
        except Exception as error:  # a broken file is told by whatever its decoder stumbles over
            what = "no image that Pillow reads" if isinstance(error, UnidentifiedImageError) else f"a broken image: {error}"
            raise BadRequest(f"body: {len(item.body)} bytes of {item.content_type} are {what}") from None
        return Input(image)

    return read
