"""Arrow columns into encoded messages, straight into bytes: no object for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pyspark_partibus.client.values import Symbol, Timestamp, UInt, encode, encode_compound
from pyspark_partibus.columns import SENT
from pyspark_partibus.errors import BadRow
from pyspark_partibus.messages.sections import PROPERTY_FIELDS
from pyspark_partibus.messages.text import properties_from_json

NULL = b"\x40"
TTL_MS_MAX = 0xFFFFFFFF
"""The longest time to live that a header can hold (§3.2.1); longer ones are sent as this."""
KEY_CHARACTERS_MAX = 128
"""The longest key that the broker takes."""
_KEY = encode(Symbol("x-opt-partition-key"))
_SCHEDULED = encode(Symbol("x-opt-scheduled-enqueue-time"))
_CONTENT_TYPE = PROPERTY_FIELDS.index("content_type")

MakeId = Callable[[int, Sequence[bytes]], str]
"""The message-id of a row, from its place in the batch and its content."""
IdOfRow = Callable[[int, bytes, list[bytes], bytes], str]
"""The message-id of a row, from its place in the batch, the sections before the properties, the fields of the
properties (of which the first is the id), and the sections after them."""
Outgoing = tuple[str | None, str, bytes]
"""A message to send: its target if the row names one, the key that decides its partition, and its bytes."""


class Encoder:
    """Encodes the rows of one schema."""

    def __init__(self, as_properties: Sequence[str], makes_ids: bool) -> None:
        """as_properties: columns that become application properties. makes_ids: whether ids come from
        `make_id` instead of the column `message_id`."""
        self._as_properties = tuple(as_properties)
        self._makes_ids = makes_ids

    def encode(self, batch: pa.RecordBatch, make_id: MakeId) -> Iterator[Outgoing]:
        """The messages of a batch of rows, in their order. Raises BadRow."""
        if batch.num_rows == 0:
            return
        columns = {name: _values(batch.column(name)) for name in batch.schema.names if self._is_used(name)}
        bodies = columns["body"]
        fields = [columns.get(name) if name else None for name in PROPERTY_FIELDS]
        kinds = columns.get("content_type")
        sessions, keys = columns.get("session_id"), columns.get("partition_key")
        targets, id_of = columns.get("entity"), self._ids(columns, make_id)
        before = _before(columns)
        after = self._application_properties(columns)
        for row in range(batch.num_rows):
            body = bodies[row]
            if body is None:
                raise BadRow("a row has no body (column 'body' is null)")
            content = body.encode() if type(body) is str else body
            head = before(row) if before else b""
            tail = (after(row) if after else b"") + _data_section(content)
            items = [NULL if each is None else _text(each[row]) for each in fields]
            message_id = id_of(row, head, items, tail)
            items[0] = _text(message_id)
            if kinds is not None:
                items[_CONTENT_TYPE] = _symbol(kinds[row])
            key = _key(sessions[row] if sessions else None, keys[row] if keys else None)
            yield (
                targets[row] if targets else None,
                message_id if key is None else key,
                head + _properties_section(items) + tail,
            )

    def _ids(self, columns: dict[str, list[Any]], make_id: MakeId) -> IdOfRow:
        """What gives a row its message-id: its content, or the column `message_id`."""
        if self._makes_ids:
            targets = columns.get("entity")

            def from_content(row: int, head: bytes, fields: list[bytes], tail: bytes) -> str:
                target = targets[row] if targets else None
                content = (b"" if target is None else target.encode(), head, b"".join(fields[1:]), tail)
                return make_id(row, content)

            return from_content
        given = columns.get("message_id")

        def from_column(row: int, head: bytes, fields: list[bytes], tail: bytes) -> str:
            message_id: str | None = given[row] if given else None
            if message_id is None:
                raise BadRow("a row has no id (column 'message_id' is null)")
            return message_id

        return from_column

    def _is_used(self, name: str) -> bool:
        if name == "message_id" and self._makes_ids:
            return False
        return name in SENT or name in self._as_properties

    def _application_properties(self, columns: dict[str, list[Any]]) -> Callable[[int], bytes] | None:
        """The section with the application properties of a row."""
        maps, texts = columns.get("properties"), columns.get("properties_json")
        own = [(_name(name), columns[name]) for name in self._as_properties]
        if maps is None and texts is None and not own:
            return None

        def section(row: int) -> bytes:
            items: list[bytes] = []
            if maps is not None and maps[row] is not None:
                for name, value in maps[row]:
                    items += (_name(name), _simple(value))
            if texts is not None and texts[row] is not None:
                for name, encoded in properties_from_json(texts[row]).items():
                    items += (_name(name), encoded)
            for encoded_name, values in own:
                items += (encoded_name, _simple(values[row]))
            return b"\x00\x53\x74" + encode_compound(0xC1, items) if items else b""

        return section


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; timestamps as ms since the epoch."""
    if pa.types.is_timestamp(column.type):
        whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        return [None if each is None else Timestamp(each // 1000) for each in whole.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _before(columns: dict[str, list[Any]]) -> Callable[[int], bytes] | None:
    """The header and the annotations of a row."""
    lives, keys, times = (
        columns.get(name) for name in ("time_to_live_ms", "partition_key", "scheduled_enqueue_time")
    )
    if lives is None and keys is None and times is None:
        return None

    def sections(row: int) -> bytes:
        items: list[bytes] = []
        if keys is not None and keys[row] is not None:
            items += (_KEY, _text(keys[row]))
        if times is not None and times[row] is not None:
            items += (_SCHEDULED, encode(times[row]))
        annotations = b"\x00\x53\x72" + encode_compound(0xC1, items) if items else b""
        if lives is None or lives[row] is None:
            return annotations
        if lives[row] <= 0:
            raise BadRow(f"column 'time_to_live_ms' is {lives[row]}, but must be positive")
        life = encode(UInt(min(lives[row], TTL_MS_MAX)))
        return b"\x00\x53\x70" + encode_compound(0xC0, [NULL, NULL, life]) + annotations

    return sections


def _key(session: str | None, key: str | None) -> str | None:
    """What decides the partition (docs/partitioning.md)."""
    if session and key and session != key:
        raise BadRow(f"session_id '{session}' and partition_key '{key}' of a row differ")
    chosen = session or key
    if chosen is not None and len(chosen) > KEY_CHARACTERS_MAX:
        raise BadRow(f"a key of {len(chosen)} characters; the limit is {KEY_CHARACTERS_MAX}")
    return chosen


def _text(value: str | None) -> bytes:
    if value is None:
        return NULL
    data = value.encode()
    size = len(data)
    return b"\xa1%c%b" % (size, data) if size < 256 else b"\xb1" + size.to_bytes(4, "big") + data


@lru_cache(maxsize=1024)
def _symbol(value: str | None) -> bytes:
    """A content type, which is a symbol (§3.2.4)."""
    try:
        return encode(None if value is None else Symbol(value))
    except UnicodeEncodeError:
        raise BadRow(f"column 'content_type' is '{value}', which is not ASCII") from None


@lru_cache(maxsize=4096)
def _name(name: str) -> bytes:
    """The encoded name of an application property. A few names come with all messages."""
    return _text(name)


def _simple(value: Any) -> bytes:
    if type(value) is str:
        return _text(value)
    if isinstance(value, datetime):
        return encode(Timestamp(round(value.timestamp() * 1000)))
    return encode(value)


def _properties_section(items: list[bytes]) -> bytes:
    while items[-1] is NULL:
        items.pop()
    return b"\x00\x53\x73" + encode_compound(0xC0, items)


def _data_section(body: bytes) -> bytes:
    size = len(body)
    if size < 256:
        return b"\x00\x53\x75\xa0%c%b" % (size, body)
    return b"\x00\x53\x75\xb0%b%b" % (size.to_bytes(4, "big"), body)
