"""Encoded messages into Arrow columns: only the columns that are asked for, and of each message only the
sections they need."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_partibus.client.values import Buffer, decode
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.envelope import NOT_ONE_SECTION, Envelope
from pyspark_partibus.messages.sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    PROPERTY_FIELDS,
    SEQUENCE,
    VALUE,
    sections,
)
from pyspark_partibus.messages.text import json_value, text_of
from pyspark_partibus.offsets import counter_of

_FIELDS = {name: place for place, name in enumerate(PROPERTY_FIELDS) if name}
"""Where each column is in the properties."""
_OF_ENVELOPE = frozenset(
    ("partition", "sequence_number", "enqueued_time", "delivery_count", "entity", "raw", "error")
)
_SECTION_OF = {
    **dict.fromkeys(_FIELDS, PROPERTIES),
    "time_to_live_ms": HEADER,
    "partition_key": ANNOTATIONS,
    "scheduled_enqueue_time": ANNOTATIONS,
    "annotations": ANNOTATIONS,
    "properties": APPLICATION_PROPERTIES,
}
_KEY, _SCHEDULED = "x-opt-partition-key", "x-opt-scheduled-enqueue-time"
_TIME_MS_MAX = ((1 << 63) - 1) // 1000
"""Spark counts microseconds in 64 bits."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes one Arrow batch of each envelope."""

    schema: pa.Schema
    """The columns wanted, in their order and with Spark's types."""
    entity: str
    properties_as_json: bool
    keep_bad: bool
    """Whether a message that cannot be decoded becomes a row with its bytes and an error, instead of failing
    the task."""

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """The rows of an envelope. Raises BadMessage unless bad messages are kept."""
        names = self.schema.names
        of_messages = [name for name in names if name not in _OF_ENVELOPE]
        columns: dict[str, Any] = {}
        errors: list[str | None] | None = None
        if of_messages == ["body"] and NOT_ONE_SECTION not in envelope.body_sizes:
            columns["body"] = _bodies(envelope)  # without a look at any other section
        elif of_messages:
            columns, errors = self._columns_of_messages(envelope, of_messages)
        count = len(envelope.sequence_numbers)
        columns |= {
            "partition": [envelope.partition] * count,
            "sequence_number": envelope.sequence_numbers,
            "delivery_count": envelope.delivery_counts,
            "entity": [self.entity] * count,
            "error": errors or [None] * count,
        }
        if "enqueued_time" in names:
            columns["enqueued_time"] = [1000 * each for each in envelope.enqueued_times]
        if "raw" in names:
            columns["raw"] = [bytes(envelope.data[start:end]) for start, end in envelope.bounds()]
        arrays = [_array(columns[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns_of_messages(
        self, envelope: Envelope, names: list[str]
    ) -> tuple[dict[str, list[Any]], list[str | None]]:
        """The columns that are inside the messages, and the errors of messages that cannot be decoded."""
        wanted = {_SECTION_OF[name] for name in names if name in _SECTION_OF}
        has_body = "body" in names or "body_type" in names
        readers = self._readers()
        read = [readers[name] for name in names]
        columns: list[list[Any]] = [[] for _ in names]
        errors: list[str | None] = []
        for number, (start, end) in zip(envelope.sequence_numbers, envelope.bounds(), strict=True):
            try:
                found = _sections_of(envelope.data, start, end, wanted, has_body)
                row = [reader(found) for reader in read]
            except BadMessage as error:
                if not self.keep_bad:
                    raise BadMessage(
                        f"message {counter_of(number)} of partition {envelope.partition} of '{self.entity}' "
                        f"(sequence number {number}) cannot be decoded: {error}. With option "
                        "onBadMessage=null it becomes a row with its bytes."
                    ) from error
                row = [None] * len(names)
                errors.append(str(error))
            else:
                errors.append(None)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        return dict(zip(names, columns, strict=True)), errors

    def _readers(self) -> dict[str, Callable[[Row], Any]]:
        """How each column is read from the decoded sections of a message."""
        as_properties = _properties_json if self.properties_as_json else _properties_map
        return {
            "body": lambda found: found.get("body"),
            "body_type": lambda found: found.get("body_type"),
            **{name: _field_reader(place) for name, place in _FIELDS.items()},
            "time_to_live_ms": _time_to_live,
            "partition_key": lambda found: _annotation(found, _KEY),
            "scheduled_enqueue_time": _scheduled,
            "annotations": lambda found: _text_map(found.get(ANNOTATIONS)),
            "properties": as_properties,
        }


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(kind)
    return pa.array(values, kind)


def _bodies(envelope: Envelope) -> list[bytes]:
    data = envelope.data
    return [
        bytes(data[offset : offset + size])
        for offset, size in zip(envelope.body_offsets, envelope.body_sizes, strict=True)
    ]


def _sections_of(data: Buffer, start: int, end: int, wanted: set[int], has_body: bool) -> dict[Any, Any]:
    """The sections that are wanted, decoded, by their codes; and the body as `body` and `body_type`."""
    found: dict[Any, Any] = {}
    for code, at, behind in sections(data, start, end):
        if code in wanted:
            found[code] = decode(data, at)[0]
        elif has_body and code in (DATA, SEQUENCE, VALUE):
            _add_body(found, code, data, at, behind)
    return found


def _add_body(found: dict[Any, Any], code: int, data: Buffer, at: int, behind: int) -> None:
    if code == DATA:
        content = decode(data, at)[0]
        if not isinstance(content, bytes):
            raise BadMessage("a data section that is not binary")
        found["body"] = found.get("body", b"") + content
        found["body_type"] = "data"
    elif code == SEQUENCE:
        found["body"] = found.get("body", b"") + bytes(data[at:behind])
        found["body_type"] = "sequence"
    else:
        value = decode(data, at)[0]
        is_text = type(value) is str
        found["body_type"] = "string" if is_text else "value"
        found["body"] = (
            value.encode() if is_text else value if isinstance(value, bytes) else bytes(data[at:behind])
        )


def _field_reader(place: int) -> Callable[[Row], str | None]:
    def read(found: dict[Any, Any]) -> str | None:
        fields = found.get(PROPERTIES)
        if fields is None or len(fields) <= place:
            return None
        value = fields[place]
        return value if type(value) is str else text_of(value)

    return read


def _time_to_live(found: dict[Any, Any]) -> int | None:
    header = found.get(HEADER)
    return None if header is None or len(header) < 3 else header[2]


def _map_of(value: Any) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadMessage("annotations or properties that are no map")
    return value


def _annotation(found: dict[Any, Any], key: str) -> str | None:
    return text_of(_map_of(found.get(ANNOTATIONS)).get(key))


def _scheduled(found: dict[Any, Any]) -> int | None:
    value = _map_of(found.get(ANNOTATIONS)).get(_SCHEDULED)
    if not isinstance(value, int):
        return None
    if not -_TIME_MS_MAX <= value <= _TIME_MS_MAX:
        raise BadMessage(f"the annotation {_SCHEDULED} is {value} ms, which is beyond what a timestamp holds")
    return 1000 * value


def _text_map(value: Any) -> list[tuple[str, str | None]] | None:
    return (
        None
        if value is None
        else [(str(text_of(key)), text_of(each)) for key, each in _map_of(value).items()]
    )


def _properties_map(found: dict[Any, Any]) -> list[tuple[str, str | None]] | None:
    return _text_map(found.get(APPLICATION_PROPERTIES))


def _properties_json(found: dict[Any, Any]) -> str | None:
    value = found.get(APPLICATION_PROPERTIES)
    return None if value is None else json.dumps(json_value(_map_of(value)), separators=(",", ":"))
