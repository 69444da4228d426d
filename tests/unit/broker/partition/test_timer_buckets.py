"""The buckets of a timer wheel: what they sift, and what they leave alone."""

from __future__ import annotations

import random
from array import array

from broker.partition.timer_buckets import ARRAY_MAX, Bucket, LongBucket, Seen


def filled(keys: range) -> LongBucket:
    bucket = LongBucket(Bucket())
    for start in range(0, len(keys), 700):
        part = keys[start : start + 700]
        bucket.keys.extend(part)
        bucket.live += len(part)
        bucket.divide()
    return bucket


def keys_of(bucket: Bucket) -> list[int]:
    return [key for keys in bucket.arrays() for key in keys]


def test_a_long_bucket_keeps_the_order_in_arrays_of_bounded_size() -> None:
    bucket = filled(range(10_000))
    assert keys_of(bucket) == [*range(10_000)] and len(bucket.arrays()) == 10
    assert max(map(len, bucket.arrays())) == ARRAY_MAX


def test_a_sift_goes_on_a_few_keys_at_a_time_and_keys_may_come_meanwhile() -> None:
    bucket = filled(range(20_000))
    live, looks = set(range(20_000)), 0

    def those_live(keys: array[int], seen: Seen) -> array[int]:
        nonlocal looks
        looks += len(keys)
        return array("Q", [key for key in keys if key in live and seen.add(key)])

    chance = random.Random(7)
    for step, key in enumerate(chance.sample(range(20_000), 19_900)):
        live.discard(key)
        bucket.live -= 1
        if step % 10 == 0:
            live.add(20_000 + step)
            bucket.keys.append(20_000 + step)
            bucket.live += 1
            bucket.divide()
        before = looks
        bucket.sift(1, those_live)
        assert looks - before <= ARRAY_MAX
        if step % 500 == 0:
            assert [key for key in keys_of(bucket) if key in live] == sorted(live)
    assert len(keys_of(bucket)) < 4 * len(live) and looks <= 4 * 19_900


def test_only_the_end_of_a_long_bucket_is_looked_at_for_keys_to_forget() -> None:
    bucket = filled(range(1_000, 101_000))
    before = bucket.arrays()
    bucket.keys.extend(range(4))  # older messages, which the same cycle has moved here
    bucket.forget_latest(100_000, 1_000)
    assert keys_of(bucket) == [*range(1_000, 100_000), *range(4)]
    assert all(now is then for now, then in zip(bucket.arrays(), before[:-2], strict=False))


def test_a_number_is_new_once() -> None:
    seen = Seen()
    numbers = [0, 1, 7, 8, 65_535, 65_536, (5 << 48) + 1]
    assert all(map(seen.add, numbers)) and not any(map(seen.add, numbers)) and seen.add(9)
