"""Actions of rules."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rules import SqlAction
from broker.rules.actions import compile_action


def test_actions_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        compile_action(SqlAction("SET a = 1"))
    assert refused.value.reason is Reason.NOT_IMPLEMENTED
