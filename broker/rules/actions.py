"""Actions: statements that change the properties of a copy of a message (AMQP contract 11.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from broker.base.errors import Reason, Refused
from broker.entities.rules import SqlAction
from broker.message.stored import StoredMessage
from broker.rules.message_view import MessageView

Action: TypeAlias = Callable[[MessageView, str], StoredMessage]
"""Makes the copy of a message that the rule of this name produces. Raises EvaluationFailed."""


def compile_action(action: SqlAction) -> Action:
    """Compile an action. Raises Refused(ARGUMENT) if its expression is wrong."""
    raise Refused(Reason.NOT_IMPLEMENTED, "Actions of rules are not implemented.")
