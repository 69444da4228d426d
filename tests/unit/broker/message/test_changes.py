import pytest

from broker.base.errors import Reason, Refused
from broker.message.changes import count_of, encode_changes, entries_of, merge_changes, with_changes
from broker.message.property_sizes import METADATA_BYTES_MAX, PROPERTY_BYTES_MAX
from protocol.codec import Symbol, ULong, decode_all
from tests.support.amqp_messages import APPLICATION, DATA, PROPERTIES, message, section, sections


def test_symbol_and_string_keys_are_the_same_property() -> None:
    assert encode_changes({Symbol("a"): 1}) == encode_changes({"a": 1})


def test_nothing_to_change_is_none() -> None:
    assert encode_changes({}) is None
    assert encode_changes({"DeadLetterReason": None}, drop_nulls=True) is None


def test_nulls_of_a_dead_letter_are_dropped_and_those_of_an_abandon_kept() -> None:
    sent = {"DeadLetterReason": None, "own": 1}
    assert decode_all(encode_changes(sent, drop_nulls=True) or b"") == {"own": 1}
    assert decode_all(encode_changes(sent) or b"") == sent


def test_reason_and_description_of_a_dead_letter_are_strings_whatever_was_sent() -> None:
    changes = encode_changes({"DeadLetterReason": ULong(5), "DeadLetterErrorDescription": Symbol("s")})
    found = decode_all(changes or b"")
    assert found == {"DeadLetterReason": "5", "DeadLetterErrorDescription": "s"}
    assert type(found["DeadLetterErrorDescription"]) is str


@pytest.mark.parametrize("properties", [{5: 1}, {"a": 2**70}, {b"bytes": 1}])
def test_what_cannot_be_a_property_is_an_argument_error(properties: dict[object, object]) -> None:
    with pytest.raises(Refused) as refused:
        encode_changes(properties)
    assert refused.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize("name", ["own", "DeadLetterErrorDescription"])
def test_a_property_is_no_larger_than_one_of_a_message_may_be(name: str) -> None:
    longest = "x" * (PROPERTY_BYTES_MAX - 5)  # after the constructor and four bytes of length
    assert decode_all(encode_changes({name: longest}) or b"") == {name: longest}
    with pytest.raises(Refused, match=f"'{name}' takes {PROPERTY_BYTES_MAX + 1} bytes") as refused:
        encode_changes({name: longest + "x"})
    assert refused.value.reason is Reason.ARGUMENT


def test_later_changes_hold_over_earlier_ones_and_removals_are_remembered() -> None:
    earlier, later = encode_changes({"a": 1, "b": 1, "c": 1}), encode_changes({"b": 2, "c": None})
    assert decode_all(merge_changes(earlier, later) or b"") == {"a": 1, "b": 2, "c": None}
    assert merge_changes(None, later) == later
    assert merge_changes(earlier, None) == earlier
    assert merge_changes(None, None) is None


def test_a_message_without_application_properties_gets_a_section_behind_its_properties() -> None:
    properties, body = section(PROPERTIES, ["id"]), section(DATA, b"x")
    changed = with_changes(properties + body, encode_changes({"a": 1}) or b"")
    assert changed == properties + section(APPLICATION, {"a": 1}) + body


def test_a_null_that_the_sender_set_stays_and_a_removed_last_property_takes_the_section_with_it() -> None:
    bare = message(properties=["id"], application={"a": 1, "null": None})
    assert sections(with_changes(bare, encode_changes({"a": None}) or b""))[APPLICATION] == {"null": None}
    assert with_changes(message(application={"a": 1}), encode_changes({"a": None}) or b"") == message()


def test_long_keys_keep_their_text() -> None:
    key = "é" * 200
    bare = message(application={key: 1})
    assert sections(with_changes(bare, encode_changes({"b": 2}) or b""))[APPLICATION] == {key: 1, "b": 2}


def test_changes_that_keep_coming_stay_bounded_and_the_latest_hold() -> None:
    merged = None
    for number in range(100):
        merged = merge_changes(merged, encode_changes({f"note-{number}": "x" * 5_000, "attempt": number}))
        assert merged is not None and len(merged) < METADATA_BYTES_MAX + 100
    found = decode_all(merged or b"")
    assert found["attempt"] == 99 and "note-99" in found and "note-98" in found and "note-0" not in found
    full = encode_changes({"all": "y" * 32_500, "rest": "y" * 32_500})
    assert merge_changes(merged, full) == full


@pytest.mark.parametrize("count", [1, 2, 100, 200, 1_000])
def test_what_a_change_consists_of_is_counted_from_its_first_bytes(count: int) -> None:
    changed = encode_changes({f"{number:05}": None for number in range(count)})
    assert changed is not None and count_of(changed) == count == len(entries_of(changed))
