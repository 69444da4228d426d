"""Refusals over HTTP: their status, their form, and what a client is told to do."""

from __future__ import annotations

import re

import pytest
from lxml import etree

from broker.base.errors import Reason, Refused
from broker.http.refusals import HttpRefusal, refusal_of
from broker.refusal_wording import http_status_of

NOW_MS = 1_767_607_200_123  # 2026-01-05T10:00:00.123Z


def detail_of(refusal: HttpRefusal) -> str:
    body = refusal.response("orders", "sbemulatorns", NOW_MS).body
    assert isinstance(body, bytes)
    detail = etree.fromstring(body).findtext("Detail")
    assert detail is not None
    return detail


def test_an_error_tells_what_is_wrong_where_and_when() -> None:
    refusal = HttpRefusal(409, 40900, "It is there.", {"X-More": "yes"})
    response = refusal.response("orders", "sbemulatorns", NOW_MS)
    assert (response.status, response.headers["X-More"]) == (409, "yes")
    assert re.fullmatch(
        r"SubCode=40900\. It is there\. TrackingId:[0-9a-f-]{36}_G0, "
        r"SystemTracker:sbemulatorns:orders, Timestamp:2026-01-05T10:00:00",
        detail_of(refusal),
    )


def test_an_error_without_a_sub_code_begins_with_its_text() -> None:
    assert detail_of(HttpRefusal(400, 0, "No.")).startswith("No. TrackingId:")


@pytest.mark.parametrize("reason", Reason)
def test_a_client_is_told_to_wait_where_a_second_attempt_may_succeed(reason: Reason) -> None:
    refusal = refusal_of(Refused(reason, "why"))
    assert (refusal.status, refusal.sub_code) == http_status_of(reason)
    assert refusal.detail == "why"
    assert refusal.headers == ({"Retry-After": "2"} if refusal.status in (429, 503) else {})
