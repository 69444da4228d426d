"""The JavaScript administration client, unchanged, over TLS with the generated certificate authority, against
the running broker.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.interop.programs import HERE, RUNS_WITHIN_S, Report, build, is_newer, read_report, text_of
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess

FOLDER = HERE / "js"
SCENARIOS = (
    "create-and-get",
    "every-property",
    "update",
    "fixed-properties",
    "errors",
    "exists-and-delete",
    "lists",
    "runtime-properties",
    "namespace",
    "topics",
)


@pytest.fixture(scope="session")
def administration(broker: BrokerProcess) -> Report:
    """The program's report; it runs once."""
    installed = FOLDER / "node_modules" / ".package-lock.json"
    if not is_newer(installed, [FOLDER / "package.json"]):
        build(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"], FOLDER)
        installed.touch()
    environment = {
        **os.environ,
        "NODE_EXTRA_CA_CERTS": str(broker.data_dir / "tls" / "ca.pem"),
        "PARTIBUS_ADMIN_CONNECTION_STRING": (
            f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        ),
        "PARTIBUS_CONNECTION_STRING": broker.addresses.connection_string(),
        "PARTIBUS_SCENARIOS": ",".join(SCENARIOS),
    }
    try:
        ended = subprocess.run(
            ["node", "admin.mjs"],
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return read_report(text_of(late.stdout) + text_of(late.stderr), f"ended after {RUNS_WITHIN_S} s")
    return read_report(ended.stdout + ended.stderr, f"exit status {ended.returncode}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_javascript_administration_client(administration: Report, scenario: str) -> None:
    administration.check(scenario)
