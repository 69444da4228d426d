"""Write the corpus: `python -m tests.fuzz.make_corpus`. `record.py` recorded what real clients send; this
module builds the rest.

AMQP streams begin at the AMQP header, SASL streams at the SASL header. Files are small and never change: a
new input gets a new name.
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import Any

from protocol.codec import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
)
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message, section

CORPUS = Path(__file__).parent / "corpus"


NULLS = b"\xf0" + struct.pack(">II", 5, 2**31 - 1) + b"\x40"
"""An array of two thousand million nulls, in ten bytes: proton can read it but cannot write it again."""
DECLARE = section(0x77, Described(ULong(0x31), []))
"""A message that begins a transaction."""
NOTHINGS = b"\xd0" + struct.pack(">II", 4, 2**32 - 1)
DEEP = b"\x00\x53\x01" * 300 + b"\x40"


def attach_with_filter(handle: int, value: bytes) -> bytes:
    """Attach a receiver whose source has this encoded value as its filter."""
    pairs = b"\xa3\x01a" + value
    filters = b"\xd1" + struct.pack(">II", 4 + len(pairs), 2) + pairs
    source = encode("queue") + b"\x40" * 6 + filters
    fields = [encode(field) for field in raw.receiver_attach(handle, "queue")]
    fields[5] = b"\x00\x53\x28\xd0" + struct.pack(">II", 4 + len(source), 8) + source
    body = b"".join(fields)
    return raw.raw_frame(b"\x00\x53\x12\xd0" + struct.pack(">II", 4 + len(body), len(fields)) + body)


def streams() -> dict[str, bytes]:
    """Streams that clients send to a broker, with frames in a valid order."""
    start = (
        raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()) + raw.frame(raw.BEGIN, raw.begin_fields())
    )
    end = raw.frame(raw.END, []) + raw.frame(raw.CLOSE, [])
    sender = raw.frame(raw.ATTACH, raw.sender_attach(0, "queue"))
    receiver = raw.frame(raw.ATTACH, raw.receiver_attach(1, "queue"))
    settled = raw.frame(raw.ATTACH, raw.receiver_attach(2, "queue", settled=True))
    credit = raw.frame(raw.FLOW, raw.flow_fields(1, 0, 10))
    drain = raw.frame(raw.FLOW, raw.flow_fields(1, 0, 10, drain=True))
    text = message(properties=["id-1"], body=[b"hello"])
    transfers = b"".join(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), text) for number in range(3))
    parts = b"".join(
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, 3, more=more), part)
        for part, more in ((text[:7], True), (text[7:12], True), (text[12:], False))
    )
    batch = raw.frame(
        raw.TRANSFER, raw.transfer_fields(0, 4, batch=True), message(properties=["env"], body=[text, text])
    )
    states: list[Any] = [
        raw.outcome(raw.ACCEPTED),
        raw.outcome(
            raw.REJECTED,
            [
                Described(
                    ULong(raw.ERROR),
                    [Symbol("com.microsoft:dead-letter"), "why", {Symbol("DeadLetterReason"): "r"}],
                )
            ],
        ),
        raw.outcome(raw.RELEASED),
        raw.outcome(raw.MODIFIED, [True, False, {Symbol("x"): 1}]),
        raw.outcome(raw.MODIFIED, [False, True]),
        raw.outcome(raw.RECEIVED, [UInt(0), ULong(0)]),
    ]
    settles = b"".join(
        raw.frame(raw.DISPOSITION, raw.disposition_fields(True, number, number, False, state))
        for number, state in enumerate(states)
    )
    ranged = raw.frame(raw.DISPOSITION, raw.disposition_fields(True, 0, 4, True, raw.outcome(raw.ACCEPTED)))
    detach = raw.frame(raw.DETACH, [UInt(0), True])
    suspend = raw.frame(raw.DETACH, [UInt(1), False])
    aborted = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), text[:5]) + raw.frame(
        raw.TRANSFER, [UInt(0), None, None, None, None, False, None, None, None, True]
    )
    large = b"".join(
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(2_000)) for _ in range(4)
    )
    second = raw.frame(raw.BEGIN, raw.begin_fields(), channel=1) + raw.frame(
        raw.ATTACH, raw.sender_attach(0, "queue", "other"), channel=1
    )
    coordinator = raw.sender_attach(3, None)
    coordinator[6] = Described(ULong(0x30), [[Symbol("amqp:local-transactions")]])
    dynamic = raw.receiver_attach(4, None)
    dynamic[5] = Described(ULong(raw.SOURCE), [None, UInt(0), Symbol("never"), UInt(0), True])
    filtered = raw.receiver_attach(5, "queue")
    filtered[5] = Described(
        ULong(raw.SOURCE),
        ["queue", None, None, None, None, None, None, {Symbol("f"): Described(Symbol("f"), "x")}],
    )
    within = [raw.outcome(raw.TRANSACTIONAL, [b"t"])] + [
        raw.outcome(raw.TRANSACTIONAL, [b"t", state]) for state in states
    ]
    transactions = (
        raw.frame(raw.ATTACH, coordinator)
        + raw.frame(raw.TRANSFER, raw.transfer_fields(3, 0), DECLARE)
        + raw.frame(raw.TRANSFER, raw.transfer_fields(0, 1, state=within[0], more=True), text[:5])
        + raw.frame(raw.TRANSFER, raw.transfer_fields(0, 1, state=within[0]), text[5:])
        + credit
        + b"".join(
            raw.frame(raw.DISPOSITION, raw.disposition_fields(True, number, number, False, state))
            for number, state in enumerate(within)
        )
    )
    numbers = b"".join(
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), text) for number in (1, 1, 0, 7, 300, 5)
    )
    divided = b"".join(
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, more=more, tag=b"t"), part)
        for number, part, more in ((9, text[:5], True), (10, text[5:9], True), (12, text[9:], False))
    )
    bombs = b"".join(
        attach_with_filter(handle, value) for handle, value in enumerate((NULLS, NOTHINGS, DEEP))
    )
    return {
        "empty": start + end,
        "sends": start + sender + transfers + detach + end,
        "out_of_sequence": start + sender + numbers + divided + transfers + end,
        "detach_behind_end": start + sender + raw.frame(raw.END, []) + detach + raw.frame(raw.CLOSE, []),
        "multi_frame": start + sender + parts + transfers.replace(b"\x52\x01", b"\x52\x05") + end,
        "batch": start + sender + batch + end,
        "receives": start + receiver + credit + settles + end,
        "settles_at_once": start + receiver + credit + ranged + suspend + end,
        "receive_and_delete": start + settled + raw.frame(raw.FLOW, raw.flow_fields(2, 0, 3)) + end,
        "drains": start + receiver + credit + drain + drain + end,
        "aborts": start + sender + aborted + transfers + end,
        "too_large": start + sender + large + end,
        "two_sessions": start + sender + second + transfers + raw.frame(raw.END, [], channel=1) + end,
        "other_nodes": start
        + b"".join(raw.frame(raw.ATTACH, each) for each in (coordinator, dynamic, filtered))
        + end,
        "transactions": start + sender + receiver + transactions + end,
        "attaches_again": start + receiver + credit + suspend + receiver + credit + end,
        "bombs": start + bombs + end,
        "keeps_alive": start + raw.raw_frame(b"") * 3 + end,
    }


def sasl() -> dict[str, bytes]:
    """SASL logins."""
    external = raw.SASL_HEADER + raw.sasl_frame(raw.SASL_INIT, [Symbol("EXTERNAL")])
    return {
        "plain": raw.sasl_plain() + raw.AMQP_HEADER,
        "anonymous": raw.sasl_anonymous() + raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()),
        "external": external,
        "none": raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()),
        "tls": raw.TLS_HEADER,
    }


def messages() -> dict[str, bytes]:
    """Single messages and batches."""
    keyed = message(
        header=[True, None, UInt(1_000)],
        annotations={"x-opt-partition-key": "key", "x-opt-scheduled-enqueue-time": 5},
        properties=[
            "id",
            b"user",
            "to",
            "subject",
            "reply",
            "correlation",
            Symbol("text/plain"),
            None,
            None,
            None,
            "key",
            UInt(0),
            "reply-session",
        ],
        application={"a": 1, "b": "text", "c": None},
    )
    forwarded = message(
        header=[True, UByte(4), UInt(60_000), True, UInt(2)],
        annotations={
            "x-opt-sequence-number": 7,
            "x-opt-partition-key": "key",
            "own": "kept",
            "x-opt-locked-until": Timestamp(8),
            "x-opt-scheduled-enqueue-time": Timestamp(9),
        },
        properties=["id", *[None] * 9, "key"],
        application={"a": 1, "b": "text"},
        body=[b"x" * 300],
    )
    spelled = b"".join(
        (
            b"\x00\x80" + struct.pack(">Q", 0x72) + encode({Symbol("x-opt-partition-key"): "key"}),
            b"\x00" + encode(Symbol("amqp:properties:list")) + encode(["id", b"user"]),
            b"\x00" + encode(Symbol("amqp:data:binary")) + b"\xa0\x01x",
        )
    )
    sent_on = message(  # the Python client sends the text of received messages as binary
        annotations={"x-opt-sequence-number": 7, "x-opt-partition-key": b"key", "own": 1},
        properties=["id", *[None] * 9, "key"],
        application={"a": 1},
    )
    own = {Symbol("hop"): 7, Symbol("x-opt-lock-token"): 1, Symbol("b"): None, ULong(5): [1]}
    return {
        "bare": message(),
        "keyed": keyed,
        "forwarded": forwarded,
        "empty_body": section(0x75, b""),
        "value": section(0x77, {"map": [1, 2.5, None, b"x"]}),
        "sequence": section(0x76, [1]) + section(0x76, [2]),
        "long_descriptors": b"\x00\x80" + struct.pack(">Q", 0x75) + b"\xa0\x01x",
        "symbolic": b"\x00" + encode(Symbol("amqp:data:binary")) + b"\xa0\x01x",
        "spelled": spelled,
        "own_delivery_annotations": section(0x71, own) + sent_on,
        "sent_on": sent_on + section(0x71, {Symbol("x-opt-lock-token"): uuid.UUID(int=7)}),
        "cut_in_a_size": b"\x00\x53\x75\xb0",
        "footer": message() + section(0x78, {Symbol("f"): 1}),
        "batch": message(properties=["envelope"], body=[message(), keyed]),
    }


def values() -> dict[str, bytes]:
    """Values of every type, one file per group of types."""
    array = Array(0x98, [uuid.UUID(int=1), uuid.UUID(int=2)])
    described = Described(
        Symbol("d"), Described(ULong(5), [Array(0xA3, [Symbol("x")]), Array(0xD0, [[1], [2]], ULong(9))])
    )
    return {
        "numbers": encode(
            [
                UByte(1),
                UShort(2),
                UInt(3),
                ULong(4),
                Byte(-1),
                Short(-2),
                -3,
                2**40,
                0.5,
                Float(1.5),
                Timestamp(9),
                Char("c"),
            ]
        ),
        "decimals": encode([Decimal32(bytes(4)), Decimal64(bytes(8)), Decimal128(bytes(16))]),
        "texts": encode({"string": "é" * 300, Symbol("symbol"): b"x" * 300, 1: True, None: uuid.UUID(int=7)}),
        "arrays": encode([array, Array(0x56, [True, False]), Array(0xA1, ["a", ""]), Array(0x71, [])]),
        "described": encode(described),
        "nested": encode([[[[{"a": [{"b": [1, [2, [3]]]}]}]]]]),
        "accepted_in_transaction": encode([b"transaction", raw.outcome(raw.ACCEPTED)]),
        "rejected_in_transaction": encode(
            [
                b"t",
                raw.outcome(
                    raw.REJECTED,
                    [Described(ULong(raw.ERROR), [Symbol("a:b"), "why", {Symbol("k"): "v"}])],
                ),
            ]
        ),
        "modified_in_transaction": encode(
            [b"t", raw.outcome(raw.MODIFIED, [True, False, {Symbol("k"): "v"}])]
        ),
        "performative": raw.performative(raw.ATTACH, raw.sender_attach(0, "queue")),
    }


def properties() -> dict[str, bytes]:
    """Maps of properties: a short one, and one with values of many types and a head of nine bytes."""
    described: object = 1
    for _ in range(40):
        described = Described(ULong(1), described)
    many = {Symbol("s"): None, "d": described, "t": "é" * 300, "k" * 300: b"x", "l": [1, {"a": 2}]}
    return {"few": encode({"a": 1, "b": None}), "many": encode(many | {f"{n}": n for n in range(200)})}


def main() -> None:
    for folder, files in (
        ("streams", streams()),
        ("sasl", sasl()),
        ("messages", messages()),
        ("values", values()),
        ("properties", properties()),
    ):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (CORPUS / folder / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
