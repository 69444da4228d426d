"""Requests over HTTP reach the namespace that `Host` names."""

from __future__ import annotations

from pathlib import Path

from tests.unit.broker.test_namespace_parts import BILLS, ask, running


async def test_every_kind_of_request_is_answered_by_its_namespace(tmp_path: Path) -> None:
    async with running(tmp_path, BILLS) as broker:
        await broker.namespace.delete_entity("same")
        for method, path, statuses in (
            ("GET", "/same", (200, 200)),  # the first one's is gone: a path without an entity has no children
            ("POST", "/onward/messages", (410, 201)),
            ("POST", "/$partibus/count-messages/onward", (410, 200)),
            ("GET", "/health", (200, 200)),  # with a token, an entity of this name is meant
        ):
            first, _ = await ask(broker, "localhost", "SAS_KEY_VALUE", method, path)
            second, text = await ask(broker, "bills", "own", method, path)
            assert (first, second) == statuses, path
            if path == "/same":
                assert "/onward</ForwardTo>" in text and "<id>http://bills/same?" in text
