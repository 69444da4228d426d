"""Recall: which client is asked to return unseen messages, which client gets them, and that it comes to an
end.

The clients here are receivers with a cache, as in the front end. A message that arrives when the client
behind the cache no longer waits stays in the cache, unseen, until the client asks again or the partition
recalls it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from broker.entities.descriptions import MAIN
from broker.identifiers import LockToken
from broker.operations.general import Detach, Failed
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked, Recall, Recalled, ReceiveDeferred, Withdraw, Withdrawn
from broker.operations.sending import Send
from broker.operations.settling import Complete, Defer, Release
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import NUMBER, Harness, one

RECALL = Recall(NUMBER, MAIN)


async def test_a_client_that_asks_in_vain_makes_others_give_back_what_was_not_seen() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    assert await harness.do(2, Demand(MAIN, 1)) == []
    assert harness.take(1) == [RECALL]
    assert await harness.do(1, Recalled(MAIN, locked.tokens)) == []
    again = one(harness.take(2), Locked)
    assert again.messages == [b"a"] and again.delivery_counts == [0] and again.tokens != locked.tokens


async def test_only_one_recall_is_under_way_for_a_client_and_none_before_it_is_granted_something_new() -> (
    None
):
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1))
    await harness.do(3, Demand(MAIN, 1))
    assert harness.take(1) == [RECALL]
    await harness.do(1, Recalled(MAIN, []))  # its client has seen the message
    await harness.do(2, Demand(MAIN, 1))
    assert harness.take(1) == []
    await harness.send(b"b")  # goes to client 2, which is next; client 3 still waits
    assert isinstance(harness.take(2)[0], Locked)
    await harness.do(1, Demand(MAIN, 1))
    assert harness.take(1) == []


async def test_a_client_is_not_asked_for_its_own_sake_nor_for_what_it_has_settled() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    await harness.do(1, Demand(MAIN, 1))
    assert harness.take(1) == []
    await harness.do(1, Withdraw(MAIN), Complete(locked.tokens))
    harness.take(1)
    await harness.do(2, Demand(MAIN, 1))
    assert harness.take(1) == []


async def test_a_message_granted_while_another_client_waits_is_asked_back_too() -> None:
    """The message may have met a demand whose client another partition has served meanwhile."""
    harness = Harness()
    await harness.do(1, Demand(MAIN, 1))
    await harness.do(2, Demand(MAIN, 1))
    await harness.send(b"a")
    first, recall = harness.take(1)
    assert isinstance(first, Locked) and recall == RECALL
    await harness.do(1, Recalled(MAIN, first.tokens))
    assert one(harness.take(2), Locked).messages == [b"a"]
    assert harness.take(1) == []


async def test_what_comes_back_goes_to_the_client_that_asked_last_not_to_the_one_that_gave_it() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1))
    await harness.do(3, Demand(MAIN, 1))
    await harness.do(1, Demand(MAIN, 1))
    harness.take(1)
    await harness.do(1, Recalled(MAIN, locked.tokens))
    got = {
        client: [answer for answer in harness.take(client) if isinstance(answer, Locked)]
        for client in (1, 2, 3)
    }
    assert [len(got[client]) for client in (1, 2, 3)] == [0, 0, 1]


async def test_standing_demand_does_not_bounce_a_message_for_ever() -> None:
    """Every client here returns whatever it gets, unseen, and keeps waiting: each gets the message once, and
    then it rests."""
    harness = Harness()
    clients = range(1, 6)
    for client in clients:
        await harness.do(client, Demand(MAIN, 1000))
    await harness.send(b"a")
    grants = 0
    for _ in range(100):
        answers = {client: harness.take(client) for client in clients}
        if not any(answers.values()):
            break
        for client, received in answers.items():
            tokens = [token for answer in received if isinstance(answer, Locked) for token in answer.tokens]
            grants += len(tokens)
            if RECALL in received:
                harness.post(client, Recalled(MAIN, tokens))
        await harness.until_quiet()
    assert not any(harness.take(client) for client in clients) and grants == len(clients)


async def test_a_withdrawal_waits_for_the_recalls_that_were_made_for_it() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    assert await harness.do(2, Demand(MAIN, 1), Withdraw(MAIN)) == []
    await harness.do(1, Recalled(MAIN, locked.tokens))
    answers = harness.take(2)
    assert isinstance(answers[0], Locked) and answers[1:] == [Withdrawn(NUMBER, MAIN)]


async def test_a_cycle_recalls_from_few_clients_and_a_withdrawal_waits_for_all_of_them() -> None:
    """Symptom: a client that asked in vain had messages recalled from thousands of links in one cycle."""
    harness = Harness(limits=TaskLimits(bounds=Bounds(recalls_max=2)))
    await harness.send(*[b"x"] * 5)
    locked = {client: await harness.receive(client) for client in range(1, 6)}
    harness.post(6, Demand(MAIN, 1))
    harness.post(6, Withdraw(MAIN))
    recalled: list[int] = []
    for more in (True, True, False):
        assert await harness.task.step() is more
        harness.task.check()
        found = [client for client in locked if harness.take(client) == [RECALL]]
        assert not harness.take(6), "a message may come back"
        for client in found[: -1 if more else None]:
            harness.post(client, Recalled(MAIN, []))
        recalled += found
    assert recalled == [1, 2, 3, 4, 5]
    for client in (2, 4):
        await harness.do(client, Recalled(MAIN, locked[client].tokens))
    answers = harness.take(6)
    assert isinstance(answers[0], Locked) and answers[1:] == [Withdrawn(NUMBER, MAIN)]


@pytest.mark.parametrize("how", ["seen", "settled", "expired", "detached", "released"])
async def test_a_withdrawal_is_confirmed_once_nothing_can_come_back_any_more(how: str) -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    assert await harness.do(2, Demand(MAIN, 1), Withdraw(MAIN)) == []
    if how == "seen":
        await harness.do(1, Recalled(MAIN, []))
    elif how == "settled":
        await harness.do(1, Complete(locked.tokens))
    elif how == "expired":
        await harness.advance(harness.description.delivery(MAIN).lock_duration_ms + 100)
    elif how == "detached":
        await harness.do(1, Detach())
    else:
        await harness.do(1, Release(locked.tokens))
    answers = harness.take(2)
    assert answers[-1] == Withdrawn(NUMBER, MAIN)
    assert [isinstance(answer, Locked) for answer in answers[:-1]] == (
        [True] if how in ("expired", "released") else []
    )


async def test_a_withdrawal_does_not_wait_for_what_the_client_holds_itself() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.receive(1)
    await harness.receive(2)
    assert await harness.do(1, Demand(MAIN, 1), Withdraw(MAIN)) == []
    assert harness.take(2) == [RECALL] and await harness.do(2, Recalled(MAIN, [])) == []
    assert harness.take(1) == [Withdrawn(NUMBER, MAIN)], "nobody else holds anything"


async def test_asking_again_confirms_the_withdrawal_before_it_first() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1), Withdraw(MAIN))
    assert await harness.do(2, Demand(MAIN, 1)) == [Withdrawn(NUMBER, MAIN)]
    await harness.do(1, Recalled(MAIN, locked.tokens))
    assert one(harness.take(2), Locked).messages == [b"a"]


async def test_a_message_fetched_by_its_number_is_not_recalled() -> None:
    harness = Harness()
    number = await harness.send(b"a")
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    await harness.do(1, ReceiveDeferred(MAIN, [number]))
    await harness.do(2, Demand(MAIN, 1))
    assert harness.take(1) == []


async def test_an_answer_to_a_recall_does_not_cover_what_was_granted_behind_it() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    await harness.do(1, Demand(MAIN, 1))
    await harness.do(2, Demand(MAIN, 1))
    assert harness.take(1) == [RECALL]
    await harness.send(b"b")
    second = one(harness.take(1), Locked)
    assert await harness.do(1, Recalled(MAIN, [])) == [RECALL], (
        "the first answer did not know of the second message"
    )
    await harness.do(1, Recalled(MAIN, second.tokens))
    assert one(harness.take(2), Locked).messages == [b"b"]


# --- a simulation with caches -------------------------------------------------------------------------------


@dataclass
class Receiver:
    """One connection: a client that may be waiting, and a cache of unseen messages."""

    harness: Harness
    number: int
    waits: int = 0
    cache: list[tuple[LockToken, bytes]] = field(default_factory=list)
    seen: list[tuple[LockToken, bytes]] = field(default_factory=list)

    async def ask(self) -> None:
        """The client asks for one message: from the cache, else from the partition."""
        self.waits += 1
        if not self.hand_over():
            self.harness.post(self.number, Demand(MAIN, 1))

    def hand_over(self) -> bool:
        given = False
        while self.waits and self.cache:
            self.seen.append(self.cache.pop(0))
            self.waits -= 1
            given = True
        return given

    def stop_waiting(self) -> None:
        """Another partition served the client. Its demand here stands, and what that brings goes to the
        cache."""
        self.waits = 0

    def take(self) -> bool:
        """Take up the partition's answers; True if there were any."""
        answers: list[Answer] = self.harness.take(self.number)
        for answer in answers:
            if isinstance(answer, Locked):
                self.cache += zip(answer.tokens, answer.messages, strict=True)
                self.hand_over()
            elif isinstance(answer, Recall):
                tokens = [token for token, _ in self.cache]
                self.cache.clear()
                self.harness.post(self.number, Recalled(MAIN, tokens))
        return bool(answers)


async def come_to_rest(harness: Harness, receivers: list[Receiver]) -> int:
    """Let partition and receivers answer each other; returns how many rounds that took."""
    for rounds in range(1, 200):
        await harness.until_quiet()
        busy = [receiver.take() for receiver in receivers]
        if not any(busy):
            return rounds
    raise AssertionError("the message goes round and round")


@pytest.mark.parametrize("seed", range(5))
async def test_one_message_and_eight_clients_that_ask_in_turn_whoever_asks_gets_it(seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness()
    await harness.send(b"the one")
    receivers = [Receiver(harness, number) for number in range(1, 9)]
    for _ in range(200):
        asker = chance.choice(receivers)
        await asker.ask()
        rounds = await come_to_rest(harness, receivers)
        assert [body for _, body in asker.seen] == [b"the one"], "whoever asks gets it"
        assert rounds <= 2 * len(receivers) + 2
        token, _ = asker.seen.pop()
        harness.post(asker.number, Release([token]))
        # Other clients may have asked meanwhile, and been served by another partition.
        for receiver in chance.sample(receivers, chance.randrange(4)):
            harness.post(receiver.number, Demand(MAIN, chance.randrange(1, 4)))
            receiver.stop_waiting()
        await come_to_rest(harness, receivers)
    assert harness.task.counts()[MAIN].active == 1
    assert (await harness.peek()).delivery_counts == [0], (
        "nobody but the asker has seen it, and it was given back"
    )


@pytest.mark.parametrize("seed", range(5))
async def test_all_who_wait_at_once_are_served_while_there_is_enough_wherever_it_lies(seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness()
    receivers = [Receiver(harness, number) for number in range(1, 9)]
    for _ in range(100):
        await harness.send(*[b"x"] * 4)
        hoarder = chance.choice(receivers)
        harness.post(hoarder.number, Demand(MAIN, 4))  # no client behind this demand waits
        await come_to_rest(harness, receivers)
        askers = chance.sample(receivers, 4)
        for asker in askers:
            await asker.ask()
        await come_to_rest(harness, receivers)
        assert [len(asker.seen) for asker in askers] == [1, 1, 1, 1]
        for asker in askers:
            harness.post(asker.number, Complete([token for token, _ in asker.seen]))
            asker.seen.clear()
        await come_to_rest(harness, receivers)
    assert harness.task.counts()[MAIN].active == 0


# --- demand in bytes ----------------------------------------------------------------------------------------


async def test_a_demand_ends_with_its_bytes_whatever_its_count() -> None:
    harness = Harness()
    for _ in range(10):
        await harness.send(bytes(1_000))
    first = one(await harness.do(1, Demand(MAIN, 100, bytes_max=2_500)), Locked)
    assert len(first.tokens) == 3 and first.voids_demand
    await harness.send(b"later")
    assert harness.take(1) == [], "the rest of the demand is void"
    second = one(await harness.do(1, Demand(MAIN, 100, bytes_max=1)), Locked)
    assert len(second.tokens) == 1 and second.voids_demand, "at least one"
    second = one(await harness.do(1, Demand(MAIN, 100, bytes_max=0)), Locked)
    assert len(second.tokens) == 1 and second.voids_demand, "at least one"
    third = one(await harness.do(1, Demand(MAIN, 2, bytes_max=1_000_000)), Locked)
    assert len(third.tokens) == 2 and not third.voids_demand, "its count came first"


async def test_who_has_used_up_its_bytes_leaves_the_rest_to_others() -> None:
    harness = Harness()
    await harness.do(1, Demand(MAIN, 100, bytes_max=1_500))
    await harness.do(2, Demand(MAIN, 100))
    await harness.send(*(bytes(1_000) for _ in range(5)))
    mine, others = one(harness.take(1), Locked), one(harness.take(2), Locked)
    assert len(mine.tokens) == 2 and mine.voids_demand
    assert len(others.tokens) == 3 and not others.voids_demand


async def test_demand_in_bytes_that_a_refused_send_had_used_up_waits_on_with_the_same_bound() -> None:
    harness = Harness()
    await harness.do(1, Demand(MAIN, 100, bytes_max=2_500))
    harness.log.fill_disk()
    assert [type(answer) for answer in await harness.do(2, Send([bytes(1_000)] * 5, None))] == [Failed]
    assert harness.take(1) == [], "it was given nothing, and so not told that its demand is void"
    harness.log.empty_disk()
    await harness.send(bytes(1_000))
    await harness.send(*[bytes(1_000)] * 5)
    first, second = harness.take(1)
    assert isinstance(first, Locked) and len(first.tokens) == 1 and not first.voids_demand
    assert isinstance(second, Locked) and len(second.tokens) == 2 and second.voids_demand


async def test_demand_answered_in_part_on_a_full_disk_is_void_only_if_the_answer_says_so() -> None:
    harness = Harness()
    await harness.send(bytes(1_000))
    harness.log.fill_disk()
    harness.post(2, Send([bytes(1_000)] * 5, None))
    [mine] = await harness.do(1, Demand(MAIN, 100, bytes_max=2_500))
    assert isinstance(mine, Locked) and len(mine.tokens) == 1 and not mine.voids_demand
    harness.log.empty_disk()
    await harness.send(*[bytes(1_000)] * 5)
    [more] = harness.take(1)
    assert isinstance(more, Locked) and len(more.tokens) == 2 and more.voids_demand
