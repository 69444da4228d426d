"""The outlet to one target: what stays in doubt, and the locks of what was set aside. The rest is shown by
`test_forward_lane.py`."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import MAIN, TRANSFER_DEAD_LETTER, QueueSettings
from broker.messaging import forward_outlet, forward_retry
from broker.messaging.forward_lane import Lane
from broker.messaging.forward_outlet import Outlet, part_of
from broker.namespace.entity import ask
from broker.namespace.router import partition_of_key
from broker.operations.receiving import Locked, LockExactly
from broker.operations.settling import Renewed, RenewLocks
from broker.operations.transfers import FailTransfer
from storage.errors import DiskFailed
from tests.support.forwarding_world import World, held_now, is_troubled, world
from tests.support.locked import locked
from tests.support.waiting import until

PLAIN, TO_B = QueueSettings(), QueueSettings(forward_to="b")
KEY = next(key for key in "abcdefgh" if partition_of_key(key, 2) == 1)


def lane_of(here: World) -> Lane:
    (forwarded,) = here.forwarding._forwarded.values()
    return forwarded._lanes[0]


def outlet_of(lane: Lane) -> Outlet:
    (outlet,) = lane._outlets.values()
    return outlet


async def test_the_locks_of_what_was_set_aside_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 60.0)
    monkeypatch.setattr(forward_outlet, "RENEWED_BEFORE_S", 1_000.0)
    async with world(a=(1, TO_B), b=(2, PLAIN)) as here:
        here.on_log = lambda name, number, log: setattr(
            log, "on_acquire", lambda: DiskFailed("down") if (name, number) == ("b", 1) else None
        )
        await here.send("a", "x", key=KEY)
        await until(lambda: is_troubled(lane_of(here)))
        here.clock.advance(forward_outlet.LOCK_MS - 1)
        await outlet_of(lane_of(here)).renew()
        here.clock.advance(forward_outlet.LOCK_MS - 1)
        (load,) = outlet_of(lane_of(here))._aside[1].ending(1e12)
        answer = await ask(here.entities["a"].router.handles[0], RenewLocks(load.tokens))
        assert isinstance(answer, Renewed) and not answer.failures


@pytest.mark.parametrize("is_locked", [False, True], ids=["gone", "locked"])
async def test_only_what_is_gone_from_the_source_leaves_what_the_target_must_keep(is_locked: bool) -> None:
    async with world(a=(1, TO_B), b=(1, PLAIN)) as here:
        number = await here.send("a", "x")
        await here.until_at("b", 1)
        await here.until_empty("a")
        lane, outlet = lane_of(here), outlet_of(lane_of(here))
        await until(lambda: lane._task is None)
        await here.update("a", PLAIN)
        await until(lambda: not here.forwarding._ending)
        other = await here.send("a", "y")
        if is_locked:
            await ask(here.entities["a"].router.handles[0], LockExactly(MAIN, [other]))
        outlet._doubt[0] = {number, other, other + 1}
        await outlet._remove_known(0, [number, other])
        assert outlet._doubt[0] == ({other, other + 1} if is_locked else {other + 1})


async def test_a_failed_transfer_that_was_stored_before_a_crash_is_removed() -> None:
    to_b = QueueSettings(forward_dead_lettered_to="b")
    async with world(a=(1, to_b), b=(1, PLAIN)) as here:
        here.on_log = lambda name, number, log: None
        number = await here.send("a", "x")
        handle = here.entities["a"].router.handles[0]
        locked = await ask(handle, LockExactly(MAIN, [number]))
        assert isinstance(locked, Locked)
        await ask(handle, FailTransfer(locked.tokens))
        (forwarded,) = here.forwarding._forwarded.values()
        outlet = Outlet(Lane(forwarded._route, 0), "b")
        outlet._doubt[0] = {number}
        await outlet._remove_known(0, [number])
        assert not outlet._doubt[0] and not held_now(here.entities["a"], TRANSFER_DEAD_LETTER)


def test_a_part_of_locked_messages_keeps_its_lists_in_step() -> None:
    whole = locked(0, 3)
    whole.columns = {"destination": [b"a", b"b", b"a"]}
    part = part_of(whole, [0, 2])
    assert part.tokens == [whole.tokens[0], whole.tokens[2]] and part.columns["destination"] == [b"a", b"a"]
    assert part.messages == [whole.messages[0], whole.messages[2]] and part.partition == whole.partition
    assert part_of(whole, [0, 1, 2]) is whole
