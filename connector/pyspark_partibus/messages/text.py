"""AMQP values as text and JSON, and back: ids, application properties, annotations."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pyspark_partibus.client.values import Decimal, Described, Timestamp, encode
from pyspark_partibus.errors import BadRow

BINARY, TIMESTAMP, UUID_KEY = "$binary", "$timestamp", "$uuid"
"""Keys of JSON objects for values that JSON does not have."""


def text_of(value: Any) -> str | None:
    """A value as text. Binary becomes lower-case hexadecimal digits, as in the choice of a partition
    (docs/partitioning.md)."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Timestamp):
        return time_text(value)
    if isinstance(value, (list, dict, Described, Decimal)):
        return json.dumps(json_value(value), separators=(",", ":"))
    return str(value)


def time_text(ms: int) -> str:
    """Milliseconds since the epoch as an ISO date and time, or as a number if they are beyond what a date
    can be."""
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(int(ms))


def json_value(value: Any) -> Any:
    """A value as JSON knows it; what JSON does not have becomes an object with one key."""
    if isinstance(value, Timestamp):
        return {TIMESTAMP: int(value)}
    if isinstance(value, bytes):
        return {BINARY: base64.b64encode(value).decode()}
    if isinstance(value, UUID):
        return {UUID_KEY: str(value)}
    if isinstance(value, dict):
        return {str(text_of(key)): json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json_value(each) for each in value]
    if isinstance(value, Described):
        return json_value(value.value)
    if isinstance(value, Decimal):
        return {BINARY: base64.b64encode(value.encoded).decode()}
    return value


def properties_from_json(text: str) -> dict[str, bytes]:
    """Encoded application properties from what `json_value` made. Raises BadRow."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("is no JSON object")
        return {name: encode(_simple(each)) for name, each in value.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRow(f"column 'properties_json': {error}") from None


def _simple(value: Any) -> Any:
    """The value of one application property (§3.2.5: simple types only)."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == BINARY:
            return base64.b64decode(content, validate=True)
        if kind == TIMESTAMP:
            return Timestamp(content)
        if kind == UUID_KEY:
            return UUID(content)
    if isinstance(value, (dict, list)):
        raise ValueError("has a property that is no simple value")
    return value
