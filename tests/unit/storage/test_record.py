"""storage/record.py and the records of storage/log.py: the bytes of a frame."""

from __future__ import annotations

from storage.log import FRAME_HEADER_BYTES, Position
from storage.record import CHAIN_START, NO_DIGEST, Chain, FrameCodec, after, crc32c, digest_of, follows

SALT = bytes(range(16))


def test_a_header_says_what_it_was_given() -> None:
    codec = FrameCodec(SALT, 5)
    header = codec.header([b"body"], Chain(Position(1_000), 7, b"d" * 16), Position(900), epoch=3)
    assert len(header) == FRAME_HEADER_BYTES
    parsed = codec.parse_header(header)
    assert parsed is not None
    assert parsed == (crc32c(b"body"), 4, 1_000, 7, 900, 3, 5, b"d" * 16)


def test_no_header_with_a_flipped_bit_is_taken_for_one() -> None:
    codec = FrameCodec(SALT, 5)
    header = codec.header([b"body"], CHAIN_START, Position(0), epoch=1)
    for bit in range(len(header) * 8):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        assert codec.parse_header(bytes(damaged)) is None
    assert codec.parse_header(header[:-1]) is None


def test_a_header_of_another_log_or_partition_is_none_of_this_one() -> None:
    header = FrameCodec(SALT, 5).header([], CHAIN_START, Position(0), epoch=1)
    assert FrameCodec(SALT, 6).parse_header(header) is None
    assert FrameCodec(bytes(16), 5).parse_header(header) is None


def test_a_frame_follows_only_at_its_position_in_its_turn_and_behind_its_predecessor() -> None:
    codec = FrameCodec(SALT, 0)
    first = codec.header([b"a", b"bc"], CHAIN_START, Position(0), epoch=1)
    place = after(Position(0), 0, first, 3)
    assert place == Chain(Position(67), 1, digest_of(first))
    second = codec.parse_header(codec.header([], place, Position(0), epoch=1))
    assert second is not None
    assert follows(place, second)
    assert follows(Chain(Position(67), 99, None), second), (
        "where the digest is unknown the position is what counts"
    )
    assert not follows(place._replace(position=Position(68)), second)
    assert not follows(place._replace(sequence=2), second)
    assert not follows(place._replace(before=NO_DIGEST), second)
