"""What the first namespace was called when the broker last started, as the catalogue keeps it. Pure.

    {"version": 1, "name": …}

The first namespace has a fixed name on disk, so it may be renamed. This document tells a renamed one from one
that has lost its place to another (`stored_entities.py`). It exists once the first namespace has had a name
of its own. Every other document of the catalogue is an entity's.
"""

from __future__ import annotations

import json

FIRST_NAMESPACE = "first-namespace"
"""The name of the document."""
VERSION = 1


def encode_first_namespace(name: str) -> bytes:
    """The document that says this name."""
    return json.dumps({"version": VERSION, "name": name}, indent=1).encode()


def decode_first_namespace(document: bytes) -> str:
    """The name that the document says; "" if it cannot be read."""
    try:
        found = json.loads(document)["name"]
    except (ValueError, LookupError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
