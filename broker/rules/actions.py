"""Actions: statements that change the properties of a copy of a message (AMQP contract 11.5).

The statements work on a *draft* of the copy, one after the other, so each sees what the ones before it have
done. The finished draft is encoded as a sender would encode it and stored again, by the rules for any
message. What it says about a session or a schedule has no effect before the copy is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from broker.base.errors import Refused
from broker.entities.rules import SqlAction
from broker.message.forwarded import trail_of, with_trail
from broker.message.stored import FORWARDED, StoredMessage, store
from broker.rules.drafts import REMOVABLE, SETTABLE, Draft, check_settable
from broker.rules.evaluating import Compiler
from broker.rules.filters import COMPILED_MAX, NODES_OF_WORK, size_of
from broker.rules.message_view import SYSTEM_PROPERTIES, MessageView
from broker.rules.parsing import Invalid, refusals
from broker.rules.sql import SQL_DIALECT, parse_action
from broker.rules.syntax import Constant, Parameter, SetProperty, Statement
from broker.rules.values import EvaluationFailed, Value, parameters_of

STATEMENT_WORK = 2
"""A statement takes as long as looking at so many filters, because what it sets must be encoded."""
RULE_NAME = "RuleName"
"""The application property of a copy that has the name of its rule."""

_Step: TypeAlias = Callable[[Draft], None]


@dataclass(slots=True, frozen=True)
class Action:
    """An action that can be carried out."""

    change: Callable[[MessageView, str], StoredMessage]
    """Makes the copy of a message that the rule of this name produces. Raises EvaluationFailed."""
    work: int = 0
    """What its statements cost, in the time that looking at a filter takes. In addition come making the copy,
    the message's properties, and texts that LIKE looks through."""


@lru_cache(COMPILED_MAX)
def compile_action(action: SqlAction) -> Action:
    """Compile an action. Raises Refused(ARGUMENT) if its expression is wrong."""
    statements = parse_action(action.expression)
    with refusals("action"):
        compiler = Compiler(SQL_DIALECT, parameters_of(action.parameters))
        steps = [_step(statement, compiler) for statement in statements]

    def change(message: MessageView, rule: str) -> StoredMessage:
        draft = Draft(message)
        draft.set_application_property(RULE_NAME, rule)
        try:
            for step in steps:
                step(draft)
            return _stored(draft, message)
        finally:
            message.work += draft.work

    return Action(change, sum(map(_work_of, statements)))


def check_new_action(action: SqlAction) -> None:
    """Check an action that nobody has yet: it can be compiled, and no system property is set to a constant
    that it cannot be. Rules that are kept may do so; they fail for each message. Raises Refused(ARGUMENT)."""
    compile_action(action)
    parameters = parameters_of(action.parameters)
    with refusals("action"):
        for statement in parse_action(action.expression):
            if isinstance(statement, SetProperty) and statement.property.is_system:
                _check_constant(statement, parameters)


def _check_constant(statement: SetProperty, parameters: Mapping[str, Value]) -> None:
    match statement.value:
        case Constant(value):
            constant = value
        case Parameter(name):
            constant = parameters[name]
        case _:
            return
    try:
        check_settable(statement.property.name, constant)
    except EvaluationFailed as why:
        reason = str(why)
        raise Invalid(statement.position, reason[0].lower() + reason[1:].rstrip(".")) from why


def _work_of(statement: Statement) -> int:
    nodes = size_of(statement.value) if isinstance(statement, SetProperty) else 0
    return STATEMENT_WORK + nodes // NODES_OF_WORK


def sets_session(action: SqlAction) -> bool:
    """Whether an action sets the session-id of its copy. Raises Refused(ARGUMENT) if its expression is
    wrong."""
    return any(
        isinstance(each, SetProperty) and each.property.is_system and each.property.name == "sessionid"
        for each in parse_action(action.expression)
    )


def _step(statement: Statement, compiler: Compiler[MessageView]) -> _Step:
    """A function that carries out a statement. Raises Invalid."""
    property = statement.property
    name = property.name
    if isinstance(statement, SetProperty):
        value, spelling = compiler.value(statement.value), statement.name
        if not property.is_system:
            return lambda draft: draft.set_application_property(spelling, value(draft))
        _check(statement, SETTABLE, "set")
        return lambda draft: draft.set_system_property(name, value(draft))
    if not property.is_system:
        return lambda draft: draft.remove_application_property(name)
    _check(statement, REMOVABLE, "removed")
    return lambda draft: draft.set_system_property(name, None)


def _check(statement: Statement, permitted: frozenset[str], what: str) -> None:
    name = statement.property.name
    if name not in SYSTEM_PROPERTIES:
        raise Invalid(statement.position, f"there is no system property 'sys.{name}'")
    if name not in permitted:
        raise Invalid(statement.position, f"the system property 'sys.{name}' cannot be {what}")


def _stored(draft: Draft, original: MessageView) -> StoredMessage:
    try:
        message = store(draft.encoded(), _no_message_id)
        if original.stored[0] & FORWARDED:
            message.data = with_trail(message.data, trail_of(original.stored, 0))
    except Refused as why:
        raise EvaluationFailed(why.description) from why
    return message


def _no_message_id() -> str:
    raise AssertionError("a draft always has a message-id")
