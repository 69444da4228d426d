"""The OpenAPI description of everything about messages over HTTP: the runtime REST API, and our own
operations (HTTP contract 4). Pure; the tests compare it with real answers.

The description of the administration API, whose bodies are ATOM, is HTTP contract 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from broker.http.messages import BATCH_TYPE, TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S
from broker.throttle.throttle import MANAGEMENT_CREDITS

Json = dict[str, Any]

DESCRIPTION: Final = "openapi.json"
"""The name of the description below the prefix. Anybody may read it."""


@dataclass(slots=True, frozen=True)
class OwnOperation:
    """One of our own operations, as it is served and described."""

    summary: str
    request: type[BaseModel]
    answer: type[BaseModel]
    rights: tuple[str, ...]
    cost: int = MANAGEMENT_CREDITS
    """In credits, in a throttled namespace."""
    frees_memory: bool = False
    """Whether it is admitted while the broker lacks memory."""


_REFUSALS: Final = {
    400: "The request is wrong, or this entity does not permit it.",
    401: "No token, a wrong one, or one without the right.",
    403: "The message is too large, the entity is full, or it is disabled.",
    404: "The lock is lost, or there is no such message.",
    410: "The entity does not exist.",
    413: "The body is too large.",
    415: "The Content-Encoding is neither gzip nor deflate.",
    421: "The broker does not answer under this host name.",
    500: "The broker failed to carry out the request.",
    503: "The broker or a partition is busy or throttled: try again after Retry-After.",
}
_ALWAYS: Final = (400, 401, 403, 410, 421, 500, 503)
_TEXT: Final = {"schema": {"type": "string"}}
_BYTES: Final = {"*/*": {"schema": {"type": "string", "format": "binary"}}}


def describe(own: Mapping[str, OwnOperation], prefix: str) -> Json:
    """The description. `own` are our own operations, which are below `prefix`."""
    models = [(model, "validation") for each in own.values() for model in (each.request, each.answer)]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Partibus: messages over HTTP",
            "version": "1",
            "description": "The runtime REST API of Service Bus, and Partibus' own operations. {entity} is a "
            "queue, a topic (to send), {topic}/subscriptions/{name}, or a queue or subscription "
            "with /$DeadLetterQueue; its slashes may be escaped or not. Application properties are headers: "
            "strings in quotes, numbers and truth values as they are.",
        },
        "security": [{"sas": []}],
        "paths": {
            "/{entity}/messages": {"parameters": [_path("entity")], "post": _send()},
            "/{entity}/messages/head": {
                "parameters": [_path("entity"), _TIMEOUT],
                "post": _receive("Receive a message with a lock.", 201, lock=True),
                "delete": _receive("Receive a message and delete it.", 200, lock=False),
            },
            "/{entity}/messages/{message}/{lockToken}": {
                "parameters": [_path("entity"), _path("message"), _path("lockToken")],
                "delete": _of_lock("Complete the message."),
                "put": _of_lock("Unlock the message, which counts a delivery."),
                "post": _of_lock("Renew the lock."),
            },
            f"{prefix}{DESCRIPTION}": {"get": _description()},
            **{
                f"{prefix}{name}/{{entity}}": {"parameters": [_path("entity")], "post": _own(each)}
                for name, each in own.items()
            },
        },
        "components": {
            "securitySchemes": {
                "sas": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "SharedAccessSignature sr=…&sig=…&se=…&skn=…",
                }
            },
            "schemas": schemas.get("$defs", {}),
        },
    }


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, **_TEXT}


_TIMEOUT: Final = {
    "name": "timeout",
    "in": "query",
    "description": "How many seconds to wait for a message.",
    "schema": {"type": "number", "minimum": 0, "maximum": TIMEOUT_MAX_S, "default": TIMEOUT_DEFAULT_S},
}


_BROKER_PROPERTIES: Final = {
    "name": "BrokerProperties",
    "in": "header",
    "description": "A JSON object with properties such as MessageId. In a batch, each message has its own.",
    **_TEXT,
}
_ENCODING: Final = {
    "name": "Content-Encoding",
    "in": "header",
    "schema": {"type": "string", "enum": ["gzip", "deflate"]},
}


def _description() -> Json:
    return {
        "summary": "This description.",
        "security": [],
        "responses": {
            "200": {"description": "It.", "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    }


def _send() -> Json:
    message = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "Body": {"type": "string"},
            "BrokerProperties": {"type": "object"},
            "UserProperties": {"type": "object"},
        },
    }
    batch = {"schema": {"type": "array", "minItems": 1, "items": message}}
    return {
        "summary": "Send a message or a batch.",
        "parameters": [_BROKER_PROPERTIES, _ENCODING],
        "requestBody": {"content": {**_BYTES, BATCH_TYPE: batch}},
        "responses": {
            "201": {"description": "The message, or every message of the batch, is durable."},
            **_refusals(*_ALWAYS, 415),
        },
    }


def _receive(summary: str, status: int, *, lock: bool) -> Json:
    headers = {"BrokerProperties": _TEXT, "Partibus-Properties": _TEXT}
    required = ["BrokerProperties", *(["Location"] if lock else [])]
    shown = {name: {"required": name in required, **_TEXT} for name in {**headers, **dict.fromkeys(required)}}
    return {
        "summary": summary,
        "responses": {
            str(status): {"description": "A message.", "headers": shown, "content": _BYTES},
            "204": {"description": "No message came in time."},
            **_refusals(*_ALWAYS),
        },
    }


def _of_lock(summary: str) -> Json:
    return {
        "summary": summary,
        "responses": {"200": {"description": "It is done."}, **_refusals(*_ALWAYS, 404)},
    }


def _own(operation: OwnOperation) -> Json:
    def content(model: type[BaseModel]) -> Json:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}

    return {
        "summary": f"{operation.summary} Needs {' and '.join(operation.rights)}.",
        "requestBody": {"content": content(operation.request)},
        "responses": {
            "200": {"description": "It is done.", "content": content(operation.answer)},
            **_refusals(*_ALWAYS, 404, 413),
        },
    }


def _refusals(*statuses: int) -> Json:
    xml = {"application/xml; charset=utf-8": {"schema": {"type": "string"}}}
    described = {str(each): {"description": _REFUSALS[each], "content": xml} for each in sorted(statuses)}
    described["503"]["headers"] = {
        "Retry-After": {"description": "In seconds.", "schema": {"type": "integer"}}
    }
    return described
