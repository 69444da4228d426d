"""Python references for `protocol/native/delivery_ids.c` and `frames.c`: they make the same decisions byte by
byte, for tests to compare.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER_BYTES, FLOW, TRANSFER, DISPOSITION = 8, 0x13, 0x14, 0x15
NONE, RECEIVED = 0, 0x23
NULL, TRUE, FALSE = 0x40, 0x41, 0x42
WIDE = 256
"""A disposition of more deliveries is not plain."""
LIGHT = 128
"""Nor is a larger one than this, unless it names one delivery."""
WORK_AT_ONCE, PLACES_PER_DELIVERY = 8_192, 1_024


@dataclass
class SessionIds:
    """`session_ids_t`."""

    next: int = 0
    known: bool = False
    divided: bool = False
    sent: int | None = None
    """The number of the next delivery that is sent; None if there is no session."""
    places: int = 16
    """How many there are for unsettled deliveries of each direction."""


@dataclass
class DeliveryIds:
    """`delivery_ids_t`."""

    sessions: list[SessionIds]
    frame_max: int
    received: int = 0
    named: int = 0
    work: int = 0


def walk(ids: DeliveryIds, data: bytes, offset: int) -> int:
    """`delivery_ids_walk`."""
    while len(data) - offset >= HEADER_BYTES:
        size = int.from_bytes(data[offset : offset + 4], "big")
        if not HEADER_BYTES <= size <= ids.frame_max or not _is_plain(
            ids, data[offset : offset + size], size
        ):
            break
        offset += size
    return offset


def passed(data: bytes, offset: int, small: int) -> int:
    """`frames_pass`."""
    while len(data) - offset >= HEADER_BYTES:
        size = int.from_bytes(data[offset : offset + 4], "big")
        if not HEADER_BYTES <= size <= len(data) - offset or data[offset + 4] != 2:
            break
        if size > small and not data.startswith(b"\x00\x53\x14\xc0", offset + HEADER_BYTES):
            break
        if b"\x80\x01\x37\x00" in data[offset : offset + 128]:
            break
        offset += size
    return offset


def _is_plain(ids: DeliveryIds, frame: bytes, size: int) -> bool:
    """Whether a frame is plain; `frame` is the part that has arrived."""
    body, channel = frame[4 * frame[4] :], int.from_bytes(frame[6:8], "big")
    if frame[4] < 2 or 4 * frame[4] > len(frame) or frame[5] != 0:
        return False
    if 4 * frame[4] == size:
        return True
    if len(body) < 4 or body[:2] != b"\x00\x53":
        return False
    if body[2] == FLOW:
        return True
    if channel >= len(ids.sessions):
        return False
    session = ids.sessions[channel]
    if body[2] == DISPOSITION:
        return _pass_disposition(ids, session, body[3:], size > LIGHT)
    if body[2] != TRANSFER or session.divided:
        return False
    number = _number_of_whole_delivery(body[3:])
    if number is None or (session.known and number != session.next):
        return False
    session.known, session.next = True, (number + 1) % 2**32
    ids.received += 1
    return True


def _disposition(listed: bytes) -> tuple[int, Fields | None]:
    """The number of a disposition's fields, and the fields; None if its list is none."""
    if listed[:1] == b"\xc0" and len(listed) >= 3 and listed[1] >= 1:
        return listed[2], Fields(listed[3:])
    if listed[:1] == b"\xd0" and len(listed) >= 9 and int.from_bytes(listed[1:5], "big") >= 4:
        return int.from_bytes(listed[5:9], "big"), Fields(listed[9:])
    return 0, None


def _pass_disposition(ids: DeliveryIds, session: SessionIds, listed: bytes, is_heavy: bool) -> bool:
    """Whether a disposition names few deliveries, which exist, and says something of them. Counts it then."""
    count, fields = _disposition(listed)
    if fields is None or count < 2 or session.sent is None:
        return False
    try:
        is_receiver = fields.take(TRUE)
        if not is_receiver and not fields.take(NULL, FALSE):
            return False
        first = fields.uint()
        last = first if count < 3 or fields.take(NULL) else fields.uint()
    except (IndexError, ValueError):
        return False
    if not is_receiver and not session.known:
        return False
    end = session.sent if is_receiver else session.next
    if any(not 1 <= (end - number) % 2**32 < 2**31 for number in (first, last)):
        return False
    named = 0
    if first != last:
        named = (last - first) % 2**32 + 1
        if is_heavy or named > WIDE or (is_receiver and not _says_something(fields, count - 3)):
            return False
    work = ids.work + named + session.places // PLACES_PER_DELIVERY
    if work > WORK_AT_ONCE:
        return False
    ids.work, ids.named = work, ids.named + named
    return True


def _says_something(fields: Fields, count: int) -> bool:
    """Whether the other fields of a disposition settle, or have an outcome."""
    try:
        if not count or fields.take(TRUE):
            return count > 0
        if not fields.take(NULL, FALSE) or count < 2:
            return False
        return fields.take(0) and fields.take(0x53) and not fields.take(NONE, RECEIVED)
    except IndexError:
        return False


def _number_of_whole_delivery(listed: bytes) -> int | None:
    """The delivery-id of a single-frame transfer; None for any other transfer, or if it is encoded in an
    unusual way.
    """
    if listed[0] == 0xC0 and len(listed) >= 3:
        size, count, begin, counted_from = listed[1], listed[2], 3, 2
    elif listed[0] == 0xD0 and len(listed) >= 9:
        size, count, begin, counted_from = (
            int.from_bytes(listed[1:5], "big"),
            int.from_bytes(listed[5:9], "big"),
            9,
            5,
        )
    else:
        return None
    if not begin - counted_from <= size <= len(listed) - counted_from or not 2 <= count <= 11:
        return None
    fields = Fields(listed[begin : counted_from + size])
    try:
        fields.uint()
        number = fields.uint()
        if count > 2:
            fields.binary_or_null()
        if count > 3 and not fields.take(NULL):
            fields.uint()
        for place, allowed in enumerate(
            ((NULL, TRUE, FALSE), (NULL, FALSE), (NULL,), (NULL,), (NULL, TRUE, FALSE), (NULL, FALSE)),
            start=4,
        ):
            if count > place and not fields.take(*allowed):
                return None
    except (IndexError, ValueError):
        return None
    return number


class Fields:
    """The remaining bytes of a list."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, *codes: int) -> bool:
        """Take one byte if it is one of these codes."""
        if self._data[0] not in codes:
            return False
        self._data = self._data[1:]
        return True

    def uint(self) -> int:
        widths = {0x43: 0, 0x52: 1, 0x70: 4}
        if self._data[0] not in widths:
            raise ValueError
        return int.from_bytes(self._bytes(1, widths[self._data[0]]), "big")

    def binary_or_null(self) -> None:
        if self.take(NULL):
            return
        width = {0xA0: 1, 0xB0: 4}.get(self._data[0])
        if width is None:
            raise ValueError
        size = int.from_bytes(self._bytes(1, width), "big")
        self._bytes(0, size)

    def _bytes(self, skipped: int, size: int) -> bytes:
        found = self._data[skipped : skipped + size]
        if len(found) < size:
            raise IndexError
        self._data = self._data[skipped + size :]
        return found
