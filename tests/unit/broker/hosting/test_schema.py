"""Messages between the broker and its partitions are read as they were written, and the page documents
them."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.errors import Reason
from broker.entities.descriptions import (
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    QueueSettings,
)
from broker.hosting import messages, schema
from broker.identifiers import ClientId
from broker.operations.interface import Answer, Operation
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Unmet

PAGE = Path(__file__).parents[4] / "docs" / "partition-messages.md"
NUMBERS = st.integers(-(2**63), 2**63 - 1)
DESCRIPTIONS = st.builds(
    QueueDescription,
    st.text(min_size=1),
    st.just("0" * 32),
    st.integers(1, 256),
    st.builds(
        QueueSettings,
        lock_duration_ms=st.integers(5_000, 300_000),
        forward_to=st.none() | st.text(),
        authorization_rules=st.just(
            (AuthorizationRule("r", "primary", "secondary", frozenset({"Send", "Listen"})),)
        ),
    ),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type as they look after reading: lists where any sequence is allowed."""
    if hint is object:
        return st.none() | NUMBERS
    if hint is EntityDescription:
        return DESCRIPTIONS
    if hint is int or isinstance(hint, typing.NewType):
        return NUMBERS
    if hint in schema.KINDS.values():
        return messages_of(hint)
    if isinstance(hint, types.UnionType):
        return st.one_of(*map(values_of, typing.get_args(hint)))
    items = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(items)
        case origin if origin in (list, Sequence):
            return st.lists(values_of(items[0]), max_size=3)
        case origin if origin in (dict, Mapping):
            return st.dictionaries(values_of(items[0]), values_of(items[1]), max_size=3)
        case origin if origin is tuple and items[-1] is ...:
            return st.lists(values_of(items[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values_of, items))
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is Reason:
        return st.sampled_from(Reason)
    return st.from_type(hint)


def messages_of(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values_of(hint) for name, hint in schema.hints_of(kind).items()})


TO_PARTITIONS, TO_BROKER = typing.get_args(messages.ToPartitions), typing.get_args(messages.ToBroker)


@pytest.mark.parametrize("kind", TO_PARTITIONS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_is_sent_to_the_partitions_is_read_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    frame = schema.encode(message)
    assert schema.LENGTH.unpack_from(frame)[0] == len(frame) - schema.LENGTH.size
    assert schema.decode_to_partitions(frame[schema.LENGTH.size :]) == message


@pytest.mark.parametrize("kind", TO_BROKER)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_is_sent_to_the_broker_is_read_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert schema.decode_to_broker(schema.encode(message)[schema.LENGTH.size :]) == message


@pytest.mark.parametrize("kind", [*typing.get_args(Operation), *typing.get_args(Answer)])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_operation_and_answer_passes(kind: type, data: st.DataObject) -> None:
    inner = data.draw(messages_of(kind))
    if kind in typing.get_args(Operation):
        post = messages.Post(1, ClientId(2), inner)
        assert schema.decode_to_partitions(schema.encode(post)[4:]) == post
    else:
        answered = messages.Answered(1, ClientId(2), inner)
        assert schema.decode_to_broker(schema.encode(answered)[4:]) == answered


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([3, 1, 2]),
        msgspec.msgpack.encode([3, 1, 2, [96, 5, None]]),
        msgspec.msgpack.encode([3, "one", 2, [66, ""]]),
        msgspec.msgpack.encode([3, 1, 2, [64, ["text"], None, None]]),
        msgspec.msgpack.encode([99]),
        schema.encode(messages.Ready())[4:],
    ],
)
def test_what_is_no_message_to_the_partitions_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        schema.decode_to_partitions(wrong)


def test_the_bytes_are_those_that_the_page_describes() -> None:
    frame = schema.encode(messages.Answered(3, ClientId(7), Unmet(2, "$DeadLetterQueue")))
    assert schema.LENGTH.unpack_from(frame) == (len(frame) - 4,)
    assert msgspec.msgpack.decode(frame[4:]) == [33, 3, 7, [99, 2, "$DeadLetterQueue"]]
    status = messages.Status(3, "healthy", True, 7, {"": SubqueueCounts(1, 2, 3, 4, 5, 6)}, is_whole=False)
    fields = [35, 3, "healthy", True, 7, {"": [120, 1, 2, 3, 4, 5, 6]}, False]
    assert msgspec.msgpack.decode(schema.encode(status)[4:]) == fields


def test_the_page_lists_every_kind_with_its_fields() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert rows[2:] == schema.table(), "make the table anew with broker.hosting.schema.table()"
