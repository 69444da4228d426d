"""What tests of the administration API write and read: the ATOM documents of entities."""

from __future__ import annotations

import re

from broker.http.atom import ATOM, SERVICE_BUS

UPDATE = {"If-Match": "*"}
"""The header that makes a PUT an update."""


def queue_body(inner: str = "", kind: str = "QueueDescription") -> bytes:
    """The document of an entity with these elements."""
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml"><{kind} '
        f'xmlns="{SERVICE_BUS}">{inner}</{kind}></content></entry>'
    ).encode()


def value(text: str, element: str) -> str | None:
    """The text of the first element of this name."""
    found = re.search(f"<{element}>([^<]*)</{element}>", text)
    return found.group(1) if found else None
