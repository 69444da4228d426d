"""The options of the source and the sink: their names, defaults and rules, read once into plain data.

Every error names its option. An option that is unknown, or that belongs to the other direction, is an error,
because one that is misspelt and ignored would do harm quietly.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark_partibus.client.patience import Patience
from pyspark_partibus.endpoint import OPTION, Endpoint, parse_endpoint
from pyspark_partibus.errors import OptionError
from pyspark_partibus.offsets import FIRST, counter_of, partition_of

ENDPOINT_VARIABLE = "PARTIBUS_ENDPOINT"
LATEST, EARLIEST, COMMITTED = "latest", "earliest", "committed"
JSON_LATEST, JSON_EARLIEST = -1, -2
"""What these numbers mean in offsets given as JSON, as with Kafka."""
CURSOR_BYTES_MAX = 128
"""The longest name of a cursor that the broker takes."""
SINK_ID_BYTES_MAX, WRITE_ID_BYTES_MAX = 90, 100
"""The broker's names of sinks have at most 128 bytes; after a `sinkId` come 37 of the query's id."""
NUMBER_MAX = (1 << 63) - 1
"""The largest number of the broker, and of Spark."""
WAIT_S_MAX = 366 * 24 * 3600.0
"""The longest wait that can be asked for: what an operating system may wait at once is about as long."""
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
OF_SPARK = frozenset(("path", "checkpointlocation", "queryname", "paths"))
"""Options that Spark itself adds."""

CONNECTION = (
    "endpoint",
    "credentialsFile",
    "sasl.username",
    "sasl.password",
    "token",
    "tls.caFile",
    "tls.certFile",
    "tls.keyFile",
    "requestTimeout",
    "retryTimeout",
)
SOURCE = (
    *CONNECTION,
    "entity",
    "subscription",
    "subqueue",
    "cursor",
    "cursorTakeover",
    "settle",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "readTasks",
    "splitRows",
    "fetchMessages",
    "fetchBytes",
    "propertiesFormat",
    "failOnDataLoss",
    "onMissing",
    "onBadMessage",
    "headPollMs",
    "tuneWorkerGc",
)
OF_STREAMS = (
    "cursorTakeover",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "headPollMs",
)
"""Options of the source that mean nothing to a batch query."""
OF_BATCHES = ("endingOffsets", "endingTimestamp")
"""Options of the source that mean nothing to a stream."""
SINK = (
    *CONNECTION,
    "entity",
    "idStrategy",
    "sinkId",
    "writeId",
    "writeVersion",
    "requireExactlyOnce",
    "unknownColumns",
    "sendMessages",
    "sendBytes",
    "tuneWorkerGc",
)
Value = TypeVar("Value")

Start = str | dict[int, int]
"""`earliest`, `latest`, `committed`, or a counter for each partition (`JSON_LATEST` and `JSON_EARLIEST`
too)."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads, and how."""

    endpoint: Endpoint
    address: str
    patience: Patience
    cursor: str | None
    cursor_takeover: bool
    settle: str
    starting: Start | None
    starting_time_ms: int | None
    ending: Start | None
    ending_time_ms: int | None
    max_messages: int
    """In one batch; 0 for no limit."""
    max_bytes: int | None
    min_messages: int
    max_delay_s: float
    read_tasks: int
    split_rows: int | None
    fetch_messages: int
    fetch_bytes: int
    properties_as_json: bool
    fail_on_data_loss: bool
    fail_on_missing: bool
    keep_bad: bool
    head_poll_s: float
    tune_gc: bool


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a query writes, and how."""

    endpoint: Endpoint
    address: str | None
    """The target of all rows; without it each row names its own."""
    patience: Patience
    id_strategy: str | None
    sink_id: str | None
    write_id: str | None
    write_version: int
    """Of the writes with one `writeId`: the broker keeps the highest."""
    require_exactly_once: bool
    unknown_columns: str
    send_messages: int
    send_bytes: int
    tune_gc: bool


class _Reader:
    """The given options, each of which may be taken once."""

    def __init__(self, given: Mapping[str, str], allowed: tuple[str, ...], direction: str) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in allowed} | OF_SPARK
        others = {name.lower(): name for name in (*SOURCE, *SINK)}
        for name in sorted(self._given.keys() - known):
            if name in others:
                raise OptionError(others[name], f"is not an option of the {direction}")
            raise OptionError(name, f"is unknown; the {direction} knows {', '.join(allowed)}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and "\0" in value:
            raise OptionError(name, "has a character zero")
        return None if value is None or not value.strip() else value.strip()

    def one_of(self, name: str, choices: tuple[str, ...], default: str | None) -> str | None:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(name, f"is '{value}', but must be one of {', '.join(choices)}")
        return value.lower()

    def number(self, name: str, default: int, lowest: int, highest: int = NUMBER_MAX) -> int:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise OptionError(name, f"is '{value}', but must be a whole number") from None
        if not lowest <= number <= highest:
            raise OptionError(name, f"is {number}, but must be from {lowest} to {highest}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def parsed(self, name: str, parse: Callable[[str], Value], default: Value) -> Value:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            raise OptionError(name, str(error)) from None


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Check and read the options of a source. Raises OptionError."""
    read = _Reader(given, SOURCE, "source")
    endpoint = _endpoint(read)
    starting, ending = (
        read.parsed("startingOffsets", parse_start, None),
        read.parsed("endingOffsets", parse_start, None),
    )
    starting_time = read.parsed("startingTimestamp", parse_time, None)
    ending_time = read.parsed("endingTimestamp", parse_time, None)
    if starting is not None and starting_time is not None:
        raise OptionError("startingTimestamp", "cannot be given together with 'startingOffsets'")
    if ending is not None and ending_time is not None:
        raise OptionError("endingTimestamp", "cannot be given together with 'endingOffsets'")
    if ending in (EARLIEST, COMMITTED):
        raise OptionError("endingOffsets", "must be 'latest' or a JSON object")
    cursor = read.parsed("cursor", partial(_short_name, CURSOR_BYTES_MAX), None)
    if starting == COMMITTED and cursor is None:
        raise OptionError("cursor", "is needed for startingOffsets=committed")
    if read.text("maxTriggerDelay") is not None and not read.number("minMessagesPerTrigger", 0, 0):
        raise OptionError("maxTriggerDelay", "needs option 'minMessagesPerTrigger'")
    settle = read.one_of("settle", ("cursor", "complete", "none"), "cursor")
    assert settle is not None
    return SourceOptions(
        endpoint=endpoint,
        address=_source_address(read, endpoint),
        patience=_patience(read),
        cursor=cursor,
        cursor_takeover=read.flag("cursorTakeover", False),
        settle=settle,
        starting=starting,
        starting_time_ms=starting_time,
        ending=ending,
        ending_time_ms=ending_time,
        max_messages=read.number("maxMessagesPerTrigger", 200_000, 0),
        max_bytes=read.number("maxBytesPerTrigger", 0, 0) or None,
        min_messages=read.number("minMessagesPerTrigger", 0, 0),
        max_delay_s=read.parsed("maxTriggerDelay", parse_duration, 900.0),
        read_tasks=read.number("readTasks", 4, 1),
        split_rows=read.number("splitRows", 0, 0) or None,
        fetch_messages=read.number("fetchMessages", 1000, 1, 4096),
        fetch_bytes=read.number("fetchBytes", 1 << 20, 1024, 1 << 20),
        properties_as_json=read.one_of("propertiesFormat", ("map", "json"), "map") == "json",
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        fail_on_missing=read.one_of("onMissing", ("report", "fail"), "report") == "fail",
        keep_bad=read.one_of("onBadMessage", ("fail", "null"), "fail") == "null",
        head_poll_s=read.number("headPollMs", 100, 0, int(WAIT_S_MAX * 1000)) / 1000,
        tune_gc=read.flag("tuneWorkerGc", True),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check and read the options of a sink. Raises OptionError."""
    read = _Reader(given, SINK, "sink")
    endpoint = _endpoint(read)
    unknown = read.one_of("unknownColumns", ("error", "ignore", "property"), "error")
    assert unknown is not None
    if read.text("writeVersion") is not None and read.text("writeId") is None:
        raise OptionError("writeVersion", "needs option 'writeId'")
    return SinkOptions(
        endpoint=endpoint,
        address=_entity(read, endpoint),
        patience=_patience(read),
        id_strategy=read.one_of(
            "idStrategy", ("column", "content", "content-global", "source", "none"), None
        ),
        sink_id=read.parsed("sinkId", partial(_short_name, SINK_ID_BYTES_MAX), None),
        write_id=read.parsed("writeId", partial(_short_name, WRITE_ID_BYTES_MAX), None),
        write_version=read.number("writeVersion", 0, 0),
        require_exactly_once=read.flag("requireExactlyOnce", False),
        unknown_columns=unknown,
        send_messages=read.number("sendMessages", 1000, 1, 4000),
        send_bytes=read.number("sendBytes", 1 << 20, 1024, 3 << 20),
        tune_gc=read.flag("tuneWorkerGc", True),
    )


def _short_name(bytes_max: int, text: str) -> str:
    if len(text.encode()) > bytes_max:
        raise ValueError(f"is longer than {bytes_max} bytes")
    return text


def _patience(read: _Reader) -> Patience:
    request = read.parsed("requestTimeout", parse_duration, 30.0)
    if request <= 0:
        raise OptionError("requestTimeout", "must be longer than 0")
    return Patience(request, read.parsed("retryTimeout", parse_duration, 120.0))


def check_batch_source(given: Mapping[str, str], options: SourceOptions) -> None:
    """Refuse what only a stream can do: a batch query moves no cursor and completes nothing. Raises
    OptionError."""
    _refuse(given, OF_STREAMS, "is for streams only")
    if "settle" in _names(given) and options.settle != "none":
        raise OptionError("settle", "is for streams only: a batch query settles nothing")
    if options.cursor is not None and options.starting != COMMITTED:
        raise OptionError("cursor", "is for streams, and for startingOffsets=committed")


def check_stream_source(given: Mapping[str, str], options: SourceOptions) -> None:
    """Refuse what a stream cannot do, and options that would do nothing or too much. Raises OptionError."""
    _refuse(given, OF_BATCHES, "is for batch queries only")
    if options.settle == "cursor" and options.cursor is None:
        raise OptionError(
            "cursor",
            "is missing: the name under which the broker keeps the query's position (or settle=none)",
        )
    if options.settle == "none" and options.cursor is not None and options.starting != COMMITTED:
        raise OptionError(
            "cursor", "would not move with settle=none: it is for startingOffsets=committed then"
        )
    if options.cursor_takeover and (options.cursor is None or options.settle == "none"):
        raise OptionError("cursorTakeover", "needs a cursor that moves: option 'cursor', without settle=none")
    if options.settle != "complete":
        return
    # What is before a query's position is completed, whoever has read it.
    problem = "with settle=complete would remove earlier messages unread; use 'earliest' or 'committed'"
    if options.starting not in (None, EARLIEST, COMMITTED):
        raise OptionError("startingOffsets", problem)
    if options.starting_time_ms is not None:
        raise OptionError("startingTimestamp", problem)


def _refuse(given: Mapping[str, str], names: tuple[str, ...], problem: str) -> None:
    has = _names(given)
    for name in names:
        if name.lower() in has:
            raise OptionError(name, problem)


def _names(given: Mapping[str, str]) -> set[str]:
    """The names of the options that have a value."""
    return {name.lower() for name, value in given.items() if value is not None and value.strip()}


def _entity(read: _Reader, endpoint: Endpoint) -> str | None:
    """The entity that the options name, or the connection string."""
    named, path = read.text("entity"), endpoint.entity
    if named is not None and path is not None and named.strip("/").lower() != path.strip("/").lower():
        raise OptionError("entity", f"is '{named}', but the endpoint has EntityPath={path}")
    entity = named or path
    return None if entity is None else entity.strip("/")


def _source_address(read: _Reader, endpoint: Endpoint) -> str:
    """The address of the subqueue (AMQP contract 3)."""
    address = _entity(read, endpoint)
    if address is None:
        raise OptionError("entity", "is missing: the queue or topic to read")
    if (subscription := read.text("subscription")) is not None:
        address += f"/Subscriptions/{subscription}"
    subqueue = read.one_of("subqueue", ("main", "deadletter", "transferdeadletter"), "main")
    return address + {"main": "", "deadletter": "/$DeadLetterQueue"}.get(
        str(subqueue), "/$Transfer/$DeadLetterQueue"
    )


def _endpoint(read: _Reader) -> Endpoint:
    """The endpoint with the credentials of all options; the options take precedence over a file with
    credentials."""
    nothing: dict[str, str] = {}
    file = read.parsed("credentialsFile", _credentials, nothing)
    text = read.text("endpoint") or file.get("endpoint") or os.environ.get(ENDPOINT_VARIABLE)
    if text is None:
        raise OptionError(
            OPTION, f"is missing; it may also be in the environment variable {ENDPOINT_VARIABLE}"
        )
    endpoint = parse_endpoint(text)

    def given(name: str) -> str | None:
        return read.text(name) or file.get(name.lower())

    username, password, token = given("sasl.username"), given("sasl.password"), given("token")
    if token is not None and (username or password):
        raise OptionError("token", "cannot be given together with sasl.username and sasl.password")
    if token is not None:
        endpoint = replace(
            endpoint, token=token, username=None, password=None, signs_tokens=False, mechanism="ANONYMOUS"
        )
    elif username is not None or password is not None:
        if username is None or password is None:
            raise OptionError(
                "sasl.password" if password is None else "sasl.username", "is missing beside the other one"
            )
        endpoint = replace(
            endpoint, username=username, password=password, signs_tokens=False, token=None, mechanism="PLAIN"
        )
    endpoint = replace(
        endpoint, ca_file=given("tls.caFile"), cert_file=given("tls.certFile"), key_file=given("tls.keyFile")
    )
    if not endpoint.tls and (endpoint.ca_file or endpoint.cert_file or endpoint.key_file):
        raise OptionError("tls.caFile", "needs an endpoint with TLS (amqps://)")
    if endpoint.key_file is not None and endpoint.cert_file is None:
        raise OptionError("tls.keyFile", "needs tls.certFile")
    return endpoint


def _credentials(path: str) -> dict[str, str]:
    """A JSON object with any of the options of the endpoint and the credentials."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"'{path}' is not JSON") from None
    allowed = {name.lower() for name in CONNECTION} - {
        "credentialsfile",
        "requesttimeout",
        "retrytimeout",
    }
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError(f"'{path}' must have one JSON object of strings")
    lowered = {name.lower(): each for name, each in value.items()}
    if unknown := lowered.keys() - allowed:
        raise ValueError(f"'{path}' has the unknown key '{sorted(unknown)[0]}'")
    return lowered


def parse_start(text: str) -> Start:
    """`earliest`, `latest`, `committed`, or JSON such as `{"0": 12, "1": -1}`. Raises ValueError."""
    if text.lower() in (EARLIEST, LATEST, COMMITTED):
        return text.lower()
    try:
        value: Any = json.loads(text)
        entries = {int(partition): number for partition, number in value.items()}
    except (ValueError, AttributeError, RecursionError):
        raise ValueError("must be 'earliest', 'latest', 'committed' or a JSON object of partitions") from None
    return {partition: _position(partition, number) for partition, number in entries.items()}


def _position(partition: int, number: object) -> int:
    """A counter, or a whole sequence number of the partition."""
    if type(number) is not int or number < JSON_EARLIEST:
        raise ValueError(f"has {number!r} for partition {partition}; -1 is the latest, -2 the earliest")
    if number < 0:
        return number
    if partition_of(number) not in (0, partition):
        raise ValueError(
            f"has a sequence number of partition {partition_of(number)} for partition {partition}"
        )
    return max(FIRST, counter_of(number))


def parse_time(text: str) -> int:
    """Milliseconds since the epoch, or an ISO date and time, which is UTC unless it says otherwise. Raises
    ValueError."""
    try:
        if text.lstrip("-").isdecimal():
            moment_ms = int(text)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            moment_ms = round(moment.timestamp() * 1000)
    except ValueError:
        raise ValueError(
            f"is '{text}', but must be milliseconds since 1970 or an ISO date and time"
        ) from None
    if abs(moment_ms) > TIME_MS_MAX:
        raise ValueError(f"is '{text}', which is beyond the year 9999")
    return moment_ms


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `30s`, `15m` or `1h`. Raises ValueError."""
    number = text.rstrip("msh ")
    unit = text[len(number) :].strip()
    try:
        if unit not in _UNITS or not 0 <= float(number) < math.inf:
            raise ValueError
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"is '{text}', but must be a duration such as 500ms, 30s, 15m or 1h") from None
    if seconds > WAIT_S_MAX:
        raise ValueError(f"is '{text}', which is longer than a year")
    return seconds
