"""Every setting and limit of the broker, with unit and default.

This module covers the settings that come from the environment (`PARTIBUS_…`) and the command line. Entities
come from the configuration file (`config_file.py`) and the administration API. `docs/configuration.md`
explains each field to users; a test fails if one is missing there.

Values are checked here once, so that code with a `Settings` object can rely on them. Names end in their unit.
Nothing here reads a file or opens a socket.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from broker.entities.descriptions import PARTITIONS_DEFAULT
from broker.entities.tiers import DEFAULTS, Tier, TierName, tier_of
from broker.entities.validation import AUTO_DELETE_ON_IDLE_MS_MIN
from broker.settings.effects import check_effects
from broker.settings.explanations import explain, explain_json
from broker.settings.setting_types import (
    ENVIRONMENT_PREFIX,
    CertificateNames,
    FileName,
    HostNames,
    Name,
    Origins,
    SasRules,
    SecondKey,
    blank_text,
    refuse_blank_folders,
    variable_of,
)
from broker.settings.tier_checks import check_tier
from storage import store_defaults

DEVELOPMENT_KEY_NAME = "RootManageSharedAccessKey"
DEVELOPMENT_KEY = "SAS_KEY_VALUE"
"""The key in the emulator's connection strings, and so in every sample and test (HTTP contract 5.1)."""

KIB, MIB = 1024, 1024 * 1024
STANDARD_CREDITS = 1_000
"""Per second, in the basic and standard tiers (HTTP contract 6.3)."""
PARTITIONS_MAX = 256
"""A sequence number has room for 65,536 partitions, but each one is a log with its own files, so far fewer
make sense."""

FsyncPolicy = Literal["always", "interval", "never"]
LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Settings(BaseSettings):
    """All settings of one broker. Frozen, because only entities change at run time."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        frozen=True,
        extra="forbid",
        env_parse_none_str="none",
        env_ignore_empty=True,
        validate_default=True,
    )

    # --- where it listens -----------------------------------------------------------------------------------

    host: Name = Field(
        "127.0.0.1",
        description="Address to listen on, for all ports. 0.0.0.0 means all IPv4 addresses.",
    )
    amqp_port: int = Field(5672, ge=0, le=65535, description="AMQP over plain TCP. 0 picks a free port.")
    amqps_port: int | None = Field(
        5671, ge=0, le=65535, description="AMQP over TLS. 0 picks a free port, `none` turns it off."
    )
    http_port: int = Field(
        5300,
        ge=0,
        le=65535,
        description=(
            "Administration, health, metrics and AMQP over WebSocket; plain HTTP and TLS on the same port."
        ),
    )
    tls_certificate: FileName | None = Field(
        None,
        description="Certificate chain (PEM). If unset, the broker makes a certificate in the data folder.",
    )
    tls_key: FileName | None = Field(None, description="Private key (PEM) of the certificate.")
    certificate_names: CertificateNames = Field(
        (),
        description="Additional names in the generated certificate, separated by commas: those of a compose "
        "service, for example. The HTTP port answers to them, too. `*.example.com` is one for any one label "
        "in place of the star.",
    )
    hostnames: HostNames = Field(
        ("host.docker.internal", "host.containers.internal"),
        description=(
            "Additional host names that the HTTP port answers to, separated by commas. `*.example.com` "
            "matches any one label in place of the star."
        ),
    )
    origins: Origins = Field(
        (),
        description="Other sites whose web pages may use the HTTP port, separated by commas: `https://app.example.com`.",
    )

    # --- identity and keys ----------------------------------------------------------------------------------

    namespace: Name = Field(
        "sbemulatorns", max_length=50, description="Name of the namespace, as clients see it."
    )
    tier: TierName = Field(
        "unlimited",
        description="The namespace's tier: `basic`, `standard`, `premium`, or `unlimited`, which permits "
        "everything.",
    )
    throttle_credits: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Credits that the namespace is given per second: a message costs 1, a management request "
        "10. 0: it is not throttled. If unset: 1,000 in the `basic` and `standard` tiers, 0 in the others.",
    )
    throttle_filter_credits: int = Field(
        0,
        ge=0,
        le=1_000,
        description="Credits that it costs to compare a message that is sent to a topic with one rule of its "
        "subscriptions, besides the message itself. Azure Service Bus takes 1. Needs a namespace that is "
        "throttled by credits.",
    )
    messaging_units: int = Field(
        1,
        description="Messaging units of the `premium` tier: 1, 2, 4, 8 or 16. They can be changed while the "
        "broker runs.",
    )
    throttle_cpu_percent: int = Field(
        90,
        ge=0,
        le=100,
        description="CPU above which a namespace of the `premium` tier is throttled, in percent of one core "
        "for each messaging unit; 0 for no threshold.",
    )
    throttle_memory_percent: int = Field(
        90,
        ge=0,
        le=100,
        description="The same for memory, in percent of the memory mark, whatever the messaging units.",
    )
    throttle_pending_max: int = Field(
        500_000,
        ge=0,
        description="The same for the disk: messages and requests that wait for their outcome. This many for "
        "each messaging unit, and once more for the namespace.",
    )
    sas_key_name: Name = Field(
        DEVELOPMENT_KEY_NAME,
        max_length=256,
        description="Name of the root key, which has all rights.",
    )
    sas_key: Name = Field(
        DEVELOPMENT_KEY,
        repr=False,
        description="The root key. The default is public: change it before others can connect.",
    )
    sas_key_file: FileName | None = Field(
        None,
        description="File with the root key instead, for container secrets. It is read again when it "
        "changes.",
    )
    sas_secondary_key: SecondKey = Field(
        "", repr=False, description="A second key of the same name, so that keys can be rotated."
    )
    sas_secondary_key_file: FileName | None = Field(
        None, description="File with the second key instead. It is read again when it changes."
    )
    sas_rules: SasRules = Field(
        (),
        repr=False,
        description=(
            "Additional keys of the namespace: a JSON list of objects with key_name, primary_key, "
            "secondary_key and rights."
        ),
    )
    sas_rules_file: FileName | None = Field(
        None, description="File with these additional keys instead. It is read again when it changes."
    )
    sas_grace_ms: int = Field(
        60_000,
        ge=0,
        le=3_600_000,
        description=(
            "How long an expired token is still accepted over HTTP. The Python client reuses its tokens "
            "for that long."
        ),
    )

    # --- what it keeps --------------------------------------------------------------------------------------

    data_dir: Path = Field(
        Path("data"),
        description=(
            "Folder for the logs, the catalogue and the generated certificate. With several, separated "
            "by `:`, the partitions are spread over them."
        ),
    )
    more_data_dirs: tuple[Path, ...] = Field(
        (),
        description=(
            "Additional data folders, as a JSON list. They follow those in `PARTIBUS_DATA_DIR` or "
            "`--data-dir`."
        ),
    )
    fsync: FsyncPolicy = Field(
        store_defaults.FSYNC,
        description=(
            "When commits are synced to disk: before they are acknowledged (`always`), every "
            "`PARTIBUS_FSYNC_INTERVAL_MS` (`interval`), or `never`."
        ),
    )
    fsync_interval_ms: int = Field(
        store_defaults.FSYNC_INTERVAL_MS,
        ge=1,
        le=60_000,
        description="Time between two syncs if `PARTIBUS_FSYNC` is `interval`; refused otherwise.",
    )
    segment_bytes: int = Field(
        store_defaults.SEGMENT_BYTES_MAX,
        ge=64 * KIB,
        le=4096 * MIB,
        description=(
            "Largest size of a log's segment file. Short logs, and logs on a disk with little free space, "
            "use smaller ones."
        ),
    )
    checkpoint_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=4096 * MIB,
        description="Bytes written to a log until its next checkpoint is due. After a crash, as many are "
        "replayed.",
    )
    partition_process: bool = Field(
        False,
        description="Run the partitions in a separate process. This takes about a fifth more CPU and is no "
        "faster on two cores; it proves that only messages pass between the two processes.",
    )
    committer_threads: int = Field(
        store_defaults.COMMITTER_THREADS,
        ge=1,
        le=64,
        description="Threads of each data folder that write to files which grow: new logs and new segments. "
        "Other commits go through two threads of their own.",
    )
    log_files_max: int | None = Field(
        None,
        ge=16,
        description="Log files to keep open, a quarter of them for reading. The least recently used one is "
        "closed to make room. If unset: a third of the process's file descriptors, at most 8,192.",
    )
    log_idle_ms: int = Field(
        store_defaults.SEGMENT_IDLE_MS,
        ge=10,
        le=86_400_000,
        description="How long a partition keeps its file open when nothing is written. With "
        "`PARTIBUS_FSYNC=always`, also how soon an unchanged partition counts as at rest: after a crash, the "
        "next start need not open it.",
    )
    disk_timeout_ms: int = Field(
        5_000,
        ge=100,
        le=60_000,
        description="How long a partition waits for its disk. After that it is unavailable until the disk "
        "answers, and messages without a key go to other partitions. Creating, updating or deleting a queue "
        "is answered with 503 after the same time.",
    )
    payload_memory_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Memory for message bodies, over all partitions: at most half of the memory mark, and by "
        "default no more than an eighth of it. Other bodies are read from the log.",
    )
    message_ids_max: int = Field(
        5_000_000,
        ge=1,
        description="Message-ids that one partition remembers to detect duplicates, about 100 bytes of "
        "memory each. Beyond this, sends to the partition are refused until the window has moved on.",
    )
    memory_percent_max: int = Field(
        60,
        ge=1,
        le=100,
        description="Share of the container's memory (outside a container, of the machine's). If the process "
        "uses more, sends are refused until receivers have made room.",
    )
    memory_bytes_max: int | None = Field(None, ge=MIB, description="The same in bytes, instead of the share.")

    # --- entities -------------------------------------------------------------------------------------------

    partitions_default: int = Field(
        PARTITIONS_DEFAULT,
        ge=1,
        le=PARTITIONS_MAX,
        description="Number of partitions of an entity that is created without one.",
    )
    partitioned_by_default: bool = Field(
        True, description="Whether an entity created without EnablePartitioning is partitioned."
    )
    entities_max: int = Field(10_000, ge=1, description="Largest number of entities in the namespace.")
    subscriptions_max: int = Field(
        2_000,
        ge=1,
        description="Largest number of subscriptions of one topic. Over time, with those that were deleted, "
        "a topic can have 16,383.",
    )
    rules_max: int = Field(1_000, ge=1, description="Largest number of rules of one subscription.")
    partitioned_entities_max: int | None = Field(
        None,
        ge=0,
        description="Largest number of partitioned entities. If unset: 100 in the `basic` and `standard` "
        "tiers, `PARTIBUS_ENTITIES_MAX` in the others.",
    )
    entity_mb_max: int = Field(
        0,
        ge=0,
        description="Largest size of an entity over all its partitions, in MiB; 0: no limit but "
        "MaxSizeInMegabytes of each.",
    )
    message_kb_max: int = Field(
        1024,
        ge=1,
        le=102_400,
        description="Default for the largest message that an entity accepts, in KiB. In the `basic` and "
        "`standard` tiers, it is 256 if unset, and applies to every entity. In a partitioned namespace of "
        "the `premium` tier, no entity accepts larger ones.",
    )
    properties_kb_max: int = Field(
        64,
        ge=1,
        le=64,
        description="Largest size of all annotations and properties of a message that is sent, in KiB (its "
        "header size).",
    )
    property_kb_max: int = Field(
        32,
        ge=1,
        le=32,
        description="Largest value of one property of a message that is sent, in KiB.",
    )
    peek_kb_max: int = Field(
        1024,
        ge=1,
        le=102_400,
        description="Largest page of a peek, in KiB. A page has at least one message, whatever its size. If "
        "unset: 256 in the `basic` and `standard` tiers.",
    )

    auto_delete_on_idle_ms_min: int = Field(
        AUTO_DELETE_ON_IDLE_MS_MIN,
        ge=1_000,
        description="Shortest AutoDeleteOnIdle that an entity may have.",
    )
    lock_renewal_ms_max: int = Field(
        3_600_000,
        ge=1_000,
        description="Longest lock that a client may ask for with `partibus:renew-lock`.",
    )

    # --- AMQP connections -----------------------------------------------------------------------------------

    connections_max: int = Field(
        10_000,
        ge=1,
        description="Largest number of AMQP connections at a time, over all ports. If unset: 5,000 in the "
        "tiers of the service.",
    )
    receivers_per_entity_max: int = Field(
        10_000,
        ge=1,
        description="Receivers of one entity, those of a topic's subscriptions together, and with requests "
        "over HTTP that receive. If unset: 5,000 in the tiers of the service.",
    )
    connection_open_timeout_ms: int = Field(
        60_000, ge=100, description="Time for a new connection to finish TLS, SASL and the AMQP open."
    )
    unclaimed_timeout_ms: int = Field(
        20_000,
        ge=0,
        description="Time a connection may stay open without a valid token or login; 0 for no limit.",
    )
    sessions_per_connection_max: int = Field(
        256, ge=1, le=65_535, description="AMQP sessions per connection."
    )
    session_wait_ms_max: int = Field(
        65_000,
        ge=100,
        description=(
            "How long a receiver may wait for the next free message session; also applies to receivers that "
            "do not say how long they wait."
        ),
    )
    session_state_kb_max: int = Field(
        1_024,
        ge=1,
        le=4_000,
        description="Largest state of a message session, in KiB. The entity's largest message limits it too.",
    )
    session_states_max: int = Field(
        100_000, ge=1, description="Message sessions of one partition that may have a state."
    )
    cursors_max: int = Field(
        100,
        ge=1,
        description="Cursors of one queue, subscription or dead-letter queue (AMQP contract 7.6.4).",
    )
    sinks_max: int = Field(
        1_000, ge=1, description="Sinks in the ledger of one partition (AMQP contract 7.6.7)."
    )
    links_per_connection_max: int = Field(5_000, ge=1, description="Links per connection.")
    frame_bytes_max: int = Field(
        256 * KIB, ge=512, le=16 * MIB, description="Largest AMQP frame accepted, announced in open."
    )
    idle_timeout_ms: int = Field(
        240_000,
        ge=1_000,
        description=(
            "Idle time-out announced in open. A peer that is silent for twice as long is disconnected."
        ),
    )
    link_credit: int = Field(
        1_000,
        ge=1,
        le=100_000,
        description="Messages a client may send on a link ahead of their acknowledgement.",
    )
    unsettled_per_link_max: int = Field(
        5_000, ge=1, description="Deliveries a receiver may hold unsettled on one link."
    )
    connection_inflight_bytes_max: int = Field(
        16 * MIB, ge=64 * KIB, description="Bytes received and not yet acknowledged, per connection."
    )
    total_inflight_bytes_max: int = Field(
        256 * MIB,
        ge=MIB,
        description=(
            "The same over all connections. At most an eighth of the memory mark, or 16 MiB if that is more."
        ),
    )
    output_buffer_bytes_max: int = Field(
        8 * MIB,
        ge=64 * KIB,
        description=(
            "Output that may wait for a client before its links stop sending; 256 KiB until the client "
            "has shown that it reads."
        ),
    )
    total_output_bytes_max: int = Field(
        256 * MIB,
        ge=MIB,
        description=(
            "The same over all connections. Once half is used, each connection gets a share of the rest, "
            "at least 16 KiB. At most an eighth of the memory mark, or 16 MiB if that is more."
        ),
    )
    receive_cache_messages: int = Field(
        1_000, ge=0, description="Locked messages kept ready per connection for its next requests."
    )
    receive_cache_bytes: int = Field(4 * MIB, ge=0, description="The same in bytes.")

    # --- transactions ---------------------------------------------------------------------------------------

    transaction_messages_max: int = Field(
        100, ge=1, le=1_000, description="Messages that one transaction may send and settle."
    )
    transaction_timeout_ms: int = Field(
        120_000,
        ge=100,
        le=3_600_000,
        description=(
            "Time from a transaction's first operation until the broker rolls it back. One without "
            "operations ends after the same time."
        ),
    )
    transactions_per_connection_max: int = Field(
        1_000, ge=1, description="Transactions that a connection may have open."
    )
    transactions_max: int = Field(
        10_000,
        ge=1,
        description=(
            "The same over all connections. Clients without a token share a tenth of them; beyond that, "
            "their oldest transaction without operations ends."
        ),
    )
    connection_transaction_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="Bytes that the open transactions of a connection may hold.",
    )
    total_transaction_bytes_max: int = Field(
        256 * MIB,
        ge=MIB,
        description=(
            "The same over all connections, shared in the same way. At most an eighth of the memory mark, or "
            "16 MiB if that is more."
        ),
    )

    # --- HTTP -----------------------------------------------------------------------------------------------

    http_connections_max: int = Field(
        1_000,
        ge=1,
        description=(
            "HTTP connections at a time, WebSockets included. Beyond that, a new client takes the place of "
            "the one that has waited longest."
        ),
    )
    http_header_bytes_max: int = Field(
        16 * KIB, ge=1 * KIB, le=MIB, description="Longest request line and longest header field."
    )
    http_body_bytes_max: int = Field(
        MIB, ge=1 * KIB, le=128 * MIB, description="Largest body of an administration request."
    )
    http_header_timeout_ms: int = Field(
        5_000,
        ge=10,
        description="Time for a complete request header: including the TLS handshake on a new connection, "
        "from the first byte on a reused one. Also applies to the AMQP header on a new WebSocket.",
    )
    http_transfer_timeout_ms: int = Field(
        30_000,
        ge=100,
        description="Time for the body of a request to arrive, and for a client to read the answer.",
    )
    http_keepalive_ms: int = Field(
        75_000, ge=100, description="How long an HTTP connection may stay idle between requests."
    )

    # --- running --------------------------------------------------------------------------------------------

    log_format: LogFormat | None = Field(
        None, description="`console` or `json`. If unset: console in a terminal, otherwise JSON."
    )
    log_level: LogLevel = Field("info", description="Lowest severity of the log lines to write.")
    shutdown_timeout_ms: int = Field(
        10_000,
        ge=0,
        description="Time that open requests have to finish when the broker stops; what clients have sent "
        "over AMQP has as long to be answered.",
    )

    @model_validator(mode="before")
    @classmethod
    def _data_dir_may_be_a_list(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        for name in ("data_dir", "more_data_dirs"):
            refuse_blank_folders(variable_of(name), given.get(name))
        folders = given.get("data_dir")
        if isinstance(folders, str) and os.pathsep in folders:
            folders = folders.split(os.pathsep)
        if isinstance(folders, list | tuple) and folders:
            first, *more = folders
            return given | {
                "data_dir": first,
                "more_data_dirs": [*more, *(given.get("more_data_dirs") or ())],
            }
        return given

    @model_validator(mode="after")
    def _data_dirs_differ(self) -> Self:
        folders = [path.resolve() for path in self.data_dirs]
        if twice := [str(path) for path in folders if folders.count(path) > 1]:
            raise ValueError(f"a data folder is named twice: {twice[0]}")
        for path in folders:
            if inside := next((each for each in folders if path in each.parents), None):
                raise ValueError(
                    f"a data folder lies inside another one: {inside} in {path}. Each needs a place of "
                    "its own, such as /disk1/partibus and /disk2/partibus"
                )
        return self

    @model_validator(mode="after")
    def _a_key_is_given_once(self) -> Self:
        for key in ("sas_key", "sas_secondary_key", "sas_rules"):
            if key in self.model_fields_set and getattr(self, f"{key}_file") is not None:
                raise ValueError(f"give {variable_of(key)} or {variable_of(f'{key}_file')}, not both of them")
        return self

    @model_validator(mode="after")
    def _each_has_an_effect(self) -> Self:
        check_effects(self)
        return self

    @model_validator(mode="before")
    @classmethod
    def _quotas_are_those_of_the_tier(cls, given: object) -> object:
        if isinstance(given, dict):
            return {**DEFAULTS.get(str(given.get("tier")), {}), **given}
        return given

    @model_validator(mode="after")
    def _tier_has_a_use_for_them(self) -> Self:
        check_tier(self)
        return self

    @property
    def credits_per_second(self) -> int:
        """The credits that the namespace is given; 0 if it is not throttled."""
        if self.throttle_credits is None:
            return STANDARD_CREDITS if self.tier in ("basic", "standard") else 0
        return self.throttle_credits

    @property
    def namespace_tier(self) -> Tier:
        """What the namespace's entities may be."""
        return tier_of(
            self.tier,
            partitioned=self.partitioned_by_default,
            partitions=self.partitions_default,
            message_kb=self.message_kb_max,
            partitioned_entities=self.partitioned_entities_max,
        )

    @property
    def data_dirs(self) -> tuple[Path, ...]:
        """All data folders, as the settings name them."""
        return self.data_dir, *self.more_data_dirs


class WrongSettings(ValueError):
    """Invalid settings. The text has one line per setting, with its variable, its value and the reason."""


def load_settings(**given: object) -> Settings:
    """Load the settings from `given`, then the environment, then the defaults. Raises WrongSettings."""
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise WrongSettings(explain(error)) from error
    except SettingsError as error:
        raise WrongSettings(explain_json(error)) from error


def refuse_blank(option: str, name: str | None) -> None:
    """Check that an option which names a file or folder is not blank, if it is given at all: an empty one
    would mean the current folder. Raises WrongSettings."""
    if name is not None and not name.strip():
        raise WrongSettings(f"{option}: {blank_text(name)}")


def unknown_variables(environment: Iterable[str] | None = None) -> list[str]:
    """Variables with our prefix that name no setting, most likely misspelt.

    Warn of them, but do not refuse to start: an orchestrator sets such variables by itself for a service
    called `partibus`. Settings are read from variables in any case, but PARTIBUS_CONFIG only in capitals.
    """
    known = {variable_of(name) for name in Settings.model_fields}
    names = os.environ if environment is None else environment
    ours = (name for name in names if name.upper().startswith(ENVIRONMENT_PREFIX))
    return sorted(
        name for name in ours if name.upper() not in known and name != ENVIRONMENT_PREFIX + "CONFIG"
    )
