"""One word means one thing: each term stands once in the glossary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
FROM_OUTSIDE = "## Names that come from outside"
"""The section of names that keep another sense."""


def terms_of(page: str) -> list[str]:
    """The terms in the first columns of all tables before the names that come from outside. Heads of tables
    are left out."""
    lines = page.partition(FROM_OUTSIDE)[0].splitlines()
    rows = [
        line
        for line, before in zip(lines[1:], lines, strict=False)
        if line.startswith("| ") and before[:1] == "|"
    ]
    return [term.strip() for row in rows if set(row) - set("|- ") for term in row.split("|")[1].split(",")]


def test_every_term_stands_once() -> None:
    terms = terms_of(GLOSSARY.read_text(encoding="utf-8"))
    assert len(terms) > 100
    assert [term for term, count in Counter(terms).items() if count > 1] == []


@pytest.mark.parametrize(
    ("page", "terms"),
    [
        ("| term | meaning |\n| --- | --- |\n| lane | one |\n| load, lane | two |", ["lane", "load", "lane"]),
        (
            f"| term | meaning |\n| --- | --- |\n\n{FROM_OUTSIDE}\n\n| a | b |\n| --- | --- |\n| host | c |",
            [],
        ),
    ],
)
def test_terms_are_found_in_the_first_column(page: str, terms: list[str]) -> None:
    assert terms_of(page) == terms
