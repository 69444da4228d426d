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
import re
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.entities.descriptions import EntityDescription
from broker.entities.documents import decode_description, encode_description
from broker.hosting import host, messages
from broker.operations import (
    browsing,
    deleting,
    general,
    message_states,
    receiving,
    redriving,
    rule_changes,
    scheduling,
    selecting,
    sending,
    sessions,
    settling,
    streams,
    transactions,
    transfers,
)

KINDS: Final[Mapping[int, type]] = {
    1: messages.Configure, 2: messages.Start, 3: messages.Post, 4: messages.OpenPartition,
    5: messages.StopPartition, 6: messages.Forget, 7: messages.ListEntities, 8: messages.ListPartitions,
    9: messages.ListMissing, 10: messages.FindLogs, 11: messages.DeleteLogs, 12: messages.Close,
    13: messages.LookAtClock, 14: messages.MemoryScarce, 15: messages.MemoryRoom,
    16: messages.KeepRoom,
    32: messages.Ready, 33: messages.Answered, 34: messages.Detached, 35: messages.Status,
    36: messages.IndexOpening, 37: messages.IndexClosed, 38: messages.Counted, 39: messages.MemoryUsed,
    40: messages.PartFailed, 41: messages.Done, 42: messages.FolderStates,
    59: streams.SendSinkBatch, 60: transactions.Transact, 61: transfers.HandOver, 62: transfers.LockNext,
    63: transfers.FailTransfer, 64: sending.Send, 65: receiving.Demand, 66: receiving.Withdraw,
    67: settling.Complete, 68: settling.Abandon, 69: settling.Defer, 70: settling.DeadLetter,
    71: settling.Release, 72: receiving.Recalled, 73: settling.RenewLocks, 74: browsing.Peek,
    75: browsing.Watch, 76: receiving.ReceiveDeferred, 77: deleting.Delete, 78: general.Update,
    79: general.Detach, 80: scheduling.CancelScheduled, 81: scheduling.Reschedule,
    82: scheduling.PromiseNumbers, 83: scheduling.BreakPromise, 84: sessions.AcceptSession,
    85: sessions.WatchSessions, 86: sessions.RenewSession, 87: sessions.SetSessionState,
    92: sessions.GetSessionState, 93: sessions.ListSessions, 88: deleting.DeleteExactly,
    89: redriving.FindDeadLetters, 90: receiving.LockExactly, 91: redriving.Redrive,
    94: transfers.FindSources, 95: transfers.SourcesFound, 96: sending.Sent, 97: general.Failed,
    98: receiving.Locked, 99: receiving.Unmet, 100: receiving.Withdrawn, 101: settling.Settled,
    102: settling.Renewed, 103: browsing.Peeked, 104: browsing.Arrived, 105: deleting.Deleted,
    106: receiving.Recall, 107: general.Updated, 108: general.Unavailable, 109: transactions.Transacted,
    110: sessions.SessionAccepted, 111: sessions.SessionLost, 112: sessions.SessionRenewed,
    113: sessions.SessionState, 114: sessions.SessionList, 115: scheduling.Promised,
    116: deleting.DeletedExactly, 117: redriving.Found, 118: redriving.Redriven, 119: transfers.HandedOver,
    128: streams.FindPositions, 129: streams.ReadRange, 130: settling.GiveBack, 131: selecting.WatchReturned,
    138: selecting.CameBack, 144: streams.CreateCursor, 145: streams.GetCursor, 146: streams.AdvanceCursor,
    147: streams.ListCursors, 148: streams.DeleteCursor, 149: streams.SettleThrough,
    150: streams.GetSinkBatch, 160: rule_changes.FindRuleChanges, 161: rule_changes.ForgetRuleChanges,
    162: rule_changes.RuleChangesFound, 136: streams.Positions, 137: streams.RangeRead,
    152: streams.CursorList, 153: streams.CursorAdvanced, 154: streams.CursorDeleted,
    155: streams.CursorState, 156: streams.SettledThrough, 157: streams.SinkBatchSent, 158: streams.SinkBatch,
    120: message_states.SubqueueCounts, 121: host.HostSettings, 122: host.HostFolder,
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
    text = re.sub(r"(?:[a-z_]+\.)+", "", text)  # the modules
    return text.replace("object", "int | None")


def table() -> list[str]:
    """The lines of the documentation's table: number, name and fields of each kind."""
    lines = []
    for number, kind in KINDS.items():
        fields = ", ".join(f"`{name}`: {type_text(hint)}" for name, hint in hints_of(kind).items())
        lines.append(f"| {number} | {kind.__name__} | {fields.replace('|', chr(92) + '|') or 'none'} |")
    return lines
