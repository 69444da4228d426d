"""Tokens that the key of a connection string signs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyspark_partibus.client import pool
from pyspark_partibus.client.pool import checked_out
from pyspark_partibus.client.tokens import LIFETIME_S, RENEWED_AFTER_S, has_tokens, token_for
from pyspark_partibus.endpoint import Endpoint, parse_endpoint
from tests.support.sas import sas_token

CONNECTION_STRING = "Endpoint=sb://host;SharedAccessKeyName=my key;SharedAccessKey=c2VjcmV0PQ=="


def test_a_token_is_one_that_the_service_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.5)
    token, valid_s = token_for(parse_endpoint(CONNECTION_STRING), "topic/Subscriptions/one")
    official = sas_token(
        "sb://host/topic/Subscriptions/one",
        key_name="my%20key",
        key="c2VjcmV0PQ==",
        expires_at_s=1000 + LIFETIME_S,
    )
    assert (token, valid_s) == (official, RENEWED_AFTER_S)


def test_a_token_is_renewed_in_time_also_where_the_clock_is_days_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    day_s, now_s = 24 * 3600, 1_700_000_000
    monkeypatch.setattr("time.time", lambda: now_s - 3 * day_s)
    token, valid_s = token_for(parse_endpoint(CONNECTION_STRING), "orders")
    (expires,) = (int(part[3:]) for part in token.split("&") if part.startswith("se="))
    assert now_s + valid_s + day_s < expires


def test_a_token_of_the_user_is_passed_on_and_a_login_needs_none() -> None:
    assert token_for(Endpoint("host", 1, False, token="mine"), "orders") == ("mine", math.inf)
    assert not has_tokens(parse_endpoint("amqp://user:key@host"))
    assert has_tokens(parse_endpoint(CONNECTION_STRING))


def test_a_token_is_put_for_each_address_and_renewed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, put = [0.0], []

    class FakeConnection:
        def __init__(self, *_: Any) -> None:
            self.timeout_s = 0.0

        def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(pool, "Connection", FakeConnection)
    monkeypatch.setattr(pool, "_connections", {})
    monkeypatch.setattr(pool, "_authorised", {})
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(pool, "put_token", lambda connection, audience, token: put.append(audience))
    endpoint = parse_endpoint(CONNECTION_STRING)
    now[0] = 1.0
    for address in ("orders", "orders", "others"):
        checked_out(endpoint, 1.0, address)
    assert put == ["sb://host/orders", "sb://host/others"]
    now[0] += RENEWED_AFTER_S
    checked_out(endpoint, 1.0, "orders")
    assert put[2:] == ["sb://host/orders"]
