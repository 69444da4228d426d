"""The JSON of our own operations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from broker.http.own_models import Named, Purge, RedriveAnswer


def test_names_are_in_camel_case_and_what_is_not_known_is_left_out() -> None:
    assert Named.model_validate_json('{"sequenceNumbers":[1,"2"]}').sequence_numbers == [1, 2]
    text = RedriveAnswer(message_count=1, missing=[5]).model_dump_json(by_alias=True, exclude_none=True)
    assert text == '{"messageCount":1,"missing":[5]}'


def test_a_misspelt_name_never_widens_a_selection() -> None:
    with pytest.raises(ValidationError):
        Purge.model_validate_json('{"enqueued-before":"1999-01-01T00:00:00Z"}')


@pytest.mark.parametrize(
    "time", ["5", '"5"', '"1700000000"', '"1999-01-01"', '"1999-01-01T00:00:00"', "true"]
)
def test_a_time_is_iso_8601_with_a_zone(time: str) -> None:
    with pytest.raises(ValidationError):
        Purge.model_validate_json(f'{{"enqueuedBefore":{time}}}')


@pytest.mark.parametrize("time", ["1999-01-01T00:00:00Z", "1999-01-01T01:00:00.0+01:00"])
def test_times_have_any_zone(time: str) -> None:
    before = Purge.model_validate_json(f'{{"enqueuedBefore":"{time}"}}').enqueued_before
    assert before == datetime(1999, 1, 1, tzinfo=UTC)
