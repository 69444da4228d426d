"""Selectors: which messages a receiver wants (AMQP contract 5.2a). Their language is that of JMS; its grammar
is in `jms.lark`. They are evaluated like SQL filters, except that

- names have case, and name application properties; the headers of JMS have names of their own;
- a boolean property is a condition;
- a comparison of values of different kinds is false, whatever the operator;
- what fails does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from lark import Token

from broker.message.changes import entries_of
from broker.message.stored import priority_of
from broker.rules.covers import Property
from broker.rules.evaluating import Compare, Compiler, Dialect, Evaluate
from broker.rules.message_view import (
    CORRELATION_ID,
    CREATION_TIME,
    GROUP_ID,
    GROUP_SEQUENCE,
    MESSAGE_ID,
    SUBJECT,
    USER_ID,
    MessageView,
    exact_name,
    text_of_id,
)
from broker.rules.parsing import ExpressionBuilder, Invalid, Language, check_trees, position_of, refusals
from broker.rules.syntax import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    IsNull,
    Negative,
    Node,
    Not,
    Positive,
    Read,
)
from broker.rules.values import EvaluationFailed, Value, comparable, equal, from_amqp, ordered
from protocol.codec import decode


class SelectedView(MessageView):
    """A message as selectors see it: with the changes that settlements have made to it."""

    __slots__ = ("_changes", "delivery_count")

    def __init__(self, stored: bytes, changed: bytes | None, delivery_count: int) -> None:
        super().__init__(stored, 0)
        self.delivery_count = delivery_count
        """Deliveries that failed."""
        self._changes = {} if changed is None else entries_of(changed)

    def name_of(self, encoded: bytes) -> str:
        return exact_name(encoded)

    def application_property(self, name: str) -> Value:
        if self._changes and (encoded := self._changes.get(name.encode())) is not None:
            return from_amqp(decode(encoded)[0])
        return super().application_property(name)


class Selector:
    """A compiled selector."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[SelectedView], bool | None]) -> None:
        self._decide = decide

    def matches(self, stored: bytes, changed: bytes | None, delivery_count: int) -> bool:
        """Whether a receiver with this selector wants a stored message. `changed` is what settlements have
        changed, `delivery_count` how many deliveries have failed."""
        try:
            return bool(self._decide(SelectedView(stored, changed, delivery_count)))
        except EvaluationFailed:
            return False
        except Exception:
            # Senders choose the values, in more ways than this code has foreseen. One such message would end
            # every receiver with this selector, again and again.
            return False


@lru_cache(1024)
def compile_selector(text: str) -> Selector:
    """Compile a selector. Raises Refused(ARGUMENT), with the position and the reason."""
    tree: Node = _language().parse(text, "selector", "selector")
    check_trees([tree], "selector")
    with refusals("selector"):
        return Selector(Compiler(_DIALECT).condition(tree, only_true=True))


class _SelectorBuilder(ExpressionBuilder):
    def selector(self, parts: list[Node]) -> Node:
        return _condition(parts[0])

    def any_of(self, terms: list[Node]) -> Node:
        return super().any_of([_condition(term) for term in terms] if len(terms) > 1 else terms)

    def all_of(self, terms: list[Node]) -> Node:
        return super().all_of([_condition(term) for term in terms] if len(terms) > 1 else terms)

    def not_true(self, operands: list[Node]) -> Node:
        return super().not_true([_condition(operands[0])])

    def read(self, tokens: list[Token]) -> Node:
        token = tokens[0]
        name = token[1:-1].replace('""', '"') if token.type == "QUOTED" else str(token)
        if name in _NO_SELECTOR:
            raise Invalid(position_of(token), f"no selector can use the header '{name}'")
        if name.startswith("JMS") and not (name in _HEADERS or _may_be_sent(name)):
            raise Invalid(position_of(token), f"there is no header '{name:.40}'")
        return Read(Property(name, is_system=name in _HEADERS), position_of(token))

    def integer(self, tokens: list[Token]) -> Node:
        digits = tokens[0].rstrip("Ll")
        if digits[:2] in ("0x", "0X"):
            digits = str(int(digits, 16))
        return super().integer([Token.new_borrow_pos("INTEGER", digits, tokens[0])])

    def decimal(self, tokens: list[Token]) -> Node:
        return Constant(float(tokens[0].rstrip("FfDd")), position_of(tokens[0]))

    def is_null(self, parts: list[Node]) -> Node:
        return IsNull(parts[0])

    def is_not_null(self, parts: list[Node]) -> Node:
        return Not(IsNull(parts[0]))

    def between(self, parts: list[Node]) -> Node:
        operand, low, high = parts
        return And((Comparison(">=", operand, low), Comparison("<=", operand, high)))

    def not_between(self, parts: list[Node]) -> Node:
        return Not(self.between(parts))


def _condition(node: Node) -> Node:
    """The node, which must be one that can be true. Raises Invalid."""
    if isinstance(node, Arithmetic | Negative | Positive):
        raise Invalid(_begin(node), "a number stands where a condition is expected")
    if isinstance(node, Constant) and not isinstance(node.value, bool):
        raise Invalid(_begin(node), "a value stands where a condition is expected")
    return node


def _begin(node: Node) -> int:
    """Where an expression begins, as far as its tree tells."""
    while isinstance(node, Arithmetic | Negative | Positive):
        node = node.left if isinstance(node, Arithmetic) else node.operand
    return node.position if isinstance(node, Constant | Read) else 1


# --- headers ------------------------------------------------------------------------------------------------


def _id_header(number: int, without_prefix: str = "") -> Evaluate[SelectedView]:
    """An id as Qpid JMS shows it, so that the type in AMQP can be told (AMQP JMS Mapping 1.0, 3.2.1). A text
    that does not begin with `ID:` is shown with `without_prefix` in front."""

    def read(message: SelectedView) -> Value:
        match message.field(number):
            case None:
                return None
            case bytes(value):
                return f"ID:AMQP_BINARY:{value.hex().upper()}"
            case UUID() as value:
                return f"ID:AMQP_UUID:{value}"
            case int(value):
                return f"ID:AMQP_ULONG:{value}"
            case value:
                text = str(value)
        if not text.startswith("ID:"):
            return without_prefix + text
        return f"ID:AMQP_STRING:{text}" if text.startswith(_TYPED) else text

    return read


_TYPED = tuple(f"ID:AMQP_{kind}:" for kind in ("BINARY", "UUID", "ULONG", "STRING", "NO_PREFIX"))


def _user(message: SelectedView) -> Value:
    return text_of_id(message.field(USER_ID))


def _field(number: int) -> Evaluate[SelectedView]:
    return lambda message: from_amqp(message.field(number))


def _priority(message: SelectedView) -> Value:
    priority = priority_of(message.stored)
    return 4 if priority is None else priority


def _timestamp(message: SelectedView) -> Value:
    created = message.field(CREATION_TIME)
    return int(created) if isinstance(created, int) else None


_HEADERS: Mapping[str, Evaluate[SelectedView]] = {
    "JMSMessageID": _id_header(MESSAGE_ID, "ID:AMQP_NO_PREFIX:"),
    "JMSCorrelationID": _id_header(CORRELATION_ID),
    "JMSType": _field(SUBJECT),
    "JMSPriority": _priority,
    "JMSDeliveryMode": lambda message: "PERSISTENT",
    "JMSTimestamp": _timestamp,
    "JMSXGroupID": _field(GROUP_ID),
    "JMSXGroupSeq": _field(GROUP_SEQUENCE),
    "JMSXUserID": _user,
    "JMSXDeliveryCount": lambda message: message.delivery_count + 1,
}
_NO_SELECTOR = frozenset(
    ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime")
)
"""Headers that selectors must not use (JMS 2.0, 3.8.1.1)."""


def _may_be_sent(name: str) -> bool:
    """Whether an application property may have this name, which begins with JMS (JMS 2.0, 3.5.9 and
    3.5.10)."""
    return name.startswith("JMS_") or name in ("JMSXAppID", "JMSXProducerTXID")


def _reader(property: Property) -> Evaluate[SelectedView]:
    name = property.name
    return _HEADERS[name] if property.is_system else (lambda message: message.application_property(name))


def _if_comparable(compare: Callable[[Any, Any], bool]) -> Compare:
    def decide(left: Value, right: Value) -> bool | None:
        if left is None or right is None:
            return None
        return ordered(left, right) and compare(left, right)

    return decide


def _different(left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    return not equal(left, right) and (comparable(left, right) or type(left) is type(right))


_COMPARISONS: Mapping[str, Compare] = {
    "=": equal,
    "<>": _different,
    "<": _if_comparable(lambda left, right: left < right),
    "<=": _if_comparable(lambda left, right: left <= right),
    ">": _if_comparable(lambda left, right: left > right),
    ">=": _if_comparable(lambda left, right: left >= right),
}

_DIALECT: Dialect[SelectedView] = Dialect(
    _reader, lambda property: lambda message: message.has(property.name), _COMPARISONS, Property
)


@cache
def _language() -> Language:
    """Made when it is first needed, because that takes some 50 ms."""
    return Language("jms.lark", ("selector",), _SelectorBuilder())
