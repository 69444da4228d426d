"""Versions of the broker to compare: each is a folder with its code or a revision of this repository, and the
Python that runs it.

A revision is unpacked into a folder of its own, and its native modules are built there. A folder is used as
it is. Whatever cannot be used raises BadParameter before anything is measured. Knows neither loads nor pairs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer

from tests.bench.load import footprint
from tests.bench.load.machine import commit
from tests.bench.load.options import REPOSITORY, WORK
from tests.support.broker_process import BrokerDied, BrokerProcess, Program

UNPACKED = WORK / "versions"
BUILD = ("setup.py", "build_ext", "--inplace")


@dataclass(slots=True, frozen=True)
class Version:
    """One version."""

    option: str
    """The option that names it."""
    program: Program
    commit: str
    python_version: str

    def as_json(self) -> Mapping[str, object]:
        return {
            "commit": self.commit,
            "tree": str(self.program.tree),
            "python": self.program.python,
            "python_version": self.python_version,
        }

    def started(self, stack: ExitStack, folder: Path) -> BrokerProcess:
        """A broker of this version on an empty data folder inside `folder`; it runs until the stack is
        unwound. Raises BadParameter if it does not start."""
        try:
            return stack.enter_context(footprint.fresh_broker(folder, program=self.program))
        except BrokerDied as error:
            tree, python = self.program.tree, self.program.python
            raise typer.BadParameter(
                f"the broker in {tree} does not start with {python} ({_last_line(str(error))}): "
                f"build its native modules first ({_in_shell(tree, python)})",
                param_hint=self.option,
            ) from error


def version_of(option: str, text: str, repository: Path = REPOSITORY, unpacked: Path = UNPACKED) -> Version:
    """The version that `TREE[@PYTHON]` or `REVISION[@PYTHON]` describes. Raises BadParameter."""
    place, python = _divided(text)
    path, number = _python(option, python)
    tree = Path(place).absolute()
    if place and (tree / "broker" / "__main__.py").is_file():
        return Version(option, Program(tree, path), commit(tree), number)
    if place and tree.is_dir():
        raise typer.BadParameter(f"the folder {place} contains no broker code", param_hint=option)
    revision = _git(repository, "rev-parse", "--quiet", "--verify", "--end-of-options", f"{place}^{{commit}}")
    if revision.returncode:
        raise typer.BadParameter(
            f"{place or repr(place)} is neither a folder with a broker nor a revision of {repository}",
            param_hint=option,
        )
    tree = _unpack(repository, revision.stdout.decode().strip(), unpacked)
    _build(option, tree, path)
    return Version(option, Program(tree, path), tree.name, number)


def _divided(text: str) -> tuple[str, str]:
    """The folder or revision, and the Python: this one unless another is named. Names of folders may contain
    an @, and revisions may end with @{…}."""
    place, at, python = text.rpartition("@")
    if not at or Path(text).is_dir() or python.startswith("{"):
        return text, sys.executable
    return place, python


def _python(option: str, name: str) -> tuple[str, str]:
    """The path of a Python and its version."""
    path = shutil.which(name)
    if path is None:
        raise typer.BadParameter(f"there is no Python {name}", param_hint=option)
    asked = subprocess.run(
        [path, "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise typer.BadParameter(
            f"{name} does not run as Python (status {asked.returncode})", param_hint=option
        )
    return os.path.abspath(path), asked.stdout.strip()  # not resolved: venvs link to the Python outside


def _unpack(repository: Path, revision: str, unpacked: Path) -> Path:
    """The folder with the files of a commit. It is kept for the next time."""
    tree = unpacked / revision[:10]
    if not tree.is_dir():
        unpacked.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=unpacked) as folder:
            whole = Path(folder) / tree.name
            whole.mkdir()
            archive = _git(repository, "archive", revision)
            archive.check_returncode()
            subprocess.run(["tar", "-x", "-C", str(whole)], input=archive.stdout, check=True)
            whole.rename(tree)
    return tree


def _build(option: str, tree: Path, python: str) -> None:
    built = subprocess.run([python, *BUILD], cwd=tree, capture_output=True, text=True, check=False)
    if built.returncode:
        raise typer.BadParameter(
            f"its native modules cannot be built: {_last_line(built.stderr)} ({_in_shell(tree, python)})",
            param_hint=option,
        )


def _in_shell(tree: Path, python: str) -> str:
    """The command that builds native modules."""
    return f"cd {shlex.quote(str(tree))} && {shlex.join((python, *BUILD))}"


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)


def _last_line(text: str) -> str:
    *_, last = text.splitlines() or [""]
    return last
