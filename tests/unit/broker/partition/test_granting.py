"""Grants: the answers that give messages to clients, and until when they grow."""

from __future__ import annotations

from broker.entities.descriptions import MAIN, QueueDescription, QueueSettings
from broker.identifiers import ClientId
from broker.operations.receiving import Locked
from broker.partition.cycle import Cycle
from broker.partition.cycle_bounds import Bounds
from broker.partition.granting import close_grant, has_granted_enough, new_grant, write_grant
from broker.partition.references import Lease
from broker.partition.workspace import Workspace
from storage.log import Commit, Position
from tests.support.memory_log import MemoryLog
from tests.support.partition_messages import NUMBER, new_messages, send

CLIENT = ClientId(7)


def workspace(bounds: Bounds | None = None) -> Workspace:
    description = QueueDescription("orders", "0" * 32, 16, QueueSettings())
    space = Workspace(
        NUMBER, description, new_messages(), bounds or Bounds(), epoch=1, first_nonce=0, disk=MemoryLog()
    )
    send(space.messages, 100, 2)
    space.cycle = Cycle(Commit(Position(400)), 1_000, 9_000, space.messages.next_number)
    return space


def leased(space: Workspace) -> Lease:
    lease = space.locks.new_lease(0, 5_000)
    lease.references = list(space.messages.main.references.values())
    return lease


def test_a_grant_is_an_answer_of_the_cycle_that_says_where_and_until_when() -> None:
    space = workspace()
    grant = new_grant(space, CLIENT, leased(space), deferred=True, cookie="mine")
    ((client, answer),) = space.cycle.answers
    assert client == CLIENT and answer is grant.answer and isinstance(answer, Locked)
    assert (answer.partition, answer.subqueue, answer.locked_until_ms) == (NUMBER, MAIN, 5_000)
    assert (answer.deferred, answer.cookie, space.cycle.grants) == (True, "mine", [grant])


def test_messages_that_memory_does_not_hold_are_read_from_the_log_before_the_answer_leaves() -> None:
    space = workspace()
    lease = leased(space)
    lease.references[1].payload = b"in memory"
    grant = new_grant(space, CLIENT, lease)
    write_grant(space, grant)
    assert grant.answer.messages == [b"", b"in memory"]
    assert grant.answer.sequence_numbers == [each.sequence_number for each in lease.references]
    assert space.cycle.holes == [(grant.answer.messages, lease.references)]
    assert space.cycle.missing == lease.references[:1]


def test_a_withdrawal_ends_the_clients_own_grant_alone() -> None:
    space = workspace()
    grants = [new_grant(space, ClientId(number), leased(space)) for number in (1, 2)]
    for number, grant in enumerate(grants, 1):
        space.cycle.open_grants[ClientId(number), 0] = grant
    close_grant(space, ClientId(1), 0)
    close_grant(space, ClientId(1), 0)
    close_grant(space, ClientId(2), 1)
    assert [grant.open for grant in grants] == [False, True]


def test_a_cycle_has_granted_enough_at_any_of_its_bounds() -> None:
    space = workspace(Bounds(granted_bytes_max=100, granted_max=10, granted_leases_max=2))
    space.cycle.granted_bytes, space.cycle.granted = 99, 9
    assert not has_granted_enough(space)
    space.cycle.granted = 10
    assert has_granted_enough(space)
    space.cycle.granted, space.cycle.granted_bytes = 0, 100
    assert has_granted_enough(space)
    space.cycle.granted_bytes = 0
    for number in (1, 2):
        assert not has_granted_enough(space)
        new_grant(space, ClientId(number), leased(space))
    assert has_granted_enough(space)
