"""Wrong types in every field of every performative (AMQP 1.0 §2.7), and misplaced frames.

In each case the broker refuses the field with a condition of the standard, or treats it as absent and carries
on. It answers the close that follows, or has closed before; it never falls silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.codec import Array, Described, Symbol, UByte, UInt, ULong, UShort
from tests.hostile.bystander import part_politely
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import RawConnection, opened

WRONG: tuple[Any, ...] = (
    None,
    "text",
    b"\x00\xff",
    -1,
    UInt(2**32 - 1),
    1.5,
    [1, None],
    {Symbol("a"): 1},
    Array(0xA3, [Symbol("a"), Symbol("b")]),
    Described(ULong(0x99), [1]),
)
FIELDS = {
    raw.OPEN: 10,
    raw.BEGIN: 8,
    raw.ATTACH: 14,
    raw.FLOW: 11,
    raw.TRANSFER: 11,
    raw.DISPOSITION: 6,
    raw.DETACH: 3,
    raw.END: 1,
    raw.CLOSE: 1,
}
_WORDS = ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")
NAMES = dict(zip(FIELDS, _WORDS, strict=True))
SOURCE_FIELDS, TARGET_FIELDS = 11, 7


def good_fields(code: int) -> list[Any]:
    """The fields of a correct performative, all present."""
    fields: list[Any] = {
        raw.OPEN: raw.open_fields(),
        raw.BEGIN: raw.begin_fields(),
        raw.ATTACH: raw.sender_attach(5, "target"),
        raw.FLOW: raw.flow_fields(1, 0, 1),
        raw.TRANSFER: raw.transfer_fields(0, 0),
        raw.DISPOSITION: raw.disposition_fields(raw.RECEIVER, 0, 0, False, raw.outcome(raw.ACCEPTED)),
        raw.DETACH: [UInt(0), True],
        raw.END: [],
        raw.CLOSE: [],
    }[code]
    return fields + [None] * (FIELDS[code] - len(fields))


def attack(port: int, code: int, fields: list[Any]) -> str | None:
    """Send the performative where it is permitted: with a session, a sender and a receiver open. Gives the
    condition of the broker's close.
    """
    with RawConnection(port) as connection:
        connection.log_in()
        connection.send(raw.AMQP_HEADER)
        if code != raw.OPEN:
            connection.send_frame(raw.OPEN, raw.open_fields())
        if code not in (raw.OPEN, raw.BEGIN):
            connection.send(
                raw.frame(raw.BEGIN, raw.begin_fields()),
                raw.frame(raw.ATTACH, raw.sender_attach(0, "target")),
                raw.frame(raw.ATTACH, raw.receiver_attach(1, "target")),
            )
        connection.send_frame(code, fields, b"\x00\x53\x75\xa0\x01x" if code == raw.TRANSFER else b"")
        assert connection.read_bytes(8) == raw.AMQP_HEADER
        return part_politely(connection)


@pytest.mark.parametrize(
    ("code", "place"), [(code, place) for code, count in FIELDS.items() for place in range(count)], ids=str
)
def test_a_field_of_a_wrong_type_is_refused_or_taken_as_absent(
    broker: BrokerProcess, code: int, place: int
) -> None:
    for wrong in WRONG:
        fields = good_fields(code)
        fields[place] = wrong
        attack(broker.addresses.amqp_port, code, fields)


@pytest.mark.parametrize("place", range(SOURCE_FIELDS))
def test_a_source_with_a_field_of_a_wrong_type_is_refused_or_taken_as_absent(
    broker: BrokerProcess, place: int
) -> None:
    for wrong in WRONG:
        source: list[Any] = ["target", *[None] * (SOURCE_FIELDS - 1)]
        source[place] = wrong
        fields = raw.receiver_attach(6, "target")
        fields[5] = Described(ULong(raw.SOURCE), source)
        attack(broker.addresses.amqp_port, raw.ATTACH, fields)


@pytest.mark.parametrize("place", range(TARGET_FIELDS))
def test_a_target_with_a_field_of_a_wrong_type_is_refused_or_taken_as_absent(
    broker: BrokerProcess, place: int
) -> None:
    for wrong in WRONG:
        target: list[Any] = ["target", *[None] * (TARGET_FIELDS - 1)]
        target[place] = wrong
        fields = raw.sender_attach(6, "target")
        fields[6] = Described(ULong(raw.TARGET), target)
        attack(broker.addresses.amqp_port, raw.ATTACH, fields)


@pytest.mark.parametrize("code", FIELDS, ids=NAMES.__getitem__)
def test_a_performative_without_its_mandatory_fields_is_no_danger(broker: BrokerProcess, code: int) -> None:
    for fields in ([], [None], [None] * FIELDS[code]):
        attack(broker.addresses.amqp_port, code, fields)


# --- misplaced frames ---------------------------------------------------------------------------------------

BEFORE_OPEN = [raw.BEGIN, raw.ATTACH, raw.FLOW, raw.TRANSFER, raw.DISPOSITION, raw.DETACH, raw.END]


@pytest.mark.parametrize("code", BEFORE_OPEN, ids=NAMES.__getitem__)
def test_a_frame_before_open_ends_the_connection(broker: BrokerProcess, code: int) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.log_in()
        connection.send(raw.AMQP_HEADER, raw.frame(code, good_fields(code)))
        assert connection.read_bytes(8) == raw.AMQP_HEADER
        part_politely(connection)


def test_open_twice_is_an_error_of_the_connection(broker: BrokerProcess) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.send_frame(raw.OPEN, raw.open_fields())
        assert part_politely(connection) is not None


Step = Callable[[RawConnection], None]
MISPLACED: dict[str, Step] = {
    "attach on a channel without session": lambda c: c.send_frame(
        raw.ATTACH, raw.sender_attach(0, "target"), channel=7
    ),
    "transfer on a channel without session": lambda c: c.send_frame(
        raw.TRANSFER, raw.transfer_fields(0, 0), b"", channel=7
    ),
    "flow on a channel without session": lambda c: c.send_frame(
        raw.FLOW, raw.flow_fields(0, 0, 1), channel=7
    ),
    "end of a channel without session": lambda c: c.send_frame(raw.END, [], channel=7),
    "detach on a channel without session": lambda c: c.send_frame(raw.DETACH, [UInt(0), True], channel=7),
    "disposition on a channel without session": lambda c: c.send_frame(
        raw.DISPOSITION, good_fields(raw.DISPOSITION), channel=7
    ),
    "transfer before attach": lambda c: c.send_frame(
        raw.TRANSFER, raw.transfer_fields(9, 0), b"\x00\x53\x75\xa0\x01x"
    ),
    "detach of an unknown handle": lambda c: c.send_frame(raw.DETACH, [UInt(9), True]),
    "channel over our maximum": lambda c: c.send_frame(raw.BEGIN, raw.begin_fields(), channel=32),
    "highest channel of all": lambda c: c.send_frame(raw.BEGIN, raw.begin_fields(), channel=65_535),
    "transfer on a link on which we send": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.receiver_attach(1, "target")),
        raw.frame(raw.TRANSFER, raw.transfer_fields(1, 0), b"\x00\x53\x75\xa0\x01x"),
    ),
}
"""Each is an error of the connection, since there is no session or link to end."""

HARMLESS: dict[str, Step] = {
    "flow for an unknown handle": lambda c: c.send_frame(raw.FLOW, raw.flow_fields(9, 0, 5)),
    "disposition of what was never sent": lambda c: c.send_frame(
        raw.DISPOSITION, good_fields(raw.DISPOSITION)
    ),
    "disposition of 2^32 deliveries": lambda c: c.send_frame(
        raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 0, 2**32 - 1, True, raw.outcome(raw.ACCEPTED))
    ),
    "disposition with first behind last": lambda c: c.send_frame(
        raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 9, 3, True, raw.outcome(raw.ACCEPTED))
    ),
    "begin twice on a channel": lambda c: c.send_frame(raw.BEGIN, raw.begin_fields()),
    "attach of a handle twice": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target", "one")),
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target", "two")),
    ),
    "attach of a name twice": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target", "one")),
        raw.frame(raw.ATTACH, raw.sender_attach(4, "target", "one")),
    ),
    "the highest handle of all": lambda c: c.send_frame(raw.ATTACH, raw.sender_attach(2**32 - 1, "target")),
    "detach twice": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target")),
        raw.frame(raw.DETACH, [UInt(3), True]),
        raw.frame(raw.DETACH, [UInt(3), True]),
    ),
    "end twice": lambda c: c.send(raw.frame(raw.END, []), raw.frame(raw.END, [])),
    "everything in one breath": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target")),
        raw.frame(raw.TRANSFER, raw.transfer_fields(3, 0), b"\x00\x53\x75\xa0\x01x"),
        raw.frame(raw.DETACH, [UInt(3), True]),
        raw.frame(raw.END, []),
    ),
    "delivery-ids that jump": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target")),
        *[
            raw.frame(raw.TRANSFER, raw.transfer_fields(3, number), b"\x00\x53\x75\xa0\x01x")
            for number in (0, 7, 7, 2**32 - 1, 1)
        ],
    ),
    "a tag of 300 bytes": lambda c: c.send(
        raw.frame(raw.ATTACH, raw.sender_attach(3, "target")),
        raw.frame(raw.TRANSFER, raw.transfer_fields(3, 0, tag=bytes(300)), b"\x00\x53\x75\xa0\x01x"),
    ),
    "a mode that does not exist": lambda c: c.send_frame(
        raw.ATTACH,
        [
            "x",
            UInt(3),
            False,
            UByte(9),
            UByte(9),
            Described(ULong(raw.SOURCE), []),
            Described(ULong(raw.TARGET), ["target"]),
        ],
    ),
    "a session in answer to ours": lambda c: c.send_frame(
        raw.BEGIN, [UShort(0), *raw.begin_fields()[1:]], channel=1
    ),
}
"""Each may be refused or ignored; the specification permits both."""


@pytest.mark.parametrize("name", MISPLACED)
def test_a_frame_for_what_is_not_there_is_an_error_of_the_connection(
    broker: BrokerProcess, name: str
) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        MISPLACED[name](connection)
        assert part_politely(connection) is not None


@pytest.mark.parametrize("name", HARMLESS)
def test_a_frame_that_makes_no_sense_is_refused_or_passed_over(broker: BrokerProcess, name: str) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        HARMLESS[name](connection)
        part_politely(connection)
