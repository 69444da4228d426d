"""A partition's mailbox: which operations make a cycle, and whose answers are delivered."""

from __future__ import annotations

from broker.base.errors import Reason
from broker.identifiers import ClientId, LockToken
from broker.operations.browsing import Arrived, Peek, Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Recalled, Withdraw, Withdrawn
from broker.operations.sending import Send
from broker.operations.sessions import AcceptSession, WatchSessions
from broker.operations.settling import Complete
from broker.operations.streams import SendSinkBatch
from broker.partition.mailbox import (
    ASKED_AT_ONCE,
    GATHERED_MESSAGES,
    GATHERED_OPERATIONS,
    SETTLED_PER_SENT,
    Mailbox,
    Waiting,
    sends_from,
)

ONE, TWO = ClientId(1), ClientId(2)


def waiting(*operations: Operation, client: ClientId = ONE) -> list[Waiting]:
    return [(client, operation, lambda _: None, place) for place, operation in enumerate(operations)]


def gathered(mailbox: Mailbox, operations_max: int, bytes_max: int) -> list[Operation]:
    return [operation for _, operation, _, _ in mailbox.gather(operations_max, bytes_max)]


def test_a_cycle_ends_with_the_send_that_reaches_its_bytes_or_with_its_last_operation() -> None:
    sends = [Send([b"x" * 60], None, place) for place in range(4)]
    mailbox = Mailbox()
    mailbox.waiting += waiting(*sends)
    assert gathered(mailbox, 10, 120) == sends[:2], "the second one reaches the bound and belongs to it"
    assert gathered(mailbox, 1, 100) == sends[2:3]
    assert gathered(mailbox, 10, 100) == sends[3:] and not mailbox and mailbox.since_ms is None


def test_a_cycle_takes_few_of_what_receivers_ask_however_many_operations_it_may_have() -> None:
    """Symptom: the demands and withdrawals of a thousand links at 16 partitions held the event loop for 5 to
    10 ms with each cycle."""
    asked: list[Operation] = [Demand("", 1), Withdraw(""), Recalled("", ()), Detach(())]
    asked += [AcceptSession("", None), WatchSessions(""), Watch("", 0)]
    asked *= ASKED_AT_ONCE
    mailbox = Mailbox()
    mailbox.waiting += waiting(Send([b"x"], None), *asked)
    assert gathered(mailbox, 10_000, 1_000) == [Send([b"x"], None), *asked[:ASKED_AT_ONCE]]
    assert gathered(mailbox, 10_000, 1_000) == asked[ASKED_AT_ONCE : 2 * ASKED_AT_ONCE]
    assert gathered(mailbox, 3, 1_000) == asked[2 * ASKED_AT_ONCE :][:3]


def test_only_what_a_cycle_takes_decides_whether_it_is_short() -> None:
    mailbox = Mailbox()
    mailbox.waiting += waiting(*[Demand("", 1)] * (ASKED_AT_ONCE - 1), Peek("", 0, 1, 1))
    assert not mailbox.is_short(10_000, 100)
    mailbox.waiting.extendleft(waiting(Withdraw("")))
    assert mailbox.is_short(10_000, 100)


def settled(count: int) -> Complete:
    return Complete([LockToken(bytes(16))] * count)


def test_a_few_messages_and_what_receivers_can_wait_for_gather_but_nothing_else() -> None:
    few, many = Send([b"x"] * 20, None), Send([b"x"] * GATHERED_MESSAGES, None)
    met_now, met_later = Demand("", 1), Demand("", 2)
    for operations, can_gather in (
        ([], False),
        ([few], True),
        ([few, few], True),
        ([few] * 4, False),
        ([many], False),
        ([few, Peek("", 0, 1, 1)], False),
        ([few, settled(30), met_later], True),
        ([settled(GATHERED_MESSAGES)], True),
        ([few, settled(GATHERED_MESSAGES * SETTLED_PER_SENT)], False),
        ([few, settled(1)], False),
        ([few, met_now], False),
        ([few, Withdraw("")], False),
    ):
        mailbox = Mailbox()
        mailbox.waiting += waiting(*operations)
        assert mailbox.can_gather(lambda client, demand: demand == met_later) is can_gather


def test_operations_that_are_put_back_come_first_and_in_order() -> None:
    peeks = [Peek("", 0, 1, place) for place in range(4)]
    mailbox = Mailbox()
    mailbox.waiting += waiting(*peeks)
    cycle = mailbox.gather(3, 1)
    mailbox.put_back(cycle, 1)
    assert [entry[1] for entry in mailbox.undecided] == peeks[:1]
    assert mailbox.since_ms == 1
    assert gathered(mailbox, 10, 1) == peeks[1:]


def test_only_clients_of_the_cycle_and_those_that_may_be_answered_later_are_told() -> None:
    mailbox = Mailbox()
    told: dict[ClientId, list[Answer]] = {ONE: [], TWO: []}
    answers = [(client, Arrived(3, "")) for client in (ONE, TWO)]
    mailbox.remember(ONE, Peek("", 0, 1), told[ONE].append)
    for lasting in (Demand("", 1), Watch("", 0)):
        mailbox.remember(TWO, lasting, told[TWO].append)
        mailbox.deliver(answers, [])
        mailbox.remember(TWO, Detach(), told[TWO].append)
        mailbox.deliver(answers, [])
    assert told == {ONE: [], TWO: [Arrived(3, "")] * 2}
    mailbox.deliver(answers, [(ONE, Peek("", 0, 1), told[ONE].append, 0)])
    assert told[ONE] == [Arrived(3, "")]


def test_what_is_undecided_is_refused_before_what_waits() -> None:
    sends = [Send([b"x"], None, place) for place in range(3)]
    mailbox = Mailbox()
    mailbox.waiting += waiting(*sends)
    mailbox.gather(1, 1)
    assert [entry[1] for entry in mailbox.take_all()] == sends
    assert not mailbox and not mailbox.undecided and mailbox.take_all() == []
    mailbox.deliver([(ONE, Unavailable(3))], [])  # a client that nobody remembers


def test_sends_are_taken_together_up_to_the_next_operation_of_another_kind() -> None:
    first, second, third = (Send([b"x"], None, place) for place in range(3))
    cycle = waiting(first, second, Peek("", 0, 1), third)
    assert sends_from(cycle, 0) == [(ONE, first), (ONE, second)]
    assert sends_from(cycle, 1) == [(ONE, second)]
    assert sends_from(cycle, 2) == []
    assert sends_from(cycle, 3) == [(ONE, third)]


def test_the_messages_of_a_sinks_batch_count_as_well() -> None:
    batches = [SendSinkBatch(Send([b"x" * 60], None), b"sink", place, 1) for place in range(3)]
    mailbox = Mailbox()
    mailbox.waiting += waiting(*batches)
    assert gathered(mailbox, 10, 100) == batches[:2]


def test_messages_join_only_the_last_operation_and_only_their_own_clients_send() -> None:
    mailbox, more = Mailbox(), Send([b"b"], [5], 2)
    assert not mailbox.join(more, ONE, 1), "nothing waits"
    mailbox.waiting += waiting(Send([b"a"], None, 1))
    assert not mailbox.join(more, TWO, 1) and not mailbox.join(more, ONE, 2)
    assert mailbox.join(more, ONE, 1)
    assert [entry[1] for entry in mailbox.waiting] == [Send([b"a", b"b"], [None, 5], 1)]
    mailbox.waiting += waiting(Peek("", 0, 1, 1))
    assert not mailbox.join(more, ONE, 1), "what has come since would be overtaken"
    mailbox.waiting.pop()
    mailbox.gather(1, 1)
    assert not mailbox.join(more, ONE, 1), "a cycle stores it already"


def test_messages_join_past_what_receivers_want() -> None:
    mailbox, more = Mailbox(), Send([b"b"], None, 2)
    mailbox.waiting += waiting(Send([b"a"], None, 1), settled(1), Demand("", 1))
    assert mailbox.join(more, ONE, 1) and not mailbox.join(more, TWO, 1)
    assert mailbox.waiting[0][1] == Send([b"a", b"b"], None, 1)
    mailbox.waiting.popleft()
    assert not mailbox.join(more, ONE, 1), "no send waits"
    mailbox.waiting.extendleft(waiting(Withdraw(""), Send([b"a"], None, 1)))
    assert not mailbox.join(more, ONE, 1), "the withdrawal would be overtaken"


def test_where_much_waits_nobody_looks_at_all_of_it_with_each_operation_that_comes() -> None:
    mailbox, looks = Mailbox(), list[ClientId]()

    def is_patient(client: ClientId, _: Demand) -> bool:
        looks.append(client)
        return True

    for number in range(10 * GATHERED_OPERATIONS):
        mailbox.waiting += waiting(Demand("", 1), client=ClientId(number))
        assert mailbox.can_gather(is_patient) is (number < GATHERED_OPERATIONS)
    assert len(looks) == GATHERED_OPERATIONS * (GATHERED_OPERATIONS + 1) // 2
    mailbox.waiting.appendleft(waiting(Send([b"a"], None, cookie=7))[0])
    assert not mailbox.join(Send([b"b"], None), ONE, 7), "it is too far away"


def test_a_client_that_asks_for_a_session_is_not_answered_until_it_is_or_refused() -> None:
    mailbox = Mailbox()
    accept, other = AcceptSession("", b"a"), AcceptSession("", b"b")
    for client, operation in ((ONE, accept), (TWO, other)):
        mailbox.waiting.append((client, operation, lambda _: None, 5))
    cycle = mailbox.gather(10, 100)
    for entry in cycle:
        mailbox.remember(*entry[:3])
    mailbox.put_back(cycle, 1)
    assert [entry[1] for entry in mailbox.take_all()] == [accept, other], "each once"
    for client, operation in ((ONE, accept), (TWO, other)):
        mailbox.remember(client, operation, lambda _: None)
    mailbox.deliver([(ONE, Failed(Reason.SESSION_LOCKED, "", None))], [])
    assert [entry[:2] for entry in mailbox.take_all()] == [(TWO, other)]
    assert mailbox.take_all() == []


def test_a_client_that_withdraws_is_not_answered_until_it_is_told_that_this_is_complete_or_goes() -> None:
    mailbox, withdraw = Mailbox(), Withdraw("")
    for client in (ONE, TWO):
        mailbox.remember(client, withdraw, lambda _: None)
    mailbox.deliver([(ONE, Arrived(3, "")), (TWO, Withdrawn(3, ""))], [])
    assert [entry[:2] for entry in mailbox.take_all()] == [(ONE, withdraw)], "it was told something else"
    assert mailbox.take_all() == []
    mailbox.remember(ONE, withdraw, lambda _: None)
    mailbox.remember(ONE, Detach(), lambda _: None)
    assert mailbox.take_all() == []
