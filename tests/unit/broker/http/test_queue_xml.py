"""Queue descriptions in XML: every element is read and written as the clients expect it."""

from __future__ import annotations

import pytest

from broker.base.durations import UNLIMITED
from broker.entities.descriptions import AuthorizationRule, EntityStatus, QueueDescription, QueueSettings
from broker.entities.validation import WrongProperty
from broker.http.atom import ATOM, SERVICE_BUS, Entry, parse_entry, write_entry
from broker.http.description_xml import EntityDefaults, address_of, entity_of
from broker.http.queue_xml import read_queue, write_queue
from broker.namespace.runtime import EntityRuntime

DEFAULTS = EntityDefaults(partitioned=True, max_message_size_kb=1024)


NOW_MS = 1_767_607_200_123  # 2026-01-05T10:00:00.123Z


EMPTY = EntityRuntime(0, 0, 0, 0, 0, 0, 0, "Available", None)


def body(description: str, prefix: str = "") -> bytes:
    colon = f"{prefix}:" if prefix else ""
    opening = (
        f'<{colon}entry xmlns{":" + prefix if prefix else ""}="{ATOM}"><{colon}content '
        'type="application/xml">'
    )
    return f"{opening}{description}</{colon}content></{colon}entry>".encode()


def read(
    inner: str, previous: QueueSettings | None = None, defaults: EntityDefaults = DEFAULTS
) -> QueueSettings:
    description = parse_entry(body(f'<QueueDescription xmlns="{SERVICE_BUS}">{inner}</QueueDescription>'))
    return read_queue(description, defaults, previous, NOW_MS)


def test_an_empty_description_has_the_services_defaults_but_for_partitioning() -> None:
    assert read("") == QueueSettings()
    assert read("", defaults=EntityDefaults(False, 256)) == QueueSettings(
        enable_partitioning=False, max_message_size_kb=256
    )


def test_any_prefix_and_any_order_is_read() -> None:
    elements = "<x:MaxDeliveryCount>7</x:MaxDeliveryCount><x:LockDuration>PT30S</x:LockDuration>"
    inner = f'<x:QueueDescription xmlns:x="{SERVICE_BUS}">{elements}</x:QueueDescription>'
    settings = read_queue(parse_entry(body(inner, "ns0")), DEFAULTS, None, NOW_MS)
    assert (settings.max_delivery_count, settings.lock_duration_ms) == (7, 30_000)


def test_every_element_is_honoured() -> None:
    settings = read(
        "<LockDuration>PT10S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes><RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
        "<RequiresSession>True</RequiresSession><DefaultMessageTimeToLive>P1D</DefaultMessageTimeToLive>"
        "<DeadLetteringOnMessageExpiration>1</DeadLetteringOnMessageExpiration><DuplicateDetectionHistoryTimeWindow>PT1H</DuplicateDetectionHistoryTimeWindow>"
        "<MaxDeliveryCount>2147483647</MaxDeliveryCount><EnableBatchedOperations>false</EnableBatchedOperations>"
        "<IsAnonymousAccessible>true</IsAnonymousAccessible><Status>senddisabled</Status>"
        "<UserMetadata> kept as it is </UserMetadata>"
        "<SupportOrdering>false</SupportOrdering><AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>"
        "<ForwardDeadLetteredMessagesTo>sb://host:5300/dir/dead%20</ForwardDeadLetteredMessagesTo><EnableExpress>0</EnableExpress>"
        "<MaxMessageSizeInKilobytes>2</MaxMessageSizeInKilobytes>"
    )
    assert settings == QueueSettings(
        lock_duration_ms=10_000,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        duplicate_detection_window_ms=3_600_000,
        requires_session=True,
        default_time_to_live_ms=86_400_000,
        dead_lettering_on_expiration=True,
        max_delivery_count=2_147_483_647,
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        forward_dead_lettered_to="dir/dead ",
        user_metadata=" kept as it is ",
        auto_delete_on_idle_ms=300_000,
        enable_partitioning=False,
        support_ordering=False,
        anonymous_accessible=True,
        max_message_size_kb=2,
    )


def test_read_only_unknown_and_empty_elements_count_as_left_out() -> None:
    inner = (
        "<SizeInBytes>5</SizeInBytes><CreatedAt>2026-01-05T10:00:00Z</CreatedAt><Novelty><Deep>1</Deep></Novelty><ForwardTo/><AuthorizationRules/>"
        '<CountDetails xmlns:d="http://schemas.microsoft.com/netservices/2011/06/servicebus"><d:ActiveMessageCount>1</d:ActiveMessageCount></CountDetails>'
        "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><MaxDeliveryCount></MaxDeliveryCount>"
    )
    assert read(inner) == QueueSettings()


def test_an_update_that_leaves_out_what_is_fixed_leaves_it_as_it_was_and_resets_the_rest() -> None:
    previous = QueueSettings(
        requires_session=True,
        requires_duplicate_detection=True,
        enable_partitioning=False,
        max_delivery_count=3,
    )
    assert read("", previous) == QueueSettings(
        requires_session=True, requires_duplicate_detection=True, enable_partitioning=False
    )
    assert read("<EnablePartitioning>true</EnablePartitioning>", previous).enable_partitioning is True


def test_the_longest_duration_means_without_limit_however_python_rounds_it() -> None:
    assert (
        read(
            "<DefaultMessageTimeToLive>P10675199DT2H48M5.477539S</DefaultMessageTimeToLive>"
        ).default_time_to_live_ms
        is None
    )


def test_authorization_rules_are_read_with_any_prefix_for_their_type() -> None:
    inner = (
        '<AuthorizationRules xmlns:p5="http://www.w3.org/2001/XMLSchema-instance">'
        '<AuthorizationRule p5:type="SharedAccessAuthorizationRule">'
        "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
        "<KeyName>app</KeyName><PrimaryKey>one</PrimaryKey><SecondaryKey>two</SecondaryKey></AuthorizationRule></AuthorizationRules>"
    )
    assert read(inner).authorization_rules == (
        AuthorizationRule("app", "one", "two", frozenset({"Send", "Listen"}), NOW_MS, NOW_MS),
    )


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("MaxDeliveryCount", "many"),
        ("MaxDeliveryCount", "9" * 20),
        ("RequiresSession", "perhaps"),
        ("LockDuration", "P10675199DT2H48M5.4775807S"),
        ("AutoDeleteOnIdle", "ten"),
        ("Status", "Creating"),
    ],
)
def test_a_value_of_no_sense_is_refused_by_its_element(element: str, value: str) -> None:
    with pytest.raises(WrongProperty) as caught:
        read(f"<{element}>{value}</{element}>")
    assert caught.value.element == element


@pytest.mark.parametrize(
    ("sent", "entity"),
    [
        ("sb://localhost:5300/q1", "q1"),
        ("http://host/dir/q%202", "dir/q 2"),
        ("https://host/q1/?api-version=2021-05", "q1"),
        ("https://host/sb://host:5300/dir/q1", "dir/q1"),
        ("q1", "q1"),
        ("dir/q1", "dir/q1"),
        ("", None),
        ("sb://host/", None),
        (None, None),
    ],
)
def test_a_forwarding_target_is_its_entity_path_however_it_is_spelled(
    sent: str | None, entity: str | None
) -> None:
    assert entity_of(sent) == entity


def test_a_forwarding_target_is_shown_as_the_absolute_address_that_clients_send_back() -> None:
    assert address_of("dir/q 2", "localhost:5300") == "sb://localhost:5300/dir/q%202"
    assert entity_of(address_of("dir/q 2", "localhost:5300")) == "dir/q 2"


GOLDEN = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><id>http://localhost:5300/orders?api-version=2021-05</id>'
    '<title type="text">orders</title>'
    "<published>2026-01-05T10:00:00.123Z</published><updated>2026-01-05T10:00:00.123Z</updated><author><name>sbemulatorns</name></author>"
    '<link rel="self" href="http://localhost:5300/orders?api-version=2021-05"/><content '
    'type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes><RequiresDuplicateDetection>false</RequiresDuplicateDetection>"
    "<RequiresSession>false</RequiresSession><DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"
    "<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>"
    "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow><MaxDeliveryCount>10</MaxDeliveryCount>"
    "<EnableBatchedOperations>true</EnableBatchedOperations><SizeInBytes>0</SizeInBytes><MessageCount>0</MessageCount>"
    "<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules></AuthorizationRules><Status>Active</Status>"
    "<CreatedAt>2026-01-05T10:00:00.123Z</CreatedAt><UpdatedAt>2026-01-05T10:00:00.123Z</UpdatedAt><AccessedAt>0001-01-01T00:00:00</AccessedAt>"
    "<SupportOrdering>true</SupportOrdering>"
    '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus"><d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>'
    "<d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount><d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount>"
    "<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount><d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount></CountDetails>"
    "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>"
    "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><EnableExpress>false</EnableExpress>"
    "<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes></QueueDescription></content></entry>"
)


def entry_of(queue: QueueDescription, runtime: EntityRuntime = EMPTY) -> Entry:
    url = "http://localhost:5300/orders?api-version=2021-05"
    return Entry(
        url,
        queue.name,
        "sbemulatorns",
        queue.created_at_ms,
        queue.updated_at_ms,
        write_queue(queue, runtime, "localhost:5300"),
    )


def queue_of(settings: QueueSettings) -> QueueDescription:
    return QueueDescription("orders", "0" * 32, 1, settings, NOW_MS, NOW_MS)


def test_a_queue_is_written_byte_for_byte_in_the_shape_that_every_client_parses() -> None:
    queue = queue_of(QueueSettings(enable_partitioning=False, max_message_size_kb=256))
    assert write_entry(entry_of(queue)).decode() == GOLDEN


def test_what_is_written_reads_back_as_the_same_settings() -> None:
    settings = QueueSettings(
        lock_duration_ms=12_345,
        requires_session=True,
        default_time_to_live_ms=1_500,
        status=EntityStatus.RECEIVE_DISABLED,
        forward_dead_lettered_to="dir/dead",
        user_metadata="<&> 'x' \u00e4\U0001f600",
        auto_delete_on_idle_ms=600_000,
        authorization_rules=(
            AuthorizationRule("app", "k1", "k2", frozenset({"Manage", "Send", "Listen"}), NOW_MS, NOW_MS),
        ),
    )
    description = parse_entry(write_entry(entry_of(queue_of(settings))))
    assert description.kind == "QueueDescription"
    assert read_queue(description, DEFAULTS, None, NOW_MS) == settings


def test_counts_stand_under_the_prefix_that_javascript_looks_for() -> None:
    runtime = EntityRuntime(1, 2, 3, 4, 5, 15, 999, "Limited", NOW_MS)
    text = write_entry(entry_of(queue_of(QueueSettings()), runtime)).decode()
    assert (
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus"><d2p1:ActiveMessageCount>1<'
        in text
    )
    for element in (
        "SizeInBytes>999",
        "MessageCount>15",
        "d2p1:TransferDeadLetterMessageCount>5",
        "EntityAvailabilityStatus>Limited",
    ):
        assert f"<{element}</" in text
    assert "<AccessedAt>2026-01-05T10:00:00.123Z</AccessedAt>" in text


def test_authorization_rules_carry_their_type_under_the_prefix_i() -> None:
    rule = AuthorizationRule("app", "k1", "", frozenset({"Listen", "Send"}), NOW_MS, NOW_MS)
    text = write_entry(entry_of(queue_of(QueueSettings(authorization_rules=(rule,))))).decode()
    assert (
        "<AuthorizationRule "
        'i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>'
    ) in text
    assert "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>" in text


def test_an_unlimited_time_to_live_is_written_as_the_longest_time_span() -> None:
    assert (
        f"<DefaultMessageTimeToLive>{UNLIMITED}<" in write_entry(entry_of(queue_of(QueueSettings()))).decode()
    )
