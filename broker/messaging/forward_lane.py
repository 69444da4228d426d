"""Forwards the messages of one subqueue of one partition to other entities.

A lane locks a load of messages and gives it to the *outlets* to their targets (`forward_outlet.py`), which
hand them over and remove them. One load follows the other. If the broker ends in between, the messages are
available again at the next start and are handed over a second time. The target's partition then knows their
numbers (`operations/transfers.py`).

Messages that cannot be forwarded for now are tried again after a pause, which doubles with each failure. Most
are set aside meanwhile, and each target has pauses of its own, so that they hold up no others. If nothing can
be forwarded, the whole lane waits, and then tries a single message.

An idle lane has a demand for one message at its partition, and withdraws it before it locks any. It has a
timer only while a target keeps numbers of messages that it has forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import key_of
from broker.messaging.asking import answer_of
from broker.messaging.forward_outlet import LOCK_MS, Outlet, part_of
from broker.messaging.forward_retry import Retry
from broker.messaging.forward_route import Route
from broker.namespace.entity import Entity, next_client
from broker.namespace.router import PartitionHandle
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked, Recall, Recalled, Withdraw, Withdrawn
from broker.operations.settling import Release
from broker.operations.transfers import LockNext, source_of

LOAD_MESSAGES = 256
LOAD_BYTES = 2 * 1024 * 1024
FORGET_S = 5.0
"""How long after its last load a lane tells the targets that nothing is in doubt."""
STOPS_WITHIN_S = 5.0
"""How long a load may take to end when the lane stops. After that it is as in a crash."""

log = structlog.get_logger("forwarding")


class Lane:
    """The forwarding of one subqueue of one partition. Owned by the event loop."""

    def __init__(self, route: Route, number: int) -> None:
        """`number` is the partition's."""
        self.route, self.number = route, number
        self.name = source_of(route.source.description.generation, number, route.number)
        """See `forward_outlet.Source`."""
        self._client = next_client()
        self._loop = asyncio.get_running_loop()
        self._outlets: dict[str, Outlet] = {}
        """By the key of the target's name."""
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._demands = self._stopping = self._is_down_for_good = False
        self._withdrawn = asyncio.Event()
        """Set once the partition has answered a `Withdraw`, or has gone down, or the subqueue was deleted."""
        self._pause = Retry()
        """Until its time, if one is set, nothing can be forwarded."""
        self._forget_timer: asyncio.TimerHandle | None = None
        self._forgets = False

    # --- what others call -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Forward what there is and what will come."""
        if self._task is None:
            self._demand()

    def try_now(self, target_name: str) -> None:
        """A target has changed: do not wait any longer."""
        outlet = self._outlets.get(key_of(target_name))
        if outlet is not None:
            outlet.retry.hurry(self._loop.time())
            self._pause.hurry(self._loop.time())
            self._woken.set()

    def mark(self, target: Entity, number: int) -> None:
        """A partition of a target is known to keep numbers of this source: have it forget them after a
        while."""
        self._outlet_to(target.name).mark(target, number)
        if self._task is None:
            self._forget_later()

    def begin_to_stop(self) -> None:
        """Lock no more messages. `stop` does the rest."""
        self._stopping = True
        self._woken.set()

    async def stop(self, *, forgets: bool) -> None:
        """End the load under way, and forward nothing more. `forgets`: tell the targets so, because this lane
        does not go on after a restart."""
        self.begin_to_stop()
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        if self._task is not None:
            _, pending = await asyncio.wait([self._task], timeout=STOPS_WITHIN_S)
            for task in pending:
                task.cancel()
                await asyncio.wait([task])
        if forgets:
            await self._forget()
        self._drop_outlets(list(self._outlets))
        self.post(Detach())

    # --- what outlets call ----------------------------------------------------------------------------------

    def post(self, operation: Operation) -> None:
        """See `forward_outlet.Source`."""
        self._handle.post(operation, self._client, self._heard)

    async def ask(self, operation: Operation) -> Answer | Refused:
        """See `forward_outlet.Source`."""
        answer = await answer_of(self._handle, operation)
        if isinstance(answer, Unavailable):
            return Refused(Reason.PARTITION_UNAVAILABLE, "The partition is not available.")
        return answer

    def pause(self, reason: Reason) -> None:
        """See `forward_outlet.Source`."""
        if self._pause.failed(reason, self._loop.time()):
            self.log_waiting(self.route.target_name, reason)

    def log_waiting(self, target_name: str | None, reason: Reason) -> None:
        """See `forward_outlet.Source`."""
        route = self.route
        log.warning(
            "forward.waits",
            entity=route.source.name,
            subqueue=route.subqueue,
            partition=self.number,
            target=target_name,
            reason=reason.value,
        )

    def log_resumed(self, target_name: str | None) -> None:
        """See `forward_outlet.Source`."""
        route = self.route
        log.info(
            "forward.resumed",
            entity=route.source.name,
            subqueue=route.subqueue,
            partition=self.number,
            target=target_name,
        )

    # --- waking up ------------------------------------------------------------------------------------------

    @property
    def _handle(self) -> PartitionHandle:
        return self.route.source.router.handles[self.number]

    def _demand(self) -> None:
        """Ask to be woken when there is a message."""
        if not (self._demands or self._stopping or self._is_down_for_good):
            self._demands = True
            self.post(Demand(self.route.subqueue, 1))

    async def _withdraw(self) -> None:
        """End the demand. A message that is on its way to it is released, because a `LockNext` would lock
        those behind that one."""
        while self._demands:
            self._withdrawn.clear()
            self.post(Withdraw(self.route.subqueue))
            await self._withdrawn.wait()

    def _heard(self, answer: Answer) -> None:
        match answer:
            case Locked():
                self._demands = False
                self.post(Release(answer.tokens))
                self._wake()
            case Recall():
                self.post(Recalled(self.route.subqueue, ()))
            case Unavailable():
                self._demands, self._is_down_for_good = False, answer.for_good
                for outlet in self._outlets.values():
                    outlet.locks_lost()
                self._withdrawn.set()
                self._demand()  # the partition answers once it is back
            case Withdrawn() if not self._withdrawn.is_set():
                self._demands = False
                self._withdrawn.set()
            case Failed(reason=Reason.ENTITY_NOT_FOUND):  # the subqueue's subscription was deleted
                self._demands = False
                self._withdrawn.set()
            case _:
                pass

    def _wake(self) -> None:
        self._woken.set()
        if self._task is None and not self._stopping:
            if self._forget_timer is not None:
                self._forget_timer.cancel()
                self._forget_timer = None
            self._task = self.route.spawn(self._run())

    def _forget_later(self) -> None:
        if self._forget_timer is None and not self._stopping:
            self._forget_timer = self._loop.call_later(FORGET_S, self._time_to_forget)

    def _time_to_forget(self) -> None:
        self._forget_timer = None
        self._forgets = True
        self._wake()

    # --- load after load ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Forward until there is nothing left to do for now."""
        try:
            while not self._stopping and await self._go_on():
                pass
        finally:
            for outlet in self._outlets.values():
                outlet.release_all()
            self._task = None
            self._pause.at = None
            self._demand()
            if any(outlet.is_marked for outlet in self._outlets.values()):
                self._forget_later()

    async def _go_on(self) -> bool:
        """Do the next step, or wait until there is one. False if there is nothing left to wait for."""
        self._woken.clear()
        if self._is_down_for_good:
            return False
        is_probe = self._pause.take_due(self._loop.time())
        await self._try_again()
        if self._pause.at is not None:
            await self._wait()
            return True
        try:
            if await self._forward_next(1 if is_probe else LOAD_MESSAGES):
                return True
        except Exception:
            log.exception("forward.failed", entity=self.route.source.name, partition=self.number)
            self.pause(Reason.INTERNAL)
            return True
        if not any(outlet.has_aside or outlet.retry.at is not None for outlet in self._outlets.values()):
            return False
        self._demand()
        await self._wait()
        return True

    async def _try_again(self) -> None:
        """Try again what was set aside, where it is time for that. While the lane waits, only renew locks."""
        for outlet in list(self._outlets.values()):
            if outlet.retry.take_due(self._loop.time()):
                await outlet.renew()
                if self._pause.at is None:
                    outlet.try_again()

    async def _wait(self) -> None:
        """Wait until it is time to try something again, or something happens."""
        times = [self._pause.at]
        for outlet in self._outlets.values():
            if outlet.has_aside:
                outlet.retry.later(self._loop.time())
            times.append(outlet.retry.at)
        if self._stopping:
            return
        try:
            async with asyncio.timeout_at(min(each for each in times if each is not None)):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _forward_next(self, count: int) -> bool:
        """Forward the next load. False if there is none."""
        route = self.route
        async with route.shared.loads:
            if self._stopping:
                return False
            await self._withdraw()
            locked = await self.ask(LockNext(route.subqueue, count, LOAD_BYTES, LOCK_MS))
            if isinstance(locked, Refused):
                self.pause(locked.reason)
                self._demand()  # so that it says whether it is down for good
                return True
            assert isinstance(locked, Locked), f"{locked} is not an answer to LockNext"
            if self._stopping:  # some of them may have come after the source was told to forward elsewhere
                self.post(Release(locked.tokens))
                return False
            if not locked.tokens:
                if self._forgets:
                    self._forgets = False
                    await self._forget_synced()
                return False
            try:
                await self._forward(locked)
            except BaseException:
                self.post(Release(locked.tokens))
                raise
            return True

    async def _forward(self, locked: Locked) -> None:
        """Give the messages of a load to the outlets to their targets."""
        try:
            self.route.shared.memory.admit(len(locked.tokens))
        except Refused as why:
            self.post(Release(locked.tokens))
            self.pause(why.reason)
            return
        for name, places in self.route.split(locked).items():
            await self._outlet_to(name).forward(part_of(locked, places))
        if self._pause.at is None and self._pause.succeeded():
            self.log_resumed(self.route.target_name)

    def _outlet_to(self, name: str) -> Outlet:
        key = key_of(name)
        outlet = self._outlets.get(key)
        if outlet is None:
            outlet = self._outlets[key] = Outlet(self, name)
            self.route.shared.lanes_to.setdefault(key, {})[self] = None
        return outlet

    def _drop_outlets(self, keys: Iterable[str]) -> None:
        lanes_to = self.route.shared.lanes_to
        for key in keys:
            del self._outlets[key]
            lanes = lanes_to[key]
            del lanes[self]
            if not lanes:
                del lanes_to[key]

    # --- forgetting -----------------------------------------------------------------------------------------

    async def _forget(self) -> None:
        """Tell the targets which numbers they must still keep, unless it is unknown what was removed for
        good."""
        if any(outlet.is_marked for outlet in self._outlets.values()):
            if not self.route.source.is_deleted:
                answer = await self.ask(LockNext(self.route.subqueue, 0, 0, 0))
                if isinstance(answer, Refused):
                    for outlet in self._outlets.values():
                        outlet.leave()
                    return
            await self._forget_synced()

    async def _forget_synced(self) -> None:
        """As `_forget`, just after a `LockNext`, so that everything which was removed is synced."""
        for outlet in list(self._outlets.values()):
            await outlet.forget()
        self._drop_outlets([key for key, outlet in self._outlets.items() if outlet.is_idle])
