"""What a test does on a machine that lacks the tools of its client."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest


def skip_without(missing: Sequence[str]) -> None:
    """Skip the test if any of these tools is missing, and say which; where `CI` is set, fail it, so that
    nothing is left out unseen.
    """
    if missing:
        reason = f"this machine has no {' and no '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
