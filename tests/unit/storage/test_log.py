"""Commits, frames and records, and the lock for making room on a full disk."""

from __future__ import annotations

from storage.log import (
    FRAME_HEADER_BYTES,
    PIECE_BYTES_MIN,
    RECORD_HEADER_BYTES,
    Commit,
    Frame,
    Position,
    RoomLock,
)


def test_records_come_back_where_the_commit_said_they_would_stand() -> None:
    commit = Commit(Position(0))
    assert not commit
    offsets = [
        commit.add(1, [b"ab", b"", b"cd"]),
        commit.add(2, [], version=9),
        commit.add(255, [b"x" * 500]),
    ]
    assert commit and commit.bytes == sum(map(len, commit.parts))
    body = b"".join(commit.parts)
    frame = Frame(Position(0), bytes(FRAME_HEADER_BYTES) + body)
    records = frame.records()
    assert [(record.kind, record.version, bytes(record.body)) for record in records] == [
        (1, 1, b"abcd"),
        (2, 9, b""),
        (255, 1, b"x" * 500),
    ]
    assert [record.offset for record in records] == offsets
    assert frame.part(offsets[0], 4) == b"abcd" and frame.size == len(frame.data)
    assert Frame(Position(0), body, FRAME_HEADER_BYTES).part(offsets[2], 500) == b"x" * 500
    assert Frame(Position(0), body, FRAME_HEADER_BYTES).records() == records
    assert Frame(Position(0), body, FRAME_HEADER_BYTES).size == frame.size
    assert offsets[1] == offsets[0] + 4 + RECORD_HEADER_BYTES


def test_large_parts_of_a_commit_are_not_copied_and_small_ones_are_joined() -> None:
    large, other = b"l" * PIECE_BYTES_MIN, b"o" * (PIECE_BYTES_MIN + 1)
    commits: list[list[list[bytes]]] = [
        [[large]],
        [[b"a", large, other, b"b"], [b"c"]],
        [[large, other]],
        [[b"a"], [b"b"]],
        [[]],
    ]
    for bodies in commits:
        commit = Commit(Position(0))
        for body in bodies:
            commit.add(1, body)
        pieces = commit.pieces()
        assert b"".join(pieces) == b"".join(commit.parts)
        assert [piece for piece in pieces if piece is large or piece is other] == [
            part for part in commit.parts if len(part) >= PIECE_BYTES_MIN
        ]
        assert all(len(piece) >= PIECE_BYTES_MIN for piece in pieces[1:-1])


async def test_partitions_make_room_one_at_a_time_and_ask_again_at_different_times() -> None:
    lock = RoomLock()
    assert [lock.next_ms(1_000, 50) for _ in range(3)] == [1_000, 1_050, 1_100]
    assert lock.next_ms(5_000, 50) == 5_000, "nobody asks before its own time"
    async with lock:
        assert lock.locked()
    assert not lock.locked()
