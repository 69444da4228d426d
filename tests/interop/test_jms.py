"""Qpid JMS, a plain AMQP 1.0 client in Java, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.programs import HERE, Report, build, is_newer, run_program
from tests.interop.scenarios import CLIENTS
from tests.support.broker_process import BrokerProcess

FOLDER = HERE / "jms"
CLASSES, CLASSPATH = FOLDER / "target" / "classes", FOLDER / "target" / "classpath.txt"


@pytest.fixture(scope="session")
def report(broker: BrokerProcess) -> Report:
    """The program's results. It is built when a source is younger than the last build."""
    if not is_newer(CLASSPATH, [FOLDER / "pom.xml", *FOLDER.glob("src/**/*.java")]):
        build(["mvn", "-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={CLASSPATH}"], FOLDER)
        CLASSPATH.touch()
    classpath = f"{CLASSES}:{CLASSPATH.read_text(encoding='utf-8').strip()}"
    return run_program(["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "interop.Jms"], FOLDER, "jms", broker.addresses)


@pytest.mark.parametrize("scenario", CLIENTS["jms"])
def test_qpid_jms(report: Report, scenario: str) -> None:
    report.check(scenario)
