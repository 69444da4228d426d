"""The versions that are compared in pairs: folders and revisions, and the Python of each."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer

from tests.bench.load.machine import commit
from tests.bench.load.options import REPOSITORY
from tests.bench.load.versions import Version, version_of
from tests.support.broker_process import Program

BUILDS = "open('built', 'a').write('x')"
"""What stands for setup.py."""


def broker_folder(folder: Path, program: str = "", setup: str = BUILDS) -> Path:
    """A folder that looks like one with a broker."""
    (folder / "broker").mkdir(parents=True)
    (folder / "broker" / "__init__.py").touch()
    (folder / "broker" / "__main__.py").write_text(program)
    (folder / "setup.py").write_text(setup)
    return folder


def repository_of(folder: Path) -> Path:
    """A repository with one commit, which holds what is in the folder."""
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    for arguments in (["init"], ["add", "."], [*identity, "commit", "--message", "first"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    return folder


def test_a_folder_is_run_with_this_python_unless_another_is_named(tmp_path: Path) -> None:
    ours = version_of("--before", str(REPOSITORY))
    assert ours == Version(
        "--before", Program(REPOSITORY, sys.executable), commit(REPOSITORY), platform.python_version()
    )
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert version_of("--after", f"{REPOSITORY}@{other}").program == Program(REPOSITORY, str(other))
    assert version_of("--after", f"{REPOSITORY}@{os.path.relpath(other)}").program.python == str(other)


def test_a_folder_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    tree = broker_folder(tmp_path / "broker@home")
    assert version_of("--before", str(tree)).program == Program(tree, sys.executable)
    assert version_of("--before", f"{tree}@{sys.executable}").program == Program(tree, sys.executable)


@pytest.mark.parametrize("revision", ["HEAD", "HEAD@{0}"])
def test_a_revision_is_unpacked_once_and_built(tmp_path: Path, revision: str) -> None:
    repository = repository_of(broker_folder(tmp_path / "repository", "first"))
    (repository / "broker" / "__main__.py").write_text("changed since")
    found = [version_of("--before", revision, repository, tmp_path / "unpacked") for _ in range(2)]
    assert found[0] == found[1]
    tree = found[0].program.tree
    assert (tree / "broker" / "__main__.py").read_text() == "first"
    assert (tree / "built").read_text() == "xx"
    assert f"{found[0].commit}-dirty" == commit(repository)
    assert list((tmp_path / "unpacked").iterdir()) == [tree]


def test_a_revision_that_cannot_be_built_is_refused(tmp_path: Path) -> None:
    repository = repository_of(broker_folder(tmp_path / "it's", setup="raise SystemExit('no compiler')"))
    with pytest.raises(typer.BadParameter) as refused:
        version_of("--after", "HEAD", repository, tmp_path)
    assert "cannot be built: no compiler (cd " in refused.value.message
    assert refused.value.param_hint == "--after"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no-such-branch", "no-such-branch is neither a folder with a broker nor a revision of"),
        ("--all", "--all is neither"),
        ("", "'' is neither"),
        (f"@{sys.executable}", "'' is neither"),
        (str(REPOSITORY / "docs"), "docs contains no broker code"),
        (f"{REPOSITORY}@no-such-python", "there is no Python no-such-python"),
        (f"{REPOSITORY}@false", "false does not run as Python (status 1)"),
    ],
)
def test_what_cannot_be_run_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(typer.BadParameter) as refused:
        version_of("--before", text)
    assert says in refused.value.message
    assert refused.value.param_hint == "--before"


def test_a_broker_that_does_not_start_is_refused_with_how_to_build_it(tmp_path: Path) -> None:
    tree = broker_folder(tmp_path / "a tree", "import broker._native")
    version = version_of("--before", str(tree))
    with ExitStack() as stack, pytest.raises(typer.BadParameter) as refused:
        version.started(stack, tmp_path)
    assert "No module named 'broker._native'" in refused.value.message
    built = f"cd {shlex.quote(str(tree))} && {sys.executable} setup.py build_ext --inplace"
    assert f"build its native modules first ({built})" in refused.value.message
    assert [each.name for each in tmp_path.iterdir()] == [tree.name], "no data is left"
