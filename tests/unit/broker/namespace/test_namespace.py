"""The namespace over a real catalogue and store, with partitions that a test makes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import AuthorizationRule, QueueDescription, QueueSettings
from broker.entities.documents import encode_description
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.errors import DiskFailed
from tests.support.namespace_world import World, again, make_logs

ALL = frozenset({"Manage", "Send", "Listen"})


async def test_a_queue_that_was_created_is_found_in_any_case_and_after_a_restart(world: World) -> None:
    created = await world.namespace.create_entity("Orders/New", QueueSettings(lock_duration_ms=5_000), 7)
    assert (created.partitions, created.created_at_ms, created.name) == (
        7,
        world.clock.now_ms(),
        "Orders/New",
    )
    for name in ("Orders/New", "orders/new", "/ORDERS/NEW/"):
        assert world.namespace.describe(name) == created
    restarted = await again(world)
    assert restarted.namespace.describe("orders/new") == created and list(
        restarted.namespace.descriptions()
    ) == [created]
    await restarted.store.close()


async def test_partitions_are_the_default_where_nothing_is_said_and_one_where_the_queue_is_not_partitioned(
    world: World,
) -> None:
    assert (await world.namespace.create_entity("a", QueueSettings())).partitions == 4
    assert (
        await world.namespace.create_entity("b", QueueSettings(enable_partitioning=False), 9)
    ).partitions == 1


async def test_a_name_can_be_taken_once(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    with pytest.raises(Refused) as refused:
        await world.namespace.create_entity("ORDERS", QueueSettings())
    assert refused.value.reason is Reason.ENTITY_EXISTS


async def test_of_two_that_create_a_name_at_once_one_succeeds(world: World) -> None:
    results = await asyncio.gather(
        *(world.namespace.create_entity("orders", QueueSettings()) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, QueueDescription) for result in results) == 1
    assert all(
        isinstance(result, QueueDescription) or cast(Refused, result).reason is Reason.ENTITY_EXISTS
        for result in results
    )


async def test_a_wrong_description_and_one_entity_too_many_leave_nothing_behind(tmp_path: Path) -> None:
    world = World(tmp_path, entities_max=1)
    await world.namespace.load()
    with pytest.raises(Refused) as wrong:
        await world.namespace.create_entity("orders", QueueSettings(lock_duration_ms=0))
    await world.namespace.create_entity("orders", QueueSettings())
    with pytest.raises(Refused) as many:
        await world.namespace.create_entity("more", QueueSettings())
    assert (wrong.value.reason, many.value.reason) == (Reason.ARGUMENT, Reason.QUOTA_EXCEEDED)
    assert [each.name for each in world.namespace.descriptions()] == ["orders"]
    await world.store.close()


async def test_what_is_fixed_at_creation_cannot_be_changed(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    for settings in (QueueSettings(requires_session=True), QueueSettings(enable_partitioning=False)):
        with pytest.raises(Refused) as refused:
            await world.namespace.update_entity("orders", settings)
        assert refused.value.reason is Reason.ARGUMENT
    assert world.queue("orders").description.settings == QueueSettings()


async def test_a_queue_created_again_is_another_one(world: World) -> None:
    first = await world.namespace.create_entity("orders", QueueSettings())
    await world.namespace.delete_entity("orders")
    second = await world.namespace.create_entity("orders", QueueSettings())
    assert first.generation != second.generation
    assert not world.namespace.may_exist(first.generation) and world.namespace.may_exist(second.generation)


@pytest.mark.parametrize("act", ["update", "delete", "runtime"])
async def test_what_does_not_exist_is_not_found_in_the_words_that_clients_know(
    world: World, act: str
) -> None:
    with pytest.raises(Refused) as refused:
        match act:
            case "update":
                await world.namespace.update_entity("nothing", QueueSettings())
            case "delete":
                await world.namespace.delete_entity("nothing")
            case _:
                await world.namespace.runtime("nothing")
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND
    assert (
        refused.value.description
        == not_found_text("nothing")
        == "The messaging entity 'nothing' could not be found."
    )


async def test_a_folder_that_another_broker_uses_is_not_touched(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    being_written = world.folder / "catalogue" / "orders-0.document.tmp"
    being_written.write_bytes(b"half")
    second = World(world.folder)
    with pytest.raises(DiskFailed, match="another process"):
        await second.namespace.load()
    assert being_written.exists()
    await second.store.close()


async def test_logs_without_an_entry_are_kept_and_reported_unless_it_is_known_that_their_entry_was_deleted(
    world: World,
) -> None:
    kept, deleted = [
        (await world.namespace.create_entity(name, QueueSettings())).generation for name in ("orders", "gone")
    ]
    for generation in (kept, deleted, "f" * 32):
        await make_logs(world, generation)
    world.disk.fail("sync_directory", path_part="/logs/logs", times=1_000)
    await world.namespace.delete_entity("gone")
    world.disk.heal()
    (world.folder / "logs" / "logs" / f"{deleted}#deleted").rename(
        world.folder / "logs" / "logs" / deleted
    )  # a power cut: the rename was not synced
    assert set(await world.store.entities()) == {kept, deleted, "f" * 32}
    with capture_logs() as lines:
        restarted = await again(world)
    assert set(await restarted.store.entities()) == {kept, "f" * 32}
    assert [line["generation"] for line in lines if line["event"] == "entity.logs_without_entry"] == [
        "f" * 32
    ]
    with capture_logs() as lines:
        restarted = await again(restarted)
    assert not [line for line in lines if line["event"] == "entity.cleared"], "what was cleared is forgotten"
    await restarted.store.close()


@pytest.mark.parametrize("with_logs", ["none", "older", "newer", "both"])
async def test_of_two_entries_of_one_name_none_that_has_logs_is_deleted(world: World, with_logs: str) -> None:
    older, newer = (
        QueueDescription("Orders", "a" * 32, 4, created_at_ms=1),
        QueueDescription("orders", "9" * 32, 4, created_at_ms=2),
    )
    catalogue = Catalogue(world.folder / "catalogue", LocalDisk())
    for which, description in (("older", older), ("newer", newer)):
        await catalogue.put(description.generation, encode_description(description))
        if with_logs in (which, "both"):
            await make_logs(world, description.generation)
    live = older if with_logs == "older" else newer
    other = newer if with_logs == "older" else older
    for _ in range(2):
        with capture_logs() as lines:
            world = await again(world)
        assert list(world.namespace.descriptions()) == [live]
        (reported,) = [line["kept"] for line in lines if line["event"] == "entity.name_taken_twice"] or [None]
        assert reported == (other.generation if with_logs == "both" else None)
        assert set(await world.store.entities()) == {
            each.generation
            for which, each in (("older", older), ("newer", newer))
            if with_logs in (which, "both")
        }
        assert set(await catalogue.load_all()) == {
            live.generation,
            *([other.generation] if with_logs == "both" else []),
        }
        assert await catalogue.load_deleted() == []
    await world.store.close()


async def test_the_rules_of_an_entity_are_found_by_its_path_and_a_missing_one_has_none(world: World) -> None:
    rule = AuthorizationRule("app", "primary", "secondary", ALL)
    await world.namespace.create_entity("orders", QueueSettings(authorization_rules=(rule,)))
    assert (
        list(world.namespace.rules_of("ORDERS")) == [rule] and list(world.namespace.rules_of("nothing")) == []
    )


async def test_stored_settings_without_effect_stay_and_are_listed_at_the_start(world: World) -> None:
    stored = QueueSettings(requires_session=True, anonymous_accessible=True)
    await world.namespace.create_entity("kept", stored, file_settings=stored)
    await world.namespace.create_entity("plain", QueueSettings())
    with capture_logs() as lines:
        restarted = await again(world)
    named = [
        (line["entity"], line["settings"])
        for line in lines
        if line["event"] == "entity.settings_without_effect"
    ]
    assert named == [("kept", ["IsAnonymousAccessible"])]
    assert restarted.queue("kept").description.settings == stored
    await restarted.namespace.close()
    await restarted.store.close()


async def test_whoever_keeps_claims_hears_when_rules_change_or_go_and_not_otherwise(world: World) -> None:
    heard: list[str] = []
    rules = (AuthorizationRule("app", "one", "", frozenset({"Send"})),)
    with_rules = QueueSettings(authorization_rules=rules)
    await world.namespace.create_entity("orders", with_rules)
    await world.namespace.create_entity("plain", QueueSettings())
    world.namespace.when_rules_change.append(lambda: heard.append("changed"))
    await world.namespace.update_entity(
        "orders", QueueSettings(authorization_rules=rules, max_delivery_count=4)
    )
    await world.namespace.delete_entity("plain")
    assert heard == []
    await world.namespace.update_entity("orders", QueueSettings())
    assert len(heard) == 1
    await world.namespace.update_entity("orders", with_rules)
    await world.namespace.delete_entity("orders")
    assert len(heard) == 3 and world.namespace.rules_of("orders") == ()


async def test_rules_that_were_taken_away_are_gone_though_the_caller_has_left(world: World) -> None:
    heard: list[str] = []
    rules = (AuthorizationRule("app", "one", "", frozenset({"Send"})),)
    await world.namespace.create_entity("orders", QueueSettings(authorization_rules=rules))
    world.namespace.when_rules_change.append(lambda: heard.append("changed"))

    async def leave(description: object) -> None:
        raise asyncio.CancelledError

    world.queue("orders").update = leave  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await world.namespace.update_entity("orders", QueueSettings())
    assert heard == ["changed"]
