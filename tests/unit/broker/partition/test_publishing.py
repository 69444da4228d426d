"""What a partition of a topic does with a message: it is matched once, and stored once for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason
from broker.base.slices import Slices
from broker.entities.descriptions import TRANSFER, TRANSFER_DEAD_LETTER
from broker.entities.roles import OWN_END
from broker.entities.rules import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter
from broker.entities.topics import TopicDescription
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Locked, LockExactly
from broker.operations.redriving import FindDeadLetters, Found, Redrive
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Settled
from broker.operations.streams import SendSinkBatch
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FailTransfer, HandedOver, HandOver, LockNext
from broker.partition import publishing
from broker.partition.cycle_bounds import Bounds
from broker.partition.sending import Sending
from broker.partition.task_limits import TaskLimits
from broker.rules.matching import Matcher
from broker.rules.message_view import MessageView
from protocol.codec import decode
from tests.support.partition_harness import Harness, one
from tests.support.rule_messages import stored_with
from tests.support.ticker import Ticker
from tests.support.topics import (
    BLUE,
    CHANGING,
    DEAD,
    FAILING,
    ONLY_RED,
    RED,
    A,
    B,
    C,
    bodies,
    check_restart,
    topic,
    with_subscription,
)


async def test_each_subscription_has_a_message_of_its_own_that_is_stored_once() -> None:
    harness = Harness(description=topic(*(f"s{number}" for number in range(50))))
    big = b"x" * 65_536
    await harness.send(big)
    assert harness.log.end - harness.log.start < 70_000
    partition = harness.task._partition
    assert partition is not None
    assert partition.messages.live_bytes == len(big) == harness.budget.used
    first = await harness.receive(1, 1, "subscriptions/s0")
    assert first.messages == [big]
    one(await harness.do(1, Complete(first.tokens)), Settled)
    assert await bodies(harness, "subscriptions/s0") == []
    assert await bodies(harness, "subscriptions/s49") == [big]
    await check_restart(harness, "subscriptions/s0", "subscriptions/s1")
    for number in range(1, 50):
        locked = await harness.receive(1, 1, f"subscriptions/s{number}")
        assert locked.sequence_numbers == first.sequence_numbers
        one(await harness.do(1, Complete(locked.tokens)), Settled)
    assert harness.budget.used == 0 == harness.live_bytes


async def test_a_message_goes_where_the_rules_say_and_nowhere_else() -> None:
    description = with_subscription(
        with_subscription(topic("a"), "b", ONLY_RED), "c", RuleDescription("n", FalseFilter())
    )
    harness = Harness(description=description)
    await harness.send(RED, BLUE)
    assert await bodies(harness, A) == [RED, BLUE]
    assert await bodies(harness, B) == [RED]
    assert await bodies(harness, C) == []
    await check_restart(harness, A, B, C)


async def test_a_message_that_matches_nothing_is_accepted_and_not_stored() -> None:
    harness = Harness(description=with_subscription(topic(requires_duplicate_detection=True), "b", ONLY_RED))
    one(await harness.do(9, Send([BLUE], None, identities=[b"1" * 15])), Sent)
    assert harness.live_bytes == 0
    answer = one(await harness.do(9, Send([RED], None, identities=[b"1" * 15])), Sent)
    assert answer.duplicates == [0], "its identity is remembered"
    one(
        await harness.do(9, Send([BLUE, RED, BLUE], None, identities=[b"2" * 15, b"3" * 15, b"4" * 15])), Sent
    )
    assert await bodies(harness, B) == [RED]
    await check_restart(harness, B)


async def test_rules_that_change_count_for_what_is_sent_afterwards() -> None:
    description = topic("a")
    harness = Harness(description=description)
    await harness.send(RED)
    await harness.describe(with_subscription(description, "b", ONLY_RED))
    await harness.send(BLUE, RED)
    assert await bodies(harness, A) == [RED, BLUE, RED]
    assert await bodies(harness, B) == [RED]


async def test_a_changed_copy_is_a_message_of_its_own() -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", ONLY_RED, CHANGING))
    await harness.send(RED, BLUE)
    copies = await harness.peek(B)
    assert copies.messages[0] == RED and copies.messages[1] != RED and len(copies.messages) == 2
    assert len({*copies.sequence_numbers}) == 2
    assert await bodies(harness, A) == [RED, BLUE]
    await check_restart(harness, A, B)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_message_for_which_a_filter_fails_is_dead_lettered_if_the_subscription_says_so(
    kept: bool,
) -> None:
    description = with_subscription(topic("a"), "b", FAILING, dead_lettering_on_filter_errors=kept)
    harness = Harness(description=description)
    await harness.send(RED)
    dead = await harness.peek(B + DEAD)
    assert (len(dead.messages), await bodies(harness, A), await bodies(harness, B)) == (kept, [RED], [])
    if kept:
        assert dead.changed[0] is not None
        assert decode(dead.changed[0])[0]["DeadLetterReason"] == "FilterException"
    await check_restart(harness, B + DEAD)


async def test_a_commit_does_not_grow_without_bound_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "COMMIT_BYTES_MAX", 100_000)
    description = topic()
    for number in range(30):
        description = with_subscription(
            description, f"s{number:02}", CHANGING, dead_lettering_on_filter_errors=True
        )
    harness = Harness(description=description)
    await harness.send(*(stored_with(subject="red", body=b"x" * 10_000) for _ in range(5)))
    assert harness.log.end - harness.log.start < 400_000
    assert len(await bodies(harness, "subscriptions/s00")) == 5
    assert len(await bodies(harness, "subscriptions/s29" + DEAD)) == 5
    await check_restart(harness, "subscriptions/s00", "subscriptions/s29" + DEAD)


@pytest.mark.parametrize("work_max", [4_096, 16], ids=["at once", "in steps"])
async def test_the_quota_counts_what_actions_make_of_the_messages(work_max: int) -> None:
    description = topic("a", max_size_mb=1)
    for number in range(10):
        description = with_subscription(description, f"s{number}", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=work_max)))
    small = await harness.send(RED)
    big = [stored_with(subject="red", body=b"x" * 40_000) for _ in range(5)]
    refused, sent = await harness.do(9, Send(big, None), Send([RED], None))
    # Symptom: the topic of 1 MB took more than 2 MB.
    assert isinstance(refused, Failed) and refused.reason is Reason.QUOTA_EXCEEDED
    assert isinstance(sent, Sent) and sent.first == small + 11, "it and its copies have the next numbers"
    assert await bodies(harness, A) == [RED, RED]
    handed = one(await harness.do(9, HandOver(b"s", [1, 2, 3, 4, 5], big)), HandedOver)
    assert handed.left_out == [2, 3, 4] and handed.full is not None
    assert len(await bodies(harness, A)) == len(await bodies(harness, "subscriptions/s9")) == 4
    await check_restart(harness, A, "subscriptions/s9")


async def test_a_send_whose_copies_would_take_a_huge_commit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "COPIES_OF_SEND_BYTES_MAX", 50_000)
    harness = Harness(description=with_subscription(topic("a"), "c", CHANGING))
    tiny = [stored_with(subject="red", body=b"x" * 10_000) for _ in range(6)]
    refused = one(await harness.do(9, Send(tiny, None)), Failed)
    assert refused.reason is Reason.MESSAGE_TOO_LARGE and "the first 5 of these 6" in refused.description
    assert await bodies(harness, A) == []
    assert isinstance(one(await harness.do(9, Send(tiny[:4], None)), Sent), Sent)
    await check_restart(harness, A, C)


@pytest.mark.parametrize("work_max", [4_096, 64], ids=["at once", "in steps"])
@pytest.mark.parametrize("kind", ["send", "transaction", "sink batch"])
async def test_no_more_copies_are_made_of_a_send_than_may_be_stored(
    monkeypatch: pytest.MonkeyPatch, kind: str, work_max: int
) -> None:
    monkeypatch.setattr(publishing, "COPIES_OF_SEND_BYTES_MAX", 50_000)
    description = with_subscription(topic("a"), "c", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=work_max)))
    await harness.send(BLUE)
    tiny = [stored_with(subject="red", body=b"%d" % number + b"x" * 10_000) for number in range(40)]
    for client, operation in enumerate((Send([RED], None), OPERATIONS[kind](tiny), Send([BLUE], None))):
        harness.post(client, operation)
        harness.post(client, Send([RED], None))
    harness.post(3, OPERATIONS[kind](tiny))
    await harness.until_quiet()
    # Symptom: the copies of all 40 messages, before the send was refused. With the actual limits: gigabytes.
    assert matcher_of(harness).acted <= 2 * 5 + 10
    assert one(harness.take(3), Failed).reason is Reason.MESSAGE_TOO_LARGE
    answers = [harness.take(client) for client in range(3)]
    assert [[type(each) for each in two] for two in answers] == [[Sent, Sent], [Failed, Sent], [Sent, Sent]]
    assert await bodies(harness, A) == [BLUE, RED, RED, RED, BLUE, RED]
    assert len(await bodies(harness, C)) == 4
    await check_restart(harness, A, C)


async def test_messages_that_rules_dead_letter_count_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "COPIES_OF_SEND_BYTES_MAX", 256 * 60)
    description = topic("a")
    for number in range(10):
        description = with_subscription(
            description, f"s{number}", FAILING, dead_lettering_on_filter_errors=True
        )
    harness = Harness(description=description)
    refused = one(await harness.do(9, Send([RED] * 7, None)), Failed)
    # Symptom: they were matched however many they were, and each has a list of its own for all subscriptions.
    assert refused.reason is Reason.MESSAGE_TOO_LARGE
    await harness.send(*[RED] * 6)
    assert len(await bodies(harness, "subscriptions/s9" + DEAD)) == len(await bodies(harness, A)) == 6
    await check_restart(harness, A, "subscriptions/s9" + DEAD)


def matcher_of(harness: Harness) -> Matcher:
    partition = harness.task._partition
    assert partition is not None and partition._publishing is not None
    return partition._publishing._matcher


@pytest.mark.parametrize("work_max", [4_096, 100], ids=["at once", "in steps"])
@pytest.mark.parametrize("kept", [True, False], ids=["dead-lettered", "dropped"])
async def test_no_message_loses_copies_because_of_what_others_send(
    monkeypatch: pytest.MonkeyPatch, kept: bool, work_max: int
) -> None:
    for name in ("COMMIT_BYTES_MAX", "SHARED_BYTES_MAX"):
        monkeypatch.setattr(publishing, name, 100_000)
    description = topic("a")
    for number in range(5):
        description = with_subscription(
            description, f"s{number}", CHANGING, dead_lettering_on_filter_errors=kept
        )
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=work_max)))
    await harness.send(BLUE)
    red = [stored_with(subject="red", body=b"%d" % number + b"x" * 10_000) for number in range(8)]
    complete = Complete((await harness.receive(8, 1, A)).tokens)
    for client, message in enumerate(red):  # the copies of two of them fit into a commit
        harness.post(client, Send([message], None))
    answers = await harness.do(8, Send([BLUE], None), complete)
    assert [type(each) for each in answers] == [Sent, Settled]
    numbers = [one(harness.take(client), Sent).first for client in range(8)]
    assert numbers == sorted(numbers) and len({*numbers}) == 8
    assert await bodies(harness, A) == [*red, BLUE]
    assert max(map(len, harness.log.disk.frames.values())) < 130_000
    # Symptom: 8, 2, 2, 2, 1 messages, although all were accepted.
    assert [len(await bodies(harness, f"subscriptions/s{number}")) for number in range(5)] == [8] * 5
    await check_restart(harness, A, *(f"subscriptions/s{number}" for number in range(5)))


async def test_sends_without_copies_share_a_commit_with_one_whose_copies_fill_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "SHARED_BYTES_MAX", 10_000)
    harness = Harness(description=with_subscription(topic("a"), "c", CHANGING))
    await harness.send(BLUE)
    red = stored_with(subject="red", body=b"x" * 20_000)
    commits = len(harness.log.disk.frames)
    answers = await harness.do(9, Send([red], None), Send([BLUE], None), Send([BLUE], None))
    assert [type(each) for each in answers] == [Sent] * 3 and len(harness.log.disk.frames) == commits + 1
    answers = await harness.do(9, Send([red], None), Send([BLUE], None), Send([RED], None))
    assert [type(each) for each in answers] == [Sent] * 3 and len(harness.log.disk.frames) == commits + 3
    assert await bodies(harness, A) == [BLUE, red, BLUE, BLUE, red, BLUE, RED]


async def test_a_send_that_waits_because_of_its_copies_is_refused_if_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "SHARED_BYTES_MAX", 30_000)
    harness = Harness(description=with_subscription(topic("a"), "c", CHANGING))
    await harness.send(BLUE)
    red = [stored_with(subject="red", body=b"%d" % number + b"x" * 20_000) for number in range(2)]
    for client, message in enumerate(red):
        harness.post(client, Send([message], None))
    harness.log.fill_disk()
    await harness.until_quiet()
    for client in range(2):
        assert one(harness.take(client), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert await bodies(harness, A) == [BLUE]
    await check_restart(harness, A, C)


async def test_destinations_that_are_kept_ready_are_bounded_by_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = topic(*(f"s{number}" for number in range(100)))
    for number in range(20):
        rule = RuleDescription("r", CorrelationFilter(label=str(number)))
        description = with_subscription(description, f"r{number}", rule)
    monkeypatch.setattr(publishing, "_KNOWN_BYTES_MAX", 10_000)
    harness = Harness(description=description)
    await harness.send(*(stored_with(subject=str(number)) for number in range(20)))
    partition = harness.task._partition
    assert partition is not None and partition._publishing is not None
    known = partition._publishing._known
    # Symptom: 4,096 of them, each with a target of its own for every subscription.
    assert 0 < len(known) <= 10_000 // (101 * 16)
    assert len({id(target) for each in known.values() for target in each.targets}) <= 100 + len(known)
    await check_restart(harness, "subscriptions/s99", "subscriptions/r19")


async def test_an_exception_in_a_rule_is_logged_once_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(self: MessageView, name: str) -> None:
        raise ZeroDivisionError("why")

    rule = RuleDescription("odd", SqlFilter("sys.Label = 'red' AND colour <> 'blue'"))
    harness = Harness(description=with_subscription(topic("a"), "b", rule))
    monkeypatch.setattr(MessageView, "application_property", unforeseen)
    with capture_logs() as lines:
        await harness.send(RED)
        await harness.send(RED)
    (line,) = [each for each in lines if each["event"] == "rule.failed"]
    assert (line["subscription"], line["rule"], line["entity"]) == ("b", "odd", "orders")
    assert "why" in line["error"] and line["log_level"] == "error"
    assert await bodies(harness, A) == [RED, RED]


def test_a_long_reason_is_cut() -> None:
    """It may quote values of the message, and a property has a limit."""
    changed = publishing._reason_of("r", "ä" * 40_000)
    assert changed is not None
    assert decode(changed)[0]["DeadLetterErrorDescription"].startswith("Rule 'r': ää")


async def test_dead_letters_and_re_drives_stay_within_the_subscription() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"m")
    one(await harness.do(1, DeadLetter((await harness.receive(1, 1, A)).tokens)), Settled)
    dead = await harness.peek(A + DEAD)
    assert dead.messages == [b"m"] and await bodies(harness, B + DEAD) == []
    locked = one(await harness.do(1, LockExactly(A + DEAD, dead.sequence_numbers)), Locked)
    await harness.do(1, Redrive(locked.tokens, locked.messages, None))
    assert (await bodies(harness, A), await bodies(harness, B)) == ([b"m"], [b"m"])
    assert await bodies(harness, A + DEAD) == []
    await check_restart(harness, A, B, A + DEAD)


async def test_a_long_send_takes_as_much_of_a_cycle_as_its_references_are() -> None:
    harness = Harness(
        description=topic(*(f"s{number}" for number in range(20))),
        limits=TaskLimits(bounds=Bounds(work_max=100)),
    )
    await harness.send(b"first")
    await harness.send(*(b"%d" % number for number in range(200)))
    assert len(await bodies(harness, "subscriptions/s7")) == 201
    await check_restart(harness, "subscriptions/s7")


async def test_nothing_comes_between_the_steps_of_a_long_send() -> None:
    # 6 messages take two steps, although their references and they are less than a cycle's work.
    harness = Harness(
        description=topic(*(f"s{number}" for number in range(20))),
        limits=TaskLimits(bounds=Bounds(work_max=119)),
    )
    await harness.send(b"first")
    complete = Complete((await harness.receive(1, 1, "subscriptions/s0")).tokens)
    long, other = (Send([b"%s%d" % (name, number) for number in range(6)], None) for name in (b"a", b"b"))
    answers = await harness.do(1, long, complete, other)
    # Symptom: the rest of the first send was never stored, although it had been accepted.
    assert [type(each) for each in answers] == [Sent, Settled, Sent]
    assert await bodies(harness, "subscriptions/s0") == [*long.messages, *other.messages]
    await check_restart(harness, "subscriptions/s0", "subscriptions/s7")


OPERATIONS: dict[str, Callable[[list[bytes]], Operation]] = {
    "send": lambda messages: Send(messages, None),
    "transaction": lambda messages: Transact(Send(messages, None), []),
    "forwarded": lambda messages: HandOver(b"source", list(range(len(messages))), messages),
    "sink batch": lambda messages: SendSinkBatch(Send(messages, None), b"sink", 1, 10),
}


async def turns_of_others(harness: Harness, operation: Operation) -> int:
    """How often others use the event loop while the partition carries out an operation."""
    harness.post(9, operation)
    async with Ticker() as ticker:
        await harness.until_quiet()
    assert not any(isinstance(each, Failed) for each in harness.take(9))
    return ticker.turns


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_others_use_the_event_loop_while_many_messages_are_matched_and_distributed(kind: str) -> None:
    description = topic(*(f"s{number}" for number in range(20)))
    for number in range(10):
        rule = RuleDescription("r", SqlFilter(f"sys.Label LIKE '%{number}'"))
        description = with_subscription(description, f"r{number}", rule)
    none = RuleDescription("none", FalseFilter())
    nobody = topic()
    for number in range(20):
        nobody = with_subscription(nobody, f"s{number}", none)
    harness = Harness(description=nobody, limits=TaskLimits(bounds=Bounds(work_max=100)))
    await harness.send(RED)
    await harness.describe(description)
    messages = [stored_with(subject=str(number)) for number in range(60)]
    turns = await turns_of_others(harness, OPERATIONS[kind](messages))
    # A message is matched with 10 filters and gets 21 references, and a step ends at 100 of these: so a step
    # takes 4 messages, both to match and to distribute.
    # Symptom: the first step took as many messages as if each had the references that the last one had.
    assert turns >= 25
    assert await bodies(harness, "subscriptions/s19") == messages
    assert await bodies(harness, "subscriptions/r7") == messages[7::10]
    await check_restart(harness, "subscriptions/s0", "subscriptions/r9")


async def redrives_of(harness: Harness, messages: list[bytes]) -> list[Operation]:
    """Have these messages sent to another entity, which does not take them; gives what re-drives each."""
    count = len(messages)
    failed = Send(messages, None, columns={DESTINATION: [b"another"] * count})
    one(await harness.do(1, Transact(Send([], None), [], transfers=failed)), Transacted)
    tokens = one(await harness.do(1, LockNext(TRANSFER, count, 1 << 20, 60_000, None)), Locked).tokens
    await harness.do(1, FailTransfer(tokens))
    dead = await harness.peek(TRANSFER_DEAD_LETTER)
    locked = one(await harness.do(9, LockExactly(TRANSFER_DEAD_LETTER, dead.sequence_numbers)), Locked)
    return [Redrive([token], [each], None) for token, each in zip(locked.tokens, messages, strict=True)]


@pytest.mark.parametrize("kind", ["transactions", "re-drives"])
async def test_a_cycle_takes_few_operations_whose_messages_are_hard_to_match(
    kind: str,
) -> None:
    description = topic("a")
    for number in range(50):
        rule = RuleDescription("r", SqlFilter(f"sys.Label LIKE '%{number}'"))
        description = with_subscription(description, f"r{number}", rule)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=100)))
    messages = [stored_with(subject="red", body=b"%d" % number) for number in range(30)]
    operations: list[Operation] = [Transact(Send([message], None), []) for message in messages]
    if kind == "re-drives":
        operations = await redrives_of(harness, messages)
    commits = len(harness.log.disk.frames)
    await harness.do(9, *operations)
    # Symptom: one commit. Each of them is less than a cycle's work, so all of them shared one step.
    assert commits + 15 <= len(harness.log.disk.frames) <= commits + 16
    assert await bodies(harness, A) == messages
    await check_restart(harness, A)


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_others_use_the_event_loop_while_small_copies_are_made_and_written(kind: str) -> None:
    # Many rules share a filter here, so few filters are looked at; and the copies have few bytes.
    description = topic()
    for number in range(20):
        description = with_subscription(description, f"s{number}", CHANGING)
    failing = RuleDescription("failing", CHANGING.filter, SqlAction("SET sys.Label = 1 / 0"))
    description = with_subscription(description, "f", failing)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=1_000)))
    await harness.send(BLUE)
    turns = await turns_of_others(harness, OPERATIONS[kind]([stored_with(subject="red") for _ in range(60)]))
    # A copy counts as 16 messages, so a step makes those of 3 messages, or writes 62.
    # Symptom: no turn at all. With the default bound, one step made 120,000 copies, which took seconds.
    assert turns >= 35
    assert len(await bodies(harness, "subscriptions/s19")) == 60
    await check_restart(harness, "subscriptions/s0")


async def test_others_use_the_event_loop_while_messages_are_dead_lettered_by_rules() -> None:
    description = topic("a")
    for number in range(20):
        description = with_subscription(
            description, f"s{number}", FAILING, dead_lettering_on_filter_errors=True
        )
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=1_000)))
    await harness.send(BLUE)
    turns = await turns_of_others(harness, Send([stored_with(subject="red") for _ in range(30)], None))
    # A reason counts as 16 messages, so a step finds those of 4 messages, or gives those of 2.
    # Symptom: no turn at all, for they counted as nothing.
    assert turns >= 17
    assert len(await bodies(harness, "subscriptions/s19" + DEAD)) == len(await bodies(harness, A)) == 31
    await check_restart(harness, A, "subscriptions/s19" + DEAD)


def hard_topic(rules: int) -> TopicDescription:
    """A topic of whose messages so many rules make copies for one subscription, each with 31 statements."""
    action = SqlAction(";".join(f"SET a{number} = p" for number in range(31)))
    every = [RuleDescription(f"r{number}", SqlFilter("1=1"), action) for number in range(rules)]
    return with_subscription(topic("a"), "b", *every)


STEP_WORK = 200 + 16 + 2 * 31 + 10
"""What a step takes if it ends after the rule with which its work reaches 200."""


@pytest.mark.parametrize("kind", [*OPERATIONS, "re-drive", "scheduled"])
async def test_one_message_is_matched_in_steps_and_partitions_take_turns(kind: str) -> None:
    turns, hard = Slices(0), stored_with({"p": "x"})
    limits = TaskLimits(bounds=Bounds(matching_max=200))
    harnesses = [
        Harness(description=hard_topic(50), limits=limits, turns=turns, number=number) for number in range(4)
    ]
    for harness in harnesses:
        await harness.send(hard)
        if kind == "scheduled":
            due_ms = harness.clock.now_ms() + 1_000
            await harness.do(9, Send([hard], None, scheduled_ms=[due_ms]))
            harness.clock.advance(1_100)
        elif kind == "re-drive":
            harness.post(9, *await redrives_of(harness, [hard]))
        else:
            harness.post(9, OPERATIONS[kind]([stored_with({"p": "x"})]))
    commits = len(harnesses[0].log.disk.frames)
    matchers = [matcher_of(harness) for harness in harnesses]
    works = [begin := sum([matcher.work for matcher in matchers])]

    async def watch() -> None:
        while True:
            works.append(sum([matcher.work for matcher in matchers]))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(harness.until_quiet() for harness in harnesses))
    watching.cancel()
    # Symptom: 4 x 50 copies in one turn of the event loop. With 16 partitions and 1,000 rules: seconds.
    assert works[-1] - begin >= 4 * 50 * (16 + 2 * 31)
    assert max(after - before for before, after in pairwise(works)) <= STEP_WORK
    for harness in harnesses:
        assert not any(isinstance(each, Failed) for each in harness.take(9))
        assert len(await bodies(harness, A)) == 2 and len(await bodies(harness, B)) == 2 * 50
        assert len(harness.log.disk.frames) == commits + 1, "the message and its copies are in one commit"
        await check_restart(harness, A, B)


async def cycles_of(harness: Harness) -> int:
    """How many cycles what was posted takes."""
    cycles = 1
    while await harness.task.step():
        cycles += 1
    return cycles


async def test_sends_between_other_operations_fill_a_cycle_by_what_matching_them_takes() -> None:
    harness = Harness(description=hard_topic(2), limits=TaskLimits(bounds=Bounds(work_max=1_000)))
    await harness.send()
    for _ in range(20):
        harness.post(9, Send([stored_with({"p": "x"})], None))
        harness.post(9, Complete([]))
    cycles = await cycles_of(harness)
    # Symptom: one cycle, whatever was between the sends.
    assert cycles >= 4
    assert len(await bodies(harness, B)) == 40


async def test_many_small_transactions_with_copies_do_not_share_one_cycle() -> None:
    description = topic()
    for number in range(20):
        description = with_subscription(description, f"s{number}", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=1_000)))
    await harness.send(BLUE)
    for _ in range(30):
        harness.post(9, Transact(Send([stored_with(subject="red")], None), []))
    cycles = await cycles_of(harness)
    # A cycle ends with its third transaction. Symptom: one cycle, in which nobody else used the event loop.
    assert cycles >= 8
    assert [type(each) for each in harness.take(9)] == [Transacted] * 30


async def test_sends_that_take_several_steps_together_have_their_own_answers() -> None:
    description = with_subscription(with_subscription(topic("a"), "b", ONLY_RED), "c", CHANGING)
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(work_max=12)))
    operations = [Send([RED] * 3, None, number) for number in range(4)]
    answers = await harness.do(1, *operations)
    assert [(type(each), getattr(each, "cookie", None)) for each in answers] == [(Sent, n) for n in range(4)]
    assert await bodies(harness, A) == [RED] * 12 and len(await bodies(harness, C)) == 12
    await check_restart(harness, A, B, C)


@pytest.mark.parametrize("work_max", [4_096, 6], ids=["at once", "in steps"])
async def test_numbers_that_are_told_belong_to_no_other_message(work_max: int) -> None:
    harness = Harness(
        description=with_subscription(topic(), "b", ONLY_RED, CHANGING),
        limits=TaskLimits(bounds=Bounds(work_max=work_max)),
    )
    await harness.send(RED)
    before = (await harness.peek(B)).sequence_numbers
    told: list[int] = []
    sends = [[BLUE], [BLUE] * 10 + [RED], [RED]]
    answers = await harness.do(9, *(Send(each, None, tells_numbers=True) for each in sends))
    for answer, send in zip(answers, sends, strict=True):
        assert isinstance(answer, Sent)
        told += range(answer.first, answer.first + len(send))
    # Symptom: BLUE, which nobody gets, had the number of a later message; RED was stored with another number.
    plain, _, last, _ = [each for each in (await harness.peek(B)).sequence_numbers if each not in before]
    assert (plain, last) == (told[11], told[12])
    assert len({*told}) == len(told) and not {*told} & {*before}
    await check_restart(harness, B)


async def test_on_a_full_disk_nothing_of_a_send_is_left() -> None:
    harness = Harness(
        description=with_subscription(with_subscription(topic("a"), "b", FAILING), "c", CHANGING)
    )
    await harness.send(RED)
    before = [await harness.peek(each) for each in (A, B + DEAD, C)]
    harness.log.fill_disk()
    one(await harness.do(9, Send([RED, BLUE], None)), Failed)
    assert [await harness.peek(each) for each in (A, B + DEAD, C)] == before
    await check_restart(harness, A, B + DEAD, C)


def sizes(harness: Harness) -> dict[str, Any]:
    return {name: each.bytes for name, each in harness.task.counts().items()}


async def test_the_size_of_a_topic_counts_what_is_stored_once() -> None:
    description: TopicDescription = topic("a", "b", "c")
    harness = Harness(description=description)
    await harness.send(b"x" * 10_000)
    found = sizes(harness)
    assert 10_000 < sum(found.values()) == harness.task.size() < 12_000
    assert found[A] < 1_000 and len(description.subqueues) == OWN_END - 1 + 3 * 3


async def test_waiting_clients_of_each_subscription_are_served_at_once() -> None:
    harness = Harness(description=topic("a", "b"))
    for client, name in ((1, A), (2, B)):
        assert await harness.do(client, Demand(name, 1)) == []
    await harness.send(b"m")
    assert [one(harness.take(client), Locked).messages for client in (1, 2)] == [[b"m"], [b"m"]]
    assert isinstance(
        one(await harness.do(3, FindDeadLetters(A + DEAD, 1, harness.clock.now_ms())), Found), Found
    )


async def test_a_message_that_is_abandoned_with_a_delay_waits_in_that_subscription_alone() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"m")
    one(await harness.do(1, Abandon((await harness.receive(1, 1, A)).tokens, delay_ms=5_000)), Settled)
    assert (await harness.receive(2, 1, B)).messages == [b"m"]
    await harness.restart()
    assert await harness.do(1, Demand(A, 1)) == []
    assert (await harness.receive(2, 1, B)).messages == [b"m"], "its lock has ended, and nothing delays it"
    await harness.advance(5_100)
    assert one(harness.take(1), Locked).messages == [b"m"]


@pytest.mark.parametrize("is_full", [False, True], ids=["stored", "full disk"])
async def test_a_transaction_publishes_and_settles_or_does_neither(is_full: bool) -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", ONLY_RED, CHANGING))
    await harness.send(BLUE)
    tokens = (await harness.receive(1, 1, A)).tokens
    transfers = Send([b"for another"], None, columns={DESTINATION: [b"another"]})
    if is_full:
        harness.log.fill_disk()
    transact = Transact(Send([RED], None), [Complete(tokens)], transfers=transfers)
    answer = (await harness.do(1, transact))[0]
    assert isinstance(answer, Failed if is_full else Transacted)
    harness.log.empty_disk()
    assert await bodies(harness, A) == ([BLUE] if is_full else [RED])
    assert len(await bodies(harness, B)) == (0 if is_full else 2)
    assert len(await bodies(harness, "$transfer")) == (not is_full)
    if is_full:
        assert one(await harness.do(1, Complete(tokens)), Settled).failures == {}, "the lock is there again"
    await check_restart(harness, A, B, "$transfer")


async def test_a_send_for_many_subscriptions_leaves_the_first_step_to_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: sixteen partitions each stored four messages for 1,000 subscriptions in one turn of the event
    loop, which took 130 ms on a busy machine."""
    stored: list[int] = []
    start = Sending._start

    def first_step(sending: Sending, steps: Iterator[None]) -> None:
        before = sending._messages.next_number
        start(sending, steps)
        stored.append(sending._messages.next_number - before)

    monkeypatch.setattr(Sending, "_start", first_step)
    description = topic(*(f"s{number}" for number in range(30)))
    harness = Harness(description=description, limits=TaskLimits(bounds=Bounds(matching_max=100)))
    one(await harness.do(9, Send([RED] * 2, None)), Sent)
    one(await harness.do(9, Send([RED] * 10, None)), Sent)
    assert stored == [2, 0] and len(await bodies(harness, "subscriptions/s29")) == 12
