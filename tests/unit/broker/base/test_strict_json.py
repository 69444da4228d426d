"""JSON whose objects name each field once."""

from __future__ import annotations

import json

import pytest

from broker.base.strict_json import RepeatedField, read_json


@pytest.mark.parametrize("text", ["{}", '{"a": {"a": 1}, "A": [{"a": 1}, {"a": 1}]}', "[1, null]", '"a"'])
def test_objects_may_share_the_names_of_fields(text: str) -> None:
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": "secret", "b": 1}', '[{"x": {"b": 1, "b": 1}}]'])
def test_a_field_that_stands_twice_is_named_without_its_values(text: str) -> None:
    with pytest.raises(RepeatedField, match=r"^the field b stands twice in the same object$"):
        read_json(text)


def test_many_fields_take_no_longer_than_others() -> None:
    """A search in all those before, for each field, would take minutes."""
    text = "{" + ", ".join(f'"{number}": 1' for number in range(50_000)) + ', "49999": 1}'
    with pytest.raises(RepeatedField, match="field 49999"):
        read_json(text)
