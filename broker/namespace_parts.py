"""One namespace with all its parts: its throttling, its entities, its keys, and what forwards its messages.

`server.py` makes these parts for each namespace. They share the data folders, the partitions' host, the time
and the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from broker.access.sas import Authorizer
from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import NAMESPACE, EntityDescription, namespace_of
from broker.entities.subscription_validation import TopicLimits
from broker.hosting.host import HostedPartition, PartitionHost
from broker.message.property_sizes import limits_of
from broker.messaging.forwarding import Forwarding
from broker.messaging.rule_transactions import RuleTransactions
from broker.namespace.apply_file import apply_file, check_rules, check_targets
from broker.namespace.entity import Entity
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import ServedNamespace
from broker.namespace.resting import Resting
from broker.operations.interface import Sink
from broker.operations.transactions import Transact
from broker.settings.config_file import NamespaceFile, WrongConfigFile
from broker.settings.key_files import Rules, namespace_rules, warn_of_readable_files, watch_keys
from broker.settings.settings import MIB, Settings
from broker.throttle.memory_mark import Memory
from broker.throttle.resources import ResourceMeter, ResourceThrottle, Thresholds
from broker.throttle.throttle import Throttling, throttle_of
from storage.catalogue import Catalogue
from storage.threads import OwnerFailed

_WRONG_IN_THE_FILE = (Reason.ARGUMENT, Reason.NOT_ALLOWED, Reason.QUOTA_EXCEEDED)
"""Why an entity of the file cannot be created, whatever the disks do."""


@dataclass(slots=True, frozen=True)
class Shared:
    """What all namespaces of a broker share."""

    host: PartitionHost
    catalogue: Catalogue
    resting: Resting
    folders: int
    clock: Clock
    metrics: Metrics
    has_labels: bool
    """Whether the series of entities say which namespace they belong to."""
    failed: OwnerFailed


class NamespaceParts:
    """The parts of one namespace. Owned by the event loop."""

    def __init__(
        self,
        settings: Settings,
        file: NamespaceFile | None,
        shared: Shared,
        *,
        is_first: bool,
        meter: Callable[[], ResourceMeter],
    ) -> None:
        """`meter` makes what measures the use of resources, in the premium tier."""
        self.settings, self.file, self._shared = settings, file, shared
        clock, metrics = shared.clock, shared.metrics
        refused = metrics.credits_refused
        if shared.has_labels:
            refused = refused.labels(settings.namespace)
        self._throttle: Throttling | None = throttle_of(
            settings.namespace,
            settings.credits_per_second,
            clock,
            refused.inc,
            settings.throttle_filter_credits,
        )
        self._property_limits = limits_of(settings.properties_kb_max, settings.property_kb_max)
        self.resources: ResourceThrottle | None = None
        """Its throttling, if that goes by resources."""
        if settings.tier == "premium":
            self.resources = self._throttle = _throttle_by_resources(settings, metrics, refused.inc, meter())
        self.namespace = Namespace(
            settings.namespace,
            catalogue=shared.catalogue,
            folders=shared.folders,
            store=shared.host,
            clock=clock,
            make_entity=self._make_entity,
            resting=shared.resting,
            partitions_default=settings.partitions_default,
            entities_max=settings.entities_max,
            tier=settings.namespace_tier,
            throttle=self._throttle,
            idle_ms_min=settings.auto_delete_on_idle_ms_min,
            disk_timeout_ms=settings.disk_timeout_ms,
            failed=shared.failed,
            topic_limits=TopicLimits(settings.subscriptions_max, settings.rules_max),
            stored_name=NAMESPACE if is_first else settings.namespace.casefold(),
        )
        self._rules_of_file = file.authorization_rules if file else ()
        self._rules = namespace_rules(settings, self._rules_of_file)
        warn_of_readable_files(settings)
        self.authorizer = Authorizer(self._rules, self.namespace.rules_of)
        host_names = file.host_names if file else ()
        self.served = ServedNamespace(self.namespace, self.authorizer, settings, host_names)

    def check_file(self) -> None:
        """Check what the file asks for against the entities that are there. Raises WrongConfigFile."""
        if self.file is not None:
            check_rules(self.file)
            check_targets(self.file, self.namespace)

    async def apply_file(self) -> None:
        """Create and update its entities as the file asks. Call `check_file` first. Raises Refused, and
        WrongConfigFile for an entity that the tier or the quotas do not permit."""
        if self.file is None:
            return
        try:
            await apply_file((*self.file.queues, *self.file.topics), self.namespace)
        except Refused as why:
            if why.reason in _WRONG_IN_THE_FILE:
                raise WrongConfigFile(f"{self.file.path}: {self.file.place}: {why.description}") from why
            raise

    def make_forwarding(
        self, memory: Memory, message_id: Callable[[], str], spawn: Callable[..., asyncio.Task[None]]
    ) -> tuple[Forwarding, RuleTransactions]:
        """What forwards its messages, and what changes its rules for transactions."""
        forwarding = Forwarding(
            self.namespace, memory=memory, clock=self._shared.clock, message_id=message_id, spawn=spawn
        )
        rule_transactions = RuleTransactions(self.namespace.subscriptions, spawn)
        forwarding.rules_left = rule_transactions.finish
        return forwarding, rule_transactions

    async def watch_keys(self) -> None:
        """Put other keys in force when their files change, for the clients that are connected, too."""
        await watch_keys(self.settings, self._rules, self._keys_changed, self._rules_of_file)

    def _keys_changed(self, rules: Rules) -> None:
        self.authorizer.namespace_rules = rules
        self.namespace.rules_changed()

    def _make_entity(self, description: EntityDescription) -> Entity:
        shared = self._shared
        label = self.settings.namespace if shared.has_labels else ""
        meter = EntityMeter(shared.metrics, description.name, label)
        size_bytes_max = self.settings.entity_mb_max * MIB
        entity = make_entity(description, meter, self._start_partition, shared.resting, size_bytes_max)
        entity.throttle, entity.property_limits = self._throttle, self._property_limits
        return entity

    def _start_partition(self, entity: Entity, number: int) -> HostedPartition:
        register = self._shared.resting.register(entity.description.generation, number)
        partition = self._shared.host.start(entity.description, number, entity.meter, register)
        self.namespace.partition_started(entity, number)
        return partition


class Forwardings:
    """The forwarding of all namespaces, and their transactions that change rules."""

    def __init__(
        self,
        namespaces: Sequence[NamespaceParts],
        memory: Memory,
        message_id: Callable[[], str],
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        """`spawn` runs a coroutine under a name, and logs its errors."""
        made = {
            each.namespace.stored_name: each.make_forwarding(memory, message_id, spawn) for each in namespaces
        }
        self._forwarding = {name: forwarding for name, (forwarding, _) in made.items()}
        self._rule_transactions = {name: transactions for name, (_, transactions) in made.items()}

    def start(self) -> None:
        """Begin to forward. Call this once all entities are there."""
        for each in self._forwarding.values():
            each.start()

    async def stop(self) -> None:
        """End the loads under way, and forward nothing more."""
        await asyncio.gather(*(each.stop() for each in self._forwarding.values()))

    def passed_on(self, via: Entity, number: int) -> None:
        """A partition is about to get messages for other entities."""
        self._forwarding[namespace_of(via.description.generation)].transfers.passed_on(via, number)

    def commit_rules(self, topic: Entity, operation: Transact, sink: Sink) -> None:
        """Carry out a transaction that changes rules of a plain topic. `sink` gets the answer."""
        self._rule_transactions[namespace_of(topic.description.generation)].commit(topic, operation, sink)


def _throttle_by_resources(
    settings: Settings, metrics: Metrics, refused: Callable[[float], None], meter: ResourceMeter
) -> ResourceThrottle:
    thresholds = Thresholds(
        settings.throttle_cpu_percent, settings.throttle_memory_percent, settings.throttle_pending_max
    )
    throttle = ResourceThrottle(settings.namespace, thresholds, settings.messaging_units, meter, refused)
    metrics.messaging_units.set_function(lambda: throttle.units)
    metrics.namespace_cpu_usage.set_function(lambda: throttle.cpu_percent)
    metrics.namespace_memory_usage.set_function(lambda: throttle.usage.memory_percent)
    metrics.pending_checkpoint_operation_count.set_function(lambda: throttle.usage.pending)
    for name in ("cpu", "memory", "disk"):
        metrics.throttled_by.labels(name).set_function(partial(_is_over, throttle, name))
    return throttle


def _is_over(throttle: ResourceThrottle, resource: str) -> float:
    return float(resource in throttle.over)
