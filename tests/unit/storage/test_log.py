"""Commits, frames and records, and turns at making room on a full disk."""

from __future__ import annotations

from storage.log import FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, Commit, Frame, Position, RoomTurns


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
    assert frame.data[offsets[0] : offsets[0] + 4] == b"abcd"
    assert offsets[1] == offsets[0] + 4 + RECORD_HEADER_BYTES


async def test_partitions_make_room_one_at_a_time_and_ask_again_at_different_times() -> None:
    turns = RoomTurns()
    assert [turns.next_ms(1_000, 50) for _ in range(3)] == [1_000, 1_050, 1_100]
    assert turns.next_ms(5_000, 50) == 5_000, "nobody asks before its own time"
    async with turns:
        assert turns.locked()
    assert not turns.locked()
