"""Every file and every name in a module that comments of the product and the pages about its structure put in
backticks exists, and the page on the structure leaves no module out."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("broker", "protocol", "storage", "tests", "tools", "docs", "docker", "connector")
NOT_OURS = {"node_modules", "__pycache__", "build", "target", "data"}
"""Folders of tools and of generated files."""
CHECKED = ("broker/", "protocol/", "storage/", "connector/", "docs/architecture.md", "docs/glossary.md")
"""Other pages may name the files of other projects."""
WRITTEN = {"report.json"}
"""Files that the product writes."""
FILE = re.compile(r"`(?:[\w.-]+/)*([\w.-]+\.(?:py|pyi|c|h|md|sh|toml|json|ya?ml))`")
PATH = re.compile(r"`((?:broker|protocol|storage|docs|tests|tools|docker|connector)/[\w/.*-]+)`")
"""A file or a folder by its whole path; it may hold a `*`."""
TABLE = re.compile(r"\| file in `([\w/]+)`")
"""The head of a table whose first column has the names of files in a folder."""
NAME = re.compile(r"`((?:[a-z_]+\.)+[A-Z]\w*)(?:\.\w+)*(?:\(\))?`")


@cache
def files() -> dict[Path, str]:
    """Our files that can be read as text."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if NOT_OURS.isdisjoint(path.parts)]
    return {
        path: path.read_text(encoding="utf-8")
        for path in found
        if path.suffix in (".py", ".pyi", ".c", ".h", ".md", ".sh", ".toml", ".json", ".yaml", ".yml")
    }


@cache
def names_in(module: str) -> set[str] | None:
    """The classes and constants of all modules whose dotted path ends like this; None if there is no such
    module."""
    ending = "/" + module.replace(".", "/") + ".py"
    found = [text for path, text in files().items() if f"/{path.relative_to(ROOT)}".endswith(ending)]
    if not found:
        return None
    names: set[str] = set()
    for text in found:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def missing_in(text: str) -> Iterator[str]:
    """The names in a text that lead nowhere."""
    existing = {path.name for path in files()} | WRITTEN
    yield from (name for name in FILE.findall(text) if name not in existing)
    for dotted in NAME.findall(text):
        module, _, name = dotted.rpartition(".")
        names = names_in(module)
        if names is None:
            is_there = importlib.util.find_spec(module.partition(".")[0]) is not None
        else:
            is_there = name in names
        if not is_there:
            yield dotted


def test_what_comments_and_pages_name_exists() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path, text in files().items()
        if str(path.relative_to(ROOT)).startswith(CHECKED) and (found := list(missing_in(text)))
    }
    assert wrong == {}


def wrong_paths(text: str) -> list[str]:
    """Paths in a page that lead nowhere: those written out, and those of the files in a table."""
    wrong = [path for path in PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))]
    folder: str | None = None
    for line in text.splitlines():
        if head := TABLE.match(line):
            folder = head[1]
        elif not line.startswith("|"):
            folder = None
        elif folder is not None:
            named = re.findall(r"`([^`]+)`", line.split("|")[1])
            wrong += [name for name in named if not (ROOT / folder / name).is_file()]
    return wrong


def test_every_path_on_a_page_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wrong = {
        str(page.relative_to(ROOT)): found
        for page in pages
        if (found := wrong_paths(page.read_text(encoding="utf-8")))
    }
    assert wrong == {}


def test_the_page_on_the_structure_names_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [
        path
        for package in ("broker", "protocol", "storage", "connector")
        for suffix in ("py", "c")
        for path in (ROOT / package).rglob(f"*.{suffix}")
        if path.name != "__init__.py"
    ]
    assert len(modules) > 200
    assert [str(path.relative_to(ROOT)) for path in sorted(modules) if f"{path.name}`" not in page] == []


def test_a_path_that_leads_nowhere_is_noticed() -> None:
    table = "| file in `broker/http/` | what it does |\n| --- | --- |\n"
    assert wrong_paths("`broker/http/server.py`, `tests/unit/`, `docs/decisions/0032-*.md`") == []
    assert wrong_paths(f"{table}| `server.py`, `host.py` | the port |") == ["host.py"]
    assert wrong_paths("`broker/http/host.py`") == ["broker/http/host.py"]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`router.py`, `broker/namespace/router.py`, `router.Router`, `router.Router.spread`", []),
        ("`asyncio.TimerHandle`", []),
        ("`broker/namespace/rooter.py`", ["rooter.py"]),
        ("`router.Rooter`, `rooter.Router`", ["router.Rooter", "rooter.Router"]),
    ],
)
def test_a_name_that_leads_nowhere_is_noticed(text: str, missing: list[str]) -> None:
    assert list(missing_in(text)) == missing
