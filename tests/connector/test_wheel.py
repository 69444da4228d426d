"""The connector's wheel works in an environment that has nothing else but what the wheel requires."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.connector.wheel_program import ROWS
from tests.support.broker_process import REPOSITORY, BrokerProcess

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
BUILDS_WITHIN_S, RUNS_WITHIN_S = 180, 240
PROGRAM = Path(__file__).with_name("wheel_program.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel. What the wheel requires, and nothing else, is
    linked from the environment of the tests, because installing Spark again would take a minute."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "connector"
    shutil.copytree(
        REPOSITORY / "connector", sources, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    run([*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(sources)])
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    interpreter = folder / "env" / "bin" / "python"
    run([*PIP, "--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel)])
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (metadata,) = packages.glob("pyspark_partibus-*.dist-info/METADATA")
    required = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
    for name in required_by(required):
        link(name, packages)
    return interpreter


def environment() -> dict[str, str]:
    """That of this process, without what the Spark of other tests sets: with its PYTHONPATH, pip takes the
    connector's sources for an installed connector, and with its PYSPARK_DRIVER_PYTHON, Spark looks for data
    sources in the environment of the tests."""
    settings = ("PYTHONPATH", "PYSPARK_", "SPARK_")
    return {name: value for name, value in os.environ.items() if not name.startswith(settings)}


def run(command: list[str]) -> None:
    ran = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=BUILDS_WITHIN_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def required_by(requirements: list[str]) -> set[str]:
    """The distributions that these requirements name, and those that they require in turn."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement, _, marker = waiting.pop().partition(";")
        if "extra" in marker or "sys_platform == " in marker or "python_version < " in marker:
            continue
        name = re.split(r"[^\w.-]", requirement)[0]
        if name not in found:
            found.add(name)
            waiting += distribution(name).requires or []
    return found


def link(name: str, packages: Path) -> None:
    """Make an installed distribution visible in another environment."""
    installed = distribution(name)
    tops = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(str(installed.locate_file(top)))


def test_the_wheel_alone_reads_and_writes(python: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    program = shutil.copy(PROGRAM, tmp_path)
    ran = subprocess.run(
        [python, program, broker.addresses.connection_string(), str(tmp_path)],
        cwd=tmp_path,
        env={**environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    total = ROWS * (ROWS - 1) // 2
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "batch": total,
        "stream": total,
        "left": 0,
        "broker": False,
    }


def test_the_environment_of_the_wheel_has_no_broker(python: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [python, "-c", "import pyspark_partibus, importlib.util as u; print(u.find_spec('broker'))"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=BUILDS_WITHIN_S,
        check=False,
    )
    assert ran.stdout.strip() == "None", ran.stdout + ran.stderr
