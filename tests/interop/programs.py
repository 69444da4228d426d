"""Clients in other languages: programs that run their scenarios against the broker and print one JSON line
for each.

A program reads the broker's address and the scenarios to run from its environment (`environment_of`). It
prints `{"scenario": ..., "ok": ..., "detail": ...}` per scenario, in any order; its other output is kept for
the failure message. It runs once; tests then look up its results by name, so that each scenario passes or
fails on its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.scenarios import CLIENTS, LOCK_SHORT_S, queue_name
from tests.support.broker_process import KEY, KEY_NAME, REPOSITORY, Addresses

HERE = Path(__file__).resolve().parent
CACHE = REPOSITORY / ".cache" / "interop"
"""Folder for builds and downloaded clients; created when missing."""

BUILDS_WITHIN_S = 300
RUNS_WITHIN_S = 150


@dataclass(slots=True, frozen=True)
class Result:
    """Result of one scenario; `detail` is the program's own account."""

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
    """Run a client's program to its end, for at most `RUNS_WITHIN_S`, and read its report."""
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


def run_java(folder: Path, main: str, heap: str, client: str, addresses: Addresses) -> Report:
    """Run the class `main` of a Maven project with this heap size. Builds the project first when a source is
    newer than the last build.
    """
    classes, classpath = folder / "target" / "classes", folder / "target" / "classpath.txt"
    if not is_newer(classpath, [folder / "pom.xml", *folder.glob("src/**/*.java")]):
        build(
            ["mvn", "-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"],
            folder,
        )
        classpath.touch()
    found = f"{classes}:{classpath.read_text(encoding='utf-8').strip()}"
    return run_program(
        ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-cp", found, main], folder, client, addresses
    )


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
