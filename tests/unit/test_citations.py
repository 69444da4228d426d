"""Every citation of the wire contract leads to a section or a numbered item in `docs/contract`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"AMQP": ROOT / "docs" / "contract" / "amqp.md", "HTTP": ROOT / "docs" / "contract" / "http.md"}
NOT_OURS = {"node_modules", "__pycache__", "build", "target", "data"}
"""Folders of tools and of generated files. Folders whose names begin with a dot count as well."""
WITH_CITATIONS = {
    ".c",
    ".go",
    ".h",
    ".java",
    ".js",
    ".md",
    ".mjs",
    ".py",
    ".pyi",
    ".sh",
    ".toml",
    ".yaml",
    ".yml",
}

NUMBER = r"\d+(?:\.\d+)*[a-z]?\b"
ANY_NUMBER = rf"(?:{NUMBER}|[A-Z]\b)"
CITATION = re.compile(
    rf"\b(AMQP|HTTP)[\s#]+contract[\s#]+({ANY_NUMBER}(?:(?:,[\s#]+(?:and[\s#]+)?|[\s#]+(?:to|and|or)[\s#]+){NUMBER})*)"
)
"""A page and one or more numbers. A citation may continue on the next line, in a comment too."""
LOOSE = re.compile(
    r"\b[Cc]ontract(?:,|'s)?[\s#]+(?:§|rules?|gotcha|[Aa]ppendix|[Ss]ection|number|point)[\s#]*(?:\d+|[A-Z]\b)"
)
"""Spellings that cite a place without its page or its number."""
BARE = re.compile(
    r"(?<=\s)\((\d{1,2}(?:\.[1-9]\d?){1,2}[a-z]?"
    r"(?:(?:,[\s#]+(?:and[\s#]+)?|[\s#]+(?:to|and|or)[\s#]+)\d[\d.]*[a-z]?)*)\)"
)
"""Numbers alone in brackets. A page of the contract cites its own sections like this; in code, such a number
does not say which page it belongs to."""
HEADING = re.compile(rf"#{{1,4}} (?:Appendix )?({ANY_NUMBER})\.? ")
ITEM = re.compile(r"(\d+)\. ")


@cache
def numbers_of(page: str) -> frozenset[str]:
    """The numbers that a page offers for citation: those of its headings, and 0.4.7 for item 7 of section
    0.4."""
    return frozenset(_numbers_in(PAGES[page].read_text(encoding="utf-8").splitlines()))


def _numbers_in(lines: Iterable[str]) -> Iterator[str]:
    section = ""
    for line in lines:
        if heading := HEADING.match(line):
            section = heading[1]
            yield section
        elif item := ITEM.match(line):
            yield f"{section}.{item[1]}"


def wrong_bare_numbers(text: str, own_page: str | None) -> list[str]:
    """Numbers alone in brackets that are not sections of the page that they stand on: AMQP, HTTP or None."""
    own = numbers_of(own_page) if own_page else frozenset()
    return [
        f"({number})"
        for bare in BARE.findall(text)
        for number in re.findall(ANY_NUMBER, bare)
        if number not in own
    ]


def wrong_citations(text: str) -> list[str]:
    """Citations in a text that lead nowhere or are not spelled as citations."""
    wrong = []
    for citation in CITATION.finditer(text):
        page = citation[1]
        wrong += [
            f"{page} contract {number}"
            for number in re.findall(ANY_NUMBER, citation[2])
            if number not in numbers_of(page)
        ]
    return wrong + [" ".join(loose.split()) for loose in LOOSE.findall(text)]


def texts() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_OURS and not name.startswith(".") and not name.endswith(".egg-info")
        )
        for name in files:
            path = Path(folder, name)
            if (path.suffix in WITH_CITATIONS or name == "Makefile") and path != Path(__file__):
                yield path


def test_every_citation_leads_to_a_section_or_a_numbered_item() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in texts()
        if (found := wrong_citations(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


def test_every_number_alone_in_brackets_is_a_section_of_its_own_page() -> None:
    """Other pages than the contract's may put figures in brackets."""
    page_of = {path: page for page, path in PAGES.items()}
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in texts()
        if (path.suffix != ".md" or path.parent.name == "contract")
        and (found := wrong_bare_numbers(path.read_text(encoding="utf-8"), page_of.get(path)))
    }
    assert wrong == {}


def test_the_code_and_the_tests_cite_both_pages() -> None:
    cited = [
        citation[1]
        for package in ("broker", "protocol", "tests")
        for path in (ROOT / package).glob("**/*.py" if package != "tests" else "unit/**/*.py")
        for citation in CITATION.finditer(path.read_text(encoding="utf-8"))
    ]
    assert cited.count("AMQP") > 50 and cited.count("HTTP") > 20


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("(AMQP contract 5.2a)", []),
        ("HTTP contract 2.3 to 2.5, 2.9. Then", []),
        ("AMQP contract 2.5, HTTP contract 1.1", []),
        ("AMQP contract 0.4.7 and an item of section 12: AMQP contract 12.20", []),
        ("the format (AMQP contract B)", []),
        ("# where the bytes go (AMQP\n# contract 5.3)", []),
        ("(AMQP contract 5.99)", ["AMQP contract 5.99"]),
        ("AMQP contract 10.1, 10.77", ["AMQP contract 10.77"]),
        ("AMQP contract 0.4.13", ["AMQP contract 0.4.13"]),
        ("HTTP contract 5.2a", ["HTTP contract 5.2a"]),
        ("(AMQP\n    contract 99)", ["AMQP contract 99"]),
        ("(contract, rule 7)", ["contract, rule 7"]),
        ("AMQP contract, gotcha 20", ["contract, gotcha 20"]),
        ("HTTP contract §3", ["contract §3"]),
        ("what the contract of this function is", []),
    ],
)
def test_a_citation_that_leads_nowhere_is_noticed(text: str, wrong: list[str]) -> None:
    assert wrong_citations(text) == wrong


@pytest.mark.parametrize(
    ("text", "page", "wrong"),
    [
        ("in a dead-letter subqueue (10.4).", None, ["(10.4)"]),
        ("# the form that .NET sends (7.3.6,\n# 10.4 and 5.2a)", None, ["(7.3.6)", "(10.4)", "(5.2a)"]),
        ("settimeout(2.0)", None, []),
        ("as a symbol (7.3.6) in an array (7.99)", "AMQP", ["(7.99)"]),
        ("as a symbol (7.3.6)", "HTTP", ["(7.3.6)"]),
    ],
)
def test_a_number_alone_in_brackets_is_noticed_unless_its_page_has_it(
    text: str, page: str | None, wrong: list[str]
) -> None:
    assert wrong_bare_numbers(text, page) == wrong


@pytest.mark.parametrize("name", ["amqp.mjs", "_stored.pyi", "runs.h"])
def test_citations_are_looked_for_in_files_of_every_language(name: str) -> None:
    assert name in {path.name for path in texts()}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_no_number_stands_twice_on_a_page(page: str) -> None:
    numbers = list(_numbers_in(PAGES[page].read_text(encoding="utf-8").splitlines()))
    assert sorted(numbers) == sorted(set(numbers))


@pytest.mark.parametrize("page", ["README.md", "amqp.md", "http.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(
        r"`((?:broker|protocol|storage|tests)/[\w/.*-]+)`",
        (ROOT / "docs" / "contract" / page).read_text(encoding="utf-8"),
    )
    assert named and [path for path in named if not any(ROOT.glob(path))] == []
