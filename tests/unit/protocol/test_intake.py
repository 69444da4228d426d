"""The peer's bytes on their way to proton: in order, cut at batches, and refused only in their turn."""

from __future__ import annotations

from protocol.intake import Intake
from protocol.lenience import Lenience
from protocol.limits import BYTES_BEFORE_TOKEN, RESOURCE_LIMIT
from tests.support import raw_amqp as raw

BATCH_FORMAT = 0x80013700
OPENED = raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()) + raw.frame(raw.BEGIN, raw.begin_fields())


def transfer(number: int, size: int = 10, message_format: int = 0) -> bytes:
    fields = raw.transfer_fields(0, number)
    fields[3] = type(fields[3])(message_format)
    return raw.frame(raw.TRANSFER, fields, bytes(size))


def opened() -> Intake:
    intake = Intake(Lenience(100, 1 << 20))
    assert b"".join(data for data, _ in intake.take(OPENED)) == OPENED
    return intake


def test_a_batch_ends_a_piece_and_everything_else_stays_together() -> None:
    intake = opened()
    plain, batch = transfer(0), transfer(1, message_format=BATCH_FORMAT)
    assert intake.take(plain + batch + transfer(2)) == [
        (plain, False),
        (batch, True),
        (transfer(2), False),
    ]


def test_kept_pieces_come_first_and_once() -> None:
    intake = opened()
    first, second = intake.take(transfer(0)), intake.take(transfer(1))
    intake.keep(first + second)
    assert intake.has_more
    assert intake.take(transfer(2)) == [*first, *second, (transfer(2), False)]
    assert not intake.has_more and intake.take(b"") == []


def test_a_refusal_waits_until_everything_before_it_was_pushed_and_nothing_follows_it() -> None:
    intake = Intake(Lenience(100, 1 << 20))
    intake.restrict()
    intake.keep(intake.take(OPENED))
    intake.take(b"")
    kept = [(OPENED, False)]
    intake.keep(kept)
    too_much = transfer(0, BYTES_BEFORE_TOKEN)
    intake.keep(intake.take(too_much))
    assert intake.refusal is None, "earlier pieces wait"
    pieces = intake.take(transfer(1))
    assert pieces[0] == kept[0] and transfer(1) not in b"".join(data for data, _ in pieces)
    assert intake.refusal is not None and intake.refusal.condition == RESOURCE_LIMIT


def test_a_peer_with_credentials_may_send_anything_until_it_is_restricted_again() -> None:
    intake = Intake(Lenience(100, 1 << 20))
    intake.restrict()
    intake.take(OPENED)
    intake.lift_restriction()
    for number in range(3):
        assert intake.take(transfer(number, BYTES_BEFORE_TOKEN)) and intake.refusal is None
    intake.restrict()
    intake.take(transfer(3, BYTES_BEFORE_TOKEN))
    assert intake.refusal is not None
