"""Encode and decode the messages between the broker and its partitions (docs/partition-messages.md). Pure.

A message is a frame: the length of its body (u32, little endian), then the body, a MessagePack array whose
first item is the number of the message's kind and whose other items are its fields, in the order of their
declaration. A field that holds a message is such an array; a description is its catalogue document
(`broker/entities/documents.py`); an enumeration is its value. Decoding checks each value against the declared
type.

Both ends come from the same release, so nothing here is versioned or stored.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker import (
    operations,
    rule_operations,
    schedule_operations,
    selection_operations,
    session_operations,
    stream_operations,
    transfer_operations,
)
from broker.entities.descriptions import EntityDescription
from broker.entities.documents import decode_description, encode_description
from broker.hosting import host, messages

KINDS: Final[Mapping[int, type]] = {
    1: messages.Configure, 2: messages.Start, 3: messages.Post, 4: messages.OpenPartition,
    5: messages.StopPartition, 6: messages.Forget, 7: messages.ListEntities, 8: messages.ListPartitions,
    9: messages.ListMissing, 10: messages.FindLogs, 11: messages.DeleteLogs, 12: messages.Close,
    13: messages.LookAtClock, 14: messages.MemoryScarce,
    32: messages.Ready, 33: messages.Answered, 34: messages.Detached, 35: messages.Status,
    36: messages.IndexOpening, 37: messages.IndexClosed, 38: messages.Counted, 39: messages.MemoryUsed,
    40: messages.PartFailed, 41: messages.Done, 42: messages.FolderStates,
    59: operations.SendSinkBatch, 60: operations.Transact,
    61: transfer_operations.HandOver, 62: transfer_operations.LockNext, 63: transfer_operations.FailTransfer,
    64: operations.Send, 65: operations.Demand, 66: operations.Withdraw, 67: operations.Complete,
    68: operations.Abandon, 69: operations.Defer, 70: operations.DeadLetter, 71: operations.Release,
    72: operations.Recalled, 73: operations.RenewLocks, 74: operations.Peek, 75: operations.Watch,
    76: operations.ReceiveDeferred, 77: operations.Delete, 78: operations.Update, 79: operations.Detach,
    80: operations.CancelScheduled, 81: schedule_operations.Reschedule,
    82: schedule_operations.PromiseNumbers, 83: schedule_operations.BreakPromise,
    84: session_operations.AcceptSession, 85: session_operations.WatchSessions,
    86: session_operations.RenewSession, 87: session_operations.SetSessionState,
    92: session_operations.GetSessionState, 93: session_operations.ListSessions,
    88: operations.DeleteExactly, 89: operations.FindDeadLetters, 90: operations.LockExactly,
    91: operations.Redrive,
    94: transfer_operations.FindSources, 95: transfer_operations.SourcesFound,
    96: operations.Sent, 97: operations.Failed, 98: operations.Locked, 99: operations.Unmet,
    100: operations.Withdrawn, 101: operations.Settled, 102: operations.Renewed, 103: operations.Peeked,
    104: operations.Arrived, 105: operations.Deleted, 106: operations.Recall, 107: operations.Updated,
    108: operations.Unavailable, 109: operations.Transacted,
    110: session_operations.SessionAccepted, 111: session_operations.SessionLost,
    112: session_operations.SessionRenewed, 113: session_operations.SessionState,
    114: session_operations.SessionList,
    115: schedule_operations.Promised,
    116: operations.DeletedExactly, 117: operations.Found, 118: operations.Redriven,
    119: transfer_operations.HandedOver,
    128: stream_operations.FindPositions, 129: stream_operations.ReadRange,
    130: operations.GiveBack, 131: selection_operations.WatchReturned,
    138: selection_operations.CameBack,
    144: stream_operations.CreateCursor, 145: stream_operations.GetCursor,
    146: stream_operations.AdvanceCursor, 147: stream_operations.ListCursors,
    148: stream_operations.DeleteCursor, 149: stream_operations.SettleThrough,
    150: stream_operations.GetSinkBatch,
    160: rule_operations.FindRuleChanges, 161: rule_operations.ForgetRuleChanges,
    162: rule_operations.RuleChangesFound,
    136: stream_operations.Positions, 137: stream_operations.RangeRead,
    152: stream_operations.CursorList, 153: stream_operations.CursorAdvanced,
    154: stream_operations.CursorDeleted, 155: stream_operations.CursorState,
    156: stream_operations.SettledThrough,
    157: stream_operations.SinkBatchSent, 158: stream_operations.SinkBatch,
    120: operations.SubqueueCounts, 121: host.HostSettings, 122: host.HostFolder,
}  # fmt: skip
"""Every kind of message, and of data within messages, by its number."""

LENGTH = struct.Struct("<I")
_NUMBERS = {kind: number for number, kind in KINDS.items()}

Convert = Callable[[Any], Any]


def hints_of(kind: type) -> dict[str, Any]:
    """The declared type of each field, in order."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


@dataclasses.dataclass(slots=True, frozen=True)
class _Kind:
    """How one kind is encoded and decoded."""

    number: int
    names: tuple[str, ...]
    encoders: tuple[Convert | None, ...]
    decoders: tuple[Convert | None, ...]


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, type) and hint in _NUMBERS


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _is_optional_kind(hint: Any) -> bool:
    members = _members(hint)
    return types.NoneType in members and all(_is_kind(each) for each in members if each is not types.NoneType)


def _converters(hint: Any) -> tuple[Convert | None, Convert | None]:
    """Functions to apply to a field of this type before encoding and after decoding; None if it needs
    none."""
    if hint is EntityDescription:
        return encode_description, decode_description
    if all(map(_is_kind, _members(hint))):
        return _plain, _made
    if _is_optional_kind(hint):
        return (
            lambda value: None if value is None else _plain(value),
            lambda value: None if value is None else _made(value),
        )
    items = typing.get_args(hint)
    if items and _is_kind(items[-1]) and typing.get_origin(hint) is dict:
        return (
            lambda value: {key: _plain(each) for key, each in value.items()},
            lambda value: {key: _made(each) for key, each in value.items()},
        )
    if items and all(map(_is_kind, _members(items[0]))):
        collect = tuple if typing.get_origin(hint) is tuple else list
        return lambda value: [_plain(each) for each in value], lambda value: collect(map(_made, value))
    return None, None


def _kind(number: int, kind: type) -> _Kind:
    hints = hints_of(kind)
    pairs = [_converters(hint) for hint in hints.values()]
    return _Kind(number, tuple(hints), tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


def _wire_type(hint: Any) -> Any:
    """The type that msgspec checks a field against."""
    if hint is EntityDescription:
        return bytes
    if all(map(_is_kind, _members(hint))):
        return typing.Union[tuple(_STRUCTS[each] for each in _members(hint))]  # noqa: UP007 - made at run time
    if _is_optional_kind(hint):
        return typing.Union[tuple(_STRUCTS.get(each, each) for each in _members(hint))]  # noqa: UP007
    items = typing.get_args(hint)
    if items and any(map(_is_kind, itertools.chain.from_iterable(map(_members, items)))):
        origin = typing.get_origin(hint)
        return origin[tuple(map(_wire_type, items))]
    return Any if hint is object else hint


def _plain(message: Any) -> list[Any]:
    kind = _KINDS[type(message)]
    fields: list[Any] = [kind.number]
    for name, encode_field in zip(kind.names, kind.encoders, strict=True):
        value = getattr(message, name)
        fields.append(value if encode_field is None else encode_field(value))
    return fields


def _made(read: msgspec.Struct) -> Any:
    kind = _OF_STRUCT[type(read)]
    made = _KINDS[kind]
    return kind(
        *(
            getattr(read, name) if decode_field is None else decode_field(getattr(read, name))
            for name, decode_field in zip(made.names, made.decoders, strict=True)
        )
    )


_KINDS = {kind: _kind(number, kind) for number, kind in KINDS.items()}
_STRUCTS: dict[type, type[msgspec.Struct]] = {}
for _number, _made_of in sorted(
    KINDS.items(), reverse=True
):  # parts have higher numbers than the messages that hold them
    _defaults = {each.name: each for each in dataclasses.fields(_made_of)}
    _STRUCTS[_made_of] = msgspec.defstruct(
        _made_of.__name__,
        [(name, _wire_type(hint)) for name, hint in hints_of(_made_of).items()],
        array_like=True,
        tag=_number,
    )
_OF_STRUCT = {struct_: kind for kind, struct_ in _STRUCTS.items()}
_ENCODER = msgspec.msgpack.Encoder()


def _decoder_of(union: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_wire_type(union))


_TO_PARTITIONS = _decoder_of(messages.ToPartitions)
_TO_BROKER = _decoder_of(messages.ToBroker)


def encode(message: messages.ToPartitions | messages.ToBroker) -> bytes:
    """The message's frame."""
    body = _ENCODER.encode(_plain(message))
    return LENGTH.pack(len(body)) + body


def decode_to_partitions(body: bytes) -> messages.ToPartitions:
    """A message to the partitions, from its frame's body. Raises msgspec.ValidationError, DecodeError."""
    message: messages.ToPartitions = _made(_TO_PARTITIONS.decode(body))
    return message


def decode_to_broker(body: bytes) -> messages.ToBroker:
    """A message to the broker, from its frame's body. Raises msgspec.ValidationError, DecodeError."""
    message: messages.ToBroker = _made(_TO_BROKER.decode(body))
    return message


def type_text(hint: Any) -> str:
    """A field's type as the documentation shows it."""
    if hint is EntityDescription:
        return "catalogue document"
    if all(map(_is_kind, _members(hint))) and len(_members(hint)) > 1:
        return "message"
    text = str(hint) if typing.get_args(hint) or isinstance(hint, typing.NewType) else hint.__name__
    for name in (
        "collections.abc.",
        "typing.",
        "broker.operations.",
        "broker.settlement_operations.",
        "broker.identifiers.",
        "broker.hosting.host.",
        "broker.base.errors.",
    ):
        text = text.replace(name, "")
    return text.replace("object", "int | None")


def table() -> list[str]:
    """The lines of the documentation's table: number, name and fields of each kind."""
    lines = []
    for number, kind in KINDS.items():
        fields = ", ".join(f"`{name}`: {type_text(hint)}" for name, hint in hints_of(kind).items())
        lines.append(f"| {number} | {kind.__name__} | {fields.replace('|', chr(92) + '|') or 'none'} |")
    return lines
