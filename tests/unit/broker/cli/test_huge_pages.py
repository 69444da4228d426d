"""broker/cli/huge_pages.py: a broker asks for huge pages where those who ask get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.huge_pages import HAS_BEGUN_AGAIN, POLICY, TUNABLE, VARIABLE, asking
from tests.support.broker_process import BrokerProcess, queue

GLIBC = "glibc 2.36"
FOR_THOSE_WHO_ASK = "always [madvise] never\n"
ASKED = f"{TUNABLE}=1"

gives_to_those_who_ask = pytest.mark.skipif(
    not POLICY.exists() or "[madvise]" not in POLICY.read_text(),
    reason="this system gives huge pages to everybody or to nobody",
)


def test_what_else_is_in_the_environment_and_among_the_tunables_stays() -> None:
    marked = {HAS_BEGUN_AGAIN: "1"}
    assert asking({"A": "b"}, FOR_THOSE_WHO_ASK, GLIBC) == {"A": "b", VARIABLE: ASKED, **marked}
    others = {VARIABLE: "glibc.malloc.arena_max=2"}
    assert asking(others, FOR_THOSE_WHO_ASK, GLIBC) == {
        VARIABLE: f"{ASKED}:glibc.malloc.arena_max=2",
        **marked,
    }
    assert others == {VARIABLE: "glibc.malloc.arena_max=2"}


@pytest.mark.parametrize("policy", ["[always] madvise never\n", "always madvise [never]\n", ""])
def test_where_everybody_or_nobody_has_huge_pages_nobody_asks(policy: str) -> None:
    assert asking({}, policy, GLIBC) is None


def test_another_c_library_is_not_asked() -> None:
    assert asking({}, FOR_THOSE_WHO_ASK, "") is None


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


def test_a_process_begins_again_once_even_if_its_tunables_are_taken_from_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [queue("q")], environment={VARIABLE: "", HAS_BEGUN_AGAIN: "1"})
    broker.start()
    try:
        assert not asks(broker.pid)
        assert HAS_BEGUN_AGAIN not in broker.log, "it is no setting that is not known"
    finally:
        broker.kill()


@gives_to_those_who_ask
def test_other_commands_begin_once(tmp_path: Path) -> None:
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
