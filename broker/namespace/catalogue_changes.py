"""Changes of the catalogue, one at a time for each name, and what follows if the outcome of one is not known
(durability rule 3).

A catalogue change that fails may or may not be on the disk. By then the catalogue has tried more than once,
and the client is told that it may try again. Until the entry is known to match the live entity, the name is
*unconfirmed*. It is confirmed in the background, or before the next change of that name:

- create failed: no entity of the name is live; delete what may have been written
- update failed: the entity stays live as it was; write its entry again as it was
- delete failed: the entity is out of service, because what it acknowledged might be gone after a
  restart; it comes back with its entry
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakValueDictionary

import structlog

from broker.base.errors import Reason, Refused
from storage.errors import DiskFailed, DiskFull, DiskHangs, StorageError
from storage.threads import OwnerFailed, start_background

log = structlog.get_logger("namespace")


class CatalogueChanges:
    """The changes of one namespace. Owned by it."""

    def __init__(
        self, confirm: Callable[[str, str], Awaitable[None]], retry_ms: int, failed: OwnerFailed
    ) -> None:
        """`confirm` makes the entry of a key and a generation match the live entity. Raises StorageError.

        `retry_ms`: how long to wait between attempts. `failed` is called if the background task dies.
        """
        self._confirm, self._retry_s, self._failed = confirm, retry_ms / 1_000, failed
        self._unconfirmed: dict[str, str] = {}
        self._confirming: asyncio.Task[None] | None = None
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def unconfirmed(self) -> Mapping[str, str]:
        """Generations whose entry may not match the live entity, by key."""
        return self._unconfirmed

    @property
    def confirming(self) -> asyncio.Task[None] | None:
        """The background task, while there is something to confirm."""
        return self._confirming

    def lock(self, key: str) -> asyncio.Lock:
        """The lock that admits one change at a time per name. A lock exists only while somebody holds it or
        waits for it."""
        lock = self._changing.get(key)
        if lock is None:
            lock = self._changing[key] = asyncio.Lock()
        return lock

    async def carry_out(self, key: str, generation: str, change: Awaitable[None]) -> None:
        """Carry out a change. If it fails, or is cancelled while the disk may still carry it out, the name
        becomes unconfirmed. The caller holds the lock of the name.

        Raises Refused: DISK_FULL (nothing happened), PARTITION_UNAVAILABLE, whose text says whether anything
        happened.
        """
        try:
            await change
        except DiskFull as error:
            raise Refused(Reason.DISK_FULL, "The disk is full: the entity was left as it is.") from error
        except DiskHangs as error:
            if key in self._unconfirmed:
                raise not_confirmed(key) from error
            raise Refused(
                Reason.PARTITION_UNAVAILABLE,
                "The catalogue's disk does not answer: the entity was left as it is. Please try again.",
            ) from error
        except DiskFailed as error:
            if key in self._unconfirmed:
                raise not_confirmed(key) from error
            log.error("catalogue.unavailable", entity=key, error=str(error))
            raise Refused(
                Reason.PARTITION_UNAVAILABLE,
                "The catalogue cannot be changed while one of its data folders is missing or fails: the "
                "entity was left as it is. Please try again.",
            ) from error
        except BaseException as error:
            self._unconfirmed[key] = generation
            if self._confirming is None:
                self._confirming = start_background(self._confirm_all(), "namespace-confirm", self._failed)
            if not isinstance(error, StorageError):
                raise
            log.error("catalogue.failed", entity=key, error=str(error))
            raise not_confirmed(key) from error
        self._unconfirmed.pop(key, None)

    async def confirm(self, key: str) -> None:
        """Confirm a name if it is unconfirmed. The caller holds the lock of the name. Raises Refused."""
        generation = self._unconfirmed.get(key)
        if generation is None:
            return
        try:
            await self._confirm(key, generation)
        except StorageError as error:
            log.warning("catalogue.unconfirmed", entity=key, error=str(error))
            raise not_confirmed(key) from error
        del self._unconfirmed[key]
        log.info("catalogue.confirmed", entity=key)

    async def confirm_each(self) -> None:
        """Try once to confirm each name that is unconfirmed."""
        for key in list(self._unconfirmed):
            async with self.lock(key):
                with contextlib.suppress(Refused):
                    await self.confirm(key)

    async def _confirm_all(self) -> None:
        """Retry until nothing is unconfirmed."""
        try:
            while self._unconfirmed:
                await asyncio.sleep(self._retry_s)
                await self.confirm_each()
        finally:
            self._confirming = None


def not_confirmed(name: str) -> Refused:
    """An error that every client retries: the name is confirmed as soon as the disk permits."""
    return Refused(
        Reason.PARTITION_UNAVAILABLE,
        f"The catalogue could not be written, and it is not known whether the last change of '{name}' has "
        "reached the disk: it is being undone. Please try again.",
    )
