"""broker/http/addressing.py: what a path names, and pages of lists."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from broker.http.addressing import ManagedPath, next_url_of, page_of, read_path, url_of
from broker.http.refusals import HttpRefusal


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/orders", ManagedPath("orders")),
        ("/dir/q%202", ManagedPath("dir/q 2")),
        ("/dir%2Fq%202", ManagedPath("dir/q 2")),
        ("/orders/", ManagedPath("orders")),
        ("/", ManagedPath("")),
        ("/t/Subscriptions/", ManagedPath("t", ("Subscriptions",))),
        (
            "/dir%2Ft/subscriptions/s/rules/%24Default",
            ManagedPath("dir/t", ("subscriptions", "s", "rules", "$Default")),
        ),
        ("/subscriptions", ManagedPath("subscriptions")),
        ("/%24Resources/Queues", ManagedPath("$Resources/Queues")),
    ],
)
def test_a_path_is_split_before_it_is_decoded(path: str, expected: ManagedPath) -> None:
    assert read_path(path) == expected


@pytest.mark.parametrize(
    ("query", "page"),
    [("", (0, 100)), ("?$skip=7", (7, 100)), ("?%24skip=7&%24top=3", (7, 3)), ("?$top=5000", (0, 1_000))],
)
def test_a_page_is_what_the_query_asks_for_within_limits(query: str, page: tuple[int, int]) -> None:
    assert page_of(make_mocked_request("GET", f"/$Resources/queues{query}")) == page


def test_a_page_that_is_no_number_is_refused() -> None:
    with pytest.raises(HttpRefusal) as caught:
        page_of(make_mocked_request("GET", "/t/subscriptions?$skip=-1"))
    assert caught.value.status == 400


def test_urls_are_absolute_and_have_the_clients_host_and_version() -> None:
    request = make_mocked_request("GET", "/x?api-version=2024-05", headers={"Host": "ns.example:5300"})
    assert url_of(request, "dir/a b") == "http://ns.example:5300/dir/a%20b?api-version=2024-05"
    following = next_url_of(request, "x", 0, 2, 3)
    assert following == "http://ns.example:5300/x?api-version=2024-05&%24skip=2&%24top=2"
    assert next_url_of(request, "x", 2, 2, 3) is None
