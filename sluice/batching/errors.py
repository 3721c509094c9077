"""What can go wrong, split by who must act.

    SluiceError
    ├── InvalidInput        the caller: a field holds a value that is not allowed
    │   ├── UnknownModel        no plan serves the model that was named
    │   ├── PayloadTooLarge     the body is larger than this deployment takes
    │   ├── UnsupportedEncoding the body is encoded in a way that is not undone here
    │   ├── UnknownResult       there is no result of that id
    │   │   └── ResultGone          there is none any more
    │   ├── StillWaiting        the first request of its idempotency key has no answer yet
    │   └── AnotherRequest      its idempotency key was that of another request
    ├── KeyRefused          the caller: the API key that he gave does not open what he asks for
    │   ├── UnknownKey          he gave none that is known
    │   ├── TokenRefused        he gave a token that is not the issuer's, or not for now or for here
    │   ├── ModelNotAllowed     it opens other models
    │   └── RateExceeded        it has asked for as much as it may, for now
    ├── Infeasible          the operator: no configuration keeps the promise; carries the best one found
    ├── NotConverged        the analyst: an iteration stopped early; carries the best iterate and its residual
    └── DispatchFailed      the service: the request was accepted but not answered by the model
        ├── QueueFull           the queue is at its limit; try again later
        ├── NoRoom              this process holds as many bytes as it may; try again later
        ├── ResultsFull         as many results are waited for as may be kept; try again later
        ├── StoreUnavailable    Redis is away
        ├── Draining            this process is being shut down
        ├── FunctionFailed      the function failed on this item
        ├── FunctionSuspended   the function failed again and again, and is not asked for a while
        └── DeadlinePassed      the request was not answered within its time

``buffer_service/routes.py`` maps the tree to HTTP status codes, ``sluice/cli/main.py`` to exit codes; a test holds both complete.
"""

from __future__ import annotations

from typing import Any


class SluiceError(Exception):
    """Every error that Sluice raises on purpose."""


NOT_GIVEN = Ellipsis
"""The value of a field that was left out."""


class InvalidInput(SluiceError, ValueError):
    """A field holds a value that is not allowed: names the field, the value and what is allowed.

    Where the value is ``NOT_GIVEN`` or ``None`` the field was left out, and ``allowed`` is what is needed.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field = field
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        if self.value is NOT_GIVEN or self.value is None:
            return f"{self.field}: none was given; needed: {self.allowed}"
        shown = repr(self.value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        return f"{self.field}: {shown} is not allowed; allowed: {self.allowed}"


def require(ok: bool, field: str, value: object, allowed: str) -> None:
    """Raise ``InvalidInput`` unless ``ok``."""
    if not ok:
        raise InvalidInput(field, value, allowed)


class UnknownModel(InvalidInput):
    """No plan serves the model that was named."""

    def __init__(self, model: str, known: list[str]) -> None:
        super().__init__("model", model, "one of " + (", ".join(sorted(known)) or "(no model is served)"))
        self.args = (model, known)


class PayloadTooLarge(InvalidInput):
    """The body is larger than this deployment takes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("body", f"{size} bytes", f"at most {limit} bytes")
        self.args = (size, limit)


class UnsupportedEncoding(InvalidInput):
    """The body is encoded in a way that is not undone here."""


class UnknownResult(InvalidInput):
    """There is no result of that id, and never was."""

    allowed_ids = "an id that was given with 202"

    def __init__(self, result: str) -> None:
        super().__init__("result", result, self.allowed_ids)
        self.args = (result,)


class ResultGone(UnknownResult):
    """There is no result of that id any more, or none for who asks."""

    allowed_ids = "the id of a result that is kept, asked for by who asked for it; it is no more, or was given up"


class StillWaiting(InvalidInput):
    """The first request of an idempotency key has no answer yet; ``retry_after`` (s) is when to ask again."""

    def __init__(self, key: str) -> None:
        super().__init__("idempotency-key", key, "one whose first request was answered: that one is still computed")
        self.args = (key,)
        self.retry_after = 1.0


class AnotherRequest(InvalidInput):
    """An idempotency key was that of another request; ``others`` names what of that one was another, where it is known."""

    def __init__(self, key: str, others: list[str]) -> None:
        first = f"with another {' and another '.join(others)}" if others else "with another request"
        super().__init__("idempotency-key", key, f"a key for each request: this one came before {first}")
        self.args = (key, others)


class KeyRefused(SluiceError):
    """The API key of a request does not open what it asks for; ``reason`` is why, in a word. No message has a key in it."""

    reason = "refused"


class UnknownKey(KeyRefused):
    """A request came without an API key that is known, nor a token; which of them there are, ``key`` and ``token`` say."""

    reason = "unknown"

    def __init__(self, given: bool, key: bool = True, token: bool = False) -> None:
        which = "the one that was given is none of this deployment" if given else "none was given"
        what = " or ".join(["an API key"] * key + ["a token"] * token)
        super().__init__(f"{what} is needed, as {'x-api-key or as ' * key}authorization: Bearer; {which}")


class TokenRefused(KeyRefused):
    """A request came with a token that opens nothing; no message has any of it."""

    reason = "token"

    def __init__(self, why: str) -> None:
        super().__init__(f"the token is refused: {why}")


class ModelNotAllowed(KeyRefused):
    """An API key, or a token (``name`` is empty), opens other models than the one that was named."""

    reason = "model"

    def __init__(self, name: str, model: str) -> None:
        whose = f"API key of {name!r}" if name else "token"
        super().__init__(f"the {whose} does not open the model {model!r}")


class RateExceeded(KeyRefused):
    """An API key has asked for as much as it may; ``retry_after`` (s) is when it may ask again."""

    reason = "rate"

    def __init__(self, name: str, rate: float, retry_after: float) -> None:
        super().__init__(f"the API key of {name!r} may ask for {rate:g} requests a second, and has")
        self.retry_after = retry_after


class Infeasible(SluiceError):
    """No configuration keeps the promise; ``best`` is the nearest one found (a JSON-ready mapping, or ``None``)."""

    def __init__(self, reason: str, best: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.best = best


class NotConverged(SluiceError):
    """An iteration stopped before its tolerance; ``best`` is its last iterate, ``residual`` how far it was."""

    def __init__(self, reason: str, best: object, residual: float) -> None:
        super().__init__(f"{reason} (residual {residual:g})")
        self.best = best
        self.residual = residual


class DispatchFailed(SluiceError):
    """The request was accepted but not answered by the model."""


class QueueFull(DispatchFailed):
    """The queue of a model is at its limit."""

    def __init__(self, model: str, limit: int, retry_after: float = 1.0) -> None:
        super().__init__(f"queue of {model!r} is full: {limit} requests wait already")
        self.retry_after = retry_after


class Overloaded(DispatchFailed):
    """More comes than is served; the request would wait for ``wait`` seconds, too long to be of use."""

    def __init__(self, model: str, waiting: int, wait: float, retry_after: float) -> None:
        work = f", {wait:.3g} s of work" if wait < float("inf") else ", and nothing is being served"
        super().__init__(f"more comes for {model!r} than is served: {waiting} requests wait{work}")
        self.retry_after = retry_after


class NoRoom(DispatchFailed):
    """This process holds as many bytes of requests as it may."""

    def __init__(self, limit: int, retry_after: float = 1.0) -> None:
        super().__init__(f"no room for another request: those that wait here hold {limit} bytes, which is all they may")
        self.retry_after = retry_after


class ResultsFull(DispatchFailed):
    """All results that may be kept of a model are waited for."""

    def __init__(self, model: str, kept: int, size: int, retry_after: float = 1.0) -> None:
        super().__init__(f"no room to keep another result of {model!r}: {kept} of {size} bytes together are kept at the most")
        self.retry_after = retry_after


class StoreUnavailable(DispatchFailed):
    """The queue store does not answer; ``asked``: it was asked, and may have done what it was."""

    asked = True


class Draining(DispatchFailed):
    """This process is being shut down and could not wait for the answer any longer."""


class FunctionFailed(DispatchFailed):
    """The function failed on this item; ``worker`` names which of several did, where another could be asked."""

    worker: str = ""


class FunctionSuspended(DispatchFailed):
    """The function failed again and again, and is not asked for a while; ``retry_after`` (s) is how long."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlinePassed(DispatchFailed):
    """The request was not answered within its time."""
