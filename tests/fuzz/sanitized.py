"""Fuzz our own C code built for the address and undefined-behaviour sanitizers. They catch errors that would
otherwise pass by chance, such as a read past the end of a message or a shift that is too wide.

Python itself is not instrumented. Its allocator is told to give each object memory of its own, so that the
sanitizer knows where every message ends.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

COMPILER = os.environ.get("CC", "gcc")
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
MODULES = {
    "broker.message._stored": "broker/native/stored.c",
    "broker.message._annotations": "broker/native/annotations.c",
    "broker.message._changes": "broker/native/changes.c",
    "broker.namespace._placing": "broker/native/placing.c",
    "broker.partition._references": "broker/native/references.c",
    "protocol._sections": "protocol/native/sections.c",
    "protocol._exchange": "protocol/native/exchange.c",
}
"""The modules that walk a client's bytes and keys, or the changed properties that become of them. `_runs` is
left out, because cffi builds it."""


def build(repository: Path, folder: Path) -> None:
    """Build the modules into `folder`. Raises CalledProcessError."""
    for name, source in MODULES.items():
        made = folder.joinpath(*name.split(".")).with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        made.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{each}" for each in (sysconfig.get_path("include"), "protocol/native")]
        command = [COMPILER, "-std=c11", "-shared", "-fPIC", *FLAGS, *includes, "-o", str(made), source]
        subprocess.run(command, cwd=repository, check=True)


def environment() -> dict[str, str]:
    """Environment variables for a process that loads these modules."""
    library = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    return os.environ | {
        "LD_PRELOAD": library.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:handle_segv=0",
    }


def main() -> None:
    """`python -m tests.fuzz.sanitized FOLDER …`: run the worker with the modules in FOLDER instead of the
    installed ones."""
    folder = Path(sys.argv.pop(1))
    for name in MODULES:
        package = import_module(name.rpartition(".")[0])
        package.__path__.insert(0, str(folder.joinpath(*package.__name__.split("."))))
        assert str(import_module(name).__file__).startswith(str(folder)), "it was loaded before"
    runpy.run_module("tests.fuzz.worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
