"""Options: defaults, rules, and errors that name the option."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pyspark_partibus.columns import COLUMNS, MORE_COLUMNS
from pyspark_partibus.errors import OptionError
from pyspark_partibus.options import (
    ENDPOINT_VARIABLE,
    SINK,
    SOURCE,
    parse_duration,
    parse_start,
    parse_time,
    sink_options,
    source_options,
)

BASE = {"endpoint": "amqp://user:pw@host", "entity": "orders"}


def test_a_source_needs_an_endpoint_and_an_entity() -> None:
    options = source_options(BASE)
    assert (options.address, options.endpoint.host, options.max_messages) == ("orders", "host", 200_000)
    assert (options.starting, options.settle, options.fail_on_data_loss) == (None, "cursor", True)
    with pytest.raises(OptionError, match="option 'endpoint': is missing"):
        source_options({"entity": "orders"})
    with pytest.raises(OptionError, match="option 'entity': is missing"):
        source_options({"endpoint": "amqp://host"})


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "orders"),
        ({"subqueue": "deadletter"}, "orders/$DeadLetterQueue"),
        ({"subqueue": "TransferDeadletter"}, "orders/$Transfer/$DeadLetterQueue"),
        ({"subscription": "all", "subqueue": "deadletter"}, "orders/Subscriptions/all/$DeadLetterQueue"),
    ],
)
def test_the_address_of_each_subqueue(given: dict[str, str], address: str) -> None:
    assert source_options(BASE | given).address == address


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"startingOffset": "latest"}, "startingoffset"),
        ({"idStrategy": "none"}, "idStrategy"),
        ({"startingOffsets": "newest"}, "startingOffsets"),
        ({"startingOffsets": '{"0": "x"}'}, "startingOffsets"),
        ({"startingOffsets": '{"1": 41095346599755778}'}, "startingOffsets"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"startingOffsets": "committed"}, "cursor"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger"),
        ({"maxMessagesPerTrigger": "-1"}, "maxMessagesPerTrigger"),
        ({"fetchMessages": "5000"}, "fetchMessages"),
        ({"settle": "all"}, "settle"),
        ({"cursorTakeover": "yes"}, "cursorTakeover"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"requestTimeout": "0s"}, "requestTimeout"),
        ({"subqueue": "other"}, "subqueue"),
        ({"sasl.username": "me"}, "sasl.password"),
        ({"sasl.username": "me", "sasl.password": "pw", "token": "t"}, "token"),
        ({"tls.caFile": "/ca.pem"}, "tls.caFile"),
        ({"sasl.mechanism": "external"}, "sasl.mechanism"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay"),
        ({"credentialsFile": "/nowhere.json"}, "credentialsFile"),
        ({"onBadMessage": "deadletter"}, "onBadMessage"),
        ({"maxMessagesPerTrigger": "1" + "0" * 30}, "maxMessagesPerTrigger"),
        ({"headPollMs": "1" + "0" * 400}, "headPollMs"),
        ({"requestTimeout": "1e300s"}, "requestTimeout"),
        ({"retryTimeout": "1e308h"}, "retryTimeout"),
        ({"startingTimestamp": "1" + "0" * 30}, "startingTimestamp"),
        ({"startingTimestamp": "²"}, "startingTimestamp"),
        ({"startingTimestamp": "--5"}, "startingTimestamp"),
        ({"startingOffsets": "[" * 100_000}, "startingOffsets"),
        ({"startingOffsets": '{"0": ' + "9" * 30 + "}"}, "startingOffsets"),
        ({"entity": "orders\0x"}, "entity"),
        ({"subscription": "all\0x"}, "subscription"),
        ({"cursor": "x" * 129}, "cursor"),
    ],
)
def test_an_error_of_the_source_names_its_option(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        source_options(BASE | given)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"cursor": "c"}, "cursor"),
        ({"idStrategy": "position"}, "idStrategy"),
        ({"sinkId": "x" * 91}, "sinkId"),
        ({"writeId": "x" * 101}, "writeId"),
        ({"writeVersion": "1"}, "writeVersion"),
        ({"writeId": "w", "writeVersion": "-1"}, "writeVersion"),
        ({"sendMessages": "0"}, "sendMessages"),
        ({"unknownColumns": "drop"}, "unknownColumns"),
    ],
)
def test_an_error_of_the_sink_names_its_option(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        sink_options(BASE | given)


def test_names_of_options_may_have_any_case_and_spark_adds_some() -> None:
    options = sink_options(
        {**{name.upper(): value for name, value in BASE.items()}, "checkpointLocation": "/tmp/c"}
    )
    assert (options.address, options.id_strategy, options.require_exactly_once) == ("orders", None, False)
    assert sink_options({"endpoint": "amqp://host"}).address is None


def test_a_connection_string_and_the_option_name_the_same_entity() -> None:
    named = {"endpoint": "Endpoint=sb://host;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=Orders"}
    assert source_options(named).address == sink_options(named).address == "Orders"
    assert source_options({**named, "entity": "orders/"}).address == "orders"
    for read in (source_options, sink_options):
        with pytest.raises(
            OptionError, match="option 'entity': is 'others', but the endpoint has EntityPath"
        ):
            read({**named, "entity": "others"})


def test_credentials_may_be_in_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"endpoint": "amqps://host", "sasl.username": "me", "sasl.password": "pw"}))
    endpoint = source_options({"credentialsFile": str(file), "entity": "orders"}).endpoint
    assert (endpoint.host, endpoint.username, endpoint.password, endpoint.mechanism) == (
        "host",
        "me",
        "pw",
        "PLAIN",
    )
    file.write_text(json.dumps({"sasl.user": "me"}))
    with pytest.raises(OptionError, match=r"unknown key 'sasl\.user'"):
        source_options({"credentialsFile": str(file), "entity": "orders"})
    monkeypatch.setenv(ENDPOINT_VARIABLE, "amqp://elsewhere")
    assert source_options({"entity": "orders"}).endpoint.host == "elsewhere"


def test_a_token_replaces_the_key_of_a_connection_string() -> None:
    connection = "Endpoint=sb://host;SharedAccessKeyName=k;SharedAccessKey=s;EntityPath=orders"
    options = source_options({"endpoint": connection, "token": "t"})
    assert (options.endpoint.token, options.endpoint.password, options.endpoint.mechanism) == (
        "t",
        None,
        "ANONYMOUS",
    )
    assert options.address == "orders"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Earliest", "earliest"),
        ('{"0": -1, "1": -2, "2": 7}', {0: -1, 1: -2, 2: 7}),
        ('{"146": 41095346599755778, "0": 0}', {146: 2, 0: 1}),
    ],
)
def test_starting_offsets(text: str, start: object) -> None:
    assert parse_start(text) == start


def test_the_page_on_spark_has_every_option_and_column_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1]
        for line in page.partition("### Message-ids")[0].splitlines()
        if line.startswith("|")
    ]
    rows += [
        line.split("|")[1]
        for line in page.partition("## Options of both")[2].splitlines()
        if line.startswith("|")
    ]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert named == {*SOURCE, *SINK, *COLUMNS, *MORE_COLUMNS}


def test_times_and_durations() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20") == parse_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert [parse_duration(text) for text in ("500ms", "30s", "15m", "1.5h", "2 s")] == [
        0.5,
        30,
        900,
        5400,
        2,
    ]
    for text in ("5", "s", "5d", "-1s", "5 s m", "infs", "nanms", "1e400h"):
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)
