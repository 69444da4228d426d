"""Dispositions of very many deliveries are divided."""

from __future__ import annotations

import pytest

from protocol.codec import DecodeError, UInt
from protocol.wide_dispositions import WideDispositions
from tests.support import raw_amqp as raw
from tests.support.engine_frames import disposition, disposition_ranges

TOP = 2**32 - 1
FRAME_BYTES_MAX = 2_048
LIST_AT = 11
"""Where the list of a performative begins, behind the header of the frame and a short descriptor."""


def wide(first: int, last: int, outcome: int = raw.ACCEPTED) -> bytes:
    return disposition(first, last, raw.outcome(outcome), settled=True)


def divided(said: bytes, below: int = 2**31) -> bytes:
    """What becomes of a frame."""
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.below = below
    found = dispositions.divide(said, LIST_AT, len(said))
    return said if found is None else found


@pytest.mark.parametrize("first", [0, 7, 70_000, TOP - 2_000, TOP])
@pytest.mark.parametrize("count", [1_025, 2_048, 90_000])
@pytest.mark.parametrize("outcome", [raw.ACCEPTED, raw.RELEASED])
def test_a_disposition_of_many_deliveries_becomes_several_of_few(
    first: int, count: int, outcome: int
) -> None:
    found = disposition_ranges(divided(wide(first, (first + count - 1) % 2**32, outcome)))
    assert all((last - begin) % 2**32 < 1_024 for begin, last in found)
    expected = first
    for begin, last in found:
        assert begin == expected
        expected = (last + 1) % 2**32
    assert expected == (first + count) % 2**32


def test_a_disposition_of_more_deliveries_than_there_can_be_becomes_no_flood() -> None:
    found = disposition_ranges(divided(wide(5, 2**31 - 1)))
    assert len(found) == 128 and (found[0], found[-1][1]) == ((5, 1_028), 2**31 - 1)


@pytest.mark.parametrize(
    "said",
    [
        wide(0, 1_023),
        wide(9, 9),
        wide(5_000, 0),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0), None, True]),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0)]),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0), UInt(5_000), False, b"x" * 3_000]),
        raw.raw_frame(b"\x00\x53\x15\xc0\x09\x03\x41\x43\x70\x00\x00\xff\xff\x40"),
    ],
    ids=["few", "one", "backwards", "no-last", "short", "long-state", "beyond-its-list"],
)
def test_other_dispositions_are_left_as_they_came(said: bytes) -> None:
    assert divided(said) == said


def test_numbers_of_another_type_are_left_to_proton() -> None:
    with pytest.raises(DecodeError):
        divided(raw.frame(raw.DISPOSITION, [raw.RECEIVER, 0, 5_000]))


def test_nothing_is_divided_unless_many_deliveries_are_unsettled() -> None:
    said = wide(0, 5_000)
    assert [divided(said, below) == said for below in (0, 1_024, 1_025, 5_000)] == [True, True, False, False]


def test_only_a_whole_frame_is_divided() -> None:
    said, dispositions = wide(0, 5_000), WideDispositions(FRAME_BYTES_MAX)
    assert dispositions.divide(said[:-1], LIST_AT, len(said)) is None, "nothing need be divided"
    dispositions.below = 2**31
    with pytest.raises(IndexError):
        dispositions.divide(said[:-1], LIST_AT, len(said))


def test_after_many_others_should_have_their_turn() -> None:
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.below = 2**31
    for said, enough_after in ((wide(0, 2**31 - 1), 1), (wide(0, 64 * 1_024 - 1), 2), (wide(0, 9), 8)):
        dispositions.begin()
        for number in range(enough_after):
            assert not dispositions.had_enough, number
            dispositions.divide(said, LIST_AT, len(said))
        assert dispositions.had_enough
