"""Counts in sentences."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 message`, `2 messages`; `plural` if that is not the noun with an `s`."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"
