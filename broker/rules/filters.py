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
from broker.rules.covers import Cover, Property, equal_cover
from broker.rules.message_view import MessageView
from broker.rules.values import Value, equal, from_rule

Predicate: TypeAlias = Callable[[MessageView], bool]
"""Whether a message matches. Raises EvaluationFailed."""


@dataclass(slots=True, frozen=True)
class CompiledFilter:
    """A filter that can be evaluated."""

    matches: Predicate
    covers: tuple[Cover, ...] = ()
    """Any of them serves. Without one, the filter is evaluated for every message."""


COMPILED_MAX = 8_192
"""The most compiled filters that are remembered. A topic has at most 2,000 SQL filters."""


@lru_cache(COMPILED_MAX)
def compile_filter(filter: Filter) -> CompiledFilter:
    """Compile a filter. Raises Refused(ARGUMENT) if its expression is wrong."""
    match filter:
        case TrueFilter():
            return CompiledFilter(lambda message: True)
        case FalseFilter():
            return CompiledFilter(lambda message: False, (frozenset(),))
        case CorrelationFilter():
            return _correlation(filter)
        case SqlFilter():
            raise Refused(Reason.NOT_IMPLEMENTED, "SQL filters are not implemented.")
        case _:
            assert_never(filter)


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

    return CompiledFilter(matches, tuple(equal_cover(property, value) for property, value in wanted))
