"""Clients in other languages: programs that run their scenarios against the broker and print one JSON line
for each.

A program reads the broker's address and the scenarios to run from its environment (`environment_of`). It
prints `{"scenario": ..., "ok": ..., "detail": ...}` per scenario, in any order; its other output is kept for
the failure message. It runs once; tests then look up its results by name, so that each scenario passes or
fails on its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.scenarios import CLIENTS, LOCK_SHORT_S, queue_name
from tests.support.broker_process import KEY, KEY_NAME, REPOSITORY, Addresses

HERE = Path(__file__).resolve().parent
CACHE = REPOSITORY / ".cache" / "interop"
"""Folder for builds and downloaded clients; created when missing."""

JS, GO, JAVA, JMS = (HERE / name for name in ("js", "go", "java", "jms"))
GO_PROGRAM = CACHE / "go-client"

BUILDS_WITHIN_S = 900
RUNS_WITHIN_S = 150


@dataclass(slots=True, frozen=True)
class Result:
    """Result of one scenario; `detail` is the program's own account of a failure, or of a refusal."""

    ok: bool
    detail: str


@dataclass(slots=True)
class Report:
    """Output of a program."""

    results: dict[str, Result] = field(default_factory=dict)
    output: str = ""
    """The end of the output, and how the program ended."""

    def check(self, scenario: str) -> None:
        """Fail unless the scenario ran and passed."""
        result = self.results.get(scenario)
        assert result is not None, f"the program never reported {scenario}:\n{self.output}"
        assert result.ok, f"{scenario}: {result.detail}"


def environment_of(client: str, addresses: Addresses) -> dict[str, str]:
    """Environment of a program: the broker's address and key, the prefix of its queues, its scenarios."""
    return {
        "PARTIBUS_CONNECTION_STRING": addresses.connection_string(
            host="localhost" if client == "go" else "127.0.0.1"
        ),
        "PARTIBUS_CONNECTION_STRING_WRONG_KEY": addresses.connection_string(
            host="localhost" if client == "go" else "127.0.0.1", key="wrong"
        ),
        "PARTIBUS_HOST": "127.0.0.1",
        "PARTIBUS_PORT": str(addresses.amqp_port),
        "PARTIBUS_KEY_NAME": KEY_NAME,
        "PARTIBUS_KEY": KEY,
        "PARTIBUS_QUEUE_PREFIX": queue_name(client, ""),
        "PARTIBUS_LOCK_SHORT_S": str(LOCK_SHORT_S),
        "PARTIBUS_SCENARIOS": ",".join(CLIENTS[client]),
    }


def run_program(
    command: Sequence[str],
    cwd: Path,
    client: str,
    addresses: Addresses,
    extra: Mapping[str, str] | None = None,
) -> Report:
    """Run a client's program to its end, for at most `RUNS_WITHIN_S`, and read its report. `extra` adds to
    its environment, or overrides it.
    """
    environment = {**os.environ, **environment_of(client, addresses), **(extra or {})}
    try:
        ended = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN_S,
            check=False,
        )
        output, how = ended.stdout + ended.stderr, f"exit status {ended.returncode}"
    except subprocess.TimeoutExpired as late:
        output, how = text_of(late.stdout) + text_of(late.stderr), f"ended after {RUNS_WITHIN_S} s"
    return read_report(output, how)


class Preparation:
    """Builds the programs and downloads their packages, once for all tests.

    In the background, because most tests wait for clients rather than for a processor.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "preparation")
        self._done: dict[Path, Future[None]] = {}

    def begin(self, folders: Iterable[Path]) -> None:
        """Prepare the programs of these folders, in this order."""
        for folder in folders:
            if folder not in self._done:
                self._done[folder] = self._thread.submit(_prepare, folder)

    def wait(self, folder: Path) -> None:
        """Wait until a program is ready. Fails if it cannot be built."""
        self.begin([folder])
        self._done[folder].result()


def _prepare(folder: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:  # another test process waits, and finds it done
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build_or_download(folder)


def _build_or_download(folder: Path) -> None:
    if folder == GO:  # Go's own cache makes repeated builds cheap
        build(["go", "build", "-o", str(GO_PROGRAM), "."], GO)
    elif folder == JS:
        installed = JS / "node_modules" / ".package-lock.json"
        if not is_newer(installed, [JS / "package.json"]):
            build(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"], JS)
            installed.touch()
    else:
        classpath = _classpath(folder)
        if not is_newer(classpath, [folder / "pom.xml", *folder.glob("src/**/*.java")]):
            goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"]
            build(["mvn", "-q", "-B", *goals], folder)
            classpath.touch()


def _classpath(folder: Path) -> Path:
    return folder / "target" / "classpath.txt"


PREPARATION = Preparation()


def run_go(addresses: Addresses, extra: Mapping[str, str] | None = None) -> Report:
    """Run the official Go client."""
    PREPARATION.wait(GO)
    return run_program([str(GO_PROGRAM)], GO, "go", addresses, extra)


def run_node(
    script: str, client: str, addresses: Addresses, extra: Mapping[str, str] | None = None
) -> Report:
    """Run a script in JavaScript."""
    PREPARATION.wait(JS)
    return run_program(["node", script], JS, client, addresses, extra)


def run_java(
    folder: Path,
    main: str,
    heap: str,
    client: str,
    addresses: Addresses,
    extra: Mapping[str, str] | None = None,
) -> Report:
    """Run the class `main` of a Maven project with this heap size."""
    PREPARATION.wait(folder)
    found = f"{folder / 'target' / 'classes'}:{_classpath(folder).read_text(encoding='utf-8').strip()}"
    command = ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-cp", found, main]
    return run_program(command, folder, client, addresses, extra)


def read_report(output: str, how: str) -> Report:
    """Parse the results among the lines a program printed."""
    report = Report(output=f"{output[-1500:]}\n({how})")
    for line in output.splitlines():
        if line.startswith('{"scenario"'):
            entry = json.loads(line)
            report.results[entry["scenario"]] = Result(bool(entry["ok"]), str(entry.get("detail", "")))
    return report


def build(command: Sequence[str], cwd: Path) -> None:
    """Run a setup step of a program. Fails with the step's output."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILDS_WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, (
        f"{' '.join(command)} failed:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    )


def is_newer(made: Path, sources: Sequence[Path]) -> bool:
    """Whether `made` exists and is newer than all its sources."""
    return made.exists() and all(made.stat().st_mtime >= source.stat().st_mtime for source in sources)


def text_of(captured: str | bytes | None) -> str:
    """The output of a program that was stopped, as text."""
    return captured.decode(errors="replace") if isinstance(captured, bytes) else captured or ""
