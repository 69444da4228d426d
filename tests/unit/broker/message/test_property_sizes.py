"""How much room the properties of a message may take."""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.message.property_sizes import (
    LARGEST,
    METADATA_BYTES_MAX,
    PROPERTY_BYTES_MAX,
    PropertyLimits,
    beyond,
    limits_of,
)
from broker.message.stored import store
from broker.settings.settings import Settings
from tests.support.amqp_messages import DELIVERY_ANNOTATIONS, message, section

SMALL = PropertyLimits(together=100, each=60)


def refusal(payload: bytes) -> Refused | None:
    """Why nobody may send this message; None if some may."""
    try:
        store(payload, lambda: "given")
    except Refused as why:
        assert why.reason is Reason.MESSAGE_TOO_LARGE
        return why
    return None


def test_all_properties_and_annotations_together_have_a_limit() -> None:
    given = {"a": "x" * 30_000, "c": "x" * 10_000}
    assert refusal(message(application=given, annotations={"b": "x" * 26_000}))
    some = "x" * 32_000
    rest = (
        METADATA_BYTES_MAX - len(message(application={"a": some, "b": some, "c": "x" * 300}, body=[])) + 300
    )
    assert refusal(message(application={"a": some, "b": some, "c": "x" * rest})) is None
    why = refusal(message(application={"a": some, "b": some, "c": "x" * (rest + 1)}))
    assert why is not None
    assert why.description == (
        "The message's annotations and properties take 65537 bytes; the limit is 65536."
    )


def test_delivery_annotations_count_too() -> None:
    assert refusal(section(DELIVERY_ANNOTATIONS, {"big": "x" * METADATA_BYTES_MAX}) + message())


def test_one_property_has_a_limit_of_its_own() -> None:
    longest = "x" * (PROPERTY_BYTES_MAX - 5)  # after the constructor and four bytes of length
    for large, name in (
        (message(application={"small": 1, "large": longest + "x"}), "'large'"),
        (message(properties=["id", None, None, longest + "x"]), "number 3 of the properties list"),
    ):
        why = refusal(large)
        assert why is not None
        assert why.description == (
            f"The property {name} takes {PROPERTY_BYTES_MAX + 1} bytes; the limit is {PROPERTY_BYTES_MAX}."
        )
    large = message(application={"small": 1, "large": longest}, properties=["id", None, None, "x" * 20_000])
    assert refusal(large) is None
    assert refusal(message(properties=["id", None, None, longest])) is None


def test_a_namespace_may_permit_less() -> None:
    payloads = [
        message(application={"a": "x" * 58}),
        message(application={"a": "x" * 59}),
        b"malformed",
        message(application={"a": "x" * 40, "b": "x" * 40, "c": "x" * 40}),
        message(properties=["id", None, "to" * 30]),
        message(body=[b"x" * 1_000]),
    ]
    found = dict(beyond(payloads, {2}, SMALL))
    assert {index: why.description for index, why in found.items()} == {
        1: "The property 'a' takes 61 bytes; the limit is 60.",
        3: "The message's annotations and properties take 141 bytes; the limit is 100.",
        4: "The property number 2 of the properties list takes 62 bytes; the limit is 60.",
    }
    assert {why.reason for why in found.values()} == {Reason.MESSAGE_TOO_LARGE}


def test_the_settings_permit_what_the_service_does_and_no_more() -> None:
    defaults = Settings()
    assert limits_of(defaults.properties_kb_max, defaults.property_kb_max) is None
    assert limits_of(2, 1) == PropertyLimits(2_048, 1_024) != LARGEST
