"""The `BrokerProperties` of a message, as JSON in a header or a batch (HTTP contract 4.2, 4.3). Pure.

Reading is lenient: names that cannot be set are ignored, and some clients send every value as text.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from broker.base.errors import Reason, Refused
from broker.http.header_values import read_date, read_object, write_date, write_json
from broker.message.plain_message import PlainMessage, moment_of
from broker.operations.receiving import Locked

_TEXTS: Final = {
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "ViaPartitionKey": "via_partition_key",
}
"""Names, and the attributes of `PlainMessage` that they set."""
_TIME_SPAN: Final = re.compile(
    r"(?:(?P<days>\d{1,8})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})"
    r"(?:\.(?P<fraction>\d{1,7}))?"
)
UNLIMITED_S: Final = 922_337_203_685.47754
"""The time to live of a message that never expires, in seconds."""


def read_properties(text: str, message: PlainMessage) -> None:
    """Set what the JSON of a header says. Raises Refused(ARGUMENT)."""
    set_properties(read_object(text, "BrokerProperties"), message)


def set_properties(given: object, message: PlainMessage) -> None:
    """Set what the object says. Raises Refused(ARGUMENT)."""
    if not isinstance(given, Mapping):
        raise Refused(Reason.ARGUMENT, "BrokerProperties must be a JSON object.")
    for name, value in given.items():
        if value is None:
            continue
        if name in _TEXTS:
            setattr(message, _TEXTS[name], _text(name, value))
        elif name == "TimeToLive":
            message.time_to_live_ms = _time_to_live_ms(name, _number(value))
        elif name == "TimeToLiveTimeSpan":
            message.time_to_live_ms = _time_to_live_ms(name, _time_span_s(value))
        elif name == "ScheduledEnqueueTimeUtc":
            message.scheduled_ms = _time_ms(name, value)


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | dict):
        raise _wrong(name, value, "text")
    return json.dumps(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _time_span_s(value: object) -> float | None:
    found = _TIME_SPAN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    days, hours, minutes, seconds = (
        int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds + float(f"0.{found['fraction'] or 0}")


def _time_to_live_ms(name: str, seconds: float | None) -> int | None:
    """None for a message that never expires."""
    if seconds is None or not seconds > 0:
        raise Refused(
            Reason.ARGUMENT,
            f"{name} in BrokerProperties must be longer than 0: a number of seconds, or d.hh:mm:ss in "
            "TimeToLiveTimeSpan.",
        )
    return None if seconds >= int(UNLIMITED_S) else max(int(seconds * 1_000), 1)


def _time_ms(name: str, value: object) -> int:
    moment = read_date(value) if isinstance(value, str) else None
    if moment is None and isinstance(value, str):
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            moment = None
    if moment is None:
        raise _wrong(name, value, "a time such as 'Sun, 06 Nov 1994 08:49:37 GMT'")
    return int(moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp() * 1_000)


def _wrong(name: str, value: object, what: str) -> Refused:
    return Refused(Reason.ARGUMENT, f"{name} in BrokerProperties is {value!r:.80}; it must be {what}.")


def written(message: PlainMessage, locked: Locked, *, wall_ahead_ms: int, peek_lock: bool) -> str:
    """The BrokerProperties of the only message of `locked`, as delivered."""
    enqueued_ms, expires_ms = locked.enqueued_at_ms[0], locked.expires_at_ms[0]
    number = locked.sequence_numbers[0]
    lasts_s = UNLIMITED_S if expires_ms is None else max(expires_ms - enqueued_ms, 1) / 1_000
    values: dict[str, Any] = {name: getattr(message, attribute) for name, attribute in _TEXTS.items()}
    values |= {
        "DeliveryCount": locked.delivery_counts[0] + 1,
        "EnqueuedSequenceNumber": number if message.enqueued_number is None else message.enqueued_number,
        "EnqueuedTimeUtc": _date_of(enqueued_ms),
        "ScheduledEnqueueTimeUtc": None if message.scheduled_ms is None else _date_of(message.scheduled_ms),
        "SequenceNumber": number,
        "State": "Deferred" if locked.deferred else "Active",
        "TimeToLive": int(lasts_s) if lasts_s.is_integer() else lasts_s,
    }
    if peek_lock:
        values["LockToken"] = token_text(locked.tokens[0])
        values["LockedUntilUtc"] = _date_of(locked.locked_until_ms + wall_ahead_ms)
    return write_json({name: value for name, value in values.items() if value is not None})


def body_of(message: PlainMessage) -> tuple[bytes, str]:
    """The body of an answer with this message, and its Content-Type. A body that is neither bytes nor text is
    shown as JSON (HTTP contract 4.6)."""
    given = message.content_type or ""
    match message.body:
        case bytes():
            body, usual = message.body, "application/octet-stream"
        case str():
            body, usual = message.body.encode(errors="replace"), "text/plain; charset=utf-8"
        case _:
            body, usual = write_json(message.body).encode(), "application/json; charset=utf-8"
    return body, given if given.isascii() and given.isprintable() and given else usual


def token_text(token: bytes) -> str:
    """A lock token as clients write it: a GUID (AMQP contract 5.3)."""
    return str(uuid.UUID(bytes_le=token))


def read_token(text: str) -> bytes | None:
    """The lock token in a path; None if it is no GUID."""
    try:
        return uuid.UUID(text).bytes_le
    except ValueError:
        return None


def _date_of(wall_ms: int) -> str:
    return write_date(moment_of(wall_ms))
