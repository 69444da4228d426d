"""broker/messaging/forward_retry.py: pauses double while it fails, and are short again afterwards."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.messaging import forward_retry
from broker.messaging.forward_retry import Retry

DOWN, BUSY = Reason.PARTITION_UNAVAILABLE, Reason.SERVER_BUSY


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 1.0)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 4.0)


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_success() -> None:
    retry, now, waited = Retry(), 0.0, []
    for _ in range(4):
        retry.failed(DOWN, now)
        assert retry.at is not None
        waited.append(retry.at - now)
        now = retry.at
        assert not retry.take_due(now - 0.1) and retry.take_due(now) and not retry.take_due(now)
    assert waited == [1.0, 2.0, 4.0, 4.0]
    assert retry.succeeded() and not retry.succeeded()
    retry.failed(DOWN, now)
    assert retry.at == now + 1.0


def test_failures_while_it_waits_do_not_put_it_off_and_only_new_reasons_are_told() -> None:
    retry = Retry()
    assert retry.failed(DOWN, 0.0) and not retry.failed(DOWN, 0.5) and retry.failed(BUSY, 0.6)
    assert (retry.at, retry.reason) == (1.0, BUSY)


def test_what_waits_can_be_tried_at_once() -> None:
    retry = Retry()
    retry.hurry(5.0)
    assert retry.at is None, "nothing waits"
    retry.later(5.0)
    retry.hurry(5.5)
    assert retry.take_due(5.5)
