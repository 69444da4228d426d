"""Build and run the image: with Docker or Podman where one of them works, otherwise with Buildah as root and
no daemon.

All of them build the Dockerfile unchanged, and start it as the image specifies: its entry point, environment,
user and volume, on a read-only root file system. Buildah alone runs no container with a read-only root, so
there the image's file system is mounted and entered with `unshare` and `chroot`, in this machine's network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.broker_process import REPOSITORY

TAG = "partibus:image-test"
BUILDS_WITHIN_S = 1_200
STOPS_WITHIN_S = 30
PORTS = {"amqp": 5672, "amqps": 5671, "http": 5300}
"""Ports that the image exposes."""


class CannotBuild(Exception):
    """This machine has no working builder."""


@dataclass(slots=True)
class ImageConfig:
    """The image's own metadata."""

    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str]
    user: str
    health_test: list[str]
    health_interval_s: float


class Running(Protocol):
    """A started container."""

    ports: dict[str, int]
    """Port on 127.0.0.1 by service (amqp, amqps, http)."""

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container as the image's user."""

    def kill(self) -> None:
        """Kill the container."""

    def stop(self) -> int:
        """Stop the container gracefully; gives the exit status."""

    def log(self) -> str:
        """Output of the container."""


class Builder(Protocol):
    """A tool that builds and runs the image."""

    def build(self) -> ImageConfig: ...

    def start(self, volume: str) -> Running:
        """Start the image on the named volume, which is created if it does not exist."""

    def clean(self) -> None:
        """Remove containers and volumes."""


def find_builder(folder: Path) -> Builder:
    """The first builder that works on this machine. Raises CannotBuild."""
    for engine in ("docker", "podman"):
        if (
            shutil.which(engine)
            and subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0
        ):
            return Engine(engine)
    if shutil.which("buildah") and os.geteuid() == 0:
        return Buildah(folder)
    raise CannotBuild(
        "neither Docker nor Podman works here, and Buildah needs root: apt-get install buildah debootstrap"
    )


def _checked(command: Sequence[str], within_s: float = 120, **given: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, (
        f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return str(done.stdout)


def _config_of(config: dict[str, object]) -> ImageConfig:
    found = json.loads(json.dumps(config))
    health = found.get("Healthcheck") or {}
    return ImageConfig(
        entrypoint=found.get("Entrypoint") or [],
        command=found.get("Cmd") or [],
        environment=dict(each.split("=", 1) for each in found.get("Env") or []),
        user=found.get("User") or "",
        health_test=(health.get("Test") or [])[1:],
        health_interval_s=(health.get("Interval") or 0) / 1e9,
    )


# --- Docker and Podman --------------------------------------------------------------------------------------


class Engine:
    """Docker or Podman."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._volumes: set[str] = set()
        self._containers: list[EngineContainer] = []

    def build(self) -> ImageConfig:
        extra = ["--format", "docker"] if self._name == "podman" else []  # the OCI format has no health check
        _checked([self._name, "build", *extra, "--tag", TAG, "."], BUILDS_WITHIN_S, cwd=REPOSITORY)
        return _config_of(json.loads(_checked([self._name, "image", "inspect", TAG]))[0]["Config"])

    def start(self, volume: str) -> Running:
        self._volumes.add(volume)
        publish = [part for port in PORTS.values() for part in ("--publish", f"127.0.0.1::{port}")]
        command = [self._name, "run", "--detach", "--read-only", "--volume", f"{volume}:/data", *publish, TAG]
        container = EngineContainer(self._name, _checked(command).strip())
        self._containers.append(container)
        return container

    def clean(self) -> None:
        for container in self._containers:
            subprocess.run([self._name, "rm", "--force", container.id], capture_output=True, check=False)
        for volume in self._volumes:
            subprocess.run([self._name, "volume", "rm", volume], capture_output=True, check=False)


class EngineContainer:
    """A container run by an engine."""

    def __init__(self, engine: str, identifier: str) -> None:
        self._engine, self.id = engine, identifier
        self.ports = {
            name: int(_checked([engine, "port", identifier, f"{port}/tcp"]).split()[0].rpartition(":")[2])
            for name, port in PORTS.items()
        }

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._engine, "exec", self.id, *command], capture_output=True, text=True, timeout=60, check=False
        )

    def kill(self) -> None:
        _checked([self._engine, "kill", self.id])
        _checked([self._engine, "wait", self.id])

    def stop(self) -> int:
        _checked([self._engine, "stop", "--time", str(STOPS_WITHIN_S), self.id])
        return int(_checked([self._engine, "wait", self.id]))

    def log(self) -> str:
        done = subprocess.run([self._engine, "logs", self.id], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


# --- Buildah ------------------------------------------------------------------------------------------------

_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --bind "$VOLUME" "$ROOT/data"
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec="$OWNER" "$ROOT" /usr/bin/env -i "$@"
"""


class Buildah:
    """Builds without a daemon; needs root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
        self._container = ""
        self._root = ""
        self._config: ImageConfig | None = None
        self._started: list[Entered] = []

    def build(self) -> ImageConfig:
        dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
        for base in {line.split()[1] for line in dockerfile.splitlines() if line.startswith("FROM ")}:
            _checked(
                [str(REPOSITORY / "tools" / "stand-in-image.sh"), base],
                BUILDS_WITHIN_S,
                env=self._environment,
            )
        build = [
            "buildah",
            "bud",
            "--format",
            "docker",
            "--pull-never",
            "--layers",
            "--network",
            "host",
            "--tag",
            TAG,
            ".",
        ]
        _checked(build, BUILDS_WITHIN_S, env=self._environment, cwd=REPOSITORY)
        self._container = self._buildah("from", "--pull-never", TAG)
        self._root = self._buildah("mount", self._container)
        self._config = _config_of(
            json.loads(self._buildah("inspect", "--type", "image", TAG))["Docker"]["config"]
        )
        return self._config

    def _buildah(self, *command: str) -> str:
        return _checked(["buildah", *command], env=self._environment).strip()

    def start(self, volume: str) -> Running:
        assert self._config is not None, "build first"
        folder = self._folder / volume
        owner = self._owner()
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chown(folder, *owner)
        container = Entered(self._root, folder, owner, self._config)
        self._started.append(container)
        return container

    def _owner(self) -> tuple[int, int]:
        """The image's user and group ids, from its own /etc/passwd."""
        assert self._config is not None, "build first"
        for line in Path(self._root, "etc/passwd").read_text(encoding="utf-8").splitlines():
            name, _, uid, gid, *_ = line.split(":")
            if name == self._config.user:
                return int(uid), int(gid)
        raise AssertionError(f"the image has no user {self._config.user!r}")

    def clean(self) -> None:
        for container in self._started:
            container.kill()
        if self._container:
            self._buildah("umount", self._container)
            self._buildah("rm", self._container)


@dataclass(slots=True)
class Entered:
    """A process inside the image's file system. It shares the machine's network, so it cannot use the image's
    own ports.
    """

    _root: str
    _volume: Path
    _owner: tuple[int, int]
    _config: ImageConfig
    ports: dict[str, int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command([*self._config.entrypoint, *self._config.command]),
                env=self._outside(),
                stdout=log,
                stderr=log,
            )

    @property
    def _log_path(self) -> Path:
        return self._volume.with_suffix(".log")

    def _outside(self) -> dict[str, str]:
        owner = ":".join(map(str, self._owner))
        return {"PATH": os.environ["PATH"], "ROOT": self._root, "VOLUME": str(self._volume), "OWNER": owner}

    def _command(self, command: Sequence[str]) -> list[str]:
        ports = {f"PARTIBUS_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        inside = {**self._config.environment, **ports, "PARTIBUS_HOST": "127.0.0.1"}
        unshare = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", _ENTER, "sh"]
        return [*unshare, *(f"{name}={value}" for name, value in inside.items()), *command]

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(command),
            env=self._outside(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def kill(self) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)

    def stop(self) -> int:
        return self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> int:
        """Signal the first process inside, which is the broker. The surrounding `unshare` forwards no
        signals, and ends when the broker ends.
        """
        children = (
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            .read_text(encoding="utf-8")
            .split()
        )
        os.kill(int(children[0]), number)
        return self._process.wait(STOPS_WITHIN_S)

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
