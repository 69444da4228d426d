"""Reading the key that chooses a partition of the via entity."""

from __future__ import annotations

import pytest

from broker.message.stored import store_run
from broker.message.transfers import via_partition_key
from tests.support.amqp_messages import message


@pytest.mark.parametrize(
    ("annotations", "key"),
    [
        (None, None),
        ({"x-opt-partition-key": "a"}, None),
        ({"x-opt-partition-key": "a", "x-opt-via-partition-key": "b", "other": 5}, "b"),
        ({"text": "x-opt-via-partition-key"}, None),
    ],
)
def test_the_key_is_found_among_the_annotations(
    annotations: dict[str, object] | None, key: str | None
) -> None:
    (stored,) = store_run([message(annotations=annotations, body=[b"x"])], str).data
    assert via_partition_key(stored) == key
