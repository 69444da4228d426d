"""The official Python client, unchanged, against the running broker: sync, aio, and the release before."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from tests.interop import scenarios
from tests.interop.azure_clients import Client, connect
from tests.interop.azure_scenarios import SCENARIOS, Bench
from tests.interop.programs import CACHE, HERE, Report, build, is_newer, run_program
from tests.support.broker_process import KEY, REPOSITORY, BrokerProcess

WITHIN_S = 40
AT_ONCE = 8
"""Scenarios under way at a time: the client spends most of its time waiting, a second alone for each close."""
PREVIOUS_RELEASE = "7.14.3"
"""Still in wide use, and pickier: it fails on performatives without their trailing nulls."""

Outcomes = dict[str, Exception | None]
"""By scenario: what it raised, or None."""


async def run_all(client: str, broker: BrokerProcess) -> Outcomes:
    """Run every scenario of a client, each with a client object and a queue of its own."""

    def connect_with(key: str = KEY, **options: Any) -> Client:
        return connect(client, broker.addresses.connection_string(key=key), **options)

    async def run(scenario: str) -> Exception | None:
        try:
            async with turn, asyncio.timeout(WITHIN_S), connect_with() as connected:
                await SCENARIOS[scenario](Bench(connected, scenarios.queue_name(client, scenario), connect_with))
        except Exception as error:
            return error
        return None

    turn = asyncio.Semaphore(AT_ONCE)
    names = list(scenarios.CLIENTS[client])
    return dict(zip(names, await asyncio.gather(*(run(name) for name in names)), strict=True))


@pytest.fixture(scope="session")
def sync_outcomes(broker: BrokerProcess) -> Outcomes:
    return asyncio.run(run_all("python-sync", broker))


@pytest.fixture(scope="session")
def aio_outcomes(broker: BrokerProcess) -> Outcomes:
    return asyncio.run(run_all("python-aio", broker))


@pytest.mark.parametrize("scenario", scenarios.CLIENTS["python-sync"])
def test_the_python_client(sync_outcomes: Outcomes, scenario: str) -> None:
    """Each scenario passes with `azure.servicebus`."""
    if error := sync_outcomes[scenario]:
        raise error


@pytest.mark.parametrize("scenario", scenarios.CLIENTS["python-aio"])
def test_the_python_aio_client(aio_outcomes: Outcomes, scenario: str) -> None:
    """Each scenario passes with `azure.servicebus.aio`."""
    if error := aio_outcomes[scenario]:
        raise error


def test_every_scenario_is_written_and_every_written_scenario_is_run() -> None:
    """No scenario is forgotten on either side."""
    assert set(SCENARIOS) == set(scenarios.CLIENTS["python-sync"])


@pytest.fixture(scope="session")
def previous_release(broker: BrokerProcess) -> Report:
    """The earlier release, in a folder of its own: the shared environment has the current one."""
    folder = CACHE / f"azure-servicebus-{PREVIOUS_RELEASE}"
    if not is_newer(folder / "azure" / "servicebus" / "__init__.py", []):
        build(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), f"azure-servicebus=={PREVIOUS_RELEASE}"],
            HERE,
        )
    path = {"PYTHONPATH": f"{folder}:{REPOSITORY}"}
    command = [sys.executable, "-m", "tests.interop.azure_previous", PREVIOUS_RELEASE]
    return run_program(command, REPOSITORY, f"python-{PREVIOUS_RELEASE}", broker.addresses, path)


@pytest.mark.parametrize("scenario", scenarios.CLIENTS[f"python-{PREVIOUS_RELEASE}"])
def test_the_release_before_does_the_round_trip(previous_release: Report, scenario: str) -> None:
    previous_release.check(scenario)
