"""Refusals."""

from __future__ import annotations

from broker.base.errors import DESCRIPTION_CHARACTERS_MAX, Reason, Refused


def test_a_refusal_that_quotes_a_long_text_keeps_its_begin_and_its_end() -> None:
    refused = Refused(Reason.ARGUMENT, f"'{'x' * 100_000}' is no disposition.")
    assert len(refused.description) == DESCRIPTION_CHARACTERS_MAX
    assert refused.description.startswith("'xxx") and refused.description.endswith("x' is no disposition.")
    assert " … " in str(refused)


def test_a_refusal_of_ordinary_length_is_kept_as_it_is() -> None:
    description = "y" * DESCRIPTION_CHARACTERS_MAX
    assert Refused(Reason.ARGUMENT, description).description == description
