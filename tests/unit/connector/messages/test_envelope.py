"""Taking envelopes apart."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_partibus.client.values import Array, UInt
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.envelope import Report, read_envelope
from tests.support.spark_envelopes import UINTS, envelope, section

MESSAGES = [section(0x75, b"a" * size) for size in (0, 300, 3)]


def test_an_envelope_has_its_messages_and_columns() -> None:
    read = read_envelope(envelope(MESSAGES, first=(3 << 48) + 7, missing=UInt(2), last=False))
    assert [bytes(read.data[start:end]) for start, end in read.bounds()] == MESSAGES
    assert (read.generation, read.partition, read.last, read.report) == ("gen", 3, False, Report(missing=2))
    assert (read.start, read.next) == ((3 << 48) + 7, (3 << 48) + 10)
    assert list(read.sequence_numbers) == [(3 << 48) + 7, (3 << 48) + 8, (3 << 48) + 9]
    assert read.enqueued_times[2] == 1_700_000_000_002


def test_an_envelope_may_be_empty() -> None:
    read = read_envelope(envelope([], next=900))
    assert (list(read.bounds()), read.next) == ([], 900)


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": None},
        {"ends": None},
        {"ends": Array(UINTS, [1, 2])},
        {"ends": Array(UINTS, [1, 2, 3])},
        {"delivery_counts": Array(UINTS, [0])},
    ],
)
def test_an_envelope_that_does_not_add_up_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        read_envelope(envelope(MESSAGES, **changed))


def test_a_message_is_no_envelope() -> None:
    with pytest.raises(BadMessage, match="without annotations"):
        read_envelope(MESSAGES[1])


def test_reports_add_up() -> None:
    total = Report(1, 2, 3, 4, 5) + Report(10, 20, 30, 40, 50)
    assert total == Report(11, 22, 33, 44, 55)
    assert "33 expired" in str(total)
