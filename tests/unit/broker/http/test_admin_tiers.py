"""Administration of a namespace whose tier does not permit everything."""

from __future__ import annotations

from pathlib import Path

from broker.base.clock import ManualClock
from tests.support.http_entries import UPDATE, queue_body, value
from tests.support.http_stack import http_stack


async def test_the_tier_is_reported_and_decides_what_can_be_created(tmp_path: Path) -> None:
    plain = queue_body("<EnablePartitioning>false</EnablePartitioning>")
    async with http_stack(tmp_path, tier="premium", partitions_default=2) as stack:
        info = (await stack.ask("GET", "/$namespaceinfo"))[1]
        assert (value(info, "MessagingSKU"), value(info, "MessagingUnits")) == ("Premium", "1")
        status, text, _ = await stack.ask("PUT", "/orders", plain)
        assert status == 400 and "SubCode=40000. Non-partitioned entities are not allowed" in text
        assert (await stack.ask("PUT", "/orders", queue_body()))[0] == 201
    async with http_stack(tmp_path, tier="basic") as stack:
        info = (await stack.ask("GET", "/$namespaceinfo"))[1]
        assert value(info, "MessagingSKU") == "Basic" and "MessagingUnits" not in info
        session = queue_body("<RequiresSession>true</RequiresSession>")
        status, text, _ = await stack.ask("PUT", "/sessions", session)
        assert status == 400 and "The property 'RequiresSession' cannot be set" in text
        status, text, _ = await stack.ask("PUT", "/new", queue_body())
        assert (status, value(text, "DefaultMessageTimeToLive")) == (201, "P14D")
        forwarding = queue_body("<ForwardTo>new</ForwardTo>")
        assert (await stack.ask("PUT", "/orders", forwarding, headers=UPDATE))[0] == 400
        assert (await stack.ask("PUT", "/orders", queue_body(), headers=UPDATE))[0] == 200
        made = [stack.namespace.describe(name) for name in ("orders", "new")]
        assert [each and each.partitions for each in made] == [2, 16]


async def test_a_request_costs_10_credits_and_is_refused_without(tmp_path: Path) -> None:
    clock = ManualClock()
    async with http_stack(tmp_path, clock=clock, throttle_credits=25) as stack:
        assert (await stack.ask("PUT", "/orders", queue_body()))[0] == 201
        assert (await stack.ask("GET", "/orders", token=None))[0] == 401
        assert (await stack.ask("GET", "/orders"))[0] == 200
        status, text, headers = await stack.ask("DELETE", "/orders")
        assert (status, headers["Retry-After"]) == (503, "2")
        assert "SubCode=50004. " in text and "Error code: 50009. Please wait 2 seconds" in text
        assert stack.namespace.find("orders") is not None
        clock.advance(1_000)
        assert (await stack.ask("DELETE", "/orders"))[0] == 200


async def test_quotas_of_the_tier_are_refused_with_the_status_of_the_service(tmp_path: Path) -> None:
    async with http_stack(tmp_path, tier="standard", throttle_credits=0, partitioned_entities_max=1) as stack:
        status, text, _ = await stack.ask("PUT", "/orders", queue_body())
        assert (status, value(text, "MaxMessageSizeInKilobytes")) == (201, "256")
        status, text, _ = await stack.ask("PUT", "/more", queue_body())
        assert status == 403 and "SubCode=40300. The namespace holds 1 partitioned entities" in text
        plain = "<EnablePartitioning>false</EnablePartitioning>"
        assert (await stack.ask("PUT", "/more", queue_body(plain)))[0] == 201
        for element, wrong in (("MaxSizeInMegabytes", 1_500), ("MaxMessageSizeInKilobytes", 1_024)):
            body = queue_body(f"{plain}<{element}>{wrong}</{element}>")
            status, text, _ = await stack.ask("PUT", "/other", body)
            assert status == 400 and f"The specified value {wrong} is invalid" in text
