"""A file system of its own that can be frozen (`fsfreeze`), on machines on which this process may mount one.

A frozen file system must never outlive its test: whoever touches it waits forever, and cannot be killed. So a
process of its own, the guard, mounts, freezes, thaws and unmounts it. The guard also thaws and unmounts when
the test's process has ended in whatever way, or leaves it frozen for longer than THAWED_AFTER_S.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_BYTES = 64 << 20
THAWED_AFTER_S = 120.0
"""So that a broker that waits for the frozen file system fails its test instead of hanging it."""
ANSWERED_WITHIN_S = 60.0
FREEZE, THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW of linux/fs.h."""
_POLL_S = 0.5


class MountRefused(Exception):
    """This process may not mount a file system, or not freeze it."""


class Freezable:
    """A mounted file system."""

    def __init__(self, guard: subprocess.Popen[str], folder: Path) -> None:
        self._guard = guard
        self.folder = folder
        """Where it is mounted. What lies beside it goes with it."""

    def freeze(self) -> None:
        """Make every write wait from now on."""
        assert self._ask("freeze") == "frozen"

    def thaw(self) -> None:
        """Let writes go on. Fails if the guard has had to do that already."""
        assert self._ask("thaw") == "thawed", "somebody waited for the frozen file system"

    def _ask(self, command: str) -> str:
        assert self._guard.stdin is not None
        print(command, file=self._guard.stdin, flush=True)
        return _answer(self._guard)


@contextmanager
def freezable(name: str) -> Iterator[Freezable]:
    """A new file system, mounted at a folder of this name. Raises MountRefused.

    It lies outside of pytest's folders, which other runs of pytest clear up.
    """
    around = Path(tempfile.mkdtemp(prefix="partibus-freezable-"))
    guard = subprocess.Popen(
        [sys.executable, __file__, str(around), name, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # whatever ends the test's process group leaves the guard
    )
    try:
        if (answer := _answer(guard)) != "mounted":
            raise MountRefused(answer)
        yield Freezable(guard, around / name)
    finally:
        assert guard.stdin is not None and guard.stdout is not None
        guard.stdin.close()
        guard.wait(ANSWERED_WITHIN_S)
        guard.stdout.close()


def _answer(guard: subprocess.Popen[str]) -> str:
    assert guard.stdout is not None
    assert select.select([guard.stdout], [], [], ANSWERED_WITHIN_S)[0], "the guard answers"
    return guard.stdout.readline().strip()


# --- the guard ---


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _guard(around: Path, name: str, parent: int) -> None:
    image, folder = around / "image", around / name
    try:
        with image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", image)
        folder.mkdir()
        _run("mount", "-o", "loop", image, folder)
        try:
            root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.ioctl(root, FREEZE, 0)
                fcntl.ioctl(root, THAW, 0)
                print("mounted", flush=True)
                _serve(root, parent)
            finally:
                with contextlib.suppress(OSError):  # it is not frozen
                    fcntl.ioctl(root, THAW, 0)
                os.close(root)
        finally:
            _run("umount", "--lazy", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        with contextlib.suppress(OSError):  # nobody may be left to read it
            print(f"{error}", flush=True)
    finally:
        shutil.rmtree(around, ignore_errors=True)


def _serve(root: int, parent: int) -> None:
    """Do what the test asks, until its process has ended."""
    frozen_at: float | None = None
    while not _has_ended(parent):
        if frozen_at is not None and time.monotonic() - frozen_at > THAWED_AFTER_S:
            fcntl.ioctl(root, THAW, 0)
            frozen_at = None
        if not select.select([sys.stdin], [], [], _POLL_S)[0]:
            continue
        command = sys.stdin.readline().strip()
        if command == "freeze":
            fcntl.ioctl(root, FREEZE, 0)
            frozen_at = time.monotonic()
            print("frozen", flush=True)
        elif command == "thaw":
            answer = "too late"
            if frozen_at is not None:
                fcntl.ioctl(root, THAW, 0)
                frozen_at, answer = None, "thawed"
            print(answer, flush=True)
        else:
            return


def _has_ended(process: int) -> bool:
    """Whether a process has ended. One that waits for the file system lives on until that is thawed,
    but its first thread has gone."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
