"""broker/partition/handing_over.py: what another entity hands over is stored once, whatever happens in
between."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES, QueueSettings
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.operations.transactions import Transact
from broker.operations.transfers import FindSources, HandedOver, HandOver, SourcesFound
from broker.partition import publishing
from broker.partition.cycle_bounds import Bounds
from broker.partition.health import Health
from broker.partition.origins import Origins
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from tests.support.partition_harness import Harness, one
from tests.support.rule_messages import stored_with
from tests.support.topics import BLUE, CHANGING, RED, A, B, bodies, check_restart, topic, with_subscription

SOURCE, OTHER = b"source", b"other"
EAGER = UpkeepLimits(
    checkpoint_bytes=2_000, garbage_bytes_max=1_000, garbage_bytes_at_rest=1_000, relocation_bytes=4_000
)


def hand(numbers: str, keeps: str | None = None, source: bytes = SOURCE) -> HandOver:
    """Messages whose numbers are the codes of these letters, and whose text is the letter."""
    return HandOver(
        source,
        list(map(ord, numbers)),
        [each.encode() for each in numbers],
        keeps=None if keeps is None else list(map(ord, keeps)),
    )


def letters(numbers: object) -> str:
    assert isinstance(numbers, list | tuple)
    return "".join(map(chr, numbers))


async def stored(harness: Harness) -> str:
    return b"".join((await harness.peek()).messages).decode()


def kept(harness: Harness, source: bytes = SOURCE) -> str:
    partition = harness.task._partition
    assert partition is not None
    return letters(tuple(partition.messages.states.of(Origins).of(source)))


async def open_again(harness: Harness, clean: bool = False) -> None:
    await harness.restart(clean=clean)
    harness.task._open_wanted = True
    await harness.until_quiet()
    assert harness.task.health is Health.HEALTHY


async def test_a_message_that_comes_again_is_known() -> None:
    harness = Harness()
    answer = one(await harness.do(1, hand("abc")), HandedOver)
    assert (answer.known, answer.duplicates, letters(answer.kept)) == ([], [], "")
    answer = one(await harness.do(1, hand("xbya")), HandedOver)
    assert (answer.known, letters(answer.kept)) == ([1, 3], "c")
    assert await stored(harness) == "abcxy" and sorted(kept(harness)) == list("abcxy")


async def test_an_entity_that_is_full_takes_nothing_new_and_knows_what_it_has() -> None:
    harness = Harness()
    one(await harness.do(1, hand("ab")), HandedOver)
    again, more = hand("ba"), hand("bc")
    again.full = more.full = "the entity is full"
    assert one(await harness.do(1, again), HandedOver).known == [0, 1]
    answer = one(await harness.do(1, more), HandedOver)
    assert (answer.known, answer.left_out, answer.full) == ([0], [1], "the entity is full")
    assert await stored(harness) == "ab" and sorted(kept(harness)) == ["a", "b"]


async def test_the_same_number_of_another_source_is_another_message() -> None:
    harness = Harness()
    await harness.do(1, hand("ab"), hand("b", source=OTHER))
    assert await stored(harness) == "abb" and (kept(harness), kept(harness, OTHER)) == ("ab", "b")


async def test_only_what_the_source_may_send_again_is_kept() -> None:
    harness = Harness()
    await harness.do(1, hand("abc"))
    answer = one(await harness.do(1, hand("de", keeps="bz")), HandedOver)
    assert letters(answer.kept) == "b" and kept(harness) == "bde"
    answer = one(await harness.do(1, hand("", keeps="")), HandedOver)
    assert answer == HandedOver([], [], []) and kept(harness) == ""
    assert await stored(harness) == "abcde"


@pytest.mark.parametrize("clean", [False, True], ids=["crash", "stop"])
async def test_a_restart_forgets_nothing(clean: bool) -> None:
    harness = Harness()
    await harness.do(1, hand("abc"), hand("d", keeps="c"))
    await open_again(harness, clean)
    answer = one(await harness.do(1, hand("cde")), HandedOver)
    assert answer.known == [0, 1] and await stored(harness) == "abcde"


async def test_trimming_forgets_nothing() -> None:
    harness = Harness(limits=TaskLimits(upkeep=EAGER), segment_bytes=4_000)
    await harness.do(1, hand("ab"))
    for _ in range(20):
        one(await harness.do(2, Send([bytes(1_000)], None)), Sent)
        await harness.do(2, Complete((await harness.receive(2)).tokens))
    assert harness.log.start > 0, "the record is gone"
    await open_again(harness)
    assert one(await harness.do(1, hand("b")), HandedOver).known == [0]


async def test_a_full_disk_leaves_neither_the_messages_nor_their_numbers() -> None:
    harness = Harness()
    await harness.do(1, hand("a"))
    harness.log.fill_disk()
    first, second, third = await harness.do(1, hand("ab", "a"), hand("a"), hand("bc"))
    for answer in (first, second, third):
        assert isinstance(answer, Failed) and answer.reason is Reason.DISK_FULL
    assert kept(harness) == "a"
    harness.log.empty_disk()
    assert one(await harness.do(1, hand("abc")), HandedOver).known == [0]
    await open_again(harness)
    assert await stored(harness) == "abc" and sorted(kept(harness)) == list("abc")


async def test_an_operation_that_only_forgets_survives_a_full_disk() -> None:
    harness = Harness(payload_bytes=1 << 20)
    await harness.do(1, hand("abc"))
    harness.log.fill_disk()
    answers = await harness.do(1, hand("", keeps="b"), Send([b"x"], None))
    assert [type(answer) for answer in answers] == [Failed, Failed], "both are in one commit"
    harness.log.empty_disk()
    await open_again(harness)
    assert one(await harness.do(1, hand("b")), HandedOver).known == [0]
    assert await stored(harness) == "abc"


async def test_what_is_over_the_quota_is_not_remembered() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    sizes = [600_000, 600_000, 1_000, 500_000, 400_000]
    answer = one(await harness.do(1, HandOver(SOURCE, [*range(5)], [*map(bytes, sizes)])), HandedOver)
    assert (answer.left_out, answer.kept) == ([1, 3], []) and "maximum entity size" in (answer.full or "")
    assert [len(each) for each in (await harness.peek()).messages] == [600_000, 1_000, 400_000]
    assert kept(harness) == letters([0, 2, 4])
    answer = one(await harness.do(1, HandOver(SOURCE, [1, 2], [*map(bytes, sizes[1:3])])), HandedOver)
    assert (answer.known, answer.left_out, sorted(answer.kept)) == ([1], [0], [0, 4])


async def test_an_entity_that_is_nearly_full_takes_what_it_has_room_for() -> None:
    harness = Harness()
    over = hand("abcd")
    over.full, over.room = "the entity is full", 2 * MESSAGE_OVERHEAD_BYTES + 2
    assert one(await harness.do(1, over), HandedOver).left_out == [2, 3]
    assert await stored(harness) == "ab"


async def test_a_message_that_is_named_twice_and_has_no_room_is_left_out_twice() -> None:
    harness = Harness()
    over = hand("aba")
    over.full = "the entity is full"
    answer = one(await harness.do(1, over), HandedOver)
    assert (answer.known, sorted(answer.left_out), kept(harness)) == ([], [0, 1, 2], "")


async def test_a_duplicate_needs_no_room_unless_the_message_before_it_has_none() -> None:
    harness = Harness(QueueSettings(requires_duplicate_detection=True, max_size_mb=1))
    await harness.do(1, Send([b"a"], None, identities=[bytes(15)]))
    sizes, identities = [900_000, 900_000, 1_000, 900_000], [b"b" * 15, b"c" * 15, b"c" * 15, bytes(15)]
    over = HandOver(SOURCE, [*range(4)], [*map(bytes, sizes)], identities=identities)
    answer = one(await harness.do(1, over), HandedOver)
    assert (answer.left_out, answer.duplicates) == ([1], [3])
    assert [len(each) for each in (await harness.peek()).messages] == [1, 900_000, 1_000]


async def test_what_would_be_one_message_id_too_many_is_left_out() -> None:
    harness = Harness(
        QueueSettings(requires_duplicate_detection=True), limits=TaskLimits(bounds=Bounds(message_ids_max=2))
    )
    over = hand("abc")
    over.identities = [letter.encode() * 15 for letter in "abc"]
    answer = one(await harness.do(1, over), HandedOver)
    assert answer.left_out == [2] and "message-ids" in (answer.full or "")


async def test_what_one_commit_has_no_room_for_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SHARED_BYTES_MAX", 2 * (10_000 + MESSAGE_OVERHEAD_BYTES + 200))
    harness = Harness(description=with_subscription(topic("a"), "b", CHANGING))
    red = [stored_with(subject="red", body=b"%d" % number + b"x" * 10_000) for number in range(4)]
    huge = stored_with(subject="red", body=b"x" * 50_000)
    numbers, messages = [1, 2, 3, 1, 4, 5, 6], [*red[:3], red[0], huge, BLUE, red[3]]
    for known, put_off in (([], [2, 3, 4, 5, 6]), ([1], [2, 3, 4]), ([], [1, 2]), ([], [])):
        answer = one(await harness.do(1, HandOver(SOURCE, numbers, messages, keeps=[])), HandedOver)
        assert (answer.known, answer.put_off, answer.left_out, answer.full) == (known, put_off, [], None)
        numbers, messages = [numbers[place] for place in put_off], [messages[place] for place in put_off]
    assert await bodies(harness, A) == [*red[:3], huge, BLUE, red[3]]
    assert len(await bodies(harness, B)) == 5
    await check_restart(harness, A, B)


async def test_what_is_put_off_is_kept_if_it_is_known_already(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", CHANGING))
    await harness.do(1, HandOver(SOURCE, [1, 2, 3], [RED] * 3))
    monkeypatch.setattr(publishing, "SHARED_BYTES_MAX", 1)
    answer = one(await harness.do(1, HandOver(SOURCE, [2, 3], [RED] * 2, keeps=[])), HandedOver)
    assert (answer.known, answer.put_off, answer.kept) == ([0], [1], [3])
    assert one(await harness.do(1, HandOver(SOURCE, [3], [RED], keeps=[])), HandedOver).known == [0]
    assert await bodies(harness, A) == [RED] * 3 and len(await bodies(harness, B)) == 3


async def test_duplicates_are_dropped_and_named() -> None:
    harness = Harness(QueueSettings(requires_duplicate_detection=True))
    identity = {letter: letter.encode() * 15 for letter in "abc"}
    await harness.do(1, Send([b"a"], None, identities=[identity["a"]]))
    over = hand("ab")
    over.identities = [identity["a"], identity["b"]]
    assert one(await harness.do(1, over), HandedOver) == HandedOver([], [0], [])
    over = hand("abc")
    over.identities = [identity[letter] for letter in "abc"]
    assert one(await harness.do(1, over), HandedOver) == HandedOver([0, 1], [], [])
    assert await stored(harness) == "abc"


async def test_messages_arrive_in_the_main_subqueue_with_their_time_to_live() -> None:
    harness = Harness()
    await harness.do(1, HandOver(SOURCE, [7], [b"x"], [5_000]))
    locked = await harness.receive(2)
    (expires_ms,) = locked.expires_at_ms
    assert locked.subqueue == MAIN and expires_ms == locked.enqueued_at_ms[0] + 5_000


async def test_a_partition_says_of_which_sources_it_keeps_numbers_and_whether_it_passes_messages_on() -> None:
    harness = Harness()
    assert one(await harness.do(1, FindSources(7)), SourcesFound) == SourcesFound([], False, 7)
    transfers = Send([b"t"], None, columns={DESTINATION: [b"other"]})
    await harness.do(1, hand("a"), hand("b", source=OTHER), Transact(Send([], None), [], transfers=transfers))
    found = one(await harness.do(1, FindSources()), SourcesFound)
    assert sorted(found.sources) == [OTHER, SOURCE] and found.passes_on
