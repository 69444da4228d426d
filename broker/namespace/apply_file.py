"""The queues of the configuration file, applied to the namespace at the start.

A queue that is missing is created. One that is there is updated if the file asks for something else than when
it was last applied: so a change through the administration API stays until the file's own entry for the queue
changes. What cannot be changed after a queue's creation is left as it is and warned of, at every start as
long as file and queue differ (`config.not_applied`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueDescription, QueueSettings, key_of
from broker.namespace.namespace import Namespace
from broker.settings.config_file import QueueSpec

log = structlog.get_logger("config")


async def apply_file(queues: Iterable[QueueSpec], namespace: Namespace) -> None:
    """Bring the namespace to what the file asks for. Raises Refused if a queue cannot be created, but for a
    data folder that is missing: the other queues are served, and the next start creates this one."""
    for spec in queues:
        existing = namespace.find_queue(spec.name)
        if existing is None and namespace.may_be_damaged(spec.name):
            log.error("config.not_applied", entity=spec.name, reason=namespace.missing(spec.name).description)
            continue
        if existing is None:
            try:
                await namespace.create_queue(
                    spec.name, spec.settings, spec.partitions, file_settings=spec.settings
                )
            except Refused as why:
                is_begun = key_of(spec.name) in namespace.unconfirmed
                if is_begun or why.reason is not Reason.PARTITION_UNAVAILABLE:
                    text = f"The queue '{spec.name}' of the configuration file could not be created."
                    raise Refused(why.reason, f"{text} {why.description}") from why
                log.error("config.not_applied", entity=spec.name, reason=why.description)
            continue
        for reason in _fixed_differences(existing, spec):
            log.warning("config.not_applied", entity=spec.name, reason=reason)
        if existing.file_settings == spec.settings:
            continue
        try:
            await namespace.update_queue(spec.name, _changeable(existing, spec), file_settings=spec.settings)
        except Refused as why:
            log.warning("config.not_applied", entity=spec.name, reason=why.description)


def _fixed_differences(existing: QueueDescription, spec: QueueSpec) -> Iterable[str]:
    """What the file asks for and the queue cannot become: one sentence each."""
    has, asked = existing.settings, spec.settings
    for field, in_queue, in_file in (
        ("Partitioned", has.enable_partitioning, asked.enable_partitioning),
        ("PartitionCount", existing.partitions, spec.partitions or existing.partitions),
        ("RequiresSession", has.requires_session, asked.requires_session),
        ("RequiresDuplicateDetection", has.requires_duplicate_detection, asked.requires_duplicate_detection),
    ):
        if in_queue != in_file:
            yield (
                f"{field} is {_text(in_file)} in the file and {_text(in_queue)} since the queue's "
                "creation: it cannot be changed."
            )


def _text(value: bool | int) -> str:
    return str(value).lower()


def _changeable(existing: QueueDescription, spec: QueueSpec) -> QueueSettings:
    """The file's settings, but for those that are fixed."""
    has = existing.settings
    return replace(
        spec.settings,
        enable_partitioning=has.enable_partitioning,
        requires_session=has.requires_session,
        requires_duplicate_detection=has.requires_duplicate_detection,
    )
