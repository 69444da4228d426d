from itertools import pairwise

import pytest

from protocol.codec import Described, Symbol, UInt, ULong, decode, decode_all, encode
from protocol.frames import BatchFrameFinder, pad_performatives

HEADER = b"AMQP\x00\x01\x00\x00"
BATCH, SINGLE = UInt(0x80013700), UInt(0)
FORMAT_BYTES = b"\x80\x01\x37\x00"


def frame(
    performative: object, payload: bytes = b"", *, extended_header: bytes = b"", frame_type: int = 0
) -> bytes:
    body = encode(performative) + payload
    data_offset = 8 + len(extended_header)
    return (
        (data_offset + len(body)).to_bytes(4, "big")
        + bytes((data_offset // 4, frame_type, 0, 0))
        + extended_header
        + body
    )


def transfer(
    message_format: UInt | None,
    payload: bytes = b"payload",
    tag: bytes = b"tag1",
    extended_header: bytes = b"",
) -> bytes:
    return frame(
        Described(ULong(0x14), [UInt(0), UInt(7), tag, message_format, False]),
        payload,
        extended_header=extended_header,
    )


EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
DISPOSITION = frame(Described(ULong(0x15), [True, UInt(0)]))


def pieces(*chunks: bytes) -> list[tuple[bytes, bool]]:
    finder = BatchFrameFinder()
    return [piece for chunk in chunks for piece in finder.pieces(chunk)]


def frames_completed_by_batch_pieces(stream: list[bytes], cut: list[tuple[bytes, bool]]) -> list[bytes]:
    """The frames that end within the pieces marked as batch."""
    ends, position = {}, 0
    for one in stream:
        position += len(one)
        ends[position] = one
    assert b"".join(piece for piece, _ in cut) == b"".join(stream)
    completed, position = [], 0
    for piece, is_batch in cut:
        inside = [one for end, one in ends.items() if position < end <= position + len(piece)]
        if is_batch:
            assert len(inside) == 1, "a batch piece completes its own frame and no other"
            completed += inside
        position += len(piece)
    return completed


def test_a_transfer_of_batch_format_is_a_piece_of_its_own() -> None:
    stream = [
        HEADER,
        transfer(SINGLE),
        transfer(BATCH),
        DISPOSITION,
        EMPTY,
        transfer(BATCH, b""),
        transfer(None),
    ]
    cut = pieces(b"".join(stream))
    assert [piece for piece, is_batch in cut if is_batch] == [stream[2], stream[5]]
    assert b"".join(piece for piece, _ in cut) == b"".join(stream)


def test_a_stream_without_batches_is_handed_on_as_it_came() -> None:
    data = HEADER + transfer(SINGLE) + DISPOSITION
    found = pieces(data)
    assert found == [(data, False)]
    assert found[0][0] is data
    assert pieces(b"") == []


STREAM = [
    HEADER,
    frame(Described(ULong(0x10), ["container"])),
    transfer(SINGLE, FORMAT_BYTES * 3 + transfer(BATCH)),
    transfer(BATCH, b"first part"),
    transfer(None, transfer(BATCH)),
    EMPTY,
    transfer(UInt(5), FORMAT_BYTES, tag=FORMAT_BYTES),
    transfer(BATCH, b"", extended_header=b"\x00\x01\x02\x03"),
    DISPOSITION,
    transfer(BATCH, b"x" * 100, tag=b"t" * 32),
    transfer(SINGLE, b"end"),
]
BATCHES = [STREAM[3], STREAM[7], STREAM[9]]


def test_batches_are_found_wherever_the_stream_is_cut_in_two() -> None:
    data = b"".join(STREAM)
    for cut in range(len(data) + 1):
        assert frames_completed_by_batch_pieces(STREAM, pieces(data[:cut], data[cut:])) == BATCHES


def test_batches_are_found_in_a_stream_that_comes_in_pieces_of_any_size() -> None:
    data = b"".join(STREAM)
    for size in (1, 2, 3, 5, 7, 8, 64):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert frames_completed_by_batch_pieces(STREAM, pieces(*chunks)) == BATCHES


def test_a_frame_larger_than_what_is_kept_of_it_is_still_found() -> None:
    stream = [HEADER, transfer(BATCH, b"x" * 10_000), transfer(SINGLE, b"y" * 10_000), transfer(BATCH)]
    data = b"".join(stream)
    for size in (1, 100, 2048, 5000):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert frames_completed_by_batch_pieces(stream, pieces(*chunks)) == [stream[1], stream[3]]


@pytest.mark.parametrize(
    "lookalike",
    [
        transfer(SINGLE, FORMAT_BYTES),
        transfer(SINGLE, FORMAT_BYTES, extended_header=bytes(1012)),
        transfer(None, FORMAT_BYTES),
        transfer(SINGLE, transfer(BATCH)),
        transfer(SINGLE, tag=b"\x70" + FORMAT_BYTES),
        frame(Described(ULong(0x15), [UInt(0), UInt(7), b"tag1", BATCH])),
        frame(Described(ULong(0x14), [UInt(0), UInt(0), b"t"]), b"\x70" + FORMAT_BYTES),
        frame(Described(ULong(0x14), {UInt(0): UInt(0), b"t": BATCH})),
        frame(Described(ULong(0x14), [UInt(0), UInt(7), b"tag1", BATCH]), frame_type=1),
        frame(Described(ULong(0x14), [BATCH, BATCH, b"tag1", UInt(1), BATCH])),
        frame(BATCH),
    ],
)
def test_the_formats_bytes_anywhere_else_mean_nothing(lookalike: bytes) -> None:
    assert FORMAT_BYTES in lookalike
    stream = HEADER + lookalike + transfer(BATCH)
    assert [is_batch for _, is_batch in pieces(stream)] == [False, True]
    assert [is_batch for _, is_batch in pieces(*(stream[at : at + 1] for at in range(len(stream))))].count(
        True
    ) == 1


def test_other_spellings_of_a_transfer_are_understood() -> None:
    fields = [UInt(2**32 - 1), UInt(2**32 - 1), b"t" * 32, BATCH]
    for spelled in (Described(Symbol("amqp:transfer:list"), fields), Described(ULong(0x14), fields)):
        assert [is_batch for _, is_batch in pieces(HEADER + frame(spelled))] == [False, True]
    longest = transfer(BATCH, tag=b"t" * 32, extended_header=bytes(1012))
    assert [is_batch for _, is_batch in pieces(HEADER + longest)] == [False, True]
    assert [
        is_batch for _, is_batch in pieces(HEADER, *(longest[at : at + 1] for at in range(len(longest))))
    ][-1]
    wide = b"\x00\x80" + (0x14).to_bytes(8, "big") + encode(fields)
    assert pieces(HEADER + (8 + len(wide)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + wide)[-1][1]


@pytest.mark.parametrize("broken", [b"\x00\x00\x00\x07\x02\x00\x00\x00", b"\x00\x00\x00\x00" * 4])
def test_a_broken_stream_is_handed_on_for_the_engine_to_refuse(broken: bytes) -> None:
    data = HEADER + transfer(BATCH) + broken + transfer(BATCH)
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        found = pieces(*chunks)
        assert b"".join(piece for piece, _ in found) == data
        assert [is_batch for _, is_batch in found].count(True) == 1


# --- padding ------------------------------------------------------------------------------------------------

FIELDS = {
    "open": (0x10, 10),
    "begin": (0x11, 8),
    "attach": (0x12, 14),
    "flow": (0x13, 11),
    "transfer": (0x14, 11),
} | {
    "disposition": (0x15, 6),
    "detach": (0x16, 3),
    "end": (0x17, 1),
    "close": (0x18, 1),
}


def split(stream: bytes) -> list[bytes]:
    ends = [0]
    while ends[-1] < len(stream):
        ends.append(ends[-1] + int.from_bytes(stream[ends[-1] : ends[-1] + 4], "big"))
    return [stream[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("known", [0, 1, 3])
def test_each_performative_gets_all_its_fields_and_keeps_those_it_had(name: str, known: int) -> None:
    code, count = FIELDS[name]
    fields = [UInt(n + 1) for n in range(min(known, count))]
    [padded] = split(pad_performatives(frame(Described(ULong(code), fields), b"payload")))
    performative, end = decode(padded, 8)
    assert performative == Described(ULong(code), fields + [None] * (count - len(fields)))
    assert padded[end:] == b"payload"
    assert padded[4:8] == b"\x02\x00\x00\x00"


def test_a_list_that_outgrows_its_short_form_takes_the_long_one() -> None:
    fields = ["x" * 244, "y"]
    [padded] = split(pad_performatives(frame(Described(ULong(0x10), fields))))
    assert decode_all(padded[8:]).value == fields + [None] * 8
    assert padded[11] == 0xD0


def test_what_is_complete_empty_or_no_performative_stays_as_it_is() -> None:
    whole = frame(Described(ULong(0x16), [UInt(0), True, None]))
    other = frame(Described(ULong(0x1D), ["x"]))
    assert pad_performatives(HEADER + whole + EMPTY + other) == HEADER + whole + EMPTY + other
    assert pad_performatives(b"") == b""
    assert pad_performatives(HEADER) == HEADER
