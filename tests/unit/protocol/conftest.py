"""The engine's peer in most of these tests."""

from __future__ import annotations

import pytest

from tests.support.engine_peer import EnginePeer


@pytest.fixture
def peer() -> EnginePeer:
    """An open connection with a session on channel 0."""
    return EnginePeer().open()
