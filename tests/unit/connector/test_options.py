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
    check_batch_sink,
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
        ({"cursor": "x" * 129}, "cursor"),
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


KEYLESS = "Endpoint=sb://host;EntityPath=orders"
KEYED = f"{KEYLESS};SharedAccessKeyName=k;SharedAccessKey=s"
LOGIN = {"sasl.username": "me", "sasl.password": "pw"}


def test_credentials_are_in_the_endpoint_or_beside_it() -> None:
    token = source_options({"endpoint": KEYLESS, "token": "t"})
    assert (token.endpoint.token, token.endpoint.mechanism, token.address) == ("t", "ANONYMOUS", "orders")
    login = source_options({"endpoint": KEYLESS, **LOGIN}).endpoint
    assert (login.username, login.password, login.mechanism, login.signs_tokens) == (
        "me",
        "pw",
        "PLAIN",
        False,
    )
    with pytest.raises(OptionError, match=r"option 'endpoint': .* neither 'token' nor 'sasl"):
        source_options({"endpoint": KEYLESS})


@pytest.mark.parametrize("endpoint", [KEYED, f"{KEYLESS};SharedAccessSignature=s", "amqp://user:pw@host"])
@pytest.mark.parametrize(("given", "option"), [({"token": "t"}, "token"), (LOGIN, "sasl.username")])
def test_one_of_two_credentials_is_not_ignored(endpoint: str, given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}': cannot be given together with a key"):
        source_options({"endpoint": endpoint, "entity": "orders", **given})


def test_an_option_that_differs_from_the_file_is_not_ignored(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"endpoint": "amqps://host"}))
    given = {"credentialsFile": str(file), "entity": "orders"}
    assert source_options({**given, "endpoint": "amqps://host"}).endpoint.host == "host"
    with pytest.raises(OptionError, match="option 'endpoint': has another value in 'credentialsFile'"):
        source_options({**given, "endpoint": "amqps://other"})


@pytest.mark.parametrize("name", [name for name in SOURCE if name != "entity"])
def test_an_empty_option_of_the_source_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}': is empty"):
        source_options({**BASE, name: " "})


@pytest.mark.parametrize("name", SINK)
def test_an_empty_option_of_the_sink_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}': is empty"):
        sink_options({**BASE, name: ""})


@pytest.mark.parametrize("name", ["path", "paths"])
def test_a_path_names_no_entity(name: str) -> None:
    for read in (source_options, sink_options):
        with pytest.raises(OptionError, match=f"option '{name}': .* with option 'entity'"):
            read({**BASE, name: "others"})


def test_what_belongs_to_the_sink_of_a_stream_is_refused_elsewhere() -> None:
    for name in ("checkpointLocation", "queryName"):
        with pytest.raises(OptionError, match=f"option '{name}': is not an option of the source"):
            source_options({**BASE, name: "x"})
        with pytest.raises(OptionError, match=f"option '{name}': is for streams only"):
            given = {**BASE, name: "x"}
            check_batch_sink(given, sink_options(given))


def test_a_misspelt_option_gets_a_hint() -> None:
    with pytest.raises(
        OptionError, match="option 'startingoffset': is unknown; did you mean 'startingOffsets'"
    ):
        source_options({**BASE, "startingOffset": "latest"})


@pytest.mark.parametrize("name", ["tls.caFile", "tls.certFile"])
def test_a_file_for_tls_without_tls_is_named(name: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}': needs an endpoint with TLS"):
        source_options({**BASE, name: "/some.pem"})


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
