"""The parts of several namespaces in one broker."""

from __future__ import annotations

import asyncio
import gc
import json
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from broker.descriptors import limit_for
from broker.entities.descriptions import QueueSettings
from broker.http.bodies import FREE_BYTES, Bodies
from broker.server import Broker, run
from broker.settings.config_file import WrongConfigFile, load_config_file
from broker.settings.settings import load_settings
from broker.throttle.memory_mark import Memory
from tests.support.broker_process import configuration, port_of, queue
from tests.support.http_entries import queue_body
from tests.support.sas import sas_token
from tests.support.waiting import until

BILLS = {
    "Name": "Bills",
    "HostNames": ["bus.example.com"],
    "Queues": [queue("same", ForwardTo="onward"), queue("onward")],
    "Settings": {"SasKey": "own", "Tier": "standard", "EntitiesMax": 4},
}


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the garbage collector's settings, which a broker changes for itself."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def make(folder: Path, *others: Mapping[str, object], **given: object) -> Broker:
    config = folder / "config.json"
    config.write_text(json.dumps(configuration([queue("same")], others=others)))
    ports = {"amqp_port": 0, "amqps_port": None, "http_port": 0}
    settings = load_settings(**{"data_dir": folder / "data", "disk_timeout_ms": 30_000, **ports, **given})
    settings.data_dir.mkdir(exist_ok=True)
    return Broker(settings, load_config_file(config, settings))


@asynccontextmanager
async def running(folder: Path, *others: Mapping[str, object], **given: object) -> AsyncIterator[Broker]:
    broker = make(folder, *others, **given)
    work = asyncio.create_task(broker.run())
    ready = asyncio.create_task(broker.ready.wait())
    await asyncio.wait([work, ready], return_when=asyncio.FIRST_COMPLETED, timeout=30)
    try:
        yield broker
    finally:
        broker.stop()
        ready.cancel()
        await work


async def ask(
    broker: Broker, host: str, key: str, method: str, path: str, body: bytes = b""
) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port_of(broker.addresses['http'])}{urllib.parse.quote(path)}"
    headers = {"Host": host, "Authorization": sas_token(f"http://{host}/", key=key)}
    async with aiohttp.request(method, url, data=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_each_has_its_own_entities_throttling_quotas_and_forwarding(tmp_path: Path) -> None:
    async with running(tmp_path, BILLS) as broker:
        first, bills = broker.namespaces
        own, other = first.namespace.find("same"), bills.namespace.find("same")
        assert own is not None and other is not None and own is not other
        assert own.description.generation.startswith("sbemulatorns_")
        assert other.description.generation.startswith("bills_")
        assert own.throttle is None and other.throttle is bills.namespace.throttle is not None
        assert (own.meter.namespace, other.meter.namespace) == ("sbemulatorns", "Bills")
        for host in ("bills", "bus.example.com", "BILLS.example"):
            status, _ = await ask(broker, host, "own", "POST", "/same/messages", b"x")
            assert status == (201 if host != "BILLS.example" else 421), host
        await until(lambda: bills.namespace.find("onward").runtime().message_count == 2)  # type: ignore[union-attr]
        assert own.runtime().message_count == 0
        for target, status in (("sbemulatorns", 400), ("BILLS", 201)):
            body = queue_body(f"<ForwardTo>sb://{target}.localhost/onward</ForwardTo>")
            assert (await ask(broker, "bills", "own", "PUT", "/q1", body))[0] == status
        body = queue_body("<ForwardDeadLetteredMessagesTo>https://bills/same</ForwardDeadLetteredMessagesTo>")
        status, text = await ask(broker, "localhost", "SAS_KEY_VALUE", "PUT", "/q1", body)
        assert status == 400 and "'https://bills/same' is in the namespace 'Bills'" in text
        for number, status in ((2, 201), (3, 403)):
            body = queue_body("", "QueueDescription")
            assert (await ask(broker, "bills", "own", "PUT", f"/q{number}", body))[0] == status
        for namespace in ("Bills", "sbemulatorns"):
            labels = {"namespace": namespace}
            assert broker.metrics.registry.get_sample_value("partibus_credits_refused_total", labels) == 0
        status, text = await ask(broker, "localhost", "SAS_KEY_VALUE", "GET", "/$Resources/queues")
        assert status == 200 and text.count("<QueueDescription") == 1
        for host, key in (("bills", "SAS_KEY_VALUE"), ("localhost", "own")):
            status, text = await ask(broker, host, key, "GET", "/same")
            assert status == 401 and f"SystemTracker:{'Bills' if host == 'bills' else 'sbemulatorns'}" in text
    async with running(tmp_path, BILLS) as broker:
        first, bills = broker.namespaces
        assert [each.name for each in first.namespace.descriptions()] == ["same"]
        assert [each.name for each in bills.namespace.descriptions()] == ["onward", "q1", "q2", "same"]
        assert bills.namespace.find("onward").runtime().message_count == 2  # type: ignore[union-attr]


async def test_the_first_may_be_renamed_and_keeps_its_entities(tmp_path: Path) -> None:
    async with running(tmp_path, BILLS) as broker:
        await broker.namespace.create_entity("kept", QueueSettings())
    async with running(tmp_path, BILLS, namespace="orders") as broker:
        assert broker.namespace.name == "orders" and broker.namespace.find("kept") is not None


async def test_what_is_wrong_in_one_part_of_the_file_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    wrong = {**BILLS, "Queues": [queue("same", ForwardTo="nowhere")]}
    with pytest.raises(ExceptionGroup) as refused:
        await make(tmp_path, wrong).run()
    assert "Namespaces[1].Queues[0].Properties.ForwardTo" in str(refused.value.exceptions[0])
    assert not list((tmp_path / "data" / "catalogue").glob("*.document"))


async def test_another_one_in_the_place_of_the_first_does_not_get_its_entities(tmp_path: Path) -> None:
    async def start(*others: Mapping[str, object], **given: object) -> None:
        async with running(tmp_path, *others, **given) as broker:
            assert broker.namespace.find("same") is not None

    await start(namespace="Bills")
    for _ in range(2):  # the refusal changes nothing
        with pytest.raises(ExceptionGroup) as refused:
            await make(tmp_path, BILLS, namespace="fresh").run()
        assert "List 'Bills' first in the configuration file" in str(refused.value.exceptions[0])
    await start(namespace="fresh")
    await start(BILLS, namespace="fresh")
    await start(BILLS)  # by its first name again


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([{**BILLS, "Name": "sbemulatorns"}], r"Namespaces\[1\]: the name 'sbemulatorns' cannot be used: it"),
        ([BILLS, {**BILLS, "HostNames": []}], r"Namespaces\[2\]: the name 'bills' cannot be used: it means"),
        ([BILLS, {**BILLS, "Name": "more"}], "the name 'bus.example.com' cannot be used"),
        ([{**BILLS, "HostNames": ["SBEmulatorNS"]}], "the name 'sbemulatorns' cannot be used"),
        ([{**BILLS, "Name": "under_score"}], "'under_score' cannot be the name of one of several"),
        (
            [BILLS, {**BILLS, "Name": "more", "HostNames": ["BUS.example.com."]}],
            "'bus.example.com' cannot be",
        ),
        ([{**BILLS, "HostNames": ["*.example.com"]}], r"HostNames\[0\]: a namespace has exact host names"),
        ([{**BILLS, "HostNames": ["::1"]}], r"HostNames\[0\]: give a name or an IPv4 address"),
        ([{**BILLS, "Settings": {}}], r"Namespaces\[1\]\.Settings\.SasKey: a namespace beside the first one"),
    ],
)
def test_namespaces_that_cannot_be_told_apart_are_refused(
    tmp_path: Path, others: list[dict[str, object]], words: str
) -> None:
    with pytest.raises(WrongConfigFile, match=words):
        make(tmp_path, *others)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"Tier": "basic"}, "The property 'ForwardTo' cannot be set"),
        ({"EntitiesMax": 1}, "The namespace holds 1 entity; the limit is 1"),
    ],
)
async def test_a_file_that_the_tier_or_the_quotas_do_not_permit_is_wrong(
    tmp_path: Path, settings: dict[str, object], problem: str
) -> None:
    """The command line ends with exit code 2 then, and a supervisor need not try again."""
    broker = make(tmp_path, {**BILLS, "Settings": {"SasKey": "own", **settings}})
    with pytest.raises(ExceptionGroup) as caught:
        await broker.run()
    (wrong,) = caught.value.exceptions
    assert isinstance(wrong, WrongConfigFile)
    assert "config.json: UserConfig.Namespaces[1]: The entity" in str(wrong) and problem in str(wrong)


def test_the_name_on_disk_of_the_first_is_taken_even_if_it_is_called_otherwise(tmp_path: Path) -> None:
    with pytest.raises(WrongConfigFile, match="the first namespace has it in the data folder"):
        make(tmp_path, {**BILLS, "Name": "sbemulatorns"}, namespace="orders")


def test_the_first_may_have_that_name_in_any_case_or_keep_it_as_a_host_name(tmp_path: Path) -> None:
    make(tmp_path, BILLS, namespace="SBEmulatorNS")
    renamed = make(tmp_path, {**BILLS, "HostNames": ["sbemulatorns"]}, namespace="orders")
    assert renamed.namespaces.of_host("sbemulatorns").namespace.name == "Bills"


def test_an_address_means_the_namespace_that_lists_it(tmp_path: Path) -> None:
    broker = make(tmp_path, {**BILLS, "HostNames": ["127.0.0.2"]})
    hosts = ("127.0.0.2", "127.0.0.2:5672", "127.0.0.1", "[::1]:5672", "localhost")
    names = [broker.namespaces.of_host(host).namespace.name for host in hosts]
    assert names == ["Bills", "Bills", *["sbemulatorns"] * 3]


def test_a_host_name_with_the_final_dot_of_the_root_counts(tmp_path: Path) -> None:
    broker = make(tmp_path, {**BILLS, "HostNames": ["bus.localhost."]})
    for host in ("bus.localhost", "Bus.Localhost.:5671"):
        assert broker.namespaces.of_host(host).namespace.name == "Bills"


@pytest.mark.parametrize("name", ["two words", 'a"b', "dotted.name", "line\nbreak"])
def test_the_setting_cannot_give_the_first_of_several_a_name_that_is_no_label(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(WrongConfigFile, match="PARTIBUS_NAMESPACE: "):
        make(tmp_path, BILLS, namespace=name)
    make(tmp_path, namespace=name)


def test_the_limit_of_open_files_suits_the_connections_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("broker.server.raise_limit", asked.append)
    monkeypatch.setattr("broker.server.uvloop.run", lambda broker: broker.close())
    others = [
        {"Name": f"n{number}", "Queues": [], "Settings": {"SasKey": "own", "ConnectionsMax": 30_000}}
        for number in range(4)
    ]
    broker = make(tmp_path, *others)
    config = load_config_file(tmp_path / "config.json", broker.settings)
    run(load_settings(data_dir=tmp_path / "other", connections_max=1_000), config)
    assert asked == [limit_for(load_settings(connections_max=121_000))] and asked[0] > 121_000


async def test_request_bodies_have_one_bound_over_all_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not matter whether they are descriptions or messages."""
    bodies = Bodies(Memory(1 << 40, lambda: 0, lambda: 0), 0)  # only one that is large at a time
    monkeypatch.setattr("broker.http.server.Bodies", lambda memory: bodies)
    async with running(tmp_path, BILLS) as broker:
        port = port_of(broker.addresses["http"])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        token = sas_token("http://bills.localhost/", key="own")
        head = (
            f"PUT /new HTTP/1.1\r\nHost: bills.localhost\r\nAuthorization: {token}\r\n"
            "Content-Length: 500000\r\n\r\n"
        )
        writer.write(head.encode() + bytes(100_000))
        await until(lambda: bodies.bytes == 100_000 - FREE_BYTES)
        status, text = await ask(broker, "first", "SAS_KEY_VALUE", "POST", "/same/messages", bytes(50_000))
        assert status == 503 and "Too many bodies" in text
        assert (await ask(broker, "first", "SAS_KEY_VALUE", "POST", "/same/messages", bytes(10)))[0] == 201
        writer.close()
        await until(lambda: not bodies.bytes)
        status, _ = await ask(broker, "first", "SAS_KEY_VALUE", "POST", "/same/messages", bytes(50_000))
        assert status == 201
