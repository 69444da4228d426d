"""A pytest plugin that runs the live tests of `azure-servicebus` unchanged against the broker.

The suite expects Microsoft's internal `devtools_testutils` and creates its namespaces and entities through
Azure Resource Manager. Neither exists here, so this plugin installs replacement modules of the same names
before the suite is collected: the "namespace" is the running broker, and the official administration client
creates the entities. The tests and the SDK come unchanged from the sdist.

The broker listens on the standard ports (5671, 443) of its own address, so that the SDK needs no special
settings; the generated certificate authority replaces certifi's.

Environment: `PARTIBUS_LIVE_HOST`, `PARTIBUS_LIVE_CA`, `PARTIBUS_LIVE_RESULTS` (the JSON file to write).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import sys
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import certifi
import pytest

HOST = os.environ["PARTIBUS_LIVE_HOST"]
AUTHORITY = os.environ["PARTIBUS_LIVE_CA"]
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
CONNECTION_STRING = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
LOCK_DURATION = "PT30S"
"""Lock duration that the suite's own preparer gives queues by default."""

certifi.where = lambda: AUTHORITY
os.environ["REQUESTS_CA_BUNDLE"] = AUTHORITY

# --- results ------------------------------------------------------------------------------------------------

_results: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of each test."""
    if report.failed:
        _results[report.nodeid] = "failed"
    elif report.skipped:
        _results.setdefault(report.nodeid, "skipped")
    elif report.when == "call":
        _results.setdefault(report.nodeid, "passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results once, in the process that started the suite."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["PARTIBUS_LIVE_RESULTS"]).write_text(json.dumps(_results), encoding="utf-8")


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Replaces the suite's recorder of HTTP traffic; nothing is recorded here."""


# --- devtools_testutils -------------------------------------------------------------------------------------


class RecordedTestCase:
    """Base class of the suite's test classes."""

    is_live = True
    in_recording = False

    def get_resource_name(self, name: str) -> str:
        return f"{name}{uuid.uuid4().hex[:12]}"

    create_random_name = get_resource_name

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a coroutine function as a plain test, for the preparers around it."""

        @functools.wraps(test)
        def run(*values: Any, **given: Any) -> None:
            asyncio.run(test(*values, **given))

        return run


def get_credential(is_async: bool = False, **options: Any) -> Any:
    """The root key, as the clients take it from a connection string; it replaces an Entra ID credential."""
    if is_async:
        from azure.servicebus.aio._base_handler_async import (
            ServiceBusSharedKeyCredential as AsyncSharedKeyCredential,
        )

        return AsyncSharedKeyCredential(KEY_NAME, KEY)
    from azure.servicebus._base_handler import ServiceBusSharedKeyCredential

    return ServiceBusSharedKeyCredential(KEY_NAME, KEY)


def _unrecorded(test: Callable[..., Any]) -> Callable[..., Any]:
    return test


class Resource:
    """An entity or namespace, with the attributes that tests use."""

    def __init__(self, name: str) -> None:
        self.name = self.id = name


def _wrap(
    test: Callable[..., Any], prepare: Callable[[dict[str, Any]], tuple[dict[str, Any], Callable[[], None]]]
) -> Callable[..., Any]:
    """Run a test, or an inner preparer, with its prepared arguments. Awaits the result of a coroutine
    function.
    """
    own = inspect.signature(test).parameters
    takes_all = hasattr(test, "prepares") or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values()
    )

    @functools.wraps(test)
    def prepared(self: Any, *values: Any, **given: Any) -> None:
        made, remove = prepare(given)
        try:
            result = test(
                self,
                *values,
                **{name: value for name, value in {**given, **made}.items() if takes_all or name in own},
            )
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
        finally:
            remove()

    del prepared.__dict__["__wrapped__"]  # otherwise pytest takes prepared arguments for fixtures
    prepared.prepares = True  # type: ignore[attr-defined]
    shown = [
        own[name] for name in own if name in ("self", "test_class", "uamqp_transport", "socket_transport")
    ]
    prepared.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return prepared


async def _awaited(result: Any) -> None:
    await result


def _nothing() -> None:
    pass


# --- servicebus_preparer ------------------------------------------------------------------------------------


@functools.cache
def _administration() -> Any:
    from azure.servicebus.management import ServiceBusAdministrationClient

    return ServiceBusAdministrationClient.from_connection_string(CONNECTION_STRING)


class Preparer:
    """Creates one resource for a test and removes it afterwards, or keeps it for the next test that asks for
    the same.
    """

    def __init__(
        self, name_prefix: str = "", use_cache: bool = False, parameter_name: str = "", **options: Any
    ) -> None:
        self.name_prefix, self.use_cache, self.options = name_prefix or "live", use_cache, options
        self.parameter_name = parameter_name or self.default_parameter

    default_parameter = ""
    _cache: ClassVar[dict[tuple[Any, ...], dict[str, Any]]] = {}

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        return _wrap(test, self.prepare)

    def prepare(self, given: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        key = (
            type(self),
            self.parameter_name,
            *sorted((name, str(value)) for name, value in self.options.items()),
        )
        if self.use_cache and key in self._cache:
            return self._cache[key], _nothing
        name = f"{self.name_prefix}{uuid.uuid4().hex[:12]}"
        made = self.create(name, given)
        if self.use_cache:
            self._cache[key] = made
            return made, _nothing
        return made, lambda: self.remove(name, given)

    def create(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        self.create_entity(name, given)
        return {self.parameter_name: Resource(name)}

    def create_entity(self, name: str, given: dict[str, Any]) -> None:
        """Create in the broker what the resource stands for, if anything."""

    def remove(self, name: str, given: dict[str, Any]) -> None:
        pass


class ResourceGroupPreparer(Preparer):
    default_parameter = "resource_group"


class NamespacePreparer(Preparer):
    default_parameter = "servicebus_namespace"

    def create(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        prefix = self.parameter_name
        return {
            prefix: Resource(HOST),
            f"{prefix}_connection_string": CONNECTION_STRING,
            f"{prefix}_key_name": KEY_NAME,
            f"{prefix}_primary_key": KEY,
        }


class QueuePreparer(Preparer):
    default_parameter = "servicebus_queue"

    def create_entity(self, name: str, given: dict[str, Any]) -> None:
        wanted = {"lock_duration": LOCK_DURATION, "enable_partitioning": False, **self.options}
        _administration().create_queue(name, **wanted)

    def remove(self, name: str, given: dict[str, Any]) -> None:
        _administration().delete_queue(name)


class TopicPreparer(Preparer):
    default_parameter = "servicebus_topic"

    def create_entity(self, name: str, given: dict[str, Any]) -> None:
        _administration().create_topic(name)

    def remove(self, name: str, given: dict[str, Any]) -> None:
        _administration().delete_topic(name)


class SubscriptionPreparer(Preparer):
    default_parameter = "servicebus_subscription"

    def create_entity(self, name: str, given: dict[str, Any]) -> None:
        wanted = {"lock_duration": LOCK_DURATION, **self.options}
        _administration().create_subscription(given["servicebus_topic"].name, name, **wanted)

    def remove(self, name: str, given: dict[str, Any]) -> None:
        _administration().delete_subscription(given["servicebus_topic"].name, name)


class NamespaceRulePreparer(Preparer):
    """A key of the namespace. The broker's namespace keys are settings, so they exist from the start (see
    `python_suite.py`).
    """

    default_parameter = "servicebus_authorization_rule"

    def create(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        rights = "".join(
            sorted(
                _right(each)[0] for each in self.options.get("access_rights", ("Manage", "Send", "Listen"))
            )
        )
        made = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=live-{rights};SharedAccessKey=key-{rights}"
        return {
            self.parameter_name: Resource(f"live-{rights}"),
            f"{self.parameter_name}_connection_string": made,
        }


class QueueRulePreparer(Preparer):
    default_parameter = "servicebus_queue_authorization_rule"

    def create(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        from azure.servicebus.management import AccessRights, AuthorizationRule

        rights: list[str | AccessRights] = [
            AccessRights(_right(each))
            for each in self.options.get("access_rights", ("Manage", "Send", "Listen"))
        ]
        key = uuid.uuid4().hex
        queue = _administration().get_queue(given["servicebus_queue"].name)
        rules = [
            *(queue.authorization_rules or []),
            AuthorizationRule(key_name=name, primary_key=key, secondary_key=key[::-1], rights=rights),
        ]
        queue.authorization_rules = rules
        _administration().update_queue(queue)
        made = (
            f"Endpoint=sb://{HOST}/;SharedAccessKeyName={name};SharedAccessKey={key};EntityPath={queue.name}"
        )
        return {self.parameter_name: Resource(name), f"{self.parameter_name}_connection_string": made}


def _right(value: Any) -> str:
    return str(getattr(value, "value", value)).capitalize()


# --- sb_env_loader ------------------------------------------------------------------------------------------


class EnvironmentPreparer:
    """Provides the values that the suite reads from the environment of a provisioned namespace."""

    values: ClassVar[dict[str, str]] = {
        "servicebus_connection_str": CONNECTION_STRING,
        "servicebus_fully_qualified_namespace": HOST,
        "servicebus_topic_name": "live-topic",
        "servicebus_subscription_name": "live-subscription",
        "servicebus_queue_name": "live-queue",
        "servicebus_sas_policy": KEY_NAME,
        "servicebus_sas_key": KEY,
        "servicebus_session_queue_name": "live-session-queue",
        "servicebus_session_id": "session",
        "servicebus_session_queue_sas_policy": KEY_NAME,
        "servicebus_session_queue_sas_key": KEY,
    }

    def __init__(self, *ignored: Any, **more: Any) -> None:
        pass

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        return _wrap(test, lambda given: (self.values, _nothing))


# --- the modules --------------------------------------------------------------------------------------------


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def _ignored(*values: Any, **named: Any) -> None:
    """Replaces the sanitizers of recordings."""


_cached = functools.partial(functools.partial, use_cache=True)
_module(
    "devtools_testutils",
    AzureMgmtRecordedTestCase=RecordedTestCase,
    AzureRecordedTestCase=RecordedTestCase,
    get_credential=get_credential,
    recorded_by_proxy=_unrecorded,
    set_custom_default_matcher=_ignored,
    ResourceGroupPreparer=ResourceGroupPreparer,
    RandomNameResourceGroupPreparer=ResourceGroupPreparer,
    CachedResourceGroupPreparer=_cached(ResourceGroupPreparer),
    PowerShellPreparer=EnvironmentPreparer,
    add_general_regex_sanitizer=_ignored,
)
_module("devtools_testutils.aio", recorded_by_proxy_async=_unrecorded)
_module(
    "devtools_testutils.sanitizers",
    add_remove_header_sanitizer=_ignored,
    add_general_regex_sanitizer=_ignored,
    add_oauth_response_sanitizer=_ignored,
)
_module("sb_env_loader", ServiceBusPreparer=EnvironmentPreparer)
_module(
    "servicebus_preparer",
    SERVICEBUS_ENDPOINT_SUFFIX="",
    ServiceBusResourceGroupPreparer=ResourceGroupPreparer,
    ServiceBusNamespacePreparer=NamespacePreparer,
    ServiceBusQueuePreparer=QueuePreparer,
    ServiceBusTopicPreparer=TopicPreparer,
    ServiceBusSubscriptionPreparer=SubscriptionPreparer,
    ServiceBusNamespaceAuthorizationRulePreparer=NamespaceRulePreparer,
    ServiceBusQueueAuthorizationRulePreparer=QueueRulePreparer,
    CachedServiceBusResourceGroupPreparer=_cached(ResourceGroupPreparer),
    CachedServiceBusNamespacePreparer=_cached(NamespacePreparer),
    CachedServiceBusQueuePreparer=_cached(QueuePreparer),
    CachedServiceBusTopicPreparer=_cached(TopicPreparer),
    CachedServiceBusSubscriptionPreparer=_cached(SubscriptionPreparer),
)
