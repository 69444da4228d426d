"""How partitions, messages and sessions are named."""

from __future__ import annotations

import pytest

from broker.identifiers import (
    PARTITION_SHIFT,
    decode_session_id,
    encode_session_id,
    partition_of,
    partition_of_token,
    sequence_of_token,
)


@pytest.mark.parametrize("partition", [0, 3, 255, 256, 65_535])
def test_numbers_and_tokens_name_the_partition_that_gave_them(partition: int) -> None:
    for counter in (1, (1 << PARTITION_SHIFT) - 1):
        number = partition << PARTITION_SHIFT | counter
        token = number.to_bytes(8, "big") + b"the nonce"[:8]
        assert partition_of(number) == partition_of_token(token) == partition
        assert sequence_of_token(token) == number


@pytest.mark.parametrize("session_id", ["", "orders", "ä €", "\U0001f600", "half a pair \ud800"])
def test_a_session_id_of_any_characters_comes_back(session_id: str) -> None:
    assert decode_session_id(encode_session_id(session_id)) == session_id
