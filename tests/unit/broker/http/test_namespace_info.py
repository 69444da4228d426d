"""The namespace's information: what clients read in it, and how the messaging units are changed."""

from __future__ import annotations

from pathlib import Path

from tests.support.http_entries import value
from tests.support.http_stack import HttpStack, http_stack

UNITS = b"""<entry xmlns="http://www.w3.org/2005/Atom"><content><NamespaceInfo
xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><MessagingUnits>2</MessagingUnits>
</NamespaceInfo></content></entry>"""


async def test_namespace_information_is_what_clients_probe_the_connection_with(stack: HttpStack) -> None:
    status, text, _ = await stack.ask("GET", "/$namespaceinfo?api-version=2024-05")
    assert (status, value(text, "MessagingSKU"), value(text, "Name"), value(text, "NamespaceType")) == (
        200,
        "Premium",
        "sbemulatorns",
        "Messaging",
    )
    assert value(text, "CreatedTime") and value(text, "ModifiedTime")


async def test_messaging_units_are_changed_in_the_premium_tier_only_and_with_a_right(tmp_path: Path) -> None:
    async with http_stack(tmp_path, tier="standard", throttle_credits=1) as stack:
        assert (await stack.ask("PUT", "/$namespaceinfo", UNITS, token=None))[0] == 401
        status, text, _ = await stack.ask("PUT", "/$namespaceinfo", UNITS)
        assert status == 400 and "in the premium tier only" in text
        assert (await stack.ask("PUT", "/$namespaceinfo", b"<entry"))[0] == 400
