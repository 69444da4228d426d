"""Apply the queues of the configuration file to the namespace at startup.

A missing queue is created. An existing queue is updated only if its entry in the file has changed since it
was last applied, so a change made through the administration API survives until the file's entry changes.
Settings that are fixed at creation are left alone, and every start logs a warning (`config.not_applied`) for
as long as the file and the queue differ.

A queue can only forward to an entity that exists. A file that names another target is wrong, unless the queue
was already to forward there: the target may have been deleted since, and the broker must start all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription, EntitySettings, key_of
from broker.namespace.namespace import Namespace
from broker.settings.config_file import ConfigFile, QueueSpec, WrongConfigFile

FORWARDING_FIELDS = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
"""The file's names of the two targets in `EntitySettings.forwarding`."""

log = structlog.get_logger("config")


def check_targets(file: ConfigFile, namespace: Namespace) -> None:
    """Check that the queues of the file forward to entities that are in the file or in the namespace. Raises
    WrongConfigFile; only warns of a queue that was already to forward to its missing target."""
    in_file = {key_of(spec.name) for spec in file.queues}
    wrong: list[str] = []
    for place, spec in enumerate(file.queues):
        existing = namespace.describe(spec.name)
        earlier = [existing.settings, existing.file_settings or existing.settings] if existing else []
        for index, field in enumerate(FORWARDING_FIELDS):
            target = spec.settings.forwarding[index]
            if target is None or key_of(target) in in_file or namespace.find(target) is not None:
                continue
            why = namespace.missing(target)
            known = {key_of(each.forwarding[index] or "") for each in earlier}
            if why.reason is not Reason.ENTITY_NOT_FOUND or key_of(target) in known:
                log.warning(
                    "config.target_missing",
                    entity=spec.name,
                    field=field,
                    target=target,
                    reason=why.description,
                )
                continue
            wrong.append(
                f"{file.path}: UserConfig.Namespaces[0].Queues[{place}].Properties.{field}: '{spec.name}' "
                f"cannot forward to '{target}': no queue of this name is in the file or in the data folder."
            )
    if wrong:
        raise WrongConfigFile("\n".join(wrong))


async def apply_file(queues: Iterable[QueueSpec], namespace: Namespace) -> None:
    """Create and update queues as the file asks. Raises Refused if a queue cannot be created, except when a
    data folder is missing: then the other queues are live, and the next start creates this one."""
    for spec in queues:
        existing = namespace.describe(spec.name)
        if existing is None and namespace.may_be_damaged(spec.name):
            log.error("config.not_applied", entity=spec.name, reason=namespace.missing(spec.name).description)
            continue
        if existing is None:
            try:
                await namespace.create_entity(
                    spec.name, spec.settings, spec.partitions, file_settings=spec.settings
                )
            except Refused as why:
                is_begun = key_of(spec.name) in namespace.unconfirmed
                if is_begun or why.reason is not Reason.PARTITION_UNAVAILABLE:
                    text = f"The queue '{spec.name}' of the configuration file could not be created."
                    raise Refused(why.reason, f"{text} {why.description}") from why
                log.error("config.not_applied", entity=spec.name, reason=why.description)
            continue
        if type(existing.settings) is not type(spec.settings):
            reason = "An entity of another kind has this name."
            log.warning("config.not_applied", entity=spec.name, reason=reason)
            continue
        for reason in _fixed_differences(existing, spec):
            log.warning("config.not_applied", entity=spec.name, reason=reason)
        if existing.file_settings == spec.settings:
            continue
        try:
            await namespace.update_entity(spec.name, _changeable(existing, spec), file_settings=spec.settings)
        except Refused as why:
            log.warning("config.not_applied", entity=spec.name, reason=why.description)


def _fixed_differences(existing: EntityDescription, spec: QueueSpec) -> Iterable[str]:
    """Yield one sentence for each setting that differs from the file but is fixed at creation."""
    has, asked = existing.settings, spec.settings
    for field, in_queue, in_file in (
        ("Partitioned", has.enable_partitioning, asked.enable_partitioning),
        ("PartitionCount", existing.partitions, spec.partitions or existing.partitions),
        *(
            ("".join(map(str.capitalize, field.split("_"))), getattr(has, field), getattr(asked, field))
            for field in has.FIXED
            if field != "enable_partitioning"
        ),
    ):
        if in_queue != in_file:
            yield (
                f"{field} is {_text(in_file)} in the file and {_text(in_queue)} since the queue's "
                "creation: it cannot be changed."
            )


def _text(value: bool | int) -> str:
    return str(value).lower()


def _changeable(existing: EntityDescription, spec: QueueSpec) -> EntitySettings:
    """The file's settings, with the fixed ones taken from the existing queue."""
    has = existing.settings
    return replace(spec.settings, **{field: getattr(has, field) for field in has.FIXED})
