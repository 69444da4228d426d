"""Endpoints: addresses and connection strings, and what is wrong with them."""

from __future__ import annotations

import pytest

from pyspark_partibus.endpoint import Endpoint, parse_endpoint
from pyspark_partibus.errors import OptionError

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0PQ=="


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("amqp://localhost", Endpoint("localhost", 5672, False)),
        ("amqps://bus:7000", Endpoint("bus", 7000, True)),
        (
            "amqp://us%40er:p%2Fw@[::1]:1",
            Endpoint("::1", 1, False, username="us@er", password="p/w", mechanism="PLAIN"),
        ),
        (
            f"Endpoint=sb://localhost:5673;{KEY};UseDevelopmentEmulator=true;",
            Endpoint("localhost", 5673, False, username="root", password="c2VjcmV0PQ==", signs_tokens=True),
        ),
        (
            f"Endpoint=sb://bus.example/;{KEY};EntityPath=orders",
            Endpoint(
                "bus.example",
                5671,
                True,
                username="root",
                password="c2VjcmV0PQ==",
                signs_tokens=True,
                entity="orders",
            ),
        ),
        ("Endpoint=sb://bus", Endpoint("bus", 5671, True, needs_credentials=True)),
        (
            "Endpoint=sb://bus;SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=1&skn=k",
            Endpoint("bus", 5671, True, token="SharedAccessSignature sr=a&sig=b&se=1&skn=k"),
        ),
    ],
)
def test_an_endpoint_is_an_address_or_a_connection_string(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" ", "is empty"),
        ("localhost:5672", "neither"),
        ("amqp://", "names no host"),
        ("amqp://host:port", "not a valid address"),
        ("amqp://host/orders", "option 'entity'"),
        ("amqp://root:a/b=@host", "percent-encoded"),
        (
            f"Endpoint=sb://host;{KEY};SharedAccessSignature=s",
            "both SharedAccessKey and SharedAccessSignature",
        ),
        (f"Endpoint=http://host;{KEY}", "sb://"),
        (f"Endpoint=sb://host:many;{KEY}", "valid Endpoint"),
        ("Endpoint=sb://host;SharedAccessKeyName=a", "SharedAccessKey"),
        ("Endpoint=sb://host;secret", "without '='"),
        (f"Endpoint=sb://host;{KEY};TransportType=AmqpWebSockets", "has a part that is none of Endpoint, "),
    ],
)
def test_an_error_names_the_option(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match="option 'endpoint'") as raised:
        parse_endpoint(text)
    assert problem in str(raised.value)


def test_no_secret_is_in_the_text_of_an_endpoint() -> None:
    endpoint = parse_endpoint(f"Endpoint=sb://host;{KEY}")
    assert "c2Vj" not in repr(endpoint)
    assert "c2Vj" not in repr(Endpoint("host", 1, False, token="c2Vj"))
    assert endpoint.address == "amqps://host:5671"
