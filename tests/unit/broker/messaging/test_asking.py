"""Asking several partitions at once: each answers for its own tokens, and a refusal concerns nobody else."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER
from broker.identifiers import LockToken
from broker.messaging.asking import ask_about, by_partition, renew_locks, without_lock
from broker.namespace.entity import ask
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.settling import Complete, Renewed, RenewLocks, Settled
from tests.support.link_stack import LinkStack, turn


def token(partition: int, number: int) -> LockToken:
    return LockToken((partition << 48 | number).to_bytes(8, "big") + bytes(8))


TOKENS = [token(2, 1), token(0, 1), token(2, 2), token(7, 1), token(0, 2)]


def test_tokens_are_grouped_by_the_partition_that_gave_them() -> None:
    assert by_partition(TOKENS) == {
        2: [TOKENS[0], TOKENS[2]],
        0: [TOKENS[1], TOKENS[4]],
        7: [TOKENS[3]],
    }


async def test_each_partition_is_asked_once_and_its_answer_comes_with_the_places_of_its_tokens() -> None:
    stack = LinkStack()
    asked = asyncio.create_task(ask_about(stack.queue, TOKENS, lambda tokens: Complete(tokens, "mine")))
    await turn()
    assert [len(part.take_all(Complete)) for part in stack.parts if part.number not in (0, 2)] == [0, 0]
    down = Failed(Reason.LOCK_ENDED, "down", "mine")
    done = Settled("mine", {1: Reason.LOCK_LOST})
    assert stack.parts[0].answer(Complete, lambda _: done) == Complete([TOKENS[1], TOKENS[4]], "mine")
    assert stack.parts[2].answer(Complete, lambda _: down) == Complete([TOKENS[0], TOKENS[2]], "mine")
    (places2, refused), (places0, settled), (places7, lost) = await asked
    assert (places2, places0, places7) == ([0, 2], [1, 4], [3])
    assert isinstance(refused, Refused) and refused.reason is Reason.LOCK_ENDED
    assert refused.description == "down"
    assert settled is done
    assert isinstance(lost, Refused) and lost.reason is Reason.LOCK_LOST, "no partition gave this token"


@pytest.mark.parametrize("failures", [{}, {1: Reason.LOCK_LOST}], ids=["all", "one lost"])
async def test_locks_of_several_partitions_are_renewed_whatever_becomes_of_the_others(
    failures: dict[int, Reason],
) -> None:
    stack = LinkStack()
    asked = asyncio.create_task(renew_locks(stack.queue, DEAD_LETTER, [*TOKENS[:3], TOKENS[4]], 7_000))
    await turn()
    two = stack.parts[2].answer(RenewLocks, lambda _: Renewed(1_002, None, failures))
    zero = stack.parts[0].answer(RenewLocks, lambda _: Renewed(1_000, None, {}))
    assert two == RenewLocks([TOKENS[0], TOKENS[2]], duration_ms=7_000, subqueue=DEAD_LETTER)
    assert zero == RenewLocks([TOKENS[1], TOKENS[4]], duration_ms=7_000, subqueue=DEAD_LETTER)
    if failures:
        with pytest.raises(Refused) as refused:
            await asked
        assert refused.value.reason is Reason.LOCK_LOST
    else:
        assert await asked == [1_002, 1_000, 1_002, 1_000]


def test_a_request_that_had_taken_its_locks_itself_can_be_repeated_if_the_partition_went_down() -> None:
    anew = without_lock(Refused(Reason.LOCK_ENDED, "down"))
    assert (anew.reason, anew.description) == (Reason.PARTITION_UNAVAILABLE, "down")
    full = Refused(Reason.DISK_FULL, "full")
    assert without_lock(full) is full


class Column(list[bytes]):
    """A list that can be referred to weakly."""


async def test_an_answer_is_freed_with_its_last_user_and_needs_no_garbage_collection() -> None:
    """A browse of a million messages left so many answers to the collector that one run took 100 ms."""
    stack, freed = LinkStack(), []

    def answer(_: Peek) -> Peeked:
        messages = Column([b"a message"])
        freed.append(weakref.ref(messages))
        return Peeked([1], [0], [0], [None], messages, [None], [0], None)

    gc.disable()
    try:
        asked = asyncio.create_task(ask(stack.queue.router.handles[0], Peek("", 0, 1)))
        await turn()
        stack.parts[0].answer(Peek, answer)
        assert isinstance(await asked, Peeked)
        del asked
        stack.parts[0].posted.clear()  # the client has detached
        await turn()
        assert freed[0]() is None
    finally:
        gc.enable()
