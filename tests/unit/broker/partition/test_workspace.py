"""What the parts of the state machine share: a marked record is written and applied at once."""

from __future__ import annotations

from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.identifiers import ClientId
from broker.operations.receiving import Unmet
from broker.partition import records
from broker.partition.cycle import Cycle
from broker.partition.cycle_bounds import Bounds
from broker.partition.records import Mark
from broker.partition.workspace import NO_CYCLE, Workspace
from storage.log import Commit, Position
from tests.support.memory_log import MemoryLog
from tests.support.partition_messages import NUMBER, frame_of, new_messages, send

LOCK_MS = 5_000


def workspace() -> Workspace:
    settings = QueueSettings(lock_duration_ms=LOCK_MS)
    description = QueueDescription("orders", "0" * 32, 16, settings)
    return Workspace(NUMBER, description, new_messages(), Bounds(), epoch=7, first_nonce=0, disk=MemoryLog())


def test_a_mark_is_in_the_commit_in_the_cycle_and_in_force() -> None:
    space = workspace()
    first = send(space.messages, 100, 2)
    space.cycle = cycle = Cycle(Commit(Position(400)), 1_000, 9_000, space.messages.next_number)
    mark = Mark(records.REMOVED, 0, [first])
    space.mark(mark)
    assert list(space.messages.main.references) == [first + 1]
    assert cycle.marks == [(records.REMOVED, records.encode_mark(mark), records.VERSION)]
    (record,) = frame_of(cycle.commit).records()
    assert list(records.read_mark(record).sequence_numbers) == [first]


def test_a_lock_that_begins_in_a_cycle_lasts_as_long_as_the_description_says() -> None:
    space = workspace()
    space.cycle = Cycle(Commit(Position(0)), 1_000, 9_000, 1)
    assert space.locked_until_ms(space.messages.main) == 1_000 + LOCK_MS
    space.description = QueueDescription("orders", "0" * 32, 16, QueueSettings(lock_duration_ms=7_000))
    assert space.locked_until_ms(space.messages.main) == 8_000


def test_answers_wait_in_the_cycle_in_order() -> None:
    space = workspace()
    space.cycle = Cycle(Commit(Position(0)), 0, 0, 1)
    for client in (2, 1):
        space.answer(ClientId(client), Unmet(NUMBER, ""))
    assert space.cycle.answers == [(2, Unmet(NUMBER, "")), (1, Unmet(NUMBER, ""))]
    assert not NO_CYCLE.answers, "nothing is ever added to the placeholder"
