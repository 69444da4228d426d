"""Put the parts of the broker together in one process, event loop and TaskGroup, and start and stop them in
order.

Start: catalogue, namespace, entities of the configuration file, then the sockets; `server.ready` gives their
addresses. Stop (SIGTERM, Ctrl-C): accept no new connections; answer what clients have sent, and tell them to
connect again; have every partition finish its commit, write a checkpoint if much of the log follows the last
one, and close its log; end the committer's threads last. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop

from broker.base.clock import Clock, ClockWatch, SystemClock
from broker.base.collector import collect_rarely
from broker.base.metrics import Metrics
from broker.base.sockets import addresses_text
from broker.base.thread_switches import shorten_switch_interval
from broker.descriptors import Shares, limit_for, raise_limit
from broker.frontend.crowds import make_room_in_memory
from broker.frontend.listener import serve_websocket
from broker.frontend.ports import AmqpPorts
from broker.frontend.services import Services
from broker.hosting.host import HostFolder, HostSettings, PartitionHost
from broker.hosting.local import LocalHost
from broker.hosting.remote import RemoteHost
from broker.http.server import HttpServer
from broker.memory_limits import check_limits, mark_of, payload_bytes
from broker.message.stored import MessageIds
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.namespace.resting import Resting
from broker.namespace_parts import Forwardings, NamespaceParts, Shared
from broker.partition.opening_room import OPENING_BYTES
from broker.settings.certificates import TlsFiles, certificate_names, server_context, tls_files
from broker.settings.config_file import ConfigFile, check_namespaces
from broker.settings.key_files import has_key_files
from broker.settings.settings import MIB, Settings
from broker.throttle.memory_mark import (
    LOOK_S,
    SAFE_SHARE,
    Memory,
    memory_of_the_machine,
    resident_bytes,
    return_free_pages,
)
from broker.throttle.process_meter import ProcessMeter
from broker.throttle.resources import LOOK_S as RESOURCES_LOOK_S
from broker.throttle.resources import ResourceMeter, ResourceThrottle
from storage.catalogue import Catalogue
from storage.disk import Disk, LocalDisk
from storage.file_store import LOST, FolderState
from storage.folder_identity import check_identity
from storage.folders import CATALOGUE_DIRECTORY, Folder, arrange, home_of
from storage.index_witness import Witness
from storage.partition_index import PartitionIndex

log = structlog.get_logger("server")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSE_TIMEOUT_S = 2.0
"""How long clients have to answer our close when the broker stops."""
GOODBYE_LOOK_S = 0.02
"""How often to look whether a client has all its answers when the broker stops."""
CLOCK_LOOK_S = 1.0
"""How often to check the clock for steps and suspends."""


class PartFailed(Exception):
    """A background task that the broker cannot do without died of an unexpected error."""


Announce = Callable[[Mapping[str, str], TlsFiles], None]
"""Called once the broker is ready, with the address of each service (amqp, amqps, http) and the certificate
files."""


def run(settings: Settings, file: ConfigFile | None, announce: Announce | None = None) -> None:
    """Run the broker until it is told to stop. Raises OSError if it cannot listen, WrongCertificate,
    WrongSettings."""
    raise_limit(limit_for(_with_all_connections(settings, file)))
    uvloop.run(Broker(settings, file, announce=announce).run())


class Broker:
    """One broker. Tests run it in their own event loop, with another disk and clock."""

    def __init__(
        self,
        settings: Settings,
        file: ConfigFile | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        announce: Announce | None = None,
        meter: ResourceMeter | None = None,
    ) -> None:
        """`meter` measures what a namespace of the premium tier uses. Raises WrongSettings for a limit that
        is too large for the memory mark."""
        mark = mark_of(settings, memory_of_the_machine())
        check_limits(settings, mark)
        if file is not None:
            check_namespaces(file, settings.namespace)
        others = file.others if file else ()
        settings_of_first = settings
        settings, shares = _within_limit(_with_all_connections(settings, file))
        self.settings = settings
        self.clock = clock or SystemClock()
        self.metrics = Metrics(has_namespaces=bool(others))
        self.addresses: dict[str, str] = {}
        """The addresses listened on, once they are: amqp, amqps, http → "host:port", with commas between the
        addresses of one host."""
        self._announce = announce
        self.ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._serving = False
        self._failure: BaseException | None = None
        disk = disk or LocalDisk()
        folders = arrange(disk, settings.data_dirs, settings.disk_timeout_ms)
        self.host = self._make_host(
            _host_settings(settings, folders, shares, payload_bytes(settings, mark)), disk
        )
        self.memory = _memory(mark, self.host, self._opening_bytes)
        home = home_of(disk, folders)
        self.settings = settings.model_copy(update={"data_dir": home})
        self._resting = self._make_resting(home, disk, folders)
        self._resting.on_opening = self._expect_partition
        self._resting.has_room = self.memory.take_room
        self._resting.look_at_folders = self._look_at_folders
        shared = Shared(
            host=self.host,
            catalogue=_catalogue(folders, disk, settings.disk_timeout_ms, self.host.catalogue_pool),
            resting=self._resting,
            folders=len(folders),
            clock=self.clock,
            metrics=self.metrics,
            has_labels=bool(others),
            failed=self._part_failed,
        )
        self.first = NamespaceParts(
            settings_of_first,
            file.first if file else None,
            shared,
            is_first=True,
            meter=lambda: meter or ProcessMeter(self.clock, self.memory),
        )
        self._others = [
            NamespaceParts(each.settings, each, shared, is_first=False, meter=_no_meter) for each in others
        ]
        self.namespaces = Namespaces(*(parts.served for parts in self._all))
        for parts in self._all:
            parts.authorizer.is_own_host = partial(_is_of, self.namespaces, parts.served)
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def namespace(self) -> Namespace:
        """The first namespace."""
        return self.first.namespace

    @property
    def _all(self) -> Sequence[NamespaceParts]:
        """Every namespace, the first one first."""
        return (self.first, *self._others)

    def _make_host(self, settings: HostSettings, disk: Disk) -> PartitionHost:
        if self.settings.partition_process and type(disk) is LocalDisk:  # others exist in this process only
            return RemoteHost(
                settings,
                log_format=self.settings.log_format,
                log_level=self.settings.log_level,
                failed=self._part_failed,
            )
        return LocalHost(settings, disk, self.clock, spawn=self._start, failed=self._part_failed)

    def _make_resting(self, home: Path, disk: Disk, folders: Sequence[Folder]) -> Resting:
        """What knows the partitions that are not open. `home` is the folder with the catalogue."""
        pools = self.host.index_pools
        index = PartitionIndex(
            home / CATALOGUE_DIRECTORY,
            disk,
            close_within_ms=self.settings.disk_timeout_ms,
            executor=pools[0],
            witnesses=[_witness(folder, pool, disk) for folder, pool in zip(folders, pools, strict=True)],
            failed=self._part_failed,
        )
        segment_bytes = self.settings.segment_bytes
        resting = Resting(index, self.clock, segment_bytes=segment_bytes, failed=self._part_failed)
        resting.lost_folders = frozenset(number for number, folder in enumerate(folders) if folder.is_missing)
        return resting

    def stop(self) -> None:
        """Begin to stop."""
        self._stop.set()

    def _stop_or_end(self) -> None:
        """Begin to stop. The system ends the process at the next signal, whatever the event loop is doing:
        nothing acknowledged is lost, as in a crash."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self.stop()

    def _part_failed(self, name: str, error: BaseException) -> None:
        """A background task of storage or namespace has died: stop in order, and let `run` raise
        PartFailed."""
        log.critical("server.part_failed", task=name, exc_info=error)
        self._failure = self._failure or error
        self.stop()

    async def run(self) -> None:
        """Serve until `stop` or a signal. Raises PartFailed if a part of the broker has died."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread, as in a test
                loop.add_signal_handler(number, self._stop_or_end)
        loop.set_exception_handler(_log_stray)
        collect_rarely()
        shorten_switch_interval()
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self._serve()
            finally:
                await self.namespace.close(*(parts.namespace for parts in self._others))
                await self.host.close()
        if self._failure is not None:
            raise PartFailed(f"{type(self._failure).__name__}: {self._failure}") from self._failure
        log.info("server.stopped")

    async def _serve(self) -> None:
        await self._load()
        files = self._tls_files()
        tls = server_context(files, notes_hosts=self.namespaces.are_several)
        services = Services(
            settings=self.settings,
            namespaces=self.namespaces,
            clock=self.clock,
            metrics=self.metrics,
            memory=self.memory,
            spawn=self._spawn,
            message_id=MessageIds(),
        )
        http = self._make_http(services, files, tls)
        forwarding = Forwardings(self._all, self.memory, services.message_id, self._spawn)
        services.transactions.passed_on = forwarding.passed_on
        services.transactions.commit_rules = forwarding.commit_rules
        ports = AmqpPorts(services, tls)
        is_http_open = False
        watches: list[asyncio.Task[None]] = []
        try:
            self.addresses |= await ports.listen()
            self.addresses["http"] = addresses_text(await http.start())
            self._start(http.run(), "http")
            is_http_open = True
            watches = self._start_watches(services)
            forwarding.start()
            await ports.start()
            self._note_ready(files)
            await self._stop.wait()
        finally:
            log.info("server.stopping", connections=len(services.connections))
            for watch in watches:
                watch.cancel()
            self._serving = False
            ports.stop()
            shutdown_timeout_s = self.settings.shutdown_timeout_ms / 1000
            await _say_goodbye(services, shutdown_timeout_s)
            await _until_gone(services, shutdown_timeout_s)
            await forwarding.stop()
            if is_http_open:
                await http.stop()

    async def _load(self) -> None:
        """Load the entities of the catalogue, and create those that the configuration file adds."""
        await self.host.open()
        await self.namespace.load(*(parts.namespace for parts in self._others))
        self._look_at_folders()
        for parts in self._all:
            parts.check_file()
        for parts in self._all:
            await parts.apply_file()

    def _tls_files(self) -> TlsFiles:
        """The certificate; made if there is none. It also has the names of the namespaces' hosts, and of the
        namespaces themselves if there are several."""
        host_names = [name for served in self.namespaces for name in served.host_names]
        if self._others:
            host_names += [served.namespace.name for served in self.namespaces]
        names = (*self.settings.certificate_names, *host_names)
        return tls_files(self.settings.model_copy(update={"certificate_names": names}), self.clock.now_ms())

    def _make_http(self, services: Services, files: TlsFiles, tls: ssl.SSLContext) -> HttpServer:
        return HttpServer(
            self.settings,
            self.namespaces,
            self.metrics,
            self.clock,
            tls,
            certificate_names(files),
            lambda: self._serving,
            self.memory,
            self.host.folder_states,
            lambda websocket, request, heard: serve_websocket(services, websocket, request, heard),
            services.message_id,
        )

    def _start_watches(self, services: Services) -> list[asyncio.Task[None]]:
        """Start the tasks that look at the clock, the memory and the key files from time to time."""
        watches = [
            self._start(self._watch_clock(services), "clock"),
            self._start(self._watch_memory(services), "memory"),
        ]
        if self.first.resources is not None:
            watches.append(self._start(_watch_resources(self.first.resources), "resources"))
        watches += [
            self._start(parts.watch_keys(), "keys") for parts in self._all if has_key_files(parts.settings)
        ]
        return watches

    def _note_ready(self, files: TlsFiles) -> None:
        """Say that clients are accepted."""
        gc.collect()
        gc.freeze()  # these objects stay for good: spare the collector from walking them
        self._serving = True
        others = {"other_namespaces": [each.namespace.name for each in self._others]} if self._others else {}
        log.info("server.ready", namespace=self.namespace.name, **others, **self.addresses)
        if self._announce is not None:
            self._announce(self.addresses, files)
        self.ready.set()

    async def _watch_clock(self, services: Services) -> None:
        """Report steps of the wall clock and suspends, and have partitions and connections check their
        deadlines again. Notice lost data folders."""
        watch = ClockWatch(self.clock)
        while True:
            await asyncio.sleep(CLOCK_LOOK_S)
            self._look_at_folders()
            step_ms, suspended_ms = watch.look()
            if step_ms:
                log.warning("clock.stepped", step_ms=step_ms)
            if suspended_ms:
                log.warning("clock.suspended", suspended_ms=suspended_ms)
            if step_ms or suspended_ms:
                self.host.wake()  # after a suspend, timers are late; schedules are in wall time
                for connection in list(services.connections):
                    connection.clock_was_set()

    def _look_at_folders(self) -> None:
        states = self.host.folder_states()
        lost = self._resting.lost_folders = frozenset(
            number for number, state in enumerate(states) if state in LOST
        )
        stalling = {number for number, state in enumerate(states) if state is FolderState.STALLS}
        self._resting.slow_folders = lost | stalling

    def _count_folders(self, state: FolderState) -> int:
        return self.host.folder_states().count(state)

    def _opening_bytes(self) -> int:
        """What partitions that are opened will take."""
        resting = self._resting
        return self.host.opening_bytes + OPENING_BYTES * resting.asked + resting.asked_bytes

    def _expect_partition(self) -> None:
        """A partition is about to be opened. Thousands may be, before memory is looked at again."""
        self.memory.expect(OPENING_BYTES)
        self._resting.is_memory_scarce = self.memory.limited

    async def _watch_memory(self, services: Services) -> None:
        """Compare the memory in use with the mark every LOOK_S seconds."""
        memory = self.memory
        self.metrics.memory_used_bytes.set_function(lambda: memory.used)
        self.metrics.memory_mark_bytes.set_function(lambda: memory.mark)
        self.metrics.memory_limited.set_function(lambda: memory.limited)
        self.metrics.memory_exceeded.set_function(lambda: memory.exceeded)
        for state in FolderState:
            self.metrics.data_folders.labels(state).set_function(partial(self._count_folders, state))
        log.info("memory.mark", mark_mib=memory.mark // MIB)
        available = memory_of_the_machine()
        if memory.mark > available * SAFE_SHARE:
            advice = (
                "The process may grow to one and a half times the mark. With this mark, the system may end "
                "it for lack of memory before it refuses messages. Choose at most two thirds of the memory."
            )
            log.warning(
                "memory.mark_too_high",
                memory_mib=available // MIB,
                mark_mib=memory.mark // MIB,
                advice=advice,
            )
        memory.look()
        if memory.limited:  # no message has been loaded yet, so receivers cannot free memory
            advice = (
                "The broker itself uses more than the mark, so it accepts no messages. Give it more memory "
                "or raise the mark."
            )
            log.error(
                "memory.mark_too_low", used_mib=memory.used // MIB, mark_mib=memory.mark // MIB, advice=advice
            )
        loop = asyncio.get_running_loop()
        while True:
            memory.look()
            self.host.set_memory_room(memory.room, memory.used, memory.mark)
            self._resting.is_memory_scarce = memory.limited
            make_room_in_memory(services)
            if memory.may_return_pages(loop.time()):
                await asyncio.to_thread(return_free_pages)
            await asyncio.sleep(LOOK_S)

    # --- parts made on demand -------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a part of the broker. If it fails, the broker does."""
        assert self._tasks is not None, "the broker runs"
        return self._tasks.create_task(work, name=name)

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run work for a client. If it fails, the broker goes on."""
        task = self._start(_loudly(work, name), name)
        # Python warns about a coroutine that was cancelled before its first step.
        task.add_done_callback(lambda _: work.close())
        return task


def _with_all_connections(settings: Settings, file: ConfigFile | None) -> Settings:
    """The settings with the connections of all namespaces."""
    others = sum(each.settings.connections_max for each in file.others) if file else 0
    return settings.model_copy(update={"connections_max": settings.connections_max + others})


def _within_limit(settings: Settings) -> tuple[Settings, Shares]:
    """The settings as far as the system has files for the connections, and how the files are shared out."""
    shares = Shares.of(settings)
    update = {"connections_max": shares.amqp, "http_connections_max": shares.http}
    return settings.model_copy(update=update), shares


def _memory(mark: int, host: PartitionHost, opening_bytes: Callable[[], int]) -> Memory:
    return Memory(
        mark,
        lambda: resident_bytes() + host.resident_bytes,
        lambda: host.waiting_bytes,
        host.set_scarce,
        opening_bytes,
    )


def _witness(folder: Folder, pool: Executor, disk: Disk) -> Witness:
    admit = partial(check_identity, disk, folder.path, folder.id)
    return Witness(folder.path, disk, admit=admit, executor=pool)


def _host_settings(
    settings: Settings, folders: Sequence[Folder], shares: Shares, payload_memory_bytes: int
) -> HostSettings:
    return HostSettings(
        folders=tuple(HostFolder(str(folder.path), folder.id, folder.is_missing) for folder in folders),
        unknown=str(settings.data_dir / "unknown"),
        open_files_max=shares.read,
        open_segments_max=shares.written,
        log_idle_ms=settings.log_idle_ms,
        fsync=settings.fsync,
        fsync_interval_ms=settings.fsync_interval_ms,
        segment_bytes=settings.segment_bytes,
        committer_threads=settings.committer_threads,
        checkpoint_bytes=settings.checkpoint_bytes,
        disk_timeout_ms=settings.disk_timeout_ms,
        payload_memory_bytes=payload_memory_bytes,
        message_ids_max=settings.message_ids_max,
    )


def _catalogue(folders: Sequence[Folder], disk: Disk, timeout_ms: int, executor: Executor) -> Catalogue:
    """The documents are in the first folder, with copies in the second if there is one."""
    directories = [folder.path / CATALOGUE_DIRECTORY for folder in folders[:2]]
    copies = directories[1] if len(folders) > 1 else None
    identities = (folders[0].id, folders[1].id) if len(folders) > 1 else ("", "")
    absent = [folder.path / CATALOGUE_DIRECTORY for folder in folders[:2] if folder.is_missing]
    return Catalogue(
        directories[0], disk, copies, identities, absent=absent, timeout_ms=timeout_ms, executor=executor
    )


def _log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that escaped from a callback or timer of the loop. None is expected."""
    log.error("loop.failed", message=context.get("message"), exc_info=context.get("exception"))


async def _watch_resources(throttle: ResourceThrottle) -> None:
    while True:
        throttle.look()
        await asyncio.sleep(RESOURCES_LOOK_S)


def _is_of(namespaces: Namespaces, served: ServedNamespace, host: str) -> bool:
    """Whether a host name means this namespace."""
    return namespaces.of_host(host) is served


def _no_meter() -> ResourceMeter:
    raise AssertionError("only the first namespace can be premium")


async def _loudly(work: Coroutine[Any, Any, None], name: str) -> None:
    """Log an unexpected error of one request, which ends that request and not the broker."""
    try:
        await work
    except Exception:
        log.exception("task.failed", task=name)


async def _say_goodbye(services: Services, timeout_s: float) -> None:
    """Tell each client to connect again, once everything that it has sent is answered or the time is up."""
    leaving = set(services.connections)
    for connection in leaving:
        connection.leave()
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    while leaving:
        is_over = loop.time() >= ends_at
        answered = {connection for connection in leaving if is_over or not connection.owes_answers}
        for connection in answered:
            connection.shut_down()
        leaving -= answered
        if leaving:
            await asyncio.sleep(GOODBYE_LOOK_S)


async def _until_gone(services: Services, timeout_s: float) -> None:
    """Wait for the clients to close their ends; cut off those that do not."""
    for action in (lambda connection: None, lambda connection: connection.stream.abort()):
        for connection in list(services.connections):
            action(connection)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, CLOSE_TIMEOUT_S)):
                await services.wait_until_alone()
