"""broker/send_lists.py: every list of a `Send` follows its messages."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import itemgetter

from broker.operations.sending import Send
from broker.send_lists import add_to, lists_of, merged, part_of, with_lists

WHOLE = Send(
    [b"1", b"2", b"3"],
    [None, 5, 6],
    columns={"a": [0, 1, 2]},
    scheduled_ms=[7, None, 8],
    identities=[b"i", b"j", b"k"],
    tells_numbers=True,
)


def test_a_part_has_everything_that_is_known_of_its_messages() -> None:
    assert part_of(WHOLE, itemgetter(slice(1, 3))) == Send(
        [b"2", b"3"],
        [5, 6],
        columns={"a": [1, 2]},
        scheduled_ms=[None, 8],
        identities=[b"j", b"k"],
        tells_numbers=True,
    )
    first = part_of(WHOLE, lambda values: [values[0]])
    assert first == Send(
        [b"1"], None, columns={"a": [0]}, scheduled_ms=[7], identities=[b"i"], tells_numbers=True
    ), "no message has a time to live"


def test_a_part_of_plain_messages_is_plain() -> None:
    plain = Send([b"1", b"2"], None)
    assert part_of(plain, itemgetter(slice(0, 1))) == Send([b"1"], None)


def test_a_send_can_be_made_of_parts_of_all_its_lists() -> None:
    assert with_lists(WHOLE, lists_of(WHOLE)) == WHOLE
    here = itemgetter(slice(1, 3))
    assert with_lists(WHOLE, list(map(here, lists_of(WHOLE)))) == part_of(WHOLE, here)
    first = itemgetter(slice(0, 1))
    assert with_lists(WHOLE, list(map(first, lists_of(WHOLE)))) == part_of(WHOLE, first)
    plain = Send([b"1", b"2"], None)
    assert lists_of(plain) == [plain.messages] and with_lists(plain, lists_of(plain)) == plain


def test_sends_are_put_together_with_everything_they_carry() -> None:
    sends = [Send([b"1"], None), Send([b"2", b"3"], [None, 5]), Send([b"4"], [7], scheduled_ms=[9])]
    assert merged(sends) == Send(
        [b"1", b"2", b"3", b"4"], [None, None, 5, 7], scheduled_ms=[None, None, None, 9]
    )
    assert merged(sends[:1]) == sends[0]
    assert merged([]) == Send([], None)
    halves = [part_of(WHOLE, itemgetter(slice(0, 1))), part_of(WHOLE, itemgetter(slice(1, 3)))]
    assert merged(halves) == replace(WHOLE, columns={}), "it keeps the columns that are declared"


def test_no_list_is_left_behind() -> None:
    known = {
        "messages",
        "time_to_live_ms",
        "cookie",
        "columns",
        "scheduled_ms",
        "identities",
        "tells_numbers",
        "is_lone",  # about when it is posted: no part and no sum of sends keeps it
    }
    assert {each.name for each in fields(Send)} == known, "take apart and put together the new field as well"


def test_a_send_that_grows_has_everything_that_is_known_of_both() -> None:
    last = part_of(WHOLE, itemgetter(slice(2, 3)))
    grown = replace(part_of(WHOLE, itemgetter(slice(0, 2))), cookie=1, tells_numbers=False)
    add_to(grown, last)
    assert grown == replace(WHOLE, cookie=1, columns={}), "as put together, and it keeps its cookie"
    for lists in ({}, {"time_to_live_ms": [3]}, {"tells_numbers": True}, {"identities": [b"i"]}):
        plain, other = Send([b"1"], None, 1), replace(Send([b"2"], None, 2), **lists)
        expected = replace(merged([plain, other]), cookie=1)
        add_to(plain, other)
        assert plain == expected
