"""Stores the messages that one request brings, with an outcome for each of them.

They are placed by their keys, as those of sends are; those without a key go to one partition together. Each
partition stores its messages in one commit, or none of them. Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.message.stored import store_together
from broker.messaging.asking import answer_of
from broker.messaging.fail_over import another_partition, refusal_of_all
from broker.messaging.sending import Collected, check_sent, keys_of, too_large
from broker.messaging.sends import send_of
from broker.namespace.entity import Entity, ask
from broker.operations.sending import Send, Sent
from broker.operations.streams import SendSinkBatch, SinkBatchSent
from broker.send_lists import at, part_of
from broker.throttle.memory_mark import Memory


@dataclass(slots=True)
class Outcomes:
    """What became of the messages of one request."""

    numbers: list[int]
    """Their sequence numbers, in order; 0 for those that were not stored."""
    duplicates: list[int] = field(default_factory=list)
    """The places of those that were dropped as duplicates, ascending."""
    refusals: list[Refused] = field(default_factory=list)
    """Why partitions have not stored theirs."""


def to_store(
    entity: Entity, payloads: Sequence[bytes], *, memory: Memory, message_id: Callable[[], str]
) -> Collected:
    """Check messages, each as its sender encoded it. Raises Refused if any of them cannot be sent.
    `message_id` makes ids for messages that have none."""
    entity.check_can_send(MAIN)
    if entity.throttle is not None:
        entity.throttle.admit_all(len(payloads), entity.filters)
    memory.admit(len(payloads))
    entity.admit(payloads)
    for payload in payloads:
        if len(payload) > entity.message_bytes_max:
            raise too_large(entity, len(payload))
    run = store_together(payloads, message_id)
    check_sent(run, payloads, entity)
    if run.refused:
        raise run.refused[min(run.refused)]
    send = send_of(run, entity)
    send.tells_numbers = True
    return Collected(send, keys_of(run, entity) or [None] * len(payloads))


async def store_all(entity: Entity, collected: Collected) -> Outcomes:
    """Have all partitions store their messages. Returns once they are durable, or were refused."""
    whole, keys = collected.send, collected.keys
    groups: dict[int | None, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(None if key is None else entity.router.number_of(key), []).append(place)
    began = asyncio.get_running_loop().time()
    sends = [part_of(whole, at(places)) for places in groups.values()]
    answers = await asyncio.gather(
        *(_sent(entity, number, send) for number, send in zip(groups, sends, strict=True))
    )
    outcomes = Outcomes([0] * len(keys))
    for places, answer in zip(groups.values(), answers, strict=True):
        if isinstance(answer, Refused):
            outcomes.refusals.append(answer)
        else:
            _add(outcomes, places, answer)
    outcomes.duplicates.sort()
    _count(entity, whole, outcomes, began)
    return outcomes


async def store_sink_batch(
    entity: Entity, collected: Collected, sink: bytes, batch: int, sinks_max: int
) -> tuple[Outcomes, SinkBatchSent]:
    """Have one partition store all messages, and note the batch in its ledger in the same commit. Messages
    without a key go to the partition of the sink's name.

    Raises Refused if the messages belong to several partitions, or their partition refuses.
    """
    home = home_of(entity, sink)
    router = entity.router
    numbers = {home if key is None else router.number_of(key) for key in collected.keys}
    if len(numbers) > 1:
        raise Refused(
            Reason.ARGUMENT,
            f"The messages of a batch must belong to one partition; these belong to {sorted(numbers)}.",
        )
    began = asyncio.get_running_loop().time()
    answer = await _sink_batch(entity, numbers.pop(), collected.send, sink, batch, sinks_max)
    outcomes = Outcomes([0] * len(collected.keys))
    _add(outcomes, range(len(collected.keys)), answer)
    _count(entity, collected.send, outcomes, began)
    return outcomes, answer


async def commit_sink_batch(
    entity: Entity, number: int, sink: bytes, batch: int, sinks_max: int
) -> SinkBatchSent:
    """Note a batch in the ledger of a partition, without messages. Raises Refused."""
    entity.check_can_send(MAIN)
    return await _sink_batch(entity, number, Send([], None), sink, batch, sinks_max)


async def _sink_batch(
    entity: Entity, number: int, send: Send, sink: bytes, batch: int, sinks_max: int
) -> SinkBatchSent:
    answer = await ask(entity.router.pinned(number), SendSinkBatch(send, sink, batch, sinks_max))
    assert isinstance(answer, SinkBatchSent), f"{answer} is not an answer to SendSinkBatch"
    return answer


def home_of(entity: Entity, sink: bytes) -> int:
    """The partition whose ledger has a sink's batches, unless they were sent with messages of another
    one."""
    return entity.router.number_of(sink.decode())


def _add(outcomes: Outcomes, places: Sequence[int], answer: Sent | SinkBatchSent) -> None:
    dropped = frozenset(answer.duplicates)
    new = [place for index, place in enumerate(places) if index not in dropped]
    outcomes.duplicates += [places[index] for index in answer.duplicates]
    for number, place in enumerate(new, answer.first):
        outcomes.numbers[place] = number


def _count(entity: Entity, whole: Send, outcomes: Outcomes, began: float) -> None:
    """Count what was stored for the metrics."""
    meter = entity.meter
    meter.duplicate_messages += len(outcomes.duplicates)
    if not outcomes.refusals:
        meter.incoming_messages += len(whole.messages)
        meter.incoming_bytes += sum(map(len, whole.messages))
        meter.successful_requests += 1
        meter.send_seconds.observe(asyncio.get_running_loop().time() - began)


async def _sent(entity: Entity, number: int | None, send: Send) -> Sent | Refused:
    """Have a partition store messages: this one, or any if it is None. Returns the refusal if none
    does."""
    router, loop = entity.router, asyncio.get_running_loop()
    refused_by: dict[int, Reason] = {}
    began = loop.time()
    try:
        if number is not None:
            return _as_sent(await ask(router.pinned(number), send))
        another: int | None = router.spread(len(send.messages), began)[0][0]
    except Refused as why:
        return why
    while True:
        assert another is not None, "the loop ends with the last partition"
        answer = await answer_of(router.handles[another], send)
        if not isinstance(answer, Refused):
            return _as_sent(answer)
        another = another_partition(
            entity, another, answer.reason, refused_by, len(send.messages), began=began, now=loop.time()
        )
        if another is None:
            return refusal_of_all(entity, refused_by, answer)


def _as_sent(answer: object) -> Sent:
    assert isinstance(answer, Sent), f"{answer} is not an answer to Send"
    return answer
