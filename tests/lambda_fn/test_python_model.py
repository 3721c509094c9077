"""A class with `predict` is a model: its annotation says what it gets, its outputs what callers get, and a bad item fails alone."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.lambda_fn import ItemError, Reply, TensorSpec
from sluice.lambda_fn.contract import INFERENCE_HEADER, JSON, Answer, Batch, Item, decode_answers, encode_answers
from sluice.lambda_fn.models.inputs import UnreadableKind
from sluice.lambda_fn.models.python_model import PythonModel

OCTETS = "application/octet-stream"


def item(body: Any, content_type: str = JSON, item_id: str = "a", **headers: str) -> Item:
    """A request; a body that is not bytes is written as JSON."""
    return Item(item_id, content_type, body if isinstance(body, bytes) else msgspec.json.encode(body), headers)


def told(answer: Answer) -> str:
    """The detail of an error."""
    assert answer.status >= 400, answer
    return str(msgspec.json.decode(answer.body)["detail"])


def echo(kind: Any = None, **attributes: Any) -> PythonModel:
    """A model whose outputs are what ``predict`` sees of its inputs, of a kind."""

    class Echo:
        def predict(self, inputs):  # type: ignore[no-untyped-def]
            return [repr(x) for x in inputs]

    if kind is not None:
        Echo.predict.__annotations__["inputs"] = kind
    for name, value in attributes.items():
        setattr(Echo, name, value)
    return PythonModel("echo", Echo())


def seen(kind: Any, request: Item) -> str:
    """What ``predict`` sees of a request, as Python shows it; what the caller is told where that is an error."""
    (answer,) = echo(kind).answer([request])
    return str(msgspec.json.decode(answer.body)) if answer.status == 200 and answer.content_type == JSON else answer.body.decode()


class Flower(msgspec.Struct):
    petals: Annotated[int, msgspec.Meta(ge=0)]
    name: str = ""


@dataclasses.dataclass
class Point:
    x: float
    at: list[float]


class Row(TypedDict):
    age: int


FP32 = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "request_", "expected"),
    [
        (None, item({"a": [1, None]}), "{'a': [1, None]}"),
        (list, item("text"), "'text'"),
        (list[Any], item("é".encode(), "text/plain"), "'é'"),
        (list[object], item(b"\x89PNG", "image/png"), "b'\\x89PNG'"),
        (list[str], item("text"), "'text'"),
        (list[str], item("é".encode("latin-1"), "text/plain; charset=latin-1"), "'é'"),
        (list[str], item(b"x=1", "application/x-www-form-urlencoded"), "'x=1'"),
        (list[bytes], item({"a": 1}), "b'{\"a\":1}'"),
        (list[bytes], item(b"\0\xff", OCTETS), "b'\\x00\\xff'"),
        (list[float], item(2), "2.0"),
        (Sequence[list[float]], item([1, 2.5]), "[1.0, 2.5]"),
        (list[dict], item({"a": 1}), "{'a': 1}"),
        (list[Row], item({"age": 3}), "{'age': 3}"),
        (list[Flower], item({"petals": 5}), "Flower(petals=5, name='')"),
        (list[Point], item({"x": 1, "at": [2]}), "Point(x=1.0, at=[2.0])"),
        (list[Flower], item(b'{"petals": 5}', "application/x-www-form-urlencoded"), "Flower(petals=5, name='')"),
        (None, item({"inputs": [FP32]}), "{'x': array([[1., 2.]], dtype=float32)}"),
        (list[dict[str, np.ndarray]], item({"inputs": [FP32]}), "{'x': array([[1., 2.]], dtype=float32)}"),
        (list[dict[str, npt.NDArray[np.float32]]], item({"inputs": [FP32]}), "{'x': array([[1., 2.]], dtype=float32)}"),
    ],
)
def test_the_annotation_says_what_an_input_is(kind: Any, request_: Item, expected: str) -> None:
    assert seen(kind, request_) == expected


def test_tensors_come_in_binary_too_of_half_precision_and_of_bytes() -> None:
    head = msgspec.json.encode(
        {
            "inputs": [
                {"name": "h", "shape": [2], "datatype": "FP16", "parameters": {"binary_data_size": 4}},
                {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}},
            ]
        }
    )
    body = head + np.array([0.5, 2], "<f2").tobytes() + b"\2\0\0\0hi"
    request = item(body, OCTETS, **{INFERENCE_HEADER: str(len(head))})
    for kind in (None, list[dict[str, np.ndarray]]):
        assert seen(kind, request) == "{'h': array([0.5, 2. ], dtype=float16), 't': array([b'hi'], dtype=object)}"


def picture(size: tuple[int, int] = (3, 2), kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    PIL.Image.new("RGB", size, "red").save(out, kind)
    return out.getvalue()


class Sizes:
    def predict(self, inputs: list[PIL.Image.Image]) -> list[Any]:
        return [(image.size, image.getpixel((0, 0))) for image in inputs]


def test_an_image_comes_decoded() -> None:
    answers = PythonModel("sizes", Sizes()).answer([item(picture(), "image/png"), item(picture(kind="JPEG"), OCTETS)])
    assert [msgspec.json.decode(a.body)[0] for a in answers] == [[3, 2], [3, 2]]


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"text", "image/png", "body: 4 bytes of image/png are no image that Pillow reads"),
        (b"", JSON, "body: 0 bytes of application/json are no image that Pillow reads"),
        (picture((64, 64), "JPEG")[:-20], "image/jpeg", "bytes of image/jpeg are a broken image: image file is truncated"),
        (picture((200, 200)), "image/png", "body: an image of 40000 pixels is not allowed; allowed: 30000"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_image_fails_alone(body: bytes, content_type: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 30_000)
    good, bad = PythonModel("sizes", Sizes()).answer([item(picture(), "image/png"), item(body, content_type)])
    assert (good.status, bad.status) == (200, 400)
    assert message in told(bad)


@pytest.mark.parametrize(
    ("kind", "request_", "message"),
    [
        (list[str], item(b"\xff", "text/plain"), "body: not text in utf-8: 'utf-8' codec can't decode byte 0xff in position 0"),
        (list[str], item(b"a", "text/plain; charset=klingon"), "content-type: charset 'klingon' is not known"),
        (list[str], item(b"a", "text/plain; charset=hex"), "content-type: charset 'hex' is not known"),
        (list[str], item(3), "body: Expected `str`, got `int`"),
        (None, item(b"\xff", "text/plain"), "body: not text in utf-8"),
        (None, item(b"{", JSON), "body: Input data was truncated"),
        (None, item({"inputs": [{**FP32, "data": [1]}]}), "inputs[x].data: 1 values do not fill the shape [1, 2]"),
        (list[list[float]], item([1, "2"]), "body: Expected `float`, got `str` - at `$[1]`"),
        (list[Flower], item({"petals": -1}), "body: Expected `int` >= 0 - at `$.petals`"),
        (list[Row], item({}), "body: Object missing required field `age`"),
        (list[Point], item({"x": 1, "at": [None]}), "body: Expected `float`, got `null` - at `$.at[0]`"),
        (list[float], item(b"\xff", OCTETS), "body: JSON is malformed"),
        (list[float], item(b"[" * 100_000), "body: "),
        (list[dict[str, np.ndarray]], item({"x": 1}), "body: not an inference request: Object missing required field `inputs`"),
    ],
)
def test_a_request_of_another_kind_is_refused_and_its_neighbour_is_not(kind: Any, request_: Item, message: str) -> None:
    calls = []

    class Watched:
        def predict(self, inputs):  # type: ignore[no-untyped-def]
            calls.append(len(inputs))
            return inputs

    if kind is not None:
        Watched.predict.__annotations__["inputs"] = kind
    (answer,) = PythonModel("m", Watched()).answer([request_])
    assert answer.status == 400 and message in told(answer)
    assert calls == []  # nothing was left to predict


def test_what_a_class_of_the_user_raises_about_its_values_is_told() -> None:
    class Even(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError(f"{self.n} is odd")

    good, bad = echo(list[Even]).answer([item({"n": 2}), item({"n": 3})])
    assert (good.status, bad.status) == (200, 400) and told(bad) == "body: 3 is odd"


TAKES = (TensorSpec("x", "FP32", (-1, 2)),)


def test_tensors_that_a_class_names_are_checked_and_described() -> None:
    model = echo(takes=TAKES, gives=(TensorSpec("y", "FP32", (-1,)),))
    assert model.metadata() == {
        "name": "echo",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
    wide = item({"inputs": [{**FP32, "shape": [2, 1]}]})
    wide, other = model.answer([wide, item({"inputs": [FP32], "outputs": [{"name": "z"}]})])
    assert told(wide) == "inputs[x].shape: [2, 1] is not allowed; allowed: [-1, 2], where -1 is any length >= 1"
    assert told(other) == "outputs: 'z' is not known; allowed: y"


def test_a_class_that_names_no_tensors_says_what_it_takes() -> None:
    assert echo(list[Flower]).metadata()["parameters"] == {"input": "list[Flower]"}
    assert echo(list[list[float]]).metadata()["parameters"] == {"input": "list[list[float]]"}
    assert echo().metadata()["parameters"] == {"input": "list[Any]"}


class Fields:
    """Gives whatever it was made with, for one request."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs = outputs

    def predict(self, inputs: list[Any]) -> Any:
        return self.outputs


def given_by(output: Any, request: Item, **attributes: Any) -> Answer:
    """The answer to a request for which ``predict`` gave this output."""
    served = Fields(output)
    for name, value in attributes.items():
        setattr(served, name, value)
    (answer,) = PythonModel("m", served).answer([request])
    (sent,) = decode_answers(encode_answers([answer]), Batch("m", [request]))  # whatever it is, it travels
    return sent


@pytest.mark.parametrize(
    ("output", "content_type", "body"),
    [
        ({"label": "cat", "score": np.float32(0.5)}, JSON, b'{"label":"cat","score":0.5}'),
        (np.arange(3), JSON, b"[0,1,2]"),
        ([np.int64(1), np.bool_(True), np.str_("x")], JSON, b'[1,true,"x"]'),
        (Point(1, [2]), JSON, b'{"x":1,"at":[2]}'),
        (Flower(3), JSON, b'{"petals":3,"name":""}'),
        (None, JSON, b"null"),
        (math.nan, JSON, b"null"),
        ("text", JSON, b'"text"'),
        (b"\0\xff", OCTETS, b"\0\xff"),
        (bytearray(b"ab"), OCTETS, b"ab"),
        (Reply("<svg/>", "image/svg+xml", 201, {"x-size": "1"}), "image/svg+xml", b"<svg/>"),
        (Reply(b'{"a":1}', JSON), JSON, b'{"a":1}'),
        (Reply("é"), "text/plain; charset=utf-8", "é".encode()),
        (Reply(b"a", status=404), OCTETS, b"a"),
    ],
)
def test_the_output_says_what_the_answer_is(output: Any, content_type: str, body: bytes) -> None:
    answer = given_by(output, item({}))
    assert (answer.status, answer.content_type, answer.body) == (
        output.status if isinstance(output, Reply) else 200,
        content_type,
        body,
    )
    assert answer.headers == (output.headers if isinstance(output, Reply) else {})


def test_text_is_answered_with_text() -> None:
    answer = given_by("é", item(b"e", "text/plain"))
    assert (answer.content_type, answer.body.decode()) == ("text/plain; charset=utf-8", "é")


def test_arrays_answer_tensors_with_tensors_and_json_with_json() -> None:
    outputs = {"y": np.array([[0.5]], np.float32), "label": np.array(["cat"])}
    answer = given_by(outputs, item({"inputs": [FP32], "id": "7"}))
    assert msgspec.json.decode(answer.body) == {
        "id": "7",
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0.5]},
            {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["cat"]},
        ],
    }
    binary = given_by(outputs, item({"inputs": [FP32], "parameters": {"binary_data_output": True}}))
    assert binary.content_type == OCTETS and binary.body.endswith(np.float32(0.5).tobytes() + b"\3\0\0\0cat")
    assert given_by(outputs, item({})).body == b'{"y":[[0.5]],"label":["cat"]}'


class Mute(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


class Unmade(ItemError):
    def __init__(self) -> None:
        self.reason = "it does not call the constructor above it"


class Table(list[str]):
    """As those of pandas and polars are: a list of columns."""

    columns = ()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (object(), "output of type object: a value of type object is not allowed; allowed: JSON, bytes, a Reply, and tensors"),
        ({"a": [{1j}]}, "output of type dict: a value of type complex is not allowed"),
        ({(1, 2): 3}, "output of type dict: a value of type tuple is not allowed"),
        (np.ones(1, complex), "output of type ndarray: a value of type complex is not allowed"),
        ("\ud800", "output of type str: 'utf-8' codec can't encode"),
        ((cycle := []) or cycle.append(cycle) or cycle, "output of type list: maximum recursion depth exceeded"),
        (Reply(b"", headers={"Content-Type": "x/y"}), "'x/y' is not allowed; allowed: one that is not content_type's or the"),
        (Reply(b"", headers={"x": 1}), "output of type Reply: headers: 'x': 1 is not allowed; allowed: text"),  # type: ignore[dict-item]
        (Reply("{", JSON), "output of type Reply: not one JSON document"),
        (Reply(b"", status=99), "output of type Reply: status of 'a': 99 is not allowed; allowed: 200 to 599"),
        (Reply(b"", headers={"x": "a\nb"}), "output of type Reply: headers of 'a': 'x': 'a\\nb' is not allowed"),
        (Reply(b"", status=200.5), "output of type Reply: status of 'a': 200.5 is not allowed; allowed: 200 to 599"),  # type: ignore[arg-type]
        (RuntimeError("unlucky"), "RuntimeError: unlucky"),
        (SystemExit("gone"), "SystemExit: gone"),
        (Mute(), "Mute: (its text cannot be had: ZeroDivisionError)"),
        (Unmade(), "Unmade: (its text cannot be had: AttributeError)"),
    ],
)
def test_an_output_that_cannot_be_answered_is_an_error_of_its_item_that_names_the_type(output: Any, message: str) -> None:
    served = Fields(output, 1)
    bad, good = PythonModel("m", served).answer([item({}), item({}, item_id="b")])
    assert (bad.status, good.status) == (500, 200)
    assert message in told(bad)
    decode_answers(encode_answers([bad, good]), Batch("m", [item({}), item({}, item_id="b")]))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"z": np.ones((1, 1), np.float32)}, "output 'y': missing; the model gives y"),
        ({"y": np.ones((1, 1))}, "output 'y': FP64 of shape [1, 1] is not allowed; allowed: FP32 of shape [-1, 1]"),
        ({"y": np.ones((1, 2), np.float32)}, "output 'y': FP32 of shape [1, 2] is not allowed"),
        ({"y": np.ones((1, 1), complex)}, "output 'y': dtype complex128 is not allowed"),
    ],
)
def test_outputs_that_are_not_those_declared_are_told(outputs: Any, message: str) -> None:
    answer = given_by(outputs, item({"inputs": [FP32]}), gives=(TensorSpec("y", "FP32", (-1, 1)),))
    assert answer.status == 500 and message in told(answer)


class Unlucky:
    """Doubles; a 13 makes the whole call fail, a 7 makes its caller be told so."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def predict(self, inputs: list[int]) -> list[int]:
        self.calls.append(len(inputs))
        if 13 in inputs:
            raise RuntimeError("unlucky")
        if 7 in inputs:
            raise ItemError(422, "not a seven")
        return [2 * x for x in inputs]


@given(st.lists(st.sampled_from([1, 2, 7, 13, None]), min_size=1, max_size=20))
def test_each_item_gets_its_own_answer_whatever_the_others_are(values: list[int | None]) -> None:
    served = Unlucky()
    answers = PythonModel("unlucky", served).answer([item(value, item_id=str(i)) for i, value in enumerate(values)])
    assert [a.id for a in answers] == [str(i) for i in range(len(values))]
    for value, answer in zip(values, answers, strict=True):
        status = {None: 400, 7: 422, 13: 500}.get(value, 200)
        assert answer.status == status
        if value is not None and status == 200:
            assert answer.body == b"%d" % (2 * value)
    assert len(served.calls) <= max(0, 2 * sum(value is not None for value in values) - 1)


def test_one_that_fails_among_many_is_found_by_halves() -> None:
    served = Unlucky()
    answers = PythonModel("unlucky", served).answer([item(13 if i == 11 else 1, item_id=str(i)) for i in range(32)])
    assert [a.status for a in answers].count(200) == 31 and told(answers[11]) == "RuntimeError: unlucky"
    assert served.calls == [32, 16, 8, 8, 4, 2, 2, 1, 1, 4, 16]


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError(), Mute(), Unmade()])
def test_whatever_predict_raises_its_neighbours_are_served(raised: BaseException) -> None:
    class Odd:
        def predict(self, inputs: list[int]) -> list[int]:
            if 2 in inputs:
                raise raised
            return inputs

    answers = PythonModel("odd", Odd()).answer([item(x, item_id=str(x)) for x in range(4)])
    assert [a.status for a in answers] == [200, 200, 500, 200]
    assert told(answers[2]).startswith(type(raised).__name__)


def test_an_interrupt_ends_who_runs_a_model() -> None:
    class Interrupted:
        def predict(self, inputs: list[int]) -> list[int]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PythonModel("m", Interrupted()).answer([item(1), item(2)])


def test_one_failure_of_a_batch_is_logged_with_its_traceback_and_refusals_are_not(caplog: pytest.LogCaptureFixture) -> None:
    PythonModel("unlucky", Unlucky()).answer([item(7), item(13), item(13)])
    (record,) = caplog.records
    assert record.message == "predict of unlucky failed on an input"
    assert record.exc_info is not None and str(record.exc_info[1]) == "unlucky"


def test_an_exception_in_the_place_of_an_output_is_the_error_of_that_item() -> None:
    class Careful:
        def predict(self, inputs: list[int]) -> list[Any]:
            return [ItemError(404, "who?") if x == 1 else TimeoutError("slow") if x == 2 else x for x in inputs]

    answers = PythonModel("careful", Careful()).answer([item(x) for x in range(3)])
    assert [a.status for a in answers] == [200, 404, 500]
    assert [told(a) for a in answers[1:]] == ["who?", "TimeoutError: slow"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([1, 2, 3], "WrongOutputs: predict returned 3 outputs for 4 inputs; allowed: as many as there are inputs"),
        (np.ones(5), "WrongOutputs: predict returned 5 outputs for 4 inputs"),
        ([], "WrongOutputs: predict returned 0 outputs for 4 inputs"),
        (None, "WrongOutputs: predict returned NoneType for 4 inputs; allowed: a list of as many outputs"),
        ("four", "WrongOutputs: predict returned str for 4 inputs"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "WrongOutputs: predict returned dict for 4 inputs"),
        ((x for x in range(4)), "WrongOutputs: predict returned generator for 4 inputs"),
        (np.array(4.0), "WrongOutputs: predict returned ndarray for 4 inputs; allowed: a list of as many outputs"),
        (Table("abcd"), "WrongOutputs: predict returned Table for 4 inputs; allowed: a list of as many outputs"),
    ],
)
def test_a_wrong_number_of_outputs_is_an_error_of_all_and_nothing_is_tried_again(outputs: Any, message: str) -> None:
    calls = []

    class Short:
        def predict(self, inputs: list[Any]) -> Any:
            calls.append(len(inputs))
            return outputs

    answers = PythonModel("short", Short()).answer([item(x) for x in range(4)])
    assert [a.status for a in answers] == [500] * 4 and all(message in told(a) for a in answers)
    assert calls == [4]


def test_rows_of_an_array_are_outputs() -> None:
    class Rows:
        def predict(self, inputs: list[list[float]]) -> Any:
            return np.array(inputs) * 2

    assert [a.body for a in PythonModel("rows", Rows()).answer([item([1, 2]), item([3, 4])])] == [b"[2.0,4.0]", b"[6.0,8.0]"]


def test_a_predict_that_empties_its_list_does_so_for_itself() -> None:
    class Consuming:
        def predict(self, inputs: list[int]) -> list[int]:
            if len(inputs) > 1:
                inputs.clear()
                raise RuntimeError("one at a time")
            return [inputs.pop()]

    assert [a.body for a in PythonModel("c", Consuming()).answer([item(1), item(2), item(3)])] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (str, "the inputs of predict are str; allowed: a list, such as list[str]"),
        (np.ndarray, "the inputs of predict are ndarray; allowed: a list"),
        (
            list[np.ndarray],
            "the inputs of predict are list[ndarray], and JSON has no ndarray; allowed: str, bytes, PIL.Image",
        ),
        (list[dict[str, list[complex]]], "and JSON has no complex"),
        (list[str | bytes], "the inputs of predict are list[str | bytes], which JSON cannot be read as"),
        ("list[Nobody]", "the annotation of predict's inputs cannot be read: NameError: name 'Nobody' is not defined"),
    ],
)
def test_an_annotation_that_nothing_can_be_read_as_is_refused_at_the_start(kind: Any, message: str) -> None:
    with pytest.raises(UnreadableKind) as caught:
        echo(kind)
    assert message in str(caught.value)


def test_an_annotation_of_the_outputs_is_not_read() -> None:
    class Vague:
        def predict(self, inputs: list[float]) -> list[Nobody]:  # type: ignore[name-defined]  # noqa: F821
            return inputs

    (answer,) = PythonModel("vague", Vague()).answer([item(1)])
    assert answer.body == b"1.0"


def test_a_method_written_in_c_that_tells_nothing_of_itself_is_served() -> None:
    class Largest:
        predict = staticmethod(max)

    (answer,) = PythonModel("largest", Largest()).answer([item([7])])
    assert (answer.status, answer.body) == (200, b"7")


def test_a_kind_that_contains_itself_is_read() -> None:
    assert seen(list[Tree], item({"left": {"left": None}})) == "Tree(left=Tree(left=None))"


class Tree(msgspec.Struct):
    left: Tree | None = None


def test_tensors_and_another_kind_at_once_are_refused() -> None:
    with pytest.raises(UnreadableKind, match=r"the inputs of predict are list\[str\], and takes names tensors"):
        echo(list[str], takes=TAKES)


@pytest.mark.parametrize("arguments", ["self", "self, inputs, more", "self, *, inputs"])
def test_a_predict_of_other_arguments_is_refused(arguments: str) -> None:
    names: dict[str, Any] = {}
    exec(f"class Odd:\n    def predict({arguments}): ...", names)
    with pytest.raises(UnreadableKind, match="allowed: one list of inputs"):
        PythonModel("odd", names["Odd"]())


@pytest.mark.parametrize(("status", "allowed"), [(399, False), (400.5, False), (400, True), (599, True), (600, False)])
def test_the_status_of_an_error_is_one_of_an_error(status: Any, allowed: bool) -> None:
    if allowed:
        assert str(ItemError(status, "why")) == "why"
    else:
        with pytest.raises(ValueError, match=f"status: {status} is not allowed; allowed: an integer from 400 to 599"):
            ItemError(status, "why")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("x", "FP8", (-1,)), "datatype of 'x': 'FP8' is not allowed; allowed: BOOL, UINT8"),
        (("x", "FP32", ()), r"shape of 'x': \(\) is not allowed"),
        (("x", "FP32", (-1, 0)), r"shape of 'x': \(-1, 0\) is not allowed"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorSpec(*fields)
