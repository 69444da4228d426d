"""Receiving without a link: a caller gets the messages that it wants, and settles them with its own notes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from broker.base.errors import Reason, Refused
from broker.base.few import Few
from broker.identifiers import LockToken
from broker.messaging.receive_cache import ReceiveCache
from broker.messaging.receiver import Receiver
from broker.messaging.settlement import COMPLETE, RELEASE, Settlement
from broker.operations.general import Detach, Failed
from broker.operations.receiving import Demand, Locked, Recall, Recalled, Withdraw
from broker.operations.settling import Complete, Release, Settled
from tests.support.link_stack import LinkStack
from tests.support.receiving import confirm, give


class Caller:
    """Receives by something other than AMQP; its notes are words."""

    allowance = 100_000

    def __init__(self, stack: LinkStack, *, removes: bool = False, due: Few | None = None) -> None:
        self.credit, self.drains, self.is_told_of_end = 0, False, False
        self.taken: list[LockToken] = []
        self.heard: list[tuple[str, object]] = []
        self.receiver: Receiver[str] = Receiver(
            stack.queue,
            "",
            self,
            cache=ReceiveCache(100, 100_000),
            clock=stack.clock,
            due=due or Few(1),
            removes=removes,
        )

    def want(self, count: int, *, drains: bool = False) -> None:
        self.credit, self.drains = count, drains
        self.receiver.credit_granted()

    def wanted(self) -> int:
        return self.credit

    def has_credit(self) -> bool:
        return self.credit > 0

    def is_draining(self) -> bool:
        return self.drains

    def refuse(self, why: Refused) -> None:
        self.heard.append(("end", why.reason))

    def session_lost(self) -> None:
        raise AssertionError("there is no session")

    def is_blocked(self) -> bool:
        return False

    def may_answer_drain(self) -> bool:
        return True

    def drained(self) -> None:
        self.credit, self.is_told_of_end = 0, True

    def take(self, locked: Locked) -> None:
        self.credit -= len(locked.tokens)
        self.taken += locked.tokens

    def shelf_bytes(self) -> int:
        return 100_000

    def shelved(self, size: int) -> None:
        """This caller has room for everything."""

    def settled(self, receipt: str, settlement: Settlement, failures: Mapping[int, Reason]) -> None:
        self.heard.append((receipt, dict(failures)))

    def not_settled(self, receipt: str, why: Refused) -> None:
        self.heard.append((receipt, why.reason))

    def fail(self) -> None:
        raise AssertionError("nothing unforeseen happens here")


async def test_what_is_wanted_is_asked_everywhere_and_what_is_beyond_it_waits_for_the_next_request() -> None:
    stack = LinkStack(4)
    caller = Caller(stack)
    caller.want(1)
    assert all(part.has(Demand) for part in stack.parts)
    messages = give(stack, 2, 3)
    assert caller.taken == messages.tokens[:1]
    caller.want(2)
    assert caller.taken == messages.tokens
    assert (stack.queue.meter.receive_cache_misses, stack.queue.meter.receive_cache_hits) == (1, 2)


async def test_what_the_client_has_not_seen_goes_back_with_what_was_held_ready() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    caller.want(1)
    first, second = give(stack, 0, 3), give(stack, 1, 2)
    caller.receiver.end(first.tokens[:1])
    returned = [sorted(part.take(Detach)[0].unseen) for part in stack.parts]
    assert returned == [first.tokens, second.tokens]
    assert stack.queue.meter.receive_cache_returns == 5


async def test_a_partition_gets_back_what_it_recalls_and_all_get_back_the_rest_at_the_end() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    caller.want(1)
    ((_, _, sink),) = stack.parts[0].posted
    first, second = give(stack, 0, 3), give(stack, 1, 2)
    assert stack.queue.kept_ready == {"": 4}, "all but the one that was wanted"
    sink(Recall(0, ""))
    assert stack.queue.kept_ready == {"": 2}
    assert [each.tokens for each in stack.parts[0].take_all(Recalled)] == [first.tokens[1:]]
    caller.receiver.end()
    assert [list(each.unseen) for each in stack.parts[1].take_all(Detach)] == [second.tokens]
    assert stack.queue.kept_ready == {"": 0}


async def test_receive_and_delete_hands_over_what_is_durably_removed_and_nothing_else() -> None:
    stack = LinkStack(1)
    caller = Caller(stack, removes=True)
    caller.want(2)
    messages = give(stack, 0, 2)
    assert caller.taken == []
    stack.parts[0].answer(Complete, lambda each: Settled(each.cookie, {0: Reason.LOCK_LOST}))
    assert caller.taken == messages.tokens[1:]


async def test_a_settlement_is_told_with_its_note_once_it_is_durable_also_after_the_end() -> None:
    stack = LinkStack(1)
    caller = Caller(stack)
    caller.want(3)
    tokens = give(stack, 0, 3).tokens
    for place, receipt in enumerate(("first", "second")):
        caller.receiver.settle(0, tokens[place : place + 1], COMPLETE, receipt)
    caller.receiver.settle(0, tokens[2:], RELEASE, "never told")
    assert stack.parts[0].take(Release)[0].tokens == tokens[2:] and caller.heard == []
    stack.parts[0].answer(Complete, lambda each: Failed(Reason.DISK_FULL, "full", each.cookie))
    caller.receiver.end()
    stack.parts[0].answer(Complete, lambda each: Settled(each.cookie))
    assert caller.heard == [("first", Reason.DISK_FULL), ("second", {})]
    assert stack.queue.meter.completed_messages == 1


async def test_few_receivers_withdraw_in_one_turn_although_many_are_due() -> None:
    """Symptom: a thousand receivers that were given their message withdrew their demand from 15 other
    partitions each in one turn of the event loop."""
    stack, due = LinkStack(2), Few(2)
    callers = [Caller(stack, due=due) for _ in range(5)]
    for caller in callers:
        caller.want(1)
        caller.credit = 0
    callers[1].credit = 1
    for caller in callers:
        caller.receiver._withdraw_is_due()
    withdrawn = []
    for _ in range(4):
        withdrawn.append([len(part.take_all(Withdraw)) for part in stack.parts])
        await asyncio.sleep(0)
    assert withdrawn == [[0, 0], [1, 1], [2, 2], [1, 1]], "one wants messages again"


async def test_a_receiver_that_fails_when_it_is_due_ends_alone() -> None:
    stack, due = LinkStack(1), Few(2)
    broken, sound = Caller(stack, due=due), Caller(stack, due=due)
    for caller in (broken, sound):
        caller.want(1)
        caller.credit = 0
        caller.receiver._withdraw_is_due()
    del broken.credit
    failed: list[Caller] = []
    broken.fail = lambda: failed.append(broken)  # type: ignore[method-assign]
    await asyncio.sleep(0)
    assert failed == [broken] and len(stack.parts[0].take_all(Withdraw)) == 1


async def test_a_drain_ends_when_every_partition_has_said_that_nothing_is_on_its_way() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    caller.want(5, drains=True)
    confirm(stack.parts[0])
    assert not caller.is_told_of_end
    confirm(stack.parts[1])
    assert caller.is_told_of_end


async def test_a_throttled_receiver_gets_as_much_as_there_are_credits_and_the_rest_in_the_next_period() -> (
    None
):
    stack = LinkStack(1, throttle_credits=3)
    assert stack.throttle is not None
    caller = Caller(stack)
    caller.want(5)
    ((demand, _, _),) = stack.parts[0].posted
    assert isinstance(demand, Demand) and demand.count == 3
    messages = give(stack, 0, 5)
    assert caller.taken == messages.tokens[:3] and stack.queue.kept_ready == {"": 2}
    caller.want(2)
    stack.throttle.look()
    assert len(caller.taken) == 3, "no period has begun"
    stack.clock.advance(1_000)
    stack.throttle.look()
    assert caller.taken == messages.tokens


async def test_what_is_kept_ready_and_recalled_costs_nothing() -> None:
    stack = LinkStack(1, throttle_credits=10)
    assert stack.throttle is not None
    caller = Caller(stack)
    caller.want(1)
    ((_, _, sink),) = stack.parts[0].posted
    give(stack, 0, 5)
    sink(Recall(0, ""))
    assert stack.throttle.left_for_receivers() == 9


async def test_receive_and_delete_pays_once() -> None:
    stack = LinkStack(1, throttle_credits=10)
    assert stack.throttle is not None
    caller = Caller(stack, removes=True)
    caller.want(2)
    give(stack, 0, 2)
    stack.parts[0].answer(Complete, lambda each: Settled(each.cookie))
    assert (len(caller.taken), stack.throttle.left_for_receivers()) == (2, 8)


async def test_a_drain_waits_for_credits_because_there_may_be_messages() -> None:
    stack = LinkStack(1, throttle_credits=2)
    assert stack.throttle is not None
    caller = Caller(stack)
    stack.throttle.charge(2)
    caller.want(1, drains=True)
    assert not stack.parts[0].posted and not caller.is_told_of_end
    stack.clock.advance(1_000)
    stack.throttle.look()
    messages = give(stack, 0, 1)
    assert caller.taken == messages.tokens


async def test_a_receiver_without_credits_for_too_long_is_told_that_the_broker_is_busy() -> None:
    stack = LinkStack(1, throttle_credits=1)
    assert stack.throttle is not None
    caller = Caller(stack)
    stack.throttle.charge(60)
    caller.want(1)
    for _ in range(11):
        stack.clock.advance(1_000)
        stack.throttle.look()
        await asyncio.sleep(0)
    assert caller.heard == [("end", Reason.THROTTLED)]


async def test_an_ended_receiver_is_not_called_any_more() -> None:
    stack = LinkStack(1, throttle_credits=1)
    assert stack.throttle is not None
    caller = Caller(stack)
    stack.throttle.charge(1)
    caller.want(1)
    caller.receiver.end()
    stack.parts[0].posted.clear()
    stack.clock.advance(1_000)
    stack.throttle.look()
    assert not stack.parts[0].posted
