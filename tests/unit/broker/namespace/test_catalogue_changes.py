"""What follows a change of the catalogue that fails. test_namespace_faults.py shows it with a namespace."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.errors import Reason, Refused
from broker.namespace.catalogue_changes import CatalogueChanges
from storage.errors import CommitFailed, DiskFailed, DiskFull, DiskHangs
from storage.threads import report_to_loop
from tests.support.waiting import until


class World:
    """The changes of a namespace whose catalogue fails a number of times."""

    def __init__(self, failures: int = 0, retry_ms: int = 60_000) -> None:
        self.failures, self.confirmed = failures, list[tuple[str, str]]()
        self.changes = CatalogueChanges(self._confirm, retry_ms, report_to_loop)

    async def _confirm(self, key: str, generation: str) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise CommitFailed("a test")
        self.confirmed.append((key, generation))

    async def refused(self, error: Exception) -> Refused:
        """Carry out a change that fails."""

        async def change() -> None:
            raise error

        with pytest.raises(Refused) as refused:
            await self.changes.carry_out("orders", "1", change())
        return refused.value

    async def end(self) -> None:
        if self.changes.confirming is not None:
            self.changes.confirming.cancel()
            await asyncio.wait([self.changes.confirming])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DiskFull("a test"), Reason.DISK_FULL),
        (DiskHangs("a test"), Reason.PARTITION_UNAVAILABLE),
        (DiskFailed("a test"), Reason.PARTITION_UNAVAILABLE),
    ],
)
async def test_a_change_that_has_not_begun_leaves_nothing_to_confirm(
    error: Exception, reason: Reason
) -> None:
    world = World()
    why = await world.refused(error)
    assert why.reason is reason and "left as it is" in why.description and not world.changes.unconfirmed


async def test_a_name_is_unconfirmed_after_a_failure_and_confirmed_before_its_next_change() -> None:
    world = World(failures=1)
    why = await world.refused(CommitFailed("a test"))
    assert "not known" in why.description and world.changes.unconfirmed == {"orders": "1"}
    assert "not known" in (await world.refused(DiskHangs("a test"))).description, "not: left as it is"
    with pytest.raises(Refused):
        await world.changes.confirm("orders")
    await world.changes.confirm("orders")
    assert world.confirmed == [("orders", "1")] and not world.changes.unconfirmed
    await world.changes.confirm("orders")
    assert world.confirmed == [("orders", "1")], "once"
    await world.end()


async def test_a_name_is_confirmed_in_the_background_as_often_as_it_takes() -> None:
    world = World(failures=3, retry_ms=1)
    await world.refused(CommitFailed("a test"))
    await until(lambda: not world.changes.unconfirmed)
    assert world.confirmed == [("orders", "1")]
    await until(lambda: world.changes.confirming is None)


async def test_a_name_has_one_lock_while_somebody_uses_it() -> None:
    changes = World().changes
    async with changes.lock("orders"):
        assert changes.lock("orders").locked() and not changes.lock("events").locked()
    assert not changes.lock("orders").locked()
