"""Dispositions of very many deliveries are divided."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol._runs import ffi
from protocol.codec import Described, Symbol, UInt, ULong
from protocol.limits import RESOURCE_LIMIT
from protocol.wide_dispositions import WideDispositions
from tests.support import raw_amqp as raw
from tests.support.delivery_numbers import session_ids
from tests.support.engine_frames import disposition, disposition_ranges

TOP = 2**32 - 1
FRAME_BYTES_MAX = 2_048
LIST_AT = 11
"""Where the list of a performative begins, behind the header of the frame and a short descriptor."""


RECEIVED = raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)])


def wide(first: int, last: int, outcome: int = raw.ACCEPTED) -> bytes:
    return disposition(first, last, raw.outcome(outcome), settled=True)


MANY = 2**33
"""So many were sent that none is named too often."""


def of_peer(sent: int = MANY) -> WideDispositions:
    """The dispositions of a peer that was sent so many deliveries."""
    dispositions = WideDispositions(FRAME_BYTES_MAX, ffi.new("delivery_ids_t *"))
    dispositions.sent = sent
    return dispositions


def divided(said: bytes, end: int) -> bytes:
    """What becomes of a frame, with all that is left of it at first. `end`: the number of the delivery that
    is sent next in its session."""
    dispositions, session, whole = of_peer(), session_ids(end), b""
    while said:
        dispositions.begin()
        found = dispositions.divide(said, LIST_AT, len(said), session)
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
    end = (first + count) % 2**32
    found = disposition_ranges(divided(wide(first, (end - 1) % 2**32, outcome), end))
    assert all((last - begin) % 2**32 < 1_024 for begin, last in found)
    expected = first
    for begin, last in found:
        assert begin == expected
        expected = (last + 1) % 2**32
    assert expected == end


def test_a_disposition_of_more_deliveries_than_there_can_be_becomes_no_flood() -> None:
    dispositions, session = of_peer(), session_ids(2**31)
    said = wide(5, 2**31 - 1)
    found = disposition_ranges(dispositions.divide(said, LIST_AT, len(said), session) or b"")
    assert len(found) == 7 and (found[0], found[-1]) == ((5, 1_028), (6_149, 7_172))
    assert disposition_ranges(dispositions.take_rest()) == [(7_173, 2**31 - 1)]
    assert not dispositions.take_rest()


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
    assert divided(said, 5_001) == said


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
    dispositions = of_peer()
    assert dispositions.divide(said, LIST_AT, len(said), session_ids(1 << 20)) is None
    assert dispositions.refusal is not None and dispositions.refusal.condition == "amqp:decode-error"


@pytest.mark.parametrize("role", [b"\x41", b"\x56\x01"])
def test_both_spellings_of_the_role_are_known(role: bytes) -> None:
    frames = []
    for settled, outcome in ((b"\x42", 0x23), (b"\x41", 0x24)):
        state = b"\x00\x53" + bytes((outcome,)) + b"\x45"
        listed = b"\x05" + role + b"\x43\x70\x00\x00\x13\x87" + settled + state
        frames.append(divided(raw.raw_frame(b"\x00\x53\x15\xc0" + bytes((len(listed),)) + listed), 5_000))
    assert frames[0] == b"" and len(disposition_ranges(frames[1])) == 5


# --- deliveries that do not exist ---------------------------------------------------------------------------


def said_by(role: bool, first: int, last: int | None) -> bytes:
    return raw.frame(raw.DISPOSITION, [role, UInt(first), None if last is None else UInt(last), True])


@pytest.mark.parametrize("role", [raw.RECEIVER, raw.SENDER])
@pytest.mark.parametrize("end", [0, 1, 5_000, TOP, 2**31])
@pytest.mark.parametrize("beyond", [0, 1, 5, 90_000, 2**31 - 1, 2**31])
@pytest.mark.parametrize("more", [None, 0, 1, 5_000])
def test_a_disposition_of_deliveries_that_do_not_exist_is_dropped(
    role: bool, end: int, beyond: int, more: int | None
) -> None:
    """Symptom: 64 KB of them held the event loop for 0.4 to 0.9 s with 50,000 deliveries unsettled."""
    first = (end + beyond) % 2**32
    said = said_by(role, first, None if more is None else (first + more) % 2**32)
    session = session_ids(end, 7) if role == raw.RECEIVER else session_ids(7, end)
    dispositions = of_peer(0)
    for _ in range(70_000 if beyond == more == 5 else 2):
        assert dispositions.divide(said, LIST_AT, len(said), session) == b""
    assert dispositions.refusal is None


def test_who_names_deliveries_that_do_not_exist_again_and_again_is_refused() -> None:
    dispositions, session, said = of_peer(700), session_ids(700), wide(705, 706)
    times = 0
    while dispositions.refusal is None:
        dispositions.divide(said, LIST_AT, len(said), session)
        times += 1
    assert times == (2**20 + 4 * 700) // 16 + 1
    assert dispositions.refusal.condition == RESOURCE_LIMIT


def test_before_there_are_deliveries_none_exist() -> None:
    for role in (raw.RECEIVER, raw.SENDER):
        said = said_by(role, 0, 0)
        assert of_peer(0).divide(said, LIST_AT, len(said), session_ids(None)) == b""
        assert of_peer(0).divide(said, LIST_AT, len(said), session_ids(0)) == b""


@given(st.integers(0, TOP), st.integers(1, 200_000), st.integers(-200_000, 200_000))
def test_of_some_that_exist_the_others_are_left_out(first: int, count: int, end_after: int) -> None:
    said, end = wide(first, (first + count - 1) % 2**32), (first + end_after) % 2**32
    found = divided(said, end)
    if end_after <= 0:
        assert found == b""
        return
    ranges = disposition_ranges(found)
    assert ranges[0][0] == first
    assert all((last - begin) % 2**32 < 1_024 for begin, last in ranges)
    assert all(begin == (last + 1) % 2**32 for (_, last), (begin, _) in pairwise(ranges))
    assert (ranges[-1][1] - first) % 2**32 + 1 == min(count, end_after)


@pytest.mark.parametrize("first", [TOP, TOP - 2_000])
def test_deliveries_behind_the_end_of_the_numbers_count(first: int) -> None:
    """Symptom: a few bytes, from the last number on, kept the event loop busy for 0.1 s each time."""
    said = wide(first, 19_999)
    ranges = disposition_ranges(divided(said, 20_000))
    assert all((last - begin) % 2**32 < 1_024 for begin, last in ranges)
    assert (ranges[0][0], ranges[-1][1]) == (first, 19_999)
    assert_is_refused_after(60, said, session_ids(20_000))


def assert_is_refused_after(times: int, said: bytes, session: object) -> None:
    dispositions = of_peer(20_000)
    for _ in range(times):
        rest = said
        while rest:
            dispositions.divide(rest, LIST_AT, len(rest), session)
            rest = dispositions.take_rest()
    assert dispositions.refusal is not None


def test_what_the_peer_says_of_its_own_transfers_counts_beside_them() -> None:
    said, session = said_by(raw.SENDER, 0, 999), session_ids(0, 5_000)
    for received in (5_000, 500_000):
        ids = ffi.new("delivery_ids_t *", {"received": received})
        dispositions = WideDispositions(FRAME_BYTES_MAX, ids)
        for _ in range(1_100):
            assert dispositions.divide(said, LIST_AT, len(said), session) is None
        assert (dispositions.refusal is None) is (received == 500_000)


# --- how many at a time -------------------------------------------------------------------------------------


def test_only_a_whole_frame_is_divided() -> None:
    said, dispositions = wide(0, 5_000), of_peer()
    with pytest.raises(IndexError):
        dispositions.divide(said[:-1], LIST_AT, len(said), session_ids(6_000))


def test_after_many_others_should_have_their_turn() -> None:
    dispositions, session = of_peer(), session_ids(2**31)
    for said, enough_after in (
        (wide(5, 2**31 - 1), 1),
        (wide(5, 3 * 1_024 + 4), 2),
        (wide(5, 260), 7),
        (wide(5, 1_004), 5),
        (wide(5, 9), 8),
        (wide(9, 9), 8),
        (wide(2**31, 2**31 + 9), 8),
    ):
        dispositions.begin()
        for number in range(enough_after):
            assert not dispositions.had_enough, number
            dispositions.divide(said, LIST_AT, len(said), session)
        assert dispositions.had_enough


def test_the_more_places_there_are_for_deliveries_the_longer_proton_looks() -> None:
    dispositions, said = of_peer(), wide(9, 9)
    for places, enough_after in ((16, 8), (1 << 20, 4), (1 << 23, 1)):
        dispositions.begin()
        for number in range(enough_after):
            assert not dispositions.had_enough, number
            assert dispositions.divide(said, LIST_AT, len(said), session_ids(10, places=places)) is None
        assert dispositions.had_enough


NUMBERS = [UInt(3), UInt(700)]


@pytest.mark.parametrize("end", [701, 30_000])
@pytest.mark.parametrize(
    ("fields", "stays"),
    [
        ([raw.RECEIVER, *NUMBERS], False),
        ([raw.RECEIVER, *NUMBERS, False], False),
        ([raw.RECEIVER, *NUMBERS, None, None, True], False),
        ([raw.RECEIVER, *NUMBERS, False, RECEIVED], False),
        ([raw.RECEIVER, *NUMBERS, None, Described(Symbol("amqp:received:list"), [])], False),
        ([raw.RECEIVER, *NUMBERS, None, Described(ULong(0), [])], False),
        ([raw.RECEIVER, *NUMBERS, True], True),
        ([raw.RECEIVER, *NUMBERS, True, RECEIVED], True),
        ([raw.RECEIVER, *NUMBERS, False, raw.outcome(raw.MODIFIED, [True])], True),
        ([raw.RECEIVER, *NUMBERS, False, Described(ULong(0x99), [])], True),
        ([raw.RECEIVER, *NUMBERS, False, Described(ULong(2**40), [])], True),
        ([not raw.RECEIVER, *NUMBERS, False, RECEIVED], True),
    ],
)
def test_what_says_nothing_is_dropped(fields: list[object], stays: bool, end: int) -> None:
    said = raw.frame(raw.DISPOSITION, fields)
    dispositions = of_peer()
    found = dispositions.divide(said, LIST_AT, len(said), session_ids(end, end))
    assert found == (None if stays else b"")


@pytest.mark.parametrize("sent", [700, 30_000, 2_000_000])
def test_who_names_deliveries_again_and_again_is_refused(sent: int) -> None:
    """Symptom: 700 KB of dispositions about the same deliveries kept the event loop busy for minutes."""
    dispositions, said, session = of_peer(sent), wide(0, 2**31 - 1), session_ids(sent)
    times = 0
    while dispositions.refusal is None:
        rest = said
        while rest and dispositions.refusal is None:
            dispositions.divide(rest, LIST_AT, len(rest), session)
            rest = dispositions.take_rest()
        times += 1
    assert times == (4 * sent + 2**20) // sent + 1
    assert dispositions.refusal.condition == RESOURCE_LIMIT
