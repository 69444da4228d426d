"""broker/http/rights.py: who may do what, and in which words it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.http.refusals import HttpRefusal
from broker.http.rights import READ, WRITE, Rights


class Claim:
    """A claim to everything below one path."""

    def __init__(self, path: str, *, of_namespace: bool) -> None:
        self._path, self.of_namespace = path, of_namespace
        self.expires_at_ms = None

    def covers(self, path: str, right: str) -> bool:
        return path.startswith(self._path) and right == "Manage"


@pytest.mark.parametrize(
    ("claim", "of_namespace", "is_enough"),
    [
        (Claim("", of_namespace=True), True, True),
        (Claim("events", of_namespace=False), False, True),
        (Claim("events", of_namespace=False), True, False),
        (Claim("other", of_namespace=True), False, False),
    ],
)
def test_manage_is_required_on_the_path_and_sometimes_with_a_key_of_the_namespace(
    claim: Claim, of_namespace: bool, is_enough: bool
) -> None:
    nothing: Any = None  # `require` looks at the claim alone
    rights = Rights(nothing, nothing, nothing, 0)
    for action in (READ, WRITE):
        if is_enough:
            rights.require(claim, "events", action, of_namespace=of_namespace)
            continue
        with pytest.raises(HttpRefusal, match=f"Manage,{action}") as caught:
            rights.require(claim, "events", action, of_namespace=of_namespace)
        assert caught.value.status == 401
