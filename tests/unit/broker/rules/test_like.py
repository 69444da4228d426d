"""Patterns of LIKE."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.rules.like import WrongPattern, _piece, compile_like, literal_prefix


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        ("abc", None, ["abc"], ["ab", "abcd", "ABC", ""]),
        ("", None, [""], ["a"]),
        ("%", None, ["", "a", "abc"], []),
        ("a%", None, ["a", "abc"], ["ba", ""]),
        ("%a", None, ["a", "bca"], ["ab"]),
        ("%a%", None, ["a", "bac"], ["b"]),
        ("a%a", None, ["aa", "aba"], ["a"]),
        ("a%b%c", None, ["abc", "axxbxxc"], ["acb", "ab"]),
        ("_", None, ["a", "ä", "%"], ["", "ab"]),
        ("a_c", None, ["abc", "a_c"], ["ac", "abbc"]),
        ("%_b%", None, ["ab", "xxabx"], ["b", "bx"]),
        ("_%_", None, ["ab", "abc"], ["a", ""]),
        ("50!%", "!", ["50%"], ["50", "500"]),
        ("a!_c", "!", ["a_c"], ["abc"]),
        ("a!!%", "!", ["a!", "a!b"], ["a%"]),
        ("a.*", None, ["a.*"], ["abc"]),
        ("a\nb%", None, ["a\nb\n"], ["ab"]),
    ],
)
def test_patterns(pattern: str, escape: str | None, matching: list[str], others: list[str]) -> None:
    matches = compile_like(pattern, escape)
    assert [text for text in matching + others if matches(text)] == matching


@pytest.mark.parametrize(
    ("pattern", "escape", "why"),
    [
        ("a", "", "one character, not ''"),
        ("a", "!!", "one character, not '!!'"),
        ("a!", "!", "nothing that can be escaped follows '!'"),
        ("!a", "!", "nothing that can be escaped follows '!'"),
    ],
)
def test_a_wrong_escape_is_refused(pattern: str, escape: str, why: str) -> None:
    with pytest.raises(WrongPattern, match=re.escape(why)):
        compile_like(pattern, escape)


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=12))
def test_patterns_mean_what_regular_expressions_mean(pattern: str, text: str) -> None:
    expression = "".join({"%": ".*", "_": "."}.get(character, character) for character in pattern)
    assert compile_like(pattern, None)(text) is bool(re.fullmatch(expression, text))


def test_no_pattern_takes_more_time_than_the_text_is_long() -> None:
    """A regular expression would need years for this."""
    assert not compile_like("%a_" * 300 + "b", None)("a" * 32_768)
    assert not compile_like("%" + "_" * 1_000 + "b%", None)("a" * 32_768)


@pytest.mark.parametrize(
    ("pattern", "escape", "prefix"),
    [("abc", None, "abc"), ("ab%c", None, "ab"), ("a_c", None, "a"), ("%a", None, ""), ("a!%b%", "!", "a%b")],
)
def test_what_every_text_that_matches_begins_with(pattern: str, escape: str | None, prefix: str) -> None:
    assert literal_prefix(pattern, escape) == prefix


def test_a_long_piece_without_any_character_takes_no_masks() -> None:
    """A mask for each of its characters would have as many bits as the piece has characters."""
    characters: list[str | None] = [chr(0x4E00 + number) for number in range(8_192)]
    assert _piece(characters).masks == {}
