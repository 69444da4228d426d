"""Run the real broker in a thread of the test, on a disk that the test controls. Clients connect to its
sockets as usual.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import uvloop

from broker.base.clock import Clock
from broker.namespace.entity import Entity
from broker.server import Broker
from broker.settings.config_file import load_config_file
from broker.settings.settings import load_settings
from broker.throttle.resources import ResourceMeter
from storage.disk import Disk
from tests.support.broker_process import Addresses, configuration, port_of

READY_WITHIN_S = 20.0


class BrokerThread:
    """A broker that runs for the length of a `with` block; `settings` are the broker's own."""

    def __init__(
        self,
        folder: Path,
        queues: Sequence[Mapping[str, object]],
        disk: Disk,
        *,
        clock: Clock | None = None,
        meter: ResourceMeter | None = None,
        topics: Sequence[Mapping[str, object]] = (),
        others: Sequence[Mapping[str, object]] = (),
        **settings: object,
    ) -> None:
        """`topics` are in the same namespace as `queues`; `others` are further namespaces, as the
        configuration file has them."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.json"
        config.write_text(json.dumps(configuration(queues, topics, others)), encoding="utf-8")
        # A busy machine's disk is slow and must not count as hanging.
        usual: dict[str, object] = {
            "amqp_port": 0,
            "amqps_port": None,
            "http_port": 0,
            "disk_timeout_ms": 30_000,
        }
        given = load_settings(**({"data_dir": folder / "data"} | usual | settings))
        given.data_dir.mkdir(exist_ok=True)
        self.data_dir = given.data_dir
        self.broker = Broker(given, load_config_file(config, given), disk=disk, clock=clock, meter=meter)
        self.failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    @property
    def addresses(self) -> Addresses:
        """Where the broker listens; port 0 for listeners that are off."""
        return Addresses(
            *(port_of(self.broker.addresses.get(name, "")) for name in ("amqp", "amqps", "http"))
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's event loop, which runs in its thread."""
        assert self._loop is not None, "the broker was started"
        return self._loop

    def messages_of(self, name: str) -> int:
        """How many messages an entity holds in all its subqueues."""

        async def count() -> int:
            return (await self.broker.namespace.runtime(name)).message_count

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(READY_WITHIN_S)

    def queue(self, name: str) -> Entity:
        """An existing entity. It belongs to the broker's event loop."""
        found = self.broker.namespace.find(name)
        assert found is not None
        return found

    def __enter__(self) -> BrokerThread:
        self._thread.start()
        assert self._up.wait(READY_WITHIN_S), "the broker does not come up"
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.broker.stop)
        self._thread.join(READY_WITHIN_S)
        assert not self._thread.is_alive(), "the broker does not stop"
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        thresholds = gc.get_threshold()
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)
            self._up.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.broker.run())
        ready = asyncio.create_task(self.broker.ready.wait())
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self._up.set()
        await serving
