"""Filters, compiled: a function that looks at a message, and the covers by which an index finds the filter.

Compiling is the expensive part, and the partitions of a topic have the same filters, so compiled filters are
remembered and shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, assert_never

from broker.base.errors import Reason, Refused
from broker.entities.rules import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from broker.message.stored import HEAD, VERSION
from broker.rules.covers import Cover, Property, equal_cover
from broker.rules.evaluating import Compiler
from broker.rules.expression_covers import can_fail, covers_of
from broker.rules.message_view import MessageView
from broker.rules.parsing import refusals
from broker.rules.sql import SQL_DIALECT, parse_filter
from broker.rules.syntax import Constant, Exists, Like, NewId, Node, Read, ReadNamed, children
from broker.rules.values import Value, equal, from_rule, parameters_of

Predicate: TypeAlias = Callable[[MessageView], bool]
"""Whether a message matches. Raises EvaluationFailed."""


@dataclass(slots=True, frozen=True)
class CompiledFilter:
    """A filter that can be evaluated."""

    matches: Predicate
    covers: tuple[Cover, ...] = ()
    """Any of them serves. Without one, the filter is evaluated for every message."""
    work: int = 1
    """What evaluating it costs, in the time that a filter takes that compares one property. Texts that LIKE
    looks through come in addition."""
    searches: bool = False
    """LIKE may search texts character by character."""
    matches_all: bool = False
    """The filter matches every message: nobody needs to evaluate it."""


NODES_OF_WORK = 8
"""How many parts of a tree are evaluated in the time that a short filter takes."""
COMPILED_MAX = 8_192
"""The most compiled filters of each kind that are remembered. A topic has at most 2,000 SQL filters, which
take long to compile, but any number of correlation filters, so each kind is remembered by itself."""


def compile_filter(filter: Filter) -> CompiledFilter:
    """Compile a filter. Raises Refused(ARGUMENT) if its expression is wrong."""
    match filter:
        case TrueFilter():
            return CompiledFilter(lambda message: True, matches_all=True)
        case FalseFilter():
            return _NEVER
        case CorrelationFilter():
            return _correlation(filter)
        case SqlFilter():
            return _sql(filter)
        case _:
            assert_never(filter)


@lru_cache(COMPILED_MAX)
def _correlation(filter: CorrelationFilter) -> CompiledFilter:
    """The message has every value that the filter gives. An empty text is one as well."""
    system = {
        "correlationid": filter.correlation_id,
        "messageid": filter.message_id,
        "to": filter.to,
        "replyto": filter.reply_to,
        "label": filter.label,
        "sessionid": filter.session_id,
        "replytosessionid": filter.reply_to_session_id,
        "contenttype": filter.content_type,
    }
    wanted: list[tuple[Property, Value]] = [
        (Property(name, is_system=True), text) for name, text in system.items() if text is not None
    ]
    wanted += [(Property(name.casefold()), from_rule(value)) for name, value in filter.properties]
    if not wanted:
        raise Refused(Reason.ARGUMENT, "A correlation filter needs at least one value.")

    def matches(message: MessageView) -> bool:
        return all(equal(message.value_of(property), value) for property, value in wanted)

    covers = tuple(equal_cover(property, value) for property, value in wanted)
    return CompiledFilter(matches, covers, 1 + len(wanted) // NODES_OF_WORK)


@lru_cache(COMPILED_MAX)
def _sql(filter: SqlFilter) -> CompiledFilter:
    tree = parse_filter(filter.expression)
    parameters = parameters_of(filter.parameters)
    with refusals("filter"):
        decide = Compiler(SQL_DIALECT, parameters).condition(tree, only_true=True)
    if _is_the_same_for_all(tree):  # `1 = 1` is how some clients write a true filter (HTTP contract 2.7)
        return CompiledFilter(lambda message: True, matches_all=True) if decide(_NO_MESSAGE) else _NEVER
    return CompiledFilter(
        lambda message: bool(decide(message)),
        covers_of(tree, parameters),
        1 + size_of(tree) // NODES_OF_WORK,
        may_search(tree),
    )


def _is_the_same_for_all(tree: Node) -> bool:
    if isinstance(tree, Read | ReadNamed | Exists | NewId) or can_fail(tree):
        return False
    return all(map(_is_the_same_for_all, children(tree)))


def size_of(tree: Node) -> int:
    """How many parts an expression has."""
    return 1 + sum(map(size_of, children(tree)))


def may_search(tree: Node) -> bool:
    """Whether evaluating an expression may search texts character by character."""
    if isinstance(tree, Like):
        pattern = tree.pattern
        return not isinstance(pattern, Constant) or "_" in str(pattern.value)
    return any(map(may_search, children(tree)))


def forget_compiled() -> None:
    """Compile all filters anew from now on."""
    _correlation.cache_clear()
    _sql.cache_clear()


_NO_MESSAGE = MessageView(bytes(HEAD.pack(VERSION, 0, 0, 0, 0, 0)), 0)
_NEVER = CompiledFilter(lambda message: False, (frozenset(),))
