"""Dispositions of very many deliveries are divided."""

from __future__ import annotations

import pytest

from protocol.codec import Described, Symbol, UInt, ULong
from protocol.limits import RESOURCE_LIMIT
from protocol.wide_dispositions import WideDispositions
from tests.support import raw_amqp as raw
from tests.support.engine_frames import disposition, disposition_ranges

TOP = 2**32 - 1
FRAME_BYTES_MAX = 2_048
LIST_AT = 11
"""Where the list of a performative begins, behind the header of the frame and a short descriptor."""


RECEIVED = raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)])


def wide(first: int, last: int, outcome: int = raw.ACCEPTED) -> bytes:
    return disposition(first, last, raw.outcome(outcome), settled=True)


MANY = 2**33
"""So many were sent that there are deliveries of all numbers."""


def divided(said: bytes, sent: int = MANY) -> bytes:
    """What becomes of a frame, with all that is left of it at first."""
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = sent
    whole = b""
    while said:
        found = dispositions.divide(said, LIST_AT, len(said))
        whole += said if found is None else found
        said = dispositions.take_rest()
        assert dispositions.had_enough or not said, "others have their turn before the rest"
    return whole


@pytest.mark.parametrize("first", [0, 7, 70_000, TOP - 2_000, TOP])
@pytest.mark.parametrize("count", [1_025, 2_048, 90_000, 131_072, 131_073, 1_000_000])
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
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = MANY
    said = wide(5, 2**31 - 1)
    found = disposition_ranges(dispositions.divide(said, LIST_AT, len(said)) or b"")
    assert len(found) == 128 and (found[0], found[-1]) == ((5, 1_028), (130_053, 131_076))
    assert disposition_ranges(dispositions.take_rest()) == [(131_077, 2**31 - 1)]
    assert not dispositions.take_rest()


def test_where_deliveries_end_the_rest_stays_whole() -> None:
    """There are none with the numbers behind."""
    assert disposition_ranges(divided(wide(5, 2**31 - 1), 2_000)) == [(5, 1_028), (1_029, 2**31 - 1)]


@pytest.mark.parametrize(
    "said",
    [
        wide(0, 1_023),
        wide(9, 9),
        wide(5_000, 0),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0), None, True]),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0)]),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, UInt(0), UInt(5_000), False, b"x" * 3_000]),
    ],
    ids=["few", "one", "backwards", "no-last", "short", "long-state"],
)
def test_other_dispositions_are_left_as_they_came(said: bytes) -> None:
    assert divided(said) == said


@pytest.mark.parametrize(
    "said",
    [
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, 0, 5_000]),
        raw.frame(raw.DISPOSITION, [raw.RECEIVER, ULong(0), UInt(5_000), False, RECEIVED]),
        raw.frame(raw.DISPOSITION, [b"x", UInt(0), UInt(5_000), False, RECEIVED]),
        raw.raw_frame(b"\x00\x53\x15\xc0\x09\x03\x41\x43\x70\x00\x00\xff\xff\x40"),
        raw.raw_frame(b"\x00\x53\x15\xc0\x0c\x05\x41\x43\x60\xff\xff\x42\x00\x53\x23\x45\x40"),
    ],
    ids=["longs", "ulong", "role", "beyond-its-list", "short-last"],
)
def test_what_is_malformed_is_refused(said: bytes) -> None:
    """Symptom: proton took it, and applied it undivided and uncounted, as often as it was said."""
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = MANY
    assert dispositions.divide(said, LIST_AT, len(said)) is None
    assert dispositions.refusal is not None and dispositions.refusal.condition == "amqp:decode-error"


@pytest.mark.parametrize("role", [b"\x41", b"\x56\x01"])
def test_both_spellings_of_the_role_are_known(role: bytes) -> None:
    frames = []
    for settled, outcome in ((b"\x42", 0x23), (b"\x41", 0x24)):
        state = b"\x00\x53" + bytes((outcome,)) + b"\x45"
        listed = b"\x05" + role + b"\x43\x70\x00\x00\x13\x87" + settled + state
        frames.append(divided(raw.raw_frame(b"\x00\x53\x15\xc0" + bytes((len(listed),)) + listed)))
    assert frames[0] == b"" and len(disposition_ranges(frames[1])) == 5


def test_what_the_peer_says_of_its_own_transfers_does_not_count() -> None:
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = 5_000
    said = raw.frame(raw.DISPOSITION, [raw.SENDER, UInt(0), UInt(4_999), True])
    for _ in range(1_000):
        assert dispositions.divide(said, LIST_AT, len(said)) is None
    assert dispositions.refusal is None


def test_numbers_that_no_delivery_has_had_do_not_count() -> None:
    for first in (0, 7_000):
        said = wide(first, first + 5_000)
        sent = (0, first, first + 1_024, first + 1_025, first + 5_000)
        assert [divided(said, each) == said for each in sent] == [True, True, True, False, False]


@pytest.mark.parametrize("first", [TOP, TOP - 2_000])
def test_deliveries_behind_the_end_of_the_numbers_count(first: int) -> None:
    """Symptom: a few bytes, from the last number on, kept the event loop busy for 0.1 s each time."""
    said = wide(first, 19_999)
    ranges = disposition_ranges(divided(said, 20_000))
    assert all((last - begin) % 2**32 < 1_024 for begin, last in ranges)
    assert (ranges[0][0], ranges[-1][1]) == (first, 19_999)
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = 20_000
    for _ in range(60):
        dispositions.divide(said, LIST_AT, len(said))
    assert dispositions.refusal is not None


def test_only_a_whole_frame_is_divided() -> None:
    said, dispositions = wide(0, 5_000), WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = MANY
    with pytest.raises(IndexError):
        dispositions.divide(said[:-1], LIST_AT, len(said))


def test_after_many_others_should_have_their_turn() -> None:
    dispositions = WideDispositions(FRAME_BYTES_MAX)
    dispositions.sent = MANY
    for said, enough_after in ((wide(0, 2**31 - 1), 1), (wide(0, 64 * 1_024 - 1), 2), (wide(0, 9), 8)):
        dispositions.begin()
        for number in range(enough_after):
            assert not dispositions.had_enough, number
            dispositions.divide(said, LIST_AT, len(said))
        assert dispositions.had_enough


NUMBERS = [UInt(3), UInt(700)]


@pytest.mark.parametrize("sent", [0, MANY])
@pytest.mark.parametrize(
    ("fields", "stays"),
    [
        ([raw.RECEIVER, *NUMBERS], False),
        ([raw.RECEIVER, *NUMBERS, False], False),
        ([raw.RECEIVER, *NUMBERS, None, None, True], False),
        ([raw.RECEIVER, *NUMBERS, False, RECEIVED], False),
        ([raw.RECEIVER, *NUMBERS, None, Described(Symbol("amqp:received:list"), [])], False),
        ([raw.RECEIVER, *NUMBERS, True], True),
        ([raw.RECEIVER, *NUMBERS, True, RECEIVED], True),
        ([raw.RECEIVER, *NUMBERS, False, raw.outcome(raw.MODIFIED, [True])], True),
        ([not raw.RECEIVER, *NUMBERS, False, RECEIVED], True),
    ],
)
def test_what_says_nothing_is_dropped(fields: list[object], stays: bool, sent: int) -> None:
    said = raw.frame(raw.DISPOSITION, fields)
    assert divided(said, sent) == (said if stays else b"")


@pytest.mark.parametrize("sent", [700, 30_000, 2_000_000])
def test_who_names_deliveries_again_and_again_is_refused(sent: int) -> None:
    """Symptom: 700 KB of dispositions about the same deliveries kept the event loop busy for minutes."""
    dispositions, said = WideDispositions(FRAME_BYTES_MAX), wide(0, 2**31 - 1)
    dispositions.sent = sent
    times = 0
    while dispositions.refusal is None:
        rest = said
        while rest and dispositions.refusal is None:
            dispositions.divide(rest, LIST_AT, len(rest))
            rest = dispositions.take_rest()
        times += 1
    assert times == (4 * sent + 2**20) // sent + 1
    assert dispositions.refusal.condition == RESOURCE_LIMIT
