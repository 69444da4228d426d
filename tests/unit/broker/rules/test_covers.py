"""Covers: the keys under which filters are kept."""

from __future__ import annotations

from broker.rules.covers import Property, equal_cover


def test_numbers_of_one_value_have_one_key_and_booleans_another() -> None:
    colour = Property("colour")
    assert equal_cover(colour, 1, 1.0) == equal_cover(colour, 1)
    assert equal_cover(colour, True) != equal_cover(colour, 1)


def test_system_and_application_properties_of_one_name_are_two() -> None:
    assert equal_cover(Property("to"), "a") != equal_cover(Property("to", is_system=True), "a")
