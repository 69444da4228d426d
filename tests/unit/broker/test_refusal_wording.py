import re

import pytest

from broker.base.errors import Reason, Refused
from broker.refusal_wording import error_of, http_status_of, status_of

PYTHON_AND_JS_REPEAT = {"com.microsoft:server-busy", "com.microsoft:timeout", "amqp:internal-error"}
"""Conditions that both official clients retry (AMQP contract 9.2, watched)."""


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_words_on_every_wire(reason: Reason) -> None:
    error = error_of(Refused(reason, "why"))
    status, condition = status_of(reason)
    assert error.condition == condition
    assert re.fullmatch(r"(amqp|com\.microsoft|partibus):[a-z:-]+", condition)
    assert 400 <= status < 600
    http_status, sub_code = http_status_of(reason)
    assert 400 <= http_status < 600
    assert sub_code == 0 or 40000 <= sub_code < 51000


@pytest.mark.parametrize(
    "reason", [Reason.PARTITION_UNAVAILABLE, Reason.SERVER_BUSY, Reason.TIMEOUT, Reason.INTERNAL]
)
def test_what_passes_is_repeated_by_the_clients(reason: Reason) -> None:
    assert status_of(reason)[1] in PYTHON_AND_JS_REPEAT


@pytest.mark.parametrize(
    ("ended", "lost"),
    [(Reason.LOCK_ENDED, Reason.LOCK_LOST), (Reason.SESSION_LOCK_ENDED, Reason.SESSION_LOCK_LOST)],
)
def test_a_lock_that_ended_with_its_partition_is_lost_to_the_client(ended: Reason, lost: Reason) -> None:
    assert status_of(ended) == status_of(lost) and http_status_of(ended) == http_status_of(lost) == (
        404,
        40400,
    )


PERMANENT = {
    Reason.LOCK_LOST,
    Reason.LOCK_ENDED,
    Reason.ENTITY_NOT_FOUND,
    Reason.NOT_ALLOWED,
    Reason.ARGUMENT,
    Reason.QUOTA_EXCEEDED,
    Reason.DISK_FULL,
}


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason in PERMANENT])
def test_what_is_permanent_is_not(reason: Reason) -> None:
    assert status_of(reason)[1] not in PYTHON_AND_JS_REPEAT


@pytest.mark.parametrize(
    "description", ["no queue 'orders'", "The messaging entity 'sb://h/orders' could not be found."]
)
def test_a_missing_entity_is_told_in_the_words_that_javascript_and_java_know(description: str) -> None:
    text = error_of(Refused(Reason.ENTITY_NOT_FOUND, description)).description
    assert re.search("The messaging entity .* could not be found", text)
    assert description in text


def test_all_other_descriptions_go_out_as_they_are() -> None:
    assert (
        error_of(Refused(Reason.ARGUMENT, "the session-id is too long")).description
        == "the session-id is too long"
    )
