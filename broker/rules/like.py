"""Patterns of LIKE (AMQP contract 11.3): `%` stands for any run of characters, `_` for one. An escape
character before one of them, or before itself, takes its meaning away. Letters count with their case.

A pattern is cut at its `%` into pieces. The first and the last piece are compared where the text begins and
ends; each of the others is searched behind the one before. Nothing is tried twice, so the time is bounded for
any pattern and any text: a regular expression would not promise that. A piece with `_` is searched character
by character, which takes far longer than finding a text: `searches` tells such patterns, so that whoever
evaluates them can count the characters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

ANY_CHARACTER = None
PATTERN_CHARACTERS_MAX = 1_024
"""Limit of a pattern that is computed for each message. One in an expression is bounded by its size."""

Matches: TypeAlias = Callable[[str], bool]


class WrongPattern(ValueError):
    """A pattern that means nothing. The text says why."""


@dataclass(slots=True, frozen=True)
class _Piece:
    """Characters without `%`. Where `text` is None, there are some `_` among them."""

    characters: tuple[str | None, ...]
    text: str | None
    masks: dict[str, int]
    """Bit n is set if character n of the piece may be this one."""
    any_mask: int
    """Bit n is set if character n of the piece may be any."""

    def is_at(self, text: str, offset: int) -> bool:
        if self.text is not None:
            return text.startswith(self.text, offset)
        if offset + len(self.characters) > len(text):
            return False
        return all(
            wanted is ANY_CHARACTER or wanted == text[offset + number]
            for number, wanted in enumerate(self.characters)
        )

    def end_in(self, text: str, offset: int, end: int) -> int:
        """Where the first occurrence between `offset` and `end` ends; -1 if there is none."""
        size = len(self.characters)
        if self.text is not None:
            found = text.find(self.text, offset, end)
            return found + size if found >= 0 else -1
        state, last = 0, 1 << (size - 1)
        masks, any_mask = self.masks, self.any_mask
        for number in range(offset, end):  # all places where the piece may have begun, at once
            state = (state << 1 | 1) & (masks.get(text[number], 0) | any_mask)
            if state & last:
                return number + 1
        return -1


def _piece(characters: list[str | None]) -> _Piece:
    if ANY_CHARACTER not in characters:  # then no masks: each may be as long as the piece
        text = "".join(character for character in characters if character is not None)
        return _Piece(tuple(characters), text, {}, 0)
    masks: dict[str, int] = {}
    any_mask = 0
    for number, character in enumerate(characters):
        if character is ANY_CHARACTER:
            any_mask |= 1 << number
        else:
            masks[character] = masks.get(character, 0) | 1 << number
    return _Piece(tuple(characters), None, masks, any_mask)


@lru_cache(256)
def compile_like(pattern: str, escape: str | None) -> Matches:
    """Compile a pattern. Raises WrongPattern."""
    pieces = [_piece(characters) for characters in _cut(pattern, escape)]
    first, *middle = pieces
    if not middle:
        return lambda text: len(text) == len(first.characters) and first.is_at(text, 0)
    last = middle.pop()
    searched = [piece for piece in middle if piece.characters]
    shortest = len(first.characters) + len(last.characters)

    def matches(text: str) -> bool:
        end = len(text) - len(last.characters)
        if len(text) < shortest or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        offset = len(first.characters)
        for piece in searched:
            offset = piece.end_in(text, offset, end)
            if offset < 0:
                return False
        return True

    return matches


@lru_cache(256)
def searches(pattern: str, escape: str | None) -> bool:
    """Whether matching may look at each character of a text by itself. Raises WrongPattern."""
    return any(ANY_CHARACTER in characters for characters in _cut(pattern, escape)[1:-1])


def literal_prefix(pattern: str, escape: str | None) -> str:
    """What every text that matches begins with. Raises WrongPattern."""
    characters = _cut(pattern, escape)[0]
    known = characters.index(ANY_CHARACTER) if ANY_CHARACTER in characters else len(characters)
    return "".join(character for character in characters[:known] if character is not None)


def _cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The characters between the `%` of a pattern."""
    if escape is not None and len(escape) != 1:
        raise WrongPattern(f"the escape of a LIKE is one character, not '{escape:.40}'")
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise WrongPattern(
                    f"in the pattern '{pattern:.40}', nothing that can be escaped follows '{escape}'"
                )
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(ANY_CHARACTER if character == "_" else character)
    return pieces
