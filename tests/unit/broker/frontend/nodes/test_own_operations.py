"""Operations of our own: how requests are read, what they ask of partitions, and which rights they need.

`tests/interop/test_own_operations.py` has them against a running broker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus, QueueSettings
from broker.identifiers import PARTITION_SHIFT
from broker.operations.deleting import Delete, Deleted
from broker.operations.message_states import SubqueueCounts
from broker.operations.scheduling import Reschedule
from broker.operations.settling import Renewed, RenewLocks, Settled
from protocol.codec import Array, Long, Timestamp, TypeCode
from tests.support.management_bench import Bench, bench, down, status

DEAD = "queue/$deadletterqueue/$management"


async def purge(work: Bench, body: dict[str, Any]) -> tuple[Any, list[Delete]]:
    asked: list[Delete] = []

    def delete(number: int, operation: Delete) -> Deleted:
        asked.append(operation)
        return Deleted(0, None, operation.cookie)

    return await work.ask("partibus:purge-messages", body, {Delete: delete}), asked


async def test_a_purge_without_fields_takes_all_states_and_ages() -> None:
    response, asked = await purge(await bench(1), {})
    assert (status(response), response.body) == ((200, None), {"message-count": 0})
    assert [(each.count, list(each.states), each.subqueue) for each in asked] == [(4_000, [0, 1, 2], "")]
    assert asked[0].enqueued_before_ms > 1 << 60


async def test_a_purge_takes_the_states_age_count_and_start_asked_for() -> None:
    body = {
        "states": ["scheduled", "deferred", "deferred"],
        "enqueued-time-utc": Timestamp(5_000),
        "message-count": 7,
        "from-sequence-number": 3,
    }
    _, asked = await purge(await bench(1, DEAD), body)
    assert [(list(each.states), each.enqueued_before_ms, each.count) for each in asked] == [
        ([1, 2], 5_000, 7)
    ]
    assert asked[0].from_sequence_number == 3 and asked[0].subqueue == "$deadletterqueue"


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("purge-messages", {"states": []}),
        ("purge-messages", {"states": ["active", 5]}),
        ("purge-messages", {"states": "active"}),
        ("purge-messages", {"message-count": 4_001}),
        ("purge-messages", {"from-sequence-number": None}),
        ("purge-messages", {"session-id": "s"}),
        ("delete-messages", {"sequence-numbers": [1.5]}),
        ("renew-lock", {"lock-tokens": [b"x"], "duration": 5}),
        ("redrive-messages", {"sequence-numbers": []}),
        ("redrive-messages", {"deadletter-reason": b"bytes"}),
    ],
)
async def test_a_malformed_request_asks_nothing_of_a_partition(operation: str, body: dict[str, Any]) -> None:
    work = await bench(1, DEAD)
    response = await work.ask(f"partibus:{operation}", body)
    assert status(response) == (400, "com.microsoft:argument-error")
    assert not any(part.posted for part in work.stack.parts)


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        ("delete-messages", {"sequence-numbers": [1], "states": ["active"]}, "states"),
        ("purge-messages", {"state": ["scheduled"]}, "state"),
        ("purge-messages", {5: "no text"}, "5"),
        ("redrive-messages", {"dead-letter-reason": "broken"}, "dead-letter-reason"),
        ("redrive-messages", {"sequence-numbers": [1], "deadletter-reason": "broken"}, "deadletter-reason"),
        ("renew-lock", {"lock-tokens": [UUID(int=0)], "duration": 5, "seconds": 5}, "seconds"),
        ("count-messages", {"states": ["active"]}, "states"),
        ("reschedule-messages", {"sequence-numbers": [1], "scheduled-enqueue-time": 1, "time": 1}, "time"),
        ("deliver-scheduled-messages", {"sequence-numbers": [1], "time": 1}, "time"),
    ],
)
async def test_an_unknown_field_is_refused_by_name_and_asks_nothing_of_a_partition(
    operation: str, body: dict[Any, Any], field: str
) -> None:
    work = await bench(1, DEAD if operation == "redrive-messages" else "queue/$management")
    response = await work.ask(f"partibus:{operation}", body)
    assert status(response) == (400, "com.microsoft:argument-error")
    assert f"has no field {field};" in response.properties["statusDescription"].replace("'", "")
    assert not any(part.posted for part in work.stack.parts)


@pytest.mark.parametrize(("kept_ready", "locked"), [({}, 8), ({"": 3, "$other": 1}, 5), ({"": 9}, 0)])
async def test_messages_kept_ready_for_a_receiver_do_not_count_as_locked(
    monkeypatch: pytest.MonkeyPatch, kept_ready: dict[str, int], locked: int
) -> None:
    """The last case: partitions have given up locks of which the receiver has not heard yet."""
    work = await bench(2)
    for part in work.stack.parts:
        counts = {"": SubqueueCounts(active=5, locked=4, deferred=1, scheduled=2, bytes=9)}
        monkeypatch.setattr(part, "counts", lambda only=None, counts=counts: counts)
    work.stack.queue.kept_ready.update(kept_ready)
    response = await work.ask("partibus:count-messages", None)
    assert response.body == {
        "active": 10,
        "locked": locked,
        "deferred": 2,
        "scheduled": 4,
        "size-in-bytes": 18,
    }


async def test_a_lock_is_renewed_for_the_duration_asked_for() -> None:
    work = await bench(1)
    token = Array(TypeCode.UUID, [UUID(int=0)])

    def renew(number: int, operation: RenewLocks) -> Renewed:
        assert operation.duration_ms == 5_000
        return Renewed(7, operation.cookie)

    body = {"lock-tokens": token, "duration": 5_000}
    response = await work.ask("partibus:renew-lock", body, {RenewLocks: renew})
    assert status(response) == (200, None)


async def test_redriving_needs_both_rights_and_a_queue_that_takes_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = await bench(1, DEAD)
    queue = work.stack.queue
    active = queue.description
    disabled = replace(active.settings, status=EntityStatus.SEND_DISABLED)
    queue.description = replace(active, settings=disabled)
    assert status(await work.ask("partibus:redrive-messages", {}))[0] == 403

    def only_listen(path: str, *rights: str) -> None:
        if rights == ("Send",):
            raise Refused(Reason.UNAUTHORIZED, f"no right to send to {path}")

    queue.description = active
    monkeypatch.setattr(type(work.client.connection), "authorize", lambda self, *given: only_listen(*given))
    assert status(await work.ask("partibus:redrive-messages", {}))[0] == 401


async def test_a_purge_takes_the_session_asked_for() -> None:
    work = await bench(1, DEAD, settings=QueueSettings(requires_session=True))
    _, asked = await purge(work, {"session-id": "s"})
    assert [each.session_id for each in asked] == [b"s"]


async def test_scheduled_messages_get_another_time_in_all_their_partitions() -> None:
    work = await bench(4)
    asked: list[tuple[int, list[int], int]] = []

    def answer(number: int, operation: Reschedule) -> Settled:
        asked.append((number, list(operation.sequence_numbers), operation.at_ms))
        return Settled(operation.cookie, {0: Reason.MESSAGE_NOT_FOUND} if number == 2 else {})

    one, two, unknown = 1 << PARTITION_SHIFT | 7, 2 << PARTITION_SHIFT | 8, 9 << PARTITION_SHIFT
    numbers = Array(TypeCode.LONG, [Long(each) for each in (one, two, one, unknown)])
    body = {"sequence-numbers": numbers, "scheduled-enqueue-time": Timestamp(5_000)}
    response = await work.ask("partibus:reschedule-messages", body, {Reschedule: answer})
    assert status(response) == (200, None)
    assert [*response.body["rescheduled"].values] == [one]
    assert sorted(response.body["missing"].values) == [two, unknown]
    body = {"sequence-numbers": numbers}
    response = await work.ask("partibus:deliver-scheduled-messages", body, {Reschedule: answer})
    assert [*response.body["delivered"].values] == [one]
    assert sorted(asked) == [(1, [one], 0), (1, [one], 5_000), (2, [two], 0), (2, [two], 5_000)]


@pytest.mark.parametrize(
    ("operation", "body", "address", "condition"),
    [
        ("reschedule-messages", {"sequence-numbers": [1]}, "queue", "com.microsoft:argument-error"),
        ("reschedule-messages", {"scheduled-enqueue-time": 5}, "queue", "com.microsoft:argument-error"),
        ("deliver-scheduled-messages", {"sequence-numbers": []}, "queue", "com.microsoft:argument-error"),
        (
            "deliver-scheduled-messages",
            {"sequence-numbers": [1]},
            "queue/$deadletterqueue",
            "amqp:not-allowed",
        ),
    ],
)
async def test_a_request_for_another_time_that_makes_no_sense_is_refused(
    operation: str, body: dict[str, Any], address: str, condition: str
) -> None:
    work = await bench(1, f"{address}/$management")
    assert status(await work.ask(f"partibus:{operation}", body)) == (400, condition)
    assert not any(part.posted for part in work.stack.parts)


async def test_a_partition_that_is_down_is_reported_to_those_who_change_times() -> None:
    body = {"sequence-numbers": [1]}
    response = await (await bench(1)).ask("partibus:deliver-scheduled-messages", body, {Reschedule: down})
    assert status(response) == (503, "com.microsoft:server-busy")
