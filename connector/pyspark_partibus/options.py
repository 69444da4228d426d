"""The options of the source and the sink: their names, defaults and rules, read once into plain data.

Every error names its option. An option that is unknown, or that belongs to the other direction, is an error,
because one that is misspelt and ignored would do harm quietly.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark_partibus.client.patience import Patience
from pyspark_partibus.endpoint import OPTION, Endpoint, parse_endpoint
from pyspark_partibus.errors import OptionError
from pyspark_partibus.option_values import (
    COMMITTED,
    EARLIEST,
    WAIT_S_MAX,
    Start,
    parse_duration,
    parse_start,
    parse_time,
)

ENDPOINT_VARIABLE = "PARTIBUS_ENDPOINT"
CURSOR_BYTES_MAX = 128
"""The longest name of a cursor that the broker takes."""
SINK_ID_BYTES_MAX, WRITE_ID_BYTES_MAX = 90, 100
"""The broker takes names of sinks up to 128 bytes. To a `sinkId` we append a slash and the query's id, which
are 37 bytes."""
NUMBER_MAX = (1 << 63) - 1
"""The largest number of the broker, and of Spark."""
OF_SPARK = ("checkpointLocation", "queryName")
"""Options of Spark itself, which it also passes to the sink of a stream. The sink does not use them."""
PATHS = ("path", "paths")
"""The options that Spark makes of the paths given to `load`, `save` and `start`."""

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
    """Reads the given options one at a time, and refuses those that the direction does not have."""

    def __init__(self, given: Mapping[str, str], allowed: tuple[str, ...], direction: str) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items() if value is not None}
        known = {name.lower(): name for name in allowed}
        others = {name.lower(): name for name in (*SOURCE, *SINK, *OF_SPARK)}
        for name in sorted(self._given.keys() - known.keys()):
            if name in PATHS:
                raise OptionError(name, "is not used: name the queue or topic with option 'entity'")
            if name in others:
                raise OptionError(others[name], f"is not an option of the {direction}")
            similar = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{known[similar[0]]}'? " if similar else ""
            raise OptionError(name, f"is unknown; {hint}the {direction} knows {', '.join(allowed)}")
        for name, value in sorted(self._given.items()):
            if not value:
                raise OptionError(known[name], "is empty; give it a value, or leave it out")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and "\0" in value:
            raise OptionError(name, "contains a NUL character")
        return value

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
    starting, starting_time = _offsets_or_time(read, "starting")
    ending, ending_time = _offsets_or_time(read, "ending")
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


def _offsets_or_time(read: _Reader, side: str) -> tuple[Start | None, int | None]:
    """Where to begin or to end, which is given as positions or as a time, but not as both."""
    nowhere: Start | None = None
    never: int | None = None
    offsets = read.parsed(f"{side}Offsets", parse_start, nowhere)
    time_ms = read.parsed(f"{side}Timestamp", parse_time, never)
    if offsets is not None and time_ms is not None:
        raise OptionError(f"{side}Timestamp", f"cannot be given together with '{side}Offsets'")
    return offsets, time_ms


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check and read the options of a sink. Raises OptionError."""
    read = _Reader(given, (*SINK, *OF_SPARK), "sink")
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


def check_batch_sink(given: Mapping[str, str], options: SinkOptions) -> None:
    """Refuse what only a stream has, and what a batch query cannot keep. Raises OptionError."""
    _refuse(given, OF_SPARK, "is for streams only")
    if options.require_exactly_once and options.write_id is None:
        raise OptionError("requireExactlyOnce", "needs option 'writeId' in a batch query")
    if options.sink_id is not None:
        raise OptionError("sinkId", "is for streams; a batch query has 'writeId'")


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
            "cursor", "is not moved with settle=none; there it is only for startingOffsets=committed"
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
    return {name.lower() for name, value in given.items() if value is not None}


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
    """The endpoint with the credentials, from the options or a file. Two different values for one of them are
    an error, so that none is ignored."""
    nothing: dict[str, str] = {}
    file = read.parsed("credentialsFile", _credentials_file, nothing)

    def given(name: str) -> str | None:
        option, in_file = read.text(name), file.get(name.lower())
        if option is not None and in_file is not None and option != in_file:
            raise OptionError(name, "has another value in 'credentialsFile'; give it in one place")
        return option or in_file

    text = given(OPTION) or os.environ.get(ENDPOINT_VARIABLE)
    if not text:
        raise OptionError(
            OPTION, f"is missing; it may also be in the environment variable {ENDPOINT_VARIABLE}"
        )
    endpoint = _with_credentials(
        parse_endpoint(text), given("sasl.username"), given("sasl.password"), given("token")
    )
    return _with_tls_files(
        endpoint, {name: given(name) for name in ("tls.caFile", "tls.certFile", "tls.keyFile")}
    )


def _with_tls_files(endpoint: Endpoint, files: Mapping[str, str | None]) -> Endpoint:
    """The endpoint with the PEM files of the options. Raises OptionError."""
    for name, path in files.items():
        if path is not None and not endpoint.tls:
            raise OptionError(name, "needs an endpoint with TLS: amqps://, or no UseDevelopmentEmulator=true")
    if files["tls.keyFile"] is not None and files["tls.certFile"] is None:
        raise OptionError("tls.keyFile", "needs tls.certFile")
    return replace(
        endpoint,
        ca_file=files["tls.caFile"],
        cert_file=files["tls.certFile"],
        key_file=files["tls.keyFile"],
    )


def _with_credentials(
    endpoint: Endpoint, username: str | None, password: str | None, token: str | None
) -> Endpoint:
    """The endpoint with the credentials that the options give. Raises OptionError."""
    if username is None and password is None and token is None:
        if endpoint.needs_credentials:
            raise OptionError(
                OPTION,
                "has a connection string without SharedAccessKeyName and SharedAccessKey, or "
                "SharedAccessSignature; and there is neither 'token' nor 'sasl.username' and 'sasl.password'",
            )
        return endpoint
    if token is not None and (username or password):
        raise OptionError("token", "cannot be given together with sasl.username and sasl.password")
    if token is None and (username is None or password is None):
        raise OptionError(
            "sasl.password" if password is None else "sasl.username",
            "is missing: sasl.username and sasl.password must be given together",
        )
    if endpoint.has_credentials:
        raise OptionError(
            "sasl.username" if token is None else "token",
            "cannot be given together with a key or token in the endpoint",
        )
    if token is not None:
        return replace(endpoint, token=token)
    return replace(endpoint, username=username, password=password, mechanism="PLAIN")


def _credentials_file(path: str) -> dict[str, str]:
    """The JSON object in a file, whose keys are options of the endpoint and its credentials. Raises
    ValueError."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"'{path}' is not JSON") from None
    allowed = {name.lower() for name in CONNECTION} - {"credentialsfile", "requesttimeout", "retrytimeout"}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError(f"'{path}' must have one JSON object of strings")
    lowered = {name.lower(): each for name, each in value.items()}
    if unknown := lowered.keys() - allowed:
        raise ValueError(f"'{path}' has the unknown key '{sorted(unknown)[0]}'")
    return lowered
