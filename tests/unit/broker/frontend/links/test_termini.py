"""A link gets what it asks of its source and target, or the attach is refused."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import Array, Described, Symbol, TypeCode, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack

SELECTOR = Described(ULong(0x0000_468C_0000_0004), "colour = 'red'")
SENDER, RECEIVER = raw.sender_attach, raw.receiver_attach


def with_source(fields: list[Any], place: int, value: Any) -> list[Any]:
    """The attach with one field of its source set (§3.5.3)."""
    source = [next(iter(fields[5].value), None), *[None] * 10]
    source[place] = value
    fields[5] = Described(ULong(raw.SOURCE), source)
    return fields


def with_target(fields: list[Any], place: int, value: Any) -> list[Any]:
    target = [next(iter(fields[6].value), None), *[None] * 6]
    target[place] = value
    fields[6] = Described(ULong(raw.TARGET), target)
    return fields


def with_filter(fields: list[Any], name: str, value: Any) -> list[Any]:
    return with_source(fields, 7, {Symbol(name): value})


async def refusal(fields: list[Any]) -> tuple[str, str]:
    """The condition and the description of a refused attach (AMQP contract 0.4.6)."""
    client = await LinkStack().connect()
    attach, detach = await client.attach(fields)
    assert (attach.code, detach.code) == (raw.ATTACH, raw.DETACH)
    assert attach.field(5) is None and attach.field(6) is None and detach.field(1) is True
    condition, sentence, _ = detach.field(2).value
    return condition, sentence


async def attached(fields: list[Any]) -> tuple[Client, raw.Frame]:
    client = await LinkStack().connect()
    attach, *rest = await client.attach(fields)
    assert raw.DETACH not in [frame.code for frame in rest]
    return client, attach


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("no-local", Described(ULong(0x0000_468C_0000_0003), []), "apache.org:no-local-filter:list"),
        ("com.example:mine", None, "com.example:mine"),
        ("mine", Described(ULong(7), 1), "'mine' (7)"),
    ],
)
async def test_a_filter_that_is_not_applied_is_refused_by_name(
    key: str, value: Any, named: str, settled: bool
) -> None:
    condition, sentence = await refusal(with_filter(RECEIVER(0, "queue", settled=settled), key, value))
    assert condition == "amqp:not-implemented" and named in sentence


SELECTORS = [
    ("apache.org:selector-filter:string", SELECTOR),
    ("jms-selector", SELECTOR),
    ("apache.org:selector-filter:string", "colour = 'red'"),
    ("selector", Described(Symbol("apache.org:selector-filter:string"), "x = 1")),
]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("mode", [None, Symbol("copy")])
@pytest.mark.parametrize(("key", "value"), SELECTORS)
async def test_a_selector_is_echoed(key: str, value: Any, mode: Any, settled: bool) -> None:
    fields = with_filter(RECEIVER(0, "queue", settled=settled), key, value)
    fields[5].value[6] = mode
    _, attach = await attached(fields)
    assert attach.field(5).value[7] == {key: value}


@pytest.mark.parametrize("mode", [None, Symbol("copy")])
async def test_a_selector_that_is_not_valid_is_refused_with_its_position(mode: Any) -> None:
    wrong = Described(ULong(0x0000_468C_0000_0004), "colour = ")
    fields = with_filter(RECEIVER(0, "queue"), "jms-selector", wrong)
    fields[5].value[6] = mode
    condition, sentence = await refusal(fields)
    assert condition == "com.microsoft:argument-error"
    assert sentence.startswith("The selector is not valid at position 10: the text ends where a value is")


@pytest.mark.parametrize("value", [Described(ULong(0x0000_468C_0000_0004), 5), None])
async def test_a_selector_that_is_no_string_is_refused(value: Any) -> None:
    fields = with_filter(RECEIVER(0, "queue"), "apache.org:selector-filter:string", value)
    assert (await refusal(fields))[0] == "com.microsoft:argument-error"


async def test_a_receiver_has_one_selector() -> None:
    fields = with_source(RECEIVER(0, "queue"), 7, {Symbol("a"): SELECTOR, Symbol("b"): SELECTOR})
    assert (await refusal(fields))[0] == "com.microsoft:argument-error"


@pytest.mark.parametrize("key", ["com.microsoft:session-filter", "partibus:range"])
async def test_a_selector_beside_a_session_or_a_range_is_refused(key: str) -> None:
    fields = with_source(RECEIVER(0, "queue"), 7, {Symbol(key): None, Symbol("jms-selector"): SELECTOR})
    if key == "partibus:range":
        fields[5].value[6] = Symbol("copy")
    condition, sentence = await refusal(fields)
    assert condition == "amqp:not-implemented" and "apache.org:selector-filter:string" in sentence


async def test_a_sender_has_no_selector() -> None:
    condition, sentence = await refusal(with_filter(SENDER(0, "queue"), "jms-selector", SELECTOR))
    assert condition == "amqp:not-implemented" and "apache.org:selector-filter:string" in sentence


@pytest.mark.parametrize("value", [[1, 2], "text", Described(ULong(1), {})])
async def test_a_filter_that_is_no_map_is_refused(value: Any) -> None:
    assert (await refusal(with_source(RECEIVER(0, "queue"), 7, value)))[0] in (
        "amqp:decode-error",
        "amqp:not-implemented",
    )


@pytest.mark.parametrize("value", [None, {}])
async def test_no_filter_is_no_filter(value: Any) -> None:
    await attached(with_source(RECEIVER(0, "queue"), 7, value))


@pytest.mark.parametrize("address", ["$cbs", "queue/$management", "queue"])
async def test_a_filter_is_refused_on_a_sender_and_on_the_nodes_for_requests(address: str) -> None:
    for name in ("com.microsoft:session-filter", "com.example:mine"):
        assert (await refusal(with_filter(SENDER(0, address), name, "x")))[0] == "amqp:not-implemented"
        if address != "queue":
            assert (await refusal(with_filter(RECEIVER(0, address), name, "x")))[0] == "amqp:not-implemented"


@pytest.mark.parametrize("address", ["$cbs", "queue/$management"])
async def test_responses_cannot_be_browsed(address: str) -> None:
    assert (await refusal(with_source(RECEIVER(0, address), 6, Symbol("copy"))))[0] == "amqp:not-implemented"


async def test_move_is_what_a_queue_does() -> None:
    _, attach = await attached(with_source(RECEIVER(0, "queue"), 6, Symbol("move")))
    assert attach.field(5).value[6] == "move"


@pytest.mark.parametrize("capability", ["topic", "shared", "temporary-topic"])
@pytest.mark.parametrize("several", [False, True])
async def test_a_queue_does_not_pass_for_a_topic(capability: str, several: bool) -> None:
    value: Any = (
        Array(TypeCode.SYMBOL, [Symbol("queue"), Symbol(capability)]) if several else Symbol(capability)
    )
    for fields in (with_source(RECEIVER(0, "queue"), 10, value), with_target(SENDER(0, "queue"), 6, value)):
        condition, sentence = await refusal(fields)
        assert condition == "amqp:not-implemented" and f"'{capability}'" in sentence


async def test_what_a_plain_jms_client_asks_for_is_granted() -> None:
    """Qpid JMS without a selector: capability, outcomes and a default outcome, expiry."""
    outcomes = Array(
        TypeCode.SYMBOL,
        [Symbol(f"amqp:{name}:list") for name in ("accepted", "rejected", "released", "modified")],
    )
    fields = RECEIVER(0, "queue")
    modified = Described(ULong(0x27), [True])
    fields[5] = Described(
        ULong(raw.SOURCE),
        [
            "queue",
            UInt(0),
            Symbol("link-detach"),
            UInt(0),
            False,
            None,
            None,
            None,
            modified,
            outcomes,
            Symbol("queue"),
        ],
    )
    await attached(fields)
    await attached(with_target(SENDER(0, "queue"), 6, Symbol("queue")))


@pytest.mark.parametrize("attach", [SENDER, RECEIVER])
async def test_a_link_that_asks_for_the_generation_of_its_entity_is_told(attach: Any) -> None:
    client = await LinkStack().connect()
    generation = client.stack.queue.description.generation
    for handle, expected in enumerate((None, generation)):
        answer, *rest = await client.attach(with_generation(attach(handle, "queue"), expected))
        assert answer.field(13)[Symbol("partibus:generation")] == generation
        assert answer.field(13)[Symbol("partibus:partitions")] == client.stack.queue.description.partitions
        assert Symbol("partibus:duplicate-detection-window") not in answer.field(13)
        assert raw.DETACH not in [frame.code for frame in rest]
    answer, *_ = await client.attach(attach(2, "queue"))
    assert "partibus:generation" not in [str(key) for key in answer.field(13) or {}]


@pytest.mark.parametrize("attach", [SENDER, RECEIVER])
async def test_a_link_to_another_generation_is_refused(attach: Any) -> None:
    condition, sentence = await refusal(with_generation(attach(0, "queue"), "an earlier one"))
    assert condition == "amqp:not-found" and "an earlier one" in sentence


def with_generation(fields: list[Any], generation: str | None) -> list[Any]:
    """The attach with the property that asks for the generation (§2.7.3)."""
    fields += [None] * (13 - len(fields))
    return [*fields, {Symbol("partibus:generation"): generation}]
