"""broker/cli/huge_pages.py: a broker asks for huge pages where those who ask get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli import huge_pages
from broker.cli.huge_pages import (
    HAS_BEGUN_AGAIN,
    OWN_NAME,
    POLICY,
    TUNABLE,
    VARIABLE,
    asking,
    c_library,
    start_again_asking,
)
from tests.support.broker_process import BrokerProcess, queue

GLIBC = "glibc 2.36"
FOR_THOSE_WHO_ASK = "always [madvise] never\n"
ASKED = f"{TUNABLE}=1"

gives_to_those_who_ask = pytest.mark.skipif(
    not POLICY.exists() or asking({}, POLICY.read_text(), c_library()) is None,
    reason="this system gives huge pages to everybody or to nobody, or its C library cannot ask",
)


def test_what_else_is_in_the_environment_and_among_the_tunables_stays() -> None:
    assert asking({"A": "b"}, FOR_THOSE_WHO_ASK, GLIBC) == {"A": "b", VARIABLE: ASKED}
    others = {VARIABLE: "glibc.malloc.arena_max=2"}
    assert asking(others, FOR_THOSE_WHO_ASK, GLIBC) == {VARIABLE: f"{ASKED}:glibc.malloc.arena_max=2"}
    assert others == {VARIABLE: "glibc.malloc.arena_max=2"}


@pytest.mark.parametrize("policy", ["[always] madvise never\n", "always madvise [never]\n", ""])
def test_where_everybody_or_nobody_has_huge_pages_nobody_asks(policy: str) -> None:
    assert asking({}, policy, GLIBC) is None


@pytest.mark.parametrize(
    ("library", "expected"),
    [("", False), ("musl 1.2", False), ("glibc 2.34", False), ("glibc 2.35", True), ("glibc 3.0", True)],
)
def test_only_a_c_library_that_knows_the_tunable_is_asked(library: str, expected: bool) -> None:
    assert (asking({}, FOR_THOSE_WHO_ASK, library) is not None) == expected


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_whoever_sets_the_tunable_decides_and_nobody_asks_twice(value: str) -> None:
    given = {VARIABLE: f"glibc.malloc.arena_max=2:{TUNABLE}={value}"}
    assert asking(given, FOR_THOSE_WHO_ASK, GLIBC) is None


def asks(pid: int) -> bool:
    """Whether the kernel knows that a process wants huge pages for its heap."""
    heap = Path(f"/proc/{pid}/smaps").read_text().partition("[heap]")[2].partition("VmFlags:")[2]
    return "hg" in heap.partition("\n")[0].split()


@gives_to_those_who_ask
@pytest.mark.parametrize(
    ("given", "expected"), [("", True), ("glibc.malloc.arena_max=8", True), (f"{TUNABLE}=0", False)]
)
def test_a_broker_has_huge_pages_from_its_start_unless_it_is_told_otherwise(
    tmp_path: Path, given: str, expected: bool
) -> None:
    """`BrokerProcess` kills it by the process id with which it has begun, so that has stayed."""
    broker = BrokerProcess(tmp_path, [queue("q")], environment={VARIABLE: given})
    broker.start()
    try:
        assert asks(broker.pid) == expected
    finally:
        broker.kill()


class Began(Exception):
    """Instead of a process that takes over."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str], dict[str, str]]]:
    """What would have been executed, on a system that gives huge pages to those who ask."""
    found: list[tuple[str, list[str], dict[str, str]]] = []

    def note(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        found.append((path, arguments, environment))
        raise Began

    policy = tmp_path / "enabled"
    policy.write_text(FOR_THOSE_WHO_ASK)
    monkeypatch.setattr(huge_pages, "POLICY", policy)
    monkeypatch.setattr(huge_pages, "c_library", lambda: GLIBC)
    monkeypatch.setattr(os, "execve", note)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "broker", "serve"])
    return found


def test_the_process_takes_over_with_its_arguments_and_its_name(
    begun: list[tuple[str, list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Began):
        start_again_asking()
    [(path, arguments, environment)] = begun
    assert path == sys.executable
    assert arguments == [sys.executable, "-m", "broker", "serve"]
    assert environment[HAS_BEGUN_AGAIN] + "\n" == OWN_NAME.read_text()
    name = tmp_path / "comm"
    name.touch()
    monkeypatch.setattr(huge_pages, "OWN_NAME", name)
    monkeypatch.setenv(HAS_BEGUN_AGAIN, "partibus")
    start_again_asking()  # once, although the tunables are not in its environment
    assert len(begun) == 1 and name.read_text() == "partibus"
    assert HAS_BEGUN_AGAIN not in os.environ, "its children do not get it"


@pytest.mark.parametrize("executable", ["", sys.executable + " that is missing", "/bin/sh"])
def test_a_process_does_not_become_another_program(
    begun: list[tuple[str, list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    """Python looks itself up on the path by the name with which it was started."""
    monkeypatch.setattr(sys, "executable", executable)
    start_again_asking()
    assert begun == [] and HAS_BEGUN_AGAIN not in os.environ


def test_a_system_that_executes_nothing_gets_a_broker_without_huge_pages(
    begun: list[tuple[str, list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "execve", refuse)
    before = dict(os.environ)
    start_again_asking()
    assert dict(os.environ) == before


@gives_to_those_who_ask
def test_other_commands_begin_once() -> None:
    """A command that ends soon has no use for huge pages."""
    program = (
        "import os, runpy, sys\n"
        "os.execve = lambda *_: sys.exit('began again')\n"
        "sys.argv = ['partibus', *sys.argv[1:]]\n"
        "runpy.run_module('broker', run_name='__main__')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}

    def run(command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, command, "--help"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stderr

    assert run("settings") == ""
    assert run("serve") == "began again\n"
