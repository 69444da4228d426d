"""Adding up sizes in C is what Python says."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base._sizes import total_bytes


def test_the_size_of_messages_is_added_up() -> None:
    assert total_bytes([]) == 0 and total_bytes([b"", b"abc", b"de"]) == 5


@pytest.mark.parametrize("wrong", [(b"a",), [bytearray(b"a")], ["a"], [None]])
def test_anything_but_a_list_of_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        total_bytes(wrong)
