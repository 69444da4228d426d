"""Receivers that ask for everything and never read: their memory is bounded in total, and no other client
waits for them.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.load.attack_output import BODY_BYTES, receivers_that_do_not_read

MIB = 1024 * 1024
OUTPUT_BYTES_MAX = 8 * MIB
OVERHEAD_MIB = 48
"""Allowance for output read from the log and on its way, and for memory the allocator keeps; the messages are
four times as large.
"""
MESSAGES = 3_200


def test_many_receivers_that_do_not_read_stay_in_their_bound_and_others_are_served(tmp_path: Path) -> None:
    found = receivers_that_do_not_read(
        tmp_path,
        40,
        60,
        MESSAGES,
        2.0,
        environment={"PARTIBUS_TOTAL_OUTPUT_BYTES_MAX": str(OUTPUT_BYTES_MAX)},
    )
    assert MESSAGES * BODY_BYTES > 3 * (OUTPUT_BYTES_MAX + OVERHEAD_MIB * MIB)
    assert found.memory_mib < OUTPUT_BYTES_MAX / MIB + OVERHEAD_MIB
    assert found.peek_ms < 5_000 and found.round_trip_ms < 5_000
