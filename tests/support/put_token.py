"""Puts tokens to `$cbs` on a client's connection."""

from __future__ import annotations

from broker.frontend.nodes.cbs import CbsNode
from broker.frontend.nodes.request_node import Request
from tests.support.link_stack import Client, LinkStack
from tests.support.sas import sas_token


async def put(
    client: Client,
    stack: LinkStack,
    name: str,
    key_name: str = "RootManageSharedAccessKey",
    key: str = "SAS_KEY_VALUE",
    seconds: int = 600,
) -> None:
    """Put a token for an entity, which is valid for so long."""
    audience = f"sb://test/{name}"
    ends_s = stack.clock.now_ms() // 1000 + seconds
    token = sas_token(audience, key_name=key_name, key=key, expires_at_s=ends_s)
    request = Request("id", None, {"operation": "put-token", "type": "jwt", "name": audience}, token)
    response = await CbsNode(client.connection).respond(request)
    assert response.properties["status-code"] == 202, response.properties
