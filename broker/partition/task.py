"""The task of one partition: mailbox → state → log → answers. Owns the state machine, the log and the timer.

While one commit runs, the next cycle gathers in the mailbox. Answers are released only after the commit
behind them is durable (durability rule 1), in the order in which the state machine decided them. Nothing here
knows what the records mean.

    CLOSED ──first operation──► OPENING ──► HEALTHY ──commit failed──► RECOVERING ──► HEALTHY

    OPENING or RECOVERING ──the disk refuses──► RECOVERING, which tries again later
    OPENING, HEALTHY or RECOVERING ──damaged, fenced or a bug──► DAMAGED or FAILED
    any state ──stop()──► STOPPED

*A failed commit* (rule 4) may or may not be on the disk. So no client is answered before the log has been
acquired again, which discards the commit for good, or could not be acquired. In the latter case the partition
is down, and this process reads nothing of the commit before it has acquired the log and so discarded it. (If
the process ends while the disk still refuses, the next process cannot know of the commit and may find
messages that were refused.) The state is rebuilt from the log; the cycle and all waiting operations are
refused, and each attached client is told once that its demand and its locks are void (`Unavailable`).

*A full disk* (rule 6) keeps nothing of the commit. The cycle's sends are cut off and refused; the rest is
committed alone and may use the log's reserve. Only when the reserve is used up as well is the state rebuilt.

*A hanging disk* has failed: if the log does not answer within `disk_timeout_ms`, this counts as a failed
commit. The log is fenced first, so that a commit under way is never read, however it ends; then all clients
are answered. The partition is down until the disk answers after all and the log can be acquired again. If the
disk takes long to open a log, the task waits for it, but the clients do not. The partitions of a folder are
opened in turns (`openings.py`), and the disk's time begins with the turn.

*DAMAGED* and *FAILED* are final: damage (rule 5), another owner of the log, or a bug. Siblings work on.
After a bug, a commit that may have begun is discarded before its operations are refused (rule 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from broker.base.clock import Clock
from broker.base.errors import Reason
from broker.base.slices import LONG_SLICE_S, Slices
from broker.entities.descriptions import EntityDescription
from broker.identifiers import ClientId
from broker.operations.general import Update
from broker.operations.interface import Operation, Sink
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.partition.beside_cycles import BesideCycles
from broker.partition.coming_back import ComingBack
from broker.partition.cycle import Cycle, parts_of
from broker.partition.disk_timeout import Hung, Patience
from broker.partition.drain_need import Need
from broker.partition.due_timer import DueTimer
from broker.partition.full_disk import FullDisk
from broker.partition.gathering import Gathering
from broker.partition.going_down import DAMAGED_ADVICE, GoingDown
from broker.partition.health import FOR_GOOD, Health
from broker.partition.known_counts import KnownCounts
from broker.partition.mailbox import USUALLY_SHORT, Mailbox, Waiting, messages_sent, sends_from
from broker.partition.meter import PartitionMeter, count_cycle
from broker.partition.openings import Openings, Urgency
from broker.partition.payloads import PayloadBudget
from broker.partition.rest import Register, Rest
from broker.partition.rounds import Rounds
from broker.partition.short_cycles import Short, ShortCycles
from broker.partition.signals import Once, Signal, Soon
from broker.partition.state import Partition
from broker.partition.summary import Summary, summary_in_turns
from broker.partition.tables import UnreadableRecord
from broker.partition.task_limits import TaskLimits
from broker.partition.unused import Unused
from broker.partition.upkeep import Upkeep
from storage.errors import CommitFailed, CorruptRecord, DiskFull, Fenced, StorageError
from storage.log import Commit, Log

log_output = structlog.get_logger("partition")

_HEALTHY = Health.HEALTHY
"""A name of its own, because to find a member of an enumeration takes longer than the rest of `post`."""


class PartitionTask:
    """One partition's mailbox and the task that works through it, `run`. Lives in the event loop."""

    def __init__(
        self,
        number: int,
        *,
        log: Log,
        clock: Clock,
        description: EntityDescription,
        payloads: PayloadBudget,
        limits: TaskLimits | None = None,
        on_health: Callable[[int, Health], None] | None = None,
        on_counts: Callable[[], None] | None = None,
        meter: PartitionMeter | None = None,
        slices: Slices | None = None,
        turns: Slices | None = None,
        register: Register | None = None,
        rounds: Rounds | None = None,
        openings: Openings | None = None,
    ) -> None:
        """`on_health` is called for each change of health, in the event loop, and `on_counts` when
        `report_counts` has something to report. Partitions are opened when `openings` gives them their turn,
        are opened and freed in `slices`, and carry out long operations in `turns`; they share all of these,
        and in an entity `rounds`. By default it has its own."""
        self.number = number
        self._log, self._clock, self._description = log, clock, description
        self._limits = limits or TaskLimits()
        self._on_health, self._meter = on_health, meter
        self._rest = Rest(register, clock, self._limits.rest_ms)
        self._slices, self._turns = slices or Slices(LONG_SLICE_S), turns or Slices(0)
        self._health = Health.CLOSED
        self.available = True
        """Whether it takes operations, now or as soon as it is open. An attribute: it is read often."""
        self._mailbox = Mailbox()
        self._going_down = GoingDown(number, description.name, self._mailbox)
        self._partition: Partition | None = None
        self._known = KnownCounts(description.subqueues, register.summary() if register else None, on_counts)
        self._is_in_doubt = False
        """Whether a cycle is under way, so that only what was noted before it is known to be durable."""
        self._upkeep: Upkeep | None = None
        self._wake, self._begin_soon = Signal(), Soon(self._go_on)
        self._gathering = Gathering(log, self._mailbox, self._go_on, rounds)
        self.join = self._gathering.join
        self._timer = DueTimer(clock, self._wake.set)
        self._patience = Patience(self._limits.disk_timeout_ms, self._disk_hangs)
        self._beside = BesideCycles(self._wake.set, Patience(self._limits.disk_timeout_ms, self._disk_hangs))
        told = (self._turns.pace, self._stored, self._after_short_cycle, self._wake.set)
        self._short = ShortCycles(log, self._mailbox, self._gathering, clock, self._patience, *told)
        self._sleeps = self._waits_for_short = False
        """Whether the task waits for work, and whether it is to be woken when the short cycle has ended."""
        shared = (openings or Openings(), payloads, self._slices)
        about = (number, description, log, clock, self._patience, self._opens_late)
        self._coming_back = ComingBack(*about, *shared, self._limits)
        self._is_opening = self._open_wanted = self._is_upkeep_due = False
        self._is_late = False
        """The disk does not answer while the log is being opened or reopened: operations are refused."""
        self._unused = Unused(clock, self._limits.close_ms)
        self._stopping = self._is_deleted = self._running = False
        self._opening_ended, self._ended = Once(), Once()
        """The log has been opened, or could not be; and the task has ended."""
        self._output = log_output.bind(entity=description.name, partition=number)
        self._full = FullDisk(clock, self._output)

    # --- what others call -----------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """The partition's health, which is also a string."""
        return self._health

    @property
    def awaits_more(self) -> bool:
        """Whether nothing, its log included, is at work, or messages that wait are to get company."""
        gathering = self._gathering
        return gathering.is_awaited or not (gathering.is_in_cycle or self._mailbox or self._log.is_busy)

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Put an operation into the mailbox. Never blocks, never drops; the answer may be that it is down."""
        if isinstance(operation, Update):
            self._description = operation.description
        if self._is_late or (self._health is not _HEALTHY and self._health in FOR_GOOD):
            down = self._going_down
            refuse = down.refuse_for_good if self._health in FOR_GOOD else down.refuse
            asyncio.get_running_loop().call_soon(refuse, (client, operation, sink, 0))
            return
        self._mailbox.waiting.append((client, operation, sink, self._clock.monotonic_ms()))
        if self._health is not _HEALTHY:
            if self._health is Health.CLOSED:
                self._coming_back.wake_soon(self._wake.set, operation)
                return
            self._coming_back.hasten(operation)
        elif self._gathering.holds(operation, client):
            return
        (self._begin_soon if type(operation) in USUALLY_SHORT else self._wake.set)()

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        """What each subqueue holds, or only one, or last held as far as is known. Does not wait."""
        return self._known.counts(self._healthy, only)

    def report_counts(self) -> tuple[dict[str, SubqueueCounts], bool]:
        """The `counts` that may have changed since its one caller asked last, and whether these are all."""
        return self._known.report(self._healthy)

    def size(self) -> int:
        """How many bytes its messages take in the quota, as far as is known: a sum of `counts`, but cheap."""
        return self._known.size(self._healthy)

    @property
    def _healthy(self) -> Partition | None:
        return self._partition if self._health is _HEALTHY else None

    async def opened(self) -> None:
        """Open the log unless it is open. Returns once it is open or could not be opened."""
        if self._health in (Health.CLOSED, Health.OPENING):
            self._open_wanted = True
            self._coming_back.hasten()
            self._wake.set()
            await self._opening_ended.wait()

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Carry out the operations in the mailbox, save a checkpoint if many operations have followed the
        last one, and close the log. If the log is about to be deleted, save nothing. Safe to call twice."""
        self._stopping = True
        self._is_deleted |= is_deleted
        self._wake.set()
        if not self._coming_back.stop_waiting() and self._is_late:
            self._give_up()
        if self._running:
            await self._ended.wait()
        elif self._health is not Health.STOPPED:
            await self._shut_down()

    def check(self) -> None:
        """Assert all invariants of the state. Call between two steps."""
        if self._partition is not None:
            self._partition.check()

    def wake(self) -> None:
        """Check the clock after a suspend, during which the event loop's timers stood still."""
        self._timer.cancel()
        self._wake.set()

    def close_if_unused(self) -> bool:
        """Memory is scarce: close the partition soon unless it is held. Returns whether it will be."""
        is_unused = self._healthy is not None and not (self._mailbox or self._is_held(is_hastened=True))
        if is_unused:
            self._rest.hasten()
            self._unused.hasten()
            self._wake.set()
        return is_unused

    # --- the task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out what comes into the mailbox until `stop`. Failures change the health; they raise
        nothing."""
        self._running = True
        try:
            while self._short.is_open or not (self._stopping or self._health in FOR_GOOD):
                self._sleeps = True
                await self._wake.wait()
                self._wake.clear()
                self._sleeps = False
                if self._short.is_under_way:
                    self._waits_for_short = True  # its end wakes the task again
                    continue
                if not self._waits_for_short and await self._short.begin_in_turn(self._begins_short_cycle):
                    continue
                self._waits_for_short = False
                if self._stopping and self._health is Health.HEALTHY and not self._short.is_left:
                    break  # `_shut_down` carries out what is in the mailbox
                if await self.step():
                    self._wake.set()
                    continue  # the next step follows at once and does what has come due
                if self._health is Health.HEALTHY and self._partition is not None and not self._mailbox:
                    await self._rest.look(self._partition, self._slices, self._need)
                    at_rest = self._rest.is_entered
                    held = at_rest and self._is_held(is_hastened=self._unused.is_hastened)
                    if self._unused.look(is_at_rest=at_rest, is_held=held) and not self._beside.is_under_way:
                        await self._close_unused()
                self._arm_timer()
            await self._shut_down()
        except Exception as error:  # a bug: this partition fails loudly, its siblings go on
            self._output.exception("partition.bug")
            if self._mailbox.undecided:
                await self._coming_back.discard_commit()
            self._fail(error)
            await self._coming_back.free_dropped()
        finally:
            if self._health not in FOR_GOOD:  # it was cancelled
                self._become(Health.STOPPED)
            self._running = self._sleeps = False
            self._short.drop()
            self._timer.cancel()
            self._beside.close()
            self._patience.close()
            self._opening_ended.set()
            self._ended.set()

    async def step(self) -> bool:
        """Do the next piece of work: open, recover, or carry out one cycle. True if there is more to do."""
        if self._health is Health.CLOSED:
            self._going_down.answer_while_closed()
            if self._mailbox or self._open_wanted:
                self._become(Health.OPENING)
                await self._open()
        elif self._health is Health.RECOVERING:
            self._going_down.refuse_waiting()
            if self._clock.monotonic_ms() >= self._coming_back.retry_at_ms:
                await self._open()
        if self._health is not _HEALTHY:
            return False
        self._gathering.is_in_cycle = True
        if (left := self._short.take_over()) is not None:
            has_more = await self._complete(*left[:4])
        else:
            has_more = await (self._do_cycle() if self._mailbox or not self._full.waits else self._keep_up())
        self._gathering.is_in_cycle = False
        return has_more or (bool(self._mailbox) and not self._gathering.begin())

    async def _do_cycle(self) -> bool:
        """Carry out one cycle and then the log's upkeep. True if either has more to do."""
        partition = self._partition
        assert partition is not None
        await self._turns.pace.begin()
        waiting = self._mailbox.gather(self._limits.cycle_operations_max, self._limits.cycle_bytes_max)
        try:
            commit = self._log.begin()
        except StorageError as error:  # it was fenced just as the previous commit ended, or beside the cycles
            await self._recover(self._beside.patience.hung or error)
            return False
        partition.counting.note()
        self._is_in_doubt = True
        partition.begin(
            commit, self._clock.monotonic_ms(), self._clock.now_ms(), waiting[0][3] if waiting else None
        )
        if partition.is_under_way:
            await self._turns.run(partition.go_on())
        place, is_done = 0, True
        while place < len(waiting):
            client, operation, sink, arrived_ms = waiting[place]
            if isinstance(operation, Send):
                place += partition.handle_sends(sends_from(waiting, place))
            else:
                self._mailbox.remember(client, operation, sink)
                is_done = partition.handle(client, operation, arrived_ms)
                place += is_done
            if partition.is_under_way:
                await self._turns.run(partition.go_on())
            if not is_done or partition.is_full:  # others get the rest of the loop's turn
                self._mailbox.put_back(waiting, place - partition.left_over)
                break
        cycle = partition.finish(self._mailbox.since_ms)
        for subscription, rule, fault in partition.take_rule_faults():
            self._output.error("rule.failed", subscription=subscription, rule=rule, error=fault)
        return await self._complete(partition, cycle, waiting)

    async def _complete(
        self, partition: Partition, cycle: Cycle, waiting: list[Waiting], failed: Exception | None = None
    ) -> bool:
        """Commit a cycle, unless that has `failed`, and release its answers. True if there is more to do."""
        if failed is not None and not isinstance(failed, StorageError):
            raise failed
        try:
            if cycle.commit:
                await self._commit(partition, cycle, failed)
                self._rest.changed(cycle.now_ms)
        except StorageError as error:
            await self._recover(error)
            return False
        self._is_in_doubt, self._mailbox.undecided = False, []
        try:
            await self._sync(cycle)
            await self._read_missing(partition, cycle)
        except StorageError as error:
            # The commit stands: refuse only the answers that wait for the sync, or for messages.
            cycle.give_up_rest(self._going_down.refusing(waiting))
            self._mailbox.deliver(cycle.answers, waiting)
            await self._recover(error)
            return False
        # The commit is durable: the answers may be released (durability rules 1 and 2).
        self._release(partition, cycle, waiting)
        self._gathering.answered(messages_sent(waiting))
        has_more = self._full.goes_on = partition.has_more
        # The next cycle follows at once, and this one may not have awaited anything: let others run.
        if has_more or (self._mailbox and not cycle.commit):
            await asyncio.sleep(0)
        return await self._keep_up() or has_more

    def _release(self, partition: Partition, cycle: Cycle, waiting: list[Waiting]) -> None:
        self._mailbox.deliver(cycle.answers, waiting)
        self._known.tell(partition)
        partition.let_go()

    async def _commit(self, partition: Partition, cycle: Cycle, failed: Exception | None) -> None:
        began_s = asyncio.get_running_loop().time()
        if self._rest.is_entered:
            with self._patience:
                await self._rest.end()
        try:
            if failed is not None:
                raise failed
            await self._append(cycle.commit, urgent=not cycle.has_sent)
        except DiskFull as error:
            if not cycle.has_sent:
                raise
            self._press()
            undone = partition.undo_sends(self._log.begin())  # durability rule 6
            self._full.refuse(undone, error)
            if cycle.commit:
                await self._append(cycle.commit, urgent=True)
        else:
            partition.committed()
            self._full.found_room(for_sends=cycle.has_sent)
        count_cycle(self._meter, cycle, began_s)

    async def _append(self, commit: Commit, urgent: bool) -> None:
        try:
            with self._patience:
                await self._log.append(commit, urgent)
        except Hung:
            if self._log.end == commit.start:  # otherwise it ended just as it was given up, and is durable
                raise
        self._mailbox.undecided = []  # a bug from here on refuses nothing of it

    def _press(self, *, is_starved: bool = False) -> None:
        """Make the log's upkeep urgent, because the disk is full, or because not even settlements fit."""
        if self._upkeep is not None:
            self._upkeep.press(self._clock.monotonic_ms(), is_starved=is_starved)
            self._arm_timer()

    def _need(self) -> Need | None:
        return self._upkeep.need() if self._upkeep is not None else None

    async def _sync(self, cycle: Cycle) -> None:
        """Sync the log if answers wait for that."""
        if cycle.unsynced:
            with self._patience:
                await self._log.sync()
            cycle.unsynced.clear()

    async def _read_missing(self, partition: Partition, cycle: Cycle) -> None:
        """Read from the log the messages that answers need and memory does not hold."""
        if missing := cycle.missing:
            upcoming = partition.messages.upcoming_beside(missing)
            with self._patience:
                found = await self._log.fetch_parts(parts_of(missing, upcoming))
            cycle.put_in(found[: len(missing)])
            partition.messages.keep(upcoming, found[len(missing) :])

    async def _keep_up(self) -> bool:
        """Do the upkeep that is due. True if there is more to do now."""
        assert self._upkeep is not None
        try:
            if self._beside.is_under_way:
                return await self._beside.go_on()
            now_ms = self._clock.monotonic_ms()
            is_due, self._is_upkeep_due = self._is_upkeep_due or self._upkeep.is_due(now_ms), False
            return is_due and await self._beside.begin(self._upkeep.step(now_ms))
        except StorageError as error:
            await self._recover(error)
            return False

    def _go_on(self) -> None:
        """What is in the mailbox goes on, without the task if possible."""
        may_begin = self._sleeps and not self._wake.is_set
        if not self._gathering.is_in_cycle and not (may_begin and self._begins_short_cycle()):
            self._wake.set()  # the end of a cycle looks into the mailbox anyway

    def _begins_short_cycle(self) -> bool:
        """Begin a short cycle if that is enough, and return whether it is. The task must not be at work."""
        partition, short, limits = self._partition, self._short, self._limits
        is_wanted = short.is_left or self._stopping or self._is_upkeep_due or self._beside.wants_turn
        is_usual = self._health is _HEALTHY and not self._full.is_begun and not self._rest.is_entered
        if partition is None or is_wanted or not is_usual:
            return False
        self._is_in_doubt = self._gathering.is_in_cycle = True
        if short.begin(partition, limits.cycle_operations_max, limits.cycle_bytes_max):
            return True
        self._is_in_doubt = self._gathering.is_in_cycle = False
        return False

    def _stored(self, short: Short) -> None:
        """Release the answers of a short cycle."""
        self._is_in_doubt, self._mailbox.undecided = False, []
        if short.cycle.commit:
            short.partition.committed()
        self._release(short.partition, short.cycle, short.waiting)

    def _after_short_cycle(self, short: Short) -> None:
        """Begin what comes after a short cycle. Its answers have been written."""
        partition, cycle, waiting, _, began_s = short
        if cycle.commit:
            count_cycle(self._meter, cycle, began_s)
            self._rest.changed(cycle.now_ms)
        self._gathering.stored(messages_sent(waiting))
        assert self._upkeep is not None
        now_ms = self._clock.monotonic_ms()
        self._is_upkeep_due = not self._beside.is_under_way and self._upkeep.is_due(now_ms)
        if self._is_upkeep_due or partition.has_more or self._waits_for_short:
            self._wake.set()
        elif not self._mailbox:
            self._arm_timer()
        elif not self._gathering.begin():
            self._go_on()

    # --- opening and recovering -----------------------------------------------------------------------------

    async def _open(self) -> None:
        """Acquire the log and load the state, in turn. Ends HEALTHY, FAILED, or RECOVERING, to try again."""
        self._is_opening, is_hung, was_open = True, self._is_late, self._partition is not None

        async def load() -> None:
            self._is_late = is_hung
            with self._patience:
                await self._rest.end()
                self._rest.opened(self._clock.monotonic_ms())
                await self._coming_back.acquire()
                self._log.on_full, self._log.need = self._press, self._need
                await self._load()

        urgency = self._mailbox.urgency if self._health is Health.OPENING else lambda _: Urgency.ANSWER
        why = {"is_wanted": self._open_wanted, "was_open": was_open, "is_hung": is_hung}
        try:
            if not await self._coming_back.in_turn(load, urgency, self._rest.expected_bytes, **why):
                return  # the partition is stopped
        except (CorruptRecord, Fenced, UnreadableRecord) as error:
            self._fail(error)
        except StorageError as error:
            retry_ms = self._coming_back.try_later()
            self._output.warning("partition.unavailable", error=str(error), retry_ms=retry_ms)
            self._become(Health.RECOVERING)
            self._going_down.refuse_waiting()
        else:
            had_failed, recovering = self._coming_back.succeeded(), self._health is Health.RECOVERING
            self._become(Health.HEALTHY)
            if recovering:
                self._going_down.start_anew()
            if had_failed and self._meter is not None:
                self._meter.restarted()
        finally:
            self._is_opening = self._is_late = False
        self._opening_ended.set()

    async def _load(self, first_nonce: int = 0) -> None:
        """Rebuild the state from the log."""
        self._discard()
        partition, replay = await self._coming_back.load(description := self._description, first_nonce)
        if self._description is not description:  # it was changed meanwhile, and the `Update` may be refused
            partition.describe(self._description)
        self._partition = self._gathering.partition = partition
        self._is_in_doubt = False
        self._known.tell(partition)
        held, limits = (partition.messages, replay.snapshot), self._limits.upkeep
        self._upkeep = Upkeep(self._log, *held, self._slices, self._beside, limits, self._output)
        self._output.debug(
            "partition.opened",
            epoch=self._coming_back.epoch,
            since=replay.since,
            replayed_bytes=replay.bytes,
            messages=partition.messages.count,
        )

    async def _recover(self, error: StorageError) -> None:
        """A commit or a read failed: reload the state from the log (durability rule 4)."""
        if self._partition is not None:
            self._known.note(self._partition, is_in_doubt=self._is_in_doubt)
        await self._beside.end()
        if isinstance(error, CorruptRecord | Fenced):
            self._fail(error)
            return
        if isinstance(error, DiskFull):
            await self._reload(error)
            return
        self._output.error("commit.failed", error=str(error))
        if self._meter is not None:
            self._meter.commit_failed()
        self._coming_back.has_failed = True
        self._become(Health.RECOVERING)
        # The log is fenced and cannot be acquired until the disk answers, which may take long.
        if isinstance(error, Hung):
            self._is_late = True
            self._going_down.start_anew()
            if self._stopping:
                return
        await self._open()

    def _disk_hangs(self) -> None:
        """React to a disk that has not answered in time."""
        if self._is_opening and not self._stopping:
            self._output.warning("partition.opens_late", waited_ms=self._limits.disk_timeout_ms)
            self._opens_late()
            self._coming_back.is_late()
        else:
            self._give_up()

    def _opens_late(self) -> None:
        """The disk does not answer, or there has been no memory for the partition for long."""
        self._is_late = True
        self._become(Health.RECOVERING)
        self._going_down.refuse_waiting()
        self._opening_ended.set()

    def _give_up(self) -> None:
        """Stop waiting for the disk. First fence the log, so that a commit still under way is never read."""
        self._log.fence()
        self._patience.give_up()
        self._beside.patience.give_up()

    async def _reload(self, full: DiskFull) -> None:
        """Not even settlements fit on the disk: rebuild the state, because it is ahead of the log."""
        assert self._partition is not None
        self._full.refuse_all(full)
        self._is_opening = True
        try:
            with self._patience:
                await self._load(self._partition.nonce)
        except StorageError as error:
            await self._recover(error if not isinstance(error, DiskFull) else CommitFailed(str(error)))
        else:
            self._become(Health.HEALTHY)  # it may have been late
            self._press(is_starved=True)
            self._going_down.start_anew(Reason.DISK_FULL, self._going_down.why_full)
        finally:
            self._is_opening = self._is_late = False

    # --- the end --------------------------------------------------------------------------------------------

    def _is_held(self, *, is_hastened: bool) -> bool:
        """Whether it has clients, or holds anything; if `is_hastened`, anything new since it was opened."""
        assert self._partition is not None and self._upkeep is not None
        is_held = self._partition.is_held(by_messages=self._rest.has_changed or not is_hastened)
        return bool(self._mailbox.attached) or is_held or self._upkeep.has_garbage

    async def _close_unused(self) -> None:
        """Close the log and free the state. Until an operation opens it again, the index has its summary."""
        assert self._upkeep is not None
        await self._upkeep.save_last_checkpoint(self._clock.monotonic_ms())
        self._unused.look_at_ms, self._open_wanted, self._opening_ended = None, False, Once()
        self._discard()
        self._become(Health.CLOSED)
        try:
            with self._patience:
                await self._log.close()
        except StorageError as error:  # the next operation tells whether the log can be opened
            self._output.warning("log.close_failed", error=str(error))
        self._output.debug("partition.closed")
        await self._coming_back.free_dropped()
        self._wake.set()  # operations may have come meanwhile

    def _fail(self, error: BaseException) -> None:
        """Take the partition down for good, and log the error."""
        advice = {"advice": DAMAGED_ADVICE} if isinstance(error, CorruptRecord) else {}
        self._output.error("partition.failed", error=str(error) or repr(error), **advice)
        self._become(Health.DAMAGED if isinstance(error, CorruptRecord) else Health.FAILED)
        self._going_down.start_anew()
        self._mailbox.attached.clear()
        self._discard()
        self._opening_ended.set()

    async def _shut_down(self) -> None:
        while self._mailbox and self._health is Health.HEALTHY:
            await self._do_cycle()
        await self._beside.end()
        if self._health is Health.HEALTHY and self._upkeep is not None and not self._is_deleted:
            await self._upkeep.save_last_checkpoint(self._clock.monotonic_ms())
        opened, summary, partition = self._health is not Health.CLOSED, None, self._healthy
        if partition is not None and self._upkeep is not None and not self._is_deleted:
            told = self._upkeep.has_garbage, self._upkeep.need()
            summary = await summary_in_turns(partition, self._clock, self._slices, *told)
        if self._health not in FOR_GOOD:
            self._become(Health.STOPPED)
        self._going_down.start_anew()
        self._mailbox.attached.clear()
        self._discard(summary)
        if opened:
            try:
                with self._patience:
                    await self._log.close()
            except StorageError as error:
                self._output.warning("log.close_failed", error=str(error))
                summary = None
        if summary is not None:
            self._rest.closed(summary)
        self._opening_ended.set()
        await self._coming_back.free_dropped()

    def _discard(self, summary: Summary | None = None) -> None:
        """Discard the state and release its messages from memory. `summary`: what it holds, if known."""
        if self._partition is not None:
            if not self._is_deleted:  # nobody asks what a deleted one held
                self._known.note(self._partition, is_in_doubt=self._is_in_doubt, summary=summary)
            self._coming_back.drop(self._partition)
        self._partition = self._gathering.partition = self._upkeep = None

    def _become(self, health: Health) -> None:
        if health is not self._health:
            self._health = health
            self._going_down.health = health
            self.available = health in (Health.CLOSED, Health.OPENING, Health.HEALTHY)
            if self._on_health is not None:
                self._on_health(self.number, health)

    # --- the timer ------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        """Set the timer for the next due time."""
        if self._health is Health.RECOVERING:
            self._timer.set(self._coming_back.retry_at_ms)
        elif self._partition is not None and self._upkeep is not None:
            self._timer.set(
                self._full.put_off(self._partition.next_due_ms()),
                None if self._beside.is_under_way else self._upkeep.due_ms,
                self._rest.due_ms,
                self._unused.look_at_ms if self._rest.is_entered else None,
            )
