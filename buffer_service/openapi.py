"""The HTTP interface as an OpenAPI 3.1 document, which the buffer publishes at ``/openapi.json``.

What may live here: what ``routes.py`` answers, in the words of the document. A test holds its paths beside the table of the routes,
its statuses beside the table of the errors, and real answers beside its schemas.
"""

from __future__ import annotations

from typing import Any

PROBLEM, JSON = "application/problem+json", "application/json"
REFUSALS = {
    400: "What is wrong is named: the field, its value, and what is allowed. What the model does not take, the function names.",
    401: "An API key or a token is needed, and none that is known was given.",
    403: "The API key, or the token, does not open the model.",
    404: "No plan serves the model, or the path is not served.",
    409: "The first request of the idempotency key has no answer yet.",
    410: "There is no such result any more, or none for who asks.",
    413: "The body is larger than this deployment takes.",
    415: "The body is encoded in a way that is not undone here.",
    422: "The idempotency key was that of another request.",
    429: "More comes than is served, the queue is full, or the API key has asked for as much as it may.",
    500: "A defect of the buffer.",
    502: "The function failed on this request.",
    503: "There is no room, the store is away, the function is suspended, or the process is being shut down.",
    504: "No answer came in time.",
}
RETRIED = (409, 429, 503)
"""Statuses that may tell when to ask again."""
INFERENCE = (400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 502, 503, 504)
KEYED = (401, 403, 404)
RESULT = (*KEYED, 410, 500, 503)


def describe_interface(version: str, patience: float) -> dict[str, Any]:
    """The document, of this version of Sluice, where nobody waits for longer than ``patience`` (s)."""
    model = _path_parameter("model", "The name of a model that a plan serves.")
    model_version = _path_parameter("version", "Not read: the plan in force says what serves the model.")
    paths: dict[str, Any] = {
        "/models/{model}": {
            "parameters": [model],
            "post": _inference("infer", "Any body, passed to the function untouched.", {"*/*": {}}),
        },
        "/v2/models": _get("listModels", "The models that are served, of those that the API key opens.", "Models", (401,)),
        "/v2": _get("describeServer", "The server.", "Server"),
        "/v2/health/live": _get("isLive", "Whether the process runs.", "Live"),
        "/v2/health/ready": _ready("isReady", "Whether new requests for any model are welcome here.", "Ready"),
        "/openapi.json": _get("describeInterface", "This document.", None),
        "/metrics": _text("readMetrics", "Metrics, as Prometheus reads them.", "text/plain"),
        "/": _text("showPage", "The live page; 404 where it is off.", "text/html", not_modified=True, may_be_off=True),
        "/status": _get("readStatus", "What the live page shows; 404 where it is off.", None, (404, 500)),
    }
    for place, parameters, suffix in (("", [model], ""), ("/versions/{version}", [model, model_version], "OfVersion")):
        described = "The metadata of the model as its function tells it, and the plan in force."
        paths["/v2/models/{model}" + place] = {
            "parameters": parameters,
            **_get("describeModel" + suffix, described, "ModelMetadata", (*KEYED, 500, 502, 503)),
        }
        paths["/v2/models/{model}" + place + "/ready"] = {
            "parameters": parameters,
            **_ready("isModelReady" + suffix, "Whether new requests for the model are welcome here.", "ModelReady", (404,)),
        }
        told = "Open Inference Protocol v2: JSON, or with the binary tensor extension."
        bodies = {JSON: {"schema": {"$ref": "#/components/schemas/InferenceRequest"}}, "application/octet-stream": {}}
        paths["/v2/models/{model}" + place + "/infer"] = {
            "parameters": parameters,
            "post": _inference("inferTensors" + suffix, told, bodies),
        }
    paths["/v2/models/{model}/results/{id}"] = {
        "parameters": [model, _path_parameter("id", "As it was given with 202.")],
        **_result(),
    }
    deadline = {"type": "number", "exclusiveMinimum": 0, "maximum": patience}
    told = "Seconds within which the answer is wanted; 400 where the plan has no SLO."
    for operation in (path["post"] for path in paths.values() if "post" in path):
        operation["parameters"] = [*SENT, _header("sluice-deadline", told, deadline)]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "version": version,
            "description": "Batches requests for inference. Where GET is, HEAD is; OPTIONS tells the methods of a path.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"apiKey": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": SCHEMAS,
        },
    }


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


_STATES = {"enum": ["waiting", "done", "failed"], "type": "string"}
_NAME, _TEXT, _FLAG = {"type": "string", "minLength": 1}, {"type": "string"}, {"type": "boolean"}
SCHEMAS: dict[str, Any] = {
    "Problem": {
        **_object({"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT, "error": _TEXT}),
        "description": "Problem details (RFC 9457); `error` repeats `detail` where clients of the Open Inference Protocol look.",
    },
    "InferenceRequest": {
        "description": "Only checked to be JSON: what it must hold, the function says.",
        "examples": [{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}],
    },
    "Waiting": _object({"id": _NAME, "state": _STATES, "location": _NAME}),
    "Models": _object({"models": {"type": "array", "items": _NAME}}),
    "Server": _object({"name": _NAME, "version": _NAME, "extensions": {"type": "array", "items": _NAME}}),
    "Live": _object({"live": {"const": True}}),
    "Ready": _object({"ready": _FLAG}, {"reason": _NAME}),
    "ModelReady": _object({"name": _NAME, "ready": _FLAG}, {"reason": _NAME}),
    "ModelMetadata": _object({"name": _NAME, "plan": _object({"digest": _NAME, "made_at": {"type": ["string", "null"]}})}),
}
_REQUEST_ID = {"description": "As the request has it; else one of its own, where it has one at all.", "schema": _NAME}


def _path_parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": _NAME}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


SENT = [
    _header("x-request-id", "An id for the request: 1 to 128 of A-Z a-z 0-9 . _ : + / = -; any other counts as none.", _TEXT),
    _header("traceparent", "The trace that the request belongs to (W3C Trace Context), passed on to the function.", _TEXT),
    _header("tracestate", "As `traceparent`.", _TEXT),
    _header("sluice-class", "The class of the request; read where the plan has classes.", _TEXT),
    _header(
        "prefer",
        "`respond-async`: 202 at once, and where the answer will be (RFC 7240).",
        {"type": "string", "examples": ["respond-async"]},
    ),
    _header(
        "idempotency-key",
        "Who asks again with the same key and body gets the answer that there is already.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    _header(
        "inference-header-content-length",
        "Where the JSON ends in a body with binary tensors: so many bytes of it, which must be there, else 400.",
        {"type": "integer", "minimum": 0},
    ),
]


def _problem(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {"x-request-id": _REQUEST_ID}
    if status in RETRIED:
        headers["retry-after"] = {"description": "Seconds after which to ask again.", "schema": {"type": "integer", "minimum": 1}}
    if status == 401:
        headers["www-authenticate"] = {"description": "How a key is given.", "schema": _TEXT}
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": REFUSALS[status], "headers": headers, "content": content}


def _problems(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): _problem(status) for status in statuses}


def _inference(operation: str, description: str, bodies: dict[str, Any]) -> dict[str, Any]:
    headers = {
        "x-request-id": _REQUEST_ID,
        "sluice-waited": {"description": "Seconds in the queue.", "schema": {"type": "number", "minimum": 0}},
        "sluice-batch-size": {"description": "Requests in the batch that left.", "schema": {"type": "integer", "minimum": 1}},
        "sluice-route": {"description": "The route whose function answered, where the plan has routes.", "schema": _TEXT},
        "sluice-function": {"description": "Which function of several answered: 0 is the route's own.", "schema": _TEXT},
        "idempotent-replayed": {
            "description": "`true` where the answer is that of an earlier request of its key.",
            "schema": _TEXT,
        },
    }
    answered = {"description": "What the function answered.", "headers": headers, "content": {"*/*": {}}}
    return {
        "operationId": operation,
        "description": description,
        "requestBody": {"required": True, "content": bodies},
        "responses": {
            "200": answered,
            "202": _waiting("It is waited for, as was preferred."),
            **_problems(INFERENCE),
            "default": {**answered, "description": "A status of the function's own."},
        },
    }


_STATE = {"description": "Of the result.", "schema": _STATES}


def _waiting(description: str) -> dict[str, Any]:
    headers = {
        "x-request-id": _REQUEST_ID,
        "location": {"description": "Where the answer will be.", "schema": _NAME},
        "retry-after": {"description": "Seconds after which to look, where it waits.", "schema": {"type": "integer", "minimum": 1}},
        "sluice-result": _STATE,
    }
    told = {"schema": {"$ref": "#/components/schemas/Waiting"}}
    found = {"model": "$request.path.model", "id": "$response.body#/id"}
    links = {operation: {"operationId": operation, "parameters": found} for operation in ("fetchResult", "giveUpResult")}
    return {"description": description, "headers": headers, "content": {JSON: told}, "links": links}


def _result() -> dict[str, Any]:
    """An answer that is kept."""
    headers = {"x-request-id": _REQUEST_ID, "sluice-result": _STATE}
    answered = {"description": "What was answered.", "headers": headers, "content": {"*/*": {}}}
    told = "The answer of a request that preferred to fetch it, as its client would have had it."
    failed = {**answered, "description": "The error that came of the request, where `sluice-result` says `failed`."}
    return {
        "get": {
            "operationId": "fetchResult",
            "description": told,
            "responses": {"200": answered, "202": _waiting("It is waited for."), **_problems(RESULT), "default": failed},
        },
        "delete": {
            "operationId": "giveUpResult",
            "description": "Nobody wants the answer any more.",
            "responses": {"204": {"description": "It is not kept."}, **_problems(RESULT)},
        },
    }


def _get(operation: str, description: str, schema: str | None, refusals: tuple[int, ...] = ()) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "object"} if schema is None else {"$ref": f"#/components/schemas/{schema}"}
    answered = {"description": description, "content": {JSON: {"schema": content}}}
    return {"get": {"operationId": operation, "description": description, "responses": {"200": answered, **_problems(refusals)}}}


def _ready(operation: str, description: str, schema: str, refusals: tuple[int, ...] = ()) -> dict[str, Any]:
    path = _get(operation, description, schema, refusals)
    told = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    path["get"]["responses"]["503"] = {"description": "They are not, and why.", "content": {JSON: told}}
    return path


def _text(
    operation: str, description: str, content_type: str, not_modified: bool = False, may_be_off: bool = False
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": description, "content": {content_type: {"schema": _TEXT}}}}
    if not_modified:
        responses["304"] = {"description": "The client has it."}
    return {"get": {"operationId": operation, "description": description, "responses": responses | _problems((404,) * may_be_off)}}
