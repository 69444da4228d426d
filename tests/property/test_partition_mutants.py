"""What the model of the partition notices: each of these mutants is a small mistake in the product, and the
model must fail on it.

A mutant replaces a few characters in one function. If a function has changed so that the characters are not
there any more, choose others for the same mistake. `make test` tries a few mutants, `make simulate` all.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from hypothesis import Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from broker.partition import dead_lettering, delivery_count, expiries, lock_expiry, schedule
from broker.partition.browsing import Browsing
from broker.partition.changed_properties import ChangedProperties
from broker.partition.deleting import Deleting
from broker.partition.delivering import Delivering
from broker.partition.duplicates import Duplicates
from broker.partition.giving_back import GivingBack
from broker.partition.handing_over import HandingOver
from broker.partition.message_sessions import MessageSessions
from broker.partition.origins import Origins
from broker.partition.promises import Promises
from broker.partition.session_locks import SessionLocks
from broker.partition.settling import Settling
from broker.partition.time_to_live import TimeToLive
from broker.partition.transactions import Transactions
from tests.property.test_partition_model import LONG, PartitionMachine
from tests.support.mutants import Mutant, applied, check_that_each_fits, tried

MUTANTS = [
    Mutant(
        "a completed message comes back after a restart",
        Settling._remove,
        "self._space.mark(",
        "self._space.messages.apply_mark(",
    ),
    Mutant(
        "a lock that ends counts no delivery",
        lock_expiry.run_out_locks,
        "failed_delivery(space, time_to_live, subqueue, some, None)",
        "time_to_live.give_back(subqueue, some)",
    ),
    Mutant(
        "a message is delivered once too often before it is dead-lettered",
        delivery_count.spent_from_of,
        ".max_delivery_count - 1",
        ".max_delivery_count",
    ),
    Mutant(
        "a message that expires while it is locked stays",
        TimeToLive.give_back,
        "each.lives_until_ms <= self._space.cycle.now_ms",
        "False",
    ),
    Mutant(
        "deferring counts no delivery",
        Settling._defer,
        "counts_delivery=subqueue.role.counts_deliveries",
        "counts_delivery=False",
    ),
    Mutant(
        "changed properties replace earlier ones",
        ChangedProperties.change,
        "merge_changes(before, changed)",
        "changed",
    ),
    Mutant(
        "a message in a dead-letter queue is dead-lettered again",
        Settling._dead_letter,
        "failures[place] = Reason.NOT_ALLOWED",
        "places.append(place)",
    ),
    Mutant(
        "peeking at one session shows all",
        Browsing._visible,
        "session_id is not None and reference.session_id != session_id",
        "False",
    ),
    Mutant(
        "a peek shows what a full disk is going to refuse",
        Browsing._visible,
        "if cycle.has_sent and number >= cycle.first_sent:",
        "if False:",
    ),
    Mutant(
        "purging looks at no states",
        Deleting.delete,
        "reference.state in states",
        "True",
    ),
    Mutant(
        "a session's messages overtake a delayed one",
        MessageSessions.has_next,
        "not session.available or not session.delayed",
        "True",
    ),
    Mutant(
        "losing a session counts no delivery",
        GivingBack._give_some,
        "failed_delivery(space, self._time_to_live, subqueue, some, None)",
        "self._time_to_live.give_back(subqueue, some)",
    ),
    Mutant(
        "a receiver that closes its session counts deliveries",
        GivingBack._give_some,
        "self._time_to_live.give_back(subqueue, some)",
        "failed_delivery(space, self._time_to_live, subqueue, some, None)",
    ),
    Mutant(
        "a session whose messages are still being given back is refused",
        SessionLocks.accept,
        "lock is not None and not lock.holders:",
        "False:",
    ),
    Mutant(
        "the messages of a session are given out while others are still being given back",
        MessageSessions.review,
        "not lock.leaving and any(",
        "any(",
    ),
    Mutant(
        "renewing a session leaves the locks of its messages behind",
        SessionLocks.renew,
        "for holder in lock.holders.values():",
        "for holder in ():",
    ),
    Mutant(
        "messages that come due together are enqueued in the wrong order",
        schedule.Schedule.enqueue_due,
        "due.sort(key=_IN_ORDER)",
        "due.sort(key=_IN_ORDER, reverse=True)",
    ),
    Mutant(
        "cancelling removes messages that are active by now",
        schedule.Schedule._find,
        "reference.state is not SCHEDULED",
        "reference.lease is not None",
    ),
    Mutant(
        "the time to live of a scheduled message begins when it is sent",
        expiries.later_expiries,
        "expires_ms + at_ms - enqueued_ms if at_ms and expires_ms else expires_ms",
        "expires_ms",
    ),
    Mutant(
        "half of the window detects duplicates",
        Duplicates.known,
        "since_ms + window_ms > now_ms",
        "since_ms + window_ms // 2 > now_ms",
    ),
    Mutant(
        "a restart forgets message-ids",
        Duplicates.forget_old,
        "now_ms - min(max(wall_ms - slot.wall_ms, 0), window_ms)",
        "now_ms - window_ms",
    ),
    Mutant(
        "message-ids of refused messages are remembered",
        Duplicates.undo,
        "self._take_out(slot, slot.identities.pop())",
        "pass",
    ),
    Mutant(
        "a refused transaction keeps its locks from their clients",
        Transactions.give_up,
        "for held in pending.locks:",
        "for held in ():",
    ),
    Mutant(
        "locks cannot be renewed for longer than usual",
        Settling._renew,
        "until_ms = space.cycle.now_ms + operation.duration_ms",
        "until_ms = space.locked_until_ms(space.messages.main)",
    ),
    Mutant(
        "a refused transaction is carried out",
        Transactions.give_up,
        "cycle.dead_lettered -= pending.dead_lettered",
        "[change() for change in pending.changes]",
    ),
    Mutant(
        "a transaction that sends cancels nothing",
        Transactions._write,
        "self._cancel(cancelled)",
        "pass",
    ),
    Mutant(
        "messages for another entity stay where they were sent",
        Transactions._pass_on,
        "if numbers:",
        "if False:",
    ),
    Mutant(
        "a restart gives numbers again that were promised",
        Promises.make,
        "space.mark_applied(records.COUNTERS, records.encode_counters(counters))",
        "pass",
    ),
    Mutant(
        "a promise is used twice",
        Promises.keep,
        "self._counts.pop(number, None)",
        "pass",
    ),
    Mutant(
        "what a transaction schedules makes no duplicates",
        Promises.keep,
        "self._sending.remember(cycle, space.description, send.identities)",
        "pass",
    ),
    Mutant(
        "a message that is handed over twice at once is stored twice",
        HandingOver.take,
        "seen.add(number)",
        "pass",
    ),
    Mutant(
        "numbers that nobody needs any more are kept",
        HandingOver.take,
        "if number in wanted",
        "if True",
    ),
    Mutant(
        "the numbers of refused messages are kept",
        Origins.undo,
        "if each not in refused",
        "if True",
    ),
    Mutant(
        "a restart forgets what was handed over",
        Origins.apply,
        "self._set(source, numbers)",
        "self._set(source, ())",
    ),
    Mutant(
        "messages are locked for as long as usual on their way to another entity",
        Delivering.lock_next,
        "cycle.now_ms + lock.duration_ms",
        "space.locked_until_ms(subqueue)",
    ),
    Mutant(
        "a client that a full cycle left to the next one never hears that there is no more",
        Delivering.tell_unmet,
        "self._to_tell.append((client, number))",
        "pass",
    ),
    Mutant(
        "a message that nobody takes has no reason",
        dead_lettering.fail_transfer,
        "numbers, changed, target",
        "numbers, None, target",
    ),
]
TRIED_EACH_TIME = 5
EXAMPLES_MAX = 400
"""Few mutants need more than some dozens of examples."""


@pytest.mark.parametrize(
    "mutant", tried(MUTANTS, TRIED_EACH_TIME), ids=lambda mutant: mutant.mistake.replace(" ", "-")
)
def test_the_model_notices_a_mistake(mutant: Mutant) -> None:
    short = settings(
        LONG,
        max_examples=EXAMPLES_MAX,
        phases=[Phase.generate],
        database=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    with applied(mutant), pytest.raises((AssertionError, LookupError, StopIteration)) as noticed:
        run_state_machine_as_test(PartitionMachine, settings=short)
    print(f"{mutant.mistake}: {noticed_by(noticed.value)}")


def noticed_by(error: BaseException) -> str:
    """The rule or invariant of the model that failed, and its last own line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == Path(__file__).parent]
    rules = [frame.name for frame in own if callable(getattr(PartitionMachine, frame.name, None))]
    return f"{rules[0]}, at `{own[-1].line}`" if rules else repr(error)


def test_each_mutant_fits_its_function() -> None:
    assert len(MUTANTS) >= 20
    check_that_each_fits(MUTANTS)
