"""The official Python client, unchanged, against the running broker: sync, aio, and the previous release."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from tests.interop import azure_duplicates, azure_scheduling, azure_settling, scenarios
from tests.interop.azure_clients import Client, connect
from tests.interop.azure_scenarios import SCENARIOS, Bench
from tests.interop.programs import CACHE, HERE, Report, build, is_newer, run_program
from tests.support.broker_process import KEY, REPOSITORY, BrokerProcess

WITHIN_S = 40
AT_ONCE = 12
"""Scenarios to run at a time. Clients mostly wait: each close of the sync client alone takes a second."""
CURRENT = ("python-sync", "python-aio")
PREVIOUS_RELEASE = "7.14.3"
DELETING_RELEASE = "7.13.0b1"
"""Still widely used, and stricter: it fails on performatives without their trailing nulls."""

Outcomes = dict[str, Exception | None]
"""By scenario: the exception it raised, or None."""


async def run_all(broker: BrokerProcess) -> dict[str, Outcomes]:
    """Run every scenario with both clients, each with its own client object and queue; gives outcomes by
    client.
    """

    async def run(client: str, scenario: str) -> Exception | None:
        def connect_with(key: str = KEY, **options: Any) -> Client:
            return connect(client, broker.addresses.connection_string(key=key), **options)

        try:
            async with turn, asyncio.timeout(WITHIN_S), connect_with() as connected:
                await SCENARIOS[scenario](
                    Bench(connected, scenarios.queue_name(client, scenario), connect_with)
                )
        except Exception as error:
            return error
        return None

    turn = asyncio.Semaphore(AT_ONCE)
    everything = [(client, scenario) for client in CURRENT for scenario in scenarios.CLIENTS[client]]
    found: dict[str, Outcomes] = {client: {} for client in CURRENT}
    for (client, scenario), error in zip(
        everything, await asyncio.gather(*(run(*each) for each in everything)), strict=True
    ):
        found[client][scenario] = error
    return found


@pytest.fixture(scope="session")
def outcomes(broker: BrokerProcess) -> dict[str, Outcomes]:
    return asyncio.run(run_all(broker))


@pytest.mark.parametrize("scenario", scenarios.CLIENTS["python-sync"])
def test_the_python_client(outcomes: dict[str, Outcomes], scenario: str) -> None:
    """Each scenario passes with `azure.servicebus`."""
    if error := outcomes["python-sync"][scenario]:
        raise error


@pytest.mark.parametrize("scenario", scenarios.CLIENTS["python-aio"])
def test_the_python_aio_client(outcomes: dict[str, Outcomes], scenario: str) -> None:
    """Each scenario passes with `azure.servicebus.aio`."""
    if error := outcomes["python-aio"][scenario]:
        raise error


def test_every_scenario_is_written_and_every_written_scenario_is_run() -> None:
    """Every listed scenario is implemented, and every implemented one is listed."""
    assert set(SCENARIOS) == set(scenarios.CLIENTS["python-sync"])
    assert SCENARIOS is azure_settling.SCENARIOS is azure_scheduling.SCENARIOS is azure_duplicates.SCENARIOS


@pytest.fixture(scope="session")
def previous_release(broker: BrokerProcess) -> Report:
    """The round trip of the previous release."""
    return run_release(PREVIOUS_RELEASE, "tests.interop.azure_previous", broker)


@pytest.fixture(scope="session")
def deleting_release(broker: BrokerProcess) -> Report:
    """Deletion with the release that supports it; the current one does not."""
    return run_release(DELETING_RELEASE, "tests.interop.azure_delete", broker)


def run_release(release: str, module: str, broker: BrokerProcess) -> Report:
    """Run another release, installed in its own folder because the shared environment has the current one."""
    folder = CACHE / f"azure-servicebus-{release}"
    if not is_newer(folder / "azure" / "servicebus" / "__init__.py", []):
        build(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--target",
                str(folder),
                f"azure-servicebus=={release}",
            ],
            HERE,
        )
    extra = {
        "PYTHONPATH": f"{folder}:{REPOSITORY}",
        "PARTIBUS_HTTP_PORT": str(broker.addresses.http_port),
        "PARTIBUS_CA": str(broker.data_dir / "tls" / "ca.pem"),
    }
    return run_program(
        [sys.executable, "-m", module, release], REPOSITORY, f"python-{release}", broker.addresses, extra
    )


@pytest.mark.parametrize("scenario", scenarios.CLIENTS[f"python-{PREVIOUS_RELEASE}"])
def test_the_release_before_does_the_round_trip(previous_release: Report, scenario: str) -> None:
    previous_release.check(scenario)


@pytest.mark.parametrize("scenario", scenarios.CLIENTS[f"python-{DELETING_RELEASE}"])
def test_the_release_that_deletes(deleting_release: Report, scenario: str) -> None:
    deleting_release.check(scenario)
